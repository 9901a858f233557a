/* SPDX-License-Identifier: MIT
 * space_steps_x86_64.c: what another thread does between two instructions of what triggers it:
 * its open, which found no room, ends while bytes come back; it polls while a wish is told again;
 * it forks while records are taken, and while blocks are opened, committed and freed.
 * A signal handler stands for the other thread; the trap flag brings the handler to each
 * instruction in turn. */
#define _GNU_SOURCE
#include "codeheap/events/events.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/branch.h"
#include "tests/support/heap_rig.h"
#include "tests/support/trap_flag_x86_64.h"

#include <signal.h>

static struct ch_heap *heap;
static int left = -1; /* instructions before the other thread's; below 0: it came */
static void (*come)(void);

static void on_trap(int signal)
{
	(void)signal;
	if (left-- == 0)
		come();
}

static struct rig begin(void (*other)(void))
{
	struct rig rig = rig_start(1 << 20);
	heap = rig.heap;
	come = other;
	CHECK(signal(SIGTRAP, on_trap) != SIG_ERR);
	return rig;
}

static unsigned looks; /* at moments when a fork would not wait for the thread */

/* The other thread comes behind n instructions of the call, if the call has as many. */
static void step_to(int n, void (*call)(struct ch_heap *))
{
	left = n;
	trap_flag_set();
	call(heap);
	trap_flag_clear();
	CHECK(n > 0 || left < 0 || looks); /* a call has many instructions */
}

/* What place_in_need of life/open.c does last. */
static void end_open(void)
{
	atomic_store(&heap->anyone_wants_space, true);
	atomic_fetch_sub(&heap->opens_in_need, 1);
}

TEST_RIG_BY(space_that_comes_while_an_open_without_room_ends_is_counted, begin(end_open))
{
	for (int n = 0; left < 0; n++) {
		uint64_t seen = ch__space_now(heap);
		atomic_store(&heap->anyone_wants_space, false);
		atomic_store(&heap->opens_in_need, 1);
		step_to(n, ch__space_returned);
		CHECK_EQ(ch__space_now(heap), seen + 1);
	}
	atomic_store(&heap->opens_in_need, 0);
}

static bool is_told;

static void poll(void)
{
	if (atomic_exchange(&heap->poll_due, 0) && !atomic_exchange(&heap->collect_told, true))
		is_told = true;
}

TEST_RIG_BY(wish_that_stands_again_is_told_by_a_poll_that_comes_meanwhile_or_by_the_next,
	    begin(poll))
{
	for (int n = 0; left < 0; n++) {
		is_told = false;
		atomic_store(&heap->poll_due, 0);
		atomic_store(&heap->collect_told, true);
		step_to(n, ch__trigger_tell_again);
		poll();
		CHECK(is_told);
	}
}

static struct ch__thread *taker;
static uint32_t record, listed; /* the record that was taken; records in the heap's list before */

/* A child has the records in the heap's list, and those that its lost threads say they have. */
static void look_as_child(void)
{
	if (ch__lock_is_free(&heap->records) && !heap->blocks.free_head)
		CHECK(taker->free_count + 1 >= listed);
}

static void take_record(struct ch_heap *from)
{
	record = ch__record_take(from, taker);
}

TEST_RIG_BY(records_that_a_thread_takes_are_in_the_heaps_list_or_the_threads_at_a_fork,
	    begin(look_as_child))
{
	(void)rig_block(rig_owner(&rig, "owner"), 1);
	taker = ch__thread_self(heap);
	listed = taker->free_count;
	CHECK(listed);
	for (int n = 0; left < 0; n++) {
		ch__records_flush(heap, taker);
		step_to(n, take_record);
		ch__records_give_back(heap, &record, 1);
	}
}

/* --- counts --- */

static struct ch__counters count_blocks(void)
{
	struct ch__counters sum = {0};
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		const struct ch__block *block = ch__block_at(heap, i);
		if (!ch__block_in_use(heap, i))
			continue;
		sum.blocks_opened++;
		sum.blocks_committed += ch__block_state(block) != CH_BLOCK_OPEN;
		sum.code_bytes += ch__hot_bytes(block) + ch__cold_bytes(block);
		sum.cold_bytes += ch__cold_bytes(block);
		sum.stub_bytes += (int64_t)ch__branches_count(heap, ch__block_run(block)) *
				  ch__stub_bytes(heap);
	}
	return sum;
}

/* Comes to every instruction. */
static void count_as_child(void)
{
	left = 0;
	if (CH_LOAD_RELAXED(&taker->inside) || !ch__lock_is_free(&heap->lock))
		return;
	struct ch__counters are = count_blocks(), counted = heap->counters;
	ch__counters_add(&counted, &taker->counters);
	looks++;
	CHECK_EQ(counted.blocks_opened - counted.blocks_aborted - counted.blocks_freed,
		 are.blocks_opened);
	CHECK_EQ(counted.blocks_committed - counted.blocks_freed, are.blocks_committed);
	CHECK_EQ(counted.code_bytes, are.code_bytes);
	CHECK_EQ(counted.cold_bytes, are.cold_bytes);
	CHECK_EQ(counted.stub_bytes, are.stub_bytes);
}

/* The first commit gives bytes of both parts back, the second block is aborted. */
static void make_and_free(struct ch_heap *from)
{
	struct ch_open open = {.size = sizeof open, .heap = from, .hot_bytes = 400,
			       .cold_bytes = 400, .branch_room = 2};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	code.used_to = code.cold_used = 8;
	const void *exec = code.exec;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	CHECK_EQ(ch_code_free(from, exec, CH_RELEASE_NOT_RUNNING), CH_OK);
}

TEST_RIG_BY(counts_are_those_of_the_blocks_wherever_a_fork_finds_a_thread, begin(count_as_child))
{
	(void)rig_block(rig_owner(&rig, "owner"), 1);
	taker = ch__thread_self(heap);
	make_and_free(heap);
	step_to(0, make_and_free);
	CHECK(looks > 100);
}
