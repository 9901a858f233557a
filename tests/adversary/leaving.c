/* SPDX-License-Identifier: MIT
 * leaving.c: frames of code left otherwise than by a return. C++ exceptions, longjmp and
 * cancellation pass blocks that were invalidated meanwhile, and leave the callback of a stub, in
 * which another thread may be, too. Blocks that catch exceptions are tested in
 * tests/api/exceptions.cc. */
#define _GNU_SOURCE
#include "tests/support/stage.h"
#include "tests/support/throwing.h"

#include <sched.h>
#include <setjmp.h>

enum way { BY_THROW, BY_LONGJMP, BY_CANCEL };
enum { NUMBER = 7 };

struct play {
	struct stage *stage;
	struct method m, outer, target;
	enum way way;
	_Atomic(int) inside, has_left, may_go, answered;
	uint64_t result;
	unsigned depth;
	jmp_buf back;
};

/* Sanitizers lose a cancelled thread: the stack stays poisoned, the locks unseen. */
static void skip_where_cancellation_is_lost(void)
{
	const char *sanitizer = getenv("CODEHEAP_TEST_SAN");
	if (sanitizer && *sanitizer)
		skip("a sanitizer loses a cancelled thread");
}

static void leave(struct play *p)
{
	switch (p->way) {
	case BY_THROW:
		throwing_throw(NUMBER);
	case BY_LONGJMP:
		longjmp(p->back, 1);
	case BY_CANCEL:
		CHECK_EQ(pthread_cancel(pthread_self()), 0);
		pthread_testcancel();
		FAIL("a cancelled thread went on");
	}
}

/* Enters p->m and comes back as its frames are left. A cancellation does not come back. */
static uint64_t enter_m(void *arg)
{
	struct play *p = arg;
	return method_call(&p->m, p);
}

static uint64_t enter_and_catch(struct play *p)
{
	if (p->way == BY_LONGJMP)
		return setjmp(p->back) ? THROWING_CAUGHT + NUMBER : enter_m(p);
	return throwing_catch(enter_m, p);
}

static void end_cancelled(void *arg)
{
	struct play *p = arg;
	atomic_store(&p->has_left, 1);
	stage_detach(p->stage);
}

static void *be_cancelled(void *arg)
{
	struct play *p = arg;
	stage_attach(p->stage);
	throwing_guard(enter_m, p, end_cancelled);
	return NULL;
}

static void join_cancelled(struct play *p, pthread_t thread)
{
	void *result;
	ch_thread_park();
	CHECK_EQ(pthread_join(thread, &result), 0);
	ch_thread_unpark();
	CHECK(result == PTHREAD_CANCELED);
	/* The destructor of a frame below the code ran: the unwinder came through. */
	CHECK_EQ(atomic_load(&p->has_left), 1);
}

static void run_cancelled(struct play *p)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, be_cancelled, p), 0);
	join_cancelled(p, thread);
}

/* --- over invalidated frames --- */

static uint64_t spoil_and_leave(void *arg)
{
	struct play *p = arg;
	method_invalidate(&p->m);
	method_drop(p->stage, &p->m);
	for (int i = 0; i < 2; i++) {
		stage_collect(p->stage);
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	}
	leave(p);
	return 0;
}

static uint64_t go_deeper(void *arg)
{
	struct play *p = arg;
	if (p->depth--)
		return method_call(&p->m, p);
	return spoil_and_leave(p);
}

static void build_spoiled(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m, "spoiled", (void *)go_deeper);
}

static void enter_apart(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	CHECK_EQ(enter_and_catch(p), THROWING_CAUGHT + NUMBER);
}

/* The built block is invalidated below its own frames, and dies when they were left. */
static void build_and_leave(struct stage *stage, enum way way,
			    void (*build)(struct stage *, void *))
{
	struct play *p = stage_play(stage, sizeof *p);
	p->way = way;
	p->depth = 3; /* of the spoiled block's frames */
	stage_apart(stage, build, p);
	if (way == BY_CANCEL)
		run_cancelled(p);
	else
		stage_apart(stage, enter_apart, p);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	CHECK_EQ(stage_stats(stage).threads_now, 1);
	stage_end(stage);
}

EVERY_DRIVER(exception_passes_frames_of_an_invalidated_block)
{
	build_and_leave(stage, BY_THROW, build_spoiled);
}

EVERY_DRIVER(longjmp_passes_frames_of_an_invalidated_block)
{
	build_and_leave(stage, BY_LONGJMP, build_spoiled);
}

EVERY_DRIVER(cancellation_passes_frames_of_an_invalidated_block)
{
	skip_where_cancellation_is_lost();
	build_and_leave(stage, BY_CANCEL, build_spoiled);
}

/* --- out of branch_hit --- */

/* The first thread leaves when a second thread is inside the same stub. The second thread answers
 * when the first is gone and everything that needs a lock is done. */
static struct ch_block leave_or_answer(struct stage *stage, struct ch_branch branch, void *user,
				       struct ch_regs *regs)
{
	struct play *p = stage->user;
	(void)branch, (void)user, (void)regs;
	if (atomic_fetch_add(&p->inside, 1) == 0) {
		stage_wait(&p->inside, 2);
		leave(p);
	}
	stage_wait(&p->may_go, 1);
	atomic_fetch_add(&p->answered, 1);
	return p->target.block;
}

static void build_caller(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_callee(stage, &p->m, "caller");
	method_constant(stage, &p->target, "target", 2);
}

static void take_and_leave(struct stage *stage, void *arg)
{
	struct play *p = arg;
	CHECK_EQ(enter_and_catch(p), THROWING_CAUGHT + NUMBER);
	atomic_store(&p->has_left, 1);
	stage_wait(&p->answered, 1);
	/* The answer is linked behind the callback. Before, this thread would be asked. */
	while (!stage_stats(stage).branches_linked)
		sched_yield();
	/* This thread meets the stub like any other thread. */
	CHECK_EQ(method_call(&p->m, p), 3);
}

static void take_and_stay(struct stage *stage, void *arg)
{
	struct play *p = arg;
	stage_wait(&p->inside, 1);
	p->result = method_call(&p->m, p);
	(void)stage;
}

static void use_every_lock(struct stage *stage, void *arg)
{
	static uint8_t stack[4096];
	struct ch_fiber *fiber;
	struct method m;
	(void)arg;
	method_constant(stage, &m, "meanwhile", 4);
	CHECK_EQ(method_call(&m, NULL), 4);
	method_invalidate(&m);
	method_drop(stage, &m);
	stage_collect(stage);
	CHECK_EQ(ch_fiber_attach(stage->heap, stack, stack + sizeof stack, &fiber), CH_OK);
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	CHECK_EQ(ch_sink_flush(stage->heap), CH_OK);
	stage_check(stage);
}

static void leave_callback(struct stage *stage, enum way way)
{
	struct play *p = stage_play(stage, sizeof *p);
	struct stage_thread leaver, stayer;
	pthread_t cancelled;
	p->way = way;
	stage->hit = leave_or_answer;
	stage->counts_only = true;
	stage_apart(stage, build_caller, p);
	if (way == BY_CANCEL)
		CHECK_EQ(pthread_create(&cancelled, NULL, be_cancelled, p), 0);
	else
		stage_spawn(stage, &leaver, take_and_leave, p);
	stage_spawn(stage, &stayer, take_and_stay, p);
	stage_wait(&p->has_left, 1);
	stage_apart(stage, use_every_lock, NULL);
	CHECK_EQ(atomic_load(&p->answered), 0);
	CHECK_EQ(stage_stats(stage).branches_linked, 0);
	atomic_store(&p->may_go, 1);
	stage_join(&stayer);
	CHECK_EQ(p->result, 3);
	if (way == BY_CANCEL)
		join_cancelled(p, cancelled);
	else
		stage_join(&leaver);
	CHECK_EQ(atomic_load(&p->inside), 2);
	CHECK_EQ(method_call(&p->m, p), 3);
	CHECK_EQ(stage_stats(stage).threads_now, 1);
}

EVERY_DRIVER(exception_leaves_branch_hit_while_another_thread_is_in_it)
{
	leave_callback(stage, BY_THROW);
}

EVERY_DRIVER(longjmp_leaves_branch_hit_while_another_thread_is_in_it)
{
	leave_callback(stage, BY_LONGJMP);
}

EVERY_DRIVER(cancellation_leaves_branch_hit_while_another_thread_is_in_it)
{
	skip_where_cancellation_is_lost();
	leave_callback(stage, BY_CANCEL);
}

/* The callback leaves through the source's frame, with the source invalidated and dropped. */
static struct ch_block spoil_source(struct stage *stage, struct ch_branch branch, void *user,
				    struct ch_regs *regs)
{
	struct play *p = stage->user;
	(void)branch, (void)user, (void)regs;
	spoil_and_leave(p);
	return (struct ch_block){0};
}

static void leave_spoiled_source(struct stage *stage, enum way way)
{
	stage->hit = spoil_source;
	build_and_leave(stage, way, build_caller);
}

EVERY_DRIVER(exception_leaves_a_callback_that_spoiled_its_source)
{
	leave_spoiled_source(stage, BY_THROW);
}

EVERY_DRIVER(longjmp_leaves_a_callback_that_spoiled_its_source)
{
	leave_spoiled_source(stage, BY_LONGJMP);
}

EVERY_DRIVER(cancellation_leaves_a_callback_that_spoiled_its_source)
{
	skip_where_cancellation_is_lost();
	leave_spoiled_source(stage, BY_CANCEL);
}

/* --- out of callbacks in callbacks, again and again --- */

static struct ch_block take_another(struct stage *stage, struct ch_branch branch, void *user,
				    struct ch_regs *regs)
{
	struct play *p = stage->user;
	(void)branch, (void)user, (void)regs;
	if (p->depth++ % 5 == 4)
		leave(p);
	CHECK(method_call(p->depth % 2 ? &p->outer : &p->m, p) == 0);
	return (struct ch_block){0};
}

static void build_two(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_callee(stage, &p->m, "one");
	method_callee(stage, &p->outer, "other");
}

static void leave_nested(struct stage *stage, enum way way)
{
	struct play *p = stage_play(stage, sizeof *p);
	p->way = way;
	stage->hit = take_another;
	stage_apart(stage, build_two, p);
	for (int i = 0; i < 200; i++) {
		CHECK_EQ(enter_and_catch(p), THROWING_CAUGHT + NUMBER);
		CHECK_EQ(p->depth, 5 * (i + 1));
		if (i % 20 == 0)
			stage_collect(stage);
	}
	CHECK_EQ(stage->hits, 1000);
	CHECK_EQ(stage_stats(stage).branch_hits, 1000);
}

EVERY_DRIVER(exceptions_leave_callbacks_in_callbacks)
{
	leave_nested(stage, BY_THROW);
}

EVERY_DRIVER(longjmps_leave_callbacks_in_callbacks)
{
	leave_nested(stage, BY_LONGJMP);
}
