/* SPDX-License-Identifier: MIT
 * forms.h: a Scheme program as a list of parts that can be left out one by one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* In the order of opening parentheses. A part goes with all parts inside. */
struct forms {
	const char *text;
	size_t length, count, capacity;
	struct form {
		size_t from, to; /* bytes of text */
	} * at;
};

/* Splits into the outermost forms, or into all (is_deep). Returns false without memory. */
bool forms_split(struct forms *forms, const char *text, size_t length, bool is_deep);
/* Returns the text with the kept forms only, to be freed. NULL without memory. */
char *forms_join(const struct forms *forms, const bool *keep, size_t *length);
void forms_free(struct forms *forms);
