/* SPDX-License-Identifier: MIT
 * small_data.c: constants and variables in shared pages: their cost, the access of each kind, and
 * the return of pages to code. */
#include "pages/inner.h"
#include "pages/write.h"
#include "tests/support/in_place_rig.h"

#include <signal.h>
#include <stdlib.h>

enum { MANY = 20000, POOL = 4 << 20 };

static struct ch_code data_open(const struct rig *rig, enum ch_kind kind, uint32_t bytes)
{
	struct ch_code code;
	struct ch_open open = {.size = sizeof open,
			       .heap = rig->heap,
			       .hot_bytes = bytes,
			       .kind = kind};
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(code.hot_bytes % 8, 0);
	CHECK(code.hot_bytes >= bytes && (uintptr_t)code.exec % 8 == 0);
	return code;
}

static struct ch_code data_make(const struct rig *rig, enum ch_kind kind, uint32_t bytes,
				uint8_t with)
{
	struct ch_code code = data_open(rig, kind, bytes);
	memset(code.write, with, code.hot_bytes);
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	return code;
}

static void data_free(const struct rig *rig, const struct ch_code *code)
{
	CHECK_EQ(ch_code_free(rig->heap, code->exec, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static bool holds(const struct ch_code *code, uint32_t bytes, uint8_t with)
{
	for (uint32_t i = 0; i < bytes; i++)
		if (code->exec[i] != with)
			return false;
	return true;
}

static uint32_t bytes_of(int i)
{
	return i % 2 ? 8 : 16;
}

/* Each constant or variable costs its bytes and a head of 8. */
TEST_RIG_BY(many_small_constants_cost_their_bytes, rig_start(POOL))
{
	static struct ch_code codes[MANY];
	for (int i = 0; i < MANY; i++)
		codes[i] = data_make(&rig, i % 4 < 2 ? CH_KIND_RODATA : CH_KIND_DATA, bytes_of(i),
				     (uint8_t)i);
	struct ch_stats stats = rig_stats(&rig);
	CHECK_EQ(stats.code_bytes_now, MANY * (8 + 12));
	if (stats.pages_now * stats.page_bytes > MANY * 20 + 4 * stats.page_bytes)
		FAIL("%llu pages of %llu", (unsigned long long)stats.pages_now,
		     (unsigned long long)stats.page_bytes);
	for (int i = 0; i < MANY; i++)
		CHECK(holds(&codes[i], bytes_of(i), (uint8_t)i));
	rig_check(&rig);
	for (int i = 0; i < MANY; i++)
		data_free(&rig, &codes[i]);
	rig_collect(&rig, 2);
	rig_check(&rig);
	/* All pages are for code again. The detach gives back the page that the thread has open. */
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	stats = rig_stats(&rig);
	CHECK_EQ(stats.free_bytes_now, stats.pool_bytes);
	expect_free(codes[0].exec, 8);
	struct ch_owner owner = rig_owner(&rig, "code");
	for (int i = 0; i < 3; i++) {
		struct emitter e;
		emit_open(&e, owner, (1 << 20) - 64, 0);
		emit_answer(&e, (uint32_t)i);
		e.code.used_to = e.code.hot_bytes;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		CHECK_EQ(code_call(e.code.exec), i);
	}
}

static void write_to(void *at)
{
	*(volatile uint8_t *)at = 1;
}

static void jump_to(void *at)
{
	(void)code_call(at);
}

/* No page is ever writable and executable: data of neither kind runs. */
static void see_access(struct rig rig)
{
	for (int round = 0; round < 2; round++) {
		struct ch_code constant = data_open(&rig, CH_KIND_RODATA, 100);
		struct ch_code variable = data_open(&rig, CH_KIND_DATA, 100);
		CHECK(constant.write != constant.exec);
		CHECK_EQ(variable.write, variable.exec);
		expect_access(constant.exec, 100, "r--");
		expect_access(variable.exec, 100, "rw-");
		memset(constant.write, 0x55, 100);
		CHECK_EQ(ch_block_commit(&constant, 1), CH_OK);
		CHECK_EQ(ch_block_commit(&variable, 1), CH_OK);
		CHECK(holds(&constant, 100, 0x55));
		expect_no_both(&rig);
		expect_signal(write_to, (void *)(uintptr_t)constant.exec, SIGSEGV);
		expect_signal(jump_to, (void *)(uintptr_t)constant.exec, SIGSEGV);
		expect_signal(jump_to, (void *)(uintptr_t)variable.exec, SIGSEGV);
		write_to((void *)(uintptr_t)variable.exec);
		CHECK_EQ(variable.exec[0], 1);
		CHECK_EQ(block_info(constant.block).kind, CH_KIND_RODATA);
		CHECK_EQ(block_info(variable.block).kind, CH_KIND_DATA);
		struct ch_spot at = {.size = sizeof at};
		CHECK(ch_code_at(rig.heap, constant.exec + 5, false, &at));
		CHECK_EQ(at.offset, 5);
		data_free(&rig, &constant);
		data_free(&rig, &variable);
		rig_collect(&rig, 2);
		/* Freed bytes are traps. Under Valgrind the test may not read freed bytes. */
		if (!ch__valgrind_runs())
			CHECK(ch__arch_are_traps(constant.exec, 100) &&
			      ch__arch_are_traps(variable.exec, 100));
	}
	rig_end(&rig);
}

TEST(small_data_has_the_access_of_its_kind)
{
	see_access(rig_start(POOL));
}

/* Under an emulator pages of code are mapped again behind each store. */
TEST(small_data_keeps_its_access_where_code_is_mapped_again)
{
	unsetenv("CODEHEAP_WX");
	struct ch_config config = rig_config(POOL);
	config.backend = CH_BACKEND_MEMFD;
	struct rig rig = rig_create(&config, NULL, NULL);
	rig.heap->pool->sync_steps |= CH__SYNC_REMAP;
	rig.heap->pool->inner->views.sync_steps |= CH__SYNC_REMAP;
	struct ch_code first = data_make(&rig, CH_KIND_RODATA, 40, 0x11);
	struct ch_code second = data_make(&rig, CH_KIND_DATA, 40, 0x22);
	see_access(rig);
	(void)first, (void)second;
}

/* The first page of a freed run becomes a page of data: the pages behind stay as they are. */
TEST_RIG_BY(small_data_takes_one_page_of_a_run_that_was_freed, rig_start(POOL))
{
	/* A chunk's first memory: no other page is free before the run's first. */
	uint32_t bytes = rig_page_bytes() < 16384 ? 65536 : (uint32_t)rig_page_bytes() * 4;
	struct ch_open open = {.size = sizeof open,
			       .heap = rig.heap,
			       .hot_bytes = bytes - 64,
			       .flags = CH_OPEN_OWN_FRAMES};
	struct ch_code run, other;
	CHECK_EQ(ch_block_open(&open, &run), CH_OK);
	CHECK_EQ(ch_block_abort(&run), CH_OK);
	struct ch_code data = data_open(&rig, CH_KIND_DATA, 100);
	CHECK_EQ((uintptr_t)data.exec / rig_page_bytes(), (uintptr_t)run.exec / rig_page_bytes());
	expect_access(data.exec, 100, "rw-");
	expect_access(data.exec + rig_page_bytes(), 100, "r-x");
	open.hot_bytes = bytes / 2;
	CHECK_EQ(ch_block_open(&open, &other), CH_OK);
	expect_access(other.exec, 100, "r-x");
	CHECK_EQ(ch_block_abort(&other), CH_OK);
	CHECK_EQ(ch_block_abort(&data), CH_OK);
}

struct pair {
	struct ch_block code;
	const uint8_t *data; /* on the stack of the case */
	struct ch_block handle;
};

static void make_pair(const struct rig *rig, void *arg)
{
	struct pair *pair = arg;
	struct ch_open open = {.size = sizeof open,
			       .owner = rig_owner(rig, "data"),
			       .hot_bytes = 16,
			       .kind = CH_KIND_RODATA};
	struct ch_owner owner = rig_owner(rig, "code");
	struct ch_code data;
	struct emitter e;
	CHECK_EQ(ch_block_open(&open, &data), CH_OK);
	memset(data.write, 0x77, data.hot_bytes);
	CHECK_EQ(ch_block_commit(&data, 1), CH_OK);
	emit_open(&e, owner, 16, 0);
	emit_ret(&e);
	CHECK_EQ(ch_edge_attach(e.code.block, data.block), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	pair->code = e.code.block;
	pair->data = data.exec;
	pair->handle = data.block;
}

/* The last code with an edge to data dies in a cycle, and a word on a stack leads to the data. */
TEST_RIG_BY(data_that_a_word_holds_outlives_its_code, rig_start(POOL))
{
	struct pair pair;
	/* A death by hand makes the room in which data without a user would wait. */
	struct ch_owner by_hand = rig_owner(&rig, "by hand");
	(void)rig_block(by_hand, 1);
	CHECK_EQ(ch_owner_release(by_hand, CH_RELEASE_NOT_RUNNING), CH_OK);
	uint64_t freed = rig_stats(&rig).blocks_freed;
	rig_apart(&rig, make_pair, &pair);
	/* A question for the code would leave its address on this stack. */
	for (int i = 0; i < 4 && rig_stats(&rig).blocks_freed == freed; i++)
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK(!rig_is_there(pair.code));
	CHECK(rig_is_there(pair.handle));
	CHECK_EQ(pair.data[3], 0x77);
	pair.data = NULL;
	rig_collect(&rig, 2);
	CHECK(!rig_is_there(pair.handle));
}

/* On procmem the written memory is a private copy, not the memory of the readers. */
TEST(small_constants_are_carried_over_to_where_they_are_read)
{
	skip_without_procmem();
	unsetenv("CODEHEAP_WX");
	struct ch_config config = rig_config(POOL);
	config.backend = CH_BACKEND_PROCMEM;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_code constant = data_make(&rig, CH_KIND_RODATA, 40, 0x66);
	struct ch_code variable = data_make(&rig, CH_KIND_DATA, 40, 0x77);
	CHECK(holds(&constant, 40, 0x66) && holds(&variable, 40, 0x77));
	expect_access(constant.exec, 40, "r--");
	data_free(&rig, &constant);
	data_free(&rig, &variable);
	rig_collect(&rig, 2);
	if (!ch__valgrind_runs())
		CHECK(ch__arch_are_traps(constant.exec, 40) &&
		      ch__arch_are_traps(variable.exec, 40));
	rig_end(&rig);
}

/* Large data, and data written in place, have pages of their own. */
TEST_RIG_BY(data_in_place_and_large_data_share_no_page, rig_start(POOL))
{
	uint32_t page = (uint32_t)rig_page_bytes();
	struct ch_code small = data_make(&rig, CH_KIND_RODATA, page / 4 - 8, 1);
	struct ch_code large = data_open(&rig, CH_KIND_RODATA, page / 4), in_place;
	CHECK_EQ((uintptr_t)small.exec % page, 8);
	CHECK_EQ((uintptr_t)large.exec % page, 64);
	CHECK_EQ(large.write, large.exec);
	CHECK_EQ(ch_block_commit(&large, 1), CH_OK);
	struct ch_open open = {.size = sizeof open,
			       .heap = rig.heap,
			       .hot_bytes = 8,
			       .kind = CH_KIND_RODATA,
			       .flags = CH_OPEN_IN_PLACE};
	CHECK_EQ(ch_block_open(&open, &in_place), CH_OK);
	CHECK_EQ(in_place.write, in_place.exec);
	CHECK_EQ((uintptr_t)in_place.exec % page, 64);
	CHECK_EQ(ch_block_commit(&in_place, 1), CH_OK);
}

/* With its slack the block is as long as a page. */
TEST(data_that_begins_at_a_multiple_of_its_page_shares_no_page)
{
	enum { PAGE = 4096 };
	struct ch_config config = rig_config(POOL);
	config.page_bytes = PAGE;
	struct rig rig = rig_create(&config, NULL, NULL);
	for (int kind = CH_KIND_RODATA; kind <= CH_KIND_DATA; kind++) {
		struct ch_open open = {.size = sizeof open, .heap = rig.heap, .hot_bytes = 64};
		struct ch_code code;
		open.kind = (enum ch_kind)kind;
		open.align = PAGE;
		CHECK_EQ(ch_block_open(&open, &code), CH_OK);
		CHECK_EQ((uintptr_t)code.exec % PAGE, 0);
		memset(code.write, kind, code.hot_bytes);
		CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
		CHECK(holds(&code, 64, (uint8_t)kind));
		rig_check(&rig);
		data_free(&rig, &code);
	}
	rig_end(&rig);
}

static void make_each_kind(const struct rig *rig, void *arg)
{
	(void)arg;
	rig_block(rig_owner(rig, "code"), 1);
	data_make(rig, CH_KIND_RODATA, 64, 1);
	data_make(rig, CH_KIND_DATA, 64, 1);
}

TEST_RIG_BY(thread_that_left_has_no_page_of_any_kind_open, rig_start(POOL))
{
	rig_apart(&rig, make_each_kind, NULL);
	CHECK_EQ(atomic_load(&rig.heap->pool->pages_open), 0);
}

/* Random sizes, kinds and times, with code in between. The check of the heap judges. */
TEST_RIG_BY(small_data_and_code_come_and_go_at_random, rig_start(POOL))
{
	enum { HELD = 400, TURNS = 20000 };
	static struct {
		struct ch_code code;
		uint32_t bytes;
		uint8_t with;
	} held[HELD];
	struct test_random random = test_random_new();
	for (int i = 0; i < TURNS; i++) {
		unsigned at = (unsigned)test_random_below(&random, HELD);
		if (held[at].bytes) {
			CHECK(holds(&held[at].code, held[at].bytes, held[at].with));
			data_free(&rig, &held[at].code);
			held[at].bytes = 0;
		} else {
			uint64_t kind = test_random_below(&random, 3);
			held[at].bytes = 1 + (uint32_t)test_random_below(&random, 300);
			held[at].with = (uint8_t)i;
			held[at].code = data_open(&rig, (enum ch_kind)kind, held[at].bytes);
			held[at].code.used_to = kind == CH_KIND_CODE ? held[at].bytes : 0;
			memset(held[at].code.write, held[at].with, held[at].bytes);
			CHECK_EQ(ch_block_commit(&held[at].code, 1), CH_OK);
		}
		if (i % 500 == 0)
			rig_check(&rig);
	}
}
