/* SPDX-License-Identifier: MIT
 * edges.c: releases of owners while other threads attach edges to the owners' blocks, or open
 * blocks for the owners and fork. A granted edge holds its block. In a child of fork no place is
 * taken without a block. A block leaves an assumption while another thread makes a second block. */
#define _GNU_SOURCE
#include "codeheap/life/life.h"
#include "pages/inner.h"
#include "tests/support/stage.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

enum { LEAVES = 2 };

struct play {
	struct stage *stage;
	struct method holder;
	struct ch_assumption fact; /* the holder and `other` rely on it */
	struct ch_owner owner; /* of the leaves */
	struct ch_block leaves[LEAVES];
	struct ch_code open;
	_Atomic(int) step, over;
	_Atomic(unsigned) opened;
	_Atomic(int) stays, spans; /* enum stays; whether the thread had a span */
	struct ch_stats before;
	uint32_t hot_bytes;
	unsigned flags; /* of the first leaf's open */
};

static struct play *new_play(struct stage *stage)
{
	stage->counts_only = true;
	return stage_play(stage, sizeof(struct play));
}

static struct ch_block make_leaf_as(struct ch_owner owner, unsigned flags)
{
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 16, .flags = flags};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 7);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static struct ch_block make_leaf(struct ch_owner owner)
{
	return make_leaf_as(owner, 0);
}

static void attach_edge(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	method_new(stage, &p->holder, "holder");
	method_open(&e, &p->holder);
	atomic_store(&p->step, 1);
	CHECK_EQ(ch_edge_attach(e.code.block, p->leaves[0]), CH_OK);
	atomic_store(&p->step, 2);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* A release locks the owner's list while it looks for edges and kills blocks. Meanwhile no thread
 * attaches a further edge. */
TEST(edge_is_not_attached_while_a_release_looks_for_edges)
{
	struct play *p = new_play(stage_new(STAGE_POLLS));
	struct stage_thread t;
	CHECK_EQ(ch_owner_create(p->stage->vm, "leaf", stage_fallback, NULL, &p->owner), CH_OK);
	p->leaves[0] = make_leaf(p->owner);
	struct ch__owner *owner = ch__owner_at(p->stage->heap, ch__handle_index(p->owner.bits));
	CHECK(!atomic_exchange(&owner->busy, 1)); /* by a thread that stands still */
	stage_spawn(p->stage, &t, attach_edge, p);
	while (!atomic_load(&p->step))
		stage_sleep(1);
	for (int i = 0; i < 100 && atomic_load(&p->step) != 2; i++)
		stage_sleep(1);
	if (atomic_load(&p->step) == 2)
		FAIL("edges: one was attached beside a release");
	atomic_store(&owner->busy, 0);
	stage_join(&t);
	CHECK_EQ(atomic_load(&p->step), 2);
	stage_end(p->stage);
}

static void build_holder(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	CHECK_EQ(ch_owner_create(stage->vm, "leaf", stage_fallback, NULL, &p->owner), CH_OK);
	p->leaves[0] = make_leaf_as(p->owner, p->flags);
	p->leaves[1] = make_leaf(p->owner);
	method_new(stage, &p->holder, "holder");
	method_open(&e, &p->holder);
	CHECK_EQ(ch_edge_attach(e.code.block, p->leaves[0]), CH_OK);
	emit_answer(&e, 1);
	method_commit(&e, &p->holder);
}

static void release_under_an_edge(unsigned flags)
{
	struct play *p = new_play(stage_new(STAGE_POLLS));
	p->flags = flags;
	stage_apart(p->stage, build_holder, p);
	CHECK_EQ(ch_owner_release(p->owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(block_is_known(p->leaves[0]));
	CHECK(!block_is_known(p->leaves[1]));
	method_drop(p->stage, &p->holder);
	stage_collect(p->stage);
	CHECK(!block_is_known(p->leaves[0]));
	stage_end(p->stage);
}

TEST(edge_holds_its_block_when_the_owner_is_released_at_once)
{
	release_under_an_edge(0);
	release_under_an_edge(CH_OPEN_KEPT);
}

static void build_both(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	CHECK_EQ(ch_owner_create(stage->vm, "both", stage_fallback, NULL, &p->owner), CH_OK);
	p->leaves[0] = make_leaf(p->owner);
	struct ch_open open = {.owner = p->owner, .hot_bytes = 16};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_edge_attach(e.code.block, p->leaves[0]), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	p->leaves[1] = e.code.block;
}

TEST(edge_from_a_block_of_the_same_owner_holds_until_a_collection)
{
	struct play *p = new_play(stage_new(STAGE_POLLS));
	stage_apart(p->stage, build_both, p);
	CHECK_EQ(ch_owner_release(p->owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(block_is_known(p->leaves[0]));
	CHECK(!block_is_known(p->leaves[1]));
	stage_collect(p->stage);
	CHECK(!block_is_known(p->leaves[0]));
	stage_end(p->stage);
}

/* The owner's end was the end of its immortal block as a root: cycles free the block. */
TEST(edge_alone_holds_an_immortal_block_when_the_owner_is_released_at_once)
{
	release_under_an_edge(CH_OPEN_IMMORTAL);
}

/* The leaf takes the record of the aborted block. */
static void abort_a_target(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e, target;
	struct ch_open open = {.hot_bytes = 16};
	CHECK_EQ(ch_owner_create(stage->vm, "leaf", stage_fallback, NULL, &open.owner), CH_OK);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(emit_open_as(&target, &open), CH_OK);
	CHECK_EQ(ch_edge_attach(e.code.block, target.code.block), CH_OK);
	CHECK_EQ(ch_block_abort(&target.code), CH_OK);
	p->open = e.code;
	p->leaves[0] = make_leaf(open.owner);
	CHECK_EQ((uint32_t)p->leaves[0].bits, (uint32_t)target.code.block.bits);
	CHECK_EQ(ch_blocks_invalidate(p->leaves, 1, NULL), CH_OK);
}

TEST(edge_to_a_block_that_was_aborted_holds_no_other_block)
{
	struct play *p = new_play(stage_new(STAGE_POLLS));
	stage_apart(p->stage, abort_a_target, p);
	stage_collect(p->stage);
	CHECK(!block_is_known(p->leaves[0]));
	CHECK_EQ(ch_block_abort(&p->open), CH_OK);
	stage_end(p->stage);
}

/* --- places of opens that fail --- */

/* As when the owner dies between the call and the place: the place was taken. */
static void open_for_a_dead_owner(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->over)) {
		struct ch_open open = {.size = sizeof open,
				       .owner = p->owner,
				       .hot_bytes = p->hot_bytes,
				       .cold_bytes = 40};
		struct ch_code code;
		CHECK_EQ(ch__block_open(stage->heap, ch__thread_self(stage->heap), &open, &code),
			 CH_E_STALE);
		atomic_fetch_add(&p->opened, 1);
	}
}

enum stays { ASKED, WENT_ON, STAYS };
static struct play *watched;

static bool has_a_span(const struct ch__pool *pool)
{
	for (uint32_t i = 0; i < ch__pool_pages_end(pool); i++)
		if (atomic_load(&pool->pages[i].state) == CH__PAGE_SPAN)
			return true;
	return false;
}

/* On the thread that opens: stays where the thread has a span, outside of regions and of locks
 * that a fork waits for, until main has forked. Main may wait for another lock, so a stay ends. */
static void stay_with_a_span(int signo)
{
	(void)signo;
	int error = errno;
	struct ch_heap *heap = watched->stage->heap;
	bool has_span = has_a_span(heap->pool);
	bool stays = has_span && !atomic_load(&ch__thread_self(heap)->inside) &&
		     !ch__lock_is_mine(&heap->records) &&
		     !ch__lock_is_mine(&heap->pool->inner->lock);
	atomic_fetch_or(&watched->spans, has_span);
	atomic_store(&watched->stays, stays ? STAYS : WENT_ON);
	for (int i = 0; i < 20 && atomic_load(&watched->stays) == STAYS; i++)
		usleep(1000);
	errno = error;
}

/* Returns when the thread stays with a span, or after a second in which the thread never did:
 * ThreadSanitizer holds signals back until the thread waits. */
static void await_a_span(struct play *p, struct stage_thread *t)
{
	for (uint64_t end = now_ns() + UINT64_C(1000000000);
	     now_ns() < end && atomic_load(&p->stays) != STAYS;) {
		atomic_store(&p->stays, ASKED);
		CHECK_EQ(pthread_kill(t->thread, SIGUSR1), 0);
		while (now_ns() < end && atomic_load(&p->stays) == ASKED)
			stage_pause();
	}
}

static void fork_and_compare(struct play *p)
{
	pid_t pid = fork();
	if (!pid) {
		struct ch_stats now = stage_stats(p->stage);
		stage_check(p->stage);
		if (now.pages_now != p->before.pages_now ||
		    now.free_bytes_now != p->before.free_bytes_now)
			FAIL("fork: the child has places that no block has: %llu bytes",
			     (unsigned long long)(p->before.free_bytes_now - now.free_bytes_now));
		_exit(0);
	}
	expect_exit(pid, 0);
}

TEST(s31_child_has_no_span_of_an_open_that_failed)
{
	enum { FORKS = 5, A_SPAN = 100000 };
	skip_if_allocator_forgets_forks();
	struct play *p = new_play(stage_new(STAGE_POLLS));
	struct stage_thread t;
	p->hot_bytes = A_SPAN;
	CHECK_EQ(ch_owner_create(p->stage->vm, "dead", stage_fallback, NULL, &p->owner), CH_OK);
	/* The owner's record stays while the owner has a block. */
	struct emitter e;
	emit_open(&e, p->owner, 16, 0);
	CHECK_EQ(ch_owner_release(p->owner, CH_RELEASE_COLLECT), CH_OK);
	p->before = stage_stats(p->stage);
	watched = p;
	signal(SIGUSR1, stay_with_a_span);
	stage_spawn(p->stage, &t, open_for_a_dead_owner, p);
	for (int i = 0; i < FORKS || !(CH_TSAN || atomic_load(&p->spans)); i++) {
		for (unsigned seen = atomic_load(&p->opened); atomic_load(&p->opened) == seen;)
			stage_pause();
		await_a_span(p, &t);
		fork_and_compare(p);
		atomic_store(&p->stays, WENT_ON);
	}
	atomic_store(&p->over, 1);
	stage_join(&t);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	stage_end(p->stage);
}

static void make_beside(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	method_new(stage, &p->holder, "holder");
	method_open(&e, &p->holder);
	CHECK_EQ(ch_block_assume(e.code.block, p->fact), CH_OK);
	emit_value(&e, 1);
	const void *point = emit_point(&e), *exit = emit_here(&e);
	emit_ret(&e);
	atomic_store(&p->step, 1);
	/* In no order of memory: ThreadSanitizer shall see accesses without the lock as a race. */
	TEST_UNTIL(atomic_load_explicit(&p->step, memory_order_relaxed) == 2);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, exit, NULL), CH_OK);
	method_commit(&e, &p->holder);
}

/* The abort changes the item by which the holder relies on the assumption. The thread that makes
 * the holder reads the list of items without the lock. */
TEST(block_leaves_an_assumption_while_another_thread_attaches_to_a_block_of_it)
{
	struct play *p = new_play(stage_new(STAGE_POLLS));
	struct stage_thread t;
	struct method other;
	struct emitter e;
	CHECK_EQ(ch_assumption_create(p->stage->vm, &p->fact), CH_OK);
	method_new(p->stage, &other, "other");
	method_open(&e, &other);
	CHECK_EQ(ch_block_assume(e.code.block, p->fact), CH_OK);
	stage_spawn(p->stage, &t, make_beside, p);
	stage_wait(&p->step, 1);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	atomic_store_explicit(&p->step, 2, memory_order_relaxed);
	stage_join(&t);
	size_t broken;
	CHECK_EQ(ch_assumption_break(p->fact, &broken), CH_OK);
	CHECK_EQ(broken, 1);
	CHECK_EQ(block_state(p->holder.block), CH_BLOCK_NOTENTRANT);
	stage_end(p->stage);
}
