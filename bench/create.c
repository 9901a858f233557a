/* SPDX-License-Identifier: MIT
 * create.c: the row of a heap's creation, in a process that has had a heap: the first heap also
 * makes the process's allocator. */
#include "bench/bench.h"

enum { RUNS = 15, HEAPS = 20 };

void bench_create(void)
{
	struct bench_runs runs = {.count = RUNS};
	struct bench_heap *first = bench_heap_open(NULL);
	for (int r = 0; r < RUNS; r++) {
		double ns = 0;
		for (int i = 0; i < HEAPS; i++) {
			struct ch_heap *heap;
			double start = bench_cpu_ns();
			bench_ok(ch_heap_create(NULL, &heap), "heap_create");
			ns += bench_cpu_ns() - start;
			bench_ok(ch_heap_destroy(heap), "heap_destroy");
		}
		runs.ours[r] = ns / HEAPS / 1000;
	}
	bench_emit("heap_create", "us", &runs, NULL, (struct bench_goal){'<', 100, BENCH_OF_OURS},
		   "all defaults; a process's further heaps");
	bench_heap_close(first);
}
