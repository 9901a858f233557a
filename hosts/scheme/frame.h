/* SPDX-License-Identifier: MIT
 * frame.h: the one frame layout and the one calling convention, of interpreter and machine code.
 *
 * Frames lie on the value stack of the running fiber, which grows up and is not the C stack:
 *
 *      caller's frame                            callee's frame
 *   .. fp[base] fp[base+1] fp[base+2] fp[base+3] ..
 *      ^saved fp ^return pc ^closure   ^arg 0 .. arg n-1, locals, temporaries .. fp+frame_slots
 *      fp'[-3]   fp'[-2]    fp'[-1]    fp'[0]
 *
 * The caller has the closure and the arguments in place, so that a call moves no value.
 *
 * Entering: `code->entry(ctx, fp', argc)` in the C ABI. fp'[-1] is the closure; fp'[-3] and
 * fp'[-2] were stored by the caller: its own fp, and the pc after its call (backtraces and line
 * numbers read them; the word in front of that pc names the slot of the result). The callee checks
 * argc, checks fp' + frame_slots against ctx->now.stack_limit, sets FP(ctx) = fp' before it writes
 * a slot beyond the arguments, and returns the value. The caller then sets FP(ctx) back to its own.
 *
 * Tail calls put arguments, then the closure, at the same fp and keep fp[-3] and fp[-2]: first the
 * slots of the caller hold the arguments, then those of the callee do, for a callee with a rest
 * list has slots for what any tail call passes (MOST_TAIL_ARGS). Machine code
 * jumps to the other entry. The interpreter goes on in its loop, or, when the target is machine
 * code and the activation is the base of its loop, returns V_TAIL with ctx->tail_entry, tail_fp and
 * tail_argc set; interp_entry, having given up its C frame, jumps there. A loop head of the base
 * activation enters machine code in the same way: loops that alternate between both stay flat.
 * V_TAIL never leaves interp_entry and interp_finish.
 *
 * Leaving machine code: store all slots, return interp_run(ctx, fp, pc) to one's own caller
 * (handling V_TAIL with interp_finish). A pc is enough, for no other state exists.
 *
 * Garbage: the collector scans [stack_base, stack_top(ctx)) conservatively, and clears what lies
 * above it, at any instruction of any thread. Before anything that may allocate, store to its slot
 * what only a machine register holds, unless the register is one that the C ABI preserves or spills
 * (those are on the scanned C stack).
 */
#ifndef SCHEME_FRAME_H
#define SCHEME_FRAME_H

#include "vm.h"

enum { FRAME_HEADER = 3 };

/* interp_entry: the default code->entry. */
value interp_entry(struct context *ctx, value *fp, int64_t argc);

/* interp_run: run the activation at fp from pc until it returns; V_TAIL as told above. */
value interp_run(struct context *ctx, value *fp, const struct insn *pc);

/* interp_activate: interp_run, through the trampoline that names the procedure where the VM has
 * them: what everybody calls but the interpreter itself. The trampoline's frame is gone when V_TAIL
 * is followed, so tail calls need no more of the C stack than without. */
value interp_activate(struct context *ctx, value *fp, const struct insn *pc);

/* interp_finish: interp_activate, with V_TAIL followed: what a side exit calls. */
value interp_finish(struct context *ctx, value *fp, const struct insn *pc);

/* frame_prepare: what every entry does: check argc, make the rest list, check both stacks, set
 * FP(ctx). Raises a Scheme error on a mismatch. */
void frame_prepare(struct context *ctx, value *fp, int64_t argc);

/* call_other: call what is not a closure: primitive, escape, parameter; or raise the error. */
value call_other(struct context *ctx, value callee, value *args, int64_t argc);

/* spread_list: store the elements of a list from args on, past the frame if need be; their
 * count. */
int64_t spread_list(struct context *ctx, value *args, value list);

/* note_traced_return: the activation at fp of a traced procedure is about to end. */
void note_traced_return(struct context *ctx, value *fp, value result);

/* stack_top: the end of the live part of the value stack. Also called in the stopped world. */
static inline value *stack_top(struct context *ctx)
{
	value *top = FP(ctx);
	if (is_type(top[-1], T_CLOSURE))
		top += AS(closure, top[-1])->code->frame_slots;
	return ctx->now.arg_top > top ? ctx->now.arg_top : top;
}

/* apply_frame: where `apply`, called now, builds its frame. */
static inline value *apply_frame(struct context *ctx) { return stack_top(ctx) + FRAME_HEADER; }

#endif
