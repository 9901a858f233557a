/* SPDX-License-Identifier: MIT
 * reader.h: a statistics file in memory, judged before anything is believed. */
#pragma once

#include "observe/stats_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Entries of one section, each as long as this program knows it: what an older library did not
 * write is 0. All texts end in a 0. */
#define LIST(type)                 \
	struct {                   \
		struct type *at;   \
		size_t count;      \
		uint32_t left_out; \
	}

struct top_stats {
	struct ch__stats_head head;
	/* Of a state that runs: the writer was killed, or its disk is full. */
	bool has_no_writer;
	double age_s; /* since the last write */
	LIST(ch__stats_text) texts;
	LIST(ch__stats_number) numbers;
	LIST(ch__stats_kind) owner_kinds;
	LIST(ch__stats_kind) block_kinds;
	LIST(ch__stats_sample) samples;
	LIST(ch__stats_pause) pauses;
	LIST(ch__stats_page) pages;
	LIST(ch__stats_part) parts;
};

/* NULL: *error says why. The path is opened anew each time: a process that came since has put a
 * file of its own there. */
struct top_stats *top_read(const char *path, const char **error);
void top_free(struct top_stats *);
uint64_t top_number(const struct top_stats *, const char *name);  /* 0 when it is not there */
const char *top_text(const struct top_stats *, const char *name); /* "" likewise */
