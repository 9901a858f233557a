/* SPDX-License-Identifier: MIT
 * threads.h: the gate's threads, signals, stacks, futexes and membarriers (linux_threads.c,
 * linux_objects.c). Async-signal-safe up to and with ch__os_object_of. */
#ifndef CH_OS_THREADS_H
#define CH_OS_THREADS_H

#include "arch/base.h"

/* --- cross-core synchronization --- */
/* Sets what the system grants; true when it grants both. */
bool ch__os_membarrier_register(bool *fast_fence, bool *core_sync) CH_EXCLUDES(CH__STANDING);
bool ch__os_membarrier_fence(void);     /* PRIVATE_EXPEDITED */
bool ch__os_membarrier_core_sync(void); /* PRIVATE_EXPEDITED_SYNC_CORE */

/* --- threads --- */
/* Timeout 0 = for ever. */
void ch__os_futex_wait(_Atomic(uint32_t) *word, uint32_t while_value, uint64_t timeout_ns);
void ch__os_futex_wake(_Atomic(uint32_t) *word); /* all */
int ch__os_thread_id(void);
/* End of the caller's alternate signal stack when sp lies on it, else 0. One with SS_AUTODISARM is
 * looked for where it may be, and found within 1 MiB of sp. */
uintptr_t ch__os_signal_stack_end(uintptr_t sp, bool may_be_disarmed);
/* To a thread of this process, with a tag that its handler finds; signal 0 asks whether there is
 * such a thread: ESRCH. A signal below SIGRTMIN that is pending is not sent again, and one for
 * which the queue of signals has no room comes without its tag. */
bool ch__os_thread_signal(int thread_id, int signal, const void *tag);
/* Who sent it: somebody else, this process with this tag, or it does not say. */
enum ch__os_sender { CH__OS_SENDER_OTHER, CH__OS_SENDER_TAGGED, CH__OS_SENDER_UNKNOWN };
enum ch__os_sender ch__os_signal_sender(const void *siginfo, const void *tag);
/* The action that a handler of ours took the place of. */
struct ch__os_action {
	_Alignas(16) unsigned char bytes[320];
};
/* Calls the handler that was there, as the kernel would have; default: the process dies of the
 * signal, stops, or ignores it, as signal(7) says. A handler that asked to be reset is called once.
 * is_last: the caller returns at once; by default the process dies then, and its core has the
 * registers of the interrupted code. */
void ch__os_signal_chain(int signal, void *info, void *ucontext, struct ch__os_action *,
			 bool is_last);
bool ch__os_signal_is_handled(const struct ch__os_action *);
/* The last words of a process, to stderr: no cancellation point, and no error. */
void ch__os_write_last(const char *text, size_t n);
/* Whether the aligned 8 bytes can be read. */
bool ch__os_is_readable(const void *at);
/* What was loaded at an address; texts are the loader's. False: nothing was. */
struct ch__os_object {
	const char *path;
	uintptr_t at;
};
bool ch__os_object_of(uintptr_t address, struct ch__os_object *);
/* Copies memory that may be unreadable, or go meanwhile, from an aligned address on: so many bytes
 * as could be read, perhaps fewer than there were; 0 where the first one cannot. */
size_t ch__os_copy(void *to, uintptr_t from, size_t bytes);
/* Whether these are bounds of the stack that the process began on, whose lower one moves: the
 * system maps what was used, a touch below that makes it grow, or kills, and the limit may be
 * raised at any time. */
bool ch__os_is_first_stack(const void *low, const void *high);
/* Where it begins: the lowest address from which on everything up to high is mapped. */
uintptr_t ch__os_first_stack_low(uintptr_t low, uintptr_t high);
/* Bounds of the calling thread's stack. */
bool ch__os_stack_bounds(const void **low, const void **high) CH_EXCLUDES(CH__STANDING);
/* `call` runs once in the calling thread as that ends, behind the destructors of C++; what it or
 * another such destructor calls may ask again. Each caller in the process names the same `call`. */
bool ch__os_at_thread_end(void (*call)(void *)) CH_EXCLUDES(CH__STANDING);
/* Whether a fault of the processor, or abort(), raises it. */
bool ch__os_signal_is_fault(int signal);
/* How a handler runs. LIKE_OLD, for one that passes everything on: on the stack, behind the mask
 * and interrupting system calls as the one that was there. UNDISTURBED: every signal is blocked. */
enum ch__os_manner { CH__OS_PLAIN, CH__OS_LIKE_OLD, CH__OS_UNDISTURBED };
/* Async-signal-safe. */
bool ch__os_signal_install(int signal, void (*handler)(int, void *, void *),
			   struct ch__os_action *old, enum ch__os_manner);
bool ch__os_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

#endif
