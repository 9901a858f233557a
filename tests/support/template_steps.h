/* SPDX-License-Identifier: MIT
 * template_steps.h: the part of template_probe.h for machines where a program cannot have itself
 * stepped. The handler of a trap steps instead: it reads each instruction of the trampoline and
 * does the same to the registers of its signal. The target runs by itself and stops before the
 * return. An instruction that the handler does not know fails the test. The machine's header has
 * probe_do, the handler and the place of each register. */
#pragma once

#include "tests/support/harness.h"

#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unwind.h>

extern uint64_t probe_sp, probe_seen_sp; /* before the call and after it; in the target */
uint64_t probe_is_stepped;

void probe_enter(const void *code, uint64_t is_stepped);
void probe_target(void);
extern const uint8_t probe_returned[], probe_target_end[], probe_target_stop[], probe_start[];

/* The ABI: sp is a multiple of 16 at calls, and a call does not move sp. */
static inline void probe_check_stack(uint64_t frame_bytes)
{
	CHECK_EQ(probe_seen_sp % 16, 0);
	CHECK_EQ(probe_seen_sp, probe_sp - frame_bytes);
}

static void probe_look(uintptr_t pc, uintptr_t sp);

static uintptr_t probe_code, probe_code_end;

/* The handler has a stack of its own: stepping writes below the sp of the stepped stack. */
static inline void probe_step_by(void (*on_trap)(int, siginfo_t *, void *), const uint8_t *code,
				 size_t code_bytes)
{
	static _Alignas(16) uint8_t stack[65536];
	stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack}, before;
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_ONSTACK},
			 old;
	probe_code = (uintptr_t)code;
	probe_code_end = probe_code + code_bytes;
	CHECK_EQ(sigaltstack(&alternate, &before), 0);
	CHECK_EQ(sigaction(SIGTRAP, &action, &old), 0);
	probe_is_stepped = 1;
	probe_enter(code, 1);
	probe_is_stepped = 0;
	CHECK_EQ(sigaction(SIGTRAP, &old, NULL), 0);
	CHECK_EQ(sigaltstack(&before, NULL), 0);
}
