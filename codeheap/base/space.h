/* SPDX-License-Identifier: MIT
 * space.h: counts of what came free, for those who found no room: a count that did not move says
 * that nothing came. */
#ifndef CH_CODEHEAP_BASE_SPACE_H
#define CH_CODEHEAP_BASE_SPACE_H

#include "codeheap/base/heap.h"

/* Grows with whatever could make room. */
static inline uint64_t ch__space_now(struct ch_heap *heap)
{
	return atomic_load(&heap->space_events) + atomic_load(&heap->space_returns);
}

/* Bytes went back without a death. */
static inline void ch__space_returned(struct ch_heap *heap)
{
	/* Seq_cst against the opener's count of itself before it looks for room: one of the two
	 * sees the other. */
	if (CH_UNLIKELY(atomic_load(&heap->anyone_wants_space) ||
			atomic_load(&heap->opens_in_need)))
		atomic_fetch_add(&heap->space_returns, 1);
}

#endif
