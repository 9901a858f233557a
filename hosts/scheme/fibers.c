/* SPDX-License-Identifier: MIT
 * fibers.c: fibers as procedures; stacks.c switches.
 */
#include "vm.h"

static struct fiber *fiber_arg(struct context *ctx, const char *who, value v)
{
	if (!is_type(v, T_FIBER))
		raise_type(ctx, who, "fiber", v);
	return AS(fiber, v);
}

PRIM(make_fiber)
{
	if (!is_procedure(args[0]))
		raise_type(ctx, "make-fiber", "procedure", args[0]);
	return (value)fiber_create(ctx, args[0]);
}

PRIM(resume)
{
	struct fiber *fiber = fiber_arg(ctx, "fiber-resume", args[0]);
	return fiber_resume(ctx, fiber, argc > 1 ? args[1] : V_UNSPEC);
}

PRIM(yield) { return fiber_yield(ctx, argc ? args[0] : V_UNSPEC); }
PRIM(done_p) { return make_bool(fiber_arg(ctx, "fiber-done?", args[0])->state == FIBER_DONE); }
PRIM(fiber_p) { return make_bool(is_type(args[0], T_FIBER)); }
PRIM(current_fiber) { return (value)ctx->fiber; }

void init_fibers(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"make-fiber", make_fiber, 1, 1}, {"fiber-resume", resume, 1, 2},
		{"fiber-yield", yield, 0, 1}, {"fiber-done?", done_p, 1, 1},
		{"fiber?", fiber_p, 1, 1}, {"current-fiber", current_fiber, 0, 0},
	};

	DEFINE_PRIMS(ctx, defs);
}
