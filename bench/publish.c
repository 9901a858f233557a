/* SPDX-License-Identifier: MIT
 * publish.c: the cost of telling the world about code: a commit with sinks on less a commit
 * without, a throw elsewhere while the pool is full, and the death of named blocks. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK_BYTES = 192, BATCH = 32, BATCHES = 400, BLOCKS = BATCH * BATCHES, RUNS = 11 };

static uint8_t pattern[4096];

/* --- sinks and their files, which stay when their heap goes --- */

enum { SINKS_MOST = 8 };

static char folder[64]; /* of jitdump's file */
static char paths[SINKS_MOST][128];

static void make_folder(void)
{
	bench_format(folder, sizeof folder, "/tmp/codeheap-bench.XXXXXX");
	if (!mkdtemp(folder))
		bench_die("mkdtemp");
}

static void remove_files(void)
{
	for (int i = 0; i < SINKS_MOST; i++)
		if (*paths[i])
			unlink(paths[i]);
	rmdir(folder);
}

/* Opens a heap with all wanted sinks of this build and this machine. The library refuses unknown
 * bits. */
static struct bench_heap *open_told(unsigned wanted, unsigned *on)
{
	struct ch_config config;
	ch_config_init(&config);
	config.sinks = CH_SINK_NONE;
	config.jitdump_dir = folder;
	struct bench_heap *bench = bench_heap_open(&config);
	*on = 0;
	for (int i = 0; i < SINKS_MOST; i++) {
		const char *path = "";
		unsigned bit = 1u << i;
		if (!(wanted & bit) || ch_sink_set(bench->heap, *on | bit) != CH_OK)
			continue;
		*on |= bit;
		ch_sink_status(bench->heap, (enum ch_sink)bit, &path, NULL);
		bench_format(paths[i], sizeof paths[i], "%s", path);
	}
	bench_ok(ch_sink_set(bench->heap, *on ? *on : CH_SINK_NONE), "sink_set");
	return bench;
}

static void print_sinks(struct bench_heap *bench, const char *what, char *text, size_t bytes)
{
	static const char *const names[SINKS_MOST] = {"unwind", "perfmap", "jitdump", "gdb",
						      "libunwind"};
	struct ch_stats stats = {.size = sizeof stats};
	char on[80] = "";
	bench_ok(ch_heap_stats(bench->heap, &stats), "heap_stats");
	for (int i = 0; i < SINKS_MOST; i++)
		if (names[i] && (stats.sinks_on & 1u << i))
			strcat(strcat(on, *on ? "," : ""), names[i]);
	bench_format(text, bytes, "%s; %s", what, *on ? on : "none");
}

static void flush_sinks(struct bench_heap *bench)
{
	if (ch_sink_flush(bench->heap) == CH_OK)
		return;
	for (unsigned bit = 1; bit < 1u << SINKS_MOST; bit <<= 1) {
		int failed = 0;
		ch_sink_status(bench->heap, (enum ch_sink)bit, NULL, &failed);
		if (failed)
			fprintf(stderr, "bench: sink %u: %s\n", bit, strerror(failed));
	}
	bench_die("a sink failed");
}

/* --- publish --- */

/* Opens, writes and commits, batch by batch. is_shown: also makes and writes the images that no
 * debugger asked for. ns a block. */
static double publish(struct bench_heap *bench, bool is_shown)
{
	static struct ch_code codes[BATCH];
	static struct ch_owner owners[BATCHES];
	double start = bench_cpu_ns();
	for (int b = 0; b < BATCHES; b++) {
		owners[b] = bench_owner(bench, "scm::procedure program.scm:17");
		struct ch_open open = {
			.size = sizeof open, .owner = owners[b], .hot_bytes = BLOCK_BYTES};
		for (int i = 0; i < BATCH; i++) {
			bench_ok(ch_block_open(&open, &codes[i]), "block_open");
			memcpy(codes[i].write, pattern, BLOCK_BYTES);
			codes[i].used_to = BLOCK_BYTES;
		}
		bench_ok(ch_block_commit(codes, BATCH), "block_commit");
	}
	if (is_shown)
		flush_sinks(bench);
	double time = bench_cpu_ns() - start;
	for (int b = 0; b < BATCHES; b++)
		bench_ok(ch_owner_release(owners[b], CH_RELEASE_NOT_RUNNING), "owner_release");
	flush_sinks(bench);
	return time / BLOCKS;
}

static void publish_row(const char *name, unsigned sinks, bool is_shown, struct bench_goal goal)
{
	struct bench_runs runs = {.is_of_best = sinks & (CH_SINK_PERF_MAP | CH_SINK_JITDUMP)};
	/* Two times of the same work may differ by 1 ns. */
	static const double finest_ns = 1;
	unsigned on, off;
	struct bench_heap *none = open_told(0, &off), *told = open_told(sinks, &on);
	/* No peer writes lines or records of code, or tells libunwind. */
	bool has_frames = on & CH_SINK_UNWIND;
	bool has_symfiles = on & CH_SINK_GDB;
	char note[128];
	print_sinks(told,
		    is_shown ? "batches of 32, 192 B, over no sinks; images made"
		    : sinks == CH_SINK_PERF_MAP
			    ? "batches of 32, 192 B, over no sinks, the last write left out"
			    : "batches of 32, 192 B, over no sinks",
		    note, sizeof note);
	if (!on) {
		bench_absent(name, "ns/block", goal, "no such sink here");
		goto close;
	}
	publish(none, is_shown);
	publish(told, is_shown);
	for (int r = 0; r < RUNS; r++) {
		double without = publish(none, is_shown);
		double more = publish(told, is_shown) - without;
		runs.ours[r] = more > finest_ns ? more : finest_ns;
		runs.peer[r] = 0;
		if (has_frames)
			runs.peer[r] += peer_frames_ns(pattern, BLOCK_BYTES, BLOCKS);
		if (has_symfiles)
			runs.peer[r] += peer_symfiles_ns(pattern, BLOCK_BYTES, BLOCKS);
	}
	runs.count = RUNS;
	runs.peer_count = has_frames || has_symfiles ? RUNS : 0;
	bench_emit(name, "ns/block", &runs,
		   !runs.peer_count ? NULL
		   : !has_symfiles  ? "one __register_frame a block"
		   : !has_frames    ? "one GDB symfile a block"
				    : "one __register_frame and one GDB symfile a block",
		   goal, note);
close:
	bench_heap_close(told);
	bench_heap_close(none);
}

void bench_publish(void)
{
	static const struct bench_goal no_goal = {0};
	memset(pattern, 0xc3, sizeof pattern);
	make_folder();
	/* The libunwind sink needs the library. Local: the program's unwinder stays. */
	dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
	publish_row("publish_unwind", CH_SINK_UNWIND, false,
		    (struct bench_goal){'<', 20, BENCH_OF_OURS});
	publish_row("publish_libunwind", CH_SINK_LIBUNWIND, false, no_goal);
	publish_row("publish_perf_map", CH_SINK_PERF_MAP, false, no_goal);
	publish_row("publish_jitdump", CH_SINK_JITDUMP, false, no_goal);
	publish_row("publish_gdb", CH_SINK_GDB, false, no_goal);
	publish_row("publish_gdb_shown", CH_SINK_GDB, true, no_goal);
	publish_row("publish_all", ~0u, false, (struct bench_goal){'<', 500, BENCH_OF_OURS});
	remove_files();
}

/* --- a throw in code that is not JIT code --- */

/* Blocks of a quarter page until the pool has no room. */
static uint64_t fill_pool(struct bench_heap *bench)
{
	uint64_t blocks = 0;
	struct ch_owner owner = bench_owner(bench, "full");
	struct ch_open open = {
		.size = sizeof open, .owner = owner, .hot_bytes = sizeof pattern - 64};
	for (;; blocks++) {
		struct ch_code code;
		enum ch_status status = ch_block_open(&open, &code);
		if (status == CH_E_FULL)
			return blocks;
		bench_ok(status, "block_open");
		memcpy(code.write, pattern, open.hot_bytes);
		code.used_to = open.hot_bytes;
		bench_ok(ch_block_commit(&code, 1), "block_commit");
	}
}

void bench_throw(void)
{
	enum { THROWS = 20000 };
	static const struct bench_goal goal = {'<', 1.2, BENCH_OF_PEER};
	struct bench_runs runs = {0};
	struct ch_stats stats = {0};
	char note[128];
	memset(pattern, 0xc3, sizeof pattern);
	bench_throw_ns(THROWS);
	for (int r = 0; r < RUNS; r++) {
		double without = bench_throw_ns(THROWS);
		struct bench_heap *bench = bench_heap_open(NULL);
		fill_pool(bench);
		stats = bench_stats(bench);
		bench_throw_ns(THROWS / 10); /* the unwinder sorts new tables once */
		runs.ours[r] = bench_throw_ns(THROWS);
		runs.peer[r] = without;
		bench_heap_close(bench);
	}
	runs.count = runs.peer_count = RUNS;
	bench_format(note, sizeof note, "%lu blocks, %.0f MiB committed",
		     (unsigned long)stats.blocks_now,
		     (double)stats.committed_bytes_now / (1 << 20));
	bench_emit("throw_elsewhere", "ns", &runs, "the same throw before there is a heap", goal,
		   note);
}

/* --- withdraw --- */

/* is_first: an owner more for each hundred, which stays: how the system takes whole chunks back is
 * not measured. */
static void make_named(struct bench_heap *bench, struct ch_owner *owners, int count, bool is_first)
{
	enum { OF_AN_OWNER = 10, OF_A_KEEPER = 100 };
	for (int i = 0; i < count; i++) {
		owners[i] = bench_owner(bench, "scm::procedure program.scm:17");
		for (int k = 0; k < OF_AN_OWNER; k++)
			bench_ok(ch_owner_set_entry(owners[i], bench_block(owners[i], BLOCK_BYTES)),
				 "set_entry");
		if (!is_first || i % OF_A_KEEPER)
			continue;
		struct ch_owner keeper = bench_owner(bench, "keeper");
		bench_ok(ch_owner_set_entry(keeper, bench_block(keeper, BLOCK_BYTES)), "set_entry");
	}
}

static void withdraw_row(const char *name, unsigned sinks, struct bench_goal goal)
{
	enum { OWNERS = 10000 };
	static struct ch_owner owners[OWNERS];
	struct bench_runs runs = {0};
	unsigned on, off;
	struct bench_heap *of[2] = {open_told(sinks, &on), open_told(0, &off)};
	for (int r = -1; r < RUNS; r++)
		for (int i = 0; i < 2; i++) {
			struct bench_heap *bench = of[i];
			make_named(bench, owners, OWNERS, r < 0);
			flush_sinks(bench);
			uint64_t before = bench_stats(bench).blocks_freed;
			double start = bench_cpu_ns();
			for (int k = 0; k < OWNERS; k++)
				bench_ok(ch_owner_release(owners[k], CH_RELEASE_COLLECT),
					 "release");
			/* The third cycle frees never-entered blocks, the fourth ends the
			 * quarantine. */
			for (int k = 0; k < 4; k++)
				bench_ok(ch_heap_collect(bench->heap), "collect");
			double each = (bench_cpu_ns() - start) /
				      (double)(bench_stats(bench).blocks_freed - before);
			if (r >= 0)
				*(i ? &runs.limit[r] : &runs.ours[r]) = each;
		}
	runs.count = runs.limit_count = RUNS;
	bench_emit(name, "ns/block", &runs, "limit: the same without sinks", goal,
		   "192 B, 10 blocks an owner; release and whole collections");
	bench_heap_close(of[1]);
	bench_heap_close(of[0]);
}

void bench_withdraw(void)
{
	make_folder();
	withdraw_row("withdraw", CH_SINK_UNWIND, (struct bench_goal){'<', 100, BENCH_OF_OURS});
	withdraw_row("withdraw_names", CH_SINK_UNWIND | CH_SINK_PERF_MAP,
		     (struct bench_goal){'<', 120, BENCH_OF_OURS});
	withdraw_row("withdraw_all", ~0u, (struct bench_goal){0});
	remove_files();
}
