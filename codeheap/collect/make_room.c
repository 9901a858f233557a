/* SPDX-License-Identifier: MIT
 * make_room.c: how an open that found no room has some made: the only way from opening to sweeping
 * and collecting. */
#include "codeheap/base/park.h"
#include "codeheap/collect/collect.h"
#include "codeheap/collect/make_room.h"

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
