/* SPDX-License-Identifier: MIT
 * arguments.c: checks of the arguments of built-ins. Each raises an error in the name of `who`.
 */
#include "vm.h"

_Noreturn void raise_other_type(struct context *ctx, const char *who, enum type type, value got)
{
	static const char *const names[] = {
		[T_PAIR] = "pair",           [T_CLOSURE] = "procedure",
		[T_VECTOR] = "vector",       [T_STRING] = "string",
		[T_SYMBOL] = "symbol",       [T_RTD] = "record type",
		[T_FIBER] = "fiber",         [T_THREAD] = "thread",
		[T_MUTEX] = "mutex",         [T_PORT] = "port",
		[T_BYTES] = "bytevector",    [T_CONDITION] = "error object",
	};

	raise_type(ctx, who, names[type], got);
}

const char *text_arg(struct context *ctx, const char *who, const char *wanted, value v)
{
	size_t bytes = 0;
	const char *text = is_type(v, T_STRING) ? string_to_utf8(v, &bytes) : NULL;

	if (!text || strlen(text) != bytes)
		raise_type(ctx, who, wanted, v);
	return text;
}

int64_t index_arg(struct context *ctx, const char *who, value v, int64_t most)
{
	if (!is_fixnum(v) || fixnum_of(v) < 0 || fixnum_of(v) > most)
		raise_range(ctx, who, v);
	return fixnum_of(v);
}

void range_args(struct context *ctx, const char *who, value *args, int64_t argc, int64_t at,
		int64_t length, int64_t *start, int64_t *end)
{
	*end = argc > at + 1 ? index_arg(ctx, who, args[at + 1], length) : length;
	*start = argc > at ? index_arg(ctx, who, args[at], *end) : 0;
}
