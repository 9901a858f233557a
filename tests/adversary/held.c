/* SPDX-License-Identifier: MIT
 * held.c: cycles beside threads that are held from outside: by the VM's own stop with the lock of
 * its list of threads, by a debugger, or by the scheduler within a call. Cycles beside threads that
 * do not stop are tested in world.c. */
#define _GNU_SOURCE
#include "codeheap/collector.h"
#include "codeheap/base/park.h"
#include "tests/support/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	_Atomic(int) step, done;
	_Atomic(int) collector; /* thread id */
	unsigned tries; /* of a collection */
	struct method m;
};

/* --- the VM's own way to stop --- */

/* Like many VMs: the stop takes the lock of the VM's list of threads, and a new thread holds the
 * lock while it attaches. The callback calls the library, too. */
struct listed_world {
	struct stage *stage;
	struct ch_vm *vm;
	pthread_mutex_t list;
	_Atomic(int) comes, stops, depth;
};

static void lock_list(struct listed_world *w)
{
	ch_thread_park();
	CHECK_EQ(pthread_mutex_lock(&w->list), 0);
	ch_thread_unpark();
}

static bool stop_listed(void *user)
{
	struct listed_world *w = user;
	struct ch_owner owner;
	CHECK_EQ(atomic_load(&w->stage->heap->stopping), 0);
	atomic_fetch_add(&w->stops, 1);
	lock_list(w);
	CHECK_EQ(atomic_fetch_add(&w->depth, 1), 0);
	CHECK_EQ(ch_owner_create(w->vm, "made in a stop", stage_fallback, NULL, &owner), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	return true;
}

static void resume_listed(void *user)
{
	struct listed_world *w = user;
	(void)stage_stats(w->stage);
	CHECK_EQ(atomic_fetch_sub(&w->depth, 1), 1);
	CHECK_EQ(pthread_mutex_unlock(&w->list), 0);
}

static void *come_under_the_list(void *arg)
{
	struct listed_world *w = arg;
	CHECK_EQ(pthread_mutex_lock(&w->list), 0);
	atomic_store(&w->comes, 1);
	while (!atomic_load(&w->stops))
		usleep(100);
	/* Until the collector waits for the list. */
	TEST_UNTIL(thread_is_asleep(getpid()))
		usleep(100);
	CHECK_EQ(ch_thread_attach(w->stage->heap, NULL, NULL), CH_OK);
	CHECK_EQ(pthread_mutex_unlock(&w->list), 0);
	ch_thread_park();
	while (atomic_load(&w->stops) < 4)
		usleep(100);
	ch_thread_unpark();
	CHECK_EQ(ch_thread_detach(w->stage->heap), CH_OK);
	return NULL;
}

static void stop_under_no_lock(struct stage *stage)
{
	enum { VMS = 2 };
	stage_play(stage, sizeof(struct play));
	struct ch_ops ops = {
		.size = sizeof ops, .stop_world = stop_listed, .resume_world = resume_listed};
	static struct listed_world worlds[VMS];
	for (int i = 0; i < VMS; i++) {
		worlds[i].stage = stage;
		CHECK_EQ(pthread_mutex_init(&worlds[i].list, NULL), 0);
		CHECK_EQ(ch_vm_attach(stage->heap, &ops, &worlds[i], &worlds[i].vm), CH_OK);
	}
	pthread_t newcomer;
	CHECK_EQ(pthread_create(&newcomer, NULL, come_under_the_list, &worlds[0]), 0);
	while (!atomic_load(&worlds[0].comes))
		usleep(100);
	for (int i = 1; i <= 4; i++) {
		stage_collect(stage);
		for (int k = 0; k < VMS; k++) {
			CHECK_EQ(atomic_load(&worlds[k].stops), i);
			CHECK_EQ(atomic_load(&worlds[k].depth), 0);
		}
	}
	join_parked(newcomer);
	for (int i = 0; i < VMS; i++)
		CHECK_EQ(ch_vm_detach(worlds[i].vm), CH_OK);
}
STAGE_CASE(vms_stop_their_world_under_no_lock, _polls, STAGE_POLLS, stop_under_no_lock)
STAGE_CASE(vms_stop_their_world_under_no_lock, _signals, STAGE_SIGNALS, stop_under_no_lock)

/* --- a thread held in a region --- */

static void stay_in_a_region(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch__thread *self = ch__thread_self(stage->heap);
	ch__region_enter(self);
	atomic_store(&p->step, 1);
	while (atomic_load(&p->step) == 1)
		usleep(100);
	ch__region_leave(self);
	ch_thread_park();
	while (atomic_load(&p->step) == 2)
		usleep(100);
	ch_thread_unpark();
}

static enum ch_status begin_and_end(struct stage *stage)
{
	struct ch_marker *marker;
	if (stage->driver != STAGE_HOST)
		return ch_heap_collect(stage->heap);
	enum ch_status status = ch_mark_begin(stage->heap, &marker);
	return status == CH_OK ? ch_mark_end(marker, false) : status;
}

static long naps_of_this_thread(void)
{
	struct rusage usage;
	CHECK_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
	return usage.ru_nvcsw;
}

static void collect_in_vain(struct stage *stage, void *arg)
{
	enum { TRIES_MOST = 10 };
	struct play *p = arg;
	long naps = naps_of_this_thread();
	/* Each nap of the wait, and nothing else here, gives the processor up. A quiet machine has
	 * some 800 of them in a wait, and few come where this thread seldom gets a processor. */
	do {
		CHECK(p->tries++ < TRIES_MOST);
		CHECK_EQ(begin_and_end(stage), CH_E_BUSY);
	} while (naps_of_this_thread() - naps <= 100);
}

static void wait_for_a_region(struct stage *stage)
{
	struct play *p = stage_play(stage, sizeof *p);
	struct stage_thread held, collector;
	stage->heap->config.stop_wait_ms = 100;
	stage_spawn(stage, &held, stay_in_a_region, p);
	stage_wait(&p->step, 1);
	stage_spawn(stage, &collector, collect_in_vain, p);
	stage_join(&collector);
	char report[100];
	CHECK_EQ(ch_heap_check(stage->heap, report, sizeof report), CH_E_BUSY);
	/* Pages are looked at all the same. */
	atomic_fetch_add(&stage->heap->pool->pages_used, 1);
	CHECK_EQ(ch_heap_check(stage->heap, report, sizeof report), CH_E_BROKEN);
	CHECK(strncmp(report, "page", 4) == 0);
	atomic_fetch_sub(&stage->heap->pool->pages_used, 1);
	CHECK_EQ(ch_sink_set(stage->heap, CH_SINK_NONE), CH_E_BUSY);
	CHECK_EQ(atomic_load(&stage->heap->freeze), 0);
	CHECK_EQ(stage_stats(stage).cycles_abandoned, p->tries);
	stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	method_constant(stage, &p->m, "made meanwhile", 3);
	CHECK_EQ(method_call(&p->m, NULL), 3);
	atomic_store(&p->step, 2);
	CHECK_EQ(begin_and_end(stage), CH_OK);
	CHECK_EQ(ch_sink_set(stage->heap, CH_SINK_DEFAULT), CH_OK);
	atomic_store(&p->step, 3);
	stage_join(&held);
}
STAGE_CASE(cycle_waits_asleep_for_a_thread_that_is_held_in_a_region, _polls, STAGE_POLLS,
	   wait_for_a_region)
STAGE_CASE(cycle_waits_asleep_for_a_thread_that_is_held_in_a_region, _host, STAGE_HOST,
	   wait_for_a_region)

/* --- a thread held with a lock --- */

/* step: 1 the thread has the heap's lock, 2 no lock, 3 the registry's; go: the last step allowed */
struct locked {
	struct stage *stage;
	_Atomic(int) step, go;
};

static void await_go(struct locked *l, int step)
{
	while (atomic_load(&l->go) < step)
		usleep(100);
}

static void stay_with_locks(struct stage *stage, void *arg)
{
	struct locked *l = arg;
	ch__heap_lock(stage->heap);
	atomic_store(&l->step, 1);
	await_go(l, 2);
	ch__heap_unlock(stage->heap);
	ch_thread_park();
	atomic_store(&l->step, 2);
	await_go(l, 3);
	ch_thread_unpark();
	ch__registry_lock(stage->heap);
	atomic_store(&l->step, 3);
	await_go(l, 4);
	ch__registry_unlock(stage->heap);
	ch_thread_park();
	await_go(l, 5);
	ch_thread_unpark();
}

static bool stop_and_count(void *user)
{
	atomic_fetch_add((_Atomic(int) *)user, 1);
	return true;
}
static void resume_and_count(void *user)
{
	atomic_fetch_sub((_Atomic(int) *)user, 1);
}

static void expect_busy(struct stage *stage, enum ch_status of_sinks)
{
	CHECK_EQ(begin_and_end(stage), CH_E_BUSY);
	CHECK_EQ(ch_heap_check(stage->heap, NULL, 0), CH_E_BUSY);
	CHECK_EQ(ch_sink_set(stage->heap, CH_SINK_NONE), of_sinks);
}

static void wait_for_a_lock(struct stage *stage)
{
	struct locked *l = stage_play(stage, sizeof *l);
	struct stage_thread held;
	static _Atomic(int) stops;
	struct ch_ops ops = {.size = sizeof ops,
			     .stop_world = stop_and_count,
			     .resume_world = resume_and_count};
	struct ch_vm *vm;
	CHECK_EQ(ch_vm_attach(stage->heap, &ops, &stops, &vm), CH_OK);
	stage->heap->config.stop_wait_ms = 50;
	stage_spawn(stage, &held, stay_with_locks, l);
	stage_wait(&l->step, 1);
	expect_busy(stage, CH_E_BUSY);
	CHECK_EQ(atomic_load(&stops), 0);
	atomic_store(&l->go, 2);
	stage_wait(&l->step, 2);
	stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	CHECK_EQ(ch_sink_set(stage->heap, CH_SINK_DEFAULT), CH_OK);
	atomic_store(&l->go, 3);
	stage_wait(&l->step, 3);
	stage->heap->config.stop_wait_ms = 50;
	expect_busy(stage, CH_OK); /* a sink set needs no registry */
	CHECK_EQ(atomic_load(&stops), 0);
	stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	atomic_store(&l->go, 4);
	CHECK_EQ(begin_and_end(stage), CH_OK);
	CHECK_EQ(ch_heap_check(stage->heap, NULL, 0), CH_OK);
	CHECK_EQ(ch_sink_set(stage->heap, CH_SINK_DEFAULT), CH_OK);
	CHECK_EQ(atomic_load(&stops), 0);
	atomic_store(&l->go, 5);
	stage_join(&held);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
}
STAGE_CASE(cycle_gives_up_before_a_lock_that_a_thread_is_held_with, _polls, STAGE_POLLS,
	   wait_for_a_lock)
STAGE_CASE(cycle_gives_up_before_a_lock_that_a_thread_is_held_with, _signals, STAGE_SIGNALS,
	   wait_for_a_lock)

/* The VM's stop finds a thread with the lock, and is undone. */
static bool stop_beside_a_lock(void *user)
{
	struct locked *l = user;
	atomic_store(&l->go, 1);
	stage_wait(&l->step, 1);
	return true;
}
static void resume_beside_a_lock(void *user)
{
	struct locked *l = user;
	atomic_store(&l->go, 5);
}

static void take_locks_in_a_stop(struct stage *stage, void *arg)
{
	ch_thread_park();
	await_go(arg, 1);
	ch_thread_unpark();
	stay_with_locks(stage, arg);
}

TEST(stop_of_a_vm_that_finds_a_thread_with_a_lock_is_undone)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	struct locked *l = stage_play(stage, sizeof *l);
	struct stage_thread held;
	struct ch_ops ops = {.size = sizeof ops,
			     .stop_world = stop_beside_a_lock,
			     .resume_world = resume_beside_a_lock};
	struct ch_vm *vm;
	CHECK_EQ(ch_vm_attach(stage->heap, &ops, l, &vm), CH_OK);
	stage->heap->config.stop_wait_ms = 50;
	stage_spawn(stage, &held, take_locks_in_a_stop, l);
	CHECK_EQ(ch_heap_collect(stage->heap), CH_E_BUSY);
	stage_join(&held);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	stage_end(stage);
}

/* --- a fork beside a held thread --- */

static void fork_meanwhile(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	atomic_store(&p->collector, (int)syscall(SYS_gettid));
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	expect_exit(child, 0);
	atomic_store(&p->done, 1);
}

/* A fork cannot fail: the fork waits until the region ends, and lets other threads run. */
TEST(fork_waits_for_a_thread_that_is_held_in_a_region)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	struct play *p = stage_play(stage, sizeof *p);
	struct stage_thread held, forks;
	stage_spawn(stage, &held, stay_in_a_region, p);
	stage_wait(&p->step, 1);
	stage_spawn(stage, &forks, fork_meanwhile, p);
	TEST_UNTIL(atomic_load(&stage->heap->freeze) &&
		   thread_is_asleep(atomic_load(&p->collector)))
		continue;
	CHECK_EQ(atomic_load(&p->done), 0);
	atomic_store(&p->step, 3);
	stage_join(&forks);
	CHECK_EQ(atomic_load(&p->done), 1);
	stage_join(&held);
	stage_end(stage);
}

/* --- a thread whose sentence nobody reads --- */

static int ends[2], own_stderr;

static struct stage *start_with_a_pipe(void)
{
	own_stderr = dup(STDERR_FILENO);
	CHECK_EQ(setenv("CODEHEAP_DEBUG", "1", 1), 0);
	CHECK_EQ(pipe(ends), 0);
	return stage_new(STAGE_POLLS);
}

/* From here on whoever writes to stderr waits. */
static void fill_stderr(void)
{
	CHECK_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
	while (write(ends[1], "x", 1) == 1)
		continue;
	CHECK_EQ(errno, EAGAIN);
	CHECK_EQ(fcntl(ends[1], F_SETFL, 0), 0);
	CHECK_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
}

static void read_stderr(void)
{
	static char text[1 << 20];
	CHECK_EQ(dup2(own_stderr, STDERR_FILENO), STDERR_FILENO);
	CHECK(read(ends[0], text, sizeof text) > 1);
}

static void end_now(const char *reason)
{
	(void)reason; /* stderr is full */
	_exit(1);
}

/* Added to a handle: the same record at a later use, which never was. */
static const uint64_t later = UINT64_C(8) << 32;

static enum ch_status set_no_entry(const struct play *p)
{
	return ch_owner_set_entry(p->m.owner, (struct ch_block){p->m.block.bits + later});
}

static enum ch_status set_entry_of_nobody(const struct play *p)
{
	return ch_owner_set_entry((struct ch_owner){p->m.owner.bits + later}, p->m.block);
}

static enum ch_status ask_about_nothing(const struct play *p)
{
	struct ch_info info = {.size = sizeof info};
	return ch_block_info((struct ch_block){p->m.block.bits + later}, &info);
}

static enum ch_status (*const failing[])(const struct play *) = {set_no_entry, set_entry_of_nobody,
								 ask_about_nothing};

static void fail_unread(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	atomic_store(&p->collector, (int)syscall(SYS_gettid));
	CHECK_EQ(failing[p->step](p), CH_E_STALE);
}

/* With CODEHEAP_DEBUG=1 the call waits for who reads stderr, in no region and under no lock. */
TEST(sentence_that_nobody_reads_holds_up_no_freeze)
{
	struct stage *stage = start_with_a_pipe();
	struct play *p = stage_play(stage, sizeof *p);
	method_constant(stage, &p->m, "m", 1);
	ch__panic_set_hook(end_now);
	for (int i = 0; i < 3; i++) {
		struct stage_thread held;
		fill_stderr();
		atomic_store(&p->step, i);
		atomic_store(&p->collector, 0);
		stage_spawn(stage, &held, fail_unread, p);
		TEST_UNTIL(atomic_load(&p->collector) &&
			   thread_is_asleep(atomic_load(&p->collector)))
			continue;
		enum ch_status status = ch_heap_check(stage->heap, NULL, 0);
		read_stderr();
		stage_join(&held);
		CHECK_EQ(status, CH_OK);
	}
	ch__panic_set_hook(NULL);
	stage_end(stage);
}

static void run_on(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	atomic_store(&p->step, 1);
	TEST_UNTIL(atomic_load(&p->step) == 3)
		usleep(100);
}

static void collect_unread(struct stage *stage, void *arg)
{
	struct play *p = arg;
	CHECK_EQ(begin_and_end(stage), CH_E_BUSY);
	atomic_store(&p->done, 1);
}

static bool stands(const struct stage *stage)
{
	return atomic_load(&stage->heap->freeze) || atomic_load(&stage->heap->stopping);
}

static void leave_unread(void (*hold)(struct stage *, void *))
{
	enum { NAPS = 10000 };
	struct stage *stage = start_with_a_pipe();
	struct play *p = stage_play(stage, sizeof *p);
	struct stage_thread held, collector;
	stage->heap->config.stop_wait_ms = 100;
	stage_spawn(stage, &held, hold, p);
	stage_wait(&p->step, 1);
	ch_thread_park(); /* the collection waits for the other thread */
	fill_stderr();
	stage_spawn(stage, &collector, collect_unread, p);
	/* On a busy machine this thread may miss when they stand. */
	for (int i = 0; i < NAPS && !stands(stage); i++)
		usleep(1000);
	for (int i = 0; i < NAPS && stands(stage); i++)
		usleep(1000);
	bool is_over = !stands(stage), is_written = atomic_load(&p->done);
	read_stderr();
	ch_thread_unpark();
	stage_join(&collector);
	CHECK(is_over && !is_written);
	atomic_store(&p->step, 3);
	stage_join(&held);
	stage_end(stage);
}

/* The sentence names the thread that was waited for. */
TEST(sentence_that_nobody_reads_is_made_behind_the_freeze)
{
	leave_unread(stay_in_a_region);
}

TEST(sentence_that_nobody_reads_is_made_behind_the_stop)
{
	leave_unread(run_on);
}

/* --- a HOST that stops mutators by a signal of its own --- */

#if !CH_TSAN /* TSan holds signals back */
static _Atomic(int) is_stop_wanted, is_standing;

static void stand(int signal)
{
	(void)signal;
	atomic_store(&is_standing, 1);
	while (atomic_load(&is_stop_wanted))
		usleep(20);
	atomic_store(&is_standing, 0);
}

/* Is in locks and regions of the library most of the time. */
static void make_blocks(struct stage *stage, void *arg)
{
	struct play *p = arg;
	atomic_store(&p->step, 1);
	while (atomic_load(&p->step) == 1) {
		struct emitter e;
		method_open(&e, &p->m);
		CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, 100)), CH_OK);
		emit_ret(&e);
		method_commit(&e, &p->m);
		CHECK_EQ(ch_heap_check(stage->heap, NULL, 0), CH_OK);
	}
}

static uintptr_t count_ref(void *arg, uintptr_t word, bool *is_young)
{
	CHECK_EQ(word % 100, 0);
	*is_young = false;
	++*(int *)arg;
	return word + 100;
}

/* The mutator stands anywhere: the marker has everything for a visit since before the stop. */
static void visit_standing(struct stage *stage, pthread_t mutator, int *count)
{
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(stage->heap, &marker), CH_OK);
	atomic_store(&is_stop_wanted, 1);
	CHECK_EQ(pthread_kill(mutator, SIGUSR1), 0);
	while (!atomic_load(&is_standing))
		usleep(20);
	CHECK_EQ(ch_refs_visit(marker, CH_REFS_YOUNG, count_ref, count), CH_OK);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	atomic_store(&is_stop_wanted, 0);
	while (atomic_load(&is_standing))
		usleep(20);
}

TEST(minor_collections_visit_refs_while_a_signal_of_the_vm_stops_mutators_anywhere)
{
	enum { MINORS = 300 };
	struct stage *stage = stage_new(STAGE_HOST);
	struct play *p = stage_play(stage, sizeof *p);
	struct sigaction action = {.sa_handler = stand, .sa_flags = SA_RESTART};
	struct stage_thread mutator;
	int count = 0;
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	method_new(stage, &p->m, "made again and again");
	stage_spawn(stage, &mutator, make_blocks, p);
	stage_wait(&p->step, 1);
	for (int i = 0; i < MINORS || !count; i++)
		visit_standing(stage, mutator.thread, &count);
	atomic_store(&p->step, 2);
	stage_join(&mutator);
	CHECK_EQ(stage_stats(stage).cycles, 0);
	CHECK_EQ(stage_stats(stage).cycles_abandoned, 0);
	stage_collect(stage);
	stage_end(stage);
}
#endif

/* --- two heaps whose marks begin in the other order --- */

struct both {
	struct stage *stage;
	struct ch_heap *heaps[2];
	_Atomic(int) first, busy; /* threads that got so far */
};

static enum ch_status begin(struct ch_heap *heap, struct ch_marker **marker)
{
	enum ch_status status = ch_mark_begin(heap, marker);
	if (status != CH_OK)
		CHECK(status == CH_E_BUSY && !*marker);
	return status;
}

static void begin_both(struct both *b, int from)
{
	struct ch_marker *one, *other;
	CHECK_EQ(ch_mark_begin(b->heaps[from], &one), CH_OK);
	CHECK_EQ(ch_mark_begin(b->heaps[from], &other), CH_E_STATE); /* already begun */
	atomic_fetch_add(&b->first, 1);
	while (atomic_load(&b->first) < 2)
		usleep(100);
	bool is_busy = begin(b->heaps[!from], &other) == CH_E_BUSY;
	atomic_fetch_add(&b->busy, is_busy);
	if (!is_busy)
		CHECK_EQ(ch_mark_end(other, false), CH_OK);
	CHECK_EQ(ch_mark_end(one, false), CH_OK);
}

static void begin_from_the_second(struct stage *stage, void *arg)
{
	(void)stage;
	begin_both(arg, 1);
}

static void fork_beside(struct stage *stage, void *arg)
{
	(void)stage, (void)arg;
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	expect_exit(child, 0);
}

static struct both *new_both(struct stage *stage)
{
	struct both *b = stage_play(stage, sizeof *b);
	struct ch_config config = stage->config;
	b->heaps[0] = stage->heap;
	CHECK_EQ(ch_heap_create(&config, &b->heaps[1]), CH_OK);
	return b;
}

TEST(marks_of_two_heaps_that_begin_in_the_other_order_end)
{
	struct stage *stage = stage_new(STAGE_HOST);
	stage->config.stop_wait_ms = 100;
	struct both *b = new_both(stage);
	struct stage_thread second;
	stage_spawn(stage, &second, begin_from_the_second, b);
	begin_both(b, 0);
	stage_join(&second);
	CHECK(atomic_load(&b->busy) > 0);
	for (int from = 0; from < 2; from++) { /* nobody beside: both begin, in either order */
		struct ch_marker *markers[2];
		stage->heap->config.stop_wait_ms = b->heaps[1]->config.stop_wait_ms =
			TEST_PATIENCE_MS;
		CHECK_EQ(ch_mark_begin(b->heaps[from], &markers[0]), CH_OK);
		CHECK_EQ(ch_mark_begin(b->heaps[!from], &markers[1]), CH_OK);
		CHECK_EQ(ch_mark_end(markers[0], false), CH_OK);
		CHECK_EQ(ch_mark_end(markers[1], false), CH_OK);
	}
	CHECK_EQ(ch_heap_destroy(b->heaps[1]), CH_OK);
	stage_end(stage);
}

static void want_lock(struct stage *stage, void *arg)
{
	struct both *b = arg;
	struct ch_assumption fact;
	CHECK_EQ(ch_thread_attach(b->heaps[1], NULL, NULL), CH_OK);
	atomic_store(&b->first, 1);
	while (!atomic_load(&stage->heap->lock.word))
		continue;
	CHECK_EQ(ch_assumption_create(stage->vm, &fact), CH_OK);
	CHECK_EQ(ch_thread_detach(b->heaps[1]), CH_OK);
}

/* The thread waits for the lock of the first heap, and is parked to both. It gets the lock when the
 * second heap is stopped, and must not keep the lock until the second heap's cycle is over. */
TEST(thread_that_one_heap_stops_keeps_no_lock_of_another)
{
	struct stage *stage = stage_new_host(0);
	struct both *b = new_both(stage);
	struct stage_thread thread;
	struct ch_marker *first, *second;
	stage_spawn(stage, &thread, want_lock, b);
	stage_wait(&b->first, 1);
	CHECK_EQ(ch_mark_begin(b->heaps[0], &first), CH_OK);
	CHECK_EQ(ch_mark_begin(b->heaps[1], &second), CH_OK);
	TEST_UNTIL(atomic_load(&stage->heap->lock.word) == CH__LOCK_AWAITED)
		usleep(100);
	CHECK_EQ(ch_mark_end(first, false), CH_OK);
	stage_sleep(100); /* the thread gets the lock */
	CHECK_EQ(ch_mark_begin(b->heaps[0], &first), CH_OK);
	CHECK_EQ(ch_mark_end(first, false), CH_OK);
	CHECK_EQ(ch_mark_end(second, false), CH_OK);
	stage_join(&thread);
	CHECK_EQ(ch_heap_destroy(b->heaps[1]), CH_OK);
	stage_end(stage);
}

/* The fork has the first heap's lock and waits for the second's, held by an open cycle. */
TEST(mark_that_begins_beside_a_fork_is_given_up)
{
	struct stage *stage = stage_new(STAGE_HOST);
	stage->config.stop_wait_ms = 100;
	struct both *b = new_both(stage);
	struct stage_thread forks;
	struct ch_marker *marker, *other;
	CHECK_EQ(ch_mark_begin(b->heaps[1], &marker), CH_OK);
	stage_spawn(stage, &forks, fork_beside, b);
	while (!atomic_load(&stage->heap->lock.word))
		usleep(100);
	CHECK_EQ(begin(b->heaps[0], &other), CH_E_BUSY);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	stage_join(&forks);
	CHECK_EQ(ch_heap_destroy(b->heaps[1]), CH_OK);
	stage_end(stage);
}

static void fork_within(void *unused)
{
	struct ch_marker *marker;
	struct stage *stage = stage_new(STAGE_HOST);
	(void)unused;
	stage_start(stage);
	CHECK_EQ(ch_mark_begin(stage->heap, &marker), CH_OK);
	fork();
}

TEST(fork_within_a_cycle_of_the_caller_is_a_panic)
{
	char text[2000];
	expect_signal_text(fork_within, NULL, SIGABRT, text, sizeof text);
	CHECK(strstr(text, "fork between ch_mark_begin and ch_mark_end"));
}
