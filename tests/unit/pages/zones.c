/* SPDX-License-Identifier: MIT
 * zones.c: pages of different zones lie in different chunks: single pages and spans, chunks that
 * change zone, the notices of such a change, a full pool, and the failure of every call, one after
 * another. */
#define _GNU_SOURCE
#include "tests/support/pool_rig.h"

enum {
	MIB = 1 << 20,
	PAGES_FRAME = 0,
	SLOTS_FRAME = 1,
	OTHER_PAGES_FRAME = 3,
	OWN_FRAME = 16,
	RODATA_FRAME,
	DATA_FRAME
};

struct heard {
	uint32_t chunks[64], count;
};

static void hear(void *arg, uint32_t chunk)
{
	struct heard *heard = arg;
	if (heard->count < 64)
		heard->chunks[heard->count] = chunk;
	heard->count++;
}

static void zone_rig(struct pool_rig *rig, size_t pool_bytes, struct heard *heard)
{
	struct ch__pool_config config = rig_config(pool_bytes);
	config.zones[SLOTS_FRAME] = CH__ZONE_SLOTS;
	for (int frame = OWN_FRAME; frame <= DATA_FRAME; frame++)
		config.zones[frame] = CH__ZONE_OWN;
	config.uses[RODATA_FRAME] = CH__PAGE_RODATA;
	config.uses[DATA_FRAME] = CH__PAGE_DATA;
	config.gone = hear;
	config.gone_arg = heard;
	*rig = rig_create(&config);
}

static uint32_t chunk_of_page(const struct pool_rig *rig, uint32_t page)
{
	return page >> (rig->pool->chunk_log2 - rig->pool->page_log2);
}

static uint32_t chunk_pages(const struct pool_rig *rig)
{
	return 1u << (rig->pool->chunk_log2 - rig->pool->page_log2);
}

static uint32_t take(const struct pool_rig *rig, uint8_t frame)
{
	uint32_t page = ch__pool_take_page(rig->pool, frame);
	CHECK(page != CH__PAGE_NONE);
	return page;
}

#define TEST_ZONES(name, pool_bytes)                                     \
	static void body_##name(struct pool_rig, struct heard *);        \
	TEST(name)                                                       \
	{                                                                \
		struct heard heard = {.count = 0};                       \
		struct pool_rig rig;                                     \
		zone_rig(&rig, pool_bytes, &heard);                      \
		body_##name(rig, &heard);                                \
		rig_destroy(&rig);                                       \
	}                                                                \
	static void body_##name(struct pool_rig rig, __attribute__((unused)) struct heard *heard)

TEST_ZONES(pages_of_two_zones_share_no_chunk, 8 * MIB)
{
	uint32_t a = take(&rig, PAGES_FRAME), b = take(&rig, SLOTS_FRAME),
		 c = take(&rig, OWN_FRAME), d = take(&rig, OTHER_PAGES_FRAME);
	CHECK(chunk_of_page(&rig, a) != chunk_of_page(&rig, b));
	CHECK(chunk_of_page(&rig, a) != chunk_of_page(&rig, c));
	CHECK(chunk_of_page(&rig, b) != chunk_of_page(&rig, c));
	CHECK_EQ(chunk_of_page(&rig, a), chunk_of_page(&rig, d));
	/* Each zone goes on in its own chunk. */
	CHECK_EQ(chunk_of_page(&rig, take(&rig, OWN_FRAME)), chunk_of_page(&rig, c));
	CHECK_EQ(chunk_of_page(&rig, take(&rig, SLOTS_FRAME)), chunk_of_page(&rig, b));
	CHECK_EQ(rig_chunks(&rig), 3);
	CHECK_EQ(heard->count, 0);
}

TEST_ZONES(chunk_without_a_used_page_changes_its_zone_and_that_is_heard, 8 * MIB)
{
	uint32_t page = take(&rig, PAGES_FRAME);
	ch__pool_retire_page(rig.pool, page); /* FREE: the page has no block */
	CHECK_EQ(heard->count, 0);
	page = take(&rig, PAGES_FRAME);
	CHECK_EQ(heard->count, 0); /* the same zone again */
	ch__pool_retire_page(rig.pool, page);
	uint32_t own = take(&rig, OWN_FRAME);
	CHECK_EQ(heard->count, 1);
	CHECK_EQ(heard->chunks[0], chunk_of_page(&rig, own));
	CHECK_EQ(rig_chunks(&rig), 1);
	rig_check(&rig);
	uint32_t other = take(&rig, PAGES_FRAME); /* the chunk is in use, so take another */
	CHECK(chunk_of_page(&rig, other) != chunk_of_page(&rig, own));
	CHECK_EQ(heard->count, 1);
	ch__pool_retire_page(rig.pool, own);
	rig_check(&rig);
	/* The loss of a chunk's memory is heard at once. */
	ch__pool_retire_page(rig.pool, other);
	ch__pool_trim(rig.pool);
	CHECK_EQ(heard->count, 2);
}

/* A chunk's first memory is used up: more of the chunk gets memory, though an unused chunk of
 * another zone has some. */
static void widen(bool is_first)
{
	struct heard heard = {.count = 0};
	struct pool_rig rig;
	zone_rig(&rig, 8 * MIB, &heard);
	uint8_t frame = is_first ? PAGES_FRAME : OWN_FRAME;
	uint32_t first = take(&rig, PAGES_FRAME), second = take(&rig, OWN_FRAME);
	uint32_t unused = is_first ? second : first;
	uint32_t chunk = chunk_of_page(&rig, is_first ? first : second);
	CHECK_EQ(chunk, !is_first);
	CHECK(rig.pool->inner->chunks[chunk].pages < chunk_pages(&rig));
	ch__pool_retire_page(rig.pool, unused);
	for (uint32_t i = 1; i < chunk_pages(&rig); i++)
		CHECK_EQ(chunk_of_page(&rig, take(&rig, frame)), chunk);
	CHECK_EQ(heard.count, 0);
	rig_check(&rig);
	/* The chunk is full: now the unused one changes its zone. */
	CHECK_EQ(chunk_of_page(&rig, take(&rig, frame)), chunk_of_page(&rig, unused));
	CHECK_EQ(heard.count, 1);
	rig_destroy(&rig);
}

TEST(zone_widens_its_own_chunk_before_it_takes_an_unused_one)
{
	widen(false);
	widen(true);
}

TEST_ZONES(chunk_gets_four_times_as_much_memory_as_before, 2 * MIB)
{
	for (uint32_t had = 0, all = chunk_pages(&rig); had < all;) {
		uint32_t next = had ? 4 * had : (64u << 10) >> rig.pool->page_log2;
		while (rig.pool->pages_used <= had)
			CHECK(take(&rig, PAGES_FRAME) != CH__PAGE_NONE);
		had = next < all ? next : all;
		CHECK_EQ(rig.pool->pages_committed, had);
	}
}

/* A chunk's first memory has one page less than the span. */
TEST_ZONES(span_lies_in_an_unused_chunk_with_memory_before_a_chunk_gets_more, 2 * MIB)
{
	CHECK_EQ(take(&rig, PAGES_FRAME), 0);
	uint32_t had = rig.pool->pages_committed;
	ch__pool_retire_page(rig.pool, take(&rig, OWN_FRAME));
	CHECK_EQ(rig.pool->pages_committed, 2 * had);
	CHECK_EQ(ch__pool_take_span(rig.pool, had, PAGES_FRAME, CH__SPAN_CODE), chunk_pages(&rig));
	CHECK_EQ(rig.pool->pages_committed, 2 * had);
	CHECK_EQ(heard->count, 1);
}

/* The system takes no access away, or no memory: until it takes both, the bytes are traps. */
static void trim_in_vain(uint64_t failing_call)
{
	struct heard heard = {.count = 0};
	struct pool_rig rig;
	zone_rig(&rig, 4 * MIB, &heard);
	const struct ch__chunk *chunks = rig.pool->inner->chunks;
	uintptr_t second = ch__pool_page_exec(rig.pool, chunk_pages(&rig));
	uint32_t span =
		ch__pool_take_span(rig.pool, 2 * chunk_pages(&rig), OWN_FRAME, CH__SPAN_CODE);
	uint32_t third = take(&rig, SLOTS_FRAME);
	CHECK_EQ(chunk_of_page(&rig, third), 2);
	ch__pool_release_span(rig.pool, span);
	ch__os_fail_at(failing_call, false);
	ch__pool_trim(rig.pool);
	ch__os_fail_at(0, false);
	CHECK(chunks[1].lingers && !chunks[1].pages && !chunks[0].lingers);
	ch__valgrind_reports(false);
	CHECK(ch__arch_are_traps(ch__pool_read(rig.pool, second), MIB));
	ch__valgrind_reports(true);
	rig_check(&rig);
	/* The chunk that stays for the next block has pages with memory. */
	CHECK_EQ(chunk_of_page(&rig, take(&rig, OWN_FRAME)), 0);
	ch__pool_retire_page(rig.pool, third);
	ch__pool_trim(rig.pool);
	CHECK(!chunks[1].lingers && chunks[2].pages);
	CHECK_EQ(heard.count, 1); /* when the chunk was given up, whether its memory went or not */
	ch__os_fail_at(1, false);
	ch__pool_trim(rig.pool);
	CHECK_EQ(ch__os_failable_calls(), 0); /* what has gone is not asked for again */
	ch__os_fail_at(0, false);
	rig_destroy(&rig);
}

TEST(memory_that_the_system_did_not_take_is_offered_again_by_the_next_trim)
{
	enum { ACCESS = 1, MEMORY };
	trim_in_vain(ACCESS);
	trim_in_vain(MEMORY);
}

/* A chunk with memory that lingered would never be room for a large block again. */
TEST_ZONES(chunk_that_the_system_did_not_take_is_used_again, 2 * MIB)
{
	const struct ch__chunk *chunks = rig.pool->inner->chunks;
	uint32_t pages = 2 * chunk_pages(&rig);
	uint32_t span = ch__pool_take_span(rig.pool, pages, OWN_FRAME, CH__SPAN_CODE);
	ch__pool_release_span(rig.pool, span);
	ch__os_fail_at(1, false);
	ch__pool_trim(rig.pool);
	ch__os_fail_at(0, false);
	CHECK(chunks[1].lingers);
	CHECK_EQ(ch__pool_take_span(rig.pool, pages, OWN_FRAME, CH__SPAN_CODE), span);
	CHECK(!chunks[1].lingers);
}

TEST_ZONES(page_with_room_is_not_given_to_another_zone, 2 * MIB)
{
	uint32_t page = take(&rig, SLOTS_FRAME);
	uintptr_t code = rig_reserve(&rig, page, 64);
	ch__pool_retire_page(rig.pool, page);
	CHECK_EQ(rig.pool->pages[page].state, CH__PAGE_PARTLY);
	for (uint32_t i = 0; i < chunk_pages(&rig); i++)
		CHECK(chunk_of_page(&rig, take(&rig, PAGES_FRAME)) != chunk_of_page(&rig, page));
	errno = 7;
	CHECK_EQ(ch__pool_take_page(rig.pool, PAGES_FRAME), CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	CHECK_EQ(take(&rig, SLOTS_FRAME), page);
	rig_check(&rig);
	/* The last used page goes: the whole chunk may serve other zones. */
	rig_give_back(&rig, code, 64);
	CHECK_EQ(heard->count, 0);
	ch__pool_retire_page(rig.pool, page);
	CHECK_EQ(chunk_of_page(&rig, take(&rig, PAGES_FRAME)), chunk_of_page(&rig, page));
	CHECK_EQ(heard->count, 1);
}

TEST_ZONES(span_crosses_chunks_of_its_own_zone_only, 4 * MIB)
{
	uint32_t all = chunk_pages(&rig);
	uint32_t low = take(&rig, PAGES_FRAME); /* chunk 0 */
	CHECK_EQ(chunk_of_page(&rig, low), 0);
	uint32_t span = ch__pool_take_span(rig.pool, all + 1, OWN_FRAME, CH__SPAN_CODE);
	CHECK_EQ(span, all); /* pages of chunk 0 are free, but of another zone */
	rig_check(&rig);
	/* The rest of chunk 2 serves its zone; a run of the other zone must not reach it. */
	CHECK_EQ(ch__pool_take_span(rig.pool, all + 1, PAGES_FRAME, CH__SPAN_CODE), CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	errno = EIO; /* nobody refused memory */
	CHECK_EQ(ch__pool_take_span(rig.pool, rig.pool->page_count + 1, PAGES_FRAME, CH__SPAN_CODE),
		 CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	CHECK_EQ(chunk_of_page(&rig, take(&rig, OWN_FRAME)), 2);
	CHECK_EQ(ch__pool_take_span(rig.pool, all, PAGES_FRAME, CH__SPAN_CODE), 3 * all);
	rig_check(&rig);
	ch__pool_release_span(rig.pool, span);
	rig_check(&rig);
	/* Chunk 1 is wholly free and joins; chunk 2 holds a page. */
	CHECK_EQ(heard->count, 0);
	CHECK_EQ(ch__pool_take_span(rig.pool, 2 * all - 1, PAGES_FRAME, CH__SPAN_CODE), 1);
	CHECK_EQ(heard->count, 1);
	CHECK_EQ(heard->chunks[0], 1);
}

TEST_ZONES(pool_of_one_chunk_serves_one_zone_at_a_time, MIB / 4)
{
	uint32_t page = take(&rig, PAGES_FRAME);
	CHECK_EQ(ch__pool_take_page(rig.pool, OWN_FRAME), CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	CHECK_EQ(ch__pool_take_span(rig.pool, 1, OWN_FRAME, CH__SPAN_CODE), CH__PAGE_NONE);
	ch__pool_retire_page(rig.pool, page);
	CHECK_EQ(ch__pool_take_span(rig.pool, rig.pool->page_count, OWN_FRAME, CH__SPAN_CODE), 0);
	CHECK_EQ(heard->count, 1);
	CHECK_EQ(ch__pool_take_page(rig.pool, PAGES_FRAME), CH__PAGE_NONE);
	ch__pool_release_span(rig.pool, 0);
	take(&rig, PAGES_FRAME);
}

TEST_ZONES(check_walk_sees_a_page_in_a_chunk_of_another_zone, 2 * MIB)
{
	uint32_t page = take(&rig, PAGES_FRAME);
	char reason[200];
	rig.pool->pages[page].frame = OWN_FRAME;
	CHECK(!rig_is_sound(rig.pool, reason, sizeof reason));
	CHECK(strstr(reason, "another zone"));
	rig.pool->pages[page].frame = PAGES_FRAME;
}

TEST_ZONES(pages_of_code_in_place_are_for_any_use_afterwards, 2 * MIB)
{
	uint32_t span = ch__pool_take_span(rig.pool, 2, PAGES_FRAME, CH__SPAN_IN_PLACE);
	CHECK(span < CH__PAGE_NO_ACCESS);
	CHECK(ch__pool_land_span(rig.pool, span, 0));
	ch__pool_release_span(rig.pool, span);
	CHECK_EQ(ch__pool_span_use(rig.pool, span), CH__SPAN_CODE);
}

/* The system takes no execute access away and gives none back: the page waits, in the zone of the
 * kind that asked for it. */
TEST_ZONES(page_that_waits_for_the_system_is_of_the_zone_that_took_it, 2 * MIB)
{
	uint32_t page = take(&rig, PAGES_FRAME);
	ch__pool_retire_page(rig.pool, page);
	ch__os_fail_at(1, true);
	CHECK_EQ(ch__pool_take_page(rig.pool, DATA_FRAME), CH__PAGE_NO_ACCESS);
	CHECK(errno != 0);
	ch__os_fail_at(0, false);
	CHECK_EQ(heard->count, 1); /* the chunk of code serves data */
	CHECK_EQ(rig.pool->inner->spans_retired, 1);
	rig_check(&rig);
	CHECK(rig_retry_retired(rig.pool));
}

/* The room itself would leave no memory. */
TEST(memory_behind_a_room_counts_as_memory_that_code_could_leave)
{
	struct pool_rig rig = rig_start(8 * MIB);
	uint32_t pages = 2 * ch__pool_chunk_pages(rig.pool);
	uint32_t room = ch__pool_take_span(rig.pool, pages, 0, CH__SPAN_ROOM);
	if (room >= CH__PAGE_NO_ACCESS || !ch__pool_span_is_room(rig.pool, room))
		skip("no rooms in private memory, under a translator or a limit of address space");
	uint32_t page = rig_take(&rig);
	CHECK(page > room);
	uint32_t had = rig.pool->inner->chunks[ch__pool_chunk_of(rig.pool, page)].pages;
	ch__os_pretended.commit_error = ENOSPC;
	CHECK_EQ(ch__pool_take_span(rig.pool, had, 0, CH__SPAN_CODE), CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	ch__os_pretended.commit_error = 0;
	ch__pool_release_span(rig.pool, room);
	rig_destroy(&rig);
}

/* With the FREE pages between; the spans of another chunk stay apart. */
TEST_ZONES(spans_of_a_chunk_that_wait_for_the_system_become_one, 2 * MIB)
{
	uint32_t all = chunk_pages(&rig);
	struct ch__pool *pool = rig.pool;
	CHECK_EQ(ch__pool_take_span(pool, 1, OWN_FRAME, CH__SPAN_DATA), 0);
	CHECK_EQ(ch__pool_take_span(pool, all - 1, OWN_FRAME, CH__SPAN_CODE), 1);
	CHECK_EQ(ch__pool_take_span(pool, 1, OWN_FRAME, CH__SPAN_DATA), all);
	CHECK_EQ(ch__pool_take_span(pool, 1, OWN_FRAME, CH__SPAN_CODE), all + 1);
	CHECK_EQ(ch__pool_take_span(pool, 2, OWN_FRAME, CH__SPAN_DATA), all + 2);
	ch__pool_release_span(pool, 1);
	ch__pool_release_span(pool, all + 1);
	ch__os_fail_at(1, true);
	ch__pool_release_span(pool, 0);
	ch__pool_release_span(pool, all);
	ch__pool_release_span(pool, all + 2);
	CHECK_EQ(pool->inner->spans_retired, 3);
	CHECK(!rig_retry_retired(pool));
	CHECK_EQ(pool->inner->spans_retired, 2);
	CHECK_EQ(pool->pages[0].span_pages, 1);
	CHECK_EQ(pool->pages[all].span_pages, 4);
	ch__os_fail_at(0, false);
	CHECK(rig_retry_retired(pool));
	for (uint32_t i = 0; i < all + 4; i++)
		CHECK_EQ(ch__page_state(&pool->pages[i]), CH__PAGE_FREE);
}

/* Nobody refused memory: with the pages that wait there would be too few, too. */
TEST_ZONES(pool_without_room_has_no_error_of_a_span_that_waits_for_the_system, 2 * MIB)
{
	uint32_t span = ch__pool_take_span(rig.pool, 2, OWN_FRAME, CH__SPAN_DATA);
	ch__os_fail_at(1, true);
	ch__pool_release_span(rig.pool, span);
	CHECK_EQ(rig.pool->inner->spans_retired, 1);
	errno = EIO;
	CHECK_EQ(ch__pool_take_span(rig.pool, rig.pool->page_count, OWN_FRAME, CH__SPAN_CODE),
		 CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	ch__os_fail_at(0, false);
	CHECK(rig_retry_retired(rig.pool));
}

/* The pages run again from the moment that the system maps them: by then they are traps. */
TEST_ZONES(span_that_waits_for_the_system_holds_traps, 2 * MIB)
{
	uint32_t span = ch__pool_take_span(rig.pool, 2, OWN_FRAME, CH__SPAN_DATA);
	size_t bytes = (size_t)2 << rig.pool->page_log2;
	uintptr_t exec = ch__pool_page_exec(rig.pool, span);
	memset((void *)exec, 0, bytes);
	ch__pool_take_over(rig.pool, exec, bytes);
	ch__os_fail_at(1, true);
	ch__pool_release_span(rig.pool, span);
	ch__os_fail_at(0, false);
	CHECK_EQ(rig.pool->inner->spans_retired, 1);
	CHECK(ch__arch_are_traps(ch__pool_read(rig.pool, exec), bytes));
	CHECK(rig_retry_retired(rig.pool));
}

/* Pages and spans of all zones come and go at random; the check judges. */
TEST_ZONES(zones_come_and_go_at_random, 8 * MIB)
{
	static const uint8_t frames[] = {PAGES_FRAME,       SLOTS_FRAME,  OWN_FRAME,
					 OTHER_PAGES_FRAME, RODATA_FRAME, DATA_FRAME};
	enum { HELD = 64 };
	uint32_t held[HELD];
	bool is_span[HELD], is_held[HELD] = {false};
	struct test_random random = test_random_new();
	for (unsigned i = 0; i < 20000; i++) {
		unsigned at = (unsigned)test_random_below(&random, HELD);
		uint8_t frame = frames[test_random_below(&random, sizeof frames)];
		if (is_held[at]) {
			if (is_span[at])
				ch__pool_release_span(rig.pool, held[at]);
			else
				ch__pool_retire_page(rig.pool, held[at]);
			is_held[at] = false;
		} else {
			is_span[at] = frame < RODATA_FRAME && test_random_below(&random, 4) == 0;
			uint32_t pages = 1 + (uint32_t)test_random_below(&random, 90);
			held[at] = is_span[at] ? ch__pool_take_span(rig.pool, pages, frame,
								    CH__SPAN_CODE)
					       : ch__pool_take_page(rig.pool, frame);
			is_held[at] = held[at] != CH__PAGE_NONE;
		}
		if (test_random_below(&random, 64) == 0)
			ch__pool_trim(rig.pool);
		if (i % 64 == 0)
			rig_check(&rig);
	}
	CHECK(heard->count > 10);
}

/* A failing call leaves a sound pool, and a later call serves. */
TEST(each_failing_call_leaves_sound_zones)
{
	for (uint64_t n = 1, calls = 1; n <= calls; n++) {
		struct heard heard = {.count = 0};
		struct pool_rig rig;
		zone_rig(&rig, 8 * MIB, &heard);
		ch__os_fail_at(n, false);
		uint32_t page = ch__pool_take_page(rig.pool, PAGES_FRAME);
		uint32_t span = ch__pool_take_span(rig.pool, 2 * chunk_pages(&rig) + 1, OWN_FRAME,
						   CH__SPAN_CODE);
		uint32_t data = ch__pool_take_page(rig.pool, DATA_FRAME);
		if (page != CH__PAGE_NONE)
			ch__pool_retire_page(rig.pool, page);
		if (data < CH__PAGE_NO_ACCESS)
			ch__pool_retire_page(rig.pool, data);
		if (span != CH__PAGE_NONE)
			ch__pool_release_span(rig.pool, span);
		uint32_t slots = ch__pool_take_span(rig.pool, 3 * chunk_pages(&rig), SLOTS_FRAME,
						    CH__SPAN_CODE);
		ch__pool_trim(rig.pool);
		calls = n < calls ? calls : ch__os_failable_calls() + 1;
		ch__os_fail_at(0, false);
		rig_check(&rig);
		for (uint32_t i = 0; i < rig.pool->page_count; i++)
			if (ch__page_state(&rig.pool->pages[i]) == CH__PAGE_FREE)
				CHECK_EQ(ch__pool_span_use(rig.pool, i), CH__SPAN_CODE);
		/* The page is executable again, at the second try at the latest. */
		CHECK(rig_retry_retired(rig.pool));
		if (data < CH__PAGE_NO_ACCESS)
			CHECK_EQ(rig.pool->pages[data].span_use, CH__SPAN_CODE);
		if (slots != CH__PAGE_NONE)
			ch__pool_release_span(rig.pool, slots);
		take(&rig, OWN_FRAME);
		CHECK(ch__pool_take_span(rig.pool, 4 * chunk_pages(&rig), PAGES_FRAME,
					 CH__SPAN_CODE) != CH__PAGE_NONE);
		rig_destroy(&rig);
	}
}
