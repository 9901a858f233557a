/* SPDX-License-Identifier: MIT
 * attach.c: a call that makes code attaches the calling thread, and the thread's end, of any kind,
 * detaches the thread. Thread records are used again. */
#define _GNU_SOURCE
#include "codeheap/base/park.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

typedef uint32_t (*function)(void);

static struct rig rig;

static enum ch_status add(function *f)
{
	uint8_t bytes[32];
	struct emitter e = {.code = {.write = bytes, .exec = bytes, .hot_bytes = sizeof bytes}};
	emit_landing(&e);
	emit_answer(&e, 7);
	return ch_code_add(rig.heap, bytes, e.at, "short-lived", f);
}

static void make_and_free(void)
{
	function f;
	CHECK_EQ(add(&f), CH_OK);
	CHECK_EQ(f(), 7);
	CHECK_EQ(ch_code_free(rig.heap, (const void *)(uintptr_t)f, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static void *come_and_go(void *arg)
{
	(void)arg;
	CHECK(!ch__thread_self(rig.heap));
	make_and_free();
	CHECK(ch__thread_self(rig.heap));
	return NULL;
}

static unsigned records(void)
{
	unsigned count = 0;
	for (const struct ch__thread *t = rig.heap->threads; t; t = t->next)
		count++;
	return count;
}

static void run(void *(*body)(void *))
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, body, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(rig_stats(&rig).threads_now, 1);
}

TEST_SHARED_RIG(thread_that_makes_code_is_attached_until_it_ends, rig_start(0))
{
	for (int i = 0; i < 10000; i++)
		run(come_and_go);
	CHECK_EQ(records(), 2);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
}

static void *give_bounds_after_a_call(void *arg)
{
	make_and_free();
	const struct ch__thread *thread = ch__thread_self(rig.heap);
	uintptr_t low = thread->stack_low, high = thread->stack_high;
	CHECK_EQ(ch_thread_attach(rig.heap, (void *)high, (void *)low), CH_E_ARG);
	CHECK(strstr(ch_why(), " is not the caller's stack: sp is 0x"));
	const void *from = arg ? (void *)(low + 64) : NULL; /* a part of the thread's stack */
	const void *to = arg ? (void *)(high - 64) : NULL;
	CHECK_EQ(ch_thread_attach(rig.heap, from, to), CH_OK);
	CHECK_EQ(thread->stack_low - low, arg ? 64 : 0);
	CHECK_EQ(high - thread->stack_high, arg ? 64 : 0);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_E_THREAD);
	return NULL;
}

TEST_SHARED_RIG(thread_that_a_call_attached_takes_the_bounds_that_it_gives, rig_start(0))
{
	pthread_t thread;
	for (int is_given = 0; is_given < 2; is_given++) {
		CHECK_EQ(pthread_create(&thread, NULL, give_bounds_after_a_call,
					is_given ? &rig : NULL), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
	}
}

/* --- ends --- */

static void *attach_and_end(void *arg)
{
	(void)arg;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	ch_thread_park();
	return NULL;
}

TEST_SHARED_RIG(thread_that_ends_parked_is_detached, rig_start(0))
{
	run(attach_and_end);
}

int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);
static pthread_key_t key;
static _Atomic(int) ends;

static void end_of_object(void *unused)
{
	(void)unused;
	make_and_free();
	ends++;
}

/* The C++ object ends before the library's own end of the thread, the key's destructor behind. */
static void *end_with_objects(void *arg)
{
	make_and_free();
	CHECK_EQ(__cxa_thread_atexit_impl(end_of_object, NULL, &rig), 0);
	CHECK_EQ(pthread_setspecific(key, &rig), 0);
	return arg;
}

TEST_SHARED_RIG(objects_of_a_thread_that_end_with_it_may_make_code, rig_start(0))
{
	run(come_and_go); /* the library's key comes first */
	CHECK_EQ(pthread_key_create(&key, end_of_object), 0);
	run(end_with_objects);
	CHECK_EQ(ends, 2);
	CHECK_EQ(pthread_key_delete(key), 0);
}

static _Atomic(int) waits;

static void *wait_for_ever(void *arg)
{
	make_and_free();
	ch_thread_park();
	waits = 1;
	/* Cancelled outside of calls: to ThreadSanitizer a cancelled call never ends. */
	for (;; sched_yield())
		pthread_testcancel();
	return arg;
}

static pthread_t start_waiter(void)
{
	pthread_t thread;
	waits = 0;
	CHECK_EQ(pthread_create(&thread, NULL, wait_for_ever, NULL), 0);
	while (!waits)
		sched_yield();
	return thread;
}

TEST_SHARED_RIG(thread_that_is_cancelled_is_detached, rig_start(0))
{
	pthread_t thread = start_waiter();
	CHECK_EQ(rig_stats(&rig).threads_now, 2);
	CHECK_EQ(pthread_cancel(thread), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(rig_stats(&rig).threads_now, 1);
}

TEST(process_ends_beside_threads_that_calls_attached)
{
	int pid = fork();
	if (!pid) {
		rig = rig_start(0);
		start_waiter();
		exit(3);
	}
	expect_exit(pid, 3);
}

static void *fork_in_thread(void *arg)
{
	make_and_free();
	int pid = fork();
	if (!pid) {
		make_and_free();
		pthread_t thread;
		CHECK_EQ(pthread_create(&thread, NULL, come_and_go, NULL), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		_exit(rig_stats(&rig).threads_now == 1 ? 4 : 5);
	}
	expect_exit(pid, 4);
	return arg;
}

TEST_SHARED_RIG(child_of_a_thread_that_a_call_attached_goes_on_with_it, rig_start(0))
{
	run(fork_in_thread);
}

/* --- calls that stay CH_E_THREAD --- */

static ucontext_t outer, inner;
static enum ch_status seen;

static void add_on_a_fiber(void)
{
	function f;
	seen = add(&f);
}

/* The bounds need not be those of the stack: no cycle looks there. */
static void add_within_bounds(void)
{
	char *here = __builtin_frame_address(0);
	CHECK_EQ(ch_thread_attach(rig.heap, here - 4096, here + 4096), CH_OK);
	make_and_free();
	seen = ch_thread_detach(rig.heap);
}

static void run_fiber(void (*body)(void))
{
	enum { BYTES = 1 << 18 };
	void *stack = malloc(BYTES);
	CHECK_EQ(getcontext(&inner), 0);
	inner.uc_stack = (stack_t){.ss_sp = stack, .ss_size = BYTES};
	inner.uc_link = &outer;
	makecontext(&inner, body, 0);
	CHECK_EQ(swapcontext(&outer, &inner), 0);
	CHECK(!ch__thread_self(rig.heap));
	free(stack);
}

static void *run_fibers(void *arg)
{
	run_fiber(add_on_a_fiber);
	CHECK_EQ(seen, CH_E_THREAD);
	run_fiber(add_within_bounds);
	CHECK_EQ(seen, CH_OK);
	return arg;
}

TEST_SHARED_RIG(call_on_a_stack_that_the_system_does_not_know_attaches_nothing, rig_start(0))
{
	run(run_fibers);
}

static void *collect(void *heap)
{
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	return heap;
}

/* The park is that of a VM on another heap. */
TEST_SHARED_RIG(library_in_a_parked_thread_makes_code_between_an_unpark_and_a_park, rig_start(0))
{
	function f;
	struct rig vms = rig_start(1 << 20);
	ch_thread_park();
	ch_thread_park();
	CHECK_EQ(add(&f), CH_E_STATE);
	ch_thread_unpark();
	CHECK_EQ(add(&f), CH_E_STATE);
	ch_thread_unpark();
	make_and_free();
	ch_thread_park();
	ch_thread_park();
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, collect, vms.heap), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch_thread_unpark();
	ch_thread_unpark();
	rig_end(&vms);
}

TEST_SHARED_RIG(attachment_by_a_call_becomes_the_callers_own_once, rig_start(0))
{
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	make_and_free();
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_E_THREAD);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_E_THREAD);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
}
