/* SPDX-License-Identifier: MIT
 * folded_reader.h: reads folded stacks, `outer;inner COUNT` a line, and fails on any other text. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { FOLDED_FRAMES = 1024 };

struct folded_line {
	const char *frames[FOLDED_FRAMES]; /* outermost first */
	size_t count;
	uint64_t weight;
};

/* Visits each line; returns the sum of the weights. */
uint64_t folded_read(const char *path, void (*visit)(void *arg, const struct folded_line *),
		     void *arg);
/* The weight of the lines that have a frame of the name. */
uint64_t folded_weight_of(const char *path, const char *frame);
