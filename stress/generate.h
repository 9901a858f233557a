/* SPDX-License-Identifier: MIT
 * generate.h: random Scheme programs whose output does not depend on how they are run: what
 * changes a procedure while it is on a stack, in a fiber or in another thread leaves its meaning
 * as it was, or changes it at one point of one thread. */
#ifndef STRESS_GENERATE_H
#define STRESS_GENERATE_H

#include <stddef.h>
#include <stdint.h>

struct program {
	char *text;
	size_t length, capacity;
	uint64_t random;     /* state of the generator */
	uint64_t operations; /* forms that do something to code or control, so far */
};

/* Writes the next program over the last one. Takes the random state along. */
void program_generate(struct program *program);

#endif
