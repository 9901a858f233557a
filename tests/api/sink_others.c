/* SPDX-License-Identifier: MIT
 * sink_others.c: files of sinks beside the rest of the process: descriptors that the program closed
 * and took for files of its own, lines of another compiler in the perf map, children that ran no
 * fork handler, and sinks that nobody wants any more. */
#define _GNU_SOURCE
#include "tests/support/sink_file.h"

/* --- errors --- */
static void fail_unwanted(const struct sink_file *sink)
{
	int failed = -1;
	use_folder(sink);
	struct rig rig = start(sink);
	live_and_write(&rig);
	CHECK_EQ(unlink(path), 0);
	check_failed(&rig, sink, ENOENT);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK(!ch_sink_status(rig.heap, sink->bit, NULL, &failed));
	CHECK_EQ(failed, 0);
	check_comes_back(&rig, sink);
	rig_end(&rig);
	leave_folder(sink);
}

TEST(perf_map_that_failed_fails_no_flush_when_nobody_wants_it)
{
	fail_unwanted(&perf_map);
}

TEST(jitdump_that_failed_fails_no_flush_when_nobody_wants_it)
{
	fail_unwanted(&jitdump);
}
