/* SPDX-License-Identifier: MIT
 * forms.c: finds parenthesised forms in the text of a program: knows strings, characters and
 * comments, and nothing else of the language. */
#include "forms.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool add(struct forms *forms, size_t from)
{
	if (forms->count == forms->capacity) {
		size_t capacity = forms->capacity ? forms->capacity * 2 : 256;
		struct form *at = realloc(forms->at, capacity * sizeof *at);
		if (!at)
			return false;
		forms->at = at;
		forms->capacity = capacity;
	}
	/* To the end of the text, until the closing parenthesis is found. */
	forms->at[forms->count++] = (struct form){from, forms->length};
	return true;
}

/* The end of a string, a character or a comment that begins here; here when none begins. */
static size_t skip_opaque(const char *text, size_t length, size_t at)
{
	size_t end = at;
	if (text[at] == '"') {
		for (end++; end < length && text[end] != '"'; end++)
			end += text[end] == '\\';
		end++;
	} else if (text[at] == ';') {
		while (end < length && text[end] != '\n')
			end++;
	} else if (text[at] == '#' && at + 2 < length && text[at + 1] == '\\') {
		end += 3;
	}
	return end < length ? end : length;
}

bool forms_split(struct forms *forms, const char *text, size_t length, bool is_deep)
{
	enum { DEEPEST = 1000 };
	size_t open[DEEPEST], depth = 0;
	*forms = (struct forms){.text = text, .length = length};
	for (size_t at = 0; at < length;) {
		size_t behind = skip_opaque(text, length, at);
		if (behind > at) {
			at = behind;
			continue;
		}
		if (text[at] == '(' && depth < DEEPEST) {
			bool is_part = is_deep || depth == 0;
			open[depth++] = is_part ? forms->count : SIZE_MAX;
			if (is_part && !add(forms, at))
				return false;
		} else if (text[at] == ')' && depth && open[--depth] != SIZE_MAX) {
			forms->at[open[depth]].to = at + 1;
		}
		at++;
	}
	return true;
}

/* Leaves out empty lines: the kept text is for readers. */
static size_t append(char *text, size_t n, const char *part, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (part[i] != '\n' || (n && text[n - 1] != '\n'))
			text[n++] = part[i];
	return n;
}

char *forms_join(const struct forms *forms, const bool *keep, size_t *length)
{
	char *text = malloc(forms->length + 1);
	size_t from = 0, n = 0;
	if (!text)
		return NULL;
	for (size_t i = 0; i <= forms->count; i++) {
		bool is_end = i == forms->count;
		if (!is_end && (keep[i] || forms->at[i].from < from))
			continue;
		size_t to = is_end ? forms->length : forms->at[i].from;
		n = append(text, n, forms->text + from, to - from);
		if (!is_end)
			from = forms->at[i].to;
	}
	text[n] = 0;
	*length = n;
	return text;
}

void forms_free(struct forms *forms)
{
	free(forms->at);
}
