/* SPDX-License-Identifier: MIT
 * publish_aarch64.c: publishing code cleans and invalidates the caches of all the code's bytes. No
 * emulator notices a missing flush, and the ledger believes its own note. So this program replaces
 * the compiler's function for the flush, and notes the flushed ranges. */
#include "codeheap/base/heap.h"
#include "pages/write.h"
#include "tests/support/heap_rig.h"

enum { LINE_BYTES = 16, NOTES = 256 }; /* the architecture's smallest line */

static struct {
	uintptr_t from, to;
} notes[NOTES];
static unsigned noted;

void __clear_cache(void *from, void *to);
void __clear_cache(void *from, void *to)
{
	uintptr_t low = (uintptr_t)from & ~(uintptr_t)(LINE_BYTES - 1), high = (uintptr_t)to;
	for (uintptr_t at = low; at < high; at += LINE_BYTES)
		__asm__ volatile("dc cvau, %0" ::"r"(at) : "memory");
	__asm__ volatile("dsb ish" ::: "memory");
	for (uintptr_t at = low; at < high; at += LINE_BYTES)
		__asm__ volatile("ic ivau, %0" ::"r"(at) : "memory");
	__asm__ volatile("dsb ish\n\tisb" ::: "memory");
	notes[noted % NOTES].from = (uintptr_t)from;
	notes[noted++ % NOTES].to = high;
}

static bool is_noted(uintptr_t at)
{
	for (unsigned i = 0; i < NOTES; i++)
		if (at - notes[i].from < notes[i].to - notes[i].from)
			return true;
	return false;
}

TEST(each_byte_that_is_published_is_cleaned_and_invalidated)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_info info = rig_info(rig_block(rig_owner(&rig, "published"), 7));
	uintptr_t low = (uintptr_t)info.exec;
	for (uintptr_t at = low; at < low + info.hot_bytes; at++)
		if (!is_noted(at))
			FAIL("byte %d of %u", (int)(at - low), info.hot_bytes);
	CHECK_EQ(code_call(info.exec), 7);
	rig_end(&rig);
}

/* An emulator's views need a further step, so the case clears the views' steps. */
TEST(each_byte_that_is_published_is_cleaned_and_invalidated_where_views_need_no_step)
{
	struct rig rig = rig_start(1 << 20);
	struct ch_info info = rig_info(rig_block(rig_owner(&rig, "published"), 7));
	struct ch__pool *pool = rig.heap->pool;
	uintptr_t low = (uintptr_t)info.exec;
	uint8_t steps = pool->sync_steps;
	noted = 0;
	memset(notes, 0, sizeof notes);
	pool->sync_steps = 0;
	ch__pool_publish(pool, low, info.hot_bytes);
	pool->sync_steps = steps;
	for (uintptr_t at = low; at < low + info.hot_bytes; at++)
		if (!is_noted(at))
			FAIL("byte %d of %u", (int)(at - low), info.hot_bytes);
	rig_end(&rig);
}
