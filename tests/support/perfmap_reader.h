/* SPDX-License-Identifier: MIT
 * perfmap_reader.h: the perf map as a test reads it, in a folder of the case's own: whole lines,
 * none overlapping another. */
#pragma once

#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_LINES = 1 << 17 };

struct map_line {
	uintptr_t start;
	size_t bytes;
	char name[40];
};

struct map_file {
	size_t count;
	struct map_line lines[MOST_LINES];
};

static char folder[] = "/tmp/ch-perfmap-XXXXXX";

static inline void use_own_folder(void)
{
	CHECK(mkdtemp(folder) != NULL);
	CHECK_EQ(setenv("CODEHEAP_PERF_MAP_DIR", folder, 1), 0);
}

static inline void path_of(pid_t pid, char path[128])
{
	snprintf(path, 128, "%s/perf-%d.map", folder, (int)pid);
}

static inline void remove_own_folder(void)
{
	char path[128];
	path_of(getpid(), path);
	unlink(path);
	CHECK_EQ(rmdir(folder), 0); /* nothing else was left there */
}

static inline int by_start(const void *a, const void *b)
{
	uintptr_t x = ((const struct map_line *)a)->start, y = ((const struct map_line *)b)->start;
	return x < y ? -1 : x > y;
}

/* Reads the map and checks what every reader relies on: whole lines, none overlapping another. */
static inline struct map_file *read_map(const char *path)
{
	struct map_file *map = malloc(sizeof *map);
	FILE *in = fopen(path, "r");
	CHECK(map && in);
	map->count = 0;
	char line[2048];
	while (fgets(line, sizeof line, in)) {
		struct map_line *to = &map->lines[map->count++];
		int name_at = 0;
		unsigned long start, bytes;
		CHECK(map->count < MOST_LINES);
		CHECK(strchr(line, '\n') != NULL);
		CHECK_EQ(sscanf(line, "%lx %lx %n", &start, &bytes, &name_at), 2);
		*to = (struct map_line){.start = start, .bytes = bytes};
		snprintf(to->name, sizeof to->name, "%.*s", (int)strcspn(line + name_at, "\n"),
			 line + name_at);
	}
	fclose(in);
	qsort(map->lines, map->count, sizeof map->lines[0], by_start);
	for (size_t i = 1; i < map->count; i++)
		if (map->lines[i].start < map->lines[i - 1].start + map->lines[i - 1].bytes)
			FAIL("perf map: two names for one address: \"%s\" and \"%s\"",
			     map->lines[i - 1].name, map->lines[i].name);
	return map;
}

static inline const struct map_line *line_of(const struct map_file *map, uintptr_t pc)
{
	for (size_t i = 0; i < map->count; i++)
		if (pc - map->lines[i].start < map->lines[i].bytes)
			return &map->lines[i];
	return NULL;
}

static inline void check_named(const char *path, const void *pc, const char *name)
{
	struct map_file *map = read_map(path);
	const struct map_line *line = line_of(map, (uintptr_t)pc);
	if (!name && line)
		FAIL("perf map: %p is named \"%s\" and should not be", pc, line->name);
	if (name && !line)
		FAIL("perf map: %p is not named and should be \"%s\"", pc, name);
	if (name && strcmp(line->name, name) != 0)
		FAIL("perf map: %p is named \"%s\" and should be \"%s\"", pc, line->name, name);
	free(map);
}
