/* SPDX-License-Identifier: MIT
 * full.c: pools of very few pages under eight compiling threads. Each CH_E_FULL is followed by a
 * callback, after which the open is tried again, and by nothing else. No thread starves, and a pool
 * without garbage does not collect without end. */
#define _GNU_SOURCE
#include "codeheap/collector.h"
#include "tests/support/stage.h"

#include <unistd.h>

enum { THREADS = 8 };

struct play {
	struct stage *stage;
	pthread_rwlock_t world; /* HOST: the collector writes, mutators read */
	_Atomic(int) numbers, ready, done, gone, step;
	_Atomic(unsigned) compiled[THREADS], told[THREADS];
	_Atomic(bool) collects; /* a thread collects */
	uint64_t dropped;       /* an owner */
	unsigned blocks_each;
	uint32_t hot_bytes;
};

static struct play *new_play(struct stage *stage, uint32_t pages)
{
	stage->config.pool_bytes = pages * (test_page_bytes() ? test_page_bytes() : 16384);
	stage->counts_only = true;
	struct play *p = stage_play(stage, sizeof *p);
	CHECK_EQ(pthread_rwlock_init(&p->world, NULL), 0);
	return p;
}

static void end_play(struct play *p)
{
	CHECK_EQ(pthread_rwlock_destroy(&p->world), 0);
	stage_end(p->stage);
}

/* --- the VM's side --- */

/* Outside of the world a thread is parked. */
static void enter_world(struct play *p)
{
	if (p->stage->driver != STAGE_HOST)
		return;
	CHECK_EQ(pthread_rwlock_rdlock(&p->world), 0);
	ch_thread_unpark();
}

static void leave_world(struct play *p)
{
	if (p->stage->driver != STAGE_HOST)
		return;
	ch_thread_park();
	CHECK_EQ(pthread_rwlock_unlock(&p->world), 0);
}

/* Returns when all threads are attached. No cycle begins before. */
static void come_to_world(struct play *p)
{
	if (p->stage->driver == STAGE_HOST)
		ch_thread_park();
	atomic_fetch_add(&p->ready, 1);
	stage_wait(&p->ready, THREADS);
	enter_world(p);
}

/* Returns when no thread collects any more. The caller detaches then. */
static void go_from_world(struct play *p)
{
	leave_world(p);
	atomic_fetch_add(&p->gone, 1);
	stage_wait(&p->gone, THREADS);
	if (p->stage->driver == STAGE_HOST)
		ch_thread_unpark();
}

/* A single thread serves a request, as in a VM at its safepoint. */
static void serve_request(struct play *p)
{
	struct stage *stage = p->stage;
	if (!atomic_load(&stage->wanted) || atomic_exchange(&p->collects, true))
		return;
	atomic_store(&stage->wanted, 0);
	if (stage->driver == STAGE_HOST) {
		leave_world(p);
		CHECK_EQ(pthread_rwlock_wrlock(&p->world), 0);
		ch_thread_unpark();
	}
	enum ch_status status = stage_try_collect(stage);
	CHECK(status == CH_OK || status == CH_E_BUSY);
	if (stage->driver == STAGE_HOST) {
		leave_world(p);
		enter_world(p);
	}
	atomic_store(&p->collects, false);
}

/* Interprets until the library says that space came, and tries no open before. */
static void wait_for_space(struct play *p, unsigned seen)
{
	TEST_UNTIL(atomic_load(&p->stage->space) != seen) {
		ch_thread_poll();
		serve_request(p);
		leave_world(p);
		stage_pause();
		enter_world(p);
	}
}

static bool compile(struct play *p, struct method *m, uint32_t value, int self)
{
	struct emitter e;
	struct ch_open open = {.owner = m->owner, .hot_bytes = p->hot_bytes, .user = m};
	for (;;) {
		unsigned seen = atomic_load(&p->stage->space);
		enum ch_status status = emit_open_as(&e, &open);
		if (status == CH_OK)
			break;
		CHECK_EQ(status, CH_E_FULL);
		wait_for_space(p, seen);
		atomic_fetch_add(&p->told[self], 1);
	}
	emit_answer(&e, value);
	e.at = p->hot_bytes;
	enum ch_status status = emit_commit(&e);
	CHECK(status == CH_OK || status == CH_E_STALE);
	m->block = e.code.block;
	if (status == CH_OK)
		status = ch_owner_set_entry(m->owner, m->block);
	CHECK(status == CH_OK || status == CH_E_STALE);
	memset(&e, 0, sizeof e);
	__asm__ volatile("" ::"r"(&e) : "memory");
	return status == CH_OK;
}

static void compile_run_drop(struct stage *stage, void *arg)
{
	struct play *p = arg;
	int self = atomic_fetch_add(&p->numbers, 1);
	come_to_world(p);
	while (atomic_load(&p->compiled[self]) < p->blocks_each) {
		struct method m;
		uint32_t value = (uint32_t)self << 16 | atomic_load(&p->compiled[self]);
		method_new(stage, &m, "in need");
		while (!compile(p, &m, value, self))
			continue;
		CHECK_EQ(method_call(&m, NULL), value);
		method_drop(stage, &m);
		atomic_fetch_add(&p->compiled[self], 1);
		ch_thread_poll();
		/* Mostly nobody collects before the pool is full. */
		if (atomic_load(&p->compiled[self]) % 64 == 0)
			serve_request(p);
	}
	atomic_fetch_add(&p->done, 1);
	/* Other threads may still wait for space: this thread polls for them until all are done. */
	while (atomic_load(&p->done) < THREADS) {
		ch_thread_poll();
		serve_request(p);
		leave_world(p);
		stage_pause();
		enter_world(p);
	}
	go_from_world(p);
}

/* --- eight threads compile in 1, 2 and 4 pages --- */

static void compile_in(struct stage *stage, uint32_t pages)
{
	struct play *p = new_play(stage, pages);
	struct stage_thread threads[THREADS];
	p->hot_bytes = (uint32_t)(stage->config.pool_bytes / 32);
	p->blocks_each = storm_ms_of(300);
	ch_thread_park();
	for (int i = 0; i < THREADS; i++)
		stage_spawn(stage, &threads[i], compile_run_drop, p);
	for (int i = 0; i < THREADS; i++)
		stage_join(&threads[i]);
	ch_thread_unpark();
	struct ch_stats stats = stage_stats(stage);
	unsigned told = 0;
	for (int i = 0; i < THREADS; i++) {
		CHECK_EQ(p->compiled[i], p->blocks_each);
		told += p->told[i];
	}
	printf("%u pages: %llu blocks, %llu cycles, %llu opens without room, %u told, %u retries\n",
	       pages, (unsigned long long)stats.blocks_committed, (unsigned long long)stats.cycles,
	       (unsigned long long)stats.opens_full, stage->space, told);
	CHECK(stats.opens_full > 0);
	CHECK_EQ(told, stats.opens_full);
	/* A cycle frees some blocks, and the next request comes only after such a cycle. */
	CHECK(stats.cycles <= stats.blocks_committed + 10);
	CHECK(stats.opens_full <= 4 * stats.blocks_committed);
	end_play(p);
}

EVERY_DRIVER(s28_eight_threads_compile_in_one_page)
{
	compile_in(stage, 1);
}
EVERY_DRIVER(s28_eight_threads_compile_in_two_pages)
{
	compile_in(stage, 2);
}
EVERY_DRIVER(s28_eight_threads_compile_in_four_pages)
{
	compile_in(stage, 4);
}

/* --- requests, one at a time --- */

static uint32_t fill_with_live(struct stage *stage, struct method *all, uint32_t room)
{
	for (uint32_t n = 0; n < room; n++) {
		struct emitter e;
		method_new(stage, &all[n], "live");
		struct ch_open open = {.owner = all[n].owner, .hot_bytes = 508};
		enum ch_status status = emit_open_as(&e, &open);
		if (status != CH_OK) {
			CHECK_EQ(status, CH_E_FULL);
			return n;
		}
		emit_filler(&e, 508 - CODE_RETURN_BYTES);
		emit_ret(&e);
		method_commit(&e, &all[n]);
	}
	FAIL("the pool never was full");
}

static enum ch_status try_open(struct ch_owner owner, uint32_t hot_bytes)
{
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = hot_bytes};
	struct ch_code code;
	enum ch_status status = ch_block_open(&open, &code);
	if (status == CH_OK)
		CHECK_EQ(ch_block_abort(&code), CH_OK);
	return status;
}

/* Right behind a cycle an open fails and a method goes. Both are no reason for another cycle yet.
 * Some time later both are, and the thread calls nothing but the poll. */
TEST(s38_request_that_came_too_early_is_made_by_a_later_poll)
{
	static const uint64_t AN_HOUR_NS = UINT64_C(3600000000000);
	static struct method all[512];
	struct play *p = new_play(stage_new(STAGE_POLLS), 4);
	struct stage *stage = p->stage;
	uint32_t count = fill_with_live(stage, all, 512);
	/* Pretends that the cycle took an hour: on any machine the next cycle is too early then.
	 * Repeats, if the machine was so slow that a poll asked before. */
	do {
		stage_collect(stage);
		__atomic_store_n(&stage->heap->cycle_ns, AN_HOUR_NS, __ATOMIC_RELAXED);
		ch_thread_poll();
	} while (atomic_load(&stage->heap->collect_told));
	atomic_store(&stage->wanted, 0);
	CHECK_EQ(try_open(all[count].owner, 508), CH_E_FULL);
	CHECK_EQ(stage->wanted, 0);
	method_drop(stage, &all[0]);
	CHECK_EQ(stage->wanted, 0);
	__atomic_store_n(&stage->heap->cycle_ns, 1000000, __ATOMIC_RELAXED);
	TEST_UNTIL(stage->wanted) { /* the request of the failed open */
		ch_thread_poll();
		stage_pause();
	}
	stage_collect(stage);
	CHECK_EQ(stage->space, 1);
	CHECK_EQ(try_open(all[count].owner, 508), CH_OK);
	end_play(p);
}

/* A request made while a cycle marks is not answered by this cycle. */
static void hold_marking_up(struct stage *stage, struct ch_marker *marker)
{
	struct play *p = stage->user;
	(void)marker;
	int armed = 1;
	if (!atomic_compare_exchange_strong(&p->step, &armed, 2))
		return;
	while (atomic_load(&p->step) != 3)
		usleep(100);
}

static void *drop_during_marking(void *arg)
{
	struct play *p = arg;
	while (atomic_load(&p->step) != 2)
		usleep(100);
	CHECK_EQ(ch_owner_release((struct ch_owner){p->dropped}, CH_RELEASE_COLLECT), CH_OK);
	atomic_store(&p->step, 3);
	return NULL;
}

TEST(s38_request_that_comes_during_a_cycle_outlives_it)
{
	static struct method all[512];
	struct play *p = new_play(stage_new(STAGE_POLLS), 2);
	struct stage *stage = p->stage;
	pthread_t foreign;
	stage->roots = hold_marking_up;
	uint32_t count = fill_with_live(stage, all, 512);
	stage_collect(stage);
	CHECK_EQ(try_open(all[count].owner, 508), CH_E_FULL);
	p->dropped = all[0].owner.bits;
	CHECK_EQ(pthread_create(&foreign, NULL, drop_during_marking, p), 0);
	atomic_store(&p->step, 1);
	stage_collect(stage);
	CHECK_EQ(pthread_join(foreign, NULL), 0);
	if (!atomic_load(&stage->heap->dead_bytes))
		FAIL("a full pool: a cycle forgot what was released while it ran");
	end_play(p);
}

/* --- requests that no cycle served --- */

/* Invalidates code until the library asks the vm for a cycle. */
static void ask_for_a_cycle(struct stage *stage)
{
	static struct method m;
	enum { BYTES = 2000 };
	uint64_t most = stage->config.pool_bytes / 2 / BYTES;
	method_new(stage, &m, "much");
	for (uint64_t i = 0; !stage->wanted; i++) {
		struct emitter e;
		struct ch_open open = {.owner = m.owner, .hot_bytes = BYTES};
		if (i == most)
			FAIL("half of the pool is garbage, and nobody asks");
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_filler(&e, BYTES - CODE_RETURN_BYTES);
		emit_ret(&e);
		method_commit(&e, &m);
		method_invalidate(&m);
	}
	CHECK_EQ(stage->wanted, 1);
	ch_thread_poll();
	CHECK_EQ(stage->wanted, 1);
}

TEST(request_that_a_cycle_given_up_did_not_serve_is_told_again)
{
	struct play *p = new_play(stage_new(STAGE_HOST), 64);
	struct stage *stage = p->stage;
	struct ch_marker *marker;
	ask_for_a_cycle(stage);
	uint64_t dead = stage->heap->dead_bytes, opened = stage->heap->bytes_since_cycle;
	CHECK(dead && opened);
	CHECK_EQ(ch_mark_begin(stage->heap, &marker), CH_OK);
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	ch_thread_poll();
	CHECK_EQ(stage->wanted, 2);
	/* The reasons for the request are there as before. */
	CHECK_EQ(stage->heap->dead_bytes, dead);
	CHECK_EQ(stage->heap->bytes_since_cycle, opened);
	stage_collect(stage);
	ch_thread_poll();
	CHECK_EQ(stage->wanted, 2);
	CHECK(stage->heap->dead_bytes < dead);
	end_play(p);
}

static void run_on(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	atomic_store(&p->step, 1);
	while (atomic_load(&p->step) != 2)
		usleep(100);
}

TEST(request_of_a_cycle_that_found_a_thread_running_is_told_again)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	stage->config.stop_wait_ms = 10;
	struct play *p = new_play(stage, 64);
	struct stage_thread t;
	ask_for_a_cycle(stage);
	stage_spawn(stage, &t, run_on, p);
	stage_wait(&p->step, 1);
	CHECK_EQ(stage_try_collect(stage), CH_E_BUSY);
	CHECK_EQ(stage->wanted, 1);
	ch_thread_poll();
	CHECK_EQ(stage->wanted, 2);
	atomic_store(&p->step, 2);
	stage_join(&t);
	end_play(p);
}

/* --- a pool full of live code --- */

static void ask_in_vain(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct method m;
	come_to_world(p);
	method_new(stage, &m, "in vain");
	for (unsigned i = 0; i < p->blocks_each; i++) {
		CHECK_EQ(try_open(m.owner, 508), CH_E_FULL);
		ch_thread_poll();
		serve_request(p);
	}
	go_from_world(p);
}

EVERY_DRIVER(s30_pool_full_of_live_code_does_not_collect_for_ever)
{
	static struct method all[2048];
	struct play *p = new_play(stage, 4);
	struct stage_thread threads[THREADS];
	p->blocks_each = 5000;
	fill_with_live(stage, all, 2048);
	uint64_t before = stage_stats(stage).cycles;
	ch_thread_park();
	for (int i = 0; i < THREADS; i++)
		stage_spawn(stage, &threads[i], ask_in_vain, p);
	for (int i = 0; i < THREADS; i++)
		stage_join(&threads[i]);
	ch_thread_unpark();
	struct ch_stats stats = stage_stats(stage);
	uint64_t cycles = stats.cycles - before;
	printf("%llu opens without room, %llu cycles\n", (unsigned long long)stats.opens_full,
	       (unsigned long long)cycles);
	CHECK_EQ(stats.opens_full, THREADS * p->blocks_each + 1);
	CHECK_EQ(stage->space, 0);
	if (cycles > stats.opens_full / 100)
		FAIL("a pool full of live code: %llu cycles", (unsigned long long)cycles);
	end_play(p);
}

/* --- invalidation of each kind --- */

/* A method for each kind of invalidation: an entry that becomes a jump, a guarded entry, a branch
 * that leads in, a patch point in a frame, an assumption, an owner. */
struct kinds {
	struct stage *stage;
	struct method source, target, patched, guarded, pointed, assumed, released, at_once, rest;
	struct ch_assumption fact;
	bool discards;
	size_t freed, kept;
};

static void build_entry(struct stage *stage, struct method *m, enum ch_entry entry)
{
	struct emitter e;
	method_new(stage, m, "entered");
	struct ch_open open = {.owner = m->owner, .hot_bytes = 64, .entry = entry, .user = m};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	if (entry == CH_ENTRY_GUARD) {
		emit_guard_test(&e, e.code.guard, CODE_ANSWER_BYTES);
		emit_answer(&e, 4);
	}
	emit_answer(&e, 5);
	method_commit(&e, m);
}

/* Called by code with a patch point behind the call. */
static uint64_t invalidate_in_callee(void *arg)
{
	struct kinds *k = arg;
	ch__os_fail_at(1, true);
	if (k->discards) {
		enum ch_status status = ch_vm_discard(k->stage->heap, NULL, &k->freed, &k->kept);
		CHECK(status == CH_OK || status == CH_E_BUSY || status == CH_E_MEMORY);
		ch__os_fail_at(0, false);
		return 1;
	}
	method_invalidate(&k->target);
	method_invalidate(&k->patched);
	method_invalidate(&k->guarded);
	method_invalidate(&k->pointed);
	size_t broken;
	CHECK_EQ(ch_assumption_break(k->fact, &broken), CH_OK);
	CHECK_EQ(broken, 1);
	CHECK_EQ(ch_owner_release(k->released.owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_owner_release(k->at_once.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	ch__os_fail_at(0, false);
	return 1;
}

static void build_pointed(struct stage *stage, struct method *m)
{
	struct emitter e;
	method_new(stage, m, "pointed");
	method_open(&e, m);
	emit_frame(&e);
	emit_call_c(&e, (const void *)invalidate_in_callee);
	const void *point = emit_point(&e);
	emit_add(&e, 1);
	emit_frame_end(&e);
	emit_ret(&e);
	const void *exit = emit_here(&e);
	emit_add(&e, 100);
	emit_frame_end(&e);
	emit_ret(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, exit, NULL), CH_OK);
	method_commit(&e, m);
}

static void build_assumed(struct kinds *k)
{
	struct emitter e;
	CHECK_EQ(ch_assumption_create(k->stage->vm, &k->fact), CH_OK);
	method_new(k->stage, &k->assumed, "assumed");
	method_open(&e, &k->assumed);
	CHECK_EQ(ch_block_assume(e.code.block, k->fact), CH_OK);
	emit_answer(&e, 6);
	method_commit(&e, &k->assumed);
}

static void fill_the_rest(struct stage *stage, struct method *m)
{
	method_new(stage, m, "filler");
	stage_fill(m->owner);
	/* A hole of a granule holds no block. */
	CHECK(stage_stats(stage).largest_free_bytes_now <= CH__GRANULE_BYTES);
}

static const void *entry_of(const struct method *m)
{
	struct ch_info info = block_info(m->block);
	return info.entry;
}

static void invalidate_each_kind(struct stage *stage, bool discards)
{
	stage->counts_only = true;
	struct play *p = new_play(stage, 4);
	struct kinds k = {.stage = stage, .discards = discards};
	stage->hit = stage_no_target;
	method_jumper(stage, &k.source, "source");
	method_constant(stage, &k.target, "target", 2);
	method_link(&k.source, 0, &k.target);
	build_entry(stage, &k.patched, CH_ENTRY_PATCH);
	build_entry(stage, &k.guarded, CH_ENTRY_GUARD);
	build_pointed(stage, &k.pointed);
	build_assumed(&k);
	method_constant(stage, &k.released, "released", 8);
	method_constant(stage, &k.at_once, "released at once", 9);
	fill_the_rest(stage, &k.rest);
	CHECK_EQ(method_call(&k.guarded, NULL), 4);
	const void *patched = entry_of(&k.patched), *guarded = entry_of(&k.guarded);
	/* 1 by the call, 100 by the exit; the point itself was diverted. */
	CHECK_EQ(method_call(&k.pointed, &k), 101);
	CHECK_EQ(method_call(&k.source, NULL), STAGE_FALLBACK);
	CHECK_EQ(stage_enter(&patched, NULL), STAGE_FALLBACK);
	CHECK_EQ(stage_enter(&guarded, NULL), 5);
	struct method *gone[] = {&k.target, &k.patched, &k.guarded, &k.pointed, &k.assumed};
	for (int i = 0; i < 5; i++) {
		CHECK(method_has_fallback(gone[i]));
		CHECK_EQ(method_call(gone[i], NULL), STAGE_FALLBACK);
	}
	CHECK(method_has_fallback(&k.released) && method_has_fallback(&k.at_once));
	if (!discards)
		CHECK(!method_is_known(&k.at_once));
	stage_check(stage);
	stage_collect(stage);
	stage_check(stage);
	end_play(p);
}

EVERY_DRIVER(s27_each_kind_of_invalidation_needs_no_room_and_no_memory)
{
	invalidate_each_kind(stage, false);
}

EVERY_DRIVER(s27_discard_of_everything_needs_no_room_and_no_memory)
{
	invalidate_each_kind(stage, true);
}

/* --- opens that collect, beside each other --- */

enum { SHARERS = 4, SHARED_MIB = 1 << 20, LIVE_PART = 8, SHARED_MOST = 2048, SHARED_LEAST = 64,
       KEPT_EACH = SHARED_MIB / LIVE_PART / SHARERS / ((SHARED_MOST + SHARED_LEAST) / 2),
       OPENS_A_MS = 10 };

struct sharer {
	struct stage *stage;
	unsigned number, opens;
	struct method kept[KEPT_EACH];
};

static void open_or_fail(struct emitter *e, struct sharer *s, struct method *m, uint32_t bytes)
{
	struct ch_open open = {.owner = m->owner,
			       .hot_bytes = bytes,
			       .user = m,
			       .flags = CH_OPEN_MAY_COLLECT};
	enum ch_status status = emit_open_as(e, &open);
	if (status != CH_OK)
		FAIL("open %u of thread %u, %u bytes: %s (%s)", s->opens, s->number, bytes,
		     ch_status_text(status), ch_why());
}

static void open_beside_others(struct stage *stage, void *arg)
{
	struct sharer *s = arg;
	struct test_random random = test_random_new();
	random.state += s->number;
	for (; s->opens < OPENS_A_MS * storm_ms_of(5000); s->opens++) {
		struct method *m = &s->kept[test_random_below(&random, KEPT_EACH)];
		uint32_t bytes = SHARED_LEAST + (uint32_t)test_random_below(
							&random, SHARED_MOST - SHARED_LEAST);
		struct emitter e;
		if (m->owner.bits)
			method_drop(stage, m);
		method_new(stage, m, "shared");
		open_or_fail(&e, s, m, bytes);
		emit_answer(&e, s->number);
		e.at = bytes;
		method_commit(&e, m);
		CHECK_EQ(method_call(m, NULL), s->number);
		memset(&e, 0, sizeof e);
		stage_poll(stage);
	}
}

/* An eighth of the pool is alive. The rest was dropped, or made a moment ago. A run with
 * CODEHEAP_TEST_STORM_MS=5000 has 200,000 opens, different for each CODEHEAP_TEST_SEED. */
THREADED_DRIVER(opens_that_collect_find_room_beside_each_other)
{
	struct stage_thread threads[SHARERS];
	struct sharer *all = calloc(SHARERS, sizeof *all);
	CHECK(all);
	stage->config.pool_bytes = SHARED_MIB;
	stage->counts_only = true;
	stage_start(stage);
	ch_thread_park();
	for (unsigned i = 0; i < SHARERS; i++) {
		all[i] = (struct sharer){.stage = stage, .number = i};
		stage_spawn(stage, &threads[i], open_beside_others, &all[i]);
	}
	for (unsigned i = 0; i < SHARERS; i++)
		stage_join(&threads[i]);
	ch_thread_unpark();
	struct ch_stats stats = stage_stats(stage);
	printf("%llu blocks, %llu cycles\n", (unsigned long long)stats.blocks_committed,
	       (unsigned long long)stats.cycles);
	CHECK(stats.cycles > 0);
	CHECK_EQ(stats.opens_full, 0);
	stage_end(stage);
	free(all);
}
