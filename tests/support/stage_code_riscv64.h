/* SPDX-License-Identifier: MIT
 * stage_code_riscv64.h: tests/support/stage_code.h for riscv64. A block's argument and result are
 * in a0; t0, t2 and t4 change freely, and jumps go through t1. */
#pragma once

#include "tests/support/code.h"

#include <signal.h>

enum {
	CODE_TRAP_BEHIND_BYTES = 0, /* a trap leaves the pc so far behind its first byte */
	CODE_NOP_BYTES = 4,
	CODE_RETURN_BYTES = 4,
	CODE_ENTER_BYTES = 8,
	CODE_VALUE_BYTES = 8,   /* emit_value */
	CODE_CALL_C_BYTES = 28, /* emit_call_c at an address that is 4 above a multiple of 8 */
	CODE_HANDLER_RECORDS_LINK = 0, /* a handler has no frame record of the kernel's */
};
enum { RV_T2 = 7, RV_T4 = 29, RV_FENCE = 0x0330000f /* all before, all behind */ };

static inline uint32_t rv_sw(unsigned source, unsigned rs, int32_t offset)
{
	return rv_sd(source, rs, offset) ^ 0x1000;
}

/* --- frames --- */

/* A frame that keeps the argument over calls: emit_enter; addi sp, sp, -16; sd a0, 0(sp) ... */
static inline void emit_frame(struct emitter *e)
{
	emit_enter(e);
	EMIT(e, rv_addi(RV_SP, RV_SP, -16), rv_sd(RV_A0, RV_SP, 0));
}
/* ld ra, 8(sp); ld s0, 0(sp); addi sp, sp, 16: ends emit_enter's frame without a return */
static inline void emit_exit(struct emitter *e)
{
	EMIT(e, rv_ld(RV_RA, RV_SP, 8), rv_ld(RV_S0, RV_SP, 0), rv_addi(RV_SP, RV_SP, 16));
}
/* ... addi sp, sp, 16; and emit_exit's */
static inline void emit_frame_end(struct emitter *e)
{
	EMIT(e, rv_addi(RV_SP, RV_SP, 16));
	emit_exit(e);
}
/* ld a0, -32(s0): the kept argument, the frame stays */
static inline void emit_frame_argument(struct emitter *e)
{
	EMIT(e, rv_ld(RV_A0, RV_S0, -32));
}

/* --- argument and result --- */

static inline void emit_argument(struct emitter *e, uint64_t word)
{
	emit_word_load(e, RV_A0, word);
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
/* mv a0, a1: the word of emit_ref_word */
static inline void emit_ref_as_result(struct emitter *e)
{
	EMIT(e, rv_addi(RV_A0, RV_A1, 0));
}
/* ld t0, 0(a1); ld t2, 0(a0); add t2, t2, t0; sd t2, 0(a0): adds the value that emit_ref_word's
 * word leads to */
static inline void emit_add_at_ref(struct emitter *e)
{
	EMIT(e, rv_ld(RV_T0, RV_A1, 0), rv_ld(RV_T2, RV_A0, 0),
	     0x33 | RV_T2 << 7 | RV_T2 << 15 | RV_T0 << 20, rv_sd(RV_T2, RV_A0, 0));
}

/* --- waiting --- */

/* li t0, value; fence; sw t0, 0(a0) */
static inline void emit_tell(struct emitter *e, uint8_t value)
{
	EMIT(e, rv_addi(RV_T0, 0, value), RV_FENCE, rv_sw(RV_T0, RV_A0, 0));
}
/* L: lw t0, 0(a0); addi t0, t0, -value; bnez t0, L; fence */
static inline void emit_wait_for(struct emitter *e, uint8_t value)
{
	EMIT(e, rv_lw(RV_T0, RV_A0, 0), rv_addi(RV_T0, RV_T0, -(int32_t)value),
	     rv_branch(EMIT_CC_NE, RV_T0, 0, -8), RV_FENCE);
}
/* L: lw t0, 0(a0); beqz t0, L; fence */
static inline void emit_wait_while_zero(struct emitter *e)
{
	EMIT(e, rv_lw(RV_T0, RV_A0, 0), rv_branch(EMIT_CC_E, RV_T0, 0, -4), RV_FENCE);
}
/* li t0, rounds; L: addi t0, t0, -1; bnez t0, L */
static inline void emit_count_down(struct emitter *e, uint32_t rounds)
{
	emit_li(e, RV_T0, rounds);
	EMIT(e, rv_addi(RV_T0, RV_T0, -1), rv_branch(EMIT_CC_NE, RV_T0, 0, -4));
}

/* --- addresses of code, hidden --- */

/* ld t4, 8(a0); ld t4, 0(t4): the code of the cell, in a register only ... */
static inline void emit_load_code(struct emitter *e)
{
	EMIT(e, rv_ld(RV_T4, RV_A0, 8), rv_ld(RV_T4, RV_T4, 0));
}
/* Moves the address of emit_load_code to ft11 and clears t4: fmv.d.x ft11, t4; li t4, 0. Returns
 * false for the upper half: riscv64 processors need not have wider registers ... */
static inline bool emit_hide_code(struct emitter *e, bool in_upper_half)
{
	EMIT(e, 0xf2000053 | 31 << 7 | RV_T4 << 15, rv_addi(RV_T4, 0, 0));
	return !in_upper_half;
}
/* ... and back: fmv.x.d t4, ft11 */
static inline void emit_unhide_code(struct emitter *e, bool in_upper_half)
{
	(void)in_upper_half;
	EMIT(e, 0xe2000053 | RV_T4 << 7 | 31u << 15);
}
/* ... mv t1, t4; jr t1 */
static inline void emit_jump_code(struct emitter *e)
{
	EMIT(e, rv_addi(RV_T1, RV_T4, 0), rv_jalr(0, RV_T1));
}
/* ld t4, 8(a0); ld t4, 0(t4); addi sp, sp, -16; sd t4, 0(sp); li t4, 0: in the red zone only, or,
 * without a red zone, at sp itself ... */
static inline void emit_stash_code(struct emitter *e)
{
	emit_load_code(e);
	EMIT(e, rv_addi(RV_SP, RV_SP, -16), rv_sd(RV_T4, RV_SP, 0), rv_addi(RV_T4, 0, 0));
}
/* ... ld t1, 0(sp); addi sp, sp, 16; jr t1 */
static inline void emit_jump_stashed(struct emitter *e)
{
	EMIT(e, rv_ld(RV_T1, RV_SP, 0), rv_addi(RV_SP, RV_SP, 16), rv_jalr(0, RV_T1));
}
/* jr t4: to the address of emit_site_lea */
static inline void emit_jump_address(struct emitter *e)
{
	EMIT(e, rv_jalr(0, RV_LOADED));
}
/* auipc t1; ld t1, ...(t1); jr t1. Returns the literal site. */
static inline const void *emit_jump_literal(struct emitter *e)
{
	uint32_t from = e->at;
	EMIT(e, rv_auipc(RV_T1, 0), 0, rv_jalr(0, RV_T1));
	const uint8_t *site = emit_site_literal(e);
	uint32_t load = rv_ld(RV_T1, RV_T1, (int32_t)(site - (e->code.exec + from)));
	memcpy(e->code.write + from + 4, &load, 4);
	return site;
}
/* li a0, 0: a branch of emit_site_jcc(e, EMIT_CC_E) behind is taken */
static inline void emit_condition_e(struct emitter *e)
{
	EMIT(e, rv_addi(RV_A0, 0, 0));
}

/* --- faults --- */

/* c.ebreak twice: the library's trap, which the library describes; 4 bytes are their owner's */
static inline void emit_breakpoint(struct emitter *e)
{
	EMIT(e, 0x90029002);
}
/* Five instructions, and a faulting instruction at this offset. Divisions raise nothing. */
static const struct code_fault {
	int signal;
	uint32_t at;
} code_faults[] = {{SIGTRAP, 20}, {SIGSEGV, 20}, {SIGILL, 20}};
enum { CODE_FAULTS = sizeof code_faults / sizeof code_faults[0] };
static inline void emit_fault(struct emitter *e, int signal)
{
	emit_nops(e, 5);
	if (signal == SIGTRAP)
		emit_breakpoint(e);
	if (signal == SIGSEGV)
		EMIT(e, rv_lw(RV_A0, 0, 0));
	if (signal == SIGILL)
		EMIT(e, 0x00000000);
	emit_ret(e);
}
/* The same fault in the test's own code. Returns false when no instruction raises the signal. */
static inline bool code_raise(int signal)
{
	if (signal == SIGTRAP)
		__asm__ volatile(".option push; .option norvc; ebreak; .option pop");
	if (signal == SIGILL)
		__asm__ volatile(".word 0");
	return signal != SIGFPE;
}
/* A trap in front of an instruction that ends the process. */
static inline void code_trap_or_end(void)
{
	__asm__ volatile(".option push; .option norvc; ebreak; .option pop; .word 0");
}
/* Jumps with another stack pointer. */
__attribute__((noreturn)) static inline void code_jump_on_stack(const void *stack, const void *to)
{
	__asm__ volatile("mv t1, %1; mv sp, %0; jr t1" ::"r"(stack), "r"(to) : "t1");
	__builtin_unreachable();
}

/* --- the stack --- */

static inline uintptr_t code_sp(void)
{
	uintptr_t sp;
	__asm__ volatile("mv %0, sp" : "=r"(sp));
	return sp;
}
