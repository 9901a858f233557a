/* SPDX-License-Identifier: MIT
 * unasked.c: a release may leave code to a collection. If no vm is asked to collect, a thread
 * that makes code or polls collects. If a vm is asked, no such thread collects.
 * length: all cases make, free and collect in the same few ways. */
#include "codeheap/events/events.h"
#include "codeheap/base/park.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A try to collect waits a tenth of STOP_WAIT_MS for a thread that does not stop. */
enum { POOL = 64 << 20, MANY = 400000, ENOUGH = 100000, STOP_WAIT_MS = 1000 };

typedef uint32_t (*function)(void);

static struct ch_heap *heap_that_waits(size_t pool_bytes, uint32_t stop_wait_ms)
{
	struct ch_config config = rig_config(pool_bytes);
	struct ch_heap *heap;
	config.stop_wait_ms = stop_wait_ms;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	return heap;
}

static struct ch_heap *heap_alone(size_t pool_bytes)
{
	return heap_that_waits(pool_bytes, rig_config(pool_bytes).stop_wait_ms);
}

static struct ch_stats stats_of(struct ch_heap *heap)
{
	struct ch_stats stats = {.size = sizeof stats};
	CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
	return stats;
}

/* Makes code of `size` bytes, calls the code, and frees the code. The first bytes return 7. */
static enum ch_status make_and_free(struct ch_heap *heap, uint8_t *bytes, uint32_t size,
				    enum ch_release how)
{
	struct emitter e = {.code = {.write = bytes, .exec = bytes, .hot_bytes = size}};
	function f;
	emit_landing(&e);
	emit_answer(&e, 7);
	enum ch_status status = ch_code_add(heap, bytes, size, "f", &f);
	if (status != CH_OK)
		return status;
	CHECK_EQ(f(), 7);
	CHECK_EQ(ch_code_free(heap, (const void *)(uintptr_t)f, how), CH_OK);
	return CH_OK;
}

static void loop(struct ch_heap *heap, uint32_t count, enum ch_release how)
{
	uint8_t bytes[64] = {0};
	for (uint32_t i = 0; i < count; i++)
		CHECK_EQ(make_and_free(heap, bytes, sizeof bytes, how), CH_OK);
}

TEST(code_that_is_freed_to_a_collection_does_not_pile_up)
{
	struct ch_heap *heap = heap_alone(POOL);
	loop(heap, MANY, CH_RELEASE_COLLECT);
	struct ch_stats stats = stats_of(heap);
	CHECK(stats.cycles > 0);
	CHECK(stats.blocks_freed > MANY / 2);
	CHECK(stats.pages_peak * stats.page_bytes <= 8 << 20);
	CHECK_EQ(stats.opens_full, 0);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* The smallest pool. Then blocks of which the pool holds three: the estimate of dead bytes is too
 * low to ask for a collection before an open fails. A word that a call left on the stack may hold
 * one block until the next call. */
TEST(code_that_is_freed_to_a_collection_fills_no_pool)
{
	static uint8_t large[300 << 10];
	struct ch_heap *heap = heap_alone(1 << 20);
	loop(heap, ENOUGH, CH_RELEASE_COLLECT);
	for (int i = 0; i < 20; i++)
		CHECK_EQ(make_and_free(heap, large, sizeof large, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

TEST(open_without_an_owner_makes_the_collection_that_a_full_pool_wishes)
{
	struct ch_heap *heap = heap_alone(1 << 20);
	struct ch_open open = {.heap = heap, .hot_bytes = 300 << 10};
	loop(heap, ENOUGH, CH_RELEASE_COLLECT);
	for (int i = 0; i < 20; i++) {
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_ret(&e);
		e.code.used_to = open.hot_bytes;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		CHECK_EQ(ch_code_free(heap, e.code.exec, CH_RELEASE_COLLECT), CH_OK);
	}
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

TEST(code_that_is_freed_at_once_or_never_makes_no_collection)
{
	struct ch_heap *heap = heap_alone(POOL);
	uint8_t bytes[64] = {0};
	function f;
	loop(heap, ENOUGH, CH_RELEASE_NOT_RUNNING);
	for (int i = 0; i < ENOUGH; i++)
		CHECK_EQ(ch_code_add(heap, bytes, sizeof bytes, NULL, &f), CH_OK);
	ch_thread_poll();
	CHECK_EQ(stats_of(heap).cycles, 0);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* The code is freed at the end, and no code is made behind. */
TEST_RIG_BY(a_poll_makes_the_collection_that_no_vm_is_asked_for, rig_start(POOL))
{
	enum { COUNT = 5000 };
	static uintptr_t inverted[COUNT];
	uint8_t bytes[64] = {0};
	for (int i = 0; i < COUNT; i++) {
		function f;
		CHECK_EQ(ch_code_add(rig.heap, bytes, sizeof bytes, NULL, &f), CH_OK);
		inverted[i] = ~(uintptr_t)f;
	}
	for (int i = 1; i < COUNT; i++)
		CHECK_EQ(ch_code_free(rig.heap, (void *)~inverted[i], CH_RELEASE_COLLECT), CH_OK);
	ch_thread_park();
	ch_thread_poll(); /* the thread may lack the lock by which it runs code */
	ch_thread_unpark();
	CHECK_EQ(ch_code_free(rig.heap, (void *)~inverted[0], CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	CHECK(*ch_thread_poll_word(rig.heap) != 0);
	ch_thread_poll();
	CHECK_EQ(rig_stats(&rig).cycles, 1);
	CHECK(rig_stats(&rig).blocks_freed > COUNT / 2);
}

/* Makes an owner with code and releases the owner, as a program that evaluates lines does. */
static void evaluate(const struct rig *rig, unsigned flags)
{
	struct ch_owner owner = rig_owner(rig, "line");
	struct ch_open open = {.owner = owner, .hot_bytes = 16, .flags = flags};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

/* Such a loop does little else than to collect, so the distance between requests grows 16-fold. */
TEST_RIG_BY(owners_that_are_released_to_a_collection_do_not_pile_up, rig_start(POOL))
{
	enum { COUNT = 200000 };
	uint64_t most = 0;
	for (int i = 0; i < COUNT; i++) {
		evaluate(&rig, 0);
		ch_thread_poll();
		if (i % 1000 == 0 && rig_stats(&rig).blocks_now > most)
			most = rig_stats(&rig).blocks_now;
	}
	CHECK(most < COUNT / 2);
	CHECK(rig_stats(&rig).owners_now < COUNT / 2);
}

/* The owner lives, and each version of its code makes the one before not entrant. */
TEST_RIG_BY(code_that_is_invalidated_does_not_pile_up, rig_start(POOL))
{
	struct ch_owner owner = rig_owner(&rig, "function");
	struct ch_block last = {0};
	for (int i = 0; i < ENOUGH; i++) {
		struct emitter e;
		emit_open(&e, owner, 16, 0);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
		CHECK_EQ(ch_blocks_invalidate(&last, 1, NULL), CH_OK);
		last = e.code.block;
		ch_thread_poll();
	}
	CHECK(rig_stats(&rig).cycles > 0);
	CHECK(rig_stats(&rig).blocks_freed > ENOUGH / 2);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* The caller has an edge to the callee, which goes first. */
static void leave_callees(bool has_owners)
{
	struct rig rig = rig_start(POOL);
	for (int i = 0; i < ENOUGH; i++) {
		struct emitter both[2];
		struct ch_open open = {.hot_bytes = 16};
		struct ch_owner owners[2];
		open.heap = has_owners ? NULL : rig.heap;
		for (int k = 0; k < 2; k++) {
			if (has_owners)
				open.owner = owners[k] = rig_owner(&rig, "function");
			CHECK_EQ(emit_open_as(&both[k], &open), CH_OK);
			emit_ret(&both[k]);
		}
		CHECK_EQ(ch_edge_attach(both[0].code.block, both[1].code.block), CH_OK);
		CHECK_EQ(emit_commit(&both[1]), CH_OK);
		CHECK_EQ(emit_commit(&both[0]), CH_OK);
		for (int k = 2; k-- > 0;)
			CHECK_EQ(has_owners ? ch_owner_release(owners[k], CH_RELEASE_NOT_RUNNING)
					    : ch_code_free(rig.heap, both[k].code.exec,
							   CH_RELEASE_NOT_RUNNING),
				 CH_OK);
		ch_thread_poll();
	}
	CHECK(rig_stats(&rig).cycles > 0);
	CHECK(rig_stats(&rig).blocks_now < ENOUGH / 2);
	rig_end(&rig);
}

TEST(code_that_was_left_by_a_free_at_once_is_collected)
{
	leave_callees(false);
}

TEST(code_that_was_left_by_a_release_at_once_is_collected)
{
	leave_callees(true);
}

/* Nobody polls. Without the flag, the caller may hold a lock. */
TEST_RIG_BY(only_an_open_that_may_collect_collects_released_owners, rig_start(POOL))
{
	for (int i = 0; i < ENOUGH; i++)
		evaluate(&rig, 0);
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	for (int i = 0; i < ENOUGH; i++)
		evaluate(&rig, CH_OPEN_MAY_COLLECT);
	CHECK(rig_stats(&rig).cycles > 0);
	CHECK(rig_stats(&rig).blocks_freed > ENOUGH);
}

/* A full pool is no reason either. */
TEST_RIG(open_that_may_not_collect_finds_the_pool_full_of_released_owners)
{
	struct ch_open open = {.size = sizeof open, .hot_bytes = 2000};
	enum ch_status status = CH_OK;
	while (status == CH_OK) {
		struct ch_owner owner = open.owner = rig_owner(&rig, "owner");
		struct emitter e;
		status = emit_open_as(&e, &open);
		if (status == CH_OK) {
			emit_ret(&e);
			e.at = open.hot_bytes;
			CHECK_EQ(emit_commit(&e), CH_OK);
		}
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	}
	CHECK_EQ(status, CH_E_FULL);
	CHECK(atomic_load(&rig.heap->collect_wanted));
	CHECK_EQ(rig_stats(&rig).cycles, 0);
}

TEST(a_vm_that_is_asked_collects_itself)
{
	unsigned asked = 0;
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_heap *heap = heap_alone(POOL);
	struct ch_vm *vm;
	CHECK_EQ(ch_vm_attach(heap, &ops, &asked, &vm), CH_OK);
	loop(heap, ENOUGH, CH_RELEASE_COLLECT);
	ch_thread_poll();
	CHECK(asked > 0);
	CHECK_EQ(stats_of(heap).cycles, 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	/* From here on no vm is asked. */
	loop(heap, 1, CH_RELEASE_COLLECT);
	CHECK_EQ(stats_of(heap).cycles, 1);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* The driver of a HOST heap collects, so the wish stands while there is no vm. */
TEST(a_vm_that_comes_hears_of_the_wish_that_stands)
{
	unsigned asked[2] = {0};
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_config config = rig_config(POOL);
	struct ch_heap *heap;
	struct ch_vm *vms[2];
	config.driver = CH_DRIVER_HOST;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	loop(heap, ENOUGH, CH_RELEASE_COLLECT);
	ch_thread_poll();
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ch_vm_attach(heap, &ops, &asked[i], &vms[i]), CH_OK);
		CHECK(*ch_thread_poll_word(heap) != 0);
		ch_thread_poll();
		CHECK_EQ(asked[i], 1);
		ch_thread_poll();
		CHECK_EQ(asked[i], 1);
		CHECK_EQ(ch_vm_detach(vms[i]), CH_OK);
	}
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

static bool stop_nobody(void *user)
{
	(void)user;
	return true;
}

TEST(a_vm_that_stops_its_threads_itself_decides_when)
{
	struct ch_ops ops = {.size = sizeof ops, .stop_world = stop_nobody};
	struct ch_heap *heap = heap_alone(POOL);
	struct ch_vm *vm;
	CHECK_EQ(ch_vm_attach(heap, &ops, NULL, &vm), CH_OK);
	loop(heap, ENOUGH, CH_RELEASE_COLLECT);
	CHECK_EQ(stats_of(heap).cycles, 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	loop(heap, ENOUGH, CH_RELEASE_COLLECT);
	CHECK(stats_of(heap).cycles > 0);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

struct runner {
	struct ch_heap *heap;
	_Atomic(int) is_there; /* the number of the thread */
	_Atomic(bool) ends, parks, adds;
	_Atomic(enum ch_status) added;
};

/* Adds code as soon as it is asked to. */
static void add_on_demand(struct runner *r)
{
	static const uint8_t bytes[2000];
	function f;
	if (!atomic_load(&r->adds))
		return;
	atomic_store(&r->added, ch_code_add(r->heap, bytes, sizeof bytes, "f", &f));
	atomic_store(&r->adds, false);
}

static void *run_without_a_poll(void *arg)
{
	struct runner *r = arg;
	CHECK_EQ(ch_thread_attach(r->heap, NULL, NULL), CH_OK);
	atomic_store(&r->is_there, (int)syscall(SYS_gettid));
	while (!atomic_load(&r->ends) && !atomic_load(&r->parks))
		add_on_demand(r);
	ch_thread_park();
	atomic_store(&r->parks, false);
	while (!atomic_load(&r->ends))
		continue;
	ch_thread_unpark();
	return NULL;
}

/* Ends the thread and the heap. */
static void end_beside(struct runner *r, pthread_t thread)
{
	atomic_store(&r->ends, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ch_heap_destroy(r->heap), CH_OK);
}

/* Each failed try doubles the distance to the next try, up to 4 times. */
TEST(tries_are_few_beside_a_thread_that_does_not_stop)
{
	enum { PART = 50 };
	struct runner r = {.heap = heap_that_waits(POOL, STOP_WAIT_MS)};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, run_without_a_poll, &r), 0);
	TEST_UNTIL(atomic_load(&r.is_there));
	uint64_t began = now_ns();
	loop(r.heap, ENOUGH, CH_RELEASE_COLLECT);
	struct ch_stats stats = stats_of(r.heap);
	CHECK_EQ(stats.cycles, 0);
	CHECK(stats.cycles_abandoned > 0);
	CHECK(stats.cycles_abandoned < 30);
	uint64_t now = now_ns();
	CHECK(r.heap->unasked_after_ns <= now + (now - began) * PART);
	end_beside(&r, thread);
}

static enum ch_status fill(struct ch_heap *heap)
{
	uint8_t bytes[2000] = {0};
	enum ch_status status = CH_OK;
	while (status == CH_OK)
		status = make_and_free(heap, bytes, sizeof bytes, CH_RELEASE_COLLECT);
	return status;
}

/* Fills a pool beside a thread that runs without a poll. No time ends the pause behind the try, nor
 * makes a cycle worth while. */
static void fill_beside(struct runner *r, pthread_t *thread)
{
	r->heap = heap_that_waits(1 << 20, STOP_WAIT_MS);
	CHECK_EQ(pthread_create(thread, NULL, run_without_a_poll, r), 0);
	TEST_UNTIL(atomic_load(&r->is_there));
	CHECK_EQ(fill(r->heap), CH_E_FULL);
	CHECK(stats_of(r->heap).cycles_abandoned > 0);
	atomic_store(&r->heap->unasked_after_ns, UINT64_MAX);
	r->heap->cycle_ns = UINT64_MAX >> 16;
}

/* Where only stops synchronize, the second one gives the places back. */
static uint64_t cycles_that_make_room(struct ch_heap *heap)
{
	return atomic_load(&heap->has_core_sync) ? 1 : 2;
}

/* The pause behind a try in vain ends with its cause. */
TEST(full_pool_serves_again_once_the_thread_that_held_a_try_up_parks_or_leaves)
{
	static const uint8_t bytes[2000];
	for (int leaves = 0; leaves < 2; leaves++) {
		struct runner r = {0};
		pthread_t thread;
		function f;
		fill_beside(&r, &thread);
		uint64_t tries = stats_of(r.heap).cycles_abandoned;
		CHECK_EQ(fill(r.heap), CH_E_FULL);
		CHECK_EQ(stats_of(r.heap).cycles_abandoned, tries);
		atomic_store(leaves ? &r.ends : &r.parks, true);
		if (leaves)
			CHECK_EQ(pthread_join(thread, NULL), 0);
		else
			TEST_UNTIL(!atomic_load(&r.parks));
		CHECK_EQ(ch_code_add(r.heap, bytes, sizeof bytes, "f", &f), CH_OK);
		CHECK_EQ(stats_of(r.heap).cycles, cycles_that_make_room(r.heap));
		atomic_store(&r.ends, true);
		if (!leaves)
			CHECK_EQ(pthread_join(thread, NULL), 0);
		CHECK_EQ(ch_heap_destroy(r.heap), CH_OK);
	}
}

/* The thread that held the try up is forgotten by a collection that succeeds. */
TEST(pause_behind_a_try_ends_with_a_collection_that_the_vm_asked_for)
{
	uint8_t bytes[2000] = {0};
	struct runner r = {0};
	pthread_t thread;
	fill_beside(&r, &thread);
	atomic_store(&r.parks, true);
	TEST_UNTIL(!atomic_load(&r.parks));
	CHECK_EQ(ch_heap_collect(r.heap), CH_OK);
	for (int i = 0; i < 2000; i++)
		CHECK_EQ(make_and_free(r.heap, bytes, sizeof bytes, CH_RELEASE_COLLECT), CH_OK);
	end_beside(&r, thread);
}

/* The thread stands in a call then, so the thread holds up nobody. */
TEST(full_pool_serves_the_thread_that_held_a_try_up)
{
	struct runner r = {0};
	pthread_t thread;
	fill_beside(&r, &thread);
	ch_thread_park();
	atomic_store(&r.adds, true);
	TEST_UNTIL(!atomic_load(&r.adds));
	ch_thread_unpark();
	CHECK_EQ(atomic_load(&r.added), CH_OK);
	CHECK_EQ(stats_of(r.heap).cycles, cycles_that_make_room(r.heap));
	end_beside(&r, thread);
}

struct put_off {
	const char *debug;
	uint32_t count, tries; /* of pieces of code, and to collect, at least */
};

static void put_off(void *arg)
{
	const struct put_off *wanted = arg;
	struct runner r = {.heap = NULL};
	pthread_t thread;
	CHECK_EQ(setenv("CODEHEAP_DEBUG", wanted->debug, 1), 0);
	r.heap = heap_that_waits(POOL, STOP_WAIT_MS);
	CHECK_EQ(pthread_create(&thread, NULL, run_without_a_poll, &r), 0);
	TEST_UNTIL(atomic_load(&r.is_there));
	do
		loop(r.heap, wanted->count, CH_RELEASE_COLLECT);
	while (!stats_of(r.heap).cycles_abandoned);
	CHECK(stats_of(r.heap).cycles_abandoned >= wanted->tries);
	end_beside(&r, thread);
}

/* No call fails meanwhile. */
TEST(debug_names_the_thread_that_puts_a_collection_off)
{
	struct put_off once = {"1", 1000, 1};
	char text[400];
	expect_signal_text(put_off, &once, 0, text, sizeof text);
	if (!strstr(text, "codeheap: CH_E_BUSY: thread ") || !strstr(text, " did not stop in "))
		FAIL("not told: %s", text);
}

/* The line comes once, and only when much is dead. */
TEST(dead_code_that_piles_up_is_told_without_debug)
{
	static const char line[] = "codeheap: dead code piles up: CH_E_BUSY: thread ";
	struct put_off once = {"0", 1000, 1}, often = {"0", ENOUGH * 3, 3};
	char text[400];
	expect_signal_text(put_off, &once, 0, text, sizeof text);
	CHECK_EQ(text[0], 0);
	expect_signal_text(put_off, &often, 0, text, sizeof text);
	if (strncmp(text, line, strlen(line)) != 0 || strchr(text, '\n') != strrchr(text, '\n'))
		FAIL("not told once: %s", text);
}

/* Three pieces fill a page to three quarters, and so dead code does its pages. With 4 tenths of the
 * pages dead the next try comes when there are one and a half times as many. */
TEST(collection_that_was_put_off_is_tried_again_where_dead_code_does_not_fill_its_pages)
{
	static uint8_t bytes[65536 / 4];
	struct runner r = {.heap = heap_that_waits(POOL, STOP_WAIT_MS)};
	uint32_t size = (uint32_t)stats_of(r.heap).page_bytes / 4;
	uint64_t at_second = 0;
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, run_without_a_poll, &r), 0);
	TEST_UNTIL(atomic_load(&r.is_there));
	for (struct ch_stats s = {0}; s.cycles_abandoned < 3; s = stats_of(r.heap)) {
		CHECK_EQ(make_and_free(r.heap, bytes, size, CH_RELEASE_COLLECT), CH_OK);
		if (s.cycles_abandoned == 2 && !at_second)
			at_second = s.committed_bytes_now;
		CHECK(s.committed_bytes_now < (at_second ? at_second / 4 * 7 : POOL / 2));
	}
	end_beside(&r, thread);
}

TEST(request_whose_ch_mark_begin_failed_is_told_again)
{
	unsigned asked = 0;
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_config config = rig_config(POOL);
	struct runner r = {0};
	struct ch_marker *marker;
	struct ch_vm *vm;
	pthread_t thread;
	config.driver = CH_DRIVER_HOST;
	config.stops_world = true;
	config.stop_wait_ms = 10;
	CHECK_EQ(ch_heap_create(&config, &r.heap), CH_OK);
	CHECK_EQ(ch_vm_attach(r.heap, &ops, &asked, &vm), CH_OK);
	loop(r.heap, ENOUGH, CH_RELEASE_COLLECT);
	ch_thread_poll();
	CHECK_EQ(asked, 1);
	CHECK_EQ(pthread_create(&thread, NULL, run_without_a_poll, &r), 0);
	TEST_UNTIL(atomic_load(&r.is_there));
	CHECK_EQ(ch_mark_begin(r.heap, &marker), CH_E_BUSY);
	ch_thread_poll();
	CHECK_EQ(asked, 2);
	atomic_store(&r.ends, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(r.heap), CH_OK);
}

TEST(a_full_heap_of_code_without_owners_names_no_flag_that_nobody_can_set)
{
	struct ch_heap *heap = heap_alone(1 << 20);
	static uint8_t bytes[60000];
	function first, f;
	enum ch_status status;
	CHECK_EQ(ch_code_add(heap, bytes, sizeof bytes, NULL, &first), CH_OK);
	while ((status = ch_code_add(heap, bytes, sizeof bytes, NULL, &f)) == CH_OK)
		continue;
	CHECK_EQ(status, CH_E_FULL);
	CHECK(!strstr(ch_why(), "CH_OPEN_MAY_COLLECT"));
	CHECK(strstr(ch_why(), "and no freed code waits for a collection"));
	CHECK_EQ(ch_code_free(heap, (const void *)(uintptr_t)first, CH_RELEASE_COLLECT), CH_OK);
	/* The open has collected, and `first` on the stack held the code. */
	CHECK_EQ(ch_code_add(heap, bytes, sizeof bytes, NULL, &f), CH_E_FULL);
	CHECK(strstr(ch_why(), "and nothing was left to a collection since the last try"));
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* The vm is asked for collections, so no open makes one. */
TEST(a_full_heap_speaks_of_a_collection_only_until_it_has_come)
{
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_heap *heap = heap_alone(1 << 20);
	static uint8_t bytes[60000];
	function first, f;
	struct ch_vm *vm;
	unsigned asked = 0;
	CHECK_EQ(ch_vm_attach(heap, &ops, &asked, &vm), CH_OK);
	CHECK_EQ(ch_code_add(heap, bytes, sizeof bytes, NULL, &first), CH_OK);
	while (ch_code_add(heap, bytes, sizeof bytes, NULL, &f) == CH_OK)
		continue;
	CHECK_EQ(ch_code_free(heap, (const void *)(uintptr_t)first, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_code_add(heap, bytes, sizeof bytes, NULL, &f), CH_E_FULL);
	CHECK(strstr(ch_why(), "until a collection frees what was left to it"));
	CHECK_EQ(ch_heap_collect(heap), CH_OK); /* `first` on the stack holds the code */
	CHECK_EQ(ch_code_add(heap, bytes, sizeof bytes, NULL, &f), CH_E_FULL);
	CHECK(strstr(ch_why(), "and nothing was left to a collection since the last try"));
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* A thread that does not stop lets no collection be made: the open says why it has no room. The
 * wish that the first block left is forgotten: only the open without room tries to collect. */
TEST(an_open_whose_collection_was_in_vain_speaks_of_the_room)
{
	static uint8_t bytes[600 << 10];
	char says[64];
	struct runner r = {.heap = heap_that_waits(1 << 20, STOP_WAIT_MS)};
	pthread_t thread;
	function f;
	CHECK_EQ(pthread_create(&thread, NULL, run_without_a_poll, &r), 0);
	TEST_UNTIL(atomic_load(&r.is_there));
	snprintf(says, sizeof says, "thread %d did not stop", atomic_load(&r.is_there));
	loop(r.heap, 1, CH_RELEASE_COLLECT);
	CHECK_EQ(ch_code_add(r.heap, bytes, sizeof bytes, NULL, &f), CH_OK);
	atomic_store(&r.heap->collect_wanted, false);
	CHECK_EQ(ch_code_add(r.heap, bytes, sizeof bytes, NULL, &f), CH_E_FULL);
	CHECK_EQ(strncmp(ch_why(), "CH_E_FULL: no room for ", 23), 0);
	CHECK(strstr(ch_why(), says));
	CHECK_EQ(stats_of(r.heap).cycles_abandoned, 1);
	end_beside(&r, thread);
}

struct holder {
	struct ch_heap *heap;
	bool of_registry;
	_Atomic(int) step;
};

static void *hold_a_lock(void *arg)
{
	struct holder *h = arg;
	void (*take)(struct ch_heap *) = h->of_registry ? ch__registry_lock : ch__heap_lock;
	void (*let_go)(struct ch_heap *) = h->of_registry ? ch__registry_unlock : ch__heap_unlock;
	take(h->heap);
	atomic_store(&h->step, 1);
	TEST_UNTIL(atomic_load(&h->step) == 2);
	let_go(h->heap);
	return NULL;
}

/* Frees what is no code, and what was freed before; no free may find anything. */
static void free_in_vain(struct ch_heap *heap, const void *freed, struct ch_owner released)
{
	char other = 0;
	enum ch_release both[] = {CH_RELEASE_COLLECT, CH_RELEASE_NOT_RUNNING};
	for (int i = 0; i < (released.bits ? 2 : 1); i++) {
		CHECK_EQ(ch_code_free(heap, freed, both[i]), CH_E_STALE);
		CHECK_EQ(ch_code_free(heap, &other, both[i]), CH_E_ARG);
		if (released.bits)
			CHECK_EQ(ch_owner_release(released, both[i]), CH_E_STALE);
	}
}

/* A collection is wanted, and the next call that succeeds asks the vm. */
TEST(a_free_that_frees_nothing_asks_no_vm_and_waits_for_no_lock)
{
	unsigned asked = 0;
	uint8_t bytes[64] = {0};
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_config config = rig_config(POOL);
	struct rig rig = rig_create(&config, &ops, &asked);
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct holder h = {.heap = rig.heap};
	pthread_t thread;
	function f, last;
	CHECK_EQ(ch_code_add(rig.heap, bytes, sizeof bytes, NULL, &f), CH_OK);
	CHECK_EQ(ch_code_add(rig.heap, bytes, sizeof bytes, NULL, &last), CH_OK);
	CHECK_EQ(ch_code_free(rig.heap, (const void *)(uintptr_t)f, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	atomic_store(&rig.heap->collect_wanted, true);
	free_in_vain(rig.heap, (const void *)(uintptr_t)f, owner);
	CHECK_EQ(asked, 0);
	CHECK_EQ(pthread_create(&thread, NULL, hold_a_lock, &h), 0);
	TEST_UNTIL(atomic_load(&h.step) == 1);
	free_in_vain(rig.heap, (const void *)(uintptr_t)f, (struct ch_owner){0});
	atomic_store(&h.step, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ch_code_free(rig.heap, (const void *)(uintptr_t)last, CH_RELEASE_NOT_RUNNING),
		 CH_OK);
	CHECK_EQ(asked, 1);
	rig_end(&rig);
}

TEST(a_try_beside_a_held_lock_says_so)
{
	for (int of_registry = 0; of_registry < 2; of_registry++) {
		struct holder h = {.heap = heap_alone(POOL), .of_registry = of_registry};
		pthread_t thread;
		loop(h.heap, 1, CH_RELEASE_COLLECT);
		h.heap->config.stop_wait_ms = STOP_WAIT_MS;
		CHECK_EQ(pthread_create(&thread, NULL, hold_a_lock, &h), 0);
		TEST_UNTIL(atomic_load(&h.step) == 1);
		atomic_store(&h.heap->collect_wanted, true);
		CHECK(!ch_owner_cell((struct ch_owner){0})); /* has a sentence of its own */
		ch__poll_want(h.heap);
		ch_thread_poll();
		CHECK_STR(ch_why(), "CH_E_BUSY: another thread held a lock of the heap");
		CHECK(!atomic_load(&h.heap->collect_wanted)); /* it is put off */
		atomic_store(&h.step, 2);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		CHECK_EQ(stats_of(h.heap).cycles, 0);
		CHECK_EQ(stats_of(h.heap).cycles_abandoned, 0); /* none was begun */
		CHECK_EQ(ch_heap_destroy(h.heap), CH_OK);
	}
}

/* --- a thread that collects, and waits --- */

struct beside {
	struct ch_heap *heap;
	const struct ch__thread *opener;
	_Atomic(bool) is_there, is_held;
};

/* Holds the registry until the opener waits. */
static void *hold_up_the_collection(void *arg)
{
	struct beside *b = arg;
	ch__registry_lock(b->heap);
	atomic_store(&b->is_held, true);
	TEST_UNTIL(atomic_load(&b->opener->state) == CH__PARKED);
	ch__registry_unlock(b->heap);
	return NULL;
}

/* ch_heap_stats takes the registry, and so does the attachment. */
static void make_until_it_is_collected(const struct beside *b)
{
	uint8_t bytes[2000] = {0};
	while (!__atomic_load_n(&b->heap->stats.cycles, __ATOMIC_RELAXED))
		CHECK_EQ(make_and_free(b->heap, bytes, sizeof bytes, CH_RELEASE_COLLECT), CH_OK);
}

static void *collect_beside(void *arg)
{
	struct beside *b = arg;
	CHECK_EQ(ch_thread_attach(b->heap, NULL, NULL), CH_OK);
	atomic_store(&b->is_there, true);
	TEST_UNTIL(atomic_load(&b->is_held));
	make_until_it_is_collected(b);
	return NULL;
}

/* The collecting thread may have no processor, while others fill the pool. */
TEST(an_open_without_room_waits_for_the_collection_of_another_thread)
{
	struct beside b = {.heap = heap_alone(1 << 20)};
	pthread_t threads[2];
	loop(b.heap, 1, CH_RELEASE_COLLECT);
	b.opener = ch__thread_self(b.heap);
	CHECK_EQ(pthread_create(&threads[0], NULL, collect_beside, &b), 0);
	TEST_UNTIL(atomic_load(&b.is_there));
	CHECK_EQ(pthread_create(&threads[1], NULL, hold_up_the_collection, &b), 0);
	TEST_UNTIL(atomic_load(&b.heap->collects_unasked));
	make_until_it_is_collected(&b);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK_EQ(ch_heap_destroy(b.heap), CH_OK);
}

static void fill_once(void *vm_user, void *block_user)
{
	static const uint8_t bytes[60000];
	struct beside *b = vm_user;
	enum ch_status status = CH_OK;
	function f;
	(void)block_user;
	if (atomic_exchange(&b->is_held, true))
		return;
	while (status == CH_OK)
		status = ch_code_add(b->heap, bytes, sizeof bytes, NULL, &f);
	CHECK_EQ(status, CH_E_FULL);
}

/* Else the thread would wait for itself. */
TEST(callback_of_a_collection_finds_no_room_at_once)
{
	struct beside b = {.heap = NULL};
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .block_freed = fill_once};
	struct rig rig = rig_create(&config, &ops, &b);
	b.heap = rig.heap;
	while (!atomic_load(&b.is_held)) {
		evaluate(&rig, 0);
		ch_thread_poll();
	}
	rig_end(&rig);
}

/* --- a callback that stays away --- */

/* The first notice waits, as one that does input and output. Later notices do not. */
struct away {
	_Atomic(int) notices;
	_Atomic(bool) may_return;
	struct rig rig;
};

static void stay_away(void *vm_user, void *block_user)
{
	struct away *a = vm_user;
	(void)block_user;
	if (atomic_fetch_add(&a->notices, 1))
		return;
	ch_thread_park();
	/* One of the cases ends the process meanwhile, on a slow machine late. */
	while (!atomic_load(&a->may_return))
		usleep(1000);
	ch_thread_unpark();
}

static void *evaluate_until_away(void *arg)
{
	struct away *a = arg;
	while (!atomic_load(&a->notices)) {
		evaluate(&a->rig, 0);
		ch_thread_poll();
	}
	return NULL;
}

TEST(collections_go_on_while_a_callback_of_one_stays_away)
{
	struct away a = {.notices = 0};
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .block_freed = stay_away};
	uint8_t bytes[64] = {0};
	pthread_t thread;
	config.stop_wait_ms = 10;
	CHECK_EQ(ch_heap_create(&config, &a.rig.heap), CH_OK);
	CHECK_EQ(ch_vm_attach(a.rig.heap, &ops, &a, &a.rig.vm), CH_OK);
	CHECK_EQ(pthread_create(&thread, NULL, evaluate_until_away, &a), 0);
	TEST_UNTIL(atomic_load(&a.notices));
	uint64_t cycles = stats_of(a.rig.heap).cycles;
	while (stats_of(a.rig.heap).cycles < cycles + 2) {
		enum ch_status status =
			make_and_free(a.rig.heap, bytes, sizeof bytes, CH_RELEASE_COLLECT);
		CHECK(status == CH_OK || status == CH_E_FULL);
	}
	atomic_store(&a.may_return, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ch_vm_detach(a.rig.vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(a.rig.heap), CH_OK);
}

/* Both threads stay for good: the first in a callback, the second without a poll. */
static void pile_up_behind_an_absent_thread(void *arg)
{
	struct away *a = arg;
	struct ch_config config = rig_config(POOL);
	struct ch_ops ops = {.size = sizeof ops, .block_freed = stay_away};
	pthread_t thread, other;
	config.stop_wait_ms = 10;
	CHECK_EQ(ch_heap_create(&config, &a->rig.heap), CH_OK);
	CHECK_EQ(ch_vm_attach(a->rig.heap, &ops, a, &a->rig.vm), CH_OK);
	CHECK_EQ(pthread_create(&thread, NULL, evaluate_until_away, a), 0);
	TEST_UNTIL(atomic_load(&a->notices));
	struct runner r = {.heap = a->rig.heap};
	CHECK_EQ(pthread_create(&other, NULL, run_without_a_poll, &r), 0);
	TEST_UNTIL(atomic_load(&r.is_there));
	while (!a->rig.heap->is_late_told)
		loop(a->rig.heap, 1000, CH_RELEASE_COLLECT);
	_exit(0);
}

TEST(dead_code_behind_a_callback_that_stays_away_is_told)
{
	struct away a = {.notices = 0};
	char text[400];
	expect_signal_text(pile_up_behind_an_absent_thread, &a, 0, text, sizeof text);
	if (strncmp(text, "codeheap: dead code piles up: CH_E_BUSY: thread ", 48) != 0)
		FAIL("not told: %s", text);
}
