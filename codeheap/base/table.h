/* SPDX-License-Identifier: MIT
 * table.h: type-stable records in tables, by an index, and handles that name them with a generation
 * (table.c). Index 0 is none. */
#ifndef CH_CODEHEAP_BASE_TABLE_H
#define CH_CODEHEAP_BASE_TABLE_H

#include "codeheap/codeheap.h"
#include "os/meta.h"

#include <stdatomic.h>

enum {
	CH__SEGMENT_LOG2 = 10, /* records of one segment of a table */
	CH__SEGMENT_RECORDS = 1 << CH__SEGMENT_LOG2,
	CH__INDEX_MAX = (1 << 24) - 1, /* a stub holds 24 bits of a branch index */
};

static inline uint64_t ch__handle(uint32_t heap_id, uint32_t index, uint32_t generation)
{
	return (uint64_t)generation << 32 | heap_id << 24 | index;
}
static inline uint32_t ch__handle_index(uint64_t bits)
{
	return (uint32_t)bits & CH__INDEX_MAX;
}
static inline uint32_t ch__handle_generation(uint64_t bits)
{
	return (uint32_t)(bits >> 32);
}

/* Of a record that nobody has: its next generation is the last one before they begin again. */
static inline bool ch__is_worn(uint32_t generation)
{
	return generation == UINT32_MAX - 1;
}

struct ch__table {
	_Atomic(void *) *segments; /* release of a new segment pairs with ch__table_at */
	uint32_t record_bytes; /* [const] */
	uint32_t link_offset;  /* of the field that chains free records [const] */
	uint32_t limit;        /* records at most [const] */
	_Atomic(uint32_t) used; /* records handed out at least once, record 0 included; stored under
				 * [records], of tombstones under [heap], release after their
				 * segment */
	/* FIFO [records]; of names, owners and assumptions [heap] */
	uint32_t free_head, free_tail;
	/* Worn ones rest until the table has no other record; likewise FIFO. */
	uint32_t worn_head, worn_tail;
	/* Of records that nobody has had yet, 0: they have none; and where they have it [const] */
	uint32_t first_generation, generation_offset;
};

/* With the size of a record as a constant, where it is known. */
static inline void *ch__table_at_bytes(const struct ch__table *table, uint32_t index, size_t bytes)
{
	char *segment = atomic_load_explicit(&table->segments[index >> CH__SEGMENT_LOG2],
					     memory_order_acquire);
	return segment + (index & (CH__SEGMENT_RECORDS - 1)) * bytes;
}
static inline void *ch__table_at(const struct ch__table *table, uint32_t index)
{
	return ch__table_at_bytes(table, index, table->record_bytes);
}

/* Whether the index, which may be anything, leads to a record, in use or not. */
static inline bool ch__table_has(const struct ch__table *table, uint32_t index)
{
	return index && index < table->limit &&
	       atomic_load_explicit(&table->segments[index >> CH__SEGMENT_LOG2],
				    memory_order_acquire);
}

/* What a table of so many records needs of zeroed memory, to be touched as it grows. */
static inline size_t ch__table_directory_bytes(uint32_t limit)
{
	return (((size_t)limit >> CH__SEGMENT_LOG2) + 2) * sizeof(void *);
}
/* Of a zeroed table, whose first_generation may be set; its directory outlives it. */
void ch__table_init(struct ch__table *, void *directory, uint32_t record_bytes,
		    uint32_t link_offset, uint32_t generation_offset, uint32_t limit);
/* How many generations the most used of its records is away from the first. */
uint32_t ch__table_generations(const struct ch__table *);
/* The first of `count` fresh records in a row (one segment); 0: no memory. Under records. */
uint32_t ch__table_extend(struct ch__table *, struct ch__meta *, uint32_t count);
/* A free record, a fresh or a worn one; 0: no memory. Under records, and the lists' lock. */
uint32_t ch__table_take(struct ch__table *, struct ch__meta *);
/* Gives one back that nobody has. Likewise. */
void ch__table_give(struct ch__table *, uint32_t index, bool is_worn);
/* Memory for one record, of a table whose records have their indices from elsewhere; likewise. */
bool ch__table_back(struct ch__table *, struct ch__meta *, uint32_t index);

/* Runs of branch records of one length that no block has (branch.c). */
struct ch__runs {
	uint32_t free; /* LIFO */
	uint32_t worn, worn_last, worn_now; /* FIFO: those that rest */
};

#endif
