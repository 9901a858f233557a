/* SPDX-License-Identifier: MIT
 * panic.c: the end of a process with a broken invariant. The VM's hook hears the reason before a
 * line on stderr and abort(). Only the last hook given is called, and only once. */
#include "arch/base.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
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

static void expect_words(const char *wanted)
{
	char text[600];
	expect_signal_text(break_it, NULL, SIGABRT, text, sizeof text);
	CHECK_STR(text, wanted);
}

TEST(panic_without_a_hook_says_why_and_aborts)
{
	expect_words("libcodeheap: broken invariant: broken on purpose\n");
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
	char text[600];
	expect_signal_text(break_it_in_a_cancelled_thread, NULL, SIGABRT, text, sizeof text);
	CHECK_STR(text, "libcodeheap: broken invariant: broken on purpose\n");
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
