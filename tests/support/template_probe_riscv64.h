/* SPDX-License-Identifier: MIT
 * template_probe_riscv64.h: the part of template_probe.h that knows registers: calls a trampoline
 * from a frame whose callee-saved registers hold known words, and steps through a trampoline by the
 * handler of an ebreak. */
#pragma once

#include "tests/support/template_steps.h"

enum {
	PROBE_ARGS = 8,
	PROBE_KEPT = 12,
	PROBE_FRAMED_BYTES = 16, /* bytes of FRAMED on the stack at the target's entry */
	PROBE_FRAMED_STEPS = 12, /* instructions */
	PROBE_FRAMED_RULES = 12, /* instructions of FRAMED's FDE that are not nops */
	PROBE_TAIL_STEPS = 4,
	PROBE_TARGET_STEPS = 2, /* at least: the target's first, and before the last */
	PROBE_CODE_BYTES = 48,  /* of FRAMED without literals; TAIL has fewer */
};

/* An indirect jump lands anywhere: nothing marks the place. */
static const uint8_t probe_landing[] = {};
/* a0 to a7 | fa0 to fa7, half as wide as the vectors: the second halves are copied */
uint64_t probe_args[PROBE_ARGS], probe_seen[PROBE_ARGS], probe_seen_payload, probe_seen_sp;
_Alignas(16) uint8_t probe_vectors[8][16], probe_seen_vectors[8][16];
/* a0 a1 | fa0 fa1 */
uint64_t probe_result[2], probe_got[2];
_Alignas(16) uint8_t probe_result_vectors[2][16], probe_got_vectors[2][16];
/* s0 to s11 */
uint64_t probe_kept[PROBE_KEPT], probe_kept_after[PROBE_KEPT];
uint64_t probe_sp;

/* Reads the payload of a trampoline, first of all in the target; and a target that returns it. */
#define PROBE_READ_PAYLOAD(payload) __asm__ volatile("mv %0, t2" : "=r"(payload))
uint64_t answer_payload(void);
__asm__("	.text\n	.p2align 2\n	.globl answer_payload\n	.hidden answer_payload\n"
	"answer_payload: mv a0, t2; ret\n");

/* Traps of 4 bytes each, so that the place of a trap does not hang on compression. */
__asm__("	.text\n"
	"	.option push\n"
	"	.option norvc\n"
	"	.irp name, enter, returned, start, target, target_stop, target_end\n"
	"	.globl probe_\\name\n"
	"	.hidden probe_\\name\n"
	"	.endr\n"
	"	.macro probe_keeps op, at\n"
	"	.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
	"	\\op s\\n, 8*\\n(\\at)\n"
	"	.endr\n"
	"	.endm\n"
	"	.macro probe_arguments op, letter, at, by\n"
	"	.irp n, 0, 1, 2, 3, 4, 5, 6, 7\n"
	"	\\op \\letter\\n, \\by*\\n(\\at)\n"
	"	.endr\n"
	"	.endm\n"
	"	.macro probe_other_halves from, to, numbers:vararg\n"
	"	la t0, \\to\n"
	"	la t1, \\from\n"
	"	.irp n, \\numbers\n"
	"	ld t3, 16*\\n+8(t1)\n"
	"	sd t3, 16*\\n+8(t0)\n"
	"	.endr\n"
	"	.endm\n"
	"	.p2align 2\n"
	"probe_enter:\n"
	"	.cfi_startproc\n"
	"	addi sp, sp, -112\n"
	"	.cfi_def_cfa_offset 112\n"
	"	sd ra, 104(sp)\n"
	"	.cfi_offset ra, -8\n"
	"	probe_keeps sd, sp\n"
	"	.cfi_offset s0, -112\n	.cfi_offset s1, -104\n	.cfi_offset s2, -96\n"
	"	.cfi_offset s3, -88\n	.cfi_offset s4, -80\n	.cfi_offset s5, -72\n"
	"	.cfi_offset s6, -64\n	.cfi_offset s7, -56\n	.cfi_offset s8, -48\n"
	"	.cfi_offset s9, -40\n	.cfi_offset s10, -32\n	.cfi_offset s11, -24\n"
	"	mv t4, a0\n"
	"	mv t5, a1\n"
	"	la t0, probe_sp\n"
	"	sd sp, 0(t0)\n"
	"	la t0, probe_vectors\n"
	"	probe_arguments fld, fa, t0, 16\n"
	"	la t0, probe_kept\n"
	"	probe_keeps ld, t0\n"
	"	la t0, probe_args\n"
	"	probe_arguments ld, a, t0, 8\n"
	"	bnez t5, probe_start\n"
	"	jalr t4\n"
	"probe_returned:\n"
	"	la t0, probe_got\n"
	"	sd a0, 0(t0)\n"
	"	sd a1, 8(t0)\n"
	"	la t0, probe_got_vectors\n"
	"	fsd fa0, 0(t0)\n"
	"	fsd fa1, 16(t0)\n"
	"	probe_other_halves probe_result_vectors, probe_got_vectors, 0, 1\n"
	"	la t0, probe_kept_after\n"
	"	probe_keeps sd, t0\n"
	"	probe_keeps ld, sp\n"
	"	ld ra, 104(sp)\n"
	"	addi sp, sp, 112\n"
	"	.cfi_remember_state\n"
	"	.cfi_def_cfa_offset 0\n"
	"	ret\n"
	"	.cfi_restore_state\n"
	"probe_start:\n"
	"	ebreak\n" /* goes on in the trampoline, as if called from above */
	"	.cfi_endproc\n"
	"	.p2align 2\n"
	"probe_target:\n"
	"	.cfi_startproc\n"
	"	la t0, probe_seen\n"
	"	probe_arguments sd, a, t0, 8\n"
	"	la t0, probe_seen_payload\n"
	"	sd t2, 0(t0)\n"
	"	la t0, probe_seen_sp\n"
	"	sd sp, 0(t0)\n"
	"	la t0, probe_seen_vectors\n"
	"	probe_arguments fsd, fa, t0, 16\n"
	"	probe_other_halves probe_vectors, probe_seen_vectors, 0, 1, 2, 3, 4, 5, 6, 7\n"
	"	la t0, probe_result_vectors\n"
	"	fld fa0, 0(t0)\n"
	"	fld fa1, 16(t0)\n"
	"	la t0, probe_result\n"
	"	ld a0, 0(t0)\n"
	"	ld a1, 8(t0)\n"
	"	la t0, probe_is_stepped\n"
	"	ld t0, 0(t0)\n"
	"	bnez t0, probe_target_stop\n"
	"	ret\n"
	"probe_target_stop:\n"
	"	ebreak\n" /* returns as if by ret */
	"	.cfi_endproc\n"
	"probe_target_end:\n"
	"	.option pop\n");

/* Whether the unwinder has found the frame of probe_enter. */
static inline bool probe_is_caller(struct _Unwind_Context *context)
{
	if (_Unwind_GetIP(context) != (uintptr_t)probe_returned ||
	    _Unwind_GetCFA(context) != probe_sp)
		return false;
	for (int i = 0; i < PROBE_KEPT; i++)
		if (_Unwind_GetGR(context, i < 2 ? 8 + i : 16 + i) != probe_kept[i])
			return false;
	return true;
}

/* Does one instruction to the registers of the signal: the pc has the place of x0. */
static void probe_do(__riscv_mc_gp_state x)
{
	uint64_t pc = x[REG_PC], next = pc + 4;
	uint32_t word = *(const uint32_t *)(uintptr_t)pc;
	unsigned rd = word >> 7 & 31, rs = word >> 15 & 31, source = word >> 20 & 31;
	int64_t low = (int32_t)word >> 20, split = ((int32_t)word >> 25) * 32 + (int64_t)rd;
	uint64_t base = rs ? x[rs] : 0;
	switch (word & 0x707f) {
	case 0x13: /* addi */
		x[rd] = base + (uint64_t)low;
		break;
	case 0x3003: /* ld */
		x[rd] = *(const uint64_t *)(uintptr_t)(base + (uint64_t)low);
		break;
	case 0x3023: /* sd */
		*(uint64_t *)(uintptr_t)(base + (uint64_t)split) = x[source];
		break;
	case 0x67: /* jalr */
		if (rd)
			x[rd] = next;
		next = base + (uint64_t)low;
		break;
	default:
		if ((word & 0x7f) != 0x17) /* auipc */
			FAIL("the stepper does not know %08x", word);
		x[rd] = pc + (uint64_t)(int64_t)(int32_t)(word & 0xfffff000);
	}
	x[REG_PC] = next;
}

static void probe_on_ebreak(int signal, siginfo_t *info, void *ucontext)
{
	unsigned long *x = ((ucontext_t *)ucontext)->uc_mcontext.__gregs;
	(void)signal, (void)info;
	if (x[REG_PC] == (uintptr_t)probe_start) {
		enum { T4 = 29 };
		x[REG_RA] = (uintptr_t)probe_returned;
		x[REG_PC] = x[T4];
	} else if (x[REG_PC] == (uintptr_t)probe_target_stop) {
		probe_look(x[REG_PC], x[REG_SP]);
		x[REG_PC] = x[REG_RA];
	} else {
		FAIL("a trap at %lx, which is not the probe's", x[REG_PC]);
	}
	while (x[REG_PC] >= probe_code && x[REG_PC] < probe_code_end) {
		probe_look(x[REG_PC], x[REG_SP]);
		probe_do(x);
	}
	probe_look(x[REG_PC], x[REG_SP]); /* at the entry of the target */
}

static inline void probe_run_steps(const uint8_t *code)
{
	probe_step_by(probe_on_ebreak, code, PROBE_CODE_BYTES);
}
