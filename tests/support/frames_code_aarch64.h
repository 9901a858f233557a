/* SPDX-License-Identifier: MIT
 * frames_code_aarch64.h: tests/support/frames_code.h for aarch64. */
#pragma once

#include <stdint.h>
#include <ucontext.h>

static const uint32_t code_framed[] = {
	0xa9bf7bfd, /* stp x29, x30, [sp, #-16]! */
	0x910003fd, /* mov x29, sp */
	0xd63f0000, /* blr x0 */
	0xa8c17bfd, /* ldp x29, x30, [sp], #16 */
	0xd65f03c0, /* ret */
};
static const uint32_t code_frameless[] = {
	0xa9bd7bfd, /* stp x29, x30, [sp, #-48]! */
	0xd280001d, /* mov x29, #0 */
	0xd63f0000, /* blr x0 */
	0xa8c37bfd, /* ldp x29, x30, [sp], #48 */
	0xd65f03c0, /* ret */
};
/* CFA = sp + 48, x30 at CFA - 40, x29 at CFA - 48 */
static const uint8_t code_frameless_cfi[] = {0x0c, 31, 48, 0x80 | 30, 5, 0x80 | 29, 6};
enum { CODE_FRAMED_RETURNS_AT = 12, CODE_FRAMELESS_RETURNS_AT = 12 };

__asm__(".text\n.p2align 2\n"
	".globl without_frame_pointer\n.type without_frame_pointer, %function\n"
	"without_frame_pointer:\n.cfi_startproc\nhint #34\n"
	"stp x29, x30, [sp, #-16]!\n.cfi_def_cfa_offset 16\n"
	".cfi_offset 29, -16\n.cfi_offset 30, -8\n"
	"mov x29, #0x2345\nblr x0\n"
	"ldp x29, x30, [sp], #16\n.cfi_def_cfa_offset 0\n"
	".cfi_restore 29\n.cfi_restore 30\nret\n.cfi_endproc\n"
	".size without_frame_pointer, . - without_frame_pointer\n"
	".globl with_frame_pointer\n.type with_frame_pointer, %function\n"
	"with_frame_pointer:\n.cfi_startproc\nhint #34\n"
	"stp x29, x30, [sp, #-16]!\n.cfi_def_cfa_offset 16\n"
	".cfi_offset 29, -16\n.cfi_offset 30, -8\n"
	"mov x29, x0\nblr x1\n"
	"ldp x29, x30, [sp], #16\n.cfi_def_cfa_offset 0\n"
	".cfi_restore 29\n.cfi_restore 30\nret\n.cfi_endproc\n"
	".size with_frame_pointer, . - with_frame_pointer\n");

static const uint8_t code_debuggers_trap[] = {0x00, 0x00, 0x20, 0xd4}; /* brk #0 */
/* In the handler of that trap on a function's first instruction: the function returns at once. */
static inline void code_leave_at_trap(void *ucontext)
{
	mcontext_t *registers = &((ucontext_t *)ucontext)->uc_mcontext;
	registers->pc = registers->regs[30];
}
