/* SPDX-License-Identifier: MIT
 * image_file.c: the words of an image from and to a file. A file is replaced at once or not at all:
 * readers see the old image or the new one; an error leaves the old image and no temporary file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image.h"

enum { TEMPORARY_TRIES = 100 };

/* ---- reading ---- */

/* Returns 0 at an error or at the end of the file. */
static int read_whole(int fd, void *bytes, size_t count)
{
	char *at = bytes;

	while (count) {
		ssize_t n = read(fd, at, count);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		at += n;
		count -= (size_t)n;
	}
	return 1;
}

/* Checks the header before asking for room: the header knows the length of the file. */
static uint64_t *read_words(int fd, size_t *count, char *why)
{
	uint64_t header[IMAGE_HEADER] = {0}, *words;
	struct stat file;

	if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
		image_fail(why, "no plain file");
		return NULL;
	}
	size_t bytes = (size_t)file.st_size;
	*count = bytes / 8;
	size_t head = bytes < sizeof header ? bytes : sizeof header;
	if (!read_whole(fd, header, head)) {
		image_fail(why, "cannot be read");
		return NULL;
	}
	if (!image_check_header(header, *count, why))
		return NULL;
	if (bytes % 8) {
		image_fail(why, "has a part of a word at its end");
		return NULL;
	}
	words = malloc(bytes);
	if (!words) {
		image_fail(why, "no memory");
		return NULL;
	}
	memcpy(words, header, head);
	if (!read_whole(fd, words + IMAGE_HEADER, bytes - head)) {
		image_fail(why, "cannot be read");
		free(words);
		return NULL;
	}
	return words;
}

uint64_t *image_read_file(const char *path, size_t *count, char *why)
{
	/* A pipe without a writer is refused, not waited for. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0) {
		image_fail(why, "%s", strerror(errno));
		return NULL;
	}
	uint64_t *words = read_words(fd, count, why);
	close(fd);
	return words;
}

/* ---- writing ---- */

static int write_whole(int fd, const void *bytes, size_t count)
{
	const char *at = bytes;

	while (count) {
		ssize_t n = write(fd, at, count);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return 0;
		at += n;
		count -= (size_t)n;
	}
	return 1;
}

/* Returns true if the path is free or a file of this user. For a free path there->st_nlink is 0. */
static int may_replace(const char *path, struct stat *there, char *why)
{
	if (lstat(path, there) != 0) {
		there->st_nlink = 0;
		return errno == ENOENT ? 1 : image_fail(why, "%s: %s", path, strerror(errno));
	}
	if (!S_ISREG(there->st_mode))
		return image_fail(why, "%s: no plain file", path);
	if (there->st_uid != geteuid())
		return image_fail(why, "%s: a file of another user", path);
	return 1;
}

/* Opens a new file beside the file to replace; *name is for free(). */
static int open_temporary(const char *path, mode_t mode, char **name)
{
	enum { FLAGS = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };
	static atomic_uint serial;
	int fd = -1;

	for (int i = 0; i < TEMPORARY_TRIES && fd < 0; i++) {
		if (asprintf(name, "%s.%ld-%u.tmp", path, (long)getpid(), serial++) < 0)
			return -1;
		fd = open(*name, FLAGS, mode);
		if (fd < 0) {
			int error = errno;
			free(*name);
			errno = error;
			if (error != EEXIST)
				return -1;
		}
	}
	return fd;
}

/* Users without the right to read the old file cannot read the new file. */
static int keep_rights(int fd, const struct stat *there)
{
	mode_t mode = there->st_mode & 0777;
	struct stat here;

	if (!there->st_nlink)
		return 1;
	if (fstat(fd, &here) != 0)
		return 0;
	if (here.st_gid != there->st_gid && fchown(fd, (uid_t)-1, there->st_gid) != 0)
		mode &= ~(mode_t)070;
	return fchmod(fd, mode) == 0;
}

int image_replace_file(const char *path, const uint64_t *words, size_t count, char *why)
{
	struct stat there;
	char *temporary;

	if (!may_replace(path, &there, why))
		return 0;
	int fd = open_temporary(path, there.st_nlink ? 0600 : 0666, &temporary);
	if (fd < 0)
		return image_fail(why, "%s: %s", path, strerror(errno));
	int is_done = keep_rights(fd, &there) && write_whole(fd, words, count * sizeof *words);
	int error = errno;
	if (close(fd) != 0 && is_done) {
		error = errno;
		is_done = 0;
	}
	if (is_done && rename(temporary, path) != 0) {
		error = errno;
		is_done = 0;
	}
	if (!is_done) {
		unlink(temporary);
		image_fail(why, "%s: %s", path, strerror(error));
	}
	free(temporary);
	return is_done;
}
