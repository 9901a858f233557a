/* SPDX-License-Identifier: MIT
 * overrun.c: an emitter that writes around the block's room hears so at commit, and the commit
 * leaves everything as before. An emitter inside the room never hears so, whatever other threads do
 * with the bytes around. */
#include "codeheap/graph/block_parts.h"
#include "pages/inner.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

static struct rig rig;
static struct ch_owner owner;

static void start(void)
{
	rig = rig_start(1 << 20);
	owner = rig_owner(&rig, "owner");
	/* Valgrind reports such a store, so the library does not. */
	if (rig.heap->pool->is_translated)
		skip("Valgrind sees the store");
}

static void open_answer(struct emitter *e, const char *name)
{
	struct ch_open open = {
		.owner = owner, .hot_bytes = 40, .cold_bytes = 16, .name = name};
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
	emit_landing(e);
	emit_answer(e, 42);
	memset(e->code.cold_write, 0x90, 8);
	e->code.cold_used = 8;
}

/* The store goes to a byte outside the room, one of the four checked bytes. */
static void refuse_with(struct emitter *e, uint8_t *behind, const char *says)
{
	uint8_t was = *behind;
	*behind = (uint8_t)(was ^ 0x5a);
	CHECK_EQ(emit_commit(e), CH_E_BROKEN);
	if (!strstr(ch_why(), says))
		FAIL("\"%s\" does not say \"%s\"", ch_why(), says);
	char number[32];
	snprintf(number, sizeof number, "block #%u `", rig_record(e->code.block));
	CHECK(strstr(ch_why(), number));
	CHECK_EQ(block_info(e->code.block).state, CH_BLOCK_OPEN);
	*behind = was;
}

static void serves(struct emitter *e)
{
	CHECK_EQ(emit_commit(e), CH_OK);
	CHECK_EQ(code_call(block_info(e->code.block).entry), 42);
	CHECK_EQ(ch_owner_set_entry(owner, e->code.block), CH_OK);
}

TEST(store_behind_hot_bytes_into_free_room_is_told_at_commit)
{
	struct emitter e;
	start();
	open_answer(&e, "loop-7");
	for (uint32_t i = 0; i < 4; i++)
		refuse_with(&e, e.code.write + e.code.hot_bytes + i,
			    "`loop-7` wrote behind its hot bytes");
	serves(&e);
	rig_end(&rig);
}

TEST(store_around_code_that_fills_its_room_is_told_at_commit)
{
	struct emitter e;
	start();
	struct ch_open open = {.owner = owner, .hot_bytes = 40, .name = "full"};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_landing(&e);
	emit_answer(&e, 42);
	e.at = e.code.hot_bytes;
	refuse_with(&e, e.code.write + e.code.hot_bytes, "`full` wrote behind its hot bytes");
	refuse_with(&e, e.code.write - 1, "in front of the hot bytes");
	serves(&e);
	rig_end(&rig);
}

static void overrun_with_debug(void *unused)
{
	(void)unused;
	CHECK_EQ(setenv("CODEHEAP_DEBUG", "1", 1), 0);
	start();
	struct emitter e;
	emit_open(&e, owner, 40, 0);
	e.at = 40;
	refuse_with(&e, e.code.write + e.code.hot_bytes, "wrote behind its hot bytes");
}

TEST(debug_tells_of_an_overrun_once)
{
	char text[400];
	expect_signal_text(overrun_with_debug, NULL, 0, text, sizeof text);
	const char *line = strstr(text, "wrote behind its hot bytes");
	CHECK(line && !strstr(line + 1, "wrote behind its hot bytes"));
}

TEST(store_behind_cold_bytes_is_told_at_commit)
{
	struct emitter first, e;
	start();
	open_answer(&first, "first");
	open_answer(&e, NULL);
	for (uint32_t i = 0; i < 4; i++)
		refuse_with(&e, e.code.cold_write + e.code.cold_bytes + i,
			    "`owner` wrote behind its cold bytes");
	serves(&first);
	refuse_with(&e, e.code.cold_write + e.code.cold_bytes, "cold");
	serves(&e);
	rig_end(&rig);
}

/* The block's emitter stored, or the emitter of the block before; the latter may commit later. */
TEST(store_in_front_of_a_part_is_told_at_its_commit)
{
	struct emitter before, e;
	start();
	open_answer(&before, "before");
	open_answer(&e, "loop-7");
	CHECK_EQ(e.code.write, before.code.write + before.code.hot_bytes + 8);
	for (uint32_t i = 1; i <= 8; i++)
		refuse_with(&e, e.code.write - i, "in front of the hot bytes of block #");
	for (uint32_t i = 1; i <= 8; i++)
		refuse_with(&e, e.code.cold_write - i, "in front of the cold bytes of block #");
	serves(&e);
	serves(&before);
	rig_end(&rig);
}

/* The block behind may be OPEN, live or dead. */
TEST(store_behind_hot_bytes_into_another_block_is_told_at_commit)
{
	struct emitter e, other;
	start();
	open_answer(&e, "loop-7");
	open_answer(&other, "other");
	CHECK_EQ(other.code.write, e.code.write + e.code.hot_bytes + 8);
	uint8_t *behind = e.code.write + e.code.hot_bytes;
	refuse_with(&e, behind, "loop-7");
	serves(&other);
	refuse_with(&e, behind, "loop-7");
	refuse_with(&e, behind + 3, "loop-7");
	CHECK_EQ(ch_blocks_invalidate(&other.code.block, 1, NULL), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	refuse_with(&e, behind, "loop-7");
	serves(&e);
	rig_end(&rig);
}

TEST(overrun_of_one_block_leaves_a_batch_open)
{
	struct emitter e[2];
	struct ch_code codes[2];
	start();
	for (int i = 0; i < 2; i++) {
		open_answer(&e[i], "one of two");
		codes[i] = e[i].code;
		codes[i].used_to = e[i].at;
	}
	uint8_t *behind = codes[1].write + codes[1].hot_bytes, was = *behind;
	*behind = 0x90;
	CHECK_EQ(ch_block_commit(codes, 2), CH_E_BROKEN);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(block_info(codes[i].block).state, CH_BLOCK_OPEN);
	*behind = was;
	CHECK_EQ(ch_block_commit(codes, 2), CH_OK);
	rig_end(&rig);
}

/* A block behind has its bytes as the store left them, but for the traps in front of them, so that
 * the next block here is not blamed. */
TEST(abort_of_an_overrun_block_gives_the_room_behind_its_traps_back)
{
	struct emitter first, e, next, other;
	char report[200];
	start();
	open_answer(&first, "first");
	open_answer(&e, "loop-7");
	memset(e.code.write, 0x90, e.code.hot_bytes + 200);
	memset(e.code.cold_write, 0x90, e.code.cold_bytes);
	CHECK_EQ(emit_commit(&e), CH_E_BROKEN);
	CHECK_EQ(ch_heap_check(rig.heap, report, sizeof report), CH_E_BROKEN);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_heap_check(rig.heap, report, sizeof report), CH_OK);
	for (int i = 0; i < 8; i++) {
		open_answer(&next, "next");
		serves(&next);
	}
	/* Behind cold bytes: room of a block that was aborted. */
	open_answer(&other, "other");
	open_answer(&e, "loop-7");
	CHECK_EQ(ch_block_abort(&other.code), CH_OK);
	memset(e.code.cold_write, 0x90, e.code.cold_bytes + 8);
	CHECK_EQ(emit_commit(&e), CH_E_BROKEN);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_heap_check(rig.heap, report, sizeof report), CH_OK);
	open_answer(&e, "loop-7");
	open_answer(&other, "other");
	uint8_t *behind = e.code.write + e.code.hot_bytes;
	CHECK_EQ(other.code.write, behind + 8);
	other.code.write[other.code.hot_bytes - 1] = 0x5a;
	memset(behind, 0x90, 4);
	CHECK_EQ(emit_commit(&e), CH_E_BROKEN);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(other.code.write[other.code.hot_bytes - 1], 0x5a);
	CHECK(ch__arch_are_traps(behind, 4));
	serves(&other);
	serves(&first);
	rig_end(&rig);
}

/* The last block of a page, or of a run of pages, may end where memory ends. */
TEST(room_that_ends_with_its_page_is_not_looked_behind)
{
	struct emitter e;
	start();
	/* The first block is a chunk, behind which no memory is yet. */
	uint32_t page = (uint32_t)rig_page_bytes();
	uint32_t chunk = ch__pool_chunk_pages(rig.heap->pool);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t bytes = (i ? i : chunk) * page - 8;
		struct ch_open open = {.owner = owner, .hot_bytes = bytes};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(e.code.hot_bytes, bytes);
		CHECK(i || !ch__os_is_readable(e.code.exec + bytes));
		emit_landing(&e);
		emit_answer(&e, 42);
		serves(&e);
	}
	rig_end(&rig);
}

/* The emitter of another block wrote where the slot behind the next one begins. */
TEST(trampoline_beside_damaged_bytes_is_refused_and_leaves_no_block)
{
	struct ch_block first, next;
	start();
	CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL, (void *)(uintptr_t)rig_fallback, 0,
				    NULL, NULL, &first),
		 CH_OK);
	uintptr_t slot = (uintptr_t)block_info(first).exec - CH__HEAD_BYTES;
	uint8_t *behind = ch__pool_write(rig.heap->pool, slot + 2 * (uintptr_t)CH__SLOT_BYTES);
	uint8_t was = *behind;
	for (int i = 0; i < 3; i++) {
		*behind = (uint8_t)(was ^ 0x5a);
		CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL,
					    (void *)(uintptr_t)rig_fallback, 0, NULL, NULL, &next),
			 CH_E_BROKEN);
		CHECK_EQ(next.bits, 0);
		CHECK_EQ(rig_stats(&rig).blocks_open_now, 0);
		CHECK_EQ(*behind, was);
	}
	CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL, (void *)(uintptr_t)rig_fallback, 0,
				    NULL, NULL, &next),
		 CH_OK);
	rig_end(&rig);
}
