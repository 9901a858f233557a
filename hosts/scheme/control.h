/* SPDX-License-Identifier: MIT
 * control.h: escapes, as apply.c sees them; control.c has the rest.
 */
#ifndef SCHEME_CONTROL_H
#define SCHEME_CONTROL_H

#include "vm.h"

/* struct escape: what call/cc passes to its receiver. It is dead once that has returned, or was
 * left by an error or by another escape.
 *
 * call/cc called in tail position of its receiver has the continuation that the receiver has: that
 * of the escape which there is. So the new receiver gets the same escape, in the old one's frame,
 * and chains of such calls take no more of any stack than the first. The frame says where this is
 * so: all that runs in its place by tail calls lies at the same address, all else beyond it. */
struct escape {
	uint64_t header;
	struct catcher *catcher; /* in the C frame of call/cc; NULL when dead */
	struct escape *outer;    /* of the same fiber */
	value *frame;            /* the receiver's, and of whoever it calls in tail position */
	struct fiber *fiber;
	value result;
};

_Noreturn void escape_throw(struct context *ctx, struct escape *escape, value *args, int64_t argc);

/* escapes_end: those inside of `last` are dead, as their C frames are about to be left. */
void escapes_end(struct context *ctx, const struct escape *last);

int is_call_cc(value v);

/* escape_in_place: the activation at fp ends in a call of args[-1], which is no closure. If that is
 * call/cc, and the escape which it would make exists, the call becomes the receiver's, and the
 * result is 1: args[-1] is another procedure. */
int64_t escape_in_place(struct context *ctx, const value *fp, value *args, int64_t argc);

#endif
