// SPDX-License-Identifier: MIT
/* Reads a jitdump file, jit-PID.dump: the code that a process made, with names, source lines and
 * the time from which it was there. Nothing in the file is relied upon. Source: Linux,
 * tools/perf/Documentation/jitdump-specification.txt. */
#pragma once
#include "tools/callgrind/table.h"
#include "unwind/sink.h"

/* One load record, and what the records in front of it say of its code. */
struct cg_block {
	uint64_t time, address, index;
	uint32_t process, thread;
	struct cg_text name, code;
	const char *file;                  /* of the lines */
	const struct ch__sink_line *lines; /* rising, from the address, all inside the code */
	size_t line_count;
};

struct cg_jitdump {
	const char *start, *next, *end;
	uint16_t machine; /* as in ELF */
	size_t wrong;     /* records that were skipped because they cannot be right */
	size_t wrong_at;  /* where the last of them is in the file */
	const char *why;  /* it is wrong */
	size_t freed;     /* records that say whose code is nobody's any more */
	size_t others;    /* records that speak of no block */
	size_t left_out;  /* source lines of another file than their block's first, or not in it */
	bool is_cut;      /* the file ends in a record */
	char error[160];
	/* The source lines of the next load record, if it is of that address. */
	struct cg_text entries;
	uint64_t entries_address, entry_count;
	struct ch__sink_line *lines;
	size_t line_room;
};

/* False with `error` when it is no jitdump that can be read here. */
bool cg_jitdump_begin(struct cg_jitdump *dump, const char *text, size_t length);
/* The next block, which holds until the next call. False at the end, or with `error`: no memory. */
bool cg_jitdump_next(struct cg_jitdump *dump, struct cg_block *block);
void cg_jitdump_end(struct cg_jitdump *dump);
