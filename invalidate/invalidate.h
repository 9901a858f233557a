/* SPDX-License-Identifier: MIT
 * invalidate.h: making blocks not entrant (invalidate.c). */
#ifndef CH_INVALIDATE_INVALIDATE_H
#define CH_INVALIDATE_INVALIDATE_H

#include "codeheap/graph/block.h"

/* LIVE -> NOTENTRANT; false: it was not LIVE code. The caller tells the trigger by how much that
 * raised heap->notentrant_bytes, while it has the lock. */
bool ch__invalidate_block(struct ch_heap *, uint32_t block, enum ch__cause)
	CH_REQUIRES(ch__role_heap, ch__role_region);

#endif
