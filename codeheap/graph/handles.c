/* SPDX-License-Identifier: MIT
 * handles.c: from handles to records and back: blocks, branches, owners. Each declaration says
 * under which lock a record stays the handle's. */
#include "codeheap/graph/handles.h"

struct ch_heap *ch__handle_lock(const char *what, uint64_t bits, enum ch_status *status)
	CH_UNANALYSED("it takes the lock of what it returns")
{
	bool is_marking = ch__is_marking();
	struct ch_heap *heap = is_marking ? NULL : ch__handle_heap(bits);
	*status = CH_OK;
	if (heap)
		ch__heap_lock(heap);
	else
		*status = is_marking ? ch__because_marking() : ch__because_stale(what, bits);
	return heap;
}

uint32_t ch__block_resolve(struct ch_heap *heap, struct ch_block handle)
{
	uint32_t index = ch__handle_index(handle.bits);
	if (!ch__handle_is_known(heap, &heap->blocks, handle.bits))
		return 0;
	return ch__block_is(ch__block_at(heap, index), handle) ? index : 0;
}

uint32_t ch__block_resolve_alive(struct ch_heap *heap, struct ch_block handle)
{
	uint32_t index = ch__block_resolve(heap, handle);
	return index && ch__block_is_alive(heap, ch__block_at(heap, index)) ? index : 0;
}

enum ch_block_state ch__block_resolve_state(struct ch_heap *heap, struct ch_block handle,
					    uint32_t *index)
{
	*index = ch__block_resolve(heap, handle);
	const struct ch__block *block = ch__block_at(heap, *index);
	enum ch_block_state state = ch__block_state(block);
	/* If the generation changed, the block died between the loads: OPEN is another thread's. */
	return *index && ch__block_is(block, handle) ? state : CH_BLOCK_FREE;
}

struct ch_block ch__block_handle(const struct ch_heap *heap, uint32_t index)
{
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t generation = CH_LOAD_RELAXED(&block->generation);
	return (struct ch_block){ch__handle(heap->id, index, generation)};
}

enum ch_status(ch__because_stale)(const char *what, uint64_t bits)
{
	if (!bits)
		return ch__because(CH_E_STALE, "the handle of the %s is none", what);
	const char *why = "is of a heap that was destroyed, or never was";
	if (ch__handle_heap(bits)) /* of the four kinds, an assumption alone breaks */
		why = *what == 'a' ? "broke already, or is another heap's"
				   : "is dead, released, or another heap's";
	return ch__because(CH_E_STALE, "%s #%lu.%lu %s", what, bits & 0xffffff, bits >> 32, why);
}
