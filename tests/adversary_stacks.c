/* SPDX-License-Identifier: MIT
 * adversary_stacks.c: where roots hide from a scan: vector registers, registers that calls keep,
 * frames below an alternate stack that is an array of a frame. */
#define _GNU_SOURCE
#include "tests/stage.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct play {
	_Atomic(int) go; /* +0: 1 it spins, 2 it may go on */
	int pad;
	const void *const *other_cell; /* +8 */
	struct stage *stage;
	struct method m, other;
	uint64_t result;
	_Atomic(int) step; /* 1: it is where it is to be, 2: it may go on */
	bool is_upper;
};

static struct play *_Atomic playing;

static struct play *new_play(struct stage *stage)
{
	struct play *p = stage_play(stage, sizeof *p);
	p->stage = stage;
	atomic_store(&playing, p);
	return p;
}

static void drop_both(struct play *p)
{
	method_invalidate(&p->m);
	method_drop(p->stage, &p->m);
	method_drop(p->stage, &p->other);
}

static void build_other(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_constant(stage, &p->other, "other", 5);
	p->other_cell = p->other.cell;
}

/* --- registers --- */

static void build_hider(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	build_other(stage, p);
	method_new(stage, &p->m, "hides an address");
	method_open(&e, &p->m);
	emit_load_code(&e);
	if (!emit_hide_code(&e, p->is_upper))
		skip("vector registers here have no upper half");
	emit_tell(&e, 1);
	emit_wait_for(&e, 2);
	emit_unhide_code(&e, p->is_upper);
	emit_jump_code(&e);
	method_commit(&e, &p->m);
}

static void enter_m(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	p->result = method_call(&p->m, p);
}

__attribute__((unused)) static void hide_and_collect(struct stage *stage, bool is_upper)
{
	struct play *p = new_play(stage);
	p->is_upper = is_upper;
	stage_apart(stage, build_hider, p);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_m, p);
	stage_wait(&p->go, 1);
	drop_both(p);
	for (int i = 0; i < 3; i++) {
		stage_collect(stage);
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
		CHECK(method_is_known(&p->other));
	}
	atomic_store(&p->go, 2);
	stage_join(&t);
	CHECK_EQ(p->result, 5);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
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

static void park_until_told(void *arg)
{
	struct play *p = arg;
	ch_thread_park();
	atomic_store(&p->step, 1);
	while (atomic_load(&p->step) == 1)
		usleep(100);
	ch_thread_unpark();
}

static void park_and_enter_other(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	p->result = stage_call_holding(p->other_cell, park_until_told, p);
}

EVERY_DRIVER(s18_address_in_a_register_that_calls_keep)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_other, p);
	struct stage_thread t;
	ch_thread_park(); /* on flip one thread runs */
	stage_spawn(stage, &t, park_and_enter_other, p);
	stage_wait(&p->step, 1);
	ch_thread_unpark();
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
	stage_end(stage);
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
	struct play *p = arg;
	method_native(stage, &p->m, "raiser", (void *)raise_in_callee);
}

static void expect_m_held(struct play *p)
{
	for (int i = 0; i < 3; i++) {
		stage_collect(p->stage);
		CHECK_EQ(block_state(p->m.block), CH_BLOCK_NOTENTRANT);
	}
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
static void enter_over_array(struct stage *stage, struct play *p, void (*handler)(int))
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
	park_until_told(atomic_load(&playing));
}

static void enter_and_park(struct stage *stage, void *arg)
{
	enter_over_array(stage, arg, park_in_handler);
}

EVERY_DRIVER(s19_frame_below_a_handler_on_an_array_of_its_own_stack)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_raiser, p);
	struct stage_thread t;
	ch_thread_park();
	stage_spawn(stage, &t, enter_and_park, p);
	stage_wait(&p->step, 1);
	ch_thread_unpark();
	method_invalidate(&p->m);
	method_drop(stage, &p->m);
	expect_m_held(p);
	atomic_store(&p->step, 2);
	stage_join(&t);
	CHECK_EQ(p->result, 19);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	stage_end(stage);
}

static void collect_in_handler(int signal)
{
	struct play *p = atomic_load(&playing);
	(void)signal;
	method_invalidate(&p->m);
	method_drop(p->stage, &p->m);
	expect_m_held(p);
}

static void enter_and_collect(struct stage *stage, void *arg)
{
	enter_over_array(stage, arg, collect_in_handler);
}

static void collect_on_array(struct stage *stage)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_raiser, p);
	stage_apart(stage, enter_and_collect, p);
	CHECK_EQ(p->result, 19);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	stage_end(stage);
}
/* libgc does not collect in a thread whose sp is on a stack that it does not know. */
STAGE_CASE(s19_collections_in_a_handler_on_an_array_of_its_own_stack, _polls, STAGE_POLLS,
	   collect_on_array)
STAGE_CASE(s19_collections_in_a_handler_on_an_array_of_its_own_stack, _signals, STAGE_SIGNALS,
	   collect_on_array)
STAGE_CASE(s19_collections_in_a_handler_on_an_array_of_its_own_stack, _host, STAGE_HOST,
	   collect_on_array)

#if !CH_TSAN
static void spin_in_handler(int signal)
{
	struct play *p = atomic_load(&playing);
	(void)signal;
	atomic_store(&p->step, 1);
	while (atomic_load(&p->step) == 1)
		ch__arch_pause();
}

static void enter_and_spin(struct stage *stage, void *arg)
{
	enter_over_array(stage, arg, spin_in_handler);
}

/* The signal of the stop comes upon the handler. */
STOPPING_DRIVER(s19_handler_on_an_array_of_its_own_stack_is_stopped)
{
	struct play *p = new_play(stage);
	stage_apart(stage, build_raiser, p);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_and_spin, p);
	stage_wait(&p->step, 1);
	method_invalidate(&p->m);
	method_drop(stage, &p->m);
	expect_m_held(p);
	atomic_store(&p->step, 2);
	stage_join(&t);
	CHECK_EQ(p->result, 19);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	stage_end(stage);
}
#endif
