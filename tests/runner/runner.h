/* SPDX-License-Identifier: MIT
 * runner.h: shared by the files of the test runner: runner.c starts and reaps, runner_clock.c says
 * how long a case has run, runner_lists.c reads the lists of skipped and left-out cases,
 * runner_verdict.c judges, counts and prints.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum { CASES_MAX = 8192, NAME_MAX_BYTES = 120, REASON_BYTES = 200 };
enum { TRIES_MAX = 3, UNSTEADY_MAX = 5, EXIT_SKIPPED = 77 };

struct test_case {
	const char *program, *program_name;
	char name[NAME_MAX_BYTES];
	double limit_s, seconds, processor_s;
	int signal;
	bool is_exclusive, is_timed;
	int tries;          /* begun */
	bool waits;         /* has failed, and is to be tried again */
	char *first_output; /* of the first failure */
	char first_reason[REASON_BYTES];
};

/* The time that a case has run, without the time that the case waited for a processor. */
struct case_clock {
	pid_t pid;
	double at_s, processor_s; /* the time of the last look, and the processor time until then */
	double run_s;
};
double now_s(void);
void clock_start(struct case_clock *, pid_t);
/* Returns the seconds that the case may still run; 0 or less when the limit is reached. */
double clock_left(struct case_clock *, double limit_s);
/* Kills a process, its group, and all their descendants. */
void end_all_of(pid_t);

extern struct test_case cases[CASES_MAX];
extern int case_count;

__attribute__((noreturn)) void die(const char *what);
const char *base_of(const char *path);
/* Names a program as the table does: tests/host/scheme.sh is host_scheme.sh, build/tests/api_fork
 * is api_fork. The text is never freed. */
const char *name_of_program(const char *path);

/* Reads the table (tests/cannot_run.list); a malformed line is a failure. */
void read_table(const char *path);
/* Returns why the table has the case under a name that matches `where`; NULL if it has not. */
const char *why_listed(const char *where, const char *program, const char *name);
/* Each pattern under this name (NULL: under all names) is a failure when no case of the pattern's
 * programs matches. */
void check_table(const char *where);
/* Drops the cases that the table has under the name. Returns how many. */
int leave_out_listed(const char *where);
/* Keeps the cases that -t asks for; exits when there is none. */
void keep_wanted(const char *pattern);
/* Keeps timed cases only, or all untimed cases and the timed case with exactly that name. Returns
 * how many timed cases went. */
int keep_timed(bool wants_timed, const char *pattern);

struct verdict_options {
	const char *restriction, *again_folder;
	bool is_verbose, is_strict, wants_timed;
};
extern struct verdict_options verdict;

/* Prints a failure that belongs to no case, or that no further try could change. */
void print_failure(const char *program, const char *name, const char *reason, const char *output);
/* Counts a run of a case, by its status of wait, and prints the outcome. `late` says why the runner
 * killed the case; else NULL. */
void count_run(struct test_case *, int status, const char *late, const char *output);
/* Returns whether failed cases are to be tried again; otherwise prints their failures. */
bool begins_again(void);
void print_slowest(int count);
/* Prints the closing lines; returns the exit code. */
int print_sums(void);
