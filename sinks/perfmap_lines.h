/* SPDX-License-Identifier: MIT
 * perfmap_lines.h: the ranges of one heap that the perf map names, private to sink_perfmap.c.
 * Writes no file. Lock: the file lock, in all calls. */
#ifndef CH_SINKS_PERFMAP_LINES_H
#define CH_SINKS_PERFMAP_LINES_H

#include "sinks/tools.h"

struct ch__perfmap_line {
	uint64_t key;
	uint32_t offset; /* from the pool's base */
	uint32_t bytes;
};

struct ch__perfmap_lines {
	const struct ch__sinks_config *config;
	struct ch__perfmap_line *log;
	size_t lines, capacity; /* of the log */
	/* Counts of lines: live, dead and dropped by the next rewrite, dead and kept. */
	size_t live, dead, kept;
	size_t map_bytes; /* of a bitmap: whole pages */
	uint8_t *maps;    /* live, then covered, then kept */
};

enum ch__perfmap_added {
	CH__PERFMAP_FITS,     /* no line of the file covers a part of the range */
	CH__PERFMAP_OVERLAPS, /* the file must be written anew */
	CH__PERFMAP_IGNORED,  /* known, empty, or not in the pool */
	CH__PERFMAP_NO_MEMORY,
};

/* Returns NULL when there is no memory. */
struct ch__perfmap_lines *ch__perfmap_lines_create(const struct ch__sinks_config *);
void ch__perfmap_lines_destroy(struct ch__perfmap_lines *); /* may be NULL */
enum ch__perfmap_added ch__perfmap_lines_add(struct ch__perfmap_lines *,
					     const struct ch__sink_range *, bool may_be_known);
void ch__perfmap_lines_remove(struct ch__perfmap_lines *, const struct ch__sink_range *);
/* Calls put for each live range, of which no two overlap, and forgets dead ranges. The file then
 * has just these lines, and lines for which ch__perfmap_lines_keeps returns true afterwards. */
void ch__perfmap_lines_each_live(struct ch__perfmap_lines *,
				 void (*put)(const struct ch__sinks_config *, uintptr_t exec,
					     size_t bytes, uint64_t key));
/* Whether the file keeps the line of a range: the range is dead, and no part of it is reused. */
bool ch__perfmap_lines_keeps(struct ch__perfmap_lines *, uintptr_t exec, size_t bytes);
void ch__perfmap_lines_drop_kept(struct ch__perfmap_lines *);

#endif
