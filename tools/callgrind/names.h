// SPDX-License-Identifier: MIT
/* Gives the anonymous functions of a profile the names that perf maps have for them. */
#pragma once
#include "tools/callgrind/output.h"
#include "tools/callgrind/perf_map.h"
#include "tools/callgrind/reader.h"

struct cg_process {
	char pid[24]; /* empty: of every process */
	int why;      /* the errno of a map that cannot be read, or 0 */
	struct cg_perf_map map;
};

/* A profile: a file, or one of several that belong together. */
struct cg_input {
	const char *name;
	char *text;
	size_t length;
};

struct cg_naming {
	const char *map_path; /* NULL: /tmp/perf-PID.map of each part's process */
	bool is_by_name;      /* blocks of one name become one function */
	bool may_lack_map;    /* where the process left none, its blocks keep their addresses */
	struct cg_process *processes;
	size_t process_count;
	struct cg_table literals; /* the functions' names that stay */
	struct cg_table shared;   /* names of blocks; the flag: several blocks have it */
	struct cg_table labels;   /* what blocks are called */
	struct cg_table written;  /* what replaces a name, and the id that it got */
	uint64_t next_id;
	size_t part; /* counts the parts, in both readings */
	struct cg_output out;
	size_t named, unnamed; /* different anonymous names with a block, and without one */
	size_t wrong_totals;   /* the line of a totals: that the costs do not add up to, or 0 */
	const struct cg_input *wrong_input; /* that line's */
	const struct cg_input *input;       /* the last that was read: the error's */
	size_t line_number;                 /* the error's line, or 0 */
	char error[400];
};

/* Reads the profiles twice: which blocks they speak of, then what is to be written: the profiles
 * with names, as parts one behind the other. False with `error`. */
bool cg_naming_run(struct cg_naming *naming, const struct cg_input *inputs, size_t count);
void cg_naming_end(struct cg_naming *naming);
