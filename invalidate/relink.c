/* SPDX-License-Identifier: MIT
 * relink.c: re-pointing branches at their stubs when a block stops being entrant. It needs no
 * memory: each branch has its stub from the start. Under heap, in a region; each site changes by
 * one store that the architecture allows while other threads execute it (I12). */
#include "codeheap/graph/branch.h"
#include "invalidate/invalidate.h"

void ch__relink_incoming(struct ch_heap *heap, uint32_t index)
{
	struct ch__block *block = ch__block_at(heap, index);
	while (block->in_head)
		ch__branch_unlink(heap, block->in_head, true);
}

void ch__relink_outgoing(struct ch_heap *heap, uint32_t index)
{
	struct ch__block *block = ch__block_at(heap, index);
	uint32_t at = atomic_load_explicit(&block->first_branch, memory_order_relaxed);
	for (bool last = !at; !last; at++) {
		last = ch__branch_has(ch__branch_at(heap, at), CH__BRANCH_LAST);
		ch__branch_unlink(heap, at, true);
	}
}
