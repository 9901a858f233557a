/* SPDX-License-Identifier: MIT
 * sink_libunwind.c: makes code pages known to nongnu libunwind, if the process has libunwind.
 * docs/unwinders.md, section 3, says which version will do, why an object stays for the life of the
 * process, and why tables lie near the code. CFI is written by eh_frame.c.
 *
 * A chunk has one object, from its first use until the chunk goes. Pages come and go by one store
 * in the chunk's section, and each withdrawal ends in a flush of libunwind's caches. A block with
 * an unwind table of its own has an object over the FDEs in the VM's section; without memory for
 * the object, the table is not told. A free object covers nothing. Lock: the sinks lock is held in
 * every entry but destroy; inside come the locks of nongnu.c and libunwind. */
#include "unwind/nongnu.h"
#include "unwind/unwinders.h"

#include <errno.h>
#include <stdlib.h>

struct libunwind {
	const struct ch__sinks_config *config;
	uint32_t pages_per_chunk, chunk_count;
	size_t part_bytes, memory_bytes;
	uint8_t *memory;                     /* a part for each chunk, then for the runtime page */
	struct ch__nongnu_object *objects[]; /* by part; NULL: nothing is covered */
};

/* A part is the table of a chunk, then its section. */
static uint8_t *section_of(const struct libunwind *u, uint32_t part)
{
	return u->memory + part * u->part_bytes +
	       u->pages_per_chunk * sizeof(struct ch__nongnu_entry);
}

static bool covers(const struct libunwind *u, uint32_t part)
{
	return u->objects[part] != NULL;
}

/* Returns false when there is no memory. */
static bool cover(struct libunwind *u, uint32_t part)
{
	const struct ch__sinks_config *c = u->config;
	bool is_runtime = part == u->chunk_count;
	struct ch__eh_place place = {
		.exec = is_runtime ? c->runtime_exec : c->pool_exec + part * c->chunk_bytes,
		.page_bytes = is_runtime ? c->runtime_bytes : c->page_bytes,
		.pages = is_runtime ? 1 : u->pages_per_chunk,
	};
	uintptr_t segment = (uintptr_t)u->memory, end = place.exec;
	uint8_t *section = section_of(u, part);
	struct ch__nongnu_entry *table = (void *)(u->memory + part * u->part_bytes);
	if (covers(u, part))
		return true;
	if (!(u->objects[part] = ch__nongnu_take()))
		return false;
	ch__eh_frame_write(section, &place, c->shapes);
	for (uint32_t i = 0; i < place.pages; i++, end += place.page_bytes) {
		uintptr_t fde = (uintptr_t)ch__eh_frame_fde(section, i);
		table[i] = (struct ch__nongnu_entry){(int32_t)(intptr_t)(end - segment),
						     (int32_t)(intptr_t)(fde - segment)};
	}
	ch__nongnu_fill(u->objects[part], place.exec, end, segment, table, place.pages);
	return true;
}

static void kill_pages(struct libunwind *u, uint32_t part, uint32_t first, uint32_t pages)
{
	if (!covers(u, part))
		return;
	for (uint32_t i = first; i < first + pages; i++)
		ch__eh_frame_dead(section_of(u, part), i);
}

struct reach {
	uintptr_t low, high; /* of the code */
	size_t entries;
};

/* Reads the FDEs that cover something. Writes their entries unless table is NULL. */
static struct reach read_fdes(const uint8_t *section, struct ch__nongnu_entry *table)
{
	struct reach reach = {UINTPTR_MAX, 0, 0};
	struct ch__eh_frame_fde fde;
	for (size_t at = 0; ch__eh_frame_next(section, &at, &fde);) {
		if (!fde.bytes)
			continue;
		if (table)
			table[reach.entries] = (struct ch__nongnu_entry){
				(int32_t)(fde.low - (uintptr_t)section),
				(int32_t)(fde.record - section)};
		reach.low = fde.low < reach.low ? fde.low : reach.low;
		reach.high = fde.low + fde.bytes > reach.high ? fde.low + fde.bytes : reach.high;
		reach.entries++;
	}
	return reach;
}

static int compare_starts(const void *a, const void *b)
{
	int32_t one = ((const struct ch__nongnu_entry *)a)->start;
	int32_t other = ((const struct ch__nongnu_entry *)b)->start;
	return (one > other) - (one < other);
}

/* Offsets count from the section. */
static void tell_own_live(void *state, struct ch__own *own)
{
	struct libunwind *u = state;
	struct reach reach = read_fdes(own->section, NULL);
	uintptr_t segment = (uintptr_t)own->section;
	bool is_near = (int64_t)(reach.low - segment) >= INT32_MIN &&
		       (int64_t)(reach.high - segment) <= INT32_MAX;
	size_t bytes = reach.entries * sizeof(struct ch__nongnu_entry);
	struct ch__nongnu_entry *table = is_near ? ch__meta_alloc(u->config->meta, bytes) : NULL;
	if (!table || !(own->libunwind = ch__nongnu_take())) {
		ch__meta_free(u->config->meta, table, bytes);
		return;
	}
	read_fdes(own->section, table);
	qsort(table, reach.entries, sizeof *table, compare_starts);
	ch__nongnu_fill(own->libunwind, reach.low, reach.high, segment, table, reach.entries);
}

static void tell_own_dead(void *state, struct ch__own *own)
{
	struct libunwind *u = state;
	struct ch__nongnu_object *object = own->libunwind;
	if (object) {
		void *table = (void *)object->table;
		size_t bytes = object->table_words * sizeof(uintptr_t);
		ch__nongnu_give(object);
		ch__meta_free(u->config->meta, table, bytes);
		own->libunwind = NULL;
	}
	ch__nongnu_flush();
}

/* As in sink_libgcc.c. */
static bool tell_runtime(struct libunwind *u)
{
	uint32_t part = u->chunk_count;
	size_t bytes = u->config->runtime_bytes;
	if (!cover(u, part))
		return false;
	ch__eh_frame_live(section_of(u, part), 0, bytes, u->config->shapes, 0);
	return true;
}

/* Every page must be within reach of an offset from the first byte of the tables. */
static int take_memory(struct libunwind *u)
{
	const struct ch__sinks_config *c = u->config;
	size_t bytes = u->part_bytes * (u->chunk_count + 1);
	u->memory_bytes = CH_ROUND_UP(bytes, ch__os_page_bytes());
	u->memory = ch__os_private_near(u->memory_bytes, c->pool_exec);
	if (!u->memory)
		return errno;
	int64_t first = (int64_t)(c->pool_exec - (uintptr_t)u->memory);
	int64_t runtime = (int64_t)(c->runtime_exec - (uintptr_t)u->memory);
	bool is_within_reach = first > INT32_MIN && first + (int64_t)c->pool_bytes < INT32_MAX &&
			       runtime > INT32_MIN && runtime < INT32_MAX &&
			       u->memory_bytes < INT32_MAX;
	return is_within_reach ? 0 : ENOMEM;
}

static size_t state_bytes(uint32_t chunks)
{
	return sizeof(struct libunwind) + (chunks + 1) * sizeof(struct ch__nongnu_object *);
}

static void free_state(struct libunwind *u)
{
	if (u->memory)
		ch__os_unmap(u->memory, u->memory_bytes);
	ch__meta_free(u->config->meta, u, state_bytes(u->chunk_count));
}

static int make_state(const struct ch__sinks_config *config, void **state)
{
	if (!ch__nongnu_find())
		return ENOSYS;
	uint32_t chunks = (uint32_t)(config->pool_bytes / config->chunk_bytes);
	struct libunwind *u = ch__meta_alloc(config->meta, state_bytes(chunks));
	if (!u)
		return ENOMEM;
	u->config = config;
	u->pages_per_chunk = (uint32_t)(config->chunk_bytes / config->page_bytes);
	u->chunk_count = chunks;
	u->part_bytes = u->pages_per_chunk * sizeof(struct ch__nongnu_entry) +
			ch__eh_frame_bytes(&(struct ch__eh_place){.pages = u->pages_per_chunk});
	int error = ch__nongnu_understands(config->shapes) ? take_memory(u) : errno;
	if (error)
		free_state(u);
	else
		*state = u;
	return error;
}

static int open_libunwind(const struct ch__sinks_config *config, void **state)
{
	int error = *state ? 0 : make_state(config, state);
	return error || tell_runtime(*state) ? error : ENOMEM;
}

/* Objects stay registered, without a live FDE. */
static void close_libunwind(void *state, int error)
{
	struct libunwind *u = state;
	(void)error;
	for (uint32_t part = 0; part < u->chunk_count; part++)
		kill_pages(u, part, 0, u->pages_per_chunk);
	kill_pages(u, u->chunk_count, 0, 1);
	ch__nongnu_flush();
}

static void drop_chunk(void *state, uint32_t chunk)
{
	struct libunwind *u = state;
	/* The object would hide a block's own table there, with an object later in the list. */
	if (covers(u, chunk))
		ch__nongnu_give(u->objects[chunk]);
	u->objects[chunk] = NULL;
}

static void destroy_libunwind(void *state)
{
	struct libunwind *u = state;
	for (uint32_t part = 0; part <= u->chunk_count; part++)
		drop_chunk(u, part);
	free_state(u);
}

static bool tell_pages_live(void *state, uint32_t page, uint32_t pages, uint8_t frame)
{
	struct libunwind *u = state;
	/* Returns into a slot lead behind a call of the framed template: shape 0 is right. */
	if (ch__frame_has_slots(frame))
		frame = 0;
	for (uint32_t end = page + pages; page < end; page++) {
		uint32_t chunk = page / u->pages_per_chunk, index = page % u->pages_per_chunk;
		if (!cover(u, chunk))
			return false;
		if (!ch__eh_frame_is_live(section_of(u, chunk), index))
			ch__eh_frame_live(section_of(u, chunk), index, u->config->page_bytes,
					  u->config->shapes, frame);
	}
	return true;
}

static void tell_pages_dead(void *state, uint32_t page, uint32_t pages)
{
	struct libunwind *u = state;
	for (uint32_t end = page + pages; page < end; page++)
		kill_pages(u, page / u->pages_per_chunk, page % u->pages_per_chunk, 1);
	ch__nongnu_flush();
}

const struct ch__sink_ops ch__sink_libunwind = {
	.name = "libunwind",
	.bit = CH_SINK_LIBUNWIND,
	.open = open_libunwind,
	.close = close_libunwind,
	.destroy = destroy_libunwind,
	.page_live = tell_pages_live,
	.page_dead = tell_pages_dead,
	.chunk_gone = drop_chunk,
	.own_live = tell_own_live,
	.own_dead = tell_own_dead,
};
