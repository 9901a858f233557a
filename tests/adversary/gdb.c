/* SPDX-License-Identifier: MIT
 * gdb.c: a freed block is gone from GDB's list on every driver, whether a debugger looks or not. */
#define _GNU_SOURCE
#include "tests/support/gdb_list.h"
#include "tests/support/stage.h"

static void build_named(struct stage *stage, void *arg)
{
	method_constant(stage, arg, "Rumpelstilzchen", 41);
}

static bool list_has(const char *wanted)
{
	for (const struct gdb_entry *entry = __jit_debug_descriptor.first; entry;
	     entry = entry->next) {
		for (size_t i = 0; i < gdb_symbol_count(entry); i++) {
			const char *name;
			gdb_symbol(entry, i, &name);
			if (!strcmp(name, wanted))
				return true;
		}
	}
	return false;
}

/* No entry covers the freed block, before anybody asks again. */
EVERY_DRIVER(s24_freed_block_leaves_gdb)
{
	static struct method freed, kept;
	stage->config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
	stage_start(stage);
	stage_apart(stage, build_named, &freed);
	method_constant(stage, &kept, "Rapunzel", 42);
	CHECK_EQ(gdb_list_length(), 0);
	CHECK_EQ(ch_sink_flush(stage->heap), CH_OK);
	CHECK(list_has("Rumpelstilzchen") && list_has("Rapunzel"));
	method_drop(stage, &freed);
	stage_collect(stage);
	CHECK_EQ(freed.freed, 1);
	gdb_list_length();
	if (list_has("Rumpelstilzchen"))
		FAIL("sink gdb: a freed block is still in the list");
	CHECK_EQ(ch_sink_flush(stage->heap), CH_OK);
	if (list_has("Rumpelstilzchen"))
		FAIL("sink gdb: a freed block is in the list again");
	CHECK(list_has("Rapunzel"));
	CHECK_EQ(method_call(&kept, NULL), 42);
	method_drop(stage, &kept);
	stage_end(stage);
	CHECK_EQ(gdb_list_length(), 0);
}
