/* SPDX-License-Identifier: MIT
 * code.c: code without an owner: one piece is freed and another made, while so many are alive. The
 * limit is a list of free slots in memory that is writable and executable at once: the limit fills,
 * finds, names and unwinds nothing. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { BYTES = 192, MOST = 20000, PAIRS = 50000, RUNS = 9 };

static uint8_t pattern[BYTES];

/* --- slots of one size --- */

static uint8_t *slots, *next_slot;
static void *free_slot; /* the first word of each free slot leads to the next */

static void slots_open(void)
{
	slots = mmap(NULL, (size_t)(MOST + 1) * BYTES, PROT_READ | PROT_WRITE | PROT_EXEC,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (slots == MAP_FAILED)
		bench_die("no memory that is writable and executable");
	next_slot = slots;
	free_slot = NULL;
}
static void *slot_make(void)
{
	void *at = free_slot;
	if (at) {
		memcpy(&free_slot, at, sizeof free_slot);
	} else {
		at = next_slot;
		next_slot += BYTES;
	}
	return memcpy(at, pattern, BYTES);
}
static void slot_free(void *at)
{
	memcpy(at, &free_slot, sizeof free_slot);
	free_slot = at;
}

/* --- the three --- */

static struct bench_heap *bench;
static struct peer_asmjit *peer;

static void *ours_make(void)
{
	void *at;
	bench_ok(ch_code_add(bench->heap, pattern, BYTES, "code", &at), "code_add");
	return at;
}
static void ours_free(void *at)
{
	bench_ok(ch_code_free(bench->heap, at, CH_RELEASE_NOT_RUNNING), "code_free");
}
static void *peer_make(void)
{
	void *exec, *write;
	if (!peer_asmjit_alloc(peer, BYTES, &exec, &write))
		bench_die("AsmJit: no memory");
	memcpy(write, pattern, BYTES);
	return exec;
}
static void peer_free(void *at)
{
	peer_asmjit_release(peer, at);
}

/* ns a pair. All live pieces are of the same age: chance picks the next piece to go. */
static double pairs(void *(*make)(void), void (*end)(void *), int alive)
{
	static void *pieces[MOST];
	uint64_t random = 1;
	for (int i = 0; i < alive; i++)
		pieces[i] = make();
	double start = bench_cpu_ns();
	for (int i = 0; i < PAIRS; i++) {
		void **piece = &pieces[bench_random(&random) % (uint32_t)alive];
		end(*piece);
		*piece = make();
	}
	double time = bench_cpu_ns() - start;
	for (int i = 0; i < alive; i++)
		end(pieces[i]);
	return time / PAIRS;
}

static void row(const char *name, int alive, struct bench_goal goal)
{
	struct bench_runs runs = {0};
	slots_open();
	for (runs.count = 0; runs.count < RUNS; runs.count++) {
		runs.ours[runs.count] = pairs(ours_make, ours_free, alive);
		if (peer)
			runs.peer[runs.peer_count++] = pairs(peer_make, peer_free, alive);
		runs.limit[runs.limit_count++] = pairs(slot_make, slot_free, alive);
	}
	munmap(slots, (size_t)(MOST + 1) * BYTES);
	bench_emit(name, "ns/pair", &runs, peer ? peer_asmjit_name(false) : NULL,
		   goal, "192 B freed and made by address, named; limit: slots in RWX memory");
}

void bench_code(void)
{
	memset(pattern, 0xcc, sizeof pattern);
	bench = bench_heap_open(NULL);
	peer = peer_asmjit_open(false);
	const struct bench_goal goal = {'<', 1, BENCH_OF_PEER}, none = {0};
	row("code_1", 1, goal);
	row("code_5000", 5000, goal);
	row("code_20000", MOST, goal);
	/* The peer's lock changes likewise. */
	bench_have_threads();
	row("code_1_threads", 1, none);
	if (peer)
		peer_asmjit_close(peer);
	bench_heap_close(bench);
}
