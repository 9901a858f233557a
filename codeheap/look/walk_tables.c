/* SPDX-License-Identifier: MIT
 * walk_tables.c: the walk by the tables of the process's unwinder, through native code without
 * frame pointers. nongnu libunwind walks where its sink is on, else the unwinder of exceptions;
 * both know the heap's pages from their sinks. Nothing is named here. Not signal-safe: an unwinder
 * may take locks and allocate.
 *
 * An unwinder ends at a frame without a table. When the frame is code of the heap (a page whose
 * sink is off), frame pointers go on from there to the end: an unwinder cannot be put into the
 * middle of a stack. */
#define _GNU_SOURCE
#include "codeheap/look/walk_tables.h"
#include "arch/registers.h"
#include "unwind/nongnu.h"
#include "unwind/unwind.h"

#include <ucontext.h>
#include <unwind.h>

struct walk {
	const struct ch__sinks *sinks;
	uintptr_t first, first_sp; /* of the first frame to hand out; sp 0: any */
	uintptr_t pc, sp, fp;      /* of the last frame seen */
	uintptr_t *out;
	size_t n, max;
};

/* Returns false when there is no room for another frame. */
static bool see_frame(struct walk *w, uintptr_t pc, uintptr_t sp, uintptr_t fp)
{
	/* The handler's frames come first, perhaps with a frame of the interrupted function. */
	if (!w->n && (pc != w->first || (w->first_sp && sp != w->first_sp)))
		return true;
	w->pc = pc;
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
	bool goes_on = see_frame(arg, pc, sp,
				 (uintptr_t)_Unwind_GetGR(context, CH_ARCH_DWARF_FP));
	return goes_on ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static void walk_nongnu(struct walk *w, void *ucontext)
{
	ucontext_t here;
	struct ch__nongnu_cursor cursor;
	if (!ucontext && getcontext(&here) != 0)
		return;
	if (ch__nongnu.start(&cursor, ucontext ? ucontext : &here,
		       ucontext ? CH__NONGNU_SIGNAL_FRAME : 0) < 0)
		return;
	do {
		uintptr_t pc, sp, fp;
		if (ch__nongnu.get(&cursor, CH_ARCH_NONGNU_PC, &pc) < 0 || pc <= 1 ||
		    ch__nongnu.get(&cursor, CH_ARCH_NONGNU_SP, &sp) < 0)
			return;
		/* libunwind may have lost fp in code that it guessed through. */
		if (ch__nongnu.get(&cursor, CH_ARCH_NONGNU_FP, &fp) < 0)
			fp = 0;
		if (!see_frame(w, pc, sp, fp))
			return;
	} while (ch__nongnu.step(&cursor) > 0);
}

/* The unwinder ended in a frame of the heap's code (libgcc), or in the frame called by that code
 * (LLVM, which does not show a frame without a table). Walks on by frame pointers, and returns how
 * many frames were added. */
static size_t go_on(struct walk *w, uintptr_t low, uintptr_t high)
{
	if (!w->n)
		return 0;
	uintptr_t *out = w->out + w->n;
	size_t more = ch__walk(0, w->fp, w->sp > low ? w->sp : low, high, out, w->max - w->n);
	bool is_ours =
		ch__sinks_have(w->sinks, w->pc) || (more && ch__sinks_have(w->sinks, out[0] - 1));
	return is_ours ? more : 0;
}

size_t ch__walk_tables(const struct ch__sinks *s, void *ucontext, uintptr_t first, uintptr_t low,
		       uintptr_t high, uintptr_t *out, size_t max)
{
	struct walk w = {.sinks = s, .first = first, .out = out, .max = max};
	if (!max)
		return 0;
	if (ucontext) {
		w.first = ch__arch_context_pc(ucontext);
		w.first_sp = ch__arch_context_sp(ucontext);
	}
	if (ch__sinks_state(s, CH__SINK_LIBUNWIND))
		walk_nongnu(&w, ucontext);
	else
		_Unwind_Backtrace(see_context, &w);
	return w.n + go_on(&w, low, high);
}
