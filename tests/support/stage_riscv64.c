/* SPDX-License-Identifier: MIT
 * stage_riscv64.c: the instructions of the adversaries' stage: entering code without a frame,
 * overwriting the stack below a frame, switching stacks. stage_<arch>.c has the same for other
 * architectures. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

#include <ucontext.h>

/* The library was seen on no kernel that gives a shadow stack here. */
bool stage_thread_has_shadow_stack(void)
{
	return false;
}

/* Clears 48 KiB downwards from the caller's sp, as much as the library and libgc need, and the
 * registers through which code is entered. Without a frame here no word is left out. */
__asm__(".text\n"
	".globl stage_scrub\n"
	".type stage_scrub, @function\n"
	"stage_scrub:\n"
	"	mv t0, sp\n"
	"	li t1, 6144\n"
	"1:	addi t0, t0, -8\n"
	"	sd zero, 0(t0)\n"
	"	addi t1, t1, -1\n"
	"	bnez t1, 1b\n"
	"	li t2, 0\n"
	"	li t4, 0\n"
	"	ret\n"
	".size stage_scrub, . - stage_scrub\n");

/* t1 holds the address of the code until the code, or a callee, uses t1. */
__asm__(".text\n"
	".globl stage_enter\n"
	".type stage_enter, @function\n"
	"stage_enter:\n"
	"	ld t1, 0(a0)\n"
	"	mv a0, a1\n"
	"	jr t1\n"
	".size stage_enter, . - stage_enter\n");

/* s1 holds the word meanwhile, and the switch saves s1. */
__asm__(".text\n"
	".globl stage_switch_holding, stage_switch, stage_begin\n"
	".type stage_switch_holding, @function\n"
	"stage_switch_holding:\n"
	"	addi sp, sp, -16\n"
	"	sd s1, 0(sp)\n"
	"	sd ra, 8(sp)\n"
	"	ld s1, 0(a2)\n"
	"	call stage_switch\n"
	"	ld s1, 0(sp)\n"
	"	ld ra, 8(sp)\n"
	"	addi sp, sp, 16\n"
	"	ret\n"
	".size stage_switch_holding, . - stage_switch_holding\n"
	".type stage_switch, @function\n"
	"stage_switch:\n"
	"	addi sp, sp, -208\n"
	"	sd ra, 0(sp); sd s0, 8(sp); sd s1, 16(sp); sd s2, 24(sp); sd s3, 32(sp)\n"
	"	sd s4, 40(sp); sd s5, 48(sp); sd s6, 56(sp); sd s7, 64(sp); sd s8, 72(sp)\n"
	"	sd s9, 80(sp); sd s10, 88(sp); sd s11, 96(sp)\n"
	"	fsd fs0, 104(sp); fsd fs1, 112(sp); fsd fs2, 120(sp); fsd fs3, 128(sp)\n"
	"	fsd fs4, 136(sp); fsd fs5, 144(sp); fsd fs6, 152(sp); fsd fs7, 160(sp)\n"
	"	fsd fs8, 168(sp); fsd fs9, 176(sp); fsd fs10, 184(sp); fsd fs11, 192(sp)\n"
	"	sd sp, 0(a0)\n"
	"	mv sp, a1\n"
	"	ld ra, 0(sp); ld s0, 8(sp); ld s1, 16(sp); ld s2, 24(sp); ld s3, 32(sp)\n"
	"	ld s4, 40(sp); ld s5, 48(sp); ld s6, 56(sp); ld s7, 64(sp); ld s8, 72(sp)\n"
	"	ld s9, 80(sp); ld s10, 88(sp); ld s11, 96(sp)\n"
	"	fld fs0, 104(sp); fld fs1, 112(sp); fld fs2, 120(sp); fld fs3, 128(sp)\n"
	"	fld fs4, 136(sp); fld fs5, 144(sp); fld fs6, 152(sp); fld fs7, 160(sp)\n"
	"	fld fs8, 168(sp); fld fs9, 176(sp); fld fs10, 184(sp); fld fs11, 192(sp)\n"
	"	addi sp, sp, 208\n"
	"	ret\n"
	".size stage_switch, . - stage_switch\n"
	".type stage_begin, @function\n"
	"stage_begin:\n"
	"	mv a0, s1\n"
	"	jalr s2\n"
	"	unimp\n"
	".size stage_begin, . - stage_begin\n");
void stage_begin(void);

__asm__(".text\n"
	".globl stage_call_holding\n"
	".type stage_call_holding, @function\n"
	"stage_call_holding:\n"
	"	addi sp, sp, -16\n"
	"	sd ra, 0(sp)\n"
	"	fsd fs11, 8(sp)\n"
	"	ld t0, 0(a0)\n"
	"	fmv.d.x fs11, t0\n"
	"	li t0, 0\n"
	"	mv a0, a2\n"
	"	jalr a1\n"
	"	fmv.x.d t0, fs11\n"
	"	fld fs11, 8(sp)\n"
	"	ld ra, 0(sp)\n"
	"	addi sp, sp, 16\n"
	"	jr t0\n"
	".size stage_call_holding, . - stage_call_holding\n");

uintptr_t stage_new_stack(void *end, void (*fn)(void *), void *arg)
{
	enum { FRAME_WORDS = 26, RA = 0, S0 = 1, S1 = 2, S2 = 3 };
	uintptr_t *sp = (uintptr_t *)end - 8 - FRAME_WORDS;
	sp[RA] = (uintptr_t)stage_begin; /* as stage_switch loads them */
	sp[S0] = 0;
	sp[S1] = (uintptr_t)arg;
	sp[S2] = (uintptr_t)fn;
	return (uintptr_t)sp;
}

void code_make_trap(void *ucontext, const void *at, uintptr_t *stack, uintptr_t return_to)
{
	ucontext_t *context = ucontext;
	context->uc_mcontext.__gregs[REG_PC] = (uintptr_t)at;
	context->uc_mcontext.__gregs[REG_RA] = return_to;
	context->uc_mcontext.__gregs[REG_SP] = (uintptr_t)stack;
}

void code_step_over_trap(void *ucontext)
{
	((ucontext_t *)ucontext)->uc_mcontext.__gregs[REG_PC] += 4;
}
