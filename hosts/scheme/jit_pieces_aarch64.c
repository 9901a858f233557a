/* SPDX-License-Identifier: MIT
 * jit_pieces_aarch64.c: the fixed pieces of machine code of aarch64: entries from C, and the
 * targets of exits, guards, fallbacks and the arena's stubs. x19 holds the context, x20 the frame.
 * A piece that is reached through a register begins with a landing pad. Pieces leave by x16, which
 * each pad takes.
 */
#include "jit.h"

#define TEXT(x) #x
#define OFFSET_TEXT(x) TEXT(x)
#define CONTEXT_PC 80
#define CONTEXT_TAIL_ARGC 104
#define CODE_ENTRY_CELL 24
#define TAIL_MARK 0x62
_Static_assert(offsetof(struct context, pc) == CONTEXT_PC, "the guard's thunk loads it");
_Static_assert(offsetof(struct context, tail_argc) == CONTEXT_TAIL_ARGC, "a thunk loads it");
_Static_assert(offsetof(struct code, entry_cell) == CODE_ENTRY_CELL, "a thunk loads it");
_Static_assert(offsetof(struct closure, code) == 8 && V_TAIL == TAIL_MARK, "a thunk knows it");

/* Names of `hint` for assemblers that do not know the instruction. */
#define BTI_C "	hint #34\n"
#define PIECE(name) ".globl " name "\n.type " name ",@function\n" name ":\n"
#define PUSH_FRAME "	stp x29, x30, [sp, #-16]!\n	mov x29, sp\n"
#define POP_FRAME "	ldp x29, x30, [sp], #16\n"
#define CONTEXT_AND_FRAME "	mov x0, x19\n	mov x1, x20\n"

/* jit_go_on_ is the one way into the interpreter: with a frame up, arguments of interp_activate
 * set. The activation may end in machine code again, by a tail call or at a loop's head. Then the
 * frame is used again, so that alternating without end needs no stack. */
/* clang-format off */
__asm__(
	".text\n"
	".p2align 2\n"
	PIECE("jit_exit_thunk")
	BTI_C
	CONTEXT_AND_FRAME
	"jit_go_on_:\n"
	"	bl interp_activate\n"
	"jit_went_on_:\n"
	"	cmp x0, #" OFFSET_TEXT(TAIL_MARK) "\n"
	"	b.ne 9f\n"
	"	mov x0, x19\n"
	"	bl jit_tail_target\n"
	"jit_take_target_:\n"
	"	mov x16, x0\n"
	"	cmp w1, #1\n"
	"	b.eq 3f\n"
	"	b.hi 4f\n"
	"	ldr x2, [x19, #" OFFSET_TEXT(CONTEXT_TAIL_ARGC) "]\n"
	POP_FRAME
	"3:	br x16\n"
	"4:	mov x2, x16\n"
	"	b jit_exit_thunk\n"
	"9:\n"
	POP_FRAME
	"	ret\n"
	/* The exit of a patch point behind a call: a return into invalidated code. */
	PIECE("jit_left_thunk")
	"	str x2, [sp, #-16]!\n"
	"	mov x0, x19\n"
	"	bl jit_count_left\n"
	"	ldr x2, [sp], #16\n"
	"	b jit_exit_thunk\n"
	/* Content of an entry cell without code: ARG2 = argc. */
	PIECE("jit_fallback_thunk")
	BTI_C
	"	stp x29, x30, [sp, #-32]!\n"
	"	mov x29, sp\n"
	"	str x2, [sp, #16]\n"
	CONTEXT_AND_FRAME
	"	bl jit_entry_target\n"
	"	mov x16, x0\n"
	"	ldr x2, [sp, #16]\n"
	"	ldp x29, x30, [sp], #32\n"
	"	cbz x16, jit_interpret_thunk\n"
	"	br x16\n"
	PIECE("jit_interpret_thunk")
	BTI_C
	PUSH_FRAME
	CONTEXT_AND_FRAME
	"	bl jit_interpret\n"
	"	b jit_went_on_\n"
	/* The thunk's own frame holds the return address, and so keeps the calling block. */
	PIECE("jit_guard_thunk")
	PUSH_FRAME
	CONTEXT_AND_FRAME
	"	bl jit_guard_exit\n"
	POP_FRAME
	"	mov x16, x0\n"
	"	cbz x16, 1f\n"
	"	br x16\n"
	"1:	ldr x2, [x19, #" OFFSET_TEXT(CONTEXT_PC) "]\n"
	"	b jit_exit_thunk\n"
	/* Returns where to go on in x0, with ARG2 in x1. */
	PIECE("jit_arena_thunk")
	PUSH_FRAME
	"	mov x3, x2\n"
	"	mov x1, x19\n"
	"	mov x2, x20\n"
	"	bl jit_arena_hit\n"
	POP_FRAME
	"	mov x16, x0\n"
	"	mov x2, x1\n"
	CONTEXT_AND_FRAME
	"	br x16\n"
	/* From C: the entry of every procedure, and the entry of a loop. */
	PIECE("jit_enter")
	BTI_C
	"	stp x29, x30, [sp, #-32]!\n"
	"	mov x29, sp\n"
	"	stp x19, x20, [sp, #16]\n"
	"	mov x19, x0\n"
	"	mov x20, x1\n"
	"	ldur x16, [x1, #-8]\n"
	"	ldr x16, [x16, #8]\n"
	"	ldr x16, [x16, #" OFFSET_TEXT(CODE_ENTRY_CELL) "]\n"
	"	ldr x16, [x16]\n"
	"	blr x16\n"
	"	ldp x19, x20, [sp, #16]\n"
	"	ldp x29, x30, [sp], #32\n"
	"	ret\n"
	PIECE("jit_loop_entry")
	BTI_C
	"	stp x29, x30, [sp, #-32]!\n"
	"	mov x29, sp\n"
	"	stp x19, x20, [sp, #16]\n"
	"	mov x19, x0\n"
	"	mov x20, x1\n"
	"	bl 6f\n"
	"	ldp x19, x20, [sp, #16]\n"
	"	ldp x29, x30, [sp], #32\n"
	"	ret\n"
	"6:\n"
	PUSH_FRAME
	"	bl jit_loop_target\n"
	"	b jit_take_target_\n");
/* clang-format on */
