/* SPDX-License-Identifier: MIT
 * find.c: finds the block of an address without a lock, from a signal handler, while other threads
 * allocate and collect (P6). Signal-safe: calls only signal-safe files of this library. */
#include "codeheap/places/places.h"

bool ch__find_whole(const struct ch_heap *heap, uintptr_t pc, struct ch__found *found)
{
	return ch__find_part(heap, pc, found) && ch__found_is_there(found);
}

uint32_t ch__find(const struct ch_heap *heap, uintptr_t pc, uint32_t *generation)
{
	struct ch__found found;
	if (!ch__find_whole(heap, pc, &found))
		return 0;
	if (generation)
		*generation = found.generation;
	return found.index;
}
