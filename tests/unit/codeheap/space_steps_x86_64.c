/* SPDX-License-Identifier: MIT
 * space_steps_x86_64.c: what another thread does between two instructions of what triggers it:
 * its open, which found no room, ends while bytes come back; it polls while a wish is told again;
 * it forks while records are taken.
 * A signal handler stands for the other thread; the trap flag brings the handler to each
 * instruction in turn. */
#define _GNU_SOURCE
#include "codeheap/events/events.h"
#include "codeheap/graph/block.h"
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

/* The other thread comes behind n instructions of the call, if the call has as many. */
static void step_to(int n, void (*call)(struct ch_heap *))
{
	left = n;
	trap_flag_set();
	call(heap);
	trap_flag_clear();
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
