/* SPDX-License-Identifier: MIT
 * graphs.c: the same random graphs under the built-in and the host driver (tests/bdw/graphs.c has
 * the Boehm driver). After each cycle exactly the blocks reached by the model are there. Then
 * graphs of hard shapes: a star wider than the marker's queue, a chain of 100,000 blocks, a stack
 * with more roots than the queue holds. */
#include "tests/support/graph_model.h"
#include "tests/support/toy_heap.h"

/* --- host: the toy heap collects --- */

struct toy_graph {
	struct toy_heap toy;
	struct toy_object *methods[GRAPH_METHODS], *constants[GRAPH_CONSTANTS];
};

static struct ch_owner make_owner(struct graph *g)
{
	return rig_owner(&g->rig, "method");
}
static struct ch_owner toy_method(struct graph *g, int index)
{
	struct toy_graph *t = g->context;
	t->methods[index] = toy_new(&t->toy, make_owner(g), NULL);
	t->methods[index]->is_root = true;
	return t->methods[index]->owner;
}
static uintptr_t toy_constant(struct graph *g, int index, int method)
{
	struct toy_graph *t = g->context;
	struct toy_object *names = method == GRAPH_NONE ? NULL : t->methods[method];
	t->constants[index] = toy_new(&t->toy, (struct ch_owner){0}, names);
	t->constants[index]->is_root = true;
	return (uintptr_t)t->constants[index];
}
static void toy_built(struct graph *g)
{
	struct toy_graph *t = g->context;
	for (int m = 0; m < GRAPH_METHODS; m++)
		t->methods[m]->is_root = g->is_root[m];
	for (int c = 0; c < GRAPH_CONSTANTS; c++)
		t->constants[c]->is_root = false;
}
static void toy_drop_root(struct graph *g, int method)
{
	((struct toy_graph *)g->context)->methods[method]->is_root = false;
}
static void toy_cycle(const struct rig *rig, void *arg)
{
	(void)rig;
	toy_collect(arg);
}
static void toy_collect_apart(struct graph *g)
{
	rig_alone(&g->rig, toy_cycle, &((struct toy_graph *)g->context)->toy);
	/* Each poll sweeps a step of 64 blocks. */
	for (int i = 0; i < GRAPH_BLOCKS; i++)
		ch_thread_poll();
}

static const struct graph_driver host_driver = {toy_method, toy_constant, toy_built, toy_drop_root,
						toy_collect_apart, rig_apart, false};

/* --- built-in: owners that the model does not reach are released --- */

static struct ch_owner builtin_method(struct graph *g, int index)
{
	(void)index;
	return make_owner(g);
}
static uintptr_t builtin_constant(struct graph *g, int index, int method)
{
	(void)g, (void)method;
	return 0x1000u + (uintptr_t)index;
}
static void nothing_to_do(struct graph *g)
{
	(void)g;
}
static void no_root_to_drop(struct graph *g, int method)
{
	(void)g, (void)method;
}
static void release_and_collect(struct graph *g)
{
	for (int m = 0; m < GRAPH_METHODS; m++)
		if (!g->is_owner_reached[m] && !g->is_owner_dead[m])
			CHECK_EQ(ch_owner_release(g->owners[m], CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&g->rig, 1);
}

static const struct graph_driver builtin_driver = {builtin_method, builtin_constant, nothing_to_do,
						   no_root_to_drop, release_and_collect,
						   rig_apart, false};

static void run_graphs(bool is_host)
{
	static struct graph g;
	struct test_random random = test_random_new();
	uint64_t end = now_ns() + (uint64_t)storm_ms_of(3000) * 1000000 / 2;
	for (int round = 0; round < 4 || now_ns() < end; round++) {
		struct toy_graph toy = {0};
		struct ch_config config = rig_config(1 << 20);
		struct ch_ops ops = {.size = sizeof ops};
		if (is_host) {
			config.driver = CH_DRIVER_HOST;
			ops.ref = toy_ref;
		}
		memset(&g, 0, sizeof g);
		g.rig = rig_create(&config, &ops, &toy.toy);
		g.driver = is_host ? &host_driver : &builtin_driver;
		g.context = &toy;
		g.random.state = test_random_next(&random) | 1;
		toy.toy.code = g.rig.heap;
		graph_run(&g);
		toy_destroy(&toy.toy);
		rig_end(&g.rig);
	}
}

TEST(graphs_under_the_builtin_driver_match_the_model)
{
	run_graphs(false);
}
TEST(graphs_under_the_host_driver_match_the_model)
{
	run_graphs(true);
}

/* --- hard shapes --- */

struct shape {
	struct ch_owner owner;
	struct ch_block *blocks;
	uint32_t count;
	uintptr_t *stack;
};

static void build_star(const struct rig *rig, void *arg)
{
	struct shape *s = arg;
	s->owner = rig_owner(rig, "star");
	for (uint32_t i = 0; i < s->count; i++)
		s->blocks[i] = rig_block(s->owner, i);
	struct emitter e;
	emit_open(&e, s->owner, 16, 0);
	emit_ret(&e);
	for (uint32_t i = 0; i < s->count; i++)
		CHECK_EQ(ch_edge_attach(e.code.block, s->blocks[i]), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(s->owner, e.code.block), CH_OK);
}

TEST(a_star_wider_than_the_queue_is_marked_whole)
{
	enum { WIDTH = 30000 };
	struct rig rig = rig_start(8 << 20);
	struct shape s = {.count = WIDTH, .blocks = calloc(WIDTH, sizeof(struct ch_block))};
	rig_apart(&rig, build_star, &s);
	rig_collect(&rig, 4);
	for (uint32_t i = 0; i < WIDTH; i++)
		CHECK(rig_is_there(s.blocks[i]));
	CHECK_EQ(rig_stats(&rig).marked_blocks_last, WIDTH + 1);
	CHECK_EQ(ch_owner_release(s.owner, CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 2);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	rig_end(&rig);
	free(s.blocks);
}

static void build_chain(const struct rig *rig, void *arg)
{
	struct shape *s = arg;
	s->owner = rig_owner(rig, "chain");
	struct ch_branch last = {0};
	for (uint32_t i = 0; i < s->count; i++) {
		struct ch_branch branch;
		struct ch_block block = rig_jumper(s->owner, NULL, &branch);
		if (i)
			CHECK_EQ(ch_branch_link(last, block), CH_OK);
		else
			CHECK_EQ(ch_owner_set_entry(s->owner, block), CH_OK);
		last = branch;
	}
}

TEST_RIG_BY(a_chain_of_100000_blocks_is_marked_and_freed, rig_start(32 << 20))
{
	enum { LENGTH = 100000 };
	struct shape s = {.count = LENGTH};
	rig_apart(&rig, build_chain, &s);
	rig_collect(&rig, 3);
	CHECK_EQ(rig_stats(&rig).blocks_now, LENGTH);
	CHECK_EQ(ch_owner_release(s.owner, CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 2);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	CHECK_EQ(rig_stats(&rig).owners_now, 0);
}

static void build_roots(const struct rig *rig, void *arg)
{
	struct shape *s = arg;
	struct ch_owner owner = s->owner = rig_owner(rig, "roots");
	for (uint32_t i = 0; i < s->count; i++) {
		s->blocks[i] = rig_block(owner, i);
		CHECK_EQ(ch_owner_set_entry(owner, s->blocks[i]), CH_OK);
		s->stack[i] = (uintptr_t)block_info(s->blocks[i]).exec + 3;
	}
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

TEST(a_stack_with_more_roots_than_the_queue_holds_keeps_all)
{
	enum { ROOTS = 20000 };
	struct rig rig = rig_start(8 << 20);
	struct shape s = {.count = ROOTS,
			  .blocks = calloc(ROOTS, sizeof(struct ch_block)),
			  .stack = calloc(ROOTS, sizeof(uintptr_t))};
	struct ch_fiber *fiber;
	CHECK_EQ(ch_fiber_attach(rig.heap, s.stack, s.stack + ROOTS, &fiber), CH_OK);
	rig_apart(&rig, build_roots, &s);
	ch_fiber_suspend(fiber, s.stack);
	rig_collect(&rig, 3);
	for (uint32_t i = 0; i < ROOTS; i++)
		CHECK(rig_is_there(s.blocks[i]));
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	rig_collect(&rig, 2);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	rig_end(&rig);
	free(s.blocks);
	free(s.stack);
}

/* --- refs outside full cycles --- */

struct visits {
	int count;
	bool is_young;
};

static uintptr_t visit_ref(void *arg, uintptr_t word, bool *is_young)
{
	struct visits *v = arg;
	v->count++;
	*is_young = v->is_young;
	return word + 1;
}

static int count_refs(const struct rig *rig, enum ch_refs which, bool is_young)
{
	struct visits v = {0, is_young};
	rig_visit_refs(rig, which, visit_ref, &v);
	return v.count;
}

TEST_RIG_BY(refs_visit_moves_words_and_keeps_the_young, rig_start_host(1 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open(&e, owner, 32, 0);
	const void *ref = emit_ref_word(&e, 100);
	emit_ret(&e);
	CHECK_EQ(ch_ref_attach(e.code.block, ref), CH_OK);
	CHECK_EQ(count_refs(&rig, CH_REFS_YOUNG, true), 1); /* OPEN */
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(count_refs(&rig, CH_REFS_YOUNG, true), 1);
	CHECK_EQ(count_refs(&rig, CH_REFS_YOUNG, false), 1);
	CHECK_EQ(count_refs(&rig, CH_REFS_YOUNG, false), 0);
	CHECK_EQ(count_refs(&rig, CH_REFS_ALL, false), 1);
	uint64_t word;
	memcpy(&word, ref, sizeof word);
	CHECK_EQ(word, 104);
}

static uintptr_t count_told(void *user, uintptr_t word)
{
	++*(int *)user;
	return word;
}

static void collect_with_this_stack(struct ch_heap *heap, enum ch_driver driver)
{
	struct ch_marker *marker;
	if (driver == CH_DRIVER_BUILTIN) {
		CHECK_EQ(ch_heap_collect(heap), CH_OK);
		return;
	}
	CHECK_EQ(ch_mark_begin(heap, &marker), CH_OK);
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
}

/* A word on the test's stack keeps the block alive. The ref's object is gone with the vm. */
TEST(refs_of_a_detached_vm_are_reported_to_nobody)
{
	for (enum ch_driver driver = CH_DRIVER_BUILTIN; driver <= CH_DRIVER_HOST; driver++) {
		struct ch_config config = rig_config(1 << 20);
		struct ch_ops ops = {.size = sizeof ops, .ref = count_told};
		struct ch_vm *vm;
		struct ch_owner owner;
		struct emitter e;
		int told = 0;
		config.driver = driver;
		struct rig rig = rig_create(&config, NULL, NULL);
		CHECK_EQ(ch_vm_attach(rig.heap, &ops, &told, &vm), CH_OK);
		CHECK_EQ(ch_owner_create(vm, "owner", (const void *)(uintptr_t)rig_fallback, NULL,
					 &owner),
			 CH_OK);
		emit_open(&e, owner, 32, 0);
		CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, 100)), CH_OK);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		const void *volatile held = e.code.exec;
		collect_with_this_stack(rig.heap, driver);
		CHECK_EQ(told, 1);
		if (driver == CH_DRIVER_HOST)
			CHECK_EQ(count_refs(&rig, CH_REFS_ALL, false), 1);
		CHECK_EQ(ch_vm_detach(vm), CH_OK);
		collect_with_this_stack(rig.heap, driver);
		CHECK_EQ(told, 1);
		if (driver == CH_DRIVER_HOST)
			CHECK_EQ(count_refs(&rig, CH_REFS_ALL, false), 0);
		CHECK_EQ(rig_stats(&rig).blocks_now, 1);
		CHECK(held);
		rig_end(&rig);
	}
}

TEST_RIG_BY(refs_of_blocks_that_nobody_visits_take_no_memory, rig_start_host(1 << 20))
{
	uint64_t early = 0;
	for (int i = 0; i < 100000; i++) {
		struct ch_owner owner = rig_owner(&rig, "owner");
		struct emitter e;
		emit_open(&e, owner, 24, 0);
		const void *ref = emit_ref_word(&e, 1);
		CHECK_EQ(ch_ref_attach(e.code.block, ref), CH_OK);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		if (i == 70000) /* the record of freed blocks is full */
			early = rig_stats(&rig).metadata_bytes_now;
	}
	CHECK(rig_stats(&rig).metadata_bytes_now <= early + 4096);
	CHECK_EQ(count_refs(&rig, CH_REFS_YOUNG, true), 0);
}

/* The branch asks the vm again once the old block is invalidated; the rig's vm answers "none". */
TEST_RIG(function_compiled_again_is_left_by_branches_when_its_old_block_is_invalidated)
{
	struct ch_owner callee = rig_owner(&rig, "callee"), caller = rig_owner(&rig, "caller");
	struct ch_block old = rig_block(callee, 10), fresh = rig_block(callee, 11);
	struct ch_branch branch;
	CHECK_EQ(ch_owner_set_entry(callee, old), CH_OK);
	CHECK_EQ(ch_owner_set_entry(caller, rig_jumper(caller, NULL, &branch)), CH_OK);
	CHECK_EQ(ch_branch_link(branch, old), CH_OK);
	CHECK_EQ(ch_owner_set_entry(callee, fresh), CH_OK);
	rig_collect(&rig, 3);
	CHECK_EQ(code_call_owner(callee), 11);
	CHECK_EQ(code_call_owner(caller), 10);
	CHECK_EQ(ch_blocks_invalidate(&old, 1, NULL), CH_OK);
	CHECK_EQ(code_call_owner(caller), RIG_FALLBACK);
	rig_collect(&rig, 3);
	CHECK(!rig_is_there(old) && rig_is_there(fresh));
}
