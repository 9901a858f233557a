/* SPDX-License-Identifier: MIT
 * frames_code_x86_64.h: tests/support/frames_code.h for x86-64. */
#pragma once

#include <stdint.h>
#include <ucontext.h>

/* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
static const uint8_t code_framed[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
/* push rbp; xor ebp, ebp; sub rsp, 32; call rdi; add rsp, 32; pop rbp; ret */
static const uint8_t code_frameless[] = {0x55, 0x31, 0xed, 0x48, 0x83, 0xec, 0x20, 0xff,
					 0xd7, 0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3};
/* CFA = rsp + 48, return address at CFA - 8, rbp at CFA - 16 */
static const uint8_t code_frameless_cfi[] = {0x0c, 7, 48, 0x80 | 16, 1, 0x80 | 6, 2};
enum { CODE_FRAMED_RETURNS_AT = 6, CODE_FRAMELESS_RETURNS_AT = 9 };

__asm__(".text\n.globl without_frame_pointer\n.type without_frame_pointer, @function\n"
	"without_frame_pointer:\n.cfi_startproc\n"
	"push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset 6, -16\n"
	"mov $0x12345, %ebp\ncall *%rdi\n"
	"pop %rbp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n"
	".size without_frame_pointer, . - without_frame_pointer\n"
	".globl with_frame_pointer\n.type with_frame_pointer, @function\n"
	"with_frame_pointer:\n.cfi_startproc\n"
	"push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset 6, -16\n"
	"mov %rdi, %rbp\ncall *%rsi\n"
	"pop %rbp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n"
	".size with_frame_pointer, . - with_frame_pointer\n");

static const uint8_t code_debuggers_trap[] = {0xcc};
/* In the handler of that trap on a function's first byte: the function returns at once. */
static inline void code_leave_at_trap(void *ucontext)
{
	greg_t *registers = ((ucontext_t *)ucontext)->uc_mcontext.gregs;
	registers[REG_RIP] = *(greg_t *)registers[REG_RSP];
	registers[REG_RSP] += 8;
}
