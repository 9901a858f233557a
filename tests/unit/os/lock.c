/* SPDX-License-Identifier: MIT
 * lock.c: the lock of the library: one holder at a time, and the holder is known; a wait that
 * sleeps and ends in time; a child of fork frees a lock that another thread held at the fork. */
#define _GNU_SOURCE
#include "os/locks/lock.h"
#include "os/os.h"
#include "os/threads.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 20000 };

static struct ch__lock lock;
static uint64_t shared;

static void *add(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		ch__lock_take(&lock, CH__RANK_PAGES);
		CHECK(ch__lock_is_mine(&lock));
		shared++;
		ch__lock_release(&lock, CH__RANK_PAGES);
	}
	return arg;
}

TEST(lock_has_one_holder_at_a_time)
{
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, add, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK_EQ(shared, THREADS * ROUNDS);
	CHECK_EQ(atomic_load(&lock.word), CH__LOCK_FREE);
}

/* Instead of a sleep that has an end. */
static uint64_t never_nap(uint64_t nap_ns)
{
	CHECK_EQ(nap_ns, 0);
	return 1;
}

TEST(sleeper_is_woken_by_who_lets_the_lock_go)
{
	pthread_t thread;
	ch__os_pretended.clock = never_nap;
	ch__lock_take(&lock, CH__RANK_PAGES);
	CHECK_EQ(pthread_create(&thread, NULL, add, NULL), 0);
	/* From here on the thread sleeps, or is about to sleep and finds the word changed. */
	while (atomic_load(&lock.word) != CH__LOCK_AWAITED)
		usleep(1000);
	usleep(20000);
	ch__lock_release(&lock, CH__RANK_PAGES);
	TEST_UNTIL(pthread_tryjoin_np(thread, NULL) == 0)
		usleep(1000);
	CHECK_EQ(shared, ROUNDS);
}

static void *is_alone(void *arg)
{
	*(bool *)arg = ch__is_only_thread();
	return NULL;
}

TEST(only_thread_is_known_as_such_until_there_is_another)
{
	pthread_t thread;
	bool is_it = true;
	CHECK(ch__is_only_thread());
	CHECK_EQ(pthread_create(&thread, NULL, is_alone, &is_it), 0);
	CHECK(!ch__is_only_thread());
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(!is_it);
}

/* Takes the lock and keeps it until may_go is set. */
static _Atomic(uint32_t) has_it, may_go;

static void *keep(void *arg)
{
	ch__lock_take(&lock, CH__RANK_PAGES);
	atomic_store(&has_it, 1);
	ch__os_futex_wake(&has_it);
	while (!atomic_load(&may_go))
		ch__os_futex_wait(&may_go, 0, 0);
	ch__lock_release(&lock, CH__RANK_PAGES);
	return arg;
}

static pthread_t keep_elsewhere(void)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, keep, NULL), 0);
	while (!atomic_load(&has_it))
		ch__os_futex_wait(&has_it, 0, 0);
	return thread;
}

static void end_keeper(pthread_t thread)
{
	atomic_store(&may_go, 1);
	ch__os_futex_wake(&may_go);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(lock_of_another_thread_is_not_mine_and_a_wait_for_it_ends_in_time)
{
	enum { WAIT_NS = 3000000 };
	pthread_t thread = keep_elsewhere();
	CHECK(!ch__lock_is_mine(&lock));
	CHECK(!ch__lock_try(&lock, CH__RANK_PAGES));
	uint64_t until = ch__os_now_ns() + WAIT_NS;
	CHECK(!ch__lock_sleep(&lock, until));
	CHECK(ch__os_now_ns() >= until);
	/* After the waiter gave up, a release wakes once for nothing, and the lock is free. */
	end_keeper(thread);
	CHECK(ch__lock_try(&lock, CH__RANK_PAGES));
	CHECK(ch__lock_is_mine(&lock));
	ch__lock_release(&lock, CH__RANK_PAGES);
}

/* --- a handler that interrupted the lock's holder --- */

static void wait_in_a_handler(int signal)
{
	(void)signal;
	(void)ch__lock_sleep(&lock, 0);
}

static void interrupt_the_holder(void *arg)
{
	(void)arg;
	alarm(TEST_PATIENCE_S);
	CHECK(signal(SIGUSR1, wait_in_a_handler) != SIG_ERR);
	ch__lock_take(&lock, CH__RANK_PAGES);
	raise(SIGUSR1);
}

/* The test waits below the check of ranks, and so sees the text of a release build. */
TEST(thread_that_waits_for_its_own_lock_is_told_how_that_comes)
{
	char text[400] = "";
	expect_signal_text(interrupt_the_holder, NULL, SIGABRT, text, sizeof text);
	if (!strstr(text, "wanted by the thread that holds it: called in a signal handler that "
			  "interrupted a call of the library, or a call was left by longjmp"))
		FAIL("said: %s", text);
}

TEST(wait_with_a_limit_for_the_own_lock_ends_at_once)
{
	enum { FOR_EVER_NS = 1000000000 };
	ch__lock_take(&lock, CH__RANK_PAGES);
	uint64_t until = ch__os_now_ns() + FOR_EVER_NS * (uint64_t)TEST_PATIENCE_S;
	CHECK(!ch__lock_sleep(&lock, until));
	CHECK(ch__os_now_ns() < until);
	ch__lock_release(&lock, CH__RANK_PAGES);
	CHECK(!ch__lock_is_mine(&lock));
}

TEST(lock_that_was_set_free_has_no_holder)
{
	ch__lock_take(&lock, CH__RANK_PAGES);
	CHECK(ch__lock_set_free(&lock));
	ch__rank_note(CH__RANK_PAGES, false);
	CHECK(!ch__lock_is_mine(&lock));
	CHECK(ch__lock_try(&lock, CH__RANK_PAGES));
	ch__lock_release(&lock, CH__RANK_PAGES);
}

TEST(child_of_a_fork_sets_a_lost_lock_free)
{
	pthread_t thread = keep_elsewhere();
	pid_t child = fork_child();
	if (child == 0) {
		bool was_lost = ch__lock_set_free(&lock), is_free = !ch__lock_set_free(&lock);
		bool is_had = ch__lock_try(&lock, CH__RANK_PAGES);
		_exit(was_lost && is_free && is_had && ch__lock_is_mine(&lock) ? 0 : 1);
	}
	expect_exit(child, 0);
	end_keeper(thread);
}
