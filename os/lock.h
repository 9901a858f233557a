/* SPDX-License-Identifier: MIT
 * lock.h: the lock of the library: a word that is waited for asleep in the kernel. Unlike a pthread
 * mutex it can be set free in the child of a fork, whatever state another thread left it in.
 *
 * Whoever takes it says its rank, which checked builds watch (os/ranks.h). ch__lock_take is for
 * locks that are held for a bounded time. Where the holder may wait for the thread that wants the
 * lock, that thread parks first: ch__lock_parking (codeheap/) does, by the two parts of a wait. */
#ifndef CH_OS_LOCK_H
#define CH_OS_LOCK_H

#include "arch/arch.h"
#include "os/ranks.h"

#include <stdatomic.h>

enum { CH__LOCK_FREE, CH__LOCK_TAKEN, CH__LOCK_AWAITED };

struct CH_CAPABILITY("lock") ch__lock {
	_Atomic(uint32_t) word; /* release of who lets it go pairs with acquire of who takes it */
	/* ch__lock_self of who has it, or 0; relaxed. A thread finds its own value there while it
	 * has the lock, and at no other time: it stores 0 before it lets the lock go. */
	_Atomic(uintptr_t) holder;
};

/* Another value in each thread that lives; not kept over a callback, which may leave its stack to
 * another thread (I14). */
#if CH_TESTING
uintptr_t ch__lock_self(void); /* a function for tests/orders/, whose threads share a pointer */
#else
static inline uintptr_t ch__lock_self(void)
{
	return ch__arch_thread_pointer();
}
#endif

/* Moves of states ask it in checked builds (I20), and who is about to wait in all of them. */
static inline bool ch__lock_is_mine(const struct ch__lock *lock)
{
	return atomic_load_explicit(&lock->holder, memory_order_relaxed) == ch__lock_self();
}
static inline void ch__lock_note(struct ch__lock *lock, enum ch__rank rank, bool is_taken)
{
	atomic_store_explicit(&lock->holder, is_taken ? ch__lock_self() : 0, memory_order_relaxed);
	ch__rank_note(rank, is_taken);
}

/* --- the parts: they take the word and let it go, and note nothing --- */
static inline bool ch__lock_seize(struct ch__lock *lock)
{
	uint32_t seen = CH__LOCK_FREE;
	return atomic_compare_exchange_strong_explicit(&lock->word, &seen, CH__LOCK_TAKEN,
						       memory_order_acquire, memory_order_relaxed);
}
/* Tries for some instructions. */
bool ch__lock_spin(struct ch__lock *);
/* Sleeps. False: the lock was not free before until_ns, where that is not 0. A thread that has the
 * lock itself would sleep for ever: false at once, or a panic where it has no limit. */
bool ch__lock_sleep(struct ch__lock *, uint64_t until_ns) CH_EXCLUDES(CH__STANDING);

void ch__lock_wake(struct ch__lock *) CH_COLD;
/* One access: once it is free the lock may go, with its heap. */
static inline void ch__lock_let_go(struct ch__lock *lock)
{
	if (CH_UNLIKELY(atomic_exchange_explicit(&lock->word, CH__LOCK_FREE,
						 memory_order_release) == CH__LOCK_AWAITED))
		ch__lock_wake(lock);
}

/* --- take and release --- */
void ch__lock_wait(struct ch__lock *) CH_COLD;

static inline void ch__lock_take(struct ch__lock *lock, enum ch__rank rank)
	CH_ACQUIRES(lock) CH_UNANALYSED("it makes the lock")
{
	ch__rank_check_for(rank, NULL);
	if (CH_UNLIKELY(!ch__lock_seize(lock)))
		ch__lock_wait(lock);
	ch__lock_note(lock, rank, true);
}
/* Trying has no order. Signal-safe. */
static inline bool ch__lock_try(struct ch__lock *lock, enum ch__rank rank)
	CH_TRY_ACQUIRES(true, lock) CH_UNANALYSED("it makes the lock")
{
	if (!ch__lock_seize(lock))
		return false;
	ch__lock_note(lock, rank, true);
	return true;
}
static inline void ch__lock_release(struct ch__lock *lock, enum ch__rank rank)
	CH_RELEASES(lock) CH_UNANALYSED("it makes the lock")
{
	ch__lock_note(lock, rank, false);
	ch__lock_let_go(lock);
}

/* The functions that take a lock, by its role, and let it go, whose contracts are in a header. `of`
 * are their parameters, `by` is ch__lock_take or ch__lock_parking. */
#define CH__LOCK_FUNCTIONS(take, let_go, of, by, lock, rank)  \
	void take(of) CH_UNANALYSED("it makes the role")      \
	{                                                     \
		by(&(lock), rank);                            \
	}                                                     \
	void let_go(of) CH_UNANALYSED("it makes the role")    \
	{                                                     \
		ch__lock_release(&(lock), rank);              \
	}

/* In the child of a fork: true when a thread that is gone had the lock, which is free from then on.
 * The caller repairs what that thread may have left half done. */
bool ch__lock_set_free(struct ch__lock *);

#endif
