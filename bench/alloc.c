/* SPDX-License-Identifier: MIT
 * alloc.c: rows of allocation: young, last-in-first-out, aged, and the cost of the pool and of
 * records. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
	YOUNG_BYTES = 192,
	BATCH = 1000,
	BATCHES = 150,
	RUNS = 9,
};

static uint8_t pattern[1024];

/* --- young --- */

static void young_batches(struct bench_heap *bench, int batches)
{
	for (int i = 0; i < batches; i++) {
		struct ch_owner owner = bench_owner(bench, "young");
		for (int k = 0; k < BATCH; k++)
			bench_block(owner, YOUNG_BYTES);
		bench_ok(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), "owner_release");
	}
}

static double young_ours(struct bench_heap *bench)
{
	double start = bench_cpu_ns();
	young_batches(bench, BATCHES);
	return (bench_cpu_ns() - start) / (BATCHES * BATCH);
}

static double young_asmjit(struct peer_asmjit *peer)
{
	static void *live[BATCH];
	double start = bench_cpu_ns();
	for (int i = 0; i < BATCHES; i++) {
		for (int k = 0; k < BATCH; k++) {
			void *write;
			if (!peer_asmjit_alloc(peer, YOUNG_BYTES, &live[k], &write))
				bench_die("AsmJit: no memory");
			memcpy(write, pattern, YOUNG_BYTES);
		}
		for (int k = 0; k < BATCH; k++)
			peer_asmjit_release(peer, live[k]);
	}
	return (bench_cpu_ns() - start) / (BATCHES * BATCH);
}

static double young_mmap(void)
{
	enum { MAPS = 2000, PAGE = 4096 };
	double start = bench_cpu_ns();
	for (int i = 0; i < MAPS; i++) {
		void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
				0);
		if (at == MAP_FAILED)
			bench_die("mmap");
		memcpy(at, pattern, YOUNG_BYTES);
		if (mprotect(at, PAGE, PROT_READ | PROT_EXEC))
			bench_die("mprotect");
		munmap(at, PAGE);
	}
	return (bench_cpu_ns() - start) / MAPS;
}

/* --- two threads --- */

struct young_thread {
	struct bench_heap *bench;
	pthread_barrier_t *barrier;
	pthread_t id;
};

static void *young_thread(void *arg)
{
	const struct young_thread *self = arg;
	bench_ok(ch_thread_attach(self->bench->heap, NULL, NULL), "thread_attach");
	young_batches(self->bench, 10);
	pthread_barrier_wait(self->barrier);
	young_batches(self->bench, BATCHES);
	pthread_barrier_wait(self->barrier);
	bench_ok(ch_thread_detach(self->bench->heap), "thread_detach");
	return NULL;
}

/* Blocks a second of wall clock, by threads with a common heap or a heap each. */
static double young_rate(struct bench_heap *const *benches, int threads)
{
	struct young_thread all[2];
	pthread_barrier_t barrier;
	pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
	for (int i = 0; i < threads; i++) {
		all[i] = (struct young_thread){.bench = benches[i], .barrier = &barrier};
		if (pthread_create(&all[i].id, NULL, young_thread, &all[i]))
			bench_die("pthread_create");
	}
	pthread_barrier_wait(&barrier);
	double start = bench_wall_ns();
	ch_thread_park();
	pthread_barrier_wait(&barrier);
	double time = bench_wall_ns() - start;
	ch_thread_unpark();
	for (int i = 0; i < threads; i++)
		pthread_join(all[i].id, NULL);
	pthread_barrier_destroy(&barrier);
	return threads * (double)BATCHES * BATCH * 1e9 / time;
}

static void young_2threads(struct bench_heap *bench)
{
	struct bench_runs runs = {0};
	struct bench_heap *other = bench_heap_open(NULL);
	struct bench_heap *same[2] = {bench, bench}, *apart[2] = {bench, other};
	bench_pin(-1);
	for (runs.count = 0; runs.count < RUNS; runs.count++) {
		double one = young_rate(same, 1);
		runs.ours[runs.count] = young_rate(same, 2) / one;
		runs.limit[runs.limit_count++] = young_rate(apart, 2) / one;
	}
	bench_emit("alloc_young_2threads", "scale", &runs, NULL,
		   (struct bench_goal){'>', 1.8, BENCH_OF_OURS},
		   "limit: a heap each; wall; rate of two threads / rate of one");
	bench_heap_close(other);
}

void bench_alloc_young(void)
{
	struct bench_runs plain = {0}, filled = {0}, mapped = {0};
	memset(pattern, 0xc3, sizeof pattern);
	struct bench_heap *bench = bench_heap_open(NULL);
	struct peer_asmjit *peer = peer_asmjit_open(false), *filling = peer_asmjit_open(true);
	young_ours(bench);
	if (peer) {
		young_asmjit(peer);
		young_asmjit(filling);
	}
	for (int i = 0; i < RUNS; i++) {
		double ours = young_ours(bench);
		plain.ours[i] = filled.ours[i] = mapped.ours[i] = ours;
		if (peer) {
			plain.peer[plain.peer_count++] = young_asmjit(peer);
			filled.peer[filled.peer_count++] = young_asmjit(filling);
		}
		mapped.peer[mapped.peer_count++] = young_mmap();
		plain.count = filled.count = mapped.count = i + 1;
	}
	bench_emit("alloc_young", "ns/block", &plain, peer_asmjit_name(false),
		   (struct bench_goal){'<', 0.6, BENCH_OF_PEER}, "192 B, batches of 1,000");
	bench_emit("alloc_young_fill", "ns/block", &filled, peer_asmjit_name(true),
		   (struct bench_goal){'<', 0.3, BENCH_OF_PEER}, "the same, poison on");
	bench_emit("alloc_young_mmap", "ns/block", &mapped, "mmap + mprotect + munmap per block",
		   (struct bench_goal){0}, "");
	young_2threads(bench);
	bench_heap_close(bench);
}

/* --- last in first out --- */

void bench_alloc_lifo(void)
{
	enum { LOOPS = 100000 };
	struct bench_runs runs = {0};
	memset(pattern, 0xc3, sizeof pattern);
	struct bench_heap *bench = bench_heap_open(NULL);
	struct peer_asmjit *peer = peer_asmjit_open(false);
	for (int r = 0; r < RUNS; r++, runs.count++) {
		double start = bench_cpu_ns();
		for (int i = 0; i < LOOPS; i++) {
			struct ch_owner owner = bench_owner(bench, "lifo");
			bench_block(owner, YOUNG_BYTES);
			bench_ok(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), "release");
		}
		runs.ours[r] = (bench_cpu_ns() - start) / LOOPS;
		start = bench_cpu_ns();
		for (int i = 0; peer && i < LOOPS; i++) {
			void *exec, *write;
			if (!peer_asmjit_alloc(peer, YOUNG_BYTES, &exec, &write))
				bench_die("AsmJit: no memory");
			memcpy(write, pattern, YOUNG_BYTES);
			peer_asmjit_release(peer, exec);
		}
		if (peer)
			runs.peer[runs.peer_count++] = (bench_cpu_ns() - start) / LOOPS;
	}
	bench_emit("alloc_lifo", "ns/block", &runs, peer_asmjit_name(false), (struct bench_goal){0},
		   "owner created and released per block");
	bench_heap_close(bench);
}

/* --- aged --- */

enum { LIVE = 100000, PAIRS = 400000, AGED_RUNS = 5 };

struct aged {
	uint32_t low, high; /* sizes, uniform */
	struct bench_heap *bench;
	struct peer_asmjit *peer;
	struct ch_owner *owners;
	void **spans;
	uint16_t *sizes;
	uint64_t requested, random;
};

static void aged_make(struct aged *aged, uint32_t slot)
{
	uint32_t bytes = aged->low + bench_random(&aged->random) % (aged->high - aged->low + 1);
	aged->requested += (uint64_t)bytes - aged->sizes[slot];
	aged->sizes[slot] = (uint16_t)bytes;
	if (aged->peer) {
		void *write;
		if (!peer_asmjit_alloc(aged->peer, bytes, &aged->spans[slot], &write))
			bench_die("AsmJit: no memory");
		memcpy(write, pattern, bytes);
		return;
	}
	struct ch_owner owner = bench_owner(aged->bench, "aged");
	bench_ok(ch_owner_set_entry(owner, bench_block(owner, bytes)), "set_entry");
	aged->owners[slot] = owner;
}

static void aged_kill(struct aged *aged, uint32_t slot)
{
	if (aged->peer)
		peer_asmjit_release(aged->peer, aged->spans[slot]);
	else
		bench_ok(ch_owner_release(aged->owners[slot], CH_RELEASE_COLLECT), "release");
}

static void aged_fill(struct aged *aged, uint32_t low, uint32_t high)
{
	aged->low = low;
	aged->high = high;
	aged->random = 1;
	aged->owners = calloc(LIVE, sizeof *aged->owners);
	aged->spans = calloc(LIVE, sizeof *aged->spans);
	aged->sizes = calloc(LIVE, sizeof *aged->sizes);
	if (!aged->owners || !aged->spans || !aged->sizes)
		bench_die("no memory");
	for (uint32_t i = 0; i < LIVE; i++) {
		aged_make(aged, i);
		if (aged->bench)
			ch_thread_poll();
	}
}

static double pool_bytes(const struct aged *aged)
{
	if (!aged->bench)
		return (double)peer_asmjit_reserved(aged->peer);
	struct ch_stats stats = bench_stats(aged->bench);
	return (double)stats.pages_now * (double)stats.page_bytes;
}

/* Nanoseconds a pair; *pool is the mean over the time of pool bytes per requested byte. */
static double aged_churn(struct aged *aged, int pairs, double *pool)
{
	double start = bench_cpu_ns(), sum = 0;
	int samples = 0;
	for (int i = 0; i < pairs; i++) {
		uint32_t slot = bench_random(&aged->random) % LIVE;
		aged_kill(aged, slot);
		aged_make(aged, slot);
		if (aged->bench)
			ch_thread_poll();
		if (i % 1024 == 0) {
			sum += pool_bytes(aged) / (double)aged->requested;
			samples++;
		}
	}
	*pool = sum / samples;
	return (bench_cpu_ns() - start) / pairs;
}

static void aged_rows(uint32_t low, uint32_t high, const char *suffix, double pool_goal)
{
	struct bench_runs time = {0}, pool = {0};
	struct aged ours = {.bench = bench_heap_open(NULL)};
	struct aged peer = {.peer = peer_asmjit_open(true)};
	double ratio;
	aged_fill(&ours, low, high);
	aged_churn(&ours, PAIRS, &ratio);
	if (peer.peer) {
		aged_fill(&peer, low, high);
		aged_churn(&peer, PAIRS / 2, &ratio);
	}
	struct ch_stats before = bench_stats(ours.bench);
	for (int i = 0; i < AGED_RUNS; i++) {
		time.ours[time.count++] = aged_churn(&ours, PAIRS, &ratio);
		pool.ours[pool.count++] = ratio;
		if (!peer.peer)
			continue;
		time.peer[time.peer_count++] = aged_churn(&peer, PAIRS / 16, &ratio);
		pool.peer[pool.peer_count++] = ratio;
	}
	char name[40], note[128];
	struct ch_stats stats = bench_stats(ours.bench);
	double pairs = (double)PAIRS * AGED_RUNS;
	snprintf(note, sizeof note,
		 "100,000 live, mean %u B, an owner each; %lu cycles; wall: mark %.0f, sweep %.0f",
		 (low + high) / 2, (unsigned long)(stats.cycles - before.cycles),
		 (double)(stats.mark_ns_total - before.mark_ns_total) / pairs,
		 (double)(stats.sweep_ns_total - before.sweep_ns_total) / pairs);
	snprintf(name, sizeof name, "alloc_aged%s", suffix);
	bench_emit(name, "ns/pair", &time, peer_asmjit_name(true),
		   (struct bench_goal){'<', 0.1, BENCH_OF_PEER}, note);
	snprintf(name, sizeof name, "pool_per_requested%s", suffix);
	snprintf(note, sizeof note, "mean over churns of %d pairs, the peer's of %d", PAIRS,
		 PAIRS / 16);
	bench_emit(name, "ratio", &pool, peer_asmjit_name(true),
		   (struct bench_goal){'<', pool_goal, BENCH_OF_OURS}, note);
	bench_heap_close(ours.bench);
	if (peer.peer)
		peer_asmjit_close(peer.peer);
}

void bench_alloc_aged(void)
{
	memset(pattern, 0xc3, sizeof pattern);
	aged_rows(16, 184, "", 1.30);
	aged_rows(50, 650, "_350", 1.24);
}

/* --- records --- */

/* Side bytes a block, with `branches` branches each. The first branch leads to the block before, so
 * that the last block, an entry, holds all. */
static double records_bytes(uint32_t branches)
{
	enum { BLOCKS = 100000 };
	struct bench_heap *bench = bench_heap_open(NULL);
	struct ch_owner owner = bench_owner(bench, "records");
	struct ch_block before = {0};
	uint64_t bytes = bench_stats(bench).metadata_bytes_now;
	for (int i = 0; i < BLOCKS; i++) {
		struct ch_branch branch[8];
		struct ch_block block = bench_jumps(owner, 100, branch, branches, NULL);
		if (before.bits)
			bench_ok(ch_branch_link(branch[0], before), "branch_link");
		before = block;
	}
	bench_ok(ch_owner_set_entry(owner, before), "set_entry");
	bench_ok(ch_heap_collect(bench->heap), "collect");
	if (bench_stats(bench).blocks_now != BLOCKS)
		bench_die("the chain of blocks is broken");
	bytes = bench_stats(bench).metadata_bytes_now - bytes;
	bench_heap_close(bench);
	return (double)bytes / BLOCKS;
}

void bench_metadata(void)
{
	struct bench_runs block = {.count = 1}, branch = {.count = 1};
	double one = records_bytes(1), five = records_bytes(5);
	branch.ours[0] = (five - one) / 4;
	block.ours[0] = one - branch.ours[0];
	bench_emit("metadata_per_block", "B", &block, NULL,
		   (struct bench_goal){'<', 64, BENCH_OF_OURS},
		   "100,000 blocks of 100 B, one owner; bitmaps of the pool included");
	bench_emit("metadata_per_branch", "B", &branch, NULL,
		   (struct bench_goal){'<', 24, BENCH_OF_OURS}, "");
}
