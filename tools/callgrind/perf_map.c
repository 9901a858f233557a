// SPDX-License-Identifier: MIT
/* Reading and searching a perf map. Lines that are none are skipped as perf skips them: comments,
 * and the last line of a process that was killed. */
#define _GNU_SOURCE /* O_CLOEXEC, O_NOFOLLOW */
#include "tools/callgrind/perf_map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Closes it, save standard input. */
static char *read_stream(FILE *file, size_t *length)
{
	size_t size = 1 << 16, used = 0;
	char *text = malloc(size);
	while (text) {
		used += fread(text + used, 1, size - used, file);
		if (used < size)
			break;
		char *larger = realloc(text, size *= 2);
		if (!larger)
			free(text);
		text = larger;
	}
	int failed = !text ? ENOMEM : ferror(file) ? errno : 0;
	if (file != stdin)
		fclose(file);
	if (failed) {
		free(text);
		errno = failed;
		return NULL;
	}
	*length = used;
	return text;
}

char *cg_read_file(const char *path, size_t *length)
{
	FILE *file = strcmp(path, "-") ? fopen(path, "rb") : stdin;
	return file ? read_stream(file, length) : NULL;
}

/* Everybody may put something at a name in /tmp: a pipe would keep us waiting, and another user's
 * file may say anything. */
static char *read_found(const char *path, size_t *length)
{
	struct stat found;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC);
	bool is_good = fd >= 0 && fstat(fd, &found) == 0;
	if (is_good && (!S_ISREG(found.st_mode) || (found.st_uid && found.st_uid != geteuid()))) {
		is_good = false;
		errno = EPERM;
	}
	FILE *file = is_good ? fdopen(fd, "rb") : NULL;
	if (file)
		return read_stream(file, length);
	int failed = errno;
	if (fd >= 0)
		close(fd);
	errno = failed;
	return NULL;
}

static bool take_hex(const char **at, const char *end, uint64_t *number)
{
	static const char digits[] = "0123456789abcdef";
	if (end - *at > 2 && (*at)[0] == '0' && ((*at)[1] | 32) == 'x')
		*at += 2;
	const char *first = *at;
	for (*number = 0; *at < end && **at && **at != ' '; ++*at) {
		const char *digit = strchr(digits, **at >= 'A' && **at <= 'F' ? **at + 32 : **at);
		if (!digit || *number >> 60)
			return false;
		*number = *number << 4 | (uint64_t)(digit - digits);
	}
	return *at > first && *at < end && *(*at)++ == ' ';
}

static bool read_range(const char *at, const char *end, struct cg_range *range)
{
	if (!take_hex(&at, end, &range->start) || !take_hex(&at, end, &range->size))
		return false;
	while (end - at > 1 && end[-1] == ' ') /* behind a name too short for perf */
		end--;
	range->name = cg_text(at, (size_t)(end - at));
	return range->size && range->size <= UINT64_MAX - range->start && range->name.length;
}

static int by_start(const void *left, const void *right)
{
	const struct cg_range *a = left, *b = right;
	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	return a->order < b->order ? -1 : 1;
}

static bool add(struct cg_perf_map *map, size_t *room, struct cg_range range)
{
	struct cg_range *larger = cg_with_room(map->ranges, map->count, room, sizeof *larger);
	if (!larger)
		return false;
	map->ranges = larger;
	map->ranges[map->count++] = range;
	return true;
}

bool cg_perf_map_read(struct cg_perf_map *map, const char *path, bool is_asked_for)
{
	size_t length = 0, room = 0, order = 0;
	*map = (struct cg_perf_map){0};
	map->text = is_asked_for ? cg_read_file(path, &length) : read_found(path, &length);
	if (!map->text)
		return false;
	for (const char *at = map->text, *end = at + length; at < end; order++) {
		const char *newline = memchr(at, '\n', (size_t)(end - at));
		struct cg_range range = {.order = order};
		if (!read_range(at, newline ? newline : end, &range)) {
			map->skipped++;
		} else if (!add(map, &room, range)) {
			cg_perf_map_end(map);
			errno = ENOMEM;
			return false;
		}
		at = newline ? newline + 1 : end;
	}
	if (map->count)
		qsort(map->ranges, map->count, sizeof *map->ranges, by_start);
	uint64_t reach = 0;
	for (struct cg_range *r = map->ranges; r < map->ranges + map->count; r++) {
		if (r->start + r->size > reach)
			reach = r->start + r->size;
		r->reach = reach;
	}
	return true;
}

struct cg_range *cg_perf_map_find(const struct cg_perf_map *map, uint64_t address)
{
	size_t low = 0, high = map->count;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (map->ranges[middle].start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	struct cg_range *found = NULL;
	for (; low && map->ranges[low - 1].reach > address; low--) {
		struct cg_range *range = &map->ranges[low - 1];
		if (address - range->start < range->size && (!found || range->order > found->order))
			found = range;
	}
	return found;
}

void cg_perf_map_end(struct cg_perf_map *map)
{
	free(map->text);
	free(map->ranges);
	*map = (struct cg_perf_map){0};
}
