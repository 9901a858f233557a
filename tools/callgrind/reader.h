// SPDX-License-Identifier: MIT
/* Reads a profile in the callgrind format, line by line: what a line is, the name that it means
 * after name compression, the position and costs that it means after subposition compression, and
 * where in the call graph it is. Knows nothing of output. cachegrind's files are a subset. Source:
 * Valgrind's "Callgrind Format Specification" and what callgrind 3.19 writes. */
#pragma once
#include "tools/callgrind/table.h"

enum cg_limit { CG_POSITIONS_MAX = 3, CG_EVENTS_MAX = 64 };

/* Names of objects, files and functions are compressed by ids of their own. */
enum cg_space { CG_OBJECT, CG_FILE, CG_FUNCTION, CG_SPACES };

enum cg_kind {
	CG_SKIPPED,   /* empty, or a comment */
	CG_HEADER,    /* key: value */
	CG_NAME,      /* key=name */
	CG_CALLS,     /* calls=: the next line that is not skipped is CG_CALL_COST */
	CG_CALL_COST, /* where the call is, and what was spent in it */
	CG_JUMP,      /* jump= or jcnd=: the next line that is not skipped is CG_JUMP_FROM */
	CG_JUMP_FROM,
	CG_COST,
};

struct cg_line {
	enum cg_kind kind;
	struct cg_text whole;      /* without the newline */
	struct cg_text key, value; /* of CG_HEADER and CG_NAME; the value as it is written */
	/* of CG_NAME */
	enum cg_space space;
	struct cg_entry *definition; /* of its id, or NULL; .text is the name, .number the id */
	bool defines;                /* the id gets this name from here on */
	struct cg_text name;
	/* of CG_CALLS and CG_JUMP: how often, for jcnd= also of how many; of costs: where, and how
	 * much */
	uint64_t times, times_of;
	uint64_t positions[CG_POSITIONS_MAX];
	struct cg_text place; /* where the positions are written */
	bool is_relative;     /* to the last that were */
	bool is_ambiguous;    /* and to something else for other readers */
	uint64_t costs[CG_EVENTS_MAX];
};

/* A node of the call graph. A name that was not given is empty, with a NULL `at`. */
struct cg_place {
	struct cg_text object, file, function;
};

struct cg_reader {
	const char *next, *end;
	size_t line_number;
	struct cg_place now;                  /* where costs belong */
	struct cg_text line_file;             /* whose lines they are: fi= and fe= change it */
	struct cg_place called;               /* of the next call, whole behind cfn= */
	unsigned position_count, event_count; /* event_count is 0 until events: */
	bool is_address[CG_POSITIONS_MAX];    /* not a line number */
	uint64_t positions[CG_POSITIONS_MAX]; /* of the last line with own costs */
	uint64_t others[CG_POSITIONS_MAX]; /* of the last line with any, as other readers count */
	uint64_t sums[CG_EVENTS_MAX];      /* of the costs of this part, without those of calls */
	struct cg_table ids[CG_SPACES];
	enum cg_kind awaited; /* CG_CALL_COST, CG_JUMP_FROM or CG_SKIPPED */
	char error[160];      /* empty unless a line was refused */
};

void cg_reader_begin(struct cg_reader *reader, const char *text, size_t length);
/* The next line; false at the end, and when one is refused: then `error` says why, of line
 * `line_number`. */
bool cg_reader_next(struct cg_reader *reader, struct cg_line *line);
void cg_reader_end(struct cg_reader *reader);

/* A number, decimal or hexadecimal behind 0x, at the beginning of the text, which is moved behind
 * it. */
bool cg_take_number(struct cg_text *text, uint64_t *number);
/* The next word of a line, between spaces; false when there is none. */
bool cg_next_word(struct cg_text *text, struct cg_text *word);
