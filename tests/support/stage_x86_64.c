/* SPDX-License-Identifier: MIT
 * stage_x86_64.c: the instructions of the adversaries' stage: entering code without a frame,
 * overwriting the stack below a frame, switching stacks. stage_<arch>.c has the same for other
 * architectures. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

#include <ucontext.h>

bool stage_thread_has_shadow_stack(void)
{
	uint64_t pointer = 0; /* rdsspq changes nothing without a shadow stack */
	__asm__ volatile("rdsspq %0" : "+r"(pointer));
	return pointer != 0;
}

/* Clears 48 KiB downwards from the caller's sp, as much as the library and libgc need. Without a
 * frame here no word is left out. */
__asm__(".text\n"
	".globl stage_scrub\n"
	".type stage_scrub, @function\n"
	"stage_scrub:\n"
	"	movq %rsp, %rdx\n"
	"	subq $49152, %rsp\n" /* memcheck takes a write below sp for an error */
	"	movq %rsp, %rdi\n"
	"	movl $6144, %ecx\n"
	"	xorl %eax, %eax\n"
	"	rep stosq\n"
	"	movq %rdx, %rsp\n"
	"	ret\n"
	".size stage_scrub, . - stage_scrub\n");

/* rax holds the cell's address meanwhile, never the code's. */
__asm__(".text\n"
	".globl stage_enter\n"
	".type stage_enter, @function\n"
	"stage_enter:\n"
	"	movq %rdi, %rax\n"
	"	movq %rsi, %rdi\n"
	"	jmp *(%rax)\n"
	".size stage_enter, . - stage_enter\n");

/* rbx holds the word meanwhile, and the switch saves rbx. */
__asm__(".text\n"
	".globl stage_switch_holding, stage_switch, stage_begin\n"
	".type stage_switch_holding, @function\n"
	"stage_switch_holding:\n"
	"	pushq %rbx\n"
	"	movq (%rdx), %rbx\n"
	"	call stage_switch\n"
	"	popq %rbx\n"
	"	ret\n"
	".size stage_switch_holding, . - stage_switch_holding\n"
	".type stage_switch, @function\n"
	"stage_switch:\n"
	"	pushq %rbp\n"
	"	pushq %rbx\n"
	"	pushq %r12\n"
	"	pushq %r13\n"
	"	pushq %r14\n"
	"	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq %rsi, %rsp\n"
	"	popq %r15\n"
	"	popq %r14\n"
	"	popq %r13\n"
	"	popq %r12\n"
	"	popq %rbx\n"
	"	popq %rbp\n"
	"	ret\n"
	".size stage_switch, . - stage_switch\n"
	".type stage_begin, @function\n"
	"stage_begin:\n"
	"	movq %r12, %rdi\n"
	"	call *%r13\n"
	"	ud2\n"
	".size stage_begin, . - stage_begin\n");
void stage_begin(void);

__asm__(".text\n"
	".globl stage_call_holding\n"
	".type stage_call_holding, @function\n"
	"stage_call_holding:\n"
	"	pushq %rbx\n"
	"	movq (%rdi), %rbx\n"
	"	movq %rdx, %rdi\n"
	"	call *%rsi\n"
	"	movq %rbx, %rax\n"
	"	popq %rbx\n"
	"	jmp *%rax\n"
	".size stage_call_holding, . - stage_call_holding\n");

uintptr_t stage_new_stack(void *end, void (*fn)(void *), void *arg)
{
	uintptr_t *top = (uintptr_t *)end - 8;
	top[-1] = (uintptr_t)stage_begin;
	top[-4] = (uintptr_t)arg; /* r12 and r13, as stage_switch pops them */
	top[-5] = (uintptr_t)fn;
	return (uintptr_t)(top - 7);
}

void code_make_trap(void *ucontext, const void *at, uintptr_t *stack, uintptr_t return_to)
{
	ucontext_t *context = ucontext;
	stack[0] = return_to;
	context->uc_mcontext.gregs[REG_RIP] = (greg_t)((uintptr_t)at + CODE_TRAP_BEHIND_BYTES);
	context->uc_mcontext.gregs[REG_RSP] = (greg_t)(uintptr_t)stack;
}

void code_step_over_trap(void *ucontext)
{
	(void)ucontext; /* the pc is behind the trap */
}
