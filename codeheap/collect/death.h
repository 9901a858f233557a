/* SPDX-License-Identifier: MIT
 * death.h: the end of a block for any reason (death.c). */
#ifndef CH_CODEHEAP_COLLECT_DEATH_H
#define CH_CODEHEAP_COLLECT_DEATH_H

#include "codeheap/base/heap.h"
#include "codeheap/graph/tombstone.h"

/* DEAD blocks whose core sync has passed become FREE; in need, or where many bytes wait, after an
 * extra sync, and in need those too whose names are kept. True when there was one. Under heap. */
bool ch__quarantine_advance(struct ch_heap *, bool in_need)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
void ch__notices_deliver(struct ch_heap *) CH_EXCLUDES(CH__ANY);
enum { CH__KILLED_AT_ONCE = 64 };
/* OPEN|LIVE|NOTENTRANT -> DEAD, CH__KILLED_AT_ONCE blocks at most, their records on the quarantine
 * or free. Of a release, those that no block has an edge to. Patches live in-edges, save of what no
 * cycle reached. */
void ch__blocks_kill(struct ch_heap *, const uint32_t *blocks, uint32_t count, enum ch__death)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);

#endif
