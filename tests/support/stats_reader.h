/* SPDX-License-Identifier: MIT
 * stats_reader.h: reads a statistics file for tests, as observe/stats_file.h says, and shares no
 * code with tools/codeheap-top. */
#pragma once

#include "observe/stats_file.h"
#include "tests/support/harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { STATS_IMAGE_BYTES = 1 << 20 };

struct stats_image {
	struct ch__stats_head head;
	uint8_t body[STATS_IMAGE_BYTES];
};

/* A try. Returns false when the sequence says that the file changed meanwhile. */
static inline bool stats_try(int fd, struct stats_image *image)
{
	struct ch__stats_head again;
	if (pread(fd, &image->head, sizeof image->head, 0) != sizeof image->head ||
	    image->head.sequence % 2 || image->head.body_bytes > sizeof image->body)
		return false;
	ssize_t got = pread(fd, image->body, image->head.body_bytes, sizeof image->head);
	return got == (ssize_t)image->head.body_bytes &&
	       pread(fd, &again, sizeof again, 0) == sizeof again &&
	       again.sequence == image->head.sequence;
}

/* Whether the writer, which is gone, was killed while writing. */
static inline bool stats_is_torn(const char *path)
{
	struct stats_image *image = calloc(1, sizeof *image);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(image && fd >= 0);
	bool is_whole = stats_try(fd, image);
	close(fd);
	free(image);
	return !is_whole;
}

/* Whether a writer holds the lock. */
static inline bool stats_has_writer(const char *path)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0);
	close(fd);
	return lock.l_type != F_UNLCK;
}

static inline bool stats_is_whole(const struct stats_image *image)
{
	return !memcmp(image->head.magic, CH__STATS_FILE_MAGIC, sizeof image->head.magic) &&
	       image->head.byte_order == CH__STATS_FILE_ORDER &&
	       image->head.checksum == ch__stats_checksum(image->body, image->head.body_bytes);
}

/* The file after `writes` more writes, or after its end. */
static inline struct stats_image *stats_read(const char *path, unsigned writes)
{
	struct stats_image *image = calloc(1, sizeof *image);
	uint64_t from = 0;
	bool is_counting = false, is_written = false;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(image && fd >= 0);
	TEST_UNTIL(is_written) {
		usleep(1000);
		if (stats_try(fd, image)) {
			if (!is_counting) /* earlier writes do not count */
				from = image->head.sequence;
			is_counting = true;
			is_written = image->head.sequence >= from + 2 * writes ||
				     image->head.state != CH__STATS_RUNNING;
		}
		struct statvfs disk;
		if (fstatvfs(fd, &disk) == 0 && disk.f_bavail == 0)
			FAIL("%s has no room on its disk", path);
	}
	CHECK(stats_is_whole(image));
	close(fd);
	return image;
}

/* The entries of a section; *section gets the head. */
static inline const void *stats_section(const struct stats_image *image, uint32_t kind,
					struct ch__stats_section *section)
{
	size_t at = 0;
	while (at + sizeof *section <= image->head.body_bytes) {
		memcpy(section, image->body + at, sizeof *section);
		at += sizeof *section;
		if (section->kind == kind)
			return image->body + at;
		at += (size_t)section->entry_bytes * section->count;
	}
	FAIL("there is no section %u", kind);
}

static inline uint64_t stats_number(const struct stats_image *image, const char *name)
{
	struct ch__stats_section section;
	const struct ch__stats_number *number = stats_section(image, CH__STATS_NUMBERS, &section);
	for (uint32_t i = 0; i < section.count; i++)
		if (!strcmp(number[i].name, name))
			return number[i].value;
	FAIL("there is no number %s", name);
}

static inline const char *stats_text(const struct stats_image *image, const char *name)
{
	struct ch__stats_section section;
	const struct ch__stats_text *text = stats_section(image, CH__STATS_TEXTS, &section);
	for (uint32_t i = 0; i < section.count; i++)
		if (!strcmp(text[i].name, name))
			return text[i].text;
	FAIL("there is no text %s", name);
}

/* Returns NULL when no kind has this name. */
static inline const struct ch__stats_kind *stats_kind(const struct stats_image *image,
						      uint32_t section_kind, const char *name)
{
	struct ch__stats_section section;
	const struct ch__stats_kind *kind = stats_section(image, section_kind, &section);
	for (uint32_t i = 0; i < section.count; i++)
		if (!strcmp(kind[i].name, name))
			return &kind[i];
	return NULL;
}

/* The library's threads only; a sanitizer has threads, too. *last becomes the number of one. */
static inline unsigned stats_threads(int *last)
{
	unsigned count = 0;
	char name[300], text[32];
	DIR *dir = opendir("/proc/self/task");
	for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
		snprintf(name, sizeof name, "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = fopen(name, "re");
		bool is_ours =
			file && fgets(text, sizeof text, file) && !strcmp(text, "codeheap\n");
		count += is_ours;
		if (is_ours && last)
			*last = atoi(entry->d_name);
		if (file)
			fclose(file);
	}
	if (dir)
		closedir(dir);
	return count;
}
