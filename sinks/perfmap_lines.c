/* SPDX-License-Identifier: MIT
 * perfmap_lines.c: the tables behind a heap's part of the perf map: a log of lines, and bitmaps of
 * the pool, one bit a granule of 8 bytes. It asks no names and writes no file. Lock: the file lock,
 * everywhere.
 *
 *   live      a range that starts in the granule was added and not removed
 *   covered   a line in the file or its buffer, live or dead, covers the granule
 *   kept      a range that starts in the granule was removed, and the line stays; only of a heap
 *             that keeps dead names
 *
 * The log costs 16 bytes a line and is walked only when it is full or the file is written anew,
 * newest line first: when several lines began at a granule, `live` is about the newest line.
 * A page of a bitmap takes memory on first use. An add touches words next to the words of the
 * neighbouring block, and so takes tens of ns where a hash table would miss the cache. */
#include "sinks/perfmap_lines.h"

#include <string.h>

enum {
	GRANULE_LOG2 = 3,
	LIVE = 0,
	COVERED,
	KEPT,
	LOG_LEAST = 1 << 12, /* lines */
};

static size_t maps_bytes(const struct ch__perfmap_lines *p)
{
	return p->map_bytes * (p->config->keeps_dead_names ? KEPT + 1 : COVERED + 1);
}

struct ch__perfmap_lines *ch__perfmap_lines_create(const struct ch__sinks_config *config)
{
	size_t page = ch__os_page_bytes(), bytes = config->pool_bytes >> GRANULE_LOG2 >> 3;
	struct ch__perfmap_lines *p = ch__meta_alloc(config->meta, sizeof *p);
	if (!p)
		return NULL;
	p->config = config;
	p->map_bytes = (bytes + page - 1) & ~(page - 1);
	p->maps = ch__os_private(maps_bytes(p));
	if (p->maps)
		return p;
	ch__perfmap_lines_destroy(p);
	return NULL;
}

void ch__perfmap_lines_destroy(struct ch__perfmap_lines *p)
{
	if (!p)
		return;
	ch__meta_free(p->config->meta, p->log, p->capacity * sizeof *p->log);
	if (p->maps)
		ch__os_unmap(p->maps, maps_bytes(p));
	ch__meta_free(p->config->meta, p, sizeof *p);
}

/* --- bitmaps --- */
static uint64_t *word_of(struct ch__perfmap_lines *p, size_t granule, unsigned map)
{
	return (uint64_t *)(void *)(p->maps + map * p->map_bytes) + granule / 64;
}

static uint64_t bit_of(size_t granule)
{
	return UINT64_C(1) << (granule % 64);
}

static void clear(struct ch__perfmap_lines *p, unsigned map)
{
	uint8_t *at = p->maps + map * p->map_bytes;
	if (!ch__os_advise(at, p->map_bytes, CH__OS_DROP))
		memset(at, 0, p->map_bytes);
}

/* Covers all granules of the range. Returns whether one was covered before. */
static bool cover(struct ch__perfmap_lines *p, size_t offset, size_t bytes)
{
	size_t at = offset >> GRANULE_LOG2;
	size_t end = (offset + bytes + (1 << GRANULE_LOG2) - 1) >> GRANULE_LOG2;
	uint64_t seen = 0;
	while (at < end) {
		size_t n = 64 - at % 64 < end - at ? 64 - at % 64 : end - at;
		uint64_t mask = ~UINT64_C(0) >> (64 - n) << (at % 64);
		uint64_t *word = word_of(p, at, COVERED);
		seen |= *word & mask;
		*word |= mask;
		at += n;
	}
	return seen != 0;
}

/* --- kept lines --- */
static bool is_kept(struct ch__perfmap_lines *p, size_t granule)
{
	return p->kept && (*word_of(p, granule, KEPT) & bit_of(granule));
}

static void set_kept(struct ch__perfmap_lines *p, size_t granule, bool is_to_be)
{
	if (is_kept(p, granule) == is_to_be)
		return;
	*word_of(p, granule, KEPT) ^= bit_of(granule);
	p->kept += is_to_be ? 1 : SIZE_MAX;
}

bool ch__perfmap_lines_keeps(struct ch__perfmap_lines *p, uintptr_t exec, size_t bytes)
{
	size_t offset = exec - p->config->pool_exec;
	if (offset >= p->config->pool_bytes || bytes > p->config->pool_bytes - offset ||
	    !is_kept(p, offset >> GRANULE_LOG2))
		return false;
	/* The range was read from a file, whose text may be anything. */
	if (bytes && !cover(p, offset, bytes))
		return true;
	set_kept(p, offset >> GRANULE_LOG2, false);
	return false;
}

void ch__perfmap_lines_drop_kept(struct ch__perfmap_lines *p)
{
	clear(p, KEPT);
	p->kept = 0;
}

/* --- add, remove --- */
static bool resize_log(struct ch__perfmap_lines *p, size_t capacity)
{
	struct ch__perfmap_line *log = ch__meta_alloc(p->config->meta, capacity * sizeof *log);
	if (!log)
		return false;
	if (p->lines)
		memcpy(log, p->log, p->lines * sizeof *log);
	ch__meta_free(p->config->meta, p->log, p->capacity * sizeof *log);
	p->log = log;
	p->capacity = capacity;
	return true;
}

static void drop_dead_lines(struct ch__perfmap_lines *p)
{
	size_t from = p->lines;
	for (size_t i = p->lines; i-- > 0;) {
		struct ch__perfmap_line line = p->log[i];
		uint64_t *live = word_of(p, line.offset >> GRANULE_LOG2, LIVE);
		uint64_t bit = bit_of(line.offset >> GRANULE_LOG2);
		if (!(*live & bit))
			continue;
		*live &= ~bit; /* an older line of this granule is dead */
		p->log[--from] = line;
	}
	p->lines -= from;
	p->live = p->lines;
	if (p->lines)
		memmove(p->log, p->log + from, p->lines * sizeof *p->log);
	if (p->capacity > LOG_LEAST && p->lines < p->capacity / 4)
		(void)resize_log(p, p->capacity / 2);
	for (size_t i = 0; i < p->lines; i++) {
		size_t granule = p->log[i].offset >> GRANULE_LOG2;
		*word_of(p, granule, LIVE) |= bit_of(granule);
	}
}

/* A full log drops its dead lines first. So it takes memory for live lines, however many died. */
static bool make_room(struct ch__perfmap_lines *p)
{
	drop_dead_lines(p);
	return p->lines < p->capacity / 2 ||
	       resize_log(p, p->capacity ? p->capacity * 2 : LOG_LEAST);
}

enum ch__perfmap_added ch__perfmap_lines_add(struct ch__perfmap_lines *p,
					     const struct ch__sink_range *range, bool may_be_known)
{
	size_t offset = range->exec - p->config->pool_exec;
	if (!ch__sink_is_in_pool(p->config, range))
		return CH__PERFMAP_IGNORED;
	size_t granule = offset >> GRANULE_LOG2;
	uint64_t *live = word_of(p, granule, LIVE);
	bool is_known = (*live & bit_of(granule)) != 0;
	if (is_known && may_be_known)
		return CH__PERFMAP_IGNORED;
	if (p->lines == p->capacity && !make_room(p))
		return CH__PERFMAP_NO_MEMORY;
	p->log[p->lines++] =
		(struct ch__perfmap_line){range->key, (uint32_t)offset, (uint32_t)range->bytes};
	*live |= bit_of(granule);
	p->live += !is_known;
	return cover(p, offset, range->bytes) ? CH__PERFMAP_OVERLAPS : CH__PERFMAP_FITS;
}

void ch__perfmap_lines_remove(struct ch__perfmap_lines *p, const struct ch__sink_range *range)
{
	size_t offset = range->exec - p->config->pool_exec;
	size_t granule = offset >> GRANULE_LOG2;
	if (offset >= p->config->pool_bytes)
		return;
	uint64_t *live = word_of(p, granule, LIVE);
	if (!(*live & bit_of(granule)))
		return;
	*live &= ~bit_of(granule);
	p->live -= p->live > 0;
	if (p->config->keeps_dead_names)
		set_kept(p, granule, true);
	else
		p->dead++;
}

/* --- anew --- */
void ch__perfmap_lines_each_live(struct ch__perfmap_lines *p,
				 void (*put)(const struct ch__sinks_config *, uintptr_t exec,
					     size_t bytes, uint64_t key))
{
	drop_dead_lines(p);
	clear(p, COVERED);
	for (size_t i = p->lines; i-- > 0;) {
		struct ch__perfmap_line line = p->log[i];
		if (!cover(p, line.offset, line.bytes))
			put(p->config, p->config->pool_exec + line.offset, line.bytes, line.key);
	}
	p->dead = 0;
}
