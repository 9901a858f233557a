/* SPDX-License-Identifier: MIT
 * lines.c: source lines of blocks: legal and refused calls, the lines shown to a debugger, and the
 * end of the lines with the end of the block. */
#include "tests/support/gdb_list.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

static const char path[] = "/src/prog.scm";

static enum ch_status give(const struct emitter *e, uint32_t first, uint32_t second)
{
	struct ch_line lines[] = {{e->code.exec + first, 10}, {e->code.exec + second, 20}};
	return ch_block_lines(e->code.block, path, lines, 2);
}

static struct emitter open_one(const struct rig *rig)
{
	struct emitter e;
	emit_open(&e, rig_owner(rig, "lined"), 64, 0);
	emit_answer(&e, 5);
	return e;
}

TEST_RIG(lines_of_an_open_block_are_taken_once)
{
	struct emitter e = open_one(&rig);
	CHECK_EQ(give(&e, 0, 5), CH_OK);
	CHECK_EQ(give(&e, 0, 5), CH_E_STATE);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(give(&e, 0, 5), CH_E_STATE);
	CHECK_EQ(code_call(block_info(e.code.block).entry), 5);
}

TEST_RIG(lines_of_a_committed_block_are_refused)
{
	struct emitter e = open_one(&rig);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(give(&e, 0, 5), CH_E_STATE);
}

TEST_RIG(lines_of_a_dead_block_are_stale)
{
	struct emitter e = open_one(&rig), copy = e;
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(give(&copy, 0, 5), CH_E_STALE);
	struct ch_line line = {copy.code.exec, 1};
	CHECK_EQ(ch_block_lines((struct ch_block){0}, path, &line, 1), CH_E_STALE);
}

TEST_RIG(lines_that_do_not_rise_or_lie_outside_are_refused)
{
	struct emitter e = open_one(&rig);
	struct ch_line line = {e.code.exec, 1};
	CHECK_EQ(give(&e, 5, 5), CH_E_ARG);
	CHECK_EQ(give(&e, 6, 5), CH_E_ARG);
	CHECK_EQ(give(&e, 0, e.code.hot_bytes), CH_E_ARG);
	CHECK_EQ(give(&e, (uint32_t)-64, 5), CH_E_ARG);
	CHECK_EQ(ch_block_lines(e.code.block, path, &line, 0), CH_E_ARG);
	CHECK_EQ(ch_block_lines(e.code.block, NULL, &line, 1), CH_E_ARG);
	CHECK_EQ(ch_block_lines(e.code.block, path, NULL, 1), CH_E_ARG);
	CHECK_EQ(give(&e, 0, 5), CH_OK); /* the refused calls kept nothing */
	CHECK_EQ(emit_commit(&e), CH_OK);
}

TEST(lines_are_copied)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct emitter e = open_one(&rig);
	char file[] = "/src/first";
	struct ch_line lines[] = {{e.code.exec, 7}, {e.code.exec + 5, 9}};
	CHECK_EQ(ch_block_lines(e.code.block, file, lines, 2), CH_OK);
	memcpy(file, "/src/other", sizeof file);
	lines[0].line = lines[1].line = 77;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	const char *shown = "";
	uintptr_t exec = (uintptr_t)e.code.exec;
	CHECK_EQ(gdb_line_of(exec, &shown), 7);
	CHECK_STR(shown, "/src/first");
	CHECK_EQ(gdb_line_of(exec + 4, &shown), 7);
	CHECK_EQ(gdb_line_of(exec + 5, &shown), 9);
	rig_end(&rig);
}

/* Cold code has lines of its own. A line reaches no further than the part with its address. */
TEST(lines_of_cold_code_are_shown_there)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_UNWIND | CH_SINK_GDB;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_open open = {.owner = rig_owner(&rig, "cold"), .hot_bytes = 32, .cold_bytes = 32};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	memset(e.code.cold_write, 0x90, 32);
	e.code.cold_used = 32;
	struct ch_line lines[] = {{e.code.exec, 3}, {e.code.cold_exec, 4}};
	CHECK_EQ(ch_block_lines(e.code.block, path, lines, 2), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	const char *file = "";
	CHECK_EQ(gdb_line_of((uintptr_t)e.code.exec + 5, &file), 3);
	CHECK_EQ(gdb_line_of((uintptr_t)e.code.cold_exec + 31, &file), 4);
	CHECK_STR(gdb_name_of((uintptr_t)e.code.exec), "cold");
	CHECK_STR(gdb_name_of((uintptr_t)e.code.cold_exec), "cold [cold]");
	rig_end(&rig);
}

/* --- memory of lines --- */
enum { MANY_LINES = 1000, ROUNDS = 30 };

static void build_lined(const struct rig *rig, void *arg)
{
	static struct ch_line lines[MANY_LINES];
	const bool *aborts = arg;
	struct emitter e;
	struct ch_owner owner = rig_owner(rig, "lined");
	emit_open(&e, owner, MANY_LINES + 8, 0);
	for (uint32_t i = 0; i < MANY_LINES; i++)
		lines[i] = (struct ch_line){e.code.exec + i, i + 1};
	CHECK_EQ(ch_block_lines(e.code.block, path, lines, MANY_LINES), CH_OK);
	emit_filler(&e, MANY_LINES);
	emit_ret(&e);
	if (*aborts)
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	else
		CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

static void check_memory_stays(bool aborts)
{
	struct rig rig = rig_start(1 << 20);
	uint64_t before = 0;
	for (int round = 0; round < ROUNDS; round++) {
		rig_apart(&rig, build_lined, &aborts);
		rig_collect(&rig, 3);
		CHECK_EQ(rig_stats(&rig).blocks_now, 0);
		if (round == 2) /* tables have full size */
			before = rig_stats(&rig).metadata_bytes_now;
	}
	/* Nothing is left of the 8 KB of each round. */
	CHECK(rig_stats(&rig).metadata_bytes_now < before + 8 * MANY_LINES);
	rig_end(&rig);
}

TEST(lines_go_with_a_freed_block)
{
	check_memory_stays(false);
}

TEST(lines_go_with_an_aborted_block)
{
	check_memory_stays(true);
}
