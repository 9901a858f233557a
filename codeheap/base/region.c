/* SPDX-License-Identifier: MIT
 * region.c: waits before a region and for regions to end (I1), and core synchronizations. */
#include "codeheap/base/park.h"
#include "codeheap/base/why.h"

void ch__region_enter(struct ch__thread *thread) CH_UNANALYSED("it makes the role")
{
	ch__region_enter_inline(thread);
}

struct ch__thread *ch__region_enter_for(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	struct ch__thread *self = ch__thread_or_guest(heap);
	ch__region_enter_inline(self);
	return self;
}

void ch__region_wait(struct ch__thread *thread) CH_UNANALYSED("it makes the role")
{
	struct ch_heap *heap = thread->heap;
	ch__region_leave(thread);
	if (CH_UNLIKELY(CH_LOAD_RELAXED(&heap->freezer) == ch__lock_self()))
		ch__panic("a region is wanted by the thread that froze the heap: "
			  CH__MISPLACED_CALL);
	ch__thread_park_here();
	uint32_t value;
	while ((value = atomic_load_explicit(&heap->freeze, memory_order_acquire)) != 0)
		ch__os_futex_wait(&heap->freeze, value, 1000000);
	ch_thread_unpark();
}

/* The system refuses the fence that it granted. Regions have one of their own from here on, but a
 * thread may be between the loads of fence_in_regions and freeze, with the store to inside in no
 * cache yet: stores leave a core within microseconds, so after a wait all can be seen. */
static void fence_late(struct ch_heap *heap)
{
	enum { DRAINED_NS = 1000000 };
	_Atomic(uint32_t) never = 0;
	atomic_store(&heap->fence_came_late, true);
	atomic_store_explicit(&heap->fence_in_regions, true, memory_order_seq_cst);
	for (uint64_t end = ch__os_now_ns() + DRAINED_NS; ch__os_now_ns() < end;)
		ch__os_futex_wait(&never, 0, DRAINED_NS);
}

/* Sleeps, so that a thread of a lower priority can run and leave the region. */
static CH_COLD bool await_region(struct ch__thread *thread, uint64_t until_ns)
{
	enum { SPINS = 1000, NAP_NS = 50000 };
	for (int spins = 0; atomic_load_explicit(&thread->inside, memory_order_seq_cst); spins++) {
		if (spins < SPINS) {
			ch__arch_pause();
			continue;
		}
		if (until_ns && ch__os_now_ns() >= until_ns)
			return false;
		ch__os_futex_wait(&thread->inside, 1, NAP_NS);
	}
	return true;
}

bool ch__freeze_until(struct ch_heap *heap, uint64_t until_ns) CH_UNANALYSED("it makes the role")
{
	atomic_fetch_add_explicit(&heap->freeze, 1, memory_order_seq_cst);
	CH_STORE_RELAXED(&heap->freezer, ch__lock_self());
	/* Two threads may freeze at once: a thread that sees the second word of fence_late sees the
	 * first. */
	bool has_fence = atomic_load_explicit(&heap->fence_in_regions, memory_order_acquire);
	if (CH_LOAD_RELAXED(&heap->fence_came_late) || (!has_fence && !ch__os_membarrier_fence()))
		fence_late(heap);
	struct ch__thread *held = heap->threads;
	while (held && await_region(held, until_ns))
		held = held->next;
	if (!held && await_region(&heap->guest, until_ns)) {
		__atomic_fetch_add(&heap->stats.freezes, 1, __ATOMIC_RELAXED);
		return true;
	}
	held = held ? held : &heap->guest;
	/* Before the sentence: others would stand still where nobody reads stderr. */
	ch__unfreeze(heap);
	(void)ch__because(CH_E_BUSY, "thread %d%s is held inside a call of the library",
			  held->thread_id,
			  held->thread_id ? ch__thread_how(held) : " (not attached)");
	return false;
}

void ch__freeze(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	(void)ch__freeze_until(heap, 0);
}

void ch__unfreeze(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	/* Forgets another freezer, too, whose misplaced region then waits instead of a panic. */
	CH_STORE_RELAXED(&heap->freezer, 0);
	if (atomic_fetch_sub_explicit(&heap->freeze, 1, memory_order_release) == 1)
		ch__os_futex_wake(&heap->freeze);
}

bool ch__await_regions(struct ch_heap *heap, uint64_t until_ns)
{
	if (!ch__freeze_until(heap, until_ns))
		return false;
	ch__unfreeze(heap);
	return true;
}

bool ch__core_sync(struct ch_heap *heap)
{
	if (!CH_LOAD_RELAXED(&heap->has_core_sync))
		return false;
	atomic_fetch_add_explicit(&heap->core_syncs_begun, 1, memory_order_seq_cst);
	/* What was granted may be refused later: by a filter, or for want of memory. */
	if (!ch__os_membarrier_core_sync()) {
		CH_STORE_RELAXED(&heap->has_core_sync, false);
		/* The places of the dead wait for a stop from here on. */
		atomic_store(&heap->waits_for_cycle, true);
		atomic_fetch_sub_explicit(&heap->core_syncs_begun, 1, memory_order_seq_cst);
		return false;
	}
	atomic_fetch_add_explicit(&heap->core_syncs, 1, memory_order_relaxed);
	return true;
}

void ch__core_sync_by_stop(struct ch_heap *heap)
{
	atomic_fetch_add_explicit(&heap->core_syncs_begun, 1, memory_order_seq_cst);
	atomic_fetch_add_explicit(&heap->core_syncs_by_stop, 1, memory_order_release);
	atomic_fetch_add_explicit(&heap->core_syncs, 1, memory_order_relaxed);
	struct ch__thread *self = ch__thread_self(heap);
	if (self)
		ch__thread_serialize(self);
}
