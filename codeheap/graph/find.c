/* SPDX-License-Identifier: MIT
 * find.c: finds the block of an address without a lock, from a signal handler, while other threads
 * allocate and collect (P6). Signal-safe: calls only signal-safe files of this library. */
#include "codeheap/graph/find.h"
#include "codeheap/graph/handles.h"

bool ch__block_has(const struct ch_heap *heap, const struct ch__block *block, uintptr_t exec,
		   size_t bytes)
{
	uintptr_t in_hot = exec - ch__exec(heap, block->hot_offset);
	uintptr_t in_cold = exec - ch__exec(heap, ch__cold_offset(heap, block));
	size_t hot_bytes = ch__hot_bytes(block), cold_bytes = ch__cold_bytes(block);
	return (in_hot >= ch__head_bytes(ch__block_use(heap, block)) && in_hot <= hot_bytes &&
		bytes <= hot_bytes - in_hot) ||
	       (in_cold >= CH__HEAD_BYTES && in_cold <= cold_bytes &&
		bytes <= cold_bytes - in_cold);
}

uint32_t ch__find(const struct ch_heap *heap, uintptr_t pc, uint32_t *generation)
{
	struct ch__found found;
	if (!ch__find_part(heap, pc, &found) || !ch__found_is_there(&found))
		return 0;
	if (generation)
		*generation = found.generation;
	return found.index;
}
