/* SPDX-License-Identifier: MIT
 * block_parts.h: where the parts of a block lie, and what is in front of the VM's bytes.
 *
 *   hot part of a block    head | +8 the VM's bytes ... | trap fill to the granule
 *   in place, large data   head | traps to +64 | the VM's bytes, 64-aligned ...
 *   cold part              head | +8 stubs, ch__stub_bytes each | PATCH's veneer | VM's cold bytes
 *                          | trap fill
 *   head                   +0 traps (4 bytes) | +4 record index (4 bytes)
 *
 * So hot bytes are 8-aligned, and traps lie behind each part: what runs on behind its end traps at
 * once. A call at the end of a part has these traps as its return address, never code of the next
 * part. */
#pragma once

#include "codeheap/graph/handles.h"
#include "codeheap/graph/names.h"
#include "codeheap/graph/side_list.h"
#include "pages/granules.h"
#include "pages/write.h"

/* In a block that is written in place the VM's bytes begin at a multiple of 64, behind a head of 64
 * bytes. */
enum { CH__HEAD_BYTES = 8, CH__IN_PLACE_HEAD_BYTES = 64 };
_Static_assert(CH__HEAD_BYTES % CH__GRANULE_BYTES == 0, "hot bytes begin at a granule");
/* Slots of trampolines lie side by side without a gap, so that a page is bump-allocated and its
 * holes are slots. Slots of all kinds have this size. */
enum {
	CH__SLOT_BYTES = CH_ROUND_UP(CH__HEAD_BYTES + CH_ARCH_TEMPLATE_BYTES, CH__GRANULE_BYTES),
};

/* Stores a block's place, which lookup loads at any time and judges by the generation. */
static inline void ch__set16(_Atomic(uint16_t) *field, uint32_t value)
{
	atomic_store_explicit(field, (uint16_t)value, memory_order_release);
}
static inline void ch__set_hot_offset(struct ch__block *block, uint32_t offset)
{
	atomic_store_explicit(&block->hot_offset, offset, memory_order_release);
}
/* The block that an edge of a side list leads to. NULL: it died, and another block may have its
 * record. */
static inline struct ch__block *ch__edge_target(const struct ch_heap *heap, struct ch__item edge)
{
	struct ch__block *target = ch__block_at(heap, edge.value);
	return atomic_load(&target->generation) == edge.at ? target : NULL;
}
static inline uint64_t ch__head_of(uint32_t index)
{
	return (uint32_t)ch__arch_traps | (uint64_t)index << 32;
}
/* Writes the head of a part: aligned, written and looked up as a whole. */
static inline void ch__head_write(const struct ch_heap *heap, uint32_t offset, uint32_t index)
{
	uint8_t *write = ch__pool_lend(heap->pool, heap->pool->exec_base + offset);
	__atomic_store_n((uint64_t *)(void *)write, ch__head_of(index), __ATOMIC_RELAXED);
}
/* Reads 8 bytes where a part begins, or would begin. Other threads may write there by any stores:
 * the caller judges the bytes, by the record if an index is expected, and the thread sanitizer must
 * not judge. */
#if CH_TSAN
__attribute__((no_sanitize("thread")))
#endif
static inline uint64_t ch__head_read(const struct ch_heap *heap, uint32_t offset)
{
	const uint8_t *read = ch__pool_read(heap->pool, heap->pool->exec_base + offset);
	return *(const volatile uint64_t *)(const volatile void *)read;
}
static inline uint32_t ch__head_index(const struct ch_heap *heap, uint32_t offset)
{
	return (uint32_t)(ch__head_read(heap, offset) >> 32);
}
/* Whether the first 4 bytes behind a part are traps, as they are whoever has them: of a head, of
 * free bytes, of a dead block. Behind the end of a page there may be no memory. */
static inline bool ch__is_trap_behind(const struct ch_heap *heap, uint32_t end)
{
	return !(end & (((uint32_t)1 << heap->pool->page_log2) - 1)) ||
	       (uint32_t)ch__head_read(heap, end) == (uint32_t)ch__arch_traps;
}
static inline uint32_t ch__hot_bytes(const struct ch__block *block)
{
	uint32_t granules = block->hot_granules;
	if (block->flags & CH__FLAG_APART)
		granules = block->span_granules_low | (uint32_t)block->span_granules_high << 16;
	return granules * CH__GRANULE_BYTES;
}
static inline uint32_t ch__cold_bytes(const struct ch__block *block)
{
	return (uint32_t)block->cold_granules * CH__GRANULE_BYTES;
}
/* Pool offset of the cold part, in a span behind the hot part. Meaningless without a cold part. */
static inline uint32_t ch__cold_offset(const struct ch_heap *heap, const struct ch__block *block)
{
	if (CH_UNLIKELY(block->flags & CH__FLAG_APART))
		return block->hot_offset + ch__hot_bytes(block);
	uint32_t page = block->hot_offset >> heap->pool->page_log2;
	return (page << heap->pool->page_log2) + block->cold_granule * (uint32_t)CH__GRANULE_BYTES;
}
static inline uintptr_t ch__exec(const struct ch_heap *heap, uint32_t offset)
{
	return heap->pool->exec_base + offset;
}
static inline uint32_t ch__offset(const struct ch_heap *heap, uintptr_t exec)
{
	return (uint32_t)(exec - heap->pool->exec_base);
}
/* Address of the diverter of a patchable entry, behind the landing pad of indirect calls. */
static inline uintptr_t ch__block_gate_exec(const struct ch_heap *heap,
					    const struct ch__block *block)
{
	return ch__exec(heap, block->hot_offset) + CH__HEAD_BYTES + CH_ARCH_LANDING_BYTES;
}
/* Use of the block's pages; constant while the block has pages. */
static inline enum ch__span_use ch__block_use(const struct ch_heap *heap,
					      const struct ch__block *block)
{
	if (CH_LIKELY(!(block->flags & CH__FLAG_APART)))
		return CH__SPAN_CODE;
	return ch__pool_span_use(heap->pool, block->hot_offset >> heap->pool->page_log2);
}
/* Whether the use is one of whole pages that are written where they lie. */
static inline bool ch__use_is_in_place(enum ch__span_use use)
{
	return use >= CH__SPAN_IN_PLACE && use <= CH__SPAN_DATA;
}
static inline bool ch__use_is_constant(enum ch__span_use use)
{
	return use == CH__SPAN_RODATA || use == CH__PAGE_RODATA;
}
/* Whether the block has whole pages, without any other block in them. */
static inline bool ch__block_is_span(const struct ch_heap *heap, const struct ch__block *block)
{
	return (block->flags & CH__FLAG_APART) && ch__block_use(heap, block) < CH__PAGE_RODATA;
}
static inline bool ch__block_is_data(const struct ch_heap *heap, const struct ch__block *block)
{
	return ch__block_use(heap, block) >= CH__SPAN_RODATA;
}
/* Bytes of the hot part before the VM's bytes. */
static inline uint32_t ch__head_bytes(enum ch__span_use use)
{
	return ch__use_is_in_place(use) ? CH__IN_PLACE_HEAD_BYTES : CH__HEAD_BYTES;
}
static inline uintptr_t ch__block_entry(const struct ch_heap *heap, const struct ch__block *block)
{
	uint32_t skip = block->side_list ? block->side_list->entry_offset : 0;
	return ch__exec(heap, block->hot_offset + CH__HEAD_BYTES + skip);
}
/* Whether `bytes` bytes at exec lie in one part of the block, behind the head of the part. */
bool ch__block_has(const struct ch_heap *, const struct ch__block *, uintptr_t exec, size_t bytes);
/* Bytes of a branch's stub, with the lead before the stub if stubs have leads. */
static inline uint32_t ch__stub_bytes(const struct ch_heap *heap)
{
	return heap->pool->stub_lead_bytes + CH_ARCH_STUB_BYTES;
}
/* Address of the stub of a branch of the block: of the lead, if stubs have leads. */
static inline uintptr_t ch__stub_exec(const struct ch_heap *heap, const struct ch__block *block,
				      uint32_t branch)
{
	return ch__exec(heap, ch__cold_offset(heap, block) + CH__HEAD_BYTES +
				      (branch - ch__block_run(block)) * ch__stub_bytes(heap));
}
/* The block's own name, or its owner's. Under heap, or of the thread's own OPEN block. */
static inline const char *ch__block_name(const struct ch_heap *heap, const struct ch__block *block)
{
	uint32_t own = block->side_list ? block->side_list->name : 0;
	return ch__name_text(heap, own ? own : ch__owner_at(heap, block->owner)->name);
}
static inline uint8_t ch__place_frame(const struct ch_heap *heap, uint32_t hot_offset)
{
	return heap->pool->pages[hot_offset >> heap->pool->page_log2].frame;
}
/* A block with steps has unwind data of its own, from before LIVE until after poison. */
static inline bool ch__place_has_steps(const struct ch_heap *heap, uint32_t hot_offset)
{
	return ch__place_frame(heap, hot_offset) == CH_FRAME_STEPS;
}
static inline bool ch__place_is_slot(const struct ch_heap *heap, uint32_t hot_offset)
{
	return ch__frame_has_slots(ch__place_frame(heap, hot_offset));
}
/* Whether the young list of a thread must have the block: a root that is traced, or that ages. No
 * cycle need look at an own root that leads nowhere and has no owner. */
static inline bool ch__block_is_young_root(const struct ch_heap *heap,
					   const struct ch__block *block)
{
	enum ch_block_state state = ch__block_state(block);
	uint8_t flags = CH_LOAD_RELAXED(&block->flags);
	return state == CH_BLOCK_OPEN || (flags & CH__FLAG_IMMORTAL) ||
	       (state == CH_BLOCK_LIVE && !(flags & CH__FLAG_HELD)) ||
	       (ch__block_leads(block) && ch__block_is_own_root(heap, block) &&
		(block->owner || ch__block_run(block) ||
		 (block->side_list && block->side_list->count)));
}
/* Whether the commit of the block is through: the last store of a commit is the last start bit. A
 * LIVE block without it must not die: the commit would set a start where no block is (I3). Always
 * inline: a release looks at each of its blocks. */
static inline __attribute__((always_inline)) bool
ch__block_is_committed(const struct ch_heap *heap, const struct ch__block *block)
{
	return ch__block_state(block) != CH_BLOCK_OPEN &&
	       ch__page_has_start(heap->pool, block->cold_granules ? ch__cold_offset(heap, block)
								    : block->hot_offset);
}
