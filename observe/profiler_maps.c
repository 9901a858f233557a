/* SPDX-License-Identifier: MIT
 * profiler_maps.c: the ranges of executable memory, for handlers, and the files mapped there, for
 * the report. The report names an address by its mapped file only if nothing else was ever seen
 * there. Lock: profile, for the lists of a profiler. */
#include "observe/profiler_inner.h"

#include <errno.h>
#include <string.h>

enum { SEEN_MIN = 32 };

/* --- lists --- */

bool ch__seen_is_same(const struct ch__seen *a, const struct ch__seen *b)
{
	return a->device == b->device && a->inode == b->inode && a->base == b->base &&
	       (a->inode || strcmp(a->path, b->path) == 0);
}

char *ch__text_copy(struct ch__meta *meta, const char *text)
{
	size_t bytes = strlen(text) + 1;
	char *copy = ch__meta_alloc(meta, bytes);
	if (copy)
		memcpy(copy, text, bytes);
	return copy;
}

static bool append(struct ch__meta *meta, struct ch__seen_list *list, const struct ch__seen *seen)
{
	if (list->count == list->capacity) {
		uint32_t capacity = list->capacity ? list->capacity * 2 : SEEN_MIN;
		struct ch__seen *larger = ch__meta_alloc(meta, capacity * sizeof *larger);
		if (!larger)
			return false;
		if (list->count)
			memcpy(larger, list->at, list->count * sizeof *larger);
		ch__meta_free(meta, list->at, list->capacity * sizeof *larger);
		list->at = larger;
		list->capacity = capacity;
	}
	struct ch__seen *entry = &list->at[list->count];
	*entry = *seen;
	entry->path = ch__text_copy(meta, seen->path);
	list->count += entry->path != NULL;
	return entry->path != NULL;
}

bool ch__seen_copy(struct ch__meta *meta, const struct ch__seen_list *list,
		   struct ch__seen_list *copy)
{
	*copy = (struct ch__seen_list){.is_whole = list->is_whole};
	for (uint32_t i = 0; i < list->count; i++)
		if (!append(meta, copy, &list->at[i]))
			return false;
	return true;
}

const struct ch__seen *ch__seen_find(const struct ch__seen_list *list, uintptr_t address,
				     bool *is_several)
{
	const struct ch__seen *found = NULL;
	*is_several = false;
	/* An incomplete list finds nothing: the missing entry may be of the same address. */
	for (uint32_t i = 0; i < list->count && list->is_whole; i++) {
		const struct ch__seen *seen = &list->at[i];
		if (address < seen->low || address >= seen->high)
			continue;
		if (found && !ch__seen_is_same(found, seen)) {
			*is_several = true;
			return NULL;
		}
		found = seen;
	}
	return found;
}

/* --- reading --- */

static struct ch__seen seen_of(const struct ch__os_mapping *mapping)
{
	struct ch__seen seen = {.low = mapping->low,
				.high = mapping->high,
				.device = mapping->device,
				.inode = mapping->inode,
				.path = (char *)(uintptr_t)mapping->path};
	if (mapping->inode)
		seen.base = mapping->low - (uintptr_t)mapping->offset;
	return seen;
}

/* Widens a known entry of the same file at the same place, or adds an entry. Mappings rise by
 * address: the search begins behind the entry found last, and a mapping above all entries needs no
 * search. */
static void note(struct ch__meta *meta, struct ch__seen_list *list,
		 const struct ch__os_mapping *mapping)
{
	struct ch__seen seen = seen_of(mapping);
	bool is_above = seen.low > list->highest;
	list->highest = seen.high > list->highest ? seen.high : list->highest;
	for (uint32_t n = 0, i = list->next; n < list->count && !is_above; n++, i++) {
		i = i < list->count ? i : 0;
		struct ch__seen *old = &list->at[i];
		if (seen.low > old->high || seen.high < old->low || !ch__seen_is_same(old, &seen))
			continue;
		old->low = seen.low < old->low ? seen.low : old->low;
		old->high = seen.high > old->high ? seen.high : old->high;
		list->next = i + 1;
		return;
	}
	if (!append(meta, list, &seen))
		list->is_whole = false;
}

struct reading {
	struct ch__meta *meta;
	struct ch__seen_list *seen;
	struct ch__ranges *ranges; /* the first `room` ranges; count has all */
	uint32_t count, room;
};

/* Adjacent mappings become one range. The system's own code at the top of the address space is no
 * range: its addresses would be words of code of a heap. */
static bool read_mapping(void *arg, const struct ch__os_mapping *mapping)
{
	struct reading *r = arg;
	if (!mapping->is_executable || !ch__frame_is_native(mapping->low))
		return true;
	note(r->meta, r->seen, mapping);
	if (r->count && r->count <= r->room && r->ranges->at[r->count - 1].high == mapping->low) {
		r->ranges->at[r->count - 1].high = mapping->high;
		return true;
	}
	if (r->count < r->room)
		r->ranges->at[r->count] = (struct ch__range){mapping->low, mapping->high};
	r->count++;
	return true;
}

bool ch__seen_now(struct ch__meta *meta, struct ch__seen_list *list)
{
	struct reading r = {.meta = meta, .seen = list};
	*list = (struct ch__seen_list){.is_whole = true};
	return ch__os_each_mapping(read_mapping, &r);
}

static size_t ranges_bytes(uint32_t room)
{
	return sizeof(struct ch__ranges) + room * sizeof(struct ch__range);
}

/* Reads all ranges. If the ranges do not fit, the reading starts again with more room. */
static int read_ranges(struct ch__profiler *p, struct ch__ranges **out)
	CH_REQUIRES(ch__role_guest)
{
	enum { ROOM_MIN = 64 };
	for (uint32_t room = ROOM_MIN;;) {
		struct ch__ranges *ranges = ch__meta_alloc(p->meta, ranges_bytes(room));
		if (!ranges)
			return ENOMEM;
		ranges->bytes = ranges_bytes(room);
		struct reading r = {p->meta, &p->seen, ranges, 0, room};
		bool is_read = ch__os_each_mapping(read_mapping, &r);
		int error = errno;
		if (is_read && r.count <= room) {
			ranges->count = r.count;
			*out = ranges;
			return 0;
		}
		ch__meta_free(p->meta, ranges, ranges->bytes);
		if (!is_read)
			return error;
		room = 2 * r.count;
	}
}

int ch__maps_read(struct ch__profiler *p)
{
	struct ch__ranges *fresh = NULL;
	if (p->replaced) {
		if (!ch__handlers_left(p))
			return EBUSY;
		ch__meta_free(p->meta, p->replaced, p->replaced->bytes);
		p->replaced = NULL;
	}
	int error = read_ranges(p, &fresh);
	if (error)
		return error;
	p->maps_read_ns = ch__os_now_ns();
	p->replaced = atomic_exchange(&p->ranges, fresh);
	return 0;
}
