/* SPDX-License-Identifier: MIT
 * code.c: the code of blocks, runs of the code, and the model of a run: a machine that walks from
 * one callback to the next. The code must arrive and return as the model says. */
#include "fuzz/fuzz.h"

/* --- emission --- */

static void during(uint32_t block);

static void emit_guard(struct emitter *e)
{
	/* Not entrant: over a jump of two bytes, to the answer of the fallback. */
	emit_guard_test(e, e->code.guard, 2);
	EMIT(e, 0xeb, 0x06);
	emit_value(e, FUZZ_FALLBACK);
	emit_ret(e);
}

static const void *emit_branch(struct emitter *e, enum fuzz_shape shape)
{
	switch (shape) {
	case SHAPE_JMP:
		return emit_site_jmp(e);
	case SHAPE_JCC:
		EMIT(e, 0x48, 0x85, 0xe4); /* test rsp, rsp: never zero */
		return emit_site_jcc(e, EMIT_CC_NE);
	case SHAPE_LITERAL: {
		EMIT(e, 0xff, 0x25, 0, 0, 0, 0); /* jmp [rip + to the literal] */
		uint32_t from = e->at;
		const uint8_t *literal = emit_site_literal(e);
		e->code.write[from - 4] = (uint8_t)(literal - (e->code.exec + from));
		return literal;
	}
	case SHAPE_LEA: {
		const void *site = emit_site_lea(e);
		EMIT(e, 0xff, 0xe0); /* jmp rax */
		return site;
	}
	default:
		return emit_site_call(e);
	}
}

static enum ch_branch_kind kind_of(enum fuzz_shape shape)
{
	static const enum ch_branch_kind kinds[SHAPES] = {CH_JMP,     CH_JMP, CH_JCC,
							  CH_LITERAL, CH_LEA, CH_CALL};
	return kinds[shape];
}

/* The exits of patch points, behind all other code: mov eax, exit; pop rbp; ret */
static const void *emit_exit(struct emitter *e, int life)
{
	const void *at = emit_here(e);
	emit_value(e, FUZZ_EXIT | (uint32_t)life);
	emit_leave(e);
	return at;
}

void fuzz_emit(int at)
{
	struct fuzz_block *b = &fuzz.blocks[at];
	struct emitter e = {b->code, b->code.entry_bytes};
	const void *points[2] = {NULL, NULL}, *site = NULL;
	if (b->entry_kind == CH_ENTRY_GUARD)
		emit_guard(&e);
	else if (b->entry_kind == CH_ENTRY_NONE && b->life % 2)
		e.code.entry_offset = (e.at = (uint32_t)b->life % 16);
	emit_enter(&e);
	if (b->has_ref) {
		b->sites[1] = (struct fuzz_site){emit_ref_word(&e, (uint64_t)b->life), 8};
		CHECK_EQ(ch_ref_attach(b->handle, b->sites[1].at), CH_OK);
	}
	if (b->has_call) {
		EMIT(&e, 0xbf); /* mov edi, the slot */
		emit_u32(&e, (uint32_t)at);
		emit_call_c(&e, (const void *)during);
		if (b->has_point)
			points[0] = emit_point(&e);
	}
	if (b->shape == SHAPE_CALL) {
		site = emit_branch(&e, b->shape);
		if (b->has_point)
			points[1] = emit_point(&e);
		emit_add(&e, FUZZ_AFTER);
		emit_leave(&e);
	} else if (b->shape != SHAPE_RETURN) {
		EMIT(&e, 0x5d); /* pop rbp */
		site = emit_branch(&e, b->shape);
	} else {
		emit_value(&e, (uint32_t)b->life);
		emit_leave(&e);
	}
	const void *exit = emit_exit(&e, b->life);
	for (int i = 0; i < 2; i++)
		if (points[i]) {
			b->sites[2 + i] = (struct fuzz_site){points[i], CH_ARCH_DIVERTER_BYTES};
			CHECK_EQ(ch_patch_point_attach(b->handle, points[i], exit, NULL), CH_OK);
		}
	if (site) {
		b->branch = emit_attach(&e, site, kind_of(b->shape), (void *)(uintptr_t)(at + 1));
		b->sites[0] = (struct fuzz_site){site, ch__arch_site_bytes(kind_of(b->shape))};
	}
	b->code = e.code;
	b->code.used_to = e.at;
}

/* --- the machine --- */

enum event { EVENT_DURING, EVENT_HIT, EVENT_DONE, EVENT_ENDLESS };

static void pop(struct fuzz_run *run, uint32_t result)
{
	run->result = result;
	run->depth--;
}

static bool is_invalid(const struct fuzz_frame *frame)
{
	const struct fuzz_block *b = &fuzz.blocks[frame->block];
	if (b->life != frame->life || b->state == CH_BLOCK_FREE)
		FAIL("block %d is gone while it is on the stack", frame->life);
	return b->state == CH_BLOCK_NOTENTRANT;
}

static void enter(struct fuzz_run *run, int block)
{
	run->frames[run->depth++] = (struct fuzz_frame){block, fuzz.blocks[block].life, AT_ENTRY};
}

/* Takes the branch to a block: a jump leaves no frame behind. */
static bool go_on(struct fuzz_run *run, int target)
{
	struct fuzz_frame *top = &run->frames[run->depth - 1];
	if (fuzz.blocks[top->block].shape == SHAPE_CALL) {
		if (run->depth == FUZZ_FRAMES)
			return false;
		top->place = AT_RETURN;
	} else {
		run->depth--;
	}
	enter(run, target);
	return true;
}

/* Returns into the caller's frame. */
static void land(struct fuzz_run *run, const struct fuzz_frame *frame)
{
	const struct fuzz_block *b = &fuzz.blocks[frame->block];
	if (b->has_point && is_invalid(frame))
		pop(run, FUZZ_EXIT | (uint32_t)b->life);
	else
		pop(run, run->result + FUZZ_AFTER);
}

/* Walks to the next callback. */
static enum event walk(struct fuzz_run *run)
{
	for (int step = 0; step < 200; step++) {
		if (!run->depth)
			return EVENT_DONE;
		struct fuzz_frame *top = &run->frames[run->depth - 1];
		const struct fuzz_block *b = &fuzz.blocks[top->block];
		bool invalid = is_invalid(top);
		if (top->place == AT_ENTRY) {
			top->place = b->has_call ? AT_CALL : AT_BRANCH;
			if (b->has_call)
				return EVENT_DURING;
		} else if (top->place == AT_CALL) {
			top->place = AT_BRANCH;
			if (b->has_point && invalid)
				pop(run, FUZZ_EXIT | (uint32_t)b->life);
		} else if (top->place == AT_RETURN) {
			land(run, top);
		} else if (b->shape == SHAPE_RETURN) {
			pop(run, (uint32_t)b->life);
		} else if (b->link == FUZZ_NONE) {
			return EVENT_HIT;
		} else if (!go_on(run, b->link)) {
			return EVENT_ENDLESS;
		}
	}
	return EVENT_ENDLESS;
}

/* Whether the code comes back from here to a callback, or to the end. */
static bool comes_back(const struct fuzz_run *run)
{
	struct fuzz_run ahead = *run;
	return walk(&ahead) != EVENT_ENDLESS;
}

bool fuzz_is_running(int block)
{
	for (int n = 0; n < fuzz.nested; n++)
		for (int f = 0; f < fuzz.runs[n].depth; f++)
			if (fuzz.runs[n].frames[f].block == block &&
			    fuzz.runs[n].frames[f].life == fuzz.blocks[block].life)
				return true;
	return false;
}

/* --- callbacks --- */

static struct fuzz_run *running(void)
{
	CHECK(fuzz.nested > 0);
	return &fuzz.runs[fuzz.nested - 1];
}

static void unlink_all(void)
{
	for (int i = 0; i < FUZZ_BLOCKS; i++) {
		struct fuzz_block *b = &fuzz.blocks[i];
		if (b->state != CH_BLOCK_LIVE || b->link == FUZZ_NONE)
			continue;
		CHECK_EQ(ch_branch_link(b->branch, (struct ch_block){0}), CH_OK);
		b->link = FUZZ_NONE;
	}
}

/* Runs operations inside a callback; afterwards the code must find an end. */
static void act(struct fuzz_run *run)
{
	int count = ++run->events < FUZZ_EVENTS && fuzz.left ? fuzz_below(3) : 0;
	for (int i = 0; i < count && fuzz.left; i++)
		fuzz_operation();
	if (run->events >= FUZZ_EVENTS || !fuzz.left || !comes_back(run))
		unlink_all();
}

/* Called by the code of blocks. */
static void during(uint32_t block)
{
	struct fuzz_run *run = running();
	if (walk(run) != EVENT_DURING || run->frames[run->depth - 1].block != (int)block)
		FAIL("the code of slot %u runs, and should not", block);
	act(run);
}

static uint32_t answer_of_fallback(void)
{
	return FUZZ_FALLBACK;
}
const void *fuzz_fallback(void)
{
	return (const void *)answer_of_fallback;
}

/* Whether the block can be the answer of a callback: the code would come to an end from there. */
static bool is_answer(const struct fuzz_run *run, int source, int target)
{
	struct fuzz_run ahead = *run;
	const struct fuzz_block *s = &fuzz.blocks[source], *t = &fuzz.blocks[target];
	if (t->state != CH_BLOCK_LIVE || (s->shape == SHAPE_LEA && t->entry_kind == CH_ENTRY_NONE))
		return false;
	struct fuzz_block kept = *s;
	/* As if linked already: the walk may come by here again. */
	if (s->state == CH_BLOCK_LIVE)
		fuzz.blocks[source].link = target;
	bool good = go_on(&ahead, target) && walk(&ahead) != EVENT_ENDLESS;
	fuzz.blocks[source].link = kept.link;
	return good;
}

struct ch_block fuzz_branch_hit(void *vm_user, struct ch_branch branch, void *user,
				struct ch_regs *regs)
{
	struct fuzz_run *run = running();
	int source = (int)(uintptr_t)user - 1;
	if (walk(run) != EVENT_HIT || run->frames[run->depth - 1].block != source)
		FAIL("the stub of slot %d was taken, and should not", source);
	if (branch.bits != fuzz.blocks[source].branch.bits)
		FAIL("the stub of slot %d names another branch", source);
	CHECK_EQ((uintptr_t)vm_user, fuzz.owners[fuzz.blocks[source].owner].vm_number);
	CHECK_EQ(regs->pc, (uintptr_t)fuzz_fallback());
	int life = fuzz.blocks[source].life, choice = fuzz_below(FUZZ_BLOCKS + 1);
	act(run);
	bool is_spent = run->events >= FUZZ_EVENTS || !fuzz.left;
	CHECK_EQ(fuzz.blocks[source].life, life);
	/* Another run may have linked the branch meanwhile; the answer decides. */
	if (!is_spent && choice < FUZZ_BLOCKS && is_answer(run, source, choice)) {
		if (fuzz.blocks[source].state == CH_BLOCK_LIVE) {
			fuzz.blocks[source].link = choice;
			fuzz.blocks[choice].is_held = true;
		}
		CHECK(go_on(run, choice));
		return fuzz.blocks[choice].handle;
	}
	regs->pc = (uint64_t)(uintptr_t)answer_of_fallback;
	struct fuzz_frame *top = &run->frames[run->depth - 1];
	run->result = FUZZ_FALLBACK;
	if (fuzz.blocks[source].shape == SHAPE_CALL)
		top->place = AT_RETURN;
	else
		run->depth--;
	if (!comes_back(run))
		unlink_all();
	return (struct ch_block){0};
}

/* --- runs --- */

static void run_from(const void *address, int block)
{
	if (fuzz.nested == FUZZ_NESTED)
		return;
	struct fuzz_run *run = &fuzz.runs[fuzz.nested];
	*run = (struct fuzz_run){.result = FUZZ_FALLBACK};
	if (block != FUZZ_NONE)
		enter(run, block);
	if (!comes_back(run))
		return;
	fuzz.nested++;
	uint32_t answer = code_call(address);
	if (walk(run) != EVENT_DONE)
		FAIL("the code ended, and should not have");
	if (answer != run->result)
		FAIL("the code answers 0x%x, and should answer 0x%x", answer, run->result);
	fuzz.nested--;
}

void fuzz_run_owner(int owner)
{
	const void *const *cell = ch_owner_cell(fuzz.owners[owner].handle);
	CHECK(cell);
	run_from(*cell, fuzz.owners[owner].entry);
}

void fuzz_run_entry(int block)
{
	const struct fuzz_block *b = &fuzz.blocks[block];
	run_from(b->entry, b->state == CH_BLOCK_LIVE ? block : FUZZ_NONE);
}
