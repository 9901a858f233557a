/* SPDX-License-Identifier: MIT
 * poll.c: ch_thread_poll: a thread stands still where a heap of its own is stopped, and does what
 * is due: a step of the sweep, names that wait to be written, notices, requests for a
 * collection. */
#include "codeheap/base/park.h"
#include "codeheap/base/trigger.h"
#include "codeheap/collect/collect.h"
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
		return ch__thread_now(heap) == thread;
	}
	return true;
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
