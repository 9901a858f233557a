/* SPDX-License-Identifier: MIT
 * counted.c: what does not depend on the machine: the instructions of the hot paths, each some
 * thousand times between two marks for callgrind, and the bytes of side memory that a block takes,
 * in printed lines. tools/instructions.py runs this program under callgrind. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <valgrind/callgrind.h>

enum { BYTES = 192, FEW = 1000, MANY = 10000, OUT = 3, GRAPH_BYTES = 28, BATCH = 32 };

static struct bench_heap *bench;
static struct ch_owner owner;
static struct ch_owner owners[MANY];
static struct ch_block blocks[MANY], none;
static struct ch_branch branches[MANY * OUT];
static void *places[MANY];
static uint8_t pattern[BYTES];
static uint64_t random_state;

/* Drops the counts since the last mark: they belong to no path. */
static void begin(void)
{
	CALLGRIND_ZERO_STATS;
}
static void end(const char *path, uint32_t count)
{
	char text[64];
	bench_format(text, sizeof text, "%s %u", path, count);
	CALLGRIND_DUMP_STATS_AT(text);
}

/* Runs a path once before the counted run: then memory is there, and the free lists are filled. */
static void twice(void (*path)(void), const char *name, uint32_t count)
{
	path();
	begin();
	path();
	end(name, count);
}

static void open_pool(unsigned sinks, size_t bytes)
{
	struct ch_config config;
	ch_config_init(&config);
	config.sinks = sinks;
	if (bytes)
		config.pool_bytes = bytes;
	bench = bench_heap_open(&config);
	owner = bench_owner(bench, "scm::procedure program.scm:17");
	random_state = 3;
}
static void open_heap(unsigned sinks)
{
	open_pool(sinks, 0);
}
static void close_heap(void)
{
	bench_ok(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), "owner_release");
	bench_heap_close(bench);
}

/* --- a block's life --- */

static void make_blocks(void)
{
	for (uint32_t i = 0; i < MANY; i++) {
		if (i % 10 == 0)
			owners[i / 10] = bench_owner(bench, "scm::procedure program.scm:17");
		blocks[i] = bench_block(owners[i / 10], BYTES);
		bench_ok(ch_owner_set_entry(owners[i / 10], blocks[i]), "set_entry");
	}
}
static void release_blocks(enum ch_release how)
{
	for (uint32_t i = 0; i < MANY / 10; i++)
		bench_ok(ch_owner_release(owners[i], how), "owner_release");
}
/* Two cycles at most hold a block; the fourth ends the quarantine. */
static void collect(void)
{
	for (int i = 0; i < 4; i++)
		bench_ok(ch_heap_collect(bench->heap), "collect");
}

static void count_lives(unsigned sinks, const char *make, const char *release, const char *sweep)
{
	open_heap(sinks);
	make_blocks();
	release_blocks(CH_RELEASE_NOT_RUNNING);
	begin();
	make_blocks();
	end(make, MANY);
	begin();
	release_blocks(CH_RELEASE_NOT_RUNNING);
	end(release, MANY);
	collect();
	make_blocks();
	release_blocks(CH_RELEASE_COLLECT);
	begin();
	collect();
	end(sweep, MANY);
	close_heap();
}

static void free_code(void *exec)
{
	bench_ok(ch_code_free(bench->heap, exec, CH_RELEASE_NOT_RUNNING), "code_free");
}
static void make_and_free(void)
{
	for (uint32_t i = 0; i < FEW; i++) {
		bench_ok(ch_code_add(bench->heap, pattern, BYTES, "code", &places[0]), "code_add");
		free_code(places[0]);
	}
}
/* Frees one of many pieces of code and adds another. */
static void exchange(void)
{
	for (uint32_t i = 0; i < FEW; i++) {
		void **place = &places[bench_random(&random_state) % MANY];
		free_code(*place);
		bench_ok(ch_code_add(bench->heap, pattern, BYTES, "code", place), "code_add");
	}
}
static void count_code(void)
{
	open_heap(CH_SINK_NONE);
	twice(make_and_free, "code_1", FEW);
	for (uint32_t i = 0; i < MANY; i++)
		bench_ok(ch_code_add(bench->heap, pattern, BYTES, "code", &places[i]), "code_add");
	twice(exchange, "code_10000", FEW);
	for (uint32_t i = 0; i < MANY; i++)
		free_code(places[i]);
	close_heap();
}

/* The same in a full pool, by pieces of other sizes: those without room come at a later turn. */
static void crowd(void)
{
	for (uint32_t i = 0; i < FEW; i++) {
		void **place = &places[bench_random(&random_state) % MANY];
		size_t bytes = 32 + bench_random(&random_state) % (BYTES - 32);
		if (*place)
			free_code(*place);
		*place = NULL;
		enum ch_status status = ch_code_add(bench->heap, pattern, bytes, "code", place);
		if (status != CH_E_FULL)
			bench_ok(status, "code_add");
	}
}
static void count_crowded(void)
{
	open_pool(CH_SINK_NONE, 1 << 20);
	memset(places, 0, sizeof places);
	for (uint32_t i = 0; i < MANY / FEW * 3; i++)
		crowd();
	twice(crowd, "code_crowded", FEW);
	for (uint32_t i = 0; i < MANY; i++)
		if (places[i])
			free_code(places[i]);
	close_heap();
}

static void make_trampolines(void)
{
	struct ch_owner its;
	bench_ok(ch_owner_create(bench->vm, "t", bench_fallback(), NULL, &its), "owner_create");
	for (uint32_t i = 0; i < FEW; i++)
		bench_ok(ch_trampoline_make(its, CH_TRAMPOLINE_FRAMED, bench_fallback(), i, NULL,
					    NULL, &blocks[0]),
			 "trampoline_make");
	bench_ok(ch_owner_release(its, CH_RELEASE_NOT_RUNNING), "owner_release");
}

static void make_batches(void)
{
	static struct ch_code codes[BATCH];
	struct ch_owner its = bench_owner(bench, "scm::procedure program.scm:17");
	struct ch_open open = {.size = sizeof open, .owner = its, .hot_bytes = BYTES};
	for (uint32_t b = 0; b < FEW / BATCH; b++) {
		for (uint32_t i = 0; i < BATCH; i++) {
			bench_ok(ch_block_open(&open, &codes[i]), "block_open");
			codes[i].used_to = BYTES;
		}
		bench_ok(ch_block_commit(codes, BATCH), "block_commit");
	}
	bench_ok(ch_sink_flush(bench->heap), "sink_flush");
	bench_ok(ch_owner_release(its, CH_RELEASE_NOT_RUNNING), "owner_release");
	bench_ok(ch_sink_flush(bench->heap), "sink_flush");
}
static void count_told(unsigned sinks, const char *name)
{
	char kept[128];
	const char *path = "";
	open_heap(sinks);
	twice(make_batches, name, FEW / BATCH * BATCH);
	bool has_map = ch_sink_status(bench->heap, CH_SINK_PERF_MAP, &path, NULL);
	if (has_map != (sinks == CH_SINK_PERF_MAP))
		bench_die("another sink is on");
	bench_format(kept, sizeof kept, "%s", path ? path : "");
	close_heap();
	if (has_map)
		unlink(kept);
}

/* --- the graph --- */

static void find_all(void)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < MANY; i++) {
		struct ch_spot spot = {.size = sizeof spot};
		sum += ch_code_at(bench->heap, places[i], false, &spot) + spot.block.bits;
	}
	if (!sum)
		bench_die("no address is in a block");
}

static void make_graph(void)
{
	for (uint32_t i = 0; i < MANY; i++) {
		const uint8_t *exec;
		blocks[i] = bench_jumps(owner, GRAPH_BYTES, &branches[i * OUT], OUT, &exec);
		places[i] = (uint8_t *)(uintptr_t)exec + bench_random(&random_state) % GRAPH_BYTES;
	}
	bench_ok(ch_owner_set_entry(owner, blocks[0]), "set_entry");
}
static void link_all(void)
{
	for (uint32_t i = 0; i < MANY * OUT; i++)
		bench_ok(ch_branch_link(branches[i],
					i % OUT ? blocks[bench_random(&random_state) % MANY]
						: blocks[(i / OUT + 1) % MANY]),
			 "link");
}
static void unlink_all(void)
{
	for (uint32_t i = 0; i < MANY * OUT; i++)
		bench_ok(ch_branch_link(branches[i], none), "unlink");
}
static void mark(void)
{
	bench_ok(ch_heap_collect(bench->heap), "collect");
}

static void count_graph(void)
{
	open_heap(CH_SINK_NONE);
	make_graph();
	twice(find_all, "lookup", MANY);
	link_all();
	unlink_all();
	begin();
	link_all();
	end("link", MANY * OUT);
	twice(mark, "mark", MANY);
	begin();
	unlink_all();
	end("unlink", MANY * OUT);
	link_all();
	begin();
	bench_ok(ch_blocks_invalidate(blocks, MANY, NULL), "invalidate");
	end("invalidate", MANY);
	close_heap();
}

/* --- side memory: records, lists, names, tombstones --- */

static uint64_t bytes_before;

static void begin_bytes(void)
{
	bytes_before = bench_stats(bench).metadata_bytes_now;
}
/* Of the work on MANY blocks since. */
static void end_bytes(const char *what)
{
	uint64_t bytes = bench_stats(bench).metadata_bytes_now - bytes_before;
	printf("%s %ld\n", what, (long)bytes / MANY);
	begin_bytes();
}

static void count_bytes(void)
{
	open_heap(CH_SINK_NONE);
	begin_bytes();
	make_blocks();
	end_bytes("bytes_block");
	release_blocks(CH_RELEASE_NOT_RUNNING);
	end_bytes("bytes_death");
	close_heap();
	open_heap(CH_SINK_NONE);
	begin_bytes();
	for (uint32_t i = 0; i < MANY; i++) {
		char name[32];
		bench_format(name, sizeof name, "code %u", i);
		bench_ok(ch_code_add(bench->heap, pattern, BYTES, name, &places[i]), "code_add");
	}
	end_bytes("bytes_code");
	for (uint32_t i = 0; i < MANY; i++)
		free_code(places[i]);
	end_bytes("bytes_code_death");
	close_heap();
	open_heap(CH_SINK_NONE);
	begin_bytes();
	make_graph();
	end_bytes("bytes_graph");
	close_heap();
}

void bench_counted(void)
{
	memset(pattern, 0xc3, sizeof pattern);
	count_lives(CH_SINK_NONE, "make", "release", "sweep");
	count_lives(CH_SINK_UNWIND | CH_SINK_GDB, "make_told", "release_told", "sweep_told");
	count_code();
	count_crowded();
	count_told(CH_SINK_NONE, "publish_none");
	count_told(CH_SINK_UNWIND, "publish_unwind");
	count_told(CH_SINK_PERF_MAP, "publish_perf_map");
	count_told(CH_SINK_GDB, "publish_gdb");
	open_heap(CH_SINK_UNWIND);
	twice(make_trampolines, "trampoline", FEW);
	close_heap();
	count_graph();
	count_bytes();
}
