/* SPDX-License-Identifier: MIT
 * stage_code.h: the architecture for the adversaries, and for the tests of traps and of the Boehm
 * driver, beside tests/support/code.h: code that waits, faults and hides addresses, traps of the
 * test's own, contexts of signals. Each stage_code_<arch>.h has the same functions; mk/hosts.mk
 * names the header. */
#pragma once

#include "tests/support/code.h"

#include CH_TEST_STAGE_CODE

/* emit_guard_test skips so much: code that returns a number. */
enum { CODE_ANSWER_BYTES = CODE_VALUE_BYTES + CODE_RETURN_BYTES };

/* NOPs up to so many bytes of the block's code, as far as whole NOPs fit. */
static inline void emit_filler(struct emitter *e, uint32_t end)
{
	while (e->at + CODE_NOP_BYTES <= end)
		emit_nops(e, 1);
}

/* In stage_<arch>.c. Makes the context of a trap at `at`, reached by a call; `stack` has room for
 * two words. */
void code_make_trap(void *ucontext, const void *at, uintptr_t *stack, uintptr_t return_to);
/* In a handler of a trap of the test's own: the program goes on behind the trap. */
void code_step_over_trap(void *ucontext);
