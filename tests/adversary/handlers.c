/* SPDX-License-Identifier: MIT
 * handlers.c: signal handlers on top of code. A handler whose signal interrupted code of the heap
 * is a caller like any other: the handler runs code, invalidates the interrupted code, collects.
 * Handlers run on a signal stack, within each other, and are stopped by the world's signal.
 *
 * libgc does not scan from a signal stack: under Boehm handlers are on the thread's stack. */
#define _GNU_SOURCE
#include "tests/support/spin_rig.h"

#include <sys/mman.h>

enum { SIGNAL_STACK_BYTES = 256 << 10, OUTER = SIGUSR1, INNER = SIGURG };

struct play {
	struct spin s;
	struct method inner, runner;
	_Atomic(int) handled, nested, spins;
	_Atomic(uint64_t) interruptions;
	void (*act)(struct play *);
};

#if CH_TSAN
/* ThreadSanitizer assumes that each handler may have interrupted an allocator. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "report_signal_unsafe=0";
}
#endif

/* --- code --- */

static uint64_t act_in_callee(void *arg)
{
	struct play *p = arg;
	p->act(p);
	return 6;
}

static uint64_t raise_inner(void *arg)
{
	(void)arg;
	CHECK_EQ(raise(INNER), 0);
	return 8;
}

static void build_two(struct stage *stage, struct play *p)
{
	build_spinner(stage, &p->s);
	method_native(stage, &p->runner, "in the handler", (void *)act_in_callee);
}

static void build_all(struct stage *stage, void *arg)
{
	struct play *p = arg;
	build_two(stage, p);
	method_native(stage, &p->inner, "raises in the handler", (void *)raise_inner);
}

/* --- handlers --- */

static bool is_on_signal_stack(const struct play *p)
{
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	return here - (uintptr_t)p->s.stack < SIGNAL_STACK_BYTES;
}

static bool is_in_code(const struct play *p, const void *ucontext)
{
	struct ch_block block;
	return block_at(p->s.stage->heap, (const void *)ch__arch_context_pc(ucontext), &block);
}

/* Runs code. The callee of this code does the work of the case. */
static void handle_outer(int signal, siginfo_t *info, void *ucontext)
{
	struct play *p = (struct play *)atomic_load(&interrupted);
	(void)signal, (void)info;
	if (atomic_exchange(&p->handled, 1))
		return;
	CHECK(is_in_code(p, ucontext));
	CHECK_EQ(is_on_signal_stack(p), p->s.stage->driver != STAGE_BOEHM);
	CHECK_EQ(method_call(&p->runner, p), 6);
	atomic_store(&p->s.go, 2);
}

static void handle_inner(int signal)
{
	struct play *p = (struct play *)atomic_load(&interrupted);
	(void)signal;
	CHECK_EQ(is_on_signal_stack(p), p->s.stage->driver != STAGE_BOEHM);
	atomic_fetch_add(&p->nested, 1);
	CHECK_EQ(method_call(&p->runner, p), 6);
}

static void install(struct play *p)
{
	int flags = SA_SIGINFO | (p->s.stage->driver == STAGE_BOEHM ? 0 : SA_ONSTACK);
	struct sigaction outer = {.sa_sigaction = handle_outer, .sa_flags = flags};
	struct sigaction inner = {.sa_handler = handle_inner, .sa_flags = flags & SA_ONSTACK};
	CHECK_EQ(sigaction(OUTER, &outer, NULL), 0);
	CHECK_EQ(sigaction(INNER, &inner, NULL), 0);
	stack_t stack = {.ss_size = SIGNAL_STACK_BYTES, .ss_sp = calloc(1, SIGNAL_STACK_BYTES)};
	CHECK(stack.ss_sp);
	p->s.stack = stack.ss_sp;
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
}

static void remove_stack(const struct play *p)
{
	stack_t none = {.ss_flags = SS_DISABLE};
	CHECK_EQ(sigaltstack(&none, NULL), 0);
	free(p->s.stack);
}

static void enter_spinner(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	install(p);
	p->s.result = method_call(&p->s.m, p);
	remove_stack(p);
}

/* The registers saved by the signal hold the interrupted code and its next code. */
static void expect_held(struct play *p)
{
	CHECK_EQ(block_state(p->s.m.block), CH_BLOCK_NOTENTRANT);
	CHECK(method_is_known(&p->s.other));
}

/* Sends the signal to a thread that spins in code. The handler lets the code go on. */
__attribute__((unused)) static void interrupt(struct stage *stage, void (*act)(struct play *))
{
	struct play *p = new_spin(stage, sizeof *p);
	struct stage_thread t;
	p->act = act;
	stage_apart(stage, build_all, p);
	stage_spawn(stage, &t, enter_spinner, p);
	stage_wait(&p->s.go, 1);
	CHECK_EQ(pthread_kill(t.thread, OUTER), 0);
	stage_join(&t);
	CHECK_EQ(p->s.result, 5);
	method_drop(stage, &p->runner);
	method_drop(stage, &p->inner);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
	stage_end(stage);
}

/* --- the handler collects --- */

#if !CH_TSAN /* TSan holds a signal back until the thread calls something */
static void drop_and_collect(struct play *p)
{
	drop_both(&p->s);
	expect_both_held(&p->s);
	stage_check(p->s.stage);
}

EVERY_DRIVER(handler_on_top_of_code_runs_code_invalidates_and_collects)
{
	interrupt(stage, drop_and_collect);
}

/* A second signal comes while the first handler runs code: three contexts, one signal stack. */
static void nest_and_collect(struct play *p)
{
	if (atomic_load(&p->nested)) {
		drop_and_collect(p);
		return;
	}
	CHECK_EQ(method_call(&p->inner, p), 8);
	CHECK_EQ(atomic_load(&p->nested), 1);
	method_invalidate(&p->inner);
	stage_collect(p->s.stage);
	expect_held(p);
}

EVERY_DRIVER(handler_within_a_handler_collects)
{
	interrupt(stage, nest_and_collect);
}

/* Discards from the handler. The block that calls this function is discarded, too. */
static void discard_in_handler(struct play *p)
{
	size_t freed, kept;
	method_drop(p->s.stage, &p->s.m);
	method_drop(p->s.stage, &p->s.other);
	CHECK_EQ(ch_vm_discard(p->s.stage->heap, NULL, &freed, &kept), CH_OK);
	CHECK_EQ(freed + kept, 4);
	stage_collect(p->s.stage);
	expect_held(p);
	CHECK(method_has_fallback(&p->runner));
	CHECK_EQ(block_state(p->runner.block), CH_BLOCK_NOTENTRANT);
}

EVERY_DRIVER(handler_on_top_of_code_discards_everything)
{
	interrupt(stage, discard_in_handler);
}
#endif

/* --- the world's signal stops the handler --- */

static void build_inner_spinner(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct emitter e;
	build_two(stage, p);
	method_new(stage, &p->inner, "spins in the handler");
	method_open(&e, &p->inner);
	emit_tell(&e, 3);
	emit_wait_for(&e, 4);
	emit_answer(&e, 9);
	method_commit(&e, &p->inner);
}

static void spin_in_handler(struct play *p)
{
	CHECK_EQ(method_call(&p->inner, p), 9);
}

STOPPING_DRIVER(stop_signal_interrupts_code_that_a_handler_runs)
{
	struct play *p = new_spin(stage, sizeof *p);
	struct stage_thread t;
	p->act = spin_in_handler;
	stage_apart(stage, build_inner_spinner, p);
	stage_spawn(stage, &t, enter_spinner, p);
	stage_wait(&p->s.go, 1);
	CHECK_EQ(pthread_kill(t.thread, OUTER), 0);
	stage_wait(&p->s.go, 3);
	drop_both(&p->s);
	struct method *in_handler[] = {&p->runner, &p->inner};
	for (int i = 0; i < 2; i++) {
		method_invalidate(in_handler[i]);
		method_drop(stage, in_handler[i]);
	}
	for (int i = 0; i < 5; i++) {
		stage_collect(stage);
		expect_held(p);
		for (int k = 0; k < 2; k++)
			CHECK_EQ(block_state(in_handler[k]->block), CH_BLOCK_NOTENTRANT);
	}
	atomic_store(&p->s.go, 4);
	join_and_expect_dead(&p->s, &t, 5);
}

/* --- on top of code on a fiber --- */

static void collect_over_fiber(int signal)
{
	struct play *p = (struct play *)atomic_load(&interrupted);
	(void)signal;
	CHECK_EQ(is_on_signal_stack(p), p->s.stage->driver != STAGE_BOEHM);
	method_invalidate(&p->inner);
	method_drop(p->s.stage, &p->inner);
	for (int i = 0; i < 3; i++) {
		stage_collect(p->s.stage);
		CHECK_EQ(block_state(p->inner.block), CH_BLOCK_NOTENTRANT);
		CHECK_EQ(block_state(p->runner.block), CH_BLOCK_NOTENTRANT);
	}
	atomic_fetch_add(&p->nested, 1);
}

static void enter_raiser(struct fiber *f, void *arg)
{
	struct play *p = arg;
	(void)f;
	p->s.result = method_call(&p->inner, p);
}

/* The runner's frame is on the thread's own stack meanwhile. */
static void resume_fiber(struct play *p)
{
	struct fiber fiber;
	method_invalidate(&p->runner);
	method_drop(p->s.stage, &p->runner);
	fiber_start(p->s.stage, &fiber, enter_raiser, p);
	fiber_resume(&fiber);
	CHECK(fiber.is_done);
	fiber_end(&fiber);
}

static void enter_runner(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	install(p);
	struct sigaction action = {.sa_handler = collect_over_fiber, .sa_flags = SA_ONSTACK};
	if (p->s.stage->driver == STAGE_BOEHM)
		action.sa_flags = 0;
	CHECK_EQ(sigaction(INNER, &action, NULL), 0);
	CHECK_EQ(method_call(&p->runner, p), 6);
	remove_stack(p);
}

EVERY_DRIVER(handler_on_top_of_code_on_a_fiber_collects)
{
	struct play *p = new_spin(stage, sizeof *p);
	p->act = resume_fiber;
	stage_apart(stage, build_all, p);
	method_drop(stage, &p->s.m);
	method_drop(stage, &p->s.other);
	/* The handler collects, and a host's cycle waits for nobody. */
	stage_apart(stage, enter_runner, p);
	CHECK_EQ(p->nested, 1);
	CHECK_EQ(p->s.result, 8);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
}

/* --- a fault in a function that code called --- */

#if !CH_TSAN /* TSan holds back libgc's signal to a thread that waits for the handler */
static uint8_t *guarded; /* a page that must not be written */
static size_t guarded_bytes;
static struct sigaction before; /* libgc's, if it collects in increments */

/* Only the stack under the handler holds the code: the function returns there. */
static void handle_fault(int signal, siginfo_t *info, void *ucontext)
{
	struct play *p = (struct play *)atomic_load(&interrupted);
	if (info->si_addr != guarded) {
		CHECK(before.sa_flags & SA_SIGINFO);
		before.sa_sigaction(signal, info, ucontext);
		return;
	}
	CHECK(!is_in_code(p, ucontext));
	CHECK_EQ(is_on_signal_stack(p), p->s.stage->driver != STAGE_BOEHM);
	CHECK_EQ(mprotect(guarded, guarded_bytes, PROT_READ | PROT_WRITE), 0);
	method_invalidate(&p->runner);
	method_drop(p->s.stage, &p->runner);
	for (int i = 0; i < 3; i++) {
		stage_collect(p->s.stage);
		CHECK_EQ(block_state(p->runner.block), CH_BLOCK_NOTENTRANT);
	}
	stage_check(p->s.stage);
	atomic_fetch_add(&p->handled, 1);
}

static void store_to_guarded(struct play *p)
{
	(void)p;
	*(volatile uint8_t *)guarded = 1;
}

static void enter_storing(struct stage *stage, void *arg)
{
	struct play *p = arg;
	(void)stage;
	install(p);
	struct sigaction action = {.sa_sigaction = handle_fault,
				   .sa_flags = SA_SIGINFO | SA_NODEFER};
	if (p->s.stage->driver != STAGE_BOEHM)
		action.sa_flags |= SA_ONSTACK;
	CHECK_EQ(sigaction(SIGSEGV, &action, &before), 0);
	p->s.result = method_call(&p->runner, p);
	CHECK_EQ(sigaction(SIGSEGV, &before, NULL), 0);
	remove_stack(p);
}

static void build_runner(struct stage *stage, void *arg)
{
	struct play *p = arg;
	method_native(stage, &p->runner, "stores", (void *)act_in_callee);
}

EVERY_DRIVER(handler_of_a_fault_in_a_function_that_code_called_collects)
{
	struct play *p = new_spin(stage, sizeof *p);
	guarded_bytes = (size_t)sysconf(_SC_PAGESIZE);
	guarded = mmap(NULL, guarded_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(guarded != MAP_FAILED);
	p->act = store_to_guarded;
	stage_apart(stage, build_runner, p);
	stage_apart(stage, enter_storing, p);
	CHECK_EQ(p->handled, 1);
	CHECK_EQ(p->s.result, 6);
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
	CHECK_EQ(munmap(guarded, guarded_bytes), 0);
}
#endif

/* --- a storm: threads run code, are interrupted anywhere, and handlers do all of the above --- */

enum { STORM_THREADS = 3 };

static _Thread_local struct method *compiled; /* the thread's own method */
static _Thread_local bool is_handling;

static void act_at_random(struct play *p)
{
	uint64_t n = atomic_fetch_add(&p->interruptions, 1);
	if (n % 3 == 0)
		CHECK_EQ(ch_blocks_invalidate(&compiled->block, 1, NULL), CH_OK);
	if (n % 64 == 1) {
		enum ch_status status = ch_heap_collect(p->s.stage->heap);
		CHECK(status == CH_OK || status == CH_E_BUSY);
	}
	if (n % 128 == 2)
		CHECK_EQ(ch_vm_discard(p->s.stage->heap, NULL, NULL, NULL), CH_OK);
}

static uint64_t act_in_storm(void *arg)
{
	act_at_random(arg);
	return 6;
}

/* Acts only on top of code: elsewhere the signal may have interrupted the library. */
static void handle_storm(int signal, siginfo_t *info, void *ucontext)
{
	struct play *p = (struct play *)atomic_load(&interrupted);
	(void)signal, (void)info;
	if (is_handling || !is_in_code(p, ucontext))
		return;
	is_handling = true;
	uint64_t result = method_call(&p->runner, p);
	CHECK(result == 6 || result == STAGE_FALLBACK);
	is_handling = false;
}

static void compile_loop(struct method *m)
{
	enum ch_status status = CH_E_STALE;
	while (status == CH_E_STALE || status == CH_E_STATE) {
		struct emitter e;
		method_open(&e, m);
		emit_count_down(&e, 2000);
		emit_answer(&e, 6);
		method_commit_only(&e, m);
		status = ch_owner_set_entry(m->owner, m->block);
	}
	CHECK_EQ(status, CH_OK);
}

static void compile_storm_runner(struct stage *stage, void *arg)
{
	struct play *p = arg;
	enum ch_status status = CH_E_STALE;
	(void)stage;
	while (status == CH_E_STALE || status == CH_E_STATE) {
		struct emitter e;
		method_open(&e, &p->runner);
		emit_frame(&e);
		emit_call_c(&e, (const void *)act_in_storm);
		emit_frame_end(&e);
		emit_ret(&e);
		method_commit_only(&e, &p->runner);
		status = ch_owner_set_entry(p->runner.owner, p->runner.block);
	}
	CHECK_EQ(status, CH_OK);
}

static void run_and_be_interrupted(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct method m;
	stack_t stack = {.ss_size = SIGNAL_STACK_BYTES, .ss_sp = calloc(1, SIGNAL_STACK_BYTES)};
	CHECK(stack.ss_sp);
	CHECK_EQ(sigaltstack(&stack, NULL), 0);
	method_new(stage, &m, "loop");
	compile_loop(&m);
	compiled = &m;
	atomic_fetch_add(&p->spins, 1);
	while (!atomic_load(&p->s.step)) {
		uint64_t result = method_call(&m, NULL);
		CHECK(result == 6 || result == STAGE_FALLBACK);
		if (result != 6)
			compile_loop(&m);
		ch_thread_poll();
	}
	stack_t none = {.ss_flags = SS_DISABLE};
	CHECK_EQ(sigaltstack(&none, NULL), 0);
	free(stack.ss_sp);
	method_drop(stage, &m);
}

__attribute__((unused)) static void storm(struct stage *stage)
{
	struct play *p = new_spin(stage, sizeof *p);
	struct stage_thread threads[STORM_THREADS];
	int flags = SA_SIGINFO | SA_RESTART | (stage->driver == STAGE_BOEHM ? 0 : SA_ONSTACK);
	struct sigaction action = {.sa_sigaction = handle_storm, .sa_flags = flags};
	CHECK_EQ(sigaction(OUTER, &action, NULL), 0);
	stage->counts_only = true;
	method_new(stage, &p->runner, "in the handler");
	stage_apart(stage, compile_storm_runner, p);
	for (int i = 0; i < STORM_THREADS; i++)
		stage_spawn(stage, &threads[i], run_and_be_interrupted, p);
	stage_wait(&p->spins, STORM_THREADS);
	uint64_t end = now_ns() + storm_ms_of(2000) * UINT64_C(1000000);
	for (int round = 0; now_ns() < end || p->interruptions <= 200; round++) {
		CHECK_EQ(pthread_kill(threads[round % STORM_THREADS].thread, OUTER), 0);
		if (method_has_fallback(&p->runner))
			stage_apart(stage, compile_storm_runner, p);
		if (round % 1024 == 0)
			stage_check(stage);
		stage_pause();
	}
	atomic_store(&p->s.step, 1);
	for (int i = 0; i < STORM_THREADS; i++)
		stage_join(&threads[i]);
	printf("%llu interruptions\n", (unsigned long long)atomic_load(&p->interruptions));
	method_drop(stage, &p->runner);
	for (int i = 0; i < 3; i++)
		stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 0);
	stage_end(stage);
}

#if !CH_TSAN
THREADED_DRIVER(handlers_on_top_of_code_act_in_a_storm)
{
	storm(stage);
}
#endif
