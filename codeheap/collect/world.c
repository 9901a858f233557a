/* SPDX-License-Identifier: MIT
 * world.c: stops the world of a heap, a built-in one or a host's with stops_world, by polls, parks
 * and a signal, whose handler is signal-safe. Under registry and heap, after the freeze, so that no
 * thread is stopped inside a region (I1). The wait is bounded (I10). */
#include "codeheap/collect/collect.h"

enum { SIGNALS = 65 }; /* 1 to 64 */
static struct ch__os_action previous_action[SIGNALS];
static bool is_installed[SIGNALS] CH_GUARDED_BY(ch__heaps_lock);
/* The address tags the signals of this copy of the library; a process may have several copies. */
static const char tag;

/* Lets all records run that the handler stopped, or none. Returns NULL, or a record of a stopped
 * heap. A park is open meanwhile, against another heap's signal. */
static struct ch__thread *run_signalled(void)
{
	struct ch__thread *stopped = NULL;
	for (struct ch__thread *t = ch__thread_list; t && !stopped; t = t->next_of_thread) {
		if (CH_LOAD_RELAXED(&t->state) != CH__SIGNALLED)
			continue;
		(void)ch__park_open(t);
		ch__thread_set_state(t, CH__RUNNING, memory_order_seq_cst, __func__);
		if (atomic_load_explicit(&t->heap->stopping, memory_order_seq_cst))
			stopped = t;
	}
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (!t->park_depth || CH_LOAD_RELAXED(&t->state) != CH__RUNNING)
			continue;
		if (stopped)
			ch__thread_set_state(t, CH__SIGNALLED, memory_order_release, __func__);
		(void)ch__park_close(t);
	}
	return stopped;
}

/* Publishes each running record, from the given one on, and waits when all are published: a thread
 * that waits for a heap stands still to all heaps (I9). Each frame keeps the published words of a
 * record, since the signal may interrupt a thread in a collection. */
static void stop_from(struct ch__thread *thread, const void *ucontext)
{
	while (thread && CH_LOAD_RELAXED(&thread->state) != CH__RUNNING)
		thread = thread->next_of_thread;
	if (!thread) {
		struct ch__thread *stopped;
		while ((stopped = run_signalled()))
			ch__os_futex_wait(&stopped->heap->stopping, 1, 0);
		return;
	}
	struct ch__shown before = thread->shown;
	ch__thread_publish_context(thread, ucontext);
	ch__thread_set_state(thread, CH__SIGNALLED, memory_order_release, __func__);
	stop_from(thread->next_of_thread, ucontext);
	thread->shown = before;
	ch__thread_serialize(thread);
}

/* Whether a heap of the calling thread uses the signal and wants a stop. A running record with an
 * open park is on the way into the park or out: a cycle may have seen PARKED and be reading the
 * published words. The thread looks at stopping before it goes on. */
static bool is_wanted(int signal)
{
	bool is_wanted = false;
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (CH_LOAD_RELAXED(&t->state) != CH__RUNNING)
			continue;
		if (t->park_depth)
			return false;
		if (t->heap->config.stop_signal == signal &&
		    atomic_load_explicit(&t->heap->stopping, memory_order_acquire))
			is_wanted = true;
	}
	return is_wanted;
}

/* A signal of the library may come late: after the stop, after the thread's detachment, after the
 * heap's end. So it ends here in any thread, and the handler stays for good. All other signals are
 * the program's, or another copy's of the library. A signal without a sender may be either: when no
 * stop wants the signal, a handler of the program's gets it, but no process ends by it. */
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
	is_installed[signal] =
		is_installed[signal] ||
		ch__os_signal_install(signal, handle_stop, &previous_action[signal], CH__OS_PLAIN);
	return is_installed[signal];
}

bool ch__world_signal(const struct ch__thread *thread)
{
	return ch__os_thread_signal(thread->thread_id, thread->heap->config.stop_signal, &tag);
}

/* Signals each running thread, if asked to. Returns a running thread; NULL: all are stopped. */
static const struct ch__thread *running(struct ch_heap *heap, bool signal)
{
	const struct ch__thread *found = NULL;
	struct ch__thread *self = ch__thread_self(heap);
	for (struct ch__thread *t = heap->threads; t; t = t->next) {
		if (t == self || !t->is_attached)
			continue;
		if (atomic_load_explicit(&t->state, memory_order_seq_cst) != CH__RUNNING)
			continue;
		found = t;
		if (signal)
			ch__world_signal(t);
	}
	return found;
}

const char *ch__world_reason(const struct ch_config *config, bool is_gone)
{
	return config->stop_signal ? "it blocks stop_signal, another handler took the signal, or "
				     "it had no processor"
	       : is_gone	   ? "it neither polled nor parked"
				   : "it neither polled nor parked; ch_config.stop_signal stops "
				     "such threads";
}

bool ch__world_stop(struct ch_heap *heap, uint64_t until_ns) CH_UNANALYSED("it makes the role")
{
	atomic_store_explicit(&heap->stopping, 1, memory_order_seq_cst);
	ch__poll_want(heap);
	uint64_t start = ch__os_now_ns();
	_Atomic(uint32_t) never = 0;
	uint64_t next_signal = start;
	const struct ch__thread *thread;
	for (;;) {
		uint64_t now = ch__os_now_ns();
		/* Each millisecond: a thread that leaves the handler may lose the signal. */
		bool signal = heap->config.stop_signal && now >= next_signal;
		if (!(thread = running(heap, signal)))
			break;
		if (signal)
			next_signal = now + 1000000;
		if (now > until_ns)
			break;
		if (now - start > 20000)
			ch__os_futex_wait(&never, 0, 20000);
		else
			ch__arch_pause();
	}
	CH_STORE_RELAXED(&heap->held_up_by, thread ? thread->thread_id : 0);
	if (!thread)
		return true;
	/* Before the sentence, as in ch__freeze_until. */
	ch__world_resume(heap);
	ch__unfreeze(heap);
	(void)ch__because(CH_E_BUSY, "thread %d%s did not stop in time: %s", thread->thread_id,
			  ch__thread_how(thread),
			  ch__world_reason(&heap->config,
					   ch__os_thread_is_gone(thread->thread_id)));
	return false;
}

void ch__world_resume(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	atomic_store_explicit(&heap->stopping, 0, memory_order_seq_cst);
	ch__os_futex_wake(&heap->stopping);
}

bool ch__world_lock(struct ch_heap *heap, uint64_t until_ns) CH_UNANALYSED("it makes the roles")
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
