/* SPDX-License-Identifier: MIT
 * assumption.h: facts that blocks rely on, and the blocks that do (assumption.c). */
#ifndef CH_INVALIDATE_ASSUMPTION_H
#define CH_INVALIDATE_ASSUMPTION_H

#include "codeheap/base/heap.h"

struct ch__assumption {
	_Atomic(uint32_t) generation;
	uint32_t next_free;
	struct ch__dependent *dependents; /* [heap] */
	uint32_t count, capacity;
};
struct ch__dependent {
	uint32_t block, item;
};

static inline struct ch__assumption *ch__assumption_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->assumptions, index, sizeof(struct ch__assumption));
}

/* A dead block leaves all lists. */
void ch__assumption_leave(struct ch_heap *, uint32_t block) CH_REQUIRES(ch__role_heap);

#endif
