/* SPDX-License-Identifier: MIT
 * pressure.c: rows of a program whose live code nearly fills its pool: methods are defined anew and
 * called at random, and a call compiles a method without code. The measure is how many calls run
 * code, beside the same program with room for everything, beside a heap that discards all code when
 * it is full, and beside code that is only written and called. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
	SMALL = 4 << 20,
	LARGE = 64 << 20,
	TURNS = 50000,
	CALLS = 8, /* for each definition */
	RUNS = 9,
	CODE_MOST = 200,
};

static uint8_t pattern[CODE_MOST];

struct program {
	struct bench_heap *bench;
	bool flushes; /* instead of collecting */
	struct ch_owner *methods;
	const void *const **cells;
	uint32_t slots;
	uint64_t random, flushes_done;
};

static uint32_t random_bytes(uint64_t *random)
{
	return 40 + bench_random(random) % 160;
}

/* --- one heap --- */

static void define(struct program *p, uint32_t slot)
{
	p->methods[slot] = bench_owner(p->bench, "method");
	p->cells[slot] = ch_owner_cell(p->methods[slot]);
}

/* Throws all code away; the next call of a method compiles the method again. */
static void flush(struct program *p)
{
	bench_ok(ch_vm_discard(p->bench->heap, p->bench->vm, NULL, NULL), "vm_discard");
	p->flushes_done++;
}

static void compile(struct program *p, uint32_t slot)
{
	uint32_t bytes = random_bytes(&p->random);
	struct ch_open open = {.size = sizeof open, .owner = p->methods[slot], .hot_bytes = bytes};
	struct ch_code code;
	enum ch_status status = ch_block_open(&open, &code);
	if (status == CH_E_FULL && p->flushes) {
		flush(p);
		status = ch_block_open(&open, &code);
	}
	if (status == CH_E_FULL)
		return;
	bench_ok(status, "block_open");
	memcpy(code.write, pattern, bytes);
	code.used_to = bytes;
	bench_ok(ch_block_commit(&code, 1), "block_commit");
	bench_ok(ch_owner_set_entry(p->methods[slot], code.block), "set_entry");
}

/* Calls that ran code, in millions a second of processor time. A method without room is
 * interpreted, and compiled at a later call. */
static double rate(struct program *p, uint32_t turns)
{
	uint32_t ran = 0;
	/* A poll serves each heap of the thread: so the thread has one at a time. */
	bench_ok(ch_thread_attach(p->bench->heap, NULL, NULL), "thread_attach");
	double start = bench_cpu_ns();
	for (uint32_t i = 0; i < turns; i++) {
		uint32_t slot = bench_random(&p->random) % p->slots;
		bench_ok(ch_owner_release(p->methods[slot], CH_RELEASE_COLLECT), "release");
		define(p, slot);
		compile(p, slot);
		for (int k = 0; k < CALLS; k++) {
			slot = bench_random(&p->random) % p->slots;
			if (*p->cells[slot] == bench_fallback())
				compile(p, slot);
			if (*p->cells[slot] == bench_fallback())
				continue;
			((void (*)(void))(uintptr_t)*p->cells[slot])();
			ran++;
		}
		if (!p->flushes)
			ch_thread_poll();
	}
	double time = bench_cpu_ns() - start;
	bench_ok(ch_thread_detach(p->bench->heap), "thread_detach");
	return ran * 1e3 / time;
}

static struct program open_program(size_t pool_bytes, uint32_t slots, bool flushes)
{
	struct ch_config config;
	ch_config_init(&config);
	config.pool_bytes = pool_bytes;
	struct program p = {
		.bench = bench_heap_open(&config), .flushes = flushes, .slots = slots, .random = 7};
	p.methods = calloc(slots, sizeof *p.methods);
	p.cells = calloc(slots, sizeof *p.cells);
	if (!p.methods || !p.cells)
		bench_die("no memory");
	for (uint32_t i = 0; i < slots; i++) {
		define(&p, i);
		compile(&p, i);
	}
	bench_ok(ch_thread_detach(p.bench->heap), "thread_detach");
	return p;
}

static void close_program(struct program *p)
{
	bench_ok(ch_thread_attach(p->bench->heap, NULL, NULL), "thread_attach");
	bench_heap_close(p->bench);
	free(p->methods);
	free(p->cells);
}

/* --- the limit: a bump arena, written over from its start, without any record --- */

static double bare_rate(uint8_t *arena, const uint8_t **entries, uint32_t slots, uint64_t *random)
{
	uint32_t ran = 0;
	size_t at = 0;
	double start = bench_cpu_ns();
	for (uint32_t i = 0; i < TURNS; i++) {
		uint32_t slot = bench_random(random) % slots, bytes = random_bytes(random);
		if (at + bytes > LARGE)
			at = 0;
		memcpy(arena + at, pattern, bytes);
		entries[slot] = arena + at;
		at += bytes;
		for (int k = 0; k < CALLS; k++) {
			slot = bench_random(random) % slots;
			((void (*)(void))(uintptr_t)entries[slot])();
			ran++;
		}
	}
	return ran * 1e3 / (bench_cpu_ns() - start);
}

/* --- the rows --- */

void bench_pressure(void)
{
	memset(pattern, 0xc3, sizeof pattern);
	/* Enough methods to fill 1/1.1 of the small pool with live blocks. */
	struct program probe = open_program(LARGE, 10000, false);
	uint32_t slots =
		(uint32_t)(SMALL / 1.1 * 10000 / (double)bench_stats(probe.bench).code_bytes_now);
	close_program(&probe);
	struct program tight = open_program(SMALL, slots, false),
		       wide = open_program(LARGE, slots, false),
		       flushing = open_program(SMALL, slots, true);
	uint8_t *arena = mmap(NULL, LARGE, PROT_READ | PROT_WRITE | PROT_EXEC,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const uint8_t **entries = calloc(slots, sizeof *entries);
	if (arena == MAP_FAILED || !entries)
		bench_die("no memory that is writable and executable");
	memset(arena, 0xc3, LARGE);
	for (uint32_t i = 0; i < slots; i++)
		entries[i] = arena + i * CODE_MOST;
	uint64_t random = 7;
	rate(&tight, TURNS);
	rate(&wide, TURNS);
	rate(&flushing, TURNS);
	struct bench_runs room = {0}, flush_all = {0};
	for (int r = 0; r < RUNS; r++) {
		double ours = rate(&tight, TURNS), limit;
		room.ours[room.count++] = flush_all.ours[flush_all.count++] = ours;
		room.peer[room.peer_count++] = rate(&wide, TURNS);
		flush_all.peer[flush_all.peer_count++] = rate(&flushing, TURNS);
		limit = bare_rate(arena, entries, slots, &random);
		room.limit[room.limit_count++] = flush_all.limit[flush_all.limit_count++] = limit;
	}
	struct ch_stats stats = bench_stats(tight.bench);
	char note[128];
	bench_format(note, sizeof note,
		     "calls; 4 MiB = 1.1 x live; %lu cycles, %lu opens without room",
		     (unsigned long)stats.cycles, (unsigned long)stats.opens_full);
	bench_emit("pressure", "M/s", &room, "the same program in 64 MiB",
		   (struct bench_goal){'>', 0.5, BENCH_OF_PEER}, note);
	bench_format(note, sizeof note, "%lu times; a compiler here is a memcpy",
		     (unsigned long)flushing.flushes_done);
	bench_emit("pressure_flush", "M/s", &flush_all, "ch_vm_discard when it is full",
		   (struct bench_goal){'>', 1, BENCH_OF_PEER}, note);
	close_program(&tight);
	close_program(&wide);
	close_program(&flushing);
	free(entries);
	munmap(arena, LARGE);
}
