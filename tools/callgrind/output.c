// SPDX-License-Identifier: MIT
/* Texts that grow, JSON strings, and files that are replaced as a whole. */
#define _GNU_SOURCE /* mkstemp */
#include "tools/callgrind/output.h"

#include "flame/flame.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *room_for(struct cg_output *output, size_t length)
{
	if (output->failed)
		return NULL;
	if (length > output->room - output->length) {
		size_t room = (output->room + length) * 2;
		char *larger = realloc(output->at, room);
		if (!larger) {
			output->failed = true;
			return NULL;
		}
		output->at = larger;
		output->room = room;
	}
	return output->at + output->length;
}

bool cg_output_put(struct cg_output *output, const void *at, size_t length)
{
	char *to = length ? room_for(output, length) : NULL;
	if (to) {
		memcpy(to, at, length);
		output->length += length;
	}
	return !output->failed;
}

bool cg_output_text(struct cg_output *output, struct cg_text text)
{
	return cg_output_put(output, text.at, text.length);
}

bool cg_output_print(struct cg_output *output, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(NULL, 0, format, arguments);
	va_end(arguments);
	char *to = length < 0 ? NULL : room_for(output, (size_t)length + 1);
	if (!to) {
		output->failed = true;
		return false;
	}
	va_start(arguments, format);
	vsnprintf(to, (size_t)length + 1, format, arguments);
	va_end(arguments);
	output->length += (size_t)length;
	return true;
}

unsigned cg_character(struct cg_text text)
{
	size_t length = 0;
	uint32_t code_point = text.length ? ch__flame_decode(text.at, text.length, &length) : 0;
	return length == 1 && code_point >= 0x80 ? 0 : (unsigned)length;
}

void cg_output_word(struct cg_output *output, struct cg_text text)
{
	for (size_t bytes; text.length; text = cg_text(text.at + bytes, text.length - bytes)) {
		uint32_t code_point = ch__flame_decode(text.at, text.length, &bytes);
		bool is_control = code_point < ' ' || (code_point >= 0x7f && code_point < 0xa0);
		cg_output_put(output, is_control ? "?" : text.at, is_control ? 1 : bytes);
	}
}

bool cg_output_json(struct cg_output *output, struct cg_text text)
{
	cg_output_put(output, "\"", 1);
	while (text.length) {
		unsigned bytes = cg_character(text);
		unsigned char first = (unsigned char)*text.at;
		if (!bytes)
			cg_output_put(output, "\xef\xbf\xbd", 3);
		else if (first == '"' || first == '\\')
			cg_output_print(output, "\\%c", first);
		else if (first < 0x20 || first == 0x7f)
			cg_output_print(output, "\\u%04x", first);
		else
			cg_output_put(output, text.at, bytes);
		bytes += !bytes;
		text = cg_text(text.at + bytes, text.length - bytes);
	}
	return cg_output_put(output, "\"", 1);
}

void cg_output_end(struct cg_output *output)
{
	free(output->at);
	*output = (struct cg_output){0};
}

static bool write_to(FILE *file, const struct cg_output *output)
{
	size_t written = output->length ? fwrite(output->at, 1, output->length, file) : 0;
	return written == output->length && !fflush(file);
}

/* Closes the file; errno is of what failed first. */
static bool write_and_close(FILE *file, const struct cg_output *output)
{
	bool is_written = file && write_to(file, output);
	int why = errno;
	if (file && fclose(file) && is_written)
		return false;
	errno = why;
	return is_written;
}

static bool replace(const struct cg_output *output, const char *path, char *beside, mode_t mode)
{
	int fd = mkstemp(beside);
	if (fd < 0)
		return false;
	FILE *file = fdopen(fd, "wb");
	bool is_written = write_and_close(file, output) && !chmod(beside, mode) &&
			  !rename(beside, path);
	int why = errno;
	if (!file)
		close(fd);
	if (!is_written)
		unlink(beside);
	errno = why;
	return is_written;
}

static mode_t mode_of_new(void)
{
	mode_t mask = umask(0);
	umask(mask);
	return 0666 & ~mask;
}

/* The standard stream that leads to this file, or NULL. */
static FILE *stream_of(const struct stat *there)
{
	FILE *const streams[] = {stdout, stderr};
	for (int i = 0; i < 2; i++) {
		struct stat stream;
		if (!fstat(fileno(streams[i]), &stream) && stream.st_dev == there->st_dev &&
		    stream.st_ino == there->st_ino)
			return streams[i];
	}
	return NULL;
}

bool cg_output_save(const struct cg_output *output, const char *path)
{
	if (output->failed) {
		errno = ENOMEM;
		return false;
	}
	if (!path)
		return write_to(stdout, output);
	struct stat there;
	bool is_there = !stat(path, &there);
	FILE *stream = is_there ? stream_of(&there) : NULL;
	if (stream)
		return write_to(stream, output);
	if (is_there && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode))
		return write_and_close(fopen(path, "wb"), output);
	char *target = is_there ? realpath(path, NULL) : strdup(path);
	size_t room = target ? strlen(target) + sizeof ".XXXXXX" : 0;
	char *beside = target ? malloc(room) : NULL;
	if (beside)
		snprintf(beside, room, "%s.XXXXXX", target);
	mode_t mode = is_there ? there.st_mode & 0777 : mode_of_new();
	bool is_written = beside && replace(output, target, beside, mode);
	int why = errno;
	free(target);
	free(beside);
	errno = why;
	return is_written;
}
