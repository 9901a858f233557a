/* SPDX-License-Identifier: MIT
 * running.c: code invalidated, dropped and collected while on a stack: by its own callees, by
 * recursion, past a longjmp, with return addresses at its very end. */
#include "codeheap/graph/block_parts.h"
#include "tests/support/stage.h"

#include <setjmp.h>
#include <sys/resource.h>
#include <unwind.h>

struct play {
	struct stage *stage;
	struct method m, other;
	int depth, exits;
	jmp_buf back;
	uintptr_t word;
};

/* --- 1 --- */

static uint64_t remove_self(void *arg)
{
	struct play *p = arg;
	method_invalidate(&p->m);
	CHECK(method_has_fallback(&p->m));
	for (int i = 0; i < 3; i++) {
		stage_collect(p->stage);
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	}
	CHECK_EQ(p->m.freed, 0);
	stage_check(p->stage);
	return 7;
}

static void build_self_remover(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "self", (void *)remove_self);
}

EVERY_DRIVER(s01_block_invalidates_itself_in_a_callee)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_self_remover, p);
	CHECK_EQ(method_call(&p->m, p), 7);
	CHECK_EQ(method_call(&p->m, p), STAGE_FALLBACK);
	stage_collect(stage);
	CHECK(!method_is_known(&p->m));
	CHECK_EQ(p->m.freed, 1);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

/* --- 2 --- */

static uint64_t recurse_and_remove(void *arg)
{
	struct play *p = arg;
	if (++p->depth == 1)
		return method_call(&p->m, p) + 1;
	if (p->depth == 2) {
		method_invalidate(&p->m);
		CHECK_EQ(method_call(&p->m, p), STAGE_FALLBACK);
		method_drop(p->stage, &p->m);
	}
	for (int i = 0; i < 3; i++) {
		stage_collect(p->stage);
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	}
	return 10;
}

static void build_recursion(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "recursion", (void *)recurse_and_remove);
}

EVERY_DRIVER(s02_caller_is_invalidated_between_two_of_its_frames)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_recursion, p);
	CHECK_EQ(method_call(&p->m, p), 11);
	CHECK_EQ(p->depth, 2);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

/* --- 9 --- */

static uint64_t leave_by_longjmp(void *arg)
{
	struct play *p = arg;
	method_invalidate(&p->m);
	stage_collect(p->stage);
	CHECK(method_is_known(&p->m));
	longjmp(p->back, 1);
}

static void build_leaver(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "leaver", (void *)leave_by_longjmp);
}

/* Calls far below the stack used by later frames. */
static __attribute__((noinline)) uint64_t call_far_down(struct play *p)
{
	volatile uint8_t room[64 << 10];
	room[0] = 1;
	__asm__ volatile("" ::"r"(room) : "memory"); /* all of `room` */
	return method_call(&p->m, p) + room[0];
}

static void collect_apart(struct stage *stage, void *arg)
{
	(void)arg;
	stage_collect(stage);
}

EVERY_DRIVER(s09_longjmp_over_code_leaves_nothing_behind)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_leaver, p);
	if (!setjmp(p->back)) {
		call_far_down(p);
		FAIL("came back from a longjmp");
	}
	/* In another thread: the words left by the jump stay in place, below sp. */
	stage_apart(stage, collect_apart, NULL);
	CHECK_EQ(p->m.freed, 1);
}

/* --- 10 --- */

struct trace {
	const void *wanted;
	int frames, found;
};

static _Unwind_Reason_Code count_frame(struct _Unwind_Context *context, void *arg)
{
	struct trace *t = arg;
	t->frames++;
	if (_Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(context)) == t->wanted)
		t->found++;
	return t->frames > 100 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

static __attribute__((noinline)) uint64_t call_marked(struct play *p)
{
	return method_call(&p->m, p) + 1;
}

static uint64_t unwind_through_self(void *arg)
{
	struct play *p = arg;
	method_invalidate(&p->m);
	method_drop(p->stage, &p->m);
	stage_collect(p->stage);
	stage_collect(p->stage);
	struct trace t = {.wanted = (const void *)call_marked};
	_Unwind_Backtrace(count_frame, &t);
	CHECK_EQ(t.found, 1);
	return 5;
}

static void build_unwound(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "unwound", (void *)unwind_through_self);
}

EVERY_DRIVER(s10_unwinder_passes_an_invalidated_frame)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_unwound, p);
	CHECK_EQ(call_marked(p), 6);
}

/* --- 11 --- */

static uint64_t note_exit(void *arg)
{
	struct play *p = arg;
	p->exits++;
	return 99;
}

static uint64_t invalidate_at_depth(void *arg)
{
	struct play *p = arg;
	if (p->depth-- > 0)
		return method_call(&p->m, p);
	if (p->depth == -1)
		method_invalidate(&p->m);
	stage_collect(p->stage);
	return 1;
}

static void build_pointed(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	method_new(stage, &p->m, "pointed");
	method_open(&e, &p->m);
	emit_frame(&e);
	emit_call_c(&e, (const void *)invalidate_at_depth);
	const void *point = emit_point(&e);
	emit_add(&e, 1);
	emit_frame_end(&e);
	emit_ret(&e);
	const void *exit = emit_here(&e);
	emit_frame_argument(&e);
	emit_call_c(&e, (const void *)note_exit);
	emit_frame_end(&e);
	emit_ret(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, exit, NULL), CH_OK);
	method_commit(&e, &p->m);
}

EVERY_DRIVER(s11_patch_point_fires_once_a_frame)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_pointed, p);
	p->depth = -1; /* the first call returns through the unarmed point */
	CHECK_EQ(method_call(&p->m, p), 2);
	CHECK_EQ(p->exits, 0);
	p->depth = 3;
	CHECK_EQ(method_call(&p->m, p), 99);
	CHECK_EQ(p->exits, 4);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

/* --- 16 --- */

static void collect_again(struct stage *stage, struct method *m)
{
	struct play *p = stage->user;
	if (m != &p->m || p->depth++)
		return;
	method_invalidate(&p->other);
	stage_collect(stage);
}

static void build_two(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_constant(stage, &p->m, "first", 1);
	method_constant(stage, &p->other, "second", 2);
}

EVERY_DRIVER(s16_collection_from_inside_a_notice)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage->user = p;
	stage->gone = collect_again;
	stage_apart(stage, build_two, p);
	method_invalidate(&p->m);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	stage_collect(stage);
	CHECK_EQ(p->other.freed, 1);
	CHECK_EQ(p->m.freed, 1);
}

/* --- 21 --- */

enum { DEEP = 10000, DEEPER = 100000 };
static int deep = DEEP;

static uint64_t go_deep(void *arg)
{
	struct play *p = arg;
	if (++p->depth < deep)
		return method_call(&p->m, p) + 1;
	method_invalidate(&p->m);
	stage_collect(p->stage);
	CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	CHECK(stage_stats(p->stage).stack_roots_last >= (unsigned)deep);
	return 1;
}

static void build_deep(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "deep", (void *)go_deep);
}

static void run_deep(struct stage *stage)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_deep, p);
	CHECK_EQ(method_call(&p->m, p), deep);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

EVERY_DRIVER(s21_ten_thousand_frames_of_one_block)
{
	run_deep(stage);
}

#if !CH_TSAN /* TSan has room for 65,536 frames */
/* The first stack grows up to the limit. The attach asks for the bounds. */
EVERY_DRIVER(s21_hundred_thousand_frames_of_one_block)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_STACK, &limit), 0);
	limit.rlim_cur = 100 << 20;
	CHECK_EQ(setrlimit(RLIMIT_STACK, &limit), 0);
	deep = DEEPER;
	run_deep(stage);
}
#endif

/* --- 22, 23 --- */

static uint64_t collect_and_leave(void *arg)
{
	struct play *p = arg;
	method_invalidate(&p->m);
	method_drop(p->stage, &p->m);
	stage_collect(p->stage);
	stage_collect(p->stage);
	CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	stage_check(p->stage);
	longjmp(p->back, 1);
}

/* The call is the block's last instruction, and ends with the last granule. */
static void build_ending_in_a_call(struct stage *stage, void *arg)
{
	enum { ENDING_BYTES = 6 * CH__GRANULE_BYTES - CH__HEAD_BYTES };
	struct play *p = arg;
	struct emitter e;
	method_new(stage, &p->m, "end");
	struct ch_open open = {.owner = p->m.owner, .hot_bytes = ENDING_BYTES, .user = &p->m};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_enter(&e);
	emit_filler(&e, ENDING_BYTES - CODE_CALL_C_BYTES);
	emit_call_c(&e, (const void *)collect_and_leave);
	CHECK_EQ(e.at, ENDING_BYTES);
	CHECK_EQ((uintptr_t)emit_here(&e) % CH__GRANULE_BYTES, 0);
	p->word = (uintptr_t)emit_here(&e);
	method_commit(&e, &p->m);
}

static void end_in_a_call(struct play *p)
{
	if (!setjmp(p->back)) {
		method_call(&p->m, p);
		FAIL("came back from a longjmp");
	}
	p->word = 0;
	stage_collect(p->stage);
	CHECK_EQ(p->m.freed, 1);
}

EVERY_DRIVER(s22_return_address_at_the_very_end_of_a_block)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_ending_in_a_call, p);
	end_in_a_call(p);
}

static void build_end_and_neighbour(struct stage *stage, void *arg)
{
	struct play *p = arg;
	build_ending_in_a_call(stage, p);
	method_constant(stage, &p->other, "next", 2);
	struct ch_info info = block_info(p->other.block);
	CHECK_EQ((uintptr_t)info.exec - CH__HEAD_BYTES, p->word);
}

EVERY_DRIVER(s23_return_address_at_the_start_of_the_next_block)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_end_and_neighbour, p);
	end_in_a_call(p);
	CHECK_EQ(method_call(&p->other, NULL), 2);
}

/* --- 43 --- */

enum { FALSE_OF = 100 };

static void build_hundred(struct stage *stage, void *arg)
{
	struct method *all = arg;
	for (int i = 0; i < FALSE_OF; i++) {
		method_constant(stage, &all[i], "number", (uint32_t)i);
		method_drop(stage, &all[i]);
	}
}

static void find_middle(struct stage *stage, void *arg)
{
	struct ch_info info = {.size = sizeof info};
	(void)stage;
	struct method *all = arg;
	CHECK_EQ(ch_block_info(all[FALSE_OF / 2].block, &info), CH_OK);
	/* Kept off this stack, in a form that is no address. */
	all[0].branch[3].bits = ~(uint64_t)(uintptr_t)(info.exec + 3);
}

static __attribute__((noinline)) void collect_with_integer(struct stage *stage,
							   const struct method *all)
{
	volatile uint64_t integer = ~all[0].branch[3].bits;
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 1);
	CHECK(stage_stats(stage).stack_roots_last >= 1);
	integer = 0;
	CHECK_EQ(integer, 0);
}

EVERY_DRIVER(s43_integer_on_the_stack_keeps_one_block)
{
	stage_start(stage);
	static struct method all[FALSE_OF];
	stage_apart(stage, build_hundred, all);
	stage_apart(stage, find_middle, all);
	collect_with_integer(stage, all);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}
