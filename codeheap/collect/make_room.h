/* SPDX-License-Identifier: MIT
 * make_room.h: the door by which an open that found no room has some made (make_room.c). */
#ifndef CH_CODEHEAP_COLLECT_MAKE_ROOM_H
#define CH_CODEHEAP_COLLECT_MAKE_ROOM_H

#include "codeheap/base/heap.h"

/* Makes the collection that is wanted, where no vm is asked for it: in a BUILTIN heap that has code
 * without an owner to free, and no vm that hears collect_wanted or stops its threads itself. Only
 * an attached thread that is not parked does so, one at a time. Returns whether it collected. */
bool ch__collect_unasked(struct ch_heap *) CH_EXCLUDES(CH__ANY);

/* One load where no collection is wanted. */
static inline bool ch__collect_if_unasked(struct ch_heap *heap) CH_EXCLUDES(CH__ANY)
{
	return CH_UNLIKELY(atomic_load_explicit(&heap->collect_wanted, memory_order_relaxed)) &&
	       ch__collect_unasked(heap);
}

enum ch__room_by {
	CH__ROOM_BY_SWEEP,      /* what is found dead already, and not swept */
	CH__ROOM_BY_CORE_SYNC,  /* places on the quarantine, which an extra core sync may free */
	CH__ROOM_BY_COLLECTION, /* a cycle; callbacks may leave the stack to another thread */
};

/* Between the two no other open that may collect takes what a cycle freed. An open inside another
 * one's callback goes along with that, as does each open where a vm stops its threads itself: that
 * stop waits for threads outside of the library. Returns what leave wants; 0 where it waited longer
 * than a cycle may. */
uintptr_t ch__need_enter(struct ch_heap *, const struct ch__thread *self) CH_EXCLUDES(CH__ANY);
void ch__need_leave(struct ch_heap *, uintptr_t entered);

/* Returns whether it was worth a look: something may have come free. */
bool ch__make_room(struct ch_heap *, enum ch__room_by) CH_EXCLUDES(CH__ANY);

#endif
