/* SPDX-License-Identifier: MIT
 * thresholds.c: dead code has its collection by the default thresholds, whichever thread releases
 * the code, and whatever the cycles before found. */
#include "codeheap/base/heap.h"
#include "tests/support/heap_rig.h"

enum { MIB = 1 << 20, POOL = 64 * MIB };

static void make_blocks(const struct rig *rig, void *owner)
{
	for (int i = 0; i < 16; i++) {
		struct ch_open open = {.owner = *(struct ch_owner *)owner, .hot_bytes = 1024};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		e.code.used_to = 1024;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	}
	(void)rig;
}

/* One thread compiles, another one's collector releases. */
TEST_RIG_BY(release_by_a_thread_that_opened_nothing_counts_the_bytes, rig_start(POOL))
{
	struct ch_owner owner = rig_owner(&rig, "released");
	rig_alone(&rig, make_blocks, &owner);
	atomic_store(&rig.heap->dead_bytes, 0);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	CHECK(atomic_load(&rig.heap->dead_bytes) >= 15 * 1024);
}

/* The threshold is a part of what the last sweep left. As a part of what is there it would rise as
 * fast as the dead code. */
TEST_RIG_BY(dead_code_is_collected_after_any_number_of_poor_cycles, rig_start(POOL))
{
	enum { BYTES = 4000 };
	static const uint8_t code[BYTES];
	for (uint64_t bytes = 0; bytes < MIB; bytes += BYTES)
		CHECK_EQ(ch_code_add(rig.heap, code, BYTES, "live", &(const void *){0}), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	atomic_store(&rig.heap->opened_doublings, 6);
	atomic_store(&rig.heap->dead_doublings, 6);
	uint64_t cycles = rig_stats(&rig).cycles, dead = 0;
	while (rig_stats(&rig).cycles == cycles && dead < 32 * MIB) {
		const void *exec;
		CHECK_EQ(ch_code_add(rig.heap, code, BYTES, "dead", &exec), CH_OK);
		CHECK_EQ(ch_code_free(rig.heap, exec, CH_RELEASE_COLLECT), CH_OK);
		ch_thread_poll();
		dead += BYTES;
	}
	CHECK(dead > 4 * MIB);
	CHECK(dead < 12 * MIB);
}
