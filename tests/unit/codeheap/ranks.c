/* SPDX-License-Identifier: MIT
 * ranks.c: the order in which a thread takes locks (os/locks/ranks.h): each pair of ranks, locks
 * without a holder, threads that do not hear of each other, a heap with locks taken out of order,
 * and calls left with a lock or a region. */
#include "codeheap/graph/block.h"
#include "codeheap/base/park.h"
#include "os/locks/ranks.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static jmp_buf out;
static char said[200];

static void note_reason(const char *reason)
{
	snprintf(said, sizeof said, "%s", reason);
	longjmp(out, 1);
}

/* Returns the panic's text, "" without a panic. */
static const char *said_of_check(enum ch__rank rank)
{
	said[0] = 0;
	ch__panic_set_hook(note_reason);
	if (!setjmp(out))
		ch__rank_check_for(rank, NULL);
	ch__panic_set_hook(NULL);
	return said;
}

TEST(lock_is_wanted_by_who_holds_none_of_its_rank_or_behind_it)
{
	for (int has = 0; has < CH__RANKS; has++)
		for (int wants = 0; wants < CH__RANKS; wants++) {
			ch__rank_note((enum ch__rank)has, true);
			const char *text = said_of_check((enum ch__rank)wants);
			ch__rank_note((enum ch__rank)has, false);
			if ((*text == 0) != (wants > has))
				FAIL("%d is wanted by who holds %d: \"%s\"", wants, has, text);
		}
	CHECK_STR(said_of_check((enum ch__rank)0), "");
}

TEST(locks_out_of_order_are_both_named)
{
	ch__rank_note(CH__RANK_PAGES, true);
	CHECK(strstr(said_of_check(CH__RANK_HEAP), "heap is wanted by who holds pages"));
	ch__rank_note(CH__RANK_PAGES, false);
}

/* Old words on the stack must not be part of the sentence. */
static __attribute__((noinline)) void leave_words_on_the_stack(void)
{
	volatile char words[4000];
	for (size_t i = 0; i < sizeof words; i++)
		words[i] = 'x';
}

TEST(sentence_about_locks_is_whole_and_ends_where_it_ends)
{
	ch__rank_note(CH__RANK_PAGES, true);
	CHECK(*said_of_check(CH__RANK_HEAP)); /* the linker writes to the stack at first calls */
	leave_words_on_the_stack();
	const char *text = said_of_check(CH__RANK_HEAP);
	ch__rank_note(CH__RANK_PAGES, false);
	CHECK_STR(text,
		  "locks out of order: heap is wanted by who holds pages; or called in a signal "
		  "handler that interrupted a call of the library, or a call was left by longjmp "
		  "or cancellation");
}

TEST(second_lock_of_a_rank_counts_until_both_are_let_go)
{
	ch__rank_note(CH__RANK_HEAP, true);
	ch__rank_note(CH__RANK_HEAP, true);
	ch__rank_note(CH__RANK_HEAP, false);
	CHECK(*said_of_check(CH__RANK_REGISTRY));
	ch__rank_note(CH__RANK_HEAP, false);
	CHECK_STR(said_of_check(CH__RANK_REGISTRY), "");
}

static void let_go(void *arg)
{
	(void)arg;
	ch__rank_note(CH__RANK_SINKS, false);
}

TEST(lock_that_nobody_took_is_not_let_go)
{
	char text[400] = "";
	expect_signal_text(let_go, NULL, SIGABRT, text, sizeof text);
	CHECK(strstr(text, "let go by who does not hold it"));
}

static void *hold_nothing(void *arg)
{
	(void)arg;
	CHECK_STR(said_of_check((enum ch__rank)0), "");
	return NULL;
}

TEST(what_another_thread_holds_is_its_own)
{
	pthread_t thread;
	ch__rank_note(CH__RANK_META, true);
	CHECK_EQ(pthread_create(&thread, NULL, hold_nothing, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch__rank_note(CH__RANK_META, false);
}

TEST(nothing_is_noted_between_the_handlers_of_a_fork)
{
	ch__rank_note(CH__RANK_META, true);
	ch__ranks_rest(true);
	CHECK_STR(said_of_check(CH__RANK_HEAPS), "");
	ch__rank_note(CH__RANK_GDB, true);
	ch__rank_note(CH__RANK_GDB, true);
	CHECK_STR(said_of_check(CH__RANK_HEAPS), "");
	ch__rank_note(CH__RANK_GDB, false);
	ch__ranks_rest(false);
	ch__rank_note(CH__RANK_META, false);
	CHECK_STR(said_of_check(CH__RANK_HEAPS), "");
}

/* The lock is free: only the order is wrong. */
static void take_registry_under_heap(void *arg)
{
	struct rig *rig = arg;
	ch__heap_lock(rig->heap);
	ch__registry_lock(rig->heap);
}

static void take_heap_in_a_region(void *arg)
{
	struct rig *rig = arg;
	ch__region_enter(ch__thread_self(rig->heap));
	ch__heap_lock(rig->heap);
}

static void expect_panic(void (*fn)(void *), const char *wanted)
{
	char text[400] = "";
	struct rig rig = rig_start(1 << 20);
	rig_block(rig_owner(&rig, "first"), 1);
	expect_signal_text(fn, &rig, SIGABRT, text, sizeof text);
	if (!strstr(text, wanted))
		FAIL("wanted \"%s\", got \"%s\"", wanted, text);
	rig_end(&rig);
}

TEST(free_lock_that_is_taken_out_of_order_ends_the_process)
{
	expect_panic(take_registry_under_heap, "registry is wanted by who holds heap");
}

static void wait_for_heap_under_pages(void *arg)
{
	struct rig *rig = arg;
	ch__rank_note(CH__RANK_PAGES, true);
	(void)!ch_sink_set(rig->heap, CH_SINK_NONE);
}

TEST(lock_that_is_waited_for_until_a_time_out_of_order_ends_the_process)
{
	expect_panic(wait_for_heap_under_pages, "heap is wanted by who holds pages");
}

TEST(lock_that_is_taken_in_a_region_ends_the_process)
{
	expect_panic(take_heap_in_a_region, "heap is wanted by who holds region");
}

static void park_under_the_pages_lock(void *arg)
{
	(void)arg;
	ch__rank_note(CH__RANK_PAGES, true);
	ch_thread_park();
}

static void call_the_vm_under_a_lock(void *arg)
{
	struct rig *rig = arg;
	ch__sweep_lock(rig->heap);
	ch__holds_nothing();
}

static void fork_under_a_lock(void *arg)
{
	struct rig *rig = arg;
	ch__heap_lock(rig->heap);
	if (fork() == 0)
		_exit(0);
}

TEST(thread_that_parks_with_a_lock_of_bounded_hold_ends_the_process)
{
	expect_panic(park_under_the_pages_lock, "a park is wanted by who holds pages");
}

TEST(code_of_the_vm_that_is_called_under_a_lock_ends_the_process)
{
	expect_panic(call_the_vm_under_a_lock, "code of the VM is wanted by who holds sweep");
}

TEST(fork_by_who_holds_a_lock_ends_the_process)
{
	expect_panic(fork_under_a_lock, "heaps is wanted by who holds heap");
}

/* A sink asks for the names of blocks through a pointer; clang does not follow the pointer. */
TEST_RIG(names_are_told_to_a_sink_without_a_lock_out_of_order)
{
	rig_block(rig_owner(&rig, "named"), 1);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_PERF_MAP), CH_OK);
	rig_block(rig_owner(&rig, "late"), 2);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
}

/* --- calls left by longjmp (docs/guarantees.md, section 2) --- */

static bool leave(void *arg, const struct ch_info *info)
{
	(void)arg, (void)info;
	longjmp(out, 1);
}

/* The heap's lock stays held. */
static void leave_a_visit(void *arg)
{
	struct rig *rig = arg;
	struct ch_stats stats = {.size = sizeof stats};
	alarm(TEST_PATIENCE_S);
	if (!setjmp(out))
		CHECK_EQ(ch_block_each(rig->heap, NULL, leave, NULL), CH_OK);
	CHECK_EQ(ch_heap_stats(rig->heap, &stats), CH_E_STATE);
}

/* Leaves as a signal handler in the middle of a call does. */
static void leave_a_lock(void *arg)
{
	struct rig *rig = arg;
	alarm(TEST_PATIENCE_S);
	if (!setjmp(out)) {
		ch__heap_lock(rig->heap);
		longjmp(out, 1);
	}
	rig_stats(rig);
}

static void leave_a_region(void *arg)
{
	struct rig *rig = arg;
	if (!setjmp(out)) {
		ch__region_enter(ch__thread_self(rig->heap));
		longjmp(out, 1);
	}
	ch__region_enter(ch__thread_self(rig->heap));
}

enum held { HEAP, REGION, NOTHING };
static _Atomic(int) holds;

static void *hold(void *arg)
{
	struct ch_heap *heap = arg;
	enum held what = (enum held)holds;
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	if (what == HEAP)
		ch__heap_lock(heap);
	else
		ch__region_enter(ch__thread_self(heap));
	holds = NOTHING;
	TEST_UNTIL(holds != NOTHING)
		usleep(1000);
	if (what == HEAP)
		ch__heap_unlock(heap);
	else
		ch__region_leave(ch__thread_self(heap));
	CHECK_EQ(ch_thread_detach(heap), CH_OK);
	return NULL;
}

static struct ch_heap *interrupted;

static void add_code(int signal)
{
	void *to;
	(void)signal;
	(void)!ch_code_add(interrupted, "\x90", 1, "in a handler", &to);
}

static void interrupt_a_call(void *arg)
{
	struct rig *rig = arg;
	interrupted = rig->heap;
	alarm(TEST_PATIENCE_S);
	CHECK(signal(SIGUSR1, add_code) != SIG_ERR);
	ch__heap_lock(rig->heap);
	raise(SIGUSR1);
}

static void wait_for_a_region(int signal)
{
	(void)signal;
	ch__region_wait(ch__thread_self(interrupted));
}

static void interrupt_a_freeze(void *arg)
{
	struct rig *rig = arg;
	interrupted = rig->heap;
	alarm(TEST_PATIENCE_S);
	CHECK(signal(SIGUSR1, wait_for_a_region) != SIG_ERR);
	ch__rank_note(CH__RANK_REGION, true);
	ch__freeze(rig->heap);
	raise(SIGUSR1);
}

TEST(call_in_a_handler_that_interrupted_another_one_ends_the_process)
{
	expect_panic(interrupt_a_call, "heap is wanted by who holds heap");
	expect_panic(interrupt_a_freeze, "a region is wanted by the thread that froze the heap");
}

TEST(call_that_was_left_by_longjmp_is_found_by_the_next_one)
{
	expect_panic(leave_a_lock, "heap is wanted by who holds heap");
}

TEST_RIG(visit_that_was_left_by_longjmp_has_its_thread_refused)
{
	rig_block(rig_owner(&rig, "first"), 1);
	expect_signal(leave_a_visit, &rig, 0);
}

TEST(region_that_was_left_by_longjmp_is_found_by_the_next_one)
{
	expect_panic(leave_a_region, "a region within a region");
}

/* As after a call that another thread left. */
TEST(cycle_beside_a_lock_or_a_region_that_stays_held_is_busy)
{
	struct ch_config config = rig_config(1 << 20);
	config.stop_wait_ms = 20;
	struct rig rig = rig_create(&config, NULL, NULL);
	for (int what = HEAP; what <= REGION; what++) {
		pthread_t thread;
		holds = what;
		CHECK_EQ(pthread_create(&thread, NULL, hold, rig.heap), 0);
		TEST_UNTIL(holds == NOTHING)
			usleep(1000);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
		holds = what;
		CHECK_EQ(pthread_join(thread, NULL), 0);
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	}
	rig_end(&rig);
}
