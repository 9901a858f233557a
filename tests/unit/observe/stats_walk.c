/* SPDX-License-Identifier: MIT
 * stats_walk.c: the kinds that the statistics file gives to owners, blocks and pages. */
#include "observe/stats_walk.h"

#include "codeheap/base/heap.h"
#include "codeheap/graph/block_parts.h"
#include "os/meta.h"
#include "tests/support/heap_rig.h"

static struct rig rig;
static struct ch__meta *meta;
static struct ch__stats_walk walk;

static void begin_as(const struct ch_config *config)
{
	rig = rig_create(config, NULL, NULL);
	meta = ch__meta_create();
	CHECK(meta);
}

static void begin(void)
{
	struct ch_config config = rig_config(16 << 20);
	begin_as(&config);
}

/* The places of dead blocks are kept, like their names. */
static void begin_with_dead_names(void)
{
	struct ch_config config = rig_config(16 << 20);
	config.sinks = CH_SINK_PERF_MAP;
	config.dead_names = CH_DEAD_NAMES_KEPT;
	begin_as(&config);
}

static void take_walk(void)
{
	static struct ch__look_heap look;
	static _Atomic(uint32_t) is_hurried = 1;
	ch__look_heap(rig.heap, &look);
	CHECK(ch__stats_walk_create(&walk, rig.heap, &look, meta));
	ch__stats_walk_run(&walk, &is_hurried);
}

static void end(void)
{
	ch__meta_destroy(meta);
	rig_end(&rig);
}

static const struct ch__stats_kind *kind_called(const struct ch__stats_kind *kinds, uint32_t count,
						const char *name)
{
	for (uint32_t i = 0; i < count; i++)
		if (strcmp(kinds[i].name, name) == 0)
			return &kinds[i];
	FAIL("no kind is called %s", name);
}

/* A kind ends at the first "::", and kinds are compared with their lengths: sc is not scm. */
TEST(kind_of_an_owner_is_what_stands_before_two_colons)
{
	static const char *const owners[][2] = {
		{"scm::a", "scm"},
		{"sc::a", "sc"},
		{"scmx::a", "scmx"},
		{"scm::b::c", "scm"},
		{"one:colon", "other"},
		{"a:b::c", "a:b"},
		{"::nothing", "other"},
		{":::nothing", "other"},
		{"other::a", "other"},
		{"one at its end:", "other"},
		{"two at its end::", "two at its end"},
		{"39 characters, the most that fit, to it::",
		 "39 characters, the most that fit, to it"},
		{"40 characters are one too many for them!::", "other"},
	};
	enum { OWNERS = sizeof owners / sizeof *owners };
	begin();
	for (unsigned i = 0; i < OWNERS; i++)
		rig_block(rig_owner(&rig, owners[i][0]), 1);
	take_walk();
	for (unsigned i = 0; i < OWNERS; i++) {
		unsigned same = 0;
		for (unsigned k = 0; k < OWNERS; k++)
			same += strcmp(owners[k][1], owners[i][1]) == 0;
		CHECK_EQ(kind_called(walk.owners, walk.owners_count, owners[i][1])->live_blocks,
			 same);
	}
	end();
}

/* The kind of the block's page, or of the first page of the block's span. */
static uint32_t kind_of_page(struct ch_block block)
{
	struct ch_info info = block_info(block);
	const struct ch__pool *pool = rig.heap->pool;
	uint64_t at = ((uintptr_t)info.exec - pool->exec_base) >> pool->page_log2;
	for (uint32_t i = 0; i < walk.pages_count; i++)
		if (walk.pages[i].page == at)
			return walk.pages[i].kind;
	FAIL("the page is not listed");
}

TEST(page_says_what_its_blocks_are)
{
	static const struct {
		uint32_t flags;
		enum ch_kind kind;
		uint32_t page;
		const char *block;
	} ways[] = {
		{0, CH_KIND_CODE, CH__STATS_PAGE_CODE, "code"},
		{CH_OPEN_OWN_FRAMES, CH_KIND_CODE, CH__STATS_PAGE_OWN_FRAMES, "code"},
		{CH_OPEN_IN_PLACE, CH_KIND_RODATA, CH__STATS_PAGE_DATA, "rodata"},
		{CH_OPEN_IN_PLACE, CH_KIND_DATA, CH__STATS_PAGE_DATA, "data"},
	};
	enum { WAYS = sizeof ways / sizeof *ways, BYTES = 4096 };
	begin();
	struct ch_owner owner = rig_owner(&rig, "scm::one");
	struct ch_block blocks[WAYS], hop;
	for (unsigned i = 0; i < WAYS; i++) {
		struct ch_code code;
		struct ch_open open = {.size = sizeof open,
				       .owner = owner,
				       .hot_bytes = BYTES,
				       .flags = ways[i].flags,
				       .kind = ways[i].kind};
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		memset(code.write, 0, BYTES);
		code.used_to = BYTES;
		blocks[i] = code.block;
		CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	}
	CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL,
				    (const void *)(uintptr_t)rig_fallback, 0, NULL, NULL, &hop),
		 CH_OK);
	take_walk();
	for (unsigned i = 0; i < WAYS; i++) {
		CHECK_EQ(kind_of_page(blocks[i]), ways[i].page);
		CHECK_EQ(kind_called(walk.blocks, CH__STATS_BLOCK_KINDS_COUNT, ways[i].block)
				 ->live_blocks,
			 ways[i].kind == CH_KIND_CODE ? 2 : 1);
	}
	CHECK_EQ(kind_of_page(hop), CH__STATS_PAGE_TRAMPOLINES);
	CHECK_EQ(kind_called(walk.blocks, CH__STATS_BLOCK_KINDS_COUNT, "trampoline")->live_blocks,
		 1);
	end();
}

TEST(block_that_died_is_counted_apart_while_its_place_is_kept)
{
	begin_with_dead_names();
	struct ch_owner owner = rig_owner(&rig, "scm::one"), gone = rig_owner(&rig, "scm::two");
	rig_block(owner, 1);
	struct ch_block dead = rig_block(gone, 2);
	uint64_t bytes = block_info(dead).hot_bytes + 8; /* with the head */
	CHECK_EQ(ch_owner_release(gone, CH_RELEASE_NOT_RUNNING), CH_OK);
	take_walk();
	const struct ch__stats_kind *kind = kind_called(walk.owners, walk.owners_count, "scm");
	CHECK_EQ(kind->live_blocks, 1);
	CHECK_EQ(kind->dead_blocks, 1);
	CHECK_EQ(kind->dead_bytes, bytes);
	CHECK_EQ(kind->notentrant_blocks, 0);
	end();
}

static struct ch_block block_with_cold_bytes(struct ch_owner owner)
{
	struct ch_code code;
	struct ch_open open = {
		.size = sizeof open, .owner = owner, .hot_bytes = 64, .cold_bytes = 40};
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	memset(code.write, 0, code.hot_bytes);
	memset(code.cold_write, 0, code.cold_bytes);
	code.used_to = 64;
	code.cold_used = 40;
	struct ch_block block = code.block;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	return block;
}

/* A block that is not live counts with its cold bytes, too, in its page. */
TEST(page_counts_the_cold_bytes_of_each_state)
{
	begin_with_dead_names();
	struct ch_owner gone = rig_owner(&rig, "scm::two");
	block_with_cold_bytes(gone);
	struct ch_block left = block_with_cold_bytes(rig_owner(&rig, "scm::one"));
	CHECK_EQ(ch_blocks_invalidate(&left, 1, NULL), CH_OK);
	CHECK_EQ(ch_owner_release(gone, CH_RELEASE_NOT_RUNNING), CH_OK);
	take_walk();
	const struct ch__stats_kind *kind = kind_called(walk.owners, walk.owners_count, "scm");
	CHECK(kind->dead_bytes > 64 + 40 && kind->notentrant_bytes > 64 + 40);
	uint64_t dead_bytes = 0, notentrant_bytes = 0;
	for (uint32_t i = 0; i < walk.pages_count; i++) {
		dead_bytes += walk.pages[i].dead_bytes;
		notentrant_bytes += walk.pages[i].notentrant_bytes;
	}
	CHECK_EQ(dead_bytes, kind->dead_bytes);
	CHECK_EQ(notentrant_bytes, kind->notentrant_bytes);
	/* The cold part of a block has its state. */
	const uint32_t least = CH__STATS_PART_NOTENTRANT;
	for (uint32_t i = 0; i < walk.parts_count; i++)
		CHECK(walk.parts[i].bytes_kind >> CH__STATS_PART_SHIFT >= least);
	CHECK_EQ(walk.parts_count, 4);
	end();
}

/* Hot bytes lie at the run's beginning, cold bytes at the end; all bytes add up to the run. */
TEST(run_of_pages_has_free_what_its_parts_leave)
{
	begin();
	const struct ch__pool *pool = rig.heap->pool;
	uint32_t page_bytes = 1u << pool->page_log2;
	struct ch_code code;
	struct ch_open open = {.size = sizeof open,
			       .owner = rig_owner(&rig, "scm::one"),
			       .hot_bytes = 2 * page_bytes,
			       .cold_bytes = 100};
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	memset(code.write, 0, code.hot_bytes);
	code.used_to = page_bytes;
	code.cold_used = 40;
	struct ch_block block = code.block;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	take_walk();
	CHECK_EQ(kind_of_page(block), CH__STATS_PAGE_CODE);
	const struct ch__stats_page *row = &walk.pages[0];
	CHECK(row->pages == 3 && row->blocks == 1);
	CHECK(row->cold_bytes >= 40);
	CHECK_EQ(row->hot_bytes + row->cold_bytes + row->free_bytes, 3 * page_bytes);
	end();
}

/* The size of a part is in a word with its kind. A part that is longer than its bits say has their
 * most, and its own kind. */
TEST(part_that_is_too_long_for_its_word_has_its_own_kind)
{
	enum { MOST = (1 << CH__STATS_PART_SHIFT) - 1 };
	begin();
	const struct ch__pool *pool = rig.heap->pool;
	struct ch_code code;
	struct ch_open open = {.size = sizeof open,
			       .owner = rig_owner(&rig, "scm::one"),
			       .hot_bytes = 2u << pool->page_log2};
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	code.used_to = code.hot_bytes;
	memset(code.write, 0, code.hot_bytes);
	struct ch__block *block = ch__block_at(rig.heap, rig_record(code.block));
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	uint16_t high = block->span_granules_high;
	block->span_granules_high = (MOST + 1) / CH__GRANULE_BYTES >> 16;
	take_walk();
	block->span_granules_high = high;
	CHECK_EQ(walk.parts_count, 1);
	CHECK_EQ(walk.parts[0].bytes_kind, MOST | CH__STATS_PART_HOT << CH__STATS_PART_SHIFT);
	end();
}

/* The file's thread sleeps by what the walk says. */
TEST(walk_says_how_long_it_worked_without_its_pauses)
{
	enum { BLOCKS = 1200, PAUSES_NS = 2 * 50000 };
	static _Atomic(uint32_t) is_hurried;
	struct ch__look_heap look;
	begin();
	struct ch_owner owner = rig_owner(&rig, "scm::one");
	for (int i = 0; i < BLOCKS; i++)
		rig_block(owner, 1);
	ch__look_heap(rig.heap, &look);
	CHECK(ch__stats_walk_create(&walk, rig.heap, &look, meta));
	uint64_t from = ch__os_now_ns(), worked = ch__stats_walk_run(&walk, &is_hurried);
	CHECK(worked > 0 && worked + PAUSES_NS <= ch__os_now_ns() - from);
	end();
}

/* The pool is far larger than its code. The last record says that its page is in use, though the
 * page never was: nobody looks. */
TEST(records_of_pages_that_were_never_used_are_not_read)
{
	begin();
	rig_block(rig_owner(&rig, "scm::one"), 1);
	struct ch__pool *pool = rig.heap->pool;
	struct ch__page *last = &pool->pages[pool->page_count - 1];
	CHECK(ch__pool_pages_end(pool) < pool->page_count);
	uint8_t state = atomic_exchange(&last->state, CH__PAGE_FULL);
	take_walk();
	atomic_store(&last->state, state);
	CHECK(walk.pages_count > 0);
	CHECK(walk.pages[walk.pages_count - 1].page < ch__pool_pages_end(pool));
	end();
}

enum { FULL_PAGES = 2 * CH__STATS_PAGES_MOST, PAGE_BYTES = 4096, A_PAGE_EACH = 3000 };

/* Adds code, a page each, until the pool is full. */
static void fill(uint8_t *at[FULL_PAGES], unsigned *count)
{
	static const uint8_t bytes[A_PAGE_EACH];
	void *added;
	while (*count < FULL_PAGES &&
	       ch_code_add(rig.heap, bytes, sizeof bytes, NULL, &added) == CH_OK)
		at[(*count)++] = added;
}

/* The table of pages ends before the pool does. Pages that the walk before had no row for, and
 * pages that have none now, are nobody else's row. */
TEST(pages_beyond_the_table_are_counted_and_in_no_row)
{
	enum { FREED = 100 };
	static _Atomic(uint32_t) is_hurried = 1;
	static uint8_t *at[FULL_PAGES];
	unsigned count = 0;
	struct ch_config config = rig_config((size_t)FULL_PAGES * PAGE_BYTES);
	config.page_bytes = PAGE_BYTES;
	begin_as(&config);
	if (rig.heap->pool->page_log2 != 12)
		skip("pages are larger here");
	fill(at, &count);
	CHECK(count > CH__STATS_PAGES_MOST + FREED);
	for (unsigned i = 0; i < FREED; i++)
		CHECK_EQ(ch_code_free(rig.heap, at[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK); /* places may wait for a core sync */
	take_walk();
	CHECK_EQ(walk.pages_count, CH__STATS_PAGES_MOST);
	CHECK_EQ(walk.pages_left_out, count - FREED - CH__STATS_PAGES_MOST);
	unsigned again = 0;
	fill(at, &again);
	CHECK_EQ(again, FREED);
	ch__stats_walk_run(&walk, &is_hurried);
	CHECK_EQ(walk.pages_count, CH__STATS_PAGES_MOST);
	CHECK_EQ(walk.pages_left_out, count - CH__STATS_PAGES_MOST);
	for (uint32_t i = 0; i < walk.pages_count; i++)
		CHECK_EQ(walk.pages[i].blocks, 1);
	end();
}
