/* SPDX-License-Identifier: MIT
 * table.c: type-stable tables of records (docs/design.md, section 4): a reader without a lock may
 * follow any index that was ever handed out. In tables with handles, the generation of a record is
 * 0, which no handle has, until the record is first handed out. */
#include "codeheap/base/table.h"
#include "os/os.h"

static size_t bytes_of(const struct ch__table *table, uint32_t records)
{
	return CH_ROUND_UP((size_t)records * table->record_bytes, CH__TABLE_STEP_BYTES);
}

/* Whether no other mapping is where the first step of a table is to come. */
static bool are_free(const struct ch__table *tables, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (!ch__os_reserve_at(tables[i].base, CH__TABLE_STEP_BYTES))
			return false;
		ch__os_unreserve(tables[i].base, CH__TABLE_STEP_BYTES);
	}
	return true;
}

static CH_COLD void place(struct ch__table *tables, unsigned count, char *at, bool is_reserved)
{
	for (unsigned i = 0; i < count; i++) {
		tables[i].base = at;
		tables[i].is_reserved = is_reserved;
		at += bytes_of(&tables[i], tables[i].limit);
	}
}

/* A table that reserved nothing may find other mappings in the way of its first step, if many heaps
 * share little address space. Then another place is tried. */
bool ch__tables_place(struct ch__table *tables, unsigned count, bool is_limited)
{
	enum { TRIES = 8 };
	size_t bytes = 0, page = ch__os_page_bytes();
	for (unsigned i = 0; i < count; i++)
		bytes += bytes_of(&tables[i], tables[i].limit);
	char *at = is_limited ? NULL : ch__os_reserve(bytes, page, 0, ch__os_anywhere);
	if (at) {
		/* gdb's gcore would write all of it, as zeros. */
		ch__os_suggest(at, bytes, CH__OS_DONT_DUMP);
		place(tables, count, at, true);
		return true;
	}
	for (int i = 0; i < TRIES; i++) {
		if (!(at = ch__os_reserve(CH__TABLE_STEP_BYTES, page, 0, 0)))
			return false;
		ch__os_unreserve(at, CH__TABLE_STEP_BYTES);
		place(tables, count, at, false);
		if (are_free(tables, count))
			return true;
	}
	return false;
}

void ch__tables_free(struct ch__table *tables, unsigned count)
{
	for (unsigned i = 0; i < count && tables->base; i++) {
		const struct ch__table *table = &tables[i];
		size_t bytes = bytes_of(table, table->is_reserved ? table->limit : table->backed);
		if (bytes)
			ch__os_unreserve(table->base, bytes);
	}
}

size_t ch__table_backed_bytes(const struct ch__table *table)
{
	return bytes_of(table, table->backed);
}

_Atomic(uint32_t) *ch__table_generation(const struct ch__table *table, uint32_t index)
{
	return (void *)((char *)ch__table_at(table, index) + table->generation_offset);
}

bool ch__table_back(struct ch__table *table, uint32_t index)
{
	if (CH_LIKELY(index < CH_LOAD_RELAXED(&table->backed)))
		return true;
	size_t has = ch__table_backed_bytes(table), needs = bytes_of(table, index + 1);
	char *at = table->base + has;
	if (!table->is_reserved && !ch__os_reserve_at(at, needs - has))
		return false;
	/* Cores get a step of records before the step gets access. So neither call splits a
	 * mapping: the process may be able to have no more mappings. */
	size_t from = has ? has + CH__TABLE_STEP_BYTES : 0, to = needs + CH__TABLE_STEP_BYTES;
	size_t end = bytes_of(table, table->limit);
	to = to < end ? to : end;
	if (table->is_reserved && from < to)
		ch__os_suggest(table->base + from, to - from, CH__OS_DUMP);
	/* A new mapping will not do: before Linux 6.12 a refused mapping leaves a hole. Another
	 * thread's mapping may come there, and would be lost to the next step. */
	if (!ch__os_protect(at, needs - has, true)) {
		if (!table->is_reserved)
			ch__os_unreserve(at, needs - has);
		return false;
	}
	atomic_store_explicit(&table->backed, (uint32_t)(needs / table->record_bytes),
			      memory_order_release);
	return true;
}

uint32_t ch__table_generations(const struct ch__table *table)
{
	uint32_t most = 0;
	for (uint32_t i = 1; i < table->used; i++) {
		uint32_t generation = *ch__table_generation(table, i) - table->first_generation;
		if (generation > most)
			most = generation;
	}
	return most;
}

uint32_t ch__table_extend(struct ch__table *table, uint32_t count)
{
	uint32_t index = table->used ? table->used : 1;
	if (index + count > table->limit || !ch__table_back(table, index + count - 1))
		return 0;
	/* Relaxed: no handle has the generation 0, nor yet the first generation. */
	for (uint32_t i = index; table->first_generation && i < index + count; i++) {
		_Atomic(uint32_t) *generation = ch__table_generation(table, i);
		CH_STORE_RELAXED(generation, table->first_generation);
	}
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

uint32_t ch__table_take(struct ch__table *table)
{
	uint32_t index = pop(table, &table->free_head);
	if (!index)
		index = ch__table_extend(table, 1);
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
