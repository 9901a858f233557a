/* SPDX-License-Identifier: MIT
 * apply.c: calls from C into Scheme, and calls of callees other than closures.
 */
#include "control.h"
#include "frame.h"

value call_other(struct context *ctx, value callee, value *args, int64_t argc)
{
	if (is_type(callee, T_PRIM)) {
		struct prim *prim = AS(prim, callee);
		if (argc < prim->min_args || (prim->max_args >= 0 && argc > prim->max_args))
			raise_error(ctx, "type",
				    argc < prim->min_args ? "too few arguments for"
							  : "too many arguments for",
				    2, intern(prim->name), make_fixnum(argc));
		return prim->run(ctx, args, argc);
	}
	if (is_type(callee, T_ESCAPE))
		escape_throw(ctx, AS(escape, callee), args, argc);
	raise_error(ctx, "type", "not a procedure", 1, callee);
}

int64_t spread_list(struct context *ctx, value *args, value list)
{
	int64_t count = 0;

	for (; is_pair(list); list = CDR(list)) {
		if (args + count + 1 > ctx->now.stack_limit)
			raise_stack(ctx);
		ctx->now.arg_top = args + count + 1;
		atomic_signal_fence(memory_order_seq_cst);
		args[count++] = CAR(list);
	}
	if (list != V_NIL)
		raise_type(ctx, "apply", "list", list);
	return count;
}

value apply(struct context *ctx, value procedure, int64_t argc, const value *args)
{
	value *saved_fp = FP(ctx), *saved_top = ctx->now.arg_top;
	const struct insn *saved_pc = ctx->pc;
	value *fp = apply_frame(ctx);
	value v;

	check_c_stack(ctx);
	if (fp + argc > ctx->now.stack_limit)
		raise_stack(ctx);
	/* A stop clears slots above the top. */
	ctx->now.arg_top = fp + argc;
	atomic_signal_fence(memory_order_seq_cst);
	fp[-1] = procedure;
	fp[-2] = (value)saved_pc;
	fp[-3] = (value)saved_fp;
	for (int64_t i = 0; i < argc; i++)
		fp[i] = args[i];
	if (is_type(procedure, T_CLOSURE))
		v = AS(closure, procedure)->code->entry(ctx, fp, argc);
	else
		v = call_other(ctx, procedure, fp, argc);
	FP(ctx) = saved_fp;
	ctx->now.arg_top = saved_top;
	ctx->pc = saved_pc;
	return v;
}
