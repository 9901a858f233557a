/* SPDX-License-Identifier: MIT
 * lock.h: a lock of one word that sleeps in the kernel when it must wait. Unlike a pthread mutex it
 * can be set free in the child of a fork, whatever state another thread left it in. Its rank is
 * its taker's to say (os/ranks.h). */
#ifndef CH_OS_LOCK_H
#define CH_OS_LOCK_H

#include "os/os.h"

#include <stdatomic.h>

enum { CH__LOCK_FREE, CH__LOCK_TAKEN, CH__LOCK_AWAITED };

struct CH_CAPABILITY("lock") ch__lock {
	_Atomic(uint32_t) state;
};

static inline bool ch__lock_try(struct ch__lock *lock)
	CH_TRY_ACQUIRES(true, lock) CH_UNANALYSED("it makes the lock")
{
	uint32_t seen = CH__LOCK_FREE;
	return atomic_compare_exchange_strong_explicit(&lock->state, &seen, CH__LOCK_TAKEN,
						       memory_order_acquire, memory_order_relaxed);
}

static inline void ch__lock_take(struct ch__lock *lock)
	CH_ACQUIRES(lock) CH_UNANALYSED("it makes the lock")
{
	if (CH_LIKELY(ch__lock_try(lock)))
		return;
	while (atomic_exchange_explicit(&lock->state, CH__LOCK_AWAITED, memory_order_acquire) !=
	       CH__LOCK_FREE)
		ch__os_futex_wait(&lock->state, CH__LOCK_AWAITED, 0);
}

static inline void ch__lock_release(struct ch__lock *lock)
	CH_RELEASES(lock) CH_UNANALYSED("it makes the lock")
{
	if (atomic_exchange_explicit(&lock->state, CH__LOCK_FREE, memory_order_release) ==
	    CH__LOCK_AWAITED)
		ch__os_futex_wake(&lock->state);
}

#endif
