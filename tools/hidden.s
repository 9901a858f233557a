/* SPDX-License-Identifier: MIT
 * Hides the names that gdb looks for in an archive (Makefile): a program that had them would give its list to each
 * shared object with a JIT of its own, as LLVM's, which has another lock. A relocation without effect makes the linker
 * read the visibility. It has an instruction to lie at: gold takes none at the end of a section. */
	.hidden	__jit_debug_descriptor
	.reloc	., BFD_RELOC_NONE, __jit_debug_descriptor
	.hidden	__jit_debug_register_code
	.reloc	., BFD_RELOC_NONE, __jit_debug_register_code
	nop
	.section .note.GNU-stack, "", %progbits
