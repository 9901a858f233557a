/* SPDX-License-Identifier: MIT
 * sweep.c: finds blocks that no cycle reached, and ends them (death.c); then owners that
 * died. Runs with the world running, a single sweeper at a time, in steps of at most 64 dead blocks
 * or 2,048 owners. Lock: sweep before heap; pages and sinks inside. */
#include "codeheap/collect/collect.h"

/* The death of a block touches lines all over memory: asked for some blocks ahead. */
static void prefetch_death(const struct ch_heap *heap, const struct ch__block *block)
{
	enum { LINES_MOST = 6 };
	const struct ch__pool *pool = heap->pool;
	const uint8_t *code = ch__pool_read(pool, ch__exec(heap, block->hot_offset));
	uint32_t bytes = ch__hot_bytes(block), word = block->hot_offset / CH__GRANULE_BYTES / 64;
	const uint8_t *end =
		code + (bytes < LINES_MOST * CH__LINE_BYTES ? bytes : LINES_MOST * CH__LINE_BYTES);
	__builtin_prefetch(ch__owner_at(heap, block->owner), 1);
	__builtin_prefetch((const void *)(uintptr_t)&pool->starts[word], 1);
	__builtin_prefetch((const void *)(uintptr_t)&pool->used[word], 1);
	for (; code < end; code += CH__LINE_BYTES)
		__builtin_prefetch(code, 1);
}

/* A step ends these blocks, which no cycle reached, and owners: `owner` to below `owners_end`. */
struct found {
	uint32_t blocks[CH__KILLED_AT_ONCE], count;
	uint32_t owner, owners_end;
};

/* Finds blocks that no cycle reached. Returns true while there are more to look at. The blocks stay
 * dead (I5), and the heap lock keeps them. In a region, as take_owners: a cycle of Boehm's takes no
 * lock, may end after the region, and leaves a sweep to come. */
static bool take_dead(struct ch_heap *heap, struct found *found) CH_HAS_HEAP_AND_REGION
{
	enum { LOOKED_AT_MOST = 8192 };
	uint32_t used = heap->blocks.used, at = heap->sweep_cursor, n = 0;
	uint32_t end = at + LOOKED_AT_MOST < used ? at + LOOKED_AT_MOST : used;
	uint32_t most = heap->config.step_blocks;
	const struct ch__block *block = ch__block_at(heap, at);
	for (; at < end && n < most; at++, block++) {
		/* Generation, then mark: the mark was stored before the generation (R1). */
		if (!(atomic_load_explicit(&block->generation, memory_order_acquire) & 1) ||
		    ch__block_state(block) == CH_BLOCK_OPEN || (block->flags & CH__FLAG_IMMORTAL) ||
		    ch__block_is_alive(heap, block))
			continue;
		found->blocks[n++] = at;
		prefetch_death(heap, block);
	}
	found->count = n;
	heap->sweep_cursor = at;
	return at < used;
}

/* Takes the next owners, once all dead blocks are found. Returns true while there are more. */
static bool take_owners(struct ch_heap *heap, struct found *found) CH_HAS_HEAP_AND_REGION
{
	enum { OWNERS_AT_ONCE = 2048 };
	uint32_t used = heap->owners.used, at = heap->sweep_owner;
	uint32_t end = at + OWNERS_AT_ONCE < used ? at + OWNERS_AT_ONCE : used;
	found->owner = at;
	found->owners_end = heap->sweep_owner = end;
	if (end < used)
		return true;
	bool again = CH_LOAD_RELAXED(&heap->sweep_pending) == CH__SWEEP_AGAIN;
	CH_STORE_RELAXED(&heap->sweep_pending, again ? CH__SWEEP_DUE : CH__SWEEP_NONE);
	heap->sweep_cursor = heap->sweep_owner = 1;
	return false;
}

static bool step(struct ch_heap *heap)
{
	struct found found = {.count = 0};
	uint64_t start = ch__os_now_ns();
	ch__heap_lock(heap);
	struct ch__thread *self = ch__region_enter_for(heap);
	bool more = take_dead(heap, &found) || take_owners(heap, &found);
	ch__region_leave(self);
	ch__blocks_kill(heap, found.blocks, found.count, CH__DEATH_UNREACHED);
	for (uint32_t i = found.owner; i < found.owners_end; i++)
		ch__owner_try_free(heap, i);
	if (!more) {
		/* A vm waits for word of space, and only this cycle's stop synchronizes. */
		bool is_need = !heap->has_core_sync && atomic_load(&heap->anyone_wants_space);
		/* Blocks of the cycle before have seen this cycle's core sync. */
		ch__quarantine_advance(heap, is_need);
		ch__trigger_swept(heap);
	}
	CH__COUNT(heap->stats.sweep_ns_total, ch__os_now_ns() - start);
	ch__heap_unlock(heap);
	return more;
}

bool ch__sweep_step(struct ch_heap *heap)
{
	ch__sweep_lock(heap);
	bool more = atomic_load(&heap->sweep_pending) && step(heap);
	ch__sweep_unlock(heap);
	if (more)
		return true;
	ch__sinks_flush(heap->sinks, CH__FLUSH_COLLECTION);
	ch__pool_trim(heap->pool);
	return false;
}

/* Whether a stop waits for the calling thread: of this heap, or of another heap of the thread. */
static bool is_awaited(void)
{
	const struct ch__thread *t = ch__thread_list;
	while (t && !CH_LOAD_RELAXED(&t->heap->stopping))
		t = t->next_of_thread;
	return t != NULL;
}

void ch__sweep_steps(struct ch_heap *heap, unsigned steps)
{
	while (steps-- && atomic_load(&heap->sweep_pending)) {
		if (!ch__sweep_step(heap) || !is_awaited())
			continue;
		ch__thread_park_here();
		ch_thread_unpark();
	}
}
