/* SPDX-License-Identifier: MIT
 * stops.c: threads that a cycle stops in the middle of code, or cannot stop: addresses in
 * registers, in the red zone, below a signal handler on another stack; regions, abandoned cycles, a
 * guard read and not yet obeyed. */
#define _GNU_SOURCE
#include "codeheap/collector.h"
#include "tests/support/spin_rig.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* --- 18, 20 --- */

static void build_red_zone(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	struct emitter e = open_spinner(stage, s, "red zone");
	emit_stash_code(&e);
	emit_spin(&e);
	emit_jump_stashed(&e);
	method_commit(&e, &s->m);
}

static void spin_and_collect(struct stage *stage, void (*build)(struct stage *, void *))
{
	struct spin *s = new_spin(stage, sizeof *s);
	stage_apart(stage, build, s);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_m, s);
	stage_wait(&s->go, 1);
	drop_both(s);
	expect_both_held(s);
	atomic_store(&s->go, 2);
	join_and_expect_dead(s, &t, 5);
}

STOPPING_DRIVER(s20_address_in_the_red_zone)
{
	spin_and_collect(stage, build_red_zone);
}

STOPPING_DRIVER(s18_pc_and_address_in_registers_only)
{
	spin_and_collect(stage, build_spinner);
}

/* --- 19 --- */

static void park_in_handler(int signal)
{
	struct spin *s = atomic_load(&interrupted);
	(void)signal;
	if (atomic_load(&s->step))
		return;
	park_until_told(s);
}

static uint64_t raise_on_other_stack(void *arg)
{
	(void)arg;
	CHECK_EQ(raise(SIGUSR1), 0);
	return 19;
}

static int signal_stack_flags;
static bool stack_is_a_fibers;

enum { SIGNAL_STACK_BYTES = 128 << 10 };

static void *new_signal_stack(struct stage *stage)
{
	stack_t stack = {.ss_size = SIGNAL_STACK_BYTES, .ss_flags = signal_stack_flags};
	stack.ss_sp = mmap(NULL, 2 * SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(stack.ss_sp != MAP_FAILED);
	/* Memory behind the stack is unreadable. */
	CHECK_EQ(mprotect((uint8_t *)stack.ss_sp + SIGNAL_STACK_BYTES, SIGNAL_STACK_BYTES,
			  PROT_NONE), 0);
	if (sigaltstack(&stack, NULL) != 0 && signal_stack_flags)
		skip("no signal stack can be disarmed: %s", strerror(errno));
	stage_signal_stack(stage, stack.ss_sp, SIGNAL_STACK_BYTES);
	struct sigaction action = {.sa_handler = park_in_handler, .sa_flags = SA_ONSTACK};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	return stack.ss_sp;
}

static void drop_signal_stack(struct stage *stage, void *at)
{
	stage_signal_stack(stage, NULL, 0);
	stack_t none = {.ss_flags = SS_DISABLE};
	CHECK_EQ(sigaltstack(&none, NULL), 0);
	CHECK_EQ(munmap(at, 2 * SIGNAL_STACK_BYTES), 0);
}

static void enter_on_signal_stack(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	struct ch_fiber *fiber = NULL;
	uint8_t *stack = new_signal_stack(stage);
	if (stack_is_a_fibers)
		CHECK_EQ(ch_fiber_attach(stage->heap, stack, stack + SIGNAL_STACK_BYTES, &fiber),
			 CH_OK);
	s->result = method_call(&s->m, s);
	if (fiber)
		CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	drop_signal_stack(stage, stack);
}

static void build_raiser(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	method_native(stage, &s->m, "raiser", (void *)raise_on_other_stack);
}

static void raise_and_collect(struct stage *stage)
{
	struct spin *s = new_spin(stage, sizeof *s);
	stage_apart(stage, build_raiser, s);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_on_signal_stack, s);
	stage_wait(&s->step, 1);
	drop_m(s);
	expect_m_held(s);
	atomic_store(&s->step, 2);
	join_and_expect_dead(s, &t, 19);
}

EVERY_DRIVER(s19_frame_below_a_handler_on_its_own_stack)
{
	raise_and_collect(stage);
}

/* The kernel forgets an auto-disarmed stack while a handler runs there. */
enum { AUTODISARM = (int)(1u << 31) }; /* SS_AUTODISARM of linux/signal.h */

EVERY_DRIVER(s19_frame_below_a_handler_on_a_fibers_stack_that_is_disarmed)
{
	signal_stack_flags = AUTODISARM;
	stack_is_a_fibers = true;
	raise_and_collect(stage);
}

/* Of a stack that nobody knows each cycle is abandoned. */
static void expect_abandoned(struct spin *s)
{
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(stage_try_collect(s->stage), CH_E_BUSY);
		CHECK_EQ(block_state(s->m.block), CH_BLOCK_NOTENTRANT);
		CHECK(method_is_known(&s->other));
	}
}

/* The interrupted pc and register lie in the signal's frame on the other stack only. */
__attribute__((unused)) static void interrupt_and_collect(struct stage *stage)
{
	struct spin *s = new_spin(stage, sizeof *s);
	stage_apart(stage, build_spinner, s);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_on_signal_stack, s);
	stage_wait(&s->go, 1);
	CHECK_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	stage_wait(&s->step, 1);
	drop_both(s);
	if (signal_stack_flags)
		expect_abandoned(s);
	else
		expect_both_held(s);
	atomic_store(&s->go, 2);
	atomic_store(&s->step, 2);
	join_and_expect_dead(s, &t, 5);
	stage_end(stage);
}

#if !CH_TSAN
EVERY_DRIVER(s19_pc_in_the_frame_of_a_signal_on_its_own_stack)
{
	interrupt_and_collect(stage);
}

EVERY_DRIVER(s19_cycle_beside_a_handler_on_a_stack_that_is_disarmed_is_abandoned)
{
	signal_stack_flags = AUTODISARM;
	interrupt_and_collect(stage);
}
#endif

/* --- 18: the handler that interrupted code collects by itself --- */
#if !CH_TSAN

static void collect_in_handler(int signal)
{
	struct spin *s = atomic_load(&interrupted);
	(void)signal;
	if (atomic_exchange(&s->step, 1))
		return;
	expect_both_held(s);
	atomic_store(&s->step, 2);
}

static void enter_with_own_signal_stack(struct stage *stage, void *arg)
{
	void *stack = new_signal_stack(stage);
	struct sigaction action = {.sa_handler = collect_in_handler, .sa_flags = SA_ONSTACK};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	enter_m(stage, arg);
	drop_signal_stack(stage, stack);
}

/* The interrupted pc, and the address in a register, are in the kernel's signal frame. */
static void interrupt_with_collections(struct stage *stage,
				       void (*enter)(struct stage *, void *))
{
	struct spin *s = new_spin(stage, sizeof *s);
	struct sigaction action = {.sa_handler = collect_in_handler};
	CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
	stage_apart(stage, build_spinner, s);
	struct stage_thread t;
	stage_spawn(stage, &t, enter, s);
	stage_wait(&s->go, 1);
	drop_both(s);
	CHECK_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	stage_wait(&s->step, 2);
	atomic_store(&s->go, 2);
	join_and_expect_dead(s, &t, 5);
}

EVERY_DRIVER(s18_collections_in_the_handler_that_interrupted_code)
{
	interrupt_with_collections(stage, enter_m);
}

OWN_DRIVER(s18_collections_in_a_handler_on_its_own_stack)
{
	interrupt_with_collections(stage, enter_with_own_signal_stack);
}
#endif

/* --- 54 --- */

/* mov rax, guard; ...; cmp dword [rax], 0; jne to the exit; result 1, or 2 by the exit */
static void build_guarded(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	struct emitter e;
	method_new(stage, &s->m, "guarded");
	struct ch_open open = {
		.owner = s->m.owner, .hot_bytes = 100, .entry = CH_ENTRY_GUARD, .user = &s->m};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(e.code.guard);
	emit_spin(&e);
	emit_guard_test(&e, e.code.guard, CODE_ANSWER_BYTES);
	emit_answer(&e, 1);
	emit_answer(&e, 2);
	method_commit(&e, &s->m);
}

STOPPING_DRIVER(s54_thread_between_the_entry_and_its_guard)
{
	struct spin *s = new_spin(stage, sizeof *s);
	stage_apart(stage, build_guarded, s);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_m, s);
	stage_wait(&s->go, 1);
	drop_m(s);
	expect_m_held(s);
	atomic_store(&s->go, 2);
	join_and_expect_dead(s, &t, 2);
}

/* --- entries that become jumps --- */

static void build_patchable(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	struct emitter e;
	method_new(stage, &s->m, "patchable");
	struct ch_open open = {
		.owner = s->m.owner, .hot_bytes = 32, .entry = CH_ENTRY_PATCH, .user = &s->m};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 6);
	method_commit(&e, &s->m);
	/* Takes the entry's address before the entry closes. */
	method_new(stage, &s->other, "address");
	method_open(&e, &s->other);
	s->other.branch[0] = emit_attach(&e, emit_site_lea(&e), CH_LEA, NULL);
	emit_spin(&e);
	emit_jump_address(&e);
	method_commit(&e, &s->other);
	method_link(&s->other, 0, &s->m);
}

static void enter_other(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	(void)stage;
	s->result = method_call(&s->other, s);
}

STOPPING_DRIVER(s36_address_taken_before_its_entry_closed)
{
	struct spin *s = new_spin(stage, sizeof *s);
	stage_apart(stage, build_patchable, s);
	struct stage_thread t;
	stage_spawn(stage, &t, enter_other, s);
	stage_wait(&s->go, 1);
	method_invalidate(&s->m);
	stage_collect(stage);
	/* Where branches lead by a word, the address is the stub's, and the stub is hit. */
	if (stage->heap->pool->stub_lead_bytes)
		stage->hit = stage_no_target;
	else
		CHECK_EQ(block_state(s->m.block), CH_BLOCK_NOTENTRANT);
	atomic_store(&s->go, 2);
	stage_join(&t);
	CHECK_EQ(s->result, STAGE_FALLBACK);
}

/* --- regions, and abandoned cycles --- */

enum { CHANGES = 6 };

/* Change n is begun at step 2n + 2 and over at step 2n + 3. */
static void may_change(struct spin *s, int n)
{
	atomic_store(&s->step, 2 * n + 1);
	while (atomic_load(&s->step) != 2 * n + 2)
		sched_yield();
}

static void change_all(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	struct emitter e;
	method_constant(stage, &s->m, "one", 1); /* gives the thread a page and records */
	method_jumper(stage, &s->other, "jumper");
	may_change(s, 0);
	method_open(&e, &s->m);
	may_change(s, 1);
	CHECK_EQ(ch_edge_attach(e.code.block, s->m.block), CH_OK);
	const void *word = emit_ref_word(&e, 0);
	may_change(s, 2);
	CHECK_EQ(ch_ref_attach(e.code.block, word), CH_OK);
	emit_answer(&e, 2);
	may_change(s, 3);
	method_commit_only(&e, &s->m);
	may_change(s, 4);
	method_link(&s->other, 0, &s->m);
	may_change(s, 5);
	CHECK_EQ(ch_owner_set_entry(s->m.owner, s->m.block), CH_OK);
	atomic_store(&s->step, 2 * CHANGES + 1);
}

TEST(nothing_that_marking_reads_changes_while_it_reads)
{
	struct stage *stage = stage_new(STAGE_HOST);
	struct spin *s = new_spin(stage, sizeof *s);
	struct stage_thread t;
	stage_spawn(stage, &t, change_all, s);
	for (int n = 0; n < CHANGES; n++) {
		struct ch_marker *marker;
		stage_wait(&s->step, 2 * n + 1);
		CHECK_EQ(ch_mark_begin(stage->heap, &marker), CH_OK);
		atomic_store(&s->step, 2 * n + 2);
		stage_sleep(50);
		if (atomic_load(&s->step) != 2 * n + 2)
			FAIL("change %d was made while marking read", n);
		ch_mark_stacks(marker);
		CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	}
	stage_wait(&s->step, 2 * CHANGES + 1);
	stage_join(&t);
	stage_end(stage);
}

static void refuse_to_stop(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	(void)stage;
	atomic_store(&s->step, 1);
	while (atomic_load(&s->step) != 2)
		sched_yield();
}

static void build_pair(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	method_constant(stage, &s->m, "live", 1);
	method_constant(stage, &s->other, "dropped", 1);
}

TEST(abandoned_cycle_frees_nothing_polls)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	stage->config.stop_wait_ms = 50;
	struct spin *s = new_spin(stage, sizeof *s);
	stage_apart(stage, build_pair, s);
	struct stage_thread t;
	stage_spawn(stage, &t, refuse_to_stop, s);
	stage_wait(&s->step, 1);
	method_drop(stage, &s->other);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(stage_try_collect(stage), CH_E_BUSY);
		ch_thread_poll();
		CHECK(method_is_known(&s->m));
		CHECK(method_is_known(&s->other));
		CHECK_EQ(ch_owner_set_entry(s->m.owner, s->m.block), CH_OK);
	}
	CHECK_EQ(stage_stats(stage).cycles_abandoned, 3);
	atomic_store(&s->step, 2);
	stage_join(&t);
	stage_collect(stage);
	CHECK(method_is_known(&s->m));
	CHECK(!method_is_known(&s->other));
	stage_end(stage);
}

TEST(abandoned_cycle_frees_nothing_host)
{
	struct stage *stage = stage_new(STAGE_HOST);
	struct spin *s = new_spin(stage, sizeof *s);
	stage_apart(stage, build_pair, s);
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(stage->heap, &marker), CH_OK);
	ch_mark_stack(marker, &s, &s); /* the marks begin, and no stack has code */
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	ch_thread_poll();
	CHECK(method_is_known(&s->m));
	CHECK_EQ(ch_owner_set_entry(s->m.owner, s->m.block), CH_OK);
	stage_collect(stage);
	CHECK(method_is_known(&s->m));
	stage_end(stage);
}

/* A cycle has decided, and the sweep has not come: a dead block stays dead. */
static void decide_only(struct stage *stage, const uintptr_t *word)
{
	struct ch_marker *marker;
	stage_scrub();
	CHECK_EQ(ch_mark_begin(stage->heap, &marker), CH_OK);
	for (unsigned i = 0; i < STAGE_OWNERS; i++)
		if (stage->owners[i].bits)
			ch_mark_owner(marker, stage->owners[i]);
	uintptr_t found = word ? ~*word : 0;
	ch_mark_stack(marker, &found, &found + 1);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
}

static void build_doomed(struct stage *stage, void *arg)
{
	struct spin *s = arg;
	struct ch_info info = {.size = sizeof info};
	struct emitter e;
	method_jumper(stage, &s->other, "live");
	s->m.owner = s->other.owner;
	method_open(&e, &s->m);
	emit_ret(&e);
	method_commit_only(&e, &s->m);
	method_link(&s->other, 0, &s->m);
	CHECK_EQ(ch_branch_link(s->other.branch[0], (struct ch_block){0}), CH_OK);
	CHECK_EQ(ch_block_info(s->m.block, &info), CH_OK);
	s->result = ~(uint64_t)(uintptr_t)(info.exec + 2);
}

TEST(death_is_final_before_the_sweep_came)
{
	struct stage *stage = stage_new(STAGE_HOST);
	struct spin *s = new_spin(stage, sizeof *s);
	stage_apart(stage, build_doomed, s);
	uintptr_t word = s->result;
	decide_only(stage, NULL);
	CHECK_EQ(ch_owner_set_entry(s->other.owner, s->m.block), CH_E_STALE);
	CHECK_EQ(ch_branch_link(s->other.branch[0], s->m.block), CH_E_STALE);
	/* A word that only looks like a return address comes too late. */
	decide_only(stage, &word);
	CHECK_EQ(ch_owner_set_entry(s->other.owner, s->m.block), CH_E_STALE);
	CHECK_EQ(ch_branch_link(s->other.branch[0], s->m.block), CH_E_STALE);
	stage_collect(stage);
	CHECK_EQ(s->m.freed, 1);
	stage_end(stage);
}
