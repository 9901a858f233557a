/* SPDX-License-Identifier: MIT
 * eh_frame.c: the bytes of an unwind section for one chunk of code pages: written once, its FDEs
 * switched live and dead in place. It registers nothing and takes no lock: one writer a page.
 *
 *   section   [CIE of shape 0]..[of shape 15] [FDE of page 0]..[of page n-1] [sentinel] [0]
 *   FDE       +0 length = 20 | +4 distance to its CIE | +8 first pc | +16 bytes of pc, 0 = dead
 *
 * An unwinder that sorts FDEs does so once, so every FDE is there from the start. Their first pcs
 * never change and the sentinel starts where the chunk ends: the range an unwinder computes for the
 * section (GCC 13 computes it again when the section is deregistered) is the whole chunk whatever
 * is live. A live FDE covers its own page only, also in a span of pages: libgcc's binary search
 * goes right at a dead FDE, so one inside a longer live range would hide that range. The CIEs have
 * no augmentation, so pcs are absolute pointers and the range is one aligned 8-byte word. The
 * encoding of every CIE is the same: libgcc takes it from the first it sees and never looks again.
 * Sources: LSB Core 5.0, 10.6 (.eh_frame); libgcc/unwind-dw2-fde.c. */
#include "unwind/unwinders.h"

#include <stdatomic.h>
#include <string.h>

enum {
	CIE_FIXED_BYTES = 13, /* length, id, version, augmentation, alignments, return register */
	CIE_VERSION = 1,
	FDE_BYTES = 24,
	FDE_CIE_AT = 4,
	FDE_PC_AT = 8,
	FDE_RANGE_AT = 16,
	FDES_AT = CH__FRAME_SHAPES * CH__CIE_BYTES,
	TERMINATOR_BYTES = 8,
};
_Static_assert(CIE_FIXED_BYTES + CH__FRAME_CFI_BYTES <= CH__CIE_BYTES,
	       "a CIE has room for a program");
_Static_assert(FDE_RANGE_AT % 8 == 0 && FDE_BYTES % 8 == 0, "the range is one aligned word");
_Static_assert(sizeof(uintptr_t) == 8, "pcs are 8 bytes");

static void put32(uint8_t *at, uint32_t word)
{
	memcpy(at, &word, sizeof word);
}

size_t ch__eh_frame_bytes(uint32_t pages)
{
	return FDES_AT + ((size_t)pages + 1) * FDE_BYTES + TERMINATOR_BYTES;
}

uint8_t *ch__eh_frame_fde(uint8_t *section, uint32_t page)
{
	return section + FDES_AT + (size_t)page * FDE_BYTES;
}

/* The distance goes from the field itself back to the CIE. */
static void set_cie(uint8_t *section, uint8_t *fde, uint8_t frame)
{
	const uint8_t *cie = section + (size_t)frame * CH__CIE_BYTES;
	put32(fde + FDE_CIE_AT, (uint32_t)(fde + FDE_CIE_AT - cie));
}

static _Atomic(uint64_t) *range_of(uint8_t *fde)
{
	return (_Atomic(uint64_t) *)(void *)(fde + FDE_RANGE_AT);
}

/* A shape that is not registered still has a well-formed CIE: a reader steps over it by its
 * length. */
void ch__eh_frame_cie(uint8_t *cie, const struct ch__frame_shape *shape)
{
	put32(cie, CH__CIE_BYTES - 4);
	put32(cie + 4, 0); /* id of a CIE */
	cie[8] = CIE_VERSION;
	cie[9] = 0; /* no augmentation */
	cie[10] = shape->code_align;
	cie[11] = (uint8_t)shape->data_align & 0x7f; /* SLEB128 of a small number: its low 7 bits */
	cie[12] = shape->return_register;
	memcpy(cie + CIE_FIXED_BYTES, shape->cfi, shape->bytes); /* the rest stays 0, DW_CFA_nop */
}

void ch__eh_frame_shape(uint8_t *section, uint8_t frame, const struct ch__frame_shape *shape)
{
	ch__eh_frame_cie(section + (size_t)frame * CH__CIE_BYTES, shape);
}

static void write_fde(uint8_t *section, uint32_t index, uintptr_t pc)
{
	uint8_t *fde = ch__eh_frame_fde(section, index);
	uint64_t first = pc;
	put32(fde, FDE_BYTES - 4);
	set_cie(section, fde, 0);
	memcpy(fde + FDE_PC_AT, &first, sizeof first);
	atomic_init(range_of(fde), 0);
}

void ch__eh_frame_write(uint8_t *section, uintptr_t exec, uint32_t pages, size_t page_bytes,
			const struct ch__frame_shape *shapes)
{
	memset(section, 0, ch__eh_frame_bytes(pages));
	for (unsigned i = 0; i < CH__FRAME_SHAPES; i++)
		ch__eh_frame_shape(section, (uint8_t)i, &shapes[i]);
	for (uint32_t i = 0; i <= pages; i++) /* the last is the sentinel */
		write_fde(section, i, exec + i * page_bytes);
}

bool ch__eh_frame_is_live(uint8_t *section, uint32_t page)
{
	return atomic_load_explicit(range_of(ch__eh_frame_fde(section, page)),
				    memory_order_relaxed) != 0;
}

void ch__eh_frame_live(uint8_t *section, uint32_t page, size_t page_bytes, uint8_t frame)
{
	uint8_t *fde = ch__eh_frame_fde(section, page);
	/* The range makes the FDE visible, so its CIE is settled first. An unwinder reads both
	 * without atomics, ordered by how the code became reachable. */
	set_cie(section, fde, frame);
	atomic_store_explicit(range_of(fde), page_bytes, memory_order_release);
}

void ch__eh_frame_dead(uint8_t *section, uint32_t page)
{
	atomic_store_explicit(range_of(ch__eh_frame_fde(section, page)), 0, memory_order_release);
}
