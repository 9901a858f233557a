/* SPDX-License-Identifier: MIT
 * stats.h: sums that the statistics keep (stats.c). */
#pragma once

#include "codeheap/base/heap.h"

void ch__counters_add(struct ch__counters *sum, const struct ch__counters *more);
/* Recounts the blocks after threads were lost while counting. No thread runs. Under heap. */
void ch__stats_recount(struct ch_heap *) CH_REQUIRES(ch__role_heap);
/* Call before the bytes of blocks go; with a count of 0 for the peak of this moment. With many
 * records of threads the peak is exact to 64 KiB: a sum over all records would be most of the cost
 * of a death. */
void ch__stats_note_peak(struct ch_heap *, const uint32_t *blocks, uint32_t count)
	CH_REQUIRES(ch__role_heap);
/* Notes a pause that began at start_ns, with the marking from marked_from_ns on. */
void ch__stats_note_pause(struct ch_heap *, uint64_t start_ns, uint64_t marked_from_ns);
