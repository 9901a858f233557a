/* SPDX-License-Identifier: MIT
 * support.h: a small VM on the Boehm collector for the bdw_* tests: threads, method objects, and
 * the code of a method. Each test file includes the header once.
 *
 *   method -> anchor -> owner -> block -> ref -> constant -> other method      (the collector
 *                                                                              sees method,
 *                                                                              constant)
 *   block  -> branch -> block of another method
 *
 * A method's code takes the address of a sum, adds the constant's value to the sum, calls `callee`,
 * and goes on in the linked method's code, or returns. */
#pragma once

#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include "codeheap/codeheap_bdw.h"
#include "codeheap/collector.h"
#include "codeheap/look.h"
#include "tests/support/calls.h"
#include "tests/support/harness.h"
#include "tests/support/stage_code.h"

#include <gc/gc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct method;
struct constant { /* reached by a ref in code only */
	uint64_t value;
	struct method *back;
};
struct method {
	void *anchor;
	struct ch_owner owner;
	struct ch_block block;
	struct ch_branch branch;
	uint64_t value, sum; /* of the method alone, and with all methods behind */
	unsigned depth;      /* steps to the farthest method behind */
};

struct rig {
	struct ch_heap *heap;
	struct ch_vm *vm;
	void (*body)(struct rig *, void *);
	void *arg;
};

typedef uint64_t *code_fn(uint64_t *sum);

static uint64_t *no_code(uint64_t *sum)
{
	*sum += 1u << 30;
	return sum;
}

static struct ch_block never_hit(void *vm_user, struct ch_branch branch, void *user,
				 struct ch_regs *regs)
{
	(void)vm_user, (void)branch, (void)user, (void)regs;
	FAIL("a linked branch led to its stub");
}

/* --- set-up --- */

static inline void start_collector(void)
{
	GC_INIT();
	GC_allow_register_threads();
}

/* Attaches the calling thread, too. */
static inline struct rig start_rig(size_t pool_bytes)
{
	start_collector();
	struct rig rig = {0};
	struct ch_config config;
	ch_config_init(&config);
	config.pool_bytes = pool_bytes;
	config.page_bytes = test_page_bytes();
	CHECK_EQ(ch_bdw_heap_create(&config, &rig.heap), CH_OK);
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = never_hit};
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &rig.vm), CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	return rig;
}

static inline void check_heap_here(void *arg)
{
	struct ch_heap *heap = arg;
	char report[512];
	if (ch_heap_check(heap, report, sizeof report) != CH_OK)
		FAIL("heap check: %s", report);
}

/* On a separate thread: the walk leaves code addresses on the stack. */
static inline void check_heap(struct ch_heap *heap)
{
	run_on_ended_thread(check_heap_here, heap);
}

static inline struct ch_stats stats_of(struct ch_heap *heap)
{
	struct ch_stats stats = {.size = sizeof stats};
	CHECK_EQ(ch_heap_stats(heap, &stats), CH_OK);
	return stats;
}

static inline void end_rig(struct rig *rig)
{
	check_heap(rig->heap);
	CHECK_EQ(ch_vm_detach(rig->vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(rig->heap), CH_OK);
}
#define TEST_BDW(name) TEST_WITH(name, struct rig, rig, start_rig(0), end_rig(&rig))

static inline void collect(struct rig *rig)
{
	wipe_stack();
	CHECK_EQ(ch_heap_collect(rig->heap), CH_OK);
}

/* The collector calls this function while marking, many times a stop; a nonzero answer gives the
 * stop up. In incremental mode marking then goes on in steps with the world running. The
 * collector's lock guards the state. */
static uint64_t give_up_one_in = 1;
static inline int give_up_sometimes(void)
{
	static uint64_t state = 88172645463325252u;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % give_up_one_in == 0;
}

/* --- threads --- */

static inline void enter_thread(struct rig *rig)
{
	struct GC_stack_base base;
	CHECK_EQ(GC_get_stack_base(&base), GC_SUCCESS);
	CHECK_EQ(GC_register_my_thread(&base), GC_SUCCESS);
	CHECK_EQ(ch_thread_attach(rig->heap, NULL, NULL), CH_OK);
}

static inline void leave_thread(struct rig *rig)
{
	CHECK_EQ(ch_thread_detach(rig->heap), CH_OK);
	CHECK_EQ(GC_unregister_my_thread(), GC_SUCCESS);
}

static inline void enter_and_run(void *arg)
{
	struct rig *rig = arg;
	enter_thread(rig);
	rig->body(rig, rig->arg);
	leave_thread(rig);
}

/* No collection after this call sees words that body left on its stack or in registers. */
static inline void run_apart(struct rig *rig, void (*body)(struct rig *, void *), void *arg)
{
	struct rig copy = *rig;
	copy.body = body;
	copy.arg = arg;
	run_on_ended_thread(enter_and_run, &copy);
}

/* Sleeps in spite of the collector's signals, without a lock. */
static inline void wait_until(const _Atomic(int) *word, int value)
{
	while (__atomic_load_n((const int *)word, __ATOMIC_ACQUIRE) != value)
		usleep(200);
}

/* --- code --- */

static inline enum ch_status open_code(struct emitter *e, struct ch_owner owner, uint32_t branches)
{
	struct ch_open open = {
		.size = sizeof open,
		.owner = owner,
		.hot_bytes = 96 + CODE_LANDING_BYTES,
		.branch_room = branches};
	e->at = 0;
	enum ch_status status = ch_block_open(&open, &e->code);
	if (status == CH_OK)
		emit_landing(e);
	return status;
}

/* The code adds the constant's value to *sum, calls the callee with sum, and goes on with the
 * callee's result as the argument: in the target, or in the caller. */
static inline void emit_method(struct emitter *e, struct method *m, const struct constant *constant,
			       code_fn *callee, bool has_target)
{
	emit_enter(e);
	const void *ref = emit_ref_word(e, (uint64_t)(uintptr_t)constant);
	CHECK_EQ(ch_ref_attach(e->code.block, ref), CH_OK);
	emit_add_at_ref(e);
	emit_call_c(e, (const void *)callee);
	emit_result_as_argument(e);
	if (has_target) {
		emit_exit(e);
		m->branch = emit_jmp(e, NULL);
	} else {
		emit_leave(e);
	}
	e->code.used_to = e->at;
}

/* --- methods --- */

static inline struct method *new_method(struct rig *rig, uint64_t value)
{
	struct method *m = GC_MALLOC(sizeof *m);
	CHECK(m);
	m->value = m->sum = value;
	CHECK_EQ(ch_bdw_owner_create(rig->vm, "method", (const void *)no_code, m, &m->owner,
				     &m->anchor),
		 CH_OK);
	return m;
}

/* Compiles m, whose code goes on in target's code when target is not NULL; m's constant refers to
 * back. Returns false when the heap has no room. */
static inline bool compile(struct method *m, struct method *target, struct method *back,
			   code_fn *callee)
{
	struct emitter e;
	struct constant *volatile constant = GC_MALLOC(sizeof *constant);
	constant->value = m->value;
	constant->back = back;
	enum ch_status status = open_code(&e, m->owner, target != NULL);
	if (status == CH_E_FULL)
		return false;
	CHECK_EQ(status, CH_OK);
	emit_method(&e, m, constant, callee, target != NULL);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	m->block = e.code.block;
	if (target) {
		CHECK_EQ(ch_branch_link(m->branch, target->block), CH_OK);
		m->sum = m->value + target->sum;
		m->depth = m->depth > target->depth ? m->depth : target->depth + 1;
	}
	CHECK_EQ(ch_owner_set_entry(m->owner, m->block), CH_OK);
	return true;
}

/* Runs the method's code and returns the sum. */
static inline uint64_t run_method(const struct method *m)
{
	uint64_t sum = 0;
	const void *const *cell = ch_owner_cell(m->owner);
	CHECK(cell);
	((code_fn *)(uintptr_t)*cell)(&sum);
	return sum;
}

static inline uint64_t *plain_callee(uint64_t *sum)
{
	return sum;
}

struct asked {
	struct ch_block block;
	bool is_known;
};

static inline void ask(void *arg)
{
	struct asked *asked = arg;
	struct ch_info info = {.size = sizeof info};
	asked->is_known = ch_block_info(asked->block, &info) == CH_OK;
}

/* Asks on a separate thread: the answer leaves the block's address on the stack. */
static inline bool is_known(struct ch_block block)
{
	struct asked asked = {.block = block};
	run_on_ended_thread(ask, &asked);
	return asked.is_known;
}

/* For GC_set_stop_func and GC_try_to_collect. */
static inline int never_give_up(void)
{
	return 0;
}

static int asked, stop_at;

static inline int stop_after(void)
{
	return ++asked >= stop_at;
}
