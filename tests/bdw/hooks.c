/* SPDX-License-Identifier: MIT
 * hooks.c: the driver among the collector's events: starts and stops that are given up,
 * partial collections, the window between a start and its stop, other users of the hooks, fork,
 * an overflow of the collector's mark stack. */
#include "codeheap/base/heap.h"
#include "codeheap/graph/handles.h"
#include "codeheap/graph/owner.h"
#include "tests/bdw/support.h"

#include <dlfcn.h>
#include <gc/gc_mark.h>
#include <signal.h>

enum { METHODS = 100, ROUNDS = 4000 };

static struct method *kept[METHODS]; /* a root of the collector */

static void build(struct rig *rig, void *arg)
{
	(void)arg;
	for (int i = 0; i < METHODS; i++) {
		struct method *m = new_method(rig, (uint64_t)i + 1);
		struct method *target = i % 2 ? kept[i - 1] : NULL;
		CHECK(compile(m, target, m, plain_callee));
		kept[i] = m;
	}
}

static void run_kept(struct rig *rig, void *arg)
{
	(void)rig, (void)arg;
	for (int i = 0; i < METHODS; i++)
		if (kept[i])
			CHECK_EQ(run_method(kept[i]), kept[i]->sum);
}

static void check_all_freed(struct rig *rig)
{
	memset(kept, 0, sizeof kept);
	collect(rig);
	CHECK_EQ(stats_of(rig->heap).blocks_now, 0);
	end_rig(rig);
}

/* --- given up --- */

/* A case at whose end nothing holds the kept methods. */
#define TEST_ALL_FREED(name) TEST_WITH(name, struct rig, rig, start_rig(0), check_all_freed(&rig))

/* Each try gives up at a later question of the collector, up to a question inside the stop. */
TEST_ALL_FREED(bdw_collection_given_up_frees_nothing)
{
	run_apart(&rig, build, NULL);
	uint64_t stops = 0;
	for (stop_at = 1; stop_at < 1000 && stops < 3; stop_at++) {
		asked = 0;
		int is_done = GC_try_to_collect(stop_after);
		while (ch_thread_poll(), stats_of(rig.heap).blocks_freed)
			FAIL("stop_at %d freed", stop_at);
		stops = stats_of(rig.heap).cycles_abandoned;
		if (is_done)
			break;
	}
	CHECK(stops > 0);
	run_apart(&rig, run_kept, NULL);
	collect(&rig);
	CHECK_EQ(stats_of(rig.heap).blocks_now, METHODS);
	run_apart(&rig, run_kept, NULL);
}

/* The begin of a cycle makes marks young that have grown old, and so moves what is complete. */
TEST_ALL_FREED(bdw_collection_given_up_while_marks_are_renewed_is_busy)
{
	run_apart(&rig, build, NULL);
	uint64_t cycles = stats_of(rig.heap).cycles, stops = stats_of(rig.heap).cycles_abandoned;
	enum ch_status status = CH_E_BUSY;
	GC_set_stop_func(stop_after);
	for (stop_at = 1; stop_at < 1000 && status == CH_E_BUSY; stop_at++) {
		asked = 0;
		rig.heap->marks_renewed = rig.heap->epoch - CH__MARKS_LAST;
		status = ch_heap_collect(rig.heap);
		CHECK_EQ(status == CH_OK, stats_of(rig.heap).cycles > cycles);
	}
	GC_set_stop_func(never_give_up);
	CHECK_EQ(status, CH_OK);
	CHECK(stats_of(rig.heap).cycles_abandoned - stops > 1);
	run_apart(&rig, run_kept, NULL);
}

TEST_BDW(bdw_collection_given_up_after_a_blind_one_names_no_thread)
{
	struct ch__thread *self = ch__thread_self(rig.heap);
	uintptr_t high = self->stack_high;
	self->stack_high = self->stack_low;
	CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
	CHECK(strstr(ch_why(), "ch_fiber_attach it"));
	self->stack_high = high;
	asked = stop_at = 0;
	GC_set_stop_func(stop_after);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_E_BUSY);
	CHECK(strstr(ch_why(), "gave up"));
	GC_set_stop_func(never_give_up);
}

/* --- a program that did not start the collector --- */

TEST(first_heap_starts_the_collector)
{
	struct ch_heap *heap;
	struct ch_config config;
	struct sigaction action;
	ch_config_init(&config);
	config.stop_signal = SIGUSR1; /* not used */
	CHECK(!GC_is_init_called());
	CHECK_EQ(ch_bdw_heap_create(&config, &heap), CH_OK);
	CHECK(GC_is_init_called());
	CHECK(sigaction(SIGUSR1, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
}

/* No handler of the program runs in a thread that the collector has stopped. */
TEST(bdw_stop_signal_blocks_what_libgc_blocks)
{
	struct sigaction libgc, own;
	start_collector();
	CHECK_EQ(sigaction(GC_get_suspend_signal(), NULL, &libgc), 0);
	struct rig rig = start_rig(0);
	CHECK_EQ(sigaction(GC_get_suspend_signal(), NULL, &own), 0);
	CHECK(own.sa_sigaction != libgc.sa_sigaction);
	CHECK(sigismember(&libgc.sa_mask, SIGUSR1));
	for (int signal = 1; signal < SIGRTMAX; signal++)
		CHECK_EQ(sigismember(&own.sa_mask, signal), sigismember(&libgc.sa_mask, signal));
	CHECK(own.sa_flags & SA_RESTART);
	end_rig(&rig);
}

/* --- partial collections --- */

static struct rig start_incremental(void)
{
	GC_INIT();
	GC_enable_incremental();
	/* Each collection takes a single stop: partial collections follow each other. */
	GC_set_time_limit(GC_TIME_UNLIMITED);
	return start_rig(0);
}

/* Each collection is full, and takes several stops. */
static struct rig start_in_several_stops(void)
{
	GC_INIT();
	GC_set_full_freq(0);
	GC_enable_incremental();
	GC_set_time_limit(1000);
	return start_rig(0);
}

static void partial_collections(struct rig *rig, void *arg)
{
	(void)rig;
	GC_word until = GC_get_gc_no() + *(GC_word *)arg;
	while (GC_get_gc_no() < until)
		memset(GC_MALLOC(32), 0x5a, 32);
}

static void expect_partial_after_given_up(struct rig *rig)
{
	run_apart(rig, build, NULL);
	collect(rig);
	uint64_t cycles = stats_of(rig->heap).cycles;
	asked = 0;
	stop_at = 2;
	CHECK(!GC_try_to_collect(stop_after));
	GC_word one = 1;
	run_apart(rig, partial_collections, &one);
	ch_thread_poll();
	CHECK_EQ(stats_of(rig->heap).cycles, cycles);
	CHECK_EQ(stats_of(rig->heap).blocks_freed, 0);
	run_apart(rig, run_kept, NULL);
	check_all_freed(rig);
}

/* A start is given up before the mark bits were cleared. The partial collection behind must not
 * count as full: the collector does not visit anchors that are marked already. */
TEST(bdw_partial_collection_after_a_start_given_up_is_not_full)
{
	struct rig rig = start_incremental();
	expect_partial_after_given_up(&rig);
}

/* A program may exclude the library's variables from the roots. The driver itself pushes the
 * objects that must be marked. */
TEST(bdw_partial_collection_is_not_full_where_no_variable_is_a_root)
{
	struct rig rig = start_incremental();
	GC_set_no_dls(1);
	GC_clear_roots();
	GC_add_roots(kept, kept + METHODS);
	expect_partial_after_given_up(&rig);
}

static void build_code_that_names_nothing(struct rig *rig, void *arg)
{
	(void)arg;
	struct ch_code code;
	struct ch_owner owner = new_method(rig, 1)->owner;
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 16};
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	memset(code.write, 0, code.hot_bytes);
	code.used_to = code.hot_bytes;
	struct ch_block block = code.block;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
}

/* Several engines mark; the statistics have what all of them found. */
TEST_ALL_FREED(bdw_collection_counts_what_it_marked)
{
	run_apart(&rig, build, NULL);
	uint64_t freezes = stats_of(rig.heap).freezes;
	collect(&rig);
	struct ch_stats stats = stats_of(rig.heap);
	CHECK(stats.marked_blocks_last >= METHODS);
	CHECK(stats.freezes > freezes);
	CHECK(stats.pause_ns_last > 0);
}

static void build_own_root(struct rig *rig, void *arg)
{
	(void)arg;
	struct ch_code code;
	struct ch_open open = {
		.size = sizeof open, .heap = rig->heap, .hot_bytes = 16, .branch_room = 1};
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	memset(code.write, 0, code.hot_bytes);
	code.used_to = code.hot_bytes;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
}

TEST_BDW(bdw_heap_with_own_roots_alone_leaves_nothing_to_a_cycle)
{
	run_apart(&rig, build_own_root, NULL);
	atomic_store(&rig.heap->waits_for_cycle, true);
	collect(&rig);
	CHECK_EQ(stats_of(rig.heap).marked_blocks_last, 1);
	CHECK_EQ(atomic_load(&rig.heap->waits_for_cycle), !atomic_load(&rig.heap->has_core_sync));
}

/* Constants are young, and only code names them. Other code has no list of refs. */
TEST(bdw_partial_collections_keep_what_code_names)
{
	struct rig rig = start_incremental();
	collect(&rig);
	run_apart(&rig, build_code_that_names_nothing, NULL);
	uint64_t cycles = stats_of(rig.heap).cycles;
	GC_word some = 3;
	run_apart(&rig, build, NULL);
	run_apart(&rig, partial_collections, &some);
	CHECK_EQ(stats_of(rig.heap).cycles, cycles);
	run_apart(&rig, run_kept, NULL);
	check_all_freed(&rig);
}

static struct emitter unfinished;

static void write_unfinished(struct rig *rig, void *arg)
{
	struct constant *volatile constant = GC_MALLOC(sizeof *constant);
	(void)arg;
	constant->value = 7;
	kept[0] = new_method(rig, 7);
	CHECK_EQ(open_code(&unfinished, kept[0]->owner, 0), CH_OK);
	emit_method(&unfinished, kept[0], constant, plain_callee, false);
}

static void finish_and_run(struct rig *rig, void *arg)
{
	(void)rig, (void)arg;
	for (int i = 0; i < 100000; i++)
		memset(GC_MALLOC(sizeof(struct constant)), 0x5a, sizeof(struct constant));
	CHECK_EQ(ch_block_commit(&unfinished.code, 1), CH_OK);
	CHECK_EQ(ch_owner_set_entry(kept[0]->owner, unfinished.code.block), CH_OK);
	CHECK_EQ(run_method(kept[0]), 7);
}

/* On procmem the bytes of an OPEN block are not at exec yet. */
TEST(bdw_partial_collections_keep_what_unfinished_code_names)
{
	if (CH_ARCH_LEAD_BYTES)
		CHECK_EQ(setenv("CODEHEAP_WX", "procmem", 1), 0);
	struct rig rig = start_incremental();
	GC_word some = 3;
	run_apart(&rig, write_unfinished, NULL);
	run_apart(&rig, partial_collections, &some);
	run_apart(&rig, finish_and_run, NULL);
	check_all_freed(&rig);
}

static bool is_enough(const struct rig *rig, uint64_t cycles_before)
{
	struct ch_stats stats = stats_of(rig->heap);
	return stats.cycles > cycles_before + 2 && stats.cycles_abandoned > 2;
}

/* Marking in steps: links change between the steps, and each stop traces anew. */
static void relink_while_marking(struct rig *rig, void *arg)
{
	(void)arg;
	struct method *spare = new_method(rig, 1000);
	CHECK(compile(spare, NULL, NULL, plain_callee));
	struct ch_block hidden = spare->block;
	uint64_t before = stats_of(rig->heap).cycles;
	int round = 0;
	for (; round < ROUNDS || !is_enough(rig, before); round++) {
		/* A single link holds the block, and moves from method to method. */
		int from = (round * 2 + 1) % METHODS, to = (round * 2 + 3) % METHODS;
		CHECK_EQ(ch_branch_link(kept[to]->branch, hidden), CH_OK);
		if (round) {
			CHECK_EQ(ch_branch_link(kept[from]->branch, kept[from - 1]->block), CH_OK);
			spare = NULL;
		}
		GC_collect_a_little();
		for (int i = 0; i < 50; i++)
			GC_MALLOC(64);
		uint64_t sum = 0;
		const void *const *cell = ch_owner_cell(kept[to]->owner);
		((code_fn *)(uintptr_t)*cell)(&sum);
		CHECK_EQ(sum, kept[to]->value + 1000);
		ch_thread_poll();
	}
	CHECK_EQ(ch_branch_link(kept[(round * 2 + 1) % METHODS]->branch, (struct ch_block){0}),
		 CH_OK);
}

TEST(bdw_incremental_marking_sees_changed_links)
{
	struct rig rig = start_in_several_stops();
	run_apart(&rig, build, NULL);
	give_up_one_in = 8;
	GC_set_stop_func(give_up_sometimes);
	run_apart(&rig, relink_while_marking, NULL);
	GC_set_stop_func(never_give_up);
	check_all_freed(&rig);
}

/* Gives up a stop, after which the collector goes on in steps to another stop. */
static void collect_in_two_stops(struct rig *rig, void *arg)
{
	struct ch_stats before = stats_of(rig->heap);
	(void)arg;
	for (stop_at = 1; stats_of(rig->heap).cycles_abandoned == before.cycles_abandoned;
	     stop_at++) {
		asked = 0;
		CHECK(!GC_try_to_collect(stop_after));
	}
	while (stats_of(rig->heap).cycles == before.cycles)
		GC_collect_a_little();
}

/* The second stop traces from the owners that this collection noted; from all it would free none.
 * Now and then a step of libgc with several markers reaches dead objects, too, which go later. */
TEST(bdw_collection_of_two_stops_frees_what_nothing_reaches)
{
	struct rig rig = start_in_several_stops();
	run_apart(&rig, build, NULL);
	collect(&rig);
	memset(kept, 0, METHODS / 2 * sizeof kept[0]);
	wipe_stack();
	run_apart(&rig, collect_in_two_stops, NULL);
	for (int i = 0; i < METHODS; i++)
		ch_thread_poll();
	CHECK(stats_of(rig.heap).blocks_now < METHODS);
	for (int i = 0; i < 3; i++)
		collect(&rig);
	CHECK_EQ(stats_of(rig.heap).blocks_now, METHODS / 2);
	run_apart(&rig, run_kept, NULL);
	check_all_freed(&rig);
}

/* Earlier stops noted more owners than the marker's queue has places. */
enum { MANY = CH__QUEUE_MIN + 200 };
static struct method *many[MANY]; /* a root of the collector */

static void build_many(struct rig *rig, void *arg)
{
	(void)arg;
	for (int i = 0; i < MANY; i++) {
		many[i] = new_method(rig, (uint64_t)i + 1);
		CHECK(compile(many[i], NULL, NULL, plain_callee));
	}
}

static void run_many(struct rig *rig, void *arg)
{
	(void)rig, (void)arg;
	for (int i = 0; i < MANY; i++)
		CHECK_EQ(run_method(many[i]), many[i]->sum);
}

static void mark_in_steps(struct rig *rig, void *arg)
{
	uint64_t until = stats_of(rig->heap).cycles + 3;
	(void)arg;
	TEST_UNTIL(stats_of(rig->heap).cycles >= until && stats_of(rig->heap).cycles_abandoned) {
		GC_collect_a_little();
		GC_MALLOC(64);
		ch_thread_poll();
	}
}

TEST(bdw_owners_noted_in_earlier_stops_are_more_than_the_queue_holds)
{
	struct rig rig = start_in_several_stops();
	run_apart(&rig, build_many, NULL);
	for (int i = 0; i < 3; i++)
		collect(&rig);
	CHECK_EQ(stats_of(rig.heap).blocks_now, MANY);
	give_up_one_in = 8;
	GC_set_stop_func(give_up_sometimes);
	run_apart(&rig, mark_in_steps, NULL);
	GC_set_stop_func(never_give_up);
	CHECK_EQ(stats_of(rig.heap).blocks_now, MANY);
	run_apart(&rig, run_many, NULL);
	memset(many, 0, sizeof many);
	collect(&rig);
	/* A word of libgc's own data, the end of the memory that it took last, may lead to the
	 * first of the objects in the memory above. */
	CHECK(stats_of(rig.heap).blocks_now <= 1);
	end_rig(&rig);
}

static void *volatile stale_word; /* a root of the collector */

/* What a word holds by chance has neighbours. */
enum { TRIES = 20, APART = MANY / (TRIES + 1) };
struct hidden {
	int at;
	uintptr_t anchor; /* inverted: no address that the collector knows */
	struct ch_owner owner;
};

static void hide_one(struct rig *rig, void *arg)
{
	struct hidden *hidden = arg;
	const struct method *m = many[hidden->at += APART];
	(void)rig;
	hidden->anchor = ~(uintptr_t)m->anchor;
	hidden->owner = m->owner;
	many[hidden->at] = NULL;
}

static bool is_dead(const struct rig *rig, struct ch_owner owner)
{
	uint32_t index = ch__owner_look_up(rig->heap, owner);
	CHECK(index > 0); /* not swept yet */
	return !ch__owner_is_alive(rig->heap, ch__owner_at(rig->heap, index));
}

static void collect_only(struct rig *rig, void *arg)
{
	(void)rig, (void)arg;
	GC_gcollect();
}

/* libgc does not touch a dead object among many that live, and a word may still lead there. An
 * object that a word holds by chance is left, and the next one is hidden. */
TEST(bdw_step_of_marking_revives_no_dead_owner)
{
	struct rig rig = start_in_several_stops();
	struct hidden hidden = {.at = 0};
	run_apart(&rig, build_many, NULL);
	collect(&rig);
	do {
		CHECK(hidden.at < TRIES * APART);
		run_apart(&rig, hide_one, &hidden);
		run_apart(&rig, collect_only, NULL);
	} while (!is_dead(&rig, hidden.owner));
	stale_word = (void *)~hidden.anchor;
	run_apart(&rig, collect_in_two_stops, NULL);
	for (int i = 0; i < 3; i++)
		collect(&rig);
	uint64_t left = MANY - (uint64_t)hidden.at / APART;
	CHECK_EQ(stats_of(rig.heap).blocks_now, left);
	CHECK_EQ(stats_of(rig.heap).owners_now, left);
	end_rig(&rig);
}

/* --- between a start and its stop --- */

static GC_start_callback_proc start_before;
static _Atomic(int)
	gate; /* 0 closed, 1 a collection has started, 2 the worker has made its block */
static struct ch_block held_by_newborn;

static void start_and_wait(void)
{
	if (start_before)
		start_before();
	gate = 1;
	wait_until(&gate, 2);
}

static void build_target(struct rig *rig, void *arg)
{
	(void)arg;
	kept[1] = new_method(rig, 2);
	CHECK(compile(kept[1], NULL, NULL, plain_callee));
	held_by_newborn = kept[1]->block;
}

/* Inside the window, opens a block whose branch alone leads to another block. Takes no lock of the
 * collector. */
static void *make_in_window(void *arg)
{
	struct rig *rig = arg;
	enter_thread(rig);
	struct method *m = new_method(rig, 1);
	struct constant *volatile constant = GC_MALLOC(sizeof *constant);
	constant->value = 1;
	m->sum = 1 + 2;
	kept[0] = m;
	gate = 0;
	wait_until(&gate, 1);
	struct emitter e;
	CHECK_EQ(open_code(&e, m->owner, 1), CH_OK);
	emit_method(&e, m, constant, plain_callee, true);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(ch_branch_link(m->branch, held_by_newborn), CH_OK);
	CHECK_EQ(ch_owner_set_entry(m->owner, e.code.block), CH_OK);
	kept[1] = NULL;
	gate = 2;
	leave_thread(rig);
	return NULL;
}

TEST_ALL_FREED(bdw_block_born_between_start_and_stop_is_traced)
{
	run_apart(&rig, build_target, NULL);
	pthread_t thread;
	gate = 3;
	CHECK_EQ(pthread_create(&thread, NULL, make_in_window, &rig), 0);
	wait_until(&gate, 0);
	start_before = GC_get_start_callback();
	GC_set_start_callback(start_and_wait);
	collect(&rig);
	GC_set_start_callback(start_before);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	collect(&rig);
	CHECK(is_known(held_by_newborn));
	run_apart(&rig, run_kept, NULL);
}

/* --- other users of the hooks --- */

static int starts, events, pushes;
static GC_push_other_roots_proc roots_before;

static void count_start(void)
{
	starts++;
}
static void count_event(GC_EventType event)
{
	(void)event;
	events++;
}
static void count_push(void)
{
	pushes++;
	roots_before();
}

TEST(bdw_hooks_of_the_vm_are_chained)
{
	start_collector();
	GC_set_start_callback(count_start);
	GC_set_on_collection_event(count_event);
	roots_before = GC_get_push_other_roots();
	GC_set_push_other_roots(count_push);
	struct rig rig = start_rig(0);
	starts = events = pushes = 0;
	collect(&rig);
	CHECK_EQ(starts, 1);
	CHECK(pushes >= 1);
	CHECK(events >= 8);
	end_rig(&rig);
}

static uintptr_t vm_stack[4]; /* code addresses outside of every C stack */

static struct ch_heap *flushed;

/* Called under the collector's lock, with the world stopped: no call may wait for a lock. */
static void report_vm_stack(void *user, struct ch_marker *marker)
{
	struct ch_heap *heap;
	(void)user;
	CHECK_EQ(ch_sink_flush(flushed), CH_E_STATE);
	CHECK_EQ(ch_bdw_heap_create(NULL, &heap), CH_E_STATE);
	ch_mark_stack(marker, vm_stack, vm_stack + 4);
}

static void build_for_vm_stack(struct rig *rig, void *arg)
{
	struct method *m = new_method(rig, 1);
	CHECK(compile(m, NULL, NULL, plain_callee));
	*(struct ch_block *)arg = m->block;
	vm_stack[2] = (uintptr_t)*ch_owner_cell(m->owner) + 3;
}

TEST(bdw_roots_of_the_vm_hold_code)
{
	struct rig rig = start_rig(0);
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = never_hit, .roots = report_vm_stack};
	flushed = rig.heap;
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &rig.vm), CH_OK);
	struct ch_block block;
	run_apart(&rig, build_for_vm_stack, &block);
	for (int i = 0; i < 3; i++)
		collect(&rig);
	CHECK(is_known(block));
	memset(vm_stack, 0, sizeof vm_stack);
	collect(&rig);
	CHECK(!is_known(block));
	end_rig(&rig);
}

TEST_ALL_FREED(bdw_forked_child_runs_and_collects)
{
	run_apart(&rig, build, NULL);
	collect(&rig);
	fflush(stdout);
	pid_t child = fork_child();
	if (!child) {
		run_kept(&rig, NULL);
		memset(kept, 0, METHODS / 2 * sizeof kept[0]);
		collect(&rig);
		run_kept(&rig, NULL);
		uint64_t left = stats_of(rig.heap).blocks_now;
		check_heap(rig.heap);
		/* The walk above ran on this stack: a few words of the stack may hold a block. */
		_exit(left >= METHODS / 2 && left <= METHODS / 2 + 8 ? 0 : 1);
	}
	expect_exit(child, 0);
	run_apart(&rig, run_kept, NULL);
	CHECK_EQ(stats_of(rig.heap).blocks_now, METHODS);
}

/* --- overflow of the collector's mark stack: a block names many lists --- */

enum { LISTS = 30000, NODES = 5 }; /* the mark stack starts with some 4,000 entries */
struct node {
	struct node *next;
	uint64_t value;
};

static void build_lists(struct rig *rig, void *arg)
{
	struct ch_code *code = arg;
	struct method *m = new_method(rig, 1);
	struct ch_open open = {.size = sizeof open, .owner = m->owner, .hot_bytes = 8 + LISTS * 8};
	CHECK_EQ(ch_block_open(&open, code), CH_OK);
	code->write[0] = 0xc3;
	for (uint32_t i = 0; i < LISTS; i++) {
		struct node *list = NULL;
		for (uint64_t n = 0; n < NODES; n++) {
			struct node *node = GC_MALLOC(sizeof *node);
			*node = (struct node){list, i * NODES + n};
			list = node;
		}
		memcpy(code->write + 8 + i * 8, &list, sizeof list);
		CHECK_EQ(ch_ref_attach(code->block, code->exec + 8 + i * 8), CH_OK);
	}
	code->used_to = 8 + LISTS * 8;
	CHECK_EQ(ch_block_commit(code, 1), CH_OK);
	CHECK_EQ(ch_owner_set_entry(m->owner, code->block), CH_OK);
	kept[0] = m;
}

static void check_lists(struct rig *rig, void *arg)
{
	(void)rig;
	const struct ch_code *code = arg;
	for (uint32_t i = 0; i < LISTS; i++) {
		const struct node *node;
		memcpy(&node, code->exec + 8 + i * 8, sizeof node);
		for (uint64_t n = NODES; n--; node = node->next)
			CHECK_EQ(node->value, i * NODES + n);
	}
}

TEST_ALL_FREED(bdw_mark_stack_overflow_loses_no_ref)
{
	struct ch_code *code = calloc(1, sizeof *code);
	run_apart(&rig, build_lists, code);
	for (int i = 0; i < 3; i++) {
		collect(&rig);
		for (int n = 0; n < 100000; n++)
			memset(GC_MALLOC(16), 0x5a, 16);
	}
	run_apart(&rig, check_lists, code);
	free(code);
}

/* --- another handler around the signal of the stops --- */

static struct sigaction wrapped;
static _Atomic(int) wrapper_calls;

static void wrap(int signal, siginfo_t *info, void *ucontext)
{
	atomic_fetch_add(&wrapper_calls, 1);
	wrapped.sa_sigaction(signal, info, ucontext);
}

/* Replaces the C library's: another wrapper comes between the look at an action and the change. */
static int comes_between;
int sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	int (*real)(int, const struct sigaction *, struct sigaction *);
	*(void **)&real = dlsym(RTLD_NEXT, "sigaction");
	if (comes_between && comes_between == signal && action) {
		comes_between = 0;
		CHECK_EQ(real(signal, NULL, &wrapped), 0);
		struct sigaction its_own = wrapped;
		its_own.sa_sigaction = wrap;
		CHECK_EQ(real(signal, &its_own, NULL), 0);
	}
	return real(signal, action, old);
}

static void sleep_here(struct rig *rig, void *step)
{
	(void)rig;
	atomic_store((_Atomic(int) *)step, 1);
	wait_until(step, 2);
}

static void *enter_for(void *rig)
{
	enter_and_run(rig);
	return NULL;
}

TEST(bdw_handler_that_comes_while_the_stop_signal_is_taken_is_chained_to)
{
	start_collector();
	comes_between = GC_get_suspend_signal();
	struct rig rig = start_rig(0);
	CHECK_EQ(comes_between, 0);
	static _Atomic(int) step;
	rig.body = sleep_here;
	rig.arg = (void *)(uintptr_t)&step;
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, enter_for, &rig), 0);
	wait_until(&step, 1);
	collect(&rig);
	CHECK(atomic_load(&wrapper_calls) > 0);
	atomic_store(&step, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	end_rig(&rig);
}
