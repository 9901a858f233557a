/* SPDX-License-Identifier: MIT
 * block.c: the records of blocks: free lists, pages that go back, information. For opening see
 * open.c, for publication commit.c. Lock: records for the free list. */
#include "codeheap/base/sized.h"
#include "codeheap/events/events.h"
#include "codeheap/graph/block_parts.h"

bool ch__block_has(const struct ch_heap *heap, const struct ch__block *block, uintptr_t exec,
		   size_t bytes)
{
	uintptr_t in_hot = exec - ch__exec(heap, block->hot_offset);
	uintptr_t in_cold = exec - ch__exec(heap, ch__cold_offset(heap, block));
	size_t hot_bytes = ch__hot_bytes(block), cold_bytes = ch__cold_bytes(block);
	return (in_hot >= ch__head_bytes(ch__block_use(heap, block)) && in_hot <= hot_bytes &&
		bytes <= hot_bytes - in_hot) ||
	       (in_cold >= CH__HEAD_BYTES && in_cold <= cold_bytes &&
		bytes <= cold_bytes - in_cold);
}

/* Each thread has a stack of free records, before the heap's FIFO. */
static bool CH_COLD refill(struct ch_heap *heap, struct ch__thread *thread)
{
	enum { TAKEN_AT_ONCE = 32, MADE_AT_ONCE = 16 }; /* 16 records are 14 lines */
	struct ch__table *table = &heap->blocks;
	uint32_t count = 0;
	bool goes_on;
	ch__records_lock(heap);
	/* Free records come first. Then come fresh records that have memory, up to one that begins
	 * a line, so that two threads share no line of fresh records. A worn record comes last. */
	do {
		uint32_t used = table->used, index = ch__table_take(table);
		if (index)
			thread->free_records[count++] = index;
		bool may_make = table->used > used && table->used < table->backed;
		goes_on = table->free_head ? count < TAKEN_AT_ONCE
					   : may_make && table->used % MADE_AT_ONCE;
	} while (goes_on);
	/* Under the lock: a child of fork gives back the records of the threads that are lost. */
	thread->free_count = count;
	ch__records_unlock(heap);
	return count != 0;
}

uint32_t ch__record_take(struct ch_heap *heap, struct ch__thread *thread)
{
	if (CH_UNLIKELY(!thread->free_count) && !refill(heap, thread))
		return 0;
	return thread->free_records[--thread->free_count];
}

void ch__records_give_back(struct ch_heap *heap, const uint32_t *indices, uint32_t count)
{
	ch__records_lock(heap);
	for (uint32_t i = 0; i < count; i++) {
		const struct ch__block *block = ch__block_at(heap, indices[i]);
		ch__table_give(&heap->blocks, indices[i],
			       ch__is_worn(CH_LOAD_RELAXED(&block->generation)));
	}
	ch__records_unlock(heap);
}

void ch__records_flush(struct ch_heap *heap, struct ch__thread *thread)
{
	ch__records_give_back(heap, thread->free_records, thread->free_count);
	thread->free_count = 0;
}

/* A page that became FREE may be another thread's already: open.c takes pages and tells the
 * unwinder under the same lock. */
static void forget_page(struct ch_heap *heap, uint32_t page)
{
	ch__records_lock(heap);
	if (atomic_load(&heap->pool->pages[page].state) == CH__PAGE_FREE)
		ch__sinks_page_dead(heap->sinks, page, 1);
	ch__records_unlock(heap);
}

void ch__block_pages_freed(struct ch_heap *heap, uint32_t hot_offset, bool is_span)
{
	uint32_t page = hot_offset >> heap->pool->page_log2;
	if (is_span) {
		uint32_t pages = heap->pool->pages[page].span_pages;
		ch__sinks_page_dead(heap->sinks, page, pages);
		ch__pool_release_span(heap->pool, page);
	} else if (ch__pool_note_freed(heap->pool, page)) {
		forget_page(heap, page);
	}
}

void ch__page_retire(struct ch_heap *heap, uint32_t page)
{
	ch__pool_retire_page(heap->pool, page);
	uint8_t state = atomic_load(&heap->pool->pages[page].state);
	if (state == CH__PAGE_FREE)
		forget_page(heap, page);
	/* An open in need may have looked at pages with room before. It looks at full ones last. */
	if (state != CH__PAGE_FULL)
		ch__space_returned(heap);
}

void ch__thread_use_page(struct ch__thread *self, uint32_t frame, uint32_t page)
{
	uint32_t old = self->open_page[frame];
	self->open_page[frame] = page;
	if (old)
		ch__page_retire(self->heap, old - 1);
}

static CH_COLD void fill_info(struct ch_heap *heap, uint32_t index, struct ch_info *info)
{
	const struct ch__block *block = ch__block_at(heap, index);
	const struct ch__owner *owner = ch__owner_at(heap, block->owner);
	enum ch_block_state state = ch__block_state(block);
	enum ch__span_use use = ch__block_use(heap, block);
	*info = (struct ch_info){
		.size = sizeof *info,
		.block = ch__block_handle(heap, index),
		.owner = ch__owner_handle(heap, block->owner),
		.vm = block->owner ? owner->vm : NULL,
		.user = block->user,
		.state = state,
		.name = ch__block_name(heap, block),
		.exec = (const uint8_t *)ch__exec(heap, block->hot_offset) + ch__head_bytes(use),
		.hot_bytes = ch__hot_bytes(block) - ch__head_bytes(use),
	};
	if (use >= CH__SPAN_RODATA)
		info->kind = ch__use_is_constant(use) ? CH_KIND_RODATA : CH_KIND_DATA;
	if (block->cold_granules) {
		info->cold_exec = (const uint8_t *)ch__exec(heap, ch__cold_offset(heap, block)) +
				  CH__HEAD_BYTES;
		info->cold_bytes = ch__cold_bytes(block) - CH__HEAD_BYTES;
	}
	if (state == CH_BLOCK_LIVE && use < CH__SPAN_RODATA)
		info->entry = (const uint8_t *)ch__block_entry(heap, block);
	for (uint32_t at = ch__block_run(block); at; at = ch__branch_after(heap, at))
		info->branches_now += ch__branch_at(heap, at)->site != 0;
}

enum ch_status ch_block_info(struct ch_block handle, struct ch_info *out)
{
	enum ch_status status = CH__SIZED_CHECK(ch_info, out, block, kind);
	if (status != CH_OK)
		return status;
	/* The lock keeps the block and the side list from being freed meanwhile. */
	struct ch_heap *heap = ch__handle_lock("block", handle.bits, &status);
	if (!heap)
		return status;
	/* If all fits, *out is filled directly: no address is left on the stack of this call. The
	 * region ends when *out has the addresses: a scan of the caller's stack sees them. */
	struct ch_info whole;
	bool is_whole = out->size == sizeof whole;
	struct ch__thread *self = ch__region_enter_for(heap);
	uint32_t index = ch__block_resolve_alive(heap, handle);
	if (index)
		fill_info(heap, index, is_whole ? out : &whole);
	if (index && !is_whole)
		ch__sized_give(out, &whole);
	ch__region_leave(self);
	ch__heap_unlock(heap);
	return index ? CH_OK : ch__because_stale("block", handle.bits);
}

enum ch_status ch_block_each(struct ch_heap *heap, const char *name,
			     bool (*visit)(void *arg, const struct ch_info *info), void *arg)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	ch__heap_lock(heap);
	ch__heap_lend();
	uint32_t used = heap->blocks.used;
	for (uint32_t i = 1; i < used; i++) {
		struct ch_info info;
		struct ch__thread *self = ch__region_enter_for(heap);
		bool is_asked_for = ch__block_in_use(heap, i);
		if (is_asked_for) {
			fill_info(heap, i, &info);
			is_asked_for = !name || !strcmp(info.name, name);
		}
		ch__region_leave(self);
		if (is_asked_for && !visit(arg, &info))
			break;
	}
	ch__heap_take_back();
	ch__heap_unlock(heap);
	return CH_OK;
}
