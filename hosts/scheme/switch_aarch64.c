/* SPDX-License-Identifier: MIT
 * switch_aarch64.c: the switch of switch.h in the procedure call standard of Arm: x19 to x30 and
 * the lower halves of v8 to v15 are kept. A new stack starts in switch_begin, with its first
 * function in x19 and the context of the switch in x0; frame pointers end there.
 */
#include "switch.h"

enum { SAVED_WORDS = 20, SAVED_FIRST = 0, SAVED_LINK = 11 };

/* clang-format off */
__asm__(".text\n"
	".p2align 2\n"
	".globl switch_stacks\n"
	".type switch_stacks,@function\n"
	"switch_stacks:\n"
	"	hint #34\n" /* bti c */
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
	"	mov x16, sp\n"
	"	str x16, [x1]\n"
	"	mov sp, x2\n"
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
	".size switch_stacks,.-switch_stacks\n"
	".globl switch_begin\n"
	".hidden switch_begin\n"
	"switch_begin:\n"
	"	blr x19\n"
	"	brk #1\n");
/* clang-format on */
void switch_begin(void);

void *switch_prepare(char *high, void (*entry)(struct context *ctx))
{
	void **sp = (void **)(void *)high - SAVED_WORDS;

	memset(sp, 0, SAVED_WORDS * sizeof *sp);
	sp[SAVED_FIRST] = (void *)entry;
	sp[SAVED_LINK] = (void *)switch_begin;
	return sp;
}
