/* SPDX-License-Identifier: MIT
 * profiler.h: the sampling profiler, one of a heap. It knows address ranges and the words and names
 * that the heap has for its code (codeheap/guest_look.h), never blocks.
 *
 *   thread of the VM   timer -> SIGPROF -> ch__sampler_take: walk, words into its own ring
 *   worker             every few ms: rings -> tree of stacks; reads the maps again when asked
 *   a block dies       rings -> tree, and its name is taken before it is gone
 *   report             a copy of the tree, its names, the maps of then -> flame/flame.h
 *
 * Lock: the profile lock (profile, below), right of those of a heap (os/ranks.h); under it are side
 * memory and calls of the OS only. A handler takes none: its sampler is the thread's, and waited
 * for. */
#ifndef CH_OBSERVE_PROFILER_H
#define CH_OBSERVE_PROFILER_H

#include "codeheap/guest_look.h"
#include "os/meta.h"
#include "os/os.h"

#include <stdatomic.h>

enum {
	CH__PROFILE_RATE_MAX = 20000,
	CH__PROFILE_FRAMES_MAX = 512, /* of a stack; the innermost are kept */
	CH__PROFILE_NAME_BYTES = 512,
};

/* A frame: a word of this room; or an address in native code, which for a return address is that of
 * the byte before; or a word of ch__look_code, which has the number of a heap where no address of a
 * program has a bit. */
enum ch__frame_word {
	CH__FRAME_WORD_UNKNOWN = 1,  /* no executable memory that was known of then */
	CH__FRAME_WORD_RUNTIME = 2,  /* the runtime page */
	CH__FRAME_WORD_NO_BLOCK = 3, /* in the pool, and of no block */
	CH__FRAME_WORD_CUT = 4,
	CH__FRAME_WORDS
};
static inline bool ch__frame_is_code(uint64_t word)
{
	return word >> CH__LOOK_HEAP_SHIFT != 0;
}
static inline bool ch__frame_is_native(uint64_t word)
{
	return word >= CH__FRAME_WORDS && !ch__frame_is_code(word);
}

struct ch__profiler;
struct ch__sampler;

/* Where a thread of the VM finds its sampler; lives as long as the thread may run the handler. */
struct ch__sampler_slot {
	/* 1 in the handler; seq_cst against who takes something away and then waits for it. */
	_Atomic(uint32_t) inside;
	_Atomic(struct ch__sampler *) sampler; /* NULL: the thread is not sampled */
};

struct ch__profiler_config {
	unsigned rate;
	bool by_wall_clock;
	size_t memory_bytes;
	uintptr_t pool_exec, runtime_exec;
	size_t pool_bytes, runtime_bytes;
	/* The VM's own walk, or NULL: at most max return addresses, of which those count that lie
	 * in code of the pool; 0: it has none. Signal-safe. */
	size_t (*frames)(void *user, const void *pc, const void *sp, const void *end,
			 const void **frames, size_t max);
	void *frames_user;
	struct ch_heap *heap;
	void *timer_value;    /* what signals of its timers carry */
};

/* 0 or errno. Its worker runs, no thread is sampled. */
int ch__profiler_create(const struct ch__profiler_config *, struct ch__profiler **)
	CH_EXCLUDES(CH__STANDING);
/* The thread is sampled from here on. 0 or errno; ESRCH: it is gone. A slot of NULL is one that
 * found no memory. Calls of the four that are about threads and life do not overlap. */
int ch__profiler_add(struct ch__profiler *, struct ch__sampler_slot *, int thread_id)
	CH_EXCLUDES(CH__STANDING);
/* No more; its samples stay. It is the calling thread, or the handler that it may be in is waited
 * for. */
void ch__profiler_remove(struct ch__profiler *, struct ch__sampler_slot *)
	CH_EXCLUDES(CH__STANDING);
/* The end of sampling: every thread is removed, the worker gone, rings are freed. */
void ch__profiler_stop(struct ch__profiler *) CH_EXCLUDES(CH__STANDING);
/* It was stopped, or the child of a fork forgets it. NULL is nothing. */
void ch__profiler_destroy(struct ch__profiler *) CH_EXCLUDES(CH__STANDING);

/* In the handler of the thread that has the slot: signal-safe. The registers are in [low, high) of
 * its stack, or high is 0 and it is not known: then only the pc is taken. `ucontext` has them all;
 * NULL: what code is interrupted at is not looked at. */
struct ch__sampler_stack {
	uintptr_t pc, fp, sp, high;
	const void *ucontext;
};
void ch__sampler_take(struct ch__sampler *, const struct ch__sampler_stack *, uint32_t weight);

/* Codes of a heap that are about to lose their names: what rings have is merged, and names are
 * taken. */
void ch__profiler_dying(struct ch__profiler *, struct ch_heap *, const uint64_t *keys, size_t n)
	CH_EXCLUDES(CH__STANDING);
/* Every name of the heap's code is taken, so that the profile does not need the heap any more. The
 * caller keeps its code from dying. */
void ch__profiler_name_all(struct ch__profiler *, struct ch_heap *, uint32_t heap_id)
	CH_EXCLUDES(CH__STANDING);

struct ch__profiler_counts {
	uint64_t samples, dropped, cut, threads, refused; /* refused: threads, not sampled */
};
void ch__profiler_count(struct ch__profiler *, struct ch__profiler_counts *);

/* --- fork --- */
void ch__profiler_fork_prepare(struct ch__profiler *);
void ch__profiler_fork_parent(struct ch__profiler *);
/* To be destroyed then. */
void ch__profiler_fork_child(struct ch__profiler *);

/* --- reports (profiler_report.c) --- */
struct ch__profiler_view {
	bool is_folded, is_icicle, is_reversed;
	const char *title;              /* NULL: none */
	const char *const *interpreter; /* names, NULL behind the last; or NULL */
	const uintptr_t *fallbacks;     /* addresses in functions that interpret */
	size_t fallback_count;
};
struct ch__profiler_copy;
/* What there is by now, with no name of code yet. NULL: no memory. */
struct ch__profiler_copy *ch__profiler_copy(struct ch__profiler *) CH_EXCLUDES(CH__STANDING);
/* The names that were taken by now, the copy's codes' among them. False: no memory. */
bool ch__profiler_copy_names(struct ch__profiler *, struct ch__profiler_copy *)
	CH_EXCLUDES(CH__STANDING);
void ch__profiler_copy_free(struct ch__profiler_copy *);
/* 0 or errno, ENOMEM also when write returned false. Takes the dynamic linker's lock, and none of
 * ours. */
int ch__profiler_report(struct ch__profiler_copy *, const struct ch__profiler_view *,
			bool (*write)(void *arg, const char *text, size_t n), void *arg)
	CH_EXCLUDES(CH__STANDING);

#endif
