/* SPDX-License-Identifier: MIT
 * stopped.c: a stopped thread tries to run again while the thread's stack is scanned. For a moment
 * the record says RUNNING, and the published stack still holds (I7). The linker leads the scan
 * through this file (--wrap), so that a case makes the moment last. Then a thread without stops:
 * the number of signals; and a thread on an unannounced fiber. */
#define _GNU_SOURCE
#include "codeheap/base/park.h"
#include "codeheap/collect/collect.h"
#include "os/os.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 1 << 16 };

struct holder {
	struct rig rig;
	pthread_t thread;
};

static struct ch_block block;
static _Atomic(uintptr_t) hidden; /* inverted: no scan takes the word for an address */
static _Atomic(int) step, holder_tid, scans;
static uintptr_t shown_sp; /* that each thread is said to have; 0: its own */

/* The thread sleeps, waiting again: only the lines below change the thread's record. */
void __real_ch__scan_stacks(struct ch_marker *);
void __wrap_ch__scan_stacks(struct ch_marker *);
void __wrap_ch__scan_stacks(struct ch_marker *marker)
{
	struct ch__thread *stopped = NULL;
	for (struct ch__thread *t = marker->heap->threads; t; t = t->next) {
		if (t->is_attached && atomic_load(&t->state) == CH__SIGNALLED)
			stopped = t;
		if (shown_sp)
			t->shown.sp = shown_sp;
	}
	if (stopped) {
		TEST_UNTIL(thread_is_asleep(atomic_load(&holder_tid)))
			usleep(100);
		atomic_store(&stopped->state, CH__RUNNING);
		atomic_fetch_add(&scans, 1);
	}
	__real_ch__scan_stacks(marker);
	if (stopped)
		atomic_store(&stopped->state, CH__SIGNALLED);
}

static void make_and_release(const struct rig *rig, void *arg)
{
	struct ch_owner owner = rig_owner(rig, "held by a word");
	(void)arg;
	block = rig_block(owner, 42);
	atomic_store(&hidden, ~((uintptr_t)block_info(block).exec + 1));
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

/* Only a word on the signal's stack holds the block. */
static void hold(int signal)
{
	volatile uintptr_t word = ~atomic_load(&hidden);
	(void)signal;
	atomic_store(&step, 1);
	while (atomic_load(&step) == 1)
		usleep(100);
	word = 0;
	(void)word;
}

static void *be_interrupted(void *arg)
{
	struct holder *h = arg;
	stack_t stack = {.ss_sp = malloc(STACK_BYTES), .ss_size = STACK_BYTES};
	stack_t none = {.ss_flags = SS_DISABLE};
	struct sigaction action = {.sa_handler = hold, .sa_flags = SA_ONSTACK};
	CHECK(stack.ss_sp);
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	CHECK_EQ(sigaction(SIGUSR2, &action, NULL), 0);
	CHECK_EQ(ch_thread_attach(h->rig.heap, NULL, NULL), CH_OK);
	atomic_store(&holder_tid, (int)gettid());
	CHECK_EQ(raise(SIGUSR2), 0);
	CHECK_EQ(ch_thread_detach(h->rig.heap), CH_OK);
	CHECK_EQ(sigaltstack(&none, NULL), 0);
	free(stack.ss_sp);
	return NULL;
}

static void create_stopping(struct holder *h)
{
	struct ch_config config = rig_config(1 << 20);
	config.stop_signal = SIGUSR1;
	h->rig = rig_create(&config, NULL, NULL);
}

static void start(struct holder *h, void *(*run)(void *))
{
	CHECK_EQ(pthread_create(&h->thread, NULL, run, h), 0);
	TEST_UNTIL(atomic_load(&step) == 1)
		usleep(100);
}

TEST(thread_that_tries_to_run_in_a_stop_is_scanned_by_what_it_published)
{
	struct holder h;
	create_stopping(&h);
	rig_apart(&h.rig, make_and_release, NULL);
	start(&h, be_interrupted);
	/* A thread that has not yet left the stop before may try by itself in a scan. */
	TEST_UNTIL(atomic_load(&scans) == 4) {
		rig_collect(&h.rig, 1);
	}
	CHECK(rig_is_there(block));
	atomic_store(&step, 2);
	join_parked(h.thread);
	rig_collect(&h.rig, 3);
	CHECK(!rig_is_there(block));
	rig_end(&h.rig);
}

static void *run_until_told(void *arg)
{
	const struct holder *h = arg;
	CHECK_EQ(ch_thread_attach(h->rig.heap, NULL, NULL), CH_OK);
	atomic_store(&holder_tid, (int)gettid());
	atomic_store(&step, 1);
	while (atomic_load(&step) == 1)
		usleep(100);
	CHECK_EQ(ch_thread_detach(h->rig.heap), CH_OK);
	return NULL;
}

/* The stop is the core synchronization, where the system has no other. */
TEST(thread_that_a_signal_stopped_serializes_itself)
{
	struct holder h;
	create_stopping(&h);
	atomic_store(&h.rig.heap->has_core_sync, false);
	start(&h, run_until_told);
	const struct ch__thread *other = h.rig.heap->threads;
	while (other->thread_id != atomic_load(&holder_tid))
		other = other->next;
	CHECK_EQ(ch_heap_collect(h.rig.heap), CH_OK);
	atomic_store(&step, 2);
	join_parked(h.thread);
	CHECK_EQ(other->serialized, 1);
	rig_end(&h.rig);
}

/* --- a thread with all signals blocked --- */

static void *take_no_signals(void *arg)
{
	sigset_t all;
	sigfillset(&all);
	CHECK_EQ(pthread_sigmask(SIG_SETMASK, &all, NULL), 0);
	return run_until_told(arg);
}

static _Atomic(uint64_t) time_ns;

static uint64_t tell_time(uint64_t waited_ns)
{
	return atomic_fetch_add(&time_ns, waited_ns + 1000);
}

/* The gate counts signals, as calls that may fail. Time goes on with each look at the clock. */
TEST(thread_that_takes_no_signal_is_sent_one_each_millisecond)
{
	enum { WAIT_MS = 60 };
	struct holder h;
	struct ch_config config = rig_config(1 << 20);
	config.stop_signal = SIGUSR1;
	config.stop_wait_ms = WAIT_MS;
	h.rig = rig_create(&config, NULL, NULL);
	start(&h, take_no_signals);
	ch__os_pretended.clock = tell_time;
	ch__os_fail_at(UINT64_MAX, false);
	CHECK_EQ(ch_heap_collect(h.rig.heap), CH_E_BUSY);
	uint64_t calls = ch__os_failable_calls();
	ch__os_fail_at(0, false);
	ch__os_pretended.clock = NULL;
	/* The count includes one or two calls of the look for freed places. */
	if (calls < WAIT_MS - 5 || calls > WAIT_MS + 5)
		FAIL("%llu calls in %d ms", (unsigned long long)calls, WAIT_MS);
	atomic_store(&step, 2);
	CHECK_EQ(pthread_join(h.thread, NULL), 0);
	rig_end(&h.rig);
}

/* --- an unannounced fiber --- */

static struct rig *on_fiber;
static ucontext_t thread_context, fiber_context;

/* Only a word on the fiber holds the block. */
static void collect_on_fiber(void)
{
	volatile uintptr_t word = ~atomic_load(&hidden);
	for (int i = 0; i < 4; i++)
		rig_collect_here(on_fiber, NULL);
	CHECK(rig_is_there(block));
	word = 0;
	(void)word;
	swapcontext(&fiber_context, &thread_context);
}

/* The fiber around sp is found among the known fibers, in any order, above and below. A guard
 * without access lies between the running fiber and the fibers above. */
TEST_RIG(fiber_that_is_run_unsaid_is_found_by_its_bounds)
{
	enum { FIBERS = 5, RUNS = 2, GUARD = 3, PLACES = 6 };
	static const int place_of[FIBERS] = {0, 5, RUNS, 4, 1};
	struct ch_fiber *fibers[FIBERS];
	uint8_t *stacks = mmap(NULL, PLACES * STACK_BYTES, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(stacks != MAP_FAILED);
	CHECK_EQ(mprotect(stacks + GUARD * STACK_BYTES, STACK_BYTES, PROT_NONE), 0);
	for (int i = 0; i < FIBERS; i++) {
		uint8_t *low = stacks + place_of[i] * STACK_BYTES;
		CHECK_EQ(ch_fiber_attach(rig.heap, low, low + STACK_BYTES, &fibers[i]), CH_OK);
	}
	on_fiber = &rig;
	rig_apart(&rig, make_and_release, NULL);
	CHECK_EQ(getcontext(&fiber_context), 0);
	fiber_context.uc_stack.ss_sp = stacks + RUNS * STACK_BYTES;
	fiber_context.uc_stack.ss_size = STACK_BYTES;
	makecontext(&fiber_context, collect_on_fiber, 0);
	CHECK_EQ(swapcontext(&thread_context, &fiber_context), 0);
	rig_collect(&rig, 3);
	CHECK(!rig_is_there(block));
	for (int i = 0; i < FIBERS; i++)
		CHECK_EQ(ch_fiber_detach(fibers[i]), CH_OK);
	CHECK_EQ(munmap(stacks, PLACES * STACK_BYTES), 0);
}

/* A fiber that was resumed may have left the frames that lay on its stack. */
TEST_RIG(words_of_a_fiber_hold_their_block_until_the_fiber_is_resumed)
{
	static uintptr_t stack[512];
	struct ch_fiber *fiber;
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + 512, &fiber), CH_OK);
	rig_apart(&rig, make_and_release, NULL);
	stack[256] = ~atomic_load(&hidden);
	ch_fiber_suspend(fiber, stack);
	rig_collect(&rig, 3);
	CHECK(rig_is_there(block));
	ch_fiber_resume(fiber);
	rig_collect(&rig, 3);
	CHECK(!rig_is_there(block));
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
}

static void collect_within(const struct rig *rig, void *fiber)
{
	ch_fiber_resume(fiber);
	rig_collect_here(rig, NULL);
}

/* Of the red zone below sp only what lies on the stack. */
TEST_RIG(word_below_the_end_of_a_stack_holds_nothing)
{
	enum { WORDS = 512, LOW = 256 };
	static uintptr_t words[WORDS];
	struct ch_fiber *fiber;
	CHECK_EQ(ch_fiber_attach(rig.heap, words + LOW, words + WORDS, &fiber), CH_OK);
	ch_fiber_resume(fiber); /* no thread's own stack is scanned */
	rig_apart(&rig, make_and_release, NULL);
	shown_sp = (uintptr_t)(words + LOW + 2);
	words[LOW] = ~atomic_load(&hidden);
	for (int i = 0; i < 3; i++)
		rig_apart(&rig, collect_within, fiber);
	CHECK_EQ(rig_is_there(block), CH_ARCH_RED_ZONE_BYTES != 0);
	words[LOW] = 0;
	words[LOW - 1] = ~atomic_load(&hidden);
	for (int i = 0; i < 3; i++)
		rig_apart(&rig, collect_within, fiber);
	CHECK(!rig_is_there(block));
	shown_sp = 0;
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
}

/* One fiber's stack ends where the other's begins, and is full. */
TEST(full_stack_is_not_taken_for_the_empty_one_below)
{
	enum { WORDS = 512, MIDDLE = 256 };
	static uintptr_t words[WORDS];
	for (int upper = 0; upper < 2; upper++) {
		struct rig rig = rig_start(1 << 20);
		struct ch_fiber *fibers[2];
		for (int i = 0; i < 2; i++) {
			uintptr_t *low = words + (i == upper ? MIDDLE : 0);
			CHECK_EQ(ch_fiber_attach(rig.heap, low, low + MIDDLE, &fibers[i]), CH_OK);
		}
		rig_apart(&rig, make_and_release, NULL);
		shown_sp = (uintptr_t)(words + MIDDLE);
		words[MIDDLE + 9] = ~atomic_load(&hidden);
		for (int i = 0; i < 3; i++)
			rig_apart(&rig, rig_collect_here, NULL);
		CHECK(rig_is_there(block));
		shown_sp = 0;
		words[MIDDLE + 9] = 0;
		for (int i = 0; i < 2; i++)
			CHECK_EQ(ch_fiber_detach(fibers[i]), CH_OK);
		rig_end(&rig);
	}
}

/* The record of a fiber that has gone is the next fiber's. */
TEST_RIG(thread_runs_on_no_fiber_that_was_detached)
{
	static uint8_t stack[STACK_BYTES];
	struct ch_fiber *fiber;
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + sizeof stack, &fiber), CH_OK);
	ch_fiber_resume(fiber);
	CHECK(atomic_load(&ch__thread_self(rig.heap)->fiber) == fiber);
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	CHECK(atomic_load(&ch__thread_self(rig.heap)->fiber) == NULL);
}

/* --- a handler below its thread's stack --- */

static struct ch_heap *heap_of_low;
static uintptr_t low_before, low_after;

static void park_in_handler(int signal)
{
	(void)signal;
	ch_thread_park();
	low_after = ch__thread_self(heap_of_low)->stack_low;
	ch_thread_unpark();
}

static void *park_below(void *below)
{
	stack_t handlers = {.ss_sp = below, .ss_size = STACK_BYTES};
	struct sigaction action = {.sa_handler = park_in_handler, .sa_flags = SA_ONSTACK};
	CHECK_EQ(ch_thread_attach(heap_of_low, NULL, NULL), CH_OK);
	low_before = ch__thread_self(heap_of_low)->stack_low;
	CHECK_EQ(sigaltstack(&handlers, NULL), 0);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(pthread_kill(pthread_self(), SIGUSR1), 0);
	return NULL;
}

/* Only the stack that the process began on grows. */
TEST_RIG(stack_of_a_thread_does_not_grow_into_what_lies_below)
{
	enum { OWN_BYTES = 32 * STACK_BYTES, BOTH_BYTES = OWN_BYTES + STACK_BYTES };
	pthread_attr_t attributes;
	pthread_t thread;
	uint8_t *both = mmap(NULL, BOTH_BYTES, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(both != MAP_FAILED);
	heap_of_low = rig.heap;
	CHECK_EQ(pthread_attr_init(&attributes), 0);
	CHECK_EQ(pthread_attr_setstack(&attributes, both + STACK_BYTES, OWN_BYTES), 0);
	CHECK_EQ(pthread_create(&thread, &attributes, park_below, both), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(low_before, (uintptr_t)both + STACK_BYTES);
	CHECK_EQ(low_after, low_before);
	CHECK_EQ(pthread_attr_destroy(&attributes), 0);
	CHECK_EQ(munmap(both, BOTH_BYTES), 0);
}

/* --- registers at a signal --- */

TEST_RIG(each_register_that_a_signal_interrupted_is_shown)
{
	enum { FIRST = 0x1000, UNSHOWN = 0x5a };
	static ucontext_t context;
	static uintptr_t words[CH_ARCH_CONTEXT_WORDS];
	struct ch__thread *self = ch__thread_self(rig.heap);
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++)
		words[i] = FIRST + i;
	words[CH_ARCH_CONTEXT_SP] = (uintptr_t)__builtin_frame_address(0);
	memcpy((char *)&context + CH_ARCH_CONTEXT_AT, words, sizeof words);
	memset(self->shown.words, UNSHOWN, sizeof self->shown.words);
	self->shown.words_count = 0;
	self->shown.may_end = true;
	ch__thread_publish_context(self, &context);
	for (unsigned i = 0; i < CH_ARCH_CONTEXT_WORDS; i++) {
		CHECK_EQ(ch__arch_context_word(&context, i), words[i]);
		CHECK_EQ(self->shown.words[i], words[i]);
	}
	CHECK_EQ(self->shown.words_count, CH_ARCH_CONTEXT_WORDS);
	CHECK_EQ(self->shown.sp, words[CH_ARCH_CONTEXT_SP]);
	CHECK(!self->shown.may_end);
}
