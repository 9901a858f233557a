/* SPDX-License-Identifier: MIT
 * membarrier.c: membarrier refused by a filter, wholly or for core synchronization only, before the
 * heap is made or afterwards: the chosen fallback, and the promises of the fallback. Regions pay
 * for a fence of their own. A stop of the world counts as the core sync, since each thread
 * serializes itself before it runs on. Patches under these filters: patch_storm.c. */
#define _GNU_SOURCE
#include "codeheap/collector.h"
#include "codeheap/base/park.h"
#include "tests/support/stage.h"

#include <sched.h>

enum { FAR_BYTES = 32 << 20 };

struct play {
	struct stage *stage;
	struct method m, filler;
	_Atomic(int) is_over, running;
	_Alignas(64) _Atomic(uint32_t) word; /* odd while the thread is in a region */
};

static struct play *new_play(struct stage *stage)
{
	struct play *p = aligned_alloc(64, sizeof *p);
	CHECK(p);
	memset(p, 0, sizeof *p);
	stage->config.stop_wait_ms = TEST_PATIENCE_MS; /* under ThreadSanitizer, too */
	stage_start(stage);
	p->stage = stage;
	stage->user = p;
	return p;
}

static void end_play(struct play *p)
{
	stage_end(p->stage);
	free(p);
}

/* --- the choice of a fallback --- */

static uint64_t poll_here(void)
{
	ch_thread_poll();
	return 7;
}

static void run(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	atomic_fetch_add(&p->running, 1);
	while (!atomic_load(&p->is_over)) {
		CHECK_EQ(method_call(&p->m, NULL), 7);
		ch_thread_poll();
	}
	atomic_fetch_sub(&p->running, 1);
}

static void check_choice(struct play *p, enum stage_refusal how, const struct ch_stats *before,
			 uint32_t stops_before)
{
	struct ch_heap *heap = p->stage->heap;
	struct ch_stats after = stage_stats(p->stage);
	uint64_t cycles = after.cycles - before->cycles;
	uint64_t stops = atomic_load(&heap->core_syncs_by_stop) - stops_before;
	CHECK_EQ(atomic_load(&heap->fence_in_regions), how != STAGE_REFUSE_CORE_SYNC);
	CHECK_EQ(atomic_load(&heap->has_core_sync), false);
	/* The stop of each complete cycle counted as a core sync, and nothing else did. */
	CHECK(cycles >= 5);
	CHECK_EQ(after.core_syncs - before->core_syncs, stops);
	/* Boehm's collector stops the world for partial cycles, too. */
	if (p->stage->driver == STAGE_BOEHM)
		CHECK(stops >= cycles);
	else
		CHECK_EQ(stops, cycles);
}

/* Every stopped thread serializes itself as soon as it runs on. */
static void check_serialized(struct play *p)
{
	unsigned threads = 0;
	for (struct ch__thread *t = p->stage->heap->threads; t; t = t->next) {
		if (!atomic_load(&t->is_attached))
			continue;
		threads++;
		TEST_UNTIL(__atomic_load_n(&t->serialized, __ATOMIC_RELAXED))
			stage_pause();
	}
	CHECK_EQ(threads, 3);
}

static void refuse_and_run(struct stage *stage, enum stage_refusal how, bool is_late)
{
	if (!is_late)
		stage_refuse_membarrier(how);
	struct play *p = new_play(stage);
	method_native(stage, &p->m, "polls", (void *)poll_here);
	struct stage_thread threads[2];
	for (int i = 0; i < 2; i++)
		stage_spawn(stage, &threads[i], run, p);
	stage_wait(&p->running, 2);
	if (is_late) {
		stage_collect(stage);
		CHECK_EQ(atomic_load(&stage->heap->has_core_sync), true);
		CHECK_EQ(atomic_load(&stage->heap->fence_in_regions), false);
		CHECK_EQ(atomic_load(&stage->heap->core_syncs_by_stop), 0);
		stage_refuse_membarrier(how);
		atomic_store(&stage->heap->waits_for_cycle, false);
	}
	struct ch_stats before = stage_stats(stage);
	uint32_t stops = atomic_load(&stage->heap->core_syncs_by_stop);
	for (int i = 0; i < 6; i++) {
		stage_collect(stage);
		stage_pause();
		ch_thread_park();
		ch_thread_unpark();
	}
	check_choice(p, how, &before, stops);
	/* The places of what died before wait for a stop. */
	CHECK(!is_late || atomic_load(&stage->heap->waits_for_cycle));
	check_serialized(p);
	atomic_store(&p->is_over, 1);
	for (int i = 0; i < 2; i++)
		stage_join(&threads[i]);
	end_play(p);
}

#define EACH_REFUSAL(name, how, is_late)             \
	THREADED_DRIVER(name)                        \
	{                                            \
		refuse_and_run(stage, how, is_late); \
	}                                            \
	STAGE_HOST_THAT_STOPS_CASE(name, 0, body_##name)
EACH_REFUSAL(fallback_is_taken_where_membarrier_is_not_permitted, STAGE_REFUSE_EPERM, false)
EACH_REFUSAL(fallback_is_taken_where_there_is_no_membarrier, STAGE_REFUSE_ENOSYS, false)
EACH_REFUSAL(fallback_is_taken_where_core_sync_is_not_permitted, STAGE_REFUSE_CORE_SYNC, false)
EACH_REFUSAL(fallback_is_taken_when_membarrier_is_refused_later, STAGE_REFUSE_EPERM, true)
EACH_REFUSAL(fallback_is_taken_when_core_sync_is_refused_later, STAGE_REFUSE_CORE_SYNC, true)

/* --- a place waits for a stop --- */

static void build(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_constant(stage, &p->m, "constant", 5);
}

static void wait_for_a_stop(struct stage *stage, enum stage_refusal how, bool is_late)
{
	stage->config.pool_bytes = test_page_bytes() ? test_page_bytes() : 16384;
	if (!is_late)
		stage_refuse_membarrier(how);
	struct play *p = new_play(stage);
	stage_apart(stage, build, p);
	method_new(stage, &p->filler, "filler");
	stage_fill(p->filler.owner);
	if (is_late)
		stage_refuse_membarrier(how);
	method_drop(stage, &p->m);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	CHECK(stage_stats(stage).quarantine_bytes_now > 0);
	struct ch_stats before = stage_stats(stage);
	struct emitter e;
	struct ch_open open = {.owner = p->filler.owner, .hot_bytes = 6};
	enum ch_status status = emit_open_as(&e, &open);
	if (status != CH_E_FULL)
		FAIL("bytes were used again without a core sync or a stop: status %d", status);
	CHECK_EQ(stage_stats(stage).core_syncs, before.core_syncs);
	stage_collect(stage);
	CHECK(stage_stats(stage).core_syncs > before.core_syncs);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	end_play(p);
}

EVERY_DRIVER(freed_place_waits_for_a_stop_without_membarrier)
{
	wait_for_a_stop(stage, STAGE_REFUSE_EPERM, false);
}

EVERY_DRIVER(freed_place_waits_for_a_stop_without_core_sync)
{
	wait_for_a_stop(stage, STAGE_REFUSE_CORE_SYNC, false);
}

EVERY_DRIVER(freed_place_waits_for_a_stop_when_membarrier_is_refused_later)
{
	wait_for_a_stop(stage, STAGE_REFUSE_ENOSYS, true);
}

/* A host's cycle that is given up has stopped no thread. */
TEST(cycle_given_up_is_no_core_sync_without_membarrier)
{
	struct stage *stage = stage_new(STAGE_HOST);
	stage_refuse_membarrier(STAGE_REFUSE_EPERM);
	struct play *p = new_play(stage);
	uint64_t syncs = stage_stats(stage).core_syncs;
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(stage->heap, &marker), CH_OK);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	CHECK_EQ(stage_stats(stage).core_syncs, syncs);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).core_syncs, syncs + 1);
	end_play(p);
}

/* --- regions --- */

/* The two threads of a race run on different cores, where there are two. */
static void run_on_core(int number)
{
	cpu_set_t allowed, one;
	CPU_ZERO(&one);
	CHECK_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && number-- == 0)
			CPU_SET(cpu, &one);
	if (CPU_COUNT(&one))
		CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

/* Stores to uncached lines stand before the store to `inside` in the core's buffer, and hide the
 * store to `inside` from other cores for a microsecond. */
static void fill_store_buffer(uint8_t *memory, uint32_t *state)
{
	for (int i = 0; i < 24; i++) {
		*state = *state * 1664525 + 1013904223;
		memory[(*state >> 6) % FAR_BYTES] = (uint8_t)i;
	}
}

static void enter_and_leave(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch__thread *self = ch__thread_self(stage->heap);
	uint8_t *memory = calloc(1, FAR_BYTES);
	uint32_t state = 1;
	CHECK(memory);
	memset(memory, 1, FAR_BYTES);
	run_on_core(1);
	atomic_fetch_add(&p->running, 1);
	while (!atomic_load_explicit(&p->is_over, memory_order_relaxed)) {
		fill_store_buffer(memory, &state);
		ch__region_enter(self);
		uint32_t value = atomic_load_explicit(&p->word, memory_order_relaxed);
		atomic_store_explicit(&p->word, value + 1, memory_order_relaxed);
		for (int i = 0; i < 4; i++)
			ch__arch_pause();
		atomic_store_explicit(&p->word, value + 2, memory_order_release);
		ch__region_leave(self);
	}
	free(memory);
}

/* Waits for some time until the thread went through some regions. */
static bool watch(struct play *p, uint32_t regions)
{
	uint32_t from = atomic_load_explicit(&p->word, memory_order_relaxed);
	for (int i = 0; i < 100000; i++)
		if (atomic_load_explicit(&p->word, memory_order_relaxed) - from >= 2 * regions)
			return true;
	stage_pause(); /* the thread has no core of its own */
	return atomic_load_explicit(&p->word, memory_order_relaxed) != from;
}

/* Marking needs this: no thread is in a region, and no thread comes in. */
static void check_still(struct play *p, int round)
{
	uint32_t before = atomic_load_explicit(&p->word, memory_order_acquire);
	for (int i = 0; i < 100; i++)
		ch__arch_pause();
	if (before % 2 || atomic_load(&p->word) != before)
		FAIL("a thread is in a region of a frozen heap, freeze %d", round);
}

static void freeze_and_look(enum stage_refusal how, bool is_late)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	struct test_random random = test_random_new();
	if (!is_late)
		stage_refuse_membarrier(how);
	struct play *p = new_play(stage);
	struct stage_thread thread;
	stage_spawn(stage, &thread, enter_and_leave, p);
	run_on_core(0);
	stage_wait(&p->running, 1);
	if (is_late)
		stage_refuse_membarrier(how);
	uint64_t end = now_ns() + storm_ms_of(500) * UINT64_C(1000000);
	for (int round = 0, moved = 0; moved < 50 || now_ns() < end; round++) {
		ch__freeze(stage->heap);
		check_still(p, round);
		ch__unfreeze(stage->heap);
		moved += watch(p, 1 + (uint32_t)test_random_below(&random, 64));
	}
	atomic_store(&p->is_over, 1);
	stage_join(&thread);
	end_play(p);
}

TEST(frozen_heap_stands_still_without_membarrier)
{
	freeze_and_look(STAGE_REFUSE_EPERM, false);
}

TEST(frozen_heap_stands_still_when_membarrier_is_refused_later)
{
	freeze_and_look(STAGE_REFUSE_EPERM, true);
}

/* Of a core that keeps a store back for long no case knows, so the wait itself is the fact. */
TEST(freeze_whose_fence_is_refused_waits_for_stores)
{
	enum { LEAST_NS = 1000000 };
	struct stage *stage = stage_new(STAGE_POLLS);
	struct play *p = new_play(stage);
	if (atomic_load(&stage->heap->fence_in_regions))
		skip("membarrier is refused before, and regions have their fence");
	stage_refuse_membarrier(STAGE_REFUSE_EPERM);
	uint64_t from = now_ns();
	ch__freeze(stage->heap);
	uint64_t waited_ns = now_ns() - from;
	ch__unfreeze(stage->heap);
	CHECK(waited_ns >= LEAST_NS);
	end_play(p);
}

TEST(frozen_heap_stands_still_without_core_sync)
{
	freeze_and_look(STAGE_REFUSE_CORE_SYNC, false);
}
