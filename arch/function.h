/* SPDX-License-Identifier: MIT
 * function.h: how each .S begins and ends a function, and its table of templates. Functions are
 * hidden, and have CFI. */
#pragma once

	.macro	function name, align
	.globl	\name
	.hidden	\name
	.type	\name, %function
	.p2align \align
\name:
	.cfi_startproc
	.endm

	.macro	finish name
	.cfi_endproc
	.size	\name, . - \name
	.endm

/* struct ch__arch_template of one kind. */
	.macro	template_record name
	.quad	template_\name
	.short	template_\name\()_end - template_\name
	.short	template_\name\()_target - template_\name
	.short	template_\name\()_payload - template_\name
	.short	0
	.endm

/* The ABI of x86-64 aligns an array of 16 bytes and more to 16, and compilers rely on that. */
	.macro	templates
	.section .data.rel.ro, "aw", %progbits
	.globl	ch__arch_templates
	.hidden	ch__arch_templates
	.type	ch__arch_templates, %object
	.p2align 4
ch__arch_templates:
	template_record framed
	template_record tail
	.size	ch__arch_templates, . - ch__arch_templates
	.endm
