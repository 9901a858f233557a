/* SPDX-License-Identifier: MIT
 * storm.c: threads make, link, run and drop methods while the collector runs, by default,
 * with four marker threads, and in incremental mode. The oracle: a method that a thread holds is
 * alive, and its code adds up the right sum. */
#include "tests/bdw/support.h"

#include <errno.h>
#include <sched.h>
#include <sys/wait.h>

enum { THREADS = 4, SLOTS = 64, DEPTH_MAX = 4, LEFT_MAX = 64, POOL_BYTES = 4 << 20 };

struct worker {
	struct rig *rig;
	struct test_random random;
	uint64_t deadline_ns, made, runs, lost, full;
	pthread_t thread;
};

/* Roots of the collector; any thread reads any slot. */
static struct method *_Atomic(slots)[THREADS][SLOTS];
static struct worker workers[THREADS];
static _Atomic(uint64_t) made_by_all;
static bool gives_up; /* stops of the collector are given up now and then */
static bool forks;    /* the first thread forks meanwhile */

static void *yield_thread(void *arg)
{
	sched_yield();
	return arg;
}

/* Runs inside every block: makes garbage for the collector, and lets a stop or a park come with JIT
 * frames below. */
static uint64_t *allocating_callee(uint64_t *sum)
{
	static _Thread_local unsigned calls;
	volatile char *garbage = GC_MALLOC(48);
	garbage[0] = 1;
	if (++calls % 64 == 0)
		CHECK(ch_bdw_do_blocking(yield_thread, sum) == sum);
	return sum;
}

static struct method *any_method(struct worker *w)
{
	uint64_t thread = test_random_below(&w->random, THREADS);
	return atomic_load(&slots[thread][test_random_below(&w->random, SLOTS)]);
}

static bool is_alive(const struct method *m)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	return ch_owner_info(m->owner, &facts) == CH_OK && facts.entry.bits == m->block.bits;
}

static void check_method(struct worker *w, const struct method *m)
{
	w->runs++;
	if (!is_alive(m))
		w->lost++;
	else
		CHECK_EQ(run_method(m), m->sum);
}

/* Returns a method that is not too far from the leaves, or NULL: a word that names such a method by
 * chance then holds few more. */
static struct method *low_method(struct worker *w)
{
	struct method *m = any_method(w);
	return m && m->depth < DEPTH_MAX ? m : NULL;
}

static void make_method(struct worker *w, int self)
{
	struct method *target = low_method(w), *back = low_method(w);
	struct method *m = new_method(w->rig, 1 + test_random_below(&w->random, 1000));
	m->depth = back ? back->depth + 1 : 0;
	if (!compile(m, target, back ? back : m, allocating_callee)) {
		w->full++;
		enum ch_status status = ch_heap_collect(w->rig->heap);
		CHECK(status == CH_OK || (status == CH_E_BUSY && gives_up));
		return;
	}
	w->made++;
	atomic_fetch_add(&made_by_all, 1);
	atomic_store(&slots[self][test_random_below(&w->random, SLOTS)], m);
}

/* Returns whether the storm has had enough methods, cycles, freed blocks and stops given up. */
static bool is_seen(const struct ch_stats *stats)
{
	return atomic_load(&made_by_all) > 100 && stats->cycles > 2 && stats->blocks_freed > 0 &&
	       (!gives_up || stats->cycles_abandoned > 2);
}

/* A busy machine may need more time: the storm goes on past the deadline until is_seen is true. */
static bool is_over(const struct worker *w)
{
	if (now_ns() < w->deadline_ns)
		return false;
	struct ch_stats stats = stats_of(w->rig->heap);
	return is_seen(&stats);
}

static void storm(struct worker *w, int self)
{
	while (!is_over(w)) {
		uint64_t dice = test_random_below(&w->random, 100);
		struct method *m = any_method(w);
		if (dice < 50)
			make_method(w, self);
		else if (dice < 55)
			atomic_store(&slots[self][test_random_below(&w->random, SLOTS)], NULL);
		else if (m)
			check_method(w, m);
		ch_thread_poll();
	}
}

static void *run_worker(void *arg)
{
	struct worker *w = arg;
	enter_thread(w->rig);
	storm(w, (int)(w - workers));
	leave_thread(w->rig);
	return NULL;
}

static void drop_all(void)
{
	for (int t = 0; t < THREADS; t++)
		for (int i = 0; i < SLOTS; i++)
			atomic_store(&slots[t][i], NULL);
}

static void check_kept(struct rig *rig, void *arg)
{
	(void)rig;
	struct worker *w = arg;
	for (int t = 0; t < THREADS; t++)
		for (int i = 0; i < SLOTS; i++)
			if (atomic_load(&slots[t][i]))
				check_method(w, atomic_load(&slots[t][i]));
}

static void fork_until(struct rig *rig, uint64_t deadline_ns);

static void run_storm(struct rig *rig)
{
	struct test_random seed = test_random_new();
	uint64_t deadline_ns = now_ns() + (uint64_t)storm_ms() * 1000000;
	for (int t = 0; t < THREADS; t++) {
		workers[t] = (struct worker){.rig = rig, .deadline_ns = deadline_ns};
		workers[t].random.state = test_random_next(&seed) | 1;
		CHECK_EQ(pthread_create(&workers[t].thread, NULL, run_worker, &workers[t]), 0);
	}
	GC_set_stop_func(gives_up ? give_up_sometimes : never_give_up);
	if (forks)
		fork_until(rig, deadline_ns);
	struct worker all = {0};
	for (int t = 0; t < THREADS; t++) {
		/* The join is a blocking call: a collection does not wait for this thread. */
		join_parked(workers[t].thread);
		all.made += workers[t].made;
		all.runs += workers[t].runs;
		all.lost += workers[t].lost;
		all.full += workers[t].full;
	}
	GC_set_stop_func(never_give_up);
	run_apart(rig, check_kept, &all);
	struct ch_stats stats = stats_of(rig->heap);
	printf("# %llu made, %llu runs, %llu full, %llu cycles, %llu given up, %llu freed\n",
	       (unsigned long long)all.made, (unsigned long long)all.runs,
	       (unsigned long long)all.full, (unsigned long long)stats.cycles,
	       (unsigned long long)stats.cycles_abandoned, (unsigned long long)stats.blocks_freed);
	CHECK_EQ(all.lost, 0);
	check_heap(rig->heap);
	drop_all();
	for (int i = 0; i < 3; i++)
		collect(rig);
	stats = stats_of(rig->heap);
	/* A word of this thread's stack may name a dropped method. */
	printf("# %llu blocks after the drop\n", (unsigned long long)stats.blocks_now);
	CHECK(stats.blocks_now <= LEFT_MAX);
	end_rig(rig);
}

/* Forks beside the workers: each child runs and collects the methods of its parent. */
static void fork_until(struct rig *rig, uint64_t deadline_ns)
{
	int count = 0;
	while (now_ns() < deadline_ns || count < 3) {
		fflush(stdout);
		pid_t child = fork_child();
		if (!child) {
			struct worker all = {.rig = rig};
			check_kept(rig, &all);
			collect(rig);
			check_kept(rig, &all);
			check_heap(rig->heap);
			_exit(all.lost ? 1 : 0);
		}
		int status;
		ch_thread_park();
		while (waitpid(child, &status, 0) < 0)
			CHECK_EQ(errno, EINTR);
		ch_thread_unpark();
		CHECK_EQ(status, 0);
		count++;
	}
	printf("# %d forks\n", count);
}

static void run_again(const char *name, const char *variable, const char *value)
{
	if (getenv(variable))
		return;
	CHECK_EQ(setenv(variable, value, 1), 0);
	run_case_again(name);
}

TEST(bdw_storm_loses_nothing)
{
	struct rig rig = start_rig(POOL_BYTES);
	run_storm(&rig);
}

TEST(bdw_storm_with_four_markers_loses_nothing)
{
	run_again("bdw_storm_with_four_markers_loses_nothing", "GC_MARKERS", "4");
	struct rig rig = start_rig(POOL_BYTES);
	CHECK_EQ(GC_get_parallel(), 3);
	run_storm(&rig);
}

TEST(bdw_storm_with_forks_loses_nothing)
{
	struct rig rig = start_rig(POOL_BYTES);
	forks = true;
	run_storm(&rig);
}

TEST(bdw_storm_with_stops_given_up_loses_nothing)
{
	struct rig rig = start_rig(POOL_BYTES);
	gives_up = true;
	give_up_one_in = 500;
	run_storm(&rig);
}

TEST(bdw_storm_in_incremental_mode_loses_nothing)
{
	GC_INIT();
	GC_enable_incremental();
	GC_set_time_limit(2);
	struct rig rig = start_rig(POOL_BYTES);
	CHECK(GC_is_incremental_mode());
	gives_up = true;
	give_up_one_in = 8;
	run_storm(&rig);
}
