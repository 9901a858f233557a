/* SPDX-License-Identifier: MIT
 * perfmap_lines.c: the tables behind a heap's part of the perf map: a log of every line, and
 * bitmaps of the pool, one bit a granule of 8 bytes. It asks no names and writes no file. All under
 * the file lock.
 *
 *   live      a range that starts in this granule was added and not removed
 *   covered   a line in the file or its buffer, live or dead, covers this granule
 *   kept      a range that starts in this granule was removed, and its line stays; a heap that
 *             keeps no dead names is without this one
 *
 * The log costs 16 bytes a line and is walked only when the file is written anew, newest first: of
 * several lines that began at one granule the newest is the one that `live` speaks of. Bitmaps are
 * made a chunk at a time, on first use; adding to them touches words next to those of the
 * neighbouring block, which keeps an add within tens of ns where a hash table would miss the
 * cache. */
#include "sinks/perfmap_lines.h"


#include <string.h>

enum {
	GRANULE_LOG2 = 3,
	LIVE = 0,
	COVERED,
	KEPT,
	LOG_BLOCK_BYTES = 1 << 16,
	LOG_LINES = (LOG_BLOCK_BYTES - 16) / 16,
};

struct line {
	uint64_t key;
	uint32_t offset; /* from the pool's base */
	uint32_t bytes;  /* 0: dropped */
};

struct log_block {
	struct log_block *older;
	uint64_t count;
	struct line lines[LOG_LINES];
};
_Static_assert(sizeof(struct line) == 16 && sizeof(struct log_block) == LOG_BLOCK_BYTES,
	       "log blocks");

struct ch__perfmap_lines {
	const struct ch__sinks_config *config;
	struct log_block *newest;
	size_t live, dead, kept;
	unsigned chunk_log2; /* granules of a chunk */
	uint32_t chunk_count;
	uint64_t *chunks[]; /* live words, then covered words, then kept words; NULL: all 0 */
};

static size_t words_per_map(const struct ch__perfmap_lines *p)
{
	return ((size_t)1 << p->chunk_log2) / 64;
}

static size_t bitmap_bytes(const struct ch__perfmap_lines *p)
{
	unsigned bitmaps = p->config->keeps_dead_names ? KEPT + 1 : COVERED + 1;
	return bitmaps * words_per_map(p) * sizeof(uint64_t);
}

static size_t bytes_of(const struct ch__perfmap_lines *p)
{
	return sizeof *p + p->chunk_count * sizeof p->chunks[0];
}

static unsigned log2_of(size_t power_of_two)
{
	return (unsigned)__builtin_ctzll(power_of_two);
}

struct ch__perfmap_lines *ch__perfmap_lines_create(const struct ch__sinks_config *config)
{
	size_t chunk =
		config->chunk_bytes < config->pool_bytes ? config->chunk_bytes : config->pool_bytes;
	size_t chunks = config->pool_bytes / chunk;
	struct ch__perfmap_lines *p =
		ch__meta_alloc(config->meta, sizeof *p + chunks * sizeof p->chunks[0]);
	if (!p)
		return NULL;
	p->config = config;
	p->chunk_log2 = log2_of(chunk) - GRANULE_LOG2;
	p->chunk_count = (uint32_t)chunks;
	return p;
}

static void free_log(struct ch__perfmap_lines *p, struct log_block *block)
{
	while (block) {
		struct log_block *older = block->older;
		ch__meta_free(p->config->meta, block, sizeof *block);
		block = older;
	}
}

void ch__perfmap_lines_destroy(struct ch__perfmap_lines *p)
{
	if (!p)
		return;
	free_log(p, p->newest);
	for (uint32_t i = 0; i < p->chunk_count; i++)
		ch__meta_free(p->config->meta, p->chunks[i], bitmap_bytes(p));
	ch__meta_free(p->config->meta, p, bytes_of(p));
}

/* --- bitmaps --- */
static bool has_bitmaps(struct ch__perfmap_lines *p, size_t offset, size_t bytes)
{
	size_t last = (offset + bytes - 1) >> (p->chunk_log2 + GRANULE_LOG2);
	for (size_t i = offset >> (p->chunk_log2 + GRANULE_LOG2); i <= last; i++) {
		if (!p->chunks[i])
			p->chunks[i] = ch__meta_alloc(p->config->meta, bitmap_bytes(p));
		if (!p->chunks[i])
			return false;
	}
	return true;
}

static uint64_t *word_of(struct ch__perfmap_lines *p, size_t granule, unsigned map)
{
	size_t in_chunk = granule & (((size_t)1 << p->chunk_log2) - 1);
	return p->chunks[granule >> p->chunk_log2] + map * words_per_map(p) + in_chunk / 64;
}

static uint64_t bit_of(size_t granule)
{
	return UINT64_C(1) << (granule % 64);
}

/* Whether any granule of the range is covered; with `cover`, all are afterwards. */
static bool test_covered(struct ch__perfmap_lines *p, size_t offset, size_t bytes, bool cover)
{
	size_t at = offset >> GRANULE_LOG2;
	size_t end = (offset + bytes + (1 << GRANULE_LOG2) - 1) >> GRANULE_LOG2;
	uint64_t seen = 0;
	while (at < end) {
		size_t n = 64 - at % 64 < end - at ? 64 - at % 64 : end - at;
		uint64_t mask = ~UINT64_C(0) >> (64 - n) << (at % 64);
		uint64_t *word = word_of(p, at, COVERED);
		seen |= *word & mask;
		if (cover)
			*word |= mask;
		at += n;
	}
	return seen != 0;
}

/* --- kept lines --- */
static bool is_kept(struct ch__perfmap_lines *p, size_t granule)
{
	return p->kept && p->chunks[granule >> p->chunk_log2] &&
	       (*word_of(p, granule, KEPT) & bit_of(granule));
}

static void keep(struct ch__perfmap_lines *p, size_t granule)
{
	if (is_kept(p, granule))
		return;
	*word_of(p, granule, KEPT) |= bit_of(granule);
	p->kept++;
}

static void drop_kept(struct ch__perfmap_lines *p, size_t granule)
{
	if (!is_kept(p, granule))
		return;
	*word_of(p, granule, KEPT) &= ~bit_of(granule);
	p->kept--;
}

bool ch__perfmap_lines_keeps(struct ch__perfmap_lines *p, uintptr_t exec, size_t bytes)
{
	size_t offset = exec - p->config->pool_exec;
	if (offset >= p->config->pool_bytes || bytes > p->config->pool_bytes - offset ||
	    !is_kept(p, offset >> GRANULE_LOG2))
		return false;
	/* The text that is asked about was read from a file, which may say anything. */
	if (bytes && has_bitmaps(p, offset, bytes) && !test_covered(p, offset, bytes, true))
		return true;
	drop_kept(p, offset >> GRANULE_LOG2);
	return false;
}

bool ch__perfmap_lines_has_kept(const struct ch__perfmap_lines *p)
{
	return p->kept > 0;
}

void ch__perfmap_lines_drop_kept(struct ch__perfmap_lines *p)
{
	for (uint32_t i = 0; p->kept && i < p->chunk_count; i++)
		if (p->chunks[i])
			memset(p->chunks[i] + KEPT * words_per_map(p), 0,
			       words_per_map(p) * sizeof(uint64_t));
	p->kept = 0;
}

/* --- add, remove --- */
static bool append_line(struct ch__perfmap_lines *p, size_t offset, size_t bytes, uint64_t key)
{
	struct log_block *block = p->newest;
	if (!block || block->count == LOG_LINES) {
		block = ch__meta_alloc(p->config->meta, sizeof *block);
		if (!block)
			return false;
		block->older = p->newest;
		p->newest = block;
	}
	block->lines[block->count++] = (struct line){key, (uint32_t)offset, (uint32_t)bytes};
	return true;
}

enum ch__perfmap_added ch__perfmap_lines_add(struct ch__perfmap_lines *p,
					     const struct ch__sink_range *range, bool may_be_known)
{
	size_t offset = range->exec - p->config->pool_exec;
	if (!ch__sink_is_in_pool(p->config, range))
		return CH__PERFMAP_IGNORED;
	if (!has_bitmaps(p, offset, range->bytes))
		return CH__PERFMAP_NO_MEMORY;
	size_t granule = offset >> GRANULE_LOG2;
	uint64_t *live = word_of(p, granule, LIVE);
	bool is_known = (*live & bit_of(granule)) != 0;
	if (is_known && may_be_known)
		return CH__PERFMAP_IGNORED;
	if (!append_line(p, offset, range->bytes, range->key))
		return CH__PERFMAP_NO_MEMORY;
	*live |= bit_of(granule);
	drop_kept(p, granule);
	if (is_known)
		p->dead++;
	else
		p->live++;
	bool overlaps = test_covered(p, offset, range->bytes, true);
	return overlaps ? CH__PERFMAP_OVERLAPS : CH__PERFMAP_FITS;
}

void ch__perfmap_lines_remove(struct ch__perfmap_lines *p, const struct ch__sink_range *range)
{
	size_t offset = range->exec - p->config->pool_exec;
	size_t granule = offset >> GRANULE_LOG2;
	if (offset >= p->config->pool_bytes || !p->chunks[granule >> p->chunk_log2])
		return;
	uint64_t *live = word_of(p, granule, LIVE);
	if (!(*live & bit_of(granule)))
		return;
	*live &= ~bit_of(granule);
	p->live -= p->live > 0;
	if (p->config->keeps_dead_names)
		keep(p, granule);
	else
		p->dead++;
}

void ch__perfmap_lines_count(const struct ch__perfmap_lines *p, size_t *live, size_t *dead)
{
	*live += p->live;
	*dead += p->dead;
}

/* --- anew --- */
static bool is_live(struct ch__perfmap_lines *p, const struct line *line)
{
	size_t granule = line->offset >> GRANULE_LOG2;
	return line->bytes && (*word_of(p, granule, LIVE) & bit_of(granule));
}

static void uncover_all(struct ch__perfmap_lines *p)
{
	for (uint32_t i = 0; i < p->chunk_count; i++)
		if (p->chunks[i])
			memset(p->chunks[i] + COVERED * words_per_map(p), 0,
			       words_per_map(p) * sizeof(uint64_t));
}

/* Moves the lines that are left together and frees the blocks behind them. Order is of no meaning
 * any more: no two of them overlap. Only the newest block may have room, so the last, partly filled
 * one is put in front. */
static void compact_log(struct ch__perfmap_lines *p)
{
	struct log_block *to = p->newest, *before = NULL;
	size_t filled = 0;
	for (struct log_block *from = p->newest; from; from = from->older) {
		size_t count = from->count; /* `to` may be this block */
		for (size_t i = 0; i < count; i++) {
			if (!from->lines[i].bytes)
				continue;
			if (filled == LOG_LINES) {
				to->count = filled;
				before = to;
				to = to->older;
				filled = 0;
			}
			to->lines[filled++] = from->lines[i];
		}
	}
	if (!to)
		return;
	to->count = filled;
	free_log(p, to->older);
	to->older = NULL;
	if (before) {
		before->older = NULL;
		to->older = p->newest;
		p->newest = to;
	}
}

bool ch__perfmap_lines_each_live(struct ch__perfmap_lines *p,
				 bool (*put)(void *arg, uintptr_t exec, size_t bytes, uint64_t key),
				 void *arg)
{
	size_t live = 0;
	uncover_all(p);
	for (struct log_block *block = p->newest; block; block = block->older) {
		for (size_t i = block->count; i-- > 0;) {
			struct line *line = &block->lines[i];
			if (!is_live(p, line) ||
			    test_covered(p, line->offset, line->bytes, false)) {
				line->bytes = 0;
				continue;
			}
			test_covered(p, line->offset, line->bytes, true);
			if (!put(arg, p->config->pool_exec + line->offset, line->bytes, line->key))
				return false;
			live++;
		}
	}
	compact_log(p);
	p->live = live;
	p->dead = 0;
	return true;
}
