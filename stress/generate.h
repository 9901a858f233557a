/* SPDX-License-Identifier: MIT
 * generate.h: random Scheme programs with the same output under any VM: a change of a procedure on
 * a stack, in a fiber or in another thread keeps the meaning, or changes the meaning at one point
 * of a thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct program {
	char *text;
	size_t length, capacity;
	uint64_t random;     /* state of the generator */
	uint64_t operations; /* forms that do something to code or control, so far */
};

/* Writes the next program over the last one. Advances the random state. */
void program_generate(struct program *program);
