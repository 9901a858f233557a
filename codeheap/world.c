/* SPDX-License-Identifier: MIT
 * world.c: stopping the world of a built-in heap: polls and parks, the VM's own way, and a
 * signal. Under registry and heap, after the freeze, so that no thread is stopped inside a region
 * (I1). The wait is bounded (I10).
 *
 * The handler is signal-safe: it publishes the interrupted registers in the thread's record and
 * waits on a futex. */
#include "codeheap/block.h"

#include <errno.h>

static struct sigaction_bytes {
	_Alignas(16) unsigned char bytes[256];
} previous_action[65];
static _Atomic(bool) is_installed[65];

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
		if (stopped && (t == stopped || !CH_MUTANT(CH__MUTANT_UNPARKED_ONE_BY_ONE)))
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
	while (thread &&
	       (atomic_load_explicit(&thread->state, memory_order_relaxed) != CH__RUNNING ||
		(CH_MUTANT(CH__MUTANT_UNPARKED_ONE_BY_ONE) &&
		 !atomic_load(&thread->heap->stopping))))
		thread = thread->next_of_thread;
	if (!thread) {
		struct ch__thread *stopped;
		while ((stopped = run_signalled()))
			ch__os_futex_wait(&stopped->heap->stopping, 1, 0);
		return;
	}
	uintptr_t words[CH_ARCH_CONTEXT_WORDS], sp = thread->sp;
	uintptr_t signal_stack_end = thread->signal_stack_end;
	uint32_t words_count = thread->words_count;
	memcpy(words, thread->words, sizeof words);
	ch__arch_context_words(ucontext, thread->words);
	thread->words_count = CH_ARCH_CONTEXT_WORDS;
	ch__thread_publish_sp(thread, ch__arch_context_sp(ucontext));
	/* Release: pairs with the acquire in all_stopped. */
	ch__thread_set_state(thread, CH__SIGNALLED, memory_order_release, __func__);
	stop_from(thread->next_of_thread, ucontext);
	memcpy(thread->words, words, sizeof words);
	thread->words_count = words_count;
	thread->sp = sp;
	thread->signal_stack_end = signal_stack_end;
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
		if (t->park_depth && !CH_MUTANT(CH__MUTANT_STOPPED_IN_AN_UNPARK))
			return false;
		if (t->heap->config.stop_signal == signal &&
		    atomic_load_explicit(&t->heap->stopping, memory_order_acquire))
			is_wanted = true;
	}
	return is_wanted;
}

static void handle_stop(int signal, void *info, void *ucontext)
{
	int saved_errno = errno;
	bool was_ours = is_wanted(signal);
	if (was_ours)
		stop_from(ch__thread_list, ucontext);
	/* A signal that came after the world went on again is still ours when it has no sender's
	 * business here; only one that nobody of the library sent is passed on. */
	if (!was_ours && !ch__thread_list)
		ch__os_signal_chain(signal, info, ucontext, previous_action[signal].bytes);
	errno = saved_errno;
}

bool ch__world_install_signal(int signal)
{
	if (signal <= 0 || signal > 64)
		return false;
	if (atomic_exchange(&is_installed[signal], true))
		return true;
	if (ch__os_signal_install(signal, handle_stop, previous_action[signal].bytes,
				  sizeof previous_action[signal].bytes))
		return true;
	atomic_store(&is_installed[signal], false);
	return false;
}

/* Signals the first time each running thread; true when all are stopped. */
static bool all_stopped(struct ch_heap *heap, bool signal)
{
	bool all = true;
	struct ch__thread *self = ch__thread_self(heap);
	for (struct ch__thread *t = heap->threads; t; t = t->next) {
		if (t == self || !t->is_attached)
			continue;
		/* seq_cst: see ch_thread_unpark. */
		if (atomic_load_explicit(&t->state, memory_order_seq_cst) != CH__RUNNING)
			continue;
		all = false;
		if (signal)
			ch__os_thread_signal(t->thread_id, heap->config.stop_signal);
	}
	return all;
}

static bool vms_stopped(struct ch_heap *heap)
{
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next) {
		if (!vm->is_attached || !vm->ops.stop_world || vm->ops.stop_world(vm->user))
			continue;
		for (struct ch_vm *undo = heap->vms; undo != vm; undo = undo->next)
			if (undo->is_attached && undo->ops.resume_world &&
			    !CH_MUTANT(CH__MUTANT_REFUSED_NOT_UNDONE))
				undo->ops.resume_world(undo->user);
		return false;
	}
	return true;
}

bool ch__world_stop(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	/* seq_cst: pairs with ch_thread_unpark. */
	atomic_store_explicit(&heap->stopping, 1, memory_order_seq_cst);
	if (!vms_stopped(heap)) {
		atomic_store(&heap->stopping, CH_MUTANT(CH__MUTANT_REFUSED_STAYS_STOPPED));
		ch__os_futex_wake(&heap->stopping);
		return false;
	}
	uint64_t start = ch__os_now_ns();
	uint64_t limit = (uint64_t)heap->config.stop_wait_ms * 1000000;
	_Atomic(uint32_t) never = 0;
	uint64_t next_signal = start;
	for (;;) {
		uint64_t now = ch__os_now_ns();
		/* A signal may be lost to a thread that is just leaving its handler: sent again
		 * each millisecond. */
		bool signal = heap->config.stop_signal && now >= next_signal;
		if (all_stopped(heap, signal))
			return true;
		if (signal)
			next_signal = now + 1000000;
		if (now - start > limit && !CH_MUTANT(CH__MUTANT_WAITS_FOR_EVER))
			break;
		if (CH_MUTANT(CH__MUTANT_WAITS_NOT_AT_ALL))
			break;
		if (now - start > 20000)
			ch__os_futex_wait(&never, 0, 20000);
		else
			ch__arch_pause();
	}
	ch__world_resume(heap);
	return false;
}

void ch__world_resume(struct ch_heap *heap) CH_UNANALYSED("it makes the role")
{
	atomic_store_explicit(&heap->stopping, 0, memory_order_seq_cst);
	ch__os_futex_wake(&heap->stopping);
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		if (vm->is_attached && vm->ops.resume_world)
			vm->ops.resume_world(vm->user);
}
