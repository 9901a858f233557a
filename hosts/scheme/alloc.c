/* SPDX-License-Identifier: MIT
 * alloc.c: objects from the Boehm heap. Small scanned objects come from per-thread lists, which
 * machine code can pop inline; objects without pointers are allocated unscanned. Without memory
 * each function here raises an error of kind `memory`. A caller may have no context: errors.c knows
 * the context with the innermost catcher of the thread.
 *
 * The heap has a limit. Memory counts as out before the heap is full: when a collection finds more
 * than FULL_PARTS of PARTS of the limit in use. With less left a program would collect for each of
 * the last few pages, which takes minutes. For the handlers and the report of the error, a reserve
 * is given back to the collector. Handlers may go on for GRACE collections that find as much in
 * use; then the next error follows. Once less is in use, a new reserve is taken.
 */
#define GC_THREADS
#include <gc/gc.h>
#include <gc/gc_mark.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "vm.h"

enum { FULL_PARTS = 7, PARTS = 8, GRACE = 8, RESERVE_BYTES = 1 << 20 };

static _Atomic size_t limit; /* of the heap, in bytes; 0: not known yet */
static void *_Atomic reserve;
static _Atomic GC_word looked_at; /* number of the collection at the last try for a reserve */
static atomic_int is_full;
static atomic_int grace; /* collections that may find the heap full before the next error */
static GC_on_collection_event_proc previous_event;

static void add_bytes(void *object, size_t bytes, void *sum)
{
	(void)object;
	*(size_t *)sum += bytes;
}

/* Called at the end of each marking, with the world stopped and the collector's lock held. */
static void look_at_use(GC_EventType event)
{
	size_t in_use = 0, full = limit / PARTS * FULL_PARTS;

	if (previous_event)
		previous_event(event);
	if (event != GC_EVENT_MARK_END)
		return;
	if (full && GC_get_heap_size() >= full)
		GC_enumerate_reachable_objects_inner(add_bytes, &in_use);
	atomic_store(&is_full, full && in_use >= full);
	if (!is_full)
		atomic_store(&grace, 0);
	else if (grace > 0)
		atomic_fetch_sub(&grace, 1);
}

int memory_begin_grace(void)
{
	void *block = atomic_exchange(&reserve, NULL);

	atomic_store(&grace, GRACE);
	GC_FREE(block);
	return block != NULL;
}

static size_t reserve_bytes(void)
{
	return limit / 16 < RESERVE_BYTES ? limit / 16 : RESERVE_BYTES;
}

/* Takes no reserve when little memory is free: the program needs memory to go on, too. */
static void take_reserve(void)
{
	GC_word number = GC_get_gc_no();
	void *block, *none = NULL;

	if (!limit || atomic_exchange(&looked_at, number) == number ||
	    GC_get_free_bytes() < 4 * reserve_bytes())
		return;
	block = GC_MALLOC_ATOMIC_UNCOLLECTABLE(reserve_bytes());
	if (block && !atomic_compare_exchange_strong(&reserve, &none, block))
		GC_FREE(block);
}

/* The limit from the environment, in the collector's format; 0: no limit. */
static size_t limit_of_environment(void)
{
	const char *text = getenv("GC_MAXIMUM_HEAP_SIZE"), *unit;
	static const char units[] = "kmg";
	char *end;

	if (!text)
		return 0;
	size_t bytes = strtoul(text, &end, 10);
	if (*end && (unit = strchr(units, *end | 0x20)) != NULL)
		bytes <<= 10 * (unit - units + 1);
	return bytes;
}

/* The room left in the address space, 0 without a limit. The collector's records take up to a
 * quarter of the heap's size beside the heap. */
static size_t limit_of_space(void)
{
	struct rlimit space;
	unsigned long pages = 0;
	size_t used;
	FILE *file;

	if (getrlimit(RLIMIT_AS, &space) || space.rlim_cur == RLIM_INFINITY)
		return 0;
	file = fopen("/proc/self/statm", "re");
	if (!file || fscanf(file, "%lu", &pages) != 1)
		pages = 0;
	if (file)
		fclose(file);
	used = pages * (size_t)sysconf(_SC_PAGESIZE);
	return GC_get_heap_size() + (space.rlim_cur > used ? (space.rlim_cur - used) / 3 * 2 : 0);
}

/* Called when a VM has all its first objects. */
void memory_limit(void)
{
	size_t bounds[] = {limit_of_environment(), limit_of_space()};
	size_t least = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);

	for (int i = 0; i < 2; i++)
		if (bounds[i] && bounds[i] < least)
			least = bounds[i];
	GC_set_max_heap_size(least);
	limit = least;
	if (!reserve)
		reserve = GC_MALLOC_ATOMIC_UNCOLLECTABLE(reserve_bytes());
}

void memory_start(void)
{
	previous_event = GC_get_on_collection_event();
	GC_set_on_collection_event(look_at_use);
}

/* For threads without a catcher for an error. */
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

/* Returns an object from the collector, or raises an error. */
static void *sure(void *object)
{
	if (__builtin_expect(object == NULL, 0) ||
	    __builtin_expect(atomic_load_explicit(&is_full, memory_order_relaxed) &&
				     atomic_load_explicit(&grace, memory_order_relaxed) == 0, 0))
		memory_is_short();
	if (__builtin_expect(atomic_load_explicit(&reserve, memory_order_relaxed) == NULL, 0) &&
	    !is_full)
		take_reserve();
	return object;
}

/* If the heap cannot grow, the collector gives up without a collection soon after the last
 * collection, even if a catcher has dropped many objects since. So collect once before an error. */
static int is_worth_another_try(const void *object)
{
	if (__builtin_expect(object != NULL, 1))
		return 0;
	GC_gcollect();
	return 1;
}

void *new_scanned(size_t bytes)
{
	void *object = GC_MALLOC(bytes);

	return sure(is_worth_another_try(object) ? GC_MALLOC(bytes) : object);
}

void *new_plain(size_t bytes)
{
	void *object = GC_MALLOC_ATOMIC(bytes);

	return sure(is_worth_another_try(object) ? GC_MALLOC_ATOMIC(bytes) : object);
}

void *grow_scanned(void *block, size_t bytes)
{
	void *object = GC_REALLOC(block, bytes);

	return sure(is_worth_another_try(object) ? GC_REALLOC(block, bytes) : object);
}

/* A larger request is refused before the collector is asked, which would abort or thrash. */
static const size_t LARGEST_OBJECT_BYTES = (size_t)1 << 31;

void *alloc_slow(struct context *ctx, size_t granules)
{
	void *list = GC_malloc_many(granules * GRANULE_BYTES);

	if (is_worth_another_try(list))
		list = GC_malloc_many(granules * GRANULE_BYTES);
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

struct bytes *make_bytes(struct context *ctx, int64_t length)
{
	struct bytes *bytes = alloc_atomic(ctx, T_BYTES, sizeof *bytes + (size_t)length);

	bytes->length = length;
	return bytes;
}

size_t encode_utf8(uint32_t c, char text[4])
{
	static const uint8_t first[] = {0, 0xc0, 0xe0, 0xf0};
	int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
	size_t count = 0;

	text[count++] = (char)(first[more] | c >> (6 * more));
	while (more-- > 0)
		text[count++] = (char)(0x80 | (c >> (6 * more) & 0x3f));
	return count;
}

size_t decode_utf8(const unsigned char *at, size_t left, uint32_t *out)
{
	static const uint8_t masks[] = {0, 0, 0x1f, 0x0f, 0x07};
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
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
	if (c < least[count] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return 1;
	*out = c;
	return count;
}

value string_from_bytes(struct context *ctx, const char *utf8, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)utf8, *end = at + bytes;
	struct string *string = AS(string, make_string(ctx, (int64_t)bytes, 0));
	int64_t length = 0;

	while (at < end)
		at += decode_utf8(at, (size_t)(end - at), &string->chars[length++]);
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

	for (int64_t i = 0; i < s->length; i++)
		at += encode_utf8(s->chars[i], at);
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
