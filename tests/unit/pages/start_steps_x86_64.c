/* SPDX-License-Identifier: MIT
 * start_steps_x86_64.c: a start is set or cleared, and between two of its instructions another
 * thread sets its own start in the same word of the bitmap; two threads find a page empty. A signal
 * handler stands for the other thread; the trap flag brings the handler to each instruction in
 * turn. */
#define _GNU_SOURCE
#include "pages/inner.h"
#include "tests/support/pool_rig.h"
#include "tests/support/trap_flag_x86_64.h"

#include <pthread.h>
#include <signal.h>

static struct ch__pool *pool;
static uint32_t own, others; /* offsets of starts */
static int left = -1; /* instructions before the other thread's; below 0: it came */

static void on_trap(int signal)
{
	(void)signal;
	uint32_t granule = others / CH__GRANULE_BYTES;
	if (left-- == 0)
		atomic_fetch_or(&pool->starts[granule >> 6], UINT64_C(1) << (granule & 63));
}

static void clear(uint32_t offset)
{
	ch__page_set_start(pool, offset, false);
}

static void *wait_for_the_end(void *arg)
{
	pthread_barrier_wait(arg);
	return NULL;
}

/* Another thread sets its start after each instruction of a call in turn. */
static void step_through(void (*call)(void), bool is_set)
{
	for (int n = 0; left < 0; n++) {
		left = n;
		trap_flag_set();
		call();
		trap_flag_clear();
		CHECK(n > 0 || left < 0); /* a call has many instructions */
		CHECK_EQ(ch__page_has_start(pool, own), is_set);
		CHECK(left >= 0 || ch__page_has_start(pool, others));
		clear(others);
	}
	left = -1;
}

static void set_own(void)
{
	ch__page_set_start(pool, own, true);
}

static void clear_own(void)
{
	clear(own);
}

TEST(start_of_one_thread_is_not_lost_to_a_neighbour_of_another)
{
	struct pool_rig rig = rig_start(1 << 20);
	pthread_barrier_t end;
	pthread_t thread;
	pool = rig.pool;
	own = rig_take(&rig) << pool->page_log2;
	others = own + CH__GRANULE_BYTES;
	CHECK(signal(SIGTRAP, on_trap) != SIG_ERR);
	CHECK_EQ(pthread_barrier_init(&end, NULL, 2), 0);
	CHECK_EQ(pthread_create(&thread, NULL, wait_for_the_end, &end), 0);
	step_through(set_own, true);
	step_through(clear_own, false);
	pthread_barrier_wait(&end);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	rig_destroy(&rig);
}

static uint32_t empty; /* a page without a used granule, which nobody has freed */
static int freed;
static bool takes_it;

/* Spans begin as low as they can, so others may come first. */
static void take_as_span(void)
{
	uint32_t lower[16], n = 0, span;
	while ((span = ch__pool_take_span(pool, 1, 0, CH__SPAN_CODE)) != empty) {
		CHECK(n < 16 && span != CH__PAGE_NONE);
		lower[n++] = span;
	}
	while (n)
		ch__pool_release_span(pool, lower[--n]);
}

static void free_empty(int signal)
{
	(void)signal;
	if (left-- != 0 || !ch__lock_is_free(&pool->inner->lock))
		return;
	freed += ch__pool_note_freed(pool, empty);
	if (freed && takes_it)
		take_as_span();
}

static void free_twice(void)
{
	struct pool_rig rig = rig_start(1 << 20);
	pool = rig.pool;
	CHECK(signal(SIGTRAP, free_empty) != SIG_ERR);
	for (int n = 0; left < 0; n++) {
		empty = rig_take(&rig);
		uintptr_t exec = rig_reserve(&rig, empty, 64);
		ch__pool_retire_page(pool, empty);
		ch__pool_poison(pool, exec, 64);
		ch__page_lock(&pool->pages[empty]);
		ch__page_give_back(pool, empty, (uint32_t)(exec - pool->exec_base), 64);
		ch__page_unlock(&pool->pages[empty]);
		freed = 0;
		left = n;
		trap_flag_set();
		bool is_freed = ch__pool_note_freed(pool, empty);
		trap_flag_clear();
		CHECK(n > 0 || left < 0);
		CHECK_EQ(freed + is_freed, 1);
		bool is_span = freed && takes_it;
		CHECK_EQ(pool->pages[empty].state, is_span ? CH__PAGE_SPAN : CH__PAGE_FREE);
		if (is_span)
			ch__pool_release_span(pool, empty);
	}
	left = -1;
	rig_destroy(&rig);
}

TEST(page_that_two_threads_find_empty_is_freed_once)
{
	free_twice();
}

TEST(page_that_became_a_span_while_a_thread_found_it_empty_stays_a_span)
{
	takes_it = true;
	free_twice();
}
