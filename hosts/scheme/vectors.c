/* SPDX-License-Identifier: MIT
 * vectors.c: vectors and records.
 */
#include "vm.h"

static struct vector *vector_arg(struct context *ctx, const char *who, value v)
{
	return AS(vector, object_arg(ctx, who, T_VECTOR, v));
}

PRIM(vector_p) { return make_bool(is_type(args[0], T_VECTOR)); }

PRIM(make_vector_of)
{
	return make_vector(ctx, index_arg(ctx, "make-vector", args[0], INT64_MAX >> 8),
			   argc > 1 ? args[1] : make_fixnum(0));
}

PRIM(vector_of)
{
	value v = make_vector(ctx, argc, V_NIL);
	memcpy(AS(vector, v)->items, args, (size_t)argc * 8);
	return v;
}

PRIM(vector_length) { return make_fixnum(vector_arg(ctx, "vector-length", args[0])->length); }

PRIM(vector_ref)
{
	struct vector *v = vector_arg(ctx, "vector-ref", args[0]);
	return v->items[index_arg(ctx, "vector-ref", args[1], v->length - 1)];
}

PRIM(vector_set)
{
	struct vector *v = vector_arg(ctx, "vector-set!", args[0]);
	v->items[index_arg(ctx, "vector-set!", args[1], v->length - 1)] = args[2];
	return V_UNSPEC;
}

PRIM(vector_to_list)
{
	int64_t start, end;
	struct vector *v = vector_arg(ctx, "vector->list", args[0]);
	range_args(ctx, "vector->list", args, argc, 1, v->length, &start, &end);
	return make_list(ctx, end - start, v->items + start);
}

PRIM(list_to_vector)
{
	int64_t length = list_length(args[0]);
	if (length < 0)
		raise_type(ctx, "list->vector", "list", args[0]);
	value v = make_vector(ctx, length, V_NIL), at = args[0];
	for (int64_t i = 0; i < length; i++)
		AS(vector, v)->items[i] = next_of(ctx, "list->vector", args[0], &at);
	return v;
}

PRIM(vector_fill)
{
	int64_t start, end;
	struct vector *v = vector_arg(ctx, "vector-fill!", args[0]);
	range_args(ctx, "vector-fill!", args, argc, 2, v->length, &start, &end);
	for (; start < end; start++)
		v->items[start] = args[1];
	return V_UNSPEC;
}

/* ---- records ---- */

PRIM(make_rtd)
{
	struct rtd *type = alloc_bytes(ctx, T_RTD, sizeof *type);
	type->name = args[0];
	type->fields = args[1];
	type->count = list_length(args[1]);
	if (type->count < 0)
		raise_type(ctx, "%make-rtd", "list", args[1]);
	return (value)type;
}

PRIM(make_record)
{
	struct rtd *type = AS(rtd, object_arg(ctx, "record operation", T_RTD, args[0]));
	if (argc - 1 != type->count)
		raise_error(ctx, "type", "wrong number of fields for", 1, type->name);
	struct record *record =
		alloc_bytes(ctx, T_RECORD, sizeof *record + (size_t)type->count * 8);
	record->type = type;
	memcpy(record->fields, args + 1, (size_t)type->count * 8);
	return (value)record;
}

PRIM(record_p)
{
	return make_bool(is_type(args[0], T_RECORD) && (value)AS(record, args[0])->type == args[1]);
}

static value *field(struct context *ctx, value *args)
{
	struct rtd *type = AS(rtd, object_arg(ctx, "record operation", T_RTD, args[1]));
	if (!is_type(args[0], T_RECORD) || AS(record, args[0])->type != type)
		raise_type(ctx, "record accessor", "record of its type", args[0]);
	return AS(record, args[0])->fields +
	       index_arg(ctx, "record accessor", args[2], type->count - 1);
}

PRIM(record_ref) { return *field(ctx, args); }
PRIM(record_set)
{
	*field(ctx, args) = args[3];
	return V_UNSPEC;
}

void init_vectors(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"vector?", vector_p, 1, 1}, {"make-vector", make_vector_of, 1, 2},
		{"vector", vector_of, 0, -1}, {"vector-length", vector_length, 1, 1},
		{"vector-ref", vector_ref, 2, 2}, {"vector-set!", vector_set, 3, 3},
		{"vector->list", vector_to_list, 1, 3}, {"list->vector", list_to_vector, 1, 1},
		{"vector-fill!", vector_fill, 2, 4},

	};

	DEFINE_PRIMS(ctx, defs);
}

void init_records(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"%make-rtd", make_rtd, 2, 2}, {"%record", make_record, 1, -1},
		{"%record?", record_p, 2, 2}, {"%record-ref", record_ref, 3, 3},
		{"%record-set!", record_set, 4, 4},
	};

	DEFINE_PRIMS(ctx, defs);
}
