/* SPDX-License-Identifier: MIT
 * locks.c: the lock of the collector: its hooks walk the list of heaps under it, so a heap comes to
 * the list under it, too. */
#define _GNU_SOURCE
#include "codeheap/listener.h"
#include "tests/bdw/support.h"

#include <sched.h>

static _Atomic(int) maker_tid;
static _Atomic(bool) is_coming, is_held, is_made;

/* Between what the maker allocates and what it publishes; no sleep, which would be taken for its wait
 * for the lock. */
static enum ch_status wait_until_held(struct ch_heap *heap, const char **file)
{
	(void)heap, (void)file;
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

TEST(heap_that_is_made_waits_for_the_lock_of_the_collector)
{
	static struct ch__greeter greeter = {.begins = wait_until_held};
	struct rig rig = start_rig(0);
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
	end_rig(&rig);
}
