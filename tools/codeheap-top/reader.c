/* SPDX-License-Identifier: MIT
 * reader.c: reads a statistics file (observe/stats_file.h) while it is written, and believes
 * nothing of it: lengths are judged, texts are ended. */
#define _GNU_SOURCE /* F_OFD_GETLK, strerrordesc_np */
#include "tools/codeheap-top/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	BODY_MOST = 64 << 20,
	COUNT_MOST = 1 << 20,
	TRIES = 500,
	TRIES_WHILE_ALIVE = 5000,
	BETWEEN_TRIES_NS = 1000000,
};

/* --- who writes --- */

static bool has_writer(int fd, const struct ch__stats_head *head)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	bool is_told = fcntl(fd, F_OFD_GETLK, &lock) == 0;
	if (is_told && (lock.l_type != F_UNLCK || (head->flags & CH__STATS_FILE_LOCKED)))
		return lock.l_type != F_UNLCK;
	return head->process && (kill((pid_t)head->process, 0) == 0 || errno != ESRCH);
}

/* --- whole or not --- */

/* The body of a whole state; NULL with *error NULL: try again. */
static uint8_t *try_to_read(int fd, struct ch__stats_head *head, const char **error)
{
	struct ch__stats_head again;
	*error = NULL;
	ssize_t got = pread(fd, head, sizeof *head, 0);
	if (got == 0)
		return NULL; /* it was just made */
	if (got != sizeof *head ||
	    memcmp(head->magic, CH__STATS_FILE_MAGIC, sizeof head->magic) != 0)
		*error = "this is no statistics file of libcodeheap";
	else if (head->byte_order != CH__STATS_FILE_ORDER)
		*error = "it was written on a machine of another byte order";
	else if (head->format != CH__STATS_FILE_FORMAT)
		*error = "it is of another format than this program knows";
	else if (head->body_bytes > BODY_MOST || head->body_bytes % 8)
		*error = "its length is not possible";
	if (*error || head->sequence % 2)
		return NULL;
	uint8_t *body = malloc(head->body_bytes + 8);
	if (!body) {
		*error = strerrordesc_np(ENOMEM);
		return NULL;
	}
	if (pread(fd, body, head->body_bytes, sizeof *head) == (ssize_t)head->body_bytes &&
	    pread(fd, &again, sizeof again, 0) == sizeof again &&
	    again.sequence == head->sequence &&
	    ch__stats_checksum(body, head->body_bytes) == head->checksum)
		return body;
	free(body);
	return NULL;
}

/* A writer may be kept off its processor for long while it writes. Each MiB of a body counts as one
 * more try: reading the largest body takes longer than the pause. */
static uint8_t *read_whole(int fd, struct ch__stats_head *head, const char **error)
{
	const struct timespec pause = {0, BETWEEN_TRIES_NS};
	for (uint64_t i = 0; i < TRIES_WHILE_ALIVE; i += 1 + (head->body_bytes >> 20)) {
		uint8_t *body = try_to_read(fd, head, error);
		if (body || *error)
			return body;
		if (i >= TRIES && !has_writer(fd, head)) {
			*error = "it is not whole: its writer went, or had no room, while it wrote";
			return NULL;
		}
		nanosleep(&pause, NULL);
	}
	*error = "it is not whole: its writer stands still while it writes";
	return NULL;
}

/* --- sections --- */

/* The entries, each as long as this program knows it; NULL: impossible lengths, or no memory. */
static void *copy(size_t own_bytes, const struct ch__stats_section *section, const uint8_t *entries)
{
	if (section->entry_bytes < 8 || section->count > COUNT_MOST)
		return NULL;
	size_t bytes = section->entry_bytes < own_bytes ? section->entry_bytes : own_bytes;
	uint8_t *list = calloc(section->count + 1, own_bytes);
	for (size_t i = 0; list && i < section->count; i++)
		memcpy(list + i * own_bytes, entries + i * section->entry_bytes, bytes);
	return list;
}
/* A section that is there twice is broken. */
#define TAKE(list)                                                                    \
	(!stats->list.at &&                                                           \
	 (stats->list.at = copy(sizeof *stats->list.at, section, entries)) != NULL && \
	 (stats->list.count = section->count, stats->list.left_out = section->left_out, true))

static bool take_section(struct top_stats *stats, const struct ch__stats_section *section,
			 const uint8_t *entries)
{
	switch (section->kind) {
	case CH__STATS_TEXTS:
		return TAKE(texts);
	case CH__STATS_NUMBERS:
		return TAKE(numbers);
	case CH__STATS_OWNER_KINDS:
		return TAKE(owner_kinds);
	case CH__STATS_BLOCK_KINDS:
		return TAKE(block_kinds);
	case CH__STATS_SAMPLES:
		return TAKE(samples);
	case CH__STATS_PAUSES:
		return TAKE(pauses);
	case CH__STATS_PAGES:
		return TAKE(pages);
	case CH__STATS_PARTS:
		return TAKE(parts);
	default:
		return true;
	}
}

static void end_texts(struct top_stats *stats)
{
	for (size_t i = 0; i < stats->texts.count; i++) {
		stats->texts.at[i].name[CH__STATS_NAME_BYTES - 1] = 0;
		stats->texts.at[i].text[CH__STATS_TEXT_BYTES - 1] = 0;
	}
	for (size_t i = 0; i < stats->numbers.count; i++)
		stats->numbers.at[i].name[CH__STATS_NAME_BYTES - 1] = 0;
	for (size_t i = 0; i < stats->owner_kinds.count; i++)
		stats->owner_kinds.at[i].name[CH__STATS_NAME_BYTES - 1] = 0;
	for (size_t i = 0; i < stats->block_kinds.count; i++)
		stats->block_kinds.at[i].name[CH__STATS_NAME_BYTES - 1] = 0;
}

static bool take_sections(struct top_stats *stats, const uint8_t *body)
{
	size_t at = 0, end = stats->head.body_bytes;
	while (at < end) {
		struct ch__stats_section section;
		if (end - at < sizeof section)
			return false;
		memcpy(&section, body + at, sizeof section);
		at += sizeof section;
		uint64_t bytes = (uint64_t)section.entry_bytes * section.count;
		if (bytes > end - at || !take_section(stats, &section, body + at))
			return false;
		at += ((size_t)bytes + 7) & ~(size_t)7;
	}
	end_texts(stats);
	return true;
}

static void judge_writer(int fd, struct top_stats *stats)
{
	struct stat file;
	struct timespec now;
	if (fstat(fd, &file) == 0 && clock_gettime(CLOCK_REALTIME, &now) == 0)
		stats->age_s = (double)(now.tv_sec - file.st_mtim.tv_sec) +
			       (double)(now.tv_nsec - file.st_mtim.tv_nsec) / 1e9;
	stats->has_no_writer = !has_writer(fd, &stats->head);
}

struct top_stats *top_read(const char *path, const char **error)
{
	/* A pipe would wait for its writer. */
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct top_stats *stats = fd >= 0 ? calloc(1, sizeof *stats) : NULL;
	struct stat found;
	if (!stats) {
		*error = strerrordesc_np(errno);
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	uint8_t *body = NULL;
	if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode))
		*error = "this is no file";
	else
		body = read_whole(fd, &stats->head, error);
	bool is_read = body && take_sections(stats, body);
	if (is_read)
		judge_writer(fd, stats);
	else if (body)
		*error = "its sections are broken";
	free(body);
	close(fd);
	if (is_read)
		return stats;
	top_free(stats);
	return NULL;
}

void top_free(struct top_stats *stats)
{
	if (!stats)
		return;
	free(stats->texts.at);
	free(stats->numbers.at);
	free(stats->owner_kinds.at);
	free(stats->block_kinds.at);
	free(stats->samples.at);
	free(stats->pauses.at);
	free(stats->pages.at);
	free(stats->parts.at);
	free(stats);
}

uint64_t top_number(const struct top_stats *stats, const char *name)
{
	for (size_t i = 0; i < stats->numbers.count; i++)
		if (!strcmp(stats->numbers.at[i].name, name))
			return stats->numbers.at[i].value;
	return 0;
}

const char *top_text(const struct top_stats *stats, const char *name)
{
	for (size_t i = 0; i < stats->texts.count; i++)
		if (!strcmp(stats->texts.at[i].name, name))
			return stats->texts.at[i].text;
	return "";
}
