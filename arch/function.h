/* SPDX-License-Identifier: MIT
 * function.h: how each .S begins and ends a function. Functions are hidden, and have CFI. */
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
