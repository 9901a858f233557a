/* SPDX-License-Identifier: MIT
 * forms.h: a Scheme program as a list of parts that can be left out one by one. */
#ifndef STRESS_FORMS_H
#define STRESS_FORMS_H

#include <stdbool.h>
#include <stddef.h>

/* In the order of their opening parentheses; what lies in a part goes with it. */
struct forms {
	const char *text;
	size_t length, count, capacity;
	struct form {
		size_t from, to; /* bytes of text */
	} * at;
};

/* The outermost forms alone, or all. False without memory. */
bool forms_split(struct forms *forms, const char *text, size_t length, bool is_deep);
/* The text without the forms that are not kept; to be freed. NULL without memory. */
char *forms_join(const struct forms *forms, const bool *keep, size_t *length);
void forms_free(struct forms *forms);

#endif
