/* SPDX-License-Identifier: MIT
 * refs.h: refs that a minor collection visits (refs.c). */
#ifndef CH_CODEHEAP_COLLECT_REFS_H
#define CH_CODEHEAP_COLLECT_REFS_H

#include "codeheap/base/heap.h"

/* HOST: a minor collection visits these blocks, some of which have refs. */
void ch__young_refs_add(struct ch_heap *, const struct ch_code *, size_t count);

#endif
