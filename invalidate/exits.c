/* SPDX-License-Identifier: MIT
 * exits.c: diverting patch points, so that a thread that returns into an invalidated block leaves
 * it at once. One store of the architecture decides between falling through and jumping. */
#include "codeheap/graph/block_parts.h"
#include "invalidate/invalidate.h"

void ch__exits_divert(struct ch_heap *heap, uint32_t index)
{
	const struct ch__extra *extra = ch__block_at(heap, index)->extra;
	for (uint32_t i = 0; extra && i < extra->count; i++) {
		if (extra->kinds[i] != CH__ITEM_POINT)
			continue;
		uintptr_t exec = ch__exec(heap, ch__extra_items(extra)[i].at);
		CH_MOVE(ch__gate_moves, ch__extra_items(extra)[i].at, 0,
			ch__arch_diverter_is_armed(ch__pool_read(heap->pool, exec)), CH__GATE_SHUT,
			ch__held(heap), __func__);
		ch__arch_diverter_arm(ch__pool_write(heap->pool, exec), exec,
				      ch__exec(heap, ch__extra_items(extra)[i].value));
		ch__pool_sync(heap->pool, exec, CH_ARCH_DIVERTER_BYTES);
		CH_PUBLISHED(heap->pool, exec, CH_ARCH_DIVERTER_BYTES, "patch point");
		heap->patch_points_armed++;
	}
}
