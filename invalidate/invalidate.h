/* SPDX-License-Identifier: MIT
 * invalidate.h: what the files of invalidate/ share. They are clients of the block graph in
 * codeheap/. */
#ifndef CH_INVALIDATE_INVALIDATE_H
#define CH_INVALIDATE_INVALIDATE_H

#include "codeheap/graph/block.h"

/* LIVE -> NOTENTRANT; the block's bytes, 0 when it was not LIVE: the caller tells the trigger of
 * their sum. Under heap, in a region. */
uint32_t ch__invalidate_block(struct ch_heap *, uint32_t block, enum ch__cause)
	CH_REQUIRES(ch__role_heap, ch__role_region);
/* relink.c: every incoming branch back to its stub, then the block's own. */
void ch__relink_incoming(struct ch_heap *, uint32_t block)
	CH_REQUIRES(ch__role_heap, ch__role_region);
void ch__relink_outgoing(struct ch_heap *, uint32_t block)
	CH_REQUIRES(ch__role_heap, ch__role_region);
/* exits.c: every patch point of the block leads to its exit. */
void ch__exits_divert(struct ch_heap *, uint32_t block) CH_REQUIRES(ch__role_heap, ch__role_region);

#endif
