/* SPDX-License-Identifier: MIT
 * invalidate.c: making blocks not entrant while they run (P7). Order (I13): entry and cell,
 * incoming branches, outgoing branches, patch points, NOTENTRANT; what is left is the
 * collector's. Needs no memory, and no system call but what publishing may
 * need (I1); under heap, in regions of a bounded number of blocks. */
#include "codeheap/base/event.h"
#include "codeheap/base/heaps.h"
#include "codeheap/base/region.h"
#include "codeheap/base/trigger.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/handles.h"
#include "invalidate/entry.h"
#include "invalidate/invalidate.h"
#include "invalidate/link.h"
#include "invalidate/patch_point.h"

enum { BLOCKS_OF_A_REGION = 64 };

uint32_t ch__invalidate_block(struct ch_heap *heap, uint32_t index, enum ch__cause cause)
{
	struct ch__block *block = ch__block_at(heap, index);
	if (ch__block_state(block) != CH_BLOCK_LIVE || ch__block_is_data(heap, block))
		return 0;
	struct ch__owner *owner = ch__owner_at(heap, block->owner);
	ch__entry_close(heap, block);
	if (owner->entry == index)
		ch__owner_reset_cell(owner);
	ch__block_unlink(heap, index, true, true);
	ch__exits_divert(heap, index);
	ch__block_set_state(heap, index, CH_BLOCK_NOTENTRANT, cause, __func__);
	uint32_t bytes = ch__hot_bytes(block) + ch__cold_bytes(block);
	heap->blocks_invalidated++;
	heap->blocks_notentrant++;
	heap->notentrant_bytes += bytes;
	return bytes;
}

static bool any_open(struct ch_heap *heap, const struct ch_block *blocks, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t index = ch__block_resolve(heap, blocks[i]);
		if (index && ch__block_state(ch__block_at(heap, index)) == CH_BLOCK_OPEN)
			return true;
	}
	return false;
}

static size_t invalidate_handles(struct ch_heap *heap, const struct ch_block *blocks, size_t n)
	CH_REQUIRES(ch__role_heap)
{
	struct ch__thread *self = ch__thread_or_guest(heap);
	size_t count = 0;
	uint64_t sum = 0;
	for (size_t from = 0; from < n; from += BLOCKS_OF_A_REGION) {
		size_t to = n - from > BLOCKS_OF_A_REGION ? from + BLOCKS_OF_A_REGION : n;
		ch__region_enter(self);
		for (size_t i = from; i < to; i++) {
			uint32_t index = ch__block_resolve(heap, blocks[i]);
			uint32_t bytes = index ? ch__invalidate_block(heap, index,
								      CH__CAUSE_INVALIDATED)
					       : 0;
			count += bytes != 0;
			sum += bytes;
		}
		ch__region_leave(self);
	}
	ch__trigger_dead(heap, sum);
	if (count)
		ch__event_note(heap, CH__EVENT_INVALIDATED, count);
	return count;
}

/* The heap of all that are not stale, which may be none. False: they are of two. */
static bool find_heap(const struct ch_block *blocks, size_t n, struct ch_heap **heap)
{
	*heap = NULL;
	for (size_t i = 0; i < n; i++) {
		struct ch_heap *of = ch__handle_heap(blocks[i].bits);
		if (!of || of == *heap || !ch__block_resolve(of, blocks[i]))
			continue;
		if (*heap)
			return false;
		if (!*heap)
			*heap = of;
	}
	return true;
}

enum ch_status ch_blocks_invalidate(const struct ch_block *blocks, size_t n, size_t *count)
{
	struct ch_heap *heap;
	if (count)
		*count = 0;
	if (ch__is_marking())
		return CH_E_STATE;
	if (!find_heap(blocks, n, &heap))
		return CH_E_ARG;
	if (!heap)
		return CH_OK;
	ch__heap_lock(heap);
	enum ch_status status = CH_E_STATE;
	if (!any_open(heap, blocks, n)) {
		size_t done = invalidate_handles(heap, blocks, n);
		if (count)
			*count = done;
		status = CH_OK;
	}
	ch__heap_unlock(heap);
	ch__trigger_tell(heap);
	return status;
}
