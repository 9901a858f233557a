/* SPDX-License-Identifier: MIT
 * trampolines.c: trampolines on every driver. A trampoline's procedure is given up before a call
 * through the trampoline has returned; another trampoline is reached by nothing any more. */
#include "tests/support/stage.h"

struct procedure {
	struct stage *stage;
	struct method m;
	bool was_there;
};

static uint64_t give_up_inside(void *arg)
{
	struct procedure *p = arg;
	method_drop(p->stage, &p->m);
	method_invalidate(&p->m);
	for (int i = 0; i < 3; i++)
		stage_collect(p->stage);
	p->was_there = method_is_known(&p->m) && p->m.freed == 0;
	return 99;
}

static void build(struct stage *stage, void *arg)
{
	struct procedure *p = arg;
	p->stage = stage;
	method_new(stage, &p->m, "procedure");
	CHECK_EQ(ch_trampoline_make(p->m.owner, CH_TRAMPOLINE_FRAMED,
				    (const void *)(uintptr_t)give_up_inside, 0, NULL, &p->m,
				    &p->m.block),
		 CH_OK);
	CHECK_EQ(ch_owner_set_entry(p->m.owner, p->m.block), CH_OK);
}

EVERY_DRIVER(trampoline_is_kept_until_its_call_returned)
{
	stage_start(stage);
	static struct procedure p;
	stage_apart(stage, build, &p);
	CHECK_EQ(method_call(&p.m, &p), 99);
	CHECK(p.was_there);
	for (int i = 0; i < 2; i++)
		stage_collect(stage);
	CHECK_EQ(p.m.freed, 1);
	CHECK(!method_is_known(&p.m));
}

EVERY_DRIVER(trampoline_dies_with_its_owner)
{
	stage_start(stage);
	static struct procedure p;
	stage_apart(stage, build, &p);
	for (int i = 0; i < 4; i++)
		stage_collect(stage);
	CHECK(method_is_known(&p.m) && p.m.freed == 0);
	method_drop(stage, &p.m);
	for (int i = 0; i < 2; i++)
		stage_collect(stage);
	CHECK_EQ(p.m.freed, 1);
	CHECK_EQ(stage_stats(stage).pages_now, 0);
}
