/* SPDX-License-Identifier: MIT
 * worker.c: a worker: two VMs in one process, the interpreter as the oracle of the JIT. The worker
 * stands between the VM and the JIT's hooks to count invalidations of code on the stack, returns
 * into such code, and fibers suspended across a collection.
 */
#define GC_THREADS /* pthread_create registers the thread with the collector */
#include "codeheap/look.h"
#include "worker.h"

#include <gc/gc.h>

#include "generate.h"
#include "hosts/scheme/jit.h"
#include "minimise.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FRAMES = 512, FIBER_SLOTS = 4096, PROGRAMS_OF_A_VM = 100, HALF_BUILT_EVERY = 20 };

static struct vm_hooks jit_hooks;
static atomic_ullong on_stack, across_cycle;
static struct {
	struct fiber *_Atomic fiber;
	atomic_ullong cycles;
} suspended[FIBER_SLOTS];

static struct ch_stats stats(void)
{
	struct ch_stats s = {.size = sizeof s};
	if (ch_heap_stats(jit_heap(), &s) != CH_OK)
		abort();
	return s;
}

/* --- counts --- */

static size_t live_on_stack(struct ch_block *blocks)
{
	const void *pcs[FRAMES];
	size_t frames = ch_backtrace(jit_heap(), CH_BACKTRACE_FRAMES, NULL, pcs, FRAMES), n = 0;
	for (size_t i = 0; i < frames; i++) {
		struct ch_spot spot = {.size = sizeof spot};
		if (ch_code_at(jit_heap(), pcs[i], true, &spot) && spot.state == CH_BLOCK_LIVE)
			blocks[n++] = spot.block;
	}
	return n;
}

static void cell_changed(struct context *ctx, struct cell *cell)
{
	static _Thread_local struct ch_block blocks[FRAMES];
	size_t n = live_on_stack(blocks);
	jit_hooks.cell_changed(ctx, cell);
	for (size_t i = 0; i < n; i++) {
		struct ch_info info = {.size = sizeof info};
		if (ch_block_info(blocks[i], &info) == CH_OK && info.state == CH_BLOCK_NOTENTRANT)
			atomic_fetch_add(&on_stack, 1);
	}
}

static size_t slot_of(const struct fiber *fiber)
{
	return ((uintptr_t)fiber >> 5) % FIBER_SLOTS;
}

static void fiber_suspending(struct context *ctx, struct fiber *fiber, void *lowest_sp)
{
	atomic_store(&suspended[slot_of(fiber)].cycles, stats().cycles);
	atomic_store(&suspended[slot_of(fiber)].fiber, fiber);
	jit_hooks.fiber_suspending(ctx, fiber, lowest_sp);
}

static void fiber_resumed(struct context *ctx, struct fiber *fiber)
{
	jit_hooks.fiber_resumed(ctx, fiber);
	if (atomic_load(&suspended[slot_of(fiber)].fiber) == fiber &&
	    atomic_load(&suspended[slot_of(fiber)].cycles) < stats().cycles)
		atomic_fetch_add(&across_cycle, 1);
}

/* --- a block that stays open across collections --- */

static struct ch_vm *half_built_vm;
static uint64_t half_built; /* blocks that were built halfway, and held others */
void *half_built_anchor; /* static data is a root of the collector */

static void check(enum ch_status status)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "half-built block: %s\n", ch_status_text(status));
	abort();
}

static const void *never_called(void)
{
	return NULL;
}

/* Returns false when the pool is full of a program's code, which is no failure. */
static bool open_block(struct ch_owner owner, struct ch_code *code)
{
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 16};
	enum ch_status status = ch_block_open(&open, code);
	if (status == CH_E_FULL)
		return false;
	check(status);
	memset(code->write, 0xc3, 8); /* ret */
	code->used_to = 8;
	return true;
}

/* Only the OPEN block holds the committed block; wipe_stack clears stale words below. */
__attribute__((noinline)) static bool build_halfway(struct ch_code *blocks, struct ch_owner owner)
{
	if (!open_block(owner, &blocks[0]))
		return false;
	check(ch_block_commit(&blocks[0], 1));
	if (!open_block(owner, &blocks[1]))
		return false;
	check(ch_edge_attach(blocks[1].block, blocks[0].block));
	return true;
}

/* The scan is conservative: stale words of dead frames would hold blocks. */
__attribute__((noinline)) static void wipe_stack(void)
{
	volatile char gone[8192];
	for (size_t i = 0; i < sizeof gone; i++)
		gone[i] = 0;
}

static void *collect_halfway(void *argument)
{
	struct ch_code *blocks = argument;
	struct ch_owner owner;
	struct ch_info info = {.size = sizeof info};
	void *made;
	check(ch_thread_attach(jit_heap(), NULL, NULL));
	check(ch_bdw_owner_create(half_built_vm, "half-built", (const void *)never_called, NULL,
				  &owner, &made));
	half_built_anchor = made;
	bool is_built = build_halfway(blocks, owner);
	wipe_stack();
	for (int i = 0; i < 3; i++)
		check(ch_heap_collect(jit_heap()));
	bool lived = !is_built || ch_block_info(blocks[0].block, &info) == CH_OK;
	half_built += is_built && lived;
	if (is_built)
		check(ch_block_abort(&blocks[1]));
	check(ch_owner_release(owner, CH_RELEASE_COLLECT));
	check(ch_thread_detach(jit_heap()));
	return lived ? argument : NULL;
}

static bool half_built_block_holds_its_links(void)
{
	pthread_t thread;
	void *result = NULL;
	if (!half_built_vm) {
		struct ch_ops ops = {.size = sizeof ops};
		check(ch_vm_attach(jit_heap(), &ops, NULL, &half_built_vm));
	}
	/* Memory that no collector scans. */
	struct ch_code *blocks = calloc(2, sizeof *blocks);
	ch_thread_park();
	bool ran = blocks && pthread_create(&thread, NULL, collect_halfway, blocks) == 0 &&
		   pthread_join(thread, &result) == 0;
	ch_thread_unpark();
	free(blocks);
	return !ran || result != NULL;
}

/* --- habits --- */

/* Of each eight workers in turn all habits are there; pools and pages are by chance. */
static struct habits habits_of(uint64_t number, uint64_t seed)
{
	uint64_t random = seed * UINT64_C(0x9e3779b97f4a7c15) >> 32;
	static const uint64_t pools[] = {8 << 20, 64 << 10, 512 << 10, 128 << 10};
	static const uint64_t pages[] = {0, 4096, 65536};
	struct habits habits = {.pool_bytes = pools[random % 4],
				.page_bytes = pages[random / 4 % 3]};
	switch (number % 8) {
	case 1:
		habits.collects_at_stubs = true;
		break;
	case 2:
		habits.collect_every_calls = 97;
		break;
	case 3:
		habits.discard_every = 50;
		break;
	case 4:
		habits.has_trampolines = true;
		break;
	case 5:
		habits.has_every_sink = habits.has_lines = true;
		break;
	case 6:
		habits.discard_every = 211;
		habits.collects_at_stubs = true;
		break;
	case 7:
		habits.collect_every_calls = 31;
		habits.has_lines = true;
		break;
	default:
		break;
	}
	/* In a single chunk, trampolines and other code would keep each other out. */
	if (habits.has_trampolines || habits.page_bytes > 16384)
		habits.pool_bytes = 8 << 20;
	return habits;
}

static const char habits_format[] =
	"; pool=%llu page=%llu collect-every-calls=%llu discard-every=%llu "
	"collect-at-stubs=%u trampolines=%u sinks=%u lines=%u\n";

void habits_write(const struct habits *h, char *text, size_t bytes)
{
	snprintf(text, bytes, habits_format, (unsigned long long)h->pool_bytes,
		 (unsigned long long)h->page_bytes, (unsigned long long)h->collect_every_calls,
		 (unsigned long long)h->discard_every, h->collects_at_stubs, h->has_trampolines,
		 h->has_every_sink, h->has_lines);
}

void habits_read(struct habits *h, const char *text)
{
	unsigned long long pool = 0, page = 0, calls = 0, discard = 0;
	unsigned stubs = 0, trampolines = 0, sinks = 0, lines = 0;
	sscanf(text, habits_format, &pool, &page, &calls, &discard, &stubs, &trampolines, &sinks,
	       &lines);
	*h = (struct habits){pool,           page,       calls,      discard,
			     stubs != 0,     trampolines != 0, sinks != 0, lines != 0};
}

static void count_habits(const struct habits *h, struct counters *counts)
{
	counts->vms++;
	counts->vms_collecting_at_stubs += h->collects_at_stubs;
	counts->vms_collecting_at_calls += h->collect_every_calls != 0;
	counts->vms_discarding += h->discard_every != 0;
	counts->vms_with_trampolines += h->has_trampolines;
	counts->vms_with_every_sink += h->has_every_sink;
}

/* --- programs --- */

static struct vm *create(const struct vm_options *options)
{
	struct vm *vm = vm_create(options);
	if (!vm) {
		fprintf(stderr, "stress: no VM\n");
		exit(1);
	}
	return vm;
}

static struct vm *new_oracle(void)
{
	struct vm_options options = {.mode = MODE_INTERP};
	return create(&options);
}

static struct vm *new_jit(const struct habits *h)
{
	struct vm_options options = {.mode = MODE_JIT,
				     .pool_bytes = (int64_t)h->pool_bytes,
				     .page_bytes = (int64_t)h->page_bytes,
				     .discard_every = (int64_t)h->discard_every,
				     .gc_every_calls = (int64_t)h->collect_every_calls,
				     .gc_every_stub = h->collects_at_stubs,
				     .lines = h->has_lines,
				     .trampolines = h->has_trampolines,
				     .sinks = h->has_every_sink ? "unwind,gdb,perfmap"
								: NULL};
	struct vm *vm = create(&options);
	jit_hooks = vm->hooks;
	struct vm_hooks hooks = jit_hooks;
	hooks.cell_changed = cell_changed;
	hooks.fiber_suspending = fiber_suspending;
	hooks.fiber_resumed = fiber_resumed;
	vm_enable_hooks(vm, &hooks);
	return vm;
}

static char *run(struct vm *vm, const char *program, size_t length, size_t *bytes)
{
	vm_capture_output(vm);
	vm_run_text(vm->main, program, length, "program");
	const char *text = vm_captured(vm, bytes);
	return strndup(text ? text : "", *bytes);
}

static bool agree(struct vm *oracle, struct vm *jit, const char *text, size_t length)
{
	size_t wanted_bytes, got_bytes;
	char *wanted = run(oracle, text, length, &wanted_bytes);
	char *got = run(jit, text, length, &got_bytes);
	bool is_same = wanted && got && wanted_bytes == got_bytes &&
		       memcmp(wanted, got, wanted_bytes) == 0;
	free(wanted);
	free(got);
	return is_same;
}

bool work_agrees(const struct habits *habits, const char *text, size_t length)
{
	struct vm *oracle = new_oracle(), *jit = new_jit(habits);
	char report[200];
	bool is_good = agree(oracle, jit, text, length);
	is_good &= ch_heap_check(jit_heap(), report, sizeof report) == CH_OK;
	vm_destroy(jit);
	vm_destroy(oracle);
	return is_good;
}

/* Called before the run, so that the parent knows the program whatever happens. */
static void note(struct progress *progress, const struct program *program)
{
	if (progress->length + program->length > sizeof progress->text)
		progress->length = 0;
	progress->current = progress->length;
	memcpy(progress->text + progress->length, program->text, program->length);
	progress->length += program->length;
}

static bool is_sound(struct counters *counts)
{
	char report[200];
	if (ch_heap_check(jit_heap(), report, sizeof report) == CH_OK)
		return true;
	printf("heap check: %s\n", report);
	counts->mismatches++;
	return false;
}

struct worker {
	struct vm *oracle, *jit;
	uint64_t returns;
};

static void change_vms(const struct assignment *assignment, struct worker *worker,
		       struct counters *counts)
{
	if (worker->jit) {
		worker->returns += jit_returns_into_invalidated(worker->jit);
		vm_destroy(worker->jit);
		vm_destroy(worker->oracle);
	}
	/* The process has a single heap, with the habits of the first VM. */
	struct habits habits = habits_of(assignment->number, assignment->seed);
	worker->oracle = new_oracle();
	worker->jit = new_jit(&habits);
	count_habits(&habits, counts);
	assignment->progress->habits = habits;
	assignment->progress->length = 0;
}

static void take_counts(const struct worker *worker, struct counters *counts)
{
	struct ch_stats s = stats();
	counts->invalidations_on_stack = atomic_load(&on_stack);
	counts->returns_into_invalidated =
		worker->returns + jit_returns_into_invalidated(worker->jit);
	counts->stale_hits = s.branch_hits_stale;
	counts->fibers_across_cycle = atomic_load(&across_cycle);
	counts->collections = s.cycles;
	counts->half_built = half_built;
	counts->blocks_freed = s.blocks_freed;
}

struct counters work(const struct assignment *assignment)
{
	struct program program = {.random = assignment->seed * UINT64_C(0x9e3779b97f4a7c15) + 1};
	struct counters counts = {0};
	struct worker worker = {0};
	uint64_t end_ms = now_ms() + assignment->milliseconds;
	for (uint64_t i = 0; now_ms() < end_ms && !counts.mismatches; i++) {
		if (i % PROGRAMS_OF_A_VM == 0)
			change_vms(assignment, &worker, &counts);
		program_generate(&program);
		note(assignment->progress, &program);
		if (!agree(worker.oracle, worker.jit, program.text, program.length))
			counts.mismatches++;
		counts.programs++;
		if (i % HALF_BUILT_EVERY == 0 && !half_built_block_holds_its_links()) {
			printf("mismatch: a block that only an open one leads to was freed\n");
			counts.mismatches++;
		}
	}
	counts.operations = program.operations;
	take_counts(&worker, &counts);
	(void)is_sound(&counts);
	return counts;
}
