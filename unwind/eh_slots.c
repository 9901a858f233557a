/* SPDX-License-Identifier: MIT
 * eh_slots.c: the bytes of an unwind section for some pages of slots: trampolines of one size, each
 * with an FDE of its own, because the frame of a template differs from instruction to instruction.
 * It registers nothing and takes no lock: one writer a page, one a slot.
 *
 *   section   [CIE of slot shape 0][of 1] [FDE of slot 0 of page 0].. [sentinel] [0]
 *   FDE       +0 length = 44 | +4 distance to its CIE | +8 first pc | +16 bytes of pc, 0 = dead
 *             +24 instructions, then 0 = DW_CFA_nop
 *
 * As in eh_frame.c every FDE is there from the start with its first pc, and goes live and dead by
 * one aligned store of its range. The instructions and the CIE are those of the page's shape,
 * written while all its slots are dead: an unwinder reads them of a live FDE only. */
#include "unwind/unwinders.h"

#include <stdatomic.h>
#include <string.h>

enum {
	CIES = CH__FRAMES - CH__FRAME_SLOTS,
	FDE_CIE_AT = 4,
	FDE_PC_AT = 8,
	FDE_RANGE_AT = 16,
	FDE_CFA_AT = 24,
	FDE_BYTES = FDE_CFA_AT + CH__FRAME_FDE_BYTES,
	FDES_AT = CIES * CH__CIE_BYTES,
	TERMINATOR_BYTES = 8,
};
_Static_assert(FDE_RANGE_AT % 8 == 0 && FDE_BYTES % 8 == 0, "the range is one aligned word");

static void put32(uint8_t *at, uint32_t word)
{
	memcpy(at, &word, sizeof word);
}

uint32_t ch__eh_slots_in_page(const struct ch__eh_slots *s)
{
	return (uint32_t)((s->page_bytes - s->slots_at) / s->slot_bytes);
}

size_t ch__eh_slots_bytes(const struct ch__eh_slots *s)
{
	size_t fdes = (size_t)s->pages * ch__eh_slots_in_page(s) + 1;
	return FDES_AT + fdes * FDE_BYTES + TERMINATOR_BYTES;
}

uint8_t *ch__eh_slots_fde(uint8_t *section, uint32_t index)
{
	return section + FDES_AT + (size_t)index * FDE_BYTES;
}

uint32_t ch__eh_slots_index(const struct ch__eh_slots *s, uintptr_t exec)
{
	uint32_t page = (uint32_t)((exec - s->exec) / s->page_bytes);
	uint32_t at = (uint32_t)((exec - s->exec) % s->page_bytes) - s->slots_at;
	CH_ASSERT(page < s->pages && at % s->slot_bytes == 0 &&
			  at / s->slot_bytes < ch__eh_slots_in_page(s),
		  "not the address of a slot");
	return page * ch__eh_slots_in_page(s) + at / s->slot_bytes;
}

static _Atomic(uint64_t) *range_of(uint8_t *section, uint32_t index)
{
	return (_Atomic(uint64_t) *)(void *)(ch__eh_slots_fde(section, index) + FDE_RANGE_AT);
}

void ch__eh_slots_shape(uint8_t *section, unsigned which, const struct ch__frame_shape *shape)
{
	ch__eh_frame_cie(section + (size_t)which * CH__CIE_BYTES, shape);
}

static void write_fde(uint8_t *section, uint32_t index, uintptr_t pc)
{
	uint8_t *fde = ch__eh_slots_fde(section, index);
	uint64_t first = pc;
	put32(fde, FDE_BYTES - 4);
	put32(fde + FDE_CIE_AT, (uint32_t)(fde + FDE_CIE_AT - section));
	memcpy(fde + FDE_PC_AT, &first, sizeof first);
	atomic_init(range_of(section, index), 0);
}

void ch__eh_slots_write(uint8_t *section, const struct ch__eh_slots *s,
			const struct ch__frame_shape *shapes)
{
	uint32_t per_page = ch__eh_slots_in_page(s), index = 0;
	memset(section, 0, ch__eh_slots_bytes(s));
	for (unsigned i = 0; i < CIES; i++)
		ch__eh_slots_shape(section, i, &shapes[i]);
	for (uint32_t page = 0; page < s->pages; page++)
		for (uint32_t slot = 0; slot < per_page; slot++)
			write_fde(section, index++,
				  s->exec + page * s->page_bytes + s->slots_at +
					  (size_t)slot * s->slot_bytes + s->code_at);
	write_fde(section, index, s->exec + s->pages * s->page_bytes); /* the sentinel */
}

void ch__eh_slots_page(uint8_t *section, const struct ch__eh_slots *s, uint32_t page,
		       unsigned which, const struct ch__frame_shape *shape)
{
	uint32_t per_page = ch__eh_slots_in_page(s);
	const uint8_t *cie = section + (size_t)which * CH__CIE_BYTES;
	for (uint32_t i = page * per_page; i < (page + 1) * per_page; i++) {
		uint8_t *fde = ch__eh_slots_fde(section, i);
		uint32_t distance = (uint32_t)(fde + FDE_CIE_AT - cie), old;
		memcpy(&old, fde + FDE_CIE_AT, sizeof old);
		/* A page with live slots that is taken again is of its shape already. */
		if (old == distance && !memcmp(fde + FDE_CFA_AT, shape->fde, CH__FRAME_FDE_BYTES))
			return;
		put32(fde + FDE_CIE_AT, distance);
		memcpy(fde + FDE_CFA_AT, shape->fde, CH__FRAME_FDE_BYTES);
	}
}

bool ch__eh_slots_is_live(uint8_t *section, uint32_t index)
{
	return atomic_load_explicit(range_of(section, index), memory_order_relaxed) != 0;
}

void ch__eh_slots_live(uint8_t *section, uint32_t index, const struct ch__frame_shape *shape)
{
	atomic_store_explicit(range_of(section, index), shape->code_bytes, memory_order_release);
}

void ch__eh_slots_dead(uint8_t *section, uint32_t index)
{
	atomic_store_explicit(range_of(section, index), 0, memory_order_release);
}
