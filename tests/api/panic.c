/* SPDX-License-Identifier: MIT
 * panic.c: the end of a process with a broken invariant. The VM's hook hears the reason before a
 * line on stderr and abort(). Only the last hook given is called, and only once. The last events
 * follow the line. */
#include "arch/base.h"
#include "codeheap/events/events.h"
#include "os/threads.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void say(const char *text)
{
	CHECK(write(STDERR_FILENO, text, strlen(text)) > 0);
}

static void first_hook(const char *reason)
{
	say("first hook: ");
	say(reason);
	say("\n");
}

static void second_hook(const char *reason)
{
	say("second hook: ");
	say(reason);
	say("\n");
}

/* A hook that runs into the broken heap itself. */
static void hook_that_panics(const char *reason)
{
	first_hook(reason);
	ch__panic("broken for the hook, too");
}

static struct ch_heap *heap_with(void (*hook)(const char *))
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_heap *heap;
	config.panic = hook;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	return heap;
}

static void break_it(void *arg)
{
	(void)arg;
	ch__panic("broken on purpose");
}

/* Compares stderr up to the events. Another case tests the events. */
static void expect_words(const char *wanted)
{
	char text[8000];
	expect_signal_text(break_it, NULL, SIGABRT, text, sizeof text);
	char *events = strstr(text, "libcodeheap: what happened last:");
	if (events)
		*events = 0;
	CHECK_STR(text, wanted);
}

/* No heap had an event. */
TEST(panic_without_a_hook_says_why_and_aborts)
{
	char text[8000];
	expect_signal_text(break_it, NULL, SIGABRT, text, sizeof text);
	CHECK_STR(text, "libcodeheap: broken invariant: broken on purpose\n");
}

TEST(panic_hook_hears_the_reason_before_the_process_ends)
{
	struct ch_heap *heap = heap_with(first_hook);
	expect_words("first hook: broken on purpose\n"
		     "libcodeheap: broken invariant: broken on purpose\n");
	/* A heap without a hook leaves the earlier hook. A hook outlives its heap. */
	struct ch_heap *other = heap_with(NULL);
	expect_words("first hook: broken on purpose\n"
		     "libcodeheap: broken invariant: broken on purpose\n");
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	CHECK_EQ(ch_heap_destroy(other), CH_OK);
	heap = heap_with(second_hook);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	expect_words("second hook: broken on purpose\n"
		     "libcodeheap: broken invariant: broken on purpose\n");
}

/* The line on stderr is written where a cancellation that is due would end the thread. */
static void *break_it_cancelled(void *arg)
{
	CHECK_EQ(pthread_cancel(pthread_self()), 0);
	break_it(arg);
	return NULL;
}

static void break_it_in_a_cancelled_thread(void *arg)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, break_it_cancelled, arg), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(panic_of_a_thread_that_is_cancelled_ends_the_process)
{
	char text[8000];
	expect_signal_text(break_it_in_a_cancelled_thread, NULL, SIGABRT, text, sizeof text);
	CHECK(strstr(text, "libcodeheap: broken invariant: broken on purpose\n") == text);
}

TEST(panic_hook_that_panics_is_not_called_again)
{
	struct ch_heap *heap = heap_with(hook_that_panics);
	expect_words("first hook: broken on purpose\n"
		     "libcodeheap: broken invariant: broken for the hook, too\n");
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* By the header it is a panic when an unattached thread takes a stub. */
static void take_a_stub(void *exec)
{
	code_call(exec);
}
static struct rig stranger_rig;
static void take_a_stub_as_a_stranger(void *exec)
{
	CHECK_EQ(ch_thread_detach(stranger_rig.heap), CH_OK);
	take_a_stub(exec);
}

TEST(panic_hook_hears_of_a_stranger_that_takes_a_stub)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_branch branch;
	char text[600];
	config.panic = second_hook;
	stranger_rig = rig_create(&config, NULL, NULL);
	struct ch_block block = rig_jumper(rig_owner(&stranger_rig, "jumper"), NULL, &branch);
	void *exec = (void *)(uintptr_t)block_info(block).exec;
	expect_signal_text(take_a_stub_as_a_stranger, exec, SIGABRT, text, sizeof text);
	CHECK(!strncmp(text, "second hook: ", 13) && strstr(text, "libcodeheap: broken invariant"));
	rig_end(&stranger_rig);
}

/* The events at the end of a panic, without their numbers, and without the fork of the panicking
 * child. */
static const char *events_of_a_panic(void)
{
	static char said[8000], events[8000];
	expect_signal_text(break_it, NULL, SIGABRT, said, sizeof said);
	char *at = strstr(said, "what happened last:\n");
	events[0] = 0;
	CHECK(at);
	char *last = strstr(said, " heap 1: a child of fork goes on");
	CHECK(last);
	*last = 0;
	*(strrchr(said, '\n') + 1) = 0;
	for (at = strchr(at, '\n') + 1; *at; at = strchr(at, '\n') + 1)
		strncat(events, strstr(at, "heap "), strcspn(strstr(at, "heap "), "\n") + 1);
	return events;
}

TEST_RIG(panic_ends_with_what_happened_before)
{
	struct ch_assumption fact;
	char wanted[600];
	int thread = ch__os_thread_id();
	struct ch_block block = rig_block(rig_owner(&rig, "first"), 1);
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	CHECK_EQ(ch_vm_discard(rig.heap, rig.vm, NULL, NULL), CH_OK);
	snprintf(wanted, sizeof wanted,
		 "heap 1: created, bytes reserved: 1048576\n"
		 "heap 1: a thread is attached: %d\n"
		 "heap 1: blocks are invalidated: 1\n"
		 "heap 1: a cycle begins, number: 1\n"
		 "heap 1: a cycle ends, blocks reached: 1\n"
		 "heap 1: a sweep ends, blocks freed in all: 0\n"
		 "heap 1: an assumption breaks, blocks: 0\n"
		 "heap 1: code is discarded, blocks: 1\n"
		 "heap 1: a cycle begins, number: 2\n"
		 "heap 1: a cycle ends, blocks reached: 1\n"
		 "heap 1: a sweep ends, blocks freed in all: 0\n",
		 thread);
	CHECK_STR(events_of_a_panic(), wanted);
}

TEST(panic_names_the_heap_of_each_event)
{
	char said[8000];
	struct ch_heap *one = heap_with(NULL), *two = heap_with(NULL);
	CHECK_EQ(ch_heap_destroy(one), CH_OK);
	CHECK_EQ(ch_heap_destroy(two), CH_OK);
	expect_signal_text(break_it, NULL, SIGABRT, said, sizeof said);
	CHECK(strstr(said, " heap 1: destroyed, bytes reserved: 1048576\n"));
	CHECK(strstr(said, " heap 2: destroyed, bytes reserved: 1048576\n"));
}

TEST_RIG(panic_knows_the_last_64_events)
{
	for (int i = 0; i < 200; i++) {
		struct ch_assumption fact;
		CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
		CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	}
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	int lines = 0;
	const char *at = events_of_a_panic();
	CHECK(!strncmp(at, "heap 1: an assumption breaks", 28));
	for (; *at; at = strchr(at, '\n') + 1)
		lines++;
	CHECK_EQ(lines, CH__EVENTS_KEPT - 1);
}

static unsigned long number_of_the_last(void)
{
	char text[CH__EVENT_TEXT_BYTES];
	CHECK(ch__event_text(0, text) > 0);
	return strtoul(text, NULL, 10);
}

TEST_RIG(events_are_numbered_one_by_one)
{
	unsigned long number = number_of_the_last();
	for (unsigned i = 1; i <= 20; i++) {
		ch__event_note(rig.heap, CH__EVENT_SWEPT, 77);
		CHECK_EQ(number_of_the_last(), number + i);
	}
}

/* An event has 32 bits for its value. */
TEST_RIG(value_that_is_too_large_for_an_event_is_the_largest)
{
	char text[CH__EVENT_TEXT_BYTES];
	ch__event_note(rig.heap, CH__EVENT_SWEPT, UINT64_C(5) << 32 | 7);
	CHECK(ch__event_text(0, text) > 0);
	CHECK(strstr(text, " 4294967295\n"));
}

struct noting {
	struct ch_heap *heap;
	_Atomic(bool) is_over;
};

static void *note_events(void *arg)
{
	struct noting *noting = arg;
	while (!atomic_load(&noting->is_over))
		ch__event_note(noting->heap, CH__EVENT_SWEPT, 77);
	return NULL;
}

TEST_RIG(event_is_never_seen_half_written)
{
	enum { READS = 200000 };
	struct noting noting = {.heap = rig.heap};
	pthread_t threads[2];
	char text[CH__EVENT_TEXT_BYTES];
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, note_events, &noting), 0);
	for (unsigned i = 0; i < READS; i++) {
		size_t bytes = ch__event_text(i % (CH__EVENTS_KEPT + 2), text);
		CHECK_EQ(bytes, bytes ? strlen(text) : 0);
		CHECK(!bytes || strstr(text, "created") || strstr(text, "attached") ||
		      strstr(text, " heap 1: a sweep ends, blocks freed in all: 77\n"));
	}
	atomic_store(&noting.is_over, true);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}
