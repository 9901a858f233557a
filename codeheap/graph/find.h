/* SPDX-License-Identifier: MIT
 * find.h: from an address to its block (find.c). Signal-safe. */
#ifndef CH_CODEHEAP_GRAPH_FIND_H
#define CH_CODEHEAP_GRAPH_FIND_H

#include "codeheap/base/heap.h"

/* The block whose code pc lies in, index word included; 0 = none. *generation is valid with it. */
uint32_t ch__find(const struct ch_heap *, uintptr_t pc, uint32_t *generation);
/* The same in the stopped world or under the heap lock: OPEN blocks are not found. */
static inline uint32_t ch__find_frozen(const struct ch_heap *heap, uintptr_t pc)
{
	uint32_t generation;
	return ch__find(heap, pc, &generation);
}

#endif
