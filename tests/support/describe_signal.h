/* SPDX-License-Identifier: MIT
 * describe_signal.h: a handler that says on stderr what the library knows of a signal, and then
 * lets the signal end the process, as a VM's does. */
#pragma once

#include "codeheap/codeheap.h"
#include "tests/support/harness.h"

#include <signal.h>
#include <unistd.h>

static const struct ch_heap *describing;

static inline void describe_and_end(int signal, siginfo_t *info, void *ucontext)
{
	char text[800];
	size_t n = ch_trap_describe(describing, info, ucontext, text, sizeof text);
	CHECK(n < sizeof text);
	ssize_t written = write(STDERR_FILENO, text, n);
	(void)written;
	struct sigaction standard = {.sa_handler = SIG_DFL};
	sigaction(signal, &standard, NULL);
	raise(signal);
}

static inline void describe_signal(const struct ch_heap *heap, int signal)
{
	struct sigaction action = {.sa_sigaction = describe_and_end, .sa_flags = SA_SIGINFO};
	describing = heap;
	CHECK_EQ(sigaction(signal, &action, NULL), 0);
}
