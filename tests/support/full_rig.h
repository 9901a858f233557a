/* SPDX-License-Identifier: MIT
 * full_rig.h: shared by tests of full pools: a pool filled with blocks of one size by a thread that
 * has ended, and an open that is undone at once. */
#pragma once

#include "tests/support/heap_rig.h"

enum { HEAD_BYTES = 8 };

struct filled {
	struct ch_owner *owners;
	struct ch_block *blocks;
	uint32_t count, room, hot_bytes;
};

/* Fills the pool; each block is the entry of its owner. */
static inline void fill(const struct rig *rig, void *arg)
{
	struct filled *f = arg;
	for (f->count = 0;; f->count++) {
		CHECK(f->count < f->room);
		struct ch_owner owner = rig_owner(rig, "filler");
		struct ch_open open = {.owner = owner, .hot_bytes = f->hot_bytes};
		struct emitter e;
		enum ch_status status = emit_open_as(&e, &open);
		if (status != CH_OK) {
			CHECK_EQ(status, CH_E_FULL);
			CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
			return;
		}
		emit_answer(&e, f->count);
		e.at = f->hot_bytes; /* traps to the end, so that no byte is left over */
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
		f->owners[f->count] = owner;
		f->blocks[f->count] = e.code.block;
	}
}

static inline struct filled fill_pool(const struct rig *rig, size_t pages, uint32_t hot_bytes)
{
	struct filled f = {.room = (uint32_t)(pages * rig_page_bytes() / 8),
			   .hot_bytes = hot_bytes};
	f.owners = calloc(f.room, sizeof *f.owners);
	f.blocks = calloc(f.room, sizeof *f.blocks);
	CHECK(f.owners && f.blocks);
	rig_apart(rig, fill, &f);
	return f;
}

static inline void forget(struct filled *f)
{
	free(f->owners);
	free(f->blocks);
}

static inline enum ch_status try_open(struct ch_owner owner, uint32_t hot_bytes, unsigned flags)
{
	struct ch_open open = {
		.size = sizeof open, .owner = owner, .hot_bytes = hot_bytes, .flags = flags};
	struct ch_code code;
	enum ch_status status = ch_block_open(&open, &code);
	if (status == CH_OK)
		CHECK_EQ(ch_block_abort(&code), CH_OK);
	return status;
}
