/* SPDX-License-Identifier: MIT
 * invalidate.h: making blocks not entrant (invalidate.c). */
#ifndef CH_INVALIDATE_INVALIDATE_H
#define CH_INVALIDATE_INVALIDATE_H

#include "codeheap/graph/block.h"

/* LIVE -> NOTENTRANT; the block's bytes, 0 when it was not LIVE: the caller tells the trigger of
 * their sum. Under heap, in a region. */
uint32_t ch__invalidate_block(struct ch_heap *, uint32_t block, enum ch__cause)
	CH_REQUIRES(ch__role_heap, ch__role_region);

#endif
