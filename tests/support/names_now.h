/* SPDX-License-Identifier: MIT
 * names_now.h: the names that a heap has. */
#pragma once

#include "codeheap/graph/names.h"

static inline uint32_t names_now(const struct ch_heap *heap)
{
	uint32_t count = 0;
	for (uint32_t i = 1; i < heap->names.used; i++)
		count += ch__name_at(heap, i)->text != NULL;
	return count;
}
