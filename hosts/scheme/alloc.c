/* SPDX-License-Identifier: MIT
 * alloc.c: objects from the Boehm heap. Small scanned objects come from per-thread lists, which
 * machine code can pop inline; what has no pointers is allocated unscanned.
 */
#define GC_THREADS
#include <gc/gc.h>

#include "vm.h"

/* A request above this is refused before the collector is asked: it would abort or thrash. */
static const size_t LARGEST_OBJECT_BYTES = (size_t)1 << 31;

void *alloc_slow(struct context *ctx, size_t granules)
{
	void *list = GC_malloc_many(granules * GRANULE_BYTES);

	if (list == NULL)
		raise_error(ctx, "memory", "out of memory", 0);
	ctx->free_lists[granules] = *(void **)list;
	return list;
}

void *alloc_bytes(struct context *ctx, uint64_t type, size_t bytes)
{
	size_t granules = (bytes + GRANULE_BYTES - 1) / GRANULE_BYTES;
	uint64_t *object;

	if (granules < FREE_LISTS) {
		object = alloc_small(ctx, granules);
	} else {
		if (bytes > LARGEST_OBJECT_BYTES)
			raise_error(ctx, "memory", "object too large", 0);
		object = GC_MALLOC(bytes);
		if (object == NULL)
			raise_error(ctx, "memory", "out of memory", 0);
	}
	*object = type;
	return object;
}

void *alloc_atomic(struct context *ctx, uint64_t type, size_t bytes)
{
	uint64_t *object;

	if (bytes > LARGEST_OBJECT_BYTES)
		raise_error(ctx, "memory", "object too large", 0);
	object = GC_MALLOC_ATOMIC(bytes);
	if (object == NULL)
		raise_error(ctx, "memory", "out of memory", 0);
	*object = type;
	return object;
}

value make_flonum(double number)
{
	struct flonum *flonum = GC_MALLOC_ATOMIC(sizeof *flonum);

	flonum->header = T_FLONUM;
	flonum->number = number;
	return (value)flonum;
}

value make_vector(struct context *ctx, int64_t length, value fill)
{
	struct vector *vector;

	if (length < 0 || length > (int64_t)(LARGEST_OBJECT_BYTES / 8) - 2)
		raise_error(ctx, "memory", "vector too large", 1, make_fixnum(length));
	vector = alloc_bytes(ctx, T_VECTOR, sizeof *vector + (size_t)length * 8);
	vector->length = length;
	for (int64_t i = 0; i < length; i++)
		vector->items[i] = fill;
	return (value)vector;
}

value make_string(struct context *ctx, int64_t length, uint32_t fill)
{
	struct string *string;

	if (length < 0 || length > (int64_t)(LARGEST_OBJECT_BYTES / 4) - 4)
		raise_error(ctx, "memory", "string too large", 1, make_fixnum(length));
	string = alloc_atomic(ctx, T_STRING, sizeof *string + (size_t)length * 4);
	string->length = length;
	for (int64_t i = 0; i < length; i++)
		string->chars[i] = fill;
	return (value)string;
}

/* One code point from UTF-8; a malformed byte stands for itself. */
static size_t decode(const unsigned char *at, size_t left, uint32_t *out)
{
	static const uint8_t masks[] = {0, 0, 0x1f, 0x0f, 0x07};
	size_t count = at[0] < 0xc2   ? 1
		       : at[0] < 0xe0 ? 2
		       : at[0] < 0xf0 ? 3
		       : at[0] < 0xf5 ? 4
				      : 1;

	*out = at[0];
	if (count == 1 || count > left)
		return 1;
	uint32_t c = at[0] & masks[count];
	for (size_t i = 1; i < count; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return 1;
		c = c << 6 | (at[i] & 0x3f);
	}
	*out = c;
	return count;
}

value string_from_bytes(struct context *ctx, const char *utf8, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)utf8, *end = at + bytes;
	struct string *string = AS(string, make_string(ctx, (int64_t)bytes, 0));
	int64_t length = 0;

	while (at < end)
		at += decode(at, (size_t)(end - at), &string->chars[length++]);
	string->length = length;
	return (value)string;
}

value string_from(struct context *ctx, const char *utf8)
{
	return string_from_bytes(ctx, utf8, strlen(utf8));
}

char *string_to_utf8(value string, size_t *bytes)
{
	struct string *s = AS(string, string);
	char *out = GC_MALLOC_ATOMIC((size_t)s->length * 4 + 1), *at = out;

	for (int64_t i = 0; i < s->length; i++) {
		uint32_t c = s->chars[i];
		if (c < 0x80) {
			*at++ = (char)c;
		} else if (c < 0x800) {
			*at++ = (char)(0xc0 | c >> 6);
			*at++ = (char)(0x80 | (c & 0x3f));
		} else if (c < 0x10000) {
			*at++ = (char)(0xe0 | c >> 12);
			*at++ = (char)(0x80 | (c >> 6 & 0x3f));
			*at++ = (char)(0x80 | (c & 0x3f));
		} else {
			*at++ = (char)(0xf0 | c >> 18);
			*at++ = (char)(0x80 | (c >> 12 & 0x3f));
			*at++ = (char)(0x80 | (c >> 6 & 0x3f));
			*at++ = (char)(0x80 | (c & 0x3f));
		}
	}
	*at = 0;
	if (bytes)
		*bytes = (size_t)(at - out);
	return out;
}

value make_values(struct context *ctx, int64_t count, const value *items)
{
	struct vector *values = alloc_bytes(ctx, T_VALUES, sizeof *values + (size_t)count * 8);

	values->length = count;
	memcpy(values->items, items, (size_t)count * 8);
	return (value)values;
}

value make_list(struct context *ctx, int64_t count, const value *items)
{
	value list = V_NIL;

	while (count-- > 0)
		list = cons(ctx, items[count], list);
	return list;
}
