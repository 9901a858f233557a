/* SPDX-License-Identifier: MIT
 * control.h: escapes, as apply.c sees them; control.c has the rest.
 */
#ifndef SCHEME_CONTROL_H
#define SCHEME_CONTROL_H

#include "vm.h"

/* struct escape: what call/ec passes on. It is dead once its call/ec has returned. */
struct escape {
	uint64_t header;
	struct catcher *catcher; /* in the C frame of call/ec; NULL when dead */
	struct fiber *fiber;
	value result;
};

_Noreturn void escape_throw(struct context *ctx, struct escape *escape, value *args, int64_t argc);

#endif
