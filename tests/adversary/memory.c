/* SPDX-License-Identifier: MIT
 * memory.c: pools that are tiny, full, or without memory; churn without end; traces of freed code
 * in traps, tables and files. */
#define _GNU_SOURCE
#include "codeheap/graph/block_parts.h"
#include "tests/support/describe_signal.h"
#include "tests/support/libgcc_knows.h"
#include "tests/support/stage.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	struct method m, other;
	uintptr_t word;
	char report[300];
};

static size_t page_bytes(const struct stage *stage)
{
	return (size_t)1 << stage->heap->pool->page_log2;
}

/* --- 26 --- */

static enum ch_status use_everything(struct stage *stage, struct method *m)
{
	struct emitter e;
	struct ch_assumption fact;
	memset(m, 0, sizeof *m);
	enum ch_status status =
		ch_owner_create(stage->vm, "everything", stage_fallback, m, &m->owner);
	if (status != CH_OK)
		return status;
	struct ch_open open = {.owner = m->owner,
			       .hot_bytes = 300,
			       .branch_room = 2,
			       .entry = CH_ENTRY_PATCH,
			       .name = "of a name"};
	if ((status = emit_open_as(&e, &open)) != CH_OK)
		return status;
	if ((status = ch_assumption_create(stage->vm, &fact)) != CH_OK ||
	    (status = ch_block_assume(e.code.block, fact)) != CH_OK)
		goto abort;
	for (int i = 0; i < 12; i++)
		if ((status = ch_ref_attach(e.code.block, emit_ref_word(&e, 1))) != CH_OK)
			goto abort;
	emit_answer(&e, 26);
	status = emit_commit(&e);
	if (status != CH_OK)
		return status;
	m->block = e.code.block;
	m->cell = ch_owner_cell(m->owner);
	return ch_owner_set_entry(m->owner, m->block);
abort:
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	return status;
}

/* Every call into the system and the allocator fails in turn, once or from then on. */
static void fail_each(bool for_ever)
{
	for (uint64_t nth = 1;; nth++) {
		struct stage *stage = stage_new(STAGE_POLLS);
		struct method m;
		stage->config.sinks = CH_SINK_UNWIND;
		stage_start(stage);
		ch__os_fail_at(nth, for_ever);
		enum ch_status status = use_everything(stage, &m);
		uint64_t calls = ch__os_failable_calls();
		ch__os_fail_at(0, false);
		CHECK(status == CH_OK || status == CH_E_MEMORY || status == CH_E_FULL ||
		      status == CH_E_OS);
		stage_check(stage);
		CHECK_EQ(stage_stats(stage).blocks_open_now, 0);
		/* Space and memory are there again. */
		struct method again;
		CHECK_EQ(use_everything(stage, &again), CH_OK);
		CHECK_EQ(method_call(&again, NULL), 26);
		if (status == CH_OK)
			CHECK_EQ(method_call(&m, NULL), 26);
		stage_collect(stage);
		CHECK_EQ(method_call(&again, NULL), 26);
		stage_end(stage);
		if (status == CH_OK && calls < nth)
			break;
		CHECK(nth < 200);
	}
}

TEST(s26_each_allocation_fails_once)
{
	fail_each(false);
}

TEST(s26_each_allocation_fails_from_then_on)
{
	fail_each(true);
}

/* Creates a heap with each failure in turn. The first creations leave lasting things in the process
 * and its allocator before the mappings are counted. */
TEST(s26_heap_whose_creation_fails_leaves_nothing)
{
	long mappings = 0;
	for (uint64_t nth = 1;; nth++) {
		struct ch_config config;
		struct ch_heap *heap;
		ch_config_init(&config);
		config.pool_bytes = 1 << 20;
		config.page_bytes = test_page_bytes();
		config.sinks = CH_SINK_UNWIND;
		ch__os_fail_at(nth, true);
		enum ch_status status = ch_heap_create(&config, &heap);
		ch__os_fail_at(0, false);
		if (status == CH_OK) {
			CHECK_EQ(ch_heap_destroy(heap), CH_OK);
			break;
		}
		CHECK_EQ((uintptr_t)heap, 0);
		CHECK(nth < 200);
		if (nth == 5)
			mappings = count_mappings();
	}
	/* A sanitizer's allocator maps as it likes. */
	if (!TEST_SANITIZED && count_mappings() > mappings + 6)
		FAIL("heap: a creation that failed has left mappings: %ld, and now %ld", mappings,
		     count_mappings());
}

TEST(s26_collections_without_memory_lose_nothing)
{
	struct stage *stage = stage_new(STAGE_POLLS);
	struct play *p = stage_play(stage, sizeof *p);
	method_constant(stage, &p->other, "live", 5);
	uint64_t nth = 1;
	for (bool is_over = false; !is_over; nth++) {
		method_constant(stage, &p->m, "dead", 4);
		method_drop(stage, &p->m);
		ch__os_fail_at(nth, true);
		enum ch_status status = stage_try_collect(stage);
		is_over = ch__os_failable_calls() < nth;
		ch__os_fail_at(0, false);
		CHECK(status == CH_OK || status == CH_E_MEMORY);
		stage_check(stage);
		CHECK_EQ(method_call(&p->other, NULL), 5);
	}
	CHECK(nth > 2); /* a call was refused */
	stage_collect(stage);
	CHECK_EQ(stage_stats(stage).blocks_now, 1);
	stage_end(p->stage);
}

/* --- 27 --- */

EVERY_DRIVER(s27_invalidation_needs_no_room_and_no_memory)
{
	stage->config.pool_bytes = 128 << 10;
	struct play *p = stage_play(stage, sizeof *p);
	method_jumper(stage, &p->m, "source");
	method_constant(stage, &p->other, "target", 2);
	method_link(&p->m, 0, &p->other);
	struct method filler;
	method_new(stage, &filler, "filler");
	CHECK(stage_fill(filler.owner) > 10);
	stage->hit = stage_no_target;
	ch__os_fail_at(1, true);
	method_invalidate(&p->other);
	CHECK_EQ(method_call(&p->m, NULL), STAGE_FALLBACK);
	method_invalidate(&p->m);
	ch__os_fail_at(0, false);
	CHECK_EQ(method_call(&p->m, NULL), STAGE_FALLBACK);
}

/* --- 28 --- */

static void use_size(struct stage *stage, uint32_t hot, enum ch_status expected)
{
	struct emitter e;
	struct method m;
	method_new(stage, &m, "sized");
	struct ch_open open = {.owner = m.owner, .hot_bytes = hot};
	CHECK_EQ(emit_open_as(&e, &open), expected);
	if (expected == CH_OK) {
		emit_filler(&e, hot - CODE_ANSWER_BYTES);
		emit_answer(&e, hot);
		method_commit(&e, &m);
		CHECK_EQ(method_call(&m, NULL), hot);
		struct ch_block found;
		CHECK(block_at(stage->heap, e.code.exec + e.at - 1, &found));
		CHECK_EQ(found.bits, m.block.bits);
		stage_check(stage);
	}
	CHECK_EQ(ch_owner_release(m.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	stage_check(stage);
}

EVERY_DRIVER(s28_pool_of_one_page)
{
	size_t page = test_page_bytes() ? test_page_bytes() : 16384;
	stage->config.pool_bytes = page;
	struct play *p = stage_play(stage, sizeof *p);
	uint32_t whole = (uint32_t)page_bytes(stage) - CH__HEAD_BYTES;
	for (int i = 0; i < 3; i++) {
		use_size(stage, whole, CH_OK);
		use_size(stage, whole + 1, CH_E_ARG); /* never fits */
		use_size(stage, whole - 1, CH_OK);
		use_size(stage, whole / 2, CH_OK);
	}
	stage_settle(stage);
	CHECK(stage_stats(stage).pages_now <= 1); /* the thread's open page */
}

EVERY_DRIVER(s28_block_of_exactly_a_page_and_one_byte_more)
{
	struct play *p = stage_play(stage, sizeof *p);
	uint32_t whole = (uint32_t)page_bytes(stage) - CH__HEAD_BYTES;
	uint32_t page = (uint32_t)page_bytes(stage);
	uint32_t sizes[] = {
		whole - 1,           whole, whole + 1, page, page * 2 - 1, page * 3 + whole,
		page * 3 + whole + 1};
	for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
		use_size(stage, sizes[i], CH_OK);
	struct emitter e;
	struct method m;
	method_new(stage, &m, "too large");
	struct ch_open open = {.owner = m.owner, .hot_bytes = 8 << 20};
	CHECK_EQ(emit_open_as(&e, &open), CH_E_ARG);
	stage_settle(stage);
	CHECK(stage_stats(stage).pages_now <= 1);
}

/* --- 30, and its callbacks --- */

static bool collects_for_itself(const struct stage *stage)
{
	return stage->driver == STAGE_HOST || stage->driver == STAGE_BOEHM;
}

static uint64_t fill_and_discard(void *arg)
{
	struct play *p = arg;
	struct stage *stage = p->stage;
	struct ch_owner owner = p->other.owner;
	size_t freed = 0, kept = 0;
	for (int i = 0; i < 3; i++) {
		uint64_t before = stage_stats(stage).blocks_freed;
		CHECK(stage_fill(owner) > 10);
		stage_scrub();
		CHECK_EQ(ch_vm_discard(stage->heap, NULL, &freed, &kept), CH_OK);
		if (collects_for_itself(stage)) /* the VM's collector frees, when the VM wants */
			stage_collect(stage);
		else
			CHECK(freed > 10);
		CHECK(stage_stats(stage).blocks_freed > before + 10);
	}
	if (!collects_for_itself(stage))
		CHECK_EQ(kept, 1); /* this frame's block */
	CHECK_EQ(stage_stats(stage).blocks_now, 1);
	return 30;
}

/* A host's heap leaves the collection to the VM. */
static enum ch_status open_somehow(struct stage *stage, struct emitter *e, struct ch_open *open)
{
	enum ch_status status = emit_open_as(e, open);
	if (status != CH_E_FULL || stage->driver != STAGE_HOST)
		return status;
	stage_collect(stage);
	return emit_open_as(e, open);
}

EVERY_DRIVER(s30_discard_of_a_full_pool_and_room_again)
{
	stage->config.pool_bytes = 128 << 10;
	stage->counts_only = true;
	struct play *p = stage_play(stage, sizeof *p);
	method_new(stage, &p->other, "filler");
	method_native(stage, &p->m, "discarder", (void *)fill_and_discard);
	stage_scrub(); /* some words of fill_and_discard's frame are not written */
	CHECK_EQ(method_call(&p->m, p), 30);
	uint64_t cycles = stage_stats(stage).cycles;
	CHECK(cycles < 20);
	struct ch_open open = {
		.owner = p->other.owner, .hot_bytes = 64, .flags = CH_OPEN_MAY_COLLECT};
	struct emitter e;
	unsigned opened = 0, wanted = collects_for_itself(stage) ? 20000 : 100000;
	while (opened < wanted && open_somehow(stage, &e, &open) == CH_OK) {
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		opened++;
		CHECK_EQ(ch_owner_set_entry(p->other.owner, e.code.block), CH_OK);
	}
	/* Each entry drops the entry before, so the pool never fills: collections keep up. */
	CHECK_EQ(opened, wanted);
}

EVERY_DRIVER(s30_pool_full_of_live_code_says_so_and_tells_when_space_came)
{
	stage->config.pool_bytes = 128 << 10;
	struct play *p = stage_play(stage, sizeof *p);
	static struct method all[20000];
	unsigned count = 0;
	for (;; count++) {
		struct emitter e;
		method_new(stage, &all[count], "live");
		struct ch_open open = {
			.owner = all[count].owner, .hot_bytes = 60, .flags = CH_OPEN_MAY_COLLECT};
		enum ch_status status = emit_open_as(&e, &open);
		if (status != CH_OK) {
			CHECK_EQ(status, CH_E_FULL);
			break;
		}
		emit_filler(&e, 60 - CODE_RETURN_BYTES);
		emit_ret(&e);
		method_commit(&e, &all[count]);
	}
	uint64_t cycles = stage_stats(stage).cycles;
	CHECK(cycles < 20);
	CHECK(stage->wanted >= 1);
	CHECK_EQ(stage->space, 0);
	for (unsigned i = 0; i < count / 2; i++)
		method_drop(stage, &all[i]);
	stage_collect(stage);
	stage_collect(stage);
	ch_thread_poll();
	CHECK_EQ(stage->space, 1);
	struct method again;
	method_constant(stage, &again, "again", 9);
	CHECK_EQ(method_call(&again, NULL), 9);
}

/* --- 38 --- */

static void build_and_drop(struct stage *stage)
{
	static struct method all[1000];
	for (int i = 0; i < 1000; i++) {
		struct emitter e;
		method_new(stage, &all[i], "dropped");
		struct ch_open open = {.owner = all[i].owner, .hot_bytes = 1000};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_filler(&e, 1000);
		method_commit(&e, &all[i]);
		method_drop(stage, &all[i]);
	}
	ch_thread_poll();
}

/* A request is told once. The next request is told after the cycle that served the first. None is
 * lost, however quickly requests follow. */
EVERY_DRIVER(s38_each_request_for_a_collection_is_told)
{
	stage->config.pool_bytes = 32 << 20;
	struct play *p = stage_play(stage, sizeof *p);
	stage->counts_only = true;
	for (unsigned round = 0; round < 5; round++) {
		unsigned before = stage->wanted;
		/* The necessary garbage depends on how long collections take on this machine. */
		for (int batch = 0; stage->wanted == before; batch++) {
			if (batch == 24)
				FAIL("three quarters of the pool are garbage, and nobody asks");
			build_and_drop(stage);
		}
		unsigned asked = stage->wanted;
		uint64_t cycles = stage_stats(stage).cycles;
		build_and_drop(stage);
		ch_thread_poll();
		if (stage_stats(stage).cycles == cycles) /* libgc may have had reasons of its own */
			CHECK_EQ(stage->wanted, asked);
		stage_collect(stage);
	}
}

/* --- 42 --- */

static void churn(struct stage *stage, unsigned rounds)
{
	struct method a, b;
	stage->counts_only = true;
	for (unsigned i = 0; i < rounds; i++) {
		method_jumper(stage, &a, "(define (test) 1)");
		method_constant(stage, &b, "test", i);
		method_link(&a, 0, &b);
		CHECK_EQ(method_call(&a, NULL), i);
		method_drop(stage, &a);
		method_drop(stage, &b);
		ch_thread_poll();
		/* Requests depend on the machine's load: at least a collection each 1000 rounds. */
		if (atomic_exchange(&stage->wanted, 0) || i % 1000 == 0)
			stage_collect_now(stage);
	}
}

EVERY_DRIVER(s42_half_a_million_definitions_leave_memory_flat)
{
	enum { FIRST = 10000, ROUNDS = 250000, GROWTH = 2 << 20 };
	stage->config.sinks = CH_SINK_UNWIND;
	stage->config.remembered_dead = 8192; /* as many have died before the first figures */
	struct play *p = stage_play(stage, sizeof *p);
	churn(stage, FIRST);
	stage_collect(stage);
	uint64_t resident = resident_bytes();
	struct ch_stats first = stage_stats(stage);
	/* The drivers mark differently, but a definition costs the same: a single driver has the
	 * whole half million. */
	bool is_slow = getenv("CODEHEAP_TEST_SLOW") || stage->driver != STAGE_POLLS;
	/* On procmem each write is a system call. */
	is_slow |= stage->heap->pool->backend >= CH_BACKEND_PROCMEM;
	unsigned rounds = is_slow ? ROUNDS / 20 : ROUNDS;
	churn(stage, rounds);
	stage_collect(stage);
	struct ch_stats last = stage_stats(stage);
	CHECK_EQ(last.blocks_committed, 2 * (uint64_t)(FIRST + rounds));
	CHECK(last.blocks_now <= first.blocks_now + 10);
	CHECK(last.metadata_bytes_now <= first.metadata_bytes_now + GROWTH);
	CHECK(last.pages_peak <= 2 * first.pages_peak + 16);
	CHECK(last.owners_now < 20000);
	if (!getenv("CODEHEAP_TEST_SLOW"))
		CHECK(resident_bytes() <= resident + GROWTH);
}

/* --- 55 --- */

EVERY_DRIVER(s55_a_thousand_collections_write_no_code)
{
	struct play *p = stage_play(stage, sizeof *p);
	static struct method all[500];
	for (int i = 0; i < 500; i++)
		method_constant(stage, &all[i], "hot", (uint32_t)i);
	struct ch_info info = {.size = sizeof info}, later = {.size = sizeof later};
	CHECK_EQ(ch_block_info(all[7].block, &info), CH_OK);
	const struct ch__pool *pool = stage->heap->pool;
	/* Code is written through this view only: a store by the collector is a fault. */
	uint8_t *view = ch__pool_write(pool, pool->exec_base);
	CHECK_EQ(mprotect(view, pool->pool_bytes, PROT_READ), 0);
	/* A tenth of the rounds where a cycle takes milliseconds. */
	bool is_slow = getenv("CODEHEAP_TEST_SLOW") || stage->driver == STAGE_BOEHM;
	int rounds = is_slow ? 100 : 1000;
	for (int i = 0; i < rounds; i++)
		stage_collect(stage);
	CHECK_EQ(mprotect(view, pool->pool_bytes, PROT_READ | PROT_WRITE), 0);
	CHECK_EQ(stage_stats(stage).cycles, (unsigned)rounds);
	CHECK_EQ(ch_block_info(all[7].block, &later), CH_OK);
	CHECK_EQ((uintptr_t)later.exec, (uintptr_t)info.exec);
	CHECK_EQ(method_call(&all[7], NULL), 7);
}

/* --- 48, 52, and the quarantine --- */

static void build_named(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch_info info = {.size = sizeof info};
	method_constant(stage, &p->m, "Schneewittchen", 7);
	CHECK_EQ(ch_block_info(p->m.block, &info), CH_OK);
	p->word = ~(uintptr_t)info.exec;
}

static void jump_to_freed(void *arg)
{
	struct play *p = arg;
	const void *target = (const void *)~p->word;
	describe_signal(p->stage->heap, SIGTRAP);
	stage_enter(&target, NULL);
}

EVERY_DRIVER(s48_jump_into_freed_code_traps_and_names_the_block)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_named, p);
	method_invalidate(&p->m);
	method_drop(stage, &p->m);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	expect_signal_text(jump_to_freed, p, SIGTRAP, p->report, sizeof p->report);
	CHECK(strstr(p->report, "Schneewittchen"));
	CHECK(strstr(p->report, "invalidated"));
}

static bool file_has(const char *path, const char *text)
{
	FILE *f = fopen(path, "r");
	char line[400];
	bool has = false;
	CHECK(f);
	while (fgets(line, sizeof line, f))
		has |= strstr(line, text) != NULL;
	fclose(f);
	return has;
}

EVERY_DRIVER(s24_freed_block_leaves_the_perf_map)
{
	stage->config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
	struct play *p = stage_play(stage, sizeof *p);
	const char *path;
	stage_apart(stage, build_named, p);
	CHECK(ch_sink_status(stage->heap, CH_SINK_PERF_MAP, &path, NULL));
	CHECK_EQ(ch_sink_flush(stage->heap), CH_OK);
	CHECK(file_has(path, "Schneewittchen"));
	method_drop(stage, &p->m);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	CHECK_EQ(ch_sink_flush(stage->heap), CH_OK);
	if (file_has(path, "Schneewittchen"))
		FAIL("perf map: it still names a block that was freed");
	unlink(path);
}

/* Not inlined: the address is a word of this frame. */
static __attribute__((noinline)) bool unwinder_knows(const struct play *p)
{
	return libgcc_knows((const void *)(~p->word + 1));
}

EVERY_DRIVER(s24_freed_page_leaves_the_unwinder)
{
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_named, p);
	CHECK(unwinder_knows(p));
	method_drop(stage, &p->m);
	stage_collect(stage);
	stage_collect(stage); /* through the quarantine */
	CHECK_EQ(stage_stats(stage).pages_now, 0);
	if (unwinder_knows(p))
		FAIL("libgcc: %p is of a page that was freed, and still known", (void *)~p->word);
}

EVERY_DRIVER(freed_place_is_used_again_after_a_core_sync_only)
{
	size_t page = test_page_bytes() ? test_page_bytes() : 16384;
	stage->config.pool_bytes = page;
	struct play *p = stage_play(stage, sizeof *p);
	stage_apart(stage, build_named, p);
	method_new(stage, &p->other, "filler");
	stage_fill(p->other.owner);
	method_drop(stage, &p->m);
	stage_collect(stage);
	CHECK_EQ(p->m.freed, 1);
	CHECK(stage_stats(stage).quarantine_bytes_now > 0);
	uint64_t syncs = stage_stats(stage).core_syncs;
	struct emitter e;
	struct ch_open open = {.owner = p->other.owner, .hot_bytes = 6};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(stage_stats(stage).core_syncs > syncs);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}
