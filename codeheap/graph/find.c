/* SPDX-License-Identifier: MIT
 * find.c: finds the block of an address without a lock, from a signal handler, while other threads
 * allocate and collect (P6). Signal-safe: calls only signal-safe files of this library.
 *
 * I4: a start bit leads to an index word in the code, and the index to a record. The fields of a
 * record belong together if the generation was the same before and after the fields were read.
 * After a mismatch the answer is none, without a retry: a block on the caller's own stack cannot
 * change. Code is read through the RW view, which is never without access. */
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/handles.h"

bool ch__block_has(const struct ch_heap *heap, const struct ch__block *block, uintptr_t exec,
		   size_t bytes)
{
	uintptr_t in_hot = exec - ch__exec(heap, block->hot_offset);
	uintptr_t in_cold = exec - ch__exec(heap, ch__cold_offset(heap, block));
	size_t hot_bytes = ch__hot_bytes(block), cold_bytes = ch__cold_bytes(block);
	return (in_hot >= ch__head_bytes(ch__block_use(heap, block)) && in_hot <= hot_bytes &&
		bytes <= hot_bytes - in_hot) ||
	       (in_cold >= CH__INDEX_WORD_BYTES && in_cold <= cold_bytes &&
		bytes <= cold_bytes - in_cold);
}

uint32_t ch__find(const struct ch_heap *heap, uintptr_t pc, uint32_t *generation)
{
	const struct ch__pool *pool = heap->pool;
	if (!ch__pool_has(pool, pc))
		return 0;
	uint32_t offset = ch__offset(heap, pc);
	uint32_t start = ch__page_find_start(pool, offset);
	if (start == UINT32_MAX)
		return 0;
	uint32_t index = ch__index_word_read(heap, start);
	/* A start bit that was cleared meanwhile may leave any bytes here. */
	if (!ch__table_has(&heap->blocks, index))
		return 0;
	const struct ch__block *block = ch__block_at(heap, index);
	/* Pairs with the release store of the generation in publish and withdrawal. */
	uint32_t before = atomic_load_explicit(&block->generation, memory_order_acquire);
	if (!(before & 1))
		return 0;
	/* The record may be OPEN again since the start bit was read, and the place of an open block
	 * still moves. Acquire: pairs with the release of LIVE in commit.c. */
	if (atomic_load_explicit(&block->state, memory_order_acquire) == CH_BLOCK_OPEN ||
	    (offset - block->hot_offset >= ch__hot_bytes(block) &&
	     offset - ch__cold_offset(heap, block) >= ch__cold_bytes(block)))
		return 0;
	/* The loads of the place acquire, so that this one comes last. */
	if (atomic_load_explicit(&block->generation, memory_order_relaxed) != before)
		return 0;
	if (generation)
		*generation = before;
	return index;
}
