/* SPDX-License-Identifier: MIT
 * place.c: finds the block at an address, or the block freed there, from a signal handler, while
 * others allocate, collect and free. Signal-safe: no lock, no allocation.
 *
 * An answer is about one block (I4): the generation must be the same behind the copy of the names.
 * Memory behind a pointer is not freed: a thread that frees looks for readers first (names.h). */
#include "codeheap/places/places.h"

static void copy_name(const struct ch_heap *heap, uint32_t name,
		      char short_text[CH__NAME_SHORT_BYTES])
{
	/* The index may come from a record out of use. */
	bool is_name = ch__table_has(&heap->names, name);
	ch__name_cut(short_text, is_name ? ch__name_text(heap, name) : "");
}

static void copy_names(const struct ch_heap *heap, uint32_t name, uint32_t owner,
		       struct ch__place *place)
{
	copy_name(heap, owner, place->owner);
	copy_name(heap, name ? name : owner, place->name);
}

static uint32_t load(const _Atomic(uint32_t) *field)
{
	return atomic_load_explicit(field, memory_order_acquire);
}

/* Whether a part of a block covers the offset. place->at counts from the end of the part's head. */
static bool covers(uint32_t offset, uint32_t part, uint32_t bytes, uint32_t head,
		   struct ch__place *place)
{
	uint32_t at = offset - part;
	place->at = at > head ? at - head : 0;
	place->into_head = at < head ? at + 1 : 0;
	return at < bytes;
}

/* Reads a record whose odd generation was loaded before. Returns false: not there, or dead. */
static bool read_block(const struct ch_heap *heap, uint32_t index, uint32_t generation,
		       uint32_t offset, struct ch__place *place)
{
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t hot = load(&block->hot_offset), head = ch__head_bytes(ch__block_use(heap, block));
	place->is_cold = !covers(offset, hot, ch__hot_bytes(block), head, place);
	if (place->is_cold && !covers(offset, ch__cold_offset(heap, block), ch__cold_bytes(block),
				      CH__HEAD_BYTES, place))
		return false;
	place->state = ch__block_state(block);
	place->cause = ch__block_cause(block);
	place->is_slot = ch__place_is_slot(heap, hot);
	place->is_data = ch__block_is_data(heap, block);
	place->block = index;
	place->generation = generation;
	const struct ch__side_list *list = __atomic_load_n(&block->side_list, __ATOMIC_ACQUIRE);
	uint32_t owner = ch__block_owner(block);
	uint32_t owner_name = __atomic_load_n(&ch__owner_at(heap, owner)->name, __ATOMIC_ACQUIRE);
	uint32_t name = list ? __atomic_load_n(&list->name, __ATOMIC_ACQUIRE) : 0;
	copy_names(heap, name, owner_name, place);
	/* An OPEN block may have another list by now, and this list may be another block's. */
	return load(&block->generation) == generation &&
	       __atomic_load_n(&block->side_list, __ATOMIC_RELAXED) == list;
}

static bool read_stone(const struct ch_heap *heap, uint32_t slot, uint32_t offset,
		       struct ch__place *place)
{
	const struct ch__tombstone *stone =
		ch__table_at_bytes(&heap->tombstones, slot, sizeof *stone);
	uint64_t dead = atomic_load_explicit(&stone->dead, memory_order_acquire);
	if (!dead)
		return false;
	uint32_t hot = load(&stone->hot_offset), cold = load(&stone->cold);
	uint32_t hot_bytes = load(&stone->hot_granules) * CH__GRANULE_BYTES;
	uint32_t page = hot >> heap->pool->page_log2 << heap->pool->page_log2;
	uint32_t granule = cold >> CH__TOMB_COLD_SHIFT & CH__TOMB_COLD_GRANULE;
	uint32_t cold_at =
		cold & CH__TOMB_SPAN ? hot + hot_bytes : page + granule * CH__GRANULE_BYTES;
	uint32_t cold_bytes = (cold & CH__TOMB_COLD_GRANULES) * CH__GRANULE_BYTES;
	bool is_in_place = (cold & CH__TOMB_SPAN) && (cold & CH__TOMB_IN_PLACE);
	uint32_t head = ch__head_bytes(is_in_place ? CH__SPAN_IN_PLACE : CH__SPAN_CODE);
	place->is_cold = !covers(offset, hot, hot_bytes, head, place);
	if (place->is_cold && !covers(offset, cold_at, cold_bytes, CH__HEAD_BYTES, place))
		return false;
	uint32_t how = (uint32_t)(dead >> 32);
	place->state = CH_BLOCK_DEAD;
	place->is_slot = (cold & CH__TOMB_SLOT) != 0;
	place->is_data = false;
	place->block = how & CH__INDEX_MAX;
	place->death = (enum ch__death)(how >> 24 & 15);
	place->cause = (enum ch__cause)(how >> 28);
	place->generation = (uint32_t)dead;
	place->collection = load(&stone->collection);
	copy_names(heap, load(&stone->name), load(&stone->owner_name), place);
	return CH_LOAD_RELAXED(&stone->dead) == dead;
}

bool ch__place_find_freed(const struct ch_heap *heap, uint32_t offset, struct ch__place *place)
{
	uint64_t size = heap->config.remembered_dead;
	uint64_t written = atomic_load_explicit(&heap->tombstones_written, memory_order_acquire);
	uint64_t oldest = written > size ? written - size : 0;
	for (uint64_t n = written; n > oldest; n--) {
		uint32_t slot = 1 + (uint32_t)((n - 1) & (size - 1));
		if (ch__table_has(&heap->tombstones, slot) &&
		    read_stone(heap, slot, offset, place))
			return true;
	}
	return false;
}

void ch__place_find(const struct ch_heap *heap, uint32_t offset, struct ch__place *place)
{
	enum { TRIES = 3 }; /* a block may be freed and another be born meanwhile */
	memset(place, 0, sizeof *place);
	for (int i = 0; i < TRIES; i++) {
		uint32_t generation, index = ch__find(heap, ch__exec(heap, offset), &generation);
		if (index && read_block(heap, index, generation, offset, place))
			return;
	}
	/* All records: a block before its commit has no start bit. */
	uint32_t used = load(&heap->blocks.used);
	for (uint32_t i = 1; i < used; i++) {
		uint32_t generation = load(&ch__block_at(heap, i)->generation);
		if ((generation & 1) && read_block(heap, i, generation, offset, place))
			return;
	}
	if (!ch__place_find_freed(heap, offset, place))
		place->state = CH_BLOCK_FREE;
}
