/* SPDX-License-Identifier: MIT
 * overrun.c: judges at commit whether an emitter wrote outside of its block; an abort gives unused
 * bytes their traps back (P4). The head before a part is the block's own. The four bytes behind a
 * part are an index word, or traps: of free bytes, of a dead block, or of a block opened a moment
 * ago. An index that is there since the open was not written by the emitter.
 *
 * Other threads open, commit and free blocks there meanwhile. A suspicious word is read again under
 * the heap lock, so that no block dies, and frozen, so that no thread opens or commits. */
#include "codeheap/base/region.h"
#include "codeheap/base/why.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/names.h"
#include "codeheap/life/life.h"

static bool is_whole(const struct ch_heap *heap, uint32_t offset)
{
	uint32_t word = ch__index_word_read(heap, offset);
	if (word == (uint32_t)ch__arch_traps)
		return true;
	if (!ch__table_has(&heap->blocks, word))
		return false;
	const struct ch__block *block = ch__block_at(heap, word);
	return block->hot_offset == offset || ch__cold_offset(heap, block) == offset;
}

static const char *name_of(const struct ch_heap *heap, const struct ch__block *block)
{
	const struct ch__side_list *list = block->side_list;
	uint32_t owner = ch__owner_at(heap, block->owner)->name;
	return ch__name_text(heap, list && list->name ? list->name : owner);
}

/* A block may have no name. */
static uint32_t number_of(const struct ch_heap *heap, const struct ch__block *block)
{
	return (uint32_t)(block - ch__block_at(heap, 0));
}

enum ch_status ch__overrun_in_front(const struct ch_heap *heap, const struct ch__block *block,
				    const char *part)
{
	return ch__because(CH_E_BROKEN,
			   "what lies in front of the %s bytes of block #%u `%s` was written over: "
			   "by its emitter, or that of the block before", part,
			   number_of(heap, block), name_of(heap, block));
}

enum ch_status ch__overrun_judge(struct ch_heap *heap, const struct ch__block *block, uint32_t end,
				 const char *part)
{
	enum ch_status status = CH_OK;
	if (is_whole(heap, end))
		return CH_OK;
	ch__heap_lock(heap);
	/* When a thread stays in a region, the word cannot be judged. */
	if (ch__freeze_until(heap, ch__stop_limit(heap, ch__os_now_ns()))) {
		bool is_damaged = !is_whole(heap, end);
		ch__unfreeze(heap);
		if (is_damaged)
			status = ch__because(CH_E_BROKEN, "the emitter of block #%u `%s` wrote "
							  "behind its %s bytes: what lies there is "
							  "damaged", number_of(heap, block),
					     name_of(heap, block), part);
	}
	ch__heap_unlock(heap);
	return status;
}

/* Fills the unused granules from `at` on, when the first holds no traps. An unused granule that
 * another thread reserves, or gives back, holds traps by then. */
static void fill_unused(struct ch_heap *heap, struct ch__thread *self, uint32_t at)
{
	uint32_t in_page = ((uint32_t)1 << heap->pool->page_log2) - 1;
	struct ch__page *page = &heap->pool->pages[at >> heap->pool->page_log2];
	/* Behind the end of a page there may be no memory. */
	if (!(at & in_page) || ch__index_word_read(heap, at) == (uint32_t)ch__arch_traps)
		return;
	ch__region_enter(self);
	ch__page_lock(page);
	for (; (at & in_page) && !ch__page_uses(heap->pool, at); at += CH__GRANULE_BYTES)
		ch__pool_poison(heap->pool, ch__exec(heap, at), CH__GRANULE_BYTES);
	ch__page_unlock(page);
	ch__region_leave(self);
}

void ch__overrun_mend(struct ch_heap *heap, struct ch__thread *self, const struct ch__block *block)
{
	/* Under Valgrind, the bytes are nobody's to write. */
	if (heap->pool->is_translated)
		return;
	fill_unused(heap, self, block->hot_offset + ch__hot_bytes(block));
	if (block->cold_granules)
		fill_unused(heap, self, ch__cold_offset(heap, block) + ch__cold_bytes(block));
}
