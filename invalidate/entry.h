/* SPDX-License-Identifier: MIT
 * entry.h: how callers come in (entry.c). */
#ifndef CH_INVALIDATE_ENTRY_H
#define CH_INVALIDATE_ENTRY_H

#include "codeheap/graph/block.h"

/* The gate of a patchable or guarded entry leads away from here on. */
void ch__entry_close(struct ch_heap *, struct ch__block *)
	CH_REQUIRES(ch__role_heap, ch__role_region);

#endif
