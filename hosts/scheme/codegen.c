/* SPDX-License-Identifier: MIT
 * codegen.c: from the tree to bytecode. Slots are handed out like a stack, so every temporary has a
 * known home at its pc; open.c emits the open-coded built-ins.
 */
#include "codegen.h"
#include "frame.h"

#define GROW(fn, array, count, capacity) \
	do { \
		if ((count) == (capacity)) { \
			(capacity) = (capacity) * 2 + 16; \
			(array) = grow_scanned((array), (size_t)(capacity) * sizeof *(array)); \
		} \
	} while (0)

static void start(struct fn *fn, struct expander *e, struct node *lambda)
{
	fn->e = e;
	fn->lambda = lambda;
	fn->insns = fn->first_insns;
	fn->lines = fn->first_lines;
	fn->capacity = FIRST_INSNS;
	fn->consts = fn->first_consts;
	fn->const_uses = fn->first_uses;
	fn->const_capacity = fn->const_use_capacity = FIRST_CONSTS;
}

/* Doubles an array whose first part is in the record. */
static void *doubled(void *array, const void *first, int count, size_t item)
{
	size_t bytes = (size_t)count * item;

	if (array != first)
		return grow_scanned(array, 2 * bytes);
	return memcpy(new_scanned(2 * bytes), first, bytes);
}

int emit_wide(struct fn *fn, enum op op, int a, int bc)
{
	if (fn->count == fn->capacity) {
		fn->insns = doubled(fn->insns, fn->first_insns, fn->count, sizeof *fn->insns);
		fn->lines = doubled(fn->lines, fn->first_lines, fn->count, sizeof *fn->lines);
		fn->capacity *= 2;
	}
	fn->lines[fn->count] = (uint32_t)fn->line;
	fn->insns[fn->count].op = (uint16_t)op;
	fn->insns[fn->count].a = (uint16_t)a;
	fn->insns[fn->count].bc = bc;
	return fn->count++;
}

int emit(struct fn *fn, enum op op, int a, int b, int c)
{
	int at = emit_wide(fn, op, a, 0);

	fn->insns[at].b = (uint16_t)b;
	fn->insns[at].c = (uint16_t)c;
	return at;
}

int emit_const(struct fn *fn, enum op op, int a, value datum)
{
	int index = 0;

	while (index < fn->const_count && fn->consts[index] != datum)
		index++;
	if (index == fn->const_count) {
		if (index == fn->const_capacity) {
			fn->consts = doubled(fn->consts, fn->first_consts, index, sizeof datum);
			fn->const_capacity *= 2;
		}
		fn->consts[fn->const_count++] = datum;
	}
	if (fn->const_use_count == fn->const_use_capacity) {
		fn->const_uses = doubled(fn->const_uses, fn->first_uses, fn->const_use_count,
					 sizeof *fn->const_uses);
		fn->const_use_capacity *= 2;
	}
	fn->const_uses[fn->const_use_count++] = fn->count;
	return emit_wide(fn, op, a, index);
}

void emit_datum(struct fn *fn, int dst, value datum)
{
	if (is_fixnum(datum) && fixnum_of(datum) == (int32_t)fixnum_of(datum))
		emit_wide(fn, OP_FIX, dst, (int32_t)fixnum_of(datum));
	else
		emit_const(fn, OP_CONST, dst, datum);
}

void jump_to(struct fn *fn, int from, int target)
{
	int distance = target - from;
	struct insn *insn = &fn->insns[from];
	enum op_format format = (enum op_format)op_formats[insn->op];

	if (format == F_J || format == F_AJ) {
		insn->bc = distance;
		return;
	}
	if (distance != (int16_t)distance)
		raise_syntax(fn->e, fn->lambda->datum, "procedure too large");
	insn->c = (uint16_t)distance;
}

void emit_jump(struct fn *fn, enum op op, int a, int b, struct label *label)
{
	GROW(fn, label->jumps, label->count, label->capacity);
	label->jumps[label->count++] = fn->count;
	emit(fn, op, a, b, 0);
}

void bind_label(struct fn *fn, struct label *label)
{
	for (int i = 0; i < label->count; i++)
		jump_to(fn, label->jumps[i], fn->count);
}

static void reserve(struct fn *fn, int slots)
{
	if (fn->next_slot + slots > 60000)
		raise_syntax(fn->e, fn->lambda->datum, "procedure has too many variables");
	if (fn->next_slot + slots > fn->max_slot)
		fn->max_slot = fn->next_slot + slots;
}

int new_slot(struct fn *fn)
{
	reserve(fn, 1);
	return fn->next_slot++;
}

/* ---- variables ---- */

static int free_index(struct fn *fn, struct var *var)
{
	for (int i = 0; i < fn->free_count; i++)
		if (fn->frees[i] == var)
			return i;
	if (fn->free_count > UINT16_MAX)
		raise_syntax(fn->e, fn->lambda->datum, "procedure has too many variables");
	GROW(fn, fn->frees, fn->free_count, fn->free_capacity);
	fn->frees[fn->free_count] = var;
	return fn->free_count++;
}

/* Returns the slot of the variable itself, or of its box. */
static int var_slot(struct fn *fn, struct var *var)
{
	if (var->home == fn->lambda)
		return var->slot;
	int slot = new_slot(fn);
	emit(fn, OP_FREE, slot, free_index(fn, var), 0);
	return slot;
}

int is_plain_local(struct fn *fn, struct node *node)
{
	return node->kind == N_LOCAL && !node->var->is_boxed && node->var->home == fn->lambda;
}

static void gen_local(struct fn *fn, struct var *var, int dst)
{
	int saved = fn->next_slot;

	if (var->is_boxed)
		emit(fn, OP_BOXREF, dst, var_slot(fn, var), 0);
	else if (var->home != fn->lambda)
		emit(fn, OP_FREE, dst, free_index(fn, var), 0);
	else if (var->slot != dst)
		emit(fn, OP_MOVE, dst, var->slot, 0);
	fn->next_slot = saved;
}

int gen_operand(struct fn *fn, struct node *node)
{
	if (is_plain_local(fn, node) && !node->var->is_assigned)
		return node->var->slot;
	int slot = new_slot(fn), line = fn->line;
	gen(fn, node, slot);
	fn->line = line;
	return slot;
}

static void gen_set(struct fn *fn, struct node *node)
{
	struct var *var = node->var;
	int saved = fn->next_slot;

	if (var->is_boxed) {
		int slot = gen_operand(fn, node->kids[0]);
		emit(fn, OP_BOXSET, var_slot(fn, var), slot, 0);
	} else {
		int slot = new_slot(fn);
		gen(fn, node->kids[0], slot);
		emit(fn, OP_MOVE, var->slot, slot, 0);
	}
	fn->next_slot = saved;
}

/* ---- procedures ---- */

static value finish(struct fn *fn)
{
	size_t words = (size_t)fn->count + (size_t)fn->const_count;
	struct code *code = alloc_bytes(fn->e->ctx, T_CODE, sizeof *code + words * 8);
	struct node *lambda = fn->lambda;

	for (int i = 0; i < fn->const_use_count; i++) {
		int at = fn->const_uses[i];
		fn->insns[at].bc += fn->count - at;
	}
	memcpy(code->insns, fn->insns, (size_t)fn->count * 8);
	if (fn->const_count)
		memcpy(code->insns + fn->count, fn->consts, (size_t)fn->const_count * 8);
	code->lines = new_plain((size_t)fn->count * sizeof *code->lines);
	memcpy(code->lines, fn->lines, (size_t)fn->count * sizeof *code->lines);
	code->has_rest = lambda->has_rest;
	code->required_args = lambda->var_count - lambda->has_rest;
	code->exact_args = lambda->has_rest ? -1 : lambda->var_count;
	code->frame_slots = fn->max_slot;
	if (lambda->has_rest && code->frame_slots < MOST_TAIL_ARGS)
		code->frame_slots = MOST_TAIL_ARGS;
	code->insn_count = fn->count;
	code->const_count = fn->const_count;
	code->free_count = fn->free_count;
	code->line = lambda->line;
	code->name = lambda->datum;
	code->file = fn->e->ctx->vm->load_file;
	code->entry = interp_entry;
	if (fn->e->ctx->vm->hooks.code_created)
		fn->e->ctx->vm->hooks.code_created(fn->e->ctx, code);
	return (value)code;
}

static value gen_lambda(struct fn *fn, struct node *lambda)
{
	for (int i = 0; i < lambda->var_count; i++)
		lambda->vars[i]->slot = new_slot(fn);
	fn->line = lambda->line;
	for (int i = 0; i < lambda->var_count; i++)
		if (lambda->vars[i]->is_boxed)
			emit(fn, OP_BOX, i, i, 0);
	gen(fn, lambda->kids[0], DST_TAIL);
	return finish(fn);
}

value generate_code(struct expander *e, struct node *lambda)
{
	struct fn fn = {0};

	start(&fn, e, lambda);
	return gen_lambda(&fn, lambda);
}

/* Emits the closure into dst. Returns the inner procedure for its list of free variables. */
static struct fn *gen_closure(struct fn *fn, struct node *lambda, int dst)
{
	struct fn *inner = new_scanned(sizeof *inner);
	int saved = fn->next_slot;

	check_c_stack(fn->e->ctx);
	inner->up = fn;
	start(inner, fn->e, lambda);
	value code = gen_lambda(inner, lambda);
	emit_const(fn, OP_CLOSURE, dst, code);
	for (int i = 0; i < inner->free_count; i++) {
		emit(fn, OP_CAPTURE, dst, i, var_slot(fn, inner->frees[i]));
		fn->next_slot = saved;
	}
	return inner;
}

/* ---- binding forms ---- */

static void gen_let(struct fn *fn, struct node *node, int dst)
{
	int saved = fn->next_slot;

	for (int i = 0; i < node->var_count; i++) {
		int slot = new_slot(fn);
		gen(fn, node->kids[i], slot);
		node->vars[i]->slot = slot;
		if (node->vars[i]->is_boxed)
			emit(fn, OP_BOX, slot, slot, 0);
	}
	gen(fn, node->kids[node->var_count], dst);
	fn->next_slot = saved;
}

/* Slots of a letrec are written before any init runs: a variable read too early is V_UNDEF, never a
 * leftover of an earlier frame. */
static void prepare_letrec(struct fn *fn, struct node *node)
{
	for (int i = 0; i < node->var_count; i++) {
		struct var *var = node->vars[i];
		if (!var || var->loop_site)
			continue;
		var->slot = new_slot(fn);
		var->closure_slot = var->slot;
		if (var->is_boxed && var->lambda)
			var->closure_slot = new_slot(fn);
		if (var->is_boxed || var->forward_from_procedure)
			emit_const(fn, OP_CONST, var->slot, V_UNDEF);
		if (var->is_boxed)
			emit(fn, OP_BOX, var->slot, var->slot, 0);
	}
}

static void gen_letrec_lambda(struct fn *fn, struct node *node, int index, struct fn **inners)
{
	struct var *var = node->vars[index];

	inners[index] = gen_closure(fn, node->kids[index], var->closure_slot);
	if (var->is_boxed) {
		emit(fn, OP_BOXSET, var->slot, var->closure_slot, 0);
		return;
	}
	for (int i = 0; i < index; i++) {
		if (!inners[i])
			continue;
		for (int k = 0; k < inners[i]->free_count; k++)
			if (inners[i]->frees[k] == var)
				emit(fn, OP_CAPTURE, node->vars[i]->closure_slot, k, var->slot);
	}
}

static void gen_letrec(struct fn *fn, struct node *node, int dst)
{
	int saved = fn->next_slot;
	struct fn **inners = new_scanned((size_t)(node->var_count + 1) * sizeof *inners);

	prepare_letrec(fn, node);
	for (int i = 0; i < node->var_count; i++) {
		struct var *var = node->vars[i];
		if (!var) {
			gen(fn, node->kids[i], DST_EFFECT);
		} else if (var->loop_site) {
			continue;
		} else if (var->lambda) {
			gen_letrec_lambda(fn, node, i, inners);
		} else if (var->is_boxed) {
			int slot = new_slot(fn);
			gen(fn, node->kids[i], slot);
			emit(fn, OP_BOXSET, var->slot, slot, 0);
			fn->next_slot--;
		} else {
			gen(fn, node->kids[i], var->slot);
		}
	}
	gen(fn, node->kids[node->var_count], dst);
	fn->next_slot = saved;
}

/* ---- loops ---- */

static void enter_loop(struct fn *fn, struct node *call, int dst)
{
	struct var *loop = call->kids[0]->var;
	struct node *lambda = loop->lambda;
	int saved = fn->next_slot, first = fn->next_slot;

	for (int i = 0; i < lambda->var_count; i++) {
		int slot = new_slot(fn);
		gen(fn, call->kids[i + 1], slot);
		lambda->vars[i]->slot = slot;
	}
	loop->loop_param_base = first;
	loop->loop_head = fn->count;
	if (loop->loop_jumps)
		emit(fn, OP_LOOP, 0, 0, 0);
	for (int i = 0; i < lambda->var_count; i++) {
		if (lambda->vars[i]->is_boxed) {
			lambda->vars[i]->slot = new_slot(fn);
			emit(fn, OP_BOX, lambda->vars[i]->slot, first + i, 0);
		}
	}
	gen(fn, lambda->kids[0], dst);
	fn->next_slot = saved;
}

/* Returns true for a node of one instruction, which writes its destination last. */
static int is_simple(struct fn *fn, struct node *node)
{
	if (node->kind == N_CONST || is_plain_local(fn, node))
		return 1;
	if (node->kind != N_OPEN ||
	    (node->coding->kind != OPEN_FOLD && node->coding->kind != OPEN_BINARY &&
	     node->coding->kind != OPEN_UNARY))
		return 0;
	for (int i = 0; i < node->kid_count; i++)
		if (node->kids[i]->kind != N_CONST && !is_plain_local(fn, node->kids[i]))
			return 0;
	return 1;
}

static int reads(struct fn *fn, struct node *node, struct var *var)
{
	if (node->kind == N_LOCAL)
		return node->var == var;
	if (!is_simple(fn, node))
		return 1;
	for (int i = 0; i < node->kid_count; i++)
		if (reads(fn, node->kids[i], var))
			return 1;
	return 0;
}

/* The parameters of the loop are assigned as if all at once. An argument is evaluated in place if
 * no later argument needs the old value; otherwise it goes through a temporary. */
static void jump_loop(struct fn *fn, struct node *call)
{
	struct var *loop = call->kids[0]->var;
	struct node *lambda = loop->lambda;
	int count = lambda->var_count, saved = fn->next_slot, left = count;
	int *temps = new_plain((size_t)(count + 1) * sizeof *temps);
	enum { PENDING = -1, DONE = -2 };

	for (int i = 0; i < count; i++) {
		struct node *arg = call->kids[i + 1];
		temps[i] = PENDING;
		if (arg->kind == N_LOCAL && arg->var == lambda->vars[i] && !arg->var->is_boxed) {
			temps[i] = DONE;
			left--;
		}
	}
	while (left > 0) {
		int chosen = -1, direct = 0;
		for (int i = 0; i < count && !direct; i++) {
			if (temps[i] != PENDING)
				continue;
			direct = is_simple(fn, call->kids[i + 1]);
			for (int j = 0; j < count && direct; j++)
				if (j != i && temps[j] == PENDING &&
				    reads(fn, call->kids[j + 1], lambda->vars[i]))
					direct = 0;
			if (chosen < 0 || direct || !is_simple(fn, call->kids[i + 1]))
				chosen = i;
		}
		int slot = direct ? loop->loop_param_base + chosen : new_slot(fn);
		gen(fn, call->kids[chosen + 1], slot);
		temps[chosen] = direct ? DONE : slot;
		left--;
	}
	for (int i = 0; i < count; i++)
		if (temps[i] >= 0)
			emit(fn, OP_MOVE, loop->loop_param_base + i, temps[i], 0);
	fn->next_slot = saved;
	jump_to(fn, emit_wide(fn, OP_JMP, 0, 0), loop->loop_head);
}

/* ---- calls ---- */

/* A tail call with more arguments than a callee is sure to have slots for: in a list. */
static void gen_long_tail_call(struct fn *fn, int base, int argc)
{
	int first = base + 3, list = first + argc;

	emit_datum(fn, list, V_NIL);
	for (int i = argc - 1; i >= 0; i--)
		emit(fn, OP_CONS, i ? list : first, first + i, list);
	emit(fn, OP_TAILAPPLY, base, base, 0);
}

static void gen_call(struct fn *fn, struct node *node, int dst)
{
	int base = fn->next_slot, argc = node->kid_count - 1;
	struct node *callee = node->kids[0];
	int is_global = callee->kind == N_GLOBAL;

	int is_long = dst == DST_TAIL && argc > MOST_TAIL_ARGS;

	reserve(fn, 3 + argc + is_long);
	fn->next_slot = base + 2;
	int callee_slot = new_slot(fn);
	if (!is_global)
		gen(fn, callee, callee_slot);
	for (int i = 0; i < argc; i++) {
		int slot = new_slot(fn);
		gen(fn, node->kids[i + 1], slot);
	}
	fn->next_slot = base;
	fn->line = node->line;
	int is_tail = dst == DST_TAIL;
	int result = dst >= 0 ? dst : base;
	if (is_long) {
		if (is_global)
			emit_const(fn, OP_GREF, callee_slot, (value)callee->cell);
		gen_long_tail_call(fn, base, argc);
	} else if (is_global) {
		emit(fn, is_tail ? OP_TAILCALLG : OP_CALLG, 0, base, argc);
		emit_const(fn, OP_EXT, result, (value)callee->cell);
	} else {
		emit(fn, is_tail ? OP_TAILCALL : OP_CALL, result, base, argc);
	}
}

static void gen_apply(struct fn *fn, struct node *node, int dst)
{
	int base = fn->next_slot;

	reserve(fn, 4);
	fn->next_slot = base + 2;
	gen(fn, node->kids[0], new_slot(fn));
	gen(fn, node->kids[1], new_slot(fn));
	fn->next_slot = base;
	emit(fn, dst == DST_TAIL ? OP_TAILAPPLY : OP_APPLY, dst >= 0 ? dst : base, base, 0);
}

/* ---- branches ---- */

static void branch_list(struct fn *fn, struct node *node, int sense, struct label *label)
{
	/* and: to jump when false, each false part jumps; to jump when true, a false part skips. */
	int stops_on = node->kind == N_OR;
	struct label skip = {NULL, 0, 0};
	int last = node->kid_count - 1;

	for (int i = 0; i < last; i++)
		gen_branch(fn, node->kids[i], stops_on, sense == stops_on ? label : &skip);
	gen_branch(fn, node->kids[last], sense, label);
	bind_label(fn, &skip);
}

void gen_branch(struct fn *fn, struct node *node, int sense, struct label *label)
{
	int saved = fn->next_slot;

	switch (node->kind) {
	case N_CONST:
		if (is_true(node->datum) == sense)
			emit_jump(fn, OP_JMP, 0, 0, label);
		break;
	case N_AND:
	case N_OR:
		branch_list(fn, node, sense, label);
		break;
	case N_SEQ:
		for (int i = 0; i + 1 < node->kid_count; i++)
			gen(fn, node->kids[i], DST_EFFECT);
		gen_branch(fn, node->kids[node->kid_count - 1], sense, label);
		break;
	case N_OPEN:
		fn->line = node->line;
		branch_open(fn, node, sense, label);
		break;
	default:
		emit_jump(fn, sense ? OP_JT : OP_JF, gen_operand(fn, node), 0, label);
	}
	fn->next_slot = saved;
}

static void gen_if(struct fn *fn, struct node *node, int dst)
{
	struct label otherwise = {NULL, 0, 0}, end = {NULL, 0, 0};

	gen_branch(fn, node->kids[0], 0, &otherwise);
	gen(fn, node->kids[1], dst);
	if (dst != DST_TAIL)
		emit_jump(fn, OP_JMP, 0, 0, &end);
	bind_label(fn, &otherwise);
	gen(fn, node->kids[2], dst);
	bind_label(fn, &end);
}

static void gen_and_or(struct fn *fn, struct node *node, int dst)
{
	struct label end = {NULL, 0, 0};
	int saved = fn->next_slot;
	int slot = dst >= 0 ? dst : new_slot(fn);
	int last = node->kid_count - 1;

	for (int i = 0; i < last; i++) {
		gen(fn, node->kids[i], slot);
		emit_jump(fn, node->kind == N_AND ? OP_JF : OP_JT, slot, 0, &end);
	}
	gen(fn, node->kids[last], dst == DST_TAIL ? DST_TAIL : slot);
	bind_label(fn, &end);
	if (dst == DST_TAIL)
		emit(fn, OP_RETURN, slot, 0, 0);
	fn->next_slot = saved;
}

/* Leaves the value of a node in a slot, for nodes that do not jump by themselves. */
static void gen_value(struct fn *fn, struct node *node, int dst)
{
	switch (node->kind) {
	case N_CONST:
		emit_datum(fn, dst, node->datum);
		break;
	case N_LOCAL:
		gen_local(fn, node->var, dst);
		break;
	case N_GLOBAL:
		emit_const(fn, OP_GREF, dst, (value)node->cell);
		break;
	case N_LAMBDA: {
		/* dst may be a variable that the closure captures. */
		int slot = new_slot(fn);
		gen_closure(fn, node, slot);
		emit(fn, OP_MOVE, dst, slot, 0);
		fn->next_slot--;
		break;
	}
	case N_SET:
		gen_set(fn, node);
		emit_datum(fn, dst, V_UNSPEC);
		break;
	case N_GSET:
	case N_GDEF:
		gen(fn, node->kids[0], dst);
		emit_const(fn, node->kind == N_GSET ? OP_GSET : OP_GDEF, dst, (value)node->cell);
		emit_datum(fn, dst, V_UNSPEC);
		break;
	default:
		gen_open(fn, node, dst);
	}
}

static void gen_leaf(struct fn *fn, struct node *node, int dst)
{
	int saved = fn->next_slot;

	if (dst >= 0)
		gen_value(fn, node, dst);
	else if (dst == DST_TAIL)
		emit(fn, OP_RETURN, gen_operand(fn, node), 0, 0);
	else if (node->kind == N_SET)
		gen_set(fn, node);
	else if (node->kind != N_CONST && node->kind != N_LOCAL && node->kind != N_LAMBDA)
		gen_value(fn, node, new_slot(fn));
	fn->next_slot = saved;
}

void gen(struct fn *fn, struct node *node, int dst)
{
	check_c_stack(fn->e->ctx);
	fn->line = node->line;
	switch (node->kind) {
	case N_IF:
		gen_if(fn, node, dst);
		break;
	case N_SEQ:
		for (int i = 0; i + 1 < node->kid_count; i++)
			gen(fn, node->kids[i], DST_EFFECT);
		gen(fn, node->kids[node->kid_count - 1], dst);
		break;
	case N_AND:
	case N_OR:
		gen_and_or(fn, node, dst);
		break;
	case N_LET:
		gen_let(fn, node, dst);
		break;
	case N_LETREC:
		gen_letrec(fn, node, dst);
		break;
	case N_CALL:
		if (node->kids[0]->kind == N_LOCAL && node->kids[0]->var->loop_site == node)
			enter_loop(fn, node, dst);
		else if (node->kids[0]->kind == N_LOCAL && node->kids[0]->var->loop_site)
			jump_loop(fn, node);
		else
			gen_call(fn, node, dst);
		break;
	case N_APPLY:
		gen_apply(fn, node, dst);
		break;
	default:
		gen_leaf(fn, node, dst);
	}
}
