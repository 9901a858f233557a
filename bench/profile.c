/* SPDX-License-Identifier: MIT
 * profile.c: rows of the profiler: the time of a sample of 100 frames, code and C in turn, beside
 * glibc's backtrace in the same place, and the loss of a program under a running profile.
 *
 * A sample is timed in the profiler's own signals, by a handler in front of the profiler's handler.
 * The handler calls the profiler's: once with caches as the signal finds them, then some times
 * more. The goal is for the latter; the former depends on the program, and is the row beside. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <codeheap/profile.h>

#include <dlfcn.h>
#include <execinfo.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum {
	RUNS = 9,
	FRAMES = 100,
	DEPTH = 46, /* twice as many frames, and the frames of this program */
	MOST = FRAMES + 64,
	RATE = 1000,
	AGAIN = 8,
	RUN_MS = 120,
	SAMPLES_MAX = 4096,
	TURNS = 40000000,
};

static struct bench_heap *bench;

/* --- one sample --- */

static struct sigaction profilers;
/* A walk's time the first time in a signal, and warm, the mean of AGAIN. */
enum walker { OURS, GLIBC, LIBUNWIND, WALKERS };
static struct {
	double first[SAMPLES_MAX], warm[SAMPLES_MAX];
} taken[WALKERS];
static volatile int samples;
static int (*libunwind)(void **, int);

/* Returns how many frames the walk saw; ours writes its frames to a ring. */
static int walk(enum walker walker, int signal, siginfo_t *info, void *ucontext)
{
	void *pcs[MOST];
	if (walker == GLIBC)
		return backtrace(pcs, MOST);
	if (walker == LIBUNWIND)
		return libunwind ? libunwind(pcs, MOST) : 0;
	profilers.sa_sigaction(signal, info, ucontext);
	return FRAMES;
}

static void time_sample(int signal, siginfo_t *info, void *ucontext)
{
	if (samples == SAMPLES_MAX)
		return;
	for (int w = 0; w < WALKERS; w++) {
		double first = bench_wall_ns();
		int frames = walk(w, signal, info, ucontext);
		double start = bench_wall_ns();
		for (int i = 0; i < AGAIN; i++)
			walk(w, signal, info, ucontext);
		double end = bench_wall_ns();
		/* A walk that missed frames is no measure. */
		taken[w].first[samples] = frames >= FRAMES ? start - first : NAN;
		taken[w].warm[samples] = frames >= FRAMES ? (end - start) / AGAIN : NAN;
	}
	samples++;
}

static void spin(void)
{
	for (double end = bench_wall_ns() + RUN_MS * 1e6; bench_wall_ns() < end;)
		;
}

static void start_profile(unsigned rate)
{
	struct ch_profile_options options = {.size = sizeof options, .by_wall_clock = true};
	bench_ok(ch_profile_start(bench->heap, rate, &options), "profile_start");
}

static struct ch_profile_counts stop_profile(void)
{
	struct ch_profile_counts counts = {.size = sizeof counts};
	bench_ok(ch_profile_stop(bench->heap, &counts), "profile_stop");
	return counts;
}

/* The most frames of a line in the report: shows whether the profiler walked all of them. */
static int deepest_line(void)
{
	static char line[1 << 16];
	char path[64];
	int deepest = 0;
	bench_format(path, sizeof path, "/tmp/codeheap-bench-%ld.folded", (long)getpid());
	struct ch_profile_view view = {.size = sizeof view, .flags = CH_PROFILE_FOLDED};
	bench_ok(ch_profile_write(bench->heap, path, &view), "profile_write");
	FILE *file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file)) {
		int frames = 1;
		for (const char *at = line; *at; at++)
			frames += *at == ';';
		deepest = frames > deepest ? frames : deepest;
	}
	if (file)
		fclose(file);
	unlink(path);
	return deepest;
}

static void sample_row(void)
{
	struct bench_runs runs = {0}, first = {0};
	struct bench_goal goal = {'<', 1000, BENCH_OF_OURS}, no_goal = {0, 0, BENCH_OF_OURS};
	double libunwinds[RUNS];
	char note[128];
	void *library = dlopen("libunwind.so.8", RTLD_NOW);
	*(void **)(void *)&libunwind = library ? dlsym(library, "unw_backtrace") : NULL;
	void *pcs[4];
	backtrace(pcs, 4); /* loads libgcc's unwinder */
	uint64_t lost = 0;
	for (int i = 0; i < RUNS; i++) {
		struct sigaction timing = {.sa_sigaction = time_sample,
					   .sa_flags = SA_SIGINFO | SA_RESTART};
		samples = 0;
		start_profile(RATE);
		sigaction(SIGPROF, NULL, &profilers);
		sigaction(SIGPROF, &timing, NULL);
		bench_descend(DEPTH, spin);
		sigaction(SIGPROF, &profilers, NULL);
		lost += stop_profile().dropped;
		runs.ours[runs.count++] = bench_median(taken[OURS].warm, samples);
		runs.peer[runs.peer_count++] = bench_median(taken[GLIBC].warm, samples);
		first.ours[first.count++] = bench_median(taken[OURS].first, samples);
		first.peer[first.peer_count++] = bench_median(taken[GLIBC].first, samples);
		libunwinds[i] = bench_median(taken[LIBUNWIND].warm, samples);
	}
	int frames = deepest_line();
	if (lost || frames < FRAMES) {
		bench_format(note, sizeof note, "%lu samples lost, %d frames seen",
			     (unsigned long)lost, frames);
		bench_absent("profile_sample", "ns", goal, note);
		return;
	}
	bench_format(note, sizeof note,
		     "wall; the handler, %d frames, half of them code; libunwind %.0f", frames,
		     bench_median(libunwinds, RUNS));
	bench_emit("profile_sample", "ns", &runs, "glibc backtrace", goal, note);
	bench_emit("profile_sample_first", "ns", &first, "glibc backtrace", no_goal,
		   "wall; the first one in a signal: cold caches");
}

/* --- the loss of a program --- */

static double process_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double work_ns;

static void work(void)
{
	double start = process_ns();
	for (volatile int i = 0; i < TURNS; i = i + 1)
		;
	work_ns = process_ns() - start;
}

static void cost_row(const char *name, unsigned rate, struct bench_goal goal)
{
	struct bench_runs runs = {.is_of_best = true};
	for (int i = 0; i < RUNS; i++) {
		bench_descend(DEPTH, work);
		runs.peer[runs.peer_count++] = work_ns / 1e6;
		start_profile(rate);
		bench_descend(DEPTH, work);
		runs.ours[runs.count++] = work_ns / 1e6;
		stop_profile();
	}
	bench_emit(name, "ms", &runs, "not sampled", goal,
		   "processor time of the process: work at 100 frames, sampled by wall clock");
}

void bench_profile(void)
{
	bench = bench_heap_open(NULL);
	bench_descent_make(bench);
	sample_row();
	cost_row("profile_running_100", 100, (struct bench_goal){'<', 1.02, BENCH_OF_PEER});
	cost_row("profile_running_1000", 1000, (struct bench_goal){0, 0, BENCH_OF_PEER});
	bench_heap_close(bench);
}
