/* SPDX-License-Identifier: MIT
 * x86_64.S: the entry of stubs, and the capture of callee-saved registers. arch.h and
 * x86_64.c assert the offsets.
 *
 * The entry leaves by `ret` through a slot of the frame: the stub's call has pushed an entry on the
 * processor's return-address stack, and a jump would make every later return of the program
 * mispredict. */

#include "arch/function.h"

	.text

	.set REGS_BYTES, 320	/* struct ch_regs, rounded up to 64 */
	.set REGS_PC, 256
	.set REGS_SP, 264
	.set REGS_EXTENDED, 272
	.set REGS_CONTEXT, 280	/* behind the struct */
	.set CONTEXT_HIT, 0
	.set CONTEXT_EXTENDED_BYTES, 8
	.set CONTEXT_EXTENDED_MASK, 16

/* The frame, from rbx upwards. The CFA is sp at the branch site. */
	.set SLOT_R12, 0
	.set SLOT_RBX, 8
	.set SLOT_FLAGS, 16
	.set SLOT_CONTEXT, 24	/* rbp of the site while the callback runs */
	.set SLOT_RETURN, 32
	.set FRAME_BYTES, 40

/* ch__arch_stub_entry: entered from the trampoline by a jump.
 * in    [rsp] context, [rsp + 8] return address into the stub, rsp + 16 = sp at the branch site.
 *       All registers and flags belong to the code at the site.
 * The entry leaves r13 to r15 untouched until the callback has returned, so that an unwinder that
 * passes through needs rules for rbx, r12 and rbp only. The slots of rbp and of the return address
 * are a frame record, by which a walk finds the block and goes on. A longjmp out of the callback
 * skips nothing: the frame holds no state that outlives it. */
	function ch__arch_stub_entry, 6
	.cfi_def_cfa %rsp, 16
	endbr64
	pushfq
	.cfi_def_cfa_offset 24
	pushq	%rbx
	.cfi_def_cfa_offset 32
	.cfi_offset %rbx, -32
	pushq	%r12
	.cfi_def_cfa_offset 40
	.cfi_offset %r12, -40
	movq	%rsp, %rbx
	.cfi_def_cfa %rbx, FRAME_BYTES

	/* Any alignment of sp is legal at a site. */
	subq	$REGS_BYTES, %rsp
	andq	$-64, %rsp
	movq	%rsp, %r12
	movq	%rax, 0(%r12)
	movq	%rcx, 8(%r12)
	movq	%rdx, 16(%r12)
	movq	SLOT_RBX(%rbx), %rax
	movq	%rax, 24(%r12)
	leaq	FRAME_BYTES(%rbx), %rax
	movq	%rax, 32(%r12)
	movq	%rax, REGS_SP(%r12)
	movq	%rbp, 40(%r12)
	movq	%rsi, 48(%r12)
	movq	%rdi, 56(%r12)
	.irp	number, 8, 9, 10, 11, 13, 14, 15
	movq	%r\number, 8 * \number(%r12)
	.endr
	movq	SLOT_R12(%rbx), %rax
	movq	%rax, 96(%r12)

	/* Extended state. The header is cleared first: xsave writes only a part of the header, and
	 * xrstor refuses stray bits there. */
	movq	SLOT_CONTEXT(%rbx), %rdi
	movq	CONTEXT_EXTENDED_BYTES(%rdi), %rcx
	testq	%rcx, %rcx
	jz	1f
	/* A stack's guard may be a single page, and some images have three: each page is read on
	 * the way down. */
6:	cmpq	$4096, %rcx
	jbe	7f
	subq	$4096, %rsp
	testb	$0, (%rsp)
	subq	$4096, %rcx
	jmp	6b
7:	subq	%rcx, %rsp
	xorl	%eax, %eax
	.irp	at, 512, 520, 528, 536, 544, 552, 560, 568
	movq	%rax, \at(%rsp)
	.endr
	movl	CONTEXT_EXTENDED_MASK(%rdi), %eax
	movl	CONTEXT_EXTENDED_MASK + 4(%rdi), %edx
	xsave64	(%rsp)
	jmp	2f
1:	subq	$512, %rsp
	fxsave64 (%rsp)
2:	movq	%rsp, REGS_EXTENDED(%r12)

	movq	%rdi, REGS_CONTEXT(%r12)
	movq	%rbp, SLOT_CONTEXT(%rbx)
	.cfi_offset %rbp, SLOT_CONTEXT - FRAME_BYTES
	leaq	SLOT_CONTEXT(%rbx), %rbp

	/* The callback is called as the ABI says, with DF clear and the x87 stack empty. */
	emms
	cld
	movq	%r12, %rsi
	movq	SLOT_RETURN(%rbx), %rdx
	call	*CONTEXT_HIT(%rdi)

	movq	REGS_CONTEXT(%r12), %rdi
	cmpq	$0, CONTEXT_EXTENDED_BYTES(%rdi)
	je	3f
	movl	CONTEXT_EXTENDED_MASK(%rdi), %eax
	movl	CONTEXT_EXTENDED_MASK + 4(%rdi), %edx
	xrstor64 (%rsp)
	jmp	4f
3:	fxrstor64 (%rsp)
4:
	/* The callback may have changed any general register but sp. */
	movq	REGS_PC(%r12), %rax
	movq	%rax, SLOT_RETURN(%rbx)
	movq	24(%r12), %rax
	movq	%rax, SLOT_RBX(%rbx)
	movq	96(%r12), %rax
	movq	%rax, SLOT_R12(%rbx)

	/* A thread may have a shadow stack whether the heap's maker had one or not. Without a
	 * shadow stack rdsspq leaves the register alone. */
	xorl	%eax, %eax
	rdsspq	%rax
	testq	%rax, %rax
	.cfi_remember_state
	jne	5f

	.macro	restore_registers
	movq	0(%r12), %rax
	movq	8(%r12), %rcx
	movq	16(%r12), %rdx
	movq	40(%r12), %rbp
	.cfi_restore %rbp
	movq	48(%r12), %rsi
	movq	56(%r12), %rdi
	.irp	number, 8, 9, 10, 11, 13, 14, 15
	movq	8 * \number(%r12), %r\number
	.endr
	movq	%rbx, %rsp
	.cfi_def_cfa %rsp, FRAME_BYTES
	popq	%r12
	.cfi_def_cfa_offset 32
	.cfi_restore %r12
	popq	%rbx
	.cfi_def_cfa_offset 24
	.cfi_restore %rbx
	popfq
	.cfi_def_cfa_offset 16
	.endm

	restore_registers
	leaq	8(%rsp), %rsp	/* drops the context; an add would change the flags */
	.cfi_def_cfa_offset 8
	ret

	/* With a shadow stack a `ret` must find there what the slot holds: drop the entry of the
	 * shadow stack and jump. */
5:	.cfi_restore_state
	movl	$1, %eax
	incsspq	%rax
	restore_registers
	leaq	16(%rsp), %rsp
	.cfi_def_cfa_offset 0
	jmp	*-8(%rsp)	/* below sp, in the red zone: no signal writes there */
	finish	ch__arch_stub_entry

	.macro	save_to base
	movq	%rbx, 0(\base)
	movq	%rbp, 8(\base)
	.irp	number, 12, 13, 14, 15
	movq	%r\number, 8 * (\number - 10)(\base)
	.endr
	.endm

/* void ch__arch_save_registers(struct ch__arch_saved *) */
	function ch__arch_save_registers, 4
	endbr64
	save_to	%rdi
	leaq	8(%rsp), %rax	/* the caller's sp once this call has returned */
	movq	%rax, 48(%rdi)
	ret
	finish	ch__arch_save_registers

/* void ch__arch_with_registers(void (*fn)(const struct ch__arch_saved *)), and
 * ch__arch_call_with_registers: the arguments behind fn stay where they are. */
	function ch__arch_with_registers, 4
	endbr64
	subq	$72, %rsp
	.cfi_adjust_cfa_offset 72
	save_to	%rsp
	leaq	80(%rsp), %rax
	movq	%rax, 48(%rsp)
	movq	%rdi, %rax
	movq	%rsp, %rdi
	call	*%rax
	addq	$72, %rsp
	.cfi_adjust_cfa_offset -72
	ret
	finish	ch__arch_with_registers

/* GNU_PROPERTY_X86_FEATURE_1_AND (System V ABI, AMD64 supplement): this object keeps a shadow stack
 * in step. The linker keeps the property if all objects have it. Without it the loader turns the
 * shadow stack off. A stub goes on at code that has no landing pad, so IBT is not among them. */
	.section .note.gnu.property, "a", @note
	.p2align 3
	.long	4		/* "GNU" and a 0 */
	.long	16
	.long	5		/* NT_GNU_PROPERTY_TYPE_0 */
	.asciz	"GNU"
	.long	0xc0000002
	.long	4
	.long	2		/* SHSTK */
	.long	0

	.section .note.GNU-stack, "", @progbits
