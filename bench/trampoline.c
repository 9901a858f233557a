/* SPDX-License-Identifier: MIT
 * trampoline.c: the cost of a trampoline: to make, beside copying the same bytes and registering
 * one unwind table for each; from its owner's creation to its release; and to call through, beside
 * the direct call. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { MADE = 4000, COPY_BYTES = 44, CALLS = 200000, LOOPS = 10, RUNS = 9 };

/* --- make --- */

static uint64_t answer(uint64_t n)
{
	return n + 1;
}

static double register_each_ns(void)
{
	uint8_t *copies = calloc(MADE, COPY_BYTES);
	if (!copies)
		bench_die("no memory");
	double start = bench_cpu_ns();
	for (uint32_t i = 0; i < MADE; i++)
		memcpy(copies + i * COPY_BYTES, (const uint8_t *)(uintptr_t)answer, COPY_BYTES);
	double time = (bench_cpu_ns() - start) / MADE + peer_frames_ns(copies, COPY_BYTES, MADE);
	free(copies);
	return time;
}

static double make_ns(struct bench_heap *bench, struct ch_owner *owners)
{
	struct ch_block block;
	for (uint32_t i = 0; i < MADE; i++)
		owners[i] = bench_owner(bench, "trampoline");
	double start = bench_cpu_ns();
	for (uint32_t i = 0; i < MADE; i++)
		bench_ok(ch_trampoline_make(owners[i], CH_TRAMPOLINE_FRAMED,
					    (const void *)(uintptr_t)answer, i, NULL, NULL, &block),
			 "trampoline_make");
	double time = (bench_cpu_ns() - start) / MADE;
	for (uint32_t i = 0; i < MADE; i++)
		bench_ok(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), "owner_release");
	return time;
}

static double life_ns(struct bench_heap *bench)
{
	double start = bench_cpu_ns();
	for (uint32_t i = 0; i < MADE; i++) {
		struct ch_block block;
		struct ch_owner owner = bench_owner(bench, "trampoline");
		bench_ok(ch_trampoline_make(owner, CH_TRAMPOLINE_FRAMED,
					    (const void *)(uintptr_t)answer, i, NULL, NULL, &block),
			 "trampoline_make");
		bench_ok(ch_owner_set_entry(owner, block), "owner_set_entry");
		bench_ok(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), "owner_release");
	}
	return (bench_cpu_ns() - start) / MADE;
}

void bench_trampoline_make(void)
{
	struct bench_heap *bench = bench_heap_open(NULL);
	struct ch_owner *owners = calloc(MADE, sizeof *owners);
	struct bench_runs make = {.count = RUNS}, life = {.count = RUNS};
	if (!owners)
		bench_die("no memory");
	make_ns(bench, owners);
	for (int r = 0; r < RUNS; r++) {
		make.ours[r] = make_ns(bench, owners);
		make.peer[make.peer_count++] = register_each_ns();
		life.ours[r] = life_ns(bench);
		ch_thread_poll();
	}
	bench_emit("trampoline_make", "ns", &make, "peer: copy and __register_frame each",
		   (struct bench_goal){'<', 150, BENCH_OF_OURS},
		   "4,000 live; unwind on; the peer's next throw pays for all of them");
	bench_emit("trampoline_life", "ns", &life, NULL, (struct bench_goal){0},
		   "owner made, trampoline made and entered, both released");
	free(owners);
	bench_heap_close(bench);
}

/* --- call --- */

typedef uint64_t called(uint64_t);

/* Each call waits for the call before, so the time is for the way there and back. Takes the
 * shortest of some loops, since other programs on the same core only add time. */
static double call_ns(called *const *through)
{
	double shortest = 1e9;
	for (int loop = 0; loop < LOOPS; loop++) {
		uint64_t n = 0;
		double start = bench_cpu_ns();
		for (uint32_t i = 0; i < CALLS; i++)
			n = (*(called *volatile const *)through)(n);
		double time = (bench_cpu_ns() - start) / CALLS;
		if (n != CALLS)
			bench_die("another answer");
		shortest = time < shortest ? time : shortest;
	}
	return shortest;
}

/* A C function that only calls another function: the cost of any frame between. */
static called *volatile between_target = answer;
static uint64_t between(uint64_t n)
{
	uint64_t result = between_target(n);
	__asm__ volatile("" : "+r"(result)); /* keeps the call from becoming a jump */
	return result;
}

static called *make_called(struct bench_heap *bench, enum ch_trampoline kind)
{
	struct ch_owner owner = bench_owner(bench, "called");
	struct ch_block block;
	bench_ok(ch_trampoline_make(owner, kind, (const void *)(uintptr_t)answer, 1, NULL, NULL,
				    &block),
		 "trampoline_make");
	bench_ok(ch_owner_set_entry(owner, block), "owner_set_entry");
	return (called *)(uintptr_t)*ch_owner_cell(owner);
}

void bench_trampoline_call(void)
{
	struct bench_heap *bench = bench_heap_open(NULL);
	called *direct = answer, *bare = between,
	       *framed = make_called(bench, CH_TRAMPOLINE_FRAMED),
	       *tail = make_called(bench, CH_TRAMPOLINE_TAIL);
	struct bench_runs over[2] = {{.count = RUNS}, {.count = RUNS}};
	call_ns(&framed);
	for (int r = 0; r < RUNS; r++) {
		double plain = call_ns(&direct);
		over[0].ours[r] = call_ns(&framed) - plain;
		over[1].ours[r] = call_ns(&tail) - plain;
		over[0].limit[over[0].limit_count++] = call_ns(&bare) - plain;
		over[0].peer[over[0].peer_count++] = over[1].peer[over[1].peer_count++] = plain;
	}
	for (int i = 0; i < 2; i++)
		bench_emit(i ? "trampoline_call_tail" : "trampoline_call", "ns", &over[i],
			   i ? "peer: the direct call"
			     : "peer: the direct call; limit: a C function between, less it",
			   (struct bench_goal){'<', 1, BENCH_OF_OURS},
			   "what the call takes beyond the direct one; shortest of 10 loops a run");
	bench_heap_close(bench);
}
