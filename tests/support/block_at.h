/* SPDX-License-Identifier: MIT
 * block_at.h: the block that an address lies in, for tests that ask no more. */
#pragma once

#include "codeheap/codeheap.h"

static inline bool block_at(const struct ch_heap *heap, const void *pc, struct ch_block *block)
{
	struct ch_spot spot;
	spot.size = sizeof spot;
	bool is_found = ch_code_at(heap, pc, false, &spot);
	*block = spot.block;
	return is_found;
}
