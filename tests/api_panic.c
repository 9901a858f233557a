/* SPDX-License-Identifier: MIT
 * api_panic.c: the end of a process whose heap broke an invariant: the VM's hook hears the reason
 * before a line on stderr and abort(), the last hook that was given, and once. */
#include "arch/base.h"
#include "tests/heap_rig.h"

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

/* A hook that finds the heap as broken as it is. */
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
	/* A heap without a hook leaves the one that is there, and it outlives its heap. */
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

TEST(panic_hook_that_panics_is_not_called_again)
{
	struct ch_heap *heap = heap_with(hook_that_panics);
	expect_words("first hook: broken on purpose\n"
		     "libcodeheap: broken invariant: broken for the hook, too\n");
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* What the header calls a panic: a stub that a thread takes which is not attached. */
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
	void *exec = (void *)(uintptr_t)rig_info(block).exec;
	expect_signal_text(take_a_stub_as_a_stranger, exec, SIGABRT, text, sizeof text);
	CHECK(!strncmp(text, "second hook: ", 13) && strstr(text, "libcodeheap: broken invariant"));
	rig_end(&stranger_rig);
}
