/* SPDX-License-Identifier: MIT
 * minimise.h: the treatment of a failed program by both levels: run the program again in child
 * processes, shorten the list of items while the program still fails, and keep both lists. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

extern uint64_t minimise_ms; /* what one failure may cost; 0: kept as found */

uint64_t now_ms(void); /* by a clock that only rises */
uint64_t slowness(void); /* an emulator does so much less in the same time; 1 = none */

/* --- one run in a process of its own --- */

enum run_end { RUN_FINE, RUN_FAILED, RUN_DIED, RUN_HUNG };
struct run {
	pid_t process; /* leads a process group: forked processes end with the group */
	uint64_t deadline_ms;
	int code; /* the exit code, or the signal that ended the run */
};

/* Runs fn(arg) in a child, whose exit code is fn's result. Returns false where there is no process.
 * The output of a quiet run is dropped. */
bool run_start(struct run *run, int (*fn)(void *arg), void *arg, uint64_t limit_ms, bool is_quiet);
/* Returns true and sets *end when the run has ended, or was killed late. Does not wait. */
bool run_poll(struct run *run, enum run_end *end);
enum run_end run_wait(struct run *run);
void run_kill(struct run *run); /* and reaps the process */
/* "failed", "died of signal 5", ...: constant until the next call. */
const char *run_text(const struct run *run, enum run_end end);

/* --- fewer items --- */

struct minimise {
	size_t count;
	bool *keep; /* in: items that fail together; out: fewer items that still fail */
	/* Runs the kept items, several times where the schedule matters. */
	bool (*still_fails)(void *context, const bool *keep);
	void *context;
	uint64_t deadline_ms; /* the search ends here with the best list so far */
};

/* Drops halves, quarters and so on down to single items. Returns the number of items left. */
size_t minimise(struct minimise *list);

/* --- failures on disk --- */

/* Writes text to FOLDER/failures/NAME, prints the path after `what`. Stops writing after a few
 * megabytes: then failures are only printed. */
void failure_keep(const char *folder, const char *name, const char *what, const char *text,
		  size_t length);
/* Reads a whole file and adds a 0 that is not counted. Returns NULL when the file is unreadable. */
char *failure_read(const char *path, size_t *length);
