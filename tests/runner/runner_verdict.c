/* SPDX-License-Identifier: MIT
 * runner_verdict.c: passed, skipped, failed or unsteady: judges the runs of cases, keeps the output
 * of failed runs, and prints the sums.
 */
#define _GNU_SOURCE
#include "tests/runner/runner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { SHOWN_BYTES = 6000 };

struct verdict_options verdict;

struct names {
	int count;
	char *text; /* separated by spaces; NULL: none */
};

static struct names skips, unsteady;
static int passed, failed, unable;

static void add_name(struct names *names, const char *name)
{
	char *text;
	if (asprintf(&text, "%s%s%s", names->text ? names->text : "", names->text ? " " : "",
		     name) < 0)
		die("asprintf");
	free(names->text);
	names->text = text;
	names->count++;
}

void print_failure(const char *program, const char *name, const char *reason, const char *output)
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

static bool has_skipped(int status)
{
	return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SKIPPED;
}

static bool may_skip(const struct test_case *t)
{
	return why_listed("skip", t->program_name, t->name) != NULL;
}

/* Returns false with the reason when the case failed. */
static bool judge(const struct test_case *t, int status, const char *late, char *reason)
{
	if (late)
		snprintf(reason, REASON_BYTES, "no end after %.0f s%s, killed", t->limit_s, late);
	else if (WIFSIGNALED(status) && WTERMSIG(status) == t->signal)
		return true;
	else if (WIFSIGNALED(status))
		snprintf(reason, REASON_BYTES, "died of %s", strsignal(WTERMSIG(status)));
	else if (has_skipped(status) && verdict.is_strict && !may_skip(t))
		snprintf(reason, REASON_BYTES, "skipped, but not in the table of skips");
	else if (has_skipped(status))
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

/* The file of a failure's output; later failures of the same name are appended. */
static void log_path(const struct test_case *t, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/%s.log", verdict.again_folder, t->name);
}

static void keep_output(const struct test_case *t, const char *reason, const char *output)
{
	char path[4096];
	log_path(t, path, sizeof path);
	FILE *f = fopen(path, "a");
	if (!f) {
		fprintf(stderr, "runner: %s: %s\n", path, strerror(errno));
		return;
	}
	fprintf(f, "== try %d: %s: %s, after %.2f s\n%s\n", t->tries, t->program, reason,
		t->seconds, output);
	fclose(f);
}

static void count_failure(struct test_case *t, const char *reason, const char *output)
{
	if (!verdict.again_folder) {
		print_failure(t->program, t->name, reason, output);
		return;
	}
	keep_output(t, reason, output);
	if (t->tries == 1) {
		t->first_output = strdup(output);
		if (!t->first_output)
			die("strdup");
		snprintf(t->first_reason, sizeof t->first_reason, "%s", reason);
	}
	t->waits = t->tries < TRIES_MAX;
	if (t->waits)
		printf("again %s # %s: %s\n", t->name, t->program, reason);
	else
		print_failure(t->program, t->name, t->first_reason, t->first_output);
}

static void count_skip(const struct test_case *t, const char *output)
{
	if (!may_skip(t))
		printf("not in the table of skips: %s: %.*s\n", t->name, (int)strcspn(output, "\n"),
		       output);
	add_name(&skips, t->name);
}

static void count_pass(const struct test_case *t)
{
	char path[4096];
	passed++;
	if (t->tries > 1) {
		log_path(t, path, sizeof path);
		printf("passed again %s # %s, then passed at try %d: %s\n", t->name,
		       t->first_reason, t->tries, path);
		add_name(&unsteady, t->name);
	} else if (verdict.is_verbose) {
		printf("ok %s # %.2f s, %.2f of a processor, %s\n", t->name, t->seconds,
		       t->processor_s, t->program);
	}
}

void count_run(struct test_case *t, int status, const char *late, const char *output)
{
	char reason[REASON_BYTES];
	bool is_right = judge(t, status, late, reason);
	t->waits = false;
	if (why_listed(verdict.restriction, t->program_name, t->name)) {
		unable++;
		if (is_right && !has_skipped(status))
			print_failure(t->program, t->name, "listed as unable, but it passes", "");
	} else if (!is_right) {
		count_failure(t, reason, output);
	} else if (has_skipped(status)) {
		count_skip(t, output);
	} else {
		count_pass(t);
	}
	fflush(stdout);
}

bool begins_again(void)
{
	int waiting = 0;
	for (int i = 0; i < case_count; i++)
		waiting += cases[i].waits;
	/* So many failures fail the run whether the cases pass alone or not. A timed case counts by
	 * the best of its tries. */
	if (waiting <= UNSTEADY_MAX || verdict.wants_timed)
		return waiting > 0;
	for (int i = 0; i < case_count; i++) {
		struct test_case *t = &cases[i];
		if (!t->waits)
			continue;
		t->waits = false;
		print_failure(t->program, t->name, t->first_reason, t->first_output);
	}
	printf("none of %d failed cases is tried again: more than %d fail the run either way\n",
	       waiting, UNSTEADY_MAX);
	return false;
}

static int compare_seconds(const void *a, const void *b)
{
	double difference =
		((const struct test_case *)b)->seconds - ((const struct test_case *)a)->seconds;
	return (difference > 0) - (difference < 0);
}

void print_slowest(int count)
{
	qsort(cases, (size_t)case_count, sizeof *cases, compare_seconds);
	for (int i = 0; i < case_count && i < count; i++)
		printf("slow %s # %.2f s of %.0f, %.2f of a processor, %s\n", cases[i].name,
		       cases[i].seconds, cases[i].limit_s, cases[i].processor_s, cases[i].program);
}

int print_sums(void)
{
	if (verdict.restriction)
		printf("unable %d under %s\n", unable, verdict.restriction);
	printf("skipped %d: %s\n", skips.count, skips.text ? skips.text : "none");
	if (unsteady.count)
		printf("unsteady %d: %s\n", unsteady.count, unsteady.text);
	printf("%d passed, %d failed\n", passed, failed);
	return failed || !(passed + skips.count);
}
