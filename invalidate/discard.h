/* SPDX-License-Identifier: MIT
 * discard.h: invalidating all code of one vm, or of all (discard.c). The collection that frees it
 * is the caller's. */
#ifndef CH_INVALIDATE_DISCARD_H
#define CH_INVALIDATE_DISCARD_H

#include "codeheap/base/heap.h"

/* Which blocks a discard found: others come and go before it counts what is left of them. */
struct ch__discard {
	uint8_t *stamps; /* of each record, 0 = not found; NULL = not asked for, or no memory */
	uint32_t records; /* that there are; those that come later are code of afterwards */
	size_t count;     /* blocks to get rid of */
};

/* vm: NULL for all of them. Stamps are made only where is_counted. */
void ch__discard_begin(struct ch_heap *, struct ch_vm *, bool is_counted, struct ch__discard *);
/* How many of them are there yet; the stamps are freed. */
size_t ch__discard_end(struct ch_heap *, struct ch_vm *, const struct ch__discard *);

#endif
