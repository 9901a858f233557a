/* SPDX-License-Identifier: MIT
 * words.c: counts words: allocation, sorting through a function pointer, arguments, the standard
 * streams. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct word {
	char *text;
	unsigned count;
};

static const char *const lines[] = {
	"the quick brown fox jumps over the lazy dog",
	"The dog sleeps, and the fox runs: over and over",
	"a page is a page is a page",
};

static int by_count(const void *a, const void *b)
{
	const struct word *x = a, *y = b;
	if (x->count != y->count)
		return x->count < y->count ? 1 : -1;
	return strcmp(x->text, y->text);
}

static struct word *find(struct word **words, size_t *used, const char *text)
{
	for (size_t i = 0; i < *used; i++)
		if (strcmp((*words)[i].text, text) == 0)
			return &(*words)[i];
	*words = realloc(*words, (*used + 1) * sizeof **words);
	(*words)[*used] = (struct word){strdup(text), 0};
	return &(*words)[(*used)++];
}

int main(int argc, char **argv)
{
	struct word *words = NULL;
	size_t used = 0;
	for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
		char *line = strdup(lines[i]), *rest = line;
		for (char *w; (w = strtok_r(rest, " ,:", &rest)) != NULL;) {
			for (char *c = w; *c; c++)
				*c = (char)tolower((unsigned char)*c);
			find(&words, &used, w)->count++;
		}
		free(line);
	}
	for (int i = 1; i < argc; i++)
		find(&words, &used, argv[i])->count += 10;
	qsort(words, used, sizeof *words, by_count);
	for (size_t i = 0; i < used; i++) {
		printf("%3u %s\n", words[i].count, words[i].text);
		free(words[i].text);
	}
	free(words);
	fprintf(stderr, "%zu words, %d arguments\n", used, argc - 1);
	return argc;
}
