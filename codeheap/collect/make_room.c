/* SPDX-License-Identifier: MIT
 * make_room.c: how an open that found no room has some made: the only way from opening to sweeping
 * and collecting. */
#include "codeheap/base/park.h"
#include "codeheap/collect/collect.h"
#include "codeheap/collect/make_room.h"

#include "codeheap/base/region.h"

/* A callback may leave the thread with its fiber, which so is who has the turn; or it stays away,
 * and after the limit the next one takes the turn for given up. */
uintptr_t ch__need_enter(struct ch_heap *heap, const struct ch__thread *self)
{
	struct ch_fiber *fiber = atomic_load_explicit(&self->fiber, memory_order_relaxed);
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

bool ch__make_room(struct ch_heap *heap, enum ch__room_by by)
{
	bool has_freed = false;
	switch (by) {
	case CH__ROOM_BY_SWEEP:
		ch__sweep_all(heap);
		return true;
	case CH__ROOM_BY_CORE_SYNC:
		if (!atomic_load(&heap->quarantine_bytes))
			return false;
		ch__heap_lock(heap);
		has_freed = ch__quarantine_advance(heap, true);
		ch__heap_unlock(heap);
		return has_freed;
	case CH__ROOM_BY_COLLECTION:
		return ch_heap_collect(heap) == CH_OK;
	}
	return false;
}
