/* SPDX-License-Identifier: MIT
 * overrun.c: what a commit says when an emitter wrote outside of its block. An abort gives the
 * bytes behind a block their traps back (P4). */
#include "codeheap/base/region.h"
#include "codeheap/base/why.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/names.h"
#include "codeheap/life/life.h"

enum ch_status ch__overrun_told(const struct ch_heap *heap, uint32_t index, const char *part,
				bool is_in_front)
{
	const struct ch__block *block = ch__block_at(heap, index);
	const struct ch__side_list *list = block->side_list;
	uint32_t owner = ch__owner_at(heap, block->owner)->name;
	const char *name = ch__name_text(heap, list && list->name ? list->name : owner);
	/* A block may have no name. */
	if (is_in_front)
		return ch__because(CH_E_BROKEN,
				   "what lies in front of the %s bytes of block #%u `%s` was "
				   "written over: by its emitter, or that of the block before",
				   part, index, name);
	return ch__because(CH_E_BROKEN,
			   "the emitter of block #%u `%s` wrote behind its %s bytes: what lies "
			   "there is damaged", index, name, part);
}

/* The first bytes are traps whoever has them: the next block in front of them is not to blame. An
 * unused granule that another thread reserves, or gives back, holds traps by then. */
static void fill_behind(struct ch_heap *heap, struct ch__thread *self, uint32_t at)
{
	uint32_t in_page = ((uint32_t)1 << heap->pool->page_log2) - 1;
	struct ch__page *page = &heap->pool->pages[at >> heap->pool->page_log2];
	if (ch__is_trap_behind(heap, at))
		return;
	ch__region_enter(self);
	ch__page_lock(page);
	ch__arch_fill_traps(ch__pool_lend(heap->pool, ch__exec(heap, at)), sizeof(uint32_t));
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
	fill_behind(heap, self, block->hot_offset + ch__hot_bytes(block));
	if (block->cold_granules)
		fill_behind(heap, self, ch__cold_offset(heap, block) + ch__cold_bytes(block));
}
