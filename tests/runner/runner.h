/* SPDX-License-Identifier: MIT
 * runner.h: what the files of the test runner share: runner.c starts and reaps, runner_clock.c
 * says how long a case has run, runner_lists.c reads the lists of what is skipped or left out,
 * runner_verdict.c judges, counts and prints.
 */
#ifndef CH_TESTS_RUNNER_H
#define CH_TESTS_RUNNER_H

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
	char *first_output; /* of its first failure */
	char first_reason[REASON_BYTES];
};

/* The time that a case has run: not that in which it waited for a processor. */
struct case_clock {
	pid_t pid;
	double at_s, processor_s; /* when it was last looked at, and what it had taken */
	double run_s;
};
double now_s(void);
void clock_start(struct case_clock *, pid_t);
/* The seconds until the case may have run that long; 0 and less: it has. */
double clock_left(struct case_clock *, double limit_s);
/* Kills a process, its group, and all their descendants. */
void end_all_of(pid_t);

extern struct test_case cases[CASES_MAX];
extern int case_count;

__attribute__((noreturn)) void die(const char *what);
const char *base_of(const char *path);
/* As the table names a program: tests/host/scheme.sh is host_scheme.sh, build/tests/api_fork is
 * api_fork. The text is never freed. */
const char *name_of_program(const char *path);

/* Reads the table (tests/cannot_run.list); a line that is none of it is a failure. */
void read_table(const char *path);
/* Why the table has the case under a name of where; NULL: it has not, or there is no such name. */
const char *why_listed(const char *where, const char *program, const char *name);
/* Each pattern under this name, or under all (NULL), is a failure when it names no case of the
 * programs that it speaks of. */
void check_table(const char *where);
/* Takes away the cases that the table names there. Returns how many. */
int leave_out_listed(const char *where);
/* Keeps the cases that -t asks for; exits when there is none. */
void keep_wanted(const char *pattern);
/* Keeps timed cases only, or all others and a timed one of that very name. Returns how many timed
 * ones went. */
int keep_timed(bool wants_timed, const char *pattern);

struct verdict_options {
	const char *restriction, *again_folder;
	bool is_verbose, is_strict, wants_timed;
};
extern struct verdict_options verdict;

/* A failure that is no case's, or that no second try could change. */
void print_failure(const char *program, const char *name, const char *reason, const char *output);
/* Counts one run of a case, by its status of wait, and prints what is to be seen of it. `late`: why
 * it was killed, or NULL. */
void count_run(struct test_case *, int status, const char *late, const char *output);
/* Whether failed cases are to be tried again; otherwise prints their failures. */
bool begins_again(void);
/* Prints the cases that took longest. */
void print_slowest(int count);
/* The closing lines; returns the exit code. */
int print_sums(void);

#endif
