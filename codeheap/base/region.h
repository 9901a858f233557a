/* SPDX-License-Identifier: MIT
 * region.h: regions, the freeze that keeps threads out of them, and core syncs (region.c, I1). */
#pragma once

#include "codeheap/base/park.h"

void ch__region_wait(struct ch__thread *) CH_COLD;

/* The inline form is for functions that make, commit, link and free blocks. */
void ch__region_enter(struct ch__thread *) CH_ACQUIRES(ch__role_region)
	CH_EXCLUDES(ch__role_frozen, ch__role_stopped);
static inline void ch__region_enter_inline(struct ch__thread *thread) CH_ACQUIRES(ch__role_region)
	CH_EXCLUDES(ch__role_frozen, ch__role_stopped) CH_UNANALYSED("it makes the role")
{
	struct ch_heap *heap = thread->heap;
	/* Regions do not nest: an inner region would end the outer, or spin on its own busy. */
	CH_ASSERT(!CH_LOAD_RELAXED(&thread->inside),
		  "a region within a region: " CH__MISPLACED_CALL);
	CH_ASSERT(CH_CHECK < 2 || thread == &heap->guest || thread == ch__thread_now(heap),
		  "a region of another thread: a callback left its stack to this one");
	for (;;) {
		ch__rank_note(CH__RANK_REGION, true);
		/* seq_cst against ch__freeze; or a plain store, with the membarrier in ch__freeze
		 * as the fence of both sides. */
		if (CH_UNLIKELY(CH_LOAD_RELAXED(&heap->fence_in_regions))) {
			atomic_store_explicit(&thread->inside, 1, memory_order_seq_cst);
		} else {
			CH_STORE_RELAXED(&thread->inside, 1);
			atomic_signal_fence(memory_order_seq_cst);
		}
		if (CH_LIKELY(!atomic_load_explicit(&heap->freeze, memory_order_seq_cst)))
			return;
		ch__region_wait(thread);
	}
}
/* For a caller with the heap lock, attached or not. Returns the record that leaves the region. */
struct ch__thread *ch__region_enter_for(struct ch_heap *)
	CH_ACQUIRES(ch__role_region) CH_REQUIRES(ch__role_heap);
static inline void ch__region_leave(struct ch__thread *thread)
	CH_RELEASES(ch__role_region) CH_UNANALYSED("it makes the role")
{
	ch__rank_note(CH__RANK_REGION, false);
	atomic_store_explicit(&thread->inside, 0, memory_order_release);
}
/* Waits for the end of all regions, asleep after some spins. A debugger, the VM or the scheduler
 * may hold a thread there. Returns false, and freezes nothing, when until_ns (0: none) passes. */
bool ch__freeze_until(struct ch_heap *, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_frozen) CH_EXCLUDES(ch__role_region);
void ch__freeze(struct ch_heap *) CH_ACQUIRES(ch__role_frozen) CH_EXCLUDES(ch__role_region);
void ch__unfreeze(struct ch_heap *) CH_RELEASES(ch__role_frozen);
/* The time when a wait for threads that begins at now_ns is given up (I10). */
static inline uint64_t ch__stop_limit(const struct ch_heap *heap, uint64_t now_ns)
{
	return now_ns + (uint64_t)heap->config.stop_wait_ms * 1000000;
}
/* Synchronizes the cores by membarrier. False: the system refused, and nothing was counted. */
bool ch__core_sync(struct ch_heap *) CH_EXCLUDES(CH__STANDING);
/* Counts a stop as a core synchronization. The caller froze the heap: each thread is stopped, was,
 * or will be before its next region, and serializes itself before it runs code again. */
void ch__core_sync_by_stop(struct ch_heap *) CH_REQUIRES(ch__role_frozen);
/* Called by a thread after a stop or a park, before it runs on. Signal-safe. */
static inline void ch__thread_serialize(struct ch__thread *thread)
{
	uint64_t stops = atomic_load_explicit(&thread->heap->core_syncs_by_stop,
					      memory_order_acquire);
	if (CH_LIKELY(thread->stops_served == stops))
		return;
	thread->stops_served = stops;
	ch__arch_serialize();
	atomic_fetch_add_explicit(&thread->serialized, 1, memory_order_relaxed);
}
