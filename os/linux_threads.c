/* SPDX-License-Identifier: MIT
 * linux_threads.c: futex, thread signals, time, the chaining of signal handlers, and the object at
 * an address. Everything here is async-signal-safe; nothing allocates or takes a lock. */
#define _GNU_SOURCE
#include "arch/registers.h"
#include "os/linux.h"
#include "os/threads.h"
#include "os/valgrind.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <linux/futex.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { NS_PER_S = 1000000000 };

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
const char *const ch__os_is_only_thread = &__libc_single_threaded;
#else
const char *const ch__os_is_only_thread = "";
#endif

/* Locks and signal handlers wait and wake in the middle of other code: errno stays. */
void ch__os_futex_wait(_Atomic(uint32_t) *word, uint32_t while_value, uint64_t timeout_ns)
{
	int error = errno;
	struct timespec limit = {.tv_sec = (time_t)(timeout_ns / NS_PER_S),
				 .tv_nsec = (long)(timeout_ns % NS_PER_S)};
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_value, timeout_ns ? &limit : NULL, NULL,
		0);
	errno = error;
}

void ch__os_futex_wake(_Atomic(uint32_t) *word)
{
	int error = errno;
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	errno = error;
}

int ch__os_thread_id(void)
{
	return (int)syscall(SYS_gettid);
}

uintptr_t ch__os_signal_stack_end(uintptr_t sp)
{
	stack_t stack;
	if (sigaltstack(NULL, &stack) != 0 || !(stack.ss_flags & SS_ONSTACK))
		return 0;
	uintptr_t low = (uintptr_t)stack.ss_sp;
	return sp - low < stack.ss_size ? low + stack.ss_size : 0;
}

/* No injected failure: the function reports none, and its result decides what is scanned. ENOMEM
 * means that a page is not mapped; msync does nothing else with ASYNC. mincore is not among the
 * calls of SystemCallFilter=@system-service: systemd would kill the process. When the call is
 * refused, pages from `if_refused` on count as mapped. */
static uintptr_t mapped_from(uintptr_t low, uintptr_t high, uintptr_t if_refused)
{
	enum { PAGES_AT_ONCE = 512, ASYNC = 1 }; /* MS_ASYNC of sys/mman.h */
	/* By the real page: a test's pretended page is not what the kernel maps. */
	uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
	uintptr_t end = low & ~mask, at = (high + mask) & ~mask;
	ch__valgrind_reports(false); /* memcheck takes the call for a read of all the bytes */
	for (size_t step = PAGES_AT_ONCE * (mask + 1); at > end && step > mask;) {
		size_t bytes = at - end < step ? at - end : step;
		if (syscall(SYS_msync, at - bytes, bytes, ASYNC) == 0)
			at -= bytes;
		else if (errno != ENOMEM)
			at = end = if_refused;
		else
			step = bytes / 2 & ~mask;
	}
	ch__valgrind_reports(true);
	return at > low ? at : low;
}

/* The kernel's random bytes lie above the first frame, before program names and the environment. */
bool ch__os_is_first_stack(const void *low, const void *high)
{
	enum { ARGUMENTS_BYTES_MAX = 16 << 20 };
	uintptr_t bytes_at = getauxval(AT_RANDOM), from = (uintptr_t)low;
	return bytes_at >= from && bytes_at - from < (uintptr_t)high - from + ARGUMENTS_BYTES_MAX;
}

uintptr_t ch__os_first_stack_low(uintptr_t low, uintptr_t high)
{
	struct rlimit limit;
	uintptr_t known = low;
	int error = errno;
	if (syscall(SYS_prlimit64, 0, RLIMIT_STACK, NULL, &limit) == 0 &&
	    high - low < limit.rlim_cur)
		low = limit.rlim_cur < high ? high - limit.rlim_cur : 0;
	/* A stack without a limit would begin at address 0. */
	low = mapped_from(low, high, low ? low : known);
	errno = error;
	return low;
}

/* Not by a function of the C library, which a sanitizer replaces. */
long ch__os_read_memory(void *to, uintptr_t from, size_t bytes)
{
	struct iovec copy = {to, bytes}, source = {(void *)from, bytes};
	/* Words: of an int on the stack the kernel reads what lies beside, too. */
	return syscall(SYS_process_vm_readv, ch__os_thread_id(), &copy, 1UL, &source, 1UL, 0UL);
}

bool ch__os_thread_signal(int thread_id, int signal, const void *tag)
{
	siginfo_t info;
	memset(&info, 0, sizeof info);
	info.si_signo = signal;
	info.si_code = SI_QUEUE;
	info.si_pid = getpid();
	info.si_uid = getuid();
	info.si_value.sival_ptr = (void *)(uintptr_t)tag;
	return syscall(SYS_rt_tgsigqueueinfo, getpid(), thread_id, signal, &info) == 0;
}

/* A signal that could not be queued, or is from an outer namespace, has SI_USER and process 0. */
enum ch__os_sender ch__os_signal_sender(const void *siginfo, const void *tag)
{
	const siginfo_t *info = siginfo;
	if (info->si_code == SI_QUEUE && info->si_value.sival_ptr == tag &&
	    info->si_pid == getpid())
		return CH__OS_SENDER_TAGGED;
	return info->si_code == SI_USER && info->si_pid == 0 ? CH__OS_SENDER_UNKNOWN
							     : CH__OS_SENDER_OTHER;
}

uint64_t ch__os_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

bool ch__os_signal_is_fault(int signal)
{
	return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGTRAP ||
	       signal == SIGFPE || signal == SIGABRT;
}

/* Of signals sent to the first process of a namespace, such as a container's, the kernel drops all
 * that have no handler. */
static bool is_first_process(void)
{
	return getpid() == 1;
}

/* The kernel does not let a program ignore a fault of its own. */
static bool is_own_fault(int signal, const siginfo_t *info)
{
	return info->si_code > 0 && ch__os_signal_is_fault(signal);
}

/* The kernel's defaults (signal(7)). The library's handler stays where the process goes on. The
 * signal that kills is queued while blocked, and delivered before another instruction of the
 * interrupted code runs: a trap whose pc is already behind the INT3 would otherwise be lost. With
 * return_to the return of the handler delivers the signal. */
static void act_by_default(int signal, siginfo_t *info, ucontext_t *return_to)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t blocked;
	bool is_ignored = signal == SIGCHLD || signal == SIGCONT || signal == SIGURG ||
			  signal == SIGWINCH ||
			  (is_first_process() && !is_own_fault(signal, info));
	if (is_ignored)
		return;
	if (signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU) {
		syscall(SYS_kill, getpid(), SIGSTOP);
		return;
	}
	sigemptyset(&blocked);
	sigaddset(&blocked, signal);
	sigaction(signal, &action, NULL);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	/* Valgrind would take a queued signal with the kernel's si_code for a fault of its own. */
	if (ch__valgrind_runs() ||
	    syscall(SYS_rt_tgsigqueueinfo, getpid(), ch__os_thread_id(), signal, info) != 0)
		syscall(SYS_tgkill, getpid(), ch__os_thread_id(), signal);
	/* Where the kernel drops the sent signal, the trap runs again: a fault kills. */
	if (return_to && is_first_process())
		ch__arch_context_go_to(return_to, ch__arch_trap_address(signal, info->si_code,
									return_to));
	if (return_to)
		sigdelset(&return_to->uc_sigmask, signal);
	else
		pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
}

/* Calls a handler as the kernel does: with its mask and, without SA_NODEFER, its signal blocked. */
static void call(const struct sigaction *old, int signal, siginfo_t *info, void *ucontext)
{
	sigset_t before = {0}, blocked = old->sa_mask, own;
	sigaddset(&blocked, signal);
	sigemptyset(&own);
	sigaddset(&own, signal);
	pthread_sigmask(SIG_BLOCK, &blocked, &before);
	if ((old->sa_flags & SA_NODEFER) && !sigismember(&old->sa_mask, signal))
		pthread_sigmask(SIG_UNBLOCK, &own, NULL);
	if (old->sa_flags & SA_SIGINFO)
		old->sa_sigaction(signal, info, ucontext);
	else
		old->sa_handler(signal);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ch__os_signal_chain(int signal, void *info, void *ucontext, struct ch__os_action *old_action,
			 bool is_last)
{
	struct ch__old_action *old = (void *)old_action;
	const struct sigaction *action = ch__replaced(old);
	if (ch__is_handler(action) &&
	    !((action->sa_flags & SA_RESETHAND) &&
	      atomic_exchange_explicit(&old->is_reset, true, memory_order_relaxed)))
		call(action, signal, info, ucontext);
	else if (ch__is_handler(action) || action->sa_handler == SIG_DFL ||
		 is_own_fault(signal, info))
		act_by_default(signal, info, is_last ? ucontext : NULL);
}

bool ch__os_signal_is_handled(const struct ch__os_action *old)
{
	return ch__is_handler(ch__replaced((const void *)old));
}

/* The kernel reads the new mask before looking at the operation, and this operation does not exist:
 * EINVAL means that the mask was readable. */
bool ch__os_is_readable(const void *at)
{
	enum { NOTHING_THAT_EXISTS = -1, MASK_BYTES = 8 };
	int error = errno;
	/* The word may lie below sp, where memcheck would report the read. */
	ch__valgrind_reports(false);
	bool is_readable = syscall(SYS_rt_sigprocmask, NOTHING_THAT_EXISTS, at, NULL,
				   MASK_BYTES) == -1 &&
			   errno == EINVAL;
	ch__valgrind_reports(true);
	errno = error;
	return is_readable;
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
extern __typeof__(_dl_find_object) _dl_find_object __attribute__((weak));

/* By the C library's lookup without a lock. No function is named: addr2line names functions, from
 * object and offset, also without an exported symbol. linux_symbols.c knows more, outside of
 * handlers. */
bool ch__os_object_of(uintptr_t address, struct ch__os_object *object)
{
	struct dl_find_object found;
	/* A return address is behind its call. */
	if (!_dl_find_object || _dl_find_object((void *)(address - 1), &found) != 0)
		return false;
	const char *path = found.dlfo_link_map->l_name;
	object->path = path && *path ? path : program_invocation_name;
	object->at = (uintptr_t)found.dlfo_map_start;
	return true;
}
#else
/* glibc before 2.35 has no such lookup. */
bool ch__os_object_of(uintptr_t address, struct ch__os_object *object)
{
	(void)address, (void)object;
	return false;
}
#endif
