/* SPDX-License-Identifier: MIT
 * patch_point.h: diverting the patch points of a block (patch_point.c). */
#ifndef CH_INVALIDATE_PATCH_POINT_H
#define CH_INVALIDATE_PATCH_POINT_H

#include "codeheap/base/heap.h"

/* Every patch point of the block leads to its exit. */
void ch__exits_divert(struct ch_heap *, uint32_t block) CH_REQUIRES(ch__role_heap, ch__role_region);

#endif
