/* SPDX-License-Identifier: MIT
 * lock.c: waiting for a lock: some spins, then sleep. */
#include "os/lock.h"

#include "arch/arch.h"
#include "os/os.h"
#include "os/threads.h"

enum { SPINS = 64 };

__attribute__((noinline)) uintptr_t ch__lock_self(void)
{
	static _Thread_local char here;
	return (uintptr_t)&here;
}

bool ch__lock_spin(struct ch__lock *lock)
{
	for (int spins = 0; spins < SPINS; spins++) {
		if (ch__lock_seize(lock))
			return true;
		ch__arch_pause();
	}
	return false;
}

/* Who gives up leaves the word AWAITED: the holder wakes nobody, once. */
bool ch__lock_sleep(struct ch__lock *lock, uint64_t until_ns)
{
	while (atomic_exchange_explicit(&lock->word, CH__LOCK_AWAITED, memory_order_acquire) !=
	       CH__LOCK_FREE) {
		uint64_t now = until_ns ? ch__os_now_ns() : 0;
		if (until_ns && now >= until_ns)
			return false;
		ch__os_futex_wait(&lock->word, CH__LOCK_AWAITED, until_ns ? until_ns - now : 0);
	}
	return true;
}

void ch__lock_wait(struct ch__lock *lock)
{
	if (!ch__lock_spin(lock))
		(void)ch__lock_sleep(lock, 0);
}

void ch__lock_wake(struct ch__lock *lock)
{
	ch__os_futex_wake(&lock->word);
}

bool ch__lock_set_free(struct ch__lock *lock)
{
	return atomic_exchange(&lock->word, CH__LOCK_FREE) != CH__LOCK_FREE;
}
