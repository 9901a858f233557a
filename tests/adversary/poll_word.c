/* SPDX-License-Identifier: MIT
 * poll_word.c: the word that machine code tests in the place of ch_thread_poll. Each cause for a
 * poll sets the word, and the word is cleared when no cause is left. */
#include "codeheap/events/events.h"
#include "tests/support/full_rig.h"
#include "tests/support/stage_code.h"

#include <pthread.h>
#include <sched.h>

static struct rig rig;
static const volatile uint32_t *word;
static int asked, freed, space;

static void ask(void *user)
{
	(void)user;
	asked++;
}
static void free_code(void *user, void *block_user)
{
	(void)user, (void)block_user;
	freed++;
}

static void hear_of_space(void *user)
{
	(void)user;
	space++;
}

static void start_with(const struct ch_ops *ops, enum ch_driver driver, size_t pool_bytes)
{
	struct ch_config config = rig_config(pool_bytes);
	config.driver = driver;
	rig = rig_create(&config, ops, NULL);
	word = ch_thread_poll_word(rig.heap);
	ch_thread_poll();
	CHECK_EQ(*word, 0);
}
static void start(enum ch_driver driver)
{
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = ask, .block_freed = free_code};
	start_with(&ops, driver, 1 << 20);
}

static void expect_due(void)
{
	enum { POLLS = 1000 };
	CHECK(*word);
	for (int i = 0; *word && i < POLLS; i++)
		ch_thread_poll();
	CHECK_EQ(*word, 0);
}

TEST(poll_word_is_set_by_a_request_for_a_collection)
{
	start(CH_DRIVER_BUILTIN);
	ch__trigger_dead(rig.heap, 1 << 30);
	expect_due();
	CHECK_EQ(asked, 1);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	ch__trigger_dead(rig.heap, 1 << 30);
	expect_due();
	CHECK_EQ(asked, 2);
	rig_end(&rig);
}

TEST(poll_word_is_set_again_by_code_opened_while_a_request_stands)
{
	start(CH_DRIVER_BUILTIN);
	ch__trigger_opened(rig.heap, 1 << 30);
	expect_due();
	ch__trigger_opened(rig.heap, 8);
	expect_due();
	CHECK_EQ(asked, 1);
	rig_end(&rig);
}

TEST(poll_word_is_set_by_a_block_whose_end_is_to_be_told)
{
	start(CH_DRIVER_BUILTIN);
	struct ch_owner owner = rig_owner(&rig, "freed");
	CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 7)), CH_OK);
	ch_thread_poll();
	CHECK_EQ(*word, 0);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	expect_due();
	CHECK_EQ(freed, 1);
	rig_end(&rig);
}

static struct filled start_full(const struct ch_ops *ops)
{
	enum { PAGES = 2 };
	start_with(ops, CH_DRIVER_BUILTIN, PAGES * rig_page_bytes());
	struct filled f = fill_pool(&rig, PAGES, 60);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	while (*word)
		ch_thread_poll();
	return f;
}

/* In a pool full of live code loops would be slow for ever, else. */
TEST(poll_word_is_clear_once_the_request_of_an_open_without_room_was_told_and_set_by_space)
{
	struct ch_ops ops = {
		.size = sizeof ops, .collect_wanted = ask, .space_free = hear_of_space};
	struct filled f = start_full(&ops);
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
	TEST_UNTIL(!*word) { /* a collection is worth while some time after the last one */
		ch_thread_poll();
	}
	CHECK(asked > 0);
	CHECK_EQ(space, 0);
	CHECK_EQ(ch_owner_release(f.owners[1], CH_RELEASE_NOT_RUNNING), CH_OK);
	expect_due();
	CHECK_EQ(space, 1);
	forget(&f);
	rig_end(&rig);
}

TEST(poll_word_is_set_again_when_the_collection_that_a_waiting_vm_needs_is_put_off)
{
	struct ch_ops ops = {
		.size = sizeof ops, .collect_wanted = ask, .space_free = hear_of_space};
	struct filled f = start_full(&ops);
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
	for (int i = 0; i < 2; i++) {
		TEST_UNTIL(!*word) {
			ch_thread_poll();
		}
		ch__trigger_put_off(rig.heap);
		CHECK(*word);
	}
	forget(&f);
	rig_end(&rig);
}

static struct ch_owner to_release;
static void release_more(void *user)
{
	(void)user;
	CHECK_EQ(ch_owner_release(to_release, CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* A poll has passed the vm that waits when the callback of another vm makes space. */
TEST(poll_word_stays_set_when_space_comes_while_a_poll_tells_of_space)
{
	struct ch_ops first = {
		.size = sizeof first, .collect_wanted = ask, .space_free = release_more};
	struct ch_ops ops = {
		.size = sizeof ops, .collect_wanted = ask, .space_free = hear_of_space};
	struct filled f = start_full(&first);
	struct rig later = {.heap = rig.heap};
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &later.vm), CH_OK);
	struct ch_owner owner = rig_owner(&later, "later");
	to_release = f.owners[2];
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
	TEST_UNTIL(!*word) { /* a collection is asked for */
		ch_thread_poll();
	}
	CHECK_EQ(ch_owner_release(f.owners[1], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(try_open(owner, (uint32_t)rig_page_bytes() / 2, 0), CH_E_FULL);
	ch_thread_poll();
	CHECK_EQ(space, 0);
	expect_due();
	CHECK_EQ(space, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_vm_detach(later.vm), CH_OK);
	forget(&f);
	rig_end(&rig);
}

TEST(poll_word_is_clear_after_an_open_without_room_of_a_vm_that_is_not_told_of_space)
{
	static const uint64_t AN_HOUR_NS = UINT64_C(3600000000000);
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = ask};
	struct filled f = start_full(&ops);
	__atomic_store_n(&rig.heap->cycle_ns, AN_HOUR_NS, __ATOMIC_RELAXED);
	asked = 0;
	CHECK_EQ(try_open(f.owners[0], 60, 0), CH_E_FULL);
	CHECK_EQ(asked, 0);
	CHECK_EQ(*word, 0);
	forget(&f);
	rig_end(&rig);
}

static _Atomic(int) stage;
enum { BEFORE, RUNS, ENDS };

static void *poll_until_it_ends(void *arg)
{
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	for (; stage != ENDS; sched_yield())
		if (stage == RUNS) {
			ch_thread_poll();
			CHECK_EQ(*word, 0);
			stage = BEFORE;
		}
	return arg;
}

TEST(poll_word_is_set_until_a_sweep_is_over_though_another_thread_polled_in_the_cycle)
{
	pthread_t thread;
	struct ch_marker *marker;
	start(CH_DRIVER_HOST);
	for (int i = 0; i < 1000; i++) {
		struct ch_owner owner = rig_owner(&rig, "swept");
		(void)rig_block(owner, 7);
	}
	CHECK_EQ(pthread_create(&thread, NULL, poll_until_it_ends, NULL), 0);
	int polls = 0;
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
		ch_mark_stacks(marker);
		stage = RUNS;
		TEST_UNTIL(stage == BEFORE);
		CHECK_EQ(ch_mark_end(marker, true), CH_OK);
		CHECK(*word);
		for (; *word; polls++)
			ch_thread_poll();
		CHECK(!atomic_load(&rig.heap->sweep_pending));
	}
	CHECK(polls > 1000 / 64);
	stage = ENDS;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	rig_end(&rig);
}

/* --- a stop --- */

typedef void (*spinner)(const volatile uint32_t *);

static void *run_machine_code(void *arg)
{
	uint8_t bytes[64];
	spinner spin;
	struct emitter e = {.code = {.write = bytes, .exec = bytes, .hot_bytes = sizeof bytes}};
	emit_landing(&e);
	emit_wait_while_zero(&e);
	emit_ret(&e);
	CHECK_EQ(ch_code_add(rig.heap, bytes, e.at, "spinner", &spin), CH_OK);
	for (stage = RUNS; stage != ENDS; ch_thread_poll())
		spin(word);
	return arg;
}

TEST(code_that_tests_the_poll_word_stops_for_each_cycle)
{
	enum { CYCLES = 200 };
	pthread_t thread;
	start(CH_DRIVER_BUILTIN);
	CHECK_EQ(pthread_create(&thread, NULL, run_machine_code, NULL), 0);
	while (stage != RUNS)
		sched_yield();
	for (int i = 0; i < CYCLES; i++)
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	stage = ENDS;
	ch__poll_want(rig.heap);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	rig_end(&rig);
}
