/* SPDX-License-Identifier: MIT
 * profile.h: the profile of a heap (profile.c), and its signal handler (profile_handler.c). */
#pragma once

#include "observe/profiler.h"

/* A heap listens from the first start of any profile on, or from its creation if a profile runs
 * then: a profile has the names of all code that its threads run. The pointers are stored under
 * heaps, registry and heap, and read under any of the three. */
struct ch__profile {
	struct ch__listener listener; /* first */
	struct ch__meta *meta; /* side memory of the profile and its threads; NULL: never started */
	struct ch__profiler *profiler; /* the source of written files, or NULL */
	struct ch__profiler *hears;    /* the running profile, for threads and deaths, or NULL */
	uintptr_t *fallbacks;          /* of owners, at the stop [heap] */
	size_t fallback_count;
	/* A bit for each heap number whose profile hears of deaths in the heap [heap] */
	uint64_t heard_by[CH__LOOK_HEAPS_MAX / 64 + 1];
};

struct ch__profile *ch__profile_of(const struct ch_heap *);
/* Leads the thread to its sampler; NULL: no memory. Stays as long as the profile. */
struct ch__sampler_slot *ch__profile_slot(struct ch__profile *, struct ch__thread *)
	CH_REQUIRES(ch__role_registry);

/* --- profile_handler.c --- */

/* Installs the profiler's handler of SIGPROF. Returns false with errno. */
bool ch__profile_install(void) CH_REQUIRES(ch__role_heaps);
/* The value in the signals of the timers of a heap's threads. */
void *ch__profile_tag(uint32_t heap_id);
