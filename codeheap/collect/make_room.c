/* SPDX-License-Identifier: MIT
 * make_room.c: the turns of opens that may collect, and how a wish for a collection is served when
 * no vm hears of the wish. */
#include "codeheap/base/why.h"
#include "codeheap/collect/collect.h"
#include "codeheap/events/events.h"

/* The caller asked for no stop, and waits a 50th of stop_wait_ms for other threads. After a try in
 * vain no thread tries for 50 times as long as that try took, save where much is dead, or the
 * thread that held the try up stands still or left. */
enum { UNASKED_PART = 50 };

static bool is_asked(const struct ch_heap *heap)
{
	return heap->config.driver == CH_DRIVER_HOST || heap->driver.collect || heap->is_codeless ||
	       CH_LOAD_RELAXED(&heap->vms_asked);
}

/* Whether a thread held up the last collection, and stands still since, left, or is the caller. */
static bool is_let_go(const struct ch_heap *heap, const struct ch__thread *self)
{
	int held_up_by = CH_LOAD_RELAXED(&heap->held_up_by);
	const struct ch__thread *t = heap->threads;
	while (t && !(CH_LOAD_RELAXED(&t->thread_id) == held_up_by && t->is_attached &&
		      t != self && CH_LOAD_RELAXED(&t->state) == CH__RUNNING))
		t = t->next;
	return held_up_by && !t;
}

static bool collect_shortly(struct ch_heap *heap, uint64_t start_ns)
{
	uint64_t limit_ns = ch__stop_limit(heap, 0) / UNASKED_PART;
	if (ch__heap_collect_until(heap, start_ns + limit_ns) == CH_OK)
		return true;
	uint64_t end = ch__os_now_ns();
	heap->unasked_after_ns = end + (end - start_ns) * UNASKED_PART;
	return false;
}

/* A callback of the collection may call this function again, or stay away: after the limit the next
 * thread takes over. If the first thread is in a long cycle instead, the thread that took over
 * collects in vain. Then nothing is put off, unless a thread did not stop, and another thread may
 * take over. */
bool CH_COLD ch__collect_unasked(struct ch_heap *heap)
{
	const struct ch__thread *self = ch__thread_self(heap);
	if (is_asked(heap) || !self || self->park_depth)
		return false;
	uint64_t now = ch__os_now_ns(), since = atomic_load(&heap->unasked_ns);
	if ((since && now < ch__stop_limit(heap, since)) ||
	    !atomic_compare_exchange_strong(&heap->unasked_ns, &since, now))
		return false;
	bool is_late = ch__trigger_is_late(heap);
	bool is_tried = is_late || now >= heap->unasked_after_ns || is_let_go(heap, self);
	bool has_collected = is_tried && collect_shortly(heap, now);
	if (!has_collected && since && !atomic_load(&heap->held_up_by))
		return is_tried;
	if (!has_collected) {
		/* No call fails meanwhile, so nothing else would tell the user. */
		if (is_late && !heap->is_late_told)
			ch__why_print("dead code piles up: ");
		heap->is_late_told |= is_late;
		ch__trigger_put_off(heap);
	}
	atomic_compare_exchange_strong(&heap->unasked_ns, &now, 0);
	return is_tried;
}

/* A callback may leave the thread with its fiber, so a fiber has the turn where there is one. A
 * fiber may also stay away: after the limit the next open takes the turn over. */
uintptr_t ch__need_enter(struct ch_heap *heap, const struct ch__thread *self)
{
	struct ch_fiber *fiber = CH_LOAD_RELAXED(&self->fiber);
	uintptr_t me = fiber ? (uintptr_t)fiber : (uintptr_t)self;
	ch__holds_nothing();
	if (heap->config.driver == CH_DRIVER_HOST || atomic_load(&heap->stops_apart) ||
	    atomic_load(&heap->need_is) == me)
		return 0;
	if (!ch__lock_seize(&heap->need) &&
	    !ch__lock_wait_parked(&heap->need, ch__stop_limit(heap, ch__os_now_ns()))) {
		uintptr_t away = atomic_load(&heap->need_is);
		return away && atomic_compare_exchange_strong(&heap->need_is, &away, me) ? me : 0;
	}
	atomic_store(&heap->need_is, me);
	return me;
}

void ch__need_leave(struct ch_heap *heap, uintptr_t entered)
{
	if (entered && atomic_compare_exchange_strong(&heap->need_is, &entered, 0))
		ch__lock_let_go(&heap->need);
}
