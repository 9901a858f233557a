/* SPDX-License-Identifier: MIT
 * world.c: stopping the world: each way to stop, threads that do not stop, threads that come and go
 * while a cycle waits, threads of two heaps, the first stack of a process. The registers of stopped
 * threads are tested in stops.c. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { STUBBORN = 2 };

struct play {
	_Atomic(int) go; /* +0: 1 code spins, 2 code may go on */
	_Atomic(int) step, ready, done;
	_Atomic(uint64_t) calls;
	struct stage *stage;
	struct method m[3];
	struct method dropped;
	struct ch_heap *other;
	bool is_told; /* m[0] sets go to 1 when entered */
	_Atomic(int) both; /* the number of the thread of both heaps */
};

static struct play *new_play(struct stage *stage)
{
	struct play *p = stage_memory(stage, sizeof *p);
	p->stage = stage;
	stage_start(stage);
	return p;
}

/* No poll, no call. With `tells` the code writes 1 first. */
static void build_spinner(struct stage *stage, struct method *m, bool tells)
{
	struct emitter e;
	method_new(stage, m, "spinner");
	method_open(&e, m);
	if (tells)
		emit_tell(&e, 1);
	emit_wait_for(&e, 2);
	emit_answer(&e, 6);
	method_commit(&e, m);
}

/* --- one cycle, each way to stop --- */

static uint64_t poll_until_told(void *arg)
{
	struct play *p = arg;
	atomic_fetch_add(&p->ready, 1);
	while (!atomic_load(&p->step))
		ch_thread_poll();
	return 4;
}

static uint64_t park_until_told(void *arg)
{
	struct play *p = arg;
	atomic_fetch_add(&p->ready, 1);
	stage_wait(&p->step, 1);
	return 5;
}

static void build_ways(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m[0], "polls", (void *)poll_until_told);
	method_native(stage, &p->m[1], "parks", (void *)park_until_told);
	build_spinner(stage, &p->m[2], true);
}

static void enter_0(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	CHECK_EQ(method_call(&p->m[0], p), 4);
}

static void enter_1(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	CHECK_EQ(method_call(&p->m[1], p), 5);
}

static void enter_2(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	CHECK_EQ(method_call(&p->m[2], p), 6);
}

STOPPING_DRIVER(threads_stop_by_poll_and_park_and_signal_in_one_cycle)
{
	struct play *p = new_play(stage);
	struct stage_thread t[3];
	stage_apart(stage, build_ways, p);
	stage_spawn(stage, &t[0], enter_0, p);
	stage_spawn(stage, &t[1], enter_1, p);
	stage_spawn(stage, &t[2], enter_2, p);
	stage_wait(&p->go, 1);
	stage_wait(&p->ready, 2);
	for (int i = 0; i < 3; i++) {
		method_invalidate(&p->m[i]);
		method_drop(stage, &p->m[i]);
	}
	for (int round = 0; round < 10; round++) {
		stage_collect(stage);
		for (int i = 0; i < 3; i++)
			CHECK_EQ(block_state(p->m[i].block), CH_BLOCK_NOTENTRANT);
	}
	atomic_store(&p->step, 1);
	atomic_store(&p->go, 2);
	for (int i = 0; i < 3; i++)
		stage_join(&t[i]);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
	CHECK_EQ(stage_stats(stage).cycles_abandoned, 0);
}

/* --- threads that do not stop --- */

static void block_stop_signal(void)
{
	sigset_t set;
	CHECK_EQ(sigemptyset(&set), 0);
	CHECK_EQ(sigaddset(&set, STAGE_STOP_SIGNAL), 0);
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
}

static void spin_deaf(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	block_stop_signal();
	atomic_fetch_add(&p->ready, 1);
	CHECK_EQ(method_call(&p->m[0], p), 6);
}

/* The work of other threads meanwhile. */
static void work(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	while (!atomic_load(&p->step)) {
		CHECK_EQ(method_call(&p->m[1], NULL), 1);
		struct emitter e;
		method_open(&e, &p->m[1]);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		atomic_fetch_add(&p->calls, 1);
		ch_thread_poll();
	}
}

static void build_for_deaf(struct stage *stage, void *arg)
{
	struct play *p = arg;
	build_spinner(stage, &p->m[0], p->is_told);
	/* Not last: while the worker opens a block behind the last code, its frames have the
	 * address where that code ends, which may be a return address into the code. */
	method_constant(stage, &p->dropped, "dropped", 2);
	method_constant(stage, &p->m[1], "live", 1);
}

/* The wait ends while the threads still spin, so the wait is bounded. */
static void expect_busy(struct play *p, unsigned wait_ms)
{
	struct stage *stage = p->stage;
	struct ch_stats before = stage_stats(stage);
	uint64_t calls = atomic_load(&p->calls), start = now_ns();
	CHECK_EQ(stage_try_collect(stage), CH_E_BUSY);
	uint64_t ms = (now_ns() - start) / 1000000;
	if (ms < wait_ms)
		FAIL("waited %llu ms, not %u", (unsigned long long)ms, wait_ms);
	struct ch_stats after = stage_stats(stage);
	/* On a busy machine the worker may be held up with the heap's lock: no cycle began then. */
	if (after.cycles_abandoned == before.cycles_abandoned) {
		expect_busy(p, wait_ms);
		return;
	}
	CHECK_EQ(after.cycles_abandoned, before.cycles_abandoned + 1);
	CHECK_EQ(after.cycles, before.cycles);
	CHECK_EQ(after.blocks_freed, before.blocks_freed);
	CHECK(method_is_known(&p->dropped));
	/* The check waits as long as a stop, and the worker may be held up with a lock. */
	uint32_t stop_wait_ms = stage->heap->config.stop_wait_ms;
	stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	stage_check(stage);
	stage->heap->config.stop_wait_ms = stop_wait_ms;
	/* Other threads go on: no region is frozen, no thread is held in a poll. */
	while (atomic_load(&p->calls) < calls + 3)
		stage_pause();
	CHECK_EQ(ch_owner_set_entry(p->m[1].owner, p->m[1].block), CH_OK);
}

static void wait_in_vain(struct stage *stage, unsigned configured_ms, unsigned wait_ms, int times)
{
	stage->config.stop_wait_ms = configured_ms;
	struct play *p = new_play(stage);
	struct stage_thread deaf[STUBBORN], worker;
	stage_apart(stage, build_for_deaf, p);
	for (int i = 0; i < STUBBORN; i++)
		stage_spawn(stage, &deaf[i], spin_deaf, p);
	stage_wait(&p->ready, STUBBORN);
	stage_spawn(stage, &worker, work, p);
	method_drop(stage, &p->dropped);
	for (int i = 0; i < times; i++)
		expect_busy(p, wait_ms);
	atomic_store(&p->go, 2);
	for (int i = 0; i < STUBBORN; i++)
		stage_join(&deaf[i]);
	/* The worker stops when it gets to run. */
	stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	stage_collect(stage);
	CHECK(!method_is_known(&p->dropped));
	CHECK(method_is_known(&p->m[1]));
	atomic_store(&p->step, 1);
	stage_join(&worker);
	stage_end(p->stage);
}

static void give_up_thrice(struct stage *stage)
{
	wait_in_vain(stage, 60, 60, 3);
}
STAGE_CASE(cycle_is_given_up_in_time_and_the_next_one_works, _polls, STAGE_POLLS, give_up_thrice)
STAGE_CASE(cycle_is_given_up_in_time_and_the_next_one_works, _signals, STAGE_SIGNALS,
	   give_up_thrice)
STAGE_HOST_THAT_STOPS_CASE(cycle_is_given_up_in_time_and_the_next_one_works, STAGE_STOP_SIGNAL,
			   give_up_thrice)

static void give_up_once(struct stage *stage)
{
	wait_in_vain(stage, 0, 1000, 1);
}
STAGE_CASE(cycle_waits_a_second_where_nothing_is_configured, _polls, STAGE_POLLS, give_up_once)

static void discard_in_vain(struct stage *stage)
{
	stage->config.stop_wait_ms = 60;
	struct play *p = new_play(stage);
	struct stage_thread deaf;
	p->is_told = true;
	stage_apart(stage, build_for_deaf, p);
	stage_spawn(stage, &deaf, spin_deaf, p);
	stage_wait(&p->go, 1);
	for (int i = 0; i < 3; i++) {
		size_t freed, kept;
		CHECK_EQ(ch_vm_discard(stage->heap, NULL, &freed, &kept), CH_E_BUSY);
		CHECK_EQ(freed, 0);
		CHECK_EQ(kept, 3);
		for (int k = 0; k < 2; k++)
			CHECK(method_has_fallback(&p->m[k]));
		CHECK_EQ(block_state(p->dropped.block), CH_BLOCK_NOTENTRANT);
	}
	atomic_store(&p->go, 2);
	stage_join(&deaf);
	size_t freed, kept;
	CHECK_EQ(ch_vm_discard(stage->heap, NULL, &freed, &kept), CH_OK);
	CHECK_EQ(freed, 3);
	CHECK_EQ(kept, 0);
}
STAGE_CASE(discard_without_a_thread_invalidates_all_and_frees_nothing, _polls, STAGE_POLLS,
	   discard_in_vain)
STAGE_CASE(discard_without_a_thread_invalidates_all_and_frees_nothing, _signals, STAGE_SIGNALS,
	   discard_in_vain)

/* --- the VM's own way to stop, which may fail --- */

struct own_world {
	bool refuses;
	int stops, resumes;
};

static bool stop_own(void *user)
{
	struct own_world *w = user;
	w->stops += !w->refuses;
	return !w->refuses;
}

static void resume_own(void *user)
{
	((struct own_world *)user)->resumes++;
}

static void refuse_one(struct stage *stage)
{
	enum { VMS = 3 };
	struct play *p = new_play(stage);
	struct ch_ops ops = {
		.size = sizeof ops, .stop_world = stop_own, .resume_world = resume_own};
	struct own_world worlds[VMS] = {{.refuses = false}};
	struct ch_vm *vms[VMS];
	struct stage_thread worker;
	for (int i = 0; i < VMS; i++)
		CHECK_EQ(ch_vm_attach(stage->heap, &ops, &worlds[i], &vms[i]), CH_OK);
	stage_apart(stage, build_for_deaf, p);
	stage_spawn(stage, &worker, work, p);
	method_drop(stage, &p->dropped);
	for (int refuser = 0; refuser < VMS; refuser++) {
		worlds[refuser].refuses = true;
		expect_busy(p, 0);
		worlds[refuser].refuses = false;
		for (int i = 0; i < VMS; i++)
			CHECK_EQ(worlds[i].stops, worlds[i].resumes);
	}
	CHECK(worlds[0].stops + worlds[1].stops + worlds[2].stops > 0);
	stage_collect(stage);
	for (int i = 0; i < VMS; i++)
		CHECK_EQ(worlds[i].stops, worlds[i].resumes);
	CHECK(!method_is_known(&p->dropped));
	atomic_store(&p->step, 1);
	stage_join(&worker);
	for (int i = 0; i < VMS; i++)
		CHECK_EQ(ch_vm_detach(vms[i]), CH_OK);
}
STAGE_CASE(vm_that_does_not_stop_its_world_stops_nobody_elses, _polls, STAGE_POLLS, refuse_one)
STAGE_CASE(vm_that_does_not_stop_its_world_stops_nobody_elses, _signals, STAGE_SIGNALS, refuse_one)

/* --- threads that come and go while a cycle waits --- */

static bool is_stopping(const struct ch_heap *heap)
{
	return atomic_load(&heap->stopping) != 0;
}

static void wait_for_stop(const struct ch_heap *heap)
{
	TEST_UNTIL(is_stopping(heap))
		continue;
}

/* Holds the cycle up until the other threads are on the way. */
static void hold_up(struct stage *stage, void *arg)
{
	struct play *p = arg;
	atomic_fetch_add(&p->ready, 1);
	wait_for_stop(stage->heap);
	while (atomic_load(&p->step) < 2)
		continue;
	usleep(20000);
	atomic_store(&p->done, 1);
	while (is_stopping(stage->heap))
		ch_thread_poll();
}

static void go_meanwhile(struct stage *stage, void *arg)
{
	struct play *p = arg;
	atomic_fetch_add(&p->ready, 1);
	wait_for_stop(stage->heap);
	atomic_fetch_add(&p->step, 1);
	CHECK_EQ(ch_thread_detach(stage->heap), CH_OK);
	CHECK_EQ(atomic_load(&p->done), 1);
	CHECK_EQ(ch_thread_attach(stage->heap, NULL, NULL), CH_OK);
}

static void *come_meanwhile(void *arg)
{
	struct play *p = arg;
	wait_for_stop(p->stage->heap);
	atomic_fetch_add(&p->step, 1);
	CHECK_EQ(ch_thread_attach(p->stage->heap, NULL, NULL), CH_OK);
	CHECK_EQ(atomic_load(&p->done), 1);
	struct method m;
	method_constant(p->stage, &m, "new thread's", 8);
	CHECK_EQ(method_call(&m, NULL), 8);
	method_drop(p->stage, &m);
	CHECK_EQ(ch_thread_detach(p->stage->heap), CH_OK);
	return NULL;
}

static void come_and_go(struct stage *stage)
{
	struct play *p = new_play(stage);
	stage->counts_only = true;
	struct stage_thread t[2];
	pthread_t newcomer;
	stage_spawn(stage, &t[0], hold_up, p);
	stage_spawn(stage, &t[1], go_meanwhile, p);
	stage_wait(&p->ready, 2);
	CHECK_EQ(pthread_create(&newcomer, NULL, come_meanwhile, p), 0);
	stage_collect(stage);
	join_parked(newcomer);
	for (int i = 0; i < 2; i++)
		stage_join(&t[i]);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).threads_now, 1);
	CHECK_EQ(stage_stats(stage).cycles_abandoned, 0);
}
STAGE_CASE(threads_attach_and_detach_while_a_cycle_waits, _polls, STAGE_POLLS, come_and_go)
STAGE_HOST_THAT_STOPS_CASE(threads_attach_and_detach_while_a_cycle_waits, 0, come_and_go)

/* --- a thread of two heaps --- */

/* Less than for the first heap: a cycle that waits for the first's thread is given up first. */
enum { OTHER_WAIT_MS = 20000 };

static void collect_first(struct stage *stage, void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_thread_attach(p->other, NULL, NULL), CH_OK);
	atomic_fetch_add(&p->ready, 1);
	stage_wait(&p->ready, 2);
	CHECK_EQ(ch_heap_collect(stage->heap), CH_OK);
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
}

static void hold_first_up(struct stage *stage, void *arg)
{
	struct play *p = arg;
	atomic_fetch_add(&p->ready, 1);
	while (!atomic_load(&p->done))
		continue;
	while (is_stopping(stage->heap))
		ch_thread_poll();
}

/* While a thread waits to collect the first heap, another thread collects the second heap. The
 * waiting thread is attached to both. */
TEST(thread_that_collects_one_heap_is_parked_to_the_other)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	struct play *p = new_play(stage);
	struct ch_config config = stage->config;
	config.stop_wait_ms = OTHER_WAIT_MS;
	CHECK_EQ(ch_heap_create(&config, &p->other), CH_OK);
	struct stage_thread t[2];
	stage_spawn(stage, &t[0], hold_first_up, p);
	stage_spawn(stage, &t[1], collect_first, p);
	ch_thread_park();
	wait_for_stop(stage->heap);
	CHECK_EQ(ch_heap_collect(p->other), CH_OK);
	atomic_store(&p->done, 1);
	ch_thread_unpark();
	for (int i = 0; i < 2; i++)
		stage_join(&t[i]);
	CHECK_EQ(stage_stats(stage).cycles_abandoned, 0);
	CHECK_EQ(ch_heap_destroy(p->other), CH_OK);
	stage_end(p->stage);
}

static void poll_both(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	CHECK_EQ(ch_thread_attach(p->other, NULL, NULL), CH_OK);
	atomic_store(&p->both, (int)gettid());
	atomic_fetch_add(&p->ready, 1);
	while (!atomic_load(&p->done))
		ch_thread_poll();
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
}

/* No signal interrupts this thread: the first heap's cycle waits for the thread. */
static void hold_first_up_deaf(struct stage *stage, void *arg)
{
	sigset_t stop;
	sigemptyset(&stop);
	sigaddset(&stop, STAGE_STOP_SIGNAL);
	CHECK_EQ(pthread_sigmask(SIG_BLOCK, &stop, NULL), 0);
	hold_first_up(stage, arg);
	CHECK_EQ(pthread_sigmask(SIG_UNBLOCK, &stop, NULL), 0);
}

static void spin_in_both(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	CHECK_EQ(ch_thread_attach(p->other, NULL, NULL), CH_OK);
	atomic_store(&p->both, (int)gettid());
	atomic_fetch_add(&p->ready, 1);
	while (!atomic_load(&p->done))
		continue;
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
}

static void collect_when_both_are_there(struct stage *stage, void *arg)
{
	struct play *p = arg;
	stage_wait(&p->ready, 3);
	CHECK_EQ(ch_heap_collect(stage->heap), CH_OK);
}

static bool stands_still(const struct ch_heap *heap, int thread_id)
{
	const struct ch__thread *t = heap->threads;
	while (t && atomic_load(&t->thread_id) != thread_id)
		t = t->next;
	return t && atomic_load(&t->state) != CH__RUNNING;
}

/* A thread of two heaps stands still for the first heap's cycle, which waits for a third thread. A
 * cycle of the second heap does not wait for the standing thread. */
static void wait_in_one_of_two(struct stage *stage)
{
	bool by_signals = stage->driver == STAGE_SIGNALS;
	struct play *p = new_play(stage);
	struct ch_config config = stage->config;
	config.stop_wait_ms = OTHER_WAIT_MS;
	CHECK_EQ(ch_heap_create(&config, &p->other), CH_OK);
	struct stage_thread t[3];
	stage_spawn(stage, &t[0], by_signals ? hold_first_up_deaf : hold_first_up, p);
	stage_spawn(stage, &t[1], by_signals ? spin_in_both : poll_both, p);
	stage_spawn(stage, &t[2], collect_when_both_are_there, p);
	ch_thread_park();
	atomic_fetch_add(&p->ready, 1);
	wait_for_stop(stage->heap);
	TEST_UNTIL(stands_still(stage->heap, atomic_load(&p->both)))
		usleep(100);
	CHECK_EQ(ch_heap_collect(p->other), CH_OK);
	atomic_store(&p->done, 1);
	ch_thread_unpark();
	for (int i = 0; i < 3; i++)
		stage_join(&t[i]);
	CHECK_EQ(stage_stats(stage).cycles_abandoned, 0);
	CHECK_EQ(ch_heap_destroy(p->other), CH_OK);
}
STAGE_CASE(thread_that_waits_for_one_heap_is_parked_to_the_other, _polls, STAGE_POLLS,
	   wait_in_one_of_two)
#if !CH_TSAN
STAGE_CASE(thread_that_waits_for_one_heap_is_parked_to_the_other, _signals, STAGE_SIGNALS,
	   wait_in_one_of_two)
#endif

/* --- the first stack of a process, mapped as far as used --- */

static size_t first_stack_bytes(void)
{
	unsigned long low, high;
	char line[256];
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	size_t bytes = 0;
	while (fgets(line, sizeof line, maps))
		if (strstr(line, "[stack]") && sscanf(line, "%lx-%lx", &low, &high) == 2)
			bytes = high - low;
	fclose(maps);
	CHECK(bytes);
	return bytes;
}

static struct play *_Atomic interrupted;

static void park_in_handler(int signal)
{
	struct play *p = atomic_load(&interrupted);
	(void)signal;
	ch_thread_park();
	atomic_store(&p->step, 1);
	while (atomic_load(&p->step) == 1)
		usleep(100);
	ch_thread_unpark();
}

static uint64_t raise_in_callee(void *arg)
{
	(void)arg;
	CHECK_EQ(raise(SIGUSR1), 0);
	return 3;
}

static void build_raiser(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->m[0], "raiser", (void *)raise_in_callee);
}

static void collect_meanwhile(struct stage *stage, void *arg)
{
	struct play *p = arg;
	stage_wait(&p->step, 1);
	method_invalidate(&p->m[0]);
	method_drop(stage, &p->m[0]);
	for (int i = 0; i < 3; i++) {
		stage_collect(stage);
		CHECK_EQ(block_state(p->m[0].block), CH_BLOCK_NOTENTRANT);
	}
	atomic_store(&p->step, 2);
}

/* The thread's sp is on the signal stack, so all that is mapped of the first stack is scanned. */
OWN_DRIVER(first_stack_is_scanned_as_far_as_it_is_mapped)
{
	enum { SIGNAL_STACK_BYTES = 64 << 10 };
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_STACK, &limit), 0);
	limit.rlim_cur = limit.rlim_max; /* most often none: bounds of gigabytes */
	CHECK_EQ(setrlimit(RLIMIT_STACK, &limit), 0);
	struct play *p = new_play(stage);
	atomic_store(&interrupted, p);
	stage_apart(stage, build_raiser, p);
	stack_t stack = {.ss_size = SIGNAL_STACK_BYTES, .ss_sp = malloc(SIGNAL_STACK_BYTES)};
	CHECK(stack.ss_sp);
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	struct sigaction action = {.sa_handler = park_in_handler, .sa_flags = SA_ONSTACK};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	struct stage_thread t;
	stage_spawn(stage, &t, collect_meanwhile, p);
	size_t before = first_stack_bytes();
	CHECK_EQ(method_call(&p->m[0], p), 3);
	CHECK_EQ(first_stack_bytes(), before);
	stage_join(&t);
	stage_collect(stage);
	CHECK_EQ(p->m[0].freed, 1);
	stack_t none = {.ss_flags = SS_DISABLE};
	CHECK_EQ(sigaltstack(&none, NULL), 0);
	free(stack.ss_sp);
}
