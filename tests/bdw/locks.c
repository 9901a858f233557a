/* SPDX-License-Identifier: MIT
 * locks.c: the collector's lock, under which hooks walk the list of heaps and a heap enters the
 * list; the lock under which the first heap sets the collector up; and forks beside both. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "codeheap/listener.h"
#include "tests/bdw/support.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>

static _Atomic(int) maker_tid;
static _Atomic(bool) is_coming, is_held, is_made; /* or destroyed */

/* Runs between the maker's allocations and the publication of the heap. A sleep here would look
 * like a wait for the lock. */
static enum ch_status wait_until_held(struct ch_heap *heap, const char **file, bool may_fail)
{
	(void)heap, (void)file, (void)may_fail;
	atomic_store(&is_coming, true);
	while (!atomic_load(&is_held))
		sched_yield();
	return CH_OK;
}

static void *make_another(void *arg)
{
	struct ch_heap *heap;
	struct GC_stack_base base;
	(void)arg;
	atomic_store(&maker_tid, (int)gettid());
	CHECK_EQ(GC_get_stack_base(&base), GC_SUCCESS);
	CHECK_EQ(GC_register_my_thread(&base), GC_SUCCESS);
	CHECK_EQ(ch_bdw_heap_create(NULL, &heap), CH_OK);
	atomic_store(&is_made, true);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	CHECK_EQ(GC_unregister_my_thread(), GC_SUCCESS);
	return NULL;
}

TEST_BDW(heap_that_is_made_waits_for_the_lock_of_the_collector)
{
	static struct ch__greeter greeter = {.begins = wait_until_held};
	pthread_t maker;
	ch__listener_greet(&greeter);
	CHECK_EQ(pthread_create(&maker, NULL, make_another, NULL), 0);
	TEST_UNTIL(atomic_load(&is_coming))
		sched_yield();
	GC_alloc_lock();
	atomic_store(&is_held, true);
	TEST_UNTIL(atomic_load(&is_made) || thread_is_asleep(atomic_load(&maker_tid)))
		sched_yield();
	bool was_early = atomic_load(&is_made);
	GC_alloc_unlock();
	CHECK_EQ(pthread_join(maker, NULL), 0);
	CHECK(!was_early);
}

static void *destroy_heap(void *heap)
{
	atomic_store(&maker_tid, (int)gettid());
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	atomic_store(&is_made, true);
	return NULL;
}

TEST_BDW(heap_that_is_destroyed_waits_for_the_lock_of_the_collector)
{
	struct ch_heap *heap;
	pthread_t destroyer;
	CHECK_EQ(ch_bdw_heap_create(NULL, &heap), CH_OK);
	GC_alloc_lock();
	CHECK_EQ(pthread_create(&destroyer, NULL, destroy_heap, heap), 0);
	TEST_UNTIL(atomic_load(&is_made) ||
		   (atomic_load(&maker_tid) && thread_is_asleep(atomic_load(&maker_tid))))
		sched_yield();
	bool was_early = atomic_load(&is_made);
	GC_alloc_unlock();
	CHECK_EQ(pthread_join(destroyer, NULL), 0);
	CHECK(!was_early);
}

/* --- the first heap --- */

static _Atomic(int) held_signal;
static _Atomic(bool) is_in, goes_on;

/* Replaces the C library's: a thread that sets the action of the collector's signal waits here. */
int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	int (*real)(int, const struct sigaction *, struct sigaction *);
	*(void **)&real = dlsym(RTLD_NEXT, "sigaction");
	if (action && signal == atomic_load(&held_signal)) {
		atomic_store(&is_in, true);
		while (!atomic_load(&goes_on))
			sched_yield();
	}
	return real(signal, action, old);
}

static void make_in_child(void)
{
	struct ch_heap *heap;
	atomic_store(&held_signal, 0);
	errno = 0;
	enum ch_status status = ch_bdw_heap_create(NULL, &heap);
	_exit(status == CH_E_OS && errno == ENOTRECOVERABLE ? 0 : 1);
}

TEST(child_of_a_fork_while_the_first_heap_is_made_does_not_wait_for_it)
{
	pthread_t maker;
	GC_set_handle_fork(1);
	GC_INIT();
	GC_allow_register_threads();
	atomic_store(&held_signal, GC_get_suspend_signal());
	CHECK_EQ(pthread_create(&maker, NULL, make_another, NULL), 0);
	TEST_UNTIL(atomic_load(&is_in))
		sched_yield();
	pid_t child = fork_child();
	if (!child)
		make_in_child();
	expect_exit(child, 0);
	atomic_store(&goes_on, true);
	CHECK_EQ(pthread_join(maker, NULL), 0);
}

/* --- a heap that is being destroyed when another thread forks --- */

static struct ch_heap *held, *going;

static bool hold_lock(void *arg, const struct ch_info *info)
{
	(void)info;
	atomic_store(&is_held, true);
	while (!atomic_load(&goes_on))
		sched_yield();
	return arg != NULL;
}

static void *visit_held(void *arg)
{
	CHECK_EQ(ch_block_each(held, NULL, hold_lock, arg), CH_OK);
	return NULL;
}

/* Until the fork waits with the lock of all heaps; then the destruction waits for the fork. */
static void *destroy_beside_the_fork(void *heap)
{
	pthread_t destroyer;
	TEST_UNTIL(!ch__lock_is_free(&ch__heaps_lock))
		sched_yield();
	CHECK_EQ(pthread_create(&destroyer, NULL, destroy_heap, heap), 0);
	TEST_UNTIL(atomic_load(&maker_tid) && thread_is_asleep(atomic_load(&maker_tid)))
		sched_yield();
	atomic_store(&goes_on, true);
	CHECK_EQ(pthread_join(destroyer, NULL), 0);
	return NULL;
}

TEST(child_of_a_fork_while_a_heap_is_destroyed_may_destroy_it)
{
	pthread_t visitor, destroyer;
	void *code;
	GC_set_handle_fork(1);
	start_collector();
	CHECK_EQ(ch_heap_create(NULL, &held), CH_OK);
	CHECK_EQ(ch_code_add(held, "", 1, NULL, &code), CH_OK);
	CHECK_EQ(ch_bdw_heap_create(NULL, &going), CH_OK);
	CHECK_EQ(pthread_create(&visitor, NULL, visit_held, NULL), 0);
	TEST_UNTIL(atomic_load(&is_held))
		sched_yield();
	CHECK_EQ(pthread_create(&destroyer, NULL, destroy_beside_the_fork, going), 0);
	pid_t child = fork_child();
	if (!child)
		_exit(ch_heap_destroy(going) == CH_OK ? 0 : 1);
	expect_exit(child, 0);
	CHECK_EQ(pthread_join(visitor, NULL), 0);
	CHECK_EQ(pthread_join(destroyer, NULL), 0);
}
