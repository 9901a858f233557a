/* SPDX-License-Identifier: MIT
 * profile.h: the profile of a heap, as profile.c and profile_handler.c share it. */
#ifndef CH_OBSERVE_PROFILE_H
#define CH_OBSERVE_PROFILE_H

#include "observe/profiler.h"

/* Made at the first start, stays until the heap ends. The pointers are stored under registry and
 * heap, read under either. */
struct ch__profile {
	struct ch__listener listener;  /* first */
	struct ch__meta *meta;         /* side memory of the profile and of its threads [const] */
	struct ch__look_heap heap;     /* [const] */
	struct ch__profiler *profiler; /* of which a file is written; NULL: there is none */
	struct ch__profiler *hears;    /* that runs: of threads and deaths; NULL: none does */
	uintptr_t *fallbacks;          /* of owners when it was stopped [heap] */
	size_t fallback_count;
};

/* NULL: the heap has had none. */
struct ch__profile *ch__profile_of(const struct ch_heap *);
/* Where the thread finds its sampler; NULL: no memory. It stays as long as the profile. */
struct ch__sampler_slot *ch__profile_slot(struct ch__profile *, struct ch__thread *)
	CH_REQUIRES(ch__role_registry);

/* --- profile_handler.c --- */

/* SIGPROF has the profiler's handler. False: errno. */
bool ch__profile_install(void);
/* What the timers of a heap's threads carry. */
void *ch__profile_tag(uint32_t heap_id);
/* key_of of a profiler whose context is the heap. Signal-safe. */
uint64_t ch__profile_key(void *context, uintptr_t pc, uint64_t known);

#endif
