/* SPDX-License-Identifier: MIT
 * attached.c: what was attached to a block goes with the block. The next block gets the list of the
 * one before, and the items of that one lie behind the end of its own: nobody may read them. */
#include "tests/support/heap_rig.h"

struct attached {
	struct ch_owner owner;
	struct ch_assumption fact; /* the item that both blocks have */
};

static struct attached attached_to(const struct rig *rig)
{
	struct attached a = {.owner = rig_owner(rig, "owner")};
	CHECK_EQ(ch_assumption_create(rig->vm, &a.fact), CH_OK);
	return a;
}

/* A block with the first item alone. */
static struct emitter next_block(const struct attached *a)
{
	struct emitter e;
	emit_open(&e, a->owner, 64, 0);
	CHECK_EQ(ch_block_assume(e.code.block, a->fact), CH_OK);
	emit_answer(&e, 1);
	return e;
}

static void leave_edge(const struct attached *a, struct ch_block target)
{
	struct emitter e = next_block(a);
	CHECK_EQ(ch_edge_attach(e.code.block, target), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

static struct ch_block commit_next(const struct attached *a)
{
	struct emitter e = next_block(a);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

TEST_RIG(block_leaves_no_assumption_of_the_block_before)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_assumption facts[2];
	struct emitter first, second, other;
	size_t count;
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_assumption_create(rig.vm, &facts[i]), CH_OK);
	emit_open(&first, owner, 16, 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_block_assume(first.code.block, facts[i]), CH_OK);
	CHECK_EQ(ch_block_abort(&first.code), CH_OK);
	emit_open(&second, owner, 16, 0);
	CHECK_EQ(ch_block_assume(second.code.block, facts[0]), CH_OK);
	emit_open(&other, owner, 16, 0);
	CHECK_EQ(ch_block_assume(other.code.block, facts[1]), CH_OK);
	CHECK_EQ(ch_block_abort(&second.code), CH_OK);
	emit_ret(&other);
	CHECK_EQ(emit_commit(&other), CH_OK);
	CHECK_EQ(ch_assumption_break(facts[1], &count), CH_OK);
	CHECK_EQ(count, 1);
}

/* Data takes chunks of its own. */
TEST_RIG_BY(block_leaves_no_data_of_the_block_before, rig_start(4 << 20))
{
	struct attached a = attached_to(&rig);
	struct ch_owner of_data = rig_owner(&rig, "data"), user = rig_owner(&rig, "user");
	struct ch_open open = {.owner = of_data, .hot_bytes = 8, .kind = CH_KIND_RODATA};
	struct emitter data, e;
	CHECK_EQ(emit_open_as(&data, &open), CH_OK);
	CHECK_EQ(ch_block_commit(&data.code, 1), CH_OK);
	emit_open(&e, user, 64, 0);
	CHECK_EQ(ch_edge_attach(e.code.block, data.code.block), CH_OK);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(of_data, CH_RELEASE_NOT_RUNNING), CH_OK);
	leave_edge(&a, data.code.block);
	CHECK(rig_is_there(data.code.block));
	(void)commit_next(&a);
	CHECK_EQ(ch_owner_release(a.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(rig_is_there(data.code.block));
	CHECK_EQ(ch_owner_release(user, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!rig_is_there(data.code.block));
}

TEST_RIG(block_does_not_wait_for_an_edge_of_the_block_before)
{
	struct attached a = attached_to(&rig);
	struct emitter target;
	emit_open(&target, a.owner, 64, 0);
	leave_edge(&a, target.code.block);
	(void)commit_next(&a);
	CHECK_EQ(ch_block_abort(&target.code), CH_OK);
	rig_check(&rig);
	emit_open(&target, a.owner, 64, 0);
	leave_edge(&a, target.code.block);
	CHECK_EQ(ch_block_abort(&target.code), CH_OK);
	(void)commit_next(&a);
	rig_check(&rig);
}

TEST_RIG(block_keeps_no_target_of_the_block_before)
{
	struct attached a = attached_to(&rig);
	struct ch_owner other = rig_owner(&rig, "other");
	struct emitter target;
	emit_open(&target, other, 64, 0);
	emit_answer(&target, 1);
	CHECK_EQ(emit_commit(&target), CH_OK);
	leave_edge(&a, target.code.block);
	struct ch_block kept = commit_next(&a);
	CHECK_EQ(ch_owner_set_entry(a.owner, kept), CH_OK);
	CHECK_EQ(ch_owner_release(other, CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 4);
	CHECK(rig_is_there(kept));
	CHECK(!rig_is_there(target.code.block));
}

TEST_RIG(block_diverts_no_patch_point_of_the_block_before)
{
	struct attached a = attached_to(&rig);
	struct emitter e = next_block(&a);
	const void *point = emit_point(&e), *leads_to = e.code.exec + e.at;
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, leads_to, NULL), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	struct ch_block next = commit_next(&a);
	CHECK_EQ(ch_blocks_invalidate(&next, 1, NULL), CH_OK);
	CHECK_EQ(rig_stats(&rig).patch_points_armed, 0);
	rig_check(&rig);
}

static uintptr_t fail_at_ref(void *arg, uintptr_t word, bool *is_young)
{
	(void)arg, (void)is_young;
	FAIL("a visit is shown the word %lx, of a block that was aborted", (unsigned long)word);
}

static struct rig collected_by_its_host(void)
{
	struct ch_config config = rig_config(4 << 20);
	config.driver = CH_DRIVER_HOST;
	return rig_create(&config, NULL, NULL);
}

TEST_RIG_BY(block_shows_no_ref_of_the_block_before, collected_by_its_host())
{
	struct attached a = attached_to(&rig);
	struct emitter e = next_block(&a);
	CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, 1)), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	struct ch_block next = commit_next(&a);
	CHECK_EQ(ch_owner_set_entry(a.owner, next), CH_OK);
	rig_visit_refs(&rig, CH_REFS_ALL, fail_at_ref, NULL);
}
