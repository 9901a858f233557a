/* SPDX-License-Identifier: MIT
 * tell.h: names and ranges of blocks for sinks (tell.c). */
#pragma once

#include "codeheap/graph/block_parts.h"

/* The range of a block's hot part that sinks are told: the VM's bytes without the head, so that
 * every tool shows the first byte of code as +0x0. */
static inline struct ch__sink_range ch__hot_range(const struct ch_heap *heap,
						  const struct ch__block *block, uint64_t key)
{
	uint32_t head = ch__head_bytes(ch__block_use(heap, block));
	return (struct ch__sink_range){ch__exec(heap, block->hot_offset + head),
				       ch__hot_bytes(block) - head, key, false};
}
/* The ranges of all parts of a block of code. Returns how many: 2 with a cold part, else 1. */
static inline size_t ch__block_ranges(const struct ch_heap *heap, const struct ch__block *block,
				      uint64_t key, struct ch__sink_range *out)
{
	out[0] = ch__hot_range(heap, block, key);
	if (!block->cold_granules)
		return 1;
	out[1] = (struct ch__sink_range){
		ch__exec(heap, ch__cold_offset(heap, block) + CH__HEAD_BYTES),
		ch__cold_bytes(block) - CH__HEAD_BYTES, key, true};
	return 2;
}
/* Writes the name of a block for sinks: the owner's name, then the block's own. Returns the length.
 * Takes no lock: sinks ask under a lock of their own, while the block is or becomes published. */
size_t ch__tell_name(void *heap, uint64_t handle, char *out, size_t out_bytes);
/* Call after telling ranges. The sinks write the lines that wait, if the time for it has come. */
void ch__tell_catch_up(struct ch_heap *) CH_EXCLUDES(CH__ANY);
void ch__tell_poll(struct ch_heap *) CH_EXCLUDES(CH__ANY); /* while sinks_wait is not 0 */
enum ch_status ch__tell_create(struct ch_heap *, unsigned wanted);
