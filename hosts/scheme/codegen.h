/* SPDX-License-Identifier: MIT
 * codegen.h: the state of one procedure during code generation, shared by codegen.c and open.c.
 */
#pragma once

#include "ast.h"

/* Destination of the value of an expression: a slot, or one of these. */
enum { DST_TAIL = -1, DST_EFFECT = -2 };

/* Room for most procedures in the record itself: one allocation, not five. */
enum { FIRST_INSNS = 32, FIRST_CONSTS = 8 };

struct fn {
	struct fn *up;
	struct expander *e;
	struct node *lambda;
	struct insn *insns;
	uint32_t *lines;
	int count, capacity;
	value *consts;
	int const_count, const_capacity;
	int *const_uses; /* instructions whose bc is an index into consts; fixed at the end */
	int const_use_count, const_use_capacity;
	struct var **frees;
	int free_count, free_capacity;
	int next_slot, max_slot;
	int line;
	struct insn first_insns[FIRST_INSNS];
	uint32_t first_lines[FIRST_INSNS];
	value first_consts[FIRST_CONSTS];
	int first_uses[FIRST_CONSTS];
};

struct label {
	int *jumps;
	int count, capacity;
};

void gen(struct fn *fn, struct node *node, int dst);
int gen_operand(struct fn *fn, struct node *node);
void gen_branch(struct fn *fn, struct node *node, int sense, struct label *label);
void gen_open(struct fn *fn, struct node *node, int dst);
void branch_open(struct fn *fn, struct node *node, int sense, struct label *label);

int emit(struct fn *fn, enum op op, int a, int b, int c);
int emit_wide(struct fn *fn, enum op op, int a, int bc);
int emit_const(struct fn *fn, enum op op, int a, value datum);
void emit_datum(struct fn *fn, int dst, value datum);
void emit_jump(struct fn *fn, enum op op, int a, int b, struct label *label);
void bind_label(struct fn *fn, struct label *label);
void jump_to(struct fn *fn, int from, int target);
int new_slot(struct fn *fn);
int is_plain_local(struct fn *fn, struct node *node);
