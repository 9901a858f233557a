/* SPDX-License-Identifier: MIT
 * poll.c: ch_thread_poll. A thread stands still where one of its heaps is stopped, and does the
 * work that is due: a step of the sweep, waiting names, notices, requests for a collection. A word
 * of the heap says whether work is due. */
#include "codeheap/collect/collect.h"

/* Returns false when a callback left this stack to another thread, or the thread left the heap.
 * Then the caller's list is not the running thread's. */
static bool serve(const struct ch__thread *thread, struct ch_heap *heap)
{
	if (CH_UNLIKELY(CH_LOAD_RELAXED(&heap->sweep_pending)))
		ch__sweep_step(heap);
	if (CH_UNLIKELY(CH_LOAD_RELAXED(&heap->sinks_wait)))
		ch__tell_poll(heap);
	if (CH_LIKELY(!CH_LOAD_RELAXED(&heap->notice_head) &&
		      !CH_LOAD_RELAXED(&heap->collect_wanted) &&
		      !CH_LOAD_RELAXED(&heap->anyone_wants_space)))
		return true;
	ch__vms_tell(heap);
	if (ch__thread_now(heap) == thread)
		(void)ch__collect_if_unasked(heap);
	return ch__thread_now(heap) == thread;
}

/* Whether there is work for serve, or a stop. A request that the vms were told of is not due. */
static CH_COLD bool is_due(const struct ch_heap *heap)
{
	return CH_LOAD_RELAXED(&heap->stopping) || CH_LOAD_RELAXED(&heap->sweep_pending) ||
	       CH_LOAD_RELAXED(&heap->sinks_wait) || CH_LOAD_RELAXED(&heap->notice_head) ||
	       (CH_LOAD_RELAXED(&heap->anyone_wants_space) &&
		(CH_LOAD_RELAXED(&heap->space_came) || !CH_LOAD_RELAXED(&heap->collect_wanted))) ||
	       (CH_LOAD_RELAXED(&heap->collect_wanted) && !CH_LOAD_RELAXED(&heap->collect_told));
}

void ch_thread_poll(void)
{
	if (ch__is_marking())
		return;
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		struct ch_heap *heap = t->heap;
		if (CH_LIKELY(!CH_LOAD_RELAXED(&heap->poll_due)))
			continue;
		if (CH_LOAD_RELAXED(&heap->stopping)) {
			ch__thread_park_here();
			ch_thread_unpark();
		}
		if (CH_UNLIKELY(!serve(t, heap)))
			return;
		/* The word is set while a reason stands, and taken back by the poll that finds
		 * none. The second look sees a reason stored since: the acquire of the exchange
		 * pairs with ch__poll_want. */
		if (is_due(heap))
			continue;
		(void)atomic_exchange_explicit(&heap->poll_due, 0, memory_order_acquire);
		if (is_due(heap))
			ch__poll_want(heap);
	}
}

const volatile uint32_t *ch_thread_poll_word(struct ch_heap *heap)
{
	return ch__heap_is_listed(heap) ? (const volatile uint32_t *)&heap->poll_due : NULL;
}
