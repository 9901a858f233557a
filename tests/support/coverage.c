/* SPDX-License-Identifier: MIT
 * coverage.c: writes the counts of a process that ends without returning from main: by _exit, by
 * abort, or by a signal to itself. Linked in the build of `make coverage` only, whose linker sends
 * the calls here. A process killed from outside, or by an instruction, loses its counts. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void);
_Noreturn void __real__exit(int status);
_Noreturn void __real_abort(void);
int __real_sigaction(int signal, const struct sigaction *, struct sigaction *old);
long __real_syscall(long number, ...);
_Noreturn void __wrap__exit(int status);
_Noreturn void __wrap_abort(void);
int __wrap_sigaction(int signal, const struct sigaction *, struct sigaction *old);
long __wrap_syscall(long number, ...);

/* A limit of a test must not keep the files from being written, or kill by the limit's signal. */
static void lift_limits(void)
{
	struct rlimit size = {RLIM_INFINITY, RLIM_INFINITY}, space = size, files = {1024, 1024};
	setrlimit(RLIMIT_FSIZE, &size);
	setrlimit(RLIMIT_AS, &space);
	setrlimit(RLIMIT_NOFILE, &files);
	signal(SIGXFSZ, SIG_IGN);
}

__attribute__((constructor)) static void lift_limits_at_exit(void)
{
	atexit(lift_limits);
}

/* The counts are added to the counts in the files, so counting begins again at 0. */
static void write_counts(void)
{
	lift_limits();
	__gcov_dump();
	__gcov_reset();
}

static bool is_default(int signal)
{
	struct sigaction action;
	return __real_sigaction(signal, NULL, &action) == 0 && action.sa_handler == SIG_DFL;
}

_Noreturn void __wrap__exit(int status)
{
	write_counts();
	__real__exit(status);
}

_Noreturn void __wrap_abort(void)
{
	write_counts();
	__real_abort();
}

/* A handler that restores the default action is about to let the process die. */
int __wrap_sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	if (action && action->sa_handler == SIG_DFL && !is_default(signal))
		write_counts();
	return __real_sigaction(signal, action, old);
}

long __wrap_syscall(long number, ...)
{
	va_list list;
	long args[6];
	va_start(list, number);
	for (int i = 0; i < 6; i++)
		args[i] = va_arg(list, long);
	va_end(list);
	if ((number == SYS_tgkill || number == SYS_rt_tgsigqueueinfo) && args[2] > 0 &&
	    is_default((int)args[2]))
		write_counts();
	return __real_syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}
