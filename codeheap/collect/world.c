/* SPDX-License-Identifier: MIT
 * world.c: stopping the world of a heap, a built-in one or a host's with stops_world, by polls,
 * parks and a signal: under registry and heap, after the freeze, so that no thread is stopped
 * inside a region (I1). The wait is bounded (I10).
 *
 * The handler is signal-safe: it publishes the interrupted registers in the thread's record and
 * waits on a futex. */
#include "codeheap/base/region.h"
#include "codeheap/base/trigger.h"
#include "codeheap/base/why.h"
#include "codeheap/collect/collect.h"
#include "os/threads.h"

#include <errno.h>

enum { SIGNALS = 65 }; /* 1 to 64 */
static struct ch__os_action previous_action[SIGNALS];
enum { ABSENT, IN_WORK, INSTALLED };
static _Atomic(uint32_t) handler_is[SIGNALS];
/* Its address tags the signals of this copy of the library: a process may have several. */
static const char tag;

/* Lets the records run that the handler stopped: all, or none while the heap of one is stopped. A
 * park is open meanwhile, against another heap's signal. */
static struct ch__thread *run_signalled(void)
{
	struct ch__thread *stopped = NULL;
	for (struct ch__thread *t = ch__thread_list; t && !stopped; t = t->next_of_thread) {
		if (atomic_load_explicit(&t->state, memory_order_relaxed) != CH__SIGNALLED)
			continue;
		(void)ch__park_open(t);
		/* seq_cst as in ch_thread_unpark. */
		ch__thread_set_state(t, CH__RUNNING, memory_order_seq_cst, __func__);
		if (atomic_load_explicit(&t->heap->stopping, memory_order_seq_cst))
			stopped = t;
	}
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (!t->park_depth ||
		    atomic_load_explicit(&t->state, memory_order_relaxed) != CH__RUNNING)
			continue;
		if (stopped)
			ch__thread_set_state(t, CH__SIGNALLED, memory_order_release, __func__);
		(void)ch__park_close(t);
	}
	return stopped;
}

/* Publishes each record that runs, from this one on, and waits with all of them published: a thread
 * that waits for one heap stands still to the others too (I9). A frame for each keeps what the
 * signal may have come upon, of a thread that collects. */
static void stop_from(struct ch__thread *thread, const void *ucontext)
{
	while (thread && atomic_load_explicit(&thread->state, memory_order_relaxed) != CH__RUNNING)
		thread = thread->next_of_thread;
	if (!thread) {
		struct ch__thread *stopped;
		while ((stopped = run_signalled()))
			ch__os_futex_wait(&stopped->heap->stopping, 1, 0);
		return;
	}
	struct ch__shown before = thread->shown;
	ch__thread_publish_context(thread, ucontext);
	/* Release: pairs with the load in running. */
	ch__thread_set_state(thread, CH__SIGNALLED, memory_order_release, __func__);
	stop_from(thread->next_of_thread, ucontext);
	thread->shown = before;
	ch__thread_serialize(thread);
}

/* Whether a heap of this thread that uses the signal wants it to stand still. Who runs with a park
 * open is on its way into it or out: a cycle may have seen it parked and be reading what it
 * published, and before it goes on it looks at stopping itself. */
static bool is_wanted(int signal)
{
	bool is_wanted = false;
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (atomic_load_explicit(&t->state, memory_order_relaxed) != CH__RUNNING)
			continue;
		if (t->park_depth)
			return false;
		if (t->heap->config.stop_signal == signal &&
		    atomic_load_explicit(&t->heap->stopping, memory_order_acquire))
			is_wanted = true;
	}
	return is_wanted;
}

/* A signal of ours may come when nobody wants it any more: after the stop, the detachment of its
 * thread, the end of its heap. So it ends here in any thread, and the handler stays for good. All
 * others are the program's, or another copy's of the library. Of one that does not say who sent it
 * both may be true: a handler of the program's gets it when no stop wants it, but it ends no
 * process. */
static void handle_stop(int signal, void *info, void *ucontext)
{
	int saved_errno = errno;
	struct ch__os_action *previous = &previous_action[signal];
	enum ch__os_sender sender = ch__os_signal_sender(info, &tag);
	if (sender != CH__OS_SENDER_OTHER && is_wanted(signal))
		stop_from(ch__thread_list, ucontext);
	else if (sender == CH__OS_SENDER_OTHER ||
		 (sender == CH__OS_SENDER_UNKNOWN && ch__os_signal_is_handled(previous)))
		ch__os_signal_chain(signal, info, ucontext, previous, false);
	errno = saved_errno;
}

bool ch__world_install_signal(int signal)
{
	if (signal <= 0 || signal >= SIGNALS)
		return false;
	uint32_t seen = ABSENT;
	/* Who comes second may send the signal when it returns. */
	while (!atomic_compare_exchange_strong(&handler_is[signal], &seen, IN_WORK)) {
		if (seen == INSTALLED)
			return true;
		ch__os_futex_wait(&handler_is[signal], IN_WORK, 1000000);
		seen = ABSENT;
	}
	bool done =
		ch__os_signal_install(signal, handle_stop, &previous_action[signal], CH__OS_PLAIN);
	atomic_store(&handler_is[signal], done ? INSTALLED : ABSENT);
	ch__os_futex_wake(&handler_is[signal]);
	return done;
}

bool ch__world_signal(const struct ch__thread *thread)
{
	return ch__os_thread_signal(thread->thread_id, thread->heap->config.stop_signal, &tag);
}

/* Signals each running thread, if asked to. Returns one that runs, NULL when all are stopped. */
static const struct ch__thread *running(struct ch_heap *heap, bool signal)
{
	const struct ch__thread *found = NULL;
	struct ch__thread *self = ch__thread_self(heap);
	for (struct ch__thread *t = heap->threads; t; t = t->next) {
		if (t == self || !t->is_attached)
			continue;
		/* seq_cst: see ch_thread_unpark. */
		if (atomic_load_explicit(&t->state, memory_order_seq_cst) != CH__RUNNING)
			continue;
		found = t;
		if (signal)
			ch__world_signal(t);
	}
	return found;
}

/* A collection that nobody asked for waits for a part of stop_wait_ms only. A HOST heap that stops
 * its threads itself is never here: the remedy is one for each that is. */
static void because_running(const struct ch__thread *thread, uint64_t waited_ns)
{
	const struct ch_config *config = &thread->heap->config;
	uint64_t waited_ms = waited_ns / 1000000;
	if (waited_ms > config->stop_wait_ms / 2)
		waited_ms = config->stop_wait_ms;
	bool would_take_one = !config->stop_signal && !ch__thread_is_gone(thread);
	(void)ch__because(CH_E_BUSY, "thread %d%s did not stop in %lu ms: %s%s", thread->thread_id,
			  ch__thread_how(thread), waited_ms,
			  config->stop_signal ? "it takes no stop_signal"
					      : "it neither polled nor parked",
			  would_take_one ? "; ch_config.stop_signal stops such threads" : "");
}

bool ch__world_stop(struct ch_heap *heap, uint64_t until_ns) CH_UNANALYSED("it makes the role")
{
	/* seq_cst: pairs with ch_thread_unpark. */
	atomic_store_explicit(&heap->stopping, 1, memory_order_seq_cst);
	ch__poll_want(heap);
	uint64_t start = ch__os_now_ns();
	_Atomic(uint32_t) never = 0;
	uint64_t next_signal = start;
	const struct ch__thread *thread;
	for (;;) {
		uint64_t now = ch__os_now_ns();
		/* A signal may be lost to a thread that is just leaving its handler: sent again
		 * each millisecond. */
		bool signal = heap->config.stop_signal && now >= next_signal;
		if (!(thread = running(heap, signal)))
			return true;
		if (signal)
			next_signal = now + 1000000;
		if (now > until_ns)
			break;
		if (now - start > 20000)
			ch__os_futex_wait(&never, 0, 20000);
		else
			ch__arch_pause();
	}
	because_running(thread, until_ns - start);
	ch__world_resume(heap);
	return false;
}

void ch__world_resume(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	atomic_store_explicit(&heap->stopping, 0, memory_order_seq_cst);
	ch__os_futex_wake(&heap->stopping);
}

bool ch__world_lock(struct ch_heap *heap, uint64_t until_ns)
	CH_UNANALYSED("it makes the roles")
{
	if (!ch__lock_parking_until(&heap->registry, CH__RANK_REGISTRY, until_ns))
		return false;
	if (ch__heap_lock_until(heap, until_ns))
		return true;
	ch__registry_unlock(heap);
	return false;
}

void ch__world_unlock(struct ch_heap *heap)
{
	ch__heap_unlock(heap);
	ch__registry_unlock(heap);
}
