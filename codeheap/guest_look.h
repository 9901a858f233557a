/* SPDX-License-Identifier: MIT
 * guest_look.h: what an observer sees of a heap (look/look.c, look/look_code.c). For what an
 * observer hears see listener.h. */
#pragma once

#include "codeheap/listener.h"

/* The lock under which no heap comes or goes; left of the locks of every heap. */
CH_GUEST void ch__look_lock_heaps(void) CH_ACQUIRES(ch__role_heaps) CH_HOLDS_NONE;
CH_GUEST void ch__look_unlock_heaps(void) CH_RELEASES(ch__role_heaps);
/* The heap of this number; NULL: no such heap, or the heap is not whole yet. */
CH_GUEST struct ch_heap *ch__look_heap_of(uint32_t id) CH_REQUIRES(ch__role_heaps);
/* Locks of a heap, for an observer's own calls. While threads are locked no thread comes or goes;
 * while blocks are locked no block dies. */
CH_GUEST void ch__look_lock_threads(struct ch_heap *) CH_ACQUIRES(ch__role_registry);
CH_GUEST void ch__look_unlock_threads(struct ch_heap *) CH_RELEASES(ch__role_registry);
CH_GUEST void ch__look_lock_blocks(struct ch_heap *) CH_ACQUIRES(ch__role_heap);
CH_GUEST void ch__look_unlock_blocks(struct ch_heap *) CH_RELEASES(ch__role_heap);
/* Not CH_OK, with the sentence made: no such heap lives, or the calling thread has a cycle or a
 * visit open, and so may not wait for a heap's lock. */
CH_GUEST enum ch_status ch__look_refuses(const struct ch_heap *);

/* Facts that do not change while the heap lives. */
struct ch__look_heap {
	uint32_t id; /* 1 to CH__LOOK_HEAPS_MAX; no other heap has the same at the time */
	uintptr_t pool_exec, runtime_exec;
	size_t pool_bytes, runtime_bytes, page_bytes;
	uint32_t pages;
};
enum { CH__LOOK_HEAPS_MAX = 255 };
CH_GUEST void ch__look_heap(const struct ch_heap *, struct ch__look_heap *);

/* Visits the attached threads, until `visit` returns false. */
CH_GUEST void ch__look_threads(struct ch_heap *, bool (*visit)(void *arg, struct ch__thread *),
	void *arg)
	CH_REQUIRES(ch__role_registry);
CH_GUEST int ch__look_thread_id(const struct ch__thread *);
/* A word in the thread's record for the profiler. The record stays as long as the heap, and another
 * thread gets it later. Signal-safe. */
CH_GUEST _Atomic(void *) *ch__look_thread_word(struct ch__thread *);
/* Finds the heap that the calling thread is attached to and that has the address. *is_pool: it is
 * in the pool of blocks, not in the runtime page. Returns NULL if there is none. Signal-safe. */
CH_GUEST const struct ch_heap *ch__look_elsewhere(uintptr_t pc, bool *is_pool);
/* The calling thread's record in the heap of this number; NULL: not attached. Signal-safe. */
CH_GUEST struct ch__thread *ch__look_self(uint32_t heap_id);
/* The upper end of the thread's stack in which sp lies; 0: not known. Signal-safe. */
CH_GUEST uintptr_t ch__look_stack_high(const struct ch__thread *, uintptr_t sp);

/* Between a call with true and a call with false memcheck judges no reads of the calling thread:
 * native code leaves values in the frame pointer's register that are undefined. Signal-safe. */
CH_GUEST void ch__look_anywhere(const struct ch__thread *, bool begins);
/* A word for the code at an address, 0: no code. The heap's number stands from CH__LOOK_HEAP_SHIFT
 * on, CH__LOOK_COLD says that the part is cold, the rest names the block; no other block of the
 * process has or had the same word. `known` is 0, or the word that the address had once, which is
 * returned if that code lives. Signal-safe. */
enum { CH__LOOK_HEAP_SHIFT = 56 };
#define CH__LOOK_COLD (UINT64_C(1) << 55)
CH_GUEST uint64_t ch__look_code(const struct ch_heap *, uintptr_t pc, uint64_t known);
static inline uint64_t ch__look_word(uint32_t heap_id, uint32_t index, uint32_t generation)
{
	return (uint64_t)heap_id << CH__LOOK_HEAP_SHIFT | (uint64_t)(generation >> 1) << 24 | index;
}
/* The generation in a word: odd, as that of a block that lives. */
static inline uint32_t ch__look_generation(uint64_t word)
{
	return (uint32_t)(word >> 24) << 1 | 1;
}
/* The word of ch__look_code for the handle of a block in blocks_die. */
CH_GUEST uint64_t ch__look_key(uint64_t handle);
/* Writes the name that sinks show for the code; *is_slot: the code is a trampoline. Returns the
 * length; 0: the name is gone. The code must live, or be among the blocks of blocks_die (is_dying).
 * The caller has the heap lock. */
CH_GUEST size_t ch__look_name(struct ch_heap *, uint64_t key, bool is_dying, char *text,
	size_t bytes, bool *is_slot);
/* Fills in the addresses where owners without code are entered, each once. Returns how many. */
CH_GUEST size_t ch__look_fallbacks(struct ch_heap *, uintptr_t *fallbacks, size_t max) CH_HAS_HEAP;

/* A block that is LIVE, NOTENTRANT or DEAD. cold_bytes may be 0. */
enum ch__look_kind {
	CH__LOOK_CODE,
	CH__LOOK_TRAMPOLINE,
	CH__LOOK_OWN_FRAMES,
	CH__LOOK_RODATA,
	CH__LOOK_DATA
};
struct ch__look_block {
	enum ch_block_state state;
	enum ch__look_kind kind;
	uint32_t hot_offset, hot_bytes, cold_offset, cold_bytes;
	const char *owner_name;
};
/* Visits the blocks in at most `records` records from *next on, and moves *next. The first record
 * is 1. Returns false when no record is left. */
CH_GUEST bool ch__look_blocks(struct ch_heap *, uint32_t *next, uint32_t records,
		     void (*visit)(void *arg, const struct ch__look_block *), void *arg)
	CH_HAS_HEAP;
/* A page of the pool by number, as the page is at some moment. */
struct ch__look_page {
	bool is_used, is_span;
	uint32_t span_first;  /* the first page of the span */
	uint32_t taken_bytes;
};
/* Returns false when the page and all behind were never in use. */
CH_GUEST bool ch__look_page(const struct ch_heap *, uint32_t page, struct ch__look_page *);
/* Writes waiting names if a write is due. Returns false while names wait. Any thread, no lock. */
CH_GUEST bool ch__look_write_names(void) CH_HOLDS_NONE;
/* The names of a set of sinks, as in CODEHEAP_SINKS. */
CH_GUEST void ch__look_sinks(unsigned sinks, char *text, size_t bytes);
