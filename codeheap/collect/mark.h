/* SPDX-License-Identifier: MIT
 * mark.h: marking, and where a cycle begins and ends (mark.c). */
#ifndef CH_CODEHEAP_COLLECT_MARK_H
#define CH_CODEHEAP_COLLECT_MARK_H

#include "codeheap/base/heap.h"

void ch__marker_init(struct ch_heap *, struct ch_marker *);
void ch__mark_block(struct ch_marker *, uint32_t block) CH_REQUIRES(ch__role_frozen);
void ch__mark_owner_index(struct ch_marker *, uint32_t owner) CH_REQUIRES(ch__role_frozen);
void ch__mark_drain(struct ch_marker *) CH_REQUIRES(ch__role_frozen);
/* OPEN, newborn and immortal blocks */
void ch__mark_roots(struct ch_marker *) CH_REQUIRES(ch__role_frozen);
/* The word of a ref in code is the one that its VM gave for it; while the VM's threads stand. */
void ch__ref_move(struct ch_heap *, uintptr_t exec, uintptr_t moved);
/* Every block that is alive. */
void ch__mark_all(struct ch_marker *) CH_REQUIRES(ch__role_frozen);
bool ch__mark_reserve(struct ch_heap *)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(ch__role_frozen, ch__role_stopped, ch__role_region);
/* The epoch moves. */
void ch__cycle_begin(struct ch_heap *) CH_REQUIRES(ch__role_frozen);
/* Nothing dies of the cycle, which may not even have begun. Under heap, or in a hook of Boehm's. */
void ch__cycle_give_up(struct ch_heap *);
/* completed = epoch, newborns age; of a cycle that has worked since start_ns. */
void ch__cycle_complete(struct ch_heap *, uint64_t start_ns) CH_REQUIRES(ch__role_frozen);

/* What only the caller of the interface knows: this is between ch_mark_begin, which took the heap
 * lock and froze, and ch_mark_end. */
static inline void ch__host_has_cycle(const struct ch_marker *marker)
	CH_VOUCHES(ch__role_heap, ch__role_frozen) CH_UNANALYSED("the marker has them")
{
	(void)marker;
}

#endif
