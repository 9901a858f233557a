/* SPDX-License-Identifier: MIT
 * entry.c: how callers come in: an owner's cell leads to one of the owner's blocks (I11). */
#include "invalidate/invalidate.h"

enum entry { SET, NO_OWNER, NO_BLOCK, NOT_ITS, SHUT };

static enum entry set_entry(struct ch_heap *heap, uint32_t owner_index, struct ch__owner *owner,
			    struct ch_block handle) CH_REQUIRES(ch__role_owner, ch__role_region)
{
	if (ch__owner_is_released(owner))
		return NO_OWNER;
	if (!handle.bits) {
		ch__owner_reset_cell(owner);
		return SET;
	}
	uint32_t index = ch__block_resolve_alive(heap, handle);
	if (!index)
		return NO_BLOCK;
	struct ch__block *block = ch__block_at(heap, index);
	uint32_t of = ch__block_owner(block);
	/* A block of another owner may end at any time, and a block of this owner may get its
	 * record: the second look at the generation finds that. */
	if (!ch__block_is(block, handle))
		return NO_BLOCK;
	/* Invalidation and death of a block reset only the cell of the block's own owner. */
	if (of != owner_index)
		return NOT_ITS;
	if (!ch__block_may_run(heap, block))
		return SHUT;
	/* The block stays LIVE while the owner is held: who ends or invalidates an owner's entry
	 * resets the entry. */
	CH_PUBLISHED(heap->pool, ch__exec(heap, block->hot_offset), CH__GRANULE_BYTES, "entry");
	owner->entry = index;
	ch__block_set_flag(block, CH__FLAG_HELD);
	atomic_store_explicit(&owner->cell, (const void *)ch__block_entry(heap, block),
			      memory_order_seq_cst);
	if (ch__owner_is_released(owner))
		atomic_store_explicit(&owner->cell, owner->fallback, memory_order_seq_cst);
	return SET;
}

/* Entry, and cell save by a release, change while the owner is held; blocks end likewise. */
static enum ch_status set_entry_by(struct ch__thread *self, struct ch_owner handle,
				   struct ch_block block)
{
	struct ch_heap *heap = self->heap;
	struct ch__owner *owner;
	uint32_t index = ch__handle_index(block.bits);
	enum entry entry = NO_OWNER;
	ch__region_enter(self);
	if (ch__owner_hold(heap, handle, &owner)) {
		entry = set_entry(heap, ch__handle_index(handle.bits), owner, block);
		ch__owner_unlock(owner);
	}
	ch__region_leave(self);
	return entry == SET	   ? CH_OK
	       : entry == NO_OWNER ? ch__because_stale("owner", handle.bits)
	       : entry == NO_BLOCK ? ch__because_stale("block", block.bits)
	       : entry == NOT_ITS  ? ch__because(CH_E_ARG,
						 "block #%u is of no owner, or of another", index)
				   : ch__because_not_entrant(heap, index);
}

enum ch_status ch_owner_set_entry(struct ch_owner handle, struct ch_block block)
{
	if (ch__is_marking())
		return ch__because_marking();
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	if (!heap)
		return ch__because_stale("owner", handle.bits);
	struct ch__thread *self = ch__thread_self(heap);
	if (self)
		return set_entry_by(self, handle, block);
	/* A thread that is not attached uses the guest's region, under the heap lock. */
	ch__heap_lock(heap);
	enum ch_status status = set_entry_by(&heap->guest, handle, block);
	ch__heap_unlock(heap);
	return status;
}

const void *const *ch_owner_cell(struct ch_owner handle)
{
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	uint32_t index = heap ? ch__owner_look_up(heap, handle) : 0;
	if (index)
		return (const void *const *)(uintptr_t)&ch__owner_at(heap, index)->cell;
	(void)ch__because_stale("owner", handle.bits);
	return NULL;
}
