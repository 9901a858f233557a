/* SPDX-License-Identifier: MIT
 * sweep.h: finding what no cycle reached (sweep.c). */
#ifndef CH_CODEHEAP_COLLECT_SWEEP_H
#define CH_CODEHEAP_COLLECT_SWEEP_H

#include "codeheap/base/heap.h"

/* One step; true while there is more. No lock held; takes sweep, heap, pages, sinks. */
bool ch__sweep_step(struct ch_heap *) CH_EXCLUDES(CH__ANY);
void ch__sweep_all(struct ch_heap *) CH_EXCLUDES(CH__ANY);

#endif
