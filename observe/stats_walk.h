/* SPDX-License-Identifier: MIT
 * stats_walk.h: what a walk over the blocks finds for the statistics file. */
#ifndef CH_OBSERVE_STATS_WALK_H
#define CH_OBSERVE_STATS_WALK_H

#include "codeheap/guest_look.h"
#include "observe/stats_file.h"
#include "os/meta.h"

enum {
	CH__STATS_OWNER_KINDS_MOST = 32, /* with "other", which is the first */
	CH__STATS_BLOCK_KINDS_COUNT = 4,
	CH__STATS_PAGES_MOST = 8192,
	CH__STATS_PARTS_MOST = 16384,
	CH__STATS_MAP_PAGES = 128, /* whose parts are listed at most: the first in use */
};

struct ch__stats_walk {
	struct ch__stats_kind owners[CH__STATS_OWNER_KINDS_MOST];
	uint32_t owners_count;
	struct ch__stats_kind blocks[CH__STATS_BLOCK_KINDS_COUNT];
	struct ch__stats_page *pages;
	uint32_t pages_room, pages_count, pages_left_out;
	uint32_t *row_of; /* of each page of the pool: its place in pages, from 1; 0: none */
	struct ch__stats_part *parts;
	uint32_t parts_room, parts_count, parts_left_out;
	uint32_t map_rows; /* the first of pages, all of whose parts are listed */
	struct ch_heap *heap;             /* [const] */
	const struct ch__look_heap *look; /* the caller's [const] */
};

/* Room for the lists; false: no memory. It goes with the side memory. */
bool ch__stats_walk_create(struct ch__stats_walk *, struct ch_heap *, const struct ch__look_heap *,
			   struct ch__meta *);
/* Over all blocks, in steps: nobody waits for the heap lock longer than one of them takes, and who
 * waits comes before the next one. *is_hurried: the steps follow each other. The ns that it
 * worked. */
uint64_t ch__stats_walk_run(struct ch__stats_walk *, _Atomic(uint32_t) *is_hurried);

#if CH_TESTING
/* The ns between two writes of the heap's file; 0: none. NULL: it has no file. */
_Atomic(uint64_t) *ch__stats_file_period(const struct ch_heap *);
#endif

#endif
