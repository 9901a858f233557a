/* SPDX-License-Identifier: MIT
 * open_place.h: a request for a block, and its place (open_place.c). */
#pragma once

#include "codeheap/graph/block.h"

struct ch__request {
	struct ch_heap *heap;
	struct ch__thread *self;
	const struct ch_open *open;
	uint32_t hot_bytes,
		cold_bytes; /* whole parts, heads and stubs included, granule multiples */
	uint32_t head;  /* hot bytes before the VM's */
	uint32_t slack; /* hot bytes reserved besides, to move the part for `align` */
	uint32_t record, run;
	struct ch_block handle; /* of the record, once it is written */
	struct ch__side_list *side_list;
	uint32_t hot_offset, cold_offset;
	uint32_t span_pages;   /* 0 = within a page; 1 at least where whole pages are asked for */
	uint8_t frame;         /* frame number of the pages */
	enum ch__span_use use; /* of the span */
	int os_error;          /* errno of the last try, which had room */
	int refused;           /* errno: no room, no memory, and no collection would help */
	bool lacks_memory;     /* the last try had room, but no side memory */
	bool is_in_vain;       /* the last collection was given up */
	uint64_t space_seen;   /* ch__space_now before the last try */
};

/* STRANGER: a callback left its stack to a thread that is not attached. */
enum ch__placed { CH__PLACED, CH__NO_ROOM, CH__OWNER_DEAD, CH__STRANGER };

/* Makes room in the thread's list of young blocks. Returns false when there is no memory. */
bool ch__open_reserve_young(struct ch__request *);
/* Places the block in the thread's own page, and writes its record. */
enum ch__placed ch__place_at_hand(struct ch__request *);
/* The same wherever there is room, after the work that makes room. */
enum ch__placed ch__place_in_need(struct ch__request *) CH_COLD;
