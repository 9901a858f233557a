/* SPDX-License-Identifier: MIT
 * perfmap.h: a case with a perf map in a folder of its own, and ranges to tell of. */
#pragma once

#include "tests/support/perfmap_reader.h"
#include "tests/unit/sinks/ranges.h"

/* One heap whose map lies at `path`. */
static inline void start(struct bed *bed, char path[128])
{
	use_own_folder();
	bed_open(bed, CH_SINK_PERF_MAP);
	path_of(getpid(), path);
}

static inline void end(struct bed *bed)
{
	bed_close(bed);
	remove_own_folder();
}

/* A case with a bed whose map lies at `path`, in a folder of its own. */
#define TEST_MAP(name)                                             \
	static void body_##name(struct bed *, const char *);       \
	TEST(name)                                                 \
	{                                                          \
		struct bed bed;                                    \
		char path[128];                                    \
		start(&bed, path);                                 \
		body_##name(&bed, path);                           \
		end(&bed);                                         \
	}                                                          \
	static void body_##name(struct bed *bed, const char *path)
