/* SPDX-License-Identifier: MIT
 * stats_walk.c: one walk over the blocks of a heap, for the statistics file: bytes by kinds of
 * owners, by kinds of blocks and by pages, and the places of blocks. The heap works between two
 * steps: a block that changes is counted as before or as after, and no sum is of a single moment.
 *
 * Lock: heap, step by step. Under the lock no committed block changes its state, and owners with
 * such blocks keep their names. Open blocks are skipped. */
#include "observe/stats_walk.h"

#include "os/os.h"
#include "os/threads.h"

#include <string.h>

enum {
	STEP_RECORDS = 512,
	BETWEEN_STEPS_NS = 50000,
	BLOCK_BYTES_MIN = 32, /* most blocks are larger: a small pool's parts have room */
};

bool ch__stats_walk_create(struct ch__stats_walk *walk, struct ch_heap *heap,
			   const struct ch__look_heap *look, struct ch__meta *meta)
{
	walk->look = look;
	walk->heap = heap;
	size_t parts = walk->look->pool_bytes / BLOCK_BYTES_MIN;
	walk->pages_room =
		walk->look->pages < CH__STATS_PAGES_MOST ? walk->look->pages : CH__STATS_PAGES_MOST;
	walk->parts_room = parts < CH__STATS_PARTS_MOST ? (uint32_t)parts : CH__STATS_PARTS_MOST;
	size_t pages_bytes = walk->pages_room * sizeof *walk->pages;
	size_t parts_bytes = walk->parts_room * sizeof *walk->parts;
	size_t rows_bytes = walk->look->pages * sizeof *walk->row_of;
	uint8_t *memory = ch__meta_alloc(meta, pages_bytes + parts_bytes + rows_bytes);
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
static void list_page(struct ch__stats_walk *walk, uint32_t page, struct ch__look_page seen)
{
	uint32_t page_bytes = (uint32_t)walk->look->page_bytes;
	walk->row_of[page] = 0;
	if (!seen.is_used)
		return;
	if (seen.span_first < page) {
		walk->row_of[page] = walk->row_of[seen.span_first];
		if (row_at(walk, page))
			row_at(walk, page)->pages++;
		return;
	}
	if (walk->pages_count == walk->pages_room) {
		walk->pages_left_out++;
		return;
	}
	walk->pages[walk->pages_count++] = (struct ch__stats_page){
		.page = page,
		.pages = 1,
		.free_bytes = seen.is_span ? 0 : page_bytes - seen.taken_bytes,
	};
	walk->row_of[page] = walk->pages_count;
}

static void begin(struct ch__stats_walk *walk)
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
	struct ch__look_page seen;
	for (uint32_t page = 0; ch__look_page(walk->heap, page, &seen); page++)
		list_page(walk, page, seen);
}

/* --- blocks --- */

/* An owner's kind is its name before the first "::". The kind is "other" when the name has no such
 * prefix, the prefix is too long, or the table of kinds is full. */
static struct ch__stats_kind *owner_kind(struct ch__stats_walk *walk, const char *name)
{
	size_t length = 0;
	while (length < CH__STATS_NAME_BYTES && name[length] &&
	       !(name[length] == ':' && name[length + 1] == ':'))
		length++;
	if (!length || length >= CH__STATS_NAME_BYTES || name[length] != ':')
		return &walk->owners[0];
	for (uint32_t i = 0; i < walk->owners_count; i++)
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

static uint32_t page_of(const struct ch__stats_walk *walk, uint32_t offset)
{
	return (uint32_t)(offset / walk->look->page_bytes);
}

static bool is_mapped(const struct ch__stats_walk *walk, uint32_t page)
{
	return walk->row_of[page] && walk->row_of[page] <= walk->map_rows;
}

/* Halves the number of mapped pages. A page is mapped with all its parts or with none: if some
 * parts were missing, the rest of the page would look free. */
static void map_fewer(struct ch__stats_walk *walk)
{
	uint32_t kept = 0;
	walk->map_rows /= 2;
	for (uint32_t i = 0; i < walk->parts_count; i++)
		if (is_mapped(walk, page_of(walk, walk->parts[i].offset)))
			walk->parts[kept++] = walk->parts[i];
	walk->parts_left_out += walk->parts_count - kept;
	walk->parts_count = kept;
}

static void add_part(struct ch__stats_walk *walk, uint32_t offset, uint32_t bytes,
		     enum ch__stats_part_kind kind)
{
	const uint32_t most = (1u << CH__STATS_PART_SHIFT) - 1;
	while (walk->parts_count == walk->parts_room && walk->map_rows)
		map_fewer(walk);
	if (!is_mapped(walk, page_of(walk, offset)) || walk->parts_count == walk->parts_room) {
		walk->parts_left_out++;
		return;
	}
	walk->parts[walk->parts_count++] = (struct ch__stats_part){
		.offset = offset,
		.bytes_kind = (bytes < most ? bytes : most) | (uint32_t)kind
								      << CH__STATS_PART_SHIFT,
	};
}

static void add_to_page(struct ch__stats_walk *walk, const struct ch__look_block *block,
			enum ch__stats_page_kind kind)
{
	uint32_t hot = block->hot_bytes, cold = block->cold_bytes;
	struct ch__stats_page *row = row_at(walk, page_of(walk, block->hot_offset));
	bool is_live = block->state == CH_BLOCK_LIVE;
	if (!row) /* taken since the list was made, or left out of it */
		return;
	row->kind = kind;
	row->blocks++;
	if (is_live)
		row->hot_bytes += hot, row->cold_bytes += cold;
	else if (block->state == CH_BLOCK_NOTENTRANT)
		row->notentrant_bytes += hot + cold;
	else
		row->dead_bytes += hot + cold;
	enum ch__stats_part_kind part = CH__STATS_PART_HOT;
	if (!is_live)
		part = block->state == CH_BLOCK_NOTENTRANT ? CH__STATS_PART_NOTENTRANT
							   : CH__STATS_PART_DEAD;
	add_part(walk, block->hot_offset, hot, part);
	if (cold)
		add_part(walk, block->cold_offset, cold, is_live ? CH__STATS_PART_COLD : part);
}

static void add_block(void *arg, const struct ch__look_block *block)
{
	static const struct {
		enum ch__stats_page_kind page;
		unsigned block; /* of block_kinds in begin */
	} kinds[] = {
		[CH__LOOK_CODE] = {CH__STATS_PAGE_CODE, 0},
		[CH__LOOK_TRAMPOLINE] = {CH__STATS_PAGE_TRAMPOLINES, 1},
		[CH__LOOK_OWN_FRAMES] = {CH__STATS_PAGE_OWN_FRAMES, 0},
		[CH__LOOK_RODATA] = {CH__STATS_PAGE_DATA, 2},
		[CH__LOOK_DATA] = {CH__STATS_PAGE_DATA, 3},
	};
	struct ch__stats_walk *walk = arg;
	uint64_t bytes = (uint64_t)block->hot_bytes + block->cold_bytes;
	count(owner_kind(walk, block->owner_name), block->state, bytes);
	count(&walk->blocks[kinds[block->kind].block], block->state, bytes);
	add_to_page(walk, block, kinds[block->kind].page);
}

/* Counts the next records. Returns false behind the last record. */
static bool step(struct ch__stats_walk *walk, uint32_t *next)
{
	ch__look_lock_blocks(walk->heap);
	bool is_more = ch__look_blocks(walk->heap, next, STEP_RECORDS, add_block, walk);
	ch__look_unlock_blocks(walk->heap);
	return is_more;
}

uint64_t ch__stats_walk_run(struct ch__stats_walk *walk, _Atomic(uint32_t) *is_hurried)
{
	uint64_t start = ch__os_now_ns(), slept = 0;
	uint32_t next = 1;
	begin(walk);
	while (step(walk, &next)) {
		uint64_t from = ch__os_now_ns();
		ch__os_futex_wait(is_hurried, 0, BETWEEN_STEPS_NS);
		slept += ch__os_now_ns() - from;
	}
	return ch__os_now_ns() - start - slept;
}
