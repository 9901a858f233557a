/* SPDX-License-Identifier: MIT
 * refs.c: visits to the refs in code outside a full cycle, for minor and moving collections of HOST
 * heaps. A block is young from its opening until a visit finds no young ref. Lock: heap; a visit
 * has lock and freeze from ch_mark_begin, since a stopped thread could hold either. */
#include "codeheap/collector.h"
#include "codeheap/collect/collect.h"

/* Without room on the list every block counts as young: slower, never wrong. When the list has more
 * entries than there are blocks, nobody visits, and the list must not grow for ever. */
void ch__young_refs_add(struct ch_heap *heap, const struct ch_code *codes, size_t count)
{
	ch__heap_lock(heap);
	for (size_t i = 0; i < count && !heap->young_refs_lost; i++)
		if (heap->young_refs_count <= heap->blocks.used &&
		    (heap->young_refs_count < heap->young_refs_capacity ||
		     ch__meta_grow(heap->meta, &heap->young_refs, &heap->young_refs_capacity, 256,
				   sizeof *heap->young_refs)))
			heap->young_refs[heap->young_refs_count++] = codes[i].block;
		else
			heap->young_refs_lost = true;
	ch__heap_unlock(heap);
}

struct visit {
	struct ch_heap *heap;
	uintptr_t (*call)(void *, uintptr_t, bool *);
	void *arg;
};

static bool visit_block(struct visit *v, uint32_t index)
{
	struct ch_heap *heap = v->heap;
	const struct ch__block *block = ch__block_at(heap, index);
	/* A block that no cycle reached holds refs to dead objects, too. */
	if (!(atomic_load(&block->generation) & 1) || !block->side_list ||
	    !ch__block_is_alive(heap, block) ||
	    !ch__vm_is_told(ch__owner_at(heap, block->owner)->vm))
		return false;
	bool any_young = false;
	for (uint32_t i = 0; i < block->side_list->count; i++) {
		if (block->side_list->kinds[i] != CH__ITEM_REF)
			continue;
		uintptr_t exec = ch__exec(heap, ch__side_items(block->side_list)[i].at), word;
		memcpy(&word, ch__pool_read(heap->pool, exec), sizeof word);
		bool is_young = false;
		uintptr_t moved = v->call(v->arg, word, &is_young);
		any_young |= is_young;
		if (moved != word)
			ch__ref_move(heap, exec, moved);
	}
	return any_young;
}

static bool is_open(struct ch_heap *heap, uint32_t index)
{
	return ch__block_state(ch__block_at(heap, index)) == CH_BLOCK_OPEN;
}

/* Keeps OPEN blocks on the list, whose commits have begun, and blocks that a visit finds young. */
static void visit_listed(struct visit *v, bool visits) CH_HAS_HEAP
{
	struct ch_heap *heap = v->heap;
	uint32_t kept = 0;
	for (uint32_t i = 0; i < heap->young_refs_count; i++) {
		uint32_t index = ch__block_resolve(heap, heap->young_refs[i]);
		if (index && (is_open(heap, index) || (visits && visit_block(v, index))))
			heap->young_refs[kept++] = heap->young_refs[i];
	}
	heap->young_refs_count = kept;
}

/* Visits every block, and makes the list anew as far as there is room. After a loss an OPEN block
 * may come to be on the list twice, since nobody knows whether its commit was here. */
static void visit_all(struct visit *v) CH_HAS_HEAP
{
	struct ch_heap *heap = v->heap;
	bool was_lost = heap->young_refs_lost;
	if (was_lost)
		heap->young_refs_count = 0;
	visit_listed(v, false);
	heap->young_refs_lost = false;
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		if (!visit_block(v, i) || (is_open(heap, i) && !was_lost))
			continue;
		if (heap->young_refs_count < heap->young_refs_capacity)
			heap->young_refs[heap->young_refs_count++] = ch__block_handle(heap, i);
		else
			heap->young_refs_lost = true;
	}
}

static void visit_young(struct visit *v) CH_HAS_HEAP
{
	struct ch_heap *heap = v->heap;
	visit_listed(v, true);
	/* OPEN blocks may hold refs, too. Their commits put them on the list. */
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		for (uint32_t i = 0; i < t->young_count; i++) {
			uint32_t index = ch__block_resolve(heap, t->young[i]);
			if (index && is_open(heap, index))
				visit_block(v, index);
		}
}

enum ch_status ch_refs_visit(struct ch_marker *marker, enum ch_refs which,
			     uintptr_t (*visit)(void *arg, uintptr_t word, bool *is_young),
			     void *arg)
{
	struct visit v = {marker->heap, visit, arg};
	if (which != CH_REFS_ALL && which != CH_REFS_YOUNG)
		return ch__because(CH_E_ARG, "which is %d: not one of enum ch_refs", (int)which);
	if (!ch__host_may_mark(v.heap))
		return ch__told(CH_E_STATE);
	if (marker->callbacks)
		return ch__because_marking();
	ch__marker_has_cycle(marker);
	marker->callbacks++;
	if (which == CH_REFS_ALL || v.heap->young_refs_lost)
		visit_all(&v);
	else
		visit_young(&v);
	marker->callbacks--;
	return CH_OK;
}
