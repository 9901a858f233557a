/* SPDX-License-Identifier: MIT
 * draw_heap.h: a picture of code heaps: their pages, and in each the hot, cold, not-entrant, dead
 * and free bytes. It knows neither a heap nor a file: who has the numbers calls it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum drawn_kind { DRAWN_HOT, DRAWN_COLD, DRAWN_NOTENTRANT, DRAWN_DEAD, DRAWN_KINDS };

struct drawn_part {
	uint64_t at; /* an address, or an offset in a pool, which begins at a whole page */
	uint32_t bytes;
	enum drawn_kind kind;
};

struct drawn_number {
	const char *name; /* of CH_STATS_LIST */
	uint64_t value;
};

struct drawn_heap {
	const char *title;
	const struct drawn_number *numbers;
	size_t number_count;
	const struct drawn_part *parts;
	size_t part_count;
	size_t block_count;    /* that the parts are of */
	size_t pages_left_out; /* whose parts are not listed */
};

/* The heaps side by side as one SVG; false when a write failed or there is no memory. The numbers
 * stand as text and as data attributes, so that a program can read them. */
bool draw_heaps(FILE *file, const struct drawn_heap *heaps, int count);
