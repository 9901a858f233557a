/* SPDX-License-Identifier: MIT
 * lock.h: the lock of the library: a word. A thread that waits for the lock sleeps in the kernel.
 * Unlike a pthread mutex a lock can be set free in the child of a fork, in any state.
 *
 * A thread names each lock's rank, which checked builds watch (os/locks/ranks.h). ch__lock_take is
 * for locks held for a bounded time. Where the holder may wait for the thread that wants the lock,
 * that thread parks first: ch__lock_parking (codeheap/) does so, by the two parts of a wait. */
#pragma once

#include "arch/arch.h"
#include "os/locks/ranks.h"
#include "os/threads.h"

#include <stdatomic.h>

/* Whether the process has one thread. A load and a store do for a locked instruction then: no
 * signal handler keeps a lock, or stores to what the interrupted code has locked. */
static inline bool ch__is_only_thread(void)
{
	return *ch__os_is_only_thread;
}

/* Sets a flag that is 0 or 1 and excludes other threads for some instructions. */
#define CH__TRY_BUSY(busy) \
	(ch__is_only_thread() ? (CH_STORE_RELAXED(busy, 1), true) \
			      : !atomic_exchange_explicit(busy, 1, memory_order_acquire))
#define CH__TAKE_BUSY(busy) \
	do { \
		ch__rank_check_for(CH__RANK_BUSY, NULL); \
		while (CH_UNLIKELY(!CH__TRY_BUSY(busy))) \
			while (CH_LOAD_RELAXED(busy)) \
				ch__arch_pause(); \
		ch__rank_note(CH__RANK_BUSY, true); \
	} while (0)
#define CH__LET_BUSY_GO(busy) \
	(ch__rank_note(CH__RANK_BUSY, false), \
	 atomic_store_explicit(busy, 0, memory_order_release))

enum { CH__LOCK_FREE, CH__LOCK_TAKEN, CH__LOCK_AWAITED };

struct CH_CAPABILITY("lock") ch__lock {
	_Atomic(uint32_t) word; /* release of letting go pairs with acquire of taking */
	/* ch__lock_self of the holder, or 0; relaxed. A thread finds its own value here exactly
	 * while the thread has the lock: the holder stores 0 before letting go. */
	_Atomic(uintptr_t) holder;
};

/* Differs between all threads that live. Do not keep the value over a callback, which may leave its
 * stack to another thread (I14). */
#if CH_TESTING
uintptr_t ch__lock_self(void); /* a function for tests/orders/, whose threads share a pointer */
#else
static inline uintptr_t ch__lock_self(void)
{
	return ch__arch_thread_pointer();
}
#endif

/* For assertions, moves of states (I20), and a thread about to wait. */
static inline bool ch__lock_is_mine(const struct ch__lock *lock)
{
	return CH_LOAD_RELAXED(&lock->holder) == ch__lock_self();
}
static inline void ch__lock_note(struct ch__lock *lock, enum ch__rank rank, bool is_taken)
{
	CH_STORE_RELAXED(&lock->holder, is_taken ? ch__lock_self() : 0);
	ch__rank_note(rank, is_taken);
}

/* A guess: others take the lock, and let it go, meanwhile. */
static inline bool ch__lock_is_free(const struct ch__lock *lock)
{
	return CH_LOAD_RELAXED(&lock->word) == CH__LOCK_FREE;
}

/* The parts take and let go of the word without a note. */
static inline __attribute__((always_inline)) bool ch__lock_seize(struct ch__lock *lock)
{
	uint32_t seen = CH__LOCK_FREE;
	if (ch__is_only_thread()) {
		seen = CH_LOAD_RELAXED(&lock->word);
		if (seen == CH__LOCK_FREE)
			CH_STORE_RELAXED(&lock->word, CH__LOCK_TAKEN);
		/* A signal handler that finds the lock free finds nothing half done. */
		atomic_signal_fence(memory_order_seq_cst);
		return seen == CH__LOCK_FREE;
	}
	return atomic_compare_exchange_strong_explicit(&lock->word, &seen, CH__LOCK_TAKEN,
						       memory_order_acquire, memory_order_relaxed);
}
/* Spins for some instructions; returns true with the lock taken. */
bool ch__lock_spin(struct ch__lock *);
/* Looks for a while, and sleeps. Returns false when the lock was not free before until_ns (0: no
 * limit). On the thread's own lock: false at once, or a panic without a limit. */
bool ch__lock_sleep(struct ch__lock *, uint64_t until_ns) CH_COLD CH_MAY_WAIT;

/* One access: as soon as the lock is free, the heap with the lock may go. */
static inline void ch__lock_let_go(struct ch__lock *lock)
{
	if (ch__is_only_thread())
		atomic_store_explicit(&lock->word, CH__LOCK_FREE, memory_order_release);
	else if (CH_UNLIKELY(atomic_exchange_explicit(&lock->word, CH__LOCK_FREE,
						      memory_order_release) == CH__LOCK_AWAITED))
		ch__os_futex_wake(&lock->word);
}

static inline void ch__lock_take(struct ch__lock *lock, enum ch__rank rank)
	CH_ACQUIRES(lock) CH_UNANALYSED("it makes the lock")
{
	ch__rank_check_for(rank, NULL);
	if (CH_UNLIKELY(!ch__lock_seize(lock)))
		(void)ch__lock_sleep(lock, 0);
	ch__lock_note(lock, rank, true);
}
/* Trying follows no order of ranks. Signal-safe. */
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

/* Defines the functions that take and let go of a lock with a role declared in a header. `of` are
 * the parameters, `by` is ch__lock_take or ch__lock_parking. */
#define CH__LOCK_FUNCTIONS(take, let_go, of, by, lock, rank)  \
	void take(of) CH_UNANALYSED("it makes the role")      \
	{                                                     \
		by(&(lock), rank);                            \
	}                                                     \
	void let_go(of) CH_UNANALYSED("it makes the role")    \
	{                                                     \
		ch__lock_release(&(lock), rank);              \
	}

/* In the child of a fork: sets the lock free. Returns true when a thread that is gone had the lock;
 * the caller then repairs whatever that thread left half done. */
bool ch__lock_set_free(struct ch__lock *);
