/* SPDX-License-Identifier: MIT
 * backtrace.c: backtraces of the calling thread through code of all kinds. By frame pointers it is
 * signal-safe: it finds the stack's bounds in the thread's own record, and calls walk.c. It names
 * nothing. No lock. */
#include "codeheap/look/backtrace.h"
#include "codeheap/base/park.h"
#include "codeheap/look/walk_tables.h"
#include "unwind/unwind.h"

struct stack {
	uintptr_t low, high;
};

/* The caller's stack, or the fiber's that it is in; none: high is 0. */
static struct stack find_stack(const struct ch__thread *self, uintptr_t sp)
{
	struct stack none = {0, 0}, stack;
	if (!self)
		return none;
	stack = (struct stack){self->stack_low, self->stack_high};
	/* Acquire: pairs with the release of ch_fiber_resume. */
	struct ch_fiber *fiber = atomic_load_explicit(&self->fiber, memory_order_acquire);
	if ((sp < stack.low || sp >= stack.high) && fiber)
		stack = (struct stack){fiber->low, fiber->high};
	return sp < stack.low || sp >= stack.high ? none : stack;
}

uintptr_t ch__thread_stack_high(const struct ch__thread *thread, uintptr_t sp)
{
	return find_stack(thread, sp).high;
}

size_t ch_backtrace(const struct ch_heap *heap, enum ch_backtrace how, const void *ucontext,
		    const void **pcs, size_t max)
{
	uintptr_t *out = (uintptr_t *)(void *)pcs;
	uintptr_t pc = 0, fp = (uintptr_t)__builtin_frame_address(0);
	uintptr_t sp = fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT;
	uintptr_t first = (uintptr_t)__builtin_extract_return_addr(__builtin_return_address(0));
	if (ucontext) {
		pc = ch__arch_context_pc(ucontext);
		fp = ch__arch_context_fp(ucontext);
		sp = ch__arch_context_sp(ucontext);
	}
	struct stack stack = find_stack(ch__thread_self(heap), sp);
	/* To memcheck, what native code has in the frame pointer's register may have no value. */
	bool is_judged = CH_UNLIKELY(heap->pool->is_translated);
	if (is_judged)
		ch__valgrind_reports(false);
	size_t n = 0;
	/* The unwinder needs no bounds; frame pointers behind it do. */
	if (how == CH_BACKTRACE_TABLES)
		n = ch__walk_tables(heap->sinks, (void *)(uintptr_t)ucontext, first, stack.low,
				    stack.high, out, max);
	if (!n && stack.high)
		n = ch__walk(pc, fp, sp, stack.high, out, max);
	if (is_judged) {
		ch__valgrind_reports(true);
		ch__valgrind_copy(out, (uintptr_t)out, n);
	}
	return n;
}
