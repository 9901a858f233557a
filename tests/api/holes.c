/* SPDX-License-Identifier: MIT
 * holes.c: a pool with holes. The statistics of free bytes and of the largest hole are right. Each
 * hole is served to the last byte. Spans need whole pages. */
#include "tests/support/full_rig.h"
#include "tests/support/libgcc_knows.h"
#include "tests/support/stage_code.h"

static struct rig start_pages(size_t pages)
{
	return rig_start(pages * rig_page_bytes());
}

/* The used granules of 8 bytes, from the true places and sizes of all blocks. Valid only for pages
 * whose blocks are all the rig's. */
struct map {
	uint8_t used[4 * 65536 / 8];
	uintptr_t base;
	size_t bytes;
};

static bool note_place(void *arg, const struct ch_info *info)
{
	struct map *map = arg;
	size_t at = (size_t)((uintptr_t)info->exec - 8 - map->base);
	for (size_t i = 0; i < info->hot_bytes + 8u; i++)
		map->used[(at + i) / 8] = 1;
	return true;
}

/* Finds the number of free bytes, and the largest hole. */
static void measure(const struct rig *rig, uintptr_t base, size_t pages, uint64_t *free_bytes,
		    uint64_t *largest)
{
	static struct map map;
	memset(&map, 0, sizeof map);
	map.base = base;
	map.bytes = pages * rig_page_bytes();
	CHECK_EQ(ch_block_each(rig->heap, NULL, note_place, &map), CH_OK);
	*free_bytes = *largest = 0;
	for (size_t page = 0; page < pages; page++) {
		uint64_t run = 0;
		for (size_t at = page * rig_page_bytes(); at < (page + 1) * rig_page_bytes();
		     at += 8) {
			run = map.used[at / 8] ? 0 : run + 8;
			*free_bytes += map.used[at / 8] ? 0 : 8;
			*largest = run > *largest ? run : *largest;
		}
	}
}

/* Opens blocks until the pool is full, then releases an eighth at random. */
static void stir(const struct rig *rig, struct ch_owner *owners, int count,
		 struct test_random *random)
{
	for (int i = 0; i < count; i++) {
		if (owners[i].bits)
			continue;
		owners[i] = rig_owner(rig, "slot");
		uint64_t granules = test_random_below(random, rig_page_bytes() / 400);
		struct ch_open open = {.owner = owners[i],
				       .hot_bytes = 12 + 8 * (uint32_t)granules};
		struct emitter e;
		if (emit_open_as(&e, &open) != CH_OK)
			break;
		emit_ret(&e);
		e.at = open.hot_bytes;
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(owners[i], e.code.block), CH_OK);
	}
	for (int i = 0; i < count; i++) {
		if (!owners[i].bits || test_random_below(random, 8))
			continue;
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
		owners[i].bits = 0;
	}
}

/* Takes each hole to the last byte, the largest first. Returns the number of holes. */
static uint32_t take_holes(const struct rig *rig, uintptr_t base, struct ch_owner owner,
			   struct ch_code *codes, uint32_t room, uint64_t *left)
{
	uint32_t n = 0;
	for (;;) {
		uint64_t largest;
		measure(rig, base, 4, left, &largest);
		if (n == room || largest < 64)
			return n;
		struct ch_open open = {.size = sizeof open,
				       .owner = owner,
				       .hot_bytes = (uint32_t)largest - 8 + 1};
		CHECK_EQ(ch_block_open(&open, &codes[n]), CH_E_FULL);
		open.hot_bytes--;
		if (ch_block_open(&open, &codes[n]) != CH_OK)
			FAIL("a hole of %u bytes is not served", (unsigned)largest);
		n++;
	}
}

/* Blocks of random sizes come and go. The statistics are the room left by the blocks. The largest
 * hole is served to the last byte; a byte more is refused. */
TEST_RIG_BY(holes_are_counted_and_the_largest_one_is_served, start_pages(4))
{
	enum { SLOTS = 512, ROUNDS = 20 };
	static struct ch_owner owners[SLOTS];
	static struct ch_code codes[SLOTS];
	struct test_random random = test_random_new();
	struct ch_owner owner = rig_owner(&rig, "asks");
	struct ch_block first = rig_block(owner, 1);
	uintptr_t base = (uintptr_t)block_info(first).exec & ~(rig_page_bytes() * 4 - 1);
	CHECK_EQ(ch_owner_set_entry(owner, first), CH_OK);
	uint64_t served = 0;
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t free_bytes, largest, left;
		stir(&rig, owners, SLOTS, &random);
		rig_settle(&rig);
		struct ch_stats stats = rig_stats(&rig);
		measure(&rig, base, 4, &free_bytes, &largest);
		CHECK_EQ(stats.free_bytes_now, free_bytes);
		CHECK_EQ(stats.largest_free_bytes_now, largest);
		uint32_t n = take_holes(&rig, base, owner, codes, SLOTS, &left);
		uint64_t taken = 0;
		for (uint32_t i = 0; i < n; i++)
			taken += codes[i].hot_bytes + 8u;
		CHECK_EQ(taken, free_bytes - left);
		served += taken;
		rig_check(&rig);
		while (n--)
			CHECK_EQ(ch_block_abort(&codes[n]), CH_OK);
	}
	CHECK(served > 0);
}

static void put_aligned(bool is_small_above)
{
	enum { HOT_BYTES = 56, ALIGN = 256, SMALL = 2, LARGE = 6 };
	struct rig rig = start_pages(2);
	struct filled f = fill_pool(&rig, 2, HOT_BYTES);
	uint32_t second = 0, in_page = (uint32_t)rig_page_bytes() / (HOT_BYTES + HEAD_BYTES);
	uintptr_t first_exec = (uintptr_t)block_info(f.blocks[0]).exec, page = rig_page_bytes();
	while ((uintptr_t)block_info(f.blocks[second]).exec / page == first_exec / page)
		second++;
	CHECK(second > SMALL + 8 && second <= in_page && f.count > second + LARGE + 8);
	bool is_second_above = (uintptr_t)block_info(f.blocks[second]).exec > first_exec;
	bool is_small_in_second = is_second_above == is_small_above;
	uint32_t small = is_small_in_second ? second + 5 : 5;
	uint32_t large = is_small_in_second ? 5 : second + 5;
	for (uint32_t i = 0; i < SMALL; i++)
		CHECK_EQ(ch_owner_release(f.owners[small + i], CH_RELEASE_NOT_RUNNING), CH_OK);
	for (uint32_t i = 0; i < LARGE; i++)
		CHECK_EQ(ch_owner_release(f.owners[large + i], CH_RELEASE_NOT_RUNNING), CH_OK);
	struct ch_open open = {.size = sizeof open,
			       .heap = rig.heap,
			       .hot_bytes = HOT_BYTES,
			       .align = ALIGN};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ((uintptr_t)code.exec % ALIGN, 0);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	forget(&f);
	rig_end(&rig);
}

/* The next hole is large enough for the bytes, and too small for bytes at a multiple of `align`. A
 * hole of another page serves them. No hole is large enough to list its page. Either page may be
 * the one that is looked at first. */
TEST(aligned_block_is_put_where_it_fits_though_a_hole_before_is_too_small)
{
	put_aligned(false);
	put_aligned(true);
}

/* Long-lived blocks pin every page. No span fits, however much is free; the rest is served. */
TEST_RIG_BY(long_lived_blocks_in_every_page_leave_room_for_blocks_and_none_for_spans,
	    start_pages(4))
{
	uint32_t page = (uint32_t)rig_page_bytes();
	struct filled f = fill_pool(&rig, 4, 56);
	uintptr_t last_page = 0;
	uint32_t pinned = 0;
	for (uint32_t i = 0; i < f.count; i++) {
		uintptr_t of = (uintptr_t)block_info(f.blocks[i]).exec & ~((uintptr_t)page - 1);
		bool pins = of != last_page;
		last_page = of;
		pinned += pins;
		if (!pins)
			CHECK_EQ(ch_owner_release(f.owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	}
	CHECK_EQ(pinned, 4);
	rig_settle(&rig);
	struct ch_stats stats = rig_stats(&rig);
	CHECK_EQ(stats.free_bytes_now, 4 * (page - 64));
	CHECK_EQ(stats.largest_free_bytes_now, page - 64);
	struct ch_owner owner = rig_owner(&rig, "span");
	CHECK_EQ(try_open(owner, page - HEAD_BYTES, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	CHECK_EQ(try_open(owner, page, CH_OPEN_MAY_COLLECT), CH_E_FULL);
	struct ch_code codes[4];
	for (int i = 0; i < 4; i++) {
		struct ch_open open = {
			.size = sizeof open, .owner = owner, .hot_bytes = page - 64 - 8};
		CHECK_EQ(ch_block_open(&open, &codes[i]), CH_OK);
	}
	CHECK_EQ(rig_stats(&rig).free_bytes_now, 0);
	CHECK_EQ(rig_stats(&rig).largest_free_bytes_now, 0);
	CHECK_EQ(try_open(owner, 1, 0), CH_E_FULL);
	rig_check(&rig);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(ch_block_abort(&codes[i]), CH_OK);
	forget(&f);
}

/* A free page between full pages: a block of exactly a page fits, and a byte more does not. When
 * the page behind comes free, the larger block takes both pages. */
TEST_RIG_BY(block_of_exactly_a_page_between_occupied_neighbours, start_pages(4))
{
	uint32_t page = (uint32_t)rig_page_bytes(), whole = page - HEAD_BYTES;
	struct filled f = fill_pool(&rig, 4, whole);
	CHECK_EQ(f.count, 4);
	const uint8_t *before = block_info(f.blocks[0]).exec;
	const uint8_t *behind = block_info(f.blocks[2]).exec;
	CHECK_EQ((uintptr_t)(behind - before), 2 * page);
	CHECK_EQ(ch_owner_release(f.owners[1], CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_settle(&rig);
	struct ch_owner owner = rig_owner(&rig, "between");
	for (int round = 0; round < 3; round++) {
		/* The thread may hold the free page, for small blocks. */
		CHECK(rig_stats(&rig).largest_free_bytes_now >= page);
		CHECK_EQ(try_open(owner, whole + 1, CH_OPEN_MAY_COLLECT), CH_E_FULL);
		struct ch_open open = {.owner = owner, .hot_bytes = whole};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		/* The code goes to the last byte, and not beyond. */
		emit_filler(&e, whole - CODE_RETURN_BYTES);
		emit_ret(&e);
		CHECK_EQ(e.at, whole);
		CHECK_EQ(emit_commit(&e), CH_OK);
		code_call(e.code.exec);
		CHECK_EQ(code_call_owner(f.owners[0]), 0);
		CHECK_EQ(code_call_owner(f.owners[2]), 2);
		CHECK_EQ(rig_stats(&rig).free_bytes_now, 0);
		rig_check(&rig);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		rig_settle(&rig);
		owner = rig_owner(&rig, "between");
	}
	CHECK_EQ(ch_owner_release(f.owners[2], CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_settle(&rig);
	CHECK(rig_stats(&rig).free_bytes_now >= 2 * page - 64);
	CHECK_EQ(try_open(owner, whole + 1, 0), CH_OK);
	CHECK_EQ(code_call_owner(f.owners[0]), 0);
	CHECK_EQ(code_call_owner(f.owners[3]), 3);
	forget(&f);
}

TEST(frame_shapes_share_no_page)
{
	enum { PAGES = 4 };
	/* cfa = rsp + 8, ra at -8; each DW_CFA_nop behind makes another rule. */
	static const uint8_t leaf[5 + PAGES] = {0x0c, 0x07, 0x08, 0x90, 0x01};
	struct rig rig = start_pages(PAGES);
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_code codes[PAGES];
	for (int i = 0; i <= PAGES; i++) {
		struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 64};
		struct ch_code code;
		CHECK_EQ(ch_frame_register(rig.heap, leaf, (size_t)(5 + i), &open.frame),
			 CH_OK);
		CHECK_EQ(ch_block_open(&open, i < PAGES ? &codes[i] : &code),
			 i < PAGES ? CH_OK : CH_E_FULL);
	}
	for (int i = 0; i < PAGES; i++)
		CHECK_EQ(ch_block_abort(&codes[i]), CH_OK);
	rig_end(&rig);
}

static void open_beside(const struct rig *rig, void *arg)
{
	(void)arg;
	CHECK_EQ(try_open(rig_owner(rig, "beside"), 64, 0), CH_OK);
}

TEST_RIG_BY(thread_without_a_page_finds_room_in_that_of_another, start_pages(1))
{
	CHECK_EQ(try_open(rig_owner(&rig, "first"), 64, 0), CH_OK);
	rig_apart(&rig, open_beside, NULL);
}

/* A refusal by a full page is forgotten when the page has been empty. */
static void fill_empty_and_leave(const struct rig *rig, void *arg)
{
	(void)arg;
	uint32_t whole = (uint32_t)rig_page_bytes() - HEAD_BYTES;
	struct ch_owner owner = rig_owner(rig, "most of it");
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = whole - 500};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(try_open(owner, 600, 0), CH_E_FULL);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	/* All bytes are used: a commit that gives bytes back has the page looked at, too. */
	struct emitter e;
	open.hot_bytes = 12;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	e.at = open.hot_bytes;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
	CHECK_EQ(try_open(owner, whole, 0), CH_E_FULL);
}

TEST_RIG_BY(page_that_was_empty_is_looked_at_again, start_pages(1))
{
	rig_apart(&rig, fill_empty_and_leave, NULL);
	if (try_open(rig_owner(&rig, "asks"), 600, 0) != CH_OK)
		FAIL("a refusal outlived what it was of: the page has been empty since");
}

/* --- unused pages of a run --- */

enum { POOL_PAGES = 16, ASKED_PAGES = 6 };

/* The bytes of the first page before the code. */
static size_t head_of(const struct ch_open *as)
{
	return as->align || (as->flags & CH_OPEN_IN_PLACE) ? 64 : 8;
}

/* Opens a block of six pages, less the library's part of the pages, and commits `used` bytes. */
static struct ch_block use_of_six(struct emitter *e, const struct ch_open *as, size_t used)
{
	struct ch_open open = *as;
	size_t page = rig_page_bytes(), head = head_of(as);
	open.hot_bytes = (uint32_t)(ASKED_PAGES * page - head);
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
	memset(e->code.write, 0x11, e->code.hot_bytes);
	emit_landing(e);
	emit_answer(e, 7);
	e->at = (uint32_t)used;
	CHECK_EQ(emit_commit(e), CH_OK);
	CHECK_EQ(code_call(e->code.exec), 7);
	return e->code.block;
}

static void uses_pages(const struct rig *rig, const struct ch_open *as, size_t used, size_t pages)
{
	struct emitter e;
	size_t page = rig_page_bytes(), head = head_of(as);
	struct ch_block block = use_of_six(&e, as, used);
	struct ch_stats stats = rig_stats(rig);
	CHECK_EQ(stats.pages_now, pages);
	/* The hot part begins with a head of 8 bytes, right before the aligned code. */
	size_t before = as->align ? head - 8 : 0;
	CHECK_EQ(stats.code_bytes_now, pages * page - before);
	CHECK_EQ(stats.hot_bytes_now, pages * page - before);
	CHECK_EQ(block_info(block).hot_bytes, pages * page - head);
	/* Bytes that were written and not used are traps. */
	CHECK(ch__arch_are_traps(e.code.exec + used, ASKED_PAGES * page - head - used));
	bool is_told = !(as->flags & CH_OPEN_OWN_FRAMES);
	CHECK_EQ(libgcc_knows(e.code.exec + pages * page - head - 1), is_told);
	CHECK(!libgcc_knows(e.code.exec + pages * page - head));
	rig_check(rig);
	struct ch_open rest = *as;
	struct ch_code code;
	rest.size = sizeof rest;
	rest.hot_bytes = (uint32_t)((POOL_PAGES - pages) * page - head) + 1;
	CHECK_EQ(ch_block_open(&rest, &code), CH_E_FULL);
	rest.hot_bytes--;
	CHECK_EQ(ch_block_open(&rest, &code), CH_OK);
	CHECK_EQ(rig_stats(rig).pages_now, POOL_PAGES);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	CHECK_EQ(ch_code_free(rig->heap, e.code.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_settle(rig);
	CHECK_EQ(rig_stats(rig).pages_now, 0);
	CHECK_EQ(rig_stats(rig).code_bytes_now, 0);
	rig_check(rig);
}

TEST(pages_behind_what_is_used_go_back_at_commit)
{
	static const struct {
		unsigned flags;
		size_t align;
	} ways[] = {{0, 0}, {0, 64}, {CH_OPEN_OWN_FRAMES, 0}, {CH_OPEN_IN_PLACE, 0}};
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		struct rig rig = start_pages(POOL_PAGES);
		struct ch_open as = {
			.heap = rig.heap, .flags = ways[i].flags, .align = ways[i].align};
		size_t page = rig_page_bytes(), head = head_of(&as);
		uses_pages(&rig, &as, 64, 1);
		uses_pages(&rig, &as, page - head, 1);
		uses_pages(&rig, &as, page - head + 1, 2);
		uses_pages(&rig, &as, 5 * page - head, 5);
		uses_pages(&rig, &as, 5 * page - head + 1, 6);
		rig_end(&rig);
	}
}

/* Cold bytes lie behind all hot bytes, and every address between has a block. */
TEST_RIG_BY(run_of_pages_with_cold_bytes_at_its_end_stays_whole, start_pages(POOL_PAGES))
{
	struct emitter e;
	struct ch_open open = {.heap = rig.heap,
			       .hot_bytes = (uint32_t)(ASKED_PAGES * rig_page_bytes()) - 100,
			       .cold_bytes = 60};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_landing(&e);
	emit_answer(&e, 7);
	memset(e.code.cold_write, 0x90, 60);
	e.code.cold_used = 60;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(rig_stats(&rig).pages_now, ASKED_PAGES);
	CHECK_EQ(e.code.cold_exec[59], 0x90);
}

/* --- a span whose size has a low half of 0 --- */

static void count_freed(void *user, void *block)
{
	(void)block;
	++*(int *)user;
}

static void make_wide(const struct rig *rig, void *arg)
{
	struct ch_open open = {.owner = rig_owner(rig, "wide"),
			       .hot_bytes = (1 << 19) - 8,
			       .cold_bytes = (uint32_t)rig_page_bytes() - 8};
	struct emitter e;
	(void)arg;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 5);
	CHECK_EQ(emit_commit(&e), CH_OK);
}

/* With dead names kept, the notice of a death comes long before the place goes back. The block's
 * record goes after both. */
TEST(span_of_just_half_a_mebibyte_is_freed_once)
{
	enum { ROUNDS = 3 };
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .block_freed = count_freed};
	int freed = 0;
	config.sinks = CH_SINK_PERF_MAP;
	config.dead_names = CH_DEAD_NAMES_KEPT;
	struct rig rig = rig_create(&config, &ops, &freed);
	for (int i = 1; i <= ROUNDS; i++) {
		rig_apart(&rig, make_wide, NULL);
		CHECK_EQ(rig_stats(&rig).code_bytes_now, (1 << 19) + rig_page_bytes());
		rig_collect(&rig, 4);
		rig_check(&rig);
		CHECK_EQ(freed, i);
		CHECK_EQ(rig_stats(&rig).quarantine_bytes_now,
			 (1 << 19) + rig_page_bytes());
	}
	rig_end(&rig);
}

/* The thread has the page open, and no block in it. */
TEST_RIG_BY(span_gets_the_page_that_its_thread_left_empty, start_pages(2))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	struct ch_open open = {.owner = owner, .hot_bytes = (uint32_t)rig_page_bytes() + 16};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
}

TEST_RIG_BY(block_gets_the_page_of_another_shape_that_its_thread_left_empty, start_pages(1))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open leaf = {.size = sizeof leaf, .owner = owner, .hot_bytes = 64,
			       .frame = CH_FRAME_LEAF};
	struct ch_code code;
	CHECK_EQ(try_open(owner, 64, 0), CH_OK);
	CHECK_EQ(ch_block_open(&leaf, &code), CH_OK);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
}

/* Opens blocks until the pool is full. Each asks for as many bytes of both parts, and uses `used`.
 * Returns the percentage of the pool that is code. */
static unsigned percent_filled(uint32_t asked, uint32_t used, uint32_t branch_room)
{
	enum { PAGES = 32 };
	struct rig rig = start_pages(PAGES);
	struct ch_owner owner = rig_owner(&rig, "o");
	struct ch_open open = {.owner = owner, .hot_bytes = asked, .cold_bytes = asked,
			       .branch_room = branch_room};
	enum ch_status status;
	struct emitter e;
	while ((status = emit_open_as(&e, &open)) == CH_OK) {
		emit_ret(&e);
		e.at = used;
		e.code.cold_used = used;
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	CHECK_EQ(status, CH_E_FULL);
	struct ch_stats stats = rig_stats(&rig);
	rig_end(&rig);
	return (unsigned)(stats.code_bytes_now * 100 / stats.pool_bytes);
}

/* An emitter that does not know its sizes asks for much. One that knows them loses no room, also
 * where what it uses ends in the middle of a granule. */
TEST(cold_room_that_comes_back_at_commit_serves_the_next_blocks)
{
	uint32_t quarter = (uint32_t)rig_page_bytes() / 4;
	unsigned loose = percent_filled(quarter, 96, 0), exact = percent_filled(96, 96, 0);
	unsigned odd = percent_filled(17, 17, 0), stubs = percent_filled(24, 8, 8);
	if (loose < 45 || exact < 94 || odd < 94 || stubs < 80)
		FAIL("asks of %u bytes fill %u in 100 of the pool, of 96 bytes %u, of 17 %u, of 24 "
		     "beside stubs %u", quarter, loose, exact, odd, stubs);
}
