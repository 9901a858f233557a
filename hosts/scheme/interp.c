/* SPDX-License-Identifier: MIT
 * interp.c: the bytecode interpreter, the oracle of every other way to run a program. Calls between
 * interpreted procedures stay in one C loop; frame.h has the layout and the convention.
 * length: interp_run holds one label for each instruction, and each ends in a jump of its own.
 */
#define GC_THREADS
#include <gc/gc.h>

#include "control.h"
#include "frame.h"

#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define X(name, format) #name,
const char *const op_names[OP_COUNT] = {BYTECODES(X)};
#undef X
#define X(name, format) F_##format,
const uint8_t op_formats[OP_COUNT] = {BYTECODES(X)};
#undef X

static void serve_interrupt(struct context *ctx)
{
	int64_t every = ctx->vm->options.gc_every_calls;

	if (every && --ctx->gc_countdown <= 0) {
		ctx->gc_countdown = every;
		GC_gcollect();
	}
	if (ctx->vm->hooks.poll)
		ctx->vm->hooks.poll(ctx);
}

static _Noreturn void raise_arity(struct context *ctx, struct code *code, int64_t argc)
{
	raise_error(ctx, "type",
		    argc < code->required_args ? "too few arguments for" : "too many arguments for",
		    2, is_symbol(code->name) ? code->name : intern("lambda"), make_fixnum(argc));
}

void frame_prepare(struct context *ctx, value *fp, int64_t argc)
{
	struct code *code = AS(closure, fp[-1])->code;
	int64_t slots = code->frame_slots > argc ? code->frame_slots : argc;

	if (argc < code->required_args || (!code->has_rest && argc > code->required_args))
		raise_arity(ctx, code, argc);
	if (fp + slots > ctx->now.stack_limit)
		raise_stack(ctx);
	/* A stop between the stores finds `apply`'s arguments below arg_top or the frame's end. */
	ctx->now.arg_top = fp + argc;
	atomic_signal_fence(memory_order_seq_cst);
	FP(ctx) = fp;
	if (code->has_rest) {
		value rest = V_NIL;
		for (int64_t i = argc; i > code->required_args; i--)
			rest = cons(ctx, fp[i - 1], rest);
		fp[code->required_args] = rest;
		atomic_signal_fence(memory_order_seq_cst);
	}
	ctx->now.arg_top = NULL;
	if (UNLIKELY(atomic_load_explicit(&ctx->interrupt, memory_order_relaxed)))
		serve_interrupt(ctx);
}

value interp_activate(struct context *ctx, value *fp, const struct insn *pc)
{
	if (UNLIKELY(ctx->vm->hooks.run != NULL))
		return ctx->vm->hooks.run(ctx, fp, pc);
	return interp_run(ctx, fp, pc);
}

/* The last call is a jump, as frame.h requires: gcc and clang make a jump from -O2 on. */
value interp_finish(struct context *ctx, value *fp, const struct insn *pc)
{
	value v = interp_activate(ctx, fp, pc);

	if (v == V_TAIL)
		return ctx->tail_entry(ctx, ctx->tail_fp, ctx->tail_argc);
	return v;
}

value interp_entry(struct context *ctx, value *fp, int64_t argc)
{
	check_c_stack(ctx);
	frame_prepare(ctx, fp, argc);
	ctx->interpreted_calls++;
	return interp_finish(ctx, fp, AS(closure, fp[-1])->code->insns);
}

#define ARITH(NAME, FAST, SLOW) \
	OP(NAME) : { \
		value x = fp[pc->b], y = fp[pc->c]; \
		int64_t r; \
		if (__builtin_expect((x & y & 1) && !(FAST), 1)) { \
			fp[pc->a] = (value)r; \
		} else { \
			ctx->pc = pc + 1; \
			fp[pc->a] = SLOW(ctx, x, y); \
		} \
		NEXT(1); \
	}

/* Compare and branch, in both senses, with a slot and with an immediate on the right. */
#define COMPARE(NAME, CMP, SLOW, SENSE) \
	OP(NAME) : { \
		value x = fp[pc->a], y = fp[pc->b]; \
		int holds; \
		if (__builtin_expect((x & y & 1), 1)) { \
			holds = (int64_t)x CMP (int64_t)y; \
		} else { \
			ctx->pc = pc + 1; \
			holds = SLOW; \
		} \
		NEXT(holds == SENSE ? (int16_t)pc->c : 1); \
	} \
	OP(NAME##I) : { \
		value x = fp[pc->a], y = make_fixnum((int16_t)pc->b); \
		int holds; \
		if (__builtin_expect((x & 1), 1)) { \
			holds = (int64_t)x CMP (int64_t)y; \
		} else { \
			ctx->pc = pc + 1; \
			holds = SLOW; \
		} \
		NEXT(holds == SENSE ? (int16_t)pc->c : 1); \
	}

#define DIVISION(NAME, FAST, SLOW) \
	OP(NAME) : { \
		value x = fp[pc->b], y = fp[pc->c]; \
		if ((x & y & 1) && (int64_t)y > 1) { \
			int64_t n = fixnum_of(x), d = fixnum_of(y); \
			fp[pc->a] = make_fixnum(FAST); \
		} else { \
			ctx->pc = pc + 1; \
			fp[pc->a] = SLOW(ctx, x, y); \
		} \
		NEXT(1); \
	}

#define OP(name) op_##name
#define NEXT(distance) \
	do { \
		pc += (distance); \
		goto *labels[pc->op]; \
	} while (0)
#define TELL_RETURN(result) \
	do { \
		ctx->pc = pc + 1; \
		note_traced_return(ctx, fp, result); \
	} while (0)
#define FAIL_TYPE(who, wanted, got) \
	do { \
		ctx->pc = pc + 1; \
		raise_type(ctx, who, wanted, got); \
	} while (0)
#define FAIL_RANGE(who, index) \
	do { \
		ctx->pc = pc + 1; \
		raise_range(ctx, who, index); \
	} while (0)

/* The index is that of the accessor's definition: its type's name may be another type's since. */
static value *field_of(struct context *ctx, const struct insn *pc, value v, value type)
{
	uint64_t index = (uint64_t)pc[1].a;

	if (UNLIKELY(!is_type(v, T_RECORD) || (value)AS(record, v)->type != type)) {
		ctx->pc = pc + 1;
		raise_type(ctx, "record accessor", "record of its type", v);
	}
	if (UNLIKELY(index >= (uint64_t)AS(rtd, type)->count)) {
		ctx->pc = pc + 1;
		raise_range(ctx, "record accessor", make_fixnum((int64_t)index));
	}
	return AS(record, v)->fields + index;
}

/* A tail call: closure and arguments come down to fp. Arguments first, as a stop clears slots that
 * the closure in fp[-1] does not have. */
static struct code *replace_frame(value *fp, const value *nfp, value closure, int64_t argc)
{
	for (int64_t i = 0; i < argc; i++)
		fp[i] = nfp[i];
	atomic_signal_fence(memory_order_seq_cst);
	fp[-1] = closure;
	return AS(closure, closure)->code;
}

value interp_run(struct context *ctx, value *fp, const struct insn *pc)
{
#define X(name, format) &&op_##name,
	static const void *const labels[OP_COUNT] = {BYTECODES(X)};
#undef X
	value *const base = fp;
	value *nfp;
	value v;
	int64_t argc;
	struct code *code;

	goto *labels[pc->op];

	OP(MOVE) : fp[pc->a] = fp[pc->b];
	NEXT(1);
	OP(CONST) : fp[pc->a] = insn_const(pc);
	NEXT(1);
	OP(FIX) : fp[pc->a] = make_fixnum(pc->bc);
	NEXT(1);
	OP(GREF) : v = AS(cell, insn_const(pc))->content;
	if (UNLIKELY(v == V_UNDEF)) {
		ctx->pc = pc + 1;
		raise_unbound(ctx, AS(cell, insn_const(pc)));
	}
	fp[pc->a] = v;
	NEXT(1);
	OP(GSET) : ctx->pc = pc + 1;
	if (UNLIKELY(AS(cell, insn_const(pc))->content == V_UNDEF))
		raise_unbound(ctx, AS(cell, insn_const(pc)));
	cell_set(ctx, AS(cell, insn_const(pc)), fp[pc->a]);
	NEXT(1);
	OP(GDEF) : ctx->pc = pc + 1;
	cell_set(ctx, AS(cell, insn_const(pc)), fp[pc->a]);
	NEXT(1);
	OP(FREE) : fp[pc->a] = AS(closure, fp[-1])->frees[pc->b];
	NEXT(1);
	OP(BOX) : {
		struct box *box = alloc_small(ctx, 1);
		box->header = T_BOX;
		box->content = fp[pc->b];
		fp[pc->a] = (value)box;
		NEXT(1);
	}
	OP(BOXREF) : v = AS(box, fp[pc->b])->content;
	if (UNLIKELY(v == V_UNDEF)) {
		ctx->pc = pc + 1;
		raise_error(ctx, "unbound", "variable used before its definition", 0);
	}
	fp[pc->a] = v;
	NEXT(1);
	OP(BOXSET) : AS(box, fp[pc->a])->content = fp[pc->b];
	NEXT(1);
	OP(CLOSURE) : {
		struct closure *closure;
		code = AS(code, insn_const(pc));
		closure = alloc_bytes(ctx, T_CLOSURE, 16 + (size_t)code->free_count * 8);
		closure->code = code;
		fp[pc->a] = (value)closure;
		NEXT(1);
	}
	OP(CAPTURE) : AS(closure, fp[pc->a])->frees[pc->b] = fp[pc->c];
	NEXT(1);
	OP(LOOP) : if (UNLIKELY(atomic_load_explicit(&ctx->interrupt, memory_order_relaxed)))
	{
		ctx->pc = pc + 1;
		serve_interrupt(ctx);
	}
	if (ctx->vm->hooks.loop_head) {
		machine_entry *entry = ctx->vm->hooks.loop_head(ctx, fp, pc);
		if (entry && fp == base) {
			/* Not a call: side exits and loop heads may alternate without end. */
			ctx->tail_entry = entry;
			ctx->tail_fp = fp;
			ctx->tail_argc = 0;
			return V_TAIL;
		}
		if (entry) {
			v = entry(ctx, fp, 0);
			goto do_return;
		}
	}
	NEXT(1);

	OP(JMP) : NEXT(pc->bc);
	OP(JT) : NEXT(fp[pc->a] != V_FALSE ? pc->bc : 1);
	OP(JF) : NEXT(fp[pc->a] == V_FALSE ? pc->bc : 1);
	OP(JNULL) : NEXT(fp[pc->a] == V_NIL ? pc->bc : 1);
	OP(JNNULL) : NEXT(fp[pc->a] != V_NIL ? pc->bc : 1);
	OP(JTYPE) : NEXT(is_type(fp[pc->a], pc->b) ? (int16_t)pc->c : 1);
	OP(JNTYPE) : NEXT(!is_type(fp[pc->a], pc->b) ? (int16_t)pc->c : 1);
	OP(JEQ) : NEXT(fp[pc->a] == fp[pc->b] ? (int16_t)pc->c : 1);
	OP(JNEQ) : NEXT(fp[pc->a] != fp[pc->b] ? (int16_t)pc->c : 1);
	COMPARE(JLT, <, number_less(ctx, x, y), 1)
	COMPARE(JLE, <=, number_less_equal(ctx, x, y), 1)
	COMPARE(JGT, >, number_less(ctx, y, x), 1)
	COMPARE(JGE, >=, number_less_equal(ctx, y, x), 1)
	COMPARE(JNUMEQ, ==, number_equal(ctx, x, y), 1)
	COMPARE(JNLT, <, number_less(ctx, x, y), 0)
	COMPARE(JNLE, <=, number_less_equal(ctx, x, y), 0)
	COMPARE(JNGT, >, number_less(ctx, y, x), 0)
	COMPARE(JNGE, >=, number_less_equal(ctx, y, x), 0)
	COMPARE(JNNUMEQ, ==, number_equal(ctx, x, y), 0)

	ARITH(ADD, __builtin_add_overflow((int64_t)x, (int64_t)(y - 1), &r), number_add)
	ARITH(SUB, __builtin_sub_overflow((int64_t)x, (int64_t)(y - 1), &r), number_sub)
	ARITH(MUL,
	      __builtin_mul_overflow((int64_t)(x - 1), (int64_t)y >> 1, &r) || (r += 1, 0),
	      number_mul)
	OP(DIV) : ctx->pc = pc + 1;
	fp[pc->a] = number_div(ctx, fp[pc->b], fp[pc->c]);
	NEXT(1);
	OP(ADDI) : {
		value x = fp[pc->b];
		int64_t r;
		if (__builtin_expect((x & 1) && !__builtin_add_overflow((int64_t)x,
						 (int64_t)(int16_t)pc->c * 2, &r), 1)) {
			fp[pc->a] = (value)r;
		} else {
			ctx->pc = pc + 1;
			fp[pc->a] = number_add_constant(ctx, x, make_fixnum((int16_t)pc->c));
		}
		NEXT(1);
	}
	DIVISION(QUO, n / d, number_quotient)
	DIVISION(REM, n % d, number_remainder)
	DIVISION(MOD, n % d < 0 ? n % d + d : n % d, number_modulo)

	OP(CAR) : v = fp[pc->b];
	if (UNLIKELY(!is_pair(v)))
		FAIL_TYPE("car", "pair", v);
	fp[pc->a] = CAR(v);
	NEXT(1);
	OP(CDR) : v = fp[pc->b];
	if (UNLIKELY(!is_pair(v)))
		FAIL_TYPE("cdr", "pair", v);
	fp[pc->a] = CDR(v);
	NEXT(1);
	OP(CONS) : fp[pc->a] = cons(ctx, fp[pc->b], fp[pc->c]);
	NEXT(1);
	OP(SETCAR) : v = fp[pc->a];
	if (UNLIKELY(!is_pair(v)))
		FAIL_TYPE("set-car!", "pair", v);
	CAR(v) = fp[pc->b];
	NEXT(1);
	OP(SETCDR) : v = fp[pc->a];
	if (UNLIKELY(!is_pair(v)))
		FAIL_TYPE("set-cdr!", "pair", v);
	CDR(v) = fp[pc->b];
	NEXT(1);
	OP(VREF) : v = fp[pc->b];
	if (UNLIKELY(!is_type(v, T_VECTOR)))
		FAIL_TYPE("vector-ref", "vector", v);
	if (UNLIKELY(!is_fixnum(fp[pc->c]) ||
		     (uint64_t)fixnum_of(fp[pc->c]) >= (uint64_t)AS(vector, v)->length))
		FAIL_RANGE("vector-ref", fp[pc->c]);
	fp[pc->a] = AS(vector, v)->items[fixnum_of(fp[pc->c])];
	NEXT(1);
	OP(VSET) : v = fp[pc->a];
	if (UNLIKELY(!is_type(v, T_VECTOR)))
		FAIL_TYPE("vector-set!", "vector", v);
	if (UNLIKELY(!is_fixnum(fp[pc->b]) ||
		     (uint64_t)fixnum_of(fp[pc->b]) >= (uint64_t)AS(vector, v)->length))
		FAIL_RANGE("vector-set!", fp[pc->b]);
	AS(vector, v)->items[fixnum_of(fp[pc->b])] = fp[pc->c];
	NEXT(1);
	OP(VLEN) : v = fp[pc->b];
	if (UNLIKELY(!is_type(v, T_VECTOR)))
		FAIL_TYPE("vector-length", "vector", v);
	fp[pc->a] = make_fixnum(AS(vector, v)->length);
	NEXT(1);
	OP(SREF) : v = fp[pc->b];
	if (UNLIKELY(!is_type(v, T_STRING)))
		FAIL_TYPE("string-ref", "string", v);
	if (UNLIKELY(!is_fixnum(fp[pc->c]) ||
		     (uint64_t)fixnum_of(fp[pc->c]) >= (uint64_t)AS(string, v)->length))
		FAIL_RANGE("string-ref", fp[pc->c]);
	fp[pc->a] = make_char(AS(string, v)->chars[fixnum_of(fp[pc->c])]);
	NEXT(1);
	OP(RECREF) : fp[pc->a] = *field_of(ctx, pc, fp[pc->b], fp[pc->c]);
	NEXT(2);
	OP(RECSET) : *field_of(ctx, pc, fp[pc->a], fp[pc->b]) = fp[pc->c];
	NEXT(2);

	OP(CALLG) : v = AS(cell, insn_const(pc + 1))->content;
	nfp = fp + pc->b + FRAME_HEADER;
	argc = pc->c;
	pc += 2;
	if (UNLIKELY(v == V_UNDEF)) {
		ctx->pc = pc;
		raise_unbound(ctx, AS(cell, insn_const(pc - 1)));
	}
	nfp[-1] = v;
	goto do_call;
	OP(CALL) : nfp = fp + pc->b + FRAME_HEADER;
	argc = pc->c;
	v = nfp[-1];
	pc++;
do_call:
	if (__builtin_expect(is_type(v, T_CLOSURE), 1)) {
		code = AS(closure, v)->code;
		nfp[-3] = (value)fp;
		nfp[-2] = (value)pc;
		ctx->pc = pc;
		if (UNLIKELY(code->entry != interp_entry)) {
			v = code->entry(ctx, nfp, argc);
			goto called;
		}
		fp = nfp;
		goto enter;
	}
	ctx->pc = pc;
	v = call_other(ctx, v, nfp, argc);
called:
	FP(ctx) = fp;
	fp[pc[-1].a] = v;
	NEXT(0);

	OP(TAILCALLG) : v = AS(cell, insn_const(pc + 1))->content;
	nfp = fp + pc->b + FRAME_HEADER;
	argc = pc->c;
	pc += 2;
	if (UNLIKELY(v == V_UNDEF)) {
		ctx->pc = pc;
		raise_unbound(ctx, AS(cell, insn_const(pc - 1)));
	}
	goto do_tail_call;
	OP(TAILCALL) : nfp = fp + pc->b + FRAME_HEADER;
	argc = pc->c;
	v = nfp[-1];
	pc++;
do_tail_call:
	ctx->pc = pc;
	if (UNLIKELY(!is_type(v, T_CLOSURE))) {
		nfp[-1] = v;
		if (escape_in_place(ctx, fp, nfp, argc)) {
			v = nfp[-1];
			goto do_tail_call;
		}
		v = call_other(ctx, v, nfp, argc);
		ctx->now.arg_top = NULL;
		goto do_return;
	}
	code = replace_frame(fp, nfp, v, argc);
	if (UNLIKELY(code->entry != interp_entry)) {
		if (fp == base) {
			ctx->tail_entry = code->entry;
			ctx->tail_fp = fp;
			ctx->tail_argc = argc;
			return V_TAIL;
		}
		v = code->entry(ctx, fp, argc);
		goto do_return;
	}
enter:
	ctx->interpreted_calls++;
	if (UNLIKELY(argc != code->exact_args || fp + code->frame_slots > ctx->now.stack_limit ||
		     atomic_load_explicit(&ctx->interrupt, memory_order_relaxed)))
		frame_prepare(ctx, fp, argc);
	else
		FP(ctx) = fp;
	pc = code->insns;
	NEXT(0);

	OP(APPLY) : nfp = fp + pc->b + FRAME_HEADER;
	ctx->pc = pc + 1;
	v = nfp[-1];
	argc = spread_list(ctx, nfp, nfp[0]);
	pc++;
	if (is_type(v, T_CLOSURE))
		goto do_call;
	v = call_other(ctx, v, nfp, argc);
	ctx->now.arg_top = NULL;
	goto called;
	OP(TAILAPPLY) : nfp = fp + pc->b + FRAME_HEADER;
	ctx->pc = pc + 1;
	v = nfp[-1];
	argc = spread_list(ctx, nfp, nfp[0]);
	pc++;
	goto do_tail_call;

	OP(TTAILCALL) : TELL_RETURN(V_UNSPEC);
	goto op_TAILCALL;
	OP(TTAILCALLG) : TELL_RETURN(V_UNSPEC);
	goto op_TAILCALLG;
	OP(TTAILAPPLY) : TELL_RETURN(V_UNSPEC);
	goto op_TAILAPPLY;
	OP(TRETURN) : TELL_RETURN(fp[pc->a]);
	OP(EXT) : OP(RETURN) : v = fp[pc->a];
do_return:
	if (fp == base)
		return v;
	pc = (const struct insn *)fp[-2];
	fp = (value *)fp[-3];
	FP(ctx) = fp;
	fp[pc[-1].a] = v;
	NEXT(0);
}
