/* SPDX-License-Identifier: MIT
 * runner_lists.c: which cases run, and which may skip themselves: the runner's lists and patterns.
 */
#define _GNU_SOURCE
#include "tests/runner.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct test_case cases[CASES_MAX];
int case_count;

void die(const char *what)
{
	perror(what);
	exit(2);
}

const char *base_of(const char *path)
{
	const char *base = strrchr(path, '/');
	return base ? base + 1 : path;
}

char *read_list(const char *path)
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

bool is_listed(const char *list, const char *name)
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

bool is_unable(const char *list, const char *restriction, const struct test_case *t)
{
	char key[4 * NAME_MAX_BYTES];
	if (!restriction)
		return false;
	snprintf(key, sizeof key, "%s %s", restriction, t->name);
	if (is_listed(list, key))
		return true;
	snprintf(key, sizeof key, "%s %s/%s", restriction, base_of(t->program), t->name);
	return is_listed(list, key);
}

/* A case that is left out has no program any more. */
static void drop_left_out(void)
{
	int kept = 0;
	for (int i = 0; i < case_count; i++)
		if (cases[i].program)
			cases[kept++] = cases[i];
	case_count = kept;
}

static bool is_wanted(const struct test_case *t, const char *pattern)
{
	const char *base = base_of(t->program);
	size_t stem = strcspn(base, ".");
	return strcmp(t->name, pattern) == 0 || fnmatch(pattern, t->name, 0) == 0 ||
	       (strlen(pattern) == stem && strncmp(base, pattern, stem) == 0);
}

void keep_wanted(const char *pattern)
{
	for (int i = 0; i < case_count; i++)
		if (!is_wanted(&cases[i], pattern))
			cases[i].program = NULL;
	drop_left_out();
	if (case_count)
		return;
	fprintf(stderr, "no test case or program is named %s\n", pattern);
	exit(2);
}

int keep_timed(bool wants_timed, const char *pattern)
{
	int gone = 0;
	for (int i = 0; i < case_count; i++) {
		struct test_case *t = &cases[i];
		if (t->is_timed == wants_timed || (pattern && strcmp(t->name, pattern) == 0))
			continue;
		t->program = NULL;
		gone += t->is_timed;
	}
	drop_left_out();
	return gone;
}

/* Returns whether the line spoke of none of the programs, or left out a case. */
static bool leave_out(const char *program_pattern, const char *pattern, int *left_out)
{
	bool is_spoken_of = false, has_left = false;
	for (int i = 0; i < case_count; i++) {
		const char *program = cases[i].program;
		if (!program || fnmatch(program_pattern, base_of(program), 0) != 0)
			continue;
		is_spoken_of = true;
		if (fnmatch(pattern, cases[i].name, 0) != 0)
			continue;
		has_left = true;
		cases[i].program = NULL;
		++*left_out;
	}
	return has_left || !is_spoken_of;
}

/* Lines are `emulator program/case: reason`, each of the three words a pattern of the shell's; # is
 * a comment. */
int leave_out_listed(char *list, const char *emulator_name)
{
	int left_out = 0;
	for (char *line = strtok(list, "\n"); line; line = strtok(NULL, "\n")) {
		char name[NAME_MAX_BYTES], program[NAME_MAX_BYTES], pattern[NAME_MAX_BYTES];
		char reason[2];
		if (*line == '#')
			continue;
		if (sscanf(line, "%119[^ ] %119[^/ ]/%119[^: ]: %1s", name, program, pattern,
			   reason) != 4)
			print_failure("emulated.list", line, "not `emulator program/case: reason`",
				      "");
		else if (fnmatch(name, emulator_name, 0) == 0 &&
			 !leave_out(program, pattern, &left_out))
			print_failure("emulated.list", line, "leaves out no case", "");
	}
	drop_left_out();
	return left_out;
}
