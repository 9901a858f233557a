/* SPDX-License-Identifier: MIT
 * graph.c: rows of the block graph: lookup, mark, sweep, stack scan, patching. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { RUNS = 9 };

static void *take(size_t bytes)
{
	void *at = calloc(1, bytes);
	if (!at)
		bench_die("no memory");
	return at;
}

/* --- lookup --- */

struct lookup {
	struct bench_heap *bench;
	struct peer_asmjit *peer;
	const void **ours, **theirs; /* addresses inside blocks */
	uint32_t count;
	size_t spot_bytes; /* ch_spot.size */
};

static double lookup_ours(const struct lookup *l, int loops)
{
	uint64_t sum = 0;
	double start = bench_cpu_ns();
	for (int k = 0; k < loops; k++)
		for (uint32_t i = 0; i < l->count; i++) {
			struct ch_spot spot;
			spot.size = l->spot_bytes;
			sum += ch_code_at(l->bench->heap, l->ours[i], false, &spot) +
			       spot.block.bits;
		}
	double time = (bench_cpu_ns() - start) / ((double)loops * l->count);
	return sum ? time : NAN;
}

static double lookup_asmjit(const struct lookup *l, int loops)
{
	uint64_t sum = 0;
	double start = bench_cpu_ns();
	for (int k = 0; k < loops; k++)
		for (uint32_t i = 0; i < l->count; i++)
			sum += peer_asmjit_query(l->peer, (void *)(uintptr_t)l->theirs[i]);
	double time = (bench_cpu_ns() - start) / ((double)loops * l->count);
	return sum ? time : NAN;
}

static void lookup_row(const char *name, struct lookup l, uint32_t count, int loops,
		       struct bench_goal goal, const char *note)
{
	struct bench_runs runs = {0};
	l.count = count;
	for (int i = 0; i < RUNS; i++, runs.count++) {
		runs.ours[i] = lookup_ours(&l, loops);
		if (l.peer)
			runs.peer[runs.peer_count++] = lookup_asmjit(&l, loops);
	}
	bench_emit(name, "ns", &runs, "AsmJit query", goal, note);
}

void bench_lookup(void)
{
	enum { BLOCKS = 200000, WARM = 256 };
	uint64_t random = 3;
	struct lookup l = {.bench = bench_heap_open(NULL),
			   .peer = peer_asmjit_open(false),
			   .spot_bytes = offsetof(struct ch_spot, owner)};
	l.ours = take(BLOCKS * sizeof *l.ours);
	l.theirs = take(BLOCKS * sizeof *l.theirs);
	struct ch_owner owner = bench_owner(l.bench, "lookup");
	for (uint32_t i = 0; i < BLOCKS; i++) {
		uint32_t bytes = 40 + bench_random(&random) % 400;
		const uint8_t *start;
		bench_jumps(owner, bytes, NULL, 0, &start);
		uint32_t inside = bench_random(&random) % bytes;
		void *exec = NULL, *write;
		if (l.peer && !peer_asmjit_alloc(l.peer, bytes, &exec, &write))
			bench_die("AsmJit: no memory");
		l.ours[i] = start + inside;
		/* AsmJit's query takes the start of an allocation only. */
		l.theirs[i] = exec;
	}
	for (uint32_t i = BLOCKS - 1; i; i--) {
		uint32_t other = bench_random(&random) % (i + 1);
		const void *a = l.ours[i], *b = l.theirs[i];
		l.ours[i] = l.ours[other];
		l.theirs[i] = l.theirs[other];
		l.ours[other] = a;
		l.theirs[other] = b;
	}
	lookup_row("lookup", l, WARM, 200, (struct bench_goal){'<', 8, BENCH_OF_OURS},
		   "to the handle; 256 addresses among 200,000 blocks");
	lookup_row("lookup_cold", l, BLOCKS, 2, (struct bench_goal){'<', 2, BENCH_OF_PEER},
		   "to the handle; 200,000 addresses in random order");
	l.spot_bytes = sizeof(struct ch_spot);
	lookup_row("lookup_whole", l, WARM, 200, (struct bench_goal){0},
		   "to all that ch_code_at gives; as lookup");
}

/* --- mark --- */

enum { NODES = 270000, OUT = 3 };

/* Edges to the next block and to two more blocks at most NEAR further on; or along a random ring
 * and to two random blocks. */
static uint32_t *make_edges(bool is_random)
{
	enum { NEAR = 256 };
	uint32_t *edges = take((size_t)NODES * OUT * sizeof *edges);
	uint32_t *ring = take(NODES * sizeof *ring);
	uint64_t random = 11;
	for (uint32_t i = 0; i < NODES; i++)
		ring[i] = i;
	for (uint32_t i = NODES - 1; is_random && i; i--) {
		uint32_t other = bench_random(&random) % (i + 1), a = ring[i];
		ring[i] = ring[other];
		ring[other] = a;
	}
	for (uint32_t i = 0; i < NODES; i++) {
		uint32_t *out = &edges[ring[i] * OUT];
		out[0] = ring[(i + 1) % NODES];
		for (uint32_t k = 1; k < OUT; k++)
			out[k] = bench_random(&random) % NODES;
		for (uint32_t k = 1; k < OUT && !is_random; k++)
			out[k] = (i + 1 + out[k] % NEAR) % NODES;
	}
	free(ring);
	return edges;
}

static struct bench_heap *build_graph(const uint32_t *edges)
{
	struct bench_heap *bench = bench_heap_open(NULL);
	struct ch_owner owner = bench_owner(bench, "graph");
	struct ch_block *blocks = take(NODES * sizeof *blocks);
	struct ch_branch *branches = take((size_t)NODES * OUT * sizeof *branches);
	for (uint32_t i = 0; i < NODES; i++)
		blocks[i] = bench_jumps(owner, 28, &branches[i * OUT], OUT, NULL);
	for (uint32_t i = 0; i < NODES * OUT; i++)
		bench_ok(ch_branch_link(branches[i], blocks[edges[i]]), "branch_link");
	bench_ok(ch_owner_set_entry(owner, blocks[0]), "set_entry");
	free(blocks);
	free(branches);
	return bench;
}

/* Records of the library's sizes, walked with the mark test only: the limit by memory. */
struct walk_block {
	uint32_t generation, mark, first, rest[11];
};
struct walk_branch {
	uint32_t user[3], target, rest[2];
};
struct walk {
	struct walk_block *blocks;
	struct walk_branch *branches;
	uint32_t *queue, epoch;
};

static struct walk make_walk(const uint32_t *edges)
{
	struct walk walk = {take(NODES * sizeof *walk.blocks),
			    take((size_t)NODES * OUT * sizeof *walk.branches),
			    take(NODES * sizeof *walk.queue), 0};
	for (uint32_t i = 0; i < NODES; i++) {
		walk.blocks[i].first = i * OUT;
		for (uint32_t k = 0; k < OUT; k++)
			walk.branches[i * OUT + k].target = edges[i * OUT + k];
	}
	return walk;
}

static double walk_ns(struct walk *walk)
{
	double start = bench_wall_ns();
	uint32_t head = 0, tail = 0, epoch = ++walk->epoch;
	walk->blocks[0].mark = epoch;
	walk->queue[tail++] = 0;
	while (head < tail) {
		const struct walk_branch *branch =
			&walk->branches[walk->blocks[walk->queue[head++]].first];
		for (uint32_t k = 0; k < OUT; k++) {
			struct walk_block *to = &walk->blocks[branch[k].target];
			if (to->mark == epoch)
				continue;
			to->mark = epoch;
			walk->queue[tail++] = branch[k].target;
		}
	}
	if (tail != NODES)
		bench_die("the bare walk did not reach every block");
	return (bench_wall_ns() - start) / NODES;
}

/* Returns the time of the whole collection, and in *mark the time of the marking. */
static double collect_ours(struct bench_heap *bench, double *mark)
{
	double start = bench_cpu_ns();
	bench_ok(ch_heap_collect(bench->heap), "collect");
	double time = (bench_cpu_ns() - start) / NODES;
	struct ch_stats stats = bench_stats(bench);
	if (stats.marked_blocks_last < NODES)
		bench_die("the mark did not reach every block");
	*mark = (double)stats.mark_ns_last / NODES;
	return time;
}

static void mark_rows(bool is_random, const char *suffix, double of_peer, double of_walk,
		      const char *what)
{
	struct bench_runs boehm = {0}, bare = {0};
	uint32_t *edges = make_edges(is_random);
	struct bench_heap *bench = build_graph(edges);
	struct walk walk = make_walk(edges);
	peer_boehm_build(edges, NODES, OUT);
	double mark;
	collect_ours(bench, &mark);
	collect_ours(bench, &mark);
	walk_ns(&walk);
	peer_boehm_collect_ns();
	for (int i = 0; i < RUNS; i++) {
		boehm.ours[i] = collect_ours(bench, &bare.ours[i]);
		bare.limit[i] = walk_ns(&walk);
		boehm.peer[i] = peer_boehm_collect_ns() / NODES;
	}
	boehm.count = boehm.peer_count = RUNS;
	bare.count = bare.limit_count = RUNS;
	char name[40], note[128];
	snprintf(name, sizeof name, "mark%s", suffix);
	bench_format(note, sizeof note, "%s; whole collections", what);
	bench_emit(name, "ns/block", &boehm, "one Boehm object per block, GC_gcollect",
		   (struct bench_goal){'<', of_peer, BENCH_OF_PEER}, note);
	snprintf(name, sizeof name, "mark_walk%s", suffix);
	bench_format(note, sizeof note, "%s; marking alone; wall", what);
	bench_emit(name, "ns/block", &bare, "limit: a bare breadth-first walk of such records",
		   (struct bench_goal){'<', of_walk, BENCH_OF_LIMIT}, note);
	bench_heap_close(bench);
	free(edges);
	free(walk.blocks);
	free(walk.branches);
	free(walk.queue);
}

void bench_mark(void)
{
	mark_rows(false, "", 0.25, 1.5, "270,000 blocks, 810,000 edges to near blocks");
	mark_rows(true, "_random", 0.3, 1, "270,000 blocks, 810,000 random edges");
}

/* --- sweep --- */

void bench_sweep(void)
{
	/* Any word of a stack may look like a return address (I7), and hold one block. */
	enum { BLOCKS = 100000, OF_AN_OWNER = 10, BYTES = 192, OF_A_KEEPER = 1000, HELD_MOST = 4 };
	struct bench_runs runs = {0};
	struct bench_heap *bench = bench_heap_open(NULL);
	struct ch_owner *owners = take(BLOCKS / OF_AN_OWNER * sizeof *owners);
	uint8_t *filled = take((size_t)BLOCKS * BYTES);
	for (int r = -1; r < RUNS; r++) {
		for (int i = 0; i < BLOCKS; i++) {
			struct ch_owner *owner = &owners[i / OF_AN_OWNER];
			if (i % OF_AN_OWNER == 0)
				*owner = bench_owner(bench, "sweep");
			struct ch_block block = bench_block(*owner, BYTES);
			bench_ok(ch_owner_set_entry(*owner, block), "set_entry");
			/* A few blocks live on: how the system takes whole chunks back is not
			 * measured. */
			if (r < 0 && i % OF_A_KEEPER == 0) {
				struct ch_owner keeper = bench_owner(bench, "keeper");
				bench_ok(ch_owner_set_entry(keeper, bench_block(keeper, BYTES)),
					 "set_entry");
			}
		}
		for (int i = 0; i < BLOCKS / OF_AN_OWNER; i++)
			bench_ok(ch_owner_release(owners[i], CH_RELEASE_COLLECT), "release");
		struct ch_stats before = bench_stats(bench);
		/* Two cycles at most hold a block; the fourth ends the quarantine. Little lives, so
		 * marking is nearly free. */
		double from = bench_cpu_ns();
		for (int k = 0; k < 4; k++)
			bench_ok(ch_heap_collect(bench->heap), "collect");
		double collecting = bench_cpu_ns() - from;
		struct ch_stats after = bench_stats(bench);
		uint64_t freed = after.blocks_freed - before.blocks_freed;
		if (freed + HELD_MOST < BLOCKS) {
			fprintf(stderr, "of %d blocks %" PRIu64 " were freed in run %d\n", BLOCKS,
				freed, r);
			bench_die("the sweep did not free every block");
		}
		double start = bench_cpu_ns();
		for (int i = 0; i < BLOCKS; i++)
			memset(filled + (size_t)(i * 7919 % BLOCKS) * BYTES, 0xcc + r, BYTES);
		double limit = (bench_cpu_ns() - start) / BLOCKS;
		if (r < 0)
			continue;
		runs.ours[runs.count++] = collecting / (double)freed;
		runs.limit[runs.limit_count++] = limit;
	}
	bench_emit("sweep", "ns/block", &runs, "limit: memset of as many bytes, scattered",
		   (struct bench_goal){'<', 100, BENCH_OF_OURS},
		   "192 B, 10 blocks an owner; whole collections, quarantine and owners included");
	bench_heap_close(bench);
}

/* --- stack scan --- */

static __attribute__((noinline)) void count_hit(uint64_t *hits)
{
	++*hits;
}

static double compare_loop(const uintptr_t *words, size_t count, uintptr_t base, uintptr_t size)
{
	uint64_t hits = 0;
	double start = bench_cpu_ns();
	for (size_t i = 0; i < count; i++)
		if (__builtin_expect(((volatile const uintptr_t *)words)[i] - base < size, 0))
			count_hit(&hits);
	double time = bench_cpu_ns() - start;
	return time / (double)(count + hits * 0);
}

void bench_stack_scan(void)
{
	enum { WORDS = 128 << 10, LOOPS = 16 };
	struct bench_runs runs = {0};
	uint64_t random = 5;
	struct ch_config config;
	ch_config_init(&config);
	config.driver = CH_DRIVER_HOST;
	struct bench_heap *bench = bench_heap_open(&config);
	uintptr_t *words = take(WORDS * sizeof *words);
	for (size_t i = 0; i < WORDS; i++)
		words[i] = i % 2 ? bench_random(&random)
				 : (uintptr_t)&words[bench_random(&random) % WORDS];
	for (int r = 0; r < RUNS; r++, runs.count++) {
		struct ch_marker *marker;
		double ours = 0, limit = 0;
		for (int k = 0; k < LOOPS; k++) {
			bench_ok(ch_mark_begin(bench->heap, &marker), "mark_begin");
			double start = bench_cpu_ns();
			ch_mark_stack(marker, words, words + WORDS);
			ours += (bench_cpu_ns() - start) / WORDS;
			bench_ok(ch_mark_end(marker, false), "mark_end");
			limit += compare_loop(words, WORDS, (uintptr_t)1 << 40, 64 << 20);
		}
		runs.ours[r] = ours / LOOPS;
		runs.limit[runs.limit_count++] = limit / LOOPS;
	}
	bench_emit("stack_scan", "ns/word", &runs, "limit: a bare compare loop",
		   (struct bench_goal){'<', 1.2, BENCH_OF_LIMIT}, "1 MiB of words, none a hit");
	bench_heap_close(bench);
}

/* --- patch --- */

enum { PAIRS = 2000, PATCH_LOOPS = 20 };

struct pair {
	struct ch_block to;
	struct ch_branch branch;
};

static double toggle_ns(void)
{
	enum { TOGGLES = 2000, PAGE = 4096 };
	uint8_t *at = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		bench_die("mmap");
	double start = bench_cpu_ns();
	for (int i = 0; i < TOGGLES; i++) {
		if (mprotect(at, PAGE, PROT_READ | PROT_WRITE))
			bench_die("mprotect");
		*(volatile uint32_t *)(void *)at = (uint32_t)i;
		if (mprotect(at, PAGE, PROT_READ | PROT_EXEC))
			bench_die("mprotect");
	}
	double time = (bench_cpu_ns() - start) / TOGGLES;
	munmap(at, PAGE);
	return time;
}

struct patches {
	struct bench_runs link, unlink, invalidate, all;
};

static void patch_run(struct bench_heap *bench, struct patches *p)
{
	static struct pair pairs[PAIRS];
	static struct ch_block targets[PAIRS];
	struct ch_block none = {0};
	struct ch_owner owner = bench_owner(bench, "patch");
	double link_ns = 0, unlink_ns = 0;
	for (int i = 0; i < PAIRS; i++) {
		bench_jumps(owner, 60, &pairs[i].branch, 1, NULL);
		targets[i] = pairs[i].to = bench_block(owner, 60);
	}
	for (int k = 0; k < PATCH_LOOPS; k++) {
		double start = bench_cpu_ns();
		for (int i = 0; i < PAIRS; i++)
			bench_ok(ch_branch_link(pairs[i].branch, pairs[i].to), "link");
		double middle = bench_cpu_ns();
		for (int i = 0; i < PAIRS && k + 1 < PATCH_LOOPS; i++)
			bench_ok(ch_branch_link(pairs[i].branch, none), "unlink");
		link_ns += middle - start;
		unlink_ns += bench_cpu_ns() - middle;
	}
	double start = bench_cpu_ns();
	bench_ok(ch_blocks_invalidate(targets, PAIRS, NULL), "invalidate");
	double invalidate_ns = (bench_cpu_ns() - start) / PAIRS;
	link_ns /= PAIRS * PATCH_LOOPS;
	unlink_ns /= PAIRS * (PATCH_LOOPS - 1);
	int r = p->all.count++;
	p->link.ours[r] = link_ns;
	p->unlink.ours[r] = unlink_ns;
	p->invalidate.ours[r] = invalidate_ns;
	p->all.ours[r] = fmax(invalidate_ns, fmax(link_ns, unlink_ns));
	double peer = toggle_ns();
	p->link.peer[r] = p->unlink.peer[r] = p->invalidate.peer[r] = p->all.peer[r] = peer;
	bench_ok(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), "release");
	bench_ok(ch_heap_collect(bench->heap), "collect");
}

void bench_patch(void)
{
	struct patches alone = {0}, beside = {0};
	struct bench_heap *bench = bench_heap_open(NULL);
	for (int r = 0; r < RUNS; r++)
		patch_run(bench, &alone);
	bench_have_threads();
	for (int r = 0; r < RUNS; r++)
		patch_run(bench, &beside);
	const struct bench_goal goal = {'<', 20, BENCH_OF_OURS}, none = {0};
	struct {
		const char *name, *note;
		struct bench_runs *runs;
		const struct bench_goal *goal;
	} rows[] = {{"patch", "the slowest of the three", &alone.all, &goal},
		    {"patch_link", "", &alone.link, &goal},
		    {"patch_unlink", "", &alone.unlink, &goal},
		    {"patch_invalidate", "with one incoming branch each, in one batch",
		     &alone.invalidate, &goal},
		    {"patch_threads", "the slowest of the three, in a process that had two threads",
		     &beside.all, &none}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		rows[i].runs->count = rows[i].runs->peer_count = RUNS;
		bench_emit(rows[i].name, "ns", rows[i].runs, "mprotect RW, store, mprotect RX",
			   *rows[i].goal, rows[i].note);
	}
	bench_heap_close(bench);
}
