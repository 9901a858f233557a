/* SPDX-License-Identifier: MIT
 * poll.c: ch_thread_poll: a thread stands still where a heap of its own is stopped, and does what
 * is due: a step of the sweep, names that wait to be written, notices, requests for a
 * collection. A word of the heap says that something is. */
#include "codeheap/base/park.h"
#include "codeheap/base/trigger.h"
#include "codeheap/collect/collect.h"
#include "codeheap/collect/make_room.h"
#include "codeheap/graph/tell.h"

/* False when another thread is here now, or the heap is not its any more: a callback left its stack
 * to it, and the list that the caller goes through is not its own. */
static bool serve(const struct ch__thread *thread, struct ch_heap *heap)
{
	if (CH_UNLIKELY(atomic_load_explicit(&heap->sweep_pending, memory_order_relaxed)))
		ch__sweep_step(heap);
	if (CH_UNLIKELY(atomic_load_explicit(&heap->sinks_wait, memory_order_relaxed)))
		ch__tell_poll(heap);
	if (CH_UNLIKELY(atomic_load_explicit(&heap->notices_now, memory_order_relaxed))) {
		ch__notices_deliver(heap);
		if (ch__thread_now(heap) != thread)
			return false;
	}
	if (CH_UNLIKELY(atomic_load_explicit(&heap->collect_wanted, memory_order_relaxed) ||
			atomic_load_explicit(&heap->anyone_wants_space, memory_order_relaxed))) {
		ch__trigger_poll(heap);
		if (ch__thread_now(heap) == thread)
			(void)ch__collect_if_unasked(heap);
		return ch__thread_now(heap) == thread;
	}
	return true;
}

/* What serve may find to do, or a stop. A request that the vms were told of waits for them. */
static bool is_due(const struct ch_heap *heap)
{
	return atomic_load_explicit(&heap->stopping, memory_order_relaxed) ||
	       atomic_load_explicit(&heap->sweep_pending, memory_order_relaxed) ||
	       atomic_load_explicit(&heap->sinks_wait, memory_order_relaxed) ||
	       atomic_load_explicit(&heap->notices_now, memory_order_relaxed) ||
	       atomic_load_explicit(&heap->anyone_wants_space, memory_order_relaxed) ||
	       (atomic_load_explicit(&heap->collect_wanted, memory_order_relaxed) &&
		!atomic_load_explicit(&heap->collect_told, memory_order_relaxed));
}

/* The word is set while a reason stands, and taken back by the poll that finds none. A reason that
 * came since is seen behind the exchange, whose acquire pairs with ch__poll_want. */
static void take_back(struct ch_heap *heap)
{
	if (is_due(heap))
		return;
	(void)atomic_exchange_explicit(&heap->poll_due, 0, memory_order_acquire);
	if (is_due(heap))
		ch__poll_want(heap);
}

void ch_thread_poll(void)
{
	if (ch__is_marking())
		return;
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		struct ch_heap *heap = t->heap;
		if (CH_LIKELY(!atomic_load_explicit(&heap->poll_due, memory_order_relaxed)))
			continue;
		if (atomic_load_explicit(&heap->stopping, memory_order_relaxed)) {
			ch__thread_park_here();
			ch_thread_unpark();
		}
		if (CH_UNLIKELY(!serve(t, heap)))
			return;
		take_back(heap);
	}
}

const volatile uint32_t *ch_thread_poll_word(struct ch_heap *heap)
{
	return (const volatile uint32_t *)&heap->poll_due;
}
