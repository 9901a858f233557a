/* SPDX-License-Identifier: MIT
 * runner_lists.c: which cases run: the table of cases that cannot run, and patterns.
 */
#define _GNU_SOURCE
#include "tests/runner/runner.h"

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

const char *name_of_program(const char *path)
{
	const char *behind = base_of(path);
	for (const char *at = path; (at = strstr(at, "tests/")); at++)
		if (at == path || at[-1] == '/')
			behind = at + strlen("tests/");
	char *name = strdup(behind);
	if (!name)
		die("strdup");
	for (char *slash = name; (slash = strchr(slash, '/'));)
		*slash = '_';
	return name;
}

static char *read_text(const char *path)
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

/* A pattern of the table under a single word of the line's `where` column. */
struct row {
	const char *where, *program, *name, *why;
	struct row *next;
};
static struct row *table;
static const char *table_path = "";

static char *trimmed(char *text)
{
	text += strspn(text, " \t");
	size_t length = strlen(text);
	while (length && strchr(" \t", text[length - 1]))
		text[--length] = 0;
	return text;
}

/* Adds a row for each word of `where` and each name of `names`. Returns false when `names` is not
 * `program/case,case`. */
static bool add_rows(const char *where, char *names, const char *why)
{
	char *slash = strchr(names, '/'), *place;
	if (!slash || slash == names || !slash[1])
		return false;
	*slash = 0;
	for (char *name = strtok_r(slash + 1, ",", &place); name;
	     name = strtok_r(NULL, ",", &place)) {
		char *words = strdup(where), *word_place;
		if (!words)
			die("strdup");
		for (char *word = strtok_r(words, " ", &word_place); word;
		     word = strtok_r(NULL, " ", &word_place)) {
			struct row *row = malloc(sizeof *row);
			if (!row)
				die("malloc");
			*row = (struct row){word, names, name, why, table};
			table = row;
		}
	}
	return true;
}

static bool read_line(char *line)
{
	char *where = strchr(line, '|'), *why = where ? strchr(where + 1, '|') : NULL, *place;
	if (!why)
		return false;
	*where++ = *why++ = 0;
	where = trimmed(where);
	why = trimmed(why);
	line = trimmed(line);
	bool is_right = *line && *where && *why;
	for (char *names = strtok_r(line, " ", &place); names && is_right;
	     names = strtok_r(NULL, " ", &place))
		is_right = add_rows(where, names, why);
	return is_right;
}

void read_table(const char *path)
{
	char *place, *text = read_text(path);
	table_path = path;
	for (char *line = text ? strtok_r(text, "\n", &place) : NULL; line;
	     line = strtok_r(NULL, "\n", &place)) {
		char *copy = strdup(line);
		if (!copy)
			die("strdup");
		if (*line != '#' && !read_line(line))
			print_failure(base_of(path), copy, "not `program/case,case | where | why`",
				      "");
		free(copy);
	}
}

static bool is_of(const struct row *row, const char *where)
{
	return !where || fnmatch(row->where, where, 0) == 0;
}

const char *why_listed(const char *where, const char *program, const char *name)
{
	for (const struct row *row = where ? table : NULL; row; row = row->next)
		if (is_of(row, where) && fnmatch(row->program, program, 0) == 0 &&
		    fnmatch(row->name, name, 0) == 0)
			return row->why;
	return NULL;
}

/* A left-out case has no program. */
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
	size_t stem = strcspn(t->program_name, ".");
	return strcmp(t->name, pattern) == 0 || fnmatch(pattern, t->name, 0) == 0 ||
	       (strlen(pattern) == stem && strncmp(t->program_name, pattern, stem) == 0);
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

/* Returns false when some case belongs to the row's programs, and the row names none of them. */
static bool names_a_case(const struct row *row)
{
	bool is_spoken_of = false;
	for (int i = 0; i < case_count; i++) {
		if (fnmatch(row->program, cases[i].program_name, 0) != 0)
			continue;
		is_spoken_of = true;
		if (fnmatch(row->name, cases[i].name, 0) == 0)
			return true;
	}
	return !is_spoken_of;
}

void check_table(const char *where)
{
	for (const struct row *row = table; row; row = row->next) {
		char *names;
		if (!is_of(row, where) || names_a_case(row))
			continue;
		if (asprintf(&names, "%s/%s", row->program, row->name) < 0)
			die("asprintf");
		print_failure(base_of(table_path), names, "names no case", row->why);
		free(names);
	}
}

int leave_out_listed(const char *where)
{
	int before = case_count;
	for (int i = 0; i < case_count; i++)
		if (why_listed(where, cases[i].program_name, cases[i].name))
			cases[i].program = NULL;
	drop_left_out();
	return before - case_count;
}
