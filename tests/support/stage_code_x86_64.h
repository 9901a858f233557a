/* SPDX-License-Identifier: MIT
 * stage_code_x86_64.h: tests/support/stage_code.h for x86-64. A block's argument is in rdi, its
 * result in rax; emitters change only the registers in their comments. */
#pragma once

#include "tests/support/code.h"

#include <signal.h>

enum {
	CODE_TRAP_BEHIND_BYTES = 1, /* a trap leaves the pc so far behind its first byte */
	CODE_NOP_BYTES = 1,
	CODE_RETURN_BYTES = 1,
	CODE_ENTER_BYTES = 4,
	CODE_VALUE_BYTES = 5,   /* emit_value */
	CODE_CALL_C_BYTES = 12, /* emit_call_c at an address that is 4 above a multiple of 8 */
	CODE_HANDLER_RECORDS_LINK = 0, /* a handler has no frame record of the kernel's */
};

/* --- frames --- */

/* A frame that keeps the argument over calls: push rbp; mov rbp, rsp; push rdi; sub rsp, 8 ... */
static inline void emit_frame(struct emitter *e)
{
	emit_enter(e);
	EMIT(e, 0x57, 0x48, 0x83, 0xec, 0x08);
}
/* ... add rsp, 8; pop rdi; pop rbp: the argument is there again */
static inline void emit_frame_end(struct emitter *e)
{
	EMIT(e, 0x48, 0x83, 0xc4, 0x08, 0x5f, 0x5d);
}
/* mov rdi, [rbp - 8]: the kept argument, the frame stays */
static inline void emit_frame_argument(struct emitter *e)
{
	EMIT(e, 0x48, 0x8b, 0x7d, 0xf8);
}
/* pop rbp: ends emit_enter's frame without a return */
static inline void emit_exit(struct emitter *e)
{
	EMIT(e, 0x5d);
}

/* --- argument and result --- */

/* mov rdi, word */
static inline void emit_argument(struct emitter *e, uint64_t word)
{
	EMIT(e, 0x48, 0xbf);
	emit_u64(e, word);
}
/* mov rdi, rax */
static inline void emit_result_as_argument(struct emitter *e)
{
	EMIT(e, 0x48, 0x89, 0xc7);
}
/* mov rax, rdi */
static inline void emit_argument_as_result(struct emitter *e)
{
	EMIT(e, 0x48, 0x89, 0xf8);
}
/* mov rax, rcx: the word of emit_ref_word */
static inline void emit_ref_as_result(struct emitter *e)
{
	EMIT(e, 0x48, 0x89, 0xc8);
}
/* mov rdx, [rcx]; add [rdi], rdx: adds the value that emit_ref_word's word leads to */
static inline void emit_add_at_ref(struct emitter *e)
{
	EMIT(e, 0x48, 0x8b, 0x11, 0x48, 0x01, 0x17);
}

/* --- waiting --- */

/* mov dword [rdi], value */
static inline void emit_tell(struct emitter *e, uint8_t value)
{
	EMIT(e, 0xc7, 0x07, value, 0, 0, 0);
}
/* L: pause; cmp dword [rdi], value; jne L */
static inline void emit_wait_for(struct emitter *e, uint8_t value)
{
	EMIT(e, 0xf3, 0x90, 0x83, 0x3f, value, 0x75, 0xf9);
}
/* L: mov eax, [rdi]; test eax, eax; jz L */
static inline void emit_wait_while_zero(struct emitter *e)
{
	EMIT(e, 0x8b, 0x07, 0x85, 0xc0, 0x74, 0xfa);
}
/* mov ecx, rounds; L: dec ecx; jnz L */
static inline void emit_count_down(struct emitter *e, uint32_t rounds)
{
	EMIT(e, 0xb9);
	emit_u32(e, rounds);
	EMIT(e, 0xff, 0xc9, 0x75, 0xfc);
}

/* --- addresses of code, hidden --- */

/* mov r11, [rdi + 8]; mov r11, [r11]: the code of the cell, in a register only ... */
static inline void emit_load_code(struct emitter *e)
{
	EMIT(e, 0x4c, 0x8b, 0x5f, 0x08, 0x4d, 0x8b, 0x1b);
}
/* ... jmp r11 */
static inline void emit_jump_code(struct emitter *e)
{
	EMIT(e, 0x41, 0xff, 0xe3);
}
/* Moves the address of emit_load_code to a vector register and clears r11: movq xmm15, r11. For the
 * upper half of a vector: vmovq xmm15, r11; vperm2f128 ymm15, ymm15, ymm15, 1. Returns false when
 * the processor has no such half ... */
static inline bool emit_hide_code(struct emitter *e, bool in_upper_half)
{
	if (in_upper_half && !__builtin_cpu_supports("avx"))
		return false;
	if (in_upper_half)
		EMIT(e, 0xc4, 0x41, 0xf9, 0x6e, 0xfb, 0xc4, 0x43, 0x05, 0x06, 0xff, 0x01);
	else
		EMIT(e, 0x66, 0x4d, 0x0f, 0x6e, 0xfb);
	EMIT(e, 0x45, 0x31, 0xdb);
	return true;
}
/* ... and back */
static inline void emit_unhide_code(struct emitter *e, bool in_upper_half)
{
	if (in_upper_half)
		EMIT(e, 0xc4, 0x43, 0x05, 0x06, 0xff, 0x01);
	EMIT(e, 0x66, 0x4d, 0x0f, 0x7e, 0xfb);
}
/* mov rax, [rdi + 8]; mov rax, [rax]; mov [rsp - 16], rax; xor eax, eax: in the red zone only, or,
 * without a red zone, at sp itself ... */
static inline void emit_stash_code(struct emitter *e)
{
	EMIT(e, 0x48, 0x8b, 0x47, 0x08, 0x48, 0x8b, 0x00);
	EMIT(e, 0x48, 0x89, 0x44, 0x24, 0xf0, 0x31, 0xc0);
}
/* ... jmp [rsp - 16] */
static inline void emit_jump_stashed(struct emitter *e)
{
	EMIT(e, 0xff, 0x64, 0x24, 0xf0);
}
/* jmp rax: to the address of emit_site_lea */
static inline void emit_jump_address(struct emitter *e)
{
	EMIT(e, 0xff, 0xe0);
}
/* mov rax, [rip + ...]; jmp rax. Returns the literal site. */
static inline const void *emit_jump_literal(struct emitter *e)
{
	EMIT(e, 0x48, 0x8b, 0x05, 0, 0, 0, 0);
	uint32_t from = e->at;
	EMIT(e, 0xff, 0xe0);
	const uint8_t *site = emit_site_literal(e);
	uint32_t distance = (uint32_t)(site - (e->code.exec + from));
	memcpy(e->code.write + from - 4, &distance, 4);
	return site;
}
/* xor eax, eax: a branch of emit_site_jcc(e, EMIT_CC_E) behind is taken */
static inline void emit_condition_e(struct emitter *e)
{
	EMIT(e, 0x31, 0xc0);
}

/* --- faults --- */

/* int3: the library's trap, and as well a breakpoint of the VM's own */
static inline void emit_breakpoint(struct emitter *e)
{
	EMIT(e, 0xcc);
}
/* Five single-byte instructions, and a faulting instruction at this offset. */
static const struct code_fault {
	int signal;
	uint32_t at;
} code_faults[] = {{SIGTRAP, 5}, {SIGSEGV, 7}, {SIGILL, 5}, {SIGFPE, 8}};
enum { CODE_FAULTS = sizeof code_faults / sizeof code_faults[0] };
static inline void emit_fault(struct emitter *e, int signal)
{
	emit_nops(e, 5);
	if (signal == SIGTRAP)
		emit_breakpoint(e);
	if (signal == SIGSEGV)
		EMIT(e, 0x31, 0xc0, 0x8b, 0x00); /* xor eax, eax; mov eax, [rax] */
	if (signal == SIGILL)
		EMIT(e, 0x0f, 0x0b); /* ud2 */
	if (signal == SIGFPE)
		EMIT(e, 0x31, 0xc0, 0x99, 0xf7, 0xf0); /* xor eax, eax; cdq; div eax */
	emit_ret(e);
}
/* The same fault in the test's own code. Returns false when no instruction raises the signal. */
static inline bool code_raise(int signal)
{
	volatile int zero = 0;
	if (signal == SIGTRAP)
		__asm__ volatile("int3");
	if (signal == SIGILL)
		__asm__ volatile("ud2");
	if (signal == SIGFPE)
		__asm__ volatile("xorl %%eax, %%eax; cdq; idivl %0" ::"m"(zero) : "eax", "edx");
	return true;
}
/* A trap in front of an instruction that ends the process. */
static inline void code_trap_or_end(void)
{
	__asm__ volatile("int3; jmp 1f; 1: hlt");
}
/* Jumps with another stack pointer. */
__attribute__((noreturn)) static inline void code_jump_on_stack(const void *stack, const void *to)
{
	__asm__ volatile("mov %0, %%rsp; jmp *%1" ::"r"(stack), "r"(to));
	__builtin_unreachable();
}

/* --- the stack --- */

static inline uintptr_t code_sp(void)
{
	uintptr_t sp;
	__asm__ volatile("movq %%rsp, %0" : "=r"(sp));
	return sp;
}
