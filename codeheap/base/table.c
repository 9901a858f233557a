/* SPDX-License-Identifier: MIT
 * table.c: type-stable tables of records. A directory leads to segments, and no segment is freed
 * before the heap: a reader without a lock may follow any index that was ever handed out. Directory
 * and segments are lazily touched memory. In tables with handles, the generation of a record is 0,
 * which no handle has, until the record is first handed out; then it is the heap's first
 * generation. */
#include "codeheap/base/table.h"

void ch__table_init(struct ch__table *table, void *directory, uint32_t record_bytes,
		    uint32_t link_offset, uint32_t generation_offset, uint32_t limit)
{
	table->segments = directory;
	table->record_bytes = record_bytes;
	table->link_offset = link_offset;
	table->generation_offset = generation_offset;
	table->limit = limit;
}

static _Atomic(uint32_t) *generation_of(const struct ch__table *table, uint32_t index)
{
	return (void *)((char *)ch__table_at(table, index) + table->generation_offset);
}

uint32_t ch__table_generation(const struct ch__table *table, uint32_t index)
{
	return *generation_of(table, index);
}

bool ch__table_back(struct ch__table *table, struct ch__meta *meta, uint32_t index)
{
	_Atomic(void *) *slot = &table->segments[index >> CH__SEGMENT_LOG2];
	if (atomic_load_explicit(slot, memory_order_relaxed))
		return true;
	char *segment = ch__meta_alloc(meta, (size_t)CH__SEGMENT_RECORDS * table->record_bytes);
	if (!segment)
		return false;
	/* Pairs with the acquire load in ch__table_at. */
	atomic_store_explicit(slot, segment, memory_order_release);
	return true;
}

uint32_t ch__table_generations(const struct ch__table *table)
{
	uint32_t most = 0;
	for (uint32_t i = 1; i < table->used; i++) {
		uint32_t generation = *generation_of(table, i) - table->first_generation;
		if (generation > most)
			most = generation;
	}
	return most;
}

uint32_t ch__table_extend(struct ch__table *table, struct ch__meta *meta, uint32_t count)
{
	uint32_t index = table->used ? table->used : 1;
	uint32_t room = CH__SEGMENT_RECORDS - (index & (CH__SEGMENT_RECORDS - 1));
	if (count > room)
		index += room;
	if (index + count > table->limit || !ch__table_back(table, meta, index))
		return 0;
	/* Relaxed: no handle has the generation 0, nor yet the first generation. */
	for (uint32_t i = index; table->first_generation && i < index + count; i++) {
		_Atomic(uint32_t) *generation = generation_of(table, i);
		atomic_store_explicit(generation, table->first_generation, memory_order_relaxed);
	}
	/* Release: a walk over the records finds a segment for each. */
	atomic_store_explicit(&table->used, index + count, memory_order_release);
	return index;
}

static uint32_t *link_of(const struct ch__table *table, uint32_t index)
{
	return (uint32_t *)(void *)((char *)ch__table_at(table, index) + table->link_offset);
}

static uint32_t pop(const struct ch__table *table, uint32_t *head)
{
	uint32_t index = *head;
	if (!index)
		return 0;
	*head = *link_of(table, index);
	/* The next is the one given back longest ago, so no cache has it. */
	__builtin_prefetch(link_of(table, *head));
	return index;
}

uint32_t ch__table_take(struct ch__table *table, struct ch__meta *meta)
{
	uint32_t index = pop(table, &table->free_head);
	if (!index)
		index = ch__table_extend(table, meta, 1);
	return index ? index : pop(table, &table->worn_head);
}

void ch__table_give(struct ch__table *table, uint32_t index, bool is_worn)
{
	uint32_t *head = is_worn ? &table->worn_head : &table->free_head;
	uint32_t *tail = is_worn ? &table->worn_tail : &table->free_tail;
	*link_of(table, index) = 0;
	if (*head)
		*link_of(table, *tail) = index;
	else
		*head = index;
	*tail = index;
}
