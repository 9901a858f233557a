/* SPDX-License-Identifier: MIT
 * stacks.c: code that a thread runs or can return to outlives collections by another thread,
 * wherever the address is: on the stack, in the pc alone, in a parked thread, in a suspended fiber
 * (P1). The tables of the library's allocator are no root. */
#include "codeheap/graph/block.h"
#include "codeheap/base/park.h"
#include "os/os.h"
#include "os/threads.h"
#include "tests/bdw/support.h"
#include "tests/support/published.h"

#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

enum { CYCLES = 3 };
enum { BEFORE, INSIDE, GO_ON, DONE };

static struct rig *own_rig;
static _Atomic(int) stage;
static struct ch_block block; /* of the method under test; nobody holds the method */
static const void *entry;     /* the method's code, outside of every root of the library */

/* Compiles a method that calls `callee`, and forgets the method. */
static void build(struct rig *rig, void *arg)
{
	struct method *m = new_method(rig, 7);
	CHECK(compile(m, NULL, NULL, (code_fn *)(uintptr_t)arg));
	block = m->block;
	entry = *ch_owner_cell(m->owner);
}

static void build_spinner(struct rig *rig, void *arg)
{
	(void)arg;
	struct method *m = new_method(rig, 0);
	struct emitter e;
	CHECK_EQ(open_code(&e, m->owner, 0), CH_OK);
	emit_wait_while_zero(&e);
	emit_argument_as_result(&e);
	emit_ret(&e);
	e.code.used_to = e.at;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(ch_owner_set_entry(m->owner, e.code.block), CH_OK);
	block = e.code.block;
	entry = e.code.exec;
}

static __attribute__((noinline)) uint64_t call(const void *code, uint64_t *sum)
{
	*((code_fn *)(uintptr_t)code)(sum) += 1;
	return *sum;
}

static void run_it(void *arg)
{
	struct rig *rig = arg;
	enter_thread(rig);
	uint64_t sum = 0;
	CHECK_EQ(call(entry, &sum), 8);
	stage = DONE;
	leave_thread(rig);
}

/* The block outlives some cycles while a thread is inside, and is gone when the thread has left. */
static void check_survives(struct rig *rig, void *(*body)(void *), void *arg)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, body, arg), 0);
	wait_until(&stage, INSIDE);
	for (int i = 0; i < CYCLES; i++) {
		collect(rig);
		CHECK(is_known(block));
		CHECK(stats_of(rig->heap).stack_roots_last > 0);
		check_heap(rig->heap);
	}
	stage = GO_ON;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(stage, DONE);
	collect(rig);
	CHECK(!is_known(block));
	CHECK_EQ(stats_of(rig->heap).blocks_now, 0);
}

static void *run_thread(void *arg)
{
	run_it(arg);
	return NULL;
}

static uint64_t *wait_inside(uint64_t *sum)
{
	stage = INSIDE;
	wait_until(&stage, GO_ON);
	return sum;
}

TEST_BDW(bdw_return_address_holds_code)
{
	run_apart(&rig, build, (void *)(uintptr_t)wait_inside);
	check_survives(&rig, run_thread, &rig);
}

static _Atomic(int) spin_gate;

static __attribute__((noinline)) void spin(const void *code)
{
	((code_fn *)(uintptr_t)code)((uint64_t *)(uintptr_t)&spin_gate);
}

static void *run_spinner(void *arg)
{
	struct rig *rig = arg;
	enter_thread(rig);
	stage = INSIDE;
	spin(entry);
	stage = DONE;
	leave_thread(rig);
	return NULL;
}

/* Waits until the thread spins in its code: the thread's own clock has then run for much longer
 * than the way there takes, on a busy machine, too. */
static void wait_until_it_spins(pthread_t thread)
{
	enum { LONG_NS = 20000000 };
	clockid_t clock;
	struct timespec spent = {0}, at = {0};
	CHECK_EQ(pthread_getcpuclockid(thread, &clock), 0);
	CHECK_EQ(clock_gettime(clock, &at), 0);
	do {
		usleep(1000);
		CHECK_EQ(clock_gettime(clock, &spent), 0);
	} while ((spent.tv_sec - at.tv_sec) * 1000000000 + spent.tv_nsec - at.tv_nsec < LONG_NS);
}

/* No frame and no return address: only the pc and some registers hold the code. */
TEST_BDW(bdw_pc_alone_holds_code)
{
	run_apart(&rig, build_spinner, NULL);
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, run_spinner, &rig), 0);
	wait_until(&stage, INSIDE);
	wait_until_it_spins(thread);
	for (int i = 0; i < CYCLES; i++) {
		collect(&rig);
		CHECK(is_known(block));
	}
	spin_gate = 1;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	collect(&rig);
	CHECK(!is_known(block));
}

/* --- attached by a call --- */

static uint64_t *wait_inside_attached(uint64_t *sum)
{
	CHECK(ch__thread_self(own_rig->heap));
	return wait_inside(sum);
}

static void *make_and_run(void *arg)
{
	struct GC_stack_base base;
	CHECK_EQ(GC_get_stack_base(&base), GC_SUCCESS);
	CHECK_EQ(GC_register_my_thread(&base), GC_SUCCESS);
	build(arg, (void *)(uintptr_t)wait_inside_attached);
	uint64_t sum = 0;
	CHECK_EQ(call(entry, &sum), 8);
	stage = DONE;
	/* The attachment of the thread ends later, with the thread. */
	CHECK_EQ(GC_unregister_my_thread(), GC_SUCCESS);
	return NULL;
}

TEST_BDW(bdw_thread_that_a_call_attached_holds_its_code_until_it_ends)
{
	own_rig = &rig;
	check_survives(&rig, make_and_run, &rig);
	CHECK_EQ(stats_of(rig.heap).threads_now, 1);
}

static void *make_unknown(void *arg)
{
	struct rig *rig = arg;
	void (*f)(void);
	CHECK_EQ(ch_code_add(rig->heap, "\0\0\0", 4, "unknown", &f), CH_E_THREAD);
	CHECK(strstr(ch_why(), "not registered with the collector"));
	CHECK(!ch__thread_self(rig->heap));
	struct ch_heap *heap;
	struct ch_owner owner;
	void *anchor;
	CHECK_EQ(ch_bdw_heap_create(NULL, &heap), CH_E_THREAD);
	CHECK(!heap);
	CHECK_EQ(ch_bdw_owner_create(rig->vm, "x", (const void *)no_code, NULL, &owner, &anchor),
		 CH_E_THREAD);
	CHECK(!anchor && !owner.bits);
	CHECK_EQ(ch_heap_collect(rig->heap), CH_E_THREAD);
	CHECK(strstr(ch_why(), "does not know thread"));
	return NULL;
}

TEST_BDW(bdw_thread_that_the_collector_does_not_know_is_attached_by_no_call)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, make_unknown, &rig), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(stats_of(rig.heap).threads_now, 1);
}

static void *block_quietly(void *arg)
{
	(void)arg;
	stage = INSIDE;
	wait_until(&stage, GO_ON);
	return NULL;
}

static uint64_t *do_blocking(uint64_t *sum)
{
	CHECK(ch_bdw_do_blocking(block_quietly, NULL) == NULL);
	return sum;
}

TEST_BDW(bdw_parked_thread_holds_code)
{
	run_apart(&rig, build, (void *)(uintptr_t)do_blocking);
	check_survives(&rig, run_thread, &rig);
}

static void *expect_parked(void *arg)
{
	struct rig *rig = arg;
	void (*f)(void);
	CHECK_EQ(ch_code_add(rig->heap, "\0\0\0", 4, "parked", &f), CH_E_STATE);
	CHECK(strstr(ch_why(), "is parked"));
	return rig;
}

TEST_BDW(bdw_thread_that_blocks_is_parked_until_it_returns)
{
	void (*f)(void);
	CHECK(ch_bdw_do_blocking(expect_parked, &rig) == &rig);
	CHECK_EQ(ch_code_add(rig.heap, "\0\0\0", 4, "running", &f), CH_OK);
	CHECK_EQ(ch_code_free(rig.heap, (void *)(uintptr_t)f, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static uint64_t *do_blocking_unparked(uint64_t *sum)
{
	GC_do_blocking(block_quietly, NULL);
	return sum;
}

TEST_BDW(bdw_blocking_without_park_holds_code)
{
	run_apart(&rig, build, (void *)(uintptr_t)do_blocking_unparked);
	check_survives(&rig, run_thread, &rig);
}

/* The whole stack is scanned, also when the VM has a guard within. */
static uint64_t *do_blocking_over_guard(uint64_t *sum)
{
	enum { GUARD_BYTES = 64 << 10 };
	const void *low, *high;
	CHECK(ch__os_stack_bounds(&low, &high));
	char *guard = (char *)(uintptr_t)low + 4 * GUARD_BYTES;
	CHECK_EQ(mprotect(guard, GUARD_BYTES, PROT_NONE), 0);
	GC_do_blocking(block_quietly, NULL);
	CHECK_EQ(mprotect(guard, GUARD_BYTES, PROT_READ | PROT_WRITE), 0);
	return sum;
}

TEST_BDW(bdw_guard_below_a_blocked_thread_is_passed_over)
{
	run_apart(&rig, build, (void *)(uintptr_t)do_blocking_over_guard);
	check_survives(&rig, run_thread, &rig);
}

/* Code runs again after a blocking call: a park that has ended does not count. */
static uint64_t *block_then_run(uint64_t *sum)
{
	stage = BEFORE;
	ch_thread_park();
	ch_thread_unpark();
	return wait_inside(sum);
}

TEST_BDW(bdw_unparked_thread_is_scanned_where_it_is)
{
	run_apart(&rig, build, (void *)(uintptr_t)block_then_run);
	check_survives(&rig, run_thread, &rig);
}

static uint64_t *collect_inside(uint64_t *sum)
{
	for (int i = 0; i < CYCLES; i++) {
		collect(own_rig);
		CHECK(is_known(block));
	}
	return sum;
}

TEST_BDW(bdw_collecting_thread_holds_its_code)
{
	own_rig = &rig;
	run_apart(&rig, build, (void *)(uintptr_t)collect_inside);
	run_on_ended_thread(run_it, &rig);
	CHECK_EQ(stage, DONE);
	collect(&rig);
	CHECK(!is_known(block));
}

/* --- fibers --- */

static ucontext_t main_context, fiber_context;
static struct ch_fiber *fiber;
static _Alignas(16) char fiber_stack[1 << 16];

static uint64_t *suspend_inside(uint64_t *sum)
{
	ch_fiber_suspend(fiber, __builtin_frame_address(0));
	swapcontext(&fiber_context, &main_context);
	ch_fiber_resume(fiber);
	return sum;
}

static void fiber_main(void)
{
	ch_fiber_resume(fiber);
	uint64_t sum = 0;
	CHECK_EQ(call(entry, &sum), 8);
	stage = DONE;
	ch_fiber_suspend(fiber, __builtin_frame_address(0));
	swapcontext(&fiber_context, &main_context);
}

/* The collector knows nothing of the fiber's stack, and sees the fiber only while suspended. */
TEST_BDW(bdw_suspended_fiber_holds_code)
{
	run_apart(&rig, build, (void *)(uintptr_t)suspend_inside);
	CHECK_EQ(ch_fiber_attach(rig.heap, fiber_stack, fiber_stack + sizeof fiber_stack, &fiber),
		 CH_OK);
	CHECK_EQ(getcontext(&fiber_context), 0);
	fiber_context.uc_stack.ss_sp = fiber_stack;
	fiber_context.uc_stack.ss_size = sizeof fiber_stack;
	fiber_context.uc_link = NULL;
	makecontext(&fiber_context, fiber_main, 0);
	CHECK_EQ(swapcontext(&main_context, &fiber_context), 0);
	for (int i = 0; i < CYCLES; i++) {
		collect(&rig);
		CHECK(is_known(block));
	}
	CHECK_EQ(swapcontext(&main_context, &fiber_context), 0);
	CHECK_EQ(stage, DONE);
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	collect(&rig);
	CHECK(!is_known(block));
}

/* --- a signal in the middle of a park --- */

static struct rig *parking_rig;

static void wait_for_signals(void)
{
	stage = INSIDE;
	wait_until(&stage, GO_ON);
}

static void park_half_way(const struct ch__arch_saved *saved)
{
	publish_and_keep(parking_rig->heap, saved, wait_for_signals);
}

static void *park_between_signals(void *arg)
{
	enter_thread(arg);
	ch__arch_with_registers(park_half_way);
	leave_thread(arg);
	return NULL;
}

TEST_BDW(bdw_stop_in_the_middle_of_a_park_leaves_what_was_published)
{
	pthread_t thread;
	parking_rig = &rig;
	CHECK_EQ(pthread_create(&thread, NULL, park_between_signals, &rig), 0);
	wait_until(&stage, INSIDE);
	for (int i = 0; i < CYCLES; i++)
		collect(&rig);
	stage = GO_ON;
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* --- the moves of threads that the driver makes (I20) --- */

static void *wait_to_go_on(void *arg)
{
	struct rig *rig = arg;
	enter_thread(rig);
	stage = INSIDE;
	wait_until(&stage, GO_ON);
	leave_thread(rig);
	return NULL;
}

TEST_BDW(bdw_each_legal_move_of_a_thread_that_the_collector_stops_is_made)
{
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, wait_to_go_on, &rig), 0);
	wait_until(&stage, INSIDE);
	collect(&rig);
	stage = GO_ON;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	int rows = 0;
	for (uint32_t i = 0; ch__thread_moves.rows[i].by; i++) {
		const struct ch__move *row = &ch__thread_moves.rows[i];
		if (strcmp(row->by, "stop_with") != 0 && strcmp(row->by, "publish_collector") != 0)
			continue;
		rows++;
		if (!(atomic_load(&ch__thread_moves.made) >> i & 1))
			FAIL("no thread moved from %s to %s by %s",
			     ch__thread_moves.states[row->from], ch__thread_moves.states[row->to],
			     row->by);
	}
	CHECK_EQ(rows, 4);
}

/* --- what a stop of the collector leaves as it is --- */

TEST_BDW(bdw_thread_that_collects_while_parked_stays_parked)
{
	void (*f)(void);
	ch_thread_park();
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(ch__thread_self(rig.heap)->state, CH__PARKED);
	CHECK_EQ(ch_code_add(rig.heap, "\0\0\0", 4, "parked", &f), CH_E_STATE);
	ch_thread_unpark();
	CHECK_EQ(ch__thread_self(rig.heap)->state, CH__RUNNING);
}

static struct ch_heap *builtin_heap, *second_heap;
/* Of the thread that the collector stops. */
static const struct ch__thread *_Atomic(builtin_record);
static const struct ch__thread *_Atomic(own_record), *_Atomic(second_record);
static int looks;

static void look_at_records(void *user, struct ch_marker *marker)
{
	(void)user, (void)marker;
	CHECK_EQ(ch__thread_self(builtin_heap)->state, CH__RUNNING);
	CHECK_EQ(builtin_record->state, CH__RUNNING);
	CHECK_EQ(own_record->state, CH__SIGNALLED);
	CHECK_EQ(second_record->state, CH__SIGNALLED);
	looks++;
}

static void wait_in_three_heaps(struct rig *rig, void *arg)
{
	(void)arg;
	CHECK_EQ(ch_thread_attach(second_heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_thread_attach(builtin_heap, NULL, NULL), CH_OK);
	builtin_record = ch__thread_self(builtin_heap);
	own_record = ch__thread_self(rig->heap);
	second_record = ch__thread_self(second_heap);
	stage = INSIDE;
	wait_until(&stage, GO_ON);
	CHECK_EQ(ch_thread_detach(second_heap), CH_OK);
	CHECK_EQ(ch_thread_detach(builtin_heap), CH_OK);
}

static void *run_body(void *rig)
{
	enter_and_run(rig);
	return NULL;
}

/* A cycle of the built-in heap would take the thread for stopped, and the thread would run on. */
TEST_BDW(bdw_stop_counts_for_each_heap_of_the_driver_and_for_no_other)
{
	struct ch_ops ops = {.size = sizeof ops, .roots = look_at_records};
	struct ch_vm *vm;
	pthread_t thread;
	CHECK_EQ(ch_heap_create(NULL, &builtin_heap), CH_OK);
	CHECK_EQ(ch_thread_attach(builtin_heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch_bdw_heap_create(NULL, &second_heap), CH_OK);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &vm), CH_OK);
	rig.body = wait_in_three_heaps;
	CHECK_EQ(pthread_create(&thread, NULL, run_body, &rig), 0);
	wait_until(&stage, INSIDE);
	collect(&rig);
	CHECK(looks > 0);
	stage = GO_ON;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(builtin_heap), CH_OK);
	CHECK_EQ(ch_heap_destroy(second_heap), CH_OK);
}

/* --- memory that is no root --- */

extern char __start_ch_alloc_tables[] __attribute__((weak, visibility("hidden")));
extern char __stop_ch_alloc_tables[] __attribute__((weak, visibility("hidden")));
enum { WORD_BYTES = sizeof(void *), ENOUGH_ZEROS = 64, OBJECT_BYTES = 64 };

/* Returns a word that nobody uses: zeros stand around the word. */
static void **unused_word(char *from, char *to)
{
	unsigned zeros = 0;
	void **at = (void **)(void *)(from + (to - from) / 2 / WORD_BYTES * WORD_BYTES);
	for (; (char *)(at + 1) <= to && zeros < ENOUGH_ZEROS; at++)
		zeros = *at ? 0 : zeros + 1;
	CHECK_EQ(zeros, ENOUGH_ZEROS);
	return at - ENOUGH_ZEROS / 2;
}

/* `word` alone holds a new object; the collector clears *link when the object dies. */
static __attribute__((noinline)) void hold_by(void **word, void **link)
{
	void *object = GC_MALLOC_ATOMIC(OBJECT_BYTES);
	CHECK(object);
	*word = object;
	*link = (void *)~(uintptr_t)object;
	CHECK_EQ(GC_general_register_disappearing_link(link, object), GC_SUCCESS);
}

static bool is_held_by(void **word)
{
	void **link = GC_MALLOC_ATOMIC(sizeof *link);
	hold_by(word, link);
	for (int i = 0; i < CYCLES && *link; i++) {
		wipe_stack();
		GC_gcollect();
	}
	bool is_held = *link != NULL;
	GC_unregister_disappearing_link(link);
	*word = NULL;
	return is_held;
}

static void *static_word;

TEST(bdw_word_in_the_allocators_tables_holds_nothing)
{
	char *from = __start_ch_alloc_tables, *to = __stop_ch_alloc_tables;
	if (from == to)
		skip("malloc is not the library's");
	struct rig rig = start_rig(0);
	/* As roots, the tables would outweigh all data of the library besides. */
	CHECK((uintptr_t)to - (uintptr_t)from >= 64 << 10);
	CHECK(is_held_by(&static_word));
	if (is_held_by(unused_word(from, to)))
		FAIL("a word in a table of the allocator is a root");
	end_rig(&rig);
}
