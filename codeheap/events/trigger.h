/* SPDX-License-Identifier: MIT
 * trigger.h: when a collection is wanted, and how the vms hear of it (trigger.c). Also counts of
 * space that came free, for opens without room: an unchanged count means that no space came. */
#pragma once

#include "codeheap/base/heap.h"

void ch__trigger_opened(struct ch_heap *, uint32_t bytes);
/* An open of the vm found no room: a cycle is wanted, and space_free is due when room comes. */
void ch__trigger_full(struct ch_heap *, struct ch_vm *, uint64_t space_seen)
	CH_REQUIRES(ch__role_heap);
/* So much code is left to a cycle. If no vm is asked for one, ch__collect_unasked runs. */
void ch__trigger_dead(struct ch_heap *, uint64_t bytes);
void ch__trigger_released(struct ch_heap *, uint32_t blocks); /* about so many, of unknown size */
/* The world stands still: later counts and requests are not of this cycle, and stay. */
void ch__trigger_cycle_begins(struct ch_heap *) CH_REQUIRES(ch__role_frozen);
void ch__trigger_cycle_abandoned(struct ch_heap *);
/* Whether much is dead, and several collections that no vm asked for were put off. */
bool ch__trigger_is_late(const struct ch_heap *);
/* A collection that no vm asked for was in vain: the next threshold doubles, to 8-fold at most. */
void ch__trigger_put_off(struct ch_heap *);
void ch__trigger_cycle_ended(struct ch_heap *, uint64_t cycle_ns);
void ch__trigger_swept(struct ch_heap *) CH_REQUIRES(ch__role_heap);
/* Tells the vms that a collection is wanted, and trims unused memory; no lock held. */
void ch__trigger_tell(struct ch_heap *) CH_EXCLUDES(CH__ANY);
/* The same, and tells vms of space. For ch__vms_tell; no lock held. */
void ch__trigger_poll(struct ch_heap *) CH_EXCLUDES(CH__ANY);

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

/* Grows with every event that could make room. */
static inline uint64_t ch__space_now(struct ch_heap *heap)
{
	return atomic_load(&heap->space_events) + atomic_load(&heap->space_returns);
}

/* Bytes went back without a death. */
static inline void ch__space_returned(struct ch_heap *heap)
{
	/* seq_cst: opens count themselves before a look; a vm wants space before its open ends. */
	if (CH_UNLIKELY(atomic_load(&heap->opens_in_need) ||
			atomic_load(&heap->anyone_wants_space)))
		atomic_fetch_add(&heap->space_returns, 1);
}
