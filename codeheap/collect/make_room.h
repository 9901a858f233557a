/* SPDX-License-Identifier: MIT
 * make_room.h: how an open that found no room has some made (make_room.c). */
#pragma once

#include "codeheap/base/heap.h"

/* Makes the wanted collection where no vm is asked: in a BUILTIN heap where code was left to a
 * cycle, and no vm hears collect_wanted or stops its threads itself. Only an attached thread that
 * is not parked collects, and never two at once, save beside a callback that stays away for longer
 * than stop_wait_ms. Returns whether a collection was tried. */
bool ch__collect_unasked(struct ch_heap *) CH_EXCLUDES(CH__ANY);

/* One load where no collection is wanted, two where no code was left to one. */
static inline bool ch__collect_if_unasked(struct ch_heap *heap) CH_EXCLUDES(CH__ANY)
{
	return CH_UNLIKELY(atomic_load_explicit(&heap->collect_wanted, memory_order_relaxed)) &&
	       CH_UNLIKELY(atomic_load_explicit(&heap->waits_for_cycle, memory_order_relaxed)) &&
	       ch__collect_unasked(heap);
}

enum ch__room_by {
	CH__ROOM_BY_SWEEP,      /* blocks found dead, but not swept */
	CH__ROOM_BY_CORE_SYNC,  /* places on the quarantine, after an extra core sync */
	CH__ROOM_BY_COLLECTION, /* a cycle; callbacks may leave the stack to another thread */
};

/* From enter to leave, no second open that may collect takes space freed by a cycle. Some opens go
 * along without a turn: an open inside a callback of another open, every open of a HOST heap, and
 * every open where a vm stops its threads itself, since that stop waits for threads outside of the
 * library. An open that waited longer than a cycle may take has the turn of a holder that stays
 * away, or goes along. Returns the argument of leave: 0 without a turn. */
uintptr_t ch__need_enter(struct ch_heap *, const struct ch__thread *self) CH_EXCLUDES(CH__ANY);
void ch__need_leave(struct ch_heap *, uintptr_t entered);

/* Returns whether a new look is worth while: something may have come free. */
bool ch__make_room(struct ch_heap *, enum ch__room_by) CH_EXCLUDES(CH__ANY);
