/* SPDX-License-Identifier: MIT
 * lists.c: the side list of a block that went: what it held is given back, and the next block that
 * gets the list finds nothing in it. */
#include "codeheap/base/heap.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

TEST(name_of_a_file_goes_with_its_block)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "owner");
	uint32_t count = rig.heap->names_count;
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	struct ch_line line = {e.code.exec, 1};
	CHECK_EQ(ch_block_lines(e.code.block, "file", &line, 1), CH_OK);
	CHECK_EQ(rig.heap->names_count, count + 1);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(rig.heap->names_count, count);
	rig_end(&rig);
}

TEST(list_that_became_too_short_is_given_back)
{
	enum { EDGES = 20, ROUNDS = 4 };
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block to = rig_block(owner, 7);
	size_t before = 0;
	for (int round = 0; round < ROUNDS; round++) {
		struct emitter e;
		emit_open(&e, owner, 16, 0);
		for (int i = 0; i < EDGES; i++)
			CHECK_EQ(ch_edge_attach(e.code.block, to), CH_OK);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		before = round ? before : ch__meta_bytes(rig.heap->meta);
		CHECK_EQ(ch__meta_bytes(rig.heap->meta), before);
	}
	rig_end(&rig);
}

/* A site may lie around the entry of the block that had the list before. */
TEST(list_of_another_block_has_no_entry_of_it)
{
	enum { ENTRY_MOST = 12 };
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block to = rig_block(owner, 7);
	CHECK_EQ(ch_owner_set_entry(owner, to), CH_OK);
	for (uint32_t entry = 4; entry <= ENTRY_MOST; entry += 4) {
		struct ch_owner other = rig_owner(&rig, "other");
		struct emitter e;
		emit_open(&e, other, 64, 0);
		emit_filler(&e, ENTRY_MOST);
		emit_ret(&e);
		e.code.entry_offset = entry;
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_release(other, CH_RELEASE_NOT_RUNNING), CH_OK);
		rig_settle(&rig);
		emit_open(&e, owner, 64, 1);
		CHECK_EQ(ch_edge_attach(e.code.block, to), CH_OK);
		(void)emit_jmp(&e, NULL);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
	rig_end(&rig);
}

/* The word that the VM's entry tests is memory of its own. */
TEST(guard_of_a_block_that_went_is_given_back)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_open open = {.size = sizeof open, .hot_bytes = 16, .entry = CH_ENTRY_GUARD};
	size_t before = 0;
	for (int round = 0; round < 4; round++) {
		struct emitter e;
		open.owner = rig_owner(&rig, "guarded");
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK(e.code.guard);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		CHECK_EQ(ch_owner_release(open.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		rig_collect(&rig, 2);
		if (round == 0)
			before = ch__meta_bytes(rig.heap->meta);
		CHECK_EQ(ch__meta_bytes(rig.heap->meta), before);
	}
	rig_end(&rig);
}
