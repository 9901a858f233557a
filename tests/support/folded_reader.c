/* SPDX-License-Identifier: MIT
 * folded_reader.c: folded stacks, read strictly: each line has frames, none of them empty, one
 * space before a count that is not 0, and an end. */
#include "tests/support/folded_reader.h"
#include "tests/support/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void split(char *text, struct folded_line *line)
{
	char *count = strrchr(text, ' '), *end;
	if (!count || count == text)
		FAIL("no stack and count: %.200s", text);
	*count++ = 0;
	errno = 0;
	line->weight = strtoull(count, &end, 10);
	if (errno || *end || end == count || !line->weight || *count == '-')
		FAIL("no count of samples: %.100s %s", text, count);
	line->count = 0;
	for (char *frame = text; frame; frame = end) {
		end = strchr(frame, ';');
		if (end)
			*end++ = 0;
		if (!*frame || line->count == FOLDED_FRAMES)
			FAIL("frame %zu is empty, or one too many", line->count);
		line->frames[line->count++] = frame;
	}
}

uint64_t folded_read(const char *path, void (*visit)(void *arg, const struct folded_line *),
		     void *arg)
{
	struct folded_line line; /* threads of a test read side by side */
	uint64_t weights = 0;
	char *text = NULL;
	size_t room = 0;
	ssize_t length;
	FILE *file = fopen(path, "r");
	if (!file)
		FAIL("%s: %s", path, strerror(errno));
	while ((length = getline(&text, &room, file)) > 0) {
		if (text[length - 1] != '\n' || strlen(text) != (size_t)length)
			FAIL("a line without an end, or with a 0: %.200s", text);
		text[length - 1] = 0;
		split(text, &line);
		weights += line.weight;
		if (visit)
			visit(arg, &line);
	}
	free(text);
	fclose(file);
	return weights;
}

struct search {
	const char *frame;
	uint64_t weight;
};

static void look_for(void *arg, const struct folded_line *line)
{
	struct search *search = arg;
	for (size_t i = 0; i < line->count; i++)
		if (strcmp(line->frames[i], search->frame) == 0) {
			search->weight += line->weight;
			return;
		}
}

uint64_t folded_weight_of(const char *path, const char *frame)
{
	struct search search = {frame, 0};
	folded_read(path, look_for, &search);
	return search.weight;
}
