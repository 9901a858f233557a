/* SPDX-License-Identifier: MIT
 * handles.c: from handles to records and back: blocks, branches, owners. Each declaration says
 * under which lock a record stays the handle's. */
#include "codeheap/graph/handles.h"
#include "codeheap/graph/names.h"

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
	*index = ch__handle_index(handle.bits);
	if (!ch__handle_is_known(heap, &heap->blocks, handle.bits))
		return CH_BLOCK_FREE;
	const struct ch__block *block = ch__block_at(heap, *index);
	bool is_its = ch__block_is(block, handle);
	enum ch_block_state state = ch__block_state(block);
	/* If the generation changed, the block died between the loads: OPEN is another thread's. */
	return is_its && ch__block_is(block, handle) ? state : CH_BLOCK_FREE;
}

struct ch_block ch__block_handle(const struct ch_heap *heap, uint32_t index)
{
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t generation = CH_LOAD_RELAXED(&block->generation);
	return (struct ch_block){ch__handle(heap->id, index, generation)};
}

struct ch_branch ch__branch_handle(const struct ch_heap *heap, uint32_t index)
{
	uint32_t generation = ch__branch_life(heap, ch__branch_at(heap, index));
	return (struct ch_branch){ch__handle(heap->id, index, generation)};
}

/* Returns the generation of the handle's record, or 0: no record has the index yet. */
static uint32_t generation_there(struct ch_heap *heap, const char *what, uint64_t bits)
{
	const struct ch__table *table = !strcmp(what, "block")	 ? &heap->blocks
					: !strcmp(what, "owner") ? &heap->owners
					: !strcmp(what, "branch") ? &heap->branches
								  : &heap->assumptions;
	uint32_t index = ch__handle_index(bits);
	if (!ch__table_has(table, index))
		return 0;
	return table == &heap->branches ? ch__branch_life(heap, ch__branch_at(heap, index))
					: *ch__table_generation(table, index);
}

/* Generations begin again, so their difference is compared. The record of a handle whose generation
 * is still there may have a block that a cycle found dead. */
static const char *how_stale(const char *what, uint64_t bits)
{
	struct ch_heap *heap = atomic_load(&ch__heaps[ch__handle_heap_id(bits)]);
	if (!heap)
		return "is of a heap that was destroyed, or never was";
	uint32_t there = generation_there(heap, what, bits);
	int32_t lives = (int32_t)(there - ch__handle_generation(bits));
	if (there && lives && !(lives & ~CH__LIFE_ENDS) && strcmp(what, "owner") == 0)
		return "was released already";
	return !there || lives < 0 ? "never was"
	       : lives		   ? "is dead"
				   : "is dead, or another heap's";
}

enum ch_status(ch__because_stale)(const char *what, uint64_t bits)
{
	if (!bits)
		return ch__because(CH_E_STALE, "the handle of the %s is none", what);
	/* The heap may be destroyed meanwhile, but is not freed while places are read. */
	ch__place_read_begin();
	const char *how = how_stale(what, bits);
	ch__place_read_end();
	return ch__because(CH_E_STALE, "%s #%lu.%lu %s", what, bits & 0xffffff, bits >> 32, how);
}
