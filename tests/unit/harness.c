/* SPDX-License-Identifier: MIT
 * harness.c: the harness and the runner, tested with themselves. A case that must fail fails under
 * its name, and a case that must pass passes. The probe_ cases misbehave on purpose, and are listed
 * only when CODEHEAP_TEST_PROBE is set. */
#define _GNU_SOURCE
#include "tests/support/harness.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char report[20000];

/* Writes the text to a new file; mkstemp replaces the XXXXXX at the end of the path. */
static void write_file(char *path, const char *text)
{
	int fd = mkstemp(path);
	CHECK(fd >= 0);
	CHECK_EQ(dprintf(fd, "%s\n", text), strlen(text) + 1);
	close(fd);
}

/* The path of this program; the runner is in the same folder. */
static void find_self(char self[1000])
{
	ssize_t length = readlink("/proc/self/exe", self, 999);
	CHECK(length > 0);
	self[length] = 0;
}

/* Starts the runner with the given arguments and leaves the runner's output in `report`. */
__attribute__((format(printf, 1, 2))) static int run_runner(const char *format, ...)
{
	char command[4000], self[1000], arguments[2500];
	va_list args;
	va_start(args, format);
	CHECK((size_t)vsnprintf(arguments, sizeof arguments, format, args) < sizeof arguments);
	va_end(args);
	find_self(self);
	snprintf(command, sizeof command,
		 "CODEHEAP_TEST_SLOW=1 CODEHEAP_TEST_STORM_MS=1 CODEHEAP_TEST_PROBE=1 "
		 "\"%.*s/runner\" %s 2>&1",
		 (int)(strrchr(self, '/') - self), self, arguments);
	FILE *f = popen(command, "r");
	CHECK(f);
	size_t bytes = fread(report, 1, sizeof report - 1, f);
	report[bytes] = 0;
	int status = pclose(f);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Runs one of the probe cases of this program under a strict runner. */
static int run_probe_with(const char *options, const char *name, const char *row)
{
	char self[1000], list[] = "/tmp/codeheap_list_XXXXXX";
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	find_self(self);
	write_file(list, row);
	int status = run_runner("-l %s -S -e '%s' %s -t '%s' \"%s\"", list,
				emulator ? emulator : "", options, name, self);
	unlink(list);
	return status;
}

static int run_probe(const char *name, const char *row)
{
	return run_probe_with("", name, row);
}

/* Runs a program that cannot run by itself: a text with two cases, of which `bad` fails. The
 * emulator of the program is a shell, and the list's name of the emulator is "shell". */
static int run_emulated(const char *list_line, const char *more)
{
	char program[] = "/tmp/codeheap_cases_XXXXXX", list[] = "/tmp/codeheap_list_XXXXXX";
	write_file(program, "[ $# = 0 ] && { echo 'good 5 0 -'; echo 'bad 5 0 -'; exit; }\n"
			    "[ $1 = good ]");
	write_file(list, list_line);
	int status = run_runner("-e '/bin/sh -u' -n shell -l %s %s %s", list, more, program);
	unlink(program);
	unlink(list);
	return status;
}

#define CHECK_REPORT(text)                                                   \
	do {                                                                 \
		if (!strstr(report, text))                                   \
			FAIL("no \"%s\" in this report:\n%s", text, report); \
	} while (0)

/* A probe joins the list only on request; otherwise every run would show the probe's failure. */
#define PROBE(name_, limit_, signal_)                                                         \
	static void probe_##name_(void);                                                      \
	static struct test_case probe_case_##name_ = {"probe_" #name_, probe_##name_, limit_, \
						      signal_,         "-",           NULL};  \
	__attribute__((constructor)) static void probe_add_##name_(void)                      \
	{                                                                                     \
		if (getenv("CODEHEAP_TEST_PROBE"))                                            \
			test_add(&probe_case_##name_);                                        \
	}                                                                                     \
	static void probe_##name_(void)

PROBE(hangs, 1, 0)
{
	for (;;)
		pause();
}
PROBE(hangs_with_signals_blocked_and_a_child, 1, 0)
{
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	fork();
	for (;;)
		pause();
}
static void sleep_for_ever(void)
{
	for (;;)
		pause();
}
static void stay_stopped(void)
{
	raise(SIGSTOP);
}
static void spin_for_ever(void)
{
	for (volatile int i = 0;; i = !i)
		continue;
}
/* Spins for longer than the limit of the probe. */
static void spin_for_a_while(void)
{
	for (uint64_t end = now_ns() + UINT64_C(5000000000); now_ns() < end;)
		continue;
}
/* Calls act in a grandchild with its own session, out of reach of a signal to the case's group. */
static void do_far_away(void (*act)(void))
{
	pid_t child = fork_child();
	if (!child) {
		CHECK(setsid() > 0);
		child = fork_child();
		if (!child) {
			act();
			_exit(0);
		}
		expect_exit(child, 0);
		_exit(0);
	}
	expect_exit(child, 0);
}
PROBE(spins, 1, 0)
{
	spin_for_ever();
}
PROBE(sleeps_far_away, 1, 0)
{
	do_far_away(sleep_for_ever);
}
PROBE(stays_stopped_far_away, 1, 0)
{
	do_far_away(stay_stopped);
}
PROBE(spins_far_away, 1, 0)
{
	do_far_away(spin_for_ever);
}
/* A look of the runner in the middle of a fork finds nobody that could run, and counts all of the
 * second before. The limit has room for two such looks. */
PROBE(spins_far_away_for_a_while, 3, 0)
{
	do_far_away(spin_for_a_while);
}
PROBE(skips, 5, 0)
{
	skip("a probe");
}
PROBE(checks_wrong, 5, 0)
{
	CHECK_EQ(2 + 2, 5);
}
static void *check_wrong_on_thread(void *unused)
{
	(void)unused;
	CHECK(!"reached");
	return NULL;
}
PROBE(checks_wrong_on_thread, 5, 0)
{
	pthread_t thread;
	pthread_create(&thread, NULL, check_wrong_on_thread, NULL);
	for (;;)
		pause();
}
PROBE(traps_unasked, 5, 0)
{
	raise(SIGTRAP);
}
PROBE(lives_on, 5, SIGTRAP)
{
}
PROBE(dies_of_another, 5, SIGTRAP)
{
	abort();
}
PROBE(passes, 5, 0)
{
}

TEST(hang_is_failure_with_name)
{
	CHECK_EQ(run_probe("probe_hangs", ""), 1);
	CHECK_REPORT("not ok probe_hangs #");
	CHECK_REPORT("no end after 1 s");
	CHECK_REPORT("0 passed, 1 failed\n");
}

/* Each process of a hanging probe holds the pipe's write end. The read returns when all have
 * ended. */
static void expect_hangs(const char *name, const char *sums)
{
	int ends[2];
	char byte;
	CHECK_EQ(pipe(ends), 0);
	CHECK_EQ(run_probe(name, ""), 1);
	CHECK_REPORT(sums);
	close(ends[1]);
	CHECK_EQ(read(ends[0], &byte, 1), 0);
	close(ends[0]);
}

TEST(hang_with_blocked_signals_ends_with_its_children)
{
	expect_hangs("probe_hangs_with_signals_blocked_and_a_child", "0 passed, 1 failed\n");
}

TEST(endless_loop_is_failure_with_name)
{
	CHECK_EQ(run_probe("probe_spins", ""), 1);
	CHECK_REPORT("not ok probe_spins #");
	CHECK_REPORT("no end after 1 s");
}

TEST(hang_of_a_grandchild_is_failure_and_ends_with_the_case)
{
	expect_hangs("probe_*_far_away", "0 passed, 3 failed\n");
	CHECK_REPORT("not ok probe_sleeps_far_away #");
	CHECK_REPORT("not ok probe_stays_stopped_far_away #");
	CHECK_REPORT("not ok probe_spins_far_away #");
}

/* All processes started later share one processor with endless loops, which end with the case. Each
 * loop has its own session: a kernel that groups by sessions gives all loops of one session
 * together no more time than the probe. */
static void crowd_the_processor(void)
{
	enum { LOOPS = 8 };
	cpu_set_t all, one;
	int at = 0;
	CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
	while (!CPU_ISSET(at, &all))
		at++;
	CPU_ZERO(&one);
	CPU_SET(at, &one);
	CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
	for (int i = 0; i < LOOPS; i++) {
		pid_t loop = fork_child();
		if (!loop) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			setsid();
			spin_for_ever();
		}
	}
}

TEST(case_that_waits_for_a_processor_is_not_killed)
{
	crowd_the_processor();
	CHECK_EQ(run_probe("probe_spins_far_away_for_a_while", ""), 0);
	CHECK_REPORT("1 passed, 0 failed\n");
}

TEST(case_that_waits_too_long_for_a_processor_is_killed)
{
	crowd_the_processor();
	CHECK_EQ(run_probe_with("-W 1", "probe_spins", ""), 1);
	CHECK_REPORT("no end after 1 s and all that it may wait for a processor, killed");
}

TEST(skip_not_listed_is_failure)
{
	CHECK_EQ(run_probe("probe_skips", "unit_harness/probe_skip | skip | another one"), 1);
	CHECK_REPORT("skipped 0: none\n0 passed, 1 failed\n");
}

TEST(skip_listed_without_reason_is_failure)
{
	CHECK_EQ(run_probe("probe_skips", "unit_harness/probe_skips | skip |"), 1);
	CHECK_REPORT("not `program/case,case | where | why`");
	CHECK_REPORT("skipped, but not in the table of skips");
	CHECK_REPORT("0 passed, 2 failed\n");
}

TEST(skip_listed_is_counted_by_name)
{
	CHECK_EQ(run_probe("probe_skips", "unit_harness/probe_skips | skip | a reason"), 0);
	CHECK_REPORT("skipped 1: probe_skips\n0 passed, 0 failed\n");
}

TEST(wrong_check_names_file_line_and_values)
{
	CHECK_EQ(run_probe("probe_checks_wrong", ""), 1);
	CHECK_REPORT("tests/unit/harness.c:");
	CHECK_REPORT("2 + 2 == 5: 4 (0x4) and 5 (0x5)");
}

TEST(wrong_check_on_thread_ends_the_case)
{
	CHECK_EQ(run_probe("probe_checks_wrong_on_thread", ""), 1);
	CHECK_REPORT("reached");
	CHECK_REPORT("exit 1");
}

TEST(trap_unasked_is_failure)
{
	CHECK_EQ(run_probe("probe_traps_unasked", ""), 1);
	CHECK_REPORT("died of");
}

TEST(trap_expected_but_alive_is_failure)
{
	CHECK_EQ(run_probe("probe_lives_on", ""), 1);
	CHECK_REPORT("should have killed it");
}

TEST(trap_expected_but_another_signal_is_failure)
{
	CHECK_EQ(run_probe("probe_dies_of_another", ""), 1);
}

TEST(pass_is_counted)
{
	CHECK_EQ(run_probe("probe_passes", ""), 0);
	CHECK_REPORT("skipped 0: none\n1 passed, 0 failed\n");
}

TEST(unknown_name_is_error)
{
	CHECK_EQ(run_probe("probe_of_no_such_name", ""), 2);
}

TEST(emulator_runs_every_case_that_its_list_keeps)
{
	CHECK_EQ(run_emulated("# nothing", ""), 1);
	CHECK_REPORT("not ok bad #");
	CHECK_REPORT("left out 0 under shell\nskipped 0: none\n1 passed, 1 failed\n");
	CHECK_EQ(run_emulated("codeheap_cases_*/bad | other | a reason", ""), 1);
	CHECK_REPORT("left out 0 under shell\nskipped 0: none\n1 passed, 1 failed\n");
}

TEST(emulator_leaves_out_what_its_list_names)
{
	CHECK_EQ(run_emulated("codeheap_cases_*/b* | sh* | a reason", ""), 0);
	CHECK_REPORT("left out 1 under shell\nskipped 0: none\n1 passed, 0 failed\n");
	CHECK_EQ(run_emulated("codeheap_cases_*/bad | shell | a reason", "-t bad"), 1);
	CHECK_REPORT("0 passed, 1 failed\n");
}

TEST(emulator_list_without_reason_or_case_is_failure)
{
	CHECK_EQ(run_emulated("codeheap_cases_*/bad | shell |", ""), 1);
	CHECK_REPORT("not `program/case,case | where | why`");
	CHECK_EQ(run_emulated("codeheap_cases_*/none | shell | a reason", ""), 1);
	CHECK_REPORT("names no case");
	CHECK_EQ(run_emulated("other_program/none | shell | a reason\n"
			      "codeheap_cases_*/bad | shell | a reason",
			      ""),
		 0);
}

TEST(row_of_the_table_has_several_programs_cases_and_places)
{
	const char *row = "other/* codeheap_cases_*/good,b* | here shell | a reason";
	CHECK_EQ(run_emulated(row, ""), 1); /* nothing is left */
	CHECK_REPORT("left out 2 under shell\nskipped 0: none\n0 passed, 0 failed\n");
	CHECK_EQ(run_emulated("codeheap_cases_*/bad,none | shell | a reason", ""), 1);
	CHECK_REPORT("/none # ");
	CHECK_REPORT("1 passed, 1 failed\n");
}

TEST(rows_of_every_place_name_cases_where_that_is_asked_for)
{
	const char *rows = "codeheap_cases_*/bad | shell | a reason\n"
			   "codeheap_cases_*/none | other | a reason";
	CHECK_EQ(run_emulated(rows, ""), 0);
	CHECK_EQ(run_emulated(rows, "-x"), 1);
	CHECK_REPORT("/none # ");
}

TEST(table_answers_which_cases_it_has)
{
	char list[] = "/tmp/codeheap_list_XXXXXX";
	write_file(list, "one/a*,b | skip mdwe | it is so\ntwo.sh/a | skip | never");
	CHECK_EQ(run_runner("-l %s -q skip folder/one a ab b c", list), 0);
	CHECK_STR(report, "a: it is so\nab: it is so\nb: it is so\n");
	CHECK_EQ(run_runner("-l %s -q mdwe two.sh a", list), 1);
	CHECK_STR(report, "");
	unlink(list);
}

/* Runs a program with two cases; `needs` fails when $few is set. The launcher is env, and the
 * restriction is the launcher's argument few=1. */
static int run_restricted(const char *row)
{
	char program[] = "/tmp/codeheap_cases_XXXXXX", list[] = "/tmp/codeheap_list_XXXXXX";
	write_file(program,
		   "#!/bin/sh\n[ $# = 0 ] && { echo 'any 5 0 -'; echo 'needs 5 0 -'; exit; }\n"
		   "[ $1 = any ] || [ -z $few ]");
	CHECK_EQ(chmod(program, 0700), 0);
	write_file(list, row);
	int status = run_runner("-l %s -w /usr/bin/env -r few=1 %s", list, program);
	unlink(list);
	unlink(program);
	return status;
}

TEST(restricted_case_of_the_table_has_to_fail)
{
	CHECK_EQ(run_restricted("codeheap_cases_*/needs | few=* | a reason"), 0);
	CHECK_REPORT("unable 1 under few=1\nskipped 0: none\n1 passed, 0 failed\n");
	CHECK_EQ(run_restricted("codeheap_cases_*/any | few=* | a reason"), 1);
	CHECK_REPORT("not ok any #");
	CHECK_REPORT("not ok needs #");
}

/* Runs a shell script as a program of cases. The script finds a new folder in $folder, where the
 * runner keeps the logs of failed cases, too. */
static char folder[] = "/tmp/codeheap_again_XXXXXX";
static int run_script(const char *text, const char *options)
{
	char program[] = "/tmp/codeheap_cases_XXXXXX";
	strcpy(strrchr(folder, '_'), "_XXXXXX");
	CHECK(mkdtemp(folder));
	setenv("folder", folder, 1);
	write_file(program, text);
	int status = run_runner("-e /bin/sh -a %s %s %s", folder, options, program);
	unlink(program);
	return status;
}

static void read_kept(const char *name, char *text, size_t bytes)
{
	char path[200];
	snprintf(path, sizeof path, "%s/%s.log", folder, name);
	FILE *f = fopen(path, "r");
	CHECK(f);
	text[fread(text, 1, bytes - 1, f)] = 0;
	fclose(f);
}

static void remove_folder(void)
{
	char command[200];
	snprintf(command, sizeof command, "rm -r %s", folder);
	CHECK_EQ(system(command), 0);
}

TEST(failed_case_is_tried_again_behind_all_others)
{
	char kept[1000];
	CHECK_EQ(run_script("[ $# = 0 ] && { echo 'odd 60 0 -'; echo 'last 60 0 alone'; exit; }\n"
			    "[ $1 = last ] && exec touch $folder/ended\n"
			    "echo it says so; [ -e $folder/ended ]",
			    "-j 1"),
		 0);
	CHECK_REPORT("again odd # ");
	CHECK_REPORT("passed again odd # exit 1, then passed at try 2: ");
	CHECK_REPORT("unsteady 1: odd\n2 passed, 0 failed\n");
	CHECK(!strstr(report, "not ok"));
	read_kept("odd", kept, sizeof kept);
	CHECK(strstr(kept, "it says so\n"));
	remove_folder();
}

TEST(case_that_fails_three_times_has_failed_once)
{
	CHECK_EQ(run_script("[ $# = 0 ] && { echo 'bad 60 0 -'; exit; }\n"
			    "echo x >>$folder/tries; echo try $(wc -l <$folder/tries); exit 1",
			    ""),
		 1);
	CHECK_REPORT("not ok bad #");
	CHECK_REPORT("    try 1\n");
	CHECK_REPORT("skipped 0: none\n0 passed, 1 failed\n");
	char kept[2000];
	read_kept("bad", kept, sizeof kept);
	CHECK(strstr(kept, "try 3\n"));
	CHECK(!strstr(kept, "try 4\n"));
	remove_folder();
}

TEST(more_than_five_failures_are_final)
{
	CHECK_EQ(run_script(
			 "[ $# = 0 ] && { for n in 1 2 3 4 5 6; do echo n$n 60 0 -; done; exit; }\n"
			 "[ -e $folder/$1 ] && exit; touch $folder/$1; exit 1",
			 ""),
		 1);
	CHECK_REPORT("none of 6 failed cases is tried again");
	CHECK_REPORT("not ok n6 #");
	CHECK_REPORT("0 passed, 6 failed\n");
	remove_folder();
}

TEST(five_unsteady_cases_pass)
{
	CHECK_EQ(
		run_script("[ $# = 0 ] && { for n in 1 2 3 4 5; do echo n$n 60 0 -; done; exit; }\n"
			   "[ -e $folder/$1 ] && exit; touch $folder/$1; exit 1",
			   "-j 1"),
		0);
	CHECK_REPORT("unsteady 5: n1 n2 n3 n4 n5\n5 passed, 0 failed\n");
	remove_folder();
}

TEST(timed_case_runs_only_where_it_is_asked_for)
{
	const char *text =
		"[ $# = 0 ] && { echo 'soon 60 0 timed'; echo 'sure 60 0 -'; exit; }\ntrue";
	CHECK_EQ(run_script(text, ""), 0);
	CHECK_REPORT("timed 1: make check-timed\nskipped 0: none\n1 passed, 0 failed\n");
	remove_folder();
	CHECK_EQ(run_script(text, "-v -c"), 0);
	CHECK_REPORT("ok soon #");
	CHECK_REPORT("1 passed, 0 failed\n");
	remove_folder();
	CHECK_EQ(run_script(text, "-v -t soon"), 0);
	CHECK_REPORT("ok soon #");
	CHECK_REPORT("1 passed, 0 failed\n");
	remove_folder();
}

TEST(skip_not_listed_is_named_with_its_reason)
{
	CHECK_EQ(run_script("[ $# = 0 ] && { echo 'late 60 0 -'; exit; }\n"
			    "echo no mounts here; exit 77",
			    ""),
		 0);
	CHECK_REPORT("not in the table of skips: late: no mounts here\n");
	CHECK_REPORT("skipped 1: late\n0 passed, 0 failed\n");
	remove_folder();
}

TEST(runner_without_standard_input_runs_its_cases)
{
	CHECK_EQ(run_script("[ $# = 0 ] && { echo 'reads 60 0 -'; exit; }\n! read -r line", "<&-"),
		 0);
	CHECK_REPORT("1 passed, 0 failed\n");
	remove_folder();
}

TEST(slowest_cases_are_named)
{
	CHECK_EQ(run_script("[ $# = 0 ] && { echo 'a 60 0 -'; echo 'b 70 0 -'; exit; }\n"
			    "[ $1 = a ] || sleep 2",
			    "-L 1"),
		 0);
	const char *line = strstr(report, "slow ");
	CHECK(line && !strstr(line + 1, "\nslow "));
	CHECK(strstr(line, " s of 70, "));
	remove_folder();
}

/* The script and its children hold the write end of a pipe; reading ends with the last of them. */
TEST(runner_that_is_ended_ends_what_it_started)
{
	char self[1000], program[] = "/tmp/codeheap_script_XXXXXX", byte;
	int ends[2], status;
	write_file(program, "[ $# = 0 ] && { echo 'waits 60 0 -'; exit; }\n"
			    "(while :; do sleep 1; done) &\necho >&9\nwait");
	CHECK_EQ(pipe(ends), 0);
	find_self(self);
	strcpy(strrchr(self, '/'), "/runner");
	pid_t runner = fork_child();
	if (!runner) {
		dup2(ends[1], 9);
		close(ends[0]);
		close(ends[1]);
		execl(self, self, "-e", "/bin/sh", program, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	CHECK_EQ(read(ends[0], &byte, 1), 1);
	CHECK_EQ(kill(runner, SIGTERM), 0);
	CHECK_EQ(waitpid(runner, &status, 0), runner);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	CHECK_EQ(read(ends[0], &byte, 1), 0); /* returns when no process has the write end open */
	unlink(program);
}

TEST_TRAPS(trap_expected_passes, SIGTRAP)
{
	raise(SIGTRAP);
}

static void die_with_text(void *text)
{
	dprintf(STDERR_FILENO, "%s", (const char *)text);
	abort();
}

TEST(expect_signal_sees_signal_and_text)
{
	char text[100];
	expect_signal(die_with_text, (void *)(uintptr_t) "", SIGABRT);
	expect_signal_text(die_with_text, (void *)(uintptr_t) "last words", SIGABRT, text,
			   sizeof text);
	CHECK_STR(text, "last words");
}

static pthread_t helper;
static void note_thread(void *arg)
{
	volatile char deep[1 << 20];
	deep[0] = 1;
	helper = pthread_self();
	*(int *)arg += deep[0];
}

TEST(ended_thread_is_another_and_has_room)
{
	int runs = 0;
	run_on_ended_thread(note_thread, &runs);
	CHECK_EQ(runs, 1);
	CHECK(!pthread_equal(helper, pthread_self()));
}

TEST(random_repeats_with_its_seed)
{
	setenv("CODEHEAP_TEST_SEED", "12345", 1);
	struct test_random a = test_random_new(), b = test_random_new();
	bool seen[7] = {false};
	for (int i = 0; i < 1000; i++) {
		uint64_t n = test_random_below(&a, 7);
		CHECK_EQ(n, test_random_below(&b, 7));
		CHECK(n < 7);
		seen[n] = true;
	}
	for (int i = 0; i < 7; i++)
		CHECK(seen[i]);
}

TEST(storm_is_cut_by_environment)
{
	setenv("CODEHEAP_TEST_STORM_MS", "1000", 1);
	CHECK_EQ(storm_ms(), 1000);
	CHECK_EQ(storm_ms_of(30000), 1000);
	setenv("CODEHEAP_TEST_STORM_MS", "600000", 1);
	CHECK_EQ(storm_ms(), 5000);
	CHECK_EQ(storm_ms_of(30000), 30000);
}
