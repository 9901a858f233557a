/* SPDX-License-Identifier: MIT
 * eh_frame.c: the bytes of an unwind section for a row of code pages: written once, with FDEs that
 * are switched live and dead in place. A page has one FDE. A page of slots has an FDE for each
 * slot, because the frame of a template differs from instruction to instruction. Nothing is
 * registered here, and no lock is taken: one writer a page.
 *
 *   section   [CIE of each frame shape; that of steps is longer] [FDE of page or slot 0]..[of n-1]
 *             [sentinel] [0]
 *   FDE       +0 length | +4 distance to its CIE | +8 first pc | +16 bytes of pc, 0 = dead
 *             | of a slot +24 instructions, then 0 = DW_CFA_nop
 *
 * Every FDE is there from the start, and first pcs never change (docs/unwinders.md, section 2). The
 * sentinel starts where the last page ends: so the range of the section is all of the pages. A live
 * FDE covers its own page only, also in a span of pages: libgcc's binary search goes right at a
 * dead FDE, so a dead FDE inside a longer live range would hide the range. The CIEs have no
 * augmentation, so pcs are absolute pointers and the range is one aligned 8-byte word; libgcc takes
 * the encoding from the first CIE only. The instructions of a slot are written before the slot is
 * live.
 * Sources: LSB Core 5.0, 10.6 (.eh_frame); libgcc/unwind-dw2-fde.c. */
#include "unwind/steps.h"
#include "unwind/unwinders.h"

enum {
	CIE_FIXED_BYTES = 13, /* length, id, version, augmentation, alignments, return register */
	CIE_VERSION = 1,
	FDE_CIE_AT = 4,
	FDE_PC_AT = 8,
	FDE_RANGE_AT = 16,
	FDE_CFA_AT = 24,
	CIE_BYTES = 136, /* of each shape but that of steps */
	FDES_AT = (CH__FRAMES - 1) * CIE_BYTES + CH__CIE_MOST_BYTES,
	TERMINATOR_BYTES = 8,
};
_Static_assert(CIE_FIXED_BYTES + CH__FRAME_CFI_BYTES <= CIE_BYTES &&
		       CIE_FIXED_BYTES + CH__STEPS_PROGRAM_BYTES <= CH__CIE_MOST_BYTES,
	       "a CIE has room for a program");
_Static_assert(FDES_AT % 8 == 0 && FDE_RANGE_AT % 8 == 0 && FDE_CFA_AT % 8 == 0 &&
		       CH__FRAME_FDE_BYTES % 8 == 0,
	       "the range is one aligned word");

static void put32(uint8_t *at, uint32_t word)
{
	memcpy(at, &word, sizeof word);
}

static uint32_t fde_bytes(const struct ch__eh_place *place)
{
	return FDE_CFA_AT + (place->slot_bytes ? CH__FRAME_FDE_BYTES : 0);
}

uint32_t ch__eh_frame_of_page(const struct ch__eh_place *place)
{
	return place->slot_bytes ? (uint32_t)(place->page_bytes / place->slot_bytes) : 1;
}

size_t ch__eh_frame_bytes(const struct ch__eh_place *place)
{
	size_t fdes = (size_t)place->pages * ch__eh_frame_of_page(place) + 1;
	return FDES_AT + fdes * fde_bytes(place) + TERMINATOR_BYTES;
}

/* All FDEs of a section are as long as the first. */
uint8_t *ch__eh_frame_fde(uint8_t *section, uint32_t index)
{
	uint32_t length;
	memcpy(&length, section + FDES_AT, sizeof length);
	return section + FDES_AT + (size_t)index * (length + sizeof length);
}

static uint8_t *cie_of(uint8_t *section, uint8_t frame)
{
	size_t longer = frame > CH_FRAME_STEPS ? CH__CIE_MOST_BYTES - CIE_BYTES : 0;
	return section + (size_t)frame * CIE_BYTES + longer;
}

/* The distance goes from the field itself back to the CIE. */
static void set_cie(uint8_t *section, uint8_t *fde, uint8_t frame)
{
	put32(fde + FDE_CIE_AT, (uint32_t)(fde + FDE_CIE_AT - cie_of(section, frame)));
}

static _Atomic(uint64_t) *range_of(uint8_t *fde)
{
	return (_Atomic(uint64_t) *)(void *)(fde + FDE_RANGE_AT);
}

/* A shape that is not registered gets a well-formed CIE, too: readers step over all CIEs. Unwinders
 * may be reading a CIE with the program, so such a CIE is left alone. */
size_t ch__eh_frame_cie(uint8_t *cie, const struct ch__frame_shape *shapes, uint8_t frame)
{
	const struct ch__steps *steps = shapes[frame].steps;
	const uint8_t *program = steps ? steps->program : shapes[frame].cfi;
	size_t program_bytes = steps ? steps->program_bytes : shapes[frame].bytes;
	size_t bytes = frame == CH_FRAME_STEPS ? CH__CIE_MOST_BYTES : CIE_BYTES;
	if (cie[8] && !memcmp(cie + CIE_FIXED_BYTES, program, program_bytes))
		return bytes;
	put32(cie, (uint32_t)bytes - 4);
	put32(cie + 4, 0); /* id of a CIE */
	cie[8] = CIE_VERSION;
	cie[9] = 0; /* no augmentation */
	cie[10] = CH_ARCH_DWARF_CODE_ALIGN;
	cie[11] = CH_ARCH_DWARF_DATA_ALIGN & 0x7f; /* SLEB128 of a small number: its low 7 bits */
	cie[12] = CH_ARCH_DWARF_RETURN;
	memcpy(cie + CIE_FIXED_BYTES, program, program_bytes); /* the rest stays 0, DW_CFA_nop */
	return bytes;
}

static uint8_t *write_fde(uint8_t *section, uint8_t *fde, uint32_t bytes, uint64_t first_pc)
{
	put32(fde, bytes - 4);
	set_cie(section, fde, 0);
	memcpy(fde + FDE_PC_AT, &first_pc, sizeof first_pc);
	atomic_init(range_of(fde), 0);
	return fde + bytes;
}

void ch__eh_frame_write(uint8_t *section, const struct ch__eh_place *place,
			const struct ch__frame_shape *shapes)
{
	uint32_t bytes = fde_bytes(place);
	uint8_t *fde = section + FDES_AT;
	for (uint8_t frame = 0; frame < CH__FRAMES; frame++)
		ch__eh_frame_cie(cie_of(section, frame), shapes, frame);
	for (uint32_t page = 0; page < place->pages; page++) {
		uintptr_t exec = place->exec + page * place->page_bytes + place->code_at;
		for (uint32_t i = 0; i < ch__eh_frame_of_page(place); i++)
			fde = write_fde(section, fde, bytes, exec + i * place->slot_bytes);
	}
	/* the sentinel */
	write_fde(section, fde, bytes, place->exec + place->pages * place->page_bytes);
}

bool ch__eh_frame_is_live(uint8_t *section, uint32_t index)
{
	return CH_LOAD_RELAXED(range_of(ch__eh_frame_fde(section, index))) != 0;
}

void ch__eh_frame_live(uint8_t *section, uint32_t index, size_t bytes,
		       const struct ch__frame_shape *shapes, uint8_t frame)
{
	uint8_t *fde = ch__eh_frame_fde(section, index);
	if (!shapes[frame].slot_bytes) /* else it was there from the beginning */
		ch__eh_frame_cie(cie_of(section, frame), shapes, frame);
	set_cie(section, fde, frame);
	if (shapes[frame].slot_bytes)
		memcpy(fde + FDE_CFA_AT, shapes[frame].fde, CH__FRAME_FDE_BYTES);
	atomic_store_explicit(range_of(fde), bytes, memory_order_release);
}

void ch__eh_frame_dead(uint8_t *section, uint32_t index)
{
	atomic_store_explicit(range_of(ch__eh_frame_fde(section, index)), 0, memory_order_release);
}
