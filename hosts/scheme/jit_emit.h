/* SPDX-License-Identifier: MIT
 * jit_emit.h: the emitter as the code generator sees it, without encodings; one file per
 * architecture implements it. Code goes to a scratch image of two sections, hot and cold. Labels,
 * calls, sites and refs are listed; jit_block.c settles them when the place of the code is known.
 *
 * Conventions of machine code: CTX and FPTR are callee-saved registers, the context and the frame;
 * every activation keeps a frame pointer; R0 is the result of a C call; R1 to R3 are scratch; ARG0
 * to ARG3 hold arguments as in the C ABI (ARG2 also carries argc into a procedure). R0 and ARG0 may
 * be one register, and R1 and R2 may be ARG registers.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
	SECTION_ROOM = 4096, /* bytes of each section */
	MAX_LABELS = 256,
	MAX_FIXES = 320,
	MAX_SITES = 12,
	MAX_REFS = 64,
	MAX_LITERALS = 80,
	MAX_POINTS = 16,
	MAX_LINES = 128,
};

enum emit_reg { R0, R1, R2, R3, ARG0, ARG1, ARG2, ARG3, CTX, FPTR, FRAME, SP };
enum emit_cond { /* a condition, then its opposite */
	IF_EQ, IF_NE,
	IF_LT, IF_GE,
	IF_GT, IF_LE,
	IF_BELOW, IF_ABOVE_EQ,
	IF_ABOVE,
	IF_OVERFLOW
};
/* Of the first four pairs. */
static inline enum emit_cond emit_opposite(enum emit_cond cond)
{
	return (enum emit_cond)(cond ^ 1);
}
enum emit_op { DO_ADD, DO_SUB, DO_AND, DO_OR, DO_CMP, DO_TEST };
enum emit_fop { FDO_ADD, FDO_SUB, FDO_MUL, FDO_DIV };
enum emit_fcmp { FCMP_EQ, FCMP_LT, FCMP_LE };
enum emit_section { HOT, COLD };
enum emit_site { SITE_JUMP, SITE_JUMP_IF, SITE_CALL };
enum emit_fix_kind { FIX_LABEL, FIX_FUNCTION, FIX_RECORD };

struct emit_fix {
	enum emit_fix_kind kind;
	enum emit_section section;
	uint32_t at; /* of the bytes to fill */
	union {
		int label;
		const void *function;
		int record;
	};
};
struct emit_label {
	int is_bound;
	enum emit_section section;
	uint32_t at;
};
struct emit_branch {
	enum emit_site kind;
	enum emit_section section;
	uint32_t at;
	int record;
	int exit; /* label of the code to reach while unlinked, or -1 */
};
/* A word for code to load, placed by emit_end: for an architecture without 64-bit immediates. */
struct emit_literal {
	enum { LITERAL_REF, LITERAL_RECORD } kind;
	uint64_t word; /* of a record: the record number */
	int label;
};
struct emit_mark {
	enum emit_section section;
	uint32_t at;
	int label;
};

/* From `at` on, code comes from this line of the source. */
struct emit_line {
	uint32_t at, line;
};

struct emitter {
	enum emit_section section;
	uint32_t used[2];
	uint8_t bytes[2][SECTION_ROOM];
	int is_arena; /* no patch points */
	int overflowed;
	int label_count, fix_count, site_count, ref_count, point_count, literal_count;
	struct emit_label labels[MAX_LABELS];
	struct emit_fix fixes[MAX_FIXES];
	struct emit_branch sites[MAX_SITES];
	struct emit_mark refs[MAX_REFS];
	struct emit_mark points[MAX_POINTS];
	struct emit_literal literals[MAX_LITERALS];
	int line_count[2]; /* by section, as `lines` */
	struct emit_line lines[2][MAX_LINES];
};

void emit_start(struct emitter *e, int is_arena);
void emit_end(struct emitter *e); /* call after all code is emitted */
int emit_label(struct emitter *e);
void emit_bind(struct emitter *e, int label);
static inline void emit_in(struct emitter *e, enum emit_section section)
{
	e->section = section;
}

void emit_load(struct emitter *e, enum emit_reg to, enum emit_reg base, int32_t offset);
void emit_store(struct emitter *e, enum emit_reg base, int32_t offset, enum emit_reg from);
void emit_store_imm(struct emitter *e, enum emit_reg base, int32_t offset, int32_t word);
void emit_imm(struct emitter *e, enum emit_reg to, uint64_t word);
void emit_ref(struct emitter *e, enum emit_reg to,
	      uint64_t word); /* a pointer into the VM's heap */
void emit_record(struct emitter *e, enum emit_reg to, int record);
void emit_move(struct emitter *e, enum emit_reg to, enum emit_reg from);
void emit_address(struct emitter *e, enum emit_reg to, enum emit_reg base, int32_t offset);
void emit_op(struct emitter *e, enum emit_op op, enum emit_reg to, enum emit_reg from);
void emit_op_imm(struct emitter *e, enum emit_op op, enum emit_reg to, int32_t word);
void emit_op_load(struct emitter *e, enum emit_op op, enum emit_reg to, enum emit_reg base,
		  int32_t offset);
void emit_cmp_imm(struct emitter *e, enum emit_reg base, int32_t offset, int32_t word);
void emit_cmp_imm32(struct emitter *e, enum emit_reg base, int32_t offset, int32_t word);
void emit_test_bits(struct emitter *e, enum emit_reg reg, int bits);
void emit_shift_right(struct emitter *e, enum emit_reg to, int bits); /* arithmetic */
void emit_shift_left(struct emitter *e, enum emit_reg to, int bits);
/* Signed multiplication; goes to the label on overflow. */
void emit_multiply(struct emitter *e, enum emit_reg to, enum emit_reg from, int overflow);
/* R0 = R0 / R1, R2 = R0 % R1, of untagged numbers; R1 > 0. */
void emit_divide(struct emitter *e);
/* to = [base + index * scale + offset] */
void emit_load_index(struct emitter *e, enum emit_reg to, enum emit_reg base, enum emit_reg index,
		     int scale, int32_t offset);
void emit_store_index(struct emitter *e, enum emit_reg base, enum emit_reg index, int scale,
		      int32_t offset, enum emit_reg from);

/* Floating point registers are numbers, 0 and 1. */
void emit_fload(struct emitter *e, int to, enum emit_reg base, int32_t offset);
void emit_fstore(struct emitter *e, enum emit_reg base, int32_t offset, int from);
void emit_ffrom(struct emitter *e, int to, enum emit_reg from); /* of an integer */
void emit_fop(struct emitter *e, enum emit_fop op, int to, int from);
void emit_fcompare(struct emitter *e, enum emit_fcmp cmp, int left,
		   int right); /* then IF_NE: cmp holds */

void emit_goto(struct emitter *e, int label);
void emit_goto_if(struct emitter *e, enum emit_cond cond, int label);
void emit_call(struct emitter *e, const void *function);
void emit_tail(struct emitter *e, const void *function); /* a jump */
void emit_call_at(struct emitter *e, enum emit_reg base, int32_t offset);
void emit_jump_at(struct emitter *e, enum emit_reg base, int32_t offset);
void emit_return(struct emitter *e);
void emit_enter(struct emitter *e); /* sets up the frame pointer */
void emit_leave(struct emitter *e);
void emit_site(struct emitter *e, enum emit_site kind, enum emit_cond cond, int record, int exit);
void emit_patch_point(struct emitter *e, int exit);

/* Placing code. */
/* Fills in the displacement of a fix; the other bytes of the instruction are there already. */
void emit_fill_rel(uint8_t *write, const uint8_t *exec, const void *target);
void emit_patch_rel(uint8_t *at, const void *target); /* while other threads run the code */
int emit_reaches(const uint8_t *exec, const void *target);
uint32_t emit_site_field(enum emit_site kind); /* offset of the displacement */
enum { ARENA_STUB_BYTES = 16 };
void emit_arena_stub(uint8_t *write, const uint8_t *exec, const void *record);
void emit_publish(const uint8_t *exec, uint32_t bytes); /* call before arena code runs */
extern const intptr_t emit_arena_reach; /* how far the arena may lie from functions */
extern const char emit_objdump[];       /* the disassembler, as a shell command */

/* The architecture's numbers of the registers, by enum emit_reg. */
extern const uint8_t emit_numbers[];

/* ---- jit_emit.c: for the emitters ---- */
void emit_reset(struct emitter *e, int is_arena);
void emit_bytes(struct emitter *e, const void *bytes, uint32_t count);
struct emit_fix *emit_fix(struct emitter *e, enum emit_fix_kind kind); /* of the next bytes */
void emit_mark(struct emitter *e, struct emit_mark *marks, int *count, int room, int label);
/* Returns NULL when the list is full. */
struct emit_branch *emit_add_site(struct emitter *e, enum emit_site kind, int record, int exit);

/* Fixed pieces of machine code (in the emitter's file). Callers of machine code set CTX and FPTR,
 * and pass argc in ARG2; an activation keeps CTX, and returns with the FPTR from its start. */
extern const char jit_left_thunk[];      /* as jit_exit_thunk, from a patch point behind a call */
extern const char jit_exit_thunk[];      /* frame is up, ARG2 = pc: go on in the interpreter */
extern const char jit_guard_thunk[];     /* called from cold code, ARG2 = record */
extern const char jit_arena_thunk[];     /* R0 = record: shared code of an arena's stubs */
extern const char jit_fallback_thunk[];  /* an entry: compiles the procedure, or interprets it */
extern const char jit_interpret_thunk[]; /* an entry: interprets the procedure */

/* The registers at a branch taken without a link. */
struct ch_regs;
struct context;
struct context *emit_site_context(const struct ch_regs *regs);
uint64_t *emit_site_frame(const struct ch_regs *regs);
/* Go on at a fixed piece of code with ARG2 = arg2. */
void emit_site_go_on(struct ch_regs *regs, const void *at, uint64_t arg2);
