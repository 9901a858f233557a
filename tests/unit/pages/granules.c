/* SPDX-License-Identifier: MIT
 * granules.c: placement of hot and cold parts, holes, cursors and block starts, against a model
 * with one byte a granule. */
#include "tests/support/pool_rig.h"

#include <pthread.h>
#include <signal.h>

enum { POOL_BYTES = 1 << 20 };

static uint32_t granules_of(const struct pool_rig *rig)
{
	return UINT32_C(1) << (rig->pool->page_log2 - 3);
}

TEST_POOL(reserve_puts_hot_up_and_cold_down_until_they_meet, POOL_BYTES)
{
	uint32_t page = rig_take(&rig), hot, cold, base = page << rig.pool->page_log2;
	uint32_t low = base, high = base + (1u << rig.pool->page_log2);
	while (high - low >= 24) {
		CHECK(ch__page_reserve(rig.pool, page, 9, 3, 0, &hot,
				       &cold)); /* rounded to 16 and 8 */
		CHECK_EQ(hot, low);
		CHECK_EQ(cold, high - 8);
		low += 16;
		high -= 8;
	}
	CHECK(!ch__page_reserve(rig.pool, page, 16, 8, 0, &hot, &cold));
	CHECK_EQ(rig.pool->pages[page].freed_granules, 0);
	CHECK_EQ(rig.pool->pages[page].used_granules, granules_of(&rig) - (high - low) / 8);
	if (high > low) {
		CHECK(ch__page_reserve(rig.pool, page, high - low, 0, 0, &hot, &cold));
		CHECK_EQ(hot, low);
	}
	CHECK(!ch__page_reserve(rig.pool, page, 1, 0, 0, &hot, &cold));
	CHECK(!ch__page_reserve(rig.pool, page, 0, 1, 0, &hot, &cold));
	CHECK(!ch__page_reserve(rig.pool, page, UINT32_MAX, 0, 0, &hot, &cold));
	CHECK(!ch__page_reserve(rig.pool, page, 0, UINT32_MAX - 6, 0, &hot, &cold));
}

TEST_POOL(reserve_of_a_pair_is_all_or_nothing, POOL_BYTES)
{
	uint32_t page = rig_take(&rig), hot, cold, page_bytes = 1u << rig.pool->page_log2;
	CHECK(!ch__page_reserve(rig.pool, page, page_bytes, 8, 0, &hot, &cold));
	CHECK_EQ(rig.pool->pages[page].used_granules, 0);
	CHECK(ch__page_has_room(rig.pool, page, page_bytes - 8, 8));
	CHECK(ch__page_reserve(rig.pool, page, page_bytes - 8, 8, 0, &hot, &cold));
	CHECK_EQ(rig.pool->pages[page].used_granules, granules_of(&rig));
}

TEST_POOL(last_part_given_back_moves_the_cursor_back, POOL_BYTES)
{
	uint32_t page = rig_take(&rig), hot[3], cold[3];
	for (unsigned i = 0; i < 3; i++)
		CHECK(ch__page_reserve(rig.pool, page, 64, 16, 0, &hot[i], &cold[i]));
	ch__page_give_back(rig.pool, page, hot[2], 64);
	ch__page_give_back(rig.pool, page, cold[2], 16);
	uint32_t again_hot, again_cold;
	CHECK(ch__page_reserve(rig.pool, page, 64, 16, 0, &again_hot, &again_cold));
	CHECK_EQ(again_hot, hot[2]);
	CHECK_EQ(again_cold, cold[2]);
}

/* The first part to come back leaves the cursors where they were. */
TEST_POOL(open_page_that_came_back_whole_is_served_whole, POOL_BYTES)
{
	uint32_t page = rig_take(&rig), hot[2], cold[2];
	for (unsigned i = 0; i < 2; i++)
		CHECK(ch__page_reserve(rig.pool, page, 64, 16, 0, &hot[i], &cold[i]));
	for (unsigned i = 0; i < 2; i++) {
		ch__page_give_back(rig.pool, page, hot[i], 64);
		ch__page_give_back(rig.pool, page, cold[i], 16);
	}
	CHECK(ch__page_reserve(rig.pool, page, granules_of(&rig) * 8, 0, 0, &hot[0], &cold[0]));
}

static void give_back_twice(void *arg)
{
	struct pool_rig *rig = arg;
	uint32_t page = rig_take(rig), hot, cold;
	if (!ch__page_reserve(rig->pool, page, 64, 16, 0, &hot, &cold))
		return;
	ch__page_give_back(rig->pool, page, hot, 64);
	ch__page_give_back(rig->pool, page, hot, 64);
}

TEST_POOL(give_back_twice_panics, POOL_BYTES)
{
	rig_follow_forks(&rig);
	char text[400] = "";
	expect_signal_text(give_back_twice, &rig, CH_CHECK > 0 ? SIGABRT : 0, text, sizeof text);
	CHECK(CH_CHECK == 0 || strstr(text, "granules given back twice"));
}

/* While the page is empty, only what was noted can refuse. */
TEST_POOL(page_is_not_searched_again_for_what_it_refused, POOL_BYTES)
{
	enum { HOT = 4, COLD = 2 };
	uint32_t page = rig_take(&rig);
	rig.pool->pages[page].refused_hot = HOT;
	rig.pool->pages[page].refused_cold = COLD;
	CHECK(!ch__page_has_room(rig.pool, page, HOT * 8, COLD * 8));
	CHECK(!ch__page_has_room(rig.pool, page, HOT * 8 + 8, COLD * 8 + 8));
	CHECK(ch__page_has_room(rig.pool, page, HOT * 8 - 8, COLD * 8));
	CHECK(ch__page_has_room(rig.pool, page, HOT * 8, COLD * 8 - 8));
	rig_reserve(&rig, page, granules_of(&rig) * 8);
	CHECK(!ch__page_has_room(rig.pool, page, 8, COLD * 8));
	CHECK_EQ(rig.pool->pages[page].refused_hot, 1);
	CHECK_EQ(rig.pool->pages[page].refused_cold, 0);
}

/* A page that refused ten granules is not searched for four, where the largest hole has three. */
TEST_POOL(page_that_refuses_notes_the_largest_of_its_holes, POOL_BYTES)
{
	uint32_t page = rig_take(&rig);
	const struct ch__page *record = &rig.pool->pages[page];
	uintptr_t all = rig_reserve(&rig, page, granules_of(&rig) * 8);
	rig_give_back(&rig, all + 8, 8);
	rig_give_back(&rig, all + 80, 24);
	CHECK(!ch__page_has_room(rig.pool, page, 80, 0));
	CHECK_EQ(record->refused_hot, 4);
	CHECK_EQ(record->refused_cold, 0);
	CHECK(ch__page_refuses(record, 32, 0));
	CHECK(!ch__page_refuses(record, 24, 0));
	/* Of two parts only both are refused. */
	CHECK(!ch__page_has_room(rig.pool, page, 16, 16));
	CHECK(ch__page_refuses(record, 16, 16));
	CHECK(!ch__page_refuses(record, 16, 8));
	CHECK(ch__page_has_room(rig.pool, page, 16, 8));
	CHECK(ch__page_has_room(rig.pool, page, 24, 0));
	rig_give_back(&rig, all + 8 * 32, 8);
	CHECK(!ch__page_refuses(record, 80, 0));
}

/* --- holes of the exact size --- */

/* Does as listing the page and taking it again does. */
static void reset_cursors(const struct pool_rig *rig, uint32_t page)
{
	rig->pool->pages[page].hot_cursor = 0;
	rig->pool->pages[page].cold_cursor = (uint16_t)granules_of(rig);
}

/* A hot part and a cold part, of hot_n and cold_n granules, fill the page's only hole, at `at`. */
static void fill_hole(const struct pool_rig *rig, uint32_t page, uint32_t at, uint32_t hot_n,
		      uint32_t cold_n)
{
	uint32_t hot, cold, place = (page << rig->pool->page_log2) + at * CH__GRANULE_BYTES;
	size_t hot_bytes = (size_t)hot_n * CH__GRANULE_BYTES;
	size_t cold_bytes = (size_t)cold_n * CH__GRANULE_BYTES;
	struct ch__pool *pool = rig->pool;
	CHECK(!ch__page_has_room(pool, page, hot_n ? hot_bytes + 8 : 0, cold_bytes + !hot_n * 8u));
	CHECK(ch__page_has_room(pool, page, hot_bytes, cold_bytes));
	CHECK(ch__page_reserve(pool, page, hot_bytes, cold_bytes, 0, &hot, &cold));
	CHECK(!hot_n || hot == place);
	CHECK(!cold_n || cold == place + hot_bytes);
	if (hot_n)
		ch__page_give_back(pool, page, hot, hot_bytes);
	if (cold_n)
		ch__page_give_back(pool, page, cold, cold_bytes);
}

TEST_POOL(hole_of_just_the_size_is_found_at_either_end_of_a_page, POOL_BYTES)
{
	enum { LONGEST = 130 };
	uint32_t page = rig_take(&rig), granules = granules_of(&rig);
	uint32_t base = page << rig.pool->page_log2, hot, cold;
	for (uint32_t n = 1; n <= LONGEST; n++)
		for (int is_high = 0; is_high < 2; is_high++) {
			uint32_t at = is_high ? granules - n : 0, end = at + n;
			size_t whole = (size_t)granules * CH__GRANULE_BYTES;
			CHECK(ch__page_reserve(rig.pool, page, whole, 0, 0, &hot, &cold));
			ch__page_give_back(rig.pool, page, base + at * CH__GRANULE_BYTES,
					   (size_t)n * CH__GRANULE_BYTES);
			for (uint32_t hot_n = 0; hot_n <= n; hot_n += n < 8 ? 1 : n / 2) {
				reset_cursors(&rig, page);
				fill_hole(&rig, page, at, hot_n, n - hot_n);
				/* The cursors are at the ends of the hole. */
				rig.pool->pages[page].hot_cursor = (uint16_t)at;
				rig.pool->pages[page].cold_cursor = (uint16_t)end;
				CHECK(ch__page_reserve(rig.pool, page, (size_t)hot_n * 8,
						       (size_t)(n - hot_n) * 8, 0, &hot, &cold));
				ch__page_give_back(rig.pool, page, base + at * CH__GRANULE_BYTES,
						   (size_t)n * CH__GRANULE_BYTES);
			}
			if (at > 0)
				ch__page_give_back(rig.pool, page, base,
						   (size_t)at * CH__GRANULE_BYTES);
			if (end < granules)
				ch__page_give_back(rig.pool, page, base + end * CH__GRANULE_BYTES,
						   (size_t)(granules - end) * CH__GRANULE_BYTES);
			CHECK_EQ(rig.pool->pages[page].used_granules, 0);
		}
}

/* --- random pairs against a byte map --- */

enum { MAX_PARTS = 4096 };
static uint8_t model[8192];
static struct {
	uint32_t at, n;
} parts[MAX_PARTS];
static unsigned part_count;

static bool model_fits(uint32_t at, uint32_t n, uint32_t granules)
{
	for (uint32_t i = at; i < at + n; i++)
		if (i >= granules || model[i])
			return false;
	return true;
}

static bool model_has_hole(uint32_t from, uint32_t limit, uint32_t n)
{
	for (uint32_t at = from; at + n <= limit; at++)
		if (model_fits(at, n, limit))
			return true;
	return false;
}

static void note_part(uint32_t at, uint32_t n)
{
	if (!n)
		return;
	memset(model + at, 1, n);
	parts[part_count].at = at;
	parts[part_count++].n = n;
}

static void drop_random_part(struct pool_rig *rig, uint32_t page, struct test_random *random)
{
	unsigned which = (unsigned)test_random_below(random, part_count);
	uint32_t at = parts[which].at, n = parts[which].n;
	memset(model + at, 0, n);
	ch__page_give_back(rig->pool, page, (page << rig->pool->page_log2) + at * 8, n * 8);
	parts[which] = parts[--part_count];
}

/* Cold parts of which most comes back lie one behind the other, and the last one borders the hot
 * parts. Without spare bytes parts of the same size would lie a whole part apart. */
TEST_POOL(cold_parts_lie_behind_each_other_where_the_rest_of_one_came_back, POOL_BYTES)
{
	enum { ASKED = 1024, USED = 64, HOT = 64 };
	uint32_t page = rig_take(&rig), hot, cold, before = 0, count = 0, behind = 0;
	uint32_t end = (page + 1) << rig.pool->page_log2;
	while (ch__page_reserve(rig.pool, page, HOT, ASKED, 3 * ASKED, &hot, &cold)) {
		CHECK(cold >= hot + HOT && cold + ASKED <= end);
		behind += cold == before + USED;
		ch__page_give_back(rig.pool, page, cold + USED, ASKED - USED);
		before = cold;
		count++;
	}
	uint32_t page_bytes = UINT32_C(1) << rig.pool->page_log2;
	/* At the page's end lies a part for which nothing came back before. */
	CHECK(behind >= count - 1 - page_bytes / ASKED / 2);
	if (page_bytes > 4096)
		CHECK(count * (HOT + USED) > page_bytes / 2);
}

TEST_POOL(random_pairs_never_overlap_and_fail_only_without_a_hole, POOL_BYTES)
{
	struct test_random random = test_random_new();
	uint32_t page = rig_take(&rig), granules = granules_of(&rig),
		 base = page << rig.pool->page_log2;
	struct ch__page *record = &rig.pool->pages[page];
	unsigned failures = 0, single_failures = 0;
	for (unsigned step = 0; step < 100000; step++) {
		if (test_random_below(&random, 2) && part_count) {
			drop_random_part(&rig, page, &random);
			continue;
		}
		uint32_t big = test_random_below(&random, 8) ? 30 : 200, hot, cold;
		uint32_t hot_n = (uint32_t)test_random_below(&random, big);
		uint32_t cold_n = (uint32_t)test_random_below(&random, 10) * (uint32_t)(step & 1);
		uint32_t from = record->hot_cursor, limit = record->cold_cursor;
		uint32_t next = record->cold_next, spare = step % 5 ? 0 : 24 * cold_n;
		if (part_count + 2 > MAX_PARTS)
			continue;
		if (!ch__page_reserve(rig.pool, page, hot_n * 8, cold_n * 8, spare, &hot, &cold)) {
			if (cold_n == 0) {
				CHECK(!model_has_hole(from, limit, hot_n));
				single_failures++;
			}
			failures++;
			if (step % 3 == 0) { /* like a page listed and taken again */
				record->hot_cursor = 0;
				record->cold_cursor = record->cold_next = (uint16_t)granules;
			}
			continue;
		}
		uint32_t hot_at = (hot - base) / 8, cold_at = (cold - base) / 8;
		if (hot_n) {
			CHECK(hot_at >= from && hot_at + hot_n <= limit &&
			      model_fits(hot_at, hot_n, granules));
			note_part(hot_at, hot_n);
		}
		if (cold_n) {
			CHECK(cold_at == next || cold_at + cold_n <= limit);
			CHECK(model_fits(cold_at, cold_n, granules));
			note_part(cold_at, cold_n);
		}
	}
	uint32_t used = 0;
	for (uint32_t i = 0; i < granules; i++)
		used += model[i];
	CHECK_EQ(used, record->used_granules);
	CHECK(failures > 0 && single_failures > 0);
}

/* --- starts --- */

TEST(find_start_gives_the_last_start_at_or_below_in_its_page)
{
	struct pool_rig rig = rig_start(POOL_BYTES);
	struct test_random random = test_random_new();
	uint32_t page_bytes = 1u << rig.pool->page_log2, page = 3, base = page * page_bytes;
	ch__page_set_start(rig.pool, base - 8, true); /* the page before must not answer */
	ch__page_set_start(rig.pool, base + page_bytes, true);
	for (unsigned round = 0; round < 30; round++) {
		memset(model, 0, sizeof model);
		for (unsigned i = 0; i < round; i++) {
			uint32_t g = (uint32_t)test_random_below(&random, page_bytes / 8);
			model[g] = 1;
			ch__page_set_start(rig.pool, base + g * 8, true);
		}
		uint32_t expected = UINT32_MAX;
		for (uint32_t offset = 0; offset < page_bytes; offset++) {
			if (offset % 8 == 0 && model[offset / 8])
				expected = base + offset;
			CHECK_EQ(ch__page_find_start(rig.pool, base + offset), expected);
		}
		for (uint32_t g = 0; g < page_bytes / 8; g++)
			if (model[g])
				ch__page_set_start(rig.pool, base + g * 8, false);
		CHECK_EQ(ch__page_find_start(rig.pool, base + page_bytes - 1), UINT32_MAX);
	}
	ch__pool_destroy(rig.pool); /* its starts are of no block: no check would pass */
}

enum { TOGGLES = 800000, MEANWHILE = 8 };
struct toggler {
	struct ch__pool *pool;
	uint32_t kept, moved;
	pthread_barrier_t *both;
};

static void expect_kept(const struct toggler *t, bool is_set)
{
	for (int i = 0; i < MEANWHILE; i++) {
		ch__page_set_start(t->pool, t->moved, true);
		ch__page_set_start(t->pool, t->moved, false);
	}
	CHECK_EQ(ch__page_has_start(t->pool, t->kept), is_set);
}

static void *toggle(void *arg)
{
	const struct toggler *t = arg;
	pthread_barrier_wait(t->both);
	for (int i = 0; i < TOGGLES; i++) {
		ch__page_set_start(t->pool, t->kept, true);
		expect_kept(t, true);
		ch__page_set_start(t->pool, t->kept, false);
		expect_kept(t, false);
	}
	return NULL;
}

TEST_POOL(threads_change_starts_of_one_word_at_once, POOL_BYTES)
{
	pthread_barrier_t both;
	struct toggler one = {rig.pool, 0, 16, &both}, other = {rig.pool, 8, 24, &both};
	CHECK_EQ(pthread_barrier_init(&both, NULL, 2), 0);
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, toggle, &other), 0);
	toggle(&one);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* The bitmap's words of a page are counted from the pool's first page on. */
TEST_POOL(find_start_stays_in_a_page_far_up, 16 << 20)
{
	enum { FAR_UP = 8 << 20 };
	ch__page_set_start(rig.pool, FAR_UP - 8, true);
	CHECK_EQ(ch__page_find_start(rig.pool, FAR_UP), UINT32_MAX);
	ch__page_set_start(rig.pool, FAR_UP - 8, false);
}

TEST_POOL(find_start_crosses_the_pages_of_a_span, POOL_BYTES)
{
	uint32_t page_log2 = rig.pool->page_log2,
		 first = ch__pool_take_span(rig.pool, 3, 1, CH__SPAN_CODE);
	CHECK(first != CH__PAGE_NONE);
	uint32_t start = first << page_log2,
		 cold = (first + 3) * (1u << page_log2) - 64;
	ch__page_set_start(rig.pool, start, true);
	ch__page_set_start(rig.pool, cold, true);
	CHECK_EQ(ch__page_find_start(rig.pool, start + 5), start);
	CHECK_EQ(ch__page_find_start(rig.pool, (first + 2) << page_log2), start);
	CHECK_EQ(ch__page_find_start(rig.pool, cold - 1), start);
	CHECK_EQ(ch__page_find_start(rig.pool, cold + 63), cold);
	CHECK_EQ(ch__page_find_start(rig.pool, (first + 3) << page_log2), UINT32_MAX);
	ch__page_set_start(rig.pool, start, false);
	ch__page_set_start(rig.pool, cold, false);
	ch__pool_release_span(rig.pool, first);
}

/* The block is found by its start in the first page, from its cold part, too. No word between is
 * looked at: starts that the case plants there are seen from nearby only. */
TEST_POOL(find_start_passes_over_the_middle_of_a_large_span, 8 << 20)
{
	enum { SPAN = 4 << 20, COLD = 65535 * CH__GRANULE_BYTES };
	uint32_t page_log2 = rig.pool->page_log2;
	uint32_t first = ch__pool_take_span(rig.pool, SPAN >> page_log2, 1, CH__SPAN_CODE);
	CHECK(first != CH__PAGE_NONE);
	uint32_t start = (first << page_log2) + 64, end = (first << page_log2) + SPAN;
	uint32_t planted = start + SPAN / 2, near = end - COLD - 65536;
	ch__page_set_start(rig.pool, start, true);
	ch__page_set_start(rig.pool, planted, true);
	CHECK_EQ(ch__page_find_start(rig.pool, planted + 100), planted);
	CHECK_EQ(ch__page_find_start(rig.pool, planted + 4096), start);
	CHECK_EQ(ch__page_find_start(rig.pool, near), start);
	CHECK_EQ(ch__page_find_start(rig.pool, end - 1), start);
	CHECK_EQ(ch__page_find_start(rig.pool, end), UINT32_MAX);
	ch__page_set_start(rig.pool, end - COLD, true);
	CHECK_EQ(ch__page_find_start(rig.pool, end - COLD + 100), end - COLD);
	CHECK_EQ(ch__page_find_start(rig.pool, end - 1), start);
	CHECK_EQ(ch__page_find_start(rig.pool, end - COLD - 1), start);
	ch__page_set_start(rig.pool, start, false);
	CHECK_EQ(ch__page_find_start(rig.pool, near), UINT32_MAX);
	ch__page_set_start(rig.pool, planted, false);
	ch__page_set_start(rig.pool, end - COLD, false);
	ch__pool_release_span(rig.pool, first);
}
