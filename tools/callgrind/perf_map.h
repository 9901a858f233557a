// SPDX-License-Identifier: MIT
/* The names that a process gave to its code in /tmp/perf-PID.map: lines of start, size (both
 * hexadecimal) and name. */
#pragma once
#include "tools/callgrind/table.h"

struct cg_range {
	uint64_t start, size;
	uint64_t reach; /* the largest end of this range and of those that start in front of it */
	size_t order;   /* its line */
	struct cg_text name;
	const struct cg_entry *label; /* for the user */
};

struct cg_perf_map {
	char *text;
	struct cg_range *ranges;
	size_t count;
	size_t skipped; /* lines that are no such line */
};

/* The whole file, which the caller frees; NULL with errno. "-" is standard input. */
char *cg_read_file(const char *path, size_t *length);

/* False with errno when it cannot be read. One that nobody asked for by its name must be a regular
 * file of the user or of root: EPERM. */
bool cg_perf_map_read(struct cg_perf_map *map, const char *path, bool is_asked_for);
/* The range with this address, or NULL. Where several have it, the line that was written last. */
struct cg_range *cg_perf_map_find(const struct cg_perf_map *map, uint64_t address);
void cg_perf_map_end(struct cg_perf_map *map);
