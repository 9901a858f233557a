/* SPDX-License-Identifier: MIT
 * dead_heaps.c: handles of a destroyed heap, while a new heap has the same place. Each call finds
 * the handles stale, and leaves the new users of the records alone. Then blocks of two heaps in one
 * call. */
#include "codeheap/base/heap.h"
#include "tests/support/heap_rig.h"

enum { HEAPS = 20, LIVES_MOST = 5 };

/* A handle of each kind. */
struct kept {
	struct ch_owner owner;
	struct ch_block block;
	struct ch_branch branch;
	struct ch_assumption fact;
};

/* Makes the same handles in each heap. The records were used `lives` times before. */
static struct kept make_one_of_each(const struct rig *rig, unsigned lives)
{
	struct kept kept;
	for (unsigned i = 0; i <= lives; i++) {
		if (i) {
			CHECK_EQ(ch_owner_release(kept.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
			CHECK_EQ(ch_assumption_break(kept.fact, NULL), CH_OK);
		}
		kept.owner = rig_owner(rig, "owner");
		kept.block = rig_jumper(kept.owner, NULL, &kept.branch);
		CHECK_EQ(ch_owner_set_entry(kept.owner, kept.block), CH_OK);
		CHECK_EQ(ch_assumption_create(rig->vm, &kept.fact), CH_OK);
	}
	return kept;
}

static void expect_stale(const struct rig *rig, const struct kept *old, const struct kept *now)
{
	struct ch_info info = {.size = sizeof info};
	struct ch_owner_facts facts = {.size = sizeof facts};
	struct ch_code code;
	struct ch_open open = {.size = sizeof open, .owner = old->owner, .hot_bytes = 16};
	struct ch_block block, none = {0};
	size_t count = 7;
	CHECK_EQ(ch_block_info(old->block, &info), CH_E_STALE);
	CHECK_EQ(ch_blocks_invalidate(&old->block, 1, &count), CH_OK);
	CHECK_EQ(count, 0);
	CHECK_EQ(ch_owner_info(old->owner, &facts), CH_E_STALE);
	CHECK_EQ(ch_owner_cell(old->owner), NULL);
	CHECK_EQ(ch_owner_set_entry(old->owner, none), CH_E_STALE);
	CHECK_EQ(ch_owner_set_entry(now->owner, old->block), CH_E_STALE);
	CHECK_EQ(ch_owner_release(old->owner, CH_RELEASE_COLLECT), CH_E_STALE);
	CHECK_EQ(ch_owner_release(old->owner, CH_RELEASE_NOT_RUNNING), CH_E_STALE);
	CHECK_EQ(ch_block_open(&open, &code), CH_E_STALE);
	CHECK_EQ(ch_trampoline_make(old->owner, CH_TRAMPOLINE_TAIL, (void *)rig_fallback, 0, NULL,
				    NULL, &block),
		 CH_E_STALE);
	CHECK_EQ(ch_branch_link(old->branch, none), CH_E_STALE);
	CHECK_EQ(ch_branch_link(now->branch, old->block), CH_E_STALE);
	CHECK_EQ(ch_assumption_break(old->fact, &count), CH_E_STALE);
	open.owner = now->owner;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(ch_edge_attach(code.block, old->block), CH_E_STALE);
	CHECK_EQ(ch_edge_attach_owner(code.block, old->owner), CH_E_STALE);
	CHECK_EQ(ch_block_assume(code.block, old->fact), CH_E_STALE);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	(void)rig;
}

/* Expects the present heap's owner, block, branch and assumption untouched. */
static void expect_whole(const struct rig *rig, const struct kept *now)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(ch_owner_info(now->owner, &facts), CH_OK);
	CHECK(!facts.is_released);
	CHECK_EQ(facts.entry.bits, now->block.bits);
	CHECK_EQ(block_info(now->block).state, CH_BLOCK_LIVE);
	CHECK_EQ(ch_branch_link(now->branch, now->block), CH_OK);
	CHECK_EQ(ch_branch_link(now->branch, (struct ch_block){0}), CH_OK);
	size_t count;
	CHECK_EQ(ch_assumption_break(now->fact, &count), CH_OK);
	rig_check(rig);
}

TEST(handles_of_a_heap_that_is_gone_are_stale_in_the_next_one)
{
	static struct kept kept[HEAPS];
	for (unsigned i = 0; i < HEAPS; i++) {
		struct rig rig = rig_start(1 << 20);
		/* Fewer from heap to heap: the generations of one kind of records alone, of which
		 * assumptions have the fewest, would begin the next heap's too low. */
		kept[i] = make_one_of_each(&rig, i * 4 % LIVES_MOST);
		/* Each heap has the same place in the table of heaps. */
		CHECK_EQ(kept[i].owner.bits >> 24 & 0xff, kept[0].owner.bits >> 24 & 0xff);
		for (unsigned j = 0; j < i; j++)
			expect_stale(&rig, &kept[j], &kept[i]);
		expect_whole(&rig, &kept[i]);
		rig_end(&rig);
		struct ch_info info = {.size = sizeof info};
		CHECK_EQ(ch_block_info(kept[i].block, &info), CH_E_STALE);
	}
}

/* --- two heaps --- */

TEST(blocks_of_two_heaps_are_not_invalidated_in_one_call)
{
	struct rig one = rig_start(1 << 20), two = rig_start(1 << 20);
	struct ch_block gone = rig_block(rig_owner(&two, "gone"), 1);
	CHECK_EQ(ch_owner_release(block_info(gone).owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	struct ch_block blocks[] = {{0}, rig_block(rig_owner(&one, "one"), 1), gone,
				    rig_block(rig_owner(&two, "two"), 2)};
	size_t count = 7;
	CHECK_EQ(ch_blocks_invalidate(blocks, 4, &count), CH_E_ARG);
	CHECK_EQ(count, 0);
	CHECK_EQ(block_info(blocks[1]).state, CH_BLOCK_LIVE);
	CHECK_EQ(block_info(blocks[3]).state, CH_BLOCK_LIVE);
	/* A stale handle belongs to no heap. */
	CHECK_EQ(ch_blocks_invalidate(blocks, 3, &count), CH_OK);
	CHECK_EQ(count, 1);
	CHECK_EQ(ch_blocks_invalidate(&blocks[2], 2, &count), CH_OK);
	CHECK_EQ(count, 1);
	CHECK_EQ(block_info(blocks[1]).state, CH_BLOCK_NOTENTRANT);
	CHECK_EQ(block_info(blocks[3]).state, CH_BLOCK_NOTENTRANT);
	rig_end(&two);
	rig_end(&one);
}

/* A call with several handles takes the heap from the first handle. */
TEST(handles_of_another_heap_are_stale_beside_one_of_this_heap)
{
	struct rig one = rig_start(1 << 20), two = rig_start(1 << 20);
	struct kept a = make_one_of_each(&one, 0), b = make_one_of_each(&two, 0);
	struct ch_open open = {.size = sizeof open, .owner = a.owner, .hot_bytes = 16};
	struct ch_code codes[2];
	/* The handles differ in the heap only. */
	CHECK_EQ(a.block.bits ^ b.block.bits, a.owner.bits ^ b.owner.bits);
	CHECK_EQ(a.block.bits ^ b.block.bits, a.fact.bits ^ b.fact.bits);
	CHECK_EQ(ch_branch_link(a.branch, b.block), CH_E_STALE);
	CHECK_EQ(ch_owner_set_entry(a.owner, b.block), CH_E_STALE);
	CHECK_EQ(ch_block_open(&open, &codes[0]), CH_OK);
	open.owner = b.owner;
	CHECK_EQ(ch_block_open(&open, &codes[1]), CH_OK);
	CHECK_EQ(ch_edge_attach(codes[0].block, b.block), CH_E_STALE);
	CHECK_EQ(ch_edge_attach_owner(codes[0].block, b.owner), CH_E_STALE);
	CHECK_EQ(ch_block_assume(codes[0].block, b.fact), CH_E_STALE);
	codes[0].used_to = codes[1].used_to = 16;
	CHECK_EQ(ch_block_commit(codes, 2), CH_E_STATE);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(block_info(codes[i].block).state, CH_BLOCK_OPEN);
		CHECK_EQ(ch_block_abort(&codes[i]), CH_OK);
	}
	expect_whole(&one, &a);
	expect_whole(&two, &b);
	rig_end(&two);
	rig_end(&one);
}

static void mark_strangers_only(const struct rig *rig, void *owner)
{
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(rig->heap, &marker), CH_OK);
	ch_mark_owner(marker, *(struct ch_owner *)owner);
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
}

TEST(owner_of_another_heap_is_not_marked)
{
	struct ch_config config = rig_config(1 << 20);
	config.driver = CH_DRIVER_HOST;
	struct rig one = rig_create(&config, NULL, NULL), two = rig_create(&config, NULL, NULL);
	struct kept a = make_one_of_each(&one, 0), b = make_one_of_each(&two, 0);
	CHECK_EQ(a.block.bits ^ b.block.bits, a.owner.bits ^ b.owner.bits);
	rig_alone(&one, mark_strangers_only, &b.owner);
	CHECK(!rig_is_there(a.block));
	CHECK(rig_is_there(b.block));
	rig_end(&two);
	rig_end(&one);
}

/* The record of the block is used more often than the record of any owner or assumption. */
TEST(no_later_heap_gives_the_handle_of_a_block_in_a_record_that_was_used_often)
{
	enum { USES = 40 };
	uint64_t before[USES] = {0};
	for (int heap = 0; heap < 2; heap++) {
		struct rig rig = rig_start(1 << 20);
		struct ch_owner owner = rig_owner(&rig, "owner");
		for (int i = 0; i < USES; i++) {
			struct emitter e;
			emit_open(&e, owner, 16, 0);
			for (int k = 0; heap && k < USES; k++)
				CHECK(e.code.block.bits != before[k]);
			/* The same record of a heap with the same number. */
			if (heap)
				CHECK_EQ((uint32_t)e.code.block.bits, (uint32_t)before[i]);
			else
				before[i] = e.code.block.bits;
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		}
		rig_end(&rig);
	}
}
