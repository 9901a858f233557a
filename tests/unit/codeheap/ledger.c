/* SPDX-License-Identifier: MIT
 * ledger.c: a sync has covered every byte of code before a thread reaches the byte. Neither x86-64
 * nor an emulator notices a missing sync; the ledger of checked builds does. Each place that
 * publishes has a case: without the place's sync (NO_SYNC_...) the process dies there. */
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "tests/support/heap_rig.h"

#include <signal.h>

_Static_assert(CH_CHECK >= 2, "tests link checked objects");

enum { POOL_BYTES = 1 << 20 };

/* --- the ledger --- */

struct range {
	struct ch__pool *pool;
	uintptr_t at;
};

static void check_range(void *arg)
{
	const struct range *r = arg;
	CH_PUBLISHED(r->pool, r->at, 64, "tested");
}

static void see_each_byte(enum ch_backend backend)
{
	struct ch_config config = rig_config(POOL_BYTES);
	config.backend = backend;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch__pool *pool = rig.heap->pool;
	struct ch_info info = block_info(rig_block(rig_owner(&rig, "one"), 5));
	struct range r = {pool, (uintptr_t)info.entry & ~(uintptr_t)63};
	char text[400];
	check_range(&r);
	for (uint32_t i = 0; i < 64; i++) {
		uint8_t *write = ch__pool_write(pool, r.at + i);
		uint8_t was = *write;
		*write ^= 0x40;
		expect_signal_text(check_range, &r, SIGABRT, text, sizeof text);
		char says[100];
		snprintf(says, sizeof says, "ledger: tested: the byte at +%u of 64", i);
		if (!strstr(text, says))
			FAIL("an unpublished byte at %u reads \"%s\"", i, text);
		*write = was;
		check_range(&r);
	}
	rig_end(&rig);
}

TEST(byte_that_was_written_and_not_published_is_seen)
{
	see_each_byte(CH_BACKEND_AUTO);
}

/* On procmem the running code is the note. */
TEST(byte_that_was_written_and_not_carried_over_is_seen)
{
	skip_without_procmem();
	unsetenv("CODEHEAP_WX");
	see_each_byte(CH_BACKEND_PROCMEM);
}

TEST_RIG_BY(notes_of_a_chunk_stay_when_it_gets_more_memory, rig_start(POOL_BYTES))
{
	struct ch__pool *pool = rig.heap->pool;
	struct ch_info info = block_info(rig_block(rig_owner(&rig, "one"), 5));
	struct range r = {pool, (uintptr_t)info.entry & ~(uintptr_t)63};
	uint32_t taken[64], count = 0, had = atomic_load(&pool->pages_committed);
	CHECK(had < pool->page_count);
	while (atomic_load(&pool->pages_committed) == had) {
		CHECK(count < 64);
		taken[count] = ch__pool_take_page(pool, 0);
		CHECK(taken[count++] != CH__PAGE_NONE);
	}
	check_range(&r);
	while (count)
		ch__pool_retire_page(pool, taken[--count]);
}

TEST(notes_go_with_their_pool)
{
	enum { ROUNDS = 64 };
	size_t before = 0;
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct rig rig = rig_start(POOL_BYTES);
		(void)rig_block(rig_owner(&rig, "one"), 5);
		rig_end(&rig);
		if (i == ROUNDS / 2)
			before = mapped_bytes();
	}
	/* Half of the rounds' notes would leave 32 MiB. */
	CHECK(mapped_bytes() < before + ROUNDS / 4 * (size_t)POOL_BYTES);
}

/* --- places that publish --- */

/* Whatever else a place skips: the bytes in the pages of blocks are the published bytes. */
static void end_published(struct rig *rig)
{
	struct ch_heap *heap = rig->heap;
	size_t page_bytes = (size_t)1 << heap->pool->page_log2;
	for (uint32_t i = 1; i < heap->blocks.used; i++)
		if (ch__block_in_use(heap, i)) {
			uintptr_t exec = ch__exec(heap, ch__block_at(heap, i)->hot_offset);
			CH_PUBLISHED(heap->pool, exec & ~(page_bytes - 1), page_bytes, "page");
		}
	rig_end(rig);
}

#define TEST_PUBLISHED(name) \
	TEST_WITH(name, struct rig, rig, rig_start(POOL_BYTES), end_published(&rig))

TEST_PUBLISHED(commit_publishes)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block block = rig_block(owner, 5);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(code_call_owner(owner), 5);
}

TEST_PUBLISHED(write_publishes)
{
	const uint8_t *at = block_info(rig_block(rig_owner(&rig, "owner"), 5)).entry;
	static const uint8_t others[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	at = (const uint8_t *)(((uintptr_t)at + 7) & ~(uintptr_t)7);
	CHECK_EQ(ch_code_write(NULL, at, others, 4, CH_WRITE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_code_write(NULL, at, others, 8, CH_WRITE_WORD), CH_OK);
}

TEST_PUBLISHED(link_publishes)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block one = rig_block(owner, 1);
	struct ch_branch branch;
	struct ch_block jumper = rig_jumper(owner, NULL, &branch);
	CHECK_EQ(ch_branch_link(branch, one), CH_OK);
	CHECK_EQ(code_call(block_info(jumper).entry), 1);
	CHECK_EQ(ch_blocks_invalidate(&one, 1, NULL), CH_OK); /* back to the branch's stub */
}

/* A LIVE block reserved room for the branch: no commit comes later. */
TEST_PUBLISHED(stub_of_a_live_block_is_published)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 1);
	const void *site = emit_site_jmp(&e);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct ch_branch_site late = {.at = site, .kind = CH_JMP};
	struct ch_branch branch;
	CHECK_EQ(ch_branch_attach(e.code.block, &late, &branch), CH_OK);
}

TEST_PUBLISHED(traps_of_what_is_given_back_are_published)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	rig_block(owner, 5);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

TEST_PUBLISHED(trampoline_is_published)
{
	struct ch_block block;
	CHECK_EQ(ch_trampoline_make(rig_owner(&rig, "owner"), CH_TRAMPOLINE_TAIL,
				    (void *)(uintptr_t)rig_fallback, 0, NULL, NULL, &block),
		 CH_OK);
	CHECK_EQ(code_call(block_info(block).entry), RIG_FALLBACK);
}

TEST_PUBLISHED(patch_point_that_is_diverted_is_published)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .cold_bytes = 32};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	struct emitter exit = emit_cold(&e);
	emit_answer(&exit, 2);
	emit_cold_end(&e, &exit);
	CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), e.code.cold_exec, NULL),
		 CH_OK);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	const void *entry = block_info(e.code.block).entry;
	CHECK_EQ(code_call(entry), 1);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(code_call(entry), 2);
}

TEST_PUBLISHED(entry_that_is_shut_is_published)
{
	struct emitter e;
	struct ch_open open = {
		.owner = rig_owner(&rig, "owner"), .hot_bytes = 32, .entry = CH_ENTRY_PATCH};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 3);
	CHECK_EQ(emit_commit(&e), CH_OK);
	const void *entry = block_info(e.code.block).entry;
	CHECK_EQ(code_call(entry), 3);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(code_call(entry), RIG_FALLBACK);
}

TEST_PUBLISHED(veneer_is_published)
{
	struct emitter e;
	const void *veneer;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 0);
	CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)rig_fallback, &veneer), CH_OK);
	CHECK_EQ(code_call(veneer), RIG_FALLBACK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

static uintptr_t move_word(void *arg, uintptr_t word, bool *is_young)
{
	*is_young = false;
	return word + *(const uintptr_t *)arg;
}

TEST(ref_that_moved_is_published)
{
	struct rig rig = rig_start_host(POOL_BYTES);
	struct emitter e;
	uintptr_t by = 16;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 0);
	CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, 0x1000)), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	rig_visit_refs(&rig, CH_REFS_ALL, move_word, &by);
	end_published(&rig);
}
