/* SPDX-License-Identifier: MIT
 * catch_code_x86_64.h: the instructions of tests/support/frames_rig.h for x86-64, with the unwind
 * rules that describe them. catch_code_<arch>.h has the same for the others. */
#pragma once

namespace frames
{

/* CFA = rsp + 48, return address at CFA - 8 */
static const uint8_t frameless_cfi[] = {0x0c, 7, 48, 0x80 | 16, 1};

/* Each changes callee-saved registers that its unwind data, or the frame pointer, restores. */
inline bytes plain_code(shape kind)
{
	bytes b;
	if (kind == FRAMED) /* push rbp; mov rbp, rsp; mov rax, rdi; mov edi, esi; call rax;
			     * pop rbp; ret */
		return b({0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0, 0x5d,
			  0xc3});
	if (kind == SAVING) {
		b({0x55, 0x48, 0x89, 0xe5});       /* push rbp; mov rbp, rsp */
		b({0x53, 0x41, 0x54, 0x41, 0x55}); /* push rbx, r12, r13 */
		b({0x41, 0x56, 0x41, 0x57});       /* push r14, r15 */
		b({0x31, 0xdb, 0x45, 0x31, 0xe4, 0x45, 0x31, 0xed}); /* xor ebx, r12d, r13d */
		b({0x45, 0x31, 0xf6, 0x45, 0x31, 0xff});             /* xor r14d, r15d */
		b({0x50, 0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0}); /* push rax; the call */
		b({0x59, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d});       /* pop rcx, r15, r14, r13 */
		return b({0x41, 0x5c, 0x5b, 0x5d, 0xc3});            /* pop r12, rbx, rbp; ret */
	}
	/* sub rsp, 40; mov rax, rdi; mov edi, esi; call rax; add rsp, 40; ret */
	return b({0x48, 0x83, 0xec, 0x28, 0x48, 0x89, 0xf8, 0x89, 0xf7, 0xff, 0xd0, 0x48, 0x83,
		  0xc4, 0x28, 0xc3});
}

enum { RETURN_BYTES = 1, CALL_AT = 17, CALL_BYTES = 2, LANDING_AT = 24 };

inline bytes return_code()
{
	return bytes()({0xc3});
}

/* Saves rbx and r12 and changes them before it calls. */
inline bytes catching_code()
{
	bytes b;
	b({0x55, 0x48, 0x89, 0xe5, 0x53, 0x41, 0x54}); /* push rbp; mov rbp, rsp; push rbx, r12 */
	b({0x48, 0x89, 0xf8, 0x89, 0xf7});             /* mov rax, rdi; mov edi, esi */
	b({0x31, 0xdb, 0x45, 0x31, 0xe4});             /* xor ebx, ebx; xor r12d, r12d */
	b({0xff, 0xd0});                               /* call rax */
	b({0x41, 0x5c, 0x5b, 0x5d, 0xc3});             /* pop r12, rbx, rbp; ret */
	b({0x48, 0x89, 0xc7});                         /* mov rdi, rax: the exception lands here */
	b({0x48, 0xb8}).word(reinterpret_cast<uintptr_t>(&__cxa_begin_catch));
	b({0xff, 0xd0, 0x8b, 0x18}); /* call rax; mov ebx, [rax] */
	b({0x48, 0xb8}).word(reinterpret_cast<uintptr_t>(&__cxa_end_catch));
	b({0xff, 0xd0});                        /* call rax */
	b({0x8d, 0x83}).word(uint32_t(CAUGHT)); /* lea eax, [rbx + CAUGHT] */
	return b({0x41, 0x5c, 0x5b, 0x5d, 0xc3});
}

/* In a CIE: the return address is in 16; CFA = rsp + 8, return at CFA - 8. */
enum { RETURN_COLUMN = 16 };
inline void initial_rules(bytes &b)
{
	b({0x0c, 7, 8, 0x80 | 16, 1});
}
inline void catching_rules(bytes &b)
{
	b({0x41, 0x0e, 16, 0x86, 2}); /* after push rbp: CFA = rsp + 16, rbp at CFA - 16 */
	b({0x43, 0x0d, 6});           /* after mov: CFA = rbp + 16 */
	b({0x43, 0x83, 3, 0x8c, 4});  /* after two pushes: rbx, r12 */
}
inline void frameless_rules(bytes &b)
{
	b({0x0c, 7, 48, 0x80 | 16, 1}); /* as frameless_cfi */
}

} // namespace frames

#define FRAMES_CHANGE_REGISTERS()                                                \
	asm volatile("xor %%ebx, %%ebx; xor %%r12d, %%r12d; xor %%r13d, %%r13d;" \
		     "xor %%r14d, %%r14d; xor %%r15d, %%r15d" ::                 \
			     : "rbx", "r12", "r13", "r14", "r15")

asm(R"(
	.text
	.p2align 4
	.globl frames_keeps_registers
	.hidden frames_keeps_registers
	.type frames_keeps_registers, @function
frames_keeps_registers:
	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	mov %rsp, %rbp
	.cfi_def_cfa_register rbp
	push %rbx
	.cfi_offset rbx, -24
	push %r12
	.cfi_offset r12, -32
	push %r13
	.cfi_offset r13, -40
	push %r14
	.cfi_offset r14, -48
	push %r15
	.cfi_offset r15, -56
	push %rdx
	push %rbp
	sub $8, %rsp
	mov %rdi, %rax
	mov %rsi, %rdi
	movabs $0x1b1b1b1b1b1b1b1b, %rbx
	lea 12(%rbx), %r12
	lea 13(%rbx), %r13
	lea 14(%rbx), %r14
	lea 15(%rbx), %r15
	call *%rax
	add $8, %rsp
	pop %rcx
	pop %rdx
	mov %eax, (%rdx)
	movabs $0x1b1b1b1b1b1b1b1b, %rdx
	sub %rbp, %rcx
	sub %rdx, %rbx
	lea 12(%rdx), %rax
	sub %rax, %r12
	lea 13(%rdx), %rax
	sub %rax, %r13
	lea 14(%rdx), %rax
	sub %rax, %r14
	lea 15(%rdx), %rax
	sub %rax, %r15
	or %rbx, %rcx
	or %r12, %rcx
	or %r13, %rcx
	or %r14, %rcx
	or %r15, %rcx
	xor %eax, %eax
	test %rcx, %rcx
	sete %al
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbx
	pop %rbp
	.cfi_def_cfa rsp, 8
	ret
	.cfi_endproc
	.size frames_keeps_registers, . - frames_keeps_registers
)");
