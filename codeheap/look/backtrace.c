/* SPDX-License-Identifier: MIT
 * backtrace.c: backtraces of the calling thread through code of all kinds. A walk by frame pointers
 * is signal-safe: the stack's bounds come from the thread's own record, and walk.c does the walk.
 * Nothing is named here. No lock. */
#include "codeheap/look.h"
#include "codeheap/base/park.h"
#include "codeheap/look/walk_tables.h"
#include "unwind/unwind.h"

size_t ch_backtrace(const struct ch_heap *heap, enum ch_backtrace how, const void *ucontext,
		    const void **pcs, size_t max)
{
	uintptr_t *out = (uintptr_t *)(void *)pcs;
	uintptr_t pc, fp = (uintptr_t)__builtin_frame_address(0);
	uintptr_t sp = fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT;
	/* Before the walk: a tail call of the walk may write over this frame's record. */
	ch__arch_frame_step(fp, &fp, &pc);
	uintptr_t first = pc = ch__arch_strip(pc);
	if (ucontext) {
		pc = ch__arch_context_pc(ucontext);
		fp = ch__arch_context_fp(ucontext);
		sp = ch__arch_context_sp(ucontext);
	}
	const struct ch__thread *self = ch__thread_self(heap);
	uintptr_t low = 0, high = 0; /* no known stack */
	if (self && !ch__thread_stack(self, sp, &low, &high))
		low = high = 0;
	/* Native code may leave undefined values, to memcheck, in the frame pointer's register. */
	bool is_judged = CH_UNLIKELY(heap->pool->is_translated);
	if (is_judged)
		ch__valgrind_reports(false);
	size_t n = 0;
	/* The unwinder needs no bounds; the walk by frame pointers after it does. */
	if (how == CH_BACKTRACE_TABLES)
		n = ch__walk_tables(heap->sinks, (void *)(uintptr_t)ucontext, first, low, high, out,
				    max);
	if (!n && high)
		n = ch__walk(pc, fp, sp, high, out, max);
	if (is_judged) {
		ch__valgrind_reports(true);
		ch__valgrind_copy(out, (uintptr_t)out, n);
	}
	return n;
}
