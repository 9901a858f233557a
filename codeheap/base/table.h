/* SPDX-License-Identifier: MIT
 * table.h: type-stable records in tables, by index; and handles, which name a record by index and
 * generation (table.c). Index 0 is none. */
#pragma once

#include "codeheap/codeheap.h"

#include <stdatomic.h>

enum {
	CH__TABLE_STEP_BYTES = 1 << 16, /* in which a table grows: whole pages of every system */
	CH__INDEX_MAX = (1 << 24) - 1, /* a stub holds 24 bits of a branch index */
	CH__RUN_MAX = 512, /* branches of a block */
};

static inline uint64_t ch__handle(uint32_t heap_id, uint32_t index, uint32_t generation)
{
	return (uint64_t)generation << 32 | heap_id << 24 | index;
}
static inline uint32_t ch__handle_index(uint64_t bits)
{
	return (uint32_t)bits & CH__INDEX_MAX;
}
static inline uint32_t ch__handle_heap_id(uint64_t bits)
{
	return (uint32_t)bits >> 24;
}
static inline uint32_t ch__handle_generation(uint64_t bits)
{
	return (uint32_t)(bits >> 32);
}

/* A free record is worn when its next generation is the last before generations begin again. */
static inline bool ch__is_worn(uint32_t generation)
{
	return generation == UINT32_MAX - 1;
}

struct ch__table {
	char *base;            /* [const] */
	bool is_reserved;      /* the address space of all records is the table's [const] */
	uint32_t record_bytes; /* [const] */
	uint32_t link_offset;  /* of the field that chains free records [const] */
	uint32_t limit;        /* records at most [const] */
	/* Records that have memory; stored under the lock of the lists. */
	_Atomic(uint32_t) backed;
	/* Records handed out at least once, record 0 included; stored likewise, a release that a
	 * walk over the records acquires. */
	_Atomic(uint32_t) used;
	/* FIFO [records]; of names, owners and assumptions [heap] */
	uint32_t free_head, free_tail;
	/* Worn records rest until the table has no other record; likewise FIFO. */
	uint32_t worn_head, worn_tail;
	/* Generation of records that nobody has had, or 0; and its offset in a record [const] */
	uint32_t first_generation, generation_offset;
};

/* For callers that know a record's size as a constant. */
static inline void *ch__table_at_bytes(const struct ch__table *table, uint32_t index, size_t bytes)
{
	return table->base + index * bytes;
}
static inline void *ch__table_at(const struct ch__table *table, uint32_t index)
{
	return ch__table_at_bytes(table, index, table->record_bytes);
}

/* Whether the index, which may be anything, leads to a record, in use or not. */
static inline bool ch__table_has(const struct ch__table *table, uint32_t index)
{
	return index && index < atomic_load_explicit(&table->backed, memory_order_acquire);
}

/* Tables take address space for all their records here; where it is limited, with each step. */
bool ch__tables_place(struct ch__table *, unsigned count, bool is_limited);
void ch__tables_free(struct ch__table *, unsigned count); /* zeroed tables, too */
size_t ch__table_backed_bytes(const struct ch__table *); /* memory that a table has */
/* Generation of a record of a table with generations; of an owner's record, with enum ch__life. */
_Atomic(uint32_t) *ch__table_generation(const struct ch__table *, uint32_t index);
/* Generations of the most used record, counted from the table's first generation. */
uint32_t ch__table_generations(const struct ch__table *);
/* Makes `count` fresh records in a row: the first, or 0: no memory. Under records. */
uint32_t ch__table_extend(struct ch__table *, uint32_t count);
/* Takes a free, fresh or worn record; 0: no memory. Under the lock of the lists. */
uint32_t ch__table_take(struct ch__table *);
/* Gives back a record that nobody has. Likewise. */
void ch__table_give(struct ch__table *, uint32_t index, bool is_worn);
/* Gets memory for all records up to one, where a table's indices come from elsewhere; likewise. */
bool ch__table_back(struct ch__table *, uint32_t index);
