/* SPDX-License-Identifier: MIT
 * stats_walk.c: one walk over the blocks of a heap, for the statistics file: bytes by kinds of
 * owners, by kinds of blocks and by pages, and where blocks lie. What changes between two steps is
 * counted as it was or as it is: sums of a heap at work are of no single moment.
 *
 * Lock: heap, step by step. Under it no committed block changes its state, and owners with such
 * blocks keep their names; blocks that are open are passed over. */
#include "codeheap/stats_walk.h"

#include "codeheap/block.h"

enum {
	STEP_RECORDS = 512,
	BETWEEN_STEPS_NS = 50000,
};

bool ch__stats_walk_create(struct ch__stats_walk *walk, struct ch_heap *heap)
{
	const struct ch__pool *pool = heap->pool;
	size_t parts = pool->pool_bytes / ((size_t)4 * CH__GRANULE_BYTES);
	walk->pages_room =
		pool->page_count < CH__STATS_PAGES_MOST ? pool->page_count : CH__STATS_PAGES_MOST;
	walk->parts_room = parts < CH__STATS_PARTS_MOST ? (uint32_t)parts : CH__STATS_PARTS_MOST;
	size_t pages_bytes = walk->pages_room * sizeof *walk->pages;
	size_t parts_bytes = walk->parts_room * sizeof *walk->parts;
	walk->memory_bytes = pages_bytes + parts_bytes + pool->page_count * sizeof *walk->row_of;
	uint8_t *memory = ch__meta_alloc(heap->meta, walk->memory_bytes);
	if (!memory)
		return false;
	walk->pages = (struct ch__stats_page *)(void *)memory;
	walk->parts = (struct ch__stats_part *)(void *)(memory + pages_bytes);
	walk->row_of = (uint32_t *)(void *)(memory + pages_bytes + parts_bytes);
	return true;
}

/* --- pages --- */

static struct ch__stats_page *row_at(struct ch__stats_walk *walk, uint32_t page)
{
	return walk->row_of[page] ? &walk->pages[walk->row_of[page] - 1] : NULL;
}

/* A span has one row, of its first page. */
static void list_page(struct ch__stats_walk *walk, const struct ch__pool *pool, uint32_t page)
{
	const struct ch__page *record = &pool->pages[page];
	uint32_t page_bytes = 1u << pool->page_log2, first = page;
	uint8_t state = atomic_load_explicit(&record->state, memory_order_relaxed);
	walk->row_of[page] = 0;
	if (state == CH__PAGE_FREE)
		return;
	if (state == CH__PAGE_SPAN)
		first = atomic_load_explicit(&record->span_first, memory_order_relaxed);
	if (first < page) {
		walk->row_of[page] = walk->row_of[first];
		if (row_at(walk, page))
			row_at(walk, page)->pages++;
		return;
	}
	if (walk->pages_count == walk->pages_room) {
		walk->pages_left_out++;
		return;
	}
	uint32_t used = atomic_load_explicit(&record->used_granules, memory_order_relaxed);
	uint32_t taken = CH__PAGE_HEADER_BYTES + used * CH__GRANULE_BYTES;
	walk->pages[walk->pages_count++] = (struct ch__stats_page){
		.page = page,
		.pages = 1,
		/* What a block leaves of a span is known when that is found. */
		.free_bytes = state == CH__PAGE_SPAN || taken > page_bytes ? 0 : page_bytes - taken,
	};
	walk->row_of[page] = walk->pages_count;
}

static void begin(struct ch__stats_walk *walk, const struct ch__pool *pool)
{
	static const char *const block_kinds[CH__STATS_BLOCK_KINDS_COUNT] = {"code", "trampoline",
									     "rodata", "data"};
	memset(walk->owners, 0, sizeof walk->owners);
	memset(walk->blocks, 0, sizeof walk->blocks);
	memcpy(walk->owners[0].name, "other", sizeof "other");
	walk->owners_count = 1;
	for (int i = 0; i < CH__STATS_BLOCK_KINDS_COUNT; i++)
		memcpy(walk->blocks[i].name, block_kinds[i], strlen(block_kinds[i]) + 1);
	walk->pages_count = walk->pages_left_out = 0;
	walk->parts_count = walk->parts_left_out = 0;
	walk->map_rows = CH__STATS_MAP_PAGES;
	for (uint32_t page = 0; page < pool->page_count; page++)
		list_page(walk, pool, page);
}

/* --- blocks --- */

/* What is before the first "::" of the owner's name; "other" where there is none, where it is too
 * long, and where there are too many of them. */
static struct ch__stats_kind *owner_kind(struct ch__stats_walk *walk, const char *name)
{
	size_t length = 0;
	while (length < CH__STATS_NAME_BYTES && name[length] &&
	       !(name[length] == ':' && name[length + 1] == ':'))
		length++;
	if (!length || length >= CH__STATS_NAME_BYTES || name[length] != ':')
		return &walk->owners[0];
	for (uint32_t i = 1; i < walk->owners_count; i++)
		if (!memcmp(walk->owners[i].name, name, length) && !walk->owners[i].name[length])
			return &walk->owners[i];
	if (walk->owners_count == CH__STATS_OWNER_KINDS_MOST)
		return &walk->owners[0];
	struct ch__stats_kind *kind = &walk->owners[walk->owners_count++];
	memcpy(kind->name, name, length);
	return kind;
}

static void count(struct ch__stats_kind *kind, enum ch_block_state state, uint64_t bytes)
{
	if (state == CH_BLOCK_LIVE)
		kind->live_blocks++, kind->live_bytes += bytes;
	else if (state == CH_BLOCK_NOTENTRANT)
		kind->notentrant_blocks++, kind->notentrant_bytes += bytes;
	else
		kind->dead_blocks++, kind->dead_bytes += bytes;
}

static bool is_mapped(const struct ch__stats_walk *walk, uint32_t page)
{
	return walk->row_of[page] && walk->row_of[page] <= walk->map_rows;
}

/* Of the first pages all parts are listed, of the others none: a page with some of its parts would
 * look as if the rest of it were free. */
static void map_fewer(struct ch__stats_walk *walk, unsigned page_log2)
{
	uint32_t kept = 0;
	walk->map_rows /= 2;
	for (uint32_t i = 0; i < walk->parts_count; i++)
		if (is_mapped(walk, walk->parts[i].offset >> page_log2))
			walk->parts[kept++] = walk->parts[i];
	walk->parts_left_out += walk->parts_count - kept;
	walk->parts_count = kept;
}

static void add_part(struct ch__stats_walk *walk, unsigned page_log2, uint32_t offset,
		     uint32_t bytes, enum ch__stats_part_kind kind)
{
	const uint32_t most = (1u << CH__STATS_PART_SHIFT) - 1;
	while (walk->parts_count == walk->parts_room && walk->map_rows)
		map_fewer(walk, page_log2);
	if (!is_mapped(walk, offset >> page_log2) || walk->parts_count == walk->parts_room) {
		walk->parts_left_out++;
		return;
	}
	walk->parts[walk->parts_count++] = (struct ch__stats_part){
		.offset = offset,
		.bytes_kind = (bytes < most ? bytes : most) | (uint32_t)kind
								      << CH__STATS_PART_SHIFT,
	};
}

static enum ch__stats_page_kind page_kind(const struct ch_heap *heap, const struct ch__block *block)
{
	if (ch__block_is_data(heap, block))
		return CH__STATS_PAGE_DATA;
	uint8_t frame = heap->pool->pages[block->hot_offset >> heap->pool->page_log2].frame;
	if (ch__frame_has_slots(frame))
		return CH__STATS_PAGE_TRAMPOLINES;
	return frame == CH__FRAME_OWN ? CH__STATS_PAGE_OWN_FRAMES : CH__STATS_PAGE_CODE;
}

static void add_to_page(struct ch__stats_walk *walk, const struct ch_heap *heap,
			const struct ch__block *block, enum ch_block_state state,
			enum ch__stats_page_kind kind)
{
	uint32_t hot = ch__hot_bytes(block), cold = ch__cold_bytes(block);
	struct ch__stats_page *row = row_at(walk, block->hot_offset >> heap->pool->page_log2);
	if (!row) /* taken since the list was made, or left out of it */
		return;
	row->kind = kind;
	row->blocks++;
	if (state == CH_BLOCK_LIVE)
		row->hot_bytes += hot, row->cold_bytes += cold;
	else if (state == CH_BLOCK_NOTENTRANT)
		row->notentrant_bytes += hot + cold;
	else
		row->dead_bytes += hot + cold;
	if (block->flags & CH__FLAG_SPAN) {
		uint64_t all = (uint64_t)row->pages << heap->pool->page_log2;
		uint64_t taken = (uint64_t)CH__PAGE_HEADER_BYTES + hot + cold;
		row->free_bytes = taken < all ? (uint32_t)(all - taken) : 0;
	}
	enum ch__stats_part_kind part = state == CH_BLOCK_LIVE         ? CH__STATS_PART_HOT
					: state == CH_BLOCK_NOTENTRANT ? CH__STATS_PART_NOTENTRANT
								       : CH__STATS_PART_DEAD;
	unsigned page_log2 = heap->pool->page_log2;
	add_part(walk, page_log2, block->hot_offset, hot, part);
	if (cold)
		add_part(walk, page_log2, ch__cold_offset(heap, block), cold,
			 state == CH_BLOCK_LIVE ? CH__STATS_PART_COLD : part);
}

static void add_block(struct ch__stats_walk *walk, const struct ch_heap *heap,
		      const struct ch__block *block)
{
	/* Its fields are those that it became this by: they were stored before the state, and
	 * change under the heap lock only. */
	enum ch_block_state state = ch__block_state(block);
	if (state != CH_BLOCK_LIVE && state != CH_BLOCK_NOTENTRANT && state != CH_BLOCK_DEAD)
		return;
	uint64_t bytes = (uint64_t)ch__hot_bytes(block) + ch__cold_bytes(block);
	enum ch__stats_page_kind kind = page_kind(heap, block);
	unsigned block_kind = kind == CH__STATS_PAGE_DATA
				      ? ch__block_use(heap, block) - CH__SPAN_RODATA + 2u
				      : kind == CH__STATS_PAGE_TRAMPOLINES;
	const char *name = ch__name_text(heap, ch__owner_at(heap, block->owner)->name);
	count(owner_kind(walk, name), state, bytes);
	count(&walk->blocks[block_kind], state, bytes);
	add_to_page(walk, heap, block, state, kind);
}

/* The next records; false behind the last one. */
static bool step(struct ch__stats_walk *walk, struct ch_heap *heap, uint32_t *next)
{
	ch__heap_lock(heap);
	uint32_t used = heap->blocks.used, end = *next + STEP_RECORDS;
	end = end < used ? end : used;
	for (uint32_t i = *next; i < end; i++)
		if (atomic_load(&heap->blocks.segments[i >> CH__SEGMENT_LOG2]))
			add_block(walk, heap, ch__block_at(heap, i));
	ch__heap_unlock(heap);
	*next = end;
	return end < used;
}

uint64_t ch__stats_walk_run(struct ch__stats_walk *walk, struct ch_heap *heap,
			    _Atomic(uint32_t) *is_hurried)
{
	uint64_t start = ch__os_now_ns(), slept = 0;
	uint32_t next = 1;
	begin(walk, heap->pool);
	while (step(walk, heap, &next)) {
		uint64_t from = ch__os_now_ns();
		ch__os_futex_wait(is_hurried, 0, BETWEEN_STEPS_NS);
		slept += ch__os_now_ns() - from;
	}
	return ch__os_now_ns() - start - slept;
}
