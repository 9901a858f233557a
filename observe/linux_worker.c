/* SPDX-License-Identifier: MIT
 * linux_worker.c: the library's own threads, started on request only. The C library makes the
 * threads, so their code may call the C library. Not async-signal-safe. No lock of the library. */
#define _GNU_SOURCE
#include "observe/system.h"
#include "os/linux.h"

#include <errno.h>
#include <signal.h>

/* The threads merge samples and write files. The thread-local data of all loaded libraries lies on
 * the stack, too. */
enum { STACK_BYTES = 256 << 10 };

void ch__os_thread_tell(_Atomic(uint32_t) *word, uint32_t value)
{
	atomic_store_explicit(word, value, memory_order_release);
	ch__os_futex_wake(word);
}

static void *run(void *arg)
{
	struct ch__os_thread *thread = arg;
	pthread_setname_np(pthread_self(), "codeheap");
	thread->run(thread->arg);
	ch__os_thread_tell(&thread->is_done, 1);
	return NULL;
}

/* EINVAL: the thread-local data leave no room on a small stack; use one of the default size. */
static int create(struct ch__os_thread *thread)
{
	pthread_attr_t attributes;
	int error = pthread_attr_init(&attributes);
	if (error)
		return error;
	error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (!error)
		error = pthread_create(&thread->system, &attributes, run, thread);
	pthread_attr_destroy(&attributes);
	return error == EINVAL ? pthread_create(&thread->system, NULL, run, thread) : error;
}

/* Blocks all signals for the creation: a thread begins with the mask of its maker. */
bool ch__os_thread_start(struct ch__os_thread *thread, void (*fn)(void *arg), void *arg)
{
	sigset_t all, before;
	thread->run = fn;
	thread->arg = arg;
	CH_STORE_RELAXED(&thread->is_done, 0);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int error = create(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error)
		errno = error;
	else
		atomic_store_explicit(&thread->process, ch__os_process_id(), memory_order_release);
	return error == 0;
}

extern void __tsan_init(void) __attribute__((weak)); /* the process has ThreadSanitizer */

bool ch__os_child_may_start_threads(void)
{
	return __tsan_init == NULL;
}

int ch__os_cancel_hold(void)
{
	return ch__cancel_hold();
}

void ch__os_cancel_allow(int before)
{
	ch__cancel_allow(before);
}

static void join(struct ch__os_thread *thread)
{
	int cancel = ch__cancel_hold();
	pthread_join(thread->system, NULL);
	ch__cancel_allow(cancel);
}

bool ch__os_thread_join(struct ch__os_thread *thread, uint64_t until_ns)
{
	enum { NS_PER_MS = 1000000 };
	if (atomic_load_explicit(&thread->process, memory_order_acquire) != ch__os_process_id())
		return true;
	while (!atomic_load_explicit(&thread->is_done, memory_order_acquire)) {
		if (ch__os_now_ns() >= until_ns)
			return false;
		ch__os_futex_wait(&thread->is_done, 0, NS_PER_MS);
	}
	if (atomic_exchange(&thread->process, 0))
		join(thread);
	return true;
}
