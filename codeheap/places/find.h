/* SPDX-License-Identifier: MIT
 * find.h: the one look-up of an address, for callers that read more of the block (code_at.c) and
 * for ch__find. Signal-safe.
 *
 * Reads as I4 says, by loads that acquire. No retry: a block on the caller's own stack cannot
 * change. Code is read through the RW view, which is never without access. */
#pragma once

#include "codeheap/graph/block_parts.h"

/* The block at an address, and the part of the block that holds the address. */
struct ch__found {
	const struct ch__block *block;
	uint32_t index, generation;
	uint32_t at;   /* of the address, from the part's first byte */
	uint32_t head; /* bytes of the part's head */
	bool is_cold;
	enum ch_block_state state; /* LIVE or NOTENTRANT */
};

/* Reads the block at pc after a first look at the generation. What was read, here and by the caller
 * since, counts if ch__found_is_there then. Returns false: no block, or OPEN. */
static inline __attribute__((always_inline)) bool
ch__find_part(const struct ch_heap *heap, uintptr_t pc, struct ch__found *found)
{
	const struct ch__pool *pool = heap->pool;
	if (!ch__pool_has(pool, pc))
		return false;
	uint32_t offset = ch__offset(heap, pc);
	uint32_t start = ch__page_find_start(pool, offset);
	if (start == UINT32_MAX)
		return false;
	found->index = ch__head_index(heap, start);
	/* A start bit that was cleared meanwhile may leave any bytes here. */
	if (!ch__table_has(&heap->blocks, found->index))
		return false;
	const struct ch__block *block = found->block = ch__block_at(heap, found->index);
	/* Pairs with the release store of the generation in publish and withdrawal. */
	found->generation = atomic_load_explicit(&block->generation, memory_order_acquire);
	if (!(found->generation & 1))
		return false;
	/* The record may be OPEN again by now, and the place of an open block still moves. */
	found->state = ch__block_state(block);
	if (found->state == CH_BLOCK_OPEN)
		return false;
	/* Few blocks lie apart: one test of the flag where a block does not. */
	bool is_apart = CH_UNLIKELY(block->flags & CH__FLAG_APART);
	uint32_t hot_bytes = is_apart ? ch__hot_bytes(block)
				      : block->hot_granules * (uint32_t)CH__GRANULE_BYTES;
	found->at = offset - atomic_load_explicit(&block->hot_offset, memory_order_acquire);
	found->head = is_apart ? ch__head_bytes(ch__block_use(heap, block)) : CH__HEAD_BYTES;
	found->is_cold = false;
	if (CH_LIKELY(found->at < hot_bytes))
		return true;
	found->at = offset - ch__cold_offset(heap, block);
	found->head = CH__HEAD_BYTES;
	found->is_cold = true;
	return found->at < ch__cold_bytes(block);
}

/* The second look at the generation. The loads before acquire, so that this one comes last. */
static inline bool ch__found_is_there(const struct ch__found *found)
{
	return CH_LOAD_RELAXED(&found->block->generation) == found->generation;
}

/* Index of the block whose code holds pc, head included; 0 = none, or OPEN. Sets *generation to the
 * block's; pass NULL in the stopped world or under the heap lock. Signal-safe. */
uint32_t ch__find(const struct ch_heap *, uintptr_t pc, uint32_t *generation);
