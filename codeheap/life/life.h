/* SPDX-License-Identifier: MIT
 * life.h: the declarations that the files of life/ share. */
#pragma once

#include "codeheap/collect/collect.h"

/* ch_block_open once the heap and the thread are known and `open` is valid; any frame number. */
enum ch_status ch__block_open(struct ch_heap *, struct ch__thread *, const struct ch_open *,
			      struct ch_code *);
/* Two calls: for the whole size gcc takes a string instruction, which is slower than stores. */
static inline void ch__code_clear(struct ch_code *code)
{
	memset(code, 0, 64);
	memset((uint8_t *)code + 64, 0, sizeof *code - 64);
}
/* Fills bytes of a block with traps and gives them back to their page; bytes may be 0. */
void ch__part_cut(struct ch_heap *, uint32_t offset, uint32_t bytes) CH_REQUIRES(ch__role_region);
/* Finds the calling thread, and attaches it first where needed. Returns CH_E_STATE when the thread
 * is parked. The first function is the cold half. */
enum ch_status ch__thread_need_cold(struct ch_heap *, struct ch__thread **self) CH_COLD;
/* The same; *self is what ch__thread_self said. */
static inline enum ch_status ch__thread_need(struct ch_heap *heap, struct ch__thread **self)
{
	return CH_LIKELY(*self && !(*self)->park_depth) ? CH_OK : ch__thread_need_cold(heap, self);
}
bool ch__fork_register(void);
/* Writes the runtime page of a heap unknown to other threads. */
void ch__runtime_begin(struct ch_heap *) CH_REQUIRES(ch__role_heap);
/* Overrides the configuration by the environment, and resolves the set of sinks. Returns CH_E_ARG
 * for an unknown value; an unknown value of the environment also gets a line on stderr. */
enum ch_status ch__wishes_read(struct ch_config *, unsigned *wanted);
/* Tells which of the wanted sinks a finished heap does not have, and why. */
void ch__wishes_tell_off(const struct ch_heap *, unsigned wanted);

/* --- opening (open.c, open_place.c) --- */

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
	enum ch__span_use use; /* of the pages */
	int os_error;          /* errno of the last try, which had room */
	int refused;           /* errno: no room, no memory, and no collection would help */
	bool lacks_memory;     /* the last try found no side memory */
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

/* From enter to leave, no second open that may collect takes space freed by a cycle. Two kinds of
 * opens take no turn: an open inside a callback of another open, and opens where the VM collects or
 * stops its threads itself, since that stop waits for threads outside of the library. An open that
 * waited longer than a cycle may take gets the turn of a holder that stays away. Returns the
 * argument of leave, or 0. */
uintptr_t ch__need_enter(struct ch_heap *, const struct ch__thread *self) CH_EXCLUDES(CH__ANY);
void ch__need_leave(struct ch_heap *, uintptr_t entered);

/* --- the commit (commit.c) and its checks (commit_check.c) --- */

static inline struct ch__block *ch__code_block(const struct ch_heap *heap,
					       const struct ch_code *code)
{
	return ch__block_at(heap, ch__handle_index(code->block.bits));
}

/* Bytes that a run of pages keeps for a block: its pages up to the last used byte. A block with
 * cold bytes at the end keeps all pages, since every address has a block. */
static inline uint32_t ch__kept_bytes(const struct ch_heap *heap, const struct ch__block *block,
				      uint32_t used_to)
{
	uint32_t in_page = ((uint32_t)1 << heap->pool->page_log2) - 1;
	uint32_t end = block->hot_offset + ch__head_bytes(ch__block_use(heap, block)) + used_to;
	if (block->cold_granules)
		return ch__hot_bytes(block);
	return ((end + in_page) & ~in_page) - block->hot_offset;
}

/* Offset of the entry from the first byte that the block has after the shrink. */
static inline uint32_t ch__entry_from(const struct ch__block *block, const struct ch_code *code)
{
	bool stays_whole = (block->flags & CH__FLAG_APART) != 0;
	return code->entry_offset - (stays_whole ? 0 : code->used_from);
}

/* Whether the emitter kept to the room of its block. Under Valgrind, Valgrind tells. */
static inline bool ch__part_is_kept(const struct ch_heap *heap, uint32_t index, uint32_t offset,
				    uint32_t bytes)
{
	return CH_UNLIKELY(heap->pool->is_translated) ||
	       (ch__head_read(heap, offset) == ch__head_of(index) &&
		ch__is_trap_behind(heap, offset + bytes));
}

/* What some blocks need besides the usual steps. */
enum { CH__ASSUMES = 1, CH__MAY_BE_YOUNG = 2, CH__IS_APART = 4 };

/* Returns CH_OK when all blocks may be committed, and what they need besides. */
enum ch_status ch__commit_check(struct ch_heap *, struct ch__thread *, const struct ch_code *,
				size_t count, unsigned *besides);
