/* SPDX-License-Identifier: MIT
 * look_code.c: what an observer's signal handler may see: the code at an address, and the thread
 * that it runs in. Signal-safe: no lock, no allocation. */
#include "codeheap/places/places.h"
#include "codeheap/guest_look.h"

/* Returns 0 also when the block goes meanwhile (I4). */
uint64_t ch__look_code(const struct ch_heap *heap, uintptr_t pc, uint64_t known)
{
	uint32_t generation = ch__look_generation(known), index = (uint32_t)known & CH__INDEX_MAX;
	const struct ch__block *block = ch__block_at(heap, index);
	/* A block of this generation was published, and stays where it is (I3). */
	if (known && CH_LOAD_RELAXED(&block->generation) == generation)
		return known;
	struct ch__found found;
	if (!ch__find_whole(heap, pc, &found))
		return 0;
	return ch__look_word(heap->id, found.index, found.generation) |
	       (found.is_cold ? CH__LOOK_COLD : 0);
}

const struct ch_heap *ch__look_elsewhere(uintptr_t pc, bool *is_pool)
{
	for (const struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		const struct ch__pool *pool = t->heap->pool;
		*is_pool = ch__pool_has(pool, pc);
		if (ch__pool_knows(pool, pc))
			return t->heap;
	}
	return NULL;
}

struct ch__thread *ch__look_self(uint32_t heap_id)
{
	struct ch__thread *thread = ch__thread_list;
	while (thread && thread->heap->id != heap_id)
		thread = thread->next_of_thread;
	return thread;
}

_Atomic(void *) *ch__look_thread_word(struct ch__thread *thread)
{
	return &thread->listener_word;
}

void ch__look_anywhere(const struct ch__thread *thread, bool begins)
{
	if (CH_UNLIKELY(thread->heap->pool->is_translated))
		ch__valgrind_reports(!begins);
}

uintptr_t ch__look_stack_high(const struct ch__thread *thread, uintptr_t sp)
{
	uintptr_t low, high;
	return ch__thread_stack(thread, sp, &low, &high) ? high : 0;
}
