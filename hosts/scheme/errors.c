/* SPDX-License-Identifier: MIT
 * errors.c: raising, finding the line, unwinding to a catcher.
 */
#include <stdarg.h>

#include "control.h"
#include "frame.h"

enum { RESERVE_C_BYTES = 48 << 10 };

_Thread_local struct context *thread_context;

void catcher_enter(struct context *ctx, struct catcher *catcher)
{
	catcher->state = ctx->now;
	catcher->error = V_NONE;
	catcher->outer = thread_context;
	ctx->now.catcher = catcher;
	thread_context = ctx;
}

void catcher_leave(struct context *ctx, struct catcher *catcher)
{
	ctx->now.catcher = catcher->state.catcher;
	thread_context = catcher->outer;
}

void unwind_to(struct context *ctx, value winders)
{
	while (ctx->now.winders != winders && is_pair(ctx->now.winders)) {
		value winder = CAR(ctx->now.winders);
		ctx->now.winders = CDR(ctx->now.winders);
		/* `exit` runs the thunk with those handlers only that the thunk installs. */
		ctx->now.handlers = ctx->exit_code < 0 ? CAR(winder) : V_NIL;
		apply(ctx, CDR(winder), 0, NULL);
	}
}

_Noreturn void throw_to(struct context *ctx, struct catcher *catcher, value error)
{
	unwind_to(ctx, catcher->state.winders);
	escapes_end(ctx, catcher->state.escape);
	value *end = stack_top(ctx);
	ctx->now = catcher->state;
	/* Values in the frames given up must not live on in new frames at the same place. */
	value *top = stack_top(ctx);
	if (end > top)
		memset(top, 0, (size_t)(end - top) * sizeof *top);
	thread_context = ctx;
	catcher->error = error;
	longjmp(catcher->target, 1);
}

/* The place is the innermost frame of the program itself: the prelude's code has no file. */
static void find_place(struct context *ctx, struct condition *c)
{
	value *fp = FP(ctx);
	const struct insn *pc = ctx->pc;

	while (fp && fp > ctx->now.stack_base && fp <= ctx->now.stack_end) {
		if (is_type(fp[-1], T_CLOSURE)) {
			struct code *code = AS(closure, fp[-1])->code;
			if (code->file != V_FALSE && code->file) {
				int64_t at = pc - 1 - code->insns;
				int inside = pc > code->insns && at < code->insn_count;
				c->file = code->file;
				c->line = inside ? (int64_t)code->lines[at] : code->line;
				return;
			}
		}
		pc = (const struct insn *)fp[-2];
		fp = (value *)fp[-3];
	}
}

_Noreturn void raise_value(struct context *ctx, value object)
{
	while (is_pair(ctx->now.handlers)) {
		value handler = CAR(ctx->now.handlers);
		ctx->now.handlers = CDR(ctx->now.handlers);
		apply(ctx, handler, 1, &object);
		/* Another condition would tell less: this one goes to the handlers outside. */
		if (!is_type(object, T_CONDITION))
			raise_error(ctx, "error", "exception handler returned", 1, object);
	}
	throw_to(ctx, ctx->now.catcher, object);
}

struct condition *condition_new(struct context *ctx, const char *kind, value message,
				value irritants)
{
	struct condition *c = alloc_bytes(ctx, T_CONDITION, sizeof *c);

	c->kind = intern(kind);
	c->message = message;
	c->irritants = irritants;
	c->file = V_FALSE;
	return c;
}

_Noreturn void raise_here(struct context *ctx, struct condition *c)
{
	find_place(ctx, c);
	raise_value(ctx, (value)c);
}

_Noreturn void raise_error(struct context *ctx, const char *kind, const char *message,
			   int64_t irritant_count, ...)
{
	value items[4];
	va_list rest;

	va_start(rest, irritant_count);
	for (int64_t i = 0; i < irritant_count; i++)
		items[i] = va_arg(rest, value);
	va_end(rest);
	value irritants = make_list(ctx, irritant_count, items);
	raise_here(ctx, condition_new(ctx, kind, string_from(ctx, message), irritants));
}

_Noreturn void raise_type(struct context *ctx, const char *who, const char *wanted, value got)
{
	char text[160];

	snprintf(text, sizeof text, "%s: not %s %s:", who, strchr("aeiou", *wanted) ? "an" : "a",
		 wanted);
	raise_error(ctx, "type", text, 1, got);
}

_Noreturn void raise_range(struct context *ctx, const char *who, value index)
{
	char text[160];

	snprintf(text, sizeof text, "%s: index out of range:", who);
	raise_error(ctx, "range", text, 1, index);
}

_Noreturn void raise_unbound(struct context *ctx, struct cell *cell)
{
	raise_error(ctx, "unbound", "unbound variable:", 1, (value)cell->name);
}

/* Gives a handler a reserve to run in. If the reserve is used up too, the error goes to the
 * catcher, which restores the usual limits. */
_Noreturn void raise_stack(struct context *ctx)
{
	value *reserve_end = ctx->now.stack_end - SMALL_FRAME - FRAME_HEADER;

	if (ctx->now.stack_limit >= reserve_end) {
		ctx->now.handlers = V_NIL;
		ctx->now.winders = ctx->now.catcher->state.winders;
	}
	ctx->now.stack_limit = reserve_end;
	ctx->now.c_limit -= RESERVE_C_BYTES;
	raise_error(ctx, "stack", "recursion too deep", 0);
}

/* With memory left for a new condition and for handlers, the condition is like any other. If memory
 * ends in a handler or soon afterwards, a condition made in advance is raised. Each failing handler
 * has another handler outside, so this ends. */
_Noreturn void raise_memory(struct context *ctx)
{
	value error = ctx->vm->memory_error;

	if (error == V_NONE)
		throw_to(ctx, ctx->now.catcher, error);
	if (memory_begin_grace())
		raise_error(ctx, "memory", "out of memory", 0);
	struct condition *c = AS(condition, error);
	c->file = V_FALSE;
	c->line = 0;
	raise_here(ctx, c);
}
