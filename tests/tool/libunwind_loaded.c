/* SPDX-License-Identifier: MIT
 * libunwind_loaded.c: nongnu libunwind in a program that loads libunwind without being linked with
 * it, for itself or for all: the sink finds libunwind then, not before, and prevents unloading. */
#define _GNU_SOURCE
#include "tests/support/heap_rig.h"

#include <dlfcn.h>
#include <errno.h>

static const char library[] = "libunwind.so.8";

static struct rig start(void)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_UNWIND;
	return rig_create(&config, NULL, NULL);
}

static int turn_on(const struct rig *rig)
{
	int failed = 0;
	enum ch_status status = ch_sink_set(rig->heap, CH_SINK_UNWIND | CH_SINK_LIBUNWIND);
	bool is_on = ch_sink_status(rig->heap, CH_SINK_LIBUNWIND, NULL, &failed);
	CHECK_EQ(is_on, status == CH_OK);
	CHECK_EQ(is_on, failed == 0);
	return failed;
}

TEST_RIG_BY(libunwind_that_nobody_loaded_is_not_there, start())
{
	CHECK(!dlopen(library, RTLD_LAZY | RTLD_NOLOAD));
	CHECK_EQ(turn_on(&rig), ENOSYS);
	/* The sink looks for libunwind, and does not load it. */
	CHECK(!dlopen(library, RTLD_LAZY | RTLD_NOLOAD));
}

static const struct rig *walking;
static size_t frames;
static uint8_t has_block;

static void walk(void)
{
	const void *pcs[64];
	struct ch_block block;
	frames = ch_backtrace(walking->heap, CH_BACKTRACE_TABLES, NULL, pcs, 64);
	for (size_t i = 0; i < frames; i++)
		has_block |= block_at(walking->heap, pcs[i], &block);
}

static void find_loaded(int flags)
{
	struct emitter e;
	void *handle = dlopen(library, RTLD_NOW | flags);
	if (!handle)
		skip("no nongnu libunwind on this machine");
	struct rig rig = start();
	struct ch_owner owner = rig_owner(&rig, "walks");
	CHECK_EQ(turn_on(&rig), 0);
	CHECK_EQ(dlclose(handle), 0);
	CHECK(dlopen(library, RTLD_LAZY | RTLD_NOLOAD));
	emit_open(&e, owner, 64, 0);
	emit_enter(&e);
	emit_call_c(&e, (const void *)walk);
	emit_value(&e, 6);
	emit_leave(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
	walking = &rig;
	CHECK_EQ(code_call_owner(owner), 6);
	CHECK(frames >= 4);
	CHECK_EQ(has_block, true);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	rig_end(&rig);
}

TEST(libunwind_that_was_loaded_for_its_user_is_found_and_stays)
{
	find_loaded(RTLD_LOCAL);
}

TEST(libunwind_that_was_loaded_for_all_is_found_and_stays)
{
	find_loaded(RTLD_GLOBAL);
}
