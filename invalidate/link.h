/* SPDX-License-Identifier: MIT
 * link.h: linking and unlinking branches (link.c). */
#ifndef CH_INVALIDATE_LINK_H
#define CH_INVALIDATE_LINK_H

#include "codeheap/base/heap.h"

/* Take the branch off its target's list and re-point its bytes to the stub or exit, unless its
 * own code is dying. Under heap, in a region. */
void ch__branch_unlink(struct ch_heap *, uint32_t branch, bool patch)
	CH_REQUIRES(ch__role_heap, ch__role_region);

/* Every branch that leads to the block, then the block's own. */
void ch__block_unlink(struct ch_heap *, uint32_t block, bool patch_incoming, bool patch_outgoing)
	CH_REQUIRES(ch__role_heap, ch__role_region);

#endif
