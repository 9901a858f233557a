/* SPDX-License-Identifier: MIT
 * finalizers.c: a method that a finalizer revives keeps its code until the method is unreachable
 * again; finalizers may use the library, and may run inside calls of the library. */
#include "tests/bdw/support.h"

enum { METHODS = 200 };

static struct method *revived[METHODS]; /* a root of the collector */
static int finalized, finalized_within, revive_limit;
static bool is_creating;
static struct rig *own_rig;

/* Runs the method's code and all behind; the first `revive_limit` methods come back to life. */
static void finalize(void *object, void *data)
{
	(void)data;
	struct method *m = object;
	CHECK_EQ(run_method(m), m->sum);
	if (finalized < revive_limit)
		revived[finalized] = m;
	finalized++;
}

/* Rings of two methods: each refers to its neighbour; the odd method jumps to the even method. */
static void build(struct rig *rig, void *arg)
{
	(void)arg;
	for (int i = 0; i < METHODS; i += 2) {
		struct method *even = new_method(rig, (uint64_t)i + 1), *odd = new_method(rig, 3);
		CHECK(compile(even, NULL, odd, plain_callee));
		CHECK(compile(odd, even, even, plain_callee));
		GC_REGISTER_FINALIZER_NO_ORDER(even, finalize, NULL, NULL, NULL);
		GC_REGISTER_FINALIZER_NO_ORDER(odd, finalize, NULL, NULL, NULL);
	}
}

static void collect_apart(struct rig *rig, void *arg)
{
	(void)arg;
	collect(rig);
	while (GC_should_invoke_finalizers())
		GC_invoke_finalizers();
}

TEST_BDW(bdw_code_of_a_finalizable_method_lives_once_more)
{
	run_apart(&rig, build, NULL);
	/* The first collection finds all methods dead, and revives all for their finalizers. */
	run_apart(&rig, collect_apart, NULL);
	CHECK_EQ(finalized, METHODS);
	CHECK_EQ(stats_of(rig.heap).blocks_freed, 0);
	check_heap(rig.heap);
	run_apart(&rig, collect_apart, NULL);
	CHECK_EQ(finalized, METHODS);
	CHECK_EQ(stats_of(rig.heap).blocks_freed, METHODS);
	CHECK_EQ(stats_of(rig.heap).blocks_now, 0);
}

static void run_revived(struct rig *rig, void *arg)
{
	(void)rig, (void)arg;
	for (int i = 0; i < METHODS; i++)
		if (revived[i])
			CHECK_EQ(run_method(revived[i]), revived[i]->sum);
}

TEST_BDW(bdw_revived_method_keeps_its_code)
{
	revive_limit = METHODS;
	run_apart(&rig, build, NULL);
	for (int i = 0; i < 3; i++)
		run_apart(&rig, collect_apart, NULL);
	CHECK_EQ(finalized, METHODS);
	CHECK_EQ(stats_of(rig.heap).blocks_freed, 0);
	run_apart(&rig, run_revived, NULL);
	memset(revived, 0, sizeof revived);
	run_apart(&rig, collect_apart, NULL);
	CHECK_EQ(stats_of(rig.heap).blocks_now, 0);
}

/* Makes an owner and code, inside the allocation of another owner's anchor: the library must hold
 * no lock there. */
static void finalize_with_owner(void *object, void *data)
{
	(void)object, (void)data;
	struct method *m = new_method(own_rig, 9);
	if (compile(m, NULL, NULL, plain_callee))
		CHECK_EQ(run_method(m), 9);
	finalized++;
	finalized_within += is_creating;
}

static void allocate_much(struct rig *rig, void *arg)
{
	(void)arg;
	for (int i = 0; i < 20000 || finalized <= 1000 || !finalized_within; i++) {
		struct method *m = GC_MALLOC(sizeof *m);
		CHECK(m);
		is_creating = true;
		CHECK_EQ(ch_bdw_owner_create(rig->vm, "method", (const void *)no_code, m,
					     &m->owner, &m->anchor),
			 CH_OK);
		is_creating = false;
		GC_REGISTER_FINALIZER_NO_ORDER(m, finalize_with_owner, NULL, NULL, NULL);
		/* Of many sizes, so that collections begin in allocations of each kind. */
		GC_MALLOC_ATOMIC(512 + i % 97 * 16);
		ch_thread_poll();
	}
}

TEST(bdw_finalizers_inside_an_owner_s_creation_make_owners)
{
	struct rig rig = start_rig(1 << 20);
	own_rig = &rig;
	run_apart(&rig, allocate_much, NULL);
	printf("%d finalizers, %d of them within a creation\n", finalized, finalized_within);
	end_rig(&rig);
}
