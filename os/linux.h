/* SPDX-License-Identifier: MIT
 * linux.h: what the files of the gate to Linux share and nobody else sees. */
#ifndef CH_OS_LINUX_H
#define CH_OS_LINUX_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What is in a struct ch__os_action. */
struct ch__old_action {
	/* What was there when somebody looked, and what the new handler took the place of. */
	struct sigaction actions[2];
	_Atomic(uint32_t) is_exact; /* which of them holds; release pairs with ch__replaced */
	_Atomic(uint32_t) is_reset; /* SA_RESETHAND: it was called; a word, as riscv64 needs it */
};
static inline const struct sigaction *ch__replaced(const struct ch__old_action *old)
{
	return &old->actions[atomic_load_explicit(&old->is_exact, memory_order_acquire)];
}
/* SA_SIGINFO says how a handler is called, not that there is one: the kernel looks at the
 * address. */
static inline bool ch__is_handler(const struct sigaction *action)
{
	return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

/* The same file under a number above those of the standard streams, -1 as it is. A process without
 * them would print into code, or into what a tool reads. -1: errno. */
int ch__os_fd_apart(int fd);

/* Around system calls that the C library lets a cancelled thread end in: it would take the locks of
 * its heap with it. The caller is cancelled when the library has returned. errno stays. */
static inline int ch__cancel_hold(void)
{
	int before = PTHREAD_CANCEL_ENABLE;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}
static inline void ch__cancel_allow(int before)
{
	pthread_setcancelstate(before, NULL);
}

#endif
