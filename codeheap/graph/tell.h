/* SPDX-License-Identifier: MIT
 * tell.h: what sinks are told (tell.c). */
#ifndef CH_CODEHEAP_GRAPH_TELL_H
#define CH_CODEHEAP_GRAPH_TELL_H

#include "codeheap/graph/block_parts.h"

/* What sinks are told of a block's hot part: the VM's bytes, so that the first of them is +0x0 for
 * all who are told of it. */
static inline struct ch__sink_range ch__hot_range(const struct ch_heap *heap,
						  const struct ch__block *block, uint64_t key)
{
	uint32_t head = ch__head_bytes(ch__block_use(heap, block));
	return (struct ch__sink_range){ch__exec(heap, block->hot_offset + head),
				       ch__hot_bytes(block) - head, key, false};
}
/* The same of all its parts, two at most; how many. Of code. */
static inline size_t ch__block_ranges(const struct ch_heap *heap, const struct ch__block *block,
				      uint64_t key, struct ch__sink_range *out)
{
	out[0] = ch__hot_range(heap, block, key);
	if (!block->cold_granules)
		return 1;
	out[1] = (struct ch__sink_range){
		ch__exec(heap, ch__cold_offset(heap, block) + CH__INDEX_WORD_BYTES),
		ch__cold_bytes(block) - CH__INDEX_WORD_BYTES, key, true};
	return 2;
}
/* What sinks are told that a block of the heap is called; its record has its names. Takes no lock:
 * sinks ask under their own, of blocks that are published or are being published. */
size_t ch__tell_name(void *heap, uint64_t handle, char *out, size_t out_bytes);
/* After ranges were told: has the sinks write what waits, if its time has come. */
void ch__tell_catch_up(struct ch_heap *) CH_EXCLUDES(CH__ANY);
void ch__tell_poll(struct ch_heap *) CH_EXCLUDES(CH__ANY); /* while sinks_wait is not 0 */
enum ch_status ch__tell_create(struct ch_heap *, unsigned wanted);

#endif
