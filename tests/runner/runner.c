/* SPDX-License-Identifier: MIT
 * runner.c: runs test cases, one process each, some in parallel, each under a time limit, and
 * counts the results. Time in which a case waits for a processor does not count (runner_clock.c),
 * up to nine times the limit of the case and up to fifteen minutes.
 *
 * A program, compiled or script, lists its cases when started without arguments, a line each:
 *     name limit_seconds signal alone|timed|-
 * A program that is started with the name of a case runs the case: exit 0 passed, 77 skipped, else
 * failed; with a signal above 0 only death by the signal passes. The runner prints failures, then
 * `skipped N: names` and `N passed, N failed`; exit 1 when anything failed.
 *
 *     runner [-l table] [-S] [-x] [-a folder] [-c] [-L count] [-j jobs] [-v] [-t name]
 *            [-W seconds] [-w launcher -r restriction] [-e emulator] [-n name] program...
 *     runner -l table -q where program case...
 * The table (tests/cannot_run.list) says which cases cannot run where. -q prints `case: why` of the
 * given cases that the table has there; exit 1 when there are none.
 * The runner names skipped cases; with -S a skip is a failure unless the table has it under `skip`.
 * With -a a failed case is tried again, alone, at most twice, when all else has ended. A case that
 * passes then counts as passed and is named in the line `unsteady N: names`; FOLDER/NAME.log has
 * the output of the failed tries. More than five failed cases are not tried again.
 * -c runs the timed cases, one at a time; without -c a timed case runs only if -t is its name.
 * -L prints the cases that took longest. -W: the most seconds that a case may wait for a processor.
 * With -e each program is started behind the emulator's words. Cases that the table has under the
 * name of -n do not run, unless -t asks for them. A pattern under this name, with -x under any
 * name, is a failure when no case of the pattern's programs matches: so the table stays true.
 * With -w each case is started as `launcher restriction program name` (tests/runner/hostile.c). A
 * case that the table has under the restriction must then fail or skip itself, and does not count:
 * a pass is a failure.
 *
 * CODEHEAP_TEST_SLOW multiplies every limit; CODEHEAP_TEST_STORM_MS above 5000 lengthens every
 * limit by the difference.
 */
#define _GNU_SOURCE
#include "tests/runner/runner.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { JOBS_MAX = 16, LIST_LIMIT_S = 60, STORM_ORDINARY_MS = 5000, WORDS_MAX = 24 };
enum { WAITS_MOST_LIMITS = 9, WAITS_MOST_S = 900 };

struct job {
	struct test_case *test; /* NULL: the slot is free */
	pid_t pid;
	int output;
	double started;
	struct case_clock clock;
};

static struct job jobs[JOBS_MAX];
static int job_count = 2, jobs_running, slowest_count;
static const char *launcher;
static char *emulator_words[WORDS_MAX + 3];
static int emulator_count;
static bool lists_alone;
static double waits_most_s = WAITS_MOST_S;
static const char *where, *asked_where;
static bool checks_table;

static long environment_number(const char *name, long otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static void execute(const char *program, const char *name)
{
	/* A runner in the background of a shell inherits that some signals are ignored. */
	static const int expected[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM};
	for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
		signal(expected[i], SIG_DFL);
	/* Native programs list their cases without the emulator, which is quicker. */
	if (!name && lists_alone)
		execl(program, program, (char *)NULL);
	if (!name && lists_alone)
		return;
	if (launcher && name)
		execl(launcher, launcher, verdict.restriction, program, name, (char *)NULL);
	if (launcher && name)
		return;
	/* A script puts the emulator's words before its programs (CODEHEAP_TEST_EMULATOR). */
	const char *suffix = strrchr(program, '.');
	bool is_script = suffix && strcmp(suffix, ".sh") == 0;
	if (is_script)
		execl(program, program, name, (char *)NULL);
	if (is_script)
		return;
	/* execvp takes the words without const; the words outlive the process. */
	char **word = emulator_words + emulator_count;
	word[0] = (char *)(uintptr_t)program;
	word[1] = (char *)(uintptr_t)name;
	word[2] = NULL;
	execvp(emulator_words[0], emulator_words);
}

/* A process group lets the runner kill all that a case started; the case dies with the runner. */
static pid_t start(const char *program, const char *name, int output)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid > 0) {
		setpgid(pid, pid);
		return pid;
	}
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	struct rlimit core;
	if (getrlimit(RLIMIT_CORE, &core) == 0) {
		core.rlim_cur = 0; /* a case that is about cores raises it again */
		setrlimit(RLIMIT_CORE, &core);
	}
	sigset_t empty;
	sigemptyset(&empty);
	sigprocmask(SIG_SETMASK, &empty, NULL);
	if (!freopen("/dev/null", "r", stdin))
		_exit(126);
	dup2(output, STDOUT_FILENO);
	dup2(output, STDERR_FILENO);
	execute(program, name);
	perror(emulator_count ? emulator_words[0] : program);
	_exit(127);
}

static int new_output(void)
{
	int fd = memfd_create("test output", MFD_CLOEXEC);
	if (fd < 0) /* refused when a case runs a runner of its own */
		fd = open(P_tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		die("test output");
	return fd;
}

/* A dead case may have left children that hold the output open: the whole group is killed. */
static void end_group(pid_t pid)
{
	kill(-pid, SIGKILL);
}

/* A terminal's signals do not reach the groups of cases, and children of scripts would run on. */
static void end_all(int signal_)
{
	for (struct job *job = jobs; job < jobs + job_count; job++)
		if (job->test && job->pid > 0)
			end_group(job->pid);
	signal(signal_, SIG_DFL);
	raise(signal_);
}

static void end_with_jobs(void)
{
	static const int ends[] = {SIGHUP, SIGINT, SIGTERM};
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		struct sigaction action = {.sa_handler = end_all, .sa_flags = SA_NODEFER};
		struct sigaction before;
		if (sigaction(ends[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
			sigaction(ends[i], &action, NULL);
	}
}

static char *read_output(int fd)
{
	off_t bytes = lseek(fd, 0, SEEK_END);
	char *text = malloc((size_t)bytes + 1);
	if (!text)
		die("malloc");
	ssize_t n = pread(fd, text, (size_t)bytes, 0);
	text[n < 0 ? 0 : n] = 0;
	return text;
}

static void wait_signal_or(double seconds)
{
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
	sigtimedwait(&child, NULL, &t);
}

static void add_cases(const char *program, char *list, double slow, double extra_s)
{
	int found = 0;
	const char *name = name_of_program(program);
	for (char *line = strtok(list, "\n"); line; line = strtok(NULL, "\n")) {
		struct test_case *t = &cases[case_count];
		char mode[16] = "-";
		*t = (struct test_case){.program = program, .program_name = name};
		if (sscanf(line, "%119s %lf %d %15s", t->name, &t->limit_s, &t->signal, mode) < 3 ||
		    case_count == CASES_MAX - 1) {
			print_failure(program, program, "bad line in its list of cases", line);
			return;
		}
		t->limit_s = t->limit_s * slow + extra_s;
		t->is_timed = strcmp(mode, "timed") == 0;
		t->is_exclusive = t->is_timed || strcmp(mode, "alone") == 0;
		case_count++;
		found++;
	}
	if (!found)
		print_failure(program, program, "lists no cases", "");
}

static bool try_list(const char *program, bool is_last, double slow, double extra_s)
{
	int output = new_output(), status;
	pid_t pid = start(program, NULL, output);
	struct case_clock clock;
	clock_start(&clock, pid);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (clock_left(&clock, LIST_LIMIT_S * slow) <= 0)
			end_all_of(pid);
		wait_signal_or(0.05);
	}
	end_group(pid);
	char *text = read_output(output);
	bool has_listed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	if (has_listed)
		add_cases(program, text, slow, extra_s);
	else if (is_last)
		print_failure(program, program, "cannot list its cases", text);
	free(text);
	close(output);
	return has_listed;
}

static void list_program(const char *program, double slow, double extra_s)
{
	lists_alone = emulator_count != 0;
	if (lists_alone && try_list(program, false, slow, extra_s))
		return;
	lists_alone = false;
	try_list(program, true, slow, extra_s);
}

static void finish(struct job *job, int status, const char *late)
{
	end_group(job->pid);
	job->test->seconds = now_s() - job->started;
	char *text = read_output(job->output);
	count_run(job->test, status, late, text);
	free(text);
	close(job->output);
	job->test = NULL;
	jobs_running--;
}

static void begin(struct test_case *t)
{
	struct job *job = jobs;
	while (job->test)
		job++;
	t->tries++;
	job->pid = 0;
	job->test = t;
	job->output = new_output();
	job->started = now_s();
	job->pid = start(t->program, t->name, job->output);
	clock_start(&job->clock, job->pid);
	jobs_running++;
}

static double seconds_of(struct timeval time)
{
	return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

/* Returns NULL while the case may go on; else words for the report of a late case. */
static const char *late_by(struct job *job, double *next)
{
	double limit = job->test->limit_s, waits_most = WAITS_MOST_LIMITS * limit;
	if (waits_most > waits_most_s)
		waits_most = waits_most_s;
	double left = clock_left(&job->clock, limit);
	double left_in_all = job->started + limit + waits_most - now_s();
	if (left <= 0)
		return "";
	if (left_in_all <= 0)
		return " and all that it may wait for a processor";
	*next = left < *next ? left : *next;
	*next = left_in_all < *next ? left_in_all : *next;
	return NULL;
}

static void reap(void)
{
	bool has_ended = false;
	double next = 1;
	for (struct job *job = jobs; job < jobs + job_count; job++) {
		int status;
		if (!job->test)
			continue;
		const char *late = NULL;
		struct rusage usage;
		pid_t pid = wait4(job->pid, &status, WNOHANG, &usage);
		if (pid == 0 && (late = late_by(job, &next))) {
			end_all_of(job->pid);
			pid = wait4(job->pid, &status, 0, &usage);
		}
		if (pid != job->pid)
			continue;
		job->test->processor_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
		finish(job, status, late);
		has_ended = true;
	}
	if (!has_ended)
		wait_signal_or(next < 0.05 ? 0.05 : next);
}

static void run_all(bool is_exclusive)
{
	int parallel = is_exclusive ? 1 : job_count;
	for (int i = 0; i < case_count; i++) {
		if (cases[i].is_exclusive != is_exclusive)
			continue;
		while (jobs_running >= parallel)
			reap();
		begin(&cases[i]);
	}
	while (jobs_running)
		reap();
}

static void run_again(void)
{
	if (!begins_again())
		return;
	for (int i = 0; i < case_count; i++) {
		while (cases[i].waits) {
			begin(&cases[i]);
			while (jobs_running)
				reap();
		}
	}
}

static void read_emulator(char *text)
{
	for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
		if (emulator_count == WORDS_MAX) {
			fprintf(stderr, "runner: more than %d words of an emulator\n", WORDS_MAX);
			exit(2);
		}
		emulator_words[emulator_count++] = word;
	}
}

/* Reads an option that has a list, or a word to be kept as given. Returns false for all else. */
static bool read_word(int option)
{
	switch (option) {
	case 'l':
		read_table(optarg);
		return true;
	case 'q':
		asked_where = optarg;
		return true;
	case 'a':
		verdict.again_folder = optarg;
		return true;
	case 'r':
		verdict.restriction = optarg;
		return true;
	case 'n':
		where = optarg;
		return true;
	case 'w':
		launcher = optarg;
		return true;
	case 'e':
		read_emulator(optarg);
		return true;
	}
	return false;
}

static const char *read_options(int argc, char **argv)
{
	const char *pattern = NULL;
	int option;
	while ((option = getopt(argc, argv, "Sxa:cL:j:vt:W:w:r:e:n:l:q:")) != -1) {
		if (read_word(option))
			continue;
		switch (option) {
		case 'S':
			verdict.is_strict = true;
			break;
		case 'x':
			checks_table = true;
			break;
		case 'c':
			verdict.wants_timed = true;
			break;
		case 'v':
			verdict.is_verbose = true;
			break;
		case 'L':
			slowest_count = atoi(optarg);
			break;
		case 'j':
			job_count = atoi(optarg);
			break;
		case 't':
			pattern = optarg;
			break;
		case 'W':
			waits_most_s = atof(optarg);
			break;
		default:
			exit(2);
		}
	}
	if (!launcher != !verdict.restriction) {
		fprintf(stderr, "runner: -w and -r go together\n");
		exit(2);
	}
	if (launcher && emulator_count) {
		fprintf(stderr, "runner: -w does not go with -e\n");
		exit(2);
	}
	if (job_count < 1 || job_count > JOBS_MAX)
		job_count = 2;
	return pattern;
}

static void list_all(int count, char **programs)
{
	double slow = (double)environment_number("CODEHEAP_TEST_SLOW", 1);
	long storm_ms = environment_number("CODEHEAP_TEST_STORM_MS", STORM_ORDINARY_MS);
	double extra_s =
		storm_ms > STORM_ORDINARY_MS ? (double)(storm_ms - STORM_ORDINARY_MS) / 1e3 : 0;
	for (int i = 0; i < count; i++)
		list_program(programs[i], slow, extra_s);
}

static int answer(int count, char **words)
{
	int found = 0;
	for (int i = 1; i < count; i++) {
		const char *why = why_listed(asked_where, name_of_program(words[0]), words[i]);
		found += why && printf("%s: %s\n", words[i], why) > 0;
	}
	return !found;
}

/* No file of the runner may get the number of a standard file that the caller has closed. */
static void open_standard_files(void)
{
	int fd = 0;
	while (fd >= 0 && fd <= STDERR_FILENO)
		fd = open("/dev/null", O_RDWR);
	if (fd > STDERR_FILENO)
		close(fd);
}

int main(int argc, char **argv)
{
	open_standard_files();
	const char *pattern = read_options(argc, argv);
	int left_out = 0;
	if (asked_where)
		return answer(argc - optind, argv + optind);
	end_with_jobs();
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	double started = now_s();
	list_all(argc - optind, argv + optind);
	if (!pattern && (where || checks_table))
		check_table(checks_table ? NULL : where);
	if (pattern)
		keep_wanted(pattern);
	else
		left_out = leave_out_listed(where);
	int timed = keep_timed(verdict.wants_timed, pattern);
	run_all(false);
	run_all(true);
	run_again();
	print_slowest(slowest_count);
	if (verdict.is_verbose)
		printf("%d cases in %.1f s\n", case_count, now_s() - started);
	if (where)
		printf("left out %d under %s\n", left_out, where);
	if (timed)
		printf("timed %d: make check-timed\n", timed);
	return print_sums();
}
