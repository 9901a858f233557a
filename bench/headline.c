/* SPDX-License-Identifier: MIT
 * headline.c: 500,000 methods defined, called once and dropped, with the unwinder and the perf map
 * told of every block: time, and resident memory from 10,000 methods on; and the cost of a
 * statistics file meanwhile. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { METHODS = 500000, SETTLED = 10000, RUNS = 5, FILE_RUNS = 9, FILE_METHODS = 1000000 };

static double resident_mib(void)
{
	unsigned long size = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%lu %lu", &size, &resident) != 2)
		bench_die("statm");
	fclose(file);
	return (double)resident * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* Block 0 jumps to block 1, which returns 1. */
static void define_and_call(struct bench_heap *bench)
{
	static const uint8_t jump[5] = {0xe9, 0, 0, 0, 0},
			     one[6] = {0xb8, 1, 0, 0, 0, 0xc3}; /* mov eax, 1; ret */
	static struct ch_code codes[2];
	struct ch_owner owner = bench_owner(bench, "test");
	struct ch_open open = {
		.size = sizeof open, .owner = owner, .hot_bytes = 60, .branch_room = 1};
	bench_ok(ch_block_open(&open, &codes[0]), "block_open");
	open.branch_room = 0;
	bench_ok(ch_block_open(&open, &codes[1]), "block_open");
	memset(codes[0].write, 0x90, 60);
	memset(codes[1].write, 0x90, 60);
	memcpy(codes[0].write + 3, jump, sizeof jump);
	memcpy(codes[1].write, one, sizeof one);
	codes[0].used_to = codes[1].used_to = 60;
	struct ch_branch branch;
	struct ch_branch_site site = {.at = codes[0].exec + 3, .kind = CH_JMP};
	bench_ok(ch_branch_attach(codes[0].block, &site, &branch), "branch_attach");
	bench_ok(ch_block_commit(codes, 2), "block_commit");
	bench_ok(ch_branch_link(branch, codes[1].block), "branch_link");
	bench_ok(ch_owner_set_entry(owner, codes[0].block), "set_entry");
	int (*const *cell)(void) = (int (*const *)(void))ch_owner_cell(owner);
	if ((*cell)() != 1)
		bench_die("the method did not return 1");
	bench_ok(ch_owner_release(owner, CH_RELEASE_COLLECT), "release");
	ch_thread_poll();
}

void bench_headline(void)
{
	struct bench_runs time = {0}, growth = {0};
	struct ch_stats stats = {0};
	static const char luajit[] =
		"luajit -e 'for i = 1, 500000 do loadstring(\"function test() return 1 end\")() "
		"test() end' >/dev/null 2>&1";
	char map[64], note[128];
	snprintf(map, sizeof map, "/tmp/perf-%ld.map", (long)getpid());
	for (int r = 0; r < RUNS; r++) {
		struct ch_config config;
		ch_config_init(&config);
		config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
		struct bench_heap *bench = bench_heap_open(&config);
		double settled = 0, start = bench_cpu_ns();
		for (int i = 0; i < METHODS; i++) {
			define_and_call(bench);
			if (i == SETTLED)
				settled = resident_mib();
		}
		time.ours[time.count++] = (bench_cpu_ns() - start) / 1e9;
		growth.ours[growth.count++] = resident_mib() - settled;
		stats = bench_stats(bench);
		bench_heap_close(bench);
		double peer = bench_command_s(luajit);
		if (!isnan(peer))
			time.peer[time.peer_count++] = peer;
	}
	unlink(map);
	snprintf(note, sizeof note, "%lu blocks opened, %lu freed, %lu cycles, pool %.1f MiB",
		 (unsigned long)stats.blocks_opened, (unsigned long)stats.blocks_freed,
		 (unsigned long)stats.cycles,
		 (double)stats.pages_peak * (double)stats.page_bytes / (1 << 20));
	bench_emit("headline", "s", &time, "LuaJIT: a process that parses text and interprets it",
		   (struct bench_goal){'<', 0.25, BENCH_OF_OURS}, note);
	bench_emit("headline_resident", "MiB", &growth, NULL,
		   (struct bench_goal){'<', 2, BENCH_OF_OURS},
		   "growth from 10,000 methods to 500,000");
}

static double seconds_of(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Two heaps take turns of some ms, so that a change of the machine's speed meets both. The file's
 * writer is a thread, and works while its heap rests, too. Turns without the file are timed by the
 * calling thread's clock, without the writer. */
static void take_turns(const char *stats_file, double *with, double *without)
{
	enum { TURNS = 100, METHODS_OF_A_TURN = FILE_METHODS / TURNS };
	struct bench_heap *benches[2];
	double seconds[2] = {0};
	for (int b = 0; b < 2; b++) {
		struct ch_config config;
		ch_config_init(&config);
		config.stats_file = b ? NULL : stats_file;
		benches[b] = bench_heap_open(&config);
	}
	for (int turn = 0; turn < 2 * TURNS; turn++) {
		clockid_t clock = turn % 2 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID;
		double start = seconds_of(clock);
		for (int i = 0; i < METHODS_OF_A_TURN; i++)
			define_and_call(benches[turn % 2]);
		seconds[turn % 2] += seconds_of(clock) - start;
	}
	if (!ch_sink_status(benches[0]->heap, CH_SINK_STATS_FILE, NULL, NULL))
		bench_die("the statistics file is off");
	for (int b = 0; b < 2; b++)
		bench_heap_close(benches[b]);
	*with = seconds[0];
	*without = seconds[1];
}

void bench_stats_file(void)
{
	struct bench_runs time = {.is_of_best = true};
	char path[64];
	bench_format(path, sizeof path, "/tmp/codeheap-bench-%ld.stats", (long)getpid());
	unsetenv("CODEHEAP_STATS");
	for (int r = 0; r < FILE_RUNS; r++)
		take_turns(path, &time.ours[time.count++], &time.peer[time.peer_count++]);
	unlink(path);
	bench_emit("stats_file", "s", &time, "the same without a statistics file",
		   (struct bench_goal){'<', 1.02, BENCH_OF_PEER},
		   "a million methods as in headline, CPU time of all threads");
}
