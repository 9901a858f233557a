/* SPDX-License-Identifier: MIT
 * control.h: escapes, as apply.c sees them; control.c has the rest.
 */
#pragma once

#include "vm.h"

/* struct escape: the object that call/cc passes to its receiver. The escape is dead once the
 * receiver has returned, or was left by an error or by another escape.
 *
 * A receiver that calls call/cc in tail position has the continuation of its own escape. So the new
 * receiver gets the same escape and the old receiver's frame: chains of such calls need no more
 * stack than one call. The frame's address decides: a procedure called in place of the receiver, by
 * tail calls, has a frame at the same address; other frames lie beyond. */
struct escape {
	uint64_t header;
	struct catcher *catcher; /* in the C frame of call/cc; NULL: dead */
	struct escape *outer;    /* of the same fiber */
	value *frame;            /* of the receiver, and of procedures called in its place */
	struct fiber *fiber;
	value result;
};

_Noreturn void escape_throw(struct context *ctx, struct escape *escape, value *args, int64_t argc);

/* escapes_end: marks escapes inside of `last` as dead; their C frames are about to be left. */
void escapes_end(struct context *ctx, const struct escape *last);

int is_call_cc(value v);

/* escape_in_place: the activation at fp ends in a call of args[-1], which is no closure. If
 * args[-1] is call/cc and the continuation already has an escape, turns the call into a call of the
 * receiver: args[-1] is then another procedure. Returns 1 after such a change, else 0. */
int64_t escape_in_place(struct context *ctx, const value *fp, value *args, int64_t argc);
