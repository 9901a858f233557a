/* SPDX-License-Identifier: MIT
 * host_world.c: a host's cycle that stops the threads by itself (ch_config.stops_world). The
 * threads stand from ch_mark_begin to ch_mark_end, whatever status both return, and run afterwards.
 * Threads that attach, detach or fork meanwhile wait. Two threads that collect a heap each never
 * wait for each other. Locks and regions of stopped threads are tested in stops.c. */
#define _GNU_SOURCE
#include "codeheap/collector.h"
#include "codeheap/graph/handles.h"
#include "os/threads.h"
#include "tests/support/stage.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CYCLES = 20 };

struct play {
	struct stage *stage;
	struct ch_heap *other;
	struct method m;
	_Atomic(int) step, ready, done, number;
	_Atomic(uint64_t) calls;
};

static struct play *new_play(int stop_signal, unsigned wait_ms)
{
	struct stage *stage = stage_new_host(stop_signal);
	if (wait_ms)
		stage->config.stop_wait_ms = wait_ms;
	return stage_play(stage, sizeof(struct play));
}

/* A heap of the same kind, to which the caller is attached. */
static void add_other(struct play *p)
{
	struct ch_config config = p->stage->config;
	CHECK_EQ(ch_heap_create(&config, &p->other), CH_OK);
	CHECK_EQ(ch_thread_attach(p->other, NULL, NULL), CH_OK);
}

static void end_other(struct play *p)
{
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
	CHECK_EQ(ch_heap_destroy(p->other), CH_OK);
}

static struct ch_marker *begin(struct ch_heap *heap)
{
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(heap, &marker), CH_OK);
	return marker;
}

static void end(struct ch_marker *marker)
{
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
}

static void wait_parked(_Atomic(int) *word, int value)
{
	TEST_UNTIL(atomic_load(word) == value)
		usleep(100);
}

/* --- threads stand from begin to end --- */

static void call_often(struct play *p, bool polls)
{
	atomic_fetch_add(&p->ready, 1);
	while (!atomic_load(&p->step)) {
		CHECK_EQ(method_call(&p->m, NULL), 7);
		atomic_fetch_add(&p->calls, 1);
		if (polls)
			ch_thread_poll();
	}
}

static void call_and_poll(struct stage *stage, void *arg)
{
	(void)stage;
	call_often(arg, true);
}

__attribute__((unused)) static void call_only(struct stage *stage, void *arg)
{
	(void)stage;
	call_often(arg, false);
}

static void expect_stand(struct play *p)
{
	uint64_t calls = atomic_load(&p->calls);
	usleep(2000);
	CHECK_EQ(atomic_load(&p->calls), calls);
}

static void expect_run(struct play *p)
{
	uint64_t calls = atomic_load(&p->calls);
	TEST_UNTIL(atomic_load(&p->calls) > calls + 2)
		usleep(100);
}

static uintptr_t no_visit(void *arg, uintptr_t word, bool *is_young)
{
	(void)arg, (void)is_young;
	return word;
}

static void collect_beside(struct play *p)
{
	struct ch_marker *marker, *again;
	for (int i = 0; i < CYCLES; i++) {
		bool is_full = i % 2;
		expect_run(p);
		CHECK_EQ(ch_mark_begin(p->stage->heap, &marker), CH_OK);
		expect_stand(p);
		CHECK_EQ(ch_mark_begin(p->stage->heap, &again), CH_E_STATE);
		if (is_full)
			stage_mark(p->stage, marker);
		else
			CHECK_EQ(ch_refs_visit(marker, CH_REFS_YOUNG, no_visit, NULL), CH_OK);
		expect_stand(p);
		CHECK_EQ(ch_mark_end(marker, is_full), CH_OK);
	}
	expect_run(p);
}

static void *collect_beside_unattached(void *arg)
{
	collect_beside(arg);
	return NULL;
}

static void stand_and_run(int stop_signal, void (*work)(struct stage *, void *), bool is_foreign)
{
	struct play *p = new_play(stop_signal, 0);
	struct stage_thread threads[2];
	pthread_t collector;
	method_constant(p->stage, &p->m, "seven", 7);
	for (int i = 0; i < 2; i++)
		stage_spawn(p->stage, &threads[i], work, p);
	stage_wait(&p->ready, 2);
	if (is_foreign) {
		CHECK_EQ(pthread_create(&collector, NULL, collect_beside_unattached, p), 0);
		join_parked(collector);
	} else {
		collect_beside(p);
	}
	/* The caller is parked no more. */
	struct emitter e;
	method_open(&e, &p->m);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(stage_stats(p->stage).cycles, CYCLES / 2);
	CHECK_EQ(stage_stats(p->stage).cycles_abandoned, 0);
	atomic_store(&p->step, 1);
	for (int i = 0; i < 2; i++)
		stage_join(&threads[i]);
	stage_end(p->stage);
}

TEST(threads_that_poll_stand_from_mark_begin_to_mark_end)
{
	stand_and_run(0, call_and_poll, false);
}

TEST(threads_stand_for_a_collector_that_is_not_attached)
{
	stand_and_run(0, call_and_poll, true);
}

#if !CH_TSAN
TEST(threads_that_a_signal_stops_stand_from_mark_begin_to_mark_end)
{
	stand_and_run(STAGE_STOP_SIGNAL, call_only, false);
}
#endif

/* --- a thread that does not stop --- */

static void spin_deaf(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	atomic_store(&p->number, ch__os_thread_id());
	while (!atomic_load(&p->done))
		continue;
}

static void nothing(struct stage *stage, void *arg)
{
	(void)stage, (void)arg;
}

TEST(thread_that_does_not_stop_is_named_and_nobody_is_held)
{
	struct play *p = new_play(0, 60);
	struct stage_thread deaf, worker;
	struct ch_marker *marker;
	char words[160];
	method_constant(p->stage, &p->m, "seven", 7);
	stage_spawn(p->stage, &deaf, spin_deaf, p);
	while (!atomic_load(&p->number))
		usleep(100);
	stage_spawn(p->stage, &worker, call_and_poll, p);
	stage_wait(&p->ready, 1);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(ch_mark_begin(p->stage->heap, &marker), CH_E_BUSY);
		snprintf(words, sizeof words, "CH_E_BUSY: thread %d did not stop in time: it "
					      "neither polled nor parked; "
					      "ch_config.stop_signal stops such threads",
			 p->number);
		CHECK_STR(ch_why(), words);
		CHECK(!marker);
		expect_run(p);
		stage_check(p->stage);
		stage_apart(p->stage, nothing, NULL); /* the registry is free */
		struct emitter e;
		method_open(&e, &p->m); /* the caller is not parked */
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		CHECK_EQ(stage_stats(p->stage).cycles_abandoned, i + 1);
	}
	atomic_store(&p->done, 1);
	stage_join(&deaf);
	p->stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	end(begin(p->stage->heap));
	expect_run(p);
	atomic_store(&p->step, 1);
	stage_join(&worker);
	stage_end(p->stage);
}

static bool hold_lock(void *arg, const struct ch_info *info)
{
	struct play *p = arg;
	(void)info;
	atomic_store(&p->ready, 1);
	wait_parked(&p->step, 1);
	return false;
}

static void visit_slowly(struct stage *stage, void *arg)
{
	CHECK_EQ(ch_block_each(stage->heap, NULL, hold_lock, arg), CH_OK);
}

TEST(lock_that_is_held_too_long_leaves_the_caller_running)
{
	struct play *p = new_play(0, 60);
	struct stage_thread visitor;
	struct ch_marker *marker;
	method_constant(p->stage, &p->m, "seven", 7);
	stage_spawn(p->stage, &visitor, visit_slowly, p);
	wait_parked(&p->ready, 1);
	CHECK_EQ(ch_mark_begin(p->stage->heap, &marker), CH_E_BUSY);
	CHECK(strstr(ch_why(), "another thread held a lock of the heap"));
	CHECK_EQ(ch__thread_self(p->stage->heap)->park_depth, 0);
	CHECK_EQ(atomic_load(&p->stage->heap->registry.word), CH__LOCK_FREE);
	atomic_store(&p->step, 1);
	stage_join(&visitor);
	p->stage->heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	stage_collect(p->stage);
	stage_end(p->stage);
}

/* --- an unnamed stack --- */
#if !CH_TSAN

static uintptr_t back, away;
static struct play *playing;

static void poll_on_unknown_stack(void *arg)
{
	struct play *p = arg;
	atomic_store(&p->number, ch__os_thread_id());
	atomic_store(&p->ready, 1);
	call_and_poll(p->stage, p);
	stage_switch(&away, back);
}

static void leave_for_unknown_stack(struct stage *stage, void *arg)
{
	enum { BYTES = 64 << 10 };
	uint8_t *stack = malloc(BYTES);
	(void)stage;
	CHECK(stack);
	playing = arg;
	stage_switch(&back, stage_new_stack(stack + BYTES, poll_on_unknown_stack, arg));
	free(stack);
}

TEST(mark_end_that_says_busy_lets_threads_go_on)
{
	struct play *p = new_play(0, 0);
	struct stage_thread lost;
	method_constant(p->stage, &p->m, "seven", 7);
	stage_spawn(p->stage, &lost, leave_for_unknown_stack, p);
	stage_wait(&p->ready, 2);
	for (int i = 0; i < 3; i++) {
		expect_run(p);
		struct ch_marker *marker = begin(p->stage->heap);
		ch_mark_stacks(marker);
		expect_stand(p);
		CHECK_EQ(ch_mark_end(marker, true), CH_E_BUSY);
		CHECK_EQ(ch__thread_self(p->stage->heap)->park_depth, 0);
	}
	char start[64];
	snprintf(start, sizeof start, "CH_E_BUSY: thread %d stood on a stack that is neither",
		 atomic_load(&p->number));
	CHECK(!strncmp(ch_why(), start, strlen(start)));
	expect_run(p);
	atomic_store(&p->step, 1);
	stage_join(&lost);
	stage_end(p->stage);
}
#endif

/* --- threads that come, go or fork meanwhile --- */

static void *come(void *arg)
{
	struct play *p = arg;
	wait_parked(&p->step, 1);
	CHECK_EQ(ch_thread_attach(p->stage->heap, NULL, NULL), CH_OK);
	atomic_store(&p->number, 1);
	CHECK_EQ(atomic_load(&p->done), 1);
	return NULL; /* the thread's end detaches */
}

TEST(thread_that_attaches_waits_for_mark_end)
{
	struct play *p = new_play(0, 0);
	pthread_t newcomer;
	CHECK_EQ(pthread_create(&newcomer, NULL, come, p), 0);
	struct ch_marker *marker = begin(p->stage->heap);
	atomic_store(&p->step, 1);
	TEST_UNTIL(atomic_load(&p->stage->heap->registry.word) == CH__LOCK_AWAITED ||
		   atomic_load(&p->number))
		usleep(100);
	usleep(2000);
	atomic_store(&p->done, 1);
	end(marker);
	join_parked(newcomer);
	stage_end(p->stage);
}

static void go(struct stage *stage, void *arg)
{
	struct play *p = arg;
	ch_thread_park();
	atomic_fetch_add(&p->ready, 1);
	wait_parked(&p->step, 1);
	CHECK_EQ(ch_thread_detach(stage->heap), CH_OK);
	CHECK_EQ(atomic_load(&p->done), 1);
	stage_attach(stage);
	ch_thread_unpark();
}

static void wait_for_registry(struct ch_heap *heap)
{
	TEST_UNTIL(atomic_load(&heap->registry.word) == CH__LOCK_AWAITED)
		usleep(100);
	usleep(2000);
}

TEST(threads_that_attach_and_detach_wait_for_mark_end)
{
	struct play *p = new_play(0, 0);
	struct stage_thread leaver;
	pthread_t newcomer;
	stage_spawn(p->stage, &leaver, go, p);
	CHECK_EQ(pthread_create(&newcomer, NULL, come, p), 0);
	stage_wait(&p->ready, 1);
	struct ch_marker *marker = begin(p->stage->heap);
	atomic_store(&p->step, 1);
	wait_for_registry(p->stage->heap);
	ch_mark_stacks(marker);
	wait_for_registry(p->stage->heap);
	atomic_store(&p->done, 1);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	join_parked(newcomer);
	stage_join(&leaver);
	CHECK_EQ(stage_stats(p->stage).threads_now, 1);
	stage_end(p->stage);
}

/* Parks, to come so far while the world stands. The child has no other thread to stop. */
static void fork_meanwhile(struct stage *stage, void *arg)
{
	struct play *p = arg;
	ch_thread_park();
	atomic_fetch_add(&p->ready, 1);
	wait_parked(&p->step, 1);
	pid_t child = fork();
	CHECK_EQ(atomic_load(&p->done), 1);
	ch_thread_unpark();
	if (child == 0) {
		CHECK_EQ(method_call(&p->m, NULL), 7);
		stage_collect(stage);
		CHECK_EQ(method_call(&p->m, NULL), 7);
		_exit(5);
	}
	expect_exit(child, 5);
}

TEST(fork_of_another_thread_waits_for_mark_end)
{
	struct play *p = new_play(0, 0);
	struct stage_thread forks;
	p->stage->config.fork = stage_fork_kind();
	method_constant(p->stage, &p->m, "seven", 7);
	stage_spawn(p->stage, &forks, fork_meanwhile, p);
	stage_wait(&p->ready, 1);
	struct ch_marker *marker = begin(p->stage->heap);
	atomic_store(&p->step, 1);
	wait_for_registry(p->stage->heap);
	stage_mark(p->stage, marker);
	atomic_store(&p->done, 1);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	stage_join(&forks);
	stage_collect(p->stage);
	stage_end(p->stage);
}

static void fork_within(void *unused)
{
	(void)unused;
	struct play *p = new_play(0, 0);
	begin(p->stage->heap);
	fork();
}

TEST(fork_of_the_caller_before_mark_end_is_a_panic)
{
	char text[2000];
	expect_signal_text(fork_within, NULL, SIGABRT, text, sizeof text);
	CHECK(strstr(text, "fork between ch_mark_begin and ch_mark_end"));
}

/* --- two collectors --- */

/* A method, a second heap, and a thread beside the caller. */
static struct play *new_pair(struct stage_thread *beside, void (*work)(struct stage *, void *))
{
	struct play *p = new_play(0, 0);
	add_other(p);
	method_constant(p->stage, &p->m, "seven", 7);
	stage_spawn(p->stage, beside, work, p);
	return p;
}

static void end_pair(struct play *p, struct stage_thread *beside)
{
	stage_join(beside);
	end_other(p);
	stage_end(p->stage);
}

/* Parks, and begins to collect the second heap while a cycle of the first heap is open. */
static void collect_other(struct stage *stage, void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_thread_attach(p->other, NULL, NULL), CH_OK);
	ch_thread_park();
	atomic_fetch_add(&p->ready, 1);
	wait_parked(&p->step, 1);
	struct ch_marker *marker = begin(p->other);
	atomic_store(&p->step, 2);
	TEST_UNTIL(!atomic_load(&stage->heap->stopping))
		usleep(100);
	usleep(2000);
	CHECK_EQ(atomic_load(&p->done), 0); /* the thread of the first cycle stands */
	end(marker);
	ch_thread_unpark();
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
}

TEST(thread_that_has_a_cycle_of_one_heap_is_parked_to_the_other)
{
	struct stage_thread collector;
	struct play *p = new_pair(&collector, collect_other);
	stage_wait(&p->ready, 1);
	struct ch_marker *marker = begin(p->stage->heap);
	atomic_store(&p->step, 1);
	wait_parked(&p->step, 2);
	end(marker);
	atomic_store(&p->done, 1);
	end_pair(p, &collector);
}

static void collect_other_often(struct stage *stage, void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_thread_attach(p->other, NULL, NULL), CH_OK);
	for (int i = 0; i < 10 * CYCLES; i++) {
		end(begin(i % 8 ? p->other : stage->heap));
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
}

TEST(two_threads_of_two_heaps_collect_one_each)
{
	struct stage_thread collector;
	struct play *p = new_pair(&collector, collect_other_often);
	for (int i = 0; i < 10 * CYCLES; i++) {
		end(begin(i % 8 ? p->stage->heap : p->other));
		ch_thread_poll();
	}
	stage_join(&collector);
	CHECK_EQ(stage_stats(p->stage).cycles_abandoned, 0);
	end_other(p);
	stage_end(p->stage);
}

static void poll_in_both(struct stage *stage, void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_thread_attach(p->other, NULL, NULL), CH_OK);
	call_and_poll(stage, arg);
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
}

TEST(two_heaps_are_collected_in_one_stop)
{
	struct stage_thread worker;
	struct play *p = new_pair(&worker, poll_in_both);
	stage_wait(&p->ready, 1);
	struct ch_heap *heaps[] = {p->stage->heap, p->other};
	for (int i = 0; i < 4; i++) {
		expect_run(p);
		struct ch_marker *first = begin(heaps[i % 2]), *second = begin(heaps[!(i % 2)]);
		expect_stand(p);
		end(i < 2 ? first : second);
		expect_stand(p);
		end(i < 2 ? second : first);
	}
	expect_run(p);
	atomic_store(&p->step, 1);
	end_pair(p, &worker);
}

/* Both threads make code, run the code, and collect, independently. */
static void make_and_collect(struct stage *stage, void *arg)
{
	struct play *p = arg;
	for (int i = 0; i < 10 * CYCLES; i++) {
		struct method m;
		method_constant(stage, &m, "nine", 9);
		CHECK_EQ(method_call(&m, NULL), 9);
		if (i % 3 == 0)
			stage_collect(stage);
		CHECK_EQ(method_call(&m, NULL), 9);
		if (i % 5 == 0)
			end(begin(stage->heap));
		method_drop(stage, &m);
		ch_thread_poll();
	}
	atomic_fetch_add(&p->ready, 1);
}

/* Owners made and dropped by the other thread are read in the stop only. */
TEST(two_threads_collect_one_heap)
{
	struct play *p = new_play(0, 0);
	struct stage_thread threads[2];
	p->stage->counts_only = true;
	for (int i = 0; i < 2; i++)
		stage_spawn(p->stage, &threads[i], make_and_collect, p);
	for (int i = 0; i < 2; i++)
		stage_join(&threads[i]);
	stage_collect(p->stage);
	CHECK_EQ(stage_stats(p->stage).cycles_abandoned, 0);
	CHECK_EQ(stage_stats(p->stage).blocks_now, 0);
	stage_end(p->stage);
}

/* --- minor collections beside a waiting commit --- */

static void commit_with_ref(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	method_open(&e, &p->m);
	CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, 8)), CH_OK);
	emit_ret(&e);
	p->m.block = e.code.block;
	(void)stage;
	atomic_store(&p->ready, 1);
	wait_parked(&p->step, 1);
	method_commit_only(&e, &p->m);
}

static uintptr_t count_visits(void *arg, uintptr_t word, bool *is_young)
{
	CHECK_EQ(word, 8);
	*(int *)arg += 1;
	return *is_young = true, word;
}

static int visits_of_minor(struct stage *stage)
{
	int visits = 0;
	struct ch_marker *marker = begin(stage->heap);
	CHECK_EQ(ch_refs_visit(marker, CH_REFS_YOUNG, count_visits, &visits), CH_OK);
	end(marker);
	return visits;
}

/* The commit is parked while it waits. Minor collections would miss a LIVE block on no list. */
TEST(block_with_refs_that_waits_in_its_commit_is_not_live)
{
	struct play *p = new_play(0, 0);
	struct stage *stage = p->stage;
	struct stage_thread commits;
	method_new(stage, &p->m, "young");
	stage_spawn(stage, &commits, commit_with_ref, p);
	wait_parked(&p->ready, 1);
	ch__heap_lock(stage->heap);
	atomic_store(&p->step, 1);
	TEST_UNTIL(atomic_load(&stage->heap->lock.word) == CH__LOCK_AWAITED)
		usleep(100);
	uint32_t index = ch__block_resolve(stage->heap, p->m.block);
	CHECK_EQ(ch__block_state(ch__block_at(stage->heap, index)), CH_BLOCK_OPEN);
	ch__heap_unlock(stage->heap);
	stage_join(&commits);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(visits_of_minor(stage), 1);
	stage_end(stage);
}

/* --- an owner is replaced --- */

static void replace_owner(struct stage *stage, void *arg)
{
	struct play *p = arg;
	atomic_store(&p->ready, 1);
	wait_parked(&p->step, 1);
	CHECK_EQ(ch_owner_create(stage->vm, "new", NULL, NULL, &p->m.owner), CH_OK);
}

/* A collection beside the wait marks the old owner, whose cell the VM still has. */
TEST(owner_that_another_replaces_is_there_while_the_call_waits)
{
	struct play *p = new_play(0, 0);
	struct ch_owner old;
	struct stage_thread replaces;
	method_constant(p->stage, &p->m, "old", 7);
	old = p->m.owner;
	stage_spawn(p->stage, &replaces, replace_owner, p);
	wait_parked(&p->ready, 1);
	ch__heap_lock(p->stage->heap);
	atomic_store(&p->step, 1);
	TEST_UNTIL(atomic_load(&p->stage->heap->lock.word) == CH__LOCK_AWAITED)
		usleep(100);
	CHECK_EQ(p->m.owner.bits, old.bits);
	ch__heap_unlock(p->stage->heap);
	stage_join(&replaces);
	CHECK(p->m.owner.bits && p->m.owner.bits != old.bits);
	CHECK_EQ(ch_owner_create(NULL, "none", NULL, NULL, &p->m.owner), CH_E_ARG);
	CHECK_EQ(p->m.owner.bits, 0);
	stage_end(p->stage);
}

/* --- the collector's registers are roots of the other heap --- */
#if !CH_TSAN

static struct ch_marker *marker_held;
static uintptr_t entry_held;
static unsigned found_held;

__attribute__((noinline)) static void begin_held(void)
{
	marker_held = begin(playing->stage->heap);
}

__attribute__((noinline)) static void look_for_held(void)
{
	const struct ch__shown *shown = &ch__thread_self(playing->other)->shown;
	for (uint32_t i = 0; i < shown->words_count; i++)
		found_held += shown->words[i] == entry_held;
}

static void collect_holding(void *unused)
{
	(void)unused;
	begin_held();
	look_for_held();
	end(marker_held);
}

TEST(registers_of_who_collects_are_roots_of_other_heaps)
{
	struct play *p = new_play(0, 0);
	playing = p;
	add_other(p);
	method_constant(p->stage, &p->m, "seven", 7);
	entry_held = *(const uintptr_t *)p->m.cell;
	CHECK_EQ(stage_call_holding(p->m.cell, collect_holding, NULL), 7);
	CHECK_EQ(found_held, 1);
	end_other(p);
	stage_end(p->stage);
}
#endif
