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
 * The caller has the closure and the arguments in place, so a call moves no value.
 *
 * Entering: `code->entry(ctx, fp', argc)` in the C ABI. The caller has stored the closure in
 * fp'[-1], its own fp in fp'[-3], and the pc after its call in fp'[-2]. Backtraces and line numbers
 * read this pc; the word in front of the pc names the slot of the result. The callee checks argc,
 * checks fp' + frame_slots against ctx->now.stack_limit, sets FP(ctx) = fp' before writing a slot
 * beyond the arguments, and returns the value. The caller then sets FP(ctx) back to its own fp.
 *
 * Tail calls put the arguments, then the closure, at the same fp and keep fp[-3] and fp[-2]. So the
 * arguments always lie in slots of the caller or of the callee: a callee with a rest list has slots
 * for the arguments of any tail call (MOST_TAIL_ARGS). Machine code jumps to the other entry. The
 * interpreter goes on in its loop, unless the target is machine code and the activation is the base
 * of the loop. Then interp_run returns V_TAIL with ctx->tail_entry, tail_fp and tail_argc set;
 * interp_entry has given up its C frame and jumps there. A loop head of the base activation enters
 * machine code in the same way: a loop that alternates between interpreter and machine code needs
 * no more stack. V_TAIL never leaves interp_entry and interp_finish.
 *
 * Leaving machine code: store all slots, return interp_run(ctx, fp, pc) to the caller
 * (interp_finish handles V_TAIL). A pc is enough, for no other state exists.
 *
 * Garbage: the collector scans [stack_base, stack_top(ctx)) conservatively, and clears the slots
 * above, at any instruction of any thread. Before an allocation, store each value held only in a
 * machine register to its slot, unless the C ABI preserves or spills the register: such registers
 * are on the scanned C stack.
 */
#pragma once

#include "vm.h"

/* Machine code compares fp alone with the limit where a frame has up to SMALL_FRAME slots. So each
 * limit leaves that much of the stack above it. */
enum { FRAME_HEADER = 3, SMALL_FRAME = 32 };

/* interp_entry: the default code->entry. */
value interp_entry(struct context *ctx, value *fp, int64_t argc);

/* interp_run: run the activation at fp from pc until the activation returns; V_TAIL as above. */
value interp_run(struct context *ctx, value *fp, const struct insn *pc);

/* interp_activate: interp_run, entered through the trampoline with the procedure's name if the VM
 * has trampolines. All callers but the interpreter itself use interp_activate. The trampoline's
 * frame is gone before V_TAIL is followed, so trampolines add no C stack to tail calls. */
value interp_activate(struct context *ctx, value *fp, const struct insn *pc);

/* interp_finish: interp_activate, with V_TAIL followed. Side exits call interp_finish. */
value interp_finish(struct context *ctx, value *fp, const struct insn *pc);

/* frame_prepare: the work of every entry: check argc and the value stack, make the rest list, set
 * FP(ctx), serve an interrupt. Raises a Scheme error on a mismatch. */
void frame_prepare(struct context *ctx, value *fp, int64_t argc);

/* call_other: call a primitive, escape or parameter; raises an error for other non-closures. */
value call_other(struct context *ctx, value callee, value *args, int64_t argc);

/* spread_list: store the elements of a list from args on, past the frame if need be. Returns the
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

/* apply_frame: the address at which `apply`, called now, builds its frame. */
static inline value *apply_frame(struct context *ctx) { return stack_top(ctx) + FRAME_HEADER; }
