/* SPDX-License-Identifier: MIT
 * publish_riscv64.c: publishing code has each hart fetch all the code's bytes anew. No emulator
 * notices a missing flush, and the ledger believes its own note. So this program replaces the C
 * library's function that asks the kernel for the flush, and notes the ranges. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "pages/write.h"
#include "tests/support/heap_rig.h"

#include <sys/cachectl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOTES = 256 };

static struct {
	uintptr_t from, to;
} notes[NOTES];
static unsigned noted, local;

int __riscv_flush_icache(void *from, void *to, unsigned long flags)
{
	if (flags)
		local++;
	notes[noted % NOTES].from = (uintptr_t)from;
	notes[noted++ % NOTES].to = (uintptr_t)to;
	return (int)syscall(SYS_riscv_flush_icache, from, to, flags);
}

static bool is_noted(uintptr_t at)
{
	for (unsigned i = 0; i < NOTES; i++)
		if (at - notes[i].from < notes[i].to - notes[i].from)
			return true;
	return false;
}

TEST(each_byte_that_is_published_is_fetched_anew)
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
TEST(each_byte_that_is_published_is_fetched_anew_where_views_need_no_step)
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

TEST(serializing_function_asks_for_its_own_hart)
{
	unsigned before = local;
	ch__arch_serialize();
	CHECK_EQ(local, before + 1);
}
