/* SPDX-License-Identifier: MIT
 * trap_rig.h: shared by the tests of traps: a handler that has the library describe a signal and
 * jumps back, jumps to a byte, and made-up signals. */
#pragma once

#include "codeheap/graph/block.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

static struct {
	const struct ch_heap *heap;
	sigjmp_buf back;
	char text[1000];
	size_t length;
	int signal;
} caught;

static inline void catch_one(int signal, siginfo_t *info, void *ucontext)
{
	caught.signal = signal;
	caught.length =
		ch_trap_describe(caught.heap, info, ucontext, caught.text, sizeof caught.text);
	siglongjmp(caught.back, 1);
}

static inline void catch_traps(const struct ch_heap *heap)
{
	static const int all[] = {SIGTRAP, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
	struct sigaction action = {.sa_sigaction = catch_one, .sa_flags = SA_SIGINFO};
	caught.heap = heap;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		CHECK_EQ(sigaction(all[i], &action, NULL), 0);
}

/* Runs the code there; `caught` has the signal that ends the run. */
static inline void jump_to(const void *at)
{
	caught.signal = 0;
	caught.length = 0;
	caught.text[0] = 0;
	if (!sigsetjmp(caught.back, 1))
		code_call(at);
}

/* A made-up signal for the library to describe: at a pc, with a word on top of the stack. */
struct made_up {
	siginfo_t info;
	ucontext_t context;
	uintptr_t stack[2];
};
static inline void make_up(struct made_up *m, const void *at, uintptr_t return_to)
{
	memset(m, 0, sizeof *m);
	m->info.si_signo = SIGTRAP;
	m->info.si_code = SI_KERNEL;
	code_make_trap(&m->context, at, m->stack, return_to);
}
static inline size_t describe_made_up(const struct ch_heap *heap, struct made_up *m)
{
	caught.length =
		ch_trap_describe(heap, &m->info, &m->context, caught.text, sizeof caught.text);
	return caught.length;
}
static inline const char *describe_at(const struct ch_heap *heap, const void *at)
{
	struct made_up m;
	make_up(&m, at, 1);
	describe_made_up(heap, &m);
	return caught.text;
}

static inline void check_begins(const char *text, const char *wanted)
{
	if (strncmp(text, wanted, strlen(wanted)) != 0)
		FAIL("trap: said:   %s\nwanted: %s", text, wanted);
}
static inline void check_has(const char *text, const char *wanted)
{
	if (!strstr(text, wanted))
		FAIL("trap: said:   %s\nwithout: %s", text, wanted);
}
