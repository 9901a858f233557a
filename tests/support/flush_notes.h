/* SPDX-License-Identifier: MIT
 * flush_notes.h: for machines whose caches are flushed by a function that the program replaces: the
 * ranges that were flushed hold each byte of code that is published. No emulator notices a missing
 * flush, and the ledger believes its own note. This header has no tests. */
#pragma once

#include "codeheap/base/heap.h"
#include "pages/write.h"
#include "tests/support/heap_rig.h"

enum { NOTES = 256 };

static struct {
	uintptr_t from, to;
} notes[NOTES];
static unsigned noted;

static inline void note_flush(uintptr_t from, uintptr_t to)
{
	notes[noted % NOTES].from = from;
	notes[noted++ % NOTES].to = to;
}

static inline bool is_noted(uintptr_t at)
{
	for (unsigned i = 0; i < NOTES; i++)
		if (at - notes[i].from < notes[i].to - notes[i].from)
			return true;
	return false;
}

static inline void expect_noted(const struct ch_info *info)
{
	uintptr_t low = (uintptr_t)info->exec;
	for (uintptr_t at = low; at < low + info->hot_bytes; at++)
		if (!is_noted(at))
			FAIL("byte %d of %u", (int)(at - low), info->hot_bytes);
}

static inline void expect_a_new_block_is_noted(void)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_info info = block_info(rig_block(rig_owner(&rig, "published"), 7));
	expect_noted(&info);
	CHECK_EQ(code_call(info.exec), 7);
	rig_end(&rig);
}

/* An emulator's views need a further step, so the views' steps are cleared. */
static inline void expect_a_published_block_is_noted(void)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_info info = block_info(rig_block(rig_owner(&rig, "published"), 7));
	struct ch__pool *pool = rig.heap->pool;
	uint8_t steps = pool->sync_steps;
	noted = 0;
	memset(notes, 0, sizeof notes);
	pool->sync_steps = 0;
	ch__pool_publish(pool, (uintptr_t)info.exec, info.hot_bytes);
	pool->sync_steps = steps;
	expect_noted(&info);
	rig_end(&rig);
}
