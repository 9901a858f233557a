/* SPDX-License-Identifier: MIT
 * guest_look.h: what an observer may see of a heap (look/look.c, look/look_code.c). What it hears
 * is listener.h's. */
#ifndef CH_CODEHEAP_GUEST_LOOK_H
#define CH_CODEHEAP_GUEST_LOOK_H

#include "codeheap/listener.h"

/* Under it no heap comes or goes; left of the locks of every heap. */
CH_GUEST void ch__look_lock_heaps(void) CH_ACQUIRES(ch__role_heaps) CH_EXCLUDES(CH__ANY);
CH_GUEST void ch__look_unlock_heaps(void) CH_RELEASES(ch__role_heaps);
/* The heap of this number; NULL: there is none, or it is not whole yet. */
CH_GUEST struct ch_heap *ch__look_heap_of(uint32_t id) CH_REQUIRES(ch__role_heaps);
/* The locks of a heap, for an observer's own calls: under the first no thread comes or goes, under
 * the second no block dies. */
CH_GUEST void ch__look_lock_threads(struct ch_heap *) CH_ACQUIRES(ch__role_registry);
CH_GUEST void ch__look_unlock_threads(struct ch_heap *) CH_RELEASES(ch__role_registry);
CH_GUEST void ch__look_lock_blocks(struct ch_heap *) CH_ACQUIRES(ch__role_heap);
CH_GUEST void ch__look_unlock_blocks(struct ch_heap *) CH_RELEASES(ch__role_heap);
/* The calling thread has a cycle or a visit open: it may not wait for a lock of a heap. */
CH_GUEST bool ch__look_is_marking(void);

/* What does not change while the heap lives. */
struct ch__look_heap {
	uint32_t id; /* 1 to CH__LOOK_HEAPS_MAX; of no other heap at the time */
	uintptr_t pool_exec, runtime_exec;
	size_t pool_bytes, runtime_bytes, page_bytes;
	uint32_t pages;
};
enum { CH__LOOK_HEAPS_MAX = 255 };
CH_GUEST void ch__look_heap(const struct ch_heap *, struct ch__look_heap *);
/* Of the heap: a child that ran no handler of fork has another number. */
CH_GUEST int ch__look_process(const struct ch_heap *);

/* Attached threads; `visit` returns false to end. */
CH_GUEST void ch__look_threads(struct ch_heap *, bool (*visit)(void *arg, struct ch__thread *),
	void *arg)
	CH_REQUIRES(ch__role_registry);
CH_GUEST int ch__look_thread_id(const struct ch__thread *);
/* A word of the profiler's with the thread's record. The record stays as long as the heap, and
 * another thread gets it later. Signal-safe. */
CH_GUEST _Atomic(void *) *ch__look_thread_word(struct ch__thread *);
/* The calling thread is attached to another heap, too. Signal-safe. */
CH_GUEST bool ch__look_is_elsewhere(const struct ch_heap *);
/* Another heap that the calling thread is attached to, and in whose memory the address is: is_pool
 * tells blocks from the runtime page. NULL: none. Signal-safe. */
CH_GUEST const struct ch_heap *ch__look_elsewhere(const struct ch_heap *, uintptr_t pc,
	bool *is_pool);
/* The calling thread, if it is attached to the heap of this number. Signal-safe. */
CH_GUEST struct ch__thread *ch__look_self(uint32_t heap_id);
/* The upper end of the stack of the thread that sp lies in; 0: it is not known. Signal-safe. */
CH_GUEST uintptr_t ch__look_stack_high(const struct ch__thread *, uintptr_t sp);

/* From true to false memcheck does not judge what the calling thread reads: native code leaves
 * values in the frame pointer's register that it takes for none. Signal-safe. */
CH_GUEST void ch__look_anywhere(const struct ch__thread *, bool begins);
/* The code at an address: the number of its heap from CH__LOOK_HEAP_SHIFT on, CH__LOOK_COLD where
 * it is the cold part, and the rest names the block; no other block of the process has or had the
 * same. 0: there is none. `known` is 0, or what the address had once: that is the answer if the
 * code lives. Signal-safe. */
enum { CH__LOOK_HEAP_SHIFT = 56 };
#define CH__LOOK_COLD (UINT64_C(1) << 55)
CH_GUEST uint64_t ch__look_code(const struct ch_heap *, uintptr_t pc, uint64_t known);
static inline uint64_t ch__look_word(uint32_t heap_id, uint32_t index, uint32_t generation)
{
	return (uint64_t)heap_id << CH__LOOK_HEAP_SHIFT | (uint64_t)(generation >> 1) << 24 | index;
}
/* That of a block that lives is odd. */
static inline uint32_t ch__look_generation(uint64_t word)
{
	return (uint32_t)(word >> 24) << 1 | 1;
}
/* A block that a handle of blocks_die has, in the words of ch__look_code. */
CH_GUEST uint64_t ch__look_key(uint64_t handle);
/* What sinks are told that the code is called; the length, 0: the name is gone. The code lives, or
 * is_dying: it is among those of blocks_die. The caller has the heap lock. */
struct ch__look_name {
	char *text;
	size_t bytes; /* of text */
	bool is_slot; /* set: a trampoline's */
};
CH_GUEST size_t ch__look_name(struct ch_heap *, uint64_t key, bool is_dying,
	struct ch__look_name *);
/* Where owners are entered without code, each address once; how many. */
CH_GUEST size_t ch__look_fallbacks(struct ch_heap *, uintptr_t *fallbacks, size_t max)
	CH_REQUIRES(ch__role_heap);

/* A block that is LIVE, NOTENTRANT or DEAD. Cold bytes may be 0. */
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
	bool is_span; /* whole pages are its own */
	uint32_t hot_offset, hot_bytes, cold_offset, cold_bytes;
	const char *owner_name;
};
/* Visits blocks from record *next on, at most `records` of them, and moves *next; false: those were
 * the last. The first record is 1. */
CH_GUEST bool ch__look_blocks(struct ch_heap *, uint32_t *next, uint32_t records,
		     void (*visit)(void *arg, const struct ch__look_block *), void *arg)
	CH_REQUIRES(ch__role_heap);
/* A page of the pool, by its number; as it is at some moment. */
struct ch__look_page {
	bool is_used, is_span;
	uint32_t span_first;  /* the first page of its span */
	uint32_t taken_bytes;
};
CH_GUEST void ch__look_page(const struct ch_heap *, uint32_t page, struct ch__look_page *);
/* The last pauses, the oldest first; how many. */
enum { CH__LOOK_PAUSES = 32 };
struct ch__look_pause {
	uint64_t at_ns, ns;
};
CH_GUEST uint32_t ch__look_pauses(const struct ch_heap *, struct ch__look_pause[CH__LOOK_PAUSES]);
/* Writes names that wait, if their time has come. False: they wait still. Any thread, no lock. */
CH_GUEST bool ch__look_write_names(void) CH_EXCLUDES(CH__ANY);
/* The names of a set of sinks, as CODEHEAP_SINKS has them. */
CH_GUEST void ch__look_sinks(unsigned sinks, char *text, size_t bytes);

#endif
