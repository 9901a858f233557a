/* SPDX-License-Identifier: MIT
 * make_room.c: how an open that found no room has some made. Opening belongs to the graph of
 * blocks, sweeping and collecting to its collection: this is the only way from the first to the
 * second. */
#include "codeheap/base/park.h"
#include "codeheap/collect/death.h"
#include "codeheap/collect/make_room.h"
#include "codeheap/collect/sweep.h"


static bool sweep(struct ch_heap *heap)
{
	while (atomic_load(&heap->sweep_pending))
		if (!ch__sweep_step(heap))
			break;
	return true;
}

static bool empty_quarantine(struct ch_heap *heap)
{
	if (!atomic_load(&heap->quarantine_bytes))
		return false;
	ch__heap_lock(heap);
	bool has_freed = ch__quarantine_advance(heap, true);
	ch__heap_unlock(heap);
	return has_freed;
}

bool ch__make_room(struct ch_heap *heap, enum ch__room_by by)
{
	switch (by) {
	case CH__ROOM_BY_SWEEP:
		return sweep(heap);
	case CH__ROOM_BY_CORE_SYNC:
		return empty_quarantine(heap);
	case CH__ROOM_BY_COLLECTION:
		return ch_heap_collect(heap) == CH_OK;
	}
	return false;
}
