/* SPDX-License-Identifier: MIT
 * graphs.c: the random graphs of tests/support/graph_model.h under the Boehm driver: methods and
 * constants are objects of the collector, and nothing is released by hand. */
#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include "codeheap/codeheap_bdw.h"
#include "tests/support/graph_model.h"

#include <gc/gc.h>

struct method {
	void *anchor;
};
struct constant {
	struct method *method;
};
struct roots { /* not collectable, scanned by the collector */
	struct method *methods[GRAPH_METHODS];
	struct constant *constants[GRAPH_CONSTANTS];
};

static struct ch_owner bdw_method(struct graph *g, int index)
{
	struct roots *roots = g->context;
	struct ch_owner owner;
	struct method *method = roots->methods[index] = GC_MALLOC(sizeof *method);
	CHECK(method);
	CHECK_EQ(ch_bdw_owner_create(g->rig.vm, "method", (const void *)(uintptr_t)rig_fallback,
				     NULL, &owner, &method->anchor),
		 CH_OK);
	return owner;
}

static uintptr_t bdw_constant(struct graph *g, int index, int method)
{
	struct roots *roots = g->context;
	struct constant *constant = roots->constants[index] = GC_MALLOC(sizeof *constant);
	CHECK(constant);
	constant->method = method == GRAPH_NONE ? NULL : roots->methods[method];
	return (uintptr_t)constant;
}

static void bdw_built(struct graph *g)
{
	struct roots *roots = g->context;
	for (int m = 0; m < GRAPH_METHODS; m++)
		if (!g->is_root[m])
			roots->methods[m] = NULL;
	memset(roots->constants, 0, sizeof roots->constants);
}

static void bdw_drop_root(struct graph *g, int method)
{
	((struct roots *)g->context)->methods[method] = NULL;
}

/* --- threads that the collector knows --- */

static void call_registered(void *arg)
{
	const struct rig_call *call = arg;
	struct GC_stack_base base;
	CHECK_EQ(GC_get_stack_base(&base), GC_SUCCESS);
	CHECK_EQ(GC_register_my_thread(&base), GC_SUCCESS);
	call->fn(call->rig, call->arg);
	CHECK_EQ(GC_unregister_my_thread(), GC_SUCCESS);
}

static void call_attached(const struct rig *rig, void *arg)
{
	const struct rig_call *call = arg;
	CHECK_EQ(ch_thread_attach(rig->heap, NULL, NULL), CH_OK);
	call->fn(rig, call->arg);
	CHECK_EQ(ch_thread_detach(rig->heap), CH_OK);
}

struct joining {
	void (*fn)(void *);
	void *arg;
};
static void *join_it(void *arg)
{
	const struct joining *j = arg;
	run_on_ended_thread(j->fn, j->arg);
	return NULL;
}

static void bdw_apart(const struct rig *rig, void (*fn)(const struct rig *, void *), void *arg)
{
	struct rig_call inner = {rig, fn, arg}, outer = {rig, call_attached, &inner};
	struct joining joining = {call_registered, &outer};
	ch_bdw_do_blocking(join_it, &joining);
}

static void collect_here(const struct rig *rig, void *arg)
{
	(void)arg;
	CHECK_EQ(ch_heap_collect(rig->heap), CH_OK);
}

static void bdw_collect(struct graph *g)
{
	struct rig_call call = {&g->rig, collect_here, NULL};
	struct joining joining = {call_registered, &call};
	CHECK_EQ(ch_thread_detach(g->rig.heap), CH_OK);
	ch_bdw_do_blocking(join_it, &joining);
	CHECK_EQ(ch_thread_attach(g->rig.heap, NULL, NULL), CH_OK);
	for (int i = 0; i < GRAPH_BLOCKS; i++)
		ch_thread_poll();
}

static const struct graph_driver bdw_driver = {bdw_method,    bdw_constant, bdw_built,
					       bdw_drop_root, bdw_collect,  bdw_apart,
					       .has_refs_of_own = true};

TEST(graphs_under_the_boehm_driver_match_the_model)
{
	static struct graph g;
	GC_INIT();
	GC_allow_register_threads();
	struct test_random random = test_random_new();
	uint64_t end = now_ns() + (uint64_t)storm_ms_of(3000) * 1000000 / 2;
	for (int round = 0; round < 4 || now_ns() < end; round++) {
		struct ch_config config = rig_config(1 << 20);
		struct ch_ops ops = {.size = sizeof ops, .branch_hit = rig_no_target};
		memset(&g, 0, sizeof g);
		CHECK_EQ(ch_bdw_heap_create(&config, &g.rig.heap), CH_OK);
		CHECK_EQ(ch_vm_attach(g.rig.heap, &ops, NULL, &g.rig.vm), CH_OK);
		CHECK_EQ(ch_thread_attach(g.rig.heap, NULL, NULL), CH_OK);
		g.driver = &bdw_driver;
		g.context = GC_MALLOC_UNCOLLECTABLE(sizeof(struct roots));
		g.random.state = test_random_next(&random) | 1;
		graph_run(&g);
		GC_FREE(g.context);
		rig_end(&g.rig);
	}
}
