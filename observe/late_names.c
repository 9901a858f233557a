/* SPDX-License-Identifier: MIT
 * late_names.c: names that a storm of commits left waiting are written some ms later, though the
 * program calls nothing more: the core has no thread, and would write them at its next call. The
 * thread starts when names wait for the first time, and sleeps without a timeout while none do.
 * Where the process gets none, the next call writes. No lock. */
#include "observe/late_names.h"

#include "codeheap/guest_look.h"
#include "codeheap/listener.h"
#include "observe/core.h"
#include "observe/system.h"

enum { WRITE_AFTER_NS = 5000000, EXIT_WAIT_NS = 2000000000 };

enum wish { WISH_NONE, WISH_WRITE, WISH_END };

static struct {
	struct ch__os_thread thread; /* of who exchanged has_thread, as the next */
	int process;
	/* enum wish, futex. Release pairs with the thread's acquire. */
	_Atomic(uint32_t) wish;
	_Atomic(uint32_t) has_thread; /* or was refused one, and then the wish stays */
	_Atomic(uint32_t) is_started; /* release after the start, acquire by who ends it */
} late;

static bool change_wish(uint32_t from, enum wish to)
{
	return atomic_compare_exchange_strong(&late.wish, &from, to);
}

/* The wish is taken back before the question: names that come later wish anew. */
static void write_late(void *arg)
{
	(void)arg;
	uint32_t wish;
	while ((wish = atomic_load_explicit(&late.wish, memory_order_acquire)) != WISH_END) {
		ch__os_futex_wait(&late.wish, wish,
				  wish == WISH_NONE ? 0 : WRITE_AFTER_NS);
		if (wish == WISH_WRITE && change_wish(WISH_WRITE, WISH_NONE) &&
		    !ch__look_write_names())
			(void)change_wish(WISH_NONE, WISH_WRITE);
	}
}

static void names_wait(void)
{
	if (atomic_load_explicit(&late.wish, memory_order_relaxed) != WISH_NONE ||
	    !change_wish(WISH_NONE, WISH_WRITE))
		return;
	if (atomic_load_explicit(&late.has_thread, memory_order_relaxed) ||
	    atomic_exchange(&late.has_thread, 1))
		ch__os_futex_wake(&late.wish);
	else if (ch__os_thread_start(&late.thread, write_late, NULL)) {
		late.process = ch__os_process_id();
		atomic_store_explicit(&late.is_started, 1, memory_order_release);
	}
}

/* The thread is the parent's. */
static void forget_thread(void)
{
	bool may_start = ch__os_child_may_start_threads();
	atomic_store(&late.is_started, 0);
	atomic_store(&late.has_thread, !may_start);
	atomic_store(&late.wish, may_start ? WISH_NONE : WISH_WRITE);
}

/* A file that does not answer keeps nobody for ever. A child that ran no handler of fork has no
 * such thread. */
__attribute__((destructor)) static void end_at_exit(void)
{
	if (ch__core_is_ours())
		ch__listener_on_names(NULL);
	if (!atomic_load_explicit(&late.is_started, memory_order_acquire) ||
	    late.process != ch__os_process_id())
		return;
	atomic_store_explicit(&late.wish, WISH_END, memory_order_release);
	ch__os_futex_wake(&late.wish);
	if (ch__os_thread_ends(&late.thread, ch__os_now_ns() + EXIT_WAIT_NS))
		ch__os_thread_join(&late.thread);
}

void ch__late_names_come(void)
{
	if (ch__core_is_ours() && ch__os_atfork(NULL, NULL, forget_thread))
		ch__listener_on_names(names_wait);
}

__attribute__((constructor)) static void come(void)
{
	ch__late_names_come();
}
