/* SPDX-License-Identifier: MIT
 * os_failing.c: the gate to the OS as tests have it: a chosen call fails, or the system is believed
 * to be another (os/os.h). Linked with the objects of os/ that tests link. */
#include "os/locks/lock.h"
#include "os/os.h"

#include <errno.h>
#include <stdatomic.h>

static _Atomic(uint64_t) fail_nth, calls;
static _Atomic(bool) fail_later;
static _Atomic(int) fail_error;

void ch__os_fail_as(uint64_t nth, bool every_later_one, int error)
{
	atomic_store(&fail_nth, 0);
	atomic_store(&calls, 0);
	atomic_store(&fail_later, every_later_one);
	atomic_store(&fail_error, error);
	atomic_store(&fail_nth, nth);
}

void ch__os_fail_at(uint64_t nth, bool every_later_one)
{
	ch__os_fail_as(nth, every_later_one, ENOMEM);
}

uint64_t ch__os_failable_calls(void)
{
	return atomic_load(&calls);
}

bool ch__os_may_fail(void)
{
	uint64_t nth = atomic_load_explicit(&fail_nth, memory_order_relaxed);
	if (CH_LIKELY(nth == 0))
		return false;
	uint64_t call = atomic_fetch_add(&calls, 1) + 1;
	if (call != nth && !(call > nth && atomic_load(&fail_later)))
		return false;
	errno = atomic_load(&fail_error);
	return !ch__os_note(false, "a call that a test fails");
}

struct ch__os_pretence ch__os_pretended;

uintptr_t ch__lock_self(void)
{
	return ch__arch_thread_pointer();
}
