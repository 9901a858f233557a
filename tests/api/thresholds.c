/* SPDX-License-Identifier: MIT
 * thresholds.c: dead code has its collection by the default thresholds, whichever thread releases
 * the code, and whatever the cycles before found. After a try in vain it has the next in time. */
#include "codeheap/base/heap.h"
#include "codeheap/base/park.h"
#include "codeheap/events/events.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>

enum { MIB = 1 << 20, POOL = 64 * MIB };

static void make_blocks(const struct rig *rig, void *owner)
{
	for (int i = 0; i < 16; i++) {
		struct ch_open open = {.owner = *(struct ch_owner *)owner, .hot_bytes = 1024};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		e.code.used_to = 1024;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	}
	(void)rig;
}

/* One thread compiles, another one's collector releases. */
TEST_RIG_BY(release_by_a_thread_that_opened_nothing_counts_the_bytes, rig_start(POOL))
{
	struct ch_owner owner = rig_owner(&rig, "released");
	rig_alone(&rig, make_blocks, &owner);
	atomic_store(&rig.heap->dead_bytes, 0);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK(atomic_load(&rig.heap->dead_bytes) >= 15 * 1024);
}

/* The threshold is a part of what the last sweep left. As a part of what is there it would rise as
 * fast as the dead code. */
TEST_RIG_BY(dead_code_is_collected_after_any_number_of_poor_cycles, rig_start(POOL))
{
	enum { BYTES = 4000 };
	static const uint8_t code[BYTES];
	for (uint64_t bytes = 0; bytes < MIB; bytes += BYTES)
		CHECK_EQ(ch_code_add(rig.heap, code, BYTES, "live", &(const void *){0}), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	atomic_store(&rig.heap->opened_doublings, 6);
	atomic_store(&rig.heap->dead_doublings, 6);
	uint64_t cycles = rig_stats(&rig).cycles, dead = 0;
	while (rig_stats(&rig).cycles == cycles && dead < 32 * MIB) {
		const void *exec;
		CHECK_EQ(ch_code_add(rig.heap, code, BYTES, "dead", &exec), CH_OK);
		CHECK_EQ(ch_code_free(rig.heap, exec, CH_RELEASE_COLLECT), CH_OK);
		ch_thread_poll();
		dead += BYTES;
	}
	CHECK(dead > 4 * MIB);
	CHECK(dead < 12 * MIB);
}

static struct ch_heap *stopped_in;
static _Atomic(uint64_t) time_ns;

/* The process is stopped for three hours when it begins to wait for threads of `stopped_in`. */
static uint64_t tell_time(uint64_t waited_ns)
{
	if (stopped_in && atomic_load(&stopped_in->stopping)) {
		stopped_in = NULL;
		waited_ns = UINT64_C(3) * 3600 * 1000000000;
	}
	return atomic_fetch_add(&time_ns, waited_ns + 1000) + waited_ns;
}

struct runner {
	struct ch_heap *heap;
	_Atomic(bool) is_there, ends;
};

static void *run_without_a_poll(void *arg)
{
	struct runner *r = arg;
	CHECK_EQ(ch_thread_attach(r->heap, NULL, NULL), CH_OK);
	atomic_store(&r->is_there, true);
	while (!atomic_load(&r->ends))
		continue;
	CHECK_EQ(ch_thread_detach(r->heap), CH_OK);
	return NULL;
}

/* A try to collect waits for the runner for 100 ms. */
static void start(struct runner *r, pthread_t *thread, struct ch_heap *heap)
{
	*r = (struct runner){.heap = heap};
	CHECK_EQ(pthread_create(thread, NULL, run_without_a_poll, r), 0);
	TEST_UNTIL(atomic_load(&r->is_there));
	heap->config.stop_wait_ms = 1000;
}

static void leave_code(struct ch_heap *heap)
{
	static const uint8_t code[2000];
	const void *exec;
	CHECK_EQ(ch_code_add(heap, code, sizeof code, "dead", &exec), CH_OK);
	CHECK_EQ(ch_code_free(heap, exec, CH_RELEASE_COLLECT), CH_OK);
}

/* A stop, of the process or of its container, is no part of a try. */
TEST_RIG_BY(process_that_stops_for_hours_within_a_try_tries_again_within_minutes, rig_start(MIB))
{
	struct runner r;
	pthread_t thread;
	start(&r, &thread, rig.heap);
	stopped_in = rig.heap;
	atomic_store(&time_ns, now_ns());
	ch__os_pretended.clock = tell_time;
	while (stopped_in) {
		leave_code(rig.heap);
		ch_thread_poll();
	}
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	CHECK(rig.heap->unasked_after_ns < atomic_load(&time_ns) + UINT64_C(60) * 1000000000);
	ch__os_pretended.clock = NULL;
	atomic_store(&r.ends, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

static struct runner *late;    /* comes late to the next stop */
static uint64_t late_from_ns; /* the pretended time of the stop; 0: none began */

static bool runs_beside(struct ch_heap *heap)
{
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		if (t != ch__thread_self(heap) && t->is_attached &&
		    atomic_load(&t->state) == CH__RUNNING)
			return true;
	return false;
}

/* The thread comes 60 ms late. */
static uint64_t tell_time_of_a_busy_machine(uint64_t waited_ns)
{
	uint64_t now = atomic_fetch_add(&time_ns, waited_ns + 1000) + waited_ns;
	if (!late || !atomic_load(&late->heap->stopping))
		return now;
	late_from_ns = late_from_ns ? late_from_ns : now;
	if (now > late_from_ns + 60000000) {
		atomic_store(&late->ends, true);
		TEST_UNTIL(!runs_beside(late->heap));
		late = NULL;
	}
	return now;
}

TEST_RIG_BY(try_waits_for_a_thread_that_has_no_processor_for_some_time, rig_start(MIB))
{
	struct runner r;
	pthread_t thread;
	start(&r, &thread, rig.heap);
	late = &r;
	ch__os_pretended.clock = tell_time_of_a_busy_machine;
	while (!rig_stats(&rig).cycles) {
		leave_code(rig.heap);
		CHECK_EQ(rig_stats(&rig).cycles_abandoned, 0);
	}
	ch__os_pretended.clock = NULL;
	CHECK(atomic_load(&r.ends));
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* A word of the thread that opens the block would hold the block. */
static void leave_a_young_block(const struct rig *rig, void *arg)
{
	struct ch_owner owner = rig_owner(rig, "young");
	struct emitter e;
	(void)arg;
	emit_open(&e, owner, 16, 0);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

/* The library's own code is no block that a cycle looks at. */
TEST_RIG_BY(heap_waits_for_a_cycle_while_anything_is_left, rig_start(MIB))
{
	struct ch_heap *heap = rig.heap;
	struct ch_open open = {.heap = heap, .hot_bytes = 16};
	struct emitter e;
	bool has_core_sync = atomic_load(&heap->has_core_sync);
	rig_alone(&rig, leave_a_young_block, NULL);
	CHECK(atomic_load(&heap->waits_for_cycle));
	atomic_store(&heap->has_core_sync, true);
	rig_collect(&rig, 1); /* the block is young */
	CHECK(atomic_load(&heap->waits_for_cycle));
	rig_collect(&rig, 3);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	CHECK(!atomic_load(&heap->waits_for_cycle));

	/* A free comes as a cycle ends, also where no thread stopped for the last try. */
	ch__trigger_released(heap, 1);
	ch__trigger_nothing_left(heap);
	CHECK(atomic_load(&heap->waits_for_cycle));
	ch__trigger_put_off(heap);
	ch__trigger_nothing_left(heap);
	CHECK(atomic_load(&heap->waits_for_cycle));

	/* The places of the dead wait for a stop. */
	atomic_store(&heap->dead_bytes, 0);
	atomic_store(&heap->has_core_sync, false);
	ch__trigger_nothing_left(heap);
	CHECK(atomic_load(&heap->waits_for_cycle));
	atomic_store(&heap->has_core_sync, true);
	ch__trigger_nothing_left(heap);
	CHECK(!atomic_load(&heap->waits_for_cycle));

	/* A released owner that code has an edge to has no block. */
	struct ch_owner owner = rig_owner(&rig, "held");
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, owner), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	CHECK(atomic_load(&heap->waits_for_cycle));
	CHECK_EQ(ch_code_free(heap, e.code.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_collect(&rig, 1);
	CHECK(!atomic_load(&heap->waits_for_cycle));
	atomic_store(&heap->has_core_sync, has_core_sync);
}
