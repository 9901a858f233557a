/* SPDX-License-Identifier: MIT
 * tiers.c: code that relies on an assumption gives way to the code that it replaced, if the VM kept
 * that code (docs/embedding.md, "Two tiers"). */
#include "tests/support/heap_rig.h"

struct tiers {
	struct ch_owner owner;
	struct ch_assumption fact; /* the newer block relies on it */
	struct ch_block older;     /* answers 1, the newer block 2 */
	unsigned flags;            /* of the older block's open */
	bool has_edge;             /* from the newer block to the older one */
};

static void make_tiers(const struct rig *rig, void *arg)
{
	struct tiers *t = arg;
	struct emitter e;
	(void)rig;
	struct ch_open open = {.owner = t->owner, .hot_bytes = CODE_ROOM(16), .flags = t->flags};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	t->older = e.code.block;
	emit_open(&e, t->owner, 16, 0);
	CHECK_EQ(ch_block_assume(e.code.block, t->fact), CH_OK);
	if (t->has_edge)
		CHECK_EQ(ch_edge_attach(e.code.block, t->older), CH_OK);
	emit_answer(&e, 2);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(t->owner, e.code.block), CH_OK);
}

/* The assumption breaks after the older block was no entry for long. */
static struct tiers tiers_broken(const struct rig *rig, unsigned flags, bool has_edge)
{
	struct tiers t = {.owner = rig_owner(rig, "tiers"), .flags = flags, .has_edge = has_edge};
	CHECK_EQ(ch_assumption_create(rig->vm, &t.fact), CH_OK);
	rig_apart(rig, make_tiers, &t);
	rig_collect(rig, 4);
	CHECK_EQ(code_call_owner(t.owner), 2);
	CHECK_EQ(ch_assumption_break(t.fact, NULL), CH_OK);
	CHECK_EQ(code_call_owner(t.owner), RIG_FALLBACK);
	return t;
}

TEST_RIG(older_code_that_is_kept_or_has_an_edge_is_the_entry_again)
{
	struct tiers kept = tiers_broken(&rig, CH_OPEN_KEPT, false);
	struct tiers held = tiers_broken(&rig, 0, true);
	CHECK_EQ(ch_owner_set_entry(held.owner, held.older), CH_OK);
	rig_collect(&rig, 4);
	CHECK_EQ(code_call_owner(held.owner), 1);
	CHECK_EQ(ch_owner_set_entry(kept.owner, kept.older), CH_OK);
	CHECK_EQ(code_call_owner(kept.owner), 1);
}

TEST_RIG(older_code_that_nothing_holds_is_stale_as_an_entry)
{
	struct tiers left = tiers_broken(&rig, 0, false);
	CHECK_EQ(ch_owner_set_entry(left.owner, left.older), CH_E_STALE);
	struct tiers held = tiers_broken(&rig, 0, true);
	rig_collect(&rig, 1);
	CHECK_EQ(ch_owner_set_entry(held.owner, held.older), CH_E_STALE);
	CHECK_EQ(code_call_owner(held.owner), RIG_FALLBACK);
}
