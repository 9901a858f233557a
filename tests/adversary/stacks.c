/* SPDX-License-Identifier: MIT
 * stacks.c: roots hidden from a scan: in vector registers, in registers that calls keep, in frames
 * below an alternate stack that is an array of a frame, or beyond the earlier bounds of a stack.
 * And stacks that are unnamed, have guards, or are gone. */
#define _GNU_SOURCE
#include "os/threads.h"
#include "tests/support/spin_rig.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#if CH_TSAN
/* ThreadSanitizer assumes that each handler may have interrupted an allocator. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "report_signal_unsafe=0";
}
#endif

static bool hides_in_upper_half;
static _Atomic(unsigned) refs_visited;

/* --- registers --- */

static void build_hider(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	struct emitter e = open_spinner(stage, p, "hides an address");
	emit_load_code(&e);
	if (!emit_hide_code(&e, hides_in_upper_half))
		skip("vector registers here have no upper half");
	emit_spin(&e);
	emit_unhide_code(&e, hides_in_upper_half);
	emit_jump_code(&e);
	method_commit(&e, &p->m);
}

__attribute__((unused)) static void hide_and_collect(struct stage *stage, bool is_upper)
{
	struct spin *p = new_spin(stage, sizeof *p);
	hides_in_upper_half = is_upper;
	stage_apart(stage, build_hider, p);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_m, p);
	stage_wait(&p->go, 1);
	drop_both(p);
	expect_both_held(p);
	atomic_store(&p->go, 2);
	join_and_expect_dead(p, &t, 5);
	stage_end(stage);
}

STOPPING_DRIVER(s18_address_in_a_vector_register_only)
{
	hide_and_collect(stage, false);
}

STOPPING_DRIVER(s18_address_in_the_upper_half_of_a_vector_only)
{
	hide_and_collect(stage, true);
}

static void park_and_enter_other(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	(void)stage;
	p->result = stage_call_holding(p->other_cell, park_until_told, p);
}

EVERY_DRIVER(s18_address_in_a_register_that_calls_keep)
{
	struct spin *p = new_spin(stage, sizeof *p);
	stage_apart(stage, build_other, p);
	struct stage_thread t;
	stage_spawn(stage, &t, park_and_enter_other, p);
	stage_wait(&p->step, 1);
	method_drop(stage, &p->other);
	for (int i = 0; i < 3; i++) {
		stage_collect(stage);
		CHECK(method_is_known(&p->other));
	}
	atomic_store(&p->step, 2);
	stage_join(&t);
	CHECK_EQ(p->result, 5);
	stage_collect(stage);
	CHECK_EQ(p->other.freed, 1);
}

/* --- an alternate stack within the thread's own --- */

enum { SIGNAL_STACK_BYTES = 128 << 10 };

static uint64_t raise_in_callee(void *arg)
{
	(void)arg;
	CHECK_EQ(raise(SIGUSR1), 0);
	return 19;
}

static void build_raiser(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	method_native(stage, &p->m, "raiser", (void *)raise_in_callee);
}

/* Drops the block that the waiting thread holds, and ends the thread. */
static void drop_under(struct spin *p, struct stage_thread *t)
{
	drop_m(p);
	expect_m_held(p);
	atomic_store(&p->step, 2);
	join_and_expect_dead(p, t, 19);
}

static void handle_by(void (*handler)(int), void *stack, size_t bytes)
{
	stack_t ours = {.ss_sp = stack, .ss_size = bytes};
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
	CHECK_EQ(sigaltstack(&ours, NULL), 0);
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
}

static void no_signal_stack(void)
{
	stack_t none = {.ss_flags = SS_DISABLE};
	CHECK_EQ(sigaltstack(&none, NULL), 0);
}

/* The frame of the code is pushed below the array, at lower addresses than the handler's. */
static void enter_over_array(struct stage *stage, struct spin *p, void (*handler)(int))
{
	_Alignas(16) char array[SIGNAL_STACK_BYTES];
	handle_by(handler, array, sizeof array);
	stage_signal_stack(stage, array, sizeof array);
	p->result = method_call(&p->m, p);
	stage_signal_stack(stage, NULL, 0);
	no_signal_stack();
}

static void park_in_handler(int signal)
{
	(void)signal;
	park_until_told(atomic_load(&interrupted));
}

static void enter_and_park(struct stage *stage, void *arg)
{
	enter_over_array(stage, arg, park_in_handler);
}

EVERY_DRIVER(s19_frame_below_a_handler_on_an_array_of_its_own_stack)
{
	struct spin *p = new_spin(stage, sizeof *p);
	stage_apart(stage, build_raiser, p);
	struct stage_thread t;
	ch_thread_park();
	stage_spawn(stage, &t, enter_and_park, p);
	stage_wait(&p->step, 1);
	ch_thread_unpark();
	drop_under(p, &t);
}

static void collect_in_handler(int signal)
{
	struct spin *p = atomic_load(&interrupted);
	(void)signal;
	drop_m(p);
	expect_m_held(p);
}

/* The raiser's code is held just while the stacks of enter lead to it. */
static void raise_apart(struct spin *p, void (*enter)(struct stage *, void *))
{
	stage_apart(p->stage, build_raiser, p);
	stage_apart(p->stage, enter, p);
	CHECK_EQ(p->result, 19);
	stage_collect(p->stage);
	CHECK_EQ(p->m.freed, 1);
}

static void enter_and_collect(struct stage *stage, void *arg)
{
	enter_over_array(stage, arg, collect_in_handler);
}

OWN_DRIVER(s19_collections_in_a_handler_on_an_array_of_its_own_stack)
{
	struct spin *p = new_spin(stage, sizeof *p);
	raise_apart(p, enter_and_collect);
}

#if !CH_TSAN
static void spin_in_handler(int signal)
{
	struct spin *p = atomic_load(&interrupted);
	(void)signal;
	atomic_store(&p->step, 1);
	while (atomic_load(&p->step) == 1)
		ch__arch_pause();
}

static void enter_and_spin(struct stage *stage, void *arg)
{
	enter_over_array(stage, arg, spin_in_handler);
}

/* The stop signal interrupts the handler. */
STOPPING_DRIVER(s19_handler_on_an_array_of_its_own_stack_is_stopped)
{
	struct spin *p = new_spin(stage, sizeof *p);
	stage_apart(stage, build_raiser, p);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_and_spin, p);
	stage_wait(&p->step, 1);
	drop_under(p, &t);
}
#endif

/* --- the first stack of a process grows beyond its earlier bounds --- */

enum { LIMIT_BYTES = 1 << 20, DEEP_BYTES = 2 << 20 };

static void set_stack_limit(size_t bytes)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_STACK, &limit), 0);
	if (limit.rlim_max < 4 * DEEP_BYTES)
		skip("the hard limit of stacks is too low");
	limit.rlim_cur = bytes;
	CHECK_EQ(setrlimit(RLIMIT_STACK, &limit), 0);
}

static __attribute__((noinline)) uint64_t call_deep(struct spin *p)
{
	volatile char room[DEEP_BYTES];
	room[0] = 0;
	uint64_t result = method_call(&p->m, p);
	return result + room[0];
}

static uint64_t collect_in_callee(void *arg)
{
	struct spin *p = arg;
	drop_m(p);
	expect_m_held(p);
	return 19;
}

static void build_collector(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	method_native(stage, &p->m, "collector", (void *)collect_in_callee);
}

static void go_deep(struct stage *stage, void (*build)(struct stage *, void *))
{
	set_stack_limit(LIMIT_BYTES);
	struct spin *p = new_spin(stage, sizeof *p);
	stage_apart(stage, build, p);
	set_stack_limit(4 * DEEP_BYTES);
	p->stack = malloc(SIGNAL_STACK_BYTES);
	CHECK(p->stack);
	handle_by(collect_in_handler, p->stack, SIGNAL_STACK_BYTES);
	CHECK_EQ(call_deep(p), 19);
	no_signal_stack();
	free(p->stack);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
}

EVERY_DRIVER(frame_beyond_the_limit_that_its_stack_once_had)
{
	go_deep(stage, build_collector);
}

OWN_DRIVER(frame_beyond_the_limit_below_a_handler_on_its_own_stack)
{
	go_deep(stage, build_raiser);
}

/* --- an unnamed stack --- */

static uint64_t park_in_callee(void *arg)
{
	park_until_told(arg);
	return 21;
}

static void build_with_ref(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	struct emitter e;
	method_native(stage, &p->m, "parks", (void *)park_in_callee);
	method_new(stage, &p->other, "has a ref");
	method_open(&e, &p->other);
	if (stage->driver == STAGE_HOST)
		CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, 0x1234)), CH_OK);
	emit_ret(&e);
	method_commit(&e, &p->other);
}

static uintptr_t count_ref(struct stage *stage, uintptr_t word)
{
	(void)stage;
	atomic_fetch_add(&refs_visited, 1);
	return word;
}

static uint64_t elsewhere[8];

static void enter_on_no_known_stack(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	CHECK_EQ(ch_thread_detach(stage->heap), CH_OK);
	CHECK_EQ(ch_thread_attach(stage->heap, elsewhere, elsewhere + 8), CH_E_ARG);
	CHECK(strstr(ch_why(), "is not the caller's stack: sp is 0x"));
	CHECK_EQ(ch_thread_attach(stage->heap, NULL, NULL), CH_OK);
	struct ch__thread *self = ch__thread_self(stage->heap);
	self->stack_low = (uintptr_t)elsewhere;
	self->stack_high = (uintptr_t)(elsewhere + 8);
	p->result = method_call(&p->m, p);
}

EVERY_DRIVER(cycle_with_a_thread_on_no_known_stack_is_abandoned)
{
	struct spin *p = new_spin(stage, sizeof *p);
	stage->ref = count_ref;
	stage_apart(stage, build_with_ref, p);
	struct stage_thread t;
	ch_thread_park();
	stage_spawn(stage, &t, enter_on_no_known_stack, p);
	stage_wait(&p->step, 1);
	ch_thread_unpark();
	drop_both(p);
	for (unsigned i = 1; i <= 3; i++) {
		unsigned wanted = stage->wanted;
		CHECK_EQ(stage_try_collect(stage), CH_E_BUSY);
		CHECK(strstr(ch_why(), "ch_fiber_attach it"));
		ch_thread_poll();
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
		CHECK(method_is_known(&p->other));
		CHECK(stage_stats(stage).cycles_abandoned >= i);
		/* The abandoned cycle's request is made again. */
		CHECK(stage->wanted > wanted);
		/* A host's object may move: the refs of all code are visited, and no code dies. */
		CHECK_EQ(refs_visited, stage->driver == STAGE_HOST ? i : 0);
	}
	atomic_store(&p->step, 2);
	stage_join(&t);
	CHECK_EQ(p->result, 21);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	CHECK_EQ(p->other.freed, 1);
}

/* --- unreadable memory --- */

enum { ZONE_BYTES = 64 << 10 };

static void guard(void *at, bool is_guard)
{
	CHECK_EQ(mprotect(at, ZONE_BYTES, is_guard ? PROT_NONE : PROT_READ | PROT_WRITE), 0);
}

/* The VM has a guard zone in the middle of the thread's unused stack. */
static void enter_over_zone(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	const void *low, *high;
	CHECK(ch__os_stack_bounds(&low, &high));
	char *zone = (char *)(uintptr_t)low + 4 * ZONE_BYTES;
	guard(zone, true);
	handle_by(park_in_handler, p->stack, SIGNAL_STACK_BYTES);
	stage_signal_stack(stage, p->stack, SIGNAL_STACK_BYTES);
	p->result = method_call(&p->m, p);
	stage_signal_stack(stage, NULL, 0);
	no_signal_stack();
	guard(zone, false);
}

static void *map_bytes(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

EVERY_DRIVER(guard_within_a_stack_that_is_scanned_whole_is_passed_over)
{
	struct spin *p = new_spin(stage, sizeof *p);
	stage_apart(stage, build_raiser, p);
	p->stack = map_bytes(SIGNAL_STACK_BYTES);
	struct stage_thread t;
	ch_thread_park();
	stage_spawn(stage, &t, enter_over_zone, p);
	stage_wait(&p->step, 1);
	ch_thread_unpark();
	drop_under(p, &t);
	CHECK_EQ(munmap(p->stack, SIGNAL_STACK_BYTES), 0);
}

#if !CH_TSAN
static void be_stopped_and_park(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	handle_by(spin_in_handler, p->stack, SIGNAL_STACK_BYTES);
	stage_signal_stack(stage, p->stack, SIGNAL_STACK_BYTES);
	CHECK_EQ(raise(SIGUSR1), 0);
	stage_signal_stack(stage, NULL, 0);
	no_signal_stack();
	CHECK_EQ(mprotect(p->stack, SIGNAL_STACK_BYTES, PROT_NONE), 0);
	park_until_told(p);
}

/* The registers that an earlier stop found lie where nobody may read any more. */
STOPPING_DRIVER(s19_thread_parks_whose_last_stop_was_on_a_stack_that_is_gone)
{
	struct spin *p = new_spin(stage, sizeof *p);
	p->stack = map_bytes(SIGNAL_STACK_BYTES);
	struct stage_thread t;
	stage_spawn(stage, &t, be_stopped_and_park, p);
	for (int i = 0; i < 2; i++) {
		stage_wait(&p->step, 1);
		stage_collect(stage);
		atomic_store(&p->step, 2);
	}
	stage_join(&t);
	CHECK_EQ(stage_stats(stage).cycles_abandoned, 0);
	CHECK_EQ(munmap(p->stack, SIGNAL_STACK_BYTES), 0);
}
#endif

#if !CH_TSAN
static uintptr_t at_home, away;

static void run_away(void *arg)
{
	struct spin *p = arg;
	enter_over_array(p->stage, p, collect_in_handler);
	stage_switch(&away, at_home);
}

static void go_away(struct stage *stage, void *arg)
{
	enum { STACK_BYTES = 1 << 20 };
	struct ch_fiber *fiber;
	char *low = map_bytes(STACK_BYTES);
	CHECK_EQ(ch_fiber_attach(stage->heap, low, low + STACK_BYTES, &fiber), CH_OK);
	stage_switch(&at_home, stage_new_stack(low + STACK_BYTES, run_away, arg));
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	CHECK_EQ(munmap(low, STACK_BYTES), 0);
}

/* Nobody said that the thread runs on the fiber's stack. */
OWN_DRIVER(frame_below_a_handler_on_an_array_of_a_fiber_that_was_not_resumed)
{
	struct spin *p = new_spin(stage, sizeof *p);
	raise_apart(p, go_away);
}
#endif

static void run_in_fiber(struct fiber *f, void *arg)
{
	struct spin *p = arg;
	(void)f;
	p->result = method_call(&p->m, p);
}

static void raise_on_fiber(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	struct fiber fiber;
	handle_by(collect_in_handler, p->stack, SIGNAL_STACK_BYTES);
	fiber_start(stage, &fiber, run_in_fiber, p);
	guard(fiber.stack, true);
	fiber_resume(&fiber);
	CHECK(fiber.is_done);
	guard(fiber.stack, false);
	fiber_end(&fiber);
	no_signal_stack();
}

OWN_DRIVER(guard_within_a_fiber_that_is_scanned_whole_is_passed_over)
{
	struct spin *p = new_spin(stage, sizeof *p);
	p->stack = map_bytes(SIGNAL_STACK_BYTES);
	raise_apart(p, raise_on_fiber);
}

static void build_hidden(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	struct ch_info info = {.size = sizeof info};
	build_other(stage, p);
	CHECK_EQ(ch_block_info(p->other.block, &info), CH_OK);
	p->result = ~(uint64_t)(uintptr_t)(info.exec + 2);
}

static void put_word(struct stage *stage, void *arg)
{
	struct spin *p = arg;
	uintptr_t *sp = (void *)((char *)p->stack + ZONE_BYTES);
	(void)stage;
	sp[1] = ~(uintptr_t)p->result;
}

/* A fiber whose lowest pages are a guard holds a block by a word above, wherever it was left. The
 * stack need not begin at a page. */
static void suspend_above_guard(struct stage *stage, size_t sp_at)
{
	struct spin *p = new_spin(stage, sizeof *p);
	struct ch_fiber *fiber;
	stage_apart(stage, build_hidden, p);
	p->stack = map_bytes(2 * ZONE_BYTES);
	stage_apart(stage, put_word, p);
	guard(p->stack, true);
	char *low = p->stack;
	CHECK_EQ(ch_fiber_attach(stage->heap, low + 64, low + 2 * ZONE_BYTES, &fiber), CH_OK);
	ch_fiber_suspend(fiber, sp_at ? low + sp_at : NULL);
	method_drop(stage, &p->other);
	for (int i = 0; i < 3; i++) {
		stage_collect(stage);
		CHECK(method_is_known(&p->other));
	}
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	CHECK_EQ(munmap(p->stack, 2 * ZONE_BYTES), 0);
	stage_collect(stage);
	CHECK_EQ(p->other.freed, 1);
}

/* The scan below sp would read the guard; the slack of the same page is scanned. */
EVERY_DRIVER(fiber_is_suspended_right_above_a_guard)
{
	suspend_above_guard(stage, ZONE_BYTES + 64);
}

/* Without an sp on the stack the whole stack is scanned, and the guard at its end is in it. */
EVERY_DRIVER(guard_of_a_suspended_fiber_that_is_scanned_whole_is_passed_over)
{
	suspend_above_guard(stage, 0);
}

static void *end_parked(void *arg)
{
	struct spin *p = arg;
	stage_attach(p->stage);
	ch_thread_park();
	stage_leave_collector(p->stage);
	syscall(SYS_exit, 0); /* no destructor of a key detaches the thread */
	return NULL;
}

/* The thread ends without the library's knowledge, and no cycle crashes. */
EVERY_DRIVER(thread_that_ended_parked_and_attached_is_passed_over)
{
	enum { STACK_BYTES = 2 << 20 }; /* a sanitizer's least */
	struct spin *p = new_spin(stage, sizeof *p);
	pthread_attr_t attributes;
	pthread_t thread;
	stage_apart(stage, build_other, p);
	p->stack = map_bytes(STACK_BYTES);
	CHECK_EQ(pthread_attr_init(&attributes), 0);
	CHECK_EQ(pthread_attr_setstack(&attributes, p->stack, STACK_BYTES), 0);
	ch_thread_park();
	CHECK_EQ(pthread_create(&thread, &attributes, end_parked, p), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch_thread_unpark();
	CHECK_EQ(munmap(p->stack, STACK_BYTES), 0);
	method_drop(stage, &p->other);
	for (int i = 0; i < 3; i++)
		stage_collect(stage);
	CHECK_EQ(p->other.freed, 1);
	stage_keep(); /* the thread is still attached */
}
