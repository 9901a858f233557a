/* SPDX-License-Identifier: MIT
 * switch_x86_64.c: the switch of switch.h in the System V ABI. A new stack starts
 * in switch_begin, with its first function in rbx and the context of the switch in rax.
 */
#include "switch.h"

__asm__(".text\n"
	".globl switch_stacks\n"
	".type switch_stacks,@function\n"
	"switch_stacks:\n"
	"	endbr64\n"
	"	pushq %rbp\n"
	"	pushq %rbx\n"
	"	pushq %r12\n"
	"	pushq %r13\n"
	"	pushq %r14\n"
	"	pushq %r15\n"
	"	movq %rsp, (%rsi)\n"
	"	movq %rdx, %rsp\n"
	"	movq %rdi, %rax\n"
	"	popq %r15\n"
	"	popq %r14\n"
	"	popq %r13\n"
	"	popq %r12\n"
	"	popq %rbx\n"
	"	popq %rbp\n"
	"	ret\n"
	".size switch_stacks,.-switch_stacks\n"
	".globl switch_begin\n"
	".hidden switch_begin\n"
	"switch_begin:\n"
	"	endbr64\n"
	"	movq %rax, %rdi\n"
	"	movq %rbx, %rax\n"
	"	call *%rax\n"
	"	ud2\n");
void switch_begin(void);

void *switch_prepare(char *high, void (*entry)(struct context *ctx))
{
	/* r15 to r12, rbx, rbp, return address; after it sp is 16-aligned, as before a call. */
	void **sp = (void **)(high - 72);

	memset(sp, 0, 72);
	sp[4] = (void *)entry;
	sp[6] = (void *)switch_begin;
	return sp;
}
