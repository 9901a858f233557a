/* SPDX-License-Identifier: MIT
 * graph.c: what the graph of blocks must hold and let go: chains, cycles, stubs with a dropped
 * source, blocks half built, addresses and records used again, each kind of edge. */
#include "codeheap/collector.h"
#include "codeheap/look.h"
#include "invalidate/invalidate.h"
#include "codeheap/graph/block_parts.h"
#include "tests/support/stage.h"

struct graph {
	struct stage *stage;
	struct method a, b, c, d;
	uint32_t value;
	int asked;
	uintptr_t word;
	_Atomic(int) step;
	struct ch_assumption fact;
};

/* --- 3 --- */

static void build_chain(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	method_jumper(stage, &g->a, "A");
	method_jumper(stage, &g->b, "B");
	method_jumper(stage, &g->c, "C");
	method_constant(stage, &g->d, "D", 44);
	method_link(&g->a, 0, &g->b);
	method_link(&g->b, 0, &g->c);
	method_link(&g->c, 0, &g->d);
	/* C and D are reached by their callers only: the owners live on without an entry. */
	CHECK_EQ(ch_owner_set_entry(g->c.owner, (struct ch_block){0}), CH_OK);
	CHECK_EQ(ch_owner_set_entry(g->d.owner, (struct ch_block){0}), CH_OK);
}

EVERY_DRIVER(s03_invalidated_middle_of_a_chain_frees_its_tail)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_chain, g);
	stage_collect(stage);
	stage_collect(stage);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 4);
	CHECK_EQ(method_call(&g->a, NULL), 44);
	method_invalidate(&g->b);
	stage->hit = stage_no_target;
	CHECK_EQ(method_call(&g->a, NULL), STAGE_FALLBACK);
	CHECK_EQ(stage->hits, 1);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 1);
	CHECK_EQ(g->b.freed + g->c.freed + g->d.freed, 3);
	CHECK(method_is_known(&g->a));
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(ch_owner_info(g->d.owner, &facts), CH_OK);
	CHECK_EQ(method_call(&g->a, NULL), STAGE_FALLBACK);
}

/* --- 4 --- */

static void build_cycle(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	method_jumper(stage, &g->a, "A");
	method_jumper(stage, &g->b, "B");
	method_jumper(stage, &g->c, "C");
	method_link(&g->a, 0, &g->b);
	method_link(&g->b, 0, &g->a);
	method_link(&g->c, 0, &g->c);
}

EVERY_DRIVER(s04_cycles_and_self_loops_die)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_cycle, g);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 3);
	method_drop(stage, &g->a);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 3); /* B's entry holds B, and B holds A */
	method_drop(stage, &g->b);
	method_drop(stage, &g->c);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
	stage_collect(stage);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).owners_now, 0);
}

/* --- 13 --- */

static struct ch_block drop_source(struct stage *stage, struct ch_branch branch, void *user,
				   struct ch_regs *regs)
{
	struct graph *g = stage->user;
	(void)branch, (void)user, (void)regs;
	method_invalidate(&g->a);
	method_drop(stage, &g->a);
	stage_collect(stage);
	stage_collect(stage);
	CHECK_EQ(block_state(g->a.block), CH_BLOCK_NOTENTRANT);
	return (struct ch_block){0};
}

static void build_dropped_source(struct stage *stage, void *arg)
{
	method_jumper(stage, &((struct graph *)arg)->a, "A");
}

EVERY_DRIVER(s13_stub_outlives_the_collection_of_its_own_helper)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage->hit = drop_source;
	stage_apart(stage, build_dropped_source, g);
	CHECK_EQ(method_call(&g->a, NULL), STAGE_FALLBACK);
	stage_collect(stage);
	CHECK_EQ(g->a.freed, 1);
}

/* --- 14 --- */

static struct ch_block answer_c(struct stage *stage, struct ch_branch branch, void *user,
				struct ch_regs *regs)
{
	struct graph *g = stage->user;
	(void)branch, (void)regs;
	CHECK(user == &g->a);
	return g->c.block;
}

static void build_far_target(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	method_jumper(stage, &g->a, "A");
	size_t page = (size_t)1 << stage->heap->pool->page_log2;
	static struct method fillers[2 * 65536 / 16];
	struct ch_info a = {.size = sizeof a}, b = {.size = sizeof b};
	for (unsigned i = 0; i < 2 * page / 16; i++)
		method_constant(stage, &fillers[i], "filler", 1);
	method_constant(stage, &g->b, "B", 2);
	method_constant(stage, &g->c, "C", 3);
	method_link(&g->a, 0, &g->b);
	CHECK_EQ(ch_block_info(g->a.block, &a), CH_OK);
	CHECK_EQ(ch_block_info(g->b.block, &b), CH_OK);
	CHECK((size_t)(b.exec - a.exec) >= page || (size_t)(a.exec - b.exec) >= page);
}

EVERY_DRIVER(s14_branch_goes_back_to_its_own_page)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_far_target, g);
	CHECK_EQ(method_call(&g->a, NULL), 2);
	method_invalidate(&g->b);
	stage->hit = answer_c;
	stage_collect(stage);
	CHECK(!method_is_known(&g->b));
	CHECK_EQ(method_call(&g->a, NULL), 3);
	CHECK_EQ(stage->hits, 1);
	CHECK_EQ(method_call(&g->a, NULL), 3);
	CHECK_EQ(stage->hits, 1);
}

/* --- 15 --- */

static void build_target(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	method_new(stage, &g->b, "B");
	method_open(&e, &g->b);
	emit_answer(&e, 15);
	method_commit_only(&e, &g->b);
}

static void emit_slowly(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	method_new(stage, &g->a, "A");
	method_open(&e, &g->a);
	CHECK_EQ(ch_edge_attach(e.code.block, g->b.block), CH_OK);
	method_jmp(&e, &g->a, 0);
	atomic_store(&g->step, 1);
	stage_wait(&g->step, 2);
	method_commit(&e, &g->a);
	method_link(&g->a, 0, &g->b);
}

EVERY_DRIVER(s15_collections_while_a_block_is_half_built)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_target, g);
	struct stage_thread t;
	stage_spawn(stage, &t, emit_slowly, g);
	stage_wait(&g->step, 1);
	for (int i = 0; i < 4; i++)
		stage_collect(stage);
	stage_check(stage);
	CHECK(method_is_known(&g->b));
	atomic_store(&g->step, 2);
	stage_join(&t);
	CHECK_EQ(method_call(&g->a, NULL), 15);
	stage_collect(stage);
	CHECK_EQ(method_call(&g->a, NULL), 15);
}

/* --- newborn blocks --- */

EVERY_DRIVER(newborn_block_lives_for_two_cycles_and_no_third)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_target, g);
	stage_collect(stage);
	CHECK(method_is_known(&g->b));
	stage_collect(stage);
	CHECK(method_is_known(&g->b));
	stage_collect(stage);
	CHECK(!method_is_known(&g->b));
	CHECK_EQ(ch_owner_set_entry(g->b.owner, g->b.block), CH_E_STALE);
}

static void build_with_entry(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	method_new(stage, &g->b, "B");
	struct ch_open open = {.owner = g->b.owner, .hot_bytes = 200, .entry = CH_ENTRY_PATCH,
			       .user = &g->b};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 15);
	method_commit_only(&e, &g->b);
}

/* A block's age is stored beside the kind of its entry. */
EVERY_DRIVER(newborn_block_with_an_entry_of_its_own_lives_no_longer)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_with_entry, g);
	stage_collect(stage);
	stage_collect(stage);
	CHECK(method_is_known(&g->b));
	stage_collect(stage);
	CHECK(!method_is_known(&g->b));
}

static void open_early(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	method_new(stage, &g->b, "B");
	method_open(&e, &g->b);
	emit_answer(&e, 15);
	atomic_store(&g->step, 1);
	stage_wait(&g->step, 2);
	method_commit_only(&e, &g->b);
}

EVERY_DRIVER(newborn_block_is_as_old_as_its_commit)
{
	struct graph *g = stage_play(stage, sizeof *g);
	struct stage_thread t;
	stage_spawn(stage, &t, open_early, g);
	stage_wait(&g->step, 1);
	for (int i = 0; i < 3; i++)
		stage_collect(stage);
	atomic_store(&g->step, 2);
	stage_join(&t);
	stage_collect(stage);
	CHECK(method_is_known(&g->b));
	stage_collect(stage);
	CHECK(method_is_known(&g->b));
	stage_collect(stage);
	CHECK(!method_is_known(&g->b));
}

/* --- 24 --- */

static void build_aba(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	method_jumper(stage, &g->a, "A");
	method_jumper(stage, &g->b, "B");
}

static void note_place(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct ch_info info = {.size = sizeof info};
	(void)stage;
	CHECK_EQ(ch_block_info(g->b.block, &info), CH_OK);
	g->word = ~(uintptr_t)info.exec;
}

/* Larger blocks in the places of old blocks: an old block's start would lie inside a new block. */
static void reuse_place(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	const uint8_t *old = (const uint8_t *)~g->word;
	for (int i = 0; i < 10000; i++) {
		struct emitter e;
		struct method m;
		method_new(stage, &m, "C");
		struct ch_open open = {.owner = m.owner, .hot_bytes = 100};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_filler(&e, 100 - CODE_RETURN_BYTES);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		struct ch_block found;
		for (uint32_t at = 0; at < 100; at++)
			CHECK(block_at(stage->heap, e.code.exec + at, &found) &&
			      found.bits == e.code.block.bits);
		if (e.code.exec > old || e.code.exec + 100 <= old) {
			method_drop(stage, &m);
			stage_collect(stage);
			continue;
		}
		CHECK_EQ(ch_owner_set_entry(m.owner, e.code.block), CH_OK);
		g->c = m;
		g->c.block = e.code.block;
		return;
	}
	FAIL("the place was never used again");
}

EVERY_DRIVER(s24_stale_handles_do_not_reach_what_came_after)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_aba, g);
	stage_apart(stage, note_place, g);
	method_link(&g->a, 0, &g->b);
	method_invalidate(&g->b);
	method_drop(stage, &g->b);
	stage_collect(stage);
	stage_collect(stage);
	CHECK(!method_is_known(&g->b));
	stage_apart(stage, reuse_place, g);
	CHECK_EQ(ch_branch_link(g->a.branch[0], g->b.block), CH_E_STALE);
	CHECK_EQ(ch_branch_link(g->b.branch[0], g->a.block), CH_E_STALE);
	CHECK_EQ(ch_owner_set_entry(g->a.owner, g->b.block), CH_E_STALE);
	size_t count = 1;
	CHECK_EQ(ch_blocks_invalidate(&g->b.block, 1, &count), CH_OK);
	CHECK_EQ(count, 0);
	CHECK_EQ(block_state(g->c.block), CH_BLOCK_LIVE);
}

/* --- 25 --- */

static void build_assuming(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	for (int i = 0; i < 2; i++) {
		struct method *m = i ? &g->b : &g->a;
		method_new(stage, m, "assuming");
		method_open(&e, m);
		CHECK_EQ(ch_block_assume(e.code.block, g->fact), CH_OK);
		emit_answer(&e, 1);
		method_commit(&e, m);
	}
}

EVERY_DRIVER(s25_assumption_breaks_after_its_block_died)
{
	struct graph *g = stage_play(stage, sizeof *g);
	CHECK_EQ(ch_assumption_create(stage->vm, &g->fact), CH_OK);
	stage_apart(stage, build_assuming, g);
	method_drop(stage, &g->a);
	stage_collect(stage);
	CHECK(!method_is_known(&g->a));
	stage_collect(stage);
	/* The record of the dead block may be another block's by now. */
	static struct method fresh[100];
	for (int i = 0; i < 100; i++)
		method_constant(stage, &fresh[i], "fresh", (uint32_t)i);
	CHECK_EQ(stage->heap->assumptions_now, 1);
	CHECK_EQ(ch__assumption_at(stage->heap, ch__handle_index(g->fact.bits))->count, 1);
	size_t broken;
	CHECK_EQ(ch_assumption_break(g->fact, &broken), CH_OK);
	CHECK_EQ(broken, 1);
	CHECK_EQ(block_state(g->b.block), CH_BLOCK_NOTENTRANT);
	for (int i = 0; i < 100; i++)
		CHECK_EQ(block_state(fresh[i].block), CH_BLOCK_LIVE);
	CHECK_EQ(ch_assumption_break(g->fact, &broken), CH_E_STALE);
}

EVERY_DRIVER(s25_assumption_breaks_while_its_block_is_open)
{
	struct graph *g = stage_play(stage, sizeof *g);
	struct emitter e;
	CHECK_EQ(ch_assumption_create(stage->vm, &g->fact), CH_OK);
	method_new(stage, &g->a, "late");
	method_open(&e, &g->a);
	CHECK_EQ(ch_block_assume(e.code.block, g->fact), CH_OK);
	CHECK_EQ(ch_assumption_break(g->fact, NULL), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_E_STALE);
	CHECK(!block_is_known(e.code.block));
}

EVERY_DRIVER(commit_for_a_released_owner_is_stale)
{
	struct graph *g = stage_play(stage, sizeof *g);
	struct emitter e;
	method_new(stage, &g->a, "released");
	method_open(&e, &g->a);
	emit_ret(&e);
	CHECK_EQ(ch_owner_release(g->a.owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_E_STALE);
	CHECK(strstr(ch_why(), "the owner of a block died"));
	CHECK(!block_is_known(e.code.block));
	if (stage->driver == STAGE_BOEHM || stage->driver == STAGE_HOST)
		method_drop(stage, &g->a);
}

/* --- each kind of edge and root --- */

static void build_edges(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	for (int i = 0; i < 2; i++) { /* B: an exit for others; C: a plain edge */
		struct method *m = i ? &g->c : &g->b;
		method_new(stage, m, i ? "C" : "B");
		method_open(&e, m);
		emit_value(&e, 20 + (uint32_t)i);
		emit_frame_end(&e);
		emit_ret(&e);
		method_commit_only(&e, m);
	}
	struct ch_info exit = block_info(g->b.block);
	method_new(stage, &g->a, "A");
	method_open(&e, &g->a);
	emit_frame(&e);
	emit_value(&e, 1);
	const void *point = emit_point(&e);
	emit_frame_end(&e);
	emit_ret(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, exit.entry, NULL), CH_OK);
	CHECK_EQ(ch_edge_attach(e.code.block, g->c.block), CH_OK);
	method_commit(&e, &g->a);
}

EVERY_DRIVER(exits_and_edges_hold_their_blocks)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_edges, g);
	for (int i = 0; i < 4; i++)
		stage_collect(stage);
	CHECK(method_is_known(&g->b));
	CHECK(method_is_known(&g->c));
	CHECK_EQ(method_call(&g->a, NULL), 1);
	method_drop(stage, &g->a);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}

static uint64_t invalidate_and_collect(void *arg)
{
	struct graph *g = arg;
	method_invalidate(&g->a);
	method_drop(g->stage, &g->a);
	for (int i = 0; i < 3; i++)
		stage_collect(g->stage);
	CHECK(method_is_known(&g->b));
	return 3;
}

static void build_exit_elsewhere(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	method_new(stage, &g->b, "B");
	method_open(&e, &g->b);
	emit_value(&e, 77);
	emit_frame_end(&e);
	emit_ret(&e);
	method_commit_only(&e, &g->b);
	struct ch_info exit = block_info(g->b.block);
	method_new(stage, &g->a, "A");
	method_open(&e, &g->a);
	emit_frame(&e);
	emit_call_c(&e, (const void *)invalidate_and_collect);
	const void *point = emit_point(&e);
	emit_frame_end(&e);
	emit_ret(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, exit.entry, NULL), CH_OK);
	method_commit(&e, &g->a);
}

EVERY_DRIVER(not_entrant_block_keeps_the_exit_that_its_frame_leaves_by)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_exit_elsewhere, g);
	CHECK_EQ(method_call(&g->a, g), 77);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}

static void build_cell_caller(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	method_constant(stage, &g->b, "B", 31);
	method_new(stage, &g->a, "A");
	method_open(&e, &g->a);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, g->b.owner), CH_OK);
	emit_jump_cell(&e, g->b.cell);
	method_commit(&e, &g->a);
}

static void owner_edge(struct stage *stage)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_cell_caller, g);
	method_drop(stage, &g->b);
	for (int i = 0; i < 3; i++)
		stage_collect(stage);
	CHECK(method_is_known(&g->b));
	CHECK_EQ(method_call(&g->a, NULL), 31);
	method_drop(stage, &g->a);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}
/* The VM's collector decides: the owner is reached through code alone. */
STAGE_CASE(owner_that_only_code_reaches_keeps_its_entry, _host, STAGE_HOST, owner_edge)
STAGE_BOEHM_CASE(owner_that_only_code_reaches_keeps_its_entry, owner_edge)

static uintptr_t move_object(struct stage *stage, uintptr_t word)
{
	struct graph *g = stage->user;
	g->asked++;
	CHECK_EQ(word, g->word);
	return g->word += 16;
}

static void build_ref(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	method_new(stage, &g->a, "A");
	method_open(&e, &g->a);
	g->word = 0x1000;
	CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, g->word)), CH_OK);
	emit_ref_as_result(&e);
	emit_ret(&e);
	method_commit(&e, &g->a);
}

static void ref_moves(struct stage *stage)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage->ref = move_object;
	stage_apart(stage, build_ref, g);
	for (int i = 1; i <= 5; i++) {
		stage_collect(stage);
		CHECK_EQ(g->asked, i);
		CHECK_EQ(method_call(&g->a, NULL), 0x1000u + 16u * (unsigned)i);
	}
}
STAGE_CASE(ref_is_reported_and_moved_once_a_cycle, _host, STAGE_HOST, ref_moves)
STAGE_CASE(ref_is_reported_and_moved_once_a_cycle, _polls, STAGE_POLLS, ref_moves)

static void report_word(struct stage *stage, struct ch_marker *marker)
{
	struct graph *g = stage->user;
	uintptr_t words[1] = {~g->word};
	if (g->asked)
		ch_mark_stack(marker, words, words + 1);
}

static void word_of_b(struct graph *g, unsigned forward)
{
	struct ch_info info = block_info(g->b.block);
	g->word = ~(uintptr_t)(info.exec + forward);
}

static void build_reported(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	method_constant(stage, &g->c, "first", 1); /* at the pool's first address */
	build_target(stage, g);
	word_of_b(g, (unsigned)g->value);
}

/* The built blocks have a single root, the word reported by the vm. */
static struct graph *collect_reported(struct stage *stage, void (*build)(struct stage *, void *),
				      unsigned value)
{
	struct graph *g = stage_play(stage, sizeof *g);
	g->value = value;
	g->asked = 1;
	stage->roots = report_word;
	stage_apart(stage, build, g);
	for (int i = 0; i < 4; i++)
		stage_collect(stage);
	return g;
}

static void hold_by_roots(struct stage *stage, unsigned forward)
{
	struct graph *g = collect_reported(stage, build_reported, forward);
	CHECK(method_is_known(&g->b));
	g->asked = 0;
	stage_collect(stage);
	CHECK(!method_is_known(&g->b));
}

EVERY_DRIVER(word_on_a_stack_of_the_vm_holds_its_block)
{
	hold_by_roots(stage, 6);
}

EVERY_DRIVER(s23_word_at_the_start_of_a_block_holds_it)
{
	hold_by_roots(stage, 0);
}

/* A call ends a block, so the return address is the first byte of the next part. */
static void build_neighbour(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	build_reported(stage, g);
	g->word = ~(~g->word - CH__HEAD_BYTES);
	struct ch_spot spot = {.size = sizeof spot};
	CHECK(ch_code_at(stage->heap, (const void *)~g->word, true, &spot));
	CHECK(spot.block.bits == g->c.block.bits && spot.offset);
	CHECK(!ch_code_at(stage->heap, (const void *)~g->word, false, &spot));
}

EVERY_DRIVER(return_address_at_a_blocks_end_holds_no_neighbour)
{
	struct graph *g = collect_reported(stage, build_neighbour, 0);
	CHECK(!method_is_known(&g->b) && method_is_known(&g->c));
}

/* The pool's first address is in frames of the library itself, and no code begins there. */
static void build_first(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	build_target(stage, g);
	g->word = ~stage->heap->pool->exec_base;
}

EVERY_DRIVER(the_pools_first_address_holds_nothing)
{
	struct graph *g = collect_reported(stage, build_first, 0);
	CHECK(!method_is_known(&g->b));
}

static void build_immortal(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct emitter e;
	method_constant(stage, &g->b, "B", 8);
	method_new(stage, &g->a, "A");
	struct ch_open open = {
		.owner = g->a.owner, .hot_bytes = 64, .branch_room = 1, .flags = CH_OPEN_IMMORTAL};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	method_jmp(&e, &g->a, 0);
	method_commit_only(&e, &g->a);
	method_link(&g->a, 0, &g->b);
	method_drop(stage, &g->a);
	method_drop(stage, &g->b);
}

EVERY_DRIVER(immortal_block_is_a_root)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_immortal, g);
	for (int i = 0; i < 4; i++)
		stage_collect(stage);
	CHECK(method_is_known(&g->a));
	CHECK(method_is_known(&g->b));
}

/* --- 21: a graph wider than the marker's queue --- */

/* Once its queue is nearly full, the marker goes depth first: a chain of wide blocks from there on
 * fills the rest. BEFORE_LAST: the marker looks at the last edges of a block late. */
enum { MIDDLES = 8, CHAIN = 5, LEAVES = 400, BEFORE_LAST = 20 };

static struct ch_block open_wide(struct ch_owner owner, struct ch_branch *branches)
{
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 8 * LEAVES, .branch_room = LEAVES};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	for (int i = 0; i < LEAVES; i++)
		branches[i] = emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static struct ch_block new_leaf(struct ch_owner owner)
{
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 8};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

/* A wide block with LEAVES leaves. A single leaf is a wide block again, `depth` times. */
static struct ch_block new_wide(struct ch_owner owner, int depth)
{
	struct ch_branch branches[LEAVES];
	struct ch_block block = open_wide(owner, branches);
	for (int i = 0; i < LEAVES; i++) {
		struct ch_block leaf = i == LEAVES - BEFORE_LAST && depth
					       ? new_wide(owner, depth - 1)
					       : new_leaf(owner);
		CHECK_EQ(ch_branch_link(branches[i], leaf), CH_OK);
	}
	return block;
}

static void build_wide(struct stage *stage, void *arg)
{
	struct graph *g = arg;
	struct ch_branch top[LEAVES];
	method_new(stage, &g->a, "root");
	method_new(stage, &g->b, "inner");
	struct ch_block root = open_wide(g->a.owner, top);
	for (int i = 0; i < MIDDLES; i++)
		CHECK_EQ(ch_branch_link(top[i], new_wide(g->b.owner, i == MIDDLES - 1 ? CHAIN : 0)),
			 CH_OK);
	CHECK_EQ(ch_owner_set_entry(g->a.owner, root), CH_OK);
}

EVERY_DRIVER(s21_graph_wider_than_the_queue_of_the_marker)
{
	struct graph *g = stage_play(stage, sizeof *g);
	stage_apart(stage, build_wide, g);
	for (int i = 0; i < 3; i++)
		stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 1 + MIDDLES + (MIDDLES + CHAIN) * LEAVES);
	method_drop(stage, &g->a);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}
