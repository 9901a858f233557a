/* SPDX-License-Identifier: MIT
 * heaps.h: the heaps of the process, by the id in handles (heaps.c). */
#pragma once

#include "codeheap/base/heap.h"

extern _Atomic(struct ch_heap *) ch__heaps[CH__HEAPS_MAX + 1];
/* Held while the set of heaps changes, and over a fork. Left of every heap's locks. */
extern struct ch__lock ch__heaps_lock;
void ch__heaps_take(void) CH_ACQUIRES(ch__heaps_lock) CH_EXCLUDES(CH__STANDING); /* parks */
void ch__heaps_let_go(void) CH_RELEASES(ch__heaps_lock);
/* Destroyed heaps that a handler may still read, chained by left_next. */
extern struct ch_heap *ch__heaps_left CH_GUARDED_BY(ch__heaps_lock);
/* Gives the heap a free id, kept free by the lock. The caller fills the slot of the table last,
 * when the heap is whole. Returns false when all ids are taken. */
bool ch__heaps_choose_id(struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
/* Sets the first generation of the next heap with the id. No more handles of this heap are made. */
void ch__heaps_leave_id(const struct ch_heap *) CH_REQUIRES(ch__heaps_lock);

/* Returns the heap with the address in its pool, or NULL. Signal-safe. The heap stays while its
 * code lives or places are read (ch__place_read_begin). O(heaps). */
struct ch_heap *ch__heap_at(uintptr_t address);

/* Remembers the pool of a heap that is being destroyed. The last 16 pools are remembered. */
void ch__heaps_pool_goes(const struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
/* Whether a remembered pool had the address, and no heap has it. Signal-safe. */
bool ch__heaps_had(uintptr_t address);

static inline struct ch_heap *ch__handle_heap(uint64_t bits)
{
	return atomic_load_explicit(&ch__heaps[ch__handle_heap_id(bits)], memory_order_acquire);
}
