/* SPDX-License-Identifier: MIT
 * rows.c: copies of parts, and concatenations, of strings, vectors and bytevectors. All three are
 * rows: a type, a length, then elements of one size.
 */
#include "vm.h"

enum { ROW_HEAD = 16 };
_Static_assert(offsetof(struct string, chars) == ROW_HEAD &&
		       offsetof(struct vector, items) == ROW_HEAD &&
		       offsetof(struct bytes, data) == ROW_HEAD &&
		       offsetof(struct string, length) == 8 &&
		       offsetof(struct vector, length) == 8 && offsetof(struct bytes, length) == 8,
	       "one layout of rows");

static int64_t length_of(value row) { return ((const int64_t *)row)[1]; }

/* Bytes of so many elements. */
static size_t row_bytes(enum type type, int64_t count)
{
	return (size_t)count * (type == T_VECTOR ? 8 : type == T_STRING ? 4 : 1);
}

static char *element(enum type type, value row, int64_t index)
{
	return (char *)row + ROW_HEAD + row_bytes(type, index);
}

static value new_row(struct context *ctx, enum type type, int64_t length)
{
	return type == T_VECTOR   ? make_vector(ctx, length, V_NIL)
	       : type == T_STRING ? make_string(ctx, length, 0)
				  : (value)make_bytes(ctx, length);
}

static inline value copy_part(struct context *ctx, const char *who, enum type type, value *args,
			      int64_t argc)
{
	int64_t start, end;
	value from = object_arg(ctx, who, type, args[0]);

	range_args(ctx, who, args, argc, 1, length_of(from), &start, &end);
	value copy = new_row(ctx, type, end - start);
	memcpy(element(type, copy, 0), element(type, from, start), row_bytes(type, end - start));
	return copy;
}

static inline value copy_into(struct context *ctx, const char *who, enum type type, value *args,
			      int64_t argc)
{
	int64_t start, end;
	value to = object_arg(ctx, who, type, args[0]), from = object_arg(ctx, who, type, args[2]);
	int64_t at = index_arg(ctx, who, args[1], length_of(to));

	range_args(ctx, who, args, argc, 3, length_of(from), &start, &end);
	if (end - start > length_of(to) - at)
		raise_range(ctx, who, args[1]);
	memmove(element(type, to, at), element(type, from, start), row_bytes(type, end - start));
	return V_UNSPEC;
}

static inline value append(struct context *ctx, const char *who, enum type type, value *args,
			   int64_t argc)
{
	int64_t length = 0, at = 0;

	for (int64_t i = 0; i < argc; i++)
		length += length_of(object_arg(ctx, who, type, args[i]));
	value all = new_row(ctx, type, length);
	for (int64_t i = 0; i < argc; i++) {
		int64_t count = length_of(args[i]);
		memcpy(element(type, all, at), element(type, args[i], 0), row_bytes(type, count));
		at += count;
	}
	return all;
}

#define ROW(name, text, type, function) \
	PRIM(name) { return function(ctx, text, type, args, argc); }
ROW(substring, "substring", T_STRING, copy_part)
ROW(string_copy, "string-copy", T_STRING, copy_part)
ROW(string_copy_into, "string-copy!", T_STRING, copy_into)
ROW(string_append, "string-append", T_STRING, append)
ROW(vector_copy, "vector-copy", T_VECTOR, copy_part)
ROW(vector_copy_into, "vector-copy!", T_VECTOR, copy_into)
ROW(vector_append, "vector-append", T_VECTOR, append)
ROW(bytevector_copy, "bytevector-copy", T_BYTES, copy_part)
ROW(bytevector_copy_into, "bytevector-copy!", T_BYTES, copy_into)
ROW(bytevector_append, "bytevector-append", T_BYTES, append)

void init_rows(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"substring", substring, 2, 3}, {"string-copy", string_copy, 1, 3},
		{"string-copy!", string_copy_into, 3, 5}, {"string-append", string_append, 0, -1},
		{"vector-copy", vector_copy, 1, 3}, {"subvector", vector_copy, 3, 3},
		{"vector-copy!", vector_copy_into, 3, 5}, {"vector-append", vector_append, 0, -1},
		{"bytevector-copy", bytevector_copy, 1, 3},
		{"bytevector-copy!", bytevector_copy_into, 3, 5},
		{"bytevector-append", bytevector_append, 0, -1},
	};

	DEFINE_PRIMS(ctx, defs);
}
