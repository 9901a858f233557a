/* SPDX-License-Identifier: MIT
 * jit_calls.c: entries, calls and tail calls of procedures. The call of a known callee (a global
 * assumed not to change, or a case of an inline cache) is a branch to the callee's body; other
 * calls go through the callee's entry cell. Behind each call lies a patch point, so that a return
 * into invalidated code goes on in the interpreter.
 */
#include "control.h"
#include "jit.h"

#define SLOT(n) ((int32_t)(n)*8)

struct call {
	const struct insn *pc, *next;
	struct cell *cell; /* NULL: the callee is in a slot */
	int base, argc, dst, is_tail;
	value constant; /* the callee, if known for sure; V_NONE otherwise */
	int has_leaf, join; /* label of the code behind the call, with the result in R0 */
};

/* ---- entries ---- */

static value prepare(struct context *ctx, value *fp, int64_t argc)
{
	ctx->pc = (const struct insn *)fp[-2];
	check_c_stack(ctx);
	frame_prepare(ctx, fp, argc);
	return V_UNSPEC;
}

static void emit_prepare(struct compilation *c)
{
	emit_move(c->e, ARG0, CTX);
	emit_move(c->e, ARG1, FPTR);
	emit_call(c->e, (const void *)prepare);
	emit_patch_point(c->e, exit_label(c, c->code->insns));
}

/* A frame with a rest list is up at once, any other frame when first needed. */
void compile_body(struct compilation *c)
{
	c->is_bare = !c->code->has_rest;
	if (c->is_bare)
		return;
	emit_enter(c->e);
	emit_prepare(c);
	c->fp = NULL;
}

void set_up_frame(struct compilation *c)
{
	struct emitter *e = c->e;
	int slow = emit_label(e), ready = emit_label(e);
	int is_small = c->code->frame_slots <= SMALL_FRAME;

	c->is_bare = 0;
	c->r0_fresh = -1;
	emit_enter(e);
	emit_op_load(e, DO_CMP, SP, CTX, offsetof(struct context, entry_limit));
	emit_goto_if(e, IF_BELOW, slow);
	if (!is_small)
		emit_address(e, R0, FPTR, SLOT(c->code->frame_slots));
	emit_op_load(e, DO_CMP, is_small ? FPTR : R0, CTX,
		     offsetof(struct context, now.stack_limit));
	emit_goto_if(e, IF_ABOVE, slow);
	emit_store(e, CTX, offsetof(struct context, now.fp), FPTR);
	emit_bind(e, ready);
	emit_in(e, COLD);
	emit_bind(e, slow);
	emit_imm(e, ARG2, (uint64_t)c->code->exact_args);
	emit_prepare(c);
	emit_goto(e, ready);
	emit_in(e, HOT);
}

/* The target of the entry cell, for callers that do not know the callee. Without arguments there is
 * nothing to specialise a body by: the body follows here. */
void compile_entry(struct compilation *c)
{
	struct emitter *e = c->e;
	int mismatch = emit_label(e);

	if (!c->code->has_rest) {
		emit_op_imm(e, DO_CMP, ARG2, c->code->exact_args);
		emit_goto_if(e, IF_NE, mismatch);
	}
	if (c->code->has_rest || c->code->exact_args) {
		emit_site(e, SITE_JUMP, IF_EQ, add_record(c, REC_BODY, c->code, K_BODY, 0), -1);
		c->is_done = 1;
	} else {
		compile_body(c);
	}
	emit_in(e, COLD);
	emit_bind(e, mismatch);
	emit_enter(e);
	emit_move(e, ARG0, CTX);
	emit_move(e, ARG1, FPTR);
	emit_call(e, (const void *)prepare); /* raises the error */
	emit_in(e, HOT);
}

/* ---- parts of calls ---- */

static void forget_from(struct compilation *c, int base)
{
	for (int i = base; i < TYPED_SLOTS; i++)
		types_set(&c->types, i, TY_ANY);
	if (base < 64)
		c->written |= ~(uint64_t)0 << base;
	else
		c->written |= (uint64_t)1 << 63;
}

/* R0 is the result. */
static void finish_call(struct compilation *c, const struct call *call)
{
	struct emitter *e = c->e;
	int exit = emit_label(e);

	emit_patch_point(e, exit);
	emit_store(e, CTX, offsetof(struct context, now.fp), FPTR);
	if (call->has_leaf)
		emit_bind(e, call->join);
	emit_store(e, FPTR, SLOT(call->dst), R0);
	forget_from(c, call->base);
	note_write(c, call->dst, TY_ANY);
	c->from_calls |= call->dst < 64 ? (uint64_t)1 << call->dst : 0;
	c->r0_slot = call->dst;
	emit_in(e, COLD);
	emit_bind(e, exit);
	emit_store(e, CTX, offsetof(struct context, now.fp), FPTR);
	emit_store(e, FPTR, SLOT(call->dst), R0);
	emit_imm(e, ARG2, (uint64_t)call->next);
	emit_tail(e, jit_left_thunk);
	emit_in(e, HOT);
}

static void finish_tail(struct compilation *c)
{
	emit_leave(c->e);
	emit_return(c->e);
	c->is_done = 1;
}

static void store_link(struct compilation *c, const struct call *call)
{
	emit_imm(c->e, R1, (uint64_t)call->next);
	emit_store(c->e, FPTR, SLOT(call->base + 1), R1);
	emit_store(c->e, FPTR, SLOT(call->base), FPTR);
}

/* Arguments first: the collector clears slots that the closure in fp[-1] does not have. */
static void move_arguments(struct compilation *c, const struct call *call)
{
	for (int i = 0; i < call->argc; i++) {
		int from = call->base + FRAME_HEADER + i;
		if (from != c->r0_fresh)
			emit_load(c->e, R1, FPTR, SLOT(from));
		emit_store(c->e, FPTR, SLOT(i), from != c->r0_fresh ? R1 : R0);
	}
}

/* ---- leaves ---- */

/* Code that returns at once: an argument, or a word that is no pointer. */
static int is_leaf(const struct insn *at, int argc)
{
	if (at->op == OP_RETURN)
		return at->a < argc;
	if (at->op != OP_FIX && (at->op != OP_CONST || is_pointer(insn_const(at))))
		return 0;
	return at[1].op == OP_RETURN && at[1].a == at->a;
}

/* Emits the first test of a body, on arguments in their slots, and sets *cond to the condition of
 * the jump. Returns 0 when the test is missing or must look at types. */
static int compile_leaf_test(struct compilation *c, const struct insn *test, int args,
			     enum emit_cond *cond)
{
	struct emitter *e = c->e;
	int slot = args + test->a, is_number = test->op >= OP_JLT && test->op <= OP_JNNUMEQI;
	int is_immediate = op_formats[test->op] == F_AIJ;
	int32_t word = is_immediate ? (int32_t)(int64_t)make_fixnum((int16_t)test->b) : V_NIL;

	if (!is_number && test->op != OP_JNULL && test->op != OP_JNNULL)
		return 0;
	if (is_number && (types_get(&c->types, slot) != TY_FIXNUM ||
			  (!is_immediate && types_get(&c->types, args + test->b) != TY_FIXNUM)))
		return 0;
	*cond = is_number ? fixnum_condition(test) : test->op == OP_JNULL ? IF_EQ : IF_NE;
	if (is_number && !is_immediate) {
		if (c->r0_fresh != slot)
			emit_load(e, R1, FPTR, SLOT(slot));
		emit_op_load(e, DO_CMP, c->r0_fresh == slot ? R0 : R1, FPTR,
			     SLOT(args + test->b));
	} else if (c->r0_fresh == slot) {
		emit_op_imm(e, DO_CMP, R0, word);
	} else {
		emit_cmp_imm(e, FPTR, SLOT(slot), word);
	}
	return 1;
}

static void jump_to_leaf(struct compilation *c, const struct call *call, enum emit_cond cond,
			 int label)
{
	if (!c->jit->is_arena) {
		emit_goto_if(c->e, cond, label);
		return;
	}
	int record = add_record(c, REC_LEAF, c->code, K_POINT, 0);
	c->records[record].assumed = call->cell;
	emit_site(c->e, SITE_JUMP_IF, cond, record, label);
}

/* A procedure that calls itself makes no call where the callee would return at once: half of the
 * calls of most recursions. Only for itself: tracing a procedure makes its own code anew. */
static void compile_leaf(struct compilation *c, struct call *call)
{
	struct emitter *e = c->e;
	const struct insn *test = c->code->insns, *leaf = insn_jump(test);
	enum emit_cond cond;
	int args = call->base + FRAME_HEADER;
	int jumps = leaf && is_leaf(leaf, call->argc);

	if (!leaf || (!jumps && !is_leaf(test + 1, call->argc)) ||
	    !compile_leaf_test(c, test, args, &cond))
		return;
	if (!jumps) {
		leaf = test + 1;
		cond = emit_opposite(cond);
	}
	call->has_leaf = 1;
	call->join = emit_label(e);
	if (leaf->op == OP_RETURN && c->r0_fresh == args + leaf->a) {
		jump_to_leaf(c, call, cond, call->join);
		return;
	}
	int found = emit_label(e);
	jump_to_leaf(c, call, cond, found);
	emit_in(e, COLD);
	emit_bind(e, found);
	if (leaf->op == OP_RETURN)
		emit_load(e, R0, FPTR, SLOT(args + leaf->a));
	else
		emit_imm(e, R0, leaf->op == OP_FIX ? make_fixnum(leaf->bc) : insn_const(leaf));
	emit_goto(e, call->join);
	emit_in(e, HOT);
}

/* Passes the known types of the arguments to the callee. */
static void pass_types(struct compilation *c, const struct call *call, int record)
{
	struct slot_types *types = &c->records[record].types;

	memset(types, 0, sizeof *types);
	for (int i = 0; i < call->argc; i++)
		types_set(types, i, types_get(&c->types, call->base + FRAME_HEADER + i));
}

/* A result of a call is expected to be a fixnum where the procedure had a fixnum: then the loop
 * comes back to the existing version, which does not test the type. */
static void expect_fixnums(struct compilation *c, const struct call *call)
{
	int guard = -1;

	for (int i = 0; i < call->argc; i++) {
		int slot = call->base + FRAME_HEADER + i;
		if (slot >= 64 || !(c->from_calls >> slot & 1) ||
		    types_get(&c->types, slot) != TY_ANY || types_get(&c->types, i) != TY_FIXNUM)
			continue;
		if (guard < 0)
			guard = guard_label(c, call->pc);
		if (slot != c->r0_fresh)
			emit_load(c->e, R1, FPTR, SLOT(slot));
		emit_test_bits(c->e, slot != c->r0_fresh ? R1 : R0, 1);
		emit_goto_if(c->e, IF_EQ, guard);
		types_set(&c->types, slot, TY_FIXNUM);
	}
}

/* A procedure's tail call of itself is a loop: the frame stays up, and the checks are the checks of
 * a loop's head. At the jump the arguments are still where they were evaluated. */
static void loop_to_start(struct compilation *c, const struct call *call)
{
	expect_fixnums(c, call);
	emit_poll(c, call->pc, call->pc);
	move_arguments(c, call);
	emit_ref(c->e, R0, call->constant);
	emit_store(c->e, FPTR, -8, R0);
	int record = add_record(c, REC_GOTO, c->code, K_POINT, 0);
	pass_types(c, call, record);
	c->records[record].call = pc_index(c->code, call->pc);
	if (c->jit->is_arena)
		c->records[record].assumed = call->cell;
	emit_site(c->e, SITE_JUMP, IF_EQ, record, -1);
	c->is_done = 1;
}

static void call_body(struct compilation *c, struct call *call, struct code *code)
{
	struct emitter *e = c->e;
	int32_t distance = SLOT(call->base + FRAME_HEADER);
	if (call->is_tail && code == c->code && call->constant != V_NONE && !code->has_rest &&
	    call->argc <= call->base + 2) {
		loop_to_start(c, call);
		return;
	}
	int record = add_record(c, REC_BODY, code, K_BODY, 0);
	c->records[record].argc = (int16_t)call->argc;
	if (!code->has_rest)
		pass_types(c, call, record);
	if (call->constant != V_NONE && c->jit->is_arena)
		c->records[record].assumed = call->cell;
	if (call->is_tail) {
		/* The arguments may cover the closure's slot. */
		if (call->constant == V_NONE)
			emit_load(e, R2, FPTR, distance - 8);
		move_arguments(c, call);
		if (call->constant != V_NONE)
			emit_ref(e, R2, call->constant);
		emit_store(e, FPTR, -8, R2);
		if (code->has_rest)
			emit_imm(e, ARG2, (uint64_t)call->argc);
		if (!c->is_bare)
			emit_leave(e);
		emit_site(e, SITE_JUMP, IF_EQ, record, -1);
		c->is_done = 1;
		return;
	}
	if (call->constant != V_NONE) {
		if (code == c->code && !code->has_rest)
			compile_leaf(c, call);
		emit_ref(e, R0, call->constant);
		emit_store(e, FPTR, distance - 8, R0);
	}
	store_link(c, call);
	emit_address(e, FPTR, FPTR, distance);
	if (code->has_rest)
		emit_imm(e, ARG2, (uint64_t)call->argc);
	emit_site(e, SITE_CALL, IF_EQ, record, -1);
	emit_address(e, FPTR, FPTR, -distance);
	finish_call(c, call);
	/* All cases of an inline cache have one continuation. */
	if (call->constant == V_NONE)
		end_with_goto(c, pc_index(c->code, call->next));
}

static void call_prim(struct compilation *c, const struct call *call, struct prim *prim)
{
	struct emitter *e = c->e;

	store_pc(c, call->next);
	emit_move(e, ARG0, CTX);
	emit_address(e, ARG1, FPTR, SLOT(call->base + FRAME_HEADER));
	emit_imm(e, ARG2, (uint64_t)call->argc);
	emit_call(e, (const void *)prim->run);
	if (call->is_tail)
		finish_tail(c);
	else
		finish_call(c, call);
}

/* Calls the value in the callee's slot, of any type. */
static void call_any(struct compilation *c, const struct call *call)
{
	struct emitter *e = c->e;
	int again = emit_label(e), slow = emit_label(e), join = emit_label(e);
	int32_t distance = SLOT(call->base + FRAME_HEADER);

	c->r0_fresh = -1;
	emit_bind(e, again);
	emit_load(e, R0, FPTR, distance - 8);
	test_object(c, R0, T_CLOSURE, slow);
	if (call->is_tail) {
		move_arguments(c, call);
		emit_store(e, FPTR, -8, R0);
	} else {
		store_link(c, call);
		emit_address(e, FPTR, FPTR, distance);
	}
	emit_load(e, R0, R0, offsetof(struct closure, code));
	emit_load(e, R0, R0, offsetof(struct code, entry_cell));
	emit_imm(e, ARG2, (uint64_t)call->argc);
	if (call->is_tail) {
		emit_leave(e);
		emit_jump_at(e, R0, 0);
	} else {
		emit_call_at(e, R0, 0);
		emit_address(e, FPTR, FPTR, -distance);
		emit_bind(e, join);
		finish_call(c, call);
	}
	emit_in(e, COLD);
	emit_bind(e, slow);
	store_pc(c, call->next);
	if (call->is_tail) {
		emit_move(e, ARG0, CTX);
		emit_move(e, ARG1, FPTR);
		emit_address(e, ARG2, FPTR, distance);
		emit_imm(e, ARG3, (uint64_t)call->argc);
		emit_call(e, (const void *)escape_in_place);
		emit_op_imm(e, DO_CMP, R0, 0);
		emit_goto_if(e, IF_NE, again);
	}
	emit_move(e, ARG0, CTX);
	emit_load(e, ARG1, FPTR, distance - 8);
	emit_address(e, ARG2, FPTR, distance);
	emit_imm(e, ARG3, (uint64_t)call->argc);
	emit_call(e, (const void *)call_other);
	if (call->is_tail) {
		emit_leave(e);
		emit_return(e);
	} else {
		emit_goto(e, join);
	}
	emit_in(e, HOT);
	if (call->is_tail)
		c->is_done = 1;
	else
		end_with_goto(c, pc_index(c->code, call->next));
}

/* ---- inline caches ---- */

static int takes(const struct code *code, int argc)
{
	return code->has_rest ? argc >= code->required_args : argc == code->exact_args;
}

/* One case; a miss leads to the block of the next case. */
static void call_case(struct compilation *c, struct call *call, struct code *code, int index)
{
	struct emitter *e = c->e;
	int miss = emit_label(e);
	uint32_t at = pc_index(c->code, call->pc);
	int record = add_record(c, REC_GOTO, c->code, (enum version_kind)(K_CASE + index + 1), at);

	c->r0_fresh = -1;
	emit_load(e, R0, FPTR, SLOT(call->base + 2));
	if (types_get(&c->types, call->base + 2) != TY_CLOSURE)
		test_object(c, R0, T_CLOSURE, miss);
	emit_ref(e, R1, (value)code);
	emit_op_load(e, DO_CMP, R1, R0, offsetof(struct closure, code));
	emit_goto_if(e, IF_NE, miss);
	emit_in(e, COLD);
	emit_bind(e, miss);
	emit_site(e, SITE_JUMP, IF_EQ, record, -1);
	emit_in(e, HOT);
	call_body(c, call, code);
}

static void call_cached(struct compilation *c, struct call *call, value live)
{
	int is_first = pc_index(c->code, call->pc) == c->start;
	int index = is_first && c->kind >= K_CASE ? (int)c->kind - K_CASE : 0;

	if (index < CASES_PER_CALL && is_type(live, T_CLOSURE) &&
	    takes(AS(closure, live)->code, call->argc))
		call_case(c, call, AS(closure, live)->code, index);
	else
		call_any(c, call);
}

/* A tail call without arguments needs no frame. Only behind an entry: a body that is jumped to has
 * the check at which a loop of such calls polls. */
int is_bare_call(const struct compilation *c, const struct insn *pc)
{
	if (pc->op != OP_TAILCALLG || pc->c != 0 || c->kind != K_ENTRY)
		return 0;
	const struct cell *cell = AS(cell, insn_const(pc + 1));
	value live = cell->content;
	return __atomic_load_n(&cell->version, __ATOMIC_ACQUIRE) <= REDEFINITIONS &&
	       is_type(live, T_CLOSURE) && AS(closure, live)->code != c->code &&
	       takes(AS(closure, live)->code, 0);
}

static void call_global(struct compilation *c, struct call *call)
{
	struct emitter *e = c->e;
	struct cell *cell = call->cell;
	value live = cell->content;
	int is_stable = __atomic_load_n(&cell->version, __ATOMIC_ACQUIRE) <= REDEFINITIONS;
	int is_arena = c->jit->is_arena;

	int is_closure = is_type(live, T_CLOSURE) && takes(AS(closure, live)->code, call->argc);

	/* Another thread may have redefined the global since is_bare_call. */
	if (c->is_bare && !(is_stable && is_closure && AS(closure, live)->code != c->code))
		set_up_frame(c);
	if (is_stable) {
		struct prim *prim = is_type(live, T_PRIM) ? AS(prim, live) : NULL;
		if (prim && (call->argc < prim->min_args ||
			     (prim->max_args >= 0 && call->argc > prim->max_args)))
			prim = NULL;
		if (call->is_tail && is_call_cc(live))
			prim = NULL; /* call_any makes a call of the receiver */
		if (is_closure && is_arena) {
			call->constant = live;
			call_body(c, call, AS(closure, live)->code);
			return;
		}
		if ((is_closure || prim) && !is_arena) {
			c->assumed[c->assumed_count] = cell;
			c->assumed_value[c->assumed_count++] = live;
			call->constant = live;
			if (prim)
				call_prim(c, call, prim);
			else
				call_body(c, call, AS(closure, live)->code);
			return;
		}
	}
	emit_ref(e, R0, (value)cell);
	emit_load(e, R0, R0, offsetof(struct cell, content));
	emit_op_imm(e, DO_CMP, R0, V_UNDEF);
	emit_goto_if(e, IF_EQ, exit_label(c, call->pc));
	emit_store(e, FPTR, SLOT(call->base + 2), R0);
	note_write(c, call->base + 2, TY_ANY);
	/* A form of the top level runs once: a cache would cost more than it saves. */
	if (c->kind == K_ENTRY)
		call_any(c, call);
	else
		call_cached(c, call, live);
}

void compile_call(struct compilation *c, const struct insn *pc)
{
	int is_global = pc->op == OP_CALLG || pc->op == OP_TAILCALLG;
	struct call call = {
		.pc = pc,
		.next = pc + (is_global ? 2 : 1),
		.cell = is_global ? AS(cell, insn_const(pc + 1)) : NULL,
		.base = pc->b,
		.argc = pc->c,
		.dst = is_global ? pc[1].a : pc->a,
		.is_tail = pc->op == OP_TAILCALL || pc->op == OP_TAILCALLG,
		.constant = V_NONE,
	};

	if (is_global)
		call_global(c, &call);
	else if (pc_index(c->code, pc) != c->start || !c->fp)
		end_with_goto(c, pc_index(c->code, pc)); /* wait for the callee's live value */
	else
		call_cached(c, &call, c->fp[call.base + 2]);
}

/* ---- apply ---- */

static value apply_spread(struct context *ctx, value *fp, const struct insn *pc)
{
	value *args = fp + pc->b + FRAME_HEADER;
	value callee = args[-1], v;

	ctx->pc = pc + 1;
	check_c_stack(ctx);
	int64_t argc = spread_list(ctx, args, args[0]);
	if (is_type(callee, T_CLOSURE)) {
		args[-3] = (value)fp;
		args[-2] = (value)(pc + 1);
		v = AS(closure, callee)->code->entry(ctx, args, argc);
	} else {
		v = call_other(ctx, callee, args, argc);
	}
	FP(ctx) = fp;
	ctx->now.arg_top = NULL;
	return v;
}

void compile_apply(struct compilation *c, const struct insn *pc)
{
	struct call call = {.pc = pc, .next = pc + 1, .base = pc->b, .dst = pc->a};

	emit_move(c->e, ARG1, FPTR);
	emit_imm(c->e, ARG2, (uint64_t)pc);
	emit_move(c->e, ARG0, CTX);
	emit_call(c->e, (const void *)apply_spread);
	finish_call(c, &call);
}
