/* SPDX-License-Identifier: MIT
 * runner.c: runs test cases, one process each, some in parallel, each under a time limit, and
 * counts the results. A program, compiled or script, lists its cases when started without
 * arguments, one line each:
 *     name limit_seconds signal alone|-
 * and runs one when given its name: exit 0 passed, 77 skipped, else failed; with a signal above 0
 * only death by that signal passes. It prints failures, then `skipped N: names` and `N passed, N
 * failed`; exit 1 when anything failed.
 *
 *     runner [-s skips.list] [-j jobs] [-v] [-t name] [-w launcher -r restriction -u unable.list]
 *            [-e emulator -n name -l emulated.list] program...
 * With -e each program is started behind the emulator's words. Cases that emulated.list leaves out
 * under the emulator's name do not run, unless -t asks for them; a line there that leaves out no
 * case of the programs it speaks of is a failure, so that the list stays true.
 * With -w each case is started as `launcher restriction program name` (tests/hostile.c). A case
 * that unable.list names with the restriction must then fail or skip itself, and does not count:
 * one that passes is a failure, so that the list stays true.
 *
 * CODEHEAP_TEST_SLOW multiplies every limit; CODEHEAP_TEST_STORM_MS above 5000 lengthens them by
 * the difference.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <fnmatch.h>
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

enum { CASES_MAX = 8192, JOBS_MAX = 16, NAME_MAX_BYTES = 120 };
enum { LIST_LIMIT_S = 20, EXIT_SKIPPED = 77, SHOWN_BYTES = 6000, REASON_BYTES = 200 };
enum { STORM_ORDINARY_MS = 5000, WORDS_MAX = 24 };

struct test_case {
	const char *program;
	char name[NAME_MAX_BYTES];
	double limit_s, seconds, processor_s;
	int signal;
	bool is_exclusive;
};

struct job {
	struct test_case *test; /* NULL: the slot is free */
	pid_t pid;
	int output;
	double started;
};

static struct test_case cases[CASES_MAX];
static int case_count;
static struct job jobs[JOBS_MAX];
static int job_count = 2, jobs_running;
static char *skips_text;
static char *skipped_names;
static int passed, failed, skipped;
static bool is_verbose;
static const char *launcher, *restriction;
static char *unable_text;
static int unable;
static char *emulator_words[WORDS_MAX + 3];
static int emulator_count;
static bool lists_alone;
static const char *emulator_name;
static char *emulated_text;
static int left_out;

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static long environment_number(const char *name, long otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtol(text, NULL, 10) : otherwise;
}

static void execute(const char *program, const char *name)
{
	/* Who runs in the background of a shell inherits that some are ignored. */
	static const int expected[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE};
	for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
		signal(expected[i], SIG_DFL);
	/* What the machine runs itself lists its cases without the emulator, which is quicker. */
	if (!name && lists_alone)
		execl(program, program, (char *)NULL);
	if (!name && lists_alone)
		return;
	if (launcher && name)
		execl(launcher, launcher, restriction, program, name, (char *)NULL);
	if (launcher && name)
		return;
	/* A script puts the words before the programs that it runs (CODEHEAP_TEST_EMULATOR). */
	const char *suffix = strrchr(program, '.');
	bool is_script = suffix && strcmp(suffix, ".sh") == 0;
	if (is_script)
		execl(program, program, name, (char *)NULL);
	if (is_script)
		return;
	/* The words outlive the process: execvp takes them without const. */
	char **word = emulator_words + emulator_count;
	word[0] = (char *)(uintptr_t)program;
	word[1] = (char *)(uintptr_t)name;
	word[2] = NULL;
	execvp(emulator_words[0], emulator_words);
}

/* A group of its own lets the runner kill what the case started; the case dies with the runner. */
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
	if (fd < 0) /* refused, where a case runs a runner of its own */
		fd = open(P_tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		die("test output");
	return fd;
}

/* A case that died may have left children behind, and they its output open: the group goes with
 * it. */
static void end_group(pid_t pid)
{
	kill(-pid, SIGKILL);
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

static void print_failure(const char *program, const char *name, const char *reason,
			  const char *output)
{
	size_t bytes = strlen(output), from = bytes > SHOWN_BYTES ? bytes - SHOWN_BYTES : 0;
	printf("not ok %s # %s: %s\n", name, program, reason);
	if (from)
		printf("    ... %zu bytes left out\n", from);
	for (const char *line = output + from; *line;) {
		size_t length = strcspn(line, "\n");
		printf("    %.*s\n", (int)length, line);
		line += length + (line[length] == '\n');
	}
	fflush(stdout);
	failed++;
}

static void add_cases(const char *program, char *list, double slow, double extra_s)
{
	int found = 0;
	for (char *line = strtok(list, "\n"); line; line = strtok(NULL, "\n")) {
		struct test_case *t = &cases[case_count];
		char mode[16] = "-";
		*t = (struct test_case){.program = program};
		if (sscanf(line, "%119s %lf %d %15s", t->name, &t->limit_s, &t->signal, mode) < 3 ||
		    case_count == CASES_MAX - 1) {
			print_failure(program, program, "bad line in its list of cases", line);
			return;
		}
		t->limit_s = t->limit_s * slow + extra_s;
		t->is_exclusive = strcmp(mode, "alone") == 0;
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
	double end = now_s() + LIST_LIMIT_S * slow;
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (now_s() > end)
			kill(pid, SIGKILL);
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

/* Lines of a list are `name: reason`. */
static bool is_listed(const char *list, const char *name)
{
	size_t length = strlen(name);
	for (const char *line = list; line && *line;) {
		if (strncmp(line, name, length) == 0 && line[length] == ':' &&
		    strspn(line + length + 1, " ") &&
		    line[length + 1 + strspn(line + length + 1, " ")] > ' ')
			return true;
		line = strchr(line, '\n');
		if (line)
			line++;
	}
	return false;
}

/* Lines are `restriction name: reason`, or `restriction program/name: reason`. */
static bool is_unable(const struct test_case *t)
{
	char key[4 * NAME_MAX_BYTES];
	const char *base = strrchr(t->program, '/');
	if (!restriction)
		return false;
	snprintf(key, sizeof key, "%s %s", restriction, t->name);
	if (is_listed(unable_text, key))
		return true;
	snprintf(key, sizeof key, "%s %s/%s", restriction, base ? base + 1 : t->program, t->name);
	return is_listed(unable_text, key);
}

static void note_skip(const char *name)
{
	char *names;
	if (asprintf(&names, "%s%s%s", skipped_names ? skipped_names : "", skipped_names ? " " : "",
		     name) < 0)
		die("asprintf");
	free(skipped_names);
	skipped_names = names;
	skipped++;
}

/* Returns false with the reason when the case failed. */
static bool judge(const struct test_case *t, int status, bool is_late, char *reason)
{
	if (is_late)
		snprintf(reason, REASON_BYTES, "no end after %.0f s, killed", t->limit_s);
	else if (WIFSIGNALED(status) && WTERMSIG(status) == t->signal)
		return true;
	else if (WIFSIGNALED(status))
		snprintf(reason, REASON_BYTES, "died of %s", strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status) == EXIT_SKIPPED && !is_listed(skips_text, t->name))
		snprintf(reason, REASON_BYTES, "skipped, but not in the list of skips");
	else if (WEXITSTATUS(status) == EXIT_SKIPPED)
		return true;
	else if (t->signal)
		snprintf(reason, REASON_BYTES, "exit %d, but %s should have killed it",
			 WEXITSTATUS(status), strsignal(t->signal));
	else if (WEXITSTATUS(status) != 0)
		snprintf(reason, REASON_BYTES, "exit %d", WEXITSTATUS(status));
	else
		return true;
	return false;
}

static void finish(struct job *job, int status, bool is_late)
{
	struct test_case *t = job->test;
	char reason[REASON_BYTES];
	end_group(job->pid);
	t->seconds = now_s() - job->started;
	char *text = read_output(job->output);
	bool is_right = judge(t, status, is_late, reason);
	if (is_unable(t)) {
		unable++;
		if (is_right && !(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED))
			print_failure(t->program, t->name, "listed as unable, but it passes", "");
	} else if (!is_right) {
		print_failure(t->program, t->name, reason, text);
	} else if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED) {
		note_skip(t->name);
	} else {
		passed++;
		if (is_verbose)
			printf("ok %s # %.2f s, %.2f of a processor, %s\n", t->name, t->seconds,
			       t->processor_s, t->program);
	}
	fflush(stdout);
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
	job->test = t;
	job->output = new_output();
	job->started = now_s();
	job->pid = start(t->program, t->name, job->output);
	jobs_running++;
}

static double seconds_of(struct timeval time)
{
	return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static void reap(void)
{
	bool has_ended = false;
	double next = 1;
	for (struct job *job = jobs; job < jobs + job_count; job++) {
		int status;
		if (!job->test)
			continue;
		double left = job->started + job->test->limit_s - now_s();
		bool is_late = false;
		struct rusage usage;
		pid_t pid = wait4(job->pid, &status, WNOHANG, &usage);
		if (pid == 0 && left <= 0) {
			is_late = true;
			end_group(job->pid);
			pid = wait4(job->pid, &status, 0, &usage);
		}
		if (pid == job->pid) {
			job->test->processor_s =
				seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
			finish(job, status, is_late);
			has_ended = true;
		} else if (left < next) {
			next = left;
		}
	}
	if (!has_ended)
		wait_signal_or(next < 0.001 ? 0.001 : next);
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

static bool is_wanted(const struct test_case *t, const char *pattern)
{
	const char *base = strrchr(t->program, '/');
	base = base ? base + 1 : t->program;
	size_t stem = strcspn(base, ".");
	return strcmp(t->name, pattern) == 0 || fnmatch(pattern, t->name, 0) == 0 ||
	       (strlen(pattern) == stem && strncmp(base, pattern, stem) == 0);
}

static void keep_wanted(const char *pattern)
{
	int kept = 0;
	for (int i = 0; i < case_count; i++)
		if (is_wanted(&cases[i], pattern))
			cases[kept++] = cases[i];
	case_count = kept;
	if (kept)
		return;
	fprintf(stderr, "no test case or program is named %s\n", pattern);
	exit(2);
}

static bool program_matches(const struct test_case *t, const char *pattern)
{
	const char *base = strrchr(t->program, '/');
	return fnmatch(pattern, base ? base + 1 : t->program, 0) == 0;
}

/* A case that is left out has no program any more. Returns whether the line spoke of none of the
 * programs, or left out a case. */
static bool leave_out(const char *program_pattern, const char *pattern)
{
	bool is_spoken_of = false, has_left = false;
	for (int i = 0; i < case_count; i++) {
		if (!cases[i].program || !program_matches(&cases[i], program_pattern))
			continue;
		is_spoken_of = true;
		if (fnmatch(pattern, cases[i].name, 0) != 0)
			continue;
		has_left = true;
		cases[i].program = NULL;
		left_out++;
	}
	return has_left || !is_spoken_of;
}

/* Lines are `emulator program/case: reason`, each of the three words a pattern of the shell's; # is
 * a comment. */
static void leave_out_listed(void)
{
	for (char *line = strtok(emulated_text, "\n"); line; line = strtok(NULL, "\n")) {
		char name[NAME_MAX_BYTES], program[NAME_MAX_BYTES], pattern[NAME_MAX_BYTES];
		char reason[2];
		if (*line == '#')
			continue;
		if (sscanf(line, "%119[^ ] %119[^/ ]/%119[^: ]: %1s", name, program, pattern,
			   reason) != 4)
			print_failure("emulated.list", line, "not `emulator program/case: reason`",
				      "");
		else if (fnmatch(name, emulator_name, 0) == 0 && !leave_out(program, pattern))
			print_failure("emulated.list", line, "leaves out no case", "");
	}
	int kept = 0;
	for (int i = 0; i < case_count; i++)
		if (cases[i].program)
			cases[kept++] = cases[i];
	case_count = kept;
}

static char *read_list(const char *path)
{
	FILE *f = fopen(path, "r");
	char *text = NULL;
	size_t capacity = 0;
	if (!f)
		die(path);
	if (getdelim(&text, &capacity, 0, f) < 0)
		text = NULL;
	fclose(f);
	return text;
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

static const char *read_options(int argc, char **argv)
{
	const char *pattern = NULL;
	int option;
	while ((option = getopt(argc, argv, "s:j:vt:w:r:u:e:n:l:")) != -1) {
		if (option == 'e')
			read_emulator(optarg);
		if (option == 'n')
			emulator_name = optarg;
		if (option == 'l')
			emulated_text = read_list(optarg);
		if (option == 's')
			skips_text = read_list(optarg);
		if (option == 'u')
			unable_text = read_list(optarg);
		if (option == 'w')
			launcher = optarg;
		if (option == 'r')
			restriction = optarg;
		if (option == 'j')
			job_count = atoi(optarg);
		if (option == 'v')
			is_verbose = true;
		if (option == 't')
			pattern = optarg;
		if (option == '?')
			exit(2);
	}
	if (!launcher != !restriction) {
		fprintf(stderr, "runner: -w and -r go together\n");
		exit(2);
	}
	if (!emulator_name != !emulated_text || (launcher && emulator_count)) {
		fprintf(stderr, "runner: -n and -l go together, and -w does not go with -e\n");
		exit(2);
	}
	if (job_count < 1 || job_count > JOBS_MAX)
		job_count = 2;
	return pattern;
}

int main(int argc, char **argv)
{
	const char *pattern = read_options(argc, argv);
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	double slow = (double)environment_number("CODEHEAP_TEST_SLOW", 1);
	long storm_ms = environment_number("CODEHEAP_TEST_STORM_MS", STORM_ORDINARY_MS);
	double extra_s =
		storm_ms > STORM_ORDINARY_MS ? (double)(storm_ms - STORM_ORDINARY_MS) / 1e3 : 0;
	double started = now_s();
	for (int i = optind; i < argc; i++)
		list_program(argv[i], slow, extra_s);
	if (pattern)
		keep_wanted(pattern);
	else if (emulated_text)
		leave_out_listed();
	run_all(false);
	run_all(true);
	if (is_verbose)
		printf("%d cases in %.1f s\n", case_count, now_s() - started);
	if (restriction)
		printf("unable %d under %s\n", unable, restriction);
	if (emulator_name)
		printf("left out %d under %s\n", left_out, emulator_name);
	printf("skipped %d: %s\n", skipped, skipped_names ? skipped_names : "none");
	printf("%d passed, %d failed\n", passed, failed);
	return failed || !(passed + skipped);
}
