/* SPDX-License-Identifier: MIT
 * threads.c: many threads at once: discards while threads run, threads that come and go during
 * cycles, lookups and walks from signal handlers while code is freed, processes that lack system
 * calls. */
#define _GNU_SOURCE
#include "codeheap/look.h"
#include "pages/write.h"
#include "tests/support/refuse_call.h"
#include "tests/support/stage.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum { THREADS = 8 };

struct play {
	struct stage *stage;
	struct method m[THREADS];
	struct method all[64];
	_Atomic(int) step, ready, compiled;
	_Atomic(uint64_t) calls;
};

static struct play *new_play(struct stage *stage)
{
	stage->counts_only = true;
	return stage_play(stage, sizeof(struct play));
}

/* --- 29 --- */

static uint64_t poll_in_callee(void *arg)
{
	const struct play *p = arg;
	stage_poll(p->stage);
	return 1;
}

/* Compiles the method anew after each discard. */
static void compile_and_run(struct stage *stage, void *arg)
{
	struct play *p = arg;
	int self = atomic_fetch_add(&p->ready, 1);
	struct method *m = &p->m[self];
	method_native(stage, m, "runner", (void *)poll_in_callee);
	atomic_fetch_add(&p->compiled, 1);
	while (!atomic_load(&p->step)) {
		uint64_t result = method_call(m, p);
		atomic_fetch_add(&p->calls, 1);
		CHECK(result == 1 || result == STAGE_FALLBACK);
		if (result == 1)
			continue;
		struct emitter e;
		struct ch_open open = {.owner = m->owner, .hot_bytes = 100};
		if (emit_open_as(&e, &open) != CH_OK) {
			stage_poll(stage);
			continue;
		}
		emit_frame(&e);
		emit_call_c(&e, (const void *)poll_in_callee);
		emit_frame_end(&e);
		emit_ret(&e);
		enum ch_status status = emit_commit(&e);
		CHECK_EQ(status, CH_OK);
		status = ch_owner_set_entry(m->owner, e.code.block);
		/* A discard may have come before the entry was set. */
		CHECK(status == CH_OK || status == CH_E_STATE || status == CH_E_STALE);
	}
}

SHARED_DRIVER(s29_discard_of_everything_while_eight_threads_run)
{
	struct play *p = new_play(stage);
	struct stage_thread threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		stage_spawn(stage, &threads[i], compile_and_run, p);
	stage_wait(&p->compiled, THREADS);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	for (int round = 0; round < 3 || now_ns() < end; round++) {
		uint64_t before = atomic_load(&p->calls);
		size_t freed, kept;
		enum ch_status status = ch_vm_discard(stage->heap, NULL, &freed, &kept);
		CHECK(status == CH_OK || status == CH_E_BUSY);
		if (stage->driver == STAGE_BOEHM || stage->driver == STAGE_HOST)
			stage_collect(stage);
		if (round % 16 == 0)
			stage_check(stage);
		while (atomic_load(&p->calls) < before + THREADS)
			stage_pause();
	}
	atomic_store(&p->step, 1);
	for (int i = 0; i < THREADS; i++)
		stage_join(&threads[i]);
	CHECK(stage_stats(stage).blocks_invalidated > 0);
}

/* --- 37 --- */

static void come_and_go(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct method m;
	CHECK_EQ(ch_thread_attach(stage->heap, NULL, NULL), CH_E_THREAD);
	method_constant(stage, &m, "short-lived", 3);
	CHECK_EQ(method_call(&m, NULL), 3);
	method_drop(stage, &m);
	atomic_fetch_add(&p->calls, 1);
}

static void spawn_for_ever(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->step))
		stage_apart(stage, come_and_go, p);
}

SHARED_DRIVER(s37_threads_come_and_go_while_cycles_run)
{
	struct play *p = new_play(stage);
	struct stage_thread threads[2];
	for (int i = 0; i < 2; i++)
		stage_spawn(stage, &threads[i], spawn_for_ever, p);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	while (now_ns() < end || atomic_load(&p->calls) < 10)
		stage_collect(stage);
	atomic_store(&p->step, 1);
	for (int i = 0; i < 2; i++)
		stage_join(&threads[i]);
	stage_collect(stage);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).threads_now, 1);
}

TEST(s37_thread_that_is_not_attached_is_told)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	struct play *p = new_play(stage);
	method_new(stage, &p->m[0], "method");
	CHECK_EQ(ch_thread_detach(stage->heap), CH_OK);
	CHECK_EQ(ch_thread_detach(stage->heap), CH_E_THREAD);
	ch_thread_park();
	ch_thread_unpark();
	ch_thread_poll();
	CHECK_EQ(ch_thread_attach(stage->heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_thread_attach(stage->heap, NULL, NULL), CH_E_THREAD);
	stage_end(p->stage);
}

/* --- 39 --- */

static struct play *walked;
static _Atomic(uint64_t) walks, found_blocks, judged;
/* The block of the thread's only frame of code, while the thread spends time below this frame. */
static _Thread_local volatile uint64_t spending;

/* Every function from here to the frame of code keeps a frame pointer; a sanitizer's functions do
 * not. ThreadSanitizer calls handlers anywhere, with the frames of another place. */
static void judge_walk(const struct ch_heap *heap, const void *const *pcs, size_t n)
{
	struct ch_block block = {0};
	size_t i = 0;
	if (TEST_SANITIZED || !spending)
		return;
	while (i < n && !ch__pool_has(heap->pool, (uintptr_t)pcs[i]))
		i++;
	if (i == n)
		FAIL("profiler: the walk does not reach the code that runs");
	if (!block_at(heap, (const uint8_t *)pcs[i] - (i > 0), &block))
		FAIL("profiler: code on its own stack is nobody's");
	CHECK_EQ(block.bits, spending);
	atomic_fetch_add(&judged, 1);
}

static void walk_here(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal, (void)info;
	int error = errno;
	const void *pcs[32];
	const struct ch_heap *heap = walked->stage->heap;
	size_t n = ch_backtrace(heap, CH_BACKTRACE_FRAMES, ucontext, pcs, 32);
	for (size_t i = 0; i < n; i++) {
		struct ch_block block;
		if (block_at(heap, (const uint8_t *)pcs[i] - (i > 0), &block))
			atomic_fetch_add(&found_blocks, 1);
	}
	judge_walk(heap, pcs, n);
	atomic_fetch_add(&walks, 1);
	errno = error;
}

static void spend(uint64_t block)
{
	spending = block;
	for (volatile int i = 0; i < 2000; i++)
		continue;
	spending = 0;
}

/* The method may be dropped and invalidated under its running frame. */
static uint64_t spend_time(void *arg)
{
	const struct method *m = arg;
	spend(m->block.bits);
	stage_poll(walked->stage);
	spend(m->block.bits);
	return 1;
}

static uint64_t drop_and_spend_time(void *arg)
{
	struct method *m = arg;
	method_invalidate(m);
	method_drop(walked->stage, m);
	for (int i = 0; i < 20; i++)
		spend_time(m);
	return 1;
}

static void run_and_drop(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->step)) {
		struct method m;
		method_native(stage, &m, "walked", (void *)spend_time);
		for (int i = 0; i < 5; i++)
			CHECK_EQ(method_call(&m, &m), 1);
		method_invalidate(&m);
		method_drop(stage, &m);
		method_native(stage, &m, "walked to its end", (void *)drop_and_spend_time);
		CHECK_EQ(method_call(&m, &m), 1);
		atomic_fetch_add(&p->calls, 1);
		stage_poll(stage);
	}
}

SHARED_DRIVER(s39_profiler_walks_while_code_is_freed)
{
	struct play *p = new_play(stage);
	walked = p;
	struct sigaction action = {.sa_sigaction = walk_here, .sa_flags = SA_SIGINFO | SA_RESTART};
	CHECK_EQ(sigaction(SIGPROF, &action, NULL), 0);
	struct stage_thread threads[2];
	for (int i = 0; i < 2; i++)
		stage_spawn(stage, &threads[i], run_and_drop, p);
	struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
	CHECK_EQ(setitimer(ITIMER_PROF, &every, NULL), 0);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	/* The timer counts the process's time only. */
	while (now_ns() < end || atomic_load(&walks) <= 10 || atomic_load(&found_blocks) == 0 ||
	       (!TEST_SANITIZED && atomic_load(&judged) == 0)) {
		(void)stage_cycle_came(stage, stage_try_collect(stage));
		stage_pause();
	}
	CHECK_EQ(setitimer(ITIMER_PROF, &never, NULL), 0);
	atomic_store(&p->step, 1);
	for (int i = 0; i < 2; i++)
		stage_join(&threads[i]);
	stage_collect(stage);
}

/* --- 49, 50 --- */

static void run_some_cycles(struct stage *stage)
{
	struct play *p = new_play(stage);
	walked = p;
	struct stage_thread threads[2];
	for (int i = 0; i < 2; i++)
		stage_spawn(stage, &threads[i], run_and_drop, p);
	for (int i = 0; i < 50 || atomic_load(&p->calls) < 50; i++) {
		stage_collect(stage);
		stage_pause();
	}
	atomic_store(&p->step, 1);
	for (int i = 0; i < 2; i++)
		stage_join(&threads[i]);
}

SHARED_DRIVER(s49_without_membarrier)
{
	/* EPERM as from a container's filter, ENOSYS as from an older kernel. */
	refuse_call(SYS_membarrier, stage->driver == STAGE_POLLS ? EPERM : ENOSYS);
	run_some_cycles(stage);
}

SHARED_DRIVER(s50_process_that_denies_itself_new_executable_memory)
{
	enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1 };
	if (prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
		skip("the kernel has no PR_SET_MDWE");
	run_some_cycles(stage);
}

/* --- 17 --- */

#if CH_TEST_BDW
#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include <gc/gc.h>

enum { OBJECTS = 64 };

/* The VM drops a method's code in the finalizer of the method's object, in any thread. */
static void finalize_method(void *object, void *arg)
{
	struct method *m = arg;
	(void)object;
	if ((m - walked->all) % 2)
		CHECK_EQ(ch_blocks_invalidate(&m->block, 1, NULL), CH_OK);
	else
		CHECK_EQ(ch_owner_release(m->owner, CH_RELEASE_COLLECT), CH_OK);
	atomic_fetch_add(&walked->ready, 1);
}

static void allocate_for_ever(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	while (!atomic_load(&p->step)) {
		CHECK(GC_MALLOC(64));
		ch_thread_poll();
	}
}

static void make_objects(struct stage *stage, void *arg)
{
	struct play *p = arg;
	for (int i = 0; i < OBJECTS; i++) {
		method_native(stage, &p->all[i], "finalized", (void *)poll_in_callee);
		GC_REGISTER_FINALIZER_NO_ORDER(GC_MALLOC(32), finalize_method, &p->all[i], NULL,
					       NULL);
	}
}

static uint64_t run_while_it_is_finalized(void *arg)
{
	struct play *p = arg;
	stage_collect(p->stage);
	while (atomic_load(&p->ready) < OBJECTS) {
		stage_collect(p->stage);
		stage_pause();
	}
	return (uint64_t)atomic_load(&p->ready);
}

TEST(s17_finalizers_invalidate_and_release_boehm)
{
	struct stage *stage = stage_new(STAGE_BOEHM);
	struct play *p = new_play(stage);
	walked = p;
	struct method runner;
	struct stage_thread t;
	method_native(stage, &runner, "runner", (void *)run_while_it_is_finalized);
	stage_apart(stage, make_objects, p);
	stage_spawn(stage, &t, allocate_for_ever, p);
	CHECK_EQ(method_call(&runner, p), OBJECTS);
	atomic_store(&p->step, 1);
	stage_join(&t);
	for (int i = 0; i < OBJECTS; i++)
		CHECK(method_has_fallback(&p->all[i]));
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 1);
	stage_end(p->stage);
}
#endif
