/* SPDX-License-Identifier: MIT
 * large.c: a system with pages of 64 KiB, pretended by the gate to the OS. The gate refuses calls
 * that such a kernel would refuse or round up over a neighbour. A pool lies, grows, gives back and
 * is copied for a child by whole pages of 64 KiB. */
#include "os/files.h"
#include "tests/support/pool_rig.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGE = 65536, SMALL = 4096 };

static void pretend(void)
{
	ch__os_pretended.page_bytes = LARGE;
}

static uint8_t *reserve(size_t bytes)
{
	uint8_t *at = ch__os_reserve(bytes, LARGE, 0, ch__os_anywhere);
	CHECK(at && (uintptr_t)at % LARGE == 0);
	return at;
}

#define REFUSED(call)                                             \
	do {                                                      \
		errno = 0;                                        \
		if ((call) || errno != EINVAL)                    \
			FAIL("the gate lets through: %s", #call); \
	} while (0)

TEST(gate_refuses_ranges_that_are_not_of_whole_pages)
{
	pretend();
	uint8_t *at = reserve(4 * LARGE), *to = reserve(4 * LARGE);
	struct ch__os_held file;
	CHECK(ch__os_memfd(4 * LARGE, &file));
	REFUSED(ch__os_reserve_at(at + SMALL, LARGE));
	REFUSED(ch__os_reserve_at(at, SMALL));
	REFUSED(ch__os_map_shared_rx(at + SMALL, LARGE));
	REFUSED(ch__os_map_shared_rx(at, LARGE + SMALL));
	CHECK(ch__os_map_shared_rx(at, 4 * LARGE));
	REFUSED(ch__os_duplicate_rw(at + SMALL, LARGE, to));
	REFUSED(ch__os_duplicate_rw(at, LARGE, to + SMALL));
	REFUSED(ch__os_duplicate_rw(at, SMALL, to));
	CHECK(ch__os_duplicate_rw(at, 4 * LARGE, to));
	REFUSED(ch__os_populate(to + SMALL, LARGE));
	REFUSED(ch__os_populate(to, SMALL));
	CHECK(ch__os_populate(to, LARGE));
	REFUSED(ch__os_protect_none(at, SMALL));
	REFUSED(ch__os_protect_none(at + LARGE - SMALL, LARGE));
	CHECK(ch__os_protect_none(at + LARGE, LARGE));
	REFUSED(ch__os_revive_from(at, at + LARGE + SMALL, LARGE));
	REFUSED(ch__os_revive_from(at, at + LARGE, SMALL));
	CHECK(ch__os_revive_from(at, at + LARGE, LARGE));
	REFUSED(ch__os_advise(to + SMALL, LARGE, CH__OS_DISCARD));
	REFUSED(ch__os_advise(to, SMALL, CH__OS_DISCARD));
	REFUSED(ch__os_advise(to, SMALL, CH__OS_DONT_FORK));
	REFUSED(ch__os_advise(to, SMALL, CH__OS_DONT_DUMP));
	REFUSED(ch__os_move_over(at, LARGE, to + SMALL));
	REFUSED(ch__os_map_fd(&file, SMALL, at, LARGE, CH__OS_RX));
	REFUSED(ch__os_map_fd(&file, 0, at, SMALL, CH__OS_RX));
	REFUSED(ch__os_map_fd(&file, 0, at + SMALL, LARGE, CH__OS_RX));
	CHECK(ch__os_map_fd(&file, LARGE, at, LARGE, CH__OS_RX));
	REFUSED(ch__os_map_private(at, SMALL, CH__OS_RW));
	REFUSED(ch__os_map_private(at + SMALL, LARGE, CH__OS_RW));
	CHECK(ch__os_map_private(at, LARGE, CH__OS_RW));
	REFUSED(ch__os_advise(at, SMALL, CH__OS_DROP));
	REFUSED(ch__os_advise(at + SMALL, LARGE, CH__OS_DROP));
	REFUSED(ch__os_private_near(SMALL, (uintptr_t)at));
	ch__os_let_go(&file);
	ch__os_unreserve(to, 4 * LARGE);
	ch__os_unreserve(at, 4 * LARGE);
}

/* Misuse of calls that report nothing ends the process. */
static void unreserve_part(void *at)
{
	ch__os_unreserve(at, SMALL);
}
static void unreserve_inside(void *at)
{
	ch__os_unreserve((uint8_t *)at + SMALL, LARGE);
}
static void unmap_inside(void *at)
{
	ch__os_unmap((uint8_t *)at + SMALL, LARGE);
}
static void large_pages_part(void *at)
{
	ch__os_suggest(at, SMALL, CH__OS_LARGE_PAGES);
}
static void map_again_part(void *at)
{
	struct ch__os_held none = {.fd = -1};
	ch__os_map_again(&none, 0, at, SMALL);
}

TEST(gate_ends_who_names_a_part_of_a_page_where_nothing_is_reported)
{
	static void (*const calls[])(void *) = {unreserve_part, unreserve_inside, unmap_inside,
						large_pages_part, map_again_part};
	pretend();
	uint8_t *at = reserve(2 * LARGE);
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
		char text[300];
		expect_signal_text(calls[i], at, SIGABRT, text, sizeof text);
		if (!strstr(text, "not of whole pages"))
			FAIL("call %u: %s", i, text);
	}
	ch__os_unreserve(at, 2 * LARGE);
}

static bool is_mapped(const uint8_t *at)
{
	unsigned char resident;
	return mincore((void *)((uintptr_t)at & ~(uintptr_t)(SMALL - 1)), SMALL, &resident) == 0;
}

TEST(private_memory_and_markers_are_whole_pages)
{
	pretend();
	for (size_t bytes = 100; bytes < 4 * LARGE; bytes += LARGE - 100) {
		size_t whole = (bytes + LARGE - 1) / LARGE * LARGE;
		uint8_t *at = ch__os_private(bytes);
		CHECK(at && (uintptr_t)at % LARGE == 0);
		at[bytes - 1] = at[whole - 1] = 1;
		ch__os_unmap(at, bytes);
		CHECK(!is_mapped(at) && !is_mapped(at + whole - 1));
	}
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	uint8_t *marker = ch__os_file_marker(fd);
	CHECK(marker && (uintptr_t)marker % LARGE == 0);
	CHECK(is_mapped(marker) && is_mapped(marker + LARGE - 1));
	ch__os_unmap(marker, ch__os_page_bytes());
	CHECK(!is_mapped(marker));
	close(fd);
	CHECK(!ch__os_file_marker(-1));
	CHECK_EQ(errno, EBADF);
}

static struct ch__pool_config large_config(enum ch_backend backend)
{
	struct ch__pool_config config = rig_config(4 << 20);
	config.page_bytes = LARGE;
	config.backend = backend;
	unsetenv("CODEHEAP_WX");
	return config;
}

TEST(pool_refuses_pages_that_are_a_part_of_the_systems)
{
	pretend();
	struct ch__pool_config config = large_config(CH_BACKEND_AUTO);
	for (config.page_bytes = SMALL; config.page_bytes < LARGE; config.page_bytes *= 2) {
		struct ch__pool *pool;
		CHECK_EQ(ch__pool_create(&config, &pool), EINVAL);
	}
}

static void call_child(void *arg)
{
	CHECK_EQ(rig_call(*(uintptr_t *)arg), 64);
	rig_check(&(struct pool_rig){.pool = rig_forked});
}

/* Takes pages in every chunk, gives back pages and then chunks, all twice; forks in between. */
static void live_by_large_pages(enum ch_backend backend)
{
	pretend();
	struct ch__pool_config config = large_config(backend);
	struct pool_rig rig = rig_create(&config);
	const uint8_t *exec = (const uint8_t *)rig.pool->runtime_exec;
	const uint8_t *write = exec + rig.pool->delta;
	size_t bytes = rig.pool->runtime_bytes + rig.pool->pool_bytes;
	CHECK_EQ((uintptr_t)exec % LARGE | (uintptr_t)write % LARGE, 0);
	/* A run or write over either end meets no memory for a whole page. */
	for (size_t at = 8; at <= LARGE; at += SMALL) {
		CHECK(!ch__os_is_readable(exec - at) && !ch__os_is_readable(write - at));
		CHECK(!ch__os_is_readable(exec + bytes + at - 8) &&
		      !ch__os_is_readable(write + bytes + at - 8));
	}
	rig_follow_forks(&rig);
	for (int round = 0; round < 2; round++) {
		uint32_t pages[64], count = 0;
		CHECK_EQ(rig.pool->page_count, 64);
		while (count < rig.pool->page_count)
			pages[count++] = rig_take(&rig);
		uintptr_t code = rig_reserve(&rig, pages[0], 64);
		rig_write(&rig, code, 64);
		expect_signal(call_child, &code, 0);
		CHECK_EQ(rig_call(code), 64);
		rig_give_back(&rig, code, 64);
		CHECK_EQ(rig.pool->pages_committed, rig.pool->page_count);
		while (count)
			ch__pool_retire_page(rig.pool, pages[--count]);
		ch__pool_trim(rig.pool);
		CHECK_EQ(rig_chunks(&rig), 1);
		rig_check(&rig);
	}
	rig_destroy(&rig);
}

TEST(pool_lives_by_large_pages_dual)
{
	live_by_large_pages(CH_BACKEND_DUAL);
}

TEST(pool_lives_by_large_pages_memfd)
{
	live_by_large_pages(CH_BACKEND_MEMFD);
}

TEST(pool_lives_by_large_pages_procmem)
{
	skip_without_procmem();
	live_by_large_pages(CH_BACKEND_PROCMEM);
}
