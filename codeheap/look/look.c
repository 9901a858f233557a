/* SPDX-License-Identifier: MIT
 * look.c: what an observer may see of a heap. Each answer is of the moment of the call, and changes
 * nothing in the heap. */
#include "codeheap/guest_look.h"
#include "codeheap/places/places.h"

#include <stdio.h>

_Static_assert((int)CH__LOOK_HEAPS_MAX == (int)CH__HEAPS_MAX, "observers number heaps alike");

CH__LOCK_FUNCTIONS(ch__look_lock_heaps, ch__look_unlock_heaps, void, ch__lock_parking,
		   ch__heaps_lock, CH__RANK_HEAPS)
CH__LOCK_FUNCTIONS(ch__look_lock_threads, ch__look_unlock_threads, struct ch_heap *heap,
		   ch__lock_parking, heap->registry, CH__RANK_REGISTRY)

struct ch_heap *ch__look_heap_of(uint32_t id)
{
	return atomic_load(&ch__heaps[id]);
}

void ch__look_lock_blocks(struct ch_heap *heap)
{
	ch__heap_lock(heap);
}

void ch__look_unlock_blocks(struct ch_heap *heap)
{
	ch__heap_unlock(heap);
}

enum ch_status ch__look_refuses(const struct ch_heap *heap)
{
	return ch__heap_refuses(heap) ? ch__because_refused(heap) : CH_OK;
}

void ch__look_heap(const struct ch_heap *heap, struct ch__look_heap *out)
{
	const struct ch__pool *pool = heap->pool;
	*out = (struct ch__look_heap){
		.id = heap->id,
		.pool_exec = pool->exec_base,
		.runtime_exec = pool->runtime_exec,
		.pool_bytes = pool->pool_bytes,
		.runtime_bytes = pool->runtime_bytes,
		.page_bytes = (size_t)1 << pool->page_log2,
		.pages = pool->page_count,
	};
}

bool ch__look_write_names(void)
{
	return ch__sinks_catch_up();
}

void ch__look_sinks(unsigned sinks, char *text, size_t bytes)
{
	ch__sinks_print(sinks, text, bytes);
}

void ch__look_threads(struct ch_heap *heap, bool (*visit)(void *arg, struct ch__thread *),
		      void *arg)
{
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		if (t->is_attached && !visit(arg, t))
			return;
}

int ch__look_thread_id(const struct ch__thread *thread)
{
	return thread->thread_id;
}

uint64_t ch__look_key(uint64_t handle)
{
	return ch__look_word(ch__handle_heap_id(handle), ch__handle_index(handle),
			     ch__handle_generation(handle));
}

size_t ch__look_name(struct ch_heap *heap, uint64_t key, bool is_dying, char *text, size_t bytes,
		     bool *is_slot)
{
	uint32_t index = (uint32_t)key & CH__INDEX_MAX, generation = ch__look_generation(key);
	if (index >= heap->blocks.used)
		return 0;
	/* Even: the block was withdrawn (I3), and keeps the record until listeners have heard. */
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t is = atomic_load_explicit(&block->generation, memory_order_acquire);
	if (is != generation + is_dying)
		return 0;
	*is_slot = ch__place_is_slot(heap, block->hot_offset);
	size_t n = ch__tell_name(heap, ch__block_handle(heap, index).bits, text, bytes);
	return n ? n : (size_t)snprintf(text, bytes, "[code without a name]");
}

/* Owners may be many; functions that interpret are few, so a linear search does. */
size_t ch__look_fallbacks(struct ch_heap *heap, uintptr_t *fallbacks, size_t max)
{
	size_t count = 0;
	for (uint32_t i = 1; i < heap->owners.used && count < max; i++) {
		const struct ch__owner *owner = ch__owner_at(heap, i);
		uintptr_t fallback = (uintptr_t)owner->fallback;
		if (!(atomic_load(&owner->generation) & 1) || owner->fallback == heap->no_fallback)
			continue;
		size_t at = 0;
		while (at < count && fallbacks[at] != fallback)
			at++;
		if (at == count)
			fallbacks[count++] = fallback;
	}
	return count;
}

static enum ch__look_kind kind_of(const struct ch_heap *heap, const struct ch__block *block)
{
	if (ch__block_is_data(heap, block))
		return ch__use_is_constant(ch__block_use(heap, block)) ? CH__LOOK_RODATA
								       : CH__LOOK_DATA;
	uint8_t frame = ch__place_frame(heap, block->hot_offset);
	if (ch__frame_has_slots(frame))
		return CH__LOOK_TRAMPOLINE;
	return frame == CH__FRAME_OWN ? CH__LOOK_OWN_FRAMES : CH__LOOK_CODE;
}

bool ch__look_blocks(struct ch_heap *heap, uint32_t *next, uint32_t records,
		     void (*visit)(void *arg, const struct ch__look_block *), void *arg)
{
	uint32_t used = heap->blocks.used, end = *next + records;
	end = end < used ? end : used;
	for (uint32_t i = *next; i < end; i++) {
		const struct ch__block *block = ch__block_at(heap, i);
		enum ch_block_state state = ch__block_state(block);
		/* In any other state the fields were stored before the state, and change under the
		 * heap lock only. A dead block whose place went back waits for its notice. */
		if (state == CH_BLOCK_OPEN || state == CH_BLOCK_FREE || !ch__hot_bytes(block))
			continue;
		struct ch__look_block shown = {
			.state = state,
			.kind = kind_of(heap, block),
			.hot_offset = block->hot_offset,
			.hot_bytes = ch__hot_bytes(block),
			.cold_bytes = ch__cold_bytes(block),
			.owner_name = ch__name_text(heap, ch__owner_at(heap, block->owner)->name),
		};
		if (shown.cold_bytes)
			shown.cold_offset = ch__cold_offset(heap, block);
		visit(arg, &shown);
	}
	*next = end;
	return end < used;
}

bool ch__look_page(const struct ch_heap *heap, uint32_t page, struct ch__look_page *out)
{
	if (page >= ch__pool_pages_end(heap->pool))
		return false;
	const struct ch__page *record = &heap->pool->pages[page];
	uint8_t state = CH_LOAD_RELAXED(&record->state);
	uint32_t used = CH_LOAD_RELAXED(&record->used_granules);
	*out = (struct ch__look_page){
		.is_used = state != CH__PAGE_FREE,
		.is_span = state == CH__PAGE_SPAN,
		.span_first = page,
		.taken_bytes = used * CH__GRANULE_BYTES,
	};
	if (out->is_span)
		out->span_first = CH_LOAD_RELAXED(&record->span_first);
	return true;
}
