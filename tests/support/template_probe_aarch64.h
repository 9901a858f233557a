/* SPDX-License-Identifier: MIT
 * template_probe_aarch64.h: the part of template_probe.h that knows registers: calls a trampoline
 * from a frame whose callee-saved registers hold known words, and steps through a trampoline by the
 * handler of a BRK. */
#pragma once

#include "tests/support/template_steps.h"

enum {
	PROBE_ARGS = 9,
	PROBE_KEPT = 11,
	PROBE_FRAMED_BYTES = 16, /* bytes of FRAMED on the stack at the target's entry */
	PROBE_FRAMED_STEPS = 8,  /* instructions */
	PROBE_FRAMED_RULES = 8, /* instructions of FRAMED's FDE that are not nops */
	PROBE_TAIL_STEPS = 4,
	PROBE_TARGET_STEPS = 2, /* at least: the target's first, and before the last */
	PROBE_CODE_BYTES = 32,  /* of FRAMED without literals; TAIL has fewer */
};

/* bti c: where an indirect call may land */
static const uint8_t probe_landing[4] = {0x5f, 0x24, 0x03, 0xd5};
/* x0 to x7, x8 (where a large result goes) | q0 to q7, whole */
uint64_t probe_args[PROBE_ARGS], probe_seen[PROBE_ARGS], probe_seen_payload, probe_seen_sp;
_Alignas(16) uint8_t probe_vectors[8][16], probe_seen_vectors[8][16];
/* x0 x1 | q0 q1 */
uint64_t probe_result[2], probe_got[2];
_Alignas(16) uint8_t probe_result_vectors[2][16], probe_got_vectors[2][16];
/* x19 to x29 */
uint64_t probe_kept[PROBE_KEPT], probe_kept_after[PROBE_KEPT];
uint64_t probe_sp;

/* Reads the payload of a trampoline, first of all in the target; and a target that returns it. */
#define PROBE_READ_PAYLOAD(payload) __asm__ volatile("mov %0, x15" : "=r"(payload))
uint64_t answer_payload(void);
__asm__("	.text\n	.p2align 2\n	.globl answer_payload\n	.hidden answer_payload\n"
	"answer_payload: hint #34; mov x0, x15; ret\n");

/* Global, so that compilers may reach them by the global offset table. */
__asm__("	.text\n"
	"	.irp name, enter, returned, start, target, target_stop, target_end\n"
	"	.globl probe_\\name\n"
	"	.hidden probe_\\name\n"
	"	.endr\n"
	"	.macro address_of register, name\n"
	"	adrp \\register, \\name\n"
	"	add \\register, \\register, :lo12:\\name\n"
	"	.endm\n"
	"	.macro probe_keeps op, at\n"
	"	\\op x19, x20, [\\at]\n"
	"	\\op x21, x22, [\\at, #16]\n"
	"	\\op x23, x24, [\\at, #32]\n"
	"	\\op x25, x26, [\\at, #48]\n"
	"	\\op x27, x28, [\\at, #64]\n"
	"	.endm\n"
	"	.macro probe_q_args op, at\n"
	"	\\op q0, q1, [\\at]\n"
	"	\\op q2, q3, [\\at, #32]\n"
	"	\\op q4, q5, [\\at, #64]\n"
	"	\\op q6, q7, [\\at, #96]\n"
	"	.endm\n"
	"	.macro probe_x_args op, at\n"
	"	\\op x0, x1, [\\at]\n"
	"	\\op x2, x3, [\\at, #16]\n"
	"	\\op x4, x5, [\\at, #32]\n"
	"	\\op x6, x7, [\\at, #48]\n"
	"	.endm\n"
	"	.p2align 2\n"
	"probe_enter:\n"
	"	.cfi_startproc\n"
	"	hint #34\n"
	"	stp x29, x30, [sp, #-96]!\n"
	"	.cfi_def_cfa_offset 96\n"
	"	.cfi_offset x29, -96\n"
	"	.cfi_offset x30, -88\n"
	"	add x9, sp, #16\n"
	"	probe_keeps stp, x9\n"
	"	.cfi_offset x19, -80\n	.cfi_offset x20, -72\n"
	"	.cfi_offset x21, -64\n	.cfi_offset x22, -56\n"
	"	.cfi_offset x23, -48\n	.cfi_offset x24, -40\n"
	"	.cfi_offset x25, -32\n	.cfi_offset x26, -24\n"
	"	.cfi_offset x27, -16\n	.cfi_offset x28, -8\n"
	"	mov x16, x0\n"
	"	mov x17, x1\n"
	"	address_of x9, probe_sp\n"
	"	mov x10, sp\n"
	"	str x10, [x9]\n"
	"	address_of x9, probe_vectors\n"
	"	probe_q_args ldp, x9\n"
	"	address_of x9, probe_kept\n"
	"	probe_keeps ldp, x9\n"
	"	ldr x29, [x9, #80]\n"
	"	address_of x9, probe_args\n"
	"	probe_x_args ldp, x9\n"
	"	ldr x8, [x9, #64]\n"
	"	cbnz x17, probe_start\n"
	"	blr x16\n"
	"probe_returned:\n"
	"	hint #38\n"
	"	address_of x9, probe_got\n"
	"	stp x0, x1, [x9]\n"
	"	address_of x9, probe_got_vectors\n"
	"	stp q0, q1, [x9]\n"
	"	address_of x9, probe_kept_after\n"
	"	probe_keeps stp, x9\n"
	"	str x29, [x9, #80]\n"
	"	add x9, sp, #16\n"
	"	probe_keeps ldp, x9\n"
	"	ldp x29, x30, [sp], #96\n"
	"	.cfi_remember_state\n"
	"	.cfi_def_cfa_offset 0\n"
	"	ret\n"
	"	.cfi_restore_state\n"
	"probe_start:\n"
	"	brk #0x51\n" /* goes on in the trampoline, as if called from above */
	"	.cfi_endproc\n"
	"	.p2align 2\n"
	"probe_target:\n"
	"	.cfi_startproc\n"
	"	hint #34\n"
	"	address_of x9, probe_seen\n"
	"	probe_x_args stp, x9\n"
	"	str x8, [x9, #64]\n"
	"	address_of x9, probe_seen_payload\n"
	"	str x15, [x9]\n"
	"	address_of x9, probe_seen_sp\n"
	"	mov x10, sp\n"
	"	str x10, [x9]\n"
	"	address_of x9, probe_seen_vectors\n"
	"	probe_q_args stp, x9\n"
	"	address_of x9, probe_result_vectors\n"
	"	ldp q0, q1, [x9]\n"
	"	address_of x9, probe_result\n"
	"	ldp x0, x1, [x9]\n"
	"	address_of x9, probe_is_stepped\n"
	"	ldr x9, [x9]\n"
	"	cbnz x9, probe_target_stop\n"
	"	ret\n"
	"probe_target_stop:\n"
	"	brk #0x52\n" /* returns as if by ret */
	"	.cfi_endproc\n"
	"probe_target_end:\n");

/* Whether the unwinder has found the frame of probe_enter. */
static inline bool probe_is_caller(struct _Unwind_Context *context)
{
	if (_Unwind_GetIP(context) != (uintptr_t)probe_returned ||
	    _Unwind_GetCFA(context) != probe_sp)
		return false;
	for (int i = 0; i < PROBE_KEPT; i++)
		if (_Unwind_GetGR(context, 19 + i) != probe_kept[i])
			return false;
	return true;
}

/* Does one instruction to the registers of the signal. */
static void probe_do(mcontext_t *c)
{
	uint32_t word = *(const uint32_t *)(uintptr_t)c->pc;
	uint64_t next = c->pc + 4;
	uint64_t *sp = (uint64_t *)(uintptr_t)c->sp;
	if ((word & 0xff000000) == 0x58000000) { /* ldr x, literal */
		int64_t words = (int32_t)(word << 8) >> 13;
		c->regs[word & 31] = *(const uint64_t *)(uintptr_t)(c->pc + (uint64_t)words * 4);
	} else if ((word & 0xffdffc1f) == 0xd61f0000) { /* br, blr */
		next = c->regs[word >> 5 & 31];
		if (word & 0x00200000)
			c->regs[30] = c->pc + 4;
	} else if (word == 0xa9bf7bfd) { /* stp x29, x30, [sp, #-16]! */
		sp[-2] = c->regs[29];
		sp[-1] = c->regs[30];
		c->sp -= 16;
	} else if (word == 0xa8c17bfd) { /* ldp x29, x30, [sp], #16 */
		c->regs[29] = sp[0];
		c->regs[30] = sp[1];
		c->sp += 16;
	} else if (word == 0x910003fd) { /* mov x29, sp */
		c->regs[29] = c->sp;
	} else if (word == 0xd65f03c0) { /* ret */
		next = c->regs[30];
	} else if (word != 0xd503245f) { /* bti c */
		FAIL("the stepper does not know %08x", word);
	}
	c->pc = next;
}

static void probe_on_brk(int signal, siginfo_t *info, void *ucontext)
{
	mcontext_t *c = &((ucontext_t *)ucontext)->uc_mcontext;
	(void)signal, (void)info;
	if (c->pc == (uintptr_t)probe_start) {
		c->regs[30] = (uintptr_t)probe_returned;
		c->pc = c->regs[16];
	} else if (c->pc == (uintptr_t)probe_target_stop) {
		probe_look(c->pc, c->sp);
		c->pc = c->regs[30];
	} else {
		FAIL("a trap at %llx, which is not the probe's", (unsigned long long)c->pc);
	}
	while (c->pc >= probe_code && c->pc < probe_code_end) {
		probe_look(c->pc, c->sp);
		probe_do(c);
	}
	probe_look(c->pc, c->sp); /* at the entry of the target */
}

static inline void probe_run_steps(const uint8_t *code)
{
	probe_step_by(probe_on_brk, code, PROBE_CODE_BYTES);
}
