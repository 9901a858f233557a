/* SPDX-License-Identifier: MIT
 * meta.c: side memory: zeroed, aligned, counted, gone with its heap, from many threads, and across
 * a fork during allocations. */
#include "os/locks/lock.h"
#include "os/meta.h"
#include "os/os.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_zero(const uint8_t *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (at[i])
			return false;
	return true;
}

TEST(memory_is_zeroed_and_aligned_also_when_reused)
{
	struct ch__meta *meta = ch__meta_create();
	CHECK(meta);
	for (unsigned round = 0; round < 3; round++)
		for (size_t bytes = 0; bytes < 5000; bytes = bytes * 5 / 4 + 1) {
			uint8_t *at = ch__meta_alloc(meta, bytes);
			CHECK(at);
			CHECK_EQ((uintptr_t)at % 16, 0);
			CHECK(is_zero(at, bytes));
			memset(at, 0xff, bytes);
			ch__meta_free(meta, at, bytes);
		}
	CHECK_EQ(ch__meta_bytes(meta), 0);
	ch__meta_free(meta, NULL, 10);
	CHECK(!ch__meta_alloc(meta, SIZE_MAX));
	ch__meta_destroy(meta);
}

TEST(destroy_returns_what_was_never_freed)
{
	enum { OBJECTS = 20000, BYTES = 500, ROUNDS = 20 };
	size_t first = 0;
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct ch__meta *meta = ch__meta_create();
		CHECK(meta);
		for (unsigned i = 0; i < OBJECTS; i++)
			CHECK(ch__meta_alloc(meta, BYTES));
		CHECK(ch__meta_bytes(meta) >= (size_t)OBJECTS * BYTES);
		ch__meta_destroy(meta);
		if (round == 2)
			first = resident_bytes();
	}
	/* Seventeen more rounds of 10 MB each: a leak would show as 170 MB. Sanitizers keep freed
	 * memory on purpose. */
	if (!getenv("CODEHEAP_TEST_SAN") || !*getenv("CODEHEAP_TEST_SAN"))
		CHECK(resident_bytes() < first + (40u << 20));
}

/* The threads' caches go with the heap, too: a cache is a few bytes, and one of the allocator's
 * 4,094 numbers. */
TEST(many_that_come_and_go_leave_nothing)
{
	enum { FIRST = 100, ROUNDS = 5000 };
	size_t first = 0;
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct ch__meta *meta = ch__meta_create();
		CHECK(meta);
		for (size_t bytes = 16; bytes <= 1024; bytes *= 2)
			CHECK(ch__meta_alloc(meta, bytes));
		ch__meta_destroy(meta);
		if (round == FIRST)
			first = resident_bytes();
	}
	if (!getenv("CODEHEAP_TEST_SAN") || !*getenv("CODEHEAP_TEST_SAN"))
		CHECK(resident_bytes() < first + (8u << 20));
}

struct worker {
	struct ch__meta *meta;
	uint64_t seed;
	_Atomic(bool) *stop;
};

static void *churn(void *arg)
{
	struct worker *worker = arg;
	struct test_random random = {worker->seed};
	enum { KEPT = 200 };
	static _Thread_local struct {
		uint8_t *at;
		size_t bytes;
	} kept[KEPT];
	while (!atomic_load_explicit(worker->stop, memory_order_relaxed)) {
		unsigned i = (unsigned)test_random_below(&random, KEPT);
		if (kept[i].at) {
			CHECK_EQ(kept[i].at[kept[i].bytes - 1], (uint8_t)worker->seed);
			ch__meta_free(worker->meta, kept[i].at, kept[i].bytes);
			kept[i].at = NULL;
			continue;
		}
		kept[i].bytes = 1 + test_random_below(&random, 400);
		kept[i].at = ch__meta_alloc(worker->meta, kept[i].bytes);
		CHECK(kept[i].at && is_zero(kept[i].at, kept[i].bytes));
		memset(kept[i].at, (int)(uint8_t)worker->seed, kept[i].bytes);
	}
	for (unsigned i = 0; i < KEPT; i++)
		if (kept[i].at)
			ch__meta_free(worker->meta, kept[i].at, kept[i].bytes);
	return NULL;
}

enum { CALLS = 17 }; /* of a thread, and it has a cache */

static void *allocate_some(void *meta)
{
	for (int i = 0; i < CALLS; i++)
		CHECK(ch__meta_alloc(meta, 64));
	return NULL;
}

enum { ALLOCATORS = 48 };

/* Each thread has one of eight locks. So many threads miss a given lock one time in 600. */
static void allocate_by_each_lock(struct ch__meta *meta)
{
	pthread_t threads[ALLOCATORS];
	for (int i = 0; i < ALLOCATORS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, allocate_some, meta), 0);
	for (int i = 0; i < ALLOCATORS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

static void use_in_child(struct ch__meta *meta)
{
	alarm(20); /* a lock that is held for ever must not take the whole patience of a case */
	ch__meta_fork_child(meta);
	allocate_by_each_lock(meta);
	void *kept[1000];
	for (unsigned i = 0; i < 1000; i++)
		CHECK((kept[i] = ch__meta_alloc(meta, 100)));
	for (unsigned i = 0; i < 1000; i++)
		ch__meta_free(meta, kept[i], 100);
	ch__meta_destroy(meta);
	_exit(0);
}

TEST(array_that_grows_keeps_its_items_and_gives_back_what_it_left)
{
	enum { LEAST = 4, TIMES = 6 };
	struct ch__meta *meta = ch__meta_create();
	uint64_t *items = NULL;
	uint32_t room = 0;
	for (uint64_t n = 0; n < (uint64_t)LEAST << TIMES; n++) {
		if (n == room)
			CHECK(ch__meta_grow(meta, &items, &room, LEAST, sizeof *items));
		items[n] = n;
	}
	for (uint64_t n = 0; n < room; n++)
		CHECK_EQ(items[n], n);
	CHECK_EQ(ch__meta_bytes(meta), room * sizeof *items);
	ch__meta_destroy(meta);
}

/* Twice as many are 2^32, which its capacity does not hold. */
TEST(array_of_2_to_the_31_items_grows_no_further)
{
	struct ch__meta *meta = ch__meta_create();
	uint64_t *items = NULL; /* of which none is read */
	uint32_t room = UINT32_C(1) << 31;
	CHECK(!ch__meta_grow(meta, &items, &room, 4, sizeof *items));
	CHECK_EQ(room, UINT32_C(1) << 31);
	ch__meta_destroy(meta);
}

TEST(threads_allocate_and_children_of_fork_go_on)
{
	skip_if_allocator_forgets_forks();
	enum { WORKERS = 3 };
	struct ch__meta *meta = ch__meta_create();
	struct test_random random = test_random_new();
	static _Atomic(bool) stop;
	pthread_t threads[WORKERS];
	struct worker workers[WORKERS];
	uint64_t until = now_ns() + (uint64_t)storm_ms_of(2000) * 1000000;
	for (unsigned i = 0; i < WORKERS; i++) {
		workers[i] = (struct worker){meta, test_random_next(&random) | 1, &stop};
		CHECK_EQ(pthread_create(&threads[i], NULL, churn, &workers[i]), 0);
	}
	while (now_ns() < until) {
		pid_t pid = fork_child();
		if (pid == 0)
			use_in_child(meta);
		int status;
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK_EQ(status, 0);
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	CHECK_EQ(ch__meta_bytes(meta), 0);
	ch__meta_destroy(meta);
}

TEST(failing_allocation_says_so)
{
	struct ch__meta *meta = ch__meta_create();
	ch__os_fail_at(2, false);
	void *first = ch__meta_alloc(meta, 8), *second = ch__meta_alloc(meta, 8),
	     *third = ch__meta_alloc(meta, 8);
	CHECK_EQ(ch__os_failable_calls(), 3);
	ch__os_fail_at(1, true);
	CHECK(!ch__meta_create() && !ch__meta_alloc(meta, 8));
	CHECK_EQ(errno, ENOMEM);
	ch__os_fail_at(0, false);
	CHECK(first && !second && third);
	/* A successful call leaves errno alone. */
	errno = ERANGE;
	CHECK(ch__meta_alloc(meta, 8));
	CHECK_EQ(errno, ERANGE);
	CHECK(!ch__meta_alloc(meta, SIZE_MAX / 4));
	CHECK_EQ(errno, ENOMEM);
	errno = 0;
	CHECK(!ch__meta_alloc(meta, SIZE_MAX / 2 - 64)); /* the system is not asked */
	CHECK_EQ(errno, ENOMEM);
	errno = 0;
	CHECK(!ch__meta_alloc(meta, SIZE_MAX - 4));
	CHECK_EQ(errno, ENOMEM);
	CHECK(!ch__meta_alloc(meta, SIZE_MAX - 15)); /* of whole units: no room for more */
	CHECK_EQ(ch__meta_bytes(meta), 3 * 16);
	ch__meta_destroy(meta);
}

/* jemalloc's function, in builds with jemalloc. */
__attribute__((weak)) int mallctl(const char *, void *, size_t *, void *, size_t);

struct starved {
	struct ch__meta *meta;
	pthread_barrier_t *started, *limited;
};

static void *allocate_all(void *arg)
{
	struct starved *starved = arg;
	pthread_barrier_wait(starved->started);
	pthread_barrier_wait(starved->limited);
	for (int i = 0; i < 4; i++) {
		errno = 0;
		/* The C library's allocator may have a rest, which one thread may find alone. */
		for (int made = 0; ch__meta_create(); made++)
			CHECK(!mallctl && made < 100000);
		CHECK_EQ(errno, ENOMEM);
	}
	for (size_t bytes = 1 << 20; bytes >= 16; bytes /= 2) {
		while (ch__meta_alloc(starved->meta, bytes))
			CHECK(ch__meta_bytes(starved->meta) < 256u << 20);
		CHECK_EQ(errno, ENOMEM);
	}
	return NULL;
}

TEST(threads_whose_first_allocation_finds_no_memory_are_told)
{
	const char *sanitizer = getenv("CODEHEAP_TEST_SAN");
	if (sanitizer && *sanitizer)
		skip("a sanitizer maps memory for itself");
	enum { THREADS = 12 };
	struct ch__meta *meta = ch__meta_create();
	pthread_barrier_t started, limited;
	pthread_t threads[THREADS];
	struct starved starved = {meta, &started, &limited};
	struct rlimit before, none = {.rlim_cur = 1};
	CHECK(meta && pthread_barrier_init(&started, NULL, THREADS + 1) == 0);
	CHECK_EQ(pthread_barrier_init(&limited, NULL, THREADS + 1), 0);
	CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
	none.rlim_max = before.rlim_max;
	for (unsigned i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, allocate_all, &starved), 0);
	pthread_barrier_wait(&started);
	CHECK_EQ(setrlimit(RLIMIT_AS, &none), 0);
	pthread_barrier_wait(&limited);
	for (unsigned i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
	CHECK(ch__meta_alloc(meta, 1 << 20));
	ch__meta_destroy(meta);
}

/* --- arenas and caches of the allocator --- */

static unsigned told(const char *name)
{
	unsigned n;
	size_t bytes = sizeof n;
	if (!mallctl)
		skip("this build has the C library's allocator");
	CHECK_EQ(mallctl(name, &n, &bytes, NULL, 0), 0);
	return n;
}

static void come_and_go(unsigned count, size_t bytes)
{
	struct ch__meta *metas[24];
	for (unsigned i = 0; i < count; i++)
		CHECK((metas[i] = ch__meta_create()) && ch__meta_alloc(metas[i], bytes));
	for (unsigned i = 0; i < count; i++)
		ch__meta_destroy(metas[i]);
}

/* More metas than arenas wait for reuse. */
TEST(memory_that_comes_again_needs_no_more_arenas)
{
	come_and_go(24, 64);
	unsigned arenas = told("arenas.narenas");
	for (int i = 0; i < 4; i++)
		come_and_go(24, 64);
	CHECK_EQ(told("arenas.narenas"), arenas);
}

/* The system is not asked: the allocator has 4,094 numbers. */
TEST(memory_that_gets_no_arena_says_so)
{
	(void)told("arenas.narenas"); /* skips */
	errno = 0;
	while (ch__meta_create())
		continue;
	CHECK_EQ(errno, ENOMEM);
}

/* The system gives the arena, and then no memory in it. The arena waits, for the next heap. */
TEST(arena_without_memory_is_not_lost)
{
	const struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
	unsigned arenas = told("arenas.narenas");
	struct ch__meta *meta = NULL;
	for (size_t more = 0; !meta; more += 64 << 10) {
		struct rlimit few = {mapped_bytes() + more, RLIM_INFINITY};
		CHECK_EQ(setrlimit(RLIMIT_AS, &few), 0);
		meta = ch__meta_create();
		CHECK_EQ(setrlimit(RLIMIT_AS, &all), 0);
	}
	CHECK_EQ(told("arenas.narenas"), arenas + 1);
	ch__meta_destroy(meta);
}

/* An arena that waits for the next heap keeps addresses, and no memory. */
TEST(memory_of_a_heap_that_went_is_the_system_s_at_once)
{
	enum { OBJECTS = 160000, BYTES = 500 };
	unsigned arenas = told("arenas.narenas");
	come_and_go(1, BYTES);
	size_t before = resident_bytes();
	struct ch__meta *meta = ch__meta_create();
	CHECK(meta);
	for (unsigned i = 0; i < OBJECTS; i++)
		CHECK(ch__meta_alloc(meta, BYTES));
	size_t full = resident_bytes();
	CHECK(full > before + (size_t)OBJECTS * BYTES / 2);
	ch__meta_destroy(meta);
	CHECK(resident_bytes() < before + (full - before) / 4);
	CHECK_EQ(told("arenas.narenas"), arenas + 1);
}

TEST(two_heaps_never_have_one_arena)
{
	enum { METAS = 8, OBJECTS = 100, BYTES = 200 };
	struct ch__meta *metas[METAS];
	uint8_t *kept[OBJECTS];
	come_and_go(1, 64);
	for (unsigned i = 0; i < METAS; i++)
		CHECK((metas[i] = ch__meta_create()) != NULL);
	for (unsigned i = 0; i < OBJECTS; i++) {
		CHECK((kept[i] = ch__meta_alloc(metas[0], BYTES)) != NULL);
		memset(kept[i], 0xa5, BYTES);
	}
	for (unsigned i = 1; i < METAS; i++)
		ch__meta_destroy(metas[i]);
	come_and_go(METAS, OBJECTS * BYTES);
	for (unsigned i = 0; i < OBJECTS; i++)
		for (unsigned at = 0; at < BYTES; at++)
			CHECK_EQ(kept[i][at], 0xa5);
	ch__meta_destroy(metas[0]);
}

/* The allocator gives the lowest free number first, and each number once. */
TEST(memory_that_went_leaves_no_cache_of_a_thread)
{
	unsigned first = told("tcache.create");
	struct ch__meta *meta = ch__meta_create();
	allocate_by_each_lock(meta);
	CHECK_EQ(ch__meta_bytes(meta), ALLOCATORS * CALLS * 64);
	CHECK(told("tcache.create") > first + 1); /* the meta's caches lie between */
	ch__meta_destroy(meta);
	/* The freed numbers of meta's caches come first, then the first number that nobody had. */
	unsigned most = 0;
	for (int i = 0; i < 8; i++) {
		unsigned n = told("tcache.create");
		most = n > most ? n : most;
	}
	CHECK(most <= first + 8);
}

TEST(child_keeps_the_caches_that_no_thread_was_changing)
{
	skip_if_allocator_forgets_forks();
	struct ch__meta *meta = ch__meta_create();
	CHECK(meta && !allocate_some(meta));
	unsigned first = told("tcache.create");
	pid_t pid = fork_child();
	if (pid == 0) {
		ch__meta_fork_child(meta);
		CHECK(ch__meta_alloc(meta, 64));
		CHECK_EQ(told("tcache.create"), first + 1);
		_exit(0);
	}
	int status;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	ch__meta_destroy(meta);
}

/* The locks lie at the beginning of the memory's record: one, or one in each of eight cache lines
 * where the allocator has caches. */
static struct ch__lock *lock_of(struct ch__meta *meta, unsigned i)
{
	return (struct ch__lock *)(void *)((char *)(void *)meta + (size_t)i * 64);
}

static void *die_with_all_locks(void *arg)
{
	struct ch__meta *meta = arg;
	for (unsigned i = 0; i < (mallctl ? 8 : 1); i++)
		CHECK(ch__lock_try(lock_of(meta, i), CH__RANK_META));
	return NULL;
}

/* The thread is gone, as a thread of the parent is in a child. */
TEST(locks_that_threads_had_at_a_fork_are_free_in_the_child)
{
	struct ch__meta *meta = ch__meta_create();
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, die_with_all_locks, meta), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	/* Behind each lock stands the cache that the thread was changing. Nobody uses it again. */
	for (unsigned i = 0; mallctl && i < 8; i++)
		*(int *)(void *)(lock_of(meta, i) + 1) = 1;
	ch__meta_fork_child(meta);
	for (unsigned i = 0; i < (mallctl ? 8 : 1); i++) {
		CHECK(ch__lock_is_free(lock_of(meta, i)));
		CHECK(!mallctl || *(int *)(void *)(lock_of(meta, i) + 1) == 0);
	}
	CHECK(ch__meta_alloc(meta, 64));
	ch__meta_destroy(meta);
}
