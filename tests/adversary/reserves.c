/* SPDX-License-Identifier: MIT
 * reserves.c: processes with short address space, by the limit (RLIMIT_AS, in children) or
 * pretended by the gate to the system. The pool is halved until it fits, and the resulting heap
 * works. */
#include "tests/support/stage.h"

#include "tests/support/heap_rig.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, WHOLE = 64 * MIB, LEAST = MIB };

/* --- by the limit --- */

static void limit_space(size_t more)
{
	struct rlimit limit = {mapped_bytes() + more, RLIM_INFINITY};
	CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

static void skip_with_shadow(void)
{
	const char *sanitizer = getenv("CODEHEAP_TEST_SAN");
	if (sanitizer && *sanitizer)
		skip("a sanitizer's shadow is larger than any limit");
}

/* Runs fn in a child. The child may report a number by _exit(n). */
static int in_child(void (*fn)(size_t), size_t more)
{
	int status;
	pid_t pid = fork_child();
	if (pid == 0) {
		fn(more);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) == 1)
		FAIL("with %zu MiB more it failed", more / MIB);
	return WEXITSTATUS(status);
}

enum { NO_HEAP = 60, EXIT_MIB = 100, MOST = 7 * WHOLE / 2 };

/* Reports the size of the created pool. */
static void create_in(size_t more)
{
	struct ch_config config = rig_config(WHOLE);
	struct ch_heap *heap = (struct ch_heap *)&config;
	limit_space(more);
	enum ch_status status = ch_heap_create(&config, &heap);
	if (status != CH_OK) {
		CHECK_EQ(status, CH_E_MEMORY);
		CHECK_EQ((uintptr_t)heap, 0);
		limit_space(4 * WHOLE);
	}
	if (status != CH_OK)
		CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	struct ch_stats stats = {.size = sizeof stats};
	CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
	CHECK(stats.pool_bytes >= LEAST && stats.pool_bytes <= WHOLE);
	CHECK_EQ(stats.pool_bytes & (stats.pool_bytes - 1), 0);
	if (status != CH_OK)
		CHECK_EQ(stats.pool_bytes, WHOLE);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	_exit(status == CH_OK ? EXIT_MIB + (int)(stats.pool_bytes / MIB) : NO_HEAP);
}

/* A heap takes two views, a third while a chunk becomes executable, tables, and room for other
 * uses. The next larger pool would take less than seven times this pool's size. */
TEST(s50_pool_is_halved_until_the_address_space_has_room)
{
	enum { TABLES = 24 * MIB };
	int last = 0, sizes = 0;
	skip_with_shadow();
	for (size_t more = 0; more <= MOST; more += more < 40 * MIB ? 2 * MIB : 8 * MIB) {
		int said = in_child(create_in, more), got = said == NO_HEAP ? 0 : said - EXIT_MIB;
		if (got < last)
			FAIL("more space, and a smaller pool: %d MiB after %d", got, last);
		if (got * MIB < WHOLE && (size_t)got * MIB * 7 + TABLES < more)
			FAIL("a pool of %d MiB where %zu MiB are left", got, more / MIB);
		sizes += got != last;
		last = got;
	}
	CHECK_EQ(last, WHOLE / MIB);
	CHECK(sizes >= 4);
}

static void use_in(size_t more)
{
	struct ch_config config = rig_config(WHOLE);
	struct rig rig = {0};
	struct ch_ops none = {.size = sizeof none};
	limit_space(more);
	if (ch_heap_create(&config, &rig.heap) != CH_OK)
		_exit(NO_HEAP);
	CHECK_EQ(ch_vm_attach(rig.heap, &none, NULL, &rig.vm), CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	struct ch_owner owner = rig_owner(&rig, "of little space");
	uint64_t pool = rig_stats(&rig).pool_bytes, bytes = 0;
	for (uint32_t i = 0; bytes < pool / 32; i++) {
		struct emitter e;
		emit_open(&e, owner, 64, 0);
		emit_answer(&e, i);
		emit_filler(&e, 60);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
		CHECK_EQ(((uint32_t(*)(void))(uintptr_t)*ch_owner_cell(owner))(), i);
		bytes += 64;
	}
	/* A higher chunk takes more space while it becomes executable. In a small pool side memory
	 * takes as much. */
	if (pool == WHOLE) {
		struct emitter large;
		emit_open(&large, owner, (uint32_t)(pool / 2), 0);
		CHECK_EQ(ch_block_abort(&large.code), CH_OK);
	}
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	rig_end(&rig);
}

/* Returns the least space for a pool of this size. */
static size_t least_space(size_t pool_bytes)
{
	enum { EXACT = 16 << 10 };
	size_t low = 0, high = MOST;
	while (high - low > EXACT) {
		size_t middle = low + (high - low) / 2;
		int said = in_child(create_in, middle);
		if (said != NO_HEAP && (size_t)(said - EXIT_MIB) * MIB >= pool_bytes)
			high = middle;
		else
			low = middle;
	}
	return high;
}

TEST(s50_heap_that_was_made_in_little_space_can_be_used)
{
	const char *backend = getenv("CODEHEAP_WX");
	skip_with_shadow();
	if (backend && strcmp(backend, "procmem") == 0)
		skip("what a heap of private memory needs besides is not kept free");
	for (size_t bytes = WHOLE; bytes >= 4 * LEAST; bytes /= 4)
		CHECK_EQ(in_child(use_in, least_space(bytes)), 0);
	/* On dual some systems ask for as much already when the views are made. */
	CHECK_EQ(setenv("CODEHEAP_WX", "memfd", 1), 0);
	for (size_t bytes = WHOLE; bytes >= 4 * LEAST; bytes /= 4)
		CHECK_EQ(in_child(use_in, least_space(bytes)), 0);
}

/* Reports the backend, too. */
static void create_default_in(size_t more)
{
	struct ch_config config = rig_config(WHOLE);
	struct ch_heap *heap;
	struct ch_stats stats = {.size = sizeof stats};
	unsetenv("CODEHEAP_WX");
	limit_space(more);
	if (ch_heap_create(&config, &heap) != CH_OK)
		_exit(NO_HEAP);
	CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
	int mib_log2 = __builtin_ctzll(stats.pool_bytes / MIB);
	_exit(strcmp(stats.backend, "dual") == 0 ? EXIT_MIB + mib_log2 : NO_HEAP + 1 + mib_log2);
}

/* Tools see more or less of the code by the backend: the limit may not change the backend. */
TEST(s50_limit_of_the_address_space_takes_size_from_the_pool_before_the_backend)
{
	int last = 0;
	skip_with_shadow();
	for (size_t more = 0; more <= MOST; more += more < 80 * MIB ? MIB : 8 * MIB) {
		int said = in_child(create_default_in, more), got = said == NO_HEAP ? 0 : said;
		if (got < last)
			FAIL("with %zu MiB more another backend, or a smaller pool: %d after %d",
			     more / MIB, got, last);
		last = got;
	}
	CHECK_EQ(last, EXIT_MIB + __builtin_ctz(WHOLE / MIB));
}

static void leave_most_of(size_t more)
{
	struct ch_config config = rig_config(LEAST);
	struct ch_heap *heap;
	limit_space(more);
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	CHECK(ch__os_reserve(more / 4 * 3, ch__os_page_bytes(), 0, ch__os_anywhere) != NULL);
}

/* Where there is no limit, tables reserve some 3 GiB. */
TEST(s50_limit_of_the_address_space_is_left_to_others_however_high)
{
	skip_with_shadow();
	CHECK_EQ(in_child(leave_most_of, (size_t)8192 * MIB), 0);
}

/* --- by the gate --- */

static unsigned collections_wanted;

static void note_wanted(void *user)
{
	(void)user;
	collections_wanted++;
}

static enum ch_status open_bytes(struct emitter *e, struct ch_owner owner, uint32_t bytes,
				 unsigned flags)
{
	struct ch_open open = {.owner = owner, .hot_bytes = bytes, .flags = flags};
	return emit_open_as(e, &open);
}

/* A collection gets no more memory from the system: the VM is not sent into many collections. */
static void check_refused(struct rig *rig, struct ch_owner owner, uint32_t bytes, int error)
{
	struct emitter e;
	enum ch_status wanted = error == ENOMEM ? CH_E_MEMORY : CH_E_OS;
	uint64_t cycles = rig_stats(rig).cycles;
	for (unsigned i = 0; i < 3; i++) {
		errno = 0;
		CHECK_EQ(open_bytes(&e, owner, bytes, i ? CH_OPEN_MAY_COLLECT : 0), wanted);
		CHECK_EQ(errno, error);
		ch_thread_poll();
	}
	CHECK_EQ(collections_wanted, 0);
	CHECK_EQ(rig_stats(rig).opens_full, 0);
	CHECK_EQ(rig_stats(rig).cycles, cycles);
}

TEST(s50_pool_that_gets_no_memory_is_full_only_where_a_collection_would_help)
{
	enum { SMALL = 3000, LARGE = 3 * MIB };
	static const int errors[] = {ENOMEM, ENOSPC};
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = note_wanted};
	struct emitter e;
	for (unsigned i = 0; i < 2; i++) {
		struct ch_config config = rig_config(16 * MIB);
		struct rig rig = rig_create(&config, &ops, NULL);
		struct ch_owner owner = rig_owner(&rig, "code");
		ch__os_pretended.commit_error = errors[i];
		check_refused(&rig, owner, SMALL, errors[i]);
		ch__os_pretended.commit_error = 0;
		CHECK_EQ(open_bytes(&e, owner, SMALL, 0), CH_OK);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		/* A chunk is there, but too small for this block, however empty. */
		ch__os_pretended.commit_error = errors[i];
		check_refused(&rig, owner, LARGE, errors[i]);
		struct ch_owner filling = rig_owner(&rig, "filling");
		while (open_bytes(&e, filling, SMALL, 0) == CH_OK) {
			emit_answer(&e, 1);
			CHECK_EQ(emit_commit(&e), CH_OK);
		}
		collections_wanted = 0;
		CHECK_EQ(open_bytes(&e, owner, SMALL, 0), CH_E_FULL);
		CHECK(rig_stats(&rig).opens_full > 0);
		CHECK_EQ(ch_owner_release(filling, CH_RELEASE_COLLECT), CH_OK);
		rig_collect(&rig, 3);
		CHECK_EQ(open_bytes(&e, owner, SMALL, CH_OPEN_MAY_COLLECT), CH_OK);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		ch__os_pretended.commit_error = 0;
		collections_wanted = 0;
		rig_end(&rig);
	}
}

/* Opens once in a fresh heap, with each call from the nth on failing. Returns false when the open
 * has fewer than n calls. */
static bool open_without_memory(struct ch_open open, uint64_t n, unsigned *lacking)
{
	struct emitter e;
	struct rig rig = rig_start(4 * MIB);
	open.owner = rig_owner(&rig, "code");
	ch__os_fail_at(n, true);
	enum ch_status status = emit_open_as(&e, &open);
	bool is_over = ch__os_failable_calls() < n;
	ch__os_fail_at(0, false);
	CHECK(status == CH_OK || status == CH_E_MEMORY || status == CH_E_OS);
	CHECK_EQ(rig_stats(&rig).opens_full, 0);
	*lacking += status != CH_OK;
	if (status == CH_OK)
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
	return !is_over;
}

TEST(s50_open_that_lacks_memory_or_a_mapping_counts_as_no_full_pool)
{
	static const struct ch_open opens[] = {
		{.hot_bytes = 100},
		{.hot_bytes = 100, .flags = CH_OPEN_MAY_COLLECT},
		{.hot_bytes = 100000, .flags = CH_OPEN_OWN_FRAMES},
		{.hot_bytes = 100000, .flags = CH_OPEN_IN_PLACE},
	};
	for (unsigned i = 0; i < sizeof opens / sizeof opens[0]; i++) {
		unsigned lacking = 0;
		for (uint64_t n = 1; open_without_memory(opens[i], n, &lacking); n++)
			CHECK(n < 200);
		CHECK(lacking > 1);
	}
}

static void halve(enum ch_backend backend)
{
	struct ch_config config = rig_config(0);
	struct ch_heap *heap;
	size_t page =
		rig_page_bytes() > ch__os_page_bytes() ? rig_page_bytes() : ch__os_page_bytes();
	size_t around = page + 2 * ch__os_page_bytes();
	/* A place at a multiple of such a page is reserved for side memory, too. */
	if (ch__os_pretended.page_bytes)
		skip("the system's page is pretended");
	unsetenv("CODEHEAP_WX");
	config.backend = backend;
	for (size_t bytes = WHOLE; bytes >= LEAST; bytes /= 2) {
		struct ch_stats stats = {.size = sizeof stats};
		ch__os_pretended.reserve_bytes = bytes + around;
		CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
		CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
		if (stats.pool_bytes != bytes)
			FAIL("stats: a pool of %llu bytes where %zu fit",
			     (unsigned long long)stats.pool_bytes, bytes);
		CHECK(stats.free_bytes_now > bytes / 2 && stats.free_bytes_now <= bytes);
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	}
	/* Space below the least counts as none, and a small pool is not made smaller. */
	for (config.pool_bytes = WHOLE; config.pool_bytes >= LEAST / 8; config.pool_bytes /= 2) {
		ch__os_pretended.reserve_bytes =
			around + (config.pool_bytes > LEAST ? LEAST : config.pool_bytes) / 2;
		enum ch_status status = ch_heap_create(&config, &heap);
		if (status != CH_E_MEMORY || errno != ENOMEM)
			FAIL("a pool of %zu bytes where half of the least fits: %s",
			     config.pool_bytes, ch_status_text(status));
		CHECK_EQ((uintptr_t)heap, 0);
	}
}

TEST(s50_pool_is_halved_to_what_can_be_reserved_dual)
{
	halve(CH_BACKEND_DUAL);
}

TEST(s50_pool_is_halved_to_what_can_be_reserved_memfd)
{
	halve(CH_BACKEND_MEMFD);
}

/* Under mlockall(MCL_FUTURE) all address space counts as locked memory, and mmap and mremap say
 * EAGAIN beyond its limit. */
TEST(s50_pool_is_halved_where_no_more_memory_may_be_locked)
{
	struct ch_config config = rig_config(WHOLE);
	struct ch_heap *heap;
	unsigned halved = 0;
	uint64_t calls = 1;
	unsetenv("CODEHEAP_WX");
	config.backend = CH_BACKEND_MEMFD;
	for (uint64_t nth = 1; nth <= calls; nth++) {
		struct ch_stats stats = {.size = sizeof stats};
		ch__os_fail_as(nth, false, EAGAIN);
		enum ch_status status = ch_heap_create(&config, &heap);
		calls = ch__os_failable_calls();
		ch__os_fail_at(0, false);
		CHECK(status == CH_OK || !strstr(ch_why(), "no pool of"));
		if (status != CH_OK)
			continue;
		CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
		halved += stats.pool_bytes == WHOLE / 2;
		CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	}
	CHECK(halved > 4);
}

enum { MANY = 900 }; /* of 1,900 bytes: more than half of the pool */

static void fill(struct stage *stage, void *arg)
{
	(void)arg;
	for (uint32_t i = 0; i < MANY; i++) {
		struct method m;
		struct emitter e;
		method_new(stage, &m, "filling");
		struct ch_open open = {.owner = m.owner, .hot_bytes = 1900};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_answer(&e, i);
		emit_filler(&e, 1860);
		method_commit(&e, &m);
		CHECK_EQ(method_call(&m, NULL), i);
		method_drop(stage, &m);
	}
}

/* The pool is filled, collected and filled again, and a child has a copy. */
EVERY_DRIVER(s50_heap_of_a_halved_pool_works)
{
	struct method kept;
	ch__os_pretended.reserve_bytes = 3 * LEAST;
	stage->config.pool_bytes = WHOLE;
	stage->counts_only = true;
	stage_start(stage);
	CHECK_EQ(stage_stats(stage).pool_bytes, 2 * LEAST);
	method_constant(stage, &kept, "kept", 50);
	stage_apart(stage, fill, NULL);
	for (int i = 0; i < 3; i++)
		stage_collect(stage);
	stage_apart(stage, fill, NULL);
	stage_check(stage);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK_EQ(method_call(&kept, NULL), 50);
		_exit(0);
	}
	expect_exit(pid, 0);
}
