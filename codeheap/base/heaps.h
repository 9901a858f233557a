/* SPDX-License-Identifier: MIT
 * heaps.h: the heaps of the process, by the id that handles have (heaps.c). */
#ifndef CH_CODEHEAP_BASE_HEAPS_H
#define CH_CODEHEAP_BASE_HEAPS_H

#include "codeheap/base/heap.h"

extern _Atomic(struct ch_heap *) ch__heaps[CH__HEAPS_MAX + 1];
/* While the set of heaps changes, and over a fork; left of every heap's locks. */
extern struct ch__lock ch__heaps_lock;
/* Destroyed heaps, chained by left_next, that a handler may still read. */
extern struct ch_heap *ch__heaps_left CH_GUARDED_BY(ch__heaps_lock);
/* A free place in the table of heaps, which others do not take meanwhile; the slot is filled last,
 * when the heap is whole. Returns false when all places are taken. */
bool ch__heaps_choose_id(struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
/* Nobody makes handles of the heap any more. */
void ch__heaps_leave_id(const struct ch_heap *) CH_REQUIRES(ch__heaps_lock);

/* The heap whose pool has the address, NULL: none. Signal-safe; the heap stays while its code does,
 * or places are read (ch__place_read_begin). O(heaps). */
struct ch_heap *ch__heap_at(uintptr_t address);

/* The heap is being destroyed, and its pool goes: the last 16 are remembered. */
void ch__heaps_pool_goes(const struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
/* Whether one of these pools had the address, which no heap has now. Signal-safe. */
bool ch__heaps_had(uintptr_t address);

static inline struct ch_heap *ch__handle_heap(uint64_t bits)
{
	return atomic_load_explicit(&ch__heaps[(bits >> 24) & 0xff], memory_order_acquire);
}

#endif
