/* SPDX-License-Identifier: MIT
 * check.c: the walk over a pool's invariants sees each broken invariant, names the page and the
 * fault, and sees nothing once the pool is whole again. */
#include "pages/chunks.h"
#include "tests/support/poke.h"
#include "tests/support/pool_rig.h"

#include <pthread.h>
#include <time.h>

enum { MIB = 1 << 20, SPAN = 3 };

/* A pool with a page of each state. */
static struct pool_rig rig;
static uint32_t partly, open_page, span, unused;

static struct ch__page *at(uint32_t page)
{
	return &rig.pool->pages[page];
}

static uint32_t chunk_of(uint32_t page)
{
	return page >> (rig.pool->chunk_log2 - rig.pool->page_log2);
}

static uint32_t free_list(void)
{
	return ch__free_list(rig.pool, rig.pool->inner->chunks[chunk_of(unused)].zone);
}

static uint32_t first_free(void)
{
	return at(free_list())->next;
}

static uint8_t *bytes_of(uint32_t page, uint32_t offset)
{
	return ch__pool_write(rig.pool, ch__pool_page_exec(rig.pool, page) + offset);
}

static void start(void)
{
	struct ch__pool_config config = rig_config(2 * MIB);
	rig = rig_create(&config);
	partly = rig_take(&rig);
	open_page = rig_take(&rig);
	rig_reserve(&rig, partly, 64);
	rig_reserve(&rig, open_page, 64);
	ch__page_set_start(rig.pool, partly << rig.pool->page_log2, true);
	ch__pool_retire_page(rig.pool, partly);
	span = ch__pool_take_span(rig.pool, SPAN, 0, CH__SPAN_CODE);
	CHECK(span != CH__PAGE_NONE);
	CHECK_EQ(ch__page_state(at(partly)), CH__PAGE_PARTLY);
	unused = UINT32_MAX;
	for (uint32_t i = 0; i < rig.pool->page_count && unused == UINT32_MAX; i++)
		if (ch__page_state(at(i)) == CH__PAGE_FREE && ch__pool_page_is_backed(rig.pool, i))
			unused = i;
	CHECK(unused != UINT32_MAX);
	rig_check(&rig);
}

/* --- ways to break the pool --- */

static void links(void)
{
	POKE(at(at(first_free())->next)->prev, free_list());
}
static void state(void)
{
	POKE(at(first_free())->state, CH__PAGE_OPEN);
}
static void frame(void)
{
	POKE(at(partly)->frame, 1);
}
static void zone(void)
{
	POKE(rig.pool->inner->chunks[chunk_of(first_free())].zone, CH__ZONE_OWN);
}
static void end(void)
{
	POKE(at(free_list())->prev, first_free());
}
static void circle(void)
{
	POKE(at(at(free_list())->prev)->next, first_free());
}
static void short_span(void)
{
	POKE(at(span)->span_pages, SPAN - 1);
}
static void span_ahead(void)
{
	POKE(at(span + 1)->span_first, span + 2);
}
static void nested(void)
{
	POKE(at(span + 1)->span_pages, 1);
}
static void count(void)
{
	POKE(at(partly)->used_granules, at(partly)->used_granules + 1);
}
static void stray_start(void)
{
	uint32_t granule = (open_page + 1) * ch__pool_granules(rig.pool) - 1;
	POKE(rig.pool->starts[granule / 64],
	     rig.pool->starts[granule / 64] | UINT64_C(1) << granule % 64);
}
static void free_in_use(void)
{
	uint32_t granule = unused * ch__pool_granules(rig.pool) + 9;
	POKE(rig.pool->used[granule / 64], rig.pool->used[granule / 64] | UINT64_C(1)
										  << granule % 64);
	POKE(at(unused)->used_granules, 1);
}
static void crossed(void)
{
	POKE(at(partly)->hot_cursor, at(partly)->cold_cursor + 1);
}
static void cursor_behind(void)
{
	POKE(at(partly)->cold_cursor, ch__pool_granules(rig.pool) + 1);
}
static void no_memory(void)
{
	POKE(at(open_page)->has_memory, false);
}
static void memory_uncounted(void)
{
	POKE(rig.pool->inner->chunks[chunk_of(open_page)].pages, 1);
}
static void empty_with_memory(void)
{
	POKE(rig.pool->inner->chunks[chunk_of(partly)].lingers, true);
}
static void other_zone(void)
{
	POKE(rig.pool->inner->config.zones[0], CH__ZONE_OWN);
}
static void no_trap(void)
{
	uint8_t *last = bytes_of(unused + 1, 0) - 1;
	POKE(*last, ~*last);
}
static void no_first_trap(void)
{
	uint8_t *first = bytes_of(unused, 0);
	POKE(*first, ~*first);
}
static void free_in_place(void)
{
	POKE(at(unused)->span_use, CH__SPAN_IN_PLACE | CH__SPAN_LANDED);
}
static void code_as_data(void)
{
	POKE(at(open_page)->span_use, CH__PAGE_DATA);
}
static void unlisted(void)
{
	uint32_t second = at(first_free())->next;
	POKE(at(free_list())->next, second);
	POKE(at(second)->prev, free_list());
}
static void open_count(void)
{
	POKE(rig.pool->pages_open, rig.pool->pages_open + 1);
}
static void gauge(void)
{
	POKE(rig.pool->pages_used, rig.pool->pages_used + 1);
}
static void peak(void)
{
	POKE(rig.pool->pages_peak, rig.pool->pages_used - 1);
}
static void memory_gauge(void)
{
	POKE(rig.pool->pages_committed, rig.pool->pages_committed + 1);
}
static void retired_count(void)
{
	POKE(rig.pool->inner->spans_retired, 1);
}

TEST(check_walk_sees_each_invariant_of_a_pool_broken)
{
	static const struct {
		void (*breaks)(void);
		const char *says;
	} ways[] = {
		{links, "list links disagree"},
		{state, "on the list of another state"},
		{frame, "on the list of another frame number"},
		{zone, "on the free list of another zone"},
		{end, "list ends elsewhere"},
		{circle, "list links disagree"},
		{short_span, "span does not reach it"},
		{span_ahead, "span does not reach it"},
		{nested, "span within a span"},
		{count, "count and bitmap of used granules disagree"},
		{stray_start, "start in an unused granule"},
		{free_in_use, "free and in use"},
		{crossed, "cursors crossed"},
		{cursor_behind, "cursors crossed"},
		{no_memory, "in use without memory"},
		{empty_with_memory, "its chunk has memory, and was given up"},
		{memory_uncounted, "its chunk counts other pages with memory"},
		{other_zone, "in a chunk of another zone"},
		{no_trap, "unused granule without trap"},
		{no_first_trap, "unused granule without trap"},
		{free_in_place, "mapped for another use"},
		{code_as_data, "mapped for another use"},
		{unlisted, "pages listed too many or too few"},
		{open_count, "open, but the count differs"},
		{gauge, "in use, but the gauge differs"},
		{peak, "in use, more than the most"},
		{memory_gauge, "have memory, but the gauge differs"},
		{retired_count, "spans are retired, but the count differs"},
	};
	start();
	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
		char reason[200] = "";
		ways[i].breaks();
		bool is_sound = rig_is_sound(rig.pool, reason, sizeof reason);
		poke_undo();
		if (is_sound || !strstr(reason, ways[i].says))
			FAIL("way %u: it should say \"%s\", and says \"%s\"", i, ways[i].says,
			     is_sound ? "all is well" : reason);
		rig_check(&rig);
	}
	rig_destroy(&rig);
}

TEST(missing_trap_is_named_by_its_address)
{
	char reason[200], at[32];
	start();
	no_trap();
	CHECK(!rig_is_sound(rig.pool, reason, sizeof reason));
	poke_undo();
	const char *end = (const char *)ch__pool_page_exec(rig.pool, unused + 1);
	snprintf(at, sizeof at, ", at %p", (const void *)(end - CH__GRANULE_BYTES));
	CHECK(strstr(reason, at));
	rig_destroy(&rig);
}

static atomic_bool has_walked;

static void *check_pool(void *is_sound)
{
	char reason[200];
	*(bool *)is_sound = rig_is_sound(rig.pool, reason, sizeof reason);
	atomic_store(&has_walked, true);
	return NULL;
}

static long cpu_ms(pthread_t thread)
{
	struct timespec used;
	clockid_t clock;
	CHECK_EQ(pthread_getcpuclockid(thread, &clock), 0);
	CHECK_EQ(clock_gettime(clock, &used), 0);
	return used.tv_sec * 1000 + used.tv_nsec / 1000000;
}

/* Who takes granules changes the bitmap, then the count. */
TEST(check_walk_waits_for_who_changes_a_page)
{
	bool is_sound = false;
	pthread_t thread;
	start();
	ch__page_lock(at(partly));
	count();
	CHECK_EQ(pthread_create(&thread, NULL, check_pool, &is_sound), 0);
	/* Who waits for a page spins. A walk that does not wait has been at the page by then. */
	TEST_UNTIL(atomic_load(&has_walked) || cpu_ms(thread) >= 50);
	CHECK(!atomic_load(&has_walked));
	poke_undo();
	ch__page_unlock(at(partly));
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(is_sound);
	rig_destroy(&rig);
}
