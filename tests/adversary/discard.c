/* SPDX-License-Identifier: MIT
 * discard.c: discards of everything. Blocks held by stacks are kept and counted, all others freed
 * and counted, by any thread and any number of times. Code compiled afterwards finds a heap like
 * new. A discard in which a thread does not stop is in world.c. */
#include "codeheap/places/places.h"
#include "tests/support/stage.h"

#include <string.h>

enum { THREADS = 8, SOME = 20, MANY = 3000, KEPT_MOST = 8 * THREADS };

struct play {
	struct stage *stage;
	struct method held[3], some[SOME], shared, open, late;
	struct fiber fiber;
	struct emitter emitter;
	_Atomic(int) step, ready, holding, release;
	_Atomic(uint64_t) calls;
	struct ch_vm *other;
	struct ch_owner other_owner;
	struct ch_block other_block;
	struct ch_branch to_some;
	uint64_t result;
};

static struct play *new_play(struct stage *stage)
{
	stage->counts_only = true;
	return stage_play(stage, sizeof(struct play));
}

/* Whether a discard collects. On other drivers the VM's collector collects, later. */
static bool collects(const struct stage *stage)
{
	return stage->driver == STAGE_POLLS || stage->driver == STAGE_SIGNALS;
}

static void discard(struct stage *stage, size_t freed, size_t kept, int line)
{
	size_t f = 77, k = 77;
	CHECK_EQ(ch_vm_discard(stage->heap, NULL, &f, &k), CH_OK);
	size_t all = freed + kept;
	if (!collects(stage)) {
		freed = 0;
		kept = all;
	}
	if (f != freed || k != kept)
		FAIL("line %d: %zu freed, %zu kept; not %zu, %zu", line, f, k, freed, kept);
	if (!collects(stage))
		stage_collect(stage);
}
#define DISCARD(stage, freed, kept) (stage_scrub(), discard((stage), (freed), (kept), __LINE__))

/* --- both counts --- */

static uint64_t park_in_callee(void *arg)
{
	struct play *p = arg;
	atomic_fetch_add(&p->holding, 1);
	stage_wait(&p->release, 1);
	return 2;
}

static uint64_t yield_in_callee(void *arg)
{
	struct play *p = arg;
	fiber_yield(&p->fiber);
	return 3;
}

/* Called from code. The frames of this thread, a parked thread and a fiber hold a block each. */
static uint64_t discard_in_callee(void *arg)
{
	struct play *p = arg;
	struct stage *stage = p->stage;
	DISCARD(stage, SOME, 3);
	CHECK_EQ(stage_stats(stage).blocks_notentrant_now, 3);
	DISCARD(stage, 0, 3);
	DISCARD(stage, 0, 3);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(block_state(p->held[i].block), CH_BLOCK_NOTENTRANT);
	/* A discard leaves an immortal block and an open block alone. */
	CHECK_EQ(block_state(p->shared.block), CH_BLOCK_LIVE);
	CHECK_EQ(block_state(p->emitter.code.block), CH_BLOCK_OPEN);
	return 1;
}

static void build_immortal(struct stage *stage, struct method *m)
{
	struct emitter e;
	method_new(stage, m, "shared exit");
	struct ch_open open = {
		.owner = m->owner, .hot_bytes = 16, .flags = CH_OPEN_IMMORTAL, .user = m};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 9);
	method_commit(&e, m);
}

static void build_all(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->held[0], "discards", (void *)discard_in_callee);
	method_native(stage, &p->held[1], "parks", (void *)park_in_callee);
	method_native(stage, &p->held[2], "yields", (void *)yield_in_callee);
	build_immortal(stage, &p->shared);
	for (int i = 0; i < SOME; i++)
		if (i != 2)
			method_constant(stage, &p->some[i], "some", (uint32_t)i);
	/* Blocks that are not entrant before the discard, and are freed by the discard. */
	method_invalidate(&p->some[0]);
	method_invalidate(&p->some[1]);
	/* A block without an entry: until the discard, only being new keeps the block. */
	struct emitter e;
	method_new(stage, &p->some[2], "new");
	method_open(&e, &p->some[2]);
	emit_ret(&e);
	method_commit_only(&e, &p->some[2]);
}

static void enter_1(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	CHECK_EQ(method_call(&p->held[1], p), 2);
}

static void run_in_fiber(struct fiber *f, void *arg)
{
	struct play *p = arg;
	(void)f;
	p->result = method_call(&p->held[2], p);
}

EVERY_DRIVER(discard_counts_what_it_freed_and_what_stacks_hold)
{
	struct play *p = new_play(stage);
	struct stage_thread t;
	stage_apart(stage, build_all, p);
	method_new(stage, &p->open, "being built");
	method_open(&p->emitter, &p->open);
	stage_spawn(stage, &t, enter_1, p);
	fiber_start(stage, &p->fiber, run_in_fiber, p);
	fiber_resume(&p->fiber);
	stage_wait(&p->holding, 1);
	CHECK_EQ(method_call(&p->held[0], p), 1);
	CHECK_EQ(method_call(&p->held[0], p), STAGE_FALLBACK);
	DISCARD(stage, 1, 2);
	fiber_resume(&p->fiber);
	CHECK_EQ(p->result, 3);
	fiber_end(&p->fiber);
	DISCARD(stage, 1, 1);
	atomic_store(&p->release, 1);
	stage_join(&t);
	DISCARD(stage, 1, 0);
	DISCARD(stage, 0, 0);
	CHECK_EQ(method_call(&p->shared, NULL), 9);
	emit_value(&p->emitter, 4);
	emit_ret(&p->emitter);
	method_commit(&p->emitter, &p->open);
	CHECK_EQ(method_call(&p->open, NULL), 4);
}

/* A block invalidated during the notices of a discard is not counted by the discard. */
static void invalidate_in_notice(struct stage *stage, struct method *m)
{
	struct play *p = stage->user;
	(void)m;
	if (atomic_exchange(&p->step, 1))
		return;
	for (int i = 0; i < 2; i++) {
		method_constant(stage, &p->late, "late", 5);
		method_invalidate(&p->late);
	}
}

static void build_some(struct stage *stage, void *arg)
{
	struct play *p = arg;
	for (int i = 0; i < SOME; i++)
		method_constant(stage, &p->some[i], "some", (uint32_t)i);
}

static void count_own(struct stage *stage)
{
	struct play *p = new_play(stage);
	stage->gone = invalidate_in_notice;
	stage_apart(stage, build_some, p);
	DISCARD(stage, SOME, 0);
	CHECK_EQ(stage_stats(stage).blocks_notentrant_now, 2);
	DISCARD(stage, 2, 0);
}
STAGE_CASE(discard_counts_no_block_that_others_invalidate, _polls, STAGE_POLLS, count_own)
STAGE_CASE(discard_counts_no_block_that_others_invalidate, _signals, STAGE_SIGNALS, count_own)

/* --- by any thread, with eight inside --- */

static uint64_t poll_in_callee(void *arg)
{
	struct play *p = arg;
	ch_thread_poll();
	return p ? 1 : 0;
}

static void compile_runner(struct method *m)
{
	struct emitter e;
	struct ch_open open = {.owner = m->owner, .hot_bytes = 100};
	if (emit_open_as(&e, &open) != CH_OK) {
		ch_thread_poll();
		return;
	}
	emit_frame(&e);
	emit_call_c(&e, (const void *)poll_in_callee);
	emit_frame_end(&e);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	enum ch_status status = ch_owner_set_entry(m->owner, e.code.block);
	CHECK(status == CH_OK || status == CH_E_STATE || status == CH_E_STALE);
}

static void run_for_ever(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct method m;
	method_new(stage, &m, "runner");
	atomic_fetch_add(&p->ready, 1);
	while (!atomic_load(&p->step)) {
		uint64_t result = method_call(&m, p);
		CHECK(result == 1 || result == STAGE_FALLBACK);
		if (result != 1)
			compile_runner(&m);
		atomic_fetch_add(&p->calls, 1);
		ch_thread_poll();
	}
	method_drop(stage, &m);
}

struct sums {
	uint64_t freed, kept, rounds;
};

/* Nothing else invalidates or collects here. So exactly one discard counts each freed block, and
 * the blocks kept by a discard are the blocks not entrant afterwards. */
static void discard_counted(struct stage *stage, struct sums *sums)
{
	size_t freed, kept;
	bool came = stage_cycle_came(stage, ch_vm_discard(stage->heap, NULL, &freed, &kept));
	CHECK_EQ(stage_stats(stage).blocks_notentrant_now, kept);
	/* A thread is inside one block. Old words on its stack may hold a few blocks more. */
	CHECK(came ? kept <= KEPT_MOST : freed == 0);
	sums->freed += freed;
	sums->kept += kept;
	sums->rounds++;
}

static void discard_a_lot(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct sums sums = {0, 0, 0};
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000), last = 0;
	while (now_ns() < end || sums.freed < 3 * THREADS) {
		/* Three discards in a row, then the threads compile again. */
		for (int i = 0; i < 3; i++)
			discard_counted(stage, &sums);
		while (atomic_load(&p->calls) < last + THREADS)
			stage_pause();
		last = atomic_load(&p->calls);
		if (sums.rounds % 32 == 0)
			stage_check(stage);
	}
	CHECK_EQ(stage_stats(stage).blocks_freed, sums.freed);
}

static void discard_under_eight(struct stage *stage)
{
	struct play *p = new_play(stage);
	struct stage_thread threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		stage_spawn(stage, &threads[i], run_for_ever, p);
	stage_wait(&p->ready, THREADS);
	/* The thread that made the heap does not discard. */
	stage_apart(stage, discard_a_lot, p);
	atomic_store(&p->step, 1);
	for (int i = 0; i < THREADS; i++)
		stage_join(&threads[i]);
}
STAGE_CASE(discards_with_eight_threads_inside_count_each_block_once, _polls, STAGE_POLLS,
	   discard_under_eight)
STAGE_CASE(discards_with_eight_threads_inside_count_each_block_once, _signals, STAGE_SIGNALS,
	   discard_under_eight)

/* The runners discard, too. */
static void discard_from_inside(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct method m;
	method_new(stage, &m, "runner");
	atomic_fetch_add(&p->ready, 1);
	for (int round = 0; !atomic_load(&p->step); round++) {
		uint64_t result = method_call(&m, p);
		CHECK(result == 1 || result == STAGE_FALLBACK);
		if (result != 1)
			compile_runner(&m);
		if (round % 16 == 0) {
			size_t freed = SIZE_MAX, kept = SIZE_MAX;
			enum ch_status status = ch_vm_discard(stage->heap, NULL, &freed, &kept);
			bool came = stage_cycle_came(stage, status);
			CHECK(freed <= 10000 && (kept <= KEPT_MOST || !came));
		}
		atomic_fetch_add(&p->calls, 1);
		ch_thread_poll();
	}
	method_drop(stage, &m);
}

static void discard_against_each_other(struct stage *stage)
{
	struct play *p = new_play(stage);
	struct stage_thread threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		stage_spawn(stage, &threads[i], discard_from_inside, p);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	while (now_ns() < end || atomic_load(&p->calls) < 1000)
		stage_pause();
	atomic_store(&p->step, 1);
	for (int i = 0; i < THREADS; i++)
		stage_join(&threads[i]);
	DISCARD(stage, stage_stats(stage).blocks_now, 0);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}
STAGE_CASE(threads_inside_code_discard_it_for_each_other, _polls, STAGE_POLLS,
	   discard_against_each_other)
STAGE_CASE(threads_inside_code_discard_it_for_each_other, _signals, STAGE_SIGNALS,
	   discard_against_each_other)

/* --- afterwards --- */

struct round {
	struct stage *stage;
	uint64_t os_calls;
	struct ch_stats full;
};

static struct method fresh[MANY];

static void compile_many(struct stage *stage, void *arg)
{
	struct round *r = arg;
	ch__os_fail_at(UINT64_MAX, false); /* counts from here on */
	for (int i = 0; i < MANY; i++)
		method_constant(stage, &fresh[i], "one of many", (uint32_t)i);
	r->os_calls = ch__os_failable_calls();
	r->full = stage_stats(stage);
	ch__os_fail_at(0, false);
	for (int i = 0; i < MANY; i += 100)
		CHECK_EQ(method_call(&fresh[i], NULL), i);
}

static void drop_many(struct stage *stage, void *arg)
{
	(void)arg;
	for (int i = 0; i < MANY; i++)
		method_drop(stage, &fresh[i]);
}

EVERY_DRIVER(code_compiled_after_discards_finds_the_heap_like_new)
{
	enum { ROUNDS = 6 };
	new_play(stage);
	struct round rounds[ROUNDS];
	struct ch_stats empty[ROUNDS];
	for (int i = 0; i < ROUNDS; i++) {
		stage_apart(stage, compile_many, &rounds[i]);
		DISCARD(stage, MANY, 0);
		stage_apart(stage, drop_many, NULL);
		/* Frees the owners, and the places that waited for another core sync. */
		stage_collect(stage);
		stage_collect(stage);
		empty[i] = stage_stats(stage);
		stage_check(stage);
		CHECK_EQ(empty[i].blocks_now, 0);
		CHECK_EQ(empty[i].owners_now, 0);
		CHECK_EQ(empty[i].code_bytes_now, 0);
		CHECK_EQ(empty[i].quarantine_bytes_now, 0);
		CHECK_EQ(empty[i].pages_now, 0);
	}
	for (int i = 1; i < ROUNDS; i++) {
		/* No more system calls than in a heap never used before. */
		if (rounds[i].os_calls > rounds[0].os_calls)
			FAIL("round %d: %llu calls of the system, not %llu", i,
			     (unsigned long long)rounds[i].os_calls,
			     (unsigned long long)rounds[0].os_calls);
		CHECK(rounds[i].full.pages_now <= rounds[0].full.pages_now + 1);
		CHECK_EQ(rounds[i].full.code_bytes_now, rounds[0].full.code_bytes_now);
		CHECK(empty[i].committed_bytes_now <= empty[0].committed_bytes_now);
	}
	/* Side memory grows by the tombstones of freed blocks, up to 65,536 tombstones. */
	size_t kept = MANY * sizeof(struct ch__tombstone) + CH__TABLE_STEP_BYTES;
	for (int i = 2; i < ROUNDS; i++)
		CHECK(empty[i].metadata_bytes_now <= empty[i - 1].metadata_bytes_now + kept);
}

/* --- nothing to free --- */

static uint64_t discard_and_compile(void *arg)
{
	struct play *p = arg;
	struct stage *stage = p->stage;
	for (int i = 0; i < 30; i++)
		DISCARD(stage, 0, 1);
	unsigned wanted = atomic_load(&stage->wanted);
	for (int i = 0; i < 100; i++)
		ch_thread_poll();
	/* Blocks that cannot be freed cause no further request. */
	CHECK(atomic_load(&stage->wanted) <= wanted + 1);
	method_constant(stage, &p->late, "late", 5);
	CHECK_EQ(method_call(&p->late, NULL), 5);
	return 6;
}

static void build_discarder(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->held[0], "discards", (void *)discard_and_compile);
}

EVERY_DRIVER(discards_with_nothing_to_free_end_and_compiling_goes_on)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_discarder, p);
	CHECK_EQ(method_call(&p->held[0], p), 6);
}

/* --- discard of a single instance --- */

static struct ch_block hit_other(void *user, struct ch_branch branch, void *branch_user,
				 struct ch_regs *regs)
{
	struct play *p = user;
	(void)branch, (void)branch_user, (void)regs;
	atomic_fetch_add(&p->holding, 1);
	return (struct ch_block){0};
}

/* Emits code that calls a block of the first instance by a branch, and polls. */
static void build_other(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	(void)stage;
	CHECK_EQ(ch_owner_create(p->other, "other instance", stage_fallback, NULL, &p->other_owner),
		 CH_OK);
	emit_open(&e, p->other_owner, 100, 1);
	emit_frame(&e);
	emit_call_c(&e, (const void *)poll_in_callee);
	p->to_some = emit_attach(&e, emit_site_call(&e), CH_CALL, NULL);
	emit_frame_end(&e);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	p->other_block = e.code.block;
	CHECK_EQ(ch_owner_set_entry(p->other_owner, p->other_block), CH_OK);
}

static void run_other(struct stage *stage, void *arg)
{
	struct play *p = arg;
	const void *const *cell = ch_owner_cell(p->other_owner);
	(void)stage;
	atomic_fetch_add(&p->ready, 1);
	while (!atomic_load(&p->step)) {
		uint64_t result = stage_enter(cell, p);
		CHECK(result == 7 || result == STAGE_FALLBACK);
		atomic_fetch_add(&p->calls, 1);
		ch_thread_poll();
	}
}

static void build_linked(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_constant(stage, &p->some[0], "linked", 7);
	CHECK_EQ(ch_branch_link(p->to_some, p->some[0].block), CH_OK);
}

static void discard_one(struct stage *stage)
{
	enum { RUNNERS = 2, ROUNDS = 30 };
	struct play *p = new_play(stage);
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = hit_other};
	struct stage_thread threads[RUNNERS];
	size_t left = 0; /* a runner's stack may hold a block longer */
	CHECK_EQ(ch_vm_attach(stage->heap, &ops, p, &p->other), CH_OK);
	stage_apart(stage, build_other, p);
	for (int i = 0; i < RUNNERS; i++)
		stage_spawn(stage, &threads[i], run_other, p);
	stage_wait(&p->ready, RUNNERS);
	for (int round = 0; round < ROUNDS; round++) {
		stage_apart(stage, build_linked, p);
		uint64_t calls = atomic_load(&p->calls);
		while (atomic_load(&p->calls) < calls + RUNNERS)
			stage_pause();
		size_t freed, kept;
		stage_cycle_came(stage, ch_vm_discard(stage->heap, stage->vm, &freed, &kept));
		CHECK_EQ(freed + kept, left + 1);
		left = kept;
		/* The other instance's code is in place and runs, its branch at the stub. */
		CHECK_EQ(block_state(p->other_block), CH_BLOCK_LIVE);
		CHECK(*ch_owner_cell(p->other_owner) != stage_fallback);
		int hits = atomic_load(&p->holding);
		while (atomic_load(&p->holding) < hits + RUNNERS)
			stage_pause();
		method_drop(stage, &p->some[0]);
		stage_cycle_came(stage, ch_vm_discard(stage->heap, stage->vm, &freed, &kept));
		CHECK_EQ(freed + kept, left);
		left = kept;
		stage_check(stage);
	}
	atomic_store(&p->step, 1);
	for (int i = 0; i < RUNNERS; i++)
		stage_join(&threads[i]);
	CHECK_EQ(stage_stats(stage).blocks_invalidated, ROUNDS);
	CHECK_EQ(ch_vm_detach(p->other), CH_OK);
}
STAGE_CASE(discard_of_one_instance_leaves_the_other_running, _polls, STAGE_POLLS, discard_one)
STAGE_CASE(discard_of_one_instance_leaves_the_other_running, _signals, STAGE_SIGNALS, discard_one)
