/* SPDX-License-Identifier: MIT
 * stubs.c: branches taken while other threads link, unlink and free the targets; sites that break
 * the rules; releases that free at once. */
#include "codeheap/look.h"
#include "tests/support/stage.h"

struct play {
	struct stage *stage;
	struct method a, b, c;
	_Atomic(int) inside, step;
	int asked;
	uint64_t result[2];
	const void *stub;
	struct ch_block answer;
};

static struct play *new_play(struct stage *stage)
{
	stage->counts_only = true;
	return stage_play(stage, sizeof(struct play));
}

/* --- 12 --- */

static void build_source(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_jumper(stage, &p->a, "A");
	method_constant(stage, &p->b, "B", 2);
	method_constant(stage, &p->c, "C", 3);
}

/* Both threads are inside. The winner goes on while the loser keeps a handle of B. */
static struct ch_block race(struct stage *stage, struct ch_branch branch, void *user,
			    struct ch_regs *regs)
{
	struct play *p = stage->user;
	(void)branch, (void)user, (void)regs;
	int number = atomic_fetch_add(&p->inside, 1);
	if (number == 0) {
		stage_wait(&p->step, 1);
		return p->b.block; /* dead by now: the library asks again */
	}
	if (number == 1)
		return p->b.block;
	return p->c.block;
}

static void lose(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	p->result[0] = method_call(&p->a, NULL);
}

EVERY_DRIVER(s12_loser_of_a_stub_wakes_with_a_freed_target)
{
	struct play *p = new_play(stage);
	stage->hit = race;
	stage_apart(stage, build_source, p);
	struct stage_thread t;
	stage_spawn(stage, &t, lose, p);
	stage_wait(&p->inside, 1);
	CHECK_EQ(method_call(&p->a, NULL), 2);
	method_invalidate(&p->b);
	method_drop(stage, &p->b);
	stage_collect(stage);
	stage_collect(stage);
	CHECK(!method_is_known(&p->b));
	stage_check(stage);
	atomic_store(&p->step, 1);
	stage_join(&t);
	CHECK_EQ(p->result[0], 3);
	CHECK_EQ(atomic_load(&p->inside), 3);
}

static bool find_stub(void *arg, const struct ch_site *site)
{
	struct play *p = arg;
	if (site->kind == CH_SITE_STUB && site->branch.bits == p->a.branch[0].bits)
		p->stub = site->at;
	return true;
}

/* The loser reads the site before the winner links the branch, and comes late to the stub. */
EVERY_DRIVER(s12_late_loser_finds_the_branch_linked)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_source, p);
	CHECK_EQ(ch_block_sites(p->a.block, find_stub, p), CH_OK);
	CHECK(p->stub);
	method_link(&p->a, 0, &p->b);
	CHECK_EQ(stage_enter(&p->stub, NULL), 2);
	CHECK_EQ(stage->hits, 0);
	/* A stub with a lead asks nothing. */
	uint64_t hits = stage->heap->pool->stub_lead_bytes ? 0 : 1;
	CHECK_EQ(stage_stats(stage).branch_hits, hits);
	CHECK_EQ(stage_stats(stage).branch_hits_stale, hits);
}

/* Each answer dies before the link: eight times, then the fallback. */
static struct ch_block answer_dead(struct stage *stage, struct ch_branch branch, void *user,
				   struct ch_regs *regs)
{
	struct play *p = stage->user;
	(void)branch, (void)user, (void)regs;
	return p->answer;
}

static void kill_b(struct stage *stage, struct play *p)
{
	stage_apart(stage, build_source, p);
	p->answer = p->b.block;
	CHECK_EQ(ch_owner_release(p->b.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

EVERY_DRIVER(s12_answer_that_is_dead_is_asked_for_again_and_not_for_ever)
{
	struct play *p = new_play(stage);
	stage->hit = answer_dead;
	kill_b(stage, p);
	CHECK_EQ(method_call(&p->a, NULL), STAGE_FALLBACK);
	CHECK_EQ(stage->hits, 8);
	if (stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM)
		method_drop(stage, &p->b);
}

enum { GIVEN_UP = 4711 };

static uint64_t go_on_elsewhere(void)
{
	return GIVEN_UP;
}

static struct ch_block answer_dead_and_elsewhere(struct stage *stage, struct ch_branch branch,
						 void *user, struct ch_regs *regs)
{
	regs->pc = (uint64_t)(uintptr_t)go_on_elsewhere;
	return answer_dead(stage, branch, user, regs);
}

EVERY_DRIVER(s12_thread_whose_answers_are_all_dead_goes_on_where_the_callback_said)
{
	struct play *p = new_play(stage);
	stage->hit = answer_dead_and_elsewhere;
	kill_b(stage, p);
	CHECK_EQ(method_call(&p->a, NULL), GIVEN_UP);
	CHECK_EQ(stage->hits, 8);
	if (stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM)
		method_drop(stage, &p->b);
}

EVERY_DRIVER(answer_that_is_not_entrant_is_asked_for_again)
{
	struct play *p = new_play(stage);
	stage->hit = answer_dead;
	stage_apart(stage, build_source, p);
	p->answer = p->b.block;
	method_invalidate(&p->b);
	CHECK_EQ(block_state(p->answer), CH_BLOCK_NOTENTRANT);
	CHECK_EQ(method_call(&p->a, NULL), STAGE_FALLBACK);
	CHECK_EQ(stage->hits, 8);
}

enum late { ANSWERS, LINKS_ITSELF, OLD_IS_INVALIDATED };

/* The branch is linked to C, as by another thread, while the answer B is on its way. */
static struct ch_block answer_late(struct stage *stage, struct ch_branch branch, void *user,
				   struct ch_regs *regs)
{
	struct play *p = stage->user;
	struct ch_info info = {.size = sizeof info};
	(void)branch, (void)user;
	if (p->asked++)
		return p->c.block;
	method_link(&p->a, 0, &p->c);
	if (p->step == OLD_IS_INVALIDATED)
		method_invalidate(&p->b);
	if (p->step != LINKS_ITSELF)
		return p->b.block;
	CHECK_EQ(ch_block_info(p->b.block, &info), CH_OK);
	regs->pc = (uint64_t)(uintptr_t)info.entry;
	return (struct ch_block){0};
}

static void take_twice(struct play *p, enum late step, uint64_t first, uint64_t second)
{
	p->asked = 0;
	p->step = step;
	CHECK_EQ(method_call(&p->a, NULL), first);
	CHECK_EQ(method_call(&p->a, NULL), second);
	CHECK_EQ(ch_branch_link(p->a.branch[0], (struct ch_block){0}), CH_OK);
}

EVERY_DRIVER(s12_late_answer_undoes_a_link_but_for_the_two_ways_of_a_vm_that_relinks)
{
	struct play *p = new_play(stage);
	stage->hit = answer_late;
	stage_apart(stage, build_source, p);
	take_twice(p, ANSWERS, 2, 2);
	take_twice(p, LINKS_ITSELF, 2, 3);
	take_twice(p, OLD_IS_INVALIDATED, 3, 3);
}

/* No byte of data is an instruction. */
EVERY_DRIVER(answer_that_is_data_is_asked_for_again)
{
	struct play *p = new_play(stage);
	struct ch_open open = {.hot_bytes = 64, .kind = CH_KIND_DATA};
	struct emitter e;
	stage->hit = answer_dead;
	stage_apart(stage, build_source, p);
	open.owner = p->b.owner;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	p->answer = e.code.block;
	CHECK_EQ(method_call(&p->a, NULL), STAGE_FALLBACK);
	CHECK_EQ(stage->hits, 8);
}

/* The first answer's address does not count when the second answer has none. */
static struct ch_block answer_dead_then_none(struct stage *stage, struct ch_branch branch,
					     void *user, struct ch_regs *regs)
{
	struct play *p = stage->user;
	CHECK_EQ(regs->pc, (uintptr_t)stage_fallback);
	if (p->asked++)
		return (struct ch_block){0};
	return answer_dead_and_elsewhere(stage, branch, user, regs);
}

EVERY_DRIVER(callback_that_is_asked_again_finds_the_fallback_preset)
{
	struct play *p = new_play(stage);
	stage->hit = answer_dead_then_none;
	kill_b(stage, p);
	CHECK_EQ(method_call(&p->a, NULL), STAGE_FALLBACK);
	CHECK_EQ(stage->hits, 2);
	if (stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM)
		method_drop(stage, &p->b);
}

/* Random: threads take a stub, while other threads invalidate the target and collect. */
static struct ch_block compile_anew(struct stage *stage, struct ch_branch branch, void *user,
				    struct ch_regs *regs)
{
	struct play *p = stage->user;
	struct emitter e;
	(void)branch, (void)user, (void)regs;
	struct ch_open open = {.owner = p->c.owner, .hot_bytes = 16, .flags = CH_OPEN_MAY_COLLECT};
	if (emit_open_as(&e, &open) != CH_OK)
		return (struct ch_block){0};
	emit_answer(&e, 12);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static void take_stub(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->step)) {
		uint64_t result = method_call(&p->a, NULL);
		CHECK(result == 12 || result == STAGE_FALLBACK);
		__atomic_fetch_add(&p->asked, 1, __ATOMIC_RELAXED);
		stage_poll(stage);
	}
}

static bool find_target(void *arg, const struct ch_site *site)
{
	struct play *p = arg;
	if (site->kind == CH_SITE_BRANCH && site->is_linked)
		p->stub = site->leads_to;
	return true;
}

SHARED_DRIVER(s12_storm_on_one_stub)
{
	enum { THREADS = 3 };
	stage->config.pool_bytes = 256 << 10;
	struct play *p = new_play(stage);
	stage->hit = compile_anew;
	stage_apart(stage, build_source, p);
	struct stage_thread threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		stage_spawn(stage, &threads[i], take_stub, p);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	for (int round = 0; now_ns() < end || stage->hits <= 10 ||
			    __atomic_load_n(&p->asked, __ATOMIC_RELAXED) <= 10;
	     round++) {
		struct ch_block block;
		p->stub = NULL;
		CHECK_EQ(ch_block_sites(p->a.block, find_target, p), CH_OK);
		if (p->stub && block_at(stage->heap, p->stub, &block))
			CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
		if (round % 16 == 0)
			stage_collect(stage);
		if (round % 256 == 0)
			stage_check(stage);
		stage_pause();
	}
	atomic_store(&p->step, 1);
	for (int i = 0; i < THREADS; i++)
		stage_join(&threads[i]);
}

/* --- a thread inside leaves at its next branch --- */

static uint64_t invalidate_around(void *arg)
{
	struct play *p = arg;
	method_invalidate(&p->a);
	stage_collect(p->stage);
	return 0;
}

static void build_leaver(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	method_constant(stage, &p->b, "B", 2);
	method_new(stage, &p->a, "A");
	method_open(&e, &p->a);
	emit_frame(&e);
	emit_call_c(&e, (const void *)invalidate_around);
	emit_frame_end(&e);
	method_jmp(&e, &p->a, 0);
	method_commit(&e, &p->a);
	method_link(&p->a, 0, &p->b);
}

static struct ch_block try_to_link(struct stage *stage, struct ch_branch branch, void *user,
				   struct ch_regs *regs)
{
	struct play *p = stage->user;
	(void)user, (void)regs;
	CHECK_EQ(ch_branch_link(branch, p->b.block), CH_E_STATE);
	return p->b.block;
}

EVERY_DRIVER(thread_leaves_an_invalidated_block_at_its_next_branch)
{
	struct play *p = new_play(stage);
	stage->hit = try_to_link;
	stage_apart(stage, build_leaver, p);
	CHECK_EQ(method_call(&p->a, p), 2);
	CHECK_EQ(stage->hits, 1);
	CHECK_EQ(stage_stats(stage).branch_hits_stale, 1);
}

/* --- release at once --- */

EVERY_DRIVER(release_at_once_sends_callers_to_their_stubs)
{
	struct play *p = new_play(stage);
	stage->hit = stage_no_target;
	stage_apart(stage, build_source, p);
	method_link(&p->a, 0, &p->b);
	CHECK_EQ(method_call(&p->a, NULL), 2);
	CHECK_EQ(ch_owner_release(p->b.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!method_is_known(&p->b));
	CHECK_EQ(method_call(&p->a, NULL), STAGE_FALLBACK);
	CHECK_EQ(stage->hits, 1);
	if (stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM)
		method_drop(stage, &p->b);
}

/* --- 47: the bytes changed by linking --- */

static void build_conditional(struct stage *stage, struct play *p)
{
	struct emitter e;
	method_new(stage, &p->a, "A");
	method_open(&e, &p->a);
	emit_condition_e(&e);
	const void *site = emit_site_jcc(&e, EMIT_CC_E);
	p->a.branch[0] = emit_attach(&e, site, CH_JCC, NULL);
	emit_answer(&e, 1);
	method_commit(&e, &p->a);
}

/* The bytes that differ lie in a word. */
static void expect_a_word_differs(const uint8_t *before, const uint8_t *now, uint32_t bytes)
{
	while (bytes && *before == *now)
		before++, now++, bytes--;
	CHECK(bytes <= 4 || memcmp(before + 4, now + 4, bytes - 4) == 0);
}

EVERY_DRIVER(s47_linking_changes_no_byte_but_the_displacement)
{
	struct play *p = new_play(stage);
	build_conditional(stage, p);
	method_constant(stage, &p->b, "B", 2);
	static struct method fillers[3000];
	for (int i = 0; i < 3000; i++)
		method_constant(stage, &fillers[i], "filler", 4);
	method_constant(stage, &p->c, "C", 3);
	struct ch_info info = block_info(p->a.block);
	uint8_t before[64];
	uint32_t bytes = info.hot_bytes < sizeof before ? info.hot_bytes : sizeof before;
	memcpy(before, info.exec, bytes);
	for (int i = 0; i < 1000; i++) {
		const struct method *to = i % 2 ? &p->b : &p->c;
		method_link(&p->a, 0, to);
		expect_a_word_differs(before, info.exec, bytes);
		CHECK_EQ(method_call(&p->a, NULL), i % 2 ? 2 : 3);
	}
	CHECK_EQ(ch_branch_link(p->a.branch[0], (struct ch_block){0}), CH_OK);
	CHECK_EQ(memcmp(before, info.exec, bytes), 0);
}
