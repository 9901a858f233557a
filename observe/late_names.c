/* SPDX-License-Identifier: MIT
 * late_names.c: writes the names that a storm of commits left waiting, some ms later, even if the
 * program calls nothing more. The core has no thread, and would write the names at its next call.
 * The thread starts when names wait for the first time, and sleeps without a timeout while none
 * wait. If the process gets no thread, the next call writes. No lock. */
#include "observe/late_names.h"

#include "codeheap/guest_look.h"
#include "codeheap/listener.h"
#include "observe/core.h"
#include "observe/system.h"

enum { WRITE_AFTER_NS = 5000000, EXIT_WAIT_NS = 2000000000 };

enum wish { WISH_NONE, WISH_WRITE, WISH_END };

static struct {
	struct ch__os_thread thread; /* of the thread that exchanged has_thread */
	/* enum wish, futex. Release pairs with the thread's acquire. */
	_Atomic(uint32_t) wish;
	_Atomic(uint32_t) has_thread; /* 1 also when no thread could start; then the wish stays */
} late;

static bool change_wish(uint32_t from, enum wish to)
{
	return atomic_compare_exchange_strong(&late.wish, &from, to);
}

/* Takes the wish back before writing, so that names of a later commit can wish again. */
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
	if (CH_LOAD_RELAXED(&late.wish) != WISH_NONE || !change_wish(WISH_NONE, WISH_WRITE))
		return;
	if (CH_LOAD_RELAXED(&late.has_thread) || atomic_exchange(&late.has_thread, 1))
		ch__os_futex_wake(&late.wish);
	else
		(void)ch__os_thread_start(&late.thread, write_late, NULL);
}

/* In a child of fork: the thread is the parent's. */
static void forget_thread(void)
{
	bool may_start = ch__os_child_may_start_threads();
	atomic_store(&late.thread.process, 0);
	atomic_store(&late.has_thread, !may_start);
	atomic_store(&late.wish, may_start ? WISH_NONE : WISH_WRITE);
}

/* Waits for a bounded time: the thread may be stuck in a write to a file that does not answer. */
__attribute__((destructor)) static void end_at_exit(void)
{
	ch__os_thread_tell(&late.wish, WISH_END);
	(void)ch__os_thread_join(&late.thread, ch__os_now_ns() + EXIT_WAIT_NS);
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
