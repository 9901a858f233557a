/* SPDX-License-Identifier: MIT
 * stats_walk.h: what a walk over the blocks finds for the statistics file. */
#pragma once

#include "codeheap/guest_look.h"
#include "observe/stats_file.h"
#include "os/meta.h"

enum {
	CH__STATS_OWNER_KINDS_MOST = 32, /* with "other", which is the first */
	CH__STATS_BLOCK_KINDS_COUNT = 4,
	CH__STATS_PAGES_MOST = 8192,
	CH__STATS_PARTS_MOST = 16384,
	CH__STATS_MAP_PAGES = 128, /* the parts of at most so many used pages are listed */
};

struct ch__stats_walk {
	struct ch__stats_kind owners[CH__STATS_OWNER_KINDS_MOST];
	uint32_t owners_count;
	struct ch__stats_kind blocks[CH__STATS_BLOCK_KINDS_COUNT];
	struct ch__stats_page *pages;
	uint32_t pages_room, pages_count, pages_left_out;
	uint32_t *row_of; /* by page of the pool: its row in `pages`, from 1; 0: none */
	struct ch__stats_part *parts;
	uint32_t parts_room, parts_count, parts_left_out;
	uint32_t map_rows; /* the first rows of `pages`, with all parts listed */
	struct ch_heap *heap;             /* [const] */
	const struct ch__look_heap *look; /* the caller's [const] */
};

/* The last pauses of a heap. One writer at a time; a reader may come in the middle. */
enum { CH__STATS_PAUSES_MOST = 32 };
struct ch__stats_pauses {
	_Atomic(uint32_t) noted; /* release after a pause */
	struct ch__stats_noted {
		_Atomic(uint64_t) at_ns, ns; /* release; a reader looks for later pauses */
	} at[CH__STATS_PAUSES_MOST];
};
void ch__stats_pauses_note(struct ch__stats_pauses *, uint64_t at_ns, uint64_t ns);
/* Copies the last pauses, the oldest first. Returns how many. */
uint32_t ch__stats_pauses_read(const struct ch__stats_pauses *,
			       struct ch__stats_pause[CH__STATS_PAUSES_MOST]);

/* Makes room for the lists in the side memory. Returns false if there is no memory. */
bool ch__stats_walk_create(struct ch__stats_walk *, struct ch_heap *, const struct ch__look_heap *,
			   struct ch__meta *);
/* Counts all blocks, in steps. A thread waits for the heap lock at most for a step, and comes
 * before the next step. If *is_hurried, the steps do not pause. Returns the ns of work. */
uint64_t ch__stats_walk_run(struct ch__stats_walk *, _Atomic(uint32_t) *is_hurried);

#if CH_TESTING
/* The ns between two writes of the listener's file; 0: no pause. */
_Atomic(uint64_t) *ch__stats_file_period(struct ch__listener *);
#endif
