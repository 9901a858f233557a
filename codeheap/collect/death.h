/* SPDX-License-Identifier: MIT
 * death.h: the end of a block for any reason (death.c). */
#ifndef CH_CODEHEAP_COLLECT_DEATH_H
#define CH_CODEHEAP_COLLECT_DEATH_H

#include "codeheap/base/heap.h"
#include "codeheap/graph/tombstone.h"

/* DEAD blocks whose core sync has passed become FREE; in need: after an extra sync, and those too
 * whose names are kept. True when there was one. Under heap. */
bool ch__quarantine_advance(struct ch_heap *, bool in_need)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
void ch__notices_deliver(struct ch_heap *) CH_EXCLUDES(CH__ANY);
/* LIVE|NOTENTRANT -> DEAD, its record on the quarantine or free. Under heap; patches live
 * in-edges. */
void ch__block_kill_now(struct ch_heap *, uint32_t block, enum ch__death)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
void ch__blocks_forget_all(struct ch_heap *) CH_REQUIRES(ch__role_heap);
enum { CH__KILLED_AT_ONCE = 64 };
/* The same for blocks of one owner, CH__KILLED_AT_ONCE at most; of a release, those that no block
 * has an edge to. */
void ch__blocks_kill_now(struct ch_heap *, uint32_t *blocks, uint32_t count, enum ch__death)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);

/* Offsets, no addresses: those would stay on the sweeper's stack, and hold what comes to lie there
 * next. */
struct ch__dead {
	uint32_t index, hot_offset, cold_offset, hot_bytes, cold_bytes;
	uint32_t run;   /* of branches, all unlinked */
	bool must_wait; /* on the quarantine: its place may not go back at once */
	bool was_open, is_data;
	bool is_lent; /* written in place until its pages go back: no code that runs there */
	uint64_t key;
	struct ch__side_list *side_list;
};

/* A place of theirs is not used again: an address has one name in the perf map for ever. */
bool ch__dead_names_kept(const struct ch_heap *);
/* LIVE|NOTENTRANT -> DEAD, of blocks that no cycle reached: CH__KILLED_AT_ONCE at most, which go
 * through ch__deaths_finish behind the region. */
void ch__blocks_kill_unreached(struct ch_heap *, const uint32_t *blocks, uint32_t count,
			       struct ch__dead *) CH_REQUIRES(ch__role_heap, ch__role_region);
/* Names are withdrawn, traps written, and places go onto the quarantine, or back. */
void ch__deaths_finish(struct ch_heap *, const struct ch__dead *, uint32_t count)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(ch__role_region);

#endif
