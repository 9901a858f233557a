/* SPDX-License-Identifier: MIT
 * names.h: names with counted references (names.c). Lock: heap, except to read a text. */
#pragma once

#include "codeheap/base/heap.h"

struct ch__name {
	_Atomic(char *) text; /* NULL: the name is parked, or free */
	uint32_t references;
	uint32_t next; /* list of parked names, or free list */
	char *parked; /* the text, which readers may still have */
	uint32_t place;      /* among the last names, where this one was put */
	uint32_t short_name; /* of a long name: its cut form, referenced; else 0 */
};

static inline struct ch__name *ch__name_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->names, index, sizeof(struct ch__name));
}
/* Returns the name, with one more reference that is the caller's; 0: no memory. */
uint32_t ch__name_take(struct ch_heap *, const char *text) CH_HAS_HEAP;
void ch__name_drop(struct ch_heap *, uint32_t name) CH_HAS_HEAP CH_MAY_WAIT;
/* The same in a region. The text is freed by the next ch__names_free_parked or ch__name_drop. */
void ch__name_park(struct ch_heap *, uint32_t name) CH_HAS_HEAP;
void ch__names_free_parked(struct ch_heap *) CH_HAS_HEAP CH_MAY_WAIT;
const char *ch__name_text(const struct ch_heap *, uint32_t name); /* signal-safe; "" for 0 */

/* Bytes of a name in a trap report, with the 0: longer names are cut at a character of UTF-8. */
enum { CH__NAME_SHORT_BYTES = 64 };
/* The name if short; else the cut form, which lives as long as the name. */
static inline uint32_t ch__name_short(const struct ch_heap *heap, uint32_t name)
{
	uint32_t short_name = name ? ch__name_at(heap, name)->short_name : 0;
	return short_name ? short_name : name;
}
void ch__name_cut(char short_text[CH__NAME_SHORT_BYTES], const char *text); /* signal-safe */

/* Readers of names and places in all heaps, signal handlers included. While there is a reader, a
 * text that was taken away is parked, not freed. seq_cst: either the reader finds the text gone, or
 * the freeing thread finds the reader. */
extern _Atomic(uint32_t) ch__place_readers;
static inline bool ch__place_is_read(void)
{
	return atomic_load_explicit(&ch__place_readers, memory_order_seq_cst) != 0;
}
/* A thread reads places between begin and end; pairs of calls nest. */
static inline void ch__place_read_begin(void)
{
	atomic_fetch_add_explicit(&ch__place_readers, 1, memory_order_seq_cst);
}
static inline void ch__place_read_end(void)
{
	atomic_fetch_sub_explicit(&ch__place_readers, 1, memory_order_seq_cst);
}
