/* SPDX-License-Identifier: MIT
 * libunwind_own.c: the part of the libunwind sink that serves blocks with an unwind table of their
 * own: an object each, over the FDEs of the VM's section where they lie. What libunwind is told of
 * an FDE is its distance, of 32 bits, from the code: a section that is farther than 2 GiB from its
 * block is not told, nor one for which there is no memory, and walks go by the frame pointer there.
 *
 * Objects that are registered stay registered and cover nothing while they are free: a walk in
 * another thread that stands on one when it is cancelled would not see the rest of the list.
 * Lock: the sinks lock. */
#include "unwind/nongnu.h"
#include "unwind/unwinders.h"

#include <stdlib.h>
#include <string.h>

struct ch__libunwind_own {
	struct ch__libunwind_own *next, *next_free;
	struct ch__nongnu_object *object;
	struct ch__nongnu_entry *table;
	size_t table_bytes;
};

/* --- the table --- */

struct reach {
	uintptr_t low, high; /* of the code */
	size_t entries;
};

static struct reach measure(const uint8_t *section)
{
	struct reach reach = {UINTPTR_MAX, 0, 0};
	struct ch__eh_frame_fde fde;
	for (size_t at = 0; ch__eh_frame_next(section, &at, &fde);) {
		if (!fde.bytes)
			continue;
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

/* Offsets count from the first byte of the code. False: one does not fit. */
static bool fill_table(struct ch__nongnu_entry *table, const uint8_t *section,
		       const struct reach *reach)
{
	size_t n = 0;
	struct ch__eh_frame_fde fde;
	for (size_t at = 0; ch__eh_frame_next(section, &at, &fde);) {
		int64_t distance = (int64_t)((uintptr_t)fde.record - reach->low);
		if (!fde.bytes)
			continue;
		if (distance != (int32_t)distance || fde.low - reach->low > INT32_MAX)
			return false;
		table[n++] = (struct ch__nongnu_entry){(int32_t)(fde.low - reach->low),
						       (int32_t)distance};
	}
	qsort(table, n, sizeof *table, compare_starts);
	return true;
}

/* --- objects --- */

static struct ch__libunwind_own *make_own(struct ch__libunwind_owns *owns)
{
	struct ch__libunwind_own *fresh = ch__meta_alloc(owns->meta, sizeof *fresh);
	if (!fresh)
		return NULL;
	if (!ch__nongnu_take(&fresh->object, 1)) {
		ch__meta_free(owns->meta, fresh, sizeof *fresh);
		return NULL;
	}
	owns->its->add(fresh->object);
	fresh->next = owns->all;
	owns->all = fresh;
	return fresh;
}

static void put_free(struct ch__libunwind_owns *owns, struct ch__libunwind_own *own)
{
	ch__meta_free(owns->meta, own->table, own->table_bytes);
	own->table = NULL;
	own->next_free = owns->free;
	owns->free = own;
}

void ch__libunwind_own_live(struct ch__libunwind_owns *owns, struct ch__own *told)
{
	struct reach reach = measure(told->section);
	struct ch__libunwind_own *own = owns->free;
	told->libunwind = NULL;
	if (own)
		owns->free = own->next_free;
	else if (!(own = make_own(owns)))
		return;
	own->table_bytes = reach.entries * sizeof *own->table;
	own->table = ch__meta_alloc(owns->meta, own->table_bytes);
	if (!own->table || !fill_table(own->table, told->section, &reach)) {
		put_free(owns, own);
		return;
	}
	ch__nongnu_fill(own->object, reach.low, reach.high, reach.low, own->table, reach.entries);
	told->libunwind = own;
}

void ch__libunwind_own_dead(struct ch__libunwind_owns *owns, struct ch__own *told)
{
	struct ch__libunwind_own *own = told->libunwind;
	if (!own)
		return;
	ch__nongnu_empty(own->object);
	put_free(owns, own);
	told->libunwind = NULL;
}

void ch__libunwind_own_destroy(struct ch__libunwind_owns *owns)
{
	for (struct ch__libunwind_own *own = owns->all, *next; own; own = next) {
		next = own->next;
		owns->its->cancel(own->object);
		ch__nongnu_empty(own->object);
		ch__nongnu_give(&own->object, 1);
		ch__meta_free(owns->meta, own->table, own->table_bytes);
		ch__meta_free(owns->meta, own, sizeof *own);
	}
	owns->all = owns->free = NULL;
}
