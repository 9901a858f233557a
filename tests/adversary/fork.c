/* SPDX-License-Identifier: MIT
 * fork.c: forks in the middle of everything: the isolation of parent, child and grandchild, and
 * locks held by threads that the child does not have. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "sinks/sinks.h"
#include "tests/support/heap_rig.h"
#include "tests/support/perfmap_reader.h"
#include "tests/support/stage.h"

#include <sys/wait.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	struct method a, b, c, forker;
	pthread_rwlock_t world; /* HOST: the collector writes, mutators read */
	_Atomic(int) step, ready;
	_Atomic(unsigned) made, walks;
	pid_t pid;
};

static struct play *new_play(struct stage *stage)
{
	stage->config.fork = stage_fork_kind();
	if (stage->config.fork == CH_FORK_COW)
		stage->config.backend = CH_BACKEND_AUTO;
	stage->counts_only = true;
	struct play *p = stage_play(stage, sizeof *p);
	CHECK_EQ(pthread_rwlock_init(&p->world, NULL), 0);
	return p;
}

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

static void come_to_world(struct play *p)
{
	if (p->stage->driver == STAGE_HOST)
		ch_thread_park();
	enter_world(p);
}

static void go_from_world(struct play *p)
{
	leave_world(p);
	if (p->stage->driver == STAGE_HOST)
		ch_thread_unpark();
}

static void end_play(struct play *p)
{
	CHECK_EQ(pthread_rwlock_destroy(&p->world), 0);
	stage_end(p->stage);
}

static void build(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_jumper(stage, &p->a, "A");
	method_constant(stage, &p->b, "B", 2);
	method_constant(stage, &p->c, "C", 3);
	method_link(&p->a, 0, &p->b);
}

/* --- 32 --- */

static void relink_in_child(struct play *p, int depth)
{
	CHECK_EQ(method_call(&p->a, NULL), depth % 2 ? 3 : 2);
	method_link(&p->a, 0, depth % 2 ? &p->b : &p->c);
	CHECK_EQ(method_call(&p->a, NULL), depth % 2 ? 2 : 3);
	struct method fresh;
	method_constant(p->stage, &fresh, "fresh", 77);
	stage_collect(p->stage);
	CHECK_EQ(method_call(&fresh, NULL), 77);
	stage_check(p->stage);
	if (depth < 2) {
		pid_t pid = fork();
		if (!pid) {
			relink_in_child(p, depth + 1);
			_exit(0);
		}
		expect_exit(pid, 0);
	}
	CHECK_EQ(method_call(&p->a, NULL), depth % 2 ? 2 : 3);
}

EVERY_DRIVER(s32_child_and_grandchild_patch_and_collect_for_themselves)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build, p);
	pid_t pid = fork();
	if (!pid) {
		relink_in_child(p, 0);
		_exit(0);
	}
	/* Meanwhile the parent's code changes, unseen by the child. */
	method_link(&p->a, 0, &p->c);
	CHECK_EQ(method_call(&p->a, NULL), 3);
	expect_exit(pid, 0);
	stage_collect(stage);
	CHECK_EQ(method_call(&p->a, NULL), 3);
	end_play(p);
}

static void wait_for_parent(int fd)
{
	char byte;
	CHECK_EQ(read(fd, &byte, 1), 1);
}

EVERY_DRIVER(s32_child_does_not_see_what_its_parent_writes)
{
	struct play *p = new_play(stage);
	int ends[2];
	stage_apart(stage, build, p);
	CHECK_EQ(pipe(ends), 0);
	pid_t pid = fork();
	if (!pid) {
		wait_for_parent(ends[0]);
		CHECK_EQ(method_call(&p->a, NULL), 2);
		CHECK_EQ(method_call(&p->b, NULL), 2);
		stage_check(stage);
		_exit(0);
	}
	method_link(&p->a, 0, &p->c);
	method_drop(stage, &p->b);
	stage_collect(stage);
	CHECK_EQ(write(ends[1], "x", 1), 1);
	expect_exit(pid, 0);
	CHECK_EQ(method_call(&p->a, NULL), 3);
	end_play(p);
}

/* --- 31 --- */

static void make_and_drop(struct stage *stage, void *arg)
{
	struct play *p = arg;
	come_to_world(p);
	atomic_fetch_add(&p->ready, 1);
	while (atomic_load(&p->step) < 2) {
		struct method m;
		struct emitter e;
		method_new(stage, &m, "made");
		struct ch_open open = {.owner = m.owner, .hot_bytes = 200, .user = &m};
		if (emit_open_as(&e, &open) == CH_OK) {
			if (atomic_fetch_add(&p->made, 1) % 3 == 0)
				stage_pause(); /* so that forks find the block half built */
			emit_answer(&e, 8);
			method_commit_only(&e, &m);
			/* The thread may have waited for the heap through three cycles: then the
			 * block is gone. */
			enum ch_status status = ch_owner_set_entry(m.owner, m.block);
			CHECK(status == CH_OK || status == CH_E_STALE);
			if (status == CH_OK)
				CHECK_EQ(method_call(&m, NULL), 8);
		}
		method_drop(stage, &m);
		ch_thread_poll();
		leave_world(p);
		enter_world(p);
	}
	go_from_world(p);
}

static void collect_again_and_again(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->step)) {
		ch_thread_park();
		if (stage->driver == STAGE_HOST)
			CHECK_EQ(pthread_rwlock_wrlock(&p->world), 0);
		ch_thread_unpark();
		enum ch_status status = stage_try_collect(stage);
		CHECK(status == CH_OK || status == CH_E_BUSY);
		if (stage->driver == STAGE_HOST)
			CHECK_EQ(pthread_rwlock_unlock(&p->world), 0);
		stage_pause();
	}
}

/* Through code: by frame pointers, and by the tables of the process's unwinder. */
static uint64_t unwind_in_callee(void *arg)
{
	struct play *p = arg;
	const void *pcs[64];
	CHECK(ch_backtrace(p->stage->heap, CH_BACKTRACE_FRAMES, NULL, pcs, 64) >= 2);
	CHECK(ch_backtrace(p->stage->heap, CH_BACKTRACE_TABLES, NULL, pcs, 64) >= 2);
	atomic_fetch_add(&p->walks, 1);
	return 5;
}

static void unwind_again_and_again(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct method m;
	come_to_world(p);
	method_native(stage, &m, "walked", (void *)unwind_in_callee);
	atomic_fetch_add(&p->ready, 1);
	while (atomic_load(&p->step) < 2) {
		for (int i = 0; i < 20; i++)
			CHECK_EQ(method_call(&m, p), 5);
		ch_thread_poll();
		leave_world(p);
		stage_pause();
		enter_world(p);
	}
	go_from_world(p);
}

/* The child compiles, collects, and relinks blocks that the parent made. */
static void live_as_child(struct play *p)
{
	struct stage *stage = p->stage;
	struct method m;
	const char *path = NULL;
	/* A lock of the VM is the VM's matter: a thread of the parent may have held this lock. */
	CHECK_EQ(pthread_mutex_init(&stage->lock, NULL), 0);
	stage_check(stage);
	CHECK_EQ(stage_stats(stage).threads_now, 1);
	CHECK_EQ(stage_stats(stage).blocks_open_now, 0);
	CHECK_EQ(method_call(&p->a, NULL), 2);
	if (stage->config.sinks & CH_SINK_PERF_MAP) {
		char own[128];
		path_of(getpid(), own);
		CHECK(ch_sink_status(stage->heap, CH_SINK_PERF_MAP, &path, NULL));
		CHECK_STR(path, own);
	}
	/* Blocks of the parent's threads may have filled the pool. */
	stage_collect(stage);
	stage_collect(stage);
	method_constant(stage, &m, "child's", 9);
	CHECK_EQ(method_call(&m, NULL), 9);
	method_link(&p->a, 0, &p->c);
	CHECK_EQ(method_call(&p->a, NULL), 3);
	stage_collect(stage);
	CHECK_EQ(method_call(&m, NULL), 9);
	stage_check(stage);
	if (path)
		CHECK_EQ(unlink(path), 0);
}

/* Forks, and waits for the child's end. */
static void fork_once(struct play *p)
{
	pid_t pid = fork();
	if (!pid) {
		alarm(TEST_PATIENCE_S);
		live_as_child(p);
		_exit(0);
	}
	leave_world(p);
	ch_thread_park();
	expect_exit(pid, 0);
	ch_thread_unpark();
	enter_world(p);
	CHECK_EQ(method_call(&p->a, NULL), 2);
}

/* The child returns into the code that called, and ends afterwards. */
static uint64_t fork_in_callee(void *arg)
{
	struct play *p = arg;
	p->pid = fork_child();
	if (!p->pid) {
		alarm(TEST_PATIENCE_S);
		live_as_child(p);
	}
	return 11;
}

static void fork_in_code(struct play *p)
{
	CHECK_EQ(method_call(&p->forker, p), 11);
	if (!p->pid) {
		stage_check(p->stage);
		stage_collect(p->stage);
		CHECK_EQ(method_call(&p->a, NULL), 3);
		_exit(0);
	}
	leave_world(p);
	ch_thread_park();
	expect_exit(p->pid, 0);
	ch_thread_unpark();
	enter_world(p);
}

enum { MAKERS = 2, AT_WORK = MAKERS + 2 };

static void put_to_work(struct play *p, struct stage_thread *threads)
{
	struct stage *stage = p->stage;
	stage_apart(stage, build, p);
	method_native(stage, &p->forker, "forker", (void *)fork_in_callee);
	for (int i = 0; i < MAKERS; i++)
		stage_spawn(stage, &threads[i], make_and_drop, p);
	stage_spawn(stage, &threads[MAKERS], unwind_again_and_again, p);
	/* No thread attaches or detaches while the collector of a host marks. */
	stage_wait(&p->ready, MAKERS + 1);
	if (stage->driver == STAGE_HOST)
		ch_thread_park();
	stage_spawn(stage, &threads[MAKERS + 1], collect_again_and_again, p);
	enter_world(p);
}

static void end_work(struct play *p, struct stage_thread *threads)
{
	leave_world(p);
	while (!atomic_load(&p->walks))
		stage_pause();
	atomic_store(&p->step, 1);
	stage_join(&threads[MAKERS + 1]);
	if (p->stage->driver == STAGE_HOST)
		ch_thread_unpark();
	atomic_store(&p->step, 2);
	for (int i = 0; i <= MAKERS; i++)
		stage_join(&threads[i]);
	end_play(p);
}

EVERY_DRIVER(s31_fork_while_threads_emit_and_hold_locks)
{
	skip_if_allocator_forgets_forks();
	bool has_map = stage->driver == STAGE_POLLS;
	if (has_map) {
		use_own_folder();
		stage->config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
	}
	struct play *p = new_play(stage);
	struct stage_thread threads[AT_WORK];
	put_to_work(p, threads);
	uint64_t end = now_ns() + storm_ms_of(1500) * UINT64_C(1000000);
	int forks = 0;
	for (; now_ns() < end || forks < 6; forks += 2) {
		fork_once(p);
		fork_in_code(p);
		ch_thread_poll();
	}
	printf("%d forks, %u blocks, %u walks\n", forks, atomic_load(&p->made),
	       atomic_load(&p->walks));
	end_work(p, threads);
	if (has_map)
		remove_own_folder();
}

static void free_code_of_three_pages(struct stage *stage)
{
	struct ch_open open = {.size = sizeof open, .heap = stage->heap,
			       .hot_bytes = 2 * (uint32_t)rig_page_bytes() + 8};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	code.used_to = open.hot_bytes;
	const void *exec = code.exec;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	CHECK_EQ(ch_code_free(stage->heap, exec, CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* At the fork a thread of the parent had taken pages for a block to come, where another was. */
EVERY_DRIVER(s31_child_reclaims_what_a_thread_had_in_its_hands)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build, p);
	struct ch__pool *pool = stage->heap->pool;
	free_code_of_three_pages(stage);
	struct ch_stats before = stage_stats(stage);
	uint32_t span = ch__pool_take_span(pool, 3, 0, CH__SPAN_CODE),
		 page = ch__pool_take_page(pool, 0);
	CHECK(span != CH__PAGE_NONE && page != CH__PAGE_NONE);
	pid_t pid = fork();
	if (!pid) {
		struct ch_stats stats = stage_stats(stage);
		CHECK_EQ(stats.blocks_now, before.blocks_now);
		CHECK_EQ(stats.blocks_open_now, 0);
		CHECK_EQ(stats.code_bytes_now, before.code_bytes_now);
		CHECK_EQ(stats.stub_bytes_now, before.stub_bytes_now);
		CHECK_EQ(stats.pages_now, before.pages_now);
		stage_check(stage);
		_exit(0);
	}
	expect_exit(pid, 0);
	ch__pool_release_span(pool, span);
	ch__pool_retire_page(pool, page);
	CHECK_EQ(stage_stats(stage).pages_now, before.pages_now);
	end_play(p);
}

struct wide {
	struct ch_open open;
	struct ch_block block;
};

static void make_wide(const struct rig *rig, void *arg)
{
	struct wide *wide = arg;
	struct emitter e;
	wide->open.owner = rig_owner(rig, "wide");
	CHECK_EQ(emit_open_as(&e, &wide->open), CH_OK);
	emit_answer(&e, 5);
	e.at = e.code.hot_bytes; /* an unused rest of the run would go back */
	CHECK_EQ(emit_commit(&e), CH_OK);
	wide->block = e.code.block;
}

/* In the end only the live block is left. */
static void reuse_the_span(const struct rig *rig, struct wide *dead, const struct wide *live,
			   const struct ch_stats *before)
{
	CHECK_EQ(rig_stats(rig).pages_now, before->pages_now);
	for (int i = 0; i < 3; i++)
		rig_apart(rig, make_wide, dead);
	rig_check(rig);
	rig_collect(rig, 6);
	rig_check(rig);
	struct ch_stats stats = rig_stats(rig);
	CHECK_EQ(stats.code_bytes_now, before->code_bytes_now);
	CHECK_EQ(stats.pages_now * stats.page_bytes, stats.code_bytes_now);
	CHECK_EQ(code_call(block_info(live->block).exec), 5);
}

/* The span of a dead block, filled with traps, waits for a core sync when the process forks. The
 * span goes back once on either side, and no other span goes with it, such as the span of a block
 * whose size has a low half of 0. */
TEST_RIG_BY(s31_child_frees_the_span_of_a_dead_block_once, rig_start(1 << 22))
{
	uint32_t page = (uint32_t)rig_page_bytes();
	struct wide dead = {.open = {.hot_bytes = 2 * page}};
	struct wide live = {.open = {.hot_bytes = (1 << 19) - 8,
				     .cold_bytes = page - 8,
				     .flags = CH_OPEN_IMMORTAL}};
	rig_apart(&rig, make_wide, &live);
	rig_apart(&rig, make_wide, &dead);
	for (int i = 0; i < 8 && rig_is_there(dead.block); i++)
		rig_collect(&rig, 1);
	struct ch_stats before = rig_stats(&rig);
	CHECK_EQ(before.code_bytes_now, (1 << 19) + page);
	/* The span waits, unless more than 64 KiB would wait. */
	CHECK(3 * page > 1 << 16 || before.quarantine_bytes_now > 2 * page);
	pid_t pid = fork();
	if (!pid) {
		reuse_the_span(&rig, &dead, &live, &before);
		_exit(0);
	}
	expect_exit(pid, 0);
	reuse_the_span(&rig, &dead, &live, &before);
}

/* --- sinks --- */

static struct rig told;
static _Atomic(int) forker_tid, forked;
static _Atomic(bool) are_sinks_free;

static void *fork_away(void *arg)
{
	(void)arg;
	atomic_store(&forker_tid, (int)gettid());
	pid_t child = fork();
	if (child == 0)
		_exit(atomic_load(&are_sinks_free) ? 0 : 1);
	atomic_store(&forked, child);
	return NULL;
}

/* In the child the lock of the sinks is free, and the guarded data is whole. */
TEST(fork_waits_for_who_changes_the_sinks)
{
	told = rig_start(4 << 20);
	pthread_t forker;
	ch__sinks_lock(told.heap->sinks);
	CHECK_EQ(pthread_create(&forker, NULL, fork_away, NULL), 0);
	TEST_UNTIL(atomic_load(&forked) || thread_is_asleep(atomic_load(&forker_tid)))
		usleep(1000);
	atomic_store(&are_sinks_free, true);
	ch__sinks_unlock(told.heap->sinks);
	ch_thread_park();
	pthread_join(forker, NULL);
	ch_thread_unpark();
	expect_exit(atomic_load(&forked), 0);
	rig_end(&told);
}

/* The thousand forks are made where storms are long. */
TEST_LIMIT(s31_thousand_forks_while_threads_work, 120)
{
	skip_if_allocator_forgets_forks();
	struct play *p = new_play(stage_new(STAGE_SIGNALS));
	struct stage_thread threads[AT_WORK];
	put_to_work(p, threads);
	int forks = storm_ms() < TEST_STORM_DEFAULT_MS || getenv("CODEHEAP_TEST_SLOW") ? 50 : 1000;
	for (int i = 0; i < forks / 2; i++) {
		fork_once(p);
		fork_in_code(p);
	}
	end_work(p, threads);
}

/* --- a signal in the child before the code is there --- */

static struct rig asked;
static const void *asked_at;
static volatile sig_atomic_t is_found;

static void ask_code(int signal)
{
	struct ch_spot spot = {.size = sizeof spot};
	(void)signal;
	is_found = ch_code_at(asked.heap, asked_at, false, &spot);
}

static void raise_in_child(void)
{
	CHECK_EQ(raise(SIGUSR1), 0);
}

static void hold(int signal, sigset_t *before)
{
	sigset_t held;
	sigemptyset(&held);
	sigaddset(&held, signal);
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, &held, before), 0);
}

TEST(signal_that_is_held_back_over_a_fork_finds_code_in_the_child)
{
	/* Registered before the first heap: runs in the child before the library's handler. */
	CHECK_EQ(pthread_atfork(NULL, NULL, raise_in_child), 0);
	sigset_t before;
	asked = rig_start(1 << 20);
	struct ch_info info = block_info(rig_block(rig_owner(&asked, "asked"), 1));
	asked_at = info.exec;
	signal(SIGUSR1, ask_code);
	hold(SIGUSR1, &before);
	pid_t pid = fork();
	CHECK_EQ(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(is_found != 1);
	expect_exit(pid, 0);
	CHECK_EQ(is_found, 0);
	rig_end(&asked);
}
