/* SPDX-License-Identifier: MIT
 * codeless.c: children of fork without code: by CH_FORK_NONE, after a failed copy, or because no
 * handler ran. Such a child interprets, or ends by a described fault. No child hangs, and no
 * child writes anything that the parent sees. */
#define _GNU_SOURCE
#include "codeheap/look.h"
#include "tests/support/describe_signal.h"
#include "tests/support/perfmap_reader.h"
#include "tests/support/stage.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	struct method a, b, guarded, native;
	struct emitter open; /* of the forking thread */
	uintptr_t entry;     /* of b, inverted */
	_Atomic(int) step;
	pid_t pid;
};

static struct play *new_play(struct stage *stage, enum ch_fork fork)
{
	stage->config.fork = fork == CH_FORK_COPY ? stage_fork_kind() : fork;
	stage->counts_only = true;
	return stage_play(stage, sizeof(struct play));
}

static void build(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch_info info = {.size = sizeof info};
	method_jumper(stage, &p->a, "A");
	method_constant(stage, &p->b, "Rapunzel", 2);
	method_link(&p->a, 0, &p->b);
	method_new(stage, &p->guarded, "G");
	struct ch_open open = {.owner = p->guarded.owner, .hot_bytes = 64, .entry = CH_ENTRY_PATCH};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 7);
	method_commit(&e, &p->guarded);
	CHECK_EQ(ch_block_info(p->b.block, &info), CH_OK);
	p->entry = ~(uintptr_t)info.entry;
}

/* --- the life of a child without code --- */

static void use_every_call(struct play *p)
{
	struct stage *stage = p->stage;
	struct ch_info info = {.size = sizeof info};
	struct ch_block found;
	struct ch_code code;
	size_t count = 9, kept = 9;
	CHECK_EQ(method_call(&p->a, NULL), STAGE_FALLBACK);
	CHECK_EQ(method_call(&p->b, NULL), STAGE_FALLBACK);
	CHECK_EQ(method_call(&p->guarded, NULL), STAGE_FALLBACK);
	CHECK_EQ(ch_block_info(p->b.block, &info), CH_E_STALE);
	CHECK(!block_at(stage->heap, (const void *)~p->entry, &found));
	CHECK_EQ(ch_owner_set_entry(p->b.owner, p->b.block), CH_E_STALE);
	CHECK_EQ(ch_branch_link(p->a.branch[0], p->b.block), CH_E_STALE);
	CHECK_EQ(ch_blocks_invalidate(&p->b.block, 1, &count), CH_OK);
	CHECK_EQ(count, 0);
	CHECK_EQ(ch_block_commit(&p->open.code, 1), CH_E_STATE);
	struct ch_open open = {.size = sizeof open, .owner = p->b.owner, .hot_bytes = 10};
	open.flags = stage->driver == STAGE_POLLS ? CH_OPEN_MAY_COLLECT : 0;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_OS);
	CHECK_EQ(errno, EACCES);
	CHECK(strstr(ch_why(), "no code (CH_FORK_NONE, or no memory)"));
	open.hot_bytes = 100000;
	CHECK_EQ(ch_block_open(&open, &code), CH_E_OS);
	stage_check(stage);
	stage_collect(stage);
	stage_collect(stage);
	CHECK_EQ(ch_vm_discard(stage->heap, NULL, &count, &kept), CH_OK);
	CHECK_EQ(count + kept, 0);
	ch_thread_poll();
	struct ch_stats stats = stage_stats(stage);
	CHECK_EQ(stats.blocks_now, 0);
	CHECK_EQ(stats.blocks_open_now, 0);
	CHECK_EQ(stats.code_bytes_now, 0);
	CHECK_EQ(stats.free_bytes_now, 0);
	CHECK_EQ(stats.threads_now, 1);
	CHECK_EQ(stage->freed, 3); /* each committed block's notice came, once */
	const void *pcs[50];
	CHECK(ch_backtrace(stage->heap, CH_BACKTRACE_FRAMES, NULL, pcs, 50) > 0);
	CHECK(ch_backtrace(stage->heap, CH_BACKTRACE_TABLES, NULL, pcs, 50) > 0);
	stage_check(stage);
}

static void wait_parked(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	struct method m;
	method_new(stage, &m, "elsewhere");
	method_open(&e, &m);
	atomic_store(&p->step, 1);
	stage_wait(&p->step, 2);
	emit_answer(&e, 4);
	method_commit(&e, &m);
	CHECK_EQ(method_call(&m, NULL), 4);
	CHECK_EQ(ch_owner_release(m.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

EVERY_DRIVER(codeless_child_interprets_and_ends_in_order)
{
	struct play *p = new_play(stage, CH_FORK_NONE);
	struct stage_thread other;
	stage_apart(stage, build, p);
	stage_spawn(stage, &other, wait_parked, p);
	stage_wait(&p->step, 1);
	struct method mine;
	method_new(stage, &mine, "mine");
	method_open(&p->open, &mine);
	pid_t pid = fork();
	if (!pid) {
		alarm(TEST_PATIENCE_S);
		use_every_call(p);
		/* The child forks likewise. */
		pid = fork();
		if (!pid) {
			alarm(TEST_PATIENCE_S);
			stage->freed = 3;
			use_every_call(p);
			stage_end(stage);
			exit(0);
		}
		expect_exit(pid, 0);
		stage_end(stage);
		exit(0);
	}
	expect_exit(pid, 0);
	atomic_store(&p->step, 2);
	stage_join(&other);
	CHECK_EQ(method_call(&p->a, NULL), 2);
	CHECK_EQ(method_call(&p->guarded, NULL), 7);
	emit_value(&p->open, 5);
	emit_ret(&p->open);
	method_commit(&p->open, &mine);
	CHECK_EQ(method_call(&mine, NULL), 5);
	ch_thread_poll();
	CHECK_EQ(stage->freed, 1);
}

/* --- a child that runs code all the same --- */

static void jump_to_code(void *arg)
{
	struct play *p = arg;
	const void *target = (const void *)~p->entry;
	describe_signal(p->stage->heap, SIGSEGV);
	stage_enter(&target, NULL);
}

static void write_to_code(void *arg)
{
	struct play *p = arg;
	*(volatile uint8_t *)p->open.code.write = 0xc3;
}

EVERY_DRIVER(codeless_child_faults_in_code_and_the_fault_is_described)
{
	char text[400];
	struct play *p = new_play(stage, CH_FORK_NONE);
	struct method mine;
	stage_apart(stage, build, p);
	method_new(stage, &mine, "mine");
	method_open(&p->open, &mine);
	emit_value(&p->open, 5);
	emit_ret(&p->open);
	expect_signal_text(jump_to_code, p, SIGSEGV, text, sizeof text);
	if (!strstr(text, "Rapunzel") || !strstr(text, "child of a fork has no copy"))
		FAIL("the fault of a child without code reads \"%s\"", text);
	expect_signal(write_to_code, p, SIGSEGV);
	method_commit(&p->open, &mine);
	CHECK_EQ(method_call(&mine, NULL), 5);
	CHECK_EQ(method_call(&p->b, NULL), 2);
}

TEST(codeless_child_has_no_names_of_code_in_its_perf_map)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	char path[128];
	use_own_folder();
	stage->config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
	struct play *p = new_play(stage, CH_FORK_NONE);
	stage_apart(stage, build, p);
	path_of(getpid(), path);
	check_named(path, (const void *)~p->entry, "Rapunzel");
	pid_t child = fork_child();
	if (!child) {
		alarm(TEST_PATIENCE_S);
		path_of(getpid(), path);
		check_named(path, (const void *)~p->entry, NULL);
		CHECK_EQ(unlink(path), 0);
		_exit(0);
	}
	expect_exit(child, 0);
	stage_end(stage);
	remove_own_folder();
}

/* The child returns into the forking frame of code. */
static uint64_t fork_in_callee(void *arg)
{
	struct play *p = arg;
	p->pid = fork();
	if (!p->pid) {
		alarm(TEST_PATIENCE_S);
		describe_signal(p->stage->heap, SIGSEGV);
	}
	return 11;
}

EVERY_DRIVER(codeless_child_faults_where_it_returns_into_code)
{
	struct play *p = new_play(stage, CH_FORK_NONE);
	int ends[2], status;
	char text[400];
	method_native(stage, &p->native, "Rumpelstilzchen", (void *)fork_in_callee);
	CHECK_EQ(pipe(ends), 0);
	int saved = dup(STDERR_FILENO);
	CHECK_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	uint64_t result = method_call(&p->native, p);
	CHECK_EQ(dup2(saved, STDERR_FILENO), STDERR_FILENO);
	if (!p->pid)
		_exit(1);
	CHECK_EQ(result, 11);
	CHECK_EQ(close(ends[1]), 0);
	CHECK_EQ(waitpid(p->pid, &status, 0), p->pid);
	ssize_t n = read(ends[0], text, sizeof text - 1);
	CHECK(n >= 0);
	text[n] = 0;
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
		FAIL("the child ended with status 0x%x", (unsigned)status);
	if (!strstr(text, "Rumpelstilzchen"))
		FAIL("the fault of a child without code reads \"%s\"", text);
}

/* --- a copy that fails --- */

/* System calls of the fork handlers fail in turn, one alone or all from one on, in the parent and
 * in the child. The child then has all of its code, or none. */
EVERY_DRIVER(child_whose_copy_failed_has_no_code_at_all)
{
	struct play *p = new_play(stage, CH_FORK_COPY);
	stage_apart(stage, build, p);
	struct method mine;
	method_new(stage, &mine, "mine");
	method_open(&p->open, &mine);
	unsigned with_code = 0, without = 0;
	bool is_over = false;
	for (uint64_t nth = 2; !is_over; nth++) {
		ch__os_fail_at(nth / 2, nth % 2);
		pid_t pid = fork();
		is_over = ch__os_failable_calls() < nth / 2;
		ch__os_fail_at(0, false);
		if (!pid) {
			alarm(TEST_PATIENCE_S);
			bool has_code = method_call(&p->a, NULL) == 2;
			if (has_code)
				CHECK_EQ(method_call(&p->guarded, NULL), 7);
			else
				use_every_call(p);
			stage_check(stage);
			_exit((has_code ? 1 : 2) + (is_over ? 2 : 0));
		}
		int status;
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		if (!WIFEXITED(status) || WEXITSTATUS(status) < 1 || WEXITSTATUS(status) > 4)
			FAIL("call %u failed: the child ended with status 0x%x",
			     (unsigned)nth / 2, (unsigned)status);
		with_code += WEXITSTATUS(status) % 2 == 1;
		without += WEXITSTATUS(status) % 2 == 0;
		is_over &= WEXITSTATUS(status) > 2;
		CHECK_EQ(method_call(&p->a, NULL), 2);
		stage_check(stage);
	}
	printf("%u children with code, %u without\n", with_code, without);
	CHECK(with_code > 0 && without > 0);
	CHECK_EQ(ch_block_abort(&p->open.code), CH_OK);
}

/* --- a child in which no handler ran --- */

static struct play *interrupted;

/* _Fork: the handlers of fork() would wait for the locks of the thread itself. */
static void clone_in_handler(int signal)
{
	(void)signal;
	interrupted->pid = _Fork();
	if (interrupted->pid)
		return;
	alarm(TEST_PATIENCE_S);
	if (atomic_load(&interrupted->step) == 1) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(9);
	}
	jump_to_code(interrupted);
	_exit(9);
}

#if CH_TSAN /* TSan needs fork handlers of its own */
__attribute__((unused)) static void body_child_without_handlers(struct stage *stage)
#else
EVERY_DRIVER(child_without_handlers_has_no_code_and_may_replace_itself)
#endif
{
	struct play *p = new_play(stage, CH_FORK_COPY);
	int ends[2], status;
	char text[400];
	interrupted = p;
	stage_apart(stage, build, p);
	struct sigaction action = {.sa_handler = clone_in_handler};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	/* The signal comes while the thread holds the heap lock. */
	atomic_store(&p->step, 1);
	ch__heap_lock(stage->heap);
	CHECK_EQ(raise(SIGUSR1), 0);
	ch__heap_unlock(stage->heap);
	expect_exit(p->pid, 0);
	/* On procmem memory is the child's own (writes_of_a_child_without_handlers_are_its_own). */
	if (stage->heap->pool->backend >= CH_BACKEND_PROCMEM) {
		stage_end(p->stage);
		return;
	}
	CHECK_EQ(pipe(ends), 0);
	int saved = dup(STDERR_FILENO);
	CHECK_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	atomic_store(&p->step, 2);
	ch__heap_lock(stage->heap);
	CHECK_EQ(raise(SIGUSR1), 0);
	ch__heap_unlock(stage->heap);
	CHECK_EQ(dup2(saved, STDERR_FILENO), STDERR_FILENO);
	CHECK_EQ(waitpid(p->pid, &status, 0), p->pid);
	close(ends[1]);
	ssize_t n = read(ends[0], text, sizeof text - 1);
	CHECK(n >= 0);
	text[n] = 0;
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
		FAIL("the child ended with status 0x%x", (unsigned)status);
	if (!strstr(text, "code that a child of a raw clone has no copy of (0x"))
		FAIL("the fault of a child without handlers reads \"%s\"", text);
	CHECK_EQ(method_call(&p->a, NULL), 2);
	stage_end(p->stage);
}

/* --- threads at work --- */

static void make_and_drop(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->step)) {
		struct method m;
		struct emitter e;
		method_new(stage, &m, "made");
		struct ch_open open = {.owner = m.owner, .hot_bytes = 200, .user = &m};
		if (emit_open_as(&e, &open) == CH_OK) {
			emit_answer(&e, 8);
			method_commit_only(&e, &m);
			if (ch_owner_set_entry(m.owner, m.block) == CH_OK)
				CHECK_EQ(method_call(&m, NULL), 8);
		}
		method_drop(stage, &m);
		ch_thread_poll();
		if (atomic_exchange(&stage->wanted, 0))
			stage_collect(stage);
	}
}

/* --- regions --- */

static _Atomic(uint32_t) *region_of_another;

/* Imitates a thread at a frozen region: the thread enters, sees the freeze, and leaves. Handlers
 * registered before the library's run behind its prepare handler and before its other handlers. */
static void enter_region(void)
{
	if (region_of_another)
		atomic_store(region_of_another, 1);
}

static void leave_region(void)
{
	if (region_of_another)
		atomic_store(region_of_another, 0);
}

static void lend_region(struct stage *stage, void *arg)
{
	struct play *p = arg;
	region_of_another = &ch__thread_self(stage->heap)->inside;
	atomic_store(&p->step, 1);
	stage_wait(&p->step, 2);
}

static void fork_beside_a_region(struct stage *stage, enum ch_fork fork_as)
{
	CHECK_EQ(pthread_atfork(enter_region, leave_region, NULL), 0);
	struct play *p = new_play(stage, fork_as);
	struct stage_thread thread;
	stage_spawn(stage, &thread, lend_region, p);
	stage_wait(&p->step, 1);
	pid_t pid = fork();
	if (!pid) {
		alarm(TEST_PATIENCE_S);
		stage_check(stage);
		_exit(0);
	}
	int status;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (status)
		FAIL("the child waits for a region of a thread that it does not have: 0x%x",
		     (unsigned)status);
	region_of_another = NULL;
	atomic_store(&p->step, 2);
	stage_join(&thread);
	stage_end(p->stage);
}

TEST(child_waits_for_no_region_of_another_thread)
{
	fork_beside_a_region(stage_new(STAGE_POLLS), CH_FORK_COPY);
}

TEST(codeless_child_waits_for_no_region_of_another_thread)
{
	fork_beside_a_region(stage_new(STAGE_POLLS), CH_FORK_NONE);
}

/* A thread may be caught between two steps of entering a region. The child freezes all regions to
 * check its heap and to fork, and waits for no thread. */
static void fork_without_code(struct stage *stage)
{
	skip_if_allocator_forgets_forks();
	struct play *p = new_play(stage, CH_FORK_NONE);
	struct stage_thread threads[2];
	stage_apart(stage, build, p);
	for (int i = 0; i < 2; i++)
		stage_spawn(stage, &threads[i], make_and_drop, p);
	uint64_t end = now_ns() + storm_ms_of(500) * UINT64_C(1000000);
	for (int forks = 0; forks < 10 || now_ns() < end; forks++) {
		pid_t pid = fork();
		if (!pid) {
			alarm(TEST_PATIENCE_S);
			CHECK_EQ(method_call(&p->a, NULL), STAGE_FALLBACK);
			stage_check(stage);
			pid = fork();
			if (!pid) {
				alarm(TEST_PATIENCE_S);
				stage_check(stage);
				_exit(0);
			}
			expect_exit(pid, 0);
			_exit(0);
		}
		ch_thread_park();
		expect_exit(pid, 0);
		ch_thread_unpark();
		if (forks % 4 == 0)
			stage_collect(stage);
	}
	atomic_store(&p->step, 1);
	for (int i = 0; i < 2; i++)
		stage_join(&threads[i]);
}
STAGE_CASE(codeless_children_wait_for_no_thread, _polls, STAGE_POLLS, fork_without_code)
STAGE_CASE(codeless_children_wait_for_no_thread, _signals, STAGE_SIGNALS, fork_without_code)
