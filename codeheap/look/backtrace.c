/* SPDX-License-Identifier: MIT
 * backtrace.c: backtraces of the calling thread through code of all kinds (docs/design.md, section
 * 8). A walk by frame pointers is signal-safe, a walk by tables is not: unwinders may take locks
 * and allocate. An unwinder ends at a frame without a table, and cannot be put into the middle of
 * a stack: in code of the heap (its sink is off) frame pointers go on from there. No lock. */
#define _GNU_SOURCE
#include "codeheap/look.h"
#include "codeheap/base/park.h"
#include "pages/write.h"
#include "unwind/nongnu.h"
#include "unwind/unwind.h"

#include <unwind.h>

struct walk {
	const struct ch_heap *heap;
	uintptr_t first, first_sp; /* of the first frame to hand out; sp 0: any */
	uintptr_t sp, fp;          /* of the last frame seen */
	uintptr_t *out;
	size_t n, max;
};

/* Returns false when there is no room for another frame. */
static bool see_frame(struct walk *w, uintptr_t pc, uintptr_t sp, uintptr_t fp)
{
	/* The handler's frames come first, perhaps with a frame of the interrupted function. */
	if (!w->n && (pc != w->first || (w->first_sp && sp != w->first_sp)))
		return true;
	w->sp = sp;
	w->fp = fp;
	w->out[w->n++] = pc;
	return w->n < w->max;
}

/* _Unwind_GetCFA gives the frame address of the frame below, which is this frame's sp. For the
 * frame that a signal interrupted, libgcc on aarch64 gives the end of the signal's frame. */
static _Unwind_Reason_Code see_context(struct _Unwind_Context *context, void *arg)
{
	const struct walk *w = arg;
	int is_interrupted = 0;
	uintptr_t pc = (uintptr_t)_Unwind_GetIPInfo(context, &is_interrupted);
	uintptr_t sp = (uintptr_t)_Unwind_GetCFA(context);
	if (pc <= 1)
		return _URC_END_OF_STACK;
	if (is_interrupted && pc == w->first && w->first_sp)
		sp = w->first_sp;
	bool goes_on = see_frame(arg, pc, sp, (uintptr_t)_Unwind_GetGR(context, CH_ARCH_DWARF_FP));
	return goes_on ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static void walk_nongnu(struct walk *w, void *ucontext)
{
	ucontext_t here;
	struct ch__nongnu_cursor cursor;
	if (!ucontext && (!getcontext || getcontext(&here) != 0))
		return;
	if (ch__nongnu.start(&cursor, ucontext ? ucontext : &here,
		       ucontext ? CH__NONGNU_SIGNAL_FRAME : 0) < 0)
		return;
	do {
		uintptr_t pc, sp, fp;
		if (ch__nongnu.get(&cursor, CH_ARCH_NONGNU_PC, &pc) < 0 || pc <= 1 ||
		    ch__nongnu.get(&cursor, CH_ARCH_DWARF_SP, &sp) < 0)
			return;
		/* libunwind may have lost fp in code that it guessed through. */
		if (ch__nongnu.get(&cursor, CH_ARCH_DWARF_FP, &fp) < 0)
			fp = 0;
		if (!see_frame(w, pc, sp, fp))
			return;
	} while (ch__nongnu.step(&cursor) > 0);
}

/* Returns 0 when the unwinder does not reach the first frame. An unwinder may end in a frame of the
 * heap's code (libgcc), or in the frame called by that code (LLVM, which shows no frame without a
 * table): then frame pointers go on. Not inlined: a handler that walks by frame pointers has no
 * room for a cursor. */
static CH_COLD size_t walk_tables(struct walk *w, void *ucontext, uintptr_t low, uintptr_t high)
{
	if (!w->max)
		return 0;
	if (ch__sinks_on(w->heap->sinks) & CH_SINK_LIBUNWIND)
		walk_nongnu(w, ucontext);
	else
		_Unwind_Backtrace(see_context, w);
	if (!w->n)
		return 0;
	uintptr_t *out = w->out + w->n;
	size_t more = ch__walk(0, w->fp, w->sp > low ? w->sp : low, high, out, w->max - w->n);
	bool is_ours = ch__pool_knows(w->heap->pool, out[-1]) ||
		       (more && ch__pool_knows(w->heap->pool, out[0] - 1));
	return w->n + (is_ours ? more : 0);
}

size_t ch_backtrace(const struct ch_heap *heap, enum ch_backtrace how, const void *ucontext,
		    const void **pcs, size_t max)
{
	uintptr_t *out = (uintptr_t *)(void *)pcs;
	uintptr_t pc, fp = (uintptr_t)__builtin_frame_address(0);
	uintptr_t sp = fp + (uintptr_t)(intptr_t)CH_ARCH_RECORD_AT;
	/* Before the walk: a tail call of the walk may write over this frame's record. */
	ch__arch_frame_step(fp, &fp, &pc);
	pc = ch__arch_strip(pc);
	if (ucontext) {
		pc = ch__arch_context_pc(ucontext);
		fp = ch__arch_context_fp(ucontext);
		sp = ch__arch_context_sp(ucontext);
	}
	const struct ch__thread *self = ch__thread_self(heap);
	/* The heap may be gone: of a heap that lives, the unwinder needs no thread. */
	if (!self && (how != CH_BACKTRACE_TABLES || !ch__heap_is_listed(heap)))
		return 0;
	uintptr_t low = 0, high = 0; /* no known stack */
	if (self && !ch__thread_stack(self, sp, &low, &high))
		low = high = 0;
	/* Native code may leave undefined values, to memcheck, in the frame pointer's register. */
	bool is_judged = CH_UNLIKELY(heap->pool->is_translated);
	if (is_judged)
		ch__valgrind_reports(false);
	size_t n = 0;
	/* The unwinder needs no bounds; the walk by frame pointers after it does. */
	if (how == CH_BACKTRACE_TABLES) {
		struct walk w = {.heap = heap,
				 .first = pc,
				 .first_sp = ucontext ? sp : 0,
				 .out = out,
				 .max = max};
		n = walk_tables(&w, (void *)(uintptr_t)ucontext, low, high);
	}
	if (!n && high)
		n = ch__walk(pc, fp, sp, high, out, max);
	if (is_judged) {
		ch__valgrind_reports(true);
		ch__valgrind_copy(out, (uintptr_t)out, n);
	}
	return n;
}
