/* SPDX-License-Identifier: MIT
 * python.c: rows of hosts/python, measured by its bench.py in the installed CPython: the cost of a
 * function's own trampoline beside a frame evaluation hook that only forwards, and beside
 * trampolines that are never freed. Where hosts/python is not built, the rows say so. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
	const char *name, *unit, *peer;
	struct bench_goal goal;
	const char *note;
} rows[] = {
	{"python_call",
	 "ns",
	 "a hook that forwards",
	 {'<', 1.05, BENCH_OF_PEER},
	 "an empty function, called 3,000,000 times"},
	{"python_call_unhooked", "ns", "no hook", {0}, "which CPython calls in one evaluator"},
	{"python_call_profiled",
	 "ns",
	 "not profiled",
	 {'<', 1.1, BENCH_OF_PEER},
	 "the same while a profile samples its thread"},
	{"python_exec",
	 "us",
	 "a hook that forwards",
	 {'<', 1.1, BENCH_OF_PEER},
	 "500,000 x exec of a definition and its call"},
	{"python_exec_collected",
	 "us",
	 "a hook that forwards",
	 {0},
	 "the same, each trampoline made and collected (reuse off)"},
	{"python_exec_kept",
	 "us",
	 "never freed, a model of CPython 3.12",
	 {0},
	 "the same, reuse off"},
	{"python_memory",
	 "KiB",
	 "never freed, a model of CPython 3.12",
	 {0},
	 "growth by 500,000 definitions; the peer's records included"},
	{"python_memory_collected",
	 "KiB",
	 "never freed, a model of CPython 3.12",
	 {0},
	 "the same, reuse off"},
};
enum { ROWS = sizeof rows / sizeof *rows };

static void absent(const char *why)
{
	for (int i = 0; i < ROWS; i++)
		bench_absent(rows[i].name, rows[i].unit, rows[i].goal, why);
}

/* "NAME OURS PEER", a run of one row. */
static void take_line(const char *line, struct bench_runs *runs)
{
	char name[64];
	double ours, peer;
	if (sscanf(line, "%63s %lf %lf", name, &ours, &peer) != 3)
		return;
	for (int i = 0; i < ROWS; i++)
		if (!strcmp(name, rows[i].name) && runs[i].count < BENCH_RUNS_MAX) {
			runs[i].ours[runs[i].count++] = ours;
			runs[i].peer[runs[i].peer_count++] = peer;
		}
}

void bench_python(void)
{
	static struct bench_runs runs[ROWS];
	char folder[256], command[640], line[256];
	const char *build = getenv("CODEHEAP_BUILD");
	bench_format(folder, sizeof folder, "%s/python", build ? build : "build");
	if (access("/usr/bin/python3.11", X_OK) || access(folder, R_OK)) {
		absent("there is no python3.11, or `make python` was not run");
		return;
	}
	bench_format(command, sizeof command,
		     "PYTHONPATH=%s exec timeout -s KILL 145 /usr/bin/python3.11 "
		     "hosts/python/bench.py",
		     folder);
	FILE *output = popen(command, "r");
	if (!output)
		bench_die("cannot run bench.py");
	while (fgets(line, sizeof line, output))
		take_line(line, runs);
	bool is_done = pclose(output) == 0;
	for (int i = 0; i < ROWS; i++) {
		if (is_done && runs[i].count)
			bench_emit(rows[i].name, rows[i].unit, &runs[i], rows[i].peer, rows[i].goal,
				   rows[i].note);
		else
			bench_absent(rows[i].name, rows[i].unit, rows[i].goal, "bench.py failed");
	}
}
