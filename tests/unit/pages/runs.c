/* SPDX-License-Identifier: MIT
 * runs.c: runs of unused pages in chunks that are in use: their memory goes back when much is
 * unused, and comes again for pages and for spans; what is in use stays, in a child of fork, too.
 * Short runs stay, and large pages of the system. */
#include "pages/chunks.h"
#include "tests/support/pool_rig.h"

#include <errno.h>

enum { MIB = 1 << 20, POOL = 16 * MIB, RUN = 128 << 10, MOST_PAGES = POOL >> 12 };

static struct pool_rig rig;
static uintptr_t code[MOST_PAGES]; /* by page; 0: unused */

static void take(void)
{
	uint32_t page = rig_take(&rig);
	CHECK(!code[page]);
	code[page] = rig_reserve(&rig, page, 16);
	rig_write(&rig, code[page], page);
}

static void release(uint32_t page)
{
	rig_give_back(&rig, code[page], 16);
	ch__pool_retire_page(rig.pool, page);
	code[page] = 0;
}

/* Code runs, and pages without memory have no access: they would read as zeros, which execute. */
static void expect_as_told(void)
{
	for (uint32_t page = 0; page < rig.pool->page_count; page++) {
		const void *exec = (const void *)ch__pool_page_exec(rig.pool, page);
		CHECK_EQ(ch__os_is_readable(exec), rig.pool->pages[page].has_memory);
		if (code[page])
			CHECK_EQ(rig_call(code[page]), page);
	}
	rig_check(&rig);
}

static uint32_t fill(const struct ch__pool_config *config)
{
	memset(code, 0, sizeof code);
	rig = rig_create(config);
	for (uint32_t i = 0; i < rig.pool->page_count; i++)
		take();
	return rig.pool->page_count;
}

/* Of each `of` pages the one in the middle stays in use. */
static void release_beside(uint32_t of)
{
	for (uint32_t page = 0; page < rig.pool->page_count; page++)
		if (code[page] && page % of != of / 2)
			release(page);
}

static void fill_and_release(const struct ch__pool_config *config, uint32_t of)
{
	fill(config);
	release_beside(of);
}

static struct ch__pool_config config_on(enum ch_backend backend)
{
	struct ch__pool_config config = rig_config(POOL);
	if (backend != CH_BACKEND_AUTO)
		unsetenv("CODEHEAP_WX");
	config.backend = backend;
	return config;
}

static uint32_t chunk_pages(const struct ch__pool_config *config)
{
	return (uint32_t)(MIB / config->page_bytes);
}

static void expect_in_child(void *none)
{
	(void)none;
	expect_as_told();
	take();
	expect_as_told();
}

static void come_and_go(enum ch_backend backend)
{
	struct ch__pool_config config = config_on(backend);
	fill_and_release(&config, chunk_pages(&config));
	struct ch__pool *pool = rig.pool;
	CHECK(atomic_load(&pool->wants_trim));
	ch__pool_trim(pool);
	CHECK(pool->pages_committed <= 3 * chunk_pages(&config));
	CHECK_EQ(pool->pages_used, pool->chunk_count);
	expect_as_told();
	rig_follow_forks(&rig);
	expect_signal(expect_in_child, NULL, 0);
	for (uint32_t i = pool->chunk_count; i < pool->page_count; i++)
		take();
	CHECK_EQ(pool->pages_committed, pool->page_count);
	expect_as_told();
	rig_destroy(&rig);
}

TEST(unused_pages_beside_used_ones_give_their_memory_back_dual)
{
	if (!rig_may_have(CH_BACKEND_DUAL))
		skip("an emulator refuses dual");
	come_and_go(CH_BACKEND_DUAL);
}
TEST(unused_pages_beside_used_ones_give_their_memory_back_memfd)
{
	come_and_go(CH_BACKEND_MEMFD);
}
TEST(unused_pages_beside_used_ones_give_their_memory_back_procmem)
{
	skip_without_procmem();
	come_and_go(CH_BACKEND_PROCMEM);
}

/* A quarter of the memory stays for code that is to come, and the pages that are given next. */
TEST(no_more_goes_back_than_is_much)
{
	struct ch__pool_config config = config_on(CH_BACKEND_AUTO);
	uint32_t pages = fill(&config), quarter = pages / 4;
	for (uint32_t page = 0; page < quarter; page++)
		release(page + page / (chunk_pages(&config) - 1));
	ch__pool_trim(rig.pool);
	CHECK_EQ(rig.pool->pages_committed, pages);
	expect_as_told();
	release(pages - 1);
	release(pages - 2);
	ch__pool_trim(rig.pool);
	CHECK(rig.pool->pages_committed < pages);
	CHECK(rig.pool->pages_committed > pages - chunk_pages(&config));
	CHECK(rig.pool->pages[0].has_memory); /* from above */
	expect_as_told();
	rig_destroy(&rig);
}

/* Each run without memory takes mappings of the process. */
TEST(short_runs_keep_their_memory)
{
	struct ch__pool_config config = config_on(CH_BACKEND_AUTO);
	uint32_t least = RUN / (uint32_t)config.page_bytes;
	fill_and_release(&config, least);
	ch__pool_trim(rig.pool);
	CHECK_EQ(rig.pool->pages_committed, rig.pool->page_count);
	/* An unused chunk beside them is the spare one, and stays. */
	for (uint32_t page = rig.pool->page_count - chunk_pages(&config);
	     page < rig.pool->page_count; page++)
		if (code[page])
			release(page);
	ch__pool_trim(rig.pool);
	CHECK_EQ(rig.pool->pages_committed, rig.pool->page_count);
	expect_as_told();
	/* A run as long as that goes. */
	release(least / 2);
	ch__pool_trim(rig.pool);
	CHECK(rig.pool->pages_committed <= rig.pool->page_count - least);
	expect_as_told();
	rig_destroy(&rig);
}

static void release_until_trim_is_wanted(void)
{
	for (uint32_t page = 0; !atomic_load(&rig.pool->wants_trim); page++) {
		CHECK(page < rig.pool->page_count);
		if (code[page])
			release(page);
	}
}

TEST(trim_is_wanted_from_two_unused_chunks_on)
{
	struct ch__pool_config config = config_on(CH_BACKEND_AUTO);
	config.pool_bytes = 4 * MIB;
	fill(&config);
	release_until_trim_is_wanted();
	CHECK_EQ(ch__pool_unused_pages(rig.pool), 2 * chunk_pages(&config));
	rig_destroy(&rig);
}

/* What a trim left is not looked at again until much more came free. */
TEST(trim_is_wanted_when_more_is_unused_than_the_last_one_left)
{
	struct ch__pool_config config = config_on(CH_BACKEND_AUTO);
	uint32_t much = 2 * chunk_pages(&config);
	fill_and_release(&config, 2);
	CHECK(atomic_load(&rig.pool->wants_trim));
	ch__pool_trim(rig.pool);
	uint32_t left = ch__pool_unused_pages(rig.pool);
	CHECK_EQ(left, rig.pool->page_count / 2);
	release_until_trim_is_wanted();
	CHECK_EQ(ch__pool_unused_pages(rig.pool), left + much);
	/* Fewer are left when pages were used meanwhile. */
	ch__pool_trim(rig.pool);
	while (ch__pool_unused_pages(rig.pool) > much)
		take();
	release_until_trim_is_wanted();
	CHECK_EQ(ch__pool_unused_pages(rig.pool), 2 * much + 1);
	rig_destroy(&rig);
}

static int held; /* ranges of mappings */
void *gate_ch__os_hold_mappings(void);
void *__wrap_ch__os_hold_mappings(void);
void *__wrap_ch__os_hold_mappings(void)
{
	void *at = gate_ch__os_hold_mappings();
	held += at != NULL;
	return at;
}
void __real_ch__os_let_mappings_go(void *);
void __wrap_ch__os_let_mappings_go(void *);
void __wrap_ch__os_let_mappings_go(void *at)
{
	held--;
	__real_ch__os_let_mappings_go(at);
}

/* The pages whose memory was refused are as good as any. Mappings that went are somebody else's. */
static void trim_in_vain(enum ch_backend backend)
{
	struct ch__pool_config config = config_on(backend);
	/* Calls far behind are much like those before: some of them will do. */
	for (uint64_t n = 1, calls = 0; n <= calls + 1; n += 1 + n / 4) {
		fill_and_release(&config, chunk_pages(&config));
		ch__os_fail_at(n, true);
		ch__pool_trim(rig.pool);
		calls = ch__os_failable_calls();
		ch__os_fail_at(0, false);
		rig_check(&rig);
		CHECK_EQ(held, 0);
		ch__pool_trim(rig.pool);
		CHECK_EQ(held, 0);
		CHECK(rig.pool->pages_committed <= 4 * chunk_pages(&config));
		for (uint32_t i = rig.pool->chunk_count; i < rig.pool->page_count; i++)
			take();
		expect_as_told();
		rig_destroy(&rig);
	}
}

TEST(runs_that_the_system_did_not_take_are_used_again)
{
	trim_in_vain(CH_BACKEND_MEMFD);
	if (rig_may_have(CH_BACKEND_PROCMEM))
		trim_in_vain(CH_BACKEND_PROCMEM);
}

static unsigned mappings_left(void)
{
	unsigned maps = 0;
	while (map_one())
		maps++;
	return maps;
}

/* Without a mapping no page would get its memory back, and the process no thread. Returns of how
 * many pages one stays in use. */
static uint32_t trim_at_the_limit_of_mappings(long left)
{
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	struct ch__pool_config config = config_on(CH_BACKEND_AUTO);
	uint32_t of = RUN / (uint32_t)config.page_bytes + 1;
	fill_and_release(&config, of);
	fill_maps(left);
	ch__pool_trim(rig.pool);
	return of;
}

TEST(trim_leaves_mappings_to_the_process)
{
	uint32_t of = trim_at_the_limit_of_mappings(140);
	CHECK(rig.pool->pages_committed < rig.pool->page_count);
	expect_as_told();
	for (uint32_t i = rig.pool->pages_used; i < rig.pool->page_count; i++)
		take();
	expect_as_told();
	for (uint32_t page = 0; page < rig.pool->page_count; page++)
		if (page % of)
			release(page);
	ch__pool_trim(rig.pool);
	CHECK(mappings_left() > 100);
	rig_destroy(&rig);
}

TEST(trim_keeps_no_mappings_but_those_of_its_gaps)
{
	(void)trim_at_the_limit_of_mappings(400);
	CHECK(!ch__pool_has_much_unused(rig.pool));
	CHECK(mappings_left() > 140);
	rig_destroy(&rig);
}

TEST(trim_that_has_no_mappings_to_leave_takes_none)
{
	enum { LEFT = 60 };
	(void)trim_at_the_limit_of_mappings(LEFT);
	CHECK_EQ(rig.pool->pages_committed, rig.pool->page_count);
	CHECK(mappings_left() > LEFT - 20);
	expect_as_told();
	rig_destroy(&rig);
}

TEST(span_lies_over_pages_with_memory_and_without)
{
	struct ch__pool_config config = config_on(CH_BACKEND_AUTO);
	uint32_t in_chunk = chunk_pages(&config), long_span = in_chunk - 1;
	fill_and_release(&config, in_chunk);
	ch__pool_trim(rig.pool);
	/* Pages between unused ones get memory. */
	uint32_t bare = rig.pool->page_count - 1 - in_chunk / 4;
	CHECK(!rig.pool->pages[bare].has_memory);
	while (!rig.pool->pages[bare].has_memory)
		take();
	release_beside(in_chunk);
	ch__pool_trim(rig.pool);
	uint32_t span = ch__pool_take_span(rig.pool, long_span, 0, CH__SPAN_CODE);
	CHECK(span != CH__PAGE_NONE && span % in_chunk == in_chunk / 2 + 1);
	for (uint32_t i = 0; i < long_span; i++) {
		uintptr_t at = ch__pool_page_exec(rig.pool, span + i);
		CHECK(!code[span + i] && rig.pool->pages[span + i].has_memory);
		rig_write(&rig, at, i);
		CHECK_EQ(rig_call(at), i);
	}
	expect_as_told();
	ch__pool_release_span(rig.pool, span);
	expect_as_told();
	rig_destroy(&rig);
}

/* Of the first span's chunk, trim may have left the lower half. */
TEST(pages_before_a_span_get_no_memory)
{
	struct ch__pool_config config = config_on(CH_BACKEND_AUTO);
	uint32_t in_chunk = chunk_pages(&config), half = in_chunk / 2, span = 0;
	fill_and_release(&config, in_chunk);
	ch__pool_trim(rig.pool);
	for (uint32_t left = ch__pool_unused_pages(rig.pool); left; left--)
		take();
	for (int i = 0; i < 2; i++) {
		span = ch__pool_take_span(rig.pool, half + 1, 0, CH__SPAN_CODE);
		CHECK_EQ(span % in_chunk, half + 1);
	}
	CHECK(!rig.pool->pages[span - 2].has_memory);
	CHECK(rig.pool->pages[span - 1].has_memory);
	rig_destroy(&rig);
}

/* A part of a large page would cost the rest of it. */
TEST(large_pages_of_the_system_stay_whole)
{
	skip_without_procmem();
	struct ch__pool_config config = config_on(CH_BACKEND_PROCMEM);
	config.is_for_forks = true;
	fill_and_release(&config, chunk_pages(&config));
	ch__pool_trim(rig.pool);
	CHECK_EQ(rig.pool->pages_committed, rig.pool->page_count);
	expect_as_told();
	rig_destroy(&rig);
}

/* An instruction may lie across two pages. A page that is mapped again shows the file, and no more
 * what was mapped over it. */
TEST(write_across_a_page_has_both_pages_mapped_again)
{
	enum { EACH = 8 };
	struct ch__pool_config config = rig_config(8 * MIB);
	unsetenv("CODEHEAP_WX");
	config.backend = CH_BACKEND_MEMFD;
	rig = rig_create(&config);
	struct ch__pool *pool = rig.pool;
	size_t page = ch__os_page_bytes();
	uint32_t span = ch__pool_take_span(pool, 2, 0, CH__SPAN_CODE);
	CHECK(span != CH__PAGE_NONE);
	uintptr_t exec = ch__pool_page_exec(pool, span);
	const uint8_t *bytes = (const uint8_t *)exec + page - EACH;
	memset(ch__pool_write(pool, (uintptr_t)bytes), 0x5a, (size_t)2 * EACH);
	CHECK(ch__os_map_private((void *)exec, 2 * page, CH__OS_R));
	CHECK_EQ(bytes[0] | bytes[2 * EACH - 1], 0);
	pool->sync_steps |= CH__SYNC_REMAP;
	pool->inner->views.sync_steps |= CH__SYNC_REMAP;
	ch__pool_sync(pool, (uintptr_t)bytes, (size_t)2 * EACH);
	for (int i = 0; i < 2 * EACH; i++)
		CHECK_EQ(bytes[i], 0x5a);
	ch__pool_release_span(pool, span);
	rig_destroy(&rig);
}

static int refused_as; /* errno of each change of access; 0: none is refused */
bool gate_ch__os_protect(void *, size_t, bool);
bool __wrap_ch__os_protect(void *, size_t, bool);
bool __wrap_ch__os_protect(void *at, size_t bytes, bool is_writable)
{
	errno = refused_as ? refused_as : errno;
	return !refused_as && gate_ch__os_protect(at, bytes, is_writable);
}
bool gate_ch__os_protect_none(void *, size_t);
bool __wrap_ch__os_protect_none(void *, size_t);
bool __wrap_ch__os_protect_none(void *at, size_t bytes)
{
	errno = refused_as ? refused_as : errno;
	return !refused_as && gate_ch__os_protect_none(at, bytes);
}

/* Takes a page while the system refuses all that may fail, and each change of access. */
static int error_of_refused_page(uint8_t frame)
{
	refused_as = EPERM;
	ch__os_fail_at(1, true);
	uint32_t page = ch__pool_take_page(rig.pool, frame);
	int error = errno;
	ch__os_fail_at(0, false);
	refused_as = 0;
	CHECK(page >= CH__PAGE_NO_ACCESS);
	return error;
}

/* What is refused while memory goes back is not the reason. */
TEST(first_refusal_is_the_reason_of_a_page_without_memory)
{
	struct ch__pool_config config = config_on(CH_BACKEND_MEMFD);
	rig = rig_create(&config);
	CHECK_EQ(error_of_refused_page(0), ENOMEM);
	rig_destroy(&rig);
}

TEST(first_refusal_is_the_reason_of_a_page_that_keeps_its_access)
{
	struct ch__pool_config config = config_on(CH_BACKEND_MEMFD);
	config.uses[1] = CH__PAGE_RODATA;
	rig = rig_create(&config);
	memset(code, 0, sizeof code);
	take();
	take();
	release(code[0] ? 0 : 1); /* a FREE page with memory, whatever a page's size is */
	CHECK_EQ(error_of_refused_page(1), EPERM);
	CHECK(rig_retry_retired(rig.pool));
	rig_destroy(&rig);
}

/* A step that is refused is asked for once: the system makes and clears all of its pages first. */
TEST(short_memory_is_asked_for_by_the_page_and_used_to_the_last)
{
	struct ch__pool_config config = rig_config(MIB);
	rig = rig_create(&config);
	struct ch__pool *pool = rig.pool;
	uint32_t all = ch__pool_chunk_pages(pool), had;
	uint64_t calls = 0;
	rig_take(&rig);
	for (had = pool->inner->chunks[0].pages; pool->pages_used < had;)
		rig_take(&rig);
	ch__os_pretended.commit_error = ENOSPC;
	ch__os_pretended.commit_bytes = (size_t)1 << pool->page_log2;
	while (had < all) {
		ch__os_fail_at(UINT64_MAX, false);
		CHECK_EQ(calls ? rig_take(&rig) : ch__pool_take_span(pool, 1, 0, CH__SPAN_CODE),
			 had);
		uint64_t needed = ch__os_failable_calls();
		CHECK_EQ(pool->inner->chunks[0].pages, ++had);
		CHECK(!calls || calls > needed);
		calls = calls ? calls : needed;
	}
	ch__os_fail_at(0, false);
	ch__os_pretended.commit_error = 0;
	ch__os_pretended.commit_bytes = 0;
	rig_check(&rig);
	rig_destroy(&rig);
}
