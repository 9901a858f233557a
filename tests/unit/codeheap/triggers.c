/* SPDX-License-Identifier: MIT
 * triggers.c: when a heap asks for a collection, to the byte: the counted bytes, how the thresholds
 * grow and come down, and the statistics. Nobody sleeps: time is the pretended clock's. */
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/collect/collect.h"
#include "codeheap/events/events.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>

#define KIB UINT64_C(1024)

static const uint64_t pool_bytes = 16384 * KIB, opened_least = 256 * KIB, dead_least = 64 * KIB;

/* Starts a heap without code, and pretends that used_bytes of pages are in use. */
static struct rig start_with_pages(uint64_t used_bytes)
{
	struct rig rig = rig_start(pool_bytes);
	CHECK_EQ(rig.heap->pool->pool_bytes, pool_bytes);
	atomic_store(&rig.heap->pool->pages_used,
		     (uint32_t)(used_bytes >> rig.heap->pool->page_log2));
	atomic_store(&rig.heap->committed_then, used_bytes);
	return rig;
}

static void end_with_pages(struct rig *rig)
{
	atomic_store(&rig->heap->pool->pages_used, 0);
	rig_end(rig);
}

static bool is_wanted(const struct rig *rig)
{
	return atomic_load(&rig->heap->collect_wanted);
}

static void forget(const struct rig *rig)
{
	atomic_store(&rig->heap->collect_wanted, false);
	atomic_store(&rig->heap->bytes_since_cycle, 0);
	atomic_store(&rig->heap->dead_bytes, 0);
}

/* A sum of `least` does not ask; the next larger sum does. */
static void expect_least(const struct rig *rig, void (*count)(struct ch_heap *, uint64_t),
			 uint64_t least)
{
	forget(rig);
	count(rig->heap, least - 8);
	CHECK(!is_wanted(rig));
	count(rig->heap, 8);
	CHECK(!is_wanted(rig));
	count(rig->heap, 8);
	CHECK(is_wanted(rig));
	forget(rig);
}

static void count_opened(struct ch_heap *heap, uint64_t bytes)
{
	ch__trigger_opened(heap, (uint32_t)bytes);
}

#define TEST_PAGES(name, used_bytes) \
	TEST_WITH(name, struct rig, rig, start_with_pages(used_bytes), end_with_pages(&rig))

/* --- least values --- */

TEST_PAGES(opened_bytes_above_256_KiB_ask_for_a_collection, 0)
{
	expect_least(&rig, count_opened, opened_least);
}

TEST_PAGES(dead_bytes_above_64_KiB_ask_for_a_collection, 0)
{
	expect_least(&rig, ch__trigger_dead, dead_least);
}

/* Emitters ask for more than they use: here for opened_least in all, whatever the page is. */
TEST_RIG_BY(room_that_a_commit_gives_back_asks_for_no_collection, rig_start(pool_bytes))
{
	struct ch_owner owner = rig_owner(&rig, "short");
	forget(&rig);
	for (unsigned i = 0; i < 31; i++) {
		struct emitter e;
		emit_open(&e, owner, 9000, 0);
		emit_answer(&e, 1);
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	CHECK(!is_wanted(&rig));
}

TEST_PAGES(a_tenth_of_what_is_committed_is_the_least_where_it_is_more, 10240 * KIB)
{
	const uint64_t used = 10240 * KIB;
	expect_least(&rig, count_opened, used / 10);
	expect_least(&rig, ch__trigger_dead, used / 10);
}

TEST_PAGES(pool_is_crowded_above_three_quarters, pool_bytes / 4 * 3)
{
	uint64_t page = UINT64_C(1) << rig.heap->pool->page_log2;
	expect_least(&rig, count_opened, pool_bytes / 4 * 3 / 10);
	atomic_fetch_add(&rig.heap->pool->pages_used, 1);
	CHECK(pool_bytes / 16 < (pool_bytes / 4 * 3 + page) / 10);
	expect_least(&rig, count_opened, pool_bytes / 16);
}

/* The cycle that begins serves the request; an abandoned cycle restores the request. */
TEST_PAGES(cycle_takes_all_that_was_counted_and_gives_it_back_when_it_is_abandoned, 0)
{
	struct ch_heap *heap = rig.heap;
	atomic_store(&heap->dead_bytes, 1000);
	atomic_store(&heap->bytes_since_cycle, 2000);
	atomic_store(&heap->collect_wanted, true);
	atomic_store(&heap->collect_told, true);
	atomic_store(&heap->poll_due, 0);
	ch__trigger_cycle_begins(heap);
	CHECK(atomic_load(&heap->poll_due) != 0);
	CHECK_EQ(heap->dead_at_cycle, 1000);
	CHECK_EQ(heap->opened_at_cycle, 2000);
	CHECK_EQ(heap->dead_bytes, 0);
	CHECK_EQ(heap->bytes_since_cycle, 0);
	CHECK(!is_wanted(&rig) && !atomic_load(&heap->collect_told));
	ch__trigger_dead(heap, 30);
	ch__trigger_opened(heap, 40);
	ch__trigger_cycle_abandoned(heap);
	CHECK_EQ(heap->dead_bytes, 1030);
	CHECK_EQ(heap->bytes_since_cycle, 2040);
	CHECK(is_wanted(&rig));
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	CHECK_EQ(heap->dead_at_cycle, 1030);
	CHECK_EQ(heap->opened_at_cycle, 2040);
	CHECK_EQ(heap->dead_bytes, 0);
	CHECK_EQ(heap->bytes_since_cycle, 0);
	CHECK(!is_wanted(&rig));
}

/* --- thresholds --- */

/* Acts like the end of a sweep: the cycle reached `marked` blocks, and `freed` blocks died. */
static void sweep_ends(const struct rig *rig, uint64_t marked, uint64_t freed)
{
	struct ch_heap *heap = rig->heap;
	ch__heap_lock(heap);
	heap->stats.marked_blocks_last = marked;
	heap->blocks_at_cycle = heap->counters.blocks_freed - freed;
	heap->bytes_at_cycle = heap->counters.bytes_freed - 128 * freed;
	ch__trigger_swept(heap);
	ch__heap_unlock(heap);
}

static void expect_factors(const struct rig *rig, uint64_t opened, uint64_t dead)
{
	CHECK_EQ(1u << atomic_load(&rig->heap->opened_doublings), opened);
	CHECK_EQ(1u << atomic_load(&rig->heap->dead_doublings), dead);
	expect_least(rig, count_opened, opened_least * opened);
	expect_least(rig, ch__trigger_dead, dead_least * dead);
}

/* As a thread leaves the word that reads the request before the end, and stores behind the end. */
TEST(request_is_told_after_a_thread_told_late_of_the_request_before)
{
	unsigned asked = 0;
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_config config = rig_config(pool_bytes);
	struct rig rig = rig_create(&config, &ops, &asked);
	atomic_store(&rig.heap->collect_told, true);
	CHECK(!is_wanted(&rig));
	ch__trigger_dead(rig.heap, pool_bytes);
	for (int i = 0; i < 2; i++) {
		ch_thread_poll();
		CHECK_EQ(asked, 1);
	}
	rig_end(&rig);
}

/* Less than a twentieth of the blocks is little. */
TEST_PAGES(cycles_that_free_little_double_their_threshold_up_to_64_times, 0)
{
	expect_factors(&rig, 1, 1);
	for (uint64_t factor = 2; factor <= 64; factor *= 2) {
		sweep_ends(&rig, 1000, 49);
		expect_factors(&rig, factor, 1);
	}
	sweep_ends(&rig, 1000, 49);
	expect_factors(&rig, 64, 1);
	sweep_ends(&rig, 1000, 50);
	expect_factors(&rig, 1, 1);
}

/* Code that only grows says nothing about released or invalidated code. */
TEST_PAGES(threshold_of_the_dead_grows_where_the_dead_had_asked, 0)
{
	rig.heap->dead_at_cycle = dead_least;
	sweep_ends(&rig, 1000, 0);
	expect_factors(&rig, 2, 1);
	rig.heap->dead_at_cycle = dead_least + 1;
	for (uint64_t factor = 2; factor <= 64; factor *= 2) {
		sweep_ends(&rig, 1000, 0);
		CHECK_EQ(1u << atomic_load(&rig.heap->dead_doublings), factor);
	}
	expect_factors(&rig, 64, 64);
	rig.heap->dead_at_cycle = dead_least;
	sweep_ends(&rig, 1000, 0);
	expect_factors(&rig, 64, 64);
	sweep_ends(&rig, 1000, 1000);
	expect_factors(&rig, 1, 1);
}

/* Of blocks that the sweep freed, each had 128 bytes; a sweep that frees none says nothing. */
TEST_PAGES(released_blocks_count_as_large_as_the_dead_were, 0)
{
	for (unsigned i = 0; i < 2; i++) {
		sweep_ends(&rig, 0, i ? 0 : 5);
		forget(&rig);
		ch__trigger_released(rig.heap, 3);
		CHECK_EQ(rig.heap->dead_bytes, 64 + 3 * 128);
	}
}

/* Unreachable blocks live through the first cycles, and then die in the same cycle. A word on the
 * stack may keep some blocks. */
TEST_RIG_BY(sweep_that_ends_moves_the_thresholds, rig_start(pool_bytes))
{
	enum { BLOCKS = 100, CYCLES = 8 };
	struct ch_owner owner = rig_owner(&rig, "kept");
	unsigned most = 0;
	uint64_t freed = 0;
	for (int i = 0; i < BLOCKS; i++)
		rig_block(owner, 1);
	for (int i = 0; i < CYCLES && freed < BLOCKS / 2; i++) {
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		unsigned doublings = atomic_load(&rig.heap->opened_doublings);
		freed = rig_stats(&rig).blocks_freed;
		most = doublings > most ? doublings : most;
		CHECK(freed < BLOCKS / 2 || doublings == 0);
	}
	CHECK(most > 0);
	CHECK(freed >= BLOCKS / 2);
}

/* An emulator's blocks, and code without an owner: roots that no cycle frees. */
TEST_RIG_BY(cycles_that_free_little_of_kept_code_double_their_threshold, rig_start(pool_bytes))
{
	enum { BLOCKS = 100, FREED = 4 };
	struct ch_owner owner = rig_owner(&rig, "kept");
	static const uint8_t *kept[BLOCKS]; /* on the stack the addresses would hold the code */
	for (unsigned i = 0; i < 2 * BLOCKS; i++) {
		struct ch_open open = {.hot_bytes = 64};
		struct emitter e;
		open.heap = i < BLOCKS ? NULL : rig.heap;
		open.owner = i < BLOCKS ? owner : open.owner;
		open.flags = i < BLOCKS ? CH_OPEN_KEPT : 0;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_answer(&e, 1);
		CHECK_EQ(emit_commit(&e), CH_OK);
		if (i < BLOCKS)
			kept[i] = e.code.exec;
	}
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(rig.heap->opened_doublings, 1);
	for (unsigned i = 0; i < FREED; i++)
		CHECK_EQ(ch_code_free(rig.heap, kept[i], CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK(rig_stats(&rig).blocks_freed > 0);
	CHECK_EQ(rig.heap->opened_doublings, 2);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(rig.heap->opened_doublings, 3);
}

/* The last try was in vain, and the next is not due yet: the wish must not make each poll slow. */
TEST_PAGES(wish_that_may_not_be_tried_yet_is_put_off, 0)
{
	rig.heap->unasked_after_ns = UINT64_MAX;
	ch__trigger_dead(rig.heap, dead_least + 8);
	CHECK(is_wanted(&rig));
	ch_thread_poll();
	CHECK(!is_wanted(&rig));
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	expect_factors(&rig, 2, 2);
	rig.heap->unasked_after_ns = 0;
	ch__trigger_dead(rig.heap, 2 * dead_least + 8);
	ch_thread_poll();
	CHECK(!is_wanted(&rig));
	CHECK_EQ(rig_stats(&rig).cycles, 1);
}

TEST_PAGES(wish_that_is_put_off_often_doubles_the_thresholds_twice_and_no_further, 0)
{
	rig.heap->unasked_after_ns = UINT64_MAX;
	for (int i = 0; i < 4; i++) {
		ch__trigger_dead(rig.heap, 8 * dead_least + 8);
		CHECK(is_wanted(&rig));
		ch_thread_poll();
		CHECK(!is_wanted(&rig));
	}
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	expect_factors(&rig, 4, 4);
}

static _Atomic(uint64_t) time_ns;

static uint64_t tell_time(uint64_t waited_ns)
{
	return atomic_fetch_add(&time_ns, waited_ns) + waited_ns;
}

/* Ends a cycle that took `length`, and began `between` after the end of the cycle before. */
static void cycle_ends(const struct rig *rig, uint64_t between, uint64_t length)
{
	atomic_fetch_add(&time_ns, between);
	ch__heap_lock(rig->heap);
	ch__trigger_cycle_ended(rig->heap, length);
	ch__heap_unlock(rig->heap);
}

static void expect_floor(const struct rig *rig, uint64_t factor)
{
	CHECK_EQ(1u << atomic_load(&rig->heap->floor_doublings), factor);
	expect_least(rig, count_opened, opened_least * factor);
	expect_least(rig, ch__trigger_dead, dead_least * factor);
}

/* More than a tenth of the time is much, less than a fortieth is little. */
TEST_PAGES(time_spent_in_cycles_moves_the_least_values_up_and_down, 0)
{
	atomic_store(&time_ns, 1000000);
	ch__os_pretended.clock = tell_time;
	cycle_ends(&rig, 1000, 0);
	expect_floor(&rig, 1);
	cycle_ends(&rig, 1000, 100);
	expect_floor(&rig, 1);
	for (uint64_t factor = 2; factor <= 16; factor *= 2) {
		cycle_ends(&rig, 1000, 101);
		expect_floor(&rig, factor);
	}
	cycle_ends(&rig, 1000, 101);
	expect_floor(&rig, 16);
	cycle_ends(&rig, 100000, 2500);
	expect_floor(&rig, 16);
	for (uint64_t factor = 8; factor >= 1; factor /= 2) {
		cycle_ends(&rig, 100000, 2499);
		expect_floor(&rig, factor);
	}
	cycle_ends(&rig, 1000, 24);
	expect_floor(&rig, 1);
	/* A sweep counts for the cycle that ends next, and for no other. */
	rig.heap->stats.sweep_ns_total += 101;
	cycle_ends(&rig, 1000, 0);
	expect_floor(&rig, 2);
	cycle_ends(&rig, 1000, 0);
	expect_floor(&rig, 1);
	ch__os_pretended.clock = NULL;
}

static bool is_full_and_asks(const struct rig *rig, uint64_t dead_bytes)
{
	forget(rig);
	ch__heap_lock(rig->heap);
	atomic_store(&rig->heap->dead_bytes, dead_bytes);
	ch__trigger_full(rig->heap, rig->vm, 0);
	ch__heap_unlock(rig->heap);
	return is_wanted(rig);
}

/* Twice as long each time when the last cycles found little. */
TEST_PAGES(full_pool_without_a_change_asks_after_eight_lengths_of_a_cycle, 0)
{
	atomic_store(&time_ns, 1000000);
	ch__os_pretended.clock = tell_time;
	for (uint32_t doublings = 0; doublings < 2; doublings++) {
		cycle_ends(&rig, 1000000, 100);
		atomic_store(&rig.heap->opened_doublings, doublings);
		atomic_fetch_add(&time_ns, (800u << doublings) - 1);
		CHECK(!is_full_and_asks(&rig, 0));
		atomic_fetch_add(&time_ns, 1);
		CHECK(is_full_and_asks(&rig, 0));
	}
	ch__os_pretended.clock = NULL;
	forget(&rig);
}

/* The process, or its container, was stopped within the cycle. */
TEST_PAGES(full_pool_asks_after_minutes_where_a_cycle_seemed_to_last_for_hours, 0)
{
	const uint64_t second = 1000000000;
	atomic_store(&time_ns, 1000000);
	ch__os_pretended.clock = tell_time;
	cycle_ends(&rig, 3 * 3600 * second, 3 * 3600 * second);
	atomic_fetch_add(&time_ns, 79 * second);
	CHECK(!is_full_and_asks(&rig, 0));
	atomic_fetch_add(&time_ns, second);
	CHECK(is_full_and_asks(&rig, 0));
	ch__os_pretended.clock = NULL;
	forget(&rig);
}

/* Places wait for a stop where the system does not synchronize cores. */
TEST_PAGES(full_pool_asks_at_once_where_a_tenth_changed_or_places_wait_for_a_stop, 0)
{
	bool has_core_sync = atomic_load(&rig.heap->has_core_sync);
	atomic_store(&time_ns, 1000000);
	ch__os_pretended.clock = tell_time;
	cycle_ends(&rig, 1000000, 100);
	CHECK(!is_full_and_asks(&rig, pool_bytes / 10 - 1));
	CHECK(is_full_and_asks(&rig, pool_bytes / 10));
	for (unsigned i = 0; i < 4; i++) {
		bool syncs = i & 1, waits = i >> 1;
		atomic_store(&rig.heap->has_core_sync, syncs);
		atomic_store(&rig.heap->quarantine_bytes, waits ? 8 : 0);
		CHECK_EQ(is_full_and_asks(&rig, 0), waits && !syncs);
	}
	atomic_store(&rig.heap->has_core_sync, has_core_sync);
	atomic_store(&rig.heap->quarantine_bytes, 0);
	ch__os_pretended.clock = NULL;
	forget(&rig);
}

/* --- vms are told --- */

TEST(vm_that_comes_later_is_told_of_a_wish_that_stands)
{
	unsigned asked = 0, asked_later = 0;
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_config config = rig_config(pool_bytes);
	struct rig rig = rig_create(&config, &ops, &asked);
	struct ch_vm *later;
	ch__trigger_dead(rig.heap, pool_bytes);
	ch_thread_poll();
	CHECK_EQ(asked, 1);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, &asked_later, &later), CH_OK);
	ch_thread_poll();
	CHECK_EQ(asked_later, 1);
	CHECK_EQ(ch_vm_detach(later), CH_OK);
	rig_end(&rig);
}

static void count_space(void *vm_user)
{
	++*(unsigned *)vm_user;
}

static void *tell_vms(void *heap)
{
	ch__vms_tell(heap);
	return NULL;
}

TEST(thread_that_is_not_attached_tells_the_vms_of_a_wish_and_of_space)
{
	unsigned told = 0;
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked,
			     .space_free = count_space};
	struct ch_config config = rig_config(pool_bytes);
	struct rig rig = rig_create(&config, &ops, &told);
	pthread_t stranger;
	ch__trigger_dead(rig.heap, pool_bytes);
	for (unsigned i = 1; i <= 2; i++) {
		CHECK_EQ(pthread_create(&stranger, NULL, tell_vms, rig.heap), 0);
		CHECK_EQ(pthread_join(stranger, NULL), 0);
		CHECK_EQ(told, i);
		ch__heap_lock(rig.heap);
		ch__trigger_full(rig.heap, rig.vm, ch__space_now(rig.heap));
		ch__heap_unlock(rig.heap);
		atomic_fetch_add(&rig.heap->space_events, 1);
	}
	rig_end(&rig);
}

TEST_RIG_BY(vm_is_not_told_of_space_that_the_vm_before_it_wanted, rig_start(pool_bytes))
{
	unsigned told = 0, told_other = 0;
	struct ch_ops ops = {.size = sizeof ops, .space_free = count_space};
	struct ch_vm *other, *before, *vm = NULL;
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, &told_other, &other), CH_OK);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, &told, &before), CH_OK);
	ch__heap_lock(rig.heap);
	ch__trigger_full(rig.heap, before, ch__space_now(rig.heap));
	ch__heap_unlock(rig.heap);
	ch_thread_poll(); /* no space came */
	CHECK_EQ(ch_vm_detach(before), CH_OK);
	ch_thread_poll();
	CHECK(!atomic_load(&rig.heap->anyone_wants_space)); /* else each poll takes locks */
	for (int i = 0; i < 100 && vm != before; i++) {
		if (vm)
			CHECK_EQ(ch_vm_detach(vm), CH_OK);
		CHECK_EQ(ch_vm_attach(rig.heap, &ops, &told, &vm), CH_OK);
	}
	CHECK(vm == before);
	/* Another vm wants space: all vms are looked at. */
	ch__heap_lock(rig.heap);
	ch__trigger_full(rig.heap, other, ch__space_now(rig.heap));
	ch__heap_unlock(rig.heap);
	atomic_fetch_add(&rig.heap->space_events, 1);
	ch_thread_poll();
	CHECK_EQ(told_other, 1);
	CHECK_EQ(told, 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ch_vm_detach(other), CH_OK);
}

/* --- dead bytes ask --- */

static struct ch_block new_large(struct ch_owner owner, uint32_t bytes)
{
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = bytes, .cold_bytes = 1024};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	e.code.used_to = e.code.hot_bytes;
	e.code.cold_used = e.code.cold_bytes;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	return e.code.block;
}

enum { INVALIDATE, BREAK, DISCARD, DETACH, WAYS };

static void make_invalid(struct rig *rig, int way, struct ch_block block,
			 struct ch_assumption assumption)
{
	switch (way) {
	case INVALIDATE:
		CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
		break;
	case BREAK:
		CHECK_EQ(ch_assumption_break(assumption, NULL), CH_OK);
		break;
	case DISCARD:
		CHECK_EQ(ch_vm_discard(rig->heap, rig->vm, NULL, NULL), CH_OK);
		break;
	default:
		CHECK_EQ(ch_vm_detach(rig->vm), CH_OK);
	}
}

static void count_told(void *vm_user)
{
	++*(unsigned *)vm_user;
}

/* The vms are told as well, once, save a vm that is leaving. */
TEST(bytes_made_invalid_in_any_way_ask_for_a_collection)
{
	for (int way = 0; way < WAYS; way++) {
		struct ch_config config = rig_config(pool_bytes);
		struct ch_ops ops = {.size = sizeof ops, .collect_wanted = count_told};
		unsigned times_told = 0, others_told = 0;
		config.driver = CH_DRIVER_HOST;
		struct rig rig = rig_create(&config, &ops, &times_told);
		struct ch_vm *other;
		CHECK_EQ(ch_vm_attach(rig.heap, &ops, &others_told, &other), CH_OK);
		struct ch_assumption assumption;
		struct emitter e;
		CHECK_EQ(ch_assumption_create(rig.vm, &assumption), CH_OK);
		emit_open(&e, rig_owner(&rig, "large"), (uint32_t)dead_least + 8, 0);
		emit_answer(&e, 1);
		CHECK_EQ(ch_block_assume(e.code.block, assumption), CH_OK);
		e.code.used_to = e.code.hot_bytes;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		forget(&rig);
		make_invalid(&rig, way, e.code.block, assumption);
		if (!is_wanted(&rig))
			FAIL("way %d asked for none", way);
		CHECK_EQ(times_told, way != DETACH);
		CHECK_EQ(others_told, 1);
		CHECK_EQ(ch_vm_detach(other), CH_OK);
		if (way == DETACH)
			CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
		else
			rig_end(&rig);
	}
}

/* No cycle frees a root of its own: a wish at its invalidation would come too early. */
TEST_RIG_BY(kept_block_made_invalid_counts_as_dead_when_it_is_freed, rig_start(pool_bytes))
{
	struct ch_open open = {.owner = rig_owner(&rig, "kept"), .hot_bytes = 64,
			       .flags = CH_OPEN_KEPT};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(rig.heap->dead_bytes, 0);
	CHECK_EQ(ch_code_free(rig.heap, e.code.exec, CH_RELEASE_COLLECT), CH_OK);
	CHECK(rig.heap->dead_bytes > 0);
}

/* There are more blocks than a region takes. */
TEST(each_block_made_invalid_counts_its_bytes_once_and_few_bytes_ask_for_nothing)
{
	enum { BLOCKS = 3 * 64 + 6, OF_AN_OWNER = 64 };
	static struct ch_block blocks[BLOCKS];
	for (int way = 0; way < WAYS; way++) {
		struct rig rig = rig_start_host(pool_bytes);
		struct ch_owner owner = rig_owner(&rig, "small");
		struct ch_assumption assumption;
		uint64_t bytes = 0, dead;
		size_t count = BLOCKS;
		CHECK_EQ(ch_assumption_create(rig.vm, &assumption), CH_OK);
		for (unsigned i = 0; i < BLOCKS; i++) {
			struct emitter e;
			emit_open(&e, owner, 16 + 64 * (i % 2), 0);
			emit_answer(&e, i);
			CHECK_EQ(ch_block_assume(e.code.block, assumption), CH_OK);
			CHECK_EQ(emit_commit(&e), CH_OK);
			blocks[i] = e.code.block;
			const struct ch__block *block =
				ch__block_at(rig.heap, rig_record(blocks[i]));
			bytes += ch__hot_bytes(block) + ch__cold_bytes(block);
		}
		forget(&rig);
		if (way == INVALIDATE)
			CHECK_EQ(ch_blocks_invalidate(blocks, BLOCKS, &count), CH_OK);
		else if (way == BREAK)
			CHECK_EQ(ch_assumption_break(assumption, &count), CH_OK);
		else
			make_invalid(&rig, way, blocks[0], assumption);
		CHECK_EQ(count, BLOCKS);
		CHECK(!is_wanted(&rig));
		CHECK_EQ(rig.heap->notentrant_bytes, bytes);
		CHECK_EQ(rig.heap->blocks_notentrant, BLOCKS);
		dead = atomic_load(&rig.heap->dead_bytes);
		CHECK(dead >= bytes && dead <= bytes + (way == DETACH ? OF_AN_OWNER : 0));
		if (way == DETACH)
			CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
		else
			rig_end(&rig);
	}
}

/* --- statistics --- */

TEST_RIG_BY(statistics_keep_the_most_pages_and_the_bytes_of_what_died, rig_start(pool_bytes))
{
	struct ch_owner owner = rig_owner(&rig, "large");
	uint64_t before = rig_stats(&rig).pages_now, bytes = 0;
	enum { BLOCKS = 3 };
	for (int i = 0; i < BLOCKS; i++) {
		struct ch_info info = block_info(new_large(owner, 3 * 65536));
		bytes += info.hot_bytes + info.cold_bytes;
	}
	struct ch_stats full = rig_stats(&rig);
	CHECK(full.pages_now > before);
	CHECK_EQ(full.pages_peak, full.pages_now);
	CHECK_EQ(full.bytes_freed, 0);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_settle(&rig);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	struct ch_stats empty = rig_stats(&rig);
	CHECK_EQ(empty.blocks_freed, BLOCKS);
	CHECK_EQ(empty.bytes_freed, full.code_bytes_now - empty.code_bytes_now);
	CHECK(empty.bytes_freed >= bytes && empty.bytes_freed < bytes + BLOCKS * 256);
	CHECK_EQ(empty.pages_now, before);
	CHECK_EQ(empty.pages_peak, full.pages_peak);
	new_large(rig_owner(&rig, "small"), 1000);
	CHECK_EQ(rig_stats(&rig).pages_peak, full.pages_peak);
}

/* Entries hold the blocks. The stack has few words that lead to them. */
TEST_RIG_BY(statistics_tell_roots_on_stacks_from_what_was_marked, rig_start(pool_bytes))
{
	enum { BLOCKS = 1000 };
	for (int i = 0; i < BLOCKS; i++) {
		struct ch_owner owner = rig_owner(&rig, "entered");
		CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 1)), CH_OK);
	}
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	struct ch_stats stats = rig_stats(&rig);
	CHECK_EQ(stats.blocks_now, BLOCKS);
	CHECK(stats.stack_roots_last < BLOCKS / 2);
}

/* The marking begins when the world stands. */
TEST_RIG_BY(statistics_keep_the_longest_pause_and_time_the_marking_alone, rig_start(pool_bytes))
{
	atomic_store(&time_ns, 1000000);
	ch__os_pretended.clock = tell_time;
	ch__stats_note_pause(rig.heap, 1000000 - 700, 1000000 - 400);
	ch__stats_note_pause(rig.heap, 1000000 - 300, 1000000 - 200);
	struct ch_stats stats = rig_stats(&rig);
	CHECK_EQ(stats.pause_ns_max, 700);
	CHECK_EQ(stats.pause_ns_last, 300);
	CHECK_EQ(stats.mark_ns_last, 200);
	CHECK_EQ(stats.mark_ns_total, 600);
	ch__os_pretended.clock = NULL;
}

enum { LOOK_NS = 1000 };

static uint64_t look_at_clock(uint64_t waited_ns)
{
	return atomic_fetch_add(&time_ns, waited_ns + LOOK_NS) + waited_ns + LOOK_NS;
}

/* Each step of a sweep looks at the clock at both ends; the time in between counts. */
TEST_RIG_BY(statistics_sum_the_time_of_sweeps, rig_start(pool_bytes))
{
	rig.heap->config.step_blocks = CH__KILLED_AT_ONCE;
	atomic_store(&time_ns, 1000000);
	ch__os_pretended.clock = look_at_clock;
	CHECK_EQ(rig_stats(&rig).sweep_ns_total, 0);
	for (int cycle = 1; cycle <= 3; cycle++) {
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		CHECK_EQ(rig_stats(&rig).sweep_ns_total, (uint64_t)cycle * LOOK_NS);
	}
	ch__os_pretended.clock = NULL;
}

/* --- releases --- */

/* The block is OPEN, and stays. */
TEST(release_at_once_tells_of_the_wish_before_it_returns)
{
	unsigned asked = 0;
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_config config = rig_config(pool_bytes);
	struct rig rig = rig_create(&config, &ops, &asked);
	struct ch_owner owner = rig_owner(&rig, "released");
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	forget(&rig);
	atomic_store(&rig.heap->dead_bytes, pool_bytes);
	CHECK_EQ(asked, 0);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(is_wanted(&rig));
	CHECK_EQ(asked, 1);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
}

TEST_RIG_BY(release_counts_each_block_of_the_owner_as_dead, rig_start(pool_bytes))
{
	enum { BLOCKS = 100, BYTES = 64 };
	uint64_t dead[2];
	for (int many = 0; many < 2; many++) {
		struct ch_owner owner = rig_owner(&rig, "released");
		for (int i = 0; i < (many ? BLOCKS : 1); i++)
			(void)rig_block(owner, 1);
		forget(&rig);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
		dead[many] = atomic_load(&rig.heap->dead_bytes);
	}
	CHECK(dead[0] > BYTES && dead[0] < dead_least / 2);
	CHECK(dead[1] - BYTES > (BLOCKS - 10) * (dead[0] - BYTES));
	CHECK(dead[1] - BYTES < (BLOCKS + 10) * (dead[0] - BYTES));
}

/* The records of owners without blocks go by a collection, too. */
TEST_RIG_BY(detach_counts_each_owner_of_the_vm_as_dead, rig_start(pool_bytes))
{
	enum { OWNERS = 3, BYTES = 64 };
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_vm *vm;
	struct ch_owner owner;
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_OK);
	for (int i = 0; i < OWNERS; i++)
		CHECK_EQ(ch_owner_create(vm, "gone", (const void *)(uintptr_t)rig_fallback, NULL,
					 &owner),
			 CH_OK);
	forget(&rig);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(atomic_load(&rig.heap->dead_bytes), OWNERS * BYTES);
}

/* --- a poll --- */

/* A thread polls for all its heaps, whichever of them has nothing to do. */
TEST(poll_serves_each_heap_of_the_thread)
{
	struct rig rigs[] = {rig_start(1 << 20), rig_start(1 << 20)};
	for (int due = 0; due < 2; due++) {
		struct ch_heap *heap = rigs[due].heap;
		CHECK(!atomic_load(&rigs[!due].heap->poll_due));
		ch__poll_want(heap);
		CHECK(atomic_load(&heap->poll_due));
		ch_thread_poll();
		CHECK(!atomic_load(&heap->poll_due));
	}
	for (int i = 0; i < 2; i++)
		rig_end(&rigs[i]);
}
