/* SPDX-License-Identifier: MIT
 * draw.c: stacks from standard input as a flame graph on standard output, for tests/tool/flame.sh.
 * A line is a weight and the frames from the outermost frame on, separated by tabs; a frame is the
 * letter of its kind and its name: `12<TAB>nmain<TAB>jfib`. The program has an allocator of its
 * own: a flame graph needs no more than os/meta.h says.
 *
 *     draw [--folded] [--icicle] [--reversed] [--title=T] [--subtitle=T] [--unit=U] */
#include "flame/flame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *ch__meta_alloc(struct ch__meta *meta, size_t bytes)
{
	(void)meta;
	return calloc(1, bytes ? bytes : 1);
}

void ch__meta_free(struct ch__meta *meta, void *at, size_t bytes)
{
	(void)meta;
	(void)bytes;
	free(at);
}

static bool write_out(void *arg, const char *text, size_t bytes)
{
	return fwrite(text, 1, bytes, arg) == bytes;
}

static bool read_stacks(struct ch__flame *flame)
{
	static const char letters[] = "nijcto"; /* in the order of the kinds */
	char *line = NULL;
	size_t room = 0;
	bool is_whole = true;
	for (ssize_t length; is_whole && (length = getline(&line, &room, stdin)) > 0;) {
		line[length - (line[length - 1] == '\n')] = 0;
		char *rest = line;
		uint64_t weight = strtoull(strsep(&rest, "\t"), NULL, 10);
		uint32_t node = 0;
		for (char *frame; is_whole && (frame = strsep(&rest, "\t"));) {
			const char *letter = *frame ? strchr(letters, *frame) : NULL;
			if (letter)
				node = ch__flame_child(flame, node, frame + 1,
						       (enum ch__flame_kind)(letter - letters));
			is_whole = letter && node;
		}
		ch__flame_weigh(flame, node, weight);
	}
	free(line);
	return is_whole;
}

static const char *value_of(const char *argument, const char *name)
{
	size_t length = strlen(name);
	return strncmp(argument, name, length) ? NULL : argument + length;
}

int main(int argc, char **argv)
{
	struct ch__flame_view view = {.unit = "samples"};
	bool is_folded = false;
	for (int i = 1; i < argc; i++) {
		const char *value;
		if ((value = value_of(argv[i], "--title=")))
			view.title = value;
		else if ((value = value_of(argv[i], "--subtitle=")))
			view.subtitle = value;
		else if ((value = value_of(argv[i], "--unit=")))
			view.unit = value;
		else if (strcmp(argv[i], "--folded") == 0)
			is_folded = true;
		else if (strcmp(argv[i], "--icicle") == 0)
			view.is_icicle = true;
		else if (strcmp(argv[i], "--reversed") == 0)
			view.is_reversed = true;
		else
			return 2;
	}
	struct ch__flame *flame = ch__flame_create(NULL);
	if (!flame || !read_stacks(flame))
		return 1;
	bool is_written =
		is_folded ? ch__flame_write_folded(flame, view.is_reversed, write_out, stdout)
			  : ch__flame_write_svg(flame, &view, write_out, stdout);
	return is_written && fflush(stdout) == 0 ? 0 : 1;
}
