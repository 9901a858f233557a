/* SPDX-License-Identifier: MIT
 * graph_stacks.c: fibers, which any thread may resume, and signals. A raised signal's handler goes
 * on with the thread's list on the alternate stack. A signal that is shot comes at any time, and
 * looks at the interrupted code. */
#define _GNU_SOURCE
#include "graph_emit.h"
#include "graph_world.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10, RAISED = SIGUSR1, SHOT = SIGURG };

/* --- switching --- */

static void suspend(struct graph_stack *s)
{
	uintptr_t sp = graph_emit_sp();
	for (int i = 0; i < graph_world.program->heaps; i++)
		ch_fiber_suspend(s->fibers[i], (const void *)sp);
}

static void resumed(struct graph_stack *s)
{
	for (int i = 0; i < graph_world.program->heaps; i++)
		ch_fiber_resume(s->fibers[i]);
}

static uint64_t cycles_of_all(void)
{
	uint64_t sum = 0;
	for (int i = 0; i < graph_world.program->heaps; i++)
		sum += graph_cycles(i);
	return sum;
}

/* Leaves the caller's stack, which goes on when some thread switches back. All threads see `to` as
 * running before this thread runs on `to`. */
__attribute__((noinline)) static void switch_to(struct graph_stack *from, struct graph_stack *to)
{
	struct graph_thread *t = graph_self();
	t->stack = to;
	/* The limit is for the stack of a callback. */
	t->limit = t->end;
	suspend(from);
	graph_driver_switch(to);
	graph_emit_switch(&from->sp, to->sp);
	graph_driver_switched();
	resumed(from);
}

static void begin(void *arg)
{
	struct graph_stack *s = arg;
	graph_driver_switched();
	resumed(s);
	(void)setjmp(s->base);
	for (;;) {
		struct graph_stack *own = graph_self()->stack;
		own->segment = 0;
		graph_run_unwind(own, UINTPTR_MAX);
		graph_operations_run();
		graph_fiber_yield();
	}
}

/* --- fibers --- */

static void prepare(struct graph_stack *s)
{
	if (!s->low) {
		s->low = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (s->low == MAP_FAILED)
			graph_fail("no memory for a fiber");
		s->high = s->low + STACK_BYTES;
	}
	s->is_fiber = true;
	s->depth = s->pinned = s->segment = 0;
	s->expect.kind = EXPECT_NOTHING;
	s->taking = NULL;
	s->entering = 0;
	memset(s->low, 0, STACK_BYTES);
	for (int i = 0; i < graph_world.program->heaps; i++)
		graph_allow(
			ch_fiber_attach(graph_world.heaps[i].heap, s->low, s->high, &s->fibers[i]),
			GRAPH_BIT(CH_OK), "a fiber");
	s->sp = graph_emit_stack(s->high, begin, s);
}

static void count_resumption(struct graph_stack *s, struct graph_thread *t)
{
	if (s->cycles < cycles_of_all())
		GRAPH_COUNT(graph_fibers_across_cycle, 1);
	if (s->thread != t)
		GRAPH_COUNT(graph_fibers_moved, 1);
}

void graph_fiber_go(int index)
{
	struct graph_thread *t = graph_self();
	struct graph_stack *from = t->stack, *to = &graph_world.fibers[index];
	int state = atomic_load(&to->state);
	if (to == from || state == STACK_RUNNING ||
	    !atomic_compare_exchange_strong(&to->state, &state, STACK_RUNNING))
		return;
	if (state == STACK_EMPTY)
		prepare(to);
	else
		count_resumption(to, t);
	to->resumer = from;
	switch_to(from, to);
	/* From here on any thread may resume the left fiber: the registers are saved. */
	struct graph_stack *left = graph_self()->left;
	graph_self()->left = NULL;
	atomic_store(&left->state, STACK_SUSPENDED);
}

void graph_fiber_yield(void)
{
	struct graph_thread *t = graph_self();
	struct graph_stack *s = t->stack;
	if (!s->is_fiber)
		return;
	s->cycles = cycles_of_all();
	s->thread = t;
	t->left = s;
	switch_to(s, s->resumer);
}

static void detach(struct graph_stack *s)
{
	for (int i = 0; i < graph_world.program->heaps; i++)
		if (s->fibers[i])
			graph_allow(ch_fiber_detach(s->fibers[i]), GRAPH_BIT(CH_OK),
				    "the end of a fiber");
	memset(s->fibers, 0, sizeof s->fibers);
}

void graph_fiber_forsake(int index)
{
	struct graph_stack *s = &graph_world.fibers[index];
	int state = STACK_SUSPENDED;
	if (!atomic_compare_exchange_strong(&s->state, &state, STACK_RUNNING))
		return;
	s->segment = 0;
	graph_run_unwind(s, UINTPTR_MAX);
	detach(s);
	GRAPH_COUNT(graph_fibers_forsaken, 1);
	atomic_store(&s->state, STACK_EMPTY);
}

/* --- a thread's own stack --- */

void graph_stacks_attach_home(struct graph_thread *t)
{
	pthread_attr_t attributes;
	void *low;
	size_t bytes;
	if (pthread_getattr_np(pthread_self(), &attributes) ||
	    pthread_attr_getstack(&attributes, &low, &bytes))
		graph_fail("a thread without a stack");
	pthread_attr_destroy(&attributes);
	struct graph_stack *s = &t->home;
	memset(s, 0, sizeof *s);
	s->low = low;
	s->high = s->low + bytes;
	atomic_store(&s->state, STACK_RUNNING);
	t->stack = s;
	for (int i = 0; i < graph_world.program->heaps; i++)
		graph_allow(
			ch_fiber_attach(graph_world.heaps[i].heap, s->low, s->high, &s->fibers[i]),
			GRAPH_BIT(CH_OK), "a home");
	stack_t other = {.ss_sp = t->signal_stack, .ss_size = sizeof t->signal_stack};
	if (sigaltstack(&other, NULL))
		graph_fail("no stack for signals");
}

void graph_stacks_detach_home(struct graph_thread *t)
{
	stack_t none = {.ss_flags = SS_DISABLE};
	sigaltstack(&none, NULL);
	detach(&t->home);
}

/* --- signals --- */

static void on_raised(int number)
{
	struct graph_thread *t = graph_self();
	(void)number;
	t->is_in_handler = true;
	/* The collector's signal is held back here, so no wait for a collection is possible. */
	if (graph_world.program->driver != GRAPH_BOEHM)
		graph_operations_run();
	t->is_in_handler = false;
}

/* As if the interrupted thread had read code that is there, or was. */
static void describe_fault(const struct graph_thread *t, const void *ucontext)
{
	char line[256];
	uint32_t count = atomic_load(&graph_world.node_count);
	const struct graph_node *node = graph_node(count ? (uint32_t)(t->next % count) : 0);
	siginfo_t fault = {.si_signo = SIGSEGV, .si_code = SEGV_ACCERR};
	fault.si_addr = (void *)(uintptr_t)node->exec;
	(void)!ch_trap_describe(graph_heap_of(node)->heap, &fault, ucontext, line, sizeof line);
}

static void on_shot(int number, siginfo_t *info, void *ucontext)
{
	(void)number, (void)info;
	const void *pcs[64];
	struct ch_spot spot = {.size = sizeof spot};
	struct ch_heap *heap = graph_world.heaps[0].heap;
	if (!graph_self() || graph_self()->is_over)
		return;
	size_t count = ch_backtrace(heap, CH_BACKTRACE_FRAMES, ucontext, pcs, 64);
	for (size_t i = 0; i < count; i++)
		(void)!ch_code_at(heap, pcs[i], i > 0, &spot);
	describe_fault(graph_self(), ucontext);
}

void graph_signal_raise(void)
{
	GRAPH_COUNT(graph_signals, 1);
	raise(RAISED);
}

void graph_signal_shoot(int index)
{
	struct graph_thread *t = &graph_world.threads[index % graph_world.thread_count];
	if (graph_world.is_child)
		return;
	GRAPH_COUNT(graph_signals, 1);
	pthread_kill(t->thread, SHOT);
}

void graph_stacks_start(void)
{
	struct sigaction action = {.sa_handler = on_raised, .sa_flags = SA_ONSTACK | SA_RESTART};
	sigaddset(&action.sa_mask, SHOT);
	if (graph_world.program->driver == GRAPH_BOEHM)
		sigfillset(&action.sa_mask);
	sigaction(RAISED, &action, NULL);
	struct sigaction looking = {.sa_sigaction = on_shot,
				    .sa_flags = SA_ONSTACK | SA_RESTART | SA_SIGINFO};
	sigfillset(&looking.sa_mask);
	sigaction(SHOT, &looking, NULL);
}

void graph_stacks_end(void)
{
	for (int i = 0; i < GRAPH_FIBERS; i++) {
		graph_fiber_forsake(i);
		if (graph_world.fibers[i].low)
			munmap(graph_world.fibers[i].low, STACK_BYTES);
	}
}
