/* SPDX-License-Identifier: MIT
 * fibers.c: code whose only frame is on a suspended fiber: over several cycles, with the pool
 * filled meanwhile, moved to another thread, caught in the middle of a switch, and dead before its
 * end. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

#include <unistd.h>

struct play {
	struct stage *stage;
	struct method m, other;
	struct fiber fiber;
	uintptr_t held;
	uint64_t result;
	_Atomic(int) step, roots_seen, stranger, has_left;
};

static uint64_t yield_in_callee(void *arg)
{
	struct play *p = arg;
	fiber_yield(&p->fiber);
	return 21;
}

static void build_yielder(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "yielder", (void *)yield_in_callee);
}

static void run_in_fiber(struct fiber *f, void *arg)
{
	struct play *p = arg;
	(void)f;
	p->result = method_call(&p->m, p);
}

static void fill_pool(struct stage *stage, void *arg)
{
	enum { SOME = 64 };
	struct method *fresh = arg;
	for (int i = 0; i < SOME; i++) {
		method_constant(stage, fresh, "filler", 3);
		CHECK_EQ(method_call(fresh, NULL), 3);
		method_drop(stage, fresh);
	}
}

/* --- 5 --- */

EVERY_DRIVER(s05_suspended_fiber_holds_the_only_frame)
{
	stage->config.pool_bytes = 256 << 10;
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_yielder, p);
	fiber_start(stage, &p->fiber, run_in_fiber, p);
	fiber_resume(&p->fiber);
	method_invalidate(&p->m);
	method_drop(stage, &p->m);
	static struct method filler;
	for (int i = 0; i < 10; i++) {
		stage_collect(stage);
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
		stage_apart(stage, fill_pool, &filler);
	}
	stage_check(stage);
	fiber_resume(&p->fiber);
	CHECK(p->fiber.is_done);
	CHECK_EQ(p->result, 21);
	fiber_end(&p->fiber);
	CHECK_EQ(p->m.freed, 0);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

/* --- 6 --- */

EVERY_DRIVER(s06_fiber_that_never_goes_on_holds_its_block_only)
{
	stage->config.pool_bytes = 64 << 10;
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_yielder, p);
	fiber_start(stage, &p->fiber, run_in_fiber, p);
	fiber_resume(&p->fiber);
	method_drop(stage, &p->m);
	/* Fills the pool many times: the fiber holds one block, all other room is used again. */
	static struct method filler;
	for (int i = 0; i < 200; i++) {
		stage_apart(stage, fill_pool, &filler);
		stage_collect(stage);
	}
	CHECK_EQ(stage_stats(stage).blocks_now, 1);
	CHECK(method_is_known(&p->m));
	fiber_end(&p->fiber);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

/* --- 7 --- */

static void resume_here(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	fiber_resume(&p->fiber);
}

static uint64_t yield_three_times(void *arg)
{
	struct play *p = arg;
	for (int i = 0; i < 3; i++)
		fiber_yield(&p->fiber);
	return 33;
}

static void build_three_times(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "yielder", (void *)yield_three_times);
}

EVERY_DRIVER(s07_fiber_goes_on_in_other_threads)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_three_times, p);
	fiber_start(stage, &p->fiber, run_in_fiber, p);
	fiber_resume(&p->fiber);
	method_invalidate(&p->m);
	method_drop(stage, &p->m);
	for (int i = 0; i < 3; i++) {
		stage_collect(stage);
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
		if (i == 1)
			fiber_resume(&p->fiber);
		else
			stage_apart(stage, resume_here, p);
	}
	CHECK(p->fiber.is_done);
	CHECK_EQ(p->result, 33);
	fiber_end(&p->fiber);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

/* --- 8 --- */

/* The library was told of the suspension, and the fiber still runs: a cycle comes in between. */
static uint64_t stop_within_the_switch(void *arg)
{
	struct play *p = arg;
	ch_fiber_suspend(p->fiber.handle, __builtin_frame_address(0));
	atomic_store(&p->step, 1);
	stage_wait(&p->step, 2);
	ch_fiber_resume(p->fiber.handle);
	return 8;
}

static void build_switch(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "switch", (void *)stop_within_the_switch);
}

static uint64_t resume_in_callee(void *arg)
{
	struct play *p = arg;
	fiber_resume(&p->fiber);
	return p->result;
}

static void build_home(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->other, "home", (void *)resume_in_callee);
}

static void enter_home(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	CHECK_EQ(method_call(&p->other, p), 8);
}

EVERY_DRIVER(s08_cycle_in_the_middle_of_a_switch)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_switch, p);
	stage_apart(stage, build_home, p);
	fiber_start(stage, &p->fiber, run_in_fiber, p);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_home, p);
	stage_wait(&p->step, 1);
	method_drop(stage, &p->m);
	method_drop(stage, &p->other);
	stage_collect(stage);
	stage_collect(stage);
	CHECK(method_is_known(&p->m));
	CHECK(method_is_known(&p->other));
	atomic_store(&p->step, 2);
	stage_join(&t);
	fiber_end(&p->fiber);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}
static void build_constant(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_constant(stage, &p->m, "held", 4);
}

static void find_word(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch_info info = {.size = sizeof info};
	(void)stage;
	CHECK_EQ(ch_block_info(p->m.block, &info), CH_OK);
	p->held = (uintptr_t)info.entry;
}

static void hold_in_register(struct fiber *f, void *arg)
{
	struct play *p = arg;
	fiber_yield_holding(f, &p->held);
}

EVERY_DRIVER(s08_registers_saved_below_the_announced_sp)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_constant, p);
	stage_apart(stage, find_word, p);
	fiber_start(stage, &p->fiber, hold_in_register, p);
	fiber_resume(&p->fiber);
	method_drop(stage, &p->m);
	stage_collect(stage);
	CHECK(method_is_known(&p->m));
	fiber_resume(&p->fiber);
	CHECK(p->fiber.is_done);
	fiber_end(&p->fiber);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

/* --- dead before its end --- */

/* No thread will return to the dead fiber's stack, and the stack is unmapped. */
EVERY_DRIVER(fiber_that_dies_unfinished_holds_nothing)
{
	struct play *p = stage_play(stage, sizeof *p);
	for (int i = 0; i < 10; i++) {
		stage_apart(stage, build_yielder, p);
		fiber_start(stage, &p->fiber, run_in_fiber, p);
		if (i % 2)
			stage_apart(stage, resume_here, p);
		else
			fiber_resume(&p->fiber);
		method_drop(stage, &p->m);
		stage_collect(stage);
		CHECK(method_is_known(&p->m));
		fiber_end(&p->fiber);
		stage_collect(stage);
		CHECK_EQ(p->m.freed, 1);
	}
	CHECK_EQ(stage_stats(stage).fibers_now, 0);
}

/* A thread that no driver knows, and so none stops, ends a fiber. The thread may unmap the stack
 * when the call returns, so the call does not return while a stopped world is scanned. */
static void *end_fiber_as_stranger(void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->roots_seen))
		usleep(100);
	atomic_store(&p->stranger, (int)gettid());
	fiber_end(&p->fiber);
	atomic_store(&p->has_left, 1);
	return NULL;
}

static void look_at_stranger(struct stage *stage, struct ch_marker *marker)
{
	struct play *p = stage->user;
	(void)marker;
	atomic_store(&p->roots_seen, 1);
	TEST_UNTIL(atomic_load(&p->stranger) && thread_is_asleep(atomic_load(&p->stranger)))
		if (atomic_load(&p->has_left))
			FAIL("a fiber's stack went while the world was stopped");
}

EVERY_DRIVER(fiber_ended_by_a_stranger_stays_while_the_world_is_stopped)
{
	struct play *p = stage_play(stage, sizeof *p);
	pthread_t stranger;
	stage->user = p;
	stage_apart(stage, build_yielder, p);
	fiber_start(stage, &p->fiber, run_in_fiber, p);
	fiber_resume(&p->fiber);
	method_drop(stage, &p->m);
	CHECK_EQ(pthread_create(&stranger, NULL, end_fiber_as_stranger, p), 0);
	stage->roots = look_at_stranger;
	stage_collect(stage);
	stage->roots = NULL;
	join_parked(stranger);
	CHECK_EQ(atomic_load(&p->has_left), 1);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

/* --- a storm: fibers move, go on, recompile running code, and die --- */

enum { RIDERS = 12, RIDING_THREADS = 3, RIDES = 20 };

struct rider {
	struct stage *stage;
	struct fiber fiber;
	struct method m;
	struct ch_block running; /* its frame is on the fiber; none = no frame */
	struct test_random random;
	_Atomic(int) is_taken;
	bool is_alive;
	unsigned rides;
};

struct ride {
	struct stage *stage;
	struct rider riders[RIDERS];
	struct test_random random;
	_Atomic(int) step;
	_Atomic(unsigned) ended, killed, moved;
};

static uint64_t yield_at_random(void *arg)
{
	struct rider *r = arg;
	r->running = r->m.block;
	if (test_random_below(&r->random, 4) == 0)
		CHECK_EQ(ch_blocks_invalidate(&r->m.block, 1, NULL), CH_OK);
	for (uint64_t n = 1 + test_random_below(&r->random, 3); n; n--)
		fiber_yield(&r->fiber);
	r->running.bits = 0;
	return 21;
}

static void compile_rider(struct rider *r)
{
	enum ch_status status = CH_E_STALE;
	while (status == CH_E_STALE) {
		struct emitter e;
		method_open(&e, &r->m);
		emit_frame(&e);
		emit_call_c(&e, (const void *)yield_at_random);
		emit_frame_end(&e);
		emit_ret(&e);
		method_commit_only(&e, &r->m);
		status = ch_owner_set_entry(r->m.owner, r->m.block);
	}
	CHECK_EQ(status, CH_OK);
}

static void ride_along(struct fiber *f, void *arg)
{
	struct rider *r = arg;
	(void)f;
	while (r->rides++ < RIDES) {
		uint64_t result = method_call(&r->m, r);
		CHECK(result == 21 || result == STAGE_FALLBACK);
		if (result == STAGE_FALLBACK)
			compile_rider(r);
		ch_thread_poll();
	}
}

static void start_rider(struct ride *all, struct rider *r, uint64_t seed)
{
	r->random.state = seed | 1;
	r->rides = 0;
	r->running.bits = 0;
	method_new(all->stage, &r->m, "rider");
	fiber_start(all->stage, &r->fiber, ride_along, r);
	r->is_alive = true;
}

static void end_rider(struct ride *all, struct rider *r)
{
	/* The fiber is unfinished as a rule, and the stack is unmapped here. */
	atomic_fetch_add(r->fiber.is_done ? &all->ended : &all->killed, 1);
	fiber_end(&r->fiber);
	method_drop(all->stage, &r->m);
	r->is_alive = false;
}

static void ride_one(struct ride *all, struct rider *r, struct test_random *random)
{
	if (!r->is_alive) {
		start_rider(all, r, test_random_next(random));
		return;
	}
	if (r->fiber.is_done || test_random_below(random, 32) == 0) {
		end_rider(all, r);
		return;
	}
	if (r->running.bits && !block_is_known(r->running))
		FAIL("a block with a frame on a suspended fiber was freed");
	fiber_resume(&r->fiber);
	atomic_fetch_add(&all->moved, 1);
}

static void ride_for_ever(struct stage *stage, void *arg)
{
	struct ride *all = arg;
	struct test_random random;
	CHECK_EQ(pthread_mutex_lock(&stage->lock), 0);
	random.state = test_random_next(&all->random) | 1;
	CHECK_EQ(pthread_mutex_unlock(&stage->lock), 0);
	while (!atomic_load(&all->step)) {
		struct rider *r = &all->riders[test_random_below(&random, RIDERS)];
		if (!atomic_exchange(&r->is_taken, 1)) {
			ride_one(all, r, &random);
			atomic_store(&r->is_taken, 0);
		}
		ch_thread_poll();
	}
}

THREADED_DRIVER(fibers_move_between_threads_and_die_in_a_storm)
{
	static struct ride all;
	struct stage_thread threads[RIDING_THREADS];
	stage_start(stage);
	stage->counts_only = true;
	all.stage = stage;
	all.random = test_random_new();
	for (int i = 0; i < RIDING_THREADS; i++)
		stage_spawn(stage, &threads[i], ride_for_ever, &all);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	for (int round = 0; now_ns() < end || all.killed <= 3 || all.ended <= 3; round++) {
		stage_cycle_came(stage, stage_try_collect(stage));
		if (round % 64 == 0)
			stage_check(stage);
		stage_pause();
	}
	atomic_store(&all.step, 1);
	for (int i = 0; i < RIDING_THREADS; i++)
		stage_join(&threads[i]);
	for (int i = 0; i < RIDERS; i++)
		if (all.riders[i].is_alive)
			end_rider(&all, &all.riders[i]);
	printf("%u switches, %u fibers ended, %u died\n", all.moved, all.ended, all.killed);
	stage_collect(stage);
	stage_collect(stage);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).fibers_now, 0);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}
