/* SPDX-License-Identifier: MIT
 * open.c: the built-ins that become instructions unless the program has given their names another
 * meaning.
 */
#include "codegen.h"

const struct open_coding open_codings[] = {
	{"eq?", OPEN_EQ, OP_JEQ, NULL},
	{"eqv?", OPEN_EQV, OP_JEQ, NULL},
	{"=", OPEN_COMPARE, OP_JNUMEQ, NULL},
	{"<", OPEN_COMPARE, OP_JLT, NULL},
	{">", OPEN_COMPARE, OP_JGT, NULL},
	{"<=", OPEN_COMPARE, OP_JLE, NULL},
	{">=", OPEN_COMPARE, OP_JGE, NULL},
	{"zero?", OPEN_SIGN, OP_JNUMEQ, NULL},
	{"positive?", OPEN_SIGN, OP_JGT, NULL},
	{"negative?", OPEN_SIGN, OP_JLT, NULL},
	{"not", OPEN_NOT, 0, NULL},
	{"null?", OPEN_NULL, 0, NULL},
	{"pair?", OPEN_TYPE, T_PAIR, NULL},
	{"vector?", OPEN_TYPE, T_VECTOR, NULL},
	{"string?", OPEN_TYPE, T_STRING, NULL},
	{"symbol?", OPEN_TYPE, T_SYMBOL, NULL},
	{"+", OPEN_FOLD, OP_ADD, NULL},
	{"-", OPEN_FOLD, OP_SUB, NULL},
	{"*", OPEN_FOLD, OP_MUL, NULL},
	{"/", OPEN_FOLD, OP_DIV, NULL},
	{"quotient", OPEN_BINARY, OP_QUO, NULL},
	{"remainder", OPEN_BINARY, OP_REM, NULL},
	{"modulo", OPEN_BINARY, OP_MOD, NULL},
	{"truncate-quotient", OPEN_BINARY, OP_QUO, NULL},
	{"truncate-remainder", OPEN_BINARY, OP_REM, NULL},
	{"floor-remainder", OPEN_BINARY, OP_MOD, NULL},
	{"cons", OPEN_BINARY, OP_CONS, NULL},
	{"vector-ref", OPEN_BINARY, OP_VREF, NULL},
	{"string-ref", OPEN_BINARY, OP_SREF, NULL},
	{"vector-length", OPEN_UNARY, OP_VLEN, NULL},
	{"car", OPEN_UNARY, OP_CAR, NULL},
	{"cdr", OPEN_UNARY, OP_CDR, NULL},
	{"caar", OPEN_PATH, 0, "aa"},
	{"cadr", OPEN_PATH, 0, "da"},
	{"cdar", OPEN_PATH, 0, "ad"},
	{"cddr", OPEN_PATH, 0, "dd"},
	{"caddr", OPEN_PATH, 0, "dda"},
	{"cdddr", OPEN_PATH, 0, "ddd"},
	{"cadddr", OPEN_PATH, 0, "ddda"},
	{"caadr", OPEN_PATH, 0, "daa"},
	{"cdadr", OPEN_PATH, 0, "dad"},
	{"cddar", OPEN_PATH, 0, "add"},
	{"cadar", OPEN_PATH, 0, "ada"},
	{"set-car!", OPEN_STORE2, OP_SETCAR, NULL},
	{"set-cdr!", OPEN_STORE2, OP_SETCDR, NULL},
	{"vector-set!", OPEN_STORE3, OP_VSET, NULL},
	{"%record-ref", OPEN_RECREF, OP_RECREF, NULL},
	{"%record-set!", OPEN_RECSET, OP_RECSET, NULL},
	{NULL, OPEN_EQ, 0, NULL},
};

const struct open_coding *const open_eq = &open_codings[0];

int find_open_coding(const char *name)
{
	for (int i = 0; open_codings[i].name; i++)
		if (!strcmp(open_codings[i].name, name))
			return i + 1;
	return 0;
}

const struct open_coding *open_coding_for(struct cell *cell, int argc)
{
	static const signed char wanted[] = {
		[OPEN_COMPARE] = 2, [OPEN_SIGN] = 1,   [OPEN_EQ] = 2,     [OPEN_EQV] = 2,
		[OPEN_NOT] = 1,     [OPEN_NULL] = 1,   [OPEN_TYPE] = 1,   [OPEN_BINARY] = 2,
		[OPEN_FOLD] = -1,   [OPEN_UNARY] = 1,  [OPEN_PATH] = 1,   [OPEN_STORE2] = 2,
		[OPEN_STORE3] = 3,  [OPEN_RECREF] = 3, [OPEN_RECSET] = 4,
	};

	if (!cell->is_builtin || !is_type(cell->content, T_PRIM) ||
	    !AS(prim, cell->content)->open_coding)
		return NULL;
	const struct open_coding *coding = &open_codings[AS(prim, cell->content)->open_coding - 1];
	if (wanted[coding->kind] >= 0 ? wanted[coding->kind] != argc : argc < 2)
		return NULL;
	return coding;
}

static int is_small(struct node *node, int64_t least, int64_t most)
{
	return node->kind == N_CONST && is_fixnum(node->datum) && fixnum_of(node->datum) >= least &&
	       fixnum_of(node->datum) <= most;
}

/* ---- as conditions ---- */

static enum op swapped(int op)
{
	switch (op) {
	case OP_JLT:
		return OP_JGT;
	case OP_JGT:
		return OP_JLT;
	case OP_JLE:
		return OP_JGE;
	case OP_JGE:
		return OP_JLE;
	default:
		return (enum op)op;
	}
}

static void branch_compare(struct fn *fn, struct node *node, int sense, struct label *label)
{
	struct node *left = node->kids[0], *right = node->kids[1];
	int op = node->coding->op;

	if (is_small(left, INT16_MIN, INT16_MAX) && !is_small(right, INT16_MIN, INT16_MAX)) {
		struct node *other = left;
		left = right;
		right = other;
		op = swapped(op);
	}
	if (!sense)
		op += OP_JNLT - OP_JLT;
	int a = gen_operand(fn, left);
	if (is_small(right, INT16_MIN, INT16_MAX)) {
		emit_jump(fn, (enum op)(op + OP_JLTI - OP_JLT), a, (int)fixnum_of(right->datum),
			  label);
		return;
	}
	int b = gen_operand(fn, right);
	emit_jump(fn, (enum op)op, a, b, label);
}

void branch_open(struct fn *fn, struct node *node, int sense, struct label *label)
{
	const struct open_coding *coding = node->coding;
	int a, b;

	switch (coding->kind) {
	case OPEN_COMPARE:
		branch_compare(fn, node, sense, label);
		return;
	case OPEN_SIGN:
		a = gen_operand(fn, node->kids[0]);
		emit_jump(fn, (enum op)(coding->op + OP_JLTI - OP_JLT +
					(sense ? 0 : OP_JNLT - OP_JLT)), a, 0, label);
		return;
	case OPEN_EQ:
		a = gen_operand(fn, node->kids[0]);
		b = gen_operand(fn, node->kids[1]);
		emit_jump(fn, sense ? OP_JEQ : OP_JNEQ, a, b, label);
		return;
	case OPEN_NOT:
		gen_branch(fn, node->kids[0], !sense, label);
		return;
	case OPEN_NULL:
		a = gen_operand(fn, node->kids[0]);
		emit_jump(fn, sense ? OP_JNULL : OP_JNNULL, a, 0, label);
		return;
	case OPEN_TYPE:
		a = gen_operand(fn, node->kids[0]);
		emit_jump(fn, sense ? OP_JTYPE : OP_JNTYPE, a, coding->op, label);
		return;
	default:
		emit_jump(fn, sense ? OP_JT : OP_JF, gen_operand(fn, node), 0, label);
	}
}

/* ---- as values ---- */

static void gen_truth(struct fn *fn, struct node *node, int dst)
{
	struct label otherwise = {NULL, 0, 0}, end = {NULL, 0, 0};

	branch_open(fn, node, 0, &otherwise);
	emit_datum(fn, dst, V_TRUE);
	emit_jump(fn, OP_JMP, 0, 0, &end);
	bind_label(fn, &otherwise);
	emit_datum(fn, dst, V_FALSE);
	bind_label(fn, &end);
}

static void gen_binary(struct fn *fn, struct node *node, int dst)
{
	struct node *left = node->kids[0], *right = node->kids[1];
	int op = node->coding->op;

	if (op == OP_ADD && is_small(left, INT16_MIN, INT16_MAX)) {
		struct node *other = left;
		left = right;
		right = other;
	}
	int a = gen_operand(fn, left);
	if (op == OP_ADD && is_small(right, INT16_MIN, INT16_MAX)) {
		emit(fn, OP_ADDI, dst, a, (int)fixnum_of(right->datum));
	} else if (op == OP_SUB && is_small(right, -INT16_MAX, INT16_MAX) &&
		   right->datum != make_fixnum(0)) { /* -0.0 + 0 is another number than -0.0 - 0 */
		emit(fn, OP_ADDI, dst, a, -(int)fixnum_of(right->datum));
	} else {
		int b = gen_operand(fn, right);
		fn->line = node->line;
		emit(fn, (enum op)op, dst, a, b);
	}
}

static void gen_path(struct fn *fn, struct node *node, int dst)
{
	int slot = gen_operand(fn, node->kids[0]);

	for (const char *at = node->coding->path; *at; at++) {
		emit(fn, *at == 'a' ? OP_CAR : OP_CDR, dst, slot, 0);
		slot = dst;
	}
}

static void gen_record(struct fn *fn, struct node *node, int dst)
{
	if (!is_small(node->kids[2], 0, UINT16_MAX))
		raise_syntax(fn->e, V_FALSE, "bad record access");
	int record = gen_operand(fn, node->kids[0]);
	int type = gen_operand(fn, node->kids[1]);
	int index = (int)fixnum_of(node->kids[2]->datum);

	if (node->coding->kind == OPEN_RECREF) {
		emit(fn, OP_RECREF, dst, record, type);
		emit_wide(fn, OP_EXT, index, 0);
		return;
	}
	int content = gen_operand(fn, node->kids[3]);
	emit(fn, OP_RECSET, record, type, content);
	emit_wide(fn, OP_EXT, index, 0);
	emit_datum(fn, dst, V_UNSPEC);
}

static void gen_store(struct fn *fn, struct node *node, int dst)
{
	int a = gen_operand(fn, node->kids[0]);
	int b = gen_operand(fn, node->kids[1]);
	int c = node->coding->kind == OPEN_STORE3 ? gen_operand(fn, node->kids[2]) : 0;

	fn->line = node->line;
	emit(fn, (enum op)node->coding->op, a, b, c);
	emit_datum(fn, dst, V_UNSPEC);
}

void gen_open(struct fn *fn, struct node *node, int dst)
{
	int saved = fn->next_slot;

	switch (node->coding->kind) {
	case OPEN_BINARY:
	case OPEN_FOLD:
		gen_binary(fn, node, dst);
		break;
	case OPEN_UNARY: {
		int a = gen_operand(fn, node->kids[0]);
		fn->line = node->line;
		emit(fn, (enum op)node->coding->op, dst, a, 0);
		break;
	}
	case OPEN_PATH:
		gen_path(fn, node, dst);
		break;
	case OPEN_STORE2:
	case OPEN_STORE3:
		gen_store(fn, node, dst);
		break;
	case OPEN_RECREF:
	case OPEN_RECSET:
		gen_record(fn, node, dst);
		break;
	default:
		gen_truth(fn, node, dst);
	}
	fn->next_slot = saved;
}
