/* SPDX-License-Identifier: MIT
 * nongnu.c: the objects for pages in libunwind's list. A process never frees objects, so the next
 * heap takes the objects of an ended heap. tests/tool/libunwind.c shows that libunwind reads the
 * objects. */
#define _GNU_SOURCE
#include "os/locks/ranks.h"
#include "os/os.h"
#include "tests/support/harness.h"
#include "sinks/sinks.h"
#include "unwind/nongnu.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int by_address(const void *a, const void *b)
{
	uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
	return (x > y) - (x < y);
}

TEST(objects_that_are_given_back_are_those_that_are_taken)
{
	/* Takes the objects of three whole pages. */
	size_t a_page = ch__os_page_bytes() / sizeof(struct ch__nongnu_object);
	uint32_t count = (uint32_t)(3 * a_page);
	struct ch__nongnu_object **first = calloc(count, sizeof(void *));
	struct ch__nongnu_object **second = calloc(count, sizeof(void *));
	CHECK(first && second);
	CHECK(ch__nongnu_take(first, count));
	ch__nongnu_give(first, count);
	ch__os_fail_at(1, true); /* no memory of the system is needed */
	CHECK(ch__nongnu_take(second, count));
	ch__os_fail_at(0, false);
	qsort(first, count, sizeof *first, by_address);
	qsort(second, count, sizeof *second, by_address);
	CHECK_EQ(memcmp(first, second, count * sizeof *first), 0);
	for (uint32_t i = 1; i < count; i++)
		CHECK(first[i] > first[i - 1]);
	/* A take that finds too few objects keeps some, which the caller gives back, too. */
	ch__os_fail_at(1, true);
	memset(first, 0, count * sizeof *first);
	CHECK(!ch__nongnu_take(first, 1));
	ch__os_fail_at(0, false);
	ch__nongnu_give(second, count - 1);
	memset(first, 0, count * sizeof *first);
	ch__os_fail_at(1, true);
	CHECK(!ch__nongnu_take(first, count));
	ch__os_fail_at(0, false);
	CHECK(first[count - 2] && !first[count - 1]);
	ch__nongnu_give(first, count);
	ch__nongnu_give(&second[count - 1], 1);
	ch__os_fail_at(1, true);
	CHECK(ch__nongnu_take(first, count));
	ch__os_fail_at(0, false);
	ch__nongnu_give(first, count);
	free(first);
	free(second);
}

/* A page of the system has many objects. */
TEST(objects_of_a_page_are_all_taken_before_the_next_page)
{
	uint32_t a_page = (uint32_t)(ch__os_page_bytes() / sizeof(struct ch__nongnu_object));
	struct ch__nongnu_object **taken = calloc(a_page, sizeof(void *));
	CHECK(taken && ch__nongnu_take(taken, 1));
	ch__os_fail_at(1, true);
	CHECK(ch__nongnu_take(taken + 1, a_page - 1));
	ch__os_fail_at(0, false);
	ch__nongnu_give(taken, a_page);
	free(taken);
}

/* A walk that read the start before a fill, and the end behind it, takes no pc for the object's. */
TEST(object_that_covers_nothing_begins_behind_all_code)
{
	struct ch__nongnu_object object = {.start = 4096, .end = 8192};
	ch__nongnu_empty(&object);
	CHECK_EQ(object.start, UINTPTR_MAX);
	CHECK_EQ(object.end, 0);
}

static _Atomic(int) tid;
static void *take_one(void *arg)
{
	struct ch__nongnu_object *taken[1];
	(void)arg;
	atomic_store(&tid, (int)gettid());
	CHECK(ch__nongnu_take(taken, 1));
	ch__nongnu_give(taken, 1);
	return NULL;
}

/* The child would have a list that another thread was changing, and a lock that nobody lets go. */
TEST(objects_stay_as_they_are_while_the_process_forks)
{
	pthread_t thread;
	ch__sinks_fork_files_prepare();
	CHECK_EQ(pthread_create(&thread, NULL, take_one, NULL), 0);
	TEST_UNTIL(atomic_load(&tid) && thread_is_asleep(atomic_load(&tid)))
		usleep(1000);
	pid_t child = fork_child();
	if (child == 0) {
		ch__sinks_fork_files_done(true);
		take_one(NULL);
		_exit(0);
	}
	ch__sinks_fork_files_done(false);
	expect_exit(child, 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void take_none(void)
{
	struct ch__nongnu_object *none[1] = {NULL};
	(void)ch__nongnu_take(none, 0);
}

static void give_none(void)
{
	struct ch__nongnu_object *none[1] = {NULL};
	ch__nongnu_give(none, 1);
}

/* Checked builds refuse a second lock of a rank, and so show that a call takes the lock. */
static bool takes_the_lock(void (*call)(void))
{
	int status;
	pid_t child = fork_child();
	if (child == 0) {
		ch__rank_note(CH__RANK_UNWINDER, true);
		call();
		_exit(0);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

TEST(objects_are_taken_and_given_under_their_lock)
{
	CHECK(takes_the_lock(take_none));
	CHECK(takes_the_lock(give_none));
}
