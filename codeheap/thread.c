/* SPDX-License-Identifier: MIT
 * thread.c: attachments of threads to heaps, parks, the locks whose wait is a park, fibers. Lock:
 * registry for the lists. It does not stop threads (world.c) and does not scan their stacks
 * (stacks.c). */
#include "codeheap/block.h"
#include "codeheap/event.h"

_Thread_local struct ch__thread *ch__thread_list;
_Thread_local uint32_t ch__marking;

__attribute__((noinline)) struct ch__thread *ch__thread_now(const struct ch_heap *heap)
{
	return ch__thread_self(heap);
}

#if CH_CHECK >= 2
__attribute__((noinline)) bool ch__thread_is_here(const struct ch__thread *thread)
{
	return thread == &thread->heap->guest || thread == ch__thread_self(thread->heap);
}
#endif

/* --- locks --- */

/* The holder may be a cycle that waits for this thread to stop (I9). */
bool ch__lock_wait_parked(struct ch__lock *lock, uint64_t until_ns)
{
	if (ch__lock_spin(lock))
		return true;
	ch__thread_park_here();
	bool is_taken = ch__lock_sleep(lock, until_ns);
	ch_thread_unpark();
	return is_taken;
}

/* Of all calls that lock the thread makes one only, which begins another heap's cycle and gives up
 * in time: so the lock has no rank meanwhile. */
void ch__heap_lend(struct ch_heap *heap)
{
	atomic_store_explicit(&heap->marker_is, ch__lock_self(), memory_order_relaxed);
	ch__marking++;
	ch__rank_note(CH__RANK_HEAP, false);
}

void ch__heap_take_back(struct ch_heap *heap)
{
	ch__rank_note(CH__RANK_HEAP, true);
	ch__marking--;
	atomic_store_explicit(&heap->marker_is, 0, memory_order_relaxed);
}

/* --- parks --- */

/* A handler on the alternate stack: the registers that its signal interrupted lie there, and the
 * frames that it interrupted anywhere. The system is asked first, since such a stack may be an
 * array of a frame: the thread's bounds would take it for their own. */
static void publish_sp(struct ch__thread *thread, uintptr_t sp)
{
	const struct ch_fiber *fiber = atomic_load_explicit(&thread->fiber, memory_order_relaxed);
	if (CH_UNLIKELY(sp < thread->stack_low) && thread->stack_grows) {
		uintptr_t low = ch__os_first_stack_low(thread->stack_low, thread->stack_high);
		if (low < thread->stack_low)
			thread->stack_low = low;
	}
	bool is_known = (sp >= thread->stack_low && sp < thread->stack_high) ||
			(fiber && sp >= fiber->low && sp < fiber->high);
	thread->shown.sp = sp;
	thread->shown.signal_stack_end = ch__os_signal_stack_end(sp, !is_known);
}

void ch__thread_publish_saved(struct ch__thread *thread, const struct ch__arch_saved *saved)
{
	struct ch__shown *shown = &thread->shown;
	memcpy(shown->words, saved->words, sizeof saved->words);
	shown->words_count = CH_ARCH_SAVED_WORDS;
	shown->vectors_low = shown->vectors_high = 0;
	shown->may_end = thread->park_depth > 0;
	publish_sp(thread, saved->sp);
}

void ch__thread_publish_context(struct ch__thread *thread, const void *ucontext)
{
	struct ch__shown *shown = &thread->shown;
	ch__arch_context_words(ucontext, shown->words);
	shown->words_count = CH_ARCH_CONTEXT_WORDS;
	shown->may_end = false;
	shown->vectors_low = ch__arch_context_vectors(ucontext, &shown->vectors_high);
	publish_sp(thread, ch__arch_context_sp(ucontext));
}

static void park_with(struct ch__thread *thread, const struct ch__arch_saved *saved, bool may_end)
{
	if (!ch__park_open(thread))
		return;
	ch__thread_publish_saved(thread, saved);
	thread->shown.may_end = may_end;
	/* Release: sp and registers are seen by the cycle that sees PARKED (world.c). */
	ch__thread_set_state(thread, CH__PARKED, memory_order_release, __func__);
}

static void park_here(const struct ch__arch_saved *saved)
{
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread)
		park_with(t, saved, false);
}

static void park_away(const struct ch__arch_saved *saved)
{
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread)
		park_with(t, saved, true);
}

/* Both return while the thread stays parked, so what they published must be their caller's
 * registers. */
__attribute__((noinline)) void ch_thread_park(void)
{
	/* Who waits for a lock that is held for a bounded time only is not parked (heap.h). */
	ch__rank_check_for(CH__RANK_PAGES, "a park");
	ch__arch_with_registers(park_away);
}

__attribute__((noinline)) void ch__thread_park_here(void)
{
	ch__rank_check_for(CH__RANK_PAGES, "a park");
	ch__arch_with_registers(park_here);
}

/* Lets the records run that are parked once. Where a heap is stopped, its record is returned, and
 * it and those before it are as they were. */
static struct ch__thread *run_parked(void)
{
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (t->park_depth != 1)
			continue;
		/* seq_cst against the cycle's store to stopping and its look at state: one of
		 * the two sees the other. */
		ch__thread_set_state(t, CH__RUNNING, memory_order_seq_cst, __func__);
		if (CH_LIKELY(!atomic_load_explicit(&t->heap->stopping, memory_order_seq_cst)))
			continue;
		for (struct ch__thread *back = ch__thread_list;; back = back->next_of_thread) {
			if (back->park_depth == 1)
				ch__thread_set_state(back, CH__PARKED, memory_order_release,
						     __func__);
			if (back == t)
				return t;
		}
	}
	return NULL;
}

/* All at once or none: who waits for one heap stays parked to the others, whose cycles may be what
 * the thread waits for (I9). */
void ch_thread_unpark(void)
{
	struct ch__thread *stopped;
	while ((stopped = run_parked()))
		ch__os_futex_wait(&stopped->heap->stopping, 1, 0);
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread)
		if (t->park_depth && ch__park_close(t))
			ch__thread_serialize(t);
}

void ch__threads_park(const struct ch__arch_saved *saved)
{
	park_here(saved);
}

void ch__threads_unpark(void)
{
	ch_thread_unpark();
}

/* False when another thread is here now, or the heap is not its any more: a callback left its stack
 * to it, and the list that the caller goes through is not its own. */
static bool serve(const struct ch__thread *thread, struct ch_heap *heap)
{
	bool was_left = false;
	if (CH_UNLIKELY(atomic_load_explicit(&heap->sweep_pending, memory_order_relaxed)))
		ch__sweep_step(heap);
	if (CH_UNLIKELY(atomic_load_explicit(&heap->notices_now, memory_order_relaxed))) {
		ch__notices_deliver(heap);
		was_left = ch__thread_now(heap) != thread;
	}
	if (CH_UNLIKELY(was_left))
		return false;
	if (CH_UNLIKELY(atomic_load_explicit(&heap->collect_wanted, memory_order_relaxed) ||
			atomic_load_explicit(&heap->anyone_wants_space, memory_order_relaxed))) {
		ch__trigger_poll(heap);
		was_left = ch__thread_now(heap) != thread;
	}
	return CH_LIKELY(!was_left);
}

void ch_thread_poll(void)
{
	if (ch__is_marking())
		return;
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (CH_UNLIKELY(atomic_load_explicit(&t->heap->stopping, memory_order_relaxed))) {
			ch__thread_park_here();
			ch_thread_unpark();
		}
		if (CH_UNLIKELY(!serve(t, t->heap)))
			return;
	}
}

/* --- regions --- */

void ch__region_wait(struct ch__thread *thread) CH_UNANALYSED("it makes the role")
{
	struct ch_heap *heap = thread->heap;
	ch__region_leave(thread);
	ch__thread_park_here();
	uint32_t value;
	while ((value = atomic_load_explicit(&heap->freeze, memory_order_acquire)) != 0)
		ch__os_futex_wait(&heap->freeze, value, 1000000);
	ch_thread_unpark();
}

/* The fence is refused though it was granted when the heap was made: a filter came since, or the
 * kernel has no memory. Regions pay for their own from here on, but a thread may be between its
 * look at fence_in_regions and its look at freeze, its store to inside in no cache yet. Stores
 * leave a core within microseconds, a preempted one at once: after a wait all can be seen. */
static void fence_late(struct ch_heap *heap)
{
	enum { DRAINED_NS = 1000000 };
	_Atomic(uint32_t) never = 0;
	atomic_store(&heap->fence_came_late, true);
	atomic_store_explicit(&heap->fence_in_regions, true, memory_order_seq_cst);
	for (uint64_t end = ch__os_now_ns() + DRAINED_NS; ch__os_now_ns() < end;)
		ch__os_futex_wait(&never, 0, DRAINED_NS);
}

/* Asleep: a thread of a lower priority, which is in its region, must get to run. */
static bool await_region(struct ch__thread *thread, uint64_t until_ns)
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

static bool regions_end(struct ch_heap *heap, uint64_t until_ns)
{
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		if (!await_region(t, until_ns))
			return false;
	return await_region(&heap->guest, until_ns);
}

bool ch__freeze_until(struct ch_heap *heap, uint64_t until_ns) CH_UNANALYSED("it makes the role")
{
	atomic_fetch_add_explicit(&heap->freeze, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&heap->fence_came_late, memory_order_relaxed) ||
	    (!atomic_load_explicit(&heap->fence_in_regions, memory_order_relaxed) &&
	     !ch__os_membarrier_fence()))
		fence_late(heap);
	if (regions_end(heap, until_ns))
		return true;
	ch__unfreeze(heap);
	return false;
}

void ch__freeze(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	(void)ch__freeze_until(heap, 0);
}

void ch__unfreeze(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	if (atomic_fetch_sub_explicit(&heap->freeze, 1, memory_order_release) == 1)
		ch__os_futex_wake(&heap->freeze);
}

bool ch__core_sync(struct ch_heap *heap)
{
	if (!atomic_load_explicit(&heap->has_core_sync, memory_order_relaxed))
		return false;
	/* seq_cst: who sees the old count made its stores before the barrier. */
	atomic_fetch_add_explicit(&heap->core_syncs_begun, 1, memory_order_seq_cst);
	/* What was granted may be refused later: by a filter, or for want of memory. */
	if (!ch__os_membarrier_core_sync()) {
		atomic_store_explicit(&heap->has_core_sync, false, memory_order_relaxed);
		atomic_fetch_sub_explicit(&heap->core_syncs_begun, 1, memory_order_seq_cst);
		return false;
	}
	atomic_fetch_add_explicit(&heap->core_syncs, 1, memory_order_relaxed);
	return true;
}

void ch__core_sync_by_stop(struct ch_heap *heap)
{
	atomic_fetch_add_explicit(&heap->core_syncs_begun, 1, memory_order_seq_cst);
	/* Release: pairs with ch__thread_serialize. */
	atomic_fetch_add_explicit(&heap->core_syncs_by_stop, 1, memory_order_release);
	atomic_fetch_add_explicit(&heap->core_syncs, 1, memory_order_relaxed);
	struct ch__thread *self = ch__thread_self(heap);
	if (self)
		ch__thread_serialize(self);
}

/* --- attachments --- */

static struct ch__thread *take_record(struct ch_heap *heap)
{
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		if (!t->is_attached)
			return t;
	struct ch__thread *fresh = ch__meta_alloc(heap->meta, sizeof *fresh);
	if (!fresh)
		return NULL;
	fresh->heap = heap;
	atomic_store(&fresh->state, CH__PARKED);
	fresh->next = heap->threads;
	/* Release: hooks and handlers walk the list without the registry lock. */
	atomic_store_explicit(&heap->threads, fresh, memory_order_release);
	return fresh;
}

enum ch_status ch_thread_attach(struct ch_heap *heap, const void *low, const void *high)
{
	if (ch__is_marking())
		return CH_E_STATE;
	if (ch__thread_self(heap))
		return CH_E_THREAD;
	if ((!low || !high) && !ch__os_stack_bounds(&low, &high))
		return CH_E_OS;
	if (low >= high)
		return CH_E_ARG;
	ch__registry_lock(heap);
	struct ch__thread *thread = take_record(heap);
	if (!thread) {
		ch__registry_unlock(heap);
		return CH_E_MEMORY;
	}
	thread->stack_low = (uintptr_t)low;
	thread->stack_high = (uintptr_t)high;
	thread->stack_grows = ch__os_is_first_stack(low, high);
	thread->thread_id = ch__os_thread_id();
	thread->park_depth = 0;
	atomic_store(&thread->fiber, NULL);
	ch__thread_set_state(thread, CH__RUNNING, memory_order_seq_cst, __func__);
	thread->is_attached = true;
	ch__event_note(heap, CH__EVENT_ATTACHED, (uint64_t)thread->thread_id);
	thread->next_of_thread = ch__thread_list;
	/* A signal handler of this thread walks the list. */
	atomic_signal_fence(memory_order_release);
	ch__thread_list = thread;
	/* It may have run code of the heap before, and no stop has waited for it since; whoever had
	 * the record before it serialized another core. */
	thread->stops_served = 0;
	ch__thread_serialize(thread);
	if (ch__has_listeners(heap))
		ch__listeners_thread_comes(thread);
	ch__registry_unlock(heap);
	return CH_OK;
}

static void add_counters(struct ch__counters *to, struct ch__counters *from)
{
	uint64_t *sum = (uint64_t *)(void *)to, *more = (uint64_t *)(void *)from;
	for (size_t i = 0; i < sizeof *to / sizeof *sum; i++)
		sum[i] += more[i];
	memset(from, 0, sizeof *from);
}

enum ch_status ch_thread_detach(struct ch_heap *heap)
{
	if (ch__is_marking())
		return CH_E_STATE;
	struct ch__thread *thread = ch__thread_self(heap);
	if (!thread)
		return CH_E_THREAD;
	ch__registry_lock(heap);
	if (ch__has_listeners(heap))
		ch__listeners_thread_leaves(thread);
	ch__heap_lock(heap);
	ch__records_flush(heap, thread);
	for (int frame = 0; frame < CH__FRAMES_MAX; frame++) {
		uint32_t page = thread->open_page[frame];
		ch__region_enter(thread);
		thread->open_page[frame] = 0;
		ch__region_leave(thread);
		if (page)
			ch__page_retire(heap, page - 1);
	}
	add_counters(&heap->counters, &thread->counters);
	struct ch__thread **link = &ch__thread_list;
	while (*link != thread)
		link = &(*link)->next_of_thread;
	*link = thread->next_of_thread;
	thread->is_attached = false;
	ch__event_note(heap, CH__EVENT_DETACHED, (uint64_t)thread->thread_id);
	ch__thread_set_state(thread, CH__PARKED, memory_order_seq_cst, __func__);
	ch__heap_unlock(heap);
	ch__registry_unlock(heap);
	return CH_OK;
}

/* --- fibers --- */

enum ch_status ch_fiber_attach(struct ch_heap *heap, const void *low, const void *high,
			       struct ch_fiber **out)
{
	*out = NULL;
	if (ch__is_marking())
		return CH_E_STATE;
	if (low >= high)
		return CH_E_ARG;
	ch__registry_lock(heap);
	struct ch_fiber *fiber = heap->free_fibers;
	if (fiber) {
		heap->free_fibers = fiber->next_free;
	} else {
		fiber = ch__meta_alloc(heap->meta, sizeof *fiber);
		if (!fiber) {
			ch__registry_unlock(heap);
			return CH_E_MEMORY;
		}
		fiber->heap = heap;
		fiber->next = heap->fibers;
		/* Release: the scan of a Boehm cycle walks the list without the registry lock. */
		atomic_store_explicit(&heap->fibers, fiber, memory_order_release);
	}
	fiber->low = (uintptr_t)low;
	fiber->high = (uintptr_t)high;
	if (CH_UNLIKELY(heap->pool->is_translated))
		fiber->stack = ch__valgrind_stack_born(fiber->low, fiber->high);
	atomic_store(&fiber->suspended_sp, 0);
	fiber->is_attached = true;
	ch__registry_unlock(heap);
	*out = fiber;
	return CH_OK;
}

void ch_fiber_suspend(struct ch_fiber *fiber, const void *lowest_sp)
{
	uintptr_t sp = (uintptr_t)lowest_sp & ~(uintptr_t)7;
	/* Release: the frames above sp are written; pairs with the scan's acquire. */
	atomic_store_explicit(&fiber->suspended_sp, sp, memory_order_release);
}

void ch_fiber_resume(struct ch_fiber *fiber)
{
	struct ch__thread *thread = ch__thread_self(fiber->heap);
	if (thread)
		atomic_store_explicit(&thread->fiber, fiber, memory_order_release);
	atomic_store_explicit(&fiber->suspended_sp, 0, memory_order_release);
}

enum ch_status ch_fiber_detach(struct ch_fiber *fiber)
{
	if (ch__is_marking())
		return CH_E_STATE;
	struct ch_heap *heap = fiber->heap;
	/* A scan may be reading the stack, which the caller unmaps next. A host's cycle holds the
	 * heap lock then; Boehm's holds none, but nobody is in a region meanwhile (I1). */
	struct ch__thread *self = NULL;
	ch__registry_lock(heap);
	if (!fiber->is_attached) {
		ch__registry_unlock(heap);
		return CH_E_STATE;
	}
	ch__heap_lock(heap);
	self = ch__thread_or_guest(heap);
	ch__region_enter(self);
	for (struct ch__thread *t = heap->threads; t; t = t->next) {
		struct ch_fiber *expected = fiber;
		atomic_compare_exchange_strong(&t->fiber, &expected, NULL);
	}
	atomic_store(&fiber->suspended_sp, 0);
	fiber->is_attached = false;
	ch__region_leave(self);
	ch__heap_unlock(heap);
	if (CH_UNLIKELY(heap->pool->is_translated))
		ch__valgrind_stack_dead(fiber->stack);
	fiber->next_free = heap->free_fibers;
	heap->free_fibers = fiber;
	ch__registry_unlock(heap);
	return CH_OK;
}
