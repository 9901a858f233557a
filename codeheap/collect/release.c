/* SPDX-License-Identifier: MIT
 * release.c: ch_owner_release lets an owner go (owner.c); blocks that nobody runs end at once
 * (death.c). ch_code_free does the same for code that is its own root. Lock: heap. No lock for
 * CH_RELEASE_COLLECT by an attached thread. */
#include "codeheap/collect/collect.h"

/* Kills the owner's committed blocks. Returns true when a block is left, OPEN or in its commit. A
 * block that dies, also data that a killed block takes along, moves owner->release_at on. After the
 * last block's death the record may be another owner's, with another generation. */
static bool kill_committed(struct ch_heap *heap, struct ch__owner *owner, uint32_t generation)
	CH_HAS_HEAP
{
	uint32_t batch[CH__KILLED_AT_ONCE], count = 0;
	bool has_others = false;
	owner->release_at = atomic_load_explicit(&owner->first_block, memory_order_acquire);
	for (uint32_t at; (at = owner->release_at) != 0;) {
		struct ch__block *block = ch__block_at(heap, at);
		owner->release_at = block->owner_next;
		/* The commit of an OPEN block will return CH_E_STALE, or cycles free the block. */
		if (ch__block_is_committed(heap, block)) {
			batch[count++] = at;
		} else {
			has_others = true;
			block->flags &= (uint8_t)~CH__FLAG_IMMORTAL;
		}
		if (count < CH__KILLED_AT_ONCE)
			continue;
		ch__blocks_kill(heap, batch, count, CH__DEATH_NOT_RUNNING);
		count = 0;
		ch__heap_pass(heap);
		if (CH_LOAD_RELAXED(&owner->generation) != generation)
			return false;
	}
	ch__blocks_kill(heap, batch, count, CH__DEATH_NOT_RUNNING);
	return has_others;
}

/* Frees all blocks of an owner at once, when nobody runs them. Under heap. */
static void free_blocks(struct ch_heap *heap, uint32_t index) CH_HAS_HEAP
{
	struct ch__owner *owner = ch__owner_at(heap, index);
	uint32_t generation = CH_LOAD_RELAXED(&owner->generation);
	/* A commit looks at the owner and goes LIVE in a single region. After a freeze, commits
	 * that saw the owner before the release are through, and later commits see the release. If
	 * a thread stays in a region, cycles free its block. */
	if (kill_committed(heap, owner, generation) &&
	    CH_LOAD_RELAXED(&owner->generation) == generation &&
	    ch__await_regions(heap, ch__stop_limit(heap, ch__os_now_ns())))
		(void)kill_committed(heap, owner, generation);
	if (CH_LOAD_RELAXED(&owner->generation) != generation)
		return;
	struct ch__thread *self = ch__region_enter_for(heap);
	ch__owner_lock(owner);
	/* The owner is dead from here on for every driver, unless a block may call by its cell. */
	if (!owner->has_edges)
		CH_STORE_RELAXED(&owner->mark, CH_LOAD_RELAXED(&heap->completed) - 1);
	ch__owner_unlock(owner);
	ch__region_leave(self);
	if (atomic_load_explicit(&owner->first_block, memory_order_acquire))
		ch__trigger_released(heap, 1);
	ch__owner_try_free(heap, index);
}

static enum ch_status check_how(enum ch_release how)
{
	if (how == CH_RELEASE_COLLECT || how == CH_RELEASE_NOT_RUNNING)
		return CH_OK;
	return ch__because(CH_E_ARG, "how is %d: not one of enum ch_release", (int)how);
}

enum ch_status ch_owner_release(struct ch_owner handle, enum ch_release how)
{
	enum ch_status status = check_how(how);
	if (status != CH_OK)
		return status;
	if (how == CH_RELEASE_NOT_RUNNING && ch__is_marking())
		return ch__because_marking();
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	uint32_t blocks;
	if (!heap)
		return ch__because_stale("owner", handle.bits);
	if (how == CH_RELEASE_COLLECT) {
		if (!ch__owner_let_go(heap, handle, &blocks))
			return ch__because_stale("owner", handle.bits);
		/* An estimate: blocks may have come and gone meanwhile. */
		ch__trigger_released(heap, blocks);
		return CH_OK;
	}
	ch__heap_lock_for_many(heap);
	bool is_let_go = ch__owner_let_go(heap, handle, &blocks);
	if (is_let_go)
		free_blocks(heap, ch__handle_index(handle.bits));
	ch__heap_unlock(heap);
	if (!is_let_go)
		return ch__because_stale("owner", handle.bits);
	ch__trigger_tell(heap);
	return CH_OK;
}

enum end { ENDED, NO_CODE, NOT_ALONE, NOT_THERE };

/* Made outside of the region, since a sentence may be printed. */
static enum ch_status because_of(enum end end, uintptr_t at)
{
	if (end == NO_CODE)
		return ch__because(CH_E_ARG, "no code of the heap begins at %lx", at);
	if (end == NOT_ALONE)
		return ch__because(CH_E_STATE, "the code at %lx is immortal, or an owner's "
					       "without CH_OPEN_KEPT", at);
	return ch__because(CH_E_STALE, "no committed code is at %lx: freed already, or OPEN: "
				       "ch_block_abort ends that", at);
}

/* The code at `at` is no own root any more: the block's mark becomes the epoch. In the region no
 * cycle moves on between load and store: an old epoch would be stored otherwise. */
static enum end end_block(struct ch_heap *heap, struct ch__block *block, uintptr_t at)
	CH_REQUIRES(ch__role_region, ch__role_owner)
{
	enum ch__span_use use = ch__block_use(heap, block);
	bool is_entry = use < CH__SPAN_RODATA && at == ch__block_entry(heap, block);
	/* For the death that follows. */
	__builtin_prefetch(block->side_list);
	if (at != ch__exec(heap, block->hot_offset) + ch__head_bytes(use) && !is_entry)
		return NO_CODE;
	if ((block->owner && !ch__block_leads(block)) || (block->flags & CH__FLAG_IMMORTAL))
		return NOT_ALONE;
	if (!ch__block_is_own_root(heap, block))
		return NOT_THERE;
	uint32_t epoch = CH_LOAD_RELAXED(&heap->epoch);
	CH_STORE_RELAXED(&block->mark, epoch);
	return ENDED;
}

/* Two threads may free the code, and the record be used again meanwhile. A block ends under the
 * owner's busy, so under it the record stays that of the generation found. */
static enum end end_root(struct ch_heap *heap, struct ch__thread *self, uintptr_t at,
			 uint32_t *index)
{
	uint32_t generation;
	enum end end = NOT_THERE;
	ch__region_enter_inline(self);
	*index = ch__find(heap, at, &generation);
	if (*index) {
		struct ch__block *block = ch__block_at(heap, *index);
		struct ch__owner *owner = ch__owner_at(heap, ch__block_owner(block));
		ch__owner_lock(owner);
		if (CH_LOAD_RELAXED(&block->generation) == generation)
			end = end_block(heap, block, at);
		ch__owner_unlock(owner);
	} else if (!ch__pool_has(heap->pool, at)) {
		end = NO_CODE;
	}
	ch__region_leave(self);
	return end;
}

static enum end free_locked(struct ch_heap *heap, struct ch__thread *self, uintptr_t at,
			    enum ch_release how) CH_HAS_HEAP
{
	uint32_t index;
	enum end end = end_root(heap, self ? self : &heap->guest, at, &index);
	if (end != ENDED || how == CH_RELEASE_COLLECT)
		return end;
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t generation = CH_LOAD_RELAXED(&block->generation);
	if (ch__block_is_committed(heap, block))
		ch__blocks_kill(heap, &index, 1, CH__DEATH_FREED_NOT_RUNNING);
	/* Other code has an edge to the block, or the block's commit is not through. */
	if (CH_LOAD_RELAXED(&block->generation) == generation)
		ch__trigger_released(heap, 1);
	return ENDED;
}

enum ch_status ch_code_free(struct ch_heap *heap, const void *address, enum ch_release how)
{
	uintptr_t at = (uintptr_t)address;
	uint32_t index;
	enum ch_status status = check_how(how);
	if (status != CH_OK)
		return status;
	if (heap ? ch__heap_refuses(heap) : ch__is_marking())
		return ch__because_refused(heap);
	if (!heap && !(heap = ch__find_heap(at)))
		return because_of(NO_CODE, at);
	enum end end;
	struct ch__thread *self = ch__thread_self(heap);
	/* The head of the code, which ch__find reads: on its way while the lock is taken. */
	__builtin_prefetch(ch__pool_read(heap->pool, at - CH__HEAD_BYTES));
	if (how == CH_RELEASE_COLLECT && self) {
		end = end_root(heap, self, at, &index);
	} else {
		ch__heap_lock(heap);
		end = free_locked(heap, self, at, how);
		ch__heap_unlock(heap);
	}
	if (end != ENDED)
		return because_of(end, at);
	if (how == CH_RELEASE_COLLECT)
		ch__trigger_released(heap, 1);
	else
		ch__trigger_tell(heap);
	return CH_OK;
}
