/* SPDX-License-Identifier: MIT
 * alloc.c: objects from the Boehm heap. Small scanned objects come from per-thread lists, which
 * machine code can pop inline; what has no pointers is allocated unscanned. Without memory each
 * function here raises an error of kind `memory`; for what its handlers and its report need, a
 * reserve is given back to the collector then. Memory is also asked for where no context is at
 * hand: errors.c knows whose catcher is the innermost of the thread.
 */
#define GC_THREADS
#include <gc/gc.h>
#include <stdlib.h>
#include <unistd.h>

#include "vm.h"

enum { RESERVE_BYTES = 1 << 20 };

static void *_Atomic reserve;
static _Atomic GC_word looked_at; /* the collection after which there was too little for it */

/* Not while it would be the last that there is: whoever goes on needs memory, too. */
static void take_reserve(void)
{
	GC_word number = GC_get_gc_no();
	void *block, *none = NULL;

	if (atomic_exchange(&looked_at, number) == number ||
	    GC_get_free_bytes() < (size_t)4 * RESERVE_BYTES)
		return;
	block = GC_MALLOC_ATOMIC_UNCOLLECTABLE(RESERVE_BYTES);
	if (block && !atomic_compare_exchange_strong(&reserve, &none, block))
		GC_FREE(block);
}

void memory_start(void)
{
	atomic_store(&reserve, GC_MALLOC_ATOMIC_UNCOLLECTABLE(RESERVE_BYTES));
}

int memory_give_reserve(void)
{
	void *block = atomic_exchange(&reserve, NULL);

	GC_FREE(block);
	return block != NULL;
}

/* Where nobody can be told by an error. */
_Noreturn static void die(void)
{
	static const char text[] = "scheme: out of memory\n";

	if (write(2, text, sizeof text - 1) < 0)
		_exit(1);
	_exit(1);
}

static _Noreturn void memory_is_short(void)
{
	struct context *ctx = thread_context;

	if (!ctx || !ctx->now.catcher)
		die();
	raise_memory(ctx);
}

/* What the collector returned, or an error. */
static void *sure(void *object)
{
	if (__builtin_expect(object == NULL, 0))
		memory_is_short();
	if (__builtin_expect(atomic_load_explicit(&reserve, memory_order_relaxed) == NULL, 0))
		take_reserve();
	return object;
}

/* Where its heap cannot grow the collector gives up without a collection if the last one was not
 * long ago, also when a catcher has let go of everything since. So there is one before an error. */
void *new_scanned(size_t bytes)
{
	void *object = GC_MALLOC(bytes);

	if (__builtin_expect(object == NULL, 0)) {
		GC_gcollect();
		object = GC_MALLOC(bytes);
	}
	return sure(object);
}

void *new_plain(size_t bytes)
{
	void *object = GC_MALLOC_ATOMIC(bytes);

	if (__builtin_expect(object == NULL, 0)) {
		GC_gcollect();
		object = GC_MALLOC_ATOMIC(bytes);
	}
	return sure(object);
}

void *grow_scanned(void *block, size_t bytes)
{
	void *object = GC_REALLOC(block, bytes);

	if (__builtin_expect(object == NULL, 0)) {
		GC_gcollect();
		object = GC_REALLOC(block, bytes);
	}
	return sure(object);
}

/* A request above this is refused before the collector is asked: it would abort or thrash. */
static const size_t LARGEST_OBJECT_BYTES = (size_t)1 << 31;

void *alloc_slow(struct context *ctx, size_t granules)
{
	void *list = GC_malloc_many(granules * GRANULE_BYTES);

	if (__builtin_expect(list == NULL, 0)) {
		GC_gcollect();
		list = GC_malloc_many(granules * GRANULE_BYTES);
	}
	sure(list);
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
		object = new_scanned(bytes);
	}
	*object = type;
	return object;
}

void *alloc_atomic(struct context *ctx, uint64_t type, size_t bytes)
{
	uint64_t *object;

	if (bytes > LARGEST_OBJECT_BYTES)
		raise_error(ctx, "memory", "object too large", 0);
	object = new_plain(bytes);
	*object = type;
	return object;
}

value make_flonum(double number)
{
	struct flonum *flonum = new_plain(sizeof *flonum);

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

size_t string_utf8_room(const struct string *s) { return (size_t)s->length * 4 + 1; }

size_t string_write_utf8(const struct string *s, char *out)
{
	char *at = out;

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
	return (size_t)(at - out);
}

char *string_to_utf8(value string, size_t *bytes)
{
	char *out = new_plain(string_utf8_room(AS(string, string)));
	size_t count = string_write_utf8(AS(string, string), out);

	if (bytes)
		*bytes = count;
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
