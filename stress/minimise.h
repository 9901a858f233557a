/* SPDX-License-Identifier: MIT
 * minimise.h: what both levels do with a program that failed: run it again in child processes,
 * make its list of items shorter while it still fails, and keep what it was and what is left. */
#ifndef STRESS_MINIMISE_H
#define STRESS_MINIMISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

extern uint64_t minimise_ms; /* what one failure may cost; 0: it is kept as it is */

uint64_t now_ms(void); /* of a clock that only rises */

/* --- one run in a process of its own --- */

enum run_end { RUN_FINE, RUN_FAILED, RUN_DIED, RUN_HUNG };
struct run {
	pid_t process; /* leads a process group: what it forked is ended with it */
	uint64_t deadline_ms;
	int code; /* of its exit, or the signal that it died of */
};

/* Runs fn(arg) in a child, whose exit code is what it returns. False where there is no process. A
 * quiet one's output is dropped. */
bool run_start(struct run *run, int (*fn)(void *arg), void *arg, uint64_t limit_ms, bool is_quiet);
/* Whether it has ended, or was ended at its deadline; *end is set then. Does not wait. */
bool run_poll(struct run *run, enum run_end *end);
enum run_end run_wait(struct run *run);
void run_kill(struct run *run); /* and takes its end away */
/* "failed", "died of signal 5", ...: constant until the next call. */
const char *run_text(const struct run *run, enum run_end end);

/* --- fewer items --- */

struct minimise {
	size_t count;
	bool *keep; /* in: items that fail together; out: fewer of them that still do */
	/* Runs the kept items, several times where the schedule matters. */
	bool (*still_fails)(void *context, const bool *keep);
	void *context;
	uint64_t deadline_ms; /* what is found until then is what there is */
};

/* Drops halves, quarters and so on down to single items. Returns how many are left. */
size_t minimise(struct minimise *list);

/* --- what is kept --- */

/* Writes text to FOLDER/failures/NAME, prints the path after `what`. A few megabytes of failures
 * are kept at most: after that they are printed and not written. */
void failure_keep(const char *folder, const char *name, const char *what, const char *text,
		  size_t length);
/* The whole file, ended by a 0 that is not counted; NULL where it cannot be read. */
char *failure_read(const char *path, size_t *length);

#endif
