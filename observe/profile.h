/* SPDX-License-Identifier: MIT
 * profile.h: the profile of a heap, as profile.c and profile_handler.c share it. */
#ifndef CH_OBSERVE_PROFILE_H
#define CH_OBSERVE_PROFILE_H

#include "observe/profiler.h"

/* A heap listens from the first start of a profile of any heap on, or as it is made while one runs:
 * a profile has names of all code that its threads run. The pointers are stored under heaps,
 * registry and heap, read under any. */
struct ch__profile {
	struct ch__listener listener; /* first */
	struct ch__meta *meta; /* side memory of the profile and its threads; NULL: never started */
	struct ch__profiler *profiler; /* of which a file is written; NULL: there is none */
	struct ch__profiler *hears;    /* that runs: of threads and deaths; NULL: none does */
	uintptr_t *fallbacks;          /* of owners when it was stopped [heap] */
	size_t fallback_count;
	/* A bit for the number of each heap whose profile hears of deaths in this one [heap] */
	uint64_t heard_by[CH__LOOK_HEAPS_MAX / 64 + 1];
};

struct ch__profile *ch__profile_of(const struct ch_heap *);
/* Where the thread finds its sampler; NULL: no memory. It stays as long as the profile. */
struct ch__sampler_slot *ch__profile_slot(struct ch__profile *, struct ch__thread *)
	CH_REQUIRES(ch__role_registry);

/* --- profile_handler.c --- */

/* SIGPROF has the profiler's handler. False: errno. */
bool ch__profile_install(void);
/* What the timers of a heap's threads carry. */
void *ch__profile_tag(uint32_t heap_id);

#endif
