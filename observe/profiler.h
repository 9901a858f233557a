/* SPDX-License-Identifier: MIT
 * profiler.h: the sampling profiler of a heap. The profiler knows address ranges, and the heap's
 * words and names for code (codeheap/guest_look.h), but no blocks.
 *
 *   thread of the VM   timer -> SIGPROF -> ch__sampler_take: walk, words into its own ring
 *   worker             every few ms: rings -> tree of stacks; looks at the maps, sooner when asked
 *   a block dies       rings -> tree; the name is taken before the block is gone
 *   report             copies of the tree, the names and the maps -> flame/flame.h
 *
 * Lock: the profile lock ("profile" below), right of the locks of a heap (os/locks/ranks.h). Under
 * the lock only side memory, the OS and ch__look_name are called. A handler takes no lock: the
 * sampler is the thread's, and a thread that removes the sampler waits for the handler. */
#pragma once

#include "codeheap/guest_look.h"
#include "codeheap/profile.h"
#include "os/meta.h"
#include "os/os.h"

#include <stdatomic.h>

enum {
	CH__PROFILE_RATE_MAX = 20000,
	CH__PROFILE_FRAMES_MAX = 512, /* of a stack; the innermost are kept */
	CH__PROFILE_NAME_BYTES = 512,
	CH__PROFILE_NAMES_LEAST = 4, /* of codes, in the least memory of a profile */
};

/* A frame is a word of three kinds: an enumerator below; an address in native code (for a return
 * address, of the byte before); or a word of ch__look_code, with the number of a heap in bits that
 * no address of a program uses. */
enum ch__frame_word {
	CH__FRAME_WORD_UNKNOWN = 1,  /* outside the executable memory known then */
	CH__FRAME_WORD_RUNTIME = 2,  /* the runtime page */
	CH__FRAME_WORD_NO_BLOCK = 3, /* in the pool, in no block */
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

/* Leads a thread of the VM to its sampler; lives as long as the thread may run the handler. */
struct ch__sampler_slot {
	/* 1 in the handler; seq_cst against a thread that takes something away and then waits. */
	_Atomic(uint32_t) inside;
	_Atomic(struct ch__sampler *) sampler; /* NULL: the thread is not sampled */
};

struct ch__profiler_config {
	unsigned rate;
	struct ch_profile_options asked;
	struct ch_heap *heap;
	struct ch__look_heap look; /* of the heap */
	void *timer_value;    /* the value in each timer's signals */
};

/* The memory that a profile of one thread and a few codes needs. */
size_t ch__profiler_least_bytes(void);
/* Returns 0 or errno. The worker runs then, and no thread is sampled. */
int ch__profiler_create(const struct ch__profiler_config *, struct ch__profiler **) CH_MAY_WAIT;
/* Samples the thread from here on. Returns 0 or errno; ESRCH: the thread is gone. A NULL slot means
 * that there was no memory for a slot. Calls of add, remove, stop and destroy do not overlap. */
int ch__profiler_add(struct ch__profiler *, struct ch__sampler_slot *, int thread_id) CH_MAY_WAIT;
/* Ends the sampling of the slot's thread; the samples stay. Waits until the thread is out of the
 * handler. */
void ch__profiler_remove(struct ch__profiler *, struct ch__sampler_slot *) CH_MAY_WAIT;
/* Ends all sampling: removes every thread, joins the worker, frees the rings. */
void ch__profiler_stop(struct ch__profiler *) CH_MAY_WAIT;
/* Call after stop, or in a child of fork. NULL is allowed. */
void ch__profiler_destroy(struct ch__profiler *) CH_MAY_WAIT;

/* Takes a sample, in the handler of the slot's thread; signal-safe. The stack is [sp, high); high
 * is 0 if the stack is unknown, and then only the pc is taken. `ucontext` has all registers; if
 * NULL, the interrupted instruction is not looked at. */
struct ch__sampler_stack {
	uintptr_t pc, fp, sp, high;
	const void *ucontext;
};
void ch__sampler_take(struct ch__sampler *, const struct ch__sampler_stack *, uint32_t weight);

/* Merges the rings, and takes the names of codes that are about to lose their names. */
void ch__profiler_dying(struct ch__profiler *, struct ch_heap *, const uint64_t *keys, size_t n)
	CH_MAY_WAIT;
/* Takes the name of each sampled code of the heap, so that the profile does not need the heap any
 * more. The caller keeps the heap's code from dying. */
void ch__profiler_name_all(struct ch__profiler *, struct ch_heap *, uint32_t heap_id) CH_MAY_WAIT;

/* All but the size. */
void ch__profiler_count(struct ch__profiler *, struct ch_profile_counts *);

/* --- fork --- */
void ch__profiler_fork_prepare(struct ch__profiler *);
void ch__profiler_fork_parent(struct ch__profiler *);
/* The caller destroys the profiler next. */
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
/* Copies the tree, the counts and the maps. Returns NULL if there is no memory. */
struct ch__profiler_copy *ch__profiler_copy(struct ch__profiler *) CH_MAY_WAIT;
/* Copies the names taken so far. Returns false if there is no memory. */
bool ch__profiler_copy_names(struct ch__profiler *, struct ch__profiler_copy *) CH_MAY_WAIT;
void ch__profiler_copy_free(struct ch__profiler_copy *);
/* Returns 0 or errno; ENOMEM also when write returned false. Takes the dynamic linker's lock, and
 * no lock of the library. */
int ch__profiler_report(struct ch__profiler_copy *, const struct ch__profiler_view *,
			bool (*write)(void *arg, const char *text, size_t n), void *arg)
	CH_MAY_WAIT;
