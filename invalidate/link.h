/* SPDX-License-Identifier: MIT
 * link.h: branches are led elsewhere (link.c), by those who take them, too (stub.c). */
#ifndef CH_INVALIDATE_LINK_H
#define CH_INVALIDATE_LINK_H

#include "codeheap/base/heap.h"

/* Every branch that leads to the block, then the block's own, are taken off their targets' lists,
 * and re-pointed to their stubs or exits where it says so: not in code that is dying. */
void ch__block_unlink(struct ch_heap *, uint32_t block, bool patch_incoming, bool patch_outgoing)
	CH_REQUIRES(ch__role_heap, ch__role_region);
void ch__stub_init(struct ch_heap *);

#endif
