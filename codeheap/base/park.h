/* SPDX-License-Identifier: MIT
 * park.h: the records of the calling thread, parks, the words that a parked thread publishes, and
 * the locks of a heap: a thread that waits for one is parked (park.c). Behind them regions. */
#pragma once

#include "arch/registers.h"
#include "codeheap/base/heap.h"

/* ch_thread_park for a wait inside the library: the thread cannot end before the wait does. */
void ch__thread_park_here(void);

extern _Thread_local struct ch__thread *ch__thread_list; /* attachments of this thread */

static inline struct ch__thread *ch__thread_self(const struct ch_heap *heap)
{
	struct ch__thread *thread = ch__thread_list;
	while (thread && CH_UNLIKELY(thread->heap != heap))
		thread = thread->next_of_thread;
	return thread;
}

/* For sentences about a thread. A VM may not know of a thread's attachment, or of its end, which
 * the library may not have seen, too. */
const char *ch__thread_how(const struct ch__thread *);

/* How many cycles and visits the thread has open. Above 0, public functions return CH_E_STATE
 * instead of waiting for a lock or a region: the holder is this thread, or stands still. */
extern _Thread_local uint32_t ch__marking;
static inline bool ch__is_marking(void)
{
	return CH_UNLIKELY(ch__marking != 0);
}

/* Whether a living heap has the address. A thread is attached to living heaps only. The heap is not
 * read: a destroyed heap's memory is gone. */
bool ch__heap_is_listed(const struct ch_heap *);
static inline bool ch__heap_lives(const struct ch_heap *heap)
{
	return CH_LIKELY(ch__thread_self(heap) != NULL) || ch__heap_is_listed(heap);
}
/* Whether a call about the heap must fail; ch__because_refused says why. */
bool ch__heap_refuses(const struct ch_heap *);
enum ch_status ch__because_refused(const struct ch_heap *) CH_COLD;

/* From lend to take_back the VM runs under the heap lock: calls that would wait get CH_E_STATE. */
void ch__heap_lend(void);
void ch__heap_take_back(void);

/* Asked anew after each callback, which may leave its stack to another thread (I14). Not inlined: a
 * compiler assumes the same thread throughout a function. */
struct ch__thread *ch__thread_now(const struct ch_heap *);

/* Waits parked. Returns false when the lock was not free before until_ns; 0: no limit. */
bool ch__lock_wait_parked(struct ch__lock *, uint64_t until_ns) CH_MAY_WAIT;
static inline bool ch__lock_parking_until(struct ch__lock *lock, enum ch__rank rank,
					  uint64_t until_ns)
	CH_TRY_ACQUIRES(true, lock) CH_MAY_WAIT CH_UNANALYSED("it makes the lock")
{
	ch__rank_check_for(rank, NULL);
	if (CH_UNLIKELY(!ch__lock_seize(lock)) && !ch__lock_wait_parked(lock, until_ns))
		return false;
	ch__lock_note(lock, rank, true);
	return true;
}
static inline void ch__lock_parking(struct ch__lock *lock, enum ch__rank rank)
	CH_ACQUIRES(lock) CH_MAY_WAIT CH_UNANALYSED("it makes the lock")
{
	(void)ch__lock_parking_until(lock, rank, 0);
}

/* Take a lock of a heap, and let it go. Left locks come first. */
#define CH__HEAP_LOCK(take, let_go, role, right)                             \
	void take(struct ch_heap *) CH_ACQUIRES(role) CH_EXCLUDES(right); \
	void let_go(struct ch_heap *) CH_RELEASES(role);
CH__HEAP_LOCK(ch__registry_lock, ch__registry_unlock, ch__role_registry, CH__RIGHT_OF_REGISTRY)
CH__HEAP_LOCK(ch__sweep_lock, ch__sweep_unlock, ch__role_sweep, CH__RIGHT_OF_SWEEP)
CH__HEAP_LOCK(ch__heap_lock, ch__heap_unlock, ch__role_heap, CH__RIGHT_OF_HEAP)
CH__HEAP_LOCK(ch__records_lock, ch__records_unlock, ch__role_records, CH__RIGHT_OF_RECORDS)
/* Returns false when the lock was not free before until_ns; 0: no limit. */
bool ch__heap_lock_until(struct ch_heap *, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_heap) CH_EXCLUDES(CH__RIGHT_OF_HEAP);
/* For a caller that holds the lock for many steps, and lets threads in these calls go first. Two
 * such callers do not take turns, or both would end late. */
static inline void ch__heap_lock_for_many(struct ch_heap *heap) CH_ACQUIRES(ch__role_heap)
	CH_EXCLUDES(CH__RIGHT_OF_HEAP) CH_UNANALYSED("it makes the role")
{
	ch__lock_parking(&heap->lock, CH__RANK_HEAP);
}
/* Between two steps: others may have the lock meanwhile. */
void ch__heap_pass(struct ch_heap *) CH_HAS_HEAP;
static inline bool ch__heap_try_lock(struct ch_heap *heap)
	CH_TRY_ACQUIRES(true, ch__role_heap) CH_UNANALYSED("it makes the role")
{
	return ch__lock_try(&heap->lock, CH__RANK_HEAP);
}
/* No lock of the library is held, and the caller is in no region: VM code may run. */
static inline void ch__holds_nothing(void) CH_HOLDS_NONE
{
	ch__rank_check_for((enum ch__rank)0, "code of the VM");
}

/* The record that stands for the caller while the caller holds the heap lock. */
static inline struct ch__thread *ch__thread_or_guest(struct ch_heap *heap)
{
	struct ch__thread *thread = ch__thread_self(heap);
	return thread ? thread : &heap->guest;
}

/* Finds the stack around sp: the thread's own, or its running fiber's. Returns false when sp lies
 * on neither. Signal-safe. */
static inline bool ch__thread_stack(const struct ch__thread *thread, uintptr_t sp, uintptr_t *low,
				    uintptr_t *high)
{
	const struct ch_fiber *fiber = atomic_load_explicit(&thread->fiber, memory_order_acquire);
	bool is_own = sp >= thread->stack_low && sp < thread->stack_high;
	*low = is_own || !fiber ? thread->stack_low : fiber->low;
	*high = is_own || !fiber ? thread->stack_high : fiber->high;
	return sp >= *low && sp < *high;
}
/* Publishes the calling thread with the registers in a signal's frame; signal-safe. */
void ch__thread_publish_context(struct ch__thread *, const void *ucontext);
/* For the calling thread. While a park is open no stop signal publishes the thread: the park may be
 * about to write the published words, or a cycle may be reading them. */
static inline bool ch__park_open(struct ch__thread *thread)
{
	bool is_first = thread->park_depth++ == 0;
	atomic_signal_fence(memory_order_seq_cst);
	return is_first;
}
static inline bool ch__park_close(struct ch__thread *thread)
{
	atomic_signal_fence(memory_order_seq_cst);
	return --thread->park_depth == 0;
}
void ch__thread_publish_saved(struct ch__thread *, const struct ch__arch_saved *);
/* Inline: the published sp is the sp of the function that publishes. */
static inline __attribute__((always_inline)) void ch__thread_publish_self(struct ch__thread *thread)
{
	struct ch__arch_saved saved;
	ch__arch_save_registers(&saved);
	ch__thread_publish_saved(thread, &saved);
}
/* Parks all attachments of the calling thread; `saved`: its registers until ch_thread_unpark. */
void ch__threads_park(const struct ch__arch_saved *saved);
/* The same, for a thread that goes on in code of the VM while parked. */
void ch__threads_park_away(const struct ch__arch_saved *saved);

/* The locks and the region of the caller, for CH_MOVE. */
static inline uint32_t ch__held(struct ch_heap *heap)
{
	uint32_t held = 0;
	if (CH_LOAD_RELAXED(&ch__thread_or_guest(heap)->inside))
		held |= CH__IN_REGION;
	if (ch__lock_is_mine(&heap->lock))
		held |= CH__UNDER_HEAP;
	if (ch__lock_is_mine(&heap->registry))
		held |= CH__UNDER_REGISTRY;
	return held;
}
static inline void ch__thread_set_state(struct ch__thread *thread, enum ch__thread_state to,
					memory_order order, const char *by)
{
	uint32_t from = CH_LOAD_RELAXED(&thread->state);
	if (from != (uint32_t)to)
		CH_MOVE(ch__thread_moves, thread->thread_id, 0, from, to, ch__held(thread->heap),
			by);
	if (order == memory_order_seq_cst)
		atomic_store_explicit(&thread->state, (uint32_t)to, memory_order_seq_cst);
	else
		atomic_store_explicit(&thread->state, (uint32_t)to, memory_order_release);
}

/* --- regions, the freeze that keeps threads out of them, core syncs (region.c, I1) --- */

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
		/* seq_cst against ch__freeze_until; or a plain store, with the membarrier there as
		 * the fence of both sides. */
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
struct ch__thread *ch__region_enter_for(struct ch_heap *) CH_ACQUIRES(ch__role_region) CH_HAS_HEAP;
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
/* Waits, by a freeze, until each thread has left the region that it was in. */
bool ch__await_regions(struct ch_heap *, uint64_t until_ns) CH_EXCLUDES(ch__role_region);
/* The time when a wait for threads that begins at now_ns is given up (I10). */
static inline uint64_t ch__stop_limit(const struct ch_heap *heap, uint64_t now_ns)
{
	return now_ns + (uint64_t)heap->config.stop_wait_ms * 1000000;
}
/* Synchronizes the cores by membarrier. False: the system refused, and nothing was counted. */
bool ch__core_sync(struct ch_heap *) CH_MAY_WAIT;
/* Counts a stop as a core synchronization. The caller froze the heap: each thread is stopped, was,
 * or will be before its next region, and serializes itself before it runs code again. */
void ch__core_sync_by_stop(struct ch_heap *) CH_HAS_FREEZE;
/* Called by a thread after a stop or a park, before it runs on. Signal-safe. */
static inline void ch__thread_serialize(struct ch__thread *thread)
{
	uint64_t stops = atomic_load_explicit(&thread->heap->core_syncs_by_stop,
					      memory_order_acquire);
	if (CH_LIKELY(thread->stops_served == stops))
		return;
	thread->stops_served = stops;
	ch__arch_serialize();
	CH__COUNT(thread->serialized, 1);
}
