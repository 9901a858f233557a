/* SPDX-License-Identifier: MIT
 * stage_code_aarch64.h: tests/support/stage_code.h for aarch64. A block's argument and result are
 * in x0. x16 and x17 change freely, and jumps go through x16 or x17: BTI lets such jumps land on an
 * entry. */
#pragma once

#include "tests/support/code.h"

#include <signal.h>

enum {
	CODE_TRAP_BEHIND_BYTES = 0, /* a trap leaves the pc so far behind its first byte */
	CODE_NOP_BYTES = 4,
	CODE_RETURN_BYTES = 4,
	CODE_ENTER_BYTES = 8,
	CODE_VALUE_BYTES = 8,   /* emit_value */
	CODE_CALL_C_BYTES = 20, /* emit_call_c at an address that is 4 above a multiple of 8 */
	CODE_HANDLER_RECORDS_LINK = 1, /* the kernel's frame record of a handler: x30, no pc */
};

/* --- frames --- */

/* A frame that keeps the argument over calls: emit_enter; sub sp, sp, 16; str x0, [sp] ... */
static inline void emit_frame(struct emitter *e)
{
	emit_enter(e);
	EMIT(e, 0xd10043ff, 0xf90003e0);
}
/* ... mov sp, x29; ldp x29, x30, [sp], 16 */
static inline void emit_frame_end(struct emitter *e)
{
	EMIT(e, 0x910003bf, 0xa8c17bfd);
}
/* ldur x0, [x29, -16]: the kept argument, the frame stays */
static inline void emit_frame_argument(struct emitter *e)
{
	EMIT(e, 0xf85f03a0);
}
/* ldp x29, x30, [sp], 16: ends emit_enter's frame without a return */
static inline void emit_exit(struct emitter *e)
{
	EMIT(e, 0xa8c17bfd);
}

/* --- argument and result --- */

/* movz x0, ...; movk x0, ..., lsl 16, 32, 48 */
static inline void emit_argument(struct emitter *e, uint64_t word)
{
	EMIT(e, 0xd2800000 | (uint32_t)(word & 0xffff) << 5,
	     0xf2a00000 | (uint32_t)(word >> 16 & 0xffff) << 5,
	     0xf2c00000 | (uint32_t)(word >> 32 & 0xffff) << 5,
	     0xf2e00000 | (uint32_t)(word >> 48 & 0xffff) << 5);
}
/* The same register. */
static inline void emit_result_as_argument(struct emitter *e)
{
	(void)e;
}
static inline void emit_argument_as_result(struct emitter *e)
{
	(void)e;
}
/* mov x0, x9: the word of emit_ref_word */
static inline void emit_ref_as_result(struct emitter *e)
{
	EMIT(e, 0xaa0903e0);
}
/* ldr x16, [x9]; ldr x17, [x0]; add x17, x17, x16; str x17, [x0]: adds the value that
 * emit_ref_word's word leads to */
static inline void emit_add_at_ref(struct emitter *e)
{
	EMIT(e, 0xf9400130, 0xf9400011, 0x8b100231, 0xf9000011);
}

/* --- waiting --- */

/* mov w16, value; stlr w16, [x0] */
static inline void emit_tell(struct emitter *e, uint8_t value)
{
	EMIT(e, 0x52800010 | (uint32_t)value << 5, 0x889ffc10);
}
/* L: yield; ldar w16, [x0]; cmp w16, value; b.ne L */
static inline void emit_wait_for(struct emitter *e, uint8_t value)
{
	EMIT(e, 0xd503203f, 0x88dffc10, 0x7100021f | (uint32_t)value << 10, 0x54ffffa1);
}
/* L: ldar w16, [x0]; cbz w16, L */
static inline void emit_wait_while_zero(struct emitter *e)
{
	EMIT(e, 0x88dffc10, 0x34fffff0);
}
/* mov w16, rounds; L: subs w16, w16, 1; b.ne L */
static inline void emit_count_down(struct emitter *e, uint32_t rounds)
{
	CHECK(rounds <= UINT16_MAX);
	EMIT(e, 0x52800010 | rounds << 5, 0x71000610, 0x54ffffe1);
}

/* --- addresses of code, hidden --- */

/* ldr x17, [x0, 8]; ldr x17, [x17]: the code of the cell, in a register only ... */
static inline void emit_load_code(struct emitter *e)
{
	EMIT(e, 0xf9400411, 0xf9400231);
}
/* Moves the address of emit_load_code to a vector register and clears x17: fmov d31, x17; mov x17,
 * xzr. For the upper half: mov v31.d[1], x17. Returns true: there is such a register ... */
static inline bool emit_hide_code(struct emitter *e, bool in_upper_half)
{
	EMIT(e, in_upper_half ? 0x4e181e3f : 0x9e67023f, 0xaa1f03f1);
	return true;
}
/* ... and back: fmov x17, d31, or mov x17, v31.d[1] */
static inline void emit_unhide_code(struct emitter *e, bool in_upper_half)
{
	EMIT(e, in_upper_half ? 0x4e183ff1 : 0x9e6603f1);
}
/* ... br x17 */
static inline void emit_jump_code(struct emitter *e)
{
	EMIT(e, 0xd61f0220);
}
/* ldr x17, [x0, 8]; ldr x17, [x17]; sub sp, sp, 16; str x17, [sp]; mov x17, 0: in the red zone
 * only, or, without a red zone, at sp itself ... */
static inline void emit_stash_code(struct emitter *e)
{
	EMIT(e, 0xf9400411, 0xf9400231, 0xd10043ff, 0xf90003f1, 0xd2800011);
}
/* ... ldr x17, [sp]; add sp, sp, 16; br x17 */
static inline void emit_jump_stashed(struct emitter *e)
{
	EMIT(e, 0xf94003f1, 0x910043ff, 0xd61f0220);
}
/* mov x16, x9; br x16: to the address of emit_site_lea */
static inline void emit_jump_address(struct emitter *e)
{
	EMIT(e, 0xaa0903f0, 0xd61f0200);
}
/* ldr x16, literal; br x16. Returns the literal site. */
static inline const void *emit_jump_literal(struct emitter *e)
{
	uint32_t from = e->at;
	EMIT(e, 0x58000010, 0xd61f0200);
	const uint8_t *site = emit_site_literal(e);
	uint32_t load = 0x58000010 | (uint32_t)(site - (e->code.exec + from)) / 4 << 5;
	memcpy(e->code.write + from, &load, 4);
	return site;
}
/* cmp xzr, xzr: a branch of emit_site_jcc(e, EMIT_CC_E) behind is taken */
static inline void emit_condition_e(struct emitter *e)
{
	EMIT(e, 0xeb1f03ff);
}

/* --- faults --- */

/* brk 0xc0de: the library's trap, which the library describes; another brk is its owner's */
static inline void emit_breakpoint(struct emitter *e)
{
	EMIT(e, 0xd4381bc0);
}
/* Five instructions, and a faulting instruction at this offset. Divisions raise nothing. */
static const struct code_fault {
	int signal;
	uint32_t at;
} code_faults[] = {{SIGTRAP, 20}, {SIGSEGV, 24}, {SIGILL, 20}};
enum { CODE_FAULTS = sizeof code_faults / sizeof code_faults[0] };
static inline void emit_fault(struct emitter *e, int signal)
{
	emit_nops(e, 5);
	if (signal == SIGTRAP)
		EMIT(e, 0xd4381bc0); /* brk with the heap's own immediate */
	if (signal == SIGSEGV)
		EMIT(e, 0xd2800000, 0xb9400000); /* mov x0, 0; ldr w0, [x0] */
	if (signal == SIGILL)
		EMIT(e, 0x00000000); /* udf 0 */
	emit_ret(e);
}
/* The same fault in the test's own code. Returns false when no instruction raises the signal. */
static inline bool code_raise(int signal)
{
	if (signal == SIGTRAP)
		__asm__ volatile("brk #1");
	if (signal == SIGILL)
		__asm__ volatile(".inst 0");
	return signal != SIGFPE;
}
/* A trap in front of an instruction that ends the process. */
static inline void code_trap_or_end(void)
{
	__asm__ volatile("brk #1; .inst 0");
}
/* Jumps with another stack pointer. */
__attribute__((noreturn)) static inline void code_jump_on_stack(const void *stack, const void *to)
{
	register const void *x16 __asm__("x16") = to;
	__asm__ volatile("mov sp, %0; br %1" ::"r"(stack), "r"(x16));
	__builtin_unreachable();
}

/* --- the stack --- */

static inline uintptr_t code_sp(void)
{
	uintptr_t sp;
	__asm__ volatile("mov %0, sp" : "=r"(sp));
	return sp;
}
