/* SPDX-License-Identifier: MIT
 * frames_code_riscv64.h: tests/support/frames_code.h for riscv64. */
#pragma once

#include <stdint.h>
#include <ucontext.h>

static const uint32_t code_framed[] = {
	0xff010113, /* addi sp, sp, -16 */
	0x00113423, /* sd ra, 8(sp) */
	0x00813023, /* sd s0, 0(sp) */
	0x01010413, /* addi s0, sp, 16 */
	0x000500e7, /* jalr a0 */
	0x00813083, /* ld ra, 8(sp) */
	0x00013403, /* ld s0, 0(sp) */
	0x01010113, /* addi sp, sp, 16 */
	0x00008067, /* ret */
};
static const uint32_t code_frameless[] = {
	0xfe010113, /* addi sp, sp, -32 */
	0x00113c23, /* sd ra, 24(sp) */
	0x00813823, /* sd s0, 16(sp) */
	0x00000413, /* li s0, 0 */
	0x000500e7, /* jalr a0 */
	0x01813083, /* ld ra, 24(sp) */
	0x01013403, /* ld s0, 16(sp) */
	0x02010113, /* addi sp, sp, 32 */
	0x00008067, /* ret */
};
/* CFA = sp + 32, ra at CFA - 8, s0 at CFA - 16 */
static const uint8_t code_frameless_cfi[] = {0x0c, 2, 32, 0x80 | 1, 1, 0x80 | 8, 2};
enum { CODE_FRAMED_RETURNS_AT = 20, CODE_FRAMELESS_RETURNS_AT = 20 };

__asm__(".text\n.p2align 2\n"
	".globl without_frame_pointer\n.type without_frame_pointer, %function\n"
	"without_frame_pointer:\n.cfi_startproc\n"
	"addi sp, sp, -16\n.cfi_def_cfa_offset 16\n"
	"sd ra, 8(sp)\nsd s0, 0(sp)\n.cfi_offset 1, -8\n.cfi_offset 8, -16\n"
	"li s0, 0x2345\njalr a0\n"
	"ld ra, 8(sp)\nld s0, 0(sp)\n.cfi_restore 1\n.cfi_restore 8\n"
	"addi sp, sp, 16\n.cfi_def_cfa_offset 0\nret\n.cfi_endproc\n"
	".size without_frame_pointer, . - without_frame_pointer\n"
	".globl with_frame_pointer\n.type with_frame_pointer, %function\n"
	"with_frame_pointer:\n.cfi_startproc\n"
	"addi sp, sp, -16\n.cfi_def_cfa_offset 16\n"
	"sd ra, 8(sp)\nsd s0, 0(sp)\n.cfi_offset 1, -8\n.cfi_offset 8, -16\n"
	"mv s0, a0\njalr a1\n"
	"ld ra, 8(sp)\nld s0, 0(sp)\n.cfi_restore 1\n.cfi_restore 8\n"
	"addi sp, sp, 16\n.cfi_def_cfa_offset 0\nret\n.cfi_endproc\n"
	".size with_frame_pointer, . - with_frame_pointer\n");

static const uint8_t code_debuggers_trap[] = {0x02, 0x90}; /* c.ebreak */
/* In the handler of that trap on a function's first instruction: the function returns at once. */
static inline void code_leave_at_trap(void *ucontext)
{
	unsigned long *registers = ((ucontext_t *)ucontext)->uc_mcontext.__gregs;
	registers[REG_PC] = registers[REG_RA];
}
