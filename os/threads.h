/* SPDX-License-Identifier: MIT
 * threads.h: threads, signals, stacks, futexes and membarriers (linux*.c).
 * Async-signal-safe up to and with ch__os_first_stack_low. */
#pragma once

#include "arch/base.h"

#include <errno.h>

/* Stores whether the system grants each of the two. */
void ch__os_membarrier_register(bool *fast_fence, bool *core_sync) CH_MAY_WAIT;
bool ch__os_membarrier_fence(void);     /* PRIVATE_EXPEDITED */
bool ch__os_membarrier_core_sync(void); /* PRIVATE_EXPEDITED_SYNC_CORE */

/* Not 0 while the process has one thread. The word turns 0 before another thread runs, and stays 0
 * where the C library does not know. */
extern const char *const ch__os_is_only_thread;
/* Timeout 0 = for ever. */
void ch__os_futex_wait(_Atomic(uint32_t) *word, uint32_t while_value, uint64_t timeout_ns);
void ch__os_futex_wake(_Atomic(uint32_t) *word); /* wakes all */
int ch__os_thread_id(void);
/* Returns the end of the caller's alternate signal stack when sp lies there, else 0. The system
 * does not know a stack with SS_AUTODISARM while a handler runs there. */
uintptr_t ch__os_signal_stack_end(uintptr_t sp);
/* Sends a signal with a tag, for the handler, to a thread of this process. Signal 0 asks whether
 * the thread exists: ESRCH. A signal below SIGRTMIN that is pending is not sent again, and a signal
 * for which the kernel's queue has no room comes without the tag. */
bool ch__os_thread_signal(int thread_id, int signal, const void *tag);
/* Whether the system has no such thread in this process. Keeps errno. */
static inline bool ch__os_thread_is_gone(int thread_id)
{
	int error = errno;
	bool is_gone = !ch__os_thread_signal(thread_id, 0, NULL) && errno == ESRCH;
	errno = error;
	return is_gone;
}
/* Who sent a signal: somebody else, this process with this tag, or unknown. */
enum ch__os_sender { CH__OS_SENDER_OTHER, CH__OS_SENDER_TAGGED, CH__OS_SENDER_UNKNOWN };
enum ch__os_sender ch__os_signal_sender(const void *siginfo, const void *tag);
/* The action that a handler of the library replaced. */
struct ch__os_action {
	_Alignas(16) unsigned char bytes[320];
};
/* Calls the replaced handler, as the kernel would have. Without a handler the process dies of the
 * signal, stops, or ignores the signal, as signal(7) says. A handler to be reset is called once.
 * is_last: the caller returns at once; by default the process dies then, and the core has the
 * registers of the interrupted code. */
void ch__os_signal_chain(int signal, void *info, void *ucontext, struct ch__os_action *,
			 bool is_last);
bool ch__os_signal_is_handled(const struct ch__os_action *);
/* Writes a line to stderr: no cancellation point, no error. */
void ch__os_write_last(const char *text, size_t n);
/* Returns true when the aligned 8 bytes can be read. */
bool ch__os_is_readable(const void *at);
/* The object loaded at an address; the texts are the loader's. Returns false if there is none. */
struct ch__os_object {
	const char *path;
	uintptr_t at;
};
bool ch__os_object_of(uintptr_t address, struct ch__os_object *); /* false: stores nothing */
/* Copies memory that may be unreadable or vanish meanwhile, from an aligned address on. Returns the
 * bytes copied, perhaps fewer than were readable; 0 when the first byte is not. */
size_t ch__os_copy(void *to, uintptr_t from, size_t bytes);
/* Returns true for signals that a fault of the processor, or abort(), raises. */
bool ch__os_signal_is_fault(int signal);
/* Whether these are bounds of the stack that the process began on. The lower bound moves: the
 * system maps used memory only, a touch below makes the stack grow, or kills, and the limit may be
 * raised at any time. */
bool ch__os_is_first_stack(const void *low, const void *high);
/* Returns the lowest address from which everything up to high is mapped. */
uintptr_t ch__os_first_stack_low(uintptr_t low, uintptr_t high);
/* Bounds of the calling thread's stack. */
bool ch__os_stack_bounds(const void **low, const void **high) CH_MAY_WAIT;
/* `call` runs once in the calling thread as the thread ends, after the destructors of C++. `call`
 * and destructors of other pthread keys may ask again. All callers in a process pass one `call`. */
bool ch__os_at_thread_end(void (*call)(void *)) CH_MAY_WAIT;
/* How a handler runs. LIKE_OLD, for a handler that passes everything on: with the stack, the mask
 * and the restart of system calls of the old handler. UNDISTURBED: every signal is blocked. */
enum ch__os_manner { CH__OS_PLAIN, CH__OS_LIKE_OLD, CH__OS_UNDISTURBED };
bool ch__os_signal_install(int signal, void (*handler)(int, void *, void *),
			   struct ch__os_action *old, enum ch__os_manner);
bool ch__os_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
