/* SPDX-License-Identifier: MIT
 * stage_aarch64.c: the instructions of the adversaries' stage: entering code without a frame,
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
	".p2align 2\n"
	".globl stage_scrub\n"
	".type stage_scrub, %function\n"
	"stage_scrub:\n"
	"	hint #34\n"
	"	mov x9, sp\n"
	"	mov x10, #3072\n"
	"1:	stp xzr, xzr, [x9, #-16]!\n"
	"	subs x10, x10, #1\n"
	"	b.ne 1b\n"
	"	mov x16, xzr\n"
	"	mov x17, xzr\n"
	"	ret\n"
	".size stage_scrub, . - stage_scrub\n");

/* x16 holds the address of the code until the code, or a callee, uses x16. */
__asm__(".text\n"
	".p2align 2\n"
	".globl stage_enter\n"
	".type stage_enter, %function\n"
	"stage_enter:\n"
	"	hint #34\n"
	"	ldr x16, [x0]\n"
	"	mov x0, x1\n"
	"	br x16\n"
	".size stage_enter, . - stage_enter\n");

/* x19 holds the word meanwhile, and the switch saves x19. */
__asm__(".text\n"
	".p2align 2\n"
	".globl stage_switch_holding, stage_switch, stage_begin\n"
	".type stage_switch_holding, %function\n"
	"stage_switch_holding:\n"
	"	hint #34\n"
	"	stp x19, x30, [sp, #-16]!\n"
	"	ldr x19, [x2]\n"
	"	bl stage_switch\n"
	"	ldp x19, x30, [sp], #16\n"
	"	ret\n"
	".size stage_switch_holding, . - stage_switch_holding\n"
	".type stage_switch, %function\n"
	"stage_switch:\n"
	"	hint #34\n"
	"	sub sp, sp, #160\n"
	"	stp x19, x20, [sp]\n"
	"	stp x21, x22, [sp, #16]\n"
	"	stp x23, x24, [sp, #32]\n"
	"	stp x25, x26, [sp, #48]\n"
	"	stp x27, x28, [sp, #64]\n"
	"	stp x29, x30, [sp, #80]\n"
	"	stp d8, d9, [sp, #96]\n"
	"	stp d10, d11, [sp, #112]\n"
	"	stp d12, d13, [sp, #128]\n"
	"	stp d14, d15, [sp, #144]\n"
	"	mov x9, sp\n"
	"	str x9, [x0]\n"
	"	mov sp, x1\n"
	"	ldp x19, x20, [sp]\n"
	"	ldp x21, x22, [sp, #16]\n"
	"	ldp x23, x24, [sp, #32]\n"
	"	ldp x25, x26, [sp, #48]\n"
	"	ldp x27, x28, [sp, #64]\n"
	"	ldp x29, x30, [sp, #80]\n"
	"	ldp d8, d9, [sp, #96]\n"
	"	ldp d10, d11, [sp, #112]\n"
	"	ldp d12, d13, [sp, #128]\n"
	"	ldp d14, d15, [sp, #144]\n"
	"	add sp, sp, #160\n"
	"	ret\n"
	".size stage_switch, . - stage_switch\n"
	".type stage_begin, %function\n"
	"stage_begin:\n"
	"	mov x0, x19\n"
	"	blr x20\n"
	"	brk #1\n"
	".size stage_begin, . - stage_begin\n");
void stage_begin(void);

__asm__(".text\n"
	".p2align 2\n"
	".globl stage_call_holding\n"
	".type stage_call_holding, %function\n"
	"stage_call_holding:\n"
	"	hint #34\n"
	"	stp x29, x30, [sp, #-32]!\n"
	"	str d8, [sp, #16]\n"
	"	mov x29, sp\n"
	"	ldr x9, [x0]\n"
	"	fmov d8, x9\n"
	"	mov x9, xzr\n"
	"	mov x0, x2\n"
	"	blr x1\n"
	"	fmov x16, d8\n"
	"	ldr d8, [sp, #16]\n"
	"	ldp x29, x30, [sp], #32\n"
	"	br x16\n"
	".size stage_call_holding, . - stage_call_holding\n");

uintptr_t stage_new_stack(void *end, void (*fn)(void *), void *arg)
{
	enum { FRAME_WORDS = 20, X19 = 0, X20 = 1, X29 = 10, X30 = 11 };
	uintptr_t *sp = (uintptr_t *)end - 8 - FRAME_WORDS;
	sp[X19] = (uintptr_t)arg; /* as stage_switch loads them */
	sp[X20] = (uintptr_t)fn;
	sp[X29] = 0;
	sp[X30] = (uintptr_t)stage_begin;
	return (uintptr_t)sp;
}

void code_make_trap(void *ucontext, const void *at, uintptr_t *stack, uintptr_t return_to)
{
	ucontext_t *context = ucontext;
	context->uc_mcontext.pc = (uintptr_t)at;
	context->uc_mcontext.sp = (uintptr_t)stack;
	context->uc_mcontext.regs[30] = return_to;
}

void code_step_over_trap(void *ucontext)
{
	((ucontext_t *)ucontext)->uc_mcontext.pc += 4;
}
