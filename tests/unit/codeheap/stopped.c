/* SPDX-License-Identifier: MIT
 * stopped.c: a stopped thread that tries to run again while its stack is scanned. For a moment its
 * record says that it runs; what it published holds (I7). The linker leads the scan through this
 * file (--wrap), so that a case makes the moment last. */
#define _GNU_SOURCE
#include "codeheap/base/park.h"
#include "codeheap/collect/collect.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { STACK_BYTES = 1 << 16 };

struct holder {
	struct rig rig;
	pthread_t thread;
};

static struct ch_block block;
static _Atomic(uintptr_t) hidden; /* no scan takes it for an address */
static _Atomic(int) step, holder_tid, scans;

/* The thread sleeps in the wait that it goes back to: only this changes its record. */
void __real_ch__scan_stacks(struct ch_marker *);
void __wrap_ch__scan_stacks(struct ch_marker *);
void __wrap_ch__scan_stacks(struct ch_marker *marker)
{
	struct ch__thread *stopped = NULL;
	for (struct ch__thread *t = marker->heap->threads; t; t = t->next)
		if (t->is_attached && atomic_load(&t->state) == CH__SIGNALLED)
			stopped = t;
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
	atomic_store(&hidden, ~((uintptr_t)rig_info(block).exec + 1));
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

/* On the signal's stack lies the one word that holds the block. */
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

TEST(thread_that_tries_to_run_in_a_stop_is_scanned_by_what_it_published)
{
	struct holder h;
	struct ch_config config = rig_config(1 << 20);
	config.stop_signal = SIGUSR1;
	h.rig = rig_create(&config, NULL, NULL);
	rig_apart(&h.rig, make_and_release, NULL);
	CHECK_EQ(pthread_create(&h.thread, NULL, be_interrupted, &h), 0);
	TEST_UNTIL(atomic_load(&step) == 1)
		usleep(100);
	rig_collect(&h.rig, 4);
	CHECK_EQ(atomic_load(&scans), 4);
	CHECK(rig_is_there(block));
	atomic_store(&step, 2);
	ch_thread_park();
	CHECK_EQ(pthread_join(h.thread, NULL), 0);
	ch_thread_unpark();
	rig_collect(&h.rig, 3);
	CHECK(!rig_is_there(block));
	rig_end(&h.rig);
}
