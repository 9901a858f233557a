/* SPDX-License-Identifier: MIT
 * invalidate.h: making blocks not entrant (invalidate.c), and all code of one vm, or of all
 * (discard.c): the collection that frees it is the caller's. */
#ifndef CH_INVALIDATE_INVALIDATE_H
#define CH_INVALIDATE_INVALIDATE_H

#include "codeheap/graph/block.h"

/* LIVE -> NOTENTRANT; false: it was not LIVE code. The caller tells the trigger by how much that
 * raised heap->notentrant_bytes, while it has the lock. */
bool ch__invalidate_block(struct ch_heap *, uint32_t block, enum ch__cause)
	CH_REQUIRES(ch__role_heap, ch__role_region);

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
