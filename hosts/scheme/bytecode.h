/* SPDX-License-Identifier: MIT
 * bytecode.h: the instruction set, and the struct code that holds instructions. Register code: a,
 * b, c name slots of the frame (frame.h), so every value has one known home at every pc.
 *
 * An instruction is one 8-byte word: op, a, b, c of 16 bits; `bc` is b and c as one signed 32-bit
 * number. A constant operand is a distance in words from the instruction itself to the constant;
 * constants lie behind the last instruction of the same struct code. A jump distance counts from
 * the instruction itself. Formats, for walkers:
 *
 *   N     nothing           ABC    three slots         ABI   c is a signed immediate
 *   A     slot a            AB     slots a, b          AK    bc is a constant
 *   AF    bc is a signed fixnum                        X     second word (EXT)
 *   J     bc is a jump      AJ     a, bc is a jump     ABJ   a, b, c is a jump
 *   AIJ   b an immediate, c a jump                     ATJ   b a type, c a jump
 */
#pragma once

#include "value.h"

/* Calls: CALL a=dst b=base c=argc: closure in slot base+2, arguments from base+3 on.
 * CALLG b=base c=argc, then EXT a=dst bc=cell. TAILCALL b=base c=argc, TAILCALLG likewise + EXT.
 * TRETURN and the like: of a traced procedure; they record the end of the activation first.
 * APPLY a=dst b=base: closure in base+2, list of arguments in base+3.
 * A tail call with more than MOST_TAIL_ARGS arguments is a TAILAPPLY; a procedure with a rest list
 * has slots for MOST_TAIL_ARGS. So arguments of calls always lie in a frame that the collector
 * knows, the caller's or the callee's; arg_top covers arguments of APPLY.
 * The word in front of every return pc has the destination in its field a. */
#define BYTECODES(X) \
	X(MOVE, AB) X(CONST, AK) X(FIX, AF) X(GREF, AK) X(GSET, AK) X(GDEF, AK) X(FREE, AB) \
	X(BOX, AB) X(BOXREF, AB) X(BOXSET, AB) X(CLOSURE, AK) X(CAPTURE, ABC) X(LOOP, N) \
	X(JMP, J) X(JT, AJ) X(JF, AJ) X(JNULL, AJ) X(JNNULL, AJ) \
	X(JTYPE, ATJ) X(JNTYPE, ATJ) X(JEQ, ABJ) X(JNEQ, ABJ) \
	X(JLT, ABJ) X(JLE, ABJ) X(JGT, ABJ) X(JGE, ABJ) X(JNUMEQ, ABJ) \
	X(JNLT, ABJ) X(JNLE, ABJ) X(JNGT, ABJ) X(JNGE, ABJ) X(JNNUMEQ, ABJ) \
	X(JLTI, AIJ) X(JLEI, AIJ) X(JGTI, AIJ) X(JGEI, AIJ) X(JNUMEQI, AIJ) \
	X(JNLTI, AIJ) X(JNLEI, AIJ) X(JNGTI, AIJ) X(JNGEI, AIJ) X(JNNUMEQI, AIJ) \
	X(ADD, ABC) X(SUB, ABC) X(MUL, ABC) X(DIV, ABC) X(ADDI, ABI) \
	X(QUO, ABC) X(REM, ABC) X(MOD, ABC) \
	X(CAR, AB) X(CDR, AB) X(CONS, ABC) X(SETCAR, AB) X(SETCDR, AB) \
	X(VREF, ABC) X(VSET, ABC) X(VLEN, AB) X(SREF, ABC) \
	X(RECREF, ABC) X(RECSET, ABC) \
	X(CALL, ABC) X(CALLG, ABC) X(TAILCALL, ABC) X(TAILCALLG, ABC) X(APPLY, ABC) \
	X(TAILAPPLY, ABC) X(EXT, X) X(RETURN, A) \
	X(TRETURN, A) X(TTAILCALL, ABC) X(TTAILCALLG, ABC) X(TTAILAPPLY, ABC)

enum { MOST_TAIL_ARGS = 16 };

enum op {
#define X(name, format) OP_##name,
	BYTECODES(X)
#undef X
	OP_COUNT,
};

enum op_format { F_N, F_A, F_ABC, F_AB, F_AK, F_AF, F_X, F_J, F_AJ, F_ABJ, F_AIJ, F_ATJ, F_ABI };

struct insn {
	uint16_t op, a;
	union {
		struct {
			uint16_t b, c;
		};
		int32_t bc;
	};
};
_Static_assert(sizeof(struct insn) == 8, "an instruction is one word, as a constant is");

/* The way to enter code of any kind at a frame. */
typedef value machine_entry(struct context *ctx, value *fp, int64_t argc);

/* struct code: one lambda. The words behind the struct are insn_count instructions, then
 * const_count constants. The constant of CLOSURE is the struct code of the inner lambda; the
 * CAPTURE instructions behind CLOSURE fill the frees (a=closure b=free index c=slot). */
struct code {
	uint64_t header;
	/* Enters a closure of this code: frame.h. Never null; interp_entry until a JIT sets it. */
	machine_entry *entry;
	void *jit;          /* the JIT's method record */
	void *entry_cell;   /* the JIT's entry cell */
	int32_t exact_args; /* required arguments, or -1 when there is a rest list */
	int32_t required_args;
	int32_t has_rest;
	int32_t frame_slots; /* from fp on, callees' arguments included */
	int32_t insn_count;
	int32_t const_count;
	int32_t free_count;
	int32_t line; /* of the lambda */
	value name;   /* symbol or #f */
	value file;   /* string or #f */
	uint32_t *lines; /* line of each instruction */
	void *trampoline; /* of trampolines.c */
	uint64_t jit_words[1];
	struct insn insns[];
};

static inline value insn_const(const struct insn *at) { return ((const value *)at)[at->bc]; }
static inline value *code_consts(struct code *code)
{
	return (value *)(code->insns + code->insn_count);
}

extern const char *const op_names[OP_COUNT];
extern const uint8_t op_formats[OP_COUNT];

/* insn_jump: the target of an instruction that may jump, or NULL. */
static inline const struct insn *insn_jump(const struct insn *at)
{
	switch (op_formats[at->op]) {
	case F_J:
	case F_AJ:
		return at + at->bc;
	case F_ABJ:
	case F_AIJ:
	case F_ATJ:
		return at + (int16_t)at->c;
	default:
		return NULL;
	}
}
