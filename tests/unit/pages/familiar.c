/* SPDX-License-Identifier: MIT
 * familiar.c: which page a thread takes where other threads took pages before: one of its own, else
 * any with memory, and more memory last. A span is where memory is, too. */
#define _GNU_SOURCE
#include "tests/support/pool_rig.h"

#include <pthread.h>

static struct pool_rig rig;
static uint32_t of_other[2];

static void start(void *(*elsewhere)(void *))
{
	struct ch__pool_config config = rig_config(1 << 20);
	pthread_t thread;
	rig = rig_create(&config);
	CHECK_EQ(pthread_create(&thread, NULL, elsewhere, NULL), 0);
	pthread_join(thread, NULL);
}

static uint32_t committed(void)
{
	return atomic_load(&rig.pool->pages_committed);
}

static uint32_t free_pages(void)
{
	return committed() - atomic_load(&rig.pool->pages_used);
}

static void *take_two(void *unused)
{
	of_other[0] = rig_take(&rig);
	of_other[1] = rig_take(&rig);
	return unused;
}

static void *leave_room(void *unused)
{
	take_two(NULL);
	ch__pool_retire_page(rig.pool, of_other[1]);
	CHECK_EQ(rig.pool->pages[of_other[1]].state, CH__PAGE_FREE);
	rig_reserve(&rig, of_other[0], 64);
	ch__pool_retire_page(rig.pool, of_other[0]);
	CHECK_EQ(rig.pool->pages[of_other[0]].state, CH__PAGE_PARTLY);
	return unused;
}

TEST(thread_takes_the_pages_that_it_took_before)
{
	uint32_t own = CH__PAGE_NONE, last = CH__PAGE_NONE;
	start(take_two);
	while (free_pages()) {
		own = last;
		last = rig_take(&rig);
	}
	CHECK(own != CH__PAGE_NONE);
	/* The pages of the other thread have rested longer. */
	ch__pool_retire_page(rig.pool, of_other[0]);
	ch__pool_retire_page(rig.pool, of_other[1]);
	ch__pool_retire_page(rig.pool, last);
	ch__pool_retire_page(rig.pool, own);
	CHECK_EQ(rig_take(&rig), last);
	CHECK_EQ(rig_take(&rig), own);
	CHECK_EQ(rig_take(&rig), of_other[0]);
	/* From here on the page is this thread's. */
	ch__pool_retire_page(rig.pool, of_other[0]);
	CHECK_EQ(rig_take(&rig), of_other[0]);
	rig_destroy(&rig);
}

TEST(pages_of_other_threads_come_before_more_memory)
{
	start(leave_room);
	while (free_pages() > 1) {
		uint32_t page = rig_take(&rig);
		CHECK(page != of_other[0] && page != of_other[1]);
	}
	uint32_t had = committed();
	CHECK_EQ(rig_take(&rig), of_other[0]);
	CHECK_EQ(rig_take(&rig), of_other[1]);
	CHECK_EQ(committed(), had);
	rig_take(&rig);
	CHECK(committed() > had);
	rig_destroy(&rig);
}

TEST(span_is_where_memory_is_before_it_is_where_none_is)
{
	enum { CHUNKS = 3 };
	struct ch__pool_config config = rig_config(CHUNKS << 20);
	rig = rig_create(&config);
	uint32_t all = rig.pool->page_count, a_chunk = all / rig.pool->chunk_count;
	for (uint32_t i = 0; i < all; i++)
		CHECK_EQ(rig_take(&rig), i);
	for (uint32_t i = 0; i < all - 1; i++)
		ch__pool_retire_page(rig.pool, i);
	ch__pool_trim(rig.pool); /* the first chunk stays */
	CHECK_EQ(committed(), 2 * a_chunk);
	CHECK_EQ(ch__pool_take_span(rig.pool, a_chunk, 0, CH__SPAN_CODE), 0);
	CHECK_EQ(ch__pool_take_span(rig.pool, a_chunk / 2, 0, CH__SPAN_CODE), all - a_chunk);
	CHECK_EQ(committed(), 2 * a_chunk);
	rig_destroy(&rig);
}
