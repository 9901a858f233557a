/* SPDX-License-Identifier: MIT
 * sink_libunwind.c: makes code known to nongnu libunwind, if the process has libunwind.
 * docs/unwinders.md, section 3, says which version will do, why an object stays for the life of the
 * process, and why tables lie near the code. sections.c has the tables of pages.
 *
 * A section of pages, or of a block's own, has one object over its FDEs. Each withdrawal ends in a
 * flush of libunwind's caches. Without memory for the object of a block's table the table is not
 * told. A free object covers nothing. Lock: the sinks lock is held in every entry but destroy;
 * inside come the locks of nongnu.c and libunwind. */
#include "unwind/nongnu.h"
#include "unwind/unwinders.h"

#include <stdlib.h>

struct reach {
	uintptr_t low, high; /* of the code */
	size_t entries;
};

/* Reads the FDEs that cover something, of pages all, which come to life later. Writes their entries
 * unless table is NULL. */
static struct reach read_fdes(const struct ch__own *own, struct ch__nongnu_entry *table)
{
	struct reach reach = {UINTPTR_MAX, 0, 0};
	struct ch__eh_frame_fde fde;
	const uint8_t *section = own->section;
	for (size_t at = 0; ch__eh_frame_next(section, &at, &fde);) {
		if (!fde.bytes && !own->is_of_pages)
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
static bool tell_own_live(void *state, struct ch__own *own)
{
	struct ch__meta *meta = ((struct ch__sections *)state)->config->meta;
	struct reach reach = read_fdes(own, NULL);
	uintptr_t segment = (uintptr_t)own->section;
	bool is_near = (int64_t)(reach.low - segment) >= INT32_MIN &&
		       (int64_t)(reach.high - segment) <= INT32_MAX;
	size_t bytes = reach.entries * sizeof(struct ch__nongnu_entry);
	struct ch__nongnu_entry *table = is_near ? ch__meta_alloc(meta, bytes) : NULL;
	if (!table || !(own->libunwind = ch__nongnu_take())) {
		ch__meta_free(meta, table, bytes);
		return false;
	}
	read_fdes(own, table);
	qsort(table, reach.entries, sizeof *table, compare_starts);
	ch__nongnu_fill(own->libunwind, reach.low, reach.high, segment, table, reach.entries);
	return true;
}

static void tell_own_dead(void *state, struct ch__own *own)
{
	struct ch__nongnu_object *object = own->libunwind;
	if (object) {
		void *table = (void *)object->table;
		size_t bytes = object->table_words * sizeof(uintptr_t);
		ch__nongnu_give(object);
		ch__meta_free(((struct ch__sections *)state)->config->meta, table, bytes);
		own->libunwind = NULL;
	}
	ch__nongnu_flush();
}

static int open_libunwind(const struct ch__sinks_config *config, void **state)
{
	int error = *state ? 0 : ch__nongnu_prove(config->shapes);
	return error ? error : ch__sections_open(config, &ch__sink_libunwind, state);
}

const struct ch__sink_ops ch__sink_libunwind = {
	.name = "libunwind",
	.bit = CH_SINK_LIBUNWIND,
	.open = open_libunwind,
	.close = ch__sections_close,
	.destroy = ch__sections_destroy,
	.page_live = ch__sections_live,
	.page_dead = ch__sections_dead,
	.chunk_gone = ch__sections_chunk_gone,
	.own_live = tell_own_live,
	.own_dead = tell_own_dead,
	.forget = ch__nongnu_flush,
	.is_near = true,
};
