/* SPDX-License-Identifier: MIT
 * ranges.h: ranges of the bed's pool, told to its sinks. */
#pragma once

#include "tests/support/unwind_rig.h"
#include "unwind/steps.h"

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

/* Code of 64 bytes at offset 64 of page 0, with steps. */
static inline void add_steps(struct bed *bed)
{
	enum { AT = 64, BYTES = 64, NOTE_ROOM = 64 };
	static const struct ch_frame_step steps[] = {{1, 16}, {60, 8}};
	static const struct ch_frame frame = {steps, NULL, 2, 0};
	uint8_t note[NOTE_ROOM];
	CHECK(ch__sinks_steps_begin(bed->sinks));
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, CH_FRAME_STEPS));
	CHECK(ch__frame_note(note, &frame, BYTES) <= NOTE_ROOM);
	void *at = bed_code(bed, AT + BYTES, note, NOTE_ROOM);
	ch__steps_live(ch__sinks_steps(bed->sinks), (uintptr_t)bed->pool + AT, (uintptr_t)at);
	add(bed, AT, BYTES, 1);
}
