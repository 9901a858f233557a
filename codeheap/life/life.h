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
void ch__part_cut(struct ch_heap *, uint32_t offset, uint32_t bytes) CH_HAS_REGION;
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
void ch__runtime_begin(struct ch_heap *) CH_HAS_HEAP;

/* From enter to leave, no second open that may collect takes space freed by a cycle. Two kinds of
 * opens take no turn: an open inside a callback of another open, and opens where the VM collects or
 * stops its threads itself, since that stop waits for threads outside of the library. An open that
 * waited longer than a cycle may take gets the turn of a holder that stays away. Returns the
 * argument of leave, or 0. */
uintptr_t ch__need_enter(struct ch_heap *, const struct ch__thread *self) CH_HOLDS_NONE;
void ch__need_leave(struct ch_heap *, uintptr_t entered);
