/* SPDX-License-Identifier: MIT
 * walk.c: the row of backtraces: 200 frames, code and C in turn, by frame pointers and by tables,
 * beside glibc's backtrace and a bare walk. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <execinfo.h>
#include <math.h>

enum { RUNS = 9, DEPTH = 100, FRAMES = 2 * DEPTH, MOST = FRAMES + 64 };

static struct bench_heap *bench;
static const void *pcs[MOST];

/* A frame's share of one walk; NAN when the walk missed some frames. */
static double time_walks(size_t (*walk)(void), int loops)
{
	size_t frames = walk();
	double start = bench_cpu_ns();
	for (int i = 0; i < loops; i++)
		frames = walk();
	double time = (bench_cpu_ns() - start) / loops;
	return frames >= FRAMES ? time / (double)frames : NAN;
}

static size_t by_frames(void)
{
	return ch_backtrace(bench->heap, CH_BACKTRACE_FRAMES, NULL, pcs, MOST);
}

static size_t by_tables(void)
{
	return ch_backtrace(bench->heap, CH_BACKTRACE_TABLES, NULL, pcs, MOST);
}

static size_t by_glibc(void)
{
	return (size_t)backtrace((void **)(uintptr_t)pcs, MOST);
}

/* A walk without guards, bounded by the number of frames. */
static size_t by_nothing(void)
{
	const uintptr_t *record = __builtin_frame_address(0);
	size_t n = 0;
	for (; n < FRAMES; record = (const uintptr_t *)record[0])
		pcs[n++] = (const void *)record[1];
	return n;
}

static struct bench_runs frames, tables;

static void measure(void)
{
	frames.ours[frames.count++] = time_walks(by_frames, 2000);
	frames.limit[frames.limit_count++] = time_walks(by_nothing, 2000);
	tables.ours[tables.count++] = time_walks(by_tables, 50);
	tables.peer[tables.peer_count++] = time_walks(by_glibc, 50);
	frames.peer[frames.peer_count++] = tables.peer[tables.peer_count - 1];
}

void bench_frame_walk(void)
{
	bench = bench_heap_open(NULL);
	bench_descent_make(bench);
	for (int i = 0; i < RUNS; i++)
		bench_descend(DEPTH, measure);
	bench_emit("frame_walk", "ns", &frames, "glibc backtrace",
		   (struct bench_goal){'<', 2, BENCH_OF_OURS},
		   "a frame of 200, half of them code; the limit is a walk without guards");
	bench_emit("frame_walk_tables", "ns", &tables, "glibc backtrace",
		   (struct bench_goal){0, 0, BENCH_OF_PEER}, "the same 200 frames");
	bench_heap_close(bench);
}
