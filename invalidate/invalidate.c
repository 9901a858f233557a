/* SPDX-License-Identifier: MIT
 * invalidate.c: makes blocks not entrant while they run (P7), in the order of I13. The collector
 * frees such blocks. Needs no memory, and no system call except for publishing (I1). Lock: heap,
 * and regions of a bounded number of blocks. */
#include "codeheap/events/events.h"
#include "invalidate/invalidate.h"

enum { BLOCKS_OF_A_REGION = 64 };

/* Arms the diverter at exec, which jumps to the target from here on. */
static void shut(struct ch_heap *heap, uintptr_t exec, uintptr_t target) CH_HAS_HEAP_AND_REGION
{
	CH_MOVE(ch__gate_moves, ch__offset(heap, exec), 0,
		ch__arch_diverter_is_armed(ch__pool_read(heap->pool, exec)), CH__GATE_SHUT,
		ch__held(heap), __func__);
	ch__arch_diverter_arm(ch__pool_write(heap->pool, exec), exec, target);
	ch__pool_sync(heap->pool, exec, CH_ARCH_DIVERTER_BYTES);
	CH_PUBLISHED(heap->pool, exec, CH_ARCH_DIVERTER_BYTES, "diverter");
}

static void shut_entry(struct ch_heap *heap, const struct ch__block *block) CH_HAS_HEAP_AND_REGION
{
	enum ch_entry kind = ch__block_entry_kind(block);
	if (kind == CH_ENTRY_PATCH)
		shut(heap, ch__block_gate_exec(heap, block), ch__block_veneer_exec(heap, block));
	if (kind == CH_ENTRY_GUARD) {
		CH_MOVE(ch__gate_moves, block->hot_offset, 0,
			__atomic_load_n(block->side_list->guard, __ATOMIC_RELAXED) != 0,
			CH__GATE_SHUT, ch__held(heap), __func__);
		__atomic_store_n(block->side_list->guard, 1, __ATOMIC_RELEASE);
	}
}

static void divert_points(struct ch_heap *heap, const struct ch__block *block)
	CH_HAS_HEAP_AND_REGION
{
	const struct ch__side_list *list = block->side_list;
	for (uint32_t i = 0; list && i < list->count; i++) {
		struct ch__item item = ch__side_items(list)[i];
		if (list->kinds[i] != CH__ITEM_POINT)
			continue;
		shut(heap, ch__exec(heap, item.at), ch__exec(heap, item.value));
		heap->patch_points_armed++;
	}
}

bool ch__invalidate_block(struct ch_heap *heap, uint32_t index, enum ch__cause cause,
			  uint64_t *to_die)
{
	struct ch__block *block = ch__block_at(heap, index);
	if (!ch__block_may_run(heap, block))
		return false;
	struct ch__owner *owner = ch__owner_at(heap, block->owner);
	/* Held until the block is NOTENTRANT: nobody makes the block the entry again. */
	ch__owner_lock(owner);
	shut_entry(heap, block);
	if (owner->entry == index)
		ch__owner_reset_cell(owner);
	ch__block_unlink(heap, index, true, true);
	divert_points(heap, block);
	ch__block_set_state(heap, block, index, CH_BLOCK_NOTENTRANT, cause, __func__);
	ch__owner_unlock(owner);
	heap->blocks_invalidated++;
	heap->blocks_notentrant++;
	uint32_t bytes = ch__hot_bytes(block) + ch__cold_bytes(block);
	heap->notentrant_bytes += bytes;
	*to_die += ch__block_is_own_root(heap, block) ? 0 : bytes;
	return true;
}

/* Stores the heap of all blocks that are not stale, or NULL. Returns CH_E_STATE when a block is
 * OPEN, CH_E_ARG when the blocks are of two heaps. Needs no lock: no handle's block becomes OPEN
 * later. */
static CH_COLD enum ch_status find_heap(const struct ch_block *blocks, size_t n,
					struct ch_heap **heap)
{
	*heap = NULL;
	for (size_t i = 0; i < n; i++) {
		uint32_t index;
		struct ch_heap *of = ch__handle_heap(blocks[i].bits);
		enum ch_block_state state =
			of ? ch__block_resolve_state(of, blocks[i], &index) : CH_BLOCK_FREE;
		if (state == CH_BLOCK_OPEN)
			return ch__because(CH_E_STATE, "block %zu of %zu is OPEN", i, n);
		if (state == CH_BLOCK_FREE || of == *heap)
			continue;
		if (*heap)
			return ch__because(CH_E_ARG, "the blocks are of two heaps");
		*heap = of;
	}
	return CH_OK;
}

enum ch_status ch_blocks_invalidate(const struct ch_block *blocks, size_t n, size_t *count)
{
	struct ch_heap *heap;
	size_t unused;
	if (!count)
		count = &unused;
	*count = 0;
	if (ch__is_marking())
		return ch__because_marking();
	enum ch_status status = find_heap(blocks, n, &heap);
	if (status != CH_OK || !heap)
		return status;
	uint64_t to_die = 0;
	ch__heap_lock(heap);
	for (size_t from = 0; from < n; from += BLOCKS_OF_A_REGION) {
		size_t to = n - from > BLOCKS_OF_A_REGION ? from + BLOCKS_OF_A_REGION : n;
		struct ch__thread *self = ch__region_enter_for(heap);
		for (size_t i = from; i < to; i++) {
			uint32_t index = ch__block_resolve(heap, blocks[i]);
			*count += index && ch__invalidate_block(heap, index, CH__CAUSE_INVALIDATED,
								&to_die);
		}
		ch__region_leave(self);
	}
	ch__trigger_dead(heap, to_die);
	ch__heap_unlock(heap);
	ch__trigger_tell(heap);
	return CH_OK;
}
