/* SPDX-License-Identifier: MIT
 * pool.c: the life of a pool and of the pool's pages: creation and refusals, backends, lists,
 * commit, spans, trim, traps, protections by /proc/self/maps, PR_SET_MDWE, and the failure of every
 * call, one after another. */
#define _GNU_SOURCE
#include "tests/support/pool_rig.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

enum { MIB = 1 << 20 };

static int create_error(struct ch__pool_config config)
{
	struct ch__pool *pool = NULL;
	config = rig_wished(config);
	int error = ch__pool_create(&config, &pool);
	CHECK((error == 0) == (pool != NULL));
	if (pool)
		ch__pool_destroy(pool);
	return error;
}

TEST(each_backend_has_its_name)
{
	struct ch__pool_config config = rig_config(MIB);
	static const char *const names[] = {"dual", "memfd", "procmem"};
	enum ch_backend none = CH_BACKEND_AUTO;
	for (unsigned i = 0; i < 3; i++) {
		CHECK(ch__backend_of_name(names[i], &config.backend));
		CHECK_EQ(config.backend, (int)CH_BACKEND_DUAL + (int)i);
		if (!rig_may_have(config.backend))
			continue;
		struct pool_rig rig = rig_create(&config);
		CHECK_STR(ch__backend_names[rig.pool->backend], names[i]);
		rig_destroy(&rig);
	}
	CHECK(!ch__backend_of_name("flip", &none) && !ch__backend_of_name("", &none));
	CHECK_EQ(none, CH_BACKEND_AUTO);
}

TEST(memfd_beyond_the_file_size_limit_is_an_error_not_a_signal)
{
	struct ch__pool_config config = rig_config(4 * MIB);
	struct rlimit limit = {MIB, MIB};
	unsetenv("CODEHEAP_WX");
	config.backend = CH_BACKEND_MEMFD;
	struct pool_rig rig = rig_create(&config);
	limit.rlim_cur = rig.pool->runtime_bytes + rig.pool->pool_bytes;
	rig_destroy(&rig);
	limit.rlim_max = limit.rlim_cur;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	rig = rig_create(&config);
	rig_destroy(&rig);
	limit.rlim_cur--;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	CHECK_EQ(create_error(config), EFBIG);
}

static void expect_near(const struct ch__pool *pool, uintptr_t hint)
{
	intptr_t distance = (intptr_t)(pool->exec_base - hint);
	CHECK(distance < (INT64_C(1) << 30) && distance > -(INT64_C(1) << 30));
}

TEST(pool_is_aligned_near_its_hint_and_the_alias_is_far)
{
	struct ch__pool_config config = rig_config(64 * MIB);
	struct pool_rig rig = rig_create(&config);
	struct ch__pool *pool = rig.pool;
	CHECK_EQ(pool->exec_base % pool->pool_bytes, 0);
	CHECK_EQ(pool->runtime_exec + pool->runtime_bytes, pool->exec_base);
	CHECK(ch__arch_are_traps((const uint8_t *)pool->runtime_exec, pool->runtime_bytes));
	uintptr_t here = (uintptr_t)ch__pool_create;
	expect_near(pool, here);
	CHECK(pool->delta > 64 * MIB || pool->delta < -64 * MIB);
	intptr_t far = INT64_C(1) << 32;
	CHECK(CH_TSAN || pool->stub_lead_bytes || pool->delta > far ||
	      pool->delta < -far);
	CHECK(ch__pool_has(pool, pool->exec_base) &&
	      ch__pool_has(pool, pool->exec_base + pool->pool_bytes - 1));
	CHECK(!ch__pool_has(pool, pool->exec_base + pool->pool_bytes) &&
	      !ch__pool_has(pool, pool->exec_base - 1));
	/* A larger pool begins at the start of a chunk and a large page. */
	config.pool_bytes = 128 * MIB;
	for (int i = 0; i < 4; i++) {
		struct pool_rig large = rig_create(&config);
		CHECK_EQ(large.pool->exec_base % (64 * MIB), 0);
		rig_destroy(&large);
	}
	config.pool_bytes = 64 * MIB;
	/* A second pool finds a near place as well. */
	struct pool_rig other = rig_create(&config);
	expect_near(other.pool, here);
	rig_destroy(&other);
	config.near_address = CH_TSAN ? here + 64 * MIB : 0x200000000000;
	other = rig_create(&config);
	expect_near(other.pool, config.near_address);
	rig_destroy(&other);
	rig_destroy(&rig);
}

/* Each quarter of the GiB before the hint, and of the GiB behind, is partly taken. */
TEST(pool_finds_a_place_between_what_is_there)
{
	struct ch__pool_config config = rig_config((size_t)1 << CH_ARCH_POOL_LOG2_MAX);
	uintptr_t hint = UINT64_C(0x200000000000);
	static const unsigned at_mib[] = {240, 740};
	if (CH_TSAN)
		skip("memory may lie in some ranges only");
	if (config.pool_bytes > 256 * MIB)
		config.pool_bytes = 256 * MIB;
	config.near_address = hint;
	for (unsigned i = 0; i < 2; i++) {
		CHECK(ch__os_reserve_at((void *)(hint - (1024 - at_mib[i]) * MIB), 50 * MIB));
		CHECK(ch__os_reserve_at((void *)(hint + at_mib[i] * MIB), 50 * MIB));
	}
	for (int i = 0; i < 8; i++) {
		struct pool_rig rig = rig_create(&config);
		expect_near(rig.pool, hint);
		rig_destroy(&rig);
	}
}

/* --- /proc/self/maps --- */

/* Finds the protection of the mapping at an address. Fails when any mapping is writable and
 * executable. */
static void protection_at(uintptr_t at, char protection[5])
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	strcpy(protection, "none");
	while (fgets(line, sizeof line, maps)) {
		unsigned long low, high;
		char seen[5];
		if (sscanf(line, "%lx-%lx %4s", &low, &high, seen) != 3)
			continue;
		if (seen[1] == 'w' && seen[2] == 'x')
			FAIL("writable and executable: %s", line);
		if (at >= low && at < high)
			strcpy(protection, seen);
	}
	fclose(maps);
}

static void check_protection(uintptr_t at, const char *expected)
{
	char protection[5];
	protection_at(at, protection);
	CHECK_STR(protection, expected);
}

static void fill_chunks(const struct pool_rig *rig, unsigned chunks, uint32_t *pages,
			uint32_t *count)
{
	*count = 0;
	while (*count < chunks * (MIB >> rig->pool->page_log2))
		pages[(*count)++] = rig_take(rig);
	CHECK_EQ(rig->pool->pages_committed, *count);
}

static void core_has_what_is_used(enum ch_backend backend)
{
	struct ch__pool_config config = rig_config(8 * MIB);
	config.backend = backend;
	struct pool_rig rig = rig_create(&config);
	static uint32_t pages[4096], count;
	const uint8_t *exec = (const uint8_t *)rig.pool->exec_base;
	CHECK(mapping_has_flag(exec, " dd"));
	fill_chunks(&rig, 3, pages, &count);
	for (unsigned i = 0; i < 4; i++)
		CHECK_EQ(mapping_has_flag(exec + i * MIB, " dd"), i == 3);
	for (uint32_t i = 0; i < count; i++)
		ch__pool_retire_page(rig.pool, pages[i]);
	ch__pool_trim(rig.pool);
	for (unsigned i = 0; i < 3; i++) /* the first chunk is the spare one */
		CHECK_EQ(mapping_has_flag(exec + i * MIB, " dd"), i > 0);
	rig_destroy(&rig);
}

TEST(cores_have_the_code_memory_that_is_used_dual)
{
	core_has_what_is_used(CH_BACKEND_DUAL);
}

TEST(cores_have_the_code_memory_that_is_used_memfd)
{
	core_has_what_is_used(CH_BACKEND_MEMFD);
}
TEST(cores_have_the_code_memory_that_is_used_procmem)
{
	skip_without_procmem();
	core_has_what_is_used(CH_BACKEND_PROCMEM);
}

TEST(mappings_are_never_writable_and_executable_and_trimmed_chunks_have_no_access)
{
	struct pool_rig rig = rig_start(8 * MIB);
	struct ch__pool *pool = rig.pool;
	static uint32_t pages[4096], count;
	uintptr_t chunk[3] = {pool->exec_base, pool->exec_base + MIB, pool->exec_base + 2 * MIB};
	bool is_private = pool->backend >= CH_BACKEND_PROCMEM;
	const char *runs = is_private ? "r-xp" : "r-xs", *written = is_private ? "rw-p" : "rw-s";
	check_protection(pool->runtime_exec, runs);
	check_protection(pool->runtime_exec - 1, "---p");
	check_protection(pool->exec_base + pool->pool_bytes, "---p");
	check_protection((uintptr_t)ch__pool_write(pool, pool->runtime_exec) - 1, "---p");
	check_protection((uintptr_t)ch__pool_write(pool, pool->exec_base + pool->pool_bytes),
			 "---p");
	char before[5];
	protection_at(chunk[0], before);
	CHECK(before[0] == '-' && before[1] == '-' && before[2] == '-');
	fill_chunks(&rig, 3, pages, &count);
	for (unsigned i = 0; i < 3; i++) {
		check_protection(chunk[i], runs);
		check_protection((uintptr_t)ch__pool_write(pool, chunk[i]), written);
	}
	protection_at(pool->exec_base + 3 * MIB, before);
	CHECK(before[2] == '-');
	for (uint32_t i = 0; i < count; i++)
		ch__pool_retire_page(pool, pages[i]);
	CHECK_EQ(pool->pages_used, 0);
	CHECK_EQ(pool->pages_peak, count);
	ch__pool_trim(pool);
	CHECK_EQ(pool->pages_committed, MIB >> pool->page_log2);
	check_protection(chunk[0], runs); /* the spare chunk */
	for (unsigned i = 1; i < 3; i++) {
		protection_at(chunk[i], before);
		CHECK(before[0] == '-' && before[1] == '-' && before[2] == '-');
		check_protection((uintptr_t)ch__pool_write(pool, chunk[i]), written);
	}
	fill_chunks(&rig, 3, pages, &count);
	for (unsigned i = 0; i < 3; i++)
		check_protection(chunk[i], runs);
	rig_check(&rig);
	uintptr_t notes = (uintptr_t)pool->inner->notes;
	rig_destroy(&rig);
	check_protection(chunk[0], "none");
	if (notes)
		check_protection(notes, "none");
}

/* --- lists --- */

TEST_POOL(page_with_room_is_taken_again_after_a_thirty_second_of_it_came_free, MIB)
{
	struct ch__pool *pool = rig.pool;
	uint32_t page = rig_take(&rig), page_bytes = 1u << pool->page_log2, hot, cold;
	uint32_t enough = page_bytes / 32, parts = page_bytes / 8;
	uintptr_t first = pool->exec_base + ((uintptr_t)page << pool->page_log2);
	for (uint32_t i = 0; i < parts; i++)
		rig_reserve(&rig, page, 8);
	CHECK(!ch__page_reserve(pool, page, 8, 0, 0, &hot, &cold));
	ch__pool_retire_page(pool, page);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FULL);
	for (uint32_t freed = 0; freed < enough - 8; freed += 8)
		rig_give_back(&rig, first + freed * 2, 8);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FULL);
	rig_check(&rig);
	rig_give_back(&rig, first + 8, 8);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_PARTLY);
	rig_check(&rig);
	uint32_t other = ch__pool_take_page(pool, 1); /* another frame shape must not get it */
	CHECK(other != page);
	CHECK_EQ(rig_take(&rig), page);
	CHECK_EQ(rig_reserve(&rig, page, 24), first); /* three granules in a row are free there */
	/* The page fails again: the space that was free before does not list the page. */
	CHECK(!ch__page_reserve(pool, page, enough, 0, 0, &hot, &cold));
	ch__pool_retire_page(pool, page);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FULL);
}

TEST_POOL(page_becomes_free_with_its_last_granule, MIB)
{
	struct ch__pool *pool = rig.pool;
	uint32_t page = rig_take(&rig);
	uintptr_t a = rig_reserve(&rig, page, 97), b = rig_reserve(&rig, page, 200);
	rig_give_back(&rig, a, 97);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_OPEN);
	ch__pool_retire_page(pool, page);
	CHECK_EQ(pool->pages[page].state, CH__PAGE_PARTLY);
	CHECK_EQ(pool->pages_used, 1);
	ch__pool_poison(pool, b, 200);
	ch__page_lock(&pool->pages[page]);
	ch__page_give_back(pool, page, (uint32_t)(b - pool->exec_base), 200);
	ch__page_unlock(&pool->pages[page]);
	CHECK(ch__pool_note_freed(pool, page));
	CHECK(!ch__pool_note_freed(pool, page));
	CHECK_EQ(pool->pages[page].state, CH__PAGE_FREE);
	CHECK_EQ(pool->pages_used, 0);
}

TEST_POOL(full_pool_says_so_and_serves_again, MIB / 2)
{
	uint32_t pages = rig.pool->page_count;
	for (uint32_t i = 0; i < pages; i++)
		CHECK_EQ(rig_take(&rig), i);
	errno = 7;
	CHECK_EQ(ch__pool_take_page(rig.pool, 0), CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	CHECK_EQ(ch__pool_take_span(rig.pool, 1, 0, CH__SPAN_CODE), CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	ch__pool_retire_page(rig.pool, 5);
	ch__pool_retire_page(rig.pool, 2);
	CHECK_EQ(rig_take(&rig), 5); /* first in, first out */
	CHECK_EQ(rig_take(&rig), 2);
}

/* Five places of which none is far from the others are not random. */
TEST(write_views_lie_at_random_places)
{
	struct pool_rig rigs[5];
	bool is_far = false;
	for (unsigned i = 0; i < 5; i++) {
		struct ch__pool_config config = rig_config(MIB);
		unsetenv("CODEHEAP_WX");
		config.backend = CH_BACKEND_MEMFD;
		rigs[i] = rig_create(&config);
		intptr_t apart =
			rigs[i].pool->inner->views.write - rigs[0].pool->inner->views.write;
		is_far |= labs(apart) > 3L << 29;
	}
	CHECK(is_far);
	for (unsigned i = 0; i < 5; i++)
		rig_destroy(&rigs[i]);
}

/* A hole of less than 1/32 lists no page. */
TEST_POOL(page_taken_in_need_is_of_the_frame_number_that_asks, MIB)
{
	uint32_t page = rig_take(&rig), parts = (1u << rig.pool->page_log2) / 8, hot, cold;
	uintptr_t first = rig_reserve(&rig, page, 8);
	for (uint32_t i = 1; i < parts; i++)
		rig_reserve(&rig, page, 8);
	CHECK(!ch__page_reserve(rig.pool, page, 8, 0, 0, &hot, &cold));
	ch__pool_retire_page(rig.pool, page);
	rig_give_back(&rig, first, 8);
	CHECK_EQ(rig.pool->pages[page].state, CH__PAGE_FULL);
	CHECK_EQ(ch__pool_take_page_in_need(rig.pool, 1, 8, 0), CH__PAGE_NONE);
	CHECK_EQ(ch__pool_take_page_in_need(rig.pool, 0, 8, 0), page);
	CHECK_EQ(rig_reserve(&rig, page, 8), first);
}

/* A collection would help: as many pages in a row have memory. */
TEST_POOL(memory_refused_beside_as_much_memory_is_a_full_pool, MIB)
{
	rig_take(&rig);
	uint32_t had = rig.pool->inner->chunks[0].pages;
	ch__os_pretended.commit_error = ENOSPC;
	CHECK_EQ(ch__pool_take_span(rig.pool, had, 0, CH__SPAN_CODE), CH__PAGE_NONE);
	CHECK_EQ(errno, 0);
	CHECK_EQ(ch__pool_take_span(rig.pool, had + 1, 0, CH__SPAN_CODE), CH__PAGE_NONE);
	CHECK_EQ(errno, ENOSPC);
	ch__os_pretended.commit_error = 0;
	CHECK_EQ(ch__pool_take_span(rig.pool, had + 1, 0, CH__SPAN_CODE), 1);
}

TEST_POOL(span_is_a_run_of_free_pages_and_comes_back, 4 * MIB)
{
	struct ch__pool *pool = rig.pool;
	uint32_t one = rig_take(&rig), all = pool->page_count;
	CHECK_EQ(ch__pool_take_span(pool, all, 0, CH__SPAN_CODE), CH__PAGE_NONE);
	CHECK_EQ(ch__pool_take_span(pool, all + 1, 0, CH__SPAN_CODE), CH__PAGE_NONE);
	uint32_t small = ch__pool_take_span(pool, 3, 2, CH__SPAN_CODE),
		 large = ch__pool_take_span(pool, all / 2, 2, CH__SPAN_CODE);
	CHECK(small != CH__PAGE_NONE && large != CH__PAGE_NONE);
	CHECK(large >= small + 3 || large + all / 2 <= small);
	CHECK_EQ(pool->pages_used, 1 + 3 + all / 2);
	uintptr_t end = pool->exec_base + ((uintptr_t)(large + all / 2) << pool->page_log2);
	rig_write(&rig, end - 16, 99);
	CHECK_EQ(rig_call(end - 16), 99);
	rig_check(&rig);
	ch__pool_release_span(pool, large);
	CHECK(ch__arch_are_traps(ch__pool_read(pool, end - 16), 16));
	ch__pool_release_span(pool, small);
	ch__pool_retire_page(pool, one);
	rig_check(&rig);
	CHECK_EQ(ch__pool_take_span(pool, all, 0, CH__SPAN_CODE), 0);
	rig_check(&rig);
	ch__pool_release_span(pool, 0);
}

/* --- traps --- */

static void call_address(void *address)
{
	rig_call((uintptr_t)address);
}

/* Takes and releases a span from behind the first page to the end of a chunk. */
TEST_POOL(one_chunk_that_comes_and_goes_stays_and_two_do_not, 64 << 20)
{
	struct ch__pool *pool = rig.pool;
	uint32_t a_chunk = pool->page_count / pool->chunk_count;
	(void)rig_reserve(&rig, rig_take(&rig), 16);
	for (uint32_t chunks = 1; chunks <= 2; chunks++) {
		uint32_t unused = 0, span = ch__pool_take_span(pool, (chunks + 1) * a_chunk - 1, 0,
							       CH__SPAN_CODE);
		CHECK_EQ(span, 1);
		CHECK(!atomic_load(&pool->wants_trim));
		ch__pool_release_span(pool, span);
		for (uint32_t i = 0; i < pool->chunk_count; i++)
			unused += pool->inner->chunks[i].pages && !pool->inner->chunks[i].used;
		CHECK_EQ(unused, chunks);
		CHECK_EQ(atomic_load(&pool->wants_trim), chunks > 1);
	}
}

TEST_POOL(unused_bytes_trap_at_every_offset, 64 << 10)
{
	struct ch__pool *pool = rig.pool;
	uint32_t page = rig_take(&rig), page_bytes = 1u << pool->page_log2;
	uintptr_t base = pool->exec_base + ((uintptr_t)page << pool->page_log2);
	const uint32_t unit = CH_ARCH_TRAP_UNIT_BYTES;
	rig_follow_forks(&rig);
	CHECK(ch__arch_are_traps(ch__pool_read(pool, base), page_bytes));
	/* Jumps: all of the first and last bytes, and a sample of the middle. */
	for (uint32_t at = 32; at < page_bytes;
	     at += at < 96 || at > page_bytes - 64 ? unit : 211 / unit * unit)
		expect_signal(call_address, (void *)(base + at), SIGTRAP);
	uintptr_t code = rig_reserve(&rig, page, 64);
	rig_write(&rig, code, 5);
	CHECK_EQ(rig_call(code), 5);
	rig_give_back(&rig, code, 64);
	for (uint32_t at = 0; at < 64; at += unit)
		expect_signal(call_address, (void *)(code + at), SIGTRAP);
}

/* --- PR_SET_MDWE: no mapping may gain execution by mprotect --- */

static void live_under_mdwe(void *arg)
{
	struct ch__pool_config config = rig_config(8 * MIB);
	config.backend = *(enum ch_backend *)arg;
	if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
		_exit(TEST_SKIPPED);
	struct pool_rig rig = rig_create(&config);
	static uint32_t pages[4096], count;
	for (unsigned round = 0; round < 3; round++) {
		fill_chunks(&rig, 3, pages, &count);
		for (uint32_t i = 0; i < count; i++) {
			uintptr_t code = rig_reserve(&rig, pages[i], 16);
			rig_write(&rig, code, i + round);
			CHECK_EQ(rig_call(code), i + round);
			rig_give_back(&rig, code, 16);
			ch__pool_retire_page(rig.pool, pages[i]);
		}
		rig_check(&rig);
		ch__pool_trim(rig.pool);
		CHECK_EQ(rig_chunks(&rig), 1);
		rig_check(&rig);
	}
	rig_destroy(&rig);
}

TEST(pool_lives_where_mprotect_may_not_add_execution)
{
	static enum ch_backend backends[] = {CH_BACKEND_DUAL, CH_BACKEND_MEMFD,
					      CH_BACKEND_PROCMEM};
	if (prctl(66 /* PR_GET_MDWE */, 0, 0, 0, 0) < 0)
		skip("this kernel has no PR_SET_MDWE");
	unsetenv("CODEHEAP_WX");
	for (unsigned i = 0; i < 3; i++)
		if (rig_may_have(backends[i]))
			expect_signal(live_under_mdwe, &backends[i], 0);
}

/* --- every call fails once, then from then on --- */

static void count_gone(void *arg, uint32_t chunk)
{
	(void)chunk;
	++*(unsigned *)arg;
}

/* Runs the span's first and last bytes. */
static void run_span(const struct pool_rig *rig, uint32_t first, uint32_t pages)
{
	enum { ROOM = 64 };
	uintptr_t low = ch__pool_page_exec(rig->pool, first);
	for (int i = 0; i < 2; i++) {
		uintptr_t at = i ? low + ((size_t)pages << rig->pool->page_log2) - ROOM : low;
		rig_write(rig, at, 40 + (uint32_t)i);
		CHECK_EQ(rig_call(at), 40 + (uint32_t)i);
	}
}

/* The whole life of a pool, with the nth call failing. Every step may fail, and no step may leave a
 * broken pool. A created pool lacks nothing; memfd may have another kind of file, and under
 * Valgrind a pool may lack the list for Valgrind. Returns true when no step failed. */
static bool live(const struct ch__pool_config *config, uint64_t nth, uint64_t *calls)
{
	struct pool_rig rig = {0};
	if (ch__pool_create(config, &rig.pool) != 0) {
		CHECK(errno != 0);
		return false;
	}
	CHECK(config->backend == CH_BACKEND_MEMFD || ch__os_failable_calls() < nth ||
	      rig.pool->is_translated);
	uint32_t page = ch__pool_take_page(rig.pool, 0);
	uint32_t span = ch__pool_take_span(rig.pool, rig.pool->page_count / 2, 0, CH__SPAN_CODE);
	bool is_whole = page != CH__PAGE_NONE && span != CH__PAGE_NONE;
	rig_check(&rig);
	if (page != CH__PAGE_NONE) {
		uintptr_t code = rig_reserve(&rig, page, 16);
		rig_write(&rig, code, 77);
		CHECK_EQ(rig_call(code), 77);
		rig_give_back(&rig, code, 16);
		ch__pool_retire_page(rig.pool, page);
	}
	if (span != CH__PAGE_NONE) {
		run_span(&rig, span, rig.pool->page_count / 2);
		ch__pool_release_span(rig.pool, span);
	}
	ch__pool_trim(rig.pool);
	rig_check(&rig);
	/* A pool is usable after a failed trim. */
	page = ch__pool_take_page(rig.pool, 0);
	span = ch__pool_take_span(rig.pool, rig.pool->page_count / 2, 0, CH__SPAN_CODE);
	is_whole &= page != CH__PAGE_NONE && span != CH__PAGE_NONE;
	*calls = ch__os_failable_calls();
	ch__os_fail_at(0, false);
	if (page == CH__PAGE_NONE)
		page = ch__pool_take_page(rig.pool, 0);
	if (span == CH__PAGE_NONE)
		span = ch__pool_take_span(rig.pool, rig.pool->page_count / 2, 0, CH__SPAN_CODE);
	CHECK(page != CH__PAGE_NONE && span != CH__PAGE_NONE);
	uintptr_t code = rig_reserve(&rig, page, 16);
	rig_write(&rig, code, 78);
	CHECK_EQ(rig_call(code), 78);
	run_span(&rig, span, rig.pool->page_count / 2);
	rig_destroy(&rig);
	return is_whole;
}

/* Counts mappings over unreserved memory: page 0 and the page behind. */
static unsigned mapped_at_nothing;

static void fail_each_call(enum ch_backend backend)
{
	struct ch__pool_config config = rig_config(8 * MIB);
	config.backend = backend;
	unsetenv("CODEHEAP_WX");
	unsigned trimmed = 0;
	config.gone = count_gone;
	config.gone_arg = &trimmed;
	ch__os_fail_at(UINT64_MAX, false);
	uint64_t calls, failed;
	CHECK(live(&config, UINT64_MAX, &calls));
	CHECK(calls > 10 && trimmed > 0);
	for (unsigned later = 0; later < 2; later++)
		for (uint64_t n = 1; n <= calls; n++) {
			ch__os_fail_at(n, later);
			live(&config, n, &failed);
		}
	CHECK(live(&config, UINT64_MAX, &failed));
	CHECK_EQ(mapped_at_nothing, 0);
}

TEST(each_failing_call_leaves_a_sound_pool_dual)
{
	fail_each_call(CH_BACKEND_DUAL);
}

TEST(each_failing_call_leaves_a_sound_pool_memfd)
{
	fail_each_call(CH_BACKEND_MEMFD);
}

/* --- threads --- */

struct worker {
	const struct pool_rig *rig;
	uint64_t seed, until;
};

/* Takes and retires pages, reserves and gives back. Each thread writes its own constants. */
static void *work(void *arg)
{
	struct worker *worker = arg;
	const struct pool_rig *rig = worker->rig;
	struct test_random random = {worker->seed};
	enum { KEPT = 64 };
	uintptr_t kept[KEPT] = {0};
	uint32_t page = CH__PAGE_NONE;
	while (now_ns() < worker->until) {
		unsigned which = (unsigned)test_random_below(&random, KEPT);
		if (kept[which]) {
			CHECK_EQ(rig_call(kept[which]), (uint32_t)kept[which]);
			rig_give_back(rig, kept[which], 64);
			kept[which] = 0;
			continue;
		}
		uint32_t hot, cold;
		bool is_reserved = false;
		if (page != CH__PAGE_NONE) {
			ch__page_lock(&rig->pool->pages[page]);
			is_reserved = ch__page_reserve(rig->pool, page, 64, 0, 0, &hot, &cold);
			ch__page_unlock(&rig->pool->pages[page]);
		}
		if (is_reserved) {
			kept[which] = rig->pool->exec_base + hot;
			rig_write(rig, kept[which], (uint32_t)kept[which]);
		} else {
			if (page != CH__PAGE_NONE)
				ch__pool_retire_page(rig->pool, page);
			page = ch__pool_take_page(rig->pool, 0);
		}
	}
	for (unsigned i = 0; i < KEPT; i++)
		if (kept[i])
			rig_give_back(rig, kept[i], 64);
	if (page != CH__PAGE_NONE)
		ch__pool_retire_page(rig->pool, page);
	return NULL;
}

TEST(threads_share_a_pool)
{
	struct ch__pool_config config =
		rig_config(64 << 10); /* few pages: they change hands all the time */
	struct pool_rig rig = rig_create(&config);
	struct test_random random = test_random_new();
	pthread_t threads[4];
	struct worker workers[4];
	for (unsigned i = 0; i < 4; i++) {
		workers[i] = (struct worker){&rig, test_random_next(&random) | 1,
					     now_ns() + (uint64_t)storm_ms_of(1000) * 1000000};
		CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	rig_check(&rig);
	CHECK_EQ(rig.pool->pages_used, 0);
	rig_destroy(&rig);
}

TEST(each_failing_call_leaves_a_sound_pool_procmem)
{
	skip_without_procmem();
	fail_each_call(CH_BACKEND_PROCMEM);
}

/* --- a checker between the library and the system --- */

/* ThreadSanitizer drops an address without a shadow likewise: the address goes, the flags stay. */
static bool drops_addresses;
static unsigned addresses_dropped, insisted;

void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	mapped_at_nothing += (flags & MAP_FIXED) && (uintptr_t)at <= ch__os_page_bytes();
	if (drops_addresses && at && !(flags & MAP_FIXED)) {
		addresses_dropped++;
		insisted += (flags & MAP_FIXED_NOREPLACE) != 0;
		flags &= ~MAP_FIXED_NOREPLACE;
		at = NULL;
	}
	return __real_mmap(at, bytes, protection, flags, fd, offset);
}

/* Insisting on the address would give page 0, where allowed, and the process would die. */
TEST(address_that_is_dropped_on_the_way_is_not_insisted_on)
{
	size_t bytes = 16 * ch__os_page_bytes();
	drops_addresses = true;
	uint8_t *at = ch__os_reserve(bytes, ch__os_page_bytes(), 0, 0);
	CHECK(at);
	ch__os_unreserve(at, bytes);
	/* Memory at another place does not count. */
	errno = 0;
	CHECK(!ch__os_reserve_at(at, bytes));
	CHECK_EQ(errno, EEXIST);
	struct pool_rig rig = rig_start(1 << 20);
	rig_destroy(&rig);
	CHECK(addresses_dropped);
	if (insisted)
		FAIL("page 0 was asked for %u times", insisted);
}

/* Linux before 5.14 refuses likewise. */
static bool refuses_populate, populates_a_page;

int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice)
{
	enum { POPULATE_WRITE = 23 };
	if (!refuses_populate || advice != POPULATE_WRITE)
		return __real_madvise(at, bytes, advice);
	if (populates_a_page)
		CHECK_EQ(__real_madvise(at, ch__os_page_bytes(), advice), 0);
	errno = EINVAL;
	return -1;
}

TEST(memfd_needs_no_memory_to_be_populated)
{
	struct ch__pool_config config = rig_config(4 * MIB);
	unsetenv("CODEHEAP_WX");
	refuses_populate = true;
	config.backend = CH_BACKEND_MEMFD;
	struct pool_rig rig = rig_create(&config);
	uintptr_t code = rig_reserve(&rig, rig_take(&rig), 16);
	rig_write(&rig, code, 79);
	CHECK_EQ(rig_call(code), 79);
	rig_destroy(&rig);
	/* memfd stands in for the duplication. */
	config.backend = CH_BACKEND_AUTO;
	rig = rig_create(&config);
	CHECK_EQ(rig.pool->backend, CH_BACKEND_MEMFD);
	rig_destroy(&rig);
}

/* The pool stores nothing to the page: without memory in the machine a store would be a SIGBUS. */
TEST(page_whose_memory_is_refused_is_not_given)
{
	struct ch__pool_config config = rig_config(4 * MIB);
	unsetenv("CODEHEAP_WX");
	config.backend = CH_BACKEND_DUAL;
	if (!rig_may_have(config.backend))
		skip("an emulator refuses the duplication");
	struct pool_rig rig = rig_create(&config);
	refuses_populate = true;
	errno = 0;
	CHECK_EQ(ch__pool_take_page(rig.pool, 0), CH__PAGE_NONE);
	CHECK_EQ(errno, EINVAL);
	refuses_populate = false;
	(void)rig_take(&rig);
	rig_destroy(&rig);
}

/* The system may have given memory to some pages when it refuses the next. */
static void refuse_the_second_page(enum ch_backend backend)
{
	struct ch__pool_config config = rig_config(4 * MIB);
	unsigned char is_resident;
	unsetenv("CODEHEAP_WX");
	config.backend = backend;
	struct pool_rig rig = rig_create(&config);
	void *first = ch__pool_write(rig.pool, rig.pool->exec_base);
	refuses_populate = populates_a_page = true;
	CHECK_EQ(ch__pool_take_page(rig.pool, 0), CH__PAGE_NONE);
	CHECK_EQ(errno, EINVAL);
	refuses_populate = populates_a_page = false;
	CHECK_EQ(mincore(first, ch__os_page_bytes(), &is_resident), 0);
	CHECK_EQ(is_resident & 1, 0);
	(void)rig_take(&rig);
	rig_destroy(&rig);
}

TEST(memory_that_came_before_a_refusal_goes_back_dual)
{
	if (!rig_may_have(CH_BACKEND_DUAL))
		skip("an emulator refuses the duplication");
	refuse_the_second_page(CH_BACKEND_DUAL);
}

TEST(memory_that_came_before_a_refusal_goes_back_procmem)
{
	skip_without_procmem();
	refuse_the_second_page(CH_BACKEND_PROCMEM);
}

/* The remapping of pages serves emulators. */
TEST(pages_that_are_mapped_again_are_those_that_were_written)
{
	struct ch__pool_config config = rig_config(8 * MIB);
	unsetenv("CODEHEAP_WX");
	config.backend = CH_BACKEND_MEMFD;
	struct pool_rig rig = rig_create(&config);
	struct ch__pool *pool = rig.pool;
	pool->sync_steps |= CH__SYNC_REMAP;
	pool->inner->views.sync_steps |= CH__SYNC_REMAP;
	uint32_t pages = pool->page_count / 2,
		 span = ch__pool_take_span(pool, pages, 0, CH__SPAN_CODE);
	CHECK(span != CH__PAGE_NONE);
	const void *end = (const void *)(pool->exec_base + pool->pool_bytes - 8);
	CHECK(!ch__os_is_readable(end));
	uintptr_t code = ch__pool_page_exec(pool, span + pages - 1);
	rig_write(&rig, code, 80);
	CHECK_EQ(rig_call(code), 80);
	CHECK(!ch__os_is_readable(end));
	ch__pool_release_span(pool, span);
	rig_destroy(&rig);
}
