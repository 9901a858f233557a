/* SPDX-License-Identifier: MIT
 * spin_rig.h: for adversaries that stop or interrupt a thread in the middle of code: code that
 * spins until told, and holds further code by an address in a register. This header has no
 * tests. */
#pragma once

#include "tests/support/stage.h"

#include <unistd.h>

/* Read by spinning code: the offsets are in its instructions. */
struct spin {
	_Atomic(int) go; /* +0: 1 the code spins, 2 the code may go on */
	int pad;
	const void *const *other_cell; /* +8 */
	struct stage *stage;
	struct method m, other;
	uint64_t result;
	_Atomic(int) step; /* 1: the thread is in place, 2: the thread may go on */
	void *stack;       /* of the case's own */
};

static struct spin *_Atomic interrupted; /* for signal handlers */

/* For a struct that begins with its spin. The memory goes with the stage. */
static inline void *new_spin(struct stage *stage, size_t bytes)
{
	struct spin *s = stage_memory(stage, bytes);
	s->stage = stage;
	stage_start(stage);
	atomic_store(&interrupted, s);
	return s;
}

static inline void build_other(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	method_constant(stage, &s->other, "other", 5);
	s->other_cell = s->other.cell;
}

static inline void emit_spin(struct emitter *e)
{
	emit_tell(e, 1);
	emit_wait_for(e, 2);
}

/* Begins the spinner's code, which goes on in the other's. */
static inline struct emitter open_spinner(struct stage *stage, struct spin *s, const char *name)
{
	struct emitter e;
	build_other(stage, s);
	method_new(stage, &s->m, name);
	method_open(&e, &s->m);
	return e;
}

/* The address of the spinner's next code is in a register only. */
static inline void build_spinner(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	struct emitter e = open_spinner(stage, s, "spinner");
	emit_load_code(&e);
	emit_spin(&e);
	emit_jump_code(&e);
	method_commit(&e, &s->m);
}

static inline void enter_m(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	(void)stage;
	s->result = method_call(&s->m, s);
}

static inline void park_until_told(void *arg)
{
	struct spin *s = arg;
	ch_thread_park();
	atomic_store(&s->step, 1);
	while (atomic_load(&s->step) == 1)
		usleep(100);
	ch_thread_unpark();
}

static inline void drop_m(struct spin *s)
{
	method_invalidate(&s->m);
	method_drop(s->stage, &s->m);
}

static inline void drop_both(struct spin *s)
{
	drop_m(s);
	method_drop(s->stage, &s->other);
}

/* These collect in the frame of their caller: stage_scrub. */
#define IN_THE_CALLERS_FRAME static inline __attribute__((always_inline))

IN_THE_CALLERS_FRAME void expect_m_held(struct spin *s)
{
	for (int i = 0; i < 3; i++) {
		stage_collect(s->stage);
		CHECK_EQ(block_state(s->m.block), CH_BLOCK_NOTENTRANT);
	}
}

IN_THE_CALLERS_FRAME void expect_both_held(struct spin *s)
{
	for (int i = 0; i < 3; i++) {
		stage_collect(s->stage);
		CHECK_EQ(block_state(s->m.block), CH_BLOCK_NOTENTRANT);
		CHECK(method_is_known(&s->other));
	}
}

/* The dropped blocks die with the thread that ran them. */
IN_THE_CALLERS_FRAME void join_and_expect_dead(struct spin *s, struct stage_thread *t,
					       uint64_t result)
{
	stage_join(t);
	CHECK_EQ(s->result, result);
	stage_collect(s->stage);
	CHECK_EQ(s->m.freed, 1);
	CHECK_EQ(stage_stats(s->stage).blocks_now, 0);
}
