/* SPDX-License-Identifier: MIT
 * gdb.h: a bed with the debugger's sink. Tests add and remove blocks in the bed, and check the
 * blocks that the sink shows. */
#pragma once

#include "tests/support/gdb_list.h"
#include "tests/unit/sinks/ranges.h"

enum { HEAD = 8 };

static inline void use_heads(struct bed *bed)
{
	bed_map(bed);
	bed->config.head_bytes = HEAD;
}

static inline struct bed *open_gdb(struct bed *bed)
{
	use_heads(bed);
	CHECK_EQ(ch__sinks_create(&bed->config, CH_SINK_GDB, &bed->sinks), 0);
	return bed;
}
#define TEST_GDB(name) \
	TEST_WITH(name, struct bed *, bed, open_gdb(&(struct bed){0}), bed_close(bed))

static inline void check_shown(const struct bed *bed, size_t offset, const char *name)
{
	const char *shown = gdb_name_of((uintptr_t)bed->pool + offset);
	if (name && !shown)
		FAIL("gdb: nothing is shown at %zx, wanted %s", offset, name);
	if (!name && shown)
		FAIL("gdb: %s is shown at %zx, where nothing is", shown, offset);
	if (name)
		CHECK_STR(shown, name);
}

/* The program of the frame pointer, behind the fixed bytes of the FDE's CIE. */
static inline const uint8_t *program_of(const uint8_t *fde)
{
	uint32_t distance;
	memcpy(&distance, fde + 4, 4);
	return fde + 4 - distance + 13;
}
