/* SPDX-License-Identifier: MIT
 * lock.c: waiting for a lock: some spins, then sleep. */
#include "os/lock.h"

#include "arch/arch.h"
#include "os/os.h"

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

/* The holder stores `word` and then looks at is_awaited, without a fence. So the sleeper stores
 * is_awaited, has every thread pass a fence, and then looks at `word`: either it finds the lock
 * free, or the holder's look comes behind the fence and sees that it sleeps. Where membarrier is
 * refused the sleeper looks again after a nap. Who gives up leaves is_awaited set: the next holder
 * wakes nobody, once. */
bool ch__lock_sleep(struct ch__lock *lock, uint64_t until_ns)
{
	enum { NAP_NS = 1000000 };
	while (!ch__lock_seize(lock)) {
		atomic_store_explicit(&lock->is_awaited, 1, memory_order_seq_cst);
		uint64_t limit = ch__os_membarrier_fence() ? 0 : NAP_NS;
		if (ch__lock_seize(lock))
			break;
		uint64_t now = until_ns ? ch__os_now_ns() : 0;
		if (until_ns && now >= until_ns)
			return false;
		if (until_ns && (!limit || until_ns - now < limit))
			limit = until_ns - now;
		ch__os_futex_wait(&lock->is_awaited, 1, limit);
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
	/* All wake, and who finds the lock taken again says again that it sleeps. The store comes
	 * first: who is about to sleep finds another value than 1, and looks again. */
	atomic_store_explicit(&lock->is_awaited, 0, memory_order_seq_cst);
	ch__os_futex_wake(&lock->is_awaited);
}

bool ch__lock_set_free(struct ch__lock *lock)
{
	atomic_store(&lock->is_awaited, 0);
	return atomic_exchange(&lock->word, CH__LOCK_FREE) != CH__LOCK_FREE;
}
