/* SPDX-License-Identifier: MIT
 * spawn.c: processes made without the library's fork handlers, forks that fail, and a child's use
 * of fibers, parks and handlers from before the fork. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "codeheap/base/park.h"
#include "tests/support/stage.h"
#include "pages/pool.h"

#include <errno.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ThreadSanitizer makes vfork a fork, loses a lock over a fork on a fiber, and does not know that a
 * raised signal interrupted nothing. */
#if CH_TSAN
#define WITHOUT_TSAN(name) __attribute__((unused)) static void body_##name(struct stage *stage)
#else
#define WITHOUT_TSAN(name) EVERY_DRIVER(name)
#endif

struct play {
	struct stage *stage;
	struct method a, b, c, m;
	struct fiber fiber;
	uint64_t result;
	_Atomic(int) step;
	pid_t pid;
};

static struct play *new_play(struct stage *stage)
{
	stage->config.fork = stage_fork_kind();
	if (stage->config.fork == CH_FORK_COW)
		stage->config.backend = CH_BACKEND_AUTO;
	stage->counts_only = true;
	return stage_play(stage, sizeof(struct play));
}

static void build(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_jumper(stage, &p->a, "A");
	method_constant(stage, &p->b, "B", 2);
	method_constant(stage, &p->c, "C", 3);
	method_link(&p->a, 0, &p->b);
}

/* --- 33 --- */

static void spawn_each_way(void)
{
	char *argv[] = {(char *)"true", NULL};
	pid_t pid;
	CHECK_EQ(posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ), 0);
	expect_exit(pid, 0);
	pid = vfork();
	if (!pid) {
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	expect_exit(pid, 0);
	CHECK_EQ(system("exit 3"), 3 << 8);
	FILE *pipe = popen("echo spawned", "r");
	char line[20] = "";
	CHECK(pipe && fgets(line, sizeof line, pipe));
	CHECK_STR(line, "spawned\n");
	CHECK_EQ(pclose(pipe), 0);
}

static uint64_t spawn_in_callee(void *arg)
{
	(void)arg;
	spawn_each_way();
	return 33;
}

static unsigned forks;

static void count_fork(void)
{
	forks++;
}

EVERY_DRIVER(s33_vfork_and_posix_spawn_leave_the_heap_alone)
{
	struct play *p = new_play(stage);
	CHECK_EQ(pthread_atfork(count_fork, NULL, NULL), 0);
	stage_apart(stage, build, p);
	method_native(stage, &p->m, "spawns", (void *)spawn_in_callee);
	spawn_each_way();
	CHECK_EQ(method_call(&p->m, NULL), 33);
	if (forks && !CH_TSAN) /* TSan makes a fork of vfork */
		FAIL("spawn: handlers of fork ran");
	CHECK_EQ(method_call(&p->a, NULL), 2);
}

/* A child of vfork is this process under another number. The thread's state serves the child as
 * before, and afterwards the thread. */
WITHOUT_TSAN(s33_child_of_vfork_is_served_as_its_parent)
{
	static volatile uint64_t in_child;
	struct play *p = new_play(stage);
	stage_apart(stage, build, p);
	ch_thread_poll();
	pid_t pid = vfork();
	if (!pid) {
		ch_thread_poll();
		in_child = method_call(&p->a, NULL);
		execl("/bin/true", "true", (char *)NULL);
		_exit(1);
	}
	expect_exit(pid, 0);
	CHECK_EQ(in_child, 2);
	struct method fresh;
	method_constant(stage, &fresh, "fresh", 33);
	method_link(&p->a, 0, &p->c);
	stage_collect(stage);
	CHECK_EQ(method_call(&fresh, NULL), 33);
	CHECK_EQ(method_call(&p->a, NULL), 3);
	stage_end(p->stage);
}

/* Holds every lock that a fork takes from step 1 to step 2, in a thread of its own. */
static void hold_every_lock(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch_heap *heap = stage->heap;
	ch__ranks_rest(true); /* stage_wait parks with all locks held */
	ch__lock_parking(&ch__heaps_lock, CH__RANK_HEAPS);
	ch__registry_lock(heap);
	ch__sweep_lock(heap);
	ch__heap_lock(heap);
	ch__records_lock(heap);
	ch__freeze(heap);
	ch__pool_fork_prepare(heap->pool, false); /* the pages' */
	ch__sinks_lock(heap->sinks);
	ch__sinks_fork_files_prepare();
	atomic_store(&p->step, 1);
	stage_wait(&p->step, 2);
	ch__sinks_fork_files_done(false);
	ch__sinks_unlock(heap->sinks);
	ch__pool_fork_parent(heap->pool);
	ch__unfreeze(heap);
	ch__records_unlock(heap);
	ch__heap_unlock(heap);
	ch__sweep_unlock(heap);
	ch__registry_unlock(heap);
	ch__lock_release(&ch__heaps_lock, CH__RANK_HEAPS);
	ch__ranks_rest(false);
}

WITHOUT_TSAN(s33_processes_are_made_while_a_thread_holds_every_lock)
{
	struct play *p = new_play(stage);
	struct stage_thread thread;
	stage_apart(stage, build, p);
	stage_spawn(stage, &thread, hold_every_lock, p);
	stage_wait(&p->step, 1);
	spawn_each_way();
	CHECK_EQ(method_call(&p->a, NULL), 2);
	atomic_store(&p->step, 2);
	stage_join(&thread);
	stage_end(p->stage);
}

static void read_whole(int fd, char *text, size_t bytes)
{
	size_t used = 0;
	ssize_t n;
	while (used < bytes - 1 && (n = read(fd, text + used, bytes - 1 - used)) > 0)
		used += (size_t)n;
	CHECK(used < bytes - 1);
	text[used] = 0;
}

/* Memory of code, perf map and dump stay this process's: the descriptors close on exec. */
EVERY_DRIVER(s33_spawned_program_inherits_no_file)
{
	static char folder[] = "/tmp/ch-spawn-XXXXXX", listed[8192];
	int memfd = memfd_create("other", MFD_CLOEXEC);
	/* Where memfds are denied, files without a name serve: "/dev/shm/#12 (deleted)". */
	const char *const ours[] = {memfd < 0 ? "/#" : "memfd:codeheap", folder};
	close(memfd);
	unsetenv("CODEHEAP_WX");
	CHECK(mkdtemp(folder));
	CHECK_EQ(setenv("CODEHEAP_PERF_MAP_DIR", folder, 1), 0);
	stage->config.jitdump_dir = folder;
	stage->config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP | CH_SINK_JITDUMP;
	stage->config.backend = CH_BACKEND_MEMFD;
	struct play *p = new_play(stage);
	const char *path;
	char files[2][200];
	CHECK(ch_sink_status(stage->heap, CH_SINK_PERF_MAP, &path, NULL));
	snprintf(files[0], sizeof files[0], "%s", path);
	CHECK(ch_sink_status(stage->heap, CH_SINK_JITDUMP, &path, NULL));
	snprintf(files[1], sizeof files[1], "%s", path);
	stage_apart(stage, build, p);
	for (unsigned i = 0; i < sizeof ours / sizeof ours[0]; i++)
		if (descriptor_of(ours[i]) < 0)
			FAIL("spawn: this process has no descriptor of %s", ours[i]);
	char *argv[] = {(char *)"ls", (char *)"-l", (char *)"/proc/self/fd", NULL};
	posix_spawn_file_actions_t actions;
	int ends[2];
	pid_t pid;
	CHECK_EQ(pipe(ends), 0);
	CHECK_EQ(posix_spawn_file_actions_init(&actions), 0);
	CHECK_EQ(posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO), 0);
	CHECK_EQ(posix_spawn(&pid, "/bin/ls", &actions, NULL, argv, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	read_whole(ends[0], listed, sizeof listed);
	close(ends[0]);
	expect_exit(pid, 0);
	CHECK(strstr(listed, "->"));
	for (unsigned i = 0; i < sizeof ours / sizeof ours[0]; i++)
		if (strstr(listed, ours[i]))
			FAIL("spawn: the program has a descriptor of ours: %s", listed);
	CHECK_EQ(method_call(&p->a, NULL), 2);
	stage_end(p->stage);
	CHECK_EQ(unlink(files[0]), 0);
	CHECK_EQ(unlink(files[1]), 0);
	CHECK_EQ(rmdir(folder), 0);
}

/* --- fork and exec --- */

EVERY_DRIVER(child_of_fork_replaces_itself)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build, p);
	for (int i = 0; i < 3; i++) {
		pid_t pid = fork();
		if (!pid) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(1);
		}
		expect_exit(pid, 0);
	}
	CHECK_EQ(method_call(&p->a, NULL), 2);
}

/* --- a fork that fails --- */

/* The handlers of the parent run all the same: nothing stays locked, frozen or mapped. */
static void fail_to_fork(struct stage *stage)
{
	struct rlimit limit, none;
	/* The limit does not bind root. */
	if (geteuid() == 0)
		CHECK_EQ(setresuid(65534, 65534, 65534), 0);
	/* After a change of user a process may not open its /proc/self/mem. */
	CHECK_EQ(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), 0);
	struct play *p = new_play(stage);
	stage_apart(stage, build, p);
	CHECK_EQ(getrlimit(RLIMIT_NPROC, &limit), 0);
	none = limit;
	none.rlim_cur = 0;
	CHECK_EQ(setrlimit(RLIMIT_NPROC, &none), 0);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(fork(), -1);
		CHECK_EQ(errno, EAGAIN);
		method_link(&p->a, 0, i % 2 ? &p->b : &p->c);
		CHECK_EQ(method_call(&p->a, NULL), i % 2 ? 2 : 3);
		stage_collect(stage);
		stage_check(stage);
	}
	CHECK_EQ(setrlimit(RLIMIT_NPROC, &limit), 0);
	pid_t pid = fork();
	if (!pid) {
		CHECK_EQ(method_call(&p->a, NULL), 3);
		method_link(&p->a, 0, &p->b);
		CHECK_EQ(method_call(&p->a, NULL), 2);
		_exit(0);
	}
	expect_exit(pid, 0);
	CHECK_EQ(method_call(&p->a, NULL), 3);
}

EVERY_DRIVER(fork_that_fails_leaves_the_heap_as_it_was)
{
	fail_to_fork(stage);
}

/* --- fibers and parks --- */

static uint64_t yield_in_callee(void *arg)
{
	struct play *p = arg;
	fiber_yield(&p->fiber);
	return 21;
}

static void run_in_fiber(struct fiber *f, void *arg)
{
	struct play *p = arg;
	(void)f;
	p->result = method_call(&p->m, p);
}

static void build_yielder(struct stage *stage, void *arg)
{
	struct play *p = arg;
	build(stage, p);
	method_native(stage, &p->m, "yields", (void *)yield_in_callee);
}

static void start_fiber_here(struct stage *stage, void *arg)
{
	struct play *p = arg;
	fiber_start(stage, &p->fiber, run_in_fiber, p);
	fiber_resume(&p->fiber);
}

static void fill_and_drop(struct stage *stage, void *arg)
{
	(void)arg;
	for (int i = 0; i < 200; i++) {
		struct method m;
		method_constant(stage, &m, "other", 1);
		method_drop(stage, &m);
	}
}

static void finish_fiber(struct play *p)
{
	struct stage *stage = p->stage;
	/* Only the fiber's frame holds the code. */
	method_drop(stage, &p->m);
	for (int i = 0; i < 3; i++) {
		fill_and_drop(stage, NULL);
		stage_collect(stage);
		CHECK(method_is_known(&p->m));
	}
	fiber_resume(&p->fiber);
	CHECK(p->fiber.is_done);
	CHECK_EQ(p->result, 21);
	fiber_end(&p->fiber);
}

/* A fiber suspended by a thread that is not in the child goes on in parent and child. */
EVERY_DRIVER(suspended_fiber_goes_on_in_parent_and_child)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_yielder, p);
	stage_apart(stage, start_fiber_here, p);
	pid_t pid = fork();
	if (!pid) {
		alarm(TEST_PATIENCE_S);
		CHECK_EQ(stage_stats(stage).fibers_now, 1);
		finish_fiber(p);
		stage_check(stage);
		_exit(0);
	}
	finish_fiber(p);
	expect_exit(pid, 0);
}

/* libgc scans from sp to the end of the thread's own stack. The VM must tell of other stacks. */
static void collect_on_another_stack(struct stage *stage)
{
	if (stage->driver != STAGE_BOEHM)
		stage_collect(stage);
}

static uint64_t fork_in_fiber(void *arg)
{
	struct play *p = arg;
	p->pid = fork();
	if (!p->pid) {
		alarm(TEST_PATIENCE_S);
		fill_and_drop(p->stage, NULL);
		collect_on_another_stack(p->stage);
	}
	fiber_yield(&p->fiber);
	return 21;
}

static void build_forker(struct stage *stage, void *arg)
{
	struct play *p = arg;
	build(stage, p);
	method_native(stage, &p->m, "forks", (void *)fork_in_fiber);
}

/* The fork is on the fiber's stack. Both processes leave the fiber, and come back to the fiber. */
WITHOUT_TSAN(fork_on_a_fiber_goes_on_in_parent_and_child)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_forker, p);
	start_fiber_here(stage, p);
	bool is_child = !p->pid;
	finish_fiber(p);
	CHECK_EQ(method_call(&p->a, NULL), 2);
	stage_check(stage);
	if (is_child)
		_exit(0);
	expect_exit(p->pid, 0);
	stage_end(p->stage);
}

/* A parked thread forks. The child is parked, too, until its unpark. */
EVERY_DRIVER(parked_thread_forks)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build, p);
	ch_thread_park();
	ch_thread_park();
	pid_t pid = fork();
	ch_thread_unpark();
	ch_thread_unpark();
	method_link(&p->a, 0, pid ? &p->b : &p->c);
	fill_and_drop(stage, NULL);
	stage_collect(stage);
	CHECK_EQ(method_call(&p->a, NULL), pid ? 2 : 3);
	stage_check(stage);
	if (!pid)
		_exit(0);
	expect_exit(pid, 0);
}

/* --- a handler that interrupted code --- */

static struct play *interrupted;

static void fork_in_handler(int signal)
{
	(void)signal;
	interrupted->pid = fork();
	if (interrupted->pid)
		return;
	alarm(TEST_PATIENCE_S);
	/* On the signal stack: the frame of code lies on the thread's stack. */
	collect_on_another_stack(interrupted->stage);
}

static uint64_t raise_in_callee(void *arg)
{
	struct play *p = arg;
	method_drop(p->stage, &p->m);
	CHECK_EQ(raise(SIGUSR1), 0);
	return 12;
}

static void build_raiser(struct stage *stage, void *arg)
{
	struct play *p = arg;
	build(stage, p);
	method_native(stage, &p->m, "raises", (void *)raise_in_callee);
}

WITHOUT_TSAN(handler_on_top_of_code_forks)
{
	struct play *p = new_play(stage);
	interrupted = p;
	stage_apart(stage, build_raiser, p);
	stack_t stack = {.ss_size = 256 << 10};
	stack.ss_sp = malloc(stack.ss_size);
	CHECK(stack.ss_sp);
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	struct sigaction action = {.sa_handler = fork_in_handler, .sa_flags = SA_ONSTACK};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	CHECK_EQ(method_call(&p->m, p), 12);
	bool is_child = !p->pid;
	CHECK_EQ(method_call(&p->a, NULL), 2);
	stage_collect(stage);
	stage_check(stage);
	if (is_child)
		_exit(0);
	expect_exit(p->pid, 0);
	stack.ss_flags = SS_DISABLE;
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	free(stack.ss_sp);
	stage_end(p->stage);
}
