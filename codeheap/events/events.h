/* SPDX-License-Identifier: MIT
 * events.h: who is told what: the vms and opens without room (trigger.c), observers
 * (listener.c). The records of vms are here, too (vm.c, thread.h). */
#pragma once

#include "codeheap/base/heap.h"
#include "codeheap/listener.h"

/* --- when a collection is wanted, and how the vms hear of it (trigger.c). Also counts of space
 * that came free, for opens without room: an unchanged count means that no space came --- */

void ch__trigger_opened(struct ch_heap *, uint32_t bytes);
/* An open of the vm found no room: a cycle is wanted if it is worth while, and space_free, if the
 * vm has it, is due when room comes. */
void ch__trigger_full(struct ch_heap *, struct ch_vm *, uint64_t space_seen) CH_HAS_HEAP;
/* So much code is left to a cycle. If no vm is asked for one, ch__collect_unasked runs. */
void ch__trigger_dead(struct ch_heap *, uint64_t bytes);
void ch__trigger_released(struct ch_heap *, uint32_t blocks); /* about so many, of unknown size */
/* The heap is frozen: later counts and requests are not of this cycle, and stay. */
void ch__trigger_cycle_begins(struct ch_heap *) CH_HAS_FREEZE;
void ch__trigger_cycle_abandoned(struct ch_heap *);
/* A full cycle found nothing alive but own roots. */
void ch__trigger_nothing_left(struct ch_heap *);
/* Whether much is dead, and the threshold of the dead has doubled twice. */
bool ch__trigger_is_late(const struct ch_heap *);
/* A collection that no vm asked for was in vain: the next threshold doubles, to 4-fold at most. */
void ch__trigger_put_off(struct ch_heap *);
void ch__trigger_cycle_ended(struct ch_heap *, uint64_t cycle_ns);
void ch__trigger_swept(struct ch_heap *) CH_HAS_HEAP;
/* Tells the vms that a collection is wanted, and trims unused memory; no lock held. */
void ch__trigger_tell(struct ch_heap *) CH_HOLDS_NONE;
/* The same, and tells vms of space. For ch__vms_tell; no lock held. */
void ch__trigger_poll(struct ch_heap *) CH_HOLDS_NONE;

/* Called after a reason for ch_thread_poll was stored. Each change of the word is a
 * read-modify-write, so a poll that takes the word back sees the reasons of all setters
 * (poll.c). */
static inline void ch__poll_want(struct ch_heap *heap)
{
	atomic_fetch_or_explicit(&heap->poll_due, 1, memory_order_release);
}

/* A wish that was told stands again: for a vm that came later, or after a collection in vain. */
static inline void ch__trigger_tell_again(struct ch_heap *heap)
{
	atomic_store(&heap->collect_told, false);
	ch__poll_want(heap);
}

/* Grows with every event that could make room, while an open looks for room or a vm waits. */
static inline uint64_t ch__space_now(struct ch_heap *heap)
{
	return atomic_load(&heap->space_events);
}

/* Call after the count grew: a vm that wants space since then sees the count at its first poll. */
void ch__space_came(struct ch_heap *);

/* Call when the places can be found: free, or on the quarantine for an open in need. If they were
 * counted earlier, an open could look before they are there, note the new count, and wait for a
 * change that has passed. */
static inline void ch__space_returned(struct ch_heap *heap)
{
	/* seq_cst: opens count themselves before a look; a vm wants space before its open ends. */
	if (CH_UNLIKELY(atomic_load(&heap->opens_in_need) ||
			atomic_load(&heap->anyone_wants_space))) {
		atomic_fetch_add(&heap->space_events, 1);
		ch__space_came(heap);
	}
}

/* --- the core's calls to its observers (listener.c), which look at a heap through guest_look.h.
 * Most heaps have no observer --- */

/* The heap has its id, and nobody else knows the heap. Returns CH_E_OS (ENOSYS) when the
 * configuration asks for a statistics file, and the process has no code to write one. When the
 * environment asks, ch_sink_status says so, and a line on stderr. */
enum ch_status ch__listeners_begin(struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
static inline struct ch__listener *ch__listeners_first(const struct ch_heap *heap)
{
	return atomic_load_explicit(&heap->listeners, memory_order_acquire);
}
/* Calls one function of each listener, where the listener has the function (listener.h). */
#define CH__TELL(heap, call, ...)                                                             \
	for (struct ch__listener *l_ = ch__listeners_first(heap); l_; l_ = l_->next)           \
		if (l_->calls->call)                                                           \
	l_->calls->call(l_, ##__VA_ARGS__)
/* Called where a child of fork compiles or collects; not in a region. */
void ch__listeners_use(struct ch_heap *);
void ch__listeners_end(struct ch_heap *) CH_REQUIRES(ch__heaps_lock) CH_HOLDS_NONE;
void ch__listeners_names_wait(void) CH_HOLDS_NONE; /* names wait for the perf map */
bool ch__listeners_file(const struct ch_heap *, const char **path, int *failed);
