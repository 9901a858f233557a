/* SPDX-License-Identifier: MIT
 * control.c: escapes, values, handlers, conditions as procedures. Procedures that call procedures
 * in a loop are in the prelude and compiled like any program.
 */
#include "control.h"

#include "frame.h"

_Noreturn void escape_throw(struct context *ctx, struct escape *escape, value *args, int64_t argc)
{
	if (!escape->catcher)
		raise_error(ctx, "error", "continuation re-entered after it was left", 0);
	if (escape->fiber != ctx->fiber)
		raise_error(ctx, "error", "continuation belongs to another fiber", 0);
	escape->result = argc == 1 ? args[0] : make_values(ctx, argc, args);
	throw_to(ctx, escape->catcher, V_NONE);
}

void escapes_end(struct context *ctx, const struct escape *last)
{
	struct escape *escape = ctx->now.escape;

	for (; escape && escape != last; escape = escape->outer)
		escape->catcher = NULL;
	ctx->now.escape = escape;
}

/* Errors go past this catcher, which only the escape knows. */
PRIM(call_cc)
{
	struct escape *volatile escape = alloc_bytes(ctx, T_ESCAPE, sizeof *escape);
	const struct insn *volatile pc = ctx->pc;
	struct catcher catcher;
	value v;

	catcher.state = ctx->now;
	escape->catcher = &catcher;
	escape->outer = ctx->now.escape;
	escape->frame = apply_frame(ctx);
	escape->fiber = ctx->fiber;
	if (_setjmp(catcher.target) == 0) {
		value object = (value)escape;
		ctx->now.escape = escape;
		v = apply(ctx, args[0], 1, &object);
	} else {
		v = escape->result;
	}
	ctx->pc = pc;
	escape->catcher = NULL;
	ctx->now.escape = escape->outer;
	return v;
}

int is_call_cc(value v) { return is_type(v, T_PRIM) && AS(prim, v)->run == call_cc; }

int64_t escape_in_place(struct context *ctx, const value *fp, value *args, int64_t argc)
{
	struct escape *escape = ctx->now.escape;

	if (!is_call_cc(args[-1]) || argc != 1)
		return 0;
	if (!escape || escape->frame != fp ||
	    escape->catcher->state.handlers != ctx->now.handlers ||
	    escape->catcher->state.winders != ctx->now.winders)
		return 0;
	args[-1] = args[0];
	args[0] = (value)escape;
	return 1;
}

PRIM(values) { return argc == 1 ? args[0] : make_values(ctx, argc, args); }

PRIM(values_to_list)
{
	if (!is_type(args[0], T_VALUES))
		return cons(ctx, args[0], V_NIL);
	return make_list(ctx, AS(vector, args[0])->length, AS(vector, args[0])->items);
}

PRIM(procedure_p) { return make_bool(is_procedure(args[0])); }

PRIM(push_winder)
{
	/* On an escape the winder runs with the handlers of this place, not of the escape. */
	ctx->now.winders = cons(ctx, cons(ctx, ctx->now.handlers, args[1]), ctx->now.winders);
	return V_UNSPEC;
}

PRIM(pop_winder)
{
	if (is_pair(ctx->now.winders))
		ctx->now.winders = CDR(ctx->now.winders);
	return V_UNSPEC;
}

PRIM(get_handlers) { return ctx->now.handlers; }

/* Looks at no more than the argument: handlers may be nested as deep as calls. */
PRIM(set_handlers)
{
	ctx->now.handlers = args[0];
	return V_UNSPEC;
}

PRIM(raise_object)
{
	raise_value(ctx, args[0]);
}

PRIM(error)
{
	value irritants = make_list(ctx, argc - 1, args + 1);
	raise_here(ctx, condition_new(ctx, "error", args[0], irritants));
}

PRIM(error_object_p) { return make_bool(is_type(args[0], T_CONDITION)); }

static struct condition *condition_arg(struct context *ctx, const char *who, value v)
{
	return AS(condition, object_arg(ctx, who, T_CONDITION, v));
}

PRIM(error_message) { return condition_arg(ctx, "error-object-message", args[0])->message; }
PRIM(error_irritants)
{
	return condition_arg(ctx, "error-object-irritants", args[0])->irritants;
}

PRIM(report_string)
{
	struct port *port = port_open_buffer();
	write_condition(ctx, port, (value)condition_arg(ctx, "condition/report-string", args[0]));
	return string_from_bytes(ctx, port->bytes, (size_t)port->length);
}

PRIM(error_kind) { return condition_arg(ctx, "error-kind", args[0])->kind; }

void init_control(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"call/ec", call_cc, 1, 1}, {"call/cc", call_cc, 1, 1},
		{"call-with-escape-continuation", call_cc, 1, 1},
		{"call-with-current-continuation", call_cc, 1, 1}, {"values", values, 0, -1},
		{"%values->list", values_to_list, 1, 1}, {"procedure?", procedure_p, 1, 1},
		{"%push-winder", push_winder, 2, 2}, {"%pop-winder", pop_winder, 0, 0},
		{"%handlers", get_handlers, 0, 0}, {"%set-handlers", set_handlers, 1, 1},
		{"raise", raise_object, 1, 1}, {"error", error, 1, -1},
		{"error-object?", error_object_p, 1, 1},
		{"error-object-message", error_message, 1, 1},
		{"error-object-irritants", error_irritants, 1, 1}, {"error-kind", error_kind, 1, 1},
		{"condition/report-string", report_string, 1, 1},
	};

	DEFINE_PRIMS(ctx, defs);
}
