/* SPDX-License-Identifier: MIT
 * jit_numbers.c: arithmetic and comparison of numbers, specialised by the types of the operands:
 * known types, or types of the live values behind a guard. If an operand has neither, the block
 * ends, and the next block is compiled when the operands are there.
 */
#include "jit.h"

#define SLOT(n) ((int32_t)(n)*8)

/* Operands: a slot, or an immediate. */
struct operand {
	int slot; /* -1: immediate */
	int32_t immediate;
	enum slot_type type;
};

static struct operand slot_operand(struct compilation *c, int slot)
{
	struct operand o = {slot, 0, observe(c, slot)};
	/* The result of a call is expected to be a fixnum; the guard checks. */
	if (o.type == TY_ANY && slot < 64 && c->from_calls >> slot & 1)
		o.type = TY_FIXNUM;
	return o;
}

static struct operand immediate_operand(int32_t n)
{
	struct operand o = {-1, n, TY_FIXNUM};
	return o;
}

static int is_known(struct compilation *c, const struct operand *o)
{
	return o->slot < 0 || types_get(&c->types, o->slot) == o->type;
}

/* The live value of an unknown operand is not there yet. */
static int is_unseen(struct compilation *c, const struct operand *o)
{
	return o->slot >= 0 && o->type == TY_ANY && c->written != 0 &&
	       (o->slot < 64 ? c->written >> (o->slot < 63 ? o->slot : 63) & 1 : 1);
}

static void load_value(struct compilation *c, enum emit_reg to, const struct operand *o)
{
	if (o->slot < 0)
		emit_imm(c->e, to, make_fixnum(o->immediate));
	else
		load_slot(c, to, o->slot);
}

static void load_fixnum(struct compilation *c, enum emit_reg to, const struct operand *o,
			int *guard, const struct insn *pc)
{
	load_value(c, to, o);
	if (is_known(c, o))
		return;
	if (*guard < 0)
		*guard = guard_label(c, pc);
	emit_test_bits(c->e, to, 1);
	emit_goto_if(c->e, IF_EQ, *guard);
	types_set(&c->types, o->slot, TY_FIXNUM);
}

/* Sends a fixnum in R0 beside a flonum to the guard if its double would not do. The product with
 * exact 0 is exact, the quotient by it an error; comparing needs all bits, a double has 53. */
static void guard_mixed(struct compilation *c, int is_right, const struct operand *o, int *guard,
			const struct insn *pc)
{
	struct emitter *e = c->e;
	int is_compare = pc->op >= OP_JLT && pc->op <= OP_JNNUMEQI;

	if (!(is_compare && o->slot >= 0) && pc->op != OP_MUL && !(pc->op == OP_DIV && is_right))
		return;
	if (*guard < 0)
		*guard = guard_label(c, pc);
	if (!is_compare) {
		emit_op_imm(e, DO_CMP, R0, (int32_t)make_fixnum(0));
		emit_goto_if(e, IF_EQ, *guard);
		return;
	}
	emit_move(e, R1, R0);
	emit_shift_right(e, R1, 54); /* with the tag: 0 or -1 if 53 bits and a sign are enough */
	emit_op_imm(e, DO_ADD, R1, 1);
	emit_op_imm(e, DO_CMP, R1, 1);
	emit_goto_if(e, IF_ABOVE, *guard);
}

static void load_float(struct compilation *c, int to, const struct operand *o, int *guard,
		       const struct insn *pc)
{
	struct emitter *e = c->e;

	if (o->type == TY_FIXNUM) {
		load_fixnum(c, R0, o, guard, pc);
		guard_mixed(c, to == 1, o, guard, pc);
		emit_shift_right(e, R0, 1);
		emit_ffrom(e, to, R0);
		return;
	}
	load_slot(c, R0, o->slot);
	if (!is_known(c, o)) {
		if (*guard < 0)
			*guard = guard_label(c, pc);
		test_object(c, R0, T_FLONUM, *guard);
		types_set(&c->types, o->slot, TY_FLONUM);
	}
	emit_fload(e, to, R0, offsetof(struct flonum, number));
}

static int are_floats(const struct operand *x, const struct operand *y)
{
	return (x->type == TY_FLONUM && (y->type == TY_FLONUM || y->type == TY_FIXNUM)) ||
	       (y->type == TY_FLONUM && x->type == TY_FIXNUM);
}

static int is_generic(struct compilation *c, const struct insn *pc)
{
	return c->kind == K_GENERIC && pc_index(c->code, pc) == c->start;
}

/* ---- arithmetic ---- */

static const void *slow_function(uint16_t op)
{
	switch (op) {
	case OP_ADD:
		return (const void *)number_add;
	case OP_ADDI:
		return (const void *)number_add_constant;
	case OP_SUB:
		return (const void *)number_sub;
	case OP_MUL:
		return (const void *)number_mul;
	case OP_DIV:
		return (const void *)number_div;
	case OP_QUO:
		return (const void *)number_quotient;
	case OP_REM:
		return (const void *)number_remainder;
	default:
		return (const void *)number_modulo;
	}
}

static void any_arithmetic(struct compilation *c, const struct insn *pc, const struct operand *x,
			   const struct operand *y)
{
	load_value(c, ARG1, x);
	load_value(c, ARG2, y);
	call_c(c, pc, slow_function(pc->op));
	finish_slot(c, pc->a, TY_ANY);
}

static void divide(struct compilation *c, const struct insn *pc, int guard)
{
	struct emitter *e = c->e;
	int done = emit_label(e);

	/* The divisor is in R1, tagged; the interpreter handles 0 and below. */
	emit_op_imm(e, DO_CMP, R1, 1);
	emit_goto_if(e, IF_LE, guard);
	emit_shift_right(e, R0, 1);
	emit_shift_right(e, R1, 1);
	emit_divide(e);
	if (pc->op != OP_QUO)
		emit_move(e, R0, R2);
	if (pc->op == OP_MOD) {
		emit_op(e, DO_TEST, R0, R0);
		emit_goto_if(e, IF_GE, done);
		emit_op(e, DO_ADD, R0, R1);
	}
	emit_bind(e, done);
	emit_shift_left(e, R0, 1);
	emit_op_imm(e, DO_OR, R0, 1);
}

static void fixnum_arithmetic(struct compilation *c, const struct insn *pc, const struct operand *x,
			      const struct operand *y)
{
	struct emitter *e = c->e;
	int is_sum = pc->op == OP_ADD || pc->op == OP_SUB || pc->op == OP_ADDI;
	/* A sum that overflows is a flonum from then on and needs no version of its own. */
	int guard = is_sum && is_known(c, x) && is_known(c, y) ? exit_label(c, pc)
							       : guard_label(c, pc);

	int is_right_first = y->slot >= 0 && y->slot == c->r0_fresh;
	if (is_right_first && pc->op == OP_ADD) {
		const struct operand *left = x;
		x = y;
		y = left;
		is_right_first = 0;
	}
	if (is_right_first)
		load_fixnum(c, R1, y, &guard, pc);
	load_fixnum(c, R0, x, &guard, pc);
	if (pc->op == OP_ADDI) {
		emit_op_imm(e, DO_ADD, R0, y->immediate * 2);
		emit_goto_if(e, IF_OVERFLOW, guard);
		finish_slot(c, pc->a, TY_FIXNUM);
		return;
	}
	if (!is_right_first)
		load_fixnum(c, R1, y, &guard, pc);
	switch (pc->op) {
	case OP_ADD:
		emit_op_imm(e, DO_SUB, R0, 1);
		emit_op(e, DO_ADD, R0, R1);
		emit_goto_if(e, IF_OVERFLOW, guard);
		break;
	case OP_SUB:
		emit_op(e, DO_SUB, R0, R1);
		emit_goto_if(e, IF_OVERFLOW, guard);
		emit_op_imm(e, DO_OR, R0, 1);
		break;
	case OP_MUL:
		emit_op_imm(e, DO_SUB, R0, 1);
		emit_shift_right(e, R1, 1);
		emit_multiply(e, R0, R1, guard);
		emit_op_imm(e, DO_OR, R0, 1);
		break;
	default:
		divide(c, pc, guard);
	}
	finish_slot(c, pc->a, TY_FIXNUM);
}

static void float_arithmetic(struct compilation *c, const struct insn *pc, const struct operand *x,
			     const struct operand *y)
{
	static const uint8_t ops[] = {[OP_ADD - OP_ADD] = FDO_ADD,
				      [OP_SUB - OP_ADD] = FDO_SUB,
				      [OP_MUL - OP_ADD] = FDO_MUL,
				      [OP_DIV - OP_ADD] = FDO_DIV,
				      [OP_ADDI - OP_ADD] = FDO_ADD};
	int guard = -1;

	load_float(c, 0, x, &guard, pc);
	load_float(c, 1, y, &guard, pc);
	emit_fop(c->e, (enum emit_fop)ops[pc->op - OP_ADD], 0, 1);
	emit_call(c->e, (const void *)make_flonum);
	finish_slot(c, pc->a, TY_FLONUM);
}

void compile_arithmetic(struct compilation *c, const struct insn *pc)
{
	struct operand x = slot_operand(c, pc->b);
	struct operand y =
		pc->op == OP_ADDI ? immediate_operand((int16_t)pc->c) : slot_operand(c, pc->c);
	int is_division = pc->op == OP_QUO || pc->op == OP_REM || pc->op == OP_MOD;

	if (is_generic(c, pc))
		any_arithmetic(c, pc, &x, &y);
	else if (is_unseen(c, &x) || is_unseen(c, &y))
		end_with_goto(c, pc_index(c->code, pc));
	else if (x.type == TY_FIXNUM && y.type == TY_FIXNUM && pc->op != OP_DIV)
		fixnum_arithmetic(c, pc, &x, &y);
	else if (are_floats(&x, &y) && !is_division)
		float_arithmetic(c, pc, &x, &y);
	else
		any_arithmetic(c, pc, &x, &y);
}

/* ---- comparison ---- */

static uint64_t less(struct context *ctx, value x, value y)
{
	return (uint64_t)number_less(ctx, x, y);
}
static uint64_t less_equal(struct context *ctx, value x, value y)
{
	return (uint64_t)number_less_equal(ctx, x, y);
}
static uint64_t same_number(struct context *ctx, value x, value y)
{
	return (uint64_t)number_equal(ctx, x, y);
}

struct comparison {
	uint8_t fixnum, fcmp;
	uint8_t swaps; /* the right operand comes first */
	const void *slow;
};

static const struct comparison comparisons[] = {
	{IF_LT, FCMP_LT, 0, (const void *)less},
	{IF_LE, FCMP_LE, 0, (const void *)less_equal},
	{IF_GT, FCMP_LT, 1, (const void *)less},
	{IF_GE, FCMP_LE, 1, (const void *)less_equal},
	{IF_EQ, FCMP_EQ, 0, (const void *)same_number},
};

static enum emit_cond any_compare(struct compilation *c, const struct insn *pc,
				  const struct comparison *cmp, const struct operand *x,
				  const struct operand *y)
{
	load_value(c, cmp->swaps ? ARG2 : ARG1, x);
	load_value(c, cmp->swaps ? ARG1 : ARG2, y);
	call_c(c, pc, cmp->slow);
	emit_op(c->e, DO_TEST, R0, R0);
	return IF_NE;
}

static enum emit_cond fixnum_compare(struct compilation *c, const struct insn *pc,
				     const struct comparison *cmp, const struct operand *x,
				     const struct operand *y)
{
	int guard = -1;

	if (y->slot >= 0 && y->slot == c->r0_fresh && x->slot != y->slot) {
		load_fixnum(c, R1, y, &guard, pc);
		load_fixnum(c, R0, x, &guard, pc);
		emit_op(c->e, DO_CMP, R0, R1);
		return (enum emit_cond)cmp->fixnum;
	}
	if (y->slot < 0 && is_known(c, x) && x->slot != c->r0_fresh) {
		emit_cmp_imm(c->e, FPTR, SLOT(x->slot),
			     (int32_t)(int64_t)make_fixnum(y->immediate));
		return (enum emit_cond)cmp->fixnum;
	}
	load_fixnum(c, R0, x, &guard, pc);
	c->r0_slot = x->slot;
	if (y->slot < 0) {
		emit_op_imm(c->e, DO_CMP, R0, (int32_t)(int64_t)make_fixnum(y->immediate));
	} else if (is_known(c, y)) {
		emit_op_load(c->e, DO_CMP, R0, FPTR, SLOT(y->slot));
	} else {
		load_fixnum(c, R1, y, &guard, pc);
		emit_op(c->e, DO_CMP, R0, R1);
	}
	return (enum emit_cond)cmp->fixnum;
}

static enum emit_cond float_compare(struct compilation *c, const struct insn *pc,
				    const struct comparison *cmp, const struct operand *x,
				    const struct operand *y)
{
	int guard = -1;

	load_float(c, 0, x, &guard, pc);
	load_float(c, 1, y, &guard, pc);
	emit_fcompare(c->e, (enum emit_fcmp)cmp->fcmp, cmp->swaps, !cmp->swaps);
	return IF_NE;
}

/* Guesses the outcome of the test from the live values. */
static void guess(struct compilation *c, const struct comparison *cmp, const struct operand *x,
		  const struct operand *y)
{
	int64_t left, right;
	int holds;

	if (!c->fp || x->type != TY_FIXNUM || y->type != TY_FIXNUM || x->slot >= 64 ||
	    y->slot >= 64 || c->written >> x->slot & 1 ||
	    (y->slot >= 0 && c->written >> y->slot & 1))
		return;
	left = (int64_t)c->fp[x->slot];
	right = y->slot < 0 ? (int64_t)make_fixnum(y->immediate) : (int64_t)c->fp[y->slot];
	switch (cmp->fixnum) {
	case IF_LT:
		holds = left < right;
		break;
	case IF_LE:
		holds = left <= right;
		break;
	case IF_GT:
		holds = left > right;
		break;
	case IF_GE:
		holds = left >= right;
		break;
	default:
		holds = left == right;
	}
	c->likely = holds ? LIKELY_YES : LIKELY_NO;
}

enum emit_cond fixnum_condition(const struct insn *pc)
{
	int index = pc->op - OP_JLT;
	enum emit_cond cond = (enum emit_cond)comparisons[index % 5].fixnum;

	return index % 10 >= 5 ? emit_opposite(cond) : cond;
}

void compile_compare(struct compilation *c, const struct insn *pc,
		     void (*two_way)(struct compilation *c, enum emit_cond cond,
				     const struct insn *yes, const struct insn *no))
{
	int index = pc->op - OP_JLT, is_immediate = index >= 10, is_negated = index % 10 >= 5;
	const struct comparison *cmp = &comparisons[index % 5];
	struct operand x = slot_operand(c, pc->a);
	struct operand y =
		is_immediate ? immediate_operand((int16_t)pc->b) : slot_operand(c, pc->b);
	enum emit_cond cond;

	if (!is_generic(c, pc) && (is_unseen(c, &x) || is_unseen(c, &y))) {
		end_with_goto(c, pc_index(c->code, pc));
		return;
	}
	if (!is_generic(c, pc) && x.type == TY_FIXNUM && y.type == TY_FIXNUM)
		cond = fixnum_compare(c, pc, cmp, &x, &y);
	else if (!is_generic(c, pc) && are_floats(&x, &y))
		cond = float_compare(c, pc, cmp, &x, &y);
	else
		cond = any_compare(c, pc, cmp, &x, &y);
	guess(c, cmp, &x, &y);
	if (is_negated)
		two_way(c, cond, pc + 1, insn_jump(pc));
	else
		two_way(c, cond, insn_jump(pc), pc + 1);
}
