/* SPDX-License-Identifier: MIT
 * names.h: interned names, which records hold (names.c). Under heap, but for their text. */
#ifndef CH_CODEHEAP_GRAPH_NAMES_H
#define CH_CODEHEAP_GRAPH_NAMES_H

#include "codeheap/base/heap.h"

struct ch__name {
	_Atomic(char *) text; /* NULL: nobody has the record */
	uint32_t references;
	uint32_t next; /* hash chain, list of parked ones, or free list */
	union {
		uint32_t hash;
		char *parked; /* the text that somebody may be reading */
	};
	uint32_t short_name; /* of a long one: a name too, held; else 0 */
};

uint64_t ch__name_hash(const uint64_t key[2], const char *text, size_t bytes);
/* Holds one reference; 0: no memory. */
uint32_t ch__name_intern(struct ch_heap *, const char *text) CH_REQUIRES(ch__role_heap);
void ch__name_hold(struct ch_heap *, uint32_t name) CH_REQUIRES(ch__role_heap);
void ch__name_drop(struct ch_heap *, uint32_t name)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
/* The same in a region: the text stays until the next of these, or of the dropped. */
void ch__name_park(struct ch_heap *, uint32_t name) CH_REQUIRES(ch__role_heap);
void ch__names_free_parked(struct ch_heap *) CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
const char *ch__name_text(const struct ch_heap *, uint32_t name); /* signal-safe; "" for 0 */

/* What a trap says of a name is bounded: longer ones are cut, at a character of UTF-8. */
enum { CH__NAME_SHORT_BYTES = 64 };
/* The name itself where it is short, else its cut form, which lives as long. */
uint32_t ch__name_short(const struct ch_heap *, uint32_t name);
void ch__name_cut(char short_text[CH__NAME_SHORT_BYTES], const char *text); /* signal-safe */

/* Readers in signal handlers, of all heaps: while there is one, what it may have found
 * before it was taken away is not freed but parked. seq_cst: either the reader sees that it is
 * gone, or who frees sees the reader. */
extern _Atomic(uint32_t) ch__place_readers;
static inline bool ch__place_is_read(void)
{
	return atomic_load_explicit(&ch__place_readers, memory_order_seq_cst) != 0;
}
/* Between the two, of one thread, places are read: calls nest. */
static inline void ch__place_read_begin(void)
{
	atomic_fetch_add_explicit(&ch__place_readers, 1, memory_order_seq_cst);
}
static inline void ch__place_read_end(void)
{
	atomic_fetch_sub_explicit(&ch__place_readers, 1, memory_order_seq_cst);
}

#endif
