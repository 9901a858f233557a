/* SPDX-License-Identifier: MIT
 * profile.c: profiles in processes that fork and make processes, started and stopped beside threads
 * that come and go, by several threads at once, and while heaps, vms and threads of the profile
 * end. */
#define _GNU_SOURCE
#include "codeheap/profile.h"
#include "tests/support/folded_reader.h"
#include "tests/support/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { THREADS = 3, RATE = 2000 };

/* ThreadSanitizer holds signals back until a thread calls something, so no signal interrupts code,
 * and lets no child of a fork start a thread. */
#if CH_TSAN
#define SAMPLED_DRIVER(name) __attribute__((unused)) static void body_##name(struct stage *stage)
#else
#define SAMPLED_DRIVER(name) THREADED_DRIVER(name)
#endif

struct play {
	struct stage *stage;
	struct method spinner;
	_Atomic(bool) is_over;
	_Atomic(unsigned) rounds, starts, stops, writes;
	char path[64];
};

static struct play *new_play(struct stage *stage)
{
	stage->counts_only = true;
	struct play *p = stage_play(stage, sizeof *p);
	snprintf(p->path, sizeof p->path, "/tmp/codeheap-profile-%d.folded", getpid());
	return p;
}

static const struct ch_profile_options by_wall_clock = {.size = sizeof by_wall_clock,
							.by_wall_clock = true};
static const struct ch_profile_view folded = {.size = sizeof folded, .flags = CH_PROFILE_FOLDED};

static void start(struct play *p)
{
	CHECK_EQ(ch_profile_start(p->stage->heap, RATE, &by_wall_clock), CH_OK);
}

static struct ch_profile_counts stop(struct play *p)
{
	struct ch_profile_counts counts = {.size = sizeof counts};
	CHECK_EQ(ch_profile_stop(p->stage->heap, &counts), CH_OK);
	return counts;
}

/* Spins in code, for some tens of microseconds a call. */
static void make_spinner(struct stage *stage, struct method *m, const char *name)
{
	struct emitter e;
	enum ch_status status = CH_E_STALE;
	method_new(stage, m, name);
	while (status != CH_OK) { /* a newborn block may die in a cycle */
		method_open(&e, m);
		emit_frame(&e);
		emit_count_down(&e, 60000);
		emit_frame_end(&e);
		emit_answer(&e, 5);
		method_commit_only(&e, m);
		status = ch_owner_set_entry(m->owner, m->block);
		CHECK(status == CH_OK || status == CH_E_STALE);
	}
}

static void spin(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->is_over)) {
		CHECK_EQ(method_call(&p->spinner, NULL), 5);
		atomic_fetch_add(&p->rounds, 1);
		stage_poll(stage);
	}
}

/* Attaches and detaches without end. */
static void *come_and_go(void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->is_over)) {
		CHECK_EQ(ch_thread_attach(p->stage->heap, NULL, NULL), CH_OK);
		for (int i = 0; i < 3; i++)
			CHECK_EQ(method_call(&p->spinner, NULL), 5);
		ch_thread_poll();
		CHECK_EQ(ch_thread_detach(p->stage->heap), CH_OK);
		atomic_fetch_add(&p->rounds, 1);
	}
	return NULL;
}

static uint64_t read_profile(struct play *p, const char *frame)
{
	CHECK_EQ(ch_profile_write(p->stage->heap, p->path, &folded), CH_OK);
	uint64_t weight =
		frame ? folded_weight_of(p->path, frame) : folded_read(p->path, NULL, NULL);
	CHECK_EQ(unlink(p->path), 0);
	return weight;
}

static void wait_for_rounds(struct play *p, unsigned more)
{
	unsigned until = atomic_load(&p->rounds) + more;
	TEST_UNTIL((int)(atomic_load(&p->rounds) - until) >= 0)
		stage_sleep(1);
}

/* --- processes --- */

/* Runs in a child: the profile is the parent's, and the child may start a profile of its own. */
static void profile_in_child(struct play *p)
{
	struct ch_heap *heap = p->stage->heap;
	struct method own;
	CHECK_EQ(ch_profile_stop(heap, NULL), CH_E_STATE);
	CHECK_EQ(ch_profile_write(heap, p->path, &folded), CH_E_STATE);
	snprintf(p->path, sizeof p->path, "/tmp/codeheap-profile-%d.folded", getpid());
	make_spinner(p->stage, &own, "only in the child");
	start(p);
	uint64_t end = now_ns() + UINT64_C(50000000), samples = 0;
	TEST_UNTIL(now_ns() >= end && samples >= 5) {
		for (int i = 0; i < 100; i++)
			CHECK_EQ(method_call(&own, NULL), 5);
		samples = read_profile(p, "only in the child");
	}
	struct ch_profile_counts counts = stop(p);
	CHECK_EQ(counts.threads, 1);
	CHECK_EQ(read_profile(p, NULL), counts.samples + counts.dropped);
	CHECK_EQ(read_profile(p, "spinner"), 0);
	_exit(0);
}

static void make_processes(struct play *p, int round)
{
	pid_t child = fork_child();
	if (child == 0 && round % 3 == 0)
		profile_in_child(p);
	if (child == 0 && round % 3 == 1)
		_exit(0);
	if (child == 0) {
		CHECK_EQ(method_call(&p->spinner, NULL), 5);
		CHECK_EQ(ch_profile_stop(p->stage->heap, NULL), CH_E_STATE);
		_exit(0);
	}
	ch_thread_park();
	expect_exit(child, 0);
	child = vfork();
	if (child == 0)
		_exit(7);
	CHECK(child > 0);
	expect_exit(child, 7);
	char *const words[] = {"true", NULL};
	CHECK_EQ(posix_spawn(&child, "/bin/true", NULL, NULL, words, environ), 0);
	expect_exit(child, 0);
	ch_thread_unpark();
}

SAMPLED_DRIVER(process_that_forks_while_sampled)
{
	skip_if_allocator_forgets_forks();
	stage->config.fork = stage_fork_kind();
	struct play *p = new_play(stage);
	struct stage_thread threads[THREADS];
	make_spinner(stage, &p->spinner, "spinner");
	start(p);
	for (int i = 0; i < THREADS; i++)
		stage_spawn(stage, &threads[i], spin, p);
	for (int round = 0; round < 9; round++) {
		wait_for_rounds(p, 20);
		make_processes(p, round);
	}
	uint64_t before = read_profile(p, "spinner");
	/* Sampling goes on after the last fork. */
	TEST_UNTIL(read_profile(p, "spinner") >= before + 20)
		stage_sleep(5);
	atomic_store(&p->is_over, true);
	for (int i = 0; i < THREADS; i++)
		stage_join(&threads[i]);
	struct ch_profile_counts counts = stop(p);
	CHECK_EQ(counts.threads, THREADS + 1);
	CHECK_EQ(read_profile(p, NULL), counts.samples + counts.dropped);
	CHECK_EQ(read_profile(p, "only in the child"), 0);
	method_drop(stage, &p->spinner);
}

/* --- start and stop --- */

static unsigned count_of(const char *folder)
{
	unsigned n = 0;
	char command[64];
	snprintf(command, sizeof command, "ls %s | wc -l", folder);
	FILE *f = popen(command, "r");
	CHECK(f && fscanf(f, "%u", &n) == 1);
	pclose(f);
	return n;
}

TEST_LIMIT(profile_starts_and_stops_ten_thousand_times, 120)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	struct play *p = new_play(stage);
	pthread_t threads[THREADS];
	bool is_slow = TEST_SANITIZED || getenv("CODEHEAP_TEST_SLOW");
	const int times = is_slow ? 500 : storm_ms_of(5000) < 5000 ? 1000 : 10000;
	make_spinner(stage, &p->spinner, "spinner");
	ch_thread_park();
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, come_and_go, p), 0);
	uint64_t samples = 0, bytes = 0;
	for (int i = 0; i < times; i++) {
		start(p);
		if (i % 100 == 0)
			stage_sleep(3);
		struct ch_profile_counts counts = stop(p);
		samples += counts.samples;
		if (i == times / 10)
			bytes = stage_stats(stage).metadata_bytes_now;
	}
	/* Only the last profile is kept, with perhaps some more stacks. */
	CHECK(stage_stats(stage).metadata_bytes_now < bytes + (1 << 20));
	/* On a busy machine the profiles may have been too short for a sample. */
	while (!samples || !atomic_load(&p->rounds)) {
		start(p);
		stage_sleep(3);
		samples += stop(p).samples;
	}
	atomic_store(&p->is_over, true);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	/* Sanitizers have threads of their own. A joined thread leaves the list when it runs once
	 * more. */
	while (!TEST_SANITIZED && count_of("/proc/$PPID/task") != 1)
		stage_sleep(1);
	ch_thread_unpark();
	method_drop(stage, &p->spinner);
	stage_end(stage);
}

static void *start_and_stop(void *arg)
{
	struct play *p = arg;
	struct ch_heap *heap = p->stage->heap;
	char path[100];
	snprintf(path, sizeof path, "%s.%lx", p->path, (unsigned long)pthread_self());
	for (unsigned i = 0; !atomic_load(&p->is_over); i++) {
		enum ch_status status =
			ch_profile_start(heap, 1 + i * 97 % 20000, i % 2 ? &by_wall_clock : NULL);
		CHECK(status == CH_OK || status == CH_E_STATE);
		atomic_fetch_add(&p->starts, status == CH_OK);
		if (i % 8 == 0) {
			status = ch_profile_write(heap, path, &folded);
			CHECK(status == CH_OK || status == CH_E_STATE);
			if (status == CH_OK)
				folded_read(path, NULL, NULL);
			atomic_fetch_add(&p->writes, status == CH_OK);
		}
		status = ch_profile_stop(heap, NULL);
		CHECK(status == CH_OK || status == CH_E_STATE);
		atomic_fetch_add(&p->stops, status == CH_OK);
	}
	(void)unlink(path);
	return NULL;
}

THREADED_DRIVER(several_threads_start_stop_and_write)
{
	struct play *p = new_play(stage);
	pthread_t threads[THREADS];
	struct stage_thread spinner;
	make_spinner(stage, &p->spinner, "spinner");
	stage_spawn(stage, &spinner, spin, p);
	/* These threads are not attached: a start or a stop needs no attached thread. */
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, start_and_stop, p), 0);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	while (now_ns() < end || !p->writes || p->starts <= 10) {
		(void)stage_cycle_came(stage, stage_try_collect(stage));
		stage_sleep(1);
	}
	atomic_store(&p->is_over, true);
	ch_thread_park();
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	ch_thread_unpark();
	stage_join(&spinner);
	CHECK_EQ(p->starts, p->stops);
	CHECK(p->starts > 10);
	CHECK_EQ(ch_profile_stop(stage->heap, NULL), CH_E_STATE);
	method_drop(stage, &p->spinner);
}

/* --- ends --- */

EVERY_DRIVER(heap_is_destroyed_while_sampled)
{
	struct play *p = new_play(stage);
	make_spinner(stage, &p->spinner, "spinner");
	CHECK_EQ(ch_profile_start(stage->heap, 20000, &by_wall_clock), CH_OK);
	TEST_UNTIL(CH_TSAN || read_profile(p, "spinner"))
		CHECK_EQ(method_call(&p->spinner, NULL), 5);
	method_drop(stage, &p->spinner);
	stage_end(stage);
	usleep(20000); /* late signals find no heap, and do no harm */
}

/* Ends without a word to the heap. */
static void *leave_without_a_word(void *arg)
{
	CHECK_EQ(ch_thread_attach(arg, NULL, NULL), CH_OK);
	for (volatile int i = 0; i < 1000000; i++)
		continue;
	ch_thread_park();
	return NULL;
}

TEST(threads_that_end_while_sampled_take_nothing_with_them)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	struct play *p = new_play(stage);
	make_spinner(stage, &p->spinner, "spinner");
	CHECK_EQ(ch_profile_start(stage->heap, 10000, &by_wall_clock), CH_OK);
	for (int i = 0; i < 50; i++) {
		pthread_t thread;
		ch_thread_park();
		CHECK_EQ(pthread_create(&thread, NULL, leave_without_a_word, stage->heap), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		ch_thread_unpark();
		CHECK_EQ(method_call(&p->spinner, NULL), 5);
	}
	struct ch_profile_counts counts = stop(p);
	CHECK_EQ(counts.threads, 51);
	CHECK_EQ(read_profile(p, NULL), counts.samples + counts.dropped);
	start(p);
	(void)stop(p);
	method_drop(stage, &p->spinner);
	stage_end(stage);
}

/* --- alternate signal stacks --- */

static struct play *signalled;

static void spin_in_handler(int signal)
{
	(void)signal;
	for (int i = 0; i < 200; i++)
		CHECK_EQ(method_call(&signalled->spinner, NULL), 5);
}

SAMPLED_DRIVER(code_on_a_signal_stack_is_sampled)
{
	enum { STACK_BYTES = 256 << 10 };
	struct play *p = new_play(stage);
	static uint8_t stack[STACK_BYTES] __attribute__((aligned(16)));
	stack_t its = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction action = {.sa_handler = spin_in_handler, .sa_flags = SA_ONSTACK};
	signalled = p;
	make_spinner(stage, &p->spinner, "spinner");
	stage_signal_stack(stage, stack, sizeof stack);
	CHECK_EQ(sigaltstack(&its, NULL), 0);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	start(p);
	TEST_UNTIL(read_profile(p, "spinner") >= 50) {
		CHECK_EQ(raise(SIGUSR1), 0);
		stage_collect(stage);
	}
	struct ch_profile_counts counts = stop(p);
	CHECK_EQ(read_profile(p, NULL), counts.samples + counts.dropped);
	method_drop(stage, &p->spinner);
	its.ss_flags = SS_DISABLE;
	CHECK_EQ(sigaltstack(&its, NULL), 0);
}
