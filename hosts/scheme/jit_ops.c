/* SPDX-License-Identifier: MIT
 * jit_ops.c: from one basic block of bytecode to calls of the emitter; calls are in jit_calls.c,
 * arithmetic in jit_numbers.c. Types found by a guard are known in the blocks that follow. An exit
 * leads to the interpreter at the same instruction, which raises the error if there is one.
 */
#include "jit.h"

#define SLOT(n) ((int32_t)(n)*8)

enum { SHORT_BLOCK = 256 };

enum slot_type type_of_value(value v)
{
	static const uint8_t types[] = {
		[T_PAIR] = TY_PAIR,     [T_FLONUM] = TY_FLONUM, [T_CLOSURE] = TY_CLOSURE,
		[T_VECTOR] = TY_VECTOR, [T_STRING] = TY_STRING, [T_SYMBOL] = TY_SYMBOL,
		[T_BOX] = TY_BOX,       [T_RECORD] = TY_RECORD,
	};

	if (is_fixnum(v))
		return TY_FIXNUM;
	if (is_pointer(v)) {
		uint64_t header = *(uint64_t *)v;
		return header < sizeof types ? (enum slot_type)types[header] : TY_ANY;
	}
	return v == V_NIL     ? TY_NIL
	       : v == V_FALSE ? TY_FALSE
	       : v == V_TRUE  ? TY_TRUE
	       : is_char(v)   ? TY_CHAR
			      : TY_ANY;
}

static enum slot_type type_of_header(uint64_t header)
{
	struct {
		_Alignas(16) uint64_t header;
	} object = {header};
	return type_of_value((value)&object);
}

/* ---- exits, records ---- */

int add_record(struct compilation *c, enum record_kind kind, struct code *code,
	       enum version_kind version, uint32_t pc)
{
	if (c->record_count == MAX_RECORDS) {
		c->e->overflowed = 1;
		return 0;
	}
	struct jit_record *record = &c->records[c->record_count];
	memset(record, 0, sizeof *record);
	record->record_kind = (uint8_t)kind;
	record->version_kind = (uint8_t)version;
	record->code = code;
	record->pc = pc;
	if (kind != REC_BODY) /* the callee has another frame */
		record->types = c->types;
	return c->record_count++;
}

int exit_label(struct compilation *c, const struct insn *pc)
{
	for (int i = 0; i < c->exit_count; i++)
		if (c->exits[i].pc == pc)
			return c->exits[i].label;
	if (c->exit_count == MAX_EXITS) {
		c->e->overflowed = 1;
		return 0;
	}
	c->exits[c->exit_count].pc = pc;
	c->exits[c->exit_count].label = emit_label(c->e);
	return c->exits[c->exit_count++].label;
}

/* The next code in both sections comes from this line. Without room the last line goes on. */
static void note_line(struct emitter *e, uint32_t line)
{
	for (int section = HOT; section <= COLD; section++) {
		int *n = &e->line_count[section];
		struct emit_line *last = *n ? &e->lines[section][*n - 1] : NULL;
		if (last && last->line == line)
			continue;
		if (last && last->at == e->used[section])
			last->line = line;
		else if (*n < MAX_LINES)
			e->lines[section][(*n)++] = (struct emit_line){e->used[section], line};
	}
}

static void emit_exits(struct compilation *c)
{
	emit_in(c->e, COLD);
	for (int i = 0; i < c->exit_count; i++) {
		note_line(c->e, jit_line(c->code, c->exits[i].pc));
		emit_bind(c->e, c->exits[i].label);
		emit_imm(c->e, ARG2, (uint64_t)c->exits[i].pc);
		emit_tail(c->e, jit_exit_thunk);
	}
	emit_in(c->e, HOT);
}

/* The label of an exit. When hot, the jump in front of the exit is linked to another version. */
int guard_label(struct compilation *c, const struct insn *pc)
{
	struct emitter *e = c->e;
	int guard = emit_label(e), exit = emit_label(e);
	int is_first = pc_index(c->code, pc) == c->start;
	int index = is_first && c->kind >= K_CASE ? (int)c->kind - K_CASE : 0;
	enum version_kind next = index + 1 < VERSIONS_PER_POINT
					 ? (enum version_kind)(K_CASE + index + 1)
					 : K_GENERIC;
	int record = add_record(c, REC_GUARD, c->code, next, pc_index(c->code, pc));

	emit_in(e, COLD);
	emit_bind(e, guard);
	emit_site(e, SITE_JUMP, IF_EQ, record, exit);
	emit_bind(e, exit);
	emit_record(e, ARG2, record);
	emit_call(e, jit_guard_thunk);
	emit_in(e, HOT);
	return guard;
}

/* Without a frame: if the block cannot be compiled, the interpreter begins the procedure anew. */
static int add_point(struct compilation *c, uint32_t pc)
{
	int record = add_record(c, c->is_bare ? REC_BODY : REC_GOTO, c->code,
				c->is_bare ? K_BARE : K_POINT, pc);

	c->records[record].types = c->types;
	return record;
}

void end_with_goto(struct compilation *c, uint32_t pc)
{
	emit_site(c->e, SITE_JUMP, IF_EQ, add_point(c, pc), -1);
	c->is_done = 1;
}

/* The path of the live values follows in this block, without a jump. */
static void two_way(struct compilation *c, enum emit_cond cond, const struct insn *yes,
		    const struct insn *no)
{
	if (c->likely == LIKELY_YES) {
		const struct insn *other = yes;
		yes = no;
		no = other;
		cond = emit_opposite(cond);
	}
	emit_site(c->e, SITE_JUMP_IF, cond, add_point(c, pc_index(c->code, yes)), -1);
	if (c->likely == LIKELY_UNKNOWN)
		end_with_goto(c, pc_index(c->code, no));
	else
		c->go_on = no;
}

/* ---- known types of slots ---- */

static int is_two_words(uint16_t op)
{
	return op == OP_RECREF || op == OP_RECSET || op == OP_CALLG || op == OP_TAILCALLG;
}

enum slot_type observe(struct compilation *c, int slot)
{
	enum slot_type known = types_get(&c->types, slot);

	if (known != TY_ANY || !c->fp)
		return known;
	if (slot < 64 ? c->written >> slot & 1 : c->written != 0)
		return TY_ANY;
	return type_of_value(c->fp[slot]);
}

void note_write(struct compilation *c, int slot, enum slot_type type)
{
	types_set(&c->types, slot, type);
	c->written |= (uint64_t)1 << (slot < 63 ? slot : 63);
	if (slot < 64)
		c->from_calls &= ~((uint64_t)1 << slot);
}

void load_slot(struct compilation *c, enum emit_reg to, int slot)
{
	if (c->r0_fresh == slot)
		emit_move(c->e, to, R0);
	else
		emit_load(c->e, to, FPTR, SLOT(slot));
	if (to == R0)
		c->r0_fresh = -1;
}

/* A value that is returned at once needs no slot. */
static int is_returned(const struct compilation *c, int slot)
{
	const struct insn *next = c->pc + (is_two_words(c->pc->op) ? 2 : 1);

	return next->op == OP_RETURN && next->a == slot;
}

void finish_slot(struct compilation *c, int slot, enum slot_type type)
{
	if (!is_returned(c, slot))
		emit_store(c->e, FPTR, SLOT(slot), R0);
	note_write(c, slot, type);
	c->r0_slot = slot;
}

void store_pc(struct compilation *c, const struct insn *pc)
{
	emit_imm(c->e, R0, (uint64_t)pc);
	emit_store(c->e, CTX, offsetof(struct context, pc), R0);
}

void call_c(struct compilation *c, const struct insn *pc, const void *function)
{
	store_pc(c, pc + 1);
	emit_move(c->e, ARG0, CTX);
	emit_call(c->e, function);
}

void test_object(struct compilation *c, enum emit_reg reg, uint64_t header, int label)
{
	emit_test_bits(c->e, reg, 3);
	emit_goto_if(c->e, IF_NE, label);
	emit_cmp_imm(c->e, reg, 0, (int32_t)header);
	emit_goto_if(c->e, IF_NE, label);
}

/* Loads the slot into reg; goes to label unless the value is an object with this header. */
static void check_object(struct compilation *c, enum emit_reg reg, int slot, uint64_t header,
			 enum slot_type type, int label)
{
	load_slot(c, reg, slot);
	if (types_get(&c->types, slot) == type)
		return;
	test_object(c, reg, header, label);
	types_set(&c->types, slot, type);
}

/* ---- constants, variables ---- */

static void load_constant(struct compilation *c, value v)
{
	if (is_pointer(v))
		emit_ref(c->e, R0, v);
	else
		emit_imm(c->e, R0, v);
}

static void op_const(struct compilation *c, const struct insn *pc)
{
	value v = pc->op == OP_FIX ? make_fixnum(pc->bc) : insn_const(pc);

	if (!is_pointer(v) && (int64_t)v == (int32_t)(int64_t)v && !is_returned(c, pc->a)) {
		emit_store_imm(c->e, FPTR, SLOT(pc->a), (int32_t)(int64_t)v);
		note_write(c, pc->a, type_of_value(v));
		return;
	}
	load_constant(c, v);
	finish_slot(c, pc->a, type_of_value(v));
}

static value define_global(struct context *ctx, struct cell *cell, value v)
{
	cell_set(ctx, cell, v);
	return V_UNSPEC;
}

static value set_global(struct context *ctx, struct cell *cell, value v)
{
	if (cell->content == V_UNDEF)
		raise_unbound(ctx, cell);
	cell_set(ctx, cell, v);
	return V_UNSPEC;
}

static void op_global(struct compilation *c, const struct insn *pc)
{
	emit_ref(c->e, pc->op == OP_GREF ? R0 : ARG1, insn_const(pc));
	if (pc->op == OP_GREF) {
		emit_load(c->e, R0, R0, offsetof(struct cell, content));
		emit_op_imm(c->e, DO_CMP, R0, V_UNDEF);
		emit_goto_if(c->e, IF_EQ, exit_label(c, pc));
		finish_slot(c, pc->a, TY_ANY);
		return;
	}
	emit_load(c->e, ARG2, FPTR, SLOT(pc->a));
	call_c(c, pc, pc->op == OP_GSET ? (const void *)set_global : (const void *)define_global);
	emit_patch_point(c->e, exit_label(c, pc + 1));
}

/* Leaves a new object of so many granules in R0, with its header written. */
static void allocate(struct compilation *c, const struct insn *pc, int granules, uint64_t header)
{
	struct emitter *e = c->e;
	int32_t list = (int32_t)(offsetof(struct context, free_lists) + (size_t)granules * 8);
	int slow = emit_label(e), join = emit_label(e);

	emit_load(e, R0, CTX, list);
	emit_op(e, DO_TEST, R0, R0);
	emit_goto_if(e, IF_EQ, slow);
	emit_load(e, R1, R0, 0);
	emit_store(e, CTX, list, R1);
	emit_bind(e, join);
	emit_store_imm(e, R0, 0, (int32_t)header);
	emit_in(e, COLD);
	emit_bind(e, slow);
	emit_imm(e, ARG1, (uint64_t)granules);
	call_c(c, pc, (const void *)alloc_slow);
	emit_goto(e, join);
	emit_in(e, HOT);
}

static void op_box(struct compilation *c, const struct insn *pc)
{
	allocate(c, pc, 1, T_BOX);
	emit_load(c->e, R1, FPTR, SLOT(pc->b));
	emit_store(c->e, R0, offsetof(struct box, content), R1);
	finish_slot(c, pc->a, TY_BOX);
}

static void op_boxref(struct compilation *c, const struct insn *pc)
{
	emit_load(c->e, R0, FPTR, SLOT(pc->b));
	emit_load(c->e, R0, R0, offsetof(struct box, content));
	emit_op_imm(c->e, DO_CMP, R0, V_UNDEF);
	emit_goto_if(c->e, IF_EQ, exit_label(c, pc));
	finish_slot(c, pc->a, TY_ANY);
}

static value make_closure(struct context *ctx, struct code *code)
{
	struct closure *closure = alloc_bytes(ctx, T_CLOSURE, 16 + (size_t)code->free_count * 8);

	closure->code = code;
	return (value)closure;
}

static void op_closure(struct compilation *c, const struct insn *pc)
{
	struct code *code = AS(code, insn_const(pc));
	size_t granules = (16 + (size_t)code->free_count * 8 + GRANULE_BYTES - 1) / GRANULE_BYTES;

	if (granules < FREE_LISTS) {
		allocate(c, pc, (int)granules, T_CLOSURE);
		emit_ref(c->e, R1, (value)code);
		emit_store(c->e, R0, offsetof(struct closure, code), R1);
	} else {
		emit_ref(c->e, ARG1, (value)code);
		call_c(c, pc, (const void *)make_closure);
	}
	finish_slot(c, pc->a, TY_CLOSURE);
}

/* ---- pairs, vectors, records ---- */

static void op_pair(struct compilation *c, const struct insn *pc)
{
	struct emitter *e = c->e;
	int is_car = pc->op == OP_CAR || pc->op == OP_SETCAR;
	int is_set = pc->op == OP_SETCAR || pc->op == OP_SETCDR;
	int32_t offset = is_car ? offsetof(struct pair, car) : offsetof(struct pair, cdr);

	check_object(c, R0, is_set ? pc->a : pc->b, T_PAIR, TY_PAIR, exit_label(c, pc));
	if (is_set) {
		emit_load(e, R1, FPTR, SLOT(pc->b));
		emit_store(e, R0, offset, R1);
		return;
	}
	emit_load(e, R0, R0, offset);
	finish_slot(c, pc->a, TY_ANY);
}

static void op_cons(struct compilation *c, const struct insn *pc)
{
	allocate(c, pc, 2, T_PAIR);
	emit_load(c->e, R1, FPTR, SLOT(pc->b));
	emit_store(c->e, R0, offsetof(struct pair, car), R1);
	emit_load(c->e, R1, FPTR, SLOT(pc->c));
	emit_store(c->e, R0, offsetof(struct pair, cdr), R1);
	finish_slot(c, pc->a, TY_PAIR);
}

/* Loads the index into R1, untagged and checked against the length of the object in R0. */
static void check_index(struct compilation *c, const struct insn *pc, int slot)
{
	struct emitter *e = c->e;

	emit_load(e, R1, FPTR, SLOT(slot));
	if (types_get(&c->types, slot) != TY_FIXNUM) {
		emit_test_bits(e, R1, 1);
		emit_goto_if(e, IF_EQ, exit_label(c, pc));
		types_set(&c->types, slot, TY_FIXNUM);
	}
	emit_shift_right(e, R1, 1);
	emit_op_load(e, DO_CMP, R1, R0, offsetof(struct vector, length));
	emit_goto_if(e, IF_ABOVE_EQ, exit_label(c, pc));
}

static void op_vector(struct compilation *c, const struct insn *pc)
{
	struct emitter *e = c->e;
	int is_set = pc->op == OP_VSET, is_string = pc->op == OP_SREF;

	check_object(c, R0, is_set ? pc->a : pc->b, is_string ? T_STRING : T_VECTOR,
		     is_string ? TY_STRING : TY_VECTOR, exit_label(c, pc));
	if (pc->op == OP_VLEN) {
		emit_load(e, R0, R0, offsetof(struct vector, length));
		emit_shift_left(e, R0, 1);
		emit_op_imm(e, DO_OR, R0, 1);
		finish_slot(c, pc->a, TY_FIXNUM);
		return;
	}
	check_index(c, pc, is_set ? pc->b : pc->c);
	if (is_set) {
		emit_load(e, R2, FPTR, SLOT(pc->c));
		emit_store_index(e, R0, R1, 8, offsetof(struct vector, items), R2);
	} else if (is_string) {
		emit_load_index(e, R0, R0, R1, 4, offsetof(struct string, chars));
		emit_shift_left(e, R0, 8);
		emit_op_imm(e, DO_OR, R0, V_CHAR_TAG);
		finish_slot(c, pc->a, TY_CHAR);
	} else {
		emit_load_index(e, R0, R0, R1, 8, offsetof(struct vector, items));
		finish_slot(c, pc->a, TY_ANY);
	}
}

static void op_record(struct compilation *c, const struct insn *pc)
{
	struct emitter *e = c->e;
	int is_set = pc->op == OP_RECSET;
	int32_t offset = (int32_t)offsetof(struct record, fields) + SLOT(pc[1].a);

	check_object(c, R0, is_set ? pc->a : pc->b, T_RECORD, TY_RECORD, exit_label(c, pc));
	emit_load(e, R1, FPTR, SLOT(is_set ? pc->b : pc->c));
	emit_op_load(e, DO_CMP, R1, R0, offsetof(struct record, type));
	emit_goto_if(e, IF_NE, exit_label(c, pc));
	emit_load(e, R1, R1, offsetof(struct rtd, count));
	emit_op_imm(e, DO_CMP, R1, pc[1].a);
	emit_goto_if(e, IF_LE, exit_label(c, pc));
	if (is_set) {
		emit_load(e, R1, FPTR, SLOT(pc->c));
		emit_store(e, R0, offset, R1);
		return;
	}
	emit_load(e, R0, R0, offset);
	finish_slot(c, pc->a, TY_ANY);
}

/* ---- tests ---- */

static void jump_always(struct compilation *c, const struct insn *pc, int is_taken)
{
	c->go_on = is_taken ? insn_jump(pc) : pc + 1;
}

/* The target of a jump is compiled once more here if the target or the current block is short. */
static void op_jump(struct compilation *c, const struct insn *pc)
{
	const struct insn *to = insn_jump(pc);

	if (to->op == OP_RETURN || c->e->used[c->e->section] < SHORT_BLOCK)
		c->go_on = to;
	else
		end_with_goto(c, pc_index(c->code, to));
}

/* JT, JF, JNULL, JNNULL: compare with one constant. */
static void op_test(struct compilation *c, const struct insn *pc)
{
	int is_null = pc->op == OP_JNULL || pc->op == OP_JNNULL;
	int on_equal = pc->op == OP_JF || pc->op == OP_JNULL;
	enum slot_type wanted = is_null ? TY_NIL : TY_FALSE;
	enum slot_type known = types_get(&c->types, pc->a);

	if (known != TY_ANY) {
		jump_always(c, pc, (known == wanted) == on_equal);
		return;
	}
	enum slot_type live = observe(c, pc->a);
	if (live != TY_ANY)
		c->likely = (live == wanted) == on_equal ? LIKELY_YES : LIKELY_NO;
	emit_cmp_imm(c->e, FPTR, SLOT(pc->a), is_null ? V_NIL : V_FALSE);
	two_way(c, on_equal ? IF_EQ : IF_NE, insn_jump(pc), pc + 1);
}

static void op_type_test(struct compilation *c, const struct insn *pc)
{
	struct emitter *e = c->e;
	enum slot_type wanted = type_of_header(pc->b), known = types_get(&c->types, pc->a);
	const struct insn *yes = pc->op == OP_JTYPE ? insn_jump(pc) : pc + 1;
	const struct insn *no = pc->op == OP_JTYPE ? pc + 1 : insn_jump(pc);
	int other = emit_label(e);

	if (known != TY_ANY && (wanted != TY_ANY || known != wanted)) {
		c->go_on = known == wanted ? yes : no;
		return;
	}
	emit_load(e, R0, FPTR, SLOT(pc->a));
	emit_test_bits(e, R0, 3);
	emit_goto_if(e, IF_NE, other);
	emit_cmp_imm(e, R0, 0, pc->b);
	int record = add_point(c, pc_index(c->code, yes));
	types_set(&c->records[record].types, pc->a, wanted);
	emit_site(e, SITE_JUMP_IF, IF_EQ, record, -1);
	emit_bind(e, other);
	end_with_goto(c, pc_index(c->code, no));
}

static void op_identity(struct compilation *c, const struct insn *pc)
{
	emit_load(c->e, R0, FPTR, SLOT(pc->a));
	emit_op_load(c->e, DO_CMP, R0, FPTR, SLOT(pc->b));
	two_way(c, pc->op == OP_JEQ ? IF_EQ : IF_NE, insn_jump(pc), pc + 1);
}

/* ---- loops ---- */

static value poll_loop(struct context *ctx)
{
	if (ctx->vm->hooks.poll)
		ctx->vm->hooks.poll(ctx);
	return V_UNSPEC;
}

/* Serves an interrupt; if the code died meanwhile, the interpreter goes on at `exit`. */
void emit_poll(struct compilation *c, const struct insn *pc, const struct insn *exit)
{
	struct emitter *e = c->e;
	int served = emit_label(e), back = emit_label(e);

	emit_cmp_imm32(e, CTX, offsetof(struct context, interrupt), 0);
	emit_goto_if(e, IF_NE, served);
	emit_bind(e, back);
	emit_in(e, COLD);
	emit_bind(e, served);
	call_c(c, pc, (const void *)poll_loop);
	emit_patch_point(e, exit_label(c, exit));
	if (c->r0_fresh >= 0)
		emit_load(e, R0, FPTR, SLOT(c->r0_fresh));
	emit_goto(e, back);
	emit_in(e, HOT);
}

/* ---- one block ---- */

static void simple_op(struct compilation *c, const struct insn *pc)
{
	struct emitter *e = c->e;

	switch (pc->op) {
	case OP_MOVE:
		load_slot(c, R0, pc->b);
		finish_slot(c, pc->a, types_get(&c->types, pc->b));
		break;
	case OP_FREE:
		emit_load(e, R0, FPTR, -8);
		emit_load(e, R0, R0, (int32_t)offsetof(struct closure, frees) + SLOT(pc->b));
		finish_slot(c, pc->a, TY_ANY);
		break;
	case OP_BOXSET:
		emit_load(e, R0, FPTR, SLOT(pc->a));
		emit_load(e, R1, FPTR, SLOT(pc->b));
		emit_store(e, R0, offsetof(struct box, content), R1);
		break;
	case OP_CAPTURE:
		emit_load(e, R0, FPTR, SLOT(pc->a));
		emit_load(e, R1, FPTR, SLOT(pc->c));
		emit_store(e, R0, (int32_t)offsetof(struct closure, frees) + SLOT(pc->b), R1);
		break;
	case OP_RETURN:
		load_slot(c, R0, pc->a);
		if (!c->is_bare)
			emit_leave(e);
		emit_return(e);
		c->is_done = 1;
		break;
	default:
		/* The interpreter handles every instruction. */
		emit_goto(e, exit_label(c, pc));
		c->is_done = 1;
	}
}

/* length: one case for each instruction. */
static void compile_op(struct compilation *c, const struct insn *pc)
{
	switch (pc->op) {
	case OP_CONST:
	case OP_FIX:
		op_const(c, pc);
		break;
	case OP_GREF:
	case OP_GSET:
	case OP_GDEF:
		op_global(c, pc);
		break;
	case OP_BOX:
		op_box(c, pc);
		break;
	case OP_BOXREF:
		op_boxref(c, pc);
		break;
	case OP_CLOSURE:
		op_closure(c, pc);
		break;
	case OP_LOOP:
		emit_poll(c, pc, pc + 1);
		break;
	case OP_JMP:
		op_jump(c, pc);
		break;
	case OP_JT:
	case OP_JF:
	case OP_JNULL:
	case OP_JNNULL:
		op_test(c, pc);
		break;
	case OP_JTYPE:
	case OP_JNTYPE:
		op_type_test(c, pc);
		break;
	case OP_JEQ:
	case OP_JNEQ:
		op_identity(c, pc);
		break;
	case OP_CAR:
	case OP_CDR:
	case OP_SETCAR:
	case OP_SETCDR:
		op_pair(c, pc);
		break;
	case OP_CONS:
		op_cons(c, pc);
		break;
	case OP_VREF:
	case OP_VSET:
	case OP_VLEN:
	case OP_SREF:
		op_vector(c, pc);
		break;
	case OP_RECREF:
	case OP_RECSET:
		op_record(c, pc);
		break;
	case OP_CALL:
	case OP_CALLG:
	case OP_TAILCALL:
	case OP_TAILCALLG:
		compile_call(c, pc);
		break;
	case OP_APPLY:
		compile_apply(c, pc);
		break;
	default:
		if (pc->op >= OP_JLT && pc->op <= OP_JNNUMEQI)
			compile_compare(c, pc, two_way);
		else if (pc->op >= OP_ADD && pc->op <= OP_MOD)
			compile_arithmetic(c, pc);
		else
			simple_op(c, pc);
	}
}

static int is_room(const struct emitter *e, const struct compilation *c)
{
	return e->used[HOT] < 1400 && e->used[COLD] < 1800 && e->label_count < MAX_LABELS - 24 &&
	       e->fix_count < MAX_FIXES - 32 && e->site_count < MAX_SITES - 3 &&
	       e->ref_count < MAX_REFS - 6 && e->point_count < MAX_POINTS - 3 &&
	       c->record_count < MAX_RECORDS - 3 && c->exit_count < MAX_EXITS - 4 &&
	       c->assumed_count < MAX_ASSUMED;
}

static int is_fixnum_slot(const struct compilation *c, int slot)
{
	return types_get(&c->types, slot) == TY_FIXNUM;
}

/* Returns true if an instruction can run before the frame is up: no exit, no written slot, and
 * jumps only to blocks without a frame. The leaves of a recursion often need no more. */
static int is_bare_op(const struct compilation *c, const struct insn *pc)
{
	switch (pc->op) {
	case OP_RETURN:
	case OP_JMP:
	case OP_JT:
	case OP_JF:
	case OP_JNULL:
	case OP_JNNULL:
	case OP_JTYPE:
	case OP_JNTYPE:
	case OP_JEQ:
	case OP_JNEQ:
		return 1;
	case OP_FIX:
	case OP_CONST:
	case OP_MOVE:
		return is_returned(c, pc->a);
	case OP_TAILCALLG:
		return is_bare_call(c, pc);
	default:
		if (pc->op < OP_JLT || pc->op > OP_JNNUMEQI || !is_fixnum_slot(c, pc->a))
			return 0;
		return op_formats[pc->op] == F_AIJ || is_fixnum_slot(c, pc->b);
	}
}

void compile_code(struct compilation *c, uint32_t start)
{
	const struct insn *pc = c->code->insns + start;

	c->start = start;
	c->r0_slot = -1;
	if (c->kind == K_ENTRY || c->kind == K_BODY)
		note_line(c->e, jit_line(c->code, NULL));
	if (c->kind == K_ENTRY)
		compile_entry(c);
	if (c->kind == K_BODY)
		compile_body(c);
	c->is_bare |= c->kind == K_BARE;
	/* A loop's head is a program point of its own: back edges lead to this point. */
	for (int is_first = !c->is_bare && c->kind != K_BODY; !c->is_done; is_first = 0) {
		c->pc = pc;
		c->go_on = NULL;
		c->likely = LIKELY_UNKNOWN;
		c->r0_fresh = c->r0_slot;
		c->r0_slot = -1;
		if (c->is_bare && !is_bare_op(c, pc)) {
			note_line(c->e, jit_line(c->code, NULL));
			set_up_frame(c);
		}
		note_line(c->e, jit_line(c->code, pc));
		if (!is_first && (pc->op == OP_LOOP || (pc->op != OP_RETURN && !is_room(c->e, c))))
			end_with_goto(c, pc_index(c->code, pc));
		else
			compile_op(c, pc);
		pc = c->go_on ? c->go_on : pc + (is_two_words(pc->op) ? 2 : 1);
	}
	emit_exits(c);
}
