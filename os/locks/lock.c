/* SPDX-License-Identifier: MIT
 * lock.c: waiting for a lock: a while of looks at the word, then some tries, then sleep. */
#include "os/locks/lock.h"

#include "os/os.h"

enum { SPINS = 64, LINGERS = 2048 };

bool ch__lock_spin(struct ch__lock *lock)
{
	for (int spins = 0; spins < SPINS; spins++) {
		if (ch__lock_seize(lock))
			return true;
		ch__arch_pause();
	}
	return false;
}

/* At most as long as a sleep and its wake take, some 50 us: a holder that runs lets go before. Only
 * reads, and so takes no line of the cache from the holder. */
static void linger(const struct ch__lock *lock)
{
	for (int spins = 0; spins < LINGERS && !ch__lock_is_free(lock); spins++)
		ch__arch_pause();
}

/* A thread that gives up leaves the word AWAITED: the holder then wakes nobody, once. */
bool ch__lock_sleep(struct ch__lock *lock, uint64_t until_ns)
{
	if (CH_UNLIKELY(ch__lock_is_mine(lock))) {
		if (until_ns)
			return false;
		ch__panic("a lock is wanted by the thread that holds it: " CH__MISPLACED_CALL);
	}
	linger(lock);
	if (ch__lock_spin(lock))
		return true;
	while (atomic_exchange_explicit(&lock->word, CH__LOCK_AWAITED, memory_order_acquire) !=
	       CH__LOCK_FREE) {
		uint64_t now = until_ns ? ch__os_now_ns() : 0;
		if (until_ns && now >= until_ns)
			return false;
		ch__os_futex_wait(&lock->word, CH__LOCK_AWAITED, until_ns ? until_ns - now : 0);
		linger(lock);
	}
	return true;
}

bool ch__lock_set_free(struct ch__lock *lock)
{
	/* A new thread may get the memory, and so the value, of the thread that is gone. */
	CH_STORE_RELAXED(&lock->holder, 0);
	return atomic_exchange(&lock->word, CH__LOCK_FREE) != CH__LOCK_FREE;
}
