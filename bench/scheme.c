/* SPDX-License-Identifier: MIT
 * scheme.c: rows of the reference VM, measured by running the built program: the price of living in
 * the heap (against the same emitter in a bump arena), the gain by the JIT, the interpreter beside
 * TinyScheme, and a start from an image. Where the program is not built, the rows say so. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { RUNS = 5, PROGRAMS = 4, PATH = 512, COPIES = 2000 };

static char scheme[PATH], folder[PATH];

static const struct bench_goal tax_time_goal = {'<', 1.03, BENCH_OF_PEER},
			       tax_bytes_goal = {'<', 1.3, BENCH_OF_PEER},
			       speedup_goal = {'>', 5, BENCH_OF_OURS},
			       tinyscheme_goal = {'>', 1, BENCH_OF_OURS},
			       image_goal = {'<', 1, BENCH_OF_PEER},
			       metadata_goal = {'<', 1, BENCH_OF_OURS};

/* Each defines (run); the repetitions make the steady state outweigh start and warm-up. */
static const struct {
	const char *name, *text;
	int slow, fast; /* repetitions for interpreters, and for compiled code */
} programs[PROGRAMS] = {
	{"fib",
	 "(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))\n"
	 "(define (run) (fib 24))\n",
	 8, 60},
	{"tak",
	 "(define (tak x y z) (if (not (< y x)) z (tak (tak (- x 1) y z) (tak (- y 1) z x) "
	 "(tak (- z 1) x y))))\n(define (run) (tak 16 10 5))\n",
	 8, 60},
	{"count",
	 "(define (count n sum) (if (= n 0) sum (count (- n 1) (+ sum 1))))\n"
	 "(define (run) (count 300000 0))\n",
	 8, 120},
	{"ack",
	 "(define (ack m n) (cond ((= m 0) (+ n 1)) ((= n 0) (ack (- m 1) 1)) "
	 "(else (ack (- m 1) (ack m (- n 1))))))\n(define (run) (ack 2 60))\n",
	 40, 400},
};

static void write_program(int i, int repetitions, const char *suffix, const char *tail, char *path)
{
	bench_format(path, PATH, "%s/%s%s.scm", folder, programs[i].name, suffix);
	FILE *file = fopen(path, "w");
	if (!file)
		bench_die("cannot write a program");
	fprintf(file,
		"%s(define (again n) (if (> n 0) (begin (run) (again (- n 1)))))\n(again %d)\n%s",
		programs[i].text, repetitions, tail);
	fclose(file);
}

/* Writes enough copies of each procedure to make the fixed part of the records small. All copies
 * are in use at the end (calls), or none was called. */
static void write_many(int copies, bool calls, char *path)
{
	bench_format(path, PATH, "%s/%s%d.scm", folder, calls ? "called" : "many", copies);
	FILE *file = fopen(path, "w");
	if (!file)
		bench_die("cannot write a program");
	for (int i = 0; i < copies; i++)
		fprintf(file,
			"(define (fib%d n) (if (< n 2) n (+ (fib%d (- n 1)) (fib%d (- n 2)))))\n"
			"(define (sum%d n s) (if (= n 0) s (sum%d (- n 1) (+ s n))))\n"
			"(define (both%d) (fib%d 12) (sum%d 200 0))\n",
			i, i, i, i, i, i, i, i);
	fprintf(file, "(define (all) 0");
	for (int i = 0; i < copies; i++)
		fprintf(file, "%s(both%d)", i % 8 ? " " : "\n", i);
	fprintf(file, ")\n%s", calls ? "(all)\n(all)\n(write (code-stats))(newline)\n" : "");
	fclose(file);
}

/* As bench_command_s. The output goes to a file. */
static double run_command(const char *command)
{
	char line[3 * PATH];
	bench_format(line, sizeof line, "exec timeout -s KILL 60 %s >%s/out 2>&1", command, folder);
	return bench_command_s(line);
}

static double run_scheme(const char *mode, const char *path)
{
	char command[3 * PATH];
	bench_format(command, sizeof command, "%s %s %s", scheme, mode, path);
	return run_command(command);
}

/* A number that (code-stats) of the last program printed as (name . number) or "name":number; NAN
 * if missing. */
static double code_stat(const char *name)
{
	char out[PATH + 8], text[16384];
	bench_format(out, sizeof out, "%s/out", folder);
	FILE *file = fopen(out, "r");
	size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
	if (file)
		fclose(file);
	text[bytes] = 0;
	const char *at = strstr(text, name);
	if (!at)
		return NAN;
	at += strlen(name);
	while (*at && !(*at >= '0' && *at <= '9') && *at != '\n' && *at != ')')
		at++;
	return *at >= '0' && *at <= '9' ? strtod(at, NULL) : NAN;
}

/* --- rows --- */

static void rows_absent(const char *why)
{
	bench_absent("metadata_per_code", "ratio", metadata_goal, why);
	bench_absent("tax_time", "s", tax_time_goal, why);
	bench_absent("tax_bytes", "B", tax_bytes_goal, why);
	bench_absent("jit_speedup", "x", speedup_goal, why);
	bench_absent("interp_tinyscheme", "x", tinyscheme_goal, why);
	bench_absent("image_start", "s", image_goal, why);
}

/* Bytes of a piece of code: how many are made, and made again after a collection, is chance. */
static double bytes_a_piece(const char *bytes)
{
	return code_stat(bytes) / code_stat("(blocks-compiled");
}

static void tax_rows(void)
{
	struct bench_runs time = {0}, bytes = {.count = 1, .peer_count = 1};
	struct bench_runs metadata = {.count = 1};
	char path[PROGRAMS][PATH], stats[PATH];
	for (int i = 0; i < PROGRAMS; i++)
		write_program(i, programs[i].fast * 4, "-tax", "", path[i]);
	write_many(0, true, stats);
	run_scheme("--jit", stats);
	double code = -code_stat("(code-bytes-now"), records = -code_stat("(metadata-bytes-now");
	write_many(COPIES, true, stats);
	run_scheme("--jit", stats);
	code += code_stat("(code-bytes-now");
	records += code_stat("(metadata-bytes-now");
	bytes.ours[0] = bytes_a_piece("(bytes-opened");
	run_scheme("--arena", stats);
	bytes.peer[0] = bytes_a_piece("(arena-bytes");
	for (int r = 0; r < RUNS; r++) {
		double jit = 0, bump = 0;
		for (int i = 0; i < PROGRAMS; i++) {
			jit += run_scheme("--jit", path[i]);
			bump += run_scheme("--arena", path[i]);
		}
		time.ours[time.count++] = jit;
		time.peer[time.peer_count++] = bump;
	}
	metadata.ours[0] = records / code;
	if (isnan(metadata.ours[0]))
		bench_absent("metadata_per_code", "ratio", metadata_goal,
			     "(code-stats) gives no code and metadata bytes");
	else
		bench_emit("metadata_per_code", "ratio", &metadata, NULL, metadata_goal,
			   "6,000 procedures in use, less what an empty program has");
	if (isnan(time.ours[0]) || isnan(time.peer[0]))
		bench_absent("tax_time", "s", tax_time_goal, "scheme --jit or --arena failed");
	else
		bench_emit("tax_time", "s", &time, "scheme --arena", tax_time_goal,
			   "processor time of fib, tak, count, ack");
	if (isnan(bytes.ours[0]) || isnan(bytes.peer[0]))
		bench_absent("tax_bytes", "B", tax_bytes_goal,
			     "(code-stats) gives no bytes or pieces of code");
	else
		bench_emit("tax_bytes", "B", &bytes, "scheme --arena", tax_bytes_goal,
			   "a piece of code, with room for stubs");
}

/* The slowest program counts: the goal holds for each program. */
static void speedup_row(void)
{
	struct bench_runs runs = {0};
	char path[PATH];
	for (int r = 0; r < RUNS; r++) {
		double least = INFINITY;
		for (int i = 0; i < PROGRAMS; i++) {
			write_program(i, programs[i].slow * 4, "-interp", "", path);
			double interp = run_scheme("--interp", path) / (programs[i].slow * 4);
			write_program(i, programs[i].fast * 4, "-jit", "", path);
			double jit = run_scheme("--jit", path) / (programs[i].fast * 4);
			double gain = interp / jit;
			if (isnan(gain)) {
				bench_absent("jit_speedup", "x", speedup_goal,
					     "scheme --interp or --jit failed");
				return;
			}
			least = fmin(least, gain);
		}
		runs.ours[runs.count++] = least;
	}
	bench_emit("jit_speedup", "x", &runs, NULL, speedup_goal,
		   "--interp / --jit, the least of fib, tak, count, ack");
}

static void tinyscheme_row(void)
{
	struct bench_runs runs = {0};
	char path[PATH], command[2 * PATH];
	if (system("command -v tinyscheme >/dev/null 2>&1") != 0) {
		bench_absent("interp_tinyscheme", "x", tinyscheme_goal,
			     "tinyscheme is not installed");
		return;
	}
	for (int r = 0; r < RUNS; r++) {
		double least = INFINITY;
		for (int i = 0; i < 2; i++) {
			write_program(i, programs[i].slow * 2, "-tiny", "", path);
			double ours = run_scheme("--interp", path);
			bench_format(command, sizeof command, "tinyscheme %s", path);
			double theirs = run_command(command);
			least = fmin(least, theirs / ours);
			if (isnan(theirs / ours)) {
				bench_absent("interp_tinyscheme", "x", tinyscheme_goal,
					     "scheme --interp or tinyscheme failed");
				return;
			}
		}
		runs.ours[runs.count++] = least;
	}
	bench_emit("interp_tinyscheme", "x", &runs, NULL, tinyscheme_goal,
		   "TinyScheme's time / --interp's, the lesser of fib and tak");
}

static void image_row(void)
{
	struct bench_runs runs = {0};
	char source[PATH], compile[3 * PATH], load[3 * PATH], save[3 * PATH];

	write_many(COPIES, false, source);
	bench_format(save, sizeof save, "%s --save=%s/image %s", scheme, folder, source);
	bench_format(compile, sizeof compile, "%s %s -e '(both7)'", scheme, source);
	bench_format(load, sizeof load, "%s --load=%s/image -e '(both7)'", scheme, folder);
	bool failed = isnan(run_command(save));
	for (int r = 0; r < RUNS; r++) {
		runs.ours[runs.count] = run_command(load);
		runs.peer[runs.count] = run_command(compile);
		failed |= isnan(runs.ours[r]) || isnan(runs.peer[r]);
		runs.peer_count = ++runs.count;
	}
	if (failed)
		bench_absent("image_start", "s", image_goal, "scheme --save or --load failed");
	else
		bench_emit("image_start", "s", &runs, "compiled from source", image_goal,
			   "processor time of a process: 6,000 procedures loaded, one called");
}

void bench_scheme(void)
{
	const char *build = getenv("CODEHEAP_BUILD");
	bench_format(scheme, sizeof scheme, "%s/scheme", build ? build : "build");
	if (access(scheme, X_OK)) {
		rows_absent("build/scheme is not built");
		return;
	}
	bench_format(folder, sizeof folder, "/tmp/codeheap-bench-XXXXXX");
	if (!mkdtemp(folder))
		bench_die("mkdtemp");
	alarm(900);
	tax_rows();
	speedup_row();
	tinyscheme_row();
	image_row();
	char command[PATH + 16];
	bench_format(command, sizeof command, "rm -r '%s'", folder);
	if (system(command) != 0)
		fprintf(stderr, "bench: %s stays\n", folder);
}
