/* SPDX-License-Identifier: MIT
 * mutant.c: the word of switches that break a test-built library, set from the environment:
 * CODEHEAP_MUTANT is a name of arch/mutant.h, its number, or several of them with commas.
 * Linked into every program whose library objects were built for tests. */
#include "arch/mutant.h"

#include "arch/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t ch__mutants[8];

static const char *const names[] = {
#define X(name) #name,
	CH__MUTANT_LIST(X)
#undef X
};

static int number_of(const char *text, size_t length)
{
	char *end;
	unsigned long number = strtoul(text, &end, 10);
	if (end == text + length && length && number < CH__MUTANTS)
		return (int)number;
	for (int i = 0; i < CH__MUTANTS; i++)
		if (strlen(names[i]) == length && !strncmp(names[i], text, length))
			return i;
	return -1;
}

/* Before main: a test may create its heap in a constructor of its own. */
__attribute__((constructor(101))) static void read_environment(void)
{
	const char *text = getenv("CODEHEAP_MUTANT");
	while (text && *text) {
		size_t length = strcspn(text, ",");
		int number = number_of(text, length);
		if (number < 0) {
			fprintf(stderr, "CODEHEAP_MUTANT: no mutant %.*s\n", (int)length, text);
			exit(2);
		}
		ch__mutants[number / 64] |= UINT64_C(1) << number % 64;
		text += length + (text[length] == ',');
	}
}
