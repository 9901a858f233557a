/* SPDX-License-Identifier: MIT
 * moves.c: callbacks whose stack goes on in another thread: a fiber yields in a callback, and goes
 * on in a thread that has other heaps, or none. After the callback the library acts for the thread
 * of the moment, and does nothing for the thread before. */
#define _GNU_SOURCE
#include "tests/support/heap_rig.h"
#include "tests/support/stage.h"

struct play {
	struct stage *stage;
	struct fiber fiber;
	struct method jumper, target;
	struct rig first, second; /* heaps of the fiber's first thread only */
	struct ch_vm *other_vm;   /* of `first` */
	uint64_t result;
	enum ch_status status;
	bool has_left; /* the callback yields once */
	bool attaches; /* the second thread, to `first` */
	struct ch_fiber *in_first; /* the fiber, as known to `first` */
	_Atomic(unsigned) told, strangers, other_told;
};

static void leave_once(struct play *p)
{
	if (p->has_left)
		return;
	p->has_left = true;
	fiber_yield(&p->fiber);
}

static void resume_here(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	if (p->attaches)
		CHECK_EQ(ch_thread_attach(p->first.heap, NULL, NULL), CH_OK);
	fiber_resume(&p->fiber);
}

/* Runs here up to the callback, and from there on in a thread that is gone afterwards. */
static void run_in_two_threads(struct play *p, void (*body)(struct fiber *, void *))
{
	fiber_start(p->stage, &p->fiber, body, p);
	if (p->first.heap)
		CHECK_EQ(ch_fiber_attach(p->first.heap, (const void *)p->fiber.handle->low,
					 (const void *)p->fiber.handle->high, &p->in_first),
			 CH_OK);
	fiber_resume(&p->fiber);
	if (!p->has_left)
		FAIL("moves: the callback did not come");
	CHECK(!p->fiber.is_done);
	stage_apart(p->stage, resume_here, p);
	CHECK(p->fiber.is_done);
	if (p->in_first)
		CHECK_EQ(ch_fiber_detach(p->in_first), CH_OK);
	fiber_end(&p->fiber);
}

/* --- the callback of a stub --- */

static struct ch_block hit_elsewhere(struct stage *stage, struct ch_branch branch, void *user,
				     struct ch_regs *regs)
{
	struct play *p = stage->user;
	(void)branch, (void)user, (void)regs;
	leave_once(p);
	return p->target.block;
}

static void build_pair(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_jumper(stage, &p->jumper, "jumper");
	method_constant(stage, &p->target, "target", 31);
}

static void call_jumper(struct fiber *f, void *arg)
{
	struct play *p = arg;
	(void)f;
	p->result = method_call(&p->jumper, p);
}

EVERY_DRIVER(stub_is_finished_by_the_thread_that_its_callback_returns_in)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage->hit = hit_elsewhere;
	stage_apart(stage, build_pair, p);
	run_in_two_threads(p, call_jumper);
	CHECK_EQ(p->result, 31);
	CHECK_EQ(atomic_load(&stage->hits), 1);
	/* Either thread may have linked the branch. */
	CHECK_EQ(method_call(&p->jumper, p), 31);
	CHECK_EQ(atomic_load(&stage->hits), 1);
	method_drop(stage, &p->jumper);
	method_drop(stage, &p->target);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}

/* --- the notices of a poll --- */

static void count(struct play *p, const struct rig *rig)
{
	atomic_fetch_add(&p->told, 1);
	if (!ch__thread_self(rig->heap))
		atomic_fetch_add(&p->strangers, 1);
}

static void gone_in_first(void *user, void *block_user)
{
	struct play *p = user;
	(void)block_user;
	count(p, &p->first);
	leave_once(p);
}

static void gone_in_second(void *user, void *block_user)
{
	struct play *p = user;
	(void)block_user;
	count(p, &p->second);
}

/* Two notices wait in each heap. A poll first serves the heap that was attached last. */
static void make_heaps(struct play *p)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops first = {.size = sizeof first, .block_freed = gone_in_first};
	struct ch_ops second = {.size = sizeof second, .block_freed = gone_in_second};
	p->second = rig_create(&config, &second, p);
	p->first = rig_create(&config, &first, p);
	for (int i = 0; i < 4; i++) {
		struct ch_owner owner = rig_owner(i % 2 ? &p->first : &p->second, "gone");
		rig_block(owner, 1);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
}

static void poll_once(struct fiber *f, void *arg)
{
	(void)f, (void)arg;
	ch_thread_poll();
}

static void expect_told(struct play *p, unsigned times)
{
	if (atomic_load(&p->strangers))
		FAIL("moves: a callback came in a thread that is not of its heap");
	CHECK_EQ(atomic_load(&p->told), times);
}

EVERY_DRIVER(poll_ends_where_a_notice_leaves_its_thread)
{
	struct play *p = stage_play(stage, sizeof *p);
	make_heaps(p);
	run_in_two_threads(p, poll_once);
	expect_told(p, 1);
	/* The rest waits for an attached thread. */
	ch_thread_poll();
	expect_told(p, 4);
	rig_end(&p->first);
	rig_end(&p->second);
}

static void collect_first(struct fiber *f, void *arg)
{
	struct play *p = arg;
	(void)f;
	p->status = ch_heap_collect(p->first.heap);
}

EVERY_DRIVER(collection_ends_where_a_notice_leaves_its_thread)
{
	struct play *p = stage_play(stage, sizeof *p);
	make_heaps(p);
	run_in_two_threads(p, collect_first);
	CHECK_EQ(p->status, CH_OK);
	expect_told(p, 1);
	ch_thread_poll();
	expect_told(p, 4);
	rig_end(&p->first);
	rig_end(&p->second);
}

enum { ROUNDS = 20 };

static void poll_each_time(struct fiber *f, void *arg)
{
	struct play *p = arg;
	for (int i = 0; i < ROUNDS; i++) {
		struct ch_owner owner = rig_owner(&p->first, "gone");
		rig_block(owner, 1);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		p->has_left = false;
		ch_fiber_resume(p->in_first);
		ch_thread_poll();
		fiber_yield(f);
	}
}

/* The first thread's poll comes to a notice, which returns in a stranger, again and again. */
EVERY_DRIVER(fiber_hears_of_blocks_however_often_a_notice_returns_in_a_stranger)
{
	struct play *p = stage_play(stage, sizeof *p);
	struct ch_ops ops = {.size = sizeof ops, .block_freed = gone_in_first};
	struct ch_config config = rig_config(1 << 20);
	p->first = rig_create(&config, &ops, p);
	fiber_start(stage, &p->fiber, poll_each_time, p);
	CHECK_EQ(ch_fiber_attach(p->first.heap, (const void *)p->fiber.handle->low,
				 (const void *)p->fiber.handle->high, &p->in_first),
		 CH_OK);
	for (unsigned i = 1; i <= ROUNDS; i++) {
		fiber_resume(&p->fiber);
		expect_told(p, i);
		stage_apart(stage, resume_here, p);
	}
	fiber_resume(&p->fiber);
	CHECK(p->fiber.is_done);
	CHECK_EQ(ch_fiber_detach(p->in_first), CH_OK);
	fiber_end(&p->fiber);
	rig_end(&p->first);
}

/* --- word of space --- */

static void space_in_first(void *user)
{
	struct play *p = user;
	count(p, &p->first);
	leave_once(p);
}

static void fill_for(struct ch_vm *vm, struct ch_owner *last)
{
	enum ch_status status = CH_OK;
	while (status == CH_OK) {
		struct emitter e;
		CHECK_EQ(ch_owner_create(vm, "full", (const void *)(uintptr_t)rig_fallback, NULL,
					 last),
			 CH_OK);
		struct ch_open open = {.owner = *last, .hot_bytes = 1000};
		status = emit_open_as(&e, &open);
		if (status != CH_OK)
			break;
		emit_ret(&e);
		e.code.used_to = open.hot_bytes;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		CHECK_EQ(ch_owner_set_entry(*last, e.code.block), CH_OK);
	}
	CHECK_EQ(status, CH_E_FULL);
}

EVERY_DRIVER(word_of_space_for_another_vm_waits_for_a_thread_of_the_heap)
{
	struct play *p = stage_play(stage, sizeof *p);
	struct ch_config config = rig_config(rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .space_free = space_in_first};
	struct ch_owner early, unused;
	p->first = rig_create(&config, &ops, p);
	CHECK_EQ(ch_vm_attach(p->first.heap, &ops, p, &p->other_vm), CH_OK);
	early = rig_owner(&p->first, "early");
	rig_block(early, 1);
	fill_for(p->first.vm, &unused);
	fill_for(p->other_vm, &unused);
	CHECK_EQ(ch_owner_release(early, CH_RELEASE_NOT_RUNNING), CH_OK);
	run_in_two_threads(p, poll_once);
	expect_told(p, 1);
	ch_thread_poll();
	expect_told(p, 2);
	CHECK_EQ(ch_vm_detach(p->other_vm), CH_OK);
	rig_end(&p->first);
}

/* --- an open that collects --- */

static void gone_elsewhere(struct stage *stage, struct method *m)
{
	(void)m;
	leave_once(stage->user);
}

static void open_and_commit(struct fiber *f, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	(void)f;
	struct ch_open open = {.owner = p->target.owner,
			       .hot_bytes = 1000,
			       .user = &p->target,
			       .flags = CH_OPEN_MAY_COLLECT};
	p->status = emit_open_as(&e, &open);
	if (p->status != CH_OK)
		return;
	emit_answer(&e, 17);
	method_commit(&e, &p->target);
}

/* Fills a pool of one page with code that nothing holds. */
static void fill_page(struct stage *stage, void *arg)
{
	static struct method filler;
	struct play *p = arg;
	enum ch_status status = CH_OK;
	method_new(stage, &p->target, "target");
	while (status == CH_OK) {
		struct emitter e;
		method_new(stage, &filler, "filler");
		struct ch_open open = {.owner = filler.owner, .hot_bytes = 1000, .user = &filler};
		status = emit_open_as(&e, &open);
		if (status == CH_OK) {
			emit_ret(&e);
			e.code.used_to = open.hot_bytes;
			CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
			CHECK_EQ(ch_owner_set_entry(filler.owner, e.code.block), CH_OK);
		}
		method_drop(stage, &filler);
	}
	CHECK_EQ(status, CH_E_FULL);
}

static void open_in_a_full_page(struct stage *stage)
{
	stage->config.pool_bytes = rig_page_bytes();
	stage->counts_only = false;
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, fill_page, p);
	stage->gone = gone_elsewhere;
	run_in_two_threads(p, open_and_commit);
	CHECK_EQ(p->status, CH_OK);
	CHECK_EQ(stage_stats(stage).blocks_open_now, 0);
	CHECK_EQ(method_call(&p->target, NULL), 17);
	stage->gone = NULL;
	method_drop(stage, &p->target);
	stage_collect(stage);
	stage_end(p->stage);
}

TEST(open_is_finished_by_the_thread_that_a_notice_returns_in_polls)
{
	open_in_a_full_page(stage_new(STAGE_POLLS));
}
TEST(open_is_finished_by_the_thread_that_a_notice_returns_in_signals)
{
	open_in_a_full_page(stage_new(STAGE_SIGNALS));
}

/* The VM keeps the open's fiber suspended in a callback of the open's collection, without limit.
 * The next open waits no longer than for a cycle, and has the turn from then on. */
static void open_while_one_stays_away(struct stage *stage)
{
	stage->config.pool_bytes = rig_page_bytes();
	stage->config.stop_wait_ms = 100;
	stage->counts_only = false;
	struct play *p = stage_play(stage, sizeof *p);
	struct ch_code code;
	stage_apart(stage, fill_page, p);
	stage->gone = gone_elsewhere;
	fiber_start(stage, &p->fiber, open_and_commit, p);
	fiber_resume(&p->fiber);
	CHECK(p->has_left && !p->fiber.is_done);
	for (int i = 0; i < 2; i++) {
		struct ch_open open = {.size = sizeof open,
				       .owner = p->target.owner,
				       .hot_bytes = 1000,
				       .flags = CH_OPEN_MAY_COLLECT};
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		CHECK_EQ(ch_block_abort(&code), CH_OK);
	}
	CHECK_EQ(atomic_load(&stage->heap->need_is), 0);
	fiber_resume(&p->fiber);
	CHECK(p->fiber.is_done);
	CHECK_EQ(p->status, CH_OK);
	CHECK_EQ(atomic_load(&stage->heap->need.word), CH__LOCK_FREE);
	CHECK_EQ(method_call(&p->target, NULL), 17);
	fiber_end(&p->fiber);
	stage->gone = NULL;
	stage_end(p->stage);
}

TEST(opens_go_on_where_the_one_whose_turn_it_is_stays_away_polls)
{
	open_while_one_stays_away(stage_new(STAGE_POLLS));
}
TEST(opens_go_on_where_the_one_whose_turn_it_is_stays_away_signals)
{
	open_while_one_stays_away(stage_new(STAGE_SIGNALS));
}

static void open_in_first(struct fiber *f, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&p->first, "wanted"),
			       .hot_bytes = 1000,
			       .name = "named",
			       .branch_room = 3,
			       .flags = CH_OPEN_MAY_COLLECT};
	(void)f;
	p->status = emit_open_as(&e, &open);
}

static struct ch_block notes[100];
static unsigned noted;

static bool invalidate_later(void *arg, const struct ch_info *info)
{
	(void)arg;
	CHECK(noted < sizeof notes / sizeof notes[0]);
	notes[noted++] = info->block;
	return true;
}

static void fill_first(const struct rig *rig, void *arg)
{
	struct ch_owner owner;
	(void)arg;
	fill_for(rig->vm, &owner);
}

TEST(open_in_a_thread_that_is_not_attached_any_more_says_so)
{
	struct play *p = stage_play(stage_new(STAGE_POLLS), sizeof *p);
	struct ch_config config = rig_config(rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .block_freed = gone_in_first};
	p->first = rig_create(&config, &ops, p);
	rig_apart(&p->first, fill_first, NULL);
	struct ch_stats before = rig_stats(&p->first);
	size_t count = 0;
	CHECK_EQ(ch_block_each(p->first.heap, NULL, invalidate_later, NULL), CH_OK);
	for (unsigned i = 0; i < noted; i++)
		CHECK_EQ(ch_blocks_invalidate(&notes[i], 1, &count), CH_OK);
	run_in_two_threads(p, open_in_first);
	CHECK_EQ(p->status, CH_E_THREAD);
	CHECK_EQ(rig_stats(&p->first).blocks_open_now, 0);
	CHECK_EQ(rig_stats(&p->first).opens_full, before.opens_full);
	rig_end(&p->first);
	stage_end(p->stage);
}

/* --- code without an owner --- */

static void open_without_an_owner(struct fiber *f, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	struct ch_open open = {.heap = p->first.heap, .hot_bytes = 1000};
	(void)f;
	p->status = emit_open_as(&e, &open);
	if (p->status != CH_OK)
		return;
	emit_answer(&e, 19);
	CHECK_EQ(emit_commit(&e), CH_OK);
}

/* The pool was full: the open makes the collection that no vm is asked for. */
static void open_in_need(bool attaches, enum ch_status status)
{
	struct play *p = stage_play(stage_new(STAGE_POLLS), sizeof *p);
	struct ch_config config = rig_config(rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .block_freed = gone_in_first};
	size_t count = 0;
	noted = 0;
	p->first = rig_create(&config, &ops, p);
	p->attaches = attaches;
	rig_apart(&p->first, fill_first, NULL);
	CHECK_EQ(ch_block_each(p->first.heap, NULL, invalidate_later, NULL), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(notes, noted, &count), CH_OK);
	run_in_two_threads(p, open_without_an_owner);
	CHECK_EQ(p->status, status);
	CHECK_EQ(rig_stats(&p->first).blocks_open_now, 0);
	rig_end(&p->first);
	stage_end(p->stage);
}

TEST(open_without_an_owner_is_finished_by_the_thread_that_a_notice_returns_in)
{
	open_in_need(true, CH_OK);
}

TEST(open_without_an_owner_in_a_thread_that_is_not_attached_any_more_says_so)
{
	open_in_need(false, CH_E_THREAD);
}
