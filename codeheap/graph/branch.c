/* SPDX-License-Identifier: MIT
 * branch.c: the records of branches, which blocks take in runs. Free runs lie in lists by length,
 * last in, first out. */
#include "codeheap/base/park.h"
#include "codeheap/graph/branch.h"

static void give_run(struct ch_heap *heap, uint32_t first, uint32_t count)
	CH_REQUIRES(ch__role_records)
{
	ch__branch_at(heap, first)->next = heap->branch_runs[count];
	heap->branch_runs[count] = first;
}

static uint32_t pop_run(struct ch_heap *heap, uint32_t count) CH_REQUIRES(ch__role_records)
{
	uint32_t first = heap->branch_runs[count];
	if (first)
		heap->branch_runs[count] = ch__branch_at(heap, first)->next;
	return first;
}

uint32_t ch__branches_take(struct ch_heap *heap, uint32_t count)
{
	ch__records_lock(heap);
	uint32_t first = pop_run(heap, count);
	if (!first)
		first = ch__table_extend(&heap->branches, count);
	/* At last the beginning of a longer free run. The rest is a run then. */
	for (uint32_t length = count + 1; !first && length <= CH__RUN_MAX; length++)
		if ((first = pop_run(heap, length)))
			give_run(heap, first + count, length - count);
	ch__records_unlock(heap);
	for (uint32_t i = 0; first && i < count; i++)
		CH_STORE_RELAXED(&ch__branch_at(heap, first + i)->target_kind,
				 i + 1 == count ? CH__BRANCH_LAST : 0);
	return first;
}

uint32_t ch__branches_free(struct ch_heap *heap, uint32_t first)
{
	uint32_t length = ch__branches_count(heap, first);
	for (uint32_t i = 0; i < length; i++) {
		struct ch__branch *branch = ch__branch_at(heap, first + i);
		if (branch->site)
			CH_MOVE(ch__branch_moves, first + i, 0, ch__branch_state(branch),
				CH__BRANCH_NONE, ch__held(heap), __func__);
		ch__branch_set_site(branch, 0);
	}
	ch__records_lock(heap);
	give_run(heap, first, length);
	ch__records_unlock(heap);
	return length;
}
