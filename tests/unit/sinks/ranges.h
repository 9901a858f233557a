/* SPDX-License-Identifier: MIT
 * ranges.h: ranges of the bed's pool, told to its sinks. */
#pragma once

#include "tests/support/unwind_rig.h"

static inline struct ch__sink_range range_at(const struct bed *bed, size_t offset, size_t bytes,
					     uint64_t key)
{
	return (struct ch__sink_range){(uintptr_t)bed->pool + offset, bytes, key, false};
}

static inline void add(struct bed *bed, size_t offset, size_t bytes, uint64_t key)
{
	struct ch__sink_range range = range_at(bed, offset, bytes, key);
	ch__sinks_add(bed->sinks, &range, 1);
}

static inline void discard(struct bed *bed, size_t offset, size_t bytes, uint64_t key)
{
	struct ch__sink_range range = range_at(bed, offset, bytes, key);
	ch__sinks_remove(bed->sinks, &range, 1);
}
