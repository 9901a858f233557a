/* SPDX-License-Identifier: MIT
 * entry.c: how callers come in: the cell of an owner, which leads to one of its blocks (I11). */
#include "codeheap/base/heaps.h"
#include "codeheap/base/why.h"
#include "codeheap/base/region.h"
#include "codeheap/graph/handles.h"
#include "invalidate/invalidate.h"

/* The block was the entry until now. */
static void note_replaced(struct ch_heap *heap, uint32_t index)
{
	struct ch__block *block = index ? ch__block_at(heap, index) : NULL;
	if (block && ch__block_state(block) == CH_BLOCK_LIVE)
		ch__block_store(block, CH_BLOCK_LIVE, CH__CAUSE_REPLACED);
}

static enum ch_status set_entry(struct ch_heap *heap, uint32_t owner_index, uint32_t index)
{
	struct ch__owner *owner = ch__owner_at(heap, owner_index);
	if (!ch__owner_is_alive(heap, owner) || ch__owner_is_released(owner))
		return ch__because_stale("owner", ch__owner_handle(heap, owner_index).bits);
	if (!index) {
		note_replaced(heap, owner->entry);
		ch__owner_reset_cell(owner);
		return CH_OK;
	}
	struct ch__block *block = ch__block_at(heap, index);
	/* Invalidation and death of a block look for it in its own owner's cell only. */
	if (block->owner != owner_index)
		return ch__because(CH_E_ARG, "the block is another owner's");
	if (!ch__block_may_run(heap, block))
		return ch__because_not_entrant(heap, index);
	if (owner->entry != index)
		note_replaced(heap, owner->entry);
	ch__block_store(block, CH_BLOCK_LIVE, CH__CAUSE_NONE);
	CH_PUBLISHED(heap->pool, ch__exec(heap, block->hot_offset), CH__GRANULE_BYTES, "entry");
	owner->entry = index;
	ch__block_held(block);
	/* seq_cst against ch__owner_let_go: either it comes later and leads the cell back, or it is
	 * seen here. */
	atomic_store_explicit(&owner->cell, (const void *)ch__block_entry(heap, block),
			      memory_order_seq_cst);
	if (ch__owner_is_released(owner))
		atomic_store_explicit(&owner->cell, owner->fallback, memory_order_seq_cst);
	return CH_OK;
}

enum ch_status ch_owner_set_entry(struct ch_owner handle, struct ch_block block)
{
	enum ch_status status;
	struct ch_heap *heap = ch__handle_lock("owner", handle.bits, &status);
	if (!heap)
		return status;
	struct ch__thread *self = ch__thread_or_guest(heap);
	ch__region_enter(self);
	uint32_t owner = ch__owner_resolve(heap, handle);
	uint32_t index = block.bits ? ch__block_resolve(heap, block) : 0;
	if (!owner)
		status = ch__because_stale("owner", handle.bits);
	else if (!index && block.bits)
		status = ch__because_stale("block", block.bits);
	else
		status = set_entry(heap, owner, index);
	ch__region_leave(self);
	ch__heap_unlock(heap);
	return status;
}

const void *const *ch_owner_cell(struct ch_owner handle)
{
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	uint32_t index = heap ? ch__owner_look_up(heap, handle) : 0;
	return index ? (const void *const *)(uintptr_t)&ch__owner_at(heap, index)->cell : NULL;
}
