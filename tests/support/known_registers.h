/* SPDX-License-Identifier: MIT
 * known_registers.h: makes a call with known registers, for tests of registers that are saved and
 * passed on. The test of each architecture has the assembly. This header has no tests. */
#pragma once

#include "arch/arch.h"
#include "arch/registers.h"
#include "tests/support/harness.h"

/* Runs call(arg) with the callee-saved registers set from `known` and the stack at known_sp. The
 * call returns to known_next, the word `caller` where the saved words have a return address. */
void call_with_known(void (*call)(void *), void *arg);
extern char known_next[];
uintptr_t known_sp;
uint64_t known[CH_ARCH_SAVED_WORDS];
enum { NO_CALLER = CH_ARCH_SAVED_WORDS };

static inline void know_registers(unsigned caller)
{
	for (unsigned i = 0; i < CH_ARCH_SAVED_WORDS; i++)
		known[i] = i == caller ? (uintptr_t)known_next : 0x1100 + i;
}

static inline void expect_known(const struct ch__arch_saved *saved)
{
	for (unsigned i = 0; i < CH_ARCH_SAVED_WORDS; i++)
		CHECK_EQ(saved->words[i], known[i]);
	CHECK_EQ(saved->sp, known_sp);
}

static inline void expect_known_are_saved(unsigned caller)
{
	struct ch__arch_saved saved = {0};
	know_registers(caller);
	call_with_known((void (*)(void *))(uintptr_t)ch__arch_save_registers, &saved);
	expect_known(&saved);
}

static inline void expect_known_are_passed_on(unsigned caller)
{
	know_registers(caller);
	call_with_known((void (*)(void *))(uintptr_t)ch__arch_with_registers,
			(void *)(uintptr_t)expect_known);
}
