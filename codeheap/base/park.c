/* SPDX-License-Identifier: MIT
 * park.c: the records of the calling thread, parks, and the locks whose wait is a park. Does not
 * stop threads (world.c) and does not scan stacks (stacks.c). */
#include "codeheap/base/park.h"

_Thread_local struct ch__thread *ch__thread_list;
_Thread_local uint32_t ch__marking;

__attribute__((noinline)) struct ch__thread *ch__thread_now(const struct ch_heap *heap)
{
	return ch__thread_self(heap);
}

const char *ch__thread_how(const struct ch__thread *thread)
{
	return ch__os_thread_is_gone(thread->thread_id) ? " (which ended and is attached)"
	       : CH_LOAD_RELAXED(&thread->is_by_call) ? " (which a call that made code attached)"
						      : "";
}

#define HEAP_LOCK(take, let_go, lock, rank) \
	CH__LOCK_FUNCTIONS(take, let_go, struct ch_heap *heap, ch__lock_parking, heap->lock, rank)
HEAP_LOCK(ch__registry_lock, ch__registry_unlock, registry, CH__RANK_REGISTRY)
HEAP_LOCK(ch__sweep_lock, ch__sweep_unlock, sweep, CH__RANK_SWEEP)
HEAP_LOCK(ch__records_lock, ch__records_unlock, records, CH__RANK_RECORDS)

bool ch__heap_lock_until(struct ch_heap *heap, uint64_t until_ns) CH_UNANALYSED("it makes the role")
{
	ch__rank_check_for(CH__RANK_HEAP, NULL);
	bool is_taken = ch__lock_seize(&heap->lock);
	if (CH_UNLIKELY(!is_taken)) {
		atomic_fetch_add_explicit(&heap->lock_waits, 1, memory_order_relaxed);
		is_taken = ch__lock_wait_parked(&heap->lock, until_ns);
		atomic_fetch_sub_explicit(&heap->lock_waits, 1, memory_order_relaxed);
	}
	if (is_taken)
		ch__lock_note(&heap->lock, CH__RANK_HEAP, true);
	return is_taken;
}

void ch__heap_lock(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	ch__rank_check_for(CH__RANK_HEAP, NULL);
	if (CH_UNLIKELY(!ch__heap_try_lock(heap)))
		(void)ch__heap_lock_until(heap, 0);
}

void ch__heap_unlock(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	ch__lock_release(&heap->lock, CH__RANK_HEAP);
}

void ch__heap_pass(struct ch_heap *heap) CH_UNANALYSED("it takes the role back")
{
	enum { SPINS = 64 };
	if (CH_LIKELY(!CH_LOAD_RELAXED(&heap->lock_waits)))
		return;
	ch__heap_unlock(heap);
	for (int spins = 0; spins < SPINS && ch__lock_is_free(&heap->lock); spins++)
		ch__arch_pause();
	ch__heap_lock_for_many(heap);
}

/* A lent lock has no rank: the thread may begin a cycle of another heap meanwhile, whose waits have
 * a limit. The locks of sinks, which ch_sink_status takes, stand right of the lent lock. */
void ch__heap_lend(void)
{
	ch__marking++;
	ch__rank_note(CH__RANK_HEAP, false);
}

void ch__heap_take_back(void)
{
	ch__rank_note(CH__RANK_HEAP, true);
	ch__marking--;
}

/* A handler may run on an alternate stack, which may be an array in a frame, within the thread's
 * bounds: so the system is asked in any case. The interrupted registers lie there. */
static void publish_sp(struct ch__thread *thread, uintptr_t sp)
{
	if (CH_UNLIKELY(sp < thread->stack_low) && thread->stack_grows) {
		uintptr_t low = ch__os_first_stack_low(thread->stack_low, thread->stack_high);
		if (low < thread->stack_low)
			thread->stack_low = low;
	}
	thread->shown.sp = sp;
	thread->shown.signal_stack_end = ch__os_signal_stack_end(sp);
}

void ch__thread_publish_saved(struct ch__thread *thread, const struct ch__arch_saved *saved)
{
	struct ch__shown *shown = &thread->shown;
	memcpy(shown->words, saved->words, sizeof saved->words);
	shown->words_count = CH_ARCH_SAVED_WORDS;
	shown->may_end = false; /* the thread waits here, parked or not */
	publish_sp(thread, saved->sp);
}

void ch__thread_publish_context(struct ch__thread *thread, const void *ucontext)
{
	struct ch__shown *shown = &thread->shown;
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		shown->words[i] = ch__arch_context_word(ucontext, i);
	shown->words_count = CH_ARCH_CONTEXT_WORDS;
	shown->may_end = false;
	shown->vectors_low = ch__arch_context_vectors(ucontext, &shown->vectors_high);
	publish_sp(thread, ch__arch_context_sp(ucontext));
}

static void park_with(const struct ch__arch_saved *saved, bool may_end)
{
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (!ch__park_open(t))
			continue;
		ch__thread_publish_saved(t, saved);
		t->shown.may_end = may_end;
		ch__thread_set_state(t, CH__PARKED, memory_order_release, __func__);
	}
}

void ch__threads_park(const struct ch__arch_saved *saved)
{
	park_with(saved, false);
}

void ch__threads_park_away(const struct ch__arch_saved *saved)
{
	park_with(saved, true);
}

/* Both functions return parked, so the published registers must be the caller's. */
__attribute__((noinline)) void ch_thread_park(void)
{
	/* No thread parks with a lock that is held for a bounded time only (heap.h). */
	ch__rank_check_for(CH__RANK_PAGES, "a park");
	ch__arch_with_registers(ch__threads_park_away);
}

__attribute__((noinline)) void ch__thread_park_here(void)
{
	ch__rank_check_for(CH__RANK_PAGES, "a park");
	ch__arch_with_registers(ch__threads_park);
}

/* Lets all records run that are parked once. If a heap is stopped: none, and returns the record. */
static struct ch__thread *run_parked(void)
{
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (t->park_depth != 1)
			continue;
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

/* All or none: a cycle of another heap must not wait for a thread that waits for a heap (I9). The
 * thread takes the lock, if any, and lets it go while a heap is stopped: whoever stopped that heap
 * may wait for the lock. Returns false when there is none, or it was not free in time. */
static bool unpark_with(struct ch__lock *lock, uint64_t until_ns)
{
	bool is_taken;
	struct ch__thread *stopped;
	while (is_taken = lock && ch__lock_sleep(lock, until_ns), (stopped = run_parked())) {
		if (is_taken)
			ch__lock_let_go(lock);
		ch__os_futex_wait(&stopped->heap->stopping, 1, 0);
	}
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread)
		if (t->park_depth && ch__park_close(t))
			ch__thread_serialize(t);
	return is_taken;
}

/* The holder may be a cycle, which waits until the thread stops (I9). */
bool ch__lock_wait_parked(struct ch__lock *lock, uint64_t until_ns)
{
	if (ch__lock_spin(lock))
		return true;
	ch__thread_park_here();
	return unpark_with(lock, until_ns);
}

void ch_thread_unpark(void)
{
	(void)unpark_with(NULL, 0);
}
