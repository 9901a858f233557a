/* SPDX-License-Identifier: MIT
 * unit_harness.c: the harness and the runner tested with themselves: what must fail fails under
 * its name, what must pass passes. The probe_ cases do what they should not; they are listed only
 * when CODEHEAP_TEST_PROBE is set.
 */
#include "tests/harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char report[20000];

/* Writes a file of this text; the XXXXXX at the end of its path become its name. */
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

/* Starts the runner with these arguments and leaves what it printed in `report`. */
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
		 "%.*s/runner %s 2>&1",
		 (int)(strrchr(self, '/') - self), self, arguments);
	FILE *f = popen(command, "r");
	CHECK(f);
	size_t bytes = fread(report, 1, sizeof report - 1, f);
	report[bytes] = 0;
	int status = pclose(f);
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* Runs one of this very program's probe cases under a runner of its own. */
static int run_probe(const char *name, const char *skips_line)
{
	char self[1000], skips[] = "/tmp/codeheap_skips_XXXXXX";
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	find_self(self);
	write_file(skips, skips_line);
	int status = run_runner("-s %s -e '%s' -t %s %s", skips, emulator ? emulator : "", name,
				self);
	unlink(skips);
	return status;
}

/* Runs a program that cannot run by itself, a text of two cases of which `bad` fails, behind an
 * emulator: the shell, which the list calls a shell. */
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

/* A probe joins the list only on request, or every run would show its failure. */
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

TEST(hang_with_blocked_signals_ends_with_its_children)
{
	uint64_t before = now_ns();
	CHECK_EQ(run_probe("probe_hangs_with_signals_blocked_and_a_child", ""), 1);
	CHECK_REPORT("0 passed, 1 failed\n");
	CHECK(now_ns() - before < 5000000000u);
}

TEST(skip_not_listed_is_failure)
{
	CHECK_EQ(run_probe("probe_skips", "probe_skip: another one"), 1);
	CHECK_REPORT("skipped 0: none\n0 passed, 1 failed\n");
}

TEST(skip_listed_without_reason_is_failure)
{
	CHECK_EQ(run_probe("probe_skips", "probe_skips: "), 1);
	CHECK_REPORT("0 passed, 1 failed\n");
}

TEST(skip_listed_is_counted_by_name)
{
	CHECK_EQ(run_probe("probe_skips", "probe_skips: a reason"), 0);
	CHECK_REPORT("skipped 1: probe_skips\n0 passed, 0 failed\n");
}

TEST(wrong_check_names_file_line_and_values)
{
	CHECK_EQ(run_probe("probe_checks_wrong", ""), 1);
	CHECK_REPORT("tests/unit_harness.c:");
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
	CHECK_EQ(run_emulated("other codeheap_cases_*/bad: a reason", ""), 1);
	CHECK_REPORT("left out 0 under shell\nskipped 0: none\n1 passed, 1 failed\n");
}

TEST(emulator_leaves_out_what_its_list_names)
{
	CHECK_EQ(run_emulated("sh* codeheap_cases_*/b*: a reason", ""), 0);
	CHECK_REPORT("left out 1 under shell\nskipped 0: none\n1 passed, 0 failed\n");
	CHECK_EQ(run_emulated("shell codeheap_cases_*/bad: a reason", "-t bad"), 1);
	CHECK_REPORT("0 passed, 1 failed\n");
}

TEST(emulator_list_without_reason_or_case_is_failure)
{
	CHECK_EQ(run_emulated("shell codeheap_cases_*/bad:", ""), 1);
	CHECK_REPORT("not `emulator program/case: reason`");
	CHECK_EQ(run_emulated("shell codeheap_cases_*/none: a reason", ""), 1);
	CHECK_REPORT("leaves out no case");
	CHECK_EQ(run_emulated("shell other_program/none: a reason\n"
			      "shell codeheap_cases_*/bad: a reason",
			      ""),
		 0);
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
