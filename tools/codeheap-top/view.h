/* SPDX-License-Identifier: MIT
 * view.h: what codeheap-top shows of a statistics file: as lines for a terminal, as JSON, as a
 * picture. */
#pragma once

#include "tools/codeheap-top/reader.h"

#include <stdio.h>

struct view {
	int columns, rows; /* of the window; rows 0: as many as there are */
	bool has_colours;
};

/* At most `rows` lines, each at most `columns` wide. */
void view_print(FILE *file, const struct top_stats *stats, const struct view *view);
/* One line, the same bytes for the same state. */
void view_print_json(FILE *file, const struct top_stats *stats);
bool view_draw(FILE *file, const struct top_stats *stats);
/* "running", "ended", "gone" */
const char *view_state(const struct top_stats *stats);
