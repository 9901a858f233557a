/* SPDX-License-Identifier: MIT
 * aarch64.S: the entry of stubs, and the capture of callee-saved registers. arch.h and
 * aarch64.c assert the offsets.
 *
 * Frames here are not signed, so that unwinders of any age pass them. BTI is a hint: older
 * processors ignore the instruction. */

#include "arch/function.h"

	.text

	.set REGS_BYTES, 288	/* struct ch_regs, rounded up to 16 */
	.set REGS_PC, 256
	.set REGS_SP, 264
	.set REGS_EXTENDED, 272
	.set CONTEXT_HIT, 0

/* The frame of the entry, from sp upwards. The CFA is sp at the branch site. */
	.set SLOT_EXTENDED, REGS_BYTES	/* q0-q31, fpsr, fpcr */
	.set SLOT_FLAGS, SLOT_EXTENDED + 528
	.set FRAME_BYTES, SLOT_FLAGS + 16	/* without the frame record */
	.set CFA_FROM_SP, FRAME_BYTES + 16

	.macro	bti_c
	hint	#34
	.endm

	.macro	vectors op
	\op	q0, q1, [x1]
	\op	q2, q3, [x1, #32]
	\op	q4, q5, [x1, #64]
	\op	q6, q7, [x1, #96]
	\op	q8, q9, [x1, #128]
	\op	q10, q11, [x1, #160]
	\op	q12, q13, [x1, #192]
	\op	q14, q15, [x1, #224]
	\op	q16, q17, [x1, #256]
	\op	q18, q19, [x1, #288]
	\op	q20, q21, [x1, #320]
	\op	q22, q23, [x1, #352]
	\op	q24, q25, [x1, #384]
	\op	q26, q27, [x1, #416]
	\op	q28, q29, [x1, #448]
	\op	q30, q31, [x1, #480]
	.endm

	.macro	general op
	\op	x2, x3, [sp, #16]
	\op	x4, x5, [sp, #32]
	\op	x6, x7, [sp, #48]
	\op	x8, x9, [sp, #64]
	\op	x10, x11, [sp, #80]
	\op	x12, x13, [sp, #96]
	\op	x14, x15, [sp, #112]
	\op	x18, x19, [sp, #144]
	\op	x20, x21, [sp, #160]
	\op	x22, x23, [sp, #176]
	\op	x24, x25, [sp, #192]
	\op	x26, x27, [sp, #208]
	.endm

/* ch__arch_stub_entry: entered from the trampoline by a jump.
 * in    [sp] context, [sp + 8] and x17 return address into the stub, sp + 16 = sp at the branch
 *       site. All registers and flags but x16 and x17 belong to the code at the site.
 * The entry leaves callee-saved registers untouched until the callback has returned, so that an
 * unwinder that passes through needs rules for x29 and x30 only. The return address into the stub
 * has the column of x17, since x30 belongs to the site. The saved x29 and the return address are a
 * frame record, by which a walk finds the block and goes on. A longjmp out of the callback skips
 * nothing: the frame holds no state that outlives it. */
	function ch__arch_stub_entry, 6
	.cfi_return_column 17
	.cfi_def_cfa sp, 16
	.cfi_offset x17, -8
	bti_c
	ldr	x16, [sp]
	str	x29, [sp]
	.cfi_offset x29, -16
	mov	x29, sp
	.cfi_def_cfa x29, 16
	sub	sp, sp, #FRAME_BYTES

	stp	x0, x1, [sp]
	general	stp
	stp	xzr, xzr, [sp, #128]
	ldr	x0, [x29]
	stp	x28, x0, [sp, #224]
	add	x1, x29, #16
	stp	x30, x1, [sp, #240]
	.cfi_offset x30, 240 - CFA_FROM_SP
	str	x1, [sp, #REGS_SP]

	add	x1, sp, #SLOT_EXTENDED
	str	x1, [sp, #REGS_EXTENDED]
	vectors	stp
	mrs	x2, fpsr
	mrs	x3, fpcr
	mrs	x4, nzcv
	str	x2, [x1, #512]
	str	x3, [x1, #520]
	str	x4, [sp, #SLOT_FLAGS]

	mov	x0, x16
	mov	x1, sp
	ldr	x2, [x29, #8]
	ldr	x16, [x16, #CONTEXT_HIT]
	blr	x16

	/* The callback may have changed any general register but sp. The entry leaves by x17. */
	add	x1, sp, #SLOT_EXTENDED
	vectors	ldp
	ldr	x2, [x1, #512]
	ldr	x3, [x1, #520]
	ldr	x4, [sp, #SLOT_FLAGS]
	msr	fpsr, x2
	msr	fpcr, x3
	msr	nzcv, x4
	ldr	x17, [sp, #REGS_PC]
	ldr	x16, [sp, #128]
	general	ldp
	.cfi_def_cfa sp, CFA_FROM_SP
	ldp	x28, x29, [sp, #224]
	.cfi_restore x29
	ldr	x30, [sp, #240]
	.cfi_restore x30
	ldp	x0, x1, [sp]
	add	sp, sp, #CFA_FROM_SP
	.cfi_def_cfa_offset 0
	.cfi_same_value x17
	br	x17		/* a jump by x17 may land where a call may */
	finish	ch__arch_stub_entry

	.macro	save_to base, at
	stp	x19, x20, [\base, #\at]
	stp	x21, x22, [\base, #\at + 16]
	stp	x23, x24, [\base, #\at + 32]
	stp	x25, x26, [\base, #\at + 48]
	stp	x27, x28, [\base, #\at + 64]
	stp	x29, x30, [\base, #\at + 80]
	stp	d8, d9, [\base, #\at + 96]
	stp	d10, d11, [\base, #\at + 112]
	stp	d12, d13, [\base, #\at + 128]
	stp	d14, d15, [\base, #\at + 144]
	.endm

/* void ch__arch_save_registers(struct ch__arch_saved *) */
	function ch__arch_save_registers, 4
	bti_c
	save_to	x0, 0
	mov	x9, sp		/* a call does not move sp */
	str	x9, [x0, #160]
	ret
	finish	ch__arch_save_registers

/* void ch__arch_with_registers(void (*fn)(const struct ch__arch_saved *)), and
 * ch__arch_call_with_registers: the arguments behind fn stay where they are. */
	.set SAVED_FRAME_BYTES, 192	/* frame record, struct ch__arch_saved */
	function ch__arch_with_registers, 4
	bti_c
	stp	x29, x30, [sp, #-SAVED_FRAME_BYTES]!
	.cfi_def_cfa_offset SAVED_FRAME_BYTES
	.cfi_offset x29, -SAVED_FRAME_BYTES
	.cfi_offset x30, 8 - SAVED_FRAME_BYTES
	save_to	sp, 16
	add	x9, sp, #SAVED_FRAME_BYTES
	str	x9, [sp, #176]
	mov	x29, sp
	mov	x16, x0
	add	x0, sp, #16
	blr	x16
	ldp	x29, x30, [sp], #SAVED_FRAME_BYTES
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
	ret
	finish	ch__arch_with_registers

/* GNU_PROPERTY_AARCH64_FEATURE_1_AND (ELF for the Arm 64-bit architecture): this object has landing
 * pads (BTI). The linker keeps the property if all objects have it. */
	.section .note.gnu.property, "a", %note
	.p2align 3
	.word	4		/* "GNU" and a 0 */
	.word	16
	.word	5		/* NT_GNU_PROPERTY_TYPE_0 */
	.asciz	"GNU"
	.word	0xc0000000
	.word	4
	.word	1		/* BTI */
	.word	0

	.section .note.GNU-stack, "", %progbits
