/* SPDX-License-Identifier: MIT
 * patch.c: branches linked anew, through the library, while other threads run the branches. The
 * limits of the architecture are shown in patch_<arch>.c. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

struct play {
	struct stage *stage;
	struct method a, b, c;
	_Atomic(int) stop;
	_Atomic(uint64_t) seen[3]; /* b, c, the fallback */
};

static void run_a(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->stop)) {
		for (int i = 0; i < 100; i++) {
			uint64_t value = method_call(&p->a, NULL);
			CHECK(value == 2 || value == 3 || value == STAGE_FALLBACK);
			atomic_fetch_add(&p->seen[value == STAGE_FALLBACK ? 2 : value - 2], 1);
		}
		stage_poll(stage);
	}
}

static bool is_seen(const struct play *p)
{
	return p->seen[0] && p->seen[1] && p->seen[2];
}

SHARED_DRIVER(s34_branch_is_relinked_and_unlinked_while_others_run_it)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage->hit = stage_no_target;
	method_jumper(stage, &p->a, "A");
	method_constant(stage, &p->b, "B", 2);
	method_constant(stage, &p->c, "C", 3);
	struct stage_thread threads[3];
	for (int i = 0; i < 3; i++)
		stage_spawn(stage, &threads[i], run_a, p);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	for (int round = 0; round % 64 || now_ns() < end || !is_seen(p); round++) {
		const struct method *to = round % 3 == 1 ? &p->b : &p->c;
		struct ch_block none = {0};
		CHECK_EQ(ch_branch_link(p->a.branch[0], round % 3 ? to->block : none), CH_OK);
		if (round % 1024 == 0)
			stage_collect(stage);
	}
	atomic_store(&p->stop, 1);
	for (int i = 0; i < 3; i++)
		stage_join(&threads[i]);
}
