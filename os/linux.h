/* SPDX-License-Identifier: MIT
 * linux.h: shared by the files of the gate to Linux only. */
#pragma once

#include "os/os.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* The content of a struct ch__os_action. */
struct ch__old_action {
	/* [0]: the action at a look beforehand. [1]: the action that the new handler replaced. */
	struct sigaction actions[2];
	_Atomic(uint32_t) is_exact; /* index of the valid action; release pairs with ch__replaced */
	_Atomic(uint32_t) is_reset; /* the SA_RESETHAND handler was called; 32 bits for riscv64 */
};
static inline const struct sigaction *ch__replaced(const struct ch__old_action *old)
{
	return &old->actions[atomic_load_explicit(&old->is_exact, memory_order_acquire)];
}
/* By the address, as the kernel decides. SA_SIGINFO says how a handler is called, not that the
 * action has a handler. */
static inline bool ch__is_handler(const struct sigaction *action)
{
	return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

static inline int ch__os_fd_of(const struct ch__os_held *file)
{
	return CH_LOAD_RELAXED(&file->fd);
}

/* Moves a file to a number above the standard streams; -1 stays -1. A process that closed its
 * streams would print into code, or into a tool's file. Returns -1 and errno on failure. */
int ch__os_fd_apart(int fd);

/* The steps of functions in linux_composed.c and linux_copy.c. */
void *ch__os_duplicate(void *from, size_t bytes, void *to); /* to: NULL: anywhere */
int ch__os_new_memfd(void);
int ch__os_new_nameless_file(const char *folder);
bool ch__os_fix_size(int fd, size_t bytes, bool is_memfd);
long ch__os_read_memory(void *to, uintptr_t from, size_t bytes); /* async-signal-safe */

/* Encloses system calls in which the C library may end a cancelled thread, with locks of its heap
 * held. The cancellation takes effect after the library has returned. errno stays. */
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
