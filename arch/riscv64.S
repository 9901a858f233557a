/* SPDX-License-Identifier: MIT
 * riscv64.S: the entry of stubs, and the capture of callee-saved registers. arch.h and
 * riscv64.c assert the offsets.
 *
 * A stub jumps here and the entry jumps on: neither is a call, so the processor's return-address
 * stack stays in step with the program's returns. */

#include "arch/function.h"

	.option norvc		/* 4 bytes each: a case unwinds at every instruction */
	.option norelax
	.text

	.set REGS_PC, 256
	.set REGS_SP, 264
	.set REGS_EXTENDED, 272

/* Distances from sp while the callback runs. */
	.set AT_FLOAT, 0	/* f0 to f31, fcsr */
	.set AT_FCSR, 256
	.set AT_REGS, 272
	.set BELOW_BYTES, 560	/* with struct ch_regs, 16-aligned */

/* DWARF's column for a return address that is in no register. */
#define RETURN_COLUMN 64

	.irp	letter, s, l
	.macro	each_argument_\letter
	\letter\()d	t0, AT_REGS + 40(sp)
	\letter\()d	t2, AT_REGS + 56(sp)
	\letter\()d	s1, AT_REGS + 72(sp)
	\letter\()d	a0, AT_REGS + 80(sp)
	\letter\()d	a1, AT_REGS + 88(sp)
	\letter\()d	a2, AT_REGS + 96(sp)
	\letter\()d	a3, AT_REGS + 104(sp)
	\letter\()d	a4, AT_REGS + 112(sp)
	\letter\()d	a5, AT_REGS + 120(sp)
	\letter\()d	a6, AT_REGS + 128(sp)
	\letter\()d	a7, AT_REGS + 136(sp)
	\letter\()d	s2, AT_REGS + 144(sp)
	\letter\()d	s3, AT_REGS + 152(sp)
	\letter\()d	s4, AT_REGS + 160(sp)
	\letter\()d	s5, AT_REGS + 168(sp)
	\letter\()d	s6, AT_REGS + 176(sp)
	\letter\()d	s7, AT_REGS + 184(sp)
	\letter\()d	s8, AT_REGS + 192(sp)
	\letter\()d	s9, AT_REGS + 200(sp)
	\letter\()d	s10, AT_REGS + 208(sp)
	\letter\()d	s11, AT_REGS + 216(sp)
	\letter\()d	t4, AT_REGS + 232(sp)
	\letter\()d	t5, AT_REGS + 240(sp)
	\letter\()d	t6, AT_REGS + 248(sp)
	.endm
	.macro	each_float_\letter
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
	f\letter\()d	f\n, AT_FLOAT + 8 * \n(sp)
	f\letter\()d	f1\n, AT_FLOAT + 8 * 1\n(sp)
	f\letter\()d	f2\n, AT_FLOAT + 8 * 2\n(sp)
	.endr
	f\letter\()d	f30, AT_FLOAT + 8 * 30(sp)
	f\letter\()d	f31, AT_FLOAT + 8 * 31(sp)
	.endm
	.endr

/* ch__arch_stub_entry: entered from the trampoline by a jump.
 * in    [sp] context, [sp + 8] address into the stub, sp + 16 = sp at the branch site. All
 *       registers but t1 and t3 belong to the code at the site.
 * The entry leaves s1 to s11 untouched until the callback has returned, so that an unwinder that
 * passes through needs rules for s0 and ra only. The site's ra is kept apart from the address into
 * the stub, to which the frame returns for an unwinder. That address and the site's s0 are a frame
 * record, by which a walk finds the block and goes on. A longjmp out of the callback skips nothing:
 * the frame holds no state that outlives it. The callback sees gp and tp, and the entry does not
 * load them: they are the thread's, and another thread may return from the callback. */
	function ch__arch_stub_entry, 6
	.cfi_return_column RETURN_COLUMN
	.cfi_def_cfa sp, 16
	.cfi_offset RETURN_COLUMN, -8
	ld	t1, 0(sp)
	sd	s0, 0(sp)
	.cfi_offset s0, -16
	addi	s0, sp, 16
	.cfi_def_cfa s0, 0
	addi	sp, sp, -16
	sd	ra, -24(s0)
	.cfi_offset ra, -24

	/* Any alignment of sp is legal at a site. */
	addi	sp, sp, -BELOW_BYTES
	andi	sp, sp, -16
	each_argument_s
	sd	zero, AT_REGS(sp)
	sd	ra, AT_REGS + 8(sp)
	sd	s0, AT_REGS + 16(sp)
	sd	s0, AT_REGS + REGS_SP(sp)
	sd	gp, AT_REGS + 24(sp)
	sd	tp, AT_REGS + 32(sp)
	sd	t1, AT_REGS + 48(sp)
	ld	t0, -16(s0)
	sd	t0, AT_REGS + 64(sp)
	sd	t3, AT_REGS + 224(sp)
	each_float_s
	frcsr	t0
	sd	t0, AT_FCSR(sp)
	sd	sp, AT_REGS + REGS_EXTENDED(sp)

	mv	a0, t1
	addi	a1, sp, AT_REGS
	ld	a2, -8(s0)
	ld	t0, 0(t1)
	jalr	t0

	/* The callback may have changed any general register but sp, gp and tp. */
	ld	t0, AT_FCSR(sp)
	fscsr	t0
	each_float_l
	each_argument_l
	ld	t1, AT_REGS + REGS_PC(sp)
	.cfi_register RETURN_COLUMN, t1
	ld	ra, AT_REGS + 8(sp)
	.cfi_restore ra
	mv	t3, s0
	.cfi_def_cfa t3, 0
	ld	s0, AT_REGS + 64(sp)
	.cfi_restore s0
	mv	sp, t3
	.cfi_def_cfa sp, 0
	jr	t1
	finish	ch__arch_stub_entry

	.macro	save_to base
	sd	s0, 0(\base)
	sd	s1, 8(\base)
	sd	s2, 16(\base)
	sd	s3, 24(\base)
	sd	s4, 32(\base)
	sd	s5, 40(\base)
	sd	s6, 48(\base)
	sd	s7, 56(\base)
	sd	s8, 64(\base)
	sd	s9, 72(\base)
	sd	s10, 80(\base)
	sd	s11, 88(\base)
	sd	ra, 96(\base)
	fsd	fs0, 104(\base)
	fsd	fs1, 112(\base)
	fsd	fs2, 120(\base)
	fsd	fs3, 128(\base)
	fsd	fs4, 136(\base)
	fsd	fs5, 144(\base)
	fsd	fs6, 152(\base)
	fsd	fs7, 160(\base)
	fsd	fs8, 168(\base)
	fsd	fs9, 176(\base)
	fsd	fs10, 184(\base)
	fsd	fs11, 192(\base)
	.endm

/* void ch__arch_save_registers(struct ch__arch_saved *) */
	function ch__arch_save_registers, 4
	save_to	a0
	sd	sp, 200(a0)
	ret
	finish	ch__arch_save_registers

/* void ch__arch_with_registers(void (*fn)(const struct ch__arch_saved *)), and
 * ch__arch_call_with_registers: the arguments behind fn stay where they are. */
	function ch__arch_with_registers, 4
	addi	sp, sp, -224
	.cfi_def_cfa_offset 224
	sd	ra, 216(sp)
	.cfi_offset ra, -8
	save_to	sp
	addi	t0, sp, 224
	sd	t0, 200(sp)
	mv	t0, a0
	mv	a0, sp
	jalr	t0
	ld	ra, 216(sp)
	.cfi_restore ra
	addi	sp, sp, 224
	.cfi_def_cfa_offset 0
	ret
	finish	ch__arch_with_registers

	.section .note.GNU-stack, "", @progbits
