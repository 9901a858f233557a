/* SPDX-License-Identifier: MIT
 * refs.h: refs that a minor collection visits (refs.c). */
#ifndef CH_CODEHEAP_COLLECT_REFS_H
#define CH_CODEHEAP_COLLECT_REFS_H

#include "codeheap/base/heap.h"

/* HOST: a minor collection visits it */
void ch__young_refs_add(struct ch_heap *, struct ch__thread *, struct ch_block);

#endif
