/* SPDX-License-Identifier: MIT
 * commit.h: what the commit (commit.c) and its checks (commit_check.c) share. */
#pragma once

#include "codeheap/graph/block_parts.h"
#include "codeheap/life/life.h"

static inline struct ch__block *ch__code_block(const struct ch_heap *heap,
					       const struct ch_code *code)
{
	return ch__block_at(heap, ch__handle_index(code->block.bits));
}

/* Bytes that a run of pages keeps for a block: its pages up to the last used byte. A block with
 * cold bytes at the end keeps all pages, since every address has a block. */
static inline uint32_t ch__kept_bytes(const struct ch_heap *heap, const struct ch__block *block,
				      uint32_t used_to)
{
	uint32_t in_page = ((uint32_t)1 << heap->pool->page_log2) - 1;
	uint32_t end = block->hot_offset + ch__head_bytes(ch__block_use(heap, block)) + used_to;
	if (block->cold_granules)
		return ch__hot_bytes(block);
	return ((end + in_page) & ~in_page) - block->hot_offset;
}

/* Offset of the entry from the first byte that the block has after the shrink. */
static inline uint32_t ch__entry_from(const struct ch__block *block, const struct ch_code *code)
{
	bool stays_whole = (block->flags & CH__FLAG_APART) != 0;
	return code->entry_offset - (stays_whole ? 0 : code->used_from);
}

enum ch_status ch__because_overrun(const struct ch_heap *, uint32_t index, const char *part,
				   bool is_in_front) CH_COLD;
/* Whether the emitter kept to the room of its block. Under Valgrind, Valgrind tells. */
static inline enum ch_status ch__look_around_part(const struct ch_heap *heap, uint32_t index,
						  uint32_t offset, uint32_t bytes, const char *part)
{
	if (CH_UNLIKELY(heap->pool->is_translated))
		return CH_OK;
	bool is_in_front = ch__head_read(heap, offset) != ch__head_of(index);
	if (CH_UNLIKELY(is_in_front || !ch__is_trap_behind(heap, offset + bytes)))
		return ch__because_overrun(heap, index, part, is_in_front);
	return CH_OK;
}

/* What some blocks need besides the usual steps. */
enum { CH__ASSUMES = 1, CH__MAY_BE_YOUNG = 2, CH__IS_APART = 4, CH__IN_SLOTS = 8 };

/* Returns CH_OK when all blocks may be committed, and what they need besides. */
enum ch_status ch__commit_check(struct ch_heap *, struct ch__thread *, const struct ch_code *,
				size_t count, unsigned *besides);
