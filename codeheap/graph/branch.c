/* SPDX-License-Identifier: MIT
 * branch.c: the records of branches, which blocks take in runs. */
#include "codeheap/base/park.h"
#include "codeheap/graph/branch.h"

static uint32_t chained(const struct ch_heap *heap, uint32_t first)
{
	return (uint32_t)ch__branch_at(heap, first)->next_free;
}

/* Release, as for the user's word: no reader takes a link for a user, since the site is 0. */
static void chain(const struct ch_heap *heap, uint32_t first, uint32_t next)
{
	atomic_store_explicit(&ch__branch_at(heap, first)->next_free, next, memory_order_release);
}

/* A run whose generations begin again rests (docs/design.md, section 5, has the counters). */
static void give_run(struct ch_heap *heap, uint32_t first, uint32_t count, bool is_worn)
	CH_REQUIRES(ch__role_records)
{
	struct ch__runs *runs = &heap->branch_runs[count];
	if (!is_worn) {
		chain(heap, first, runs->free);
		runs->free = first;
		return;
	}
	chain(heap, first, 0);
	if (runs->worn_now++)
		chain(heap, runs->worn_last, first);
	else
		runs->worn = first;
	runs->worn_last = first;
}

/* Takes the beginning of a longer free run. The rest is a run then. */
static uint32_t CH_COLD take_longer(struct ch_heap *heap, uint32_t count)
	CH_REQUIRES(ch__role_records)
{
	for (uint32_t length = count + 1, first; length <= CH__RUN_MAX; length++) {
		if (!(first = heap->branch_runs[length].free))
			continue;
		heap->branch_runs[length].free = chained(heap, first);
		give_run(heap, first + count, length - count, false);
		return first;
	}
	return 0;
}

static uint32_t take_run(struct ch_heap *heap, uint32_t count) CH_REQUIRES(ch__role_records)
{
	struct ch__runs *runs = &heap->branch_runs[count];
	uint32_t first = runs->free;
	if (first) {
		runs->free = chained(heap, first);
		return first;
	}
	if ((uint64_t)runs->worn_now * count <= heap->branches_resting &&
	    !(first = ch__table_extend(&heap->branches, count)))
		first = take_longer(heap, count);
	if (!first && runs->worn) {
		first = runs->worn;
		runs->worn = chained(heap, first);
		runs->worn_now--;
	}
	return first;
}

uint32_t ch__branches_take(struct ch_heap *heap, uint32_t count)
{
	ch__records_lock(heap);
	uint32_t first = take_run(heap, count);
	ch__records_unlock(heap);
	for (uint32_t i = 0; first && i < count; i++) {
		struct ch__branch *branch = ch__branch_at(heap, first + i);
		ch__branch_set_user(branch, NULL);
		CH_STORE_RELAXED(&branch->target_kind, i + 1 == count ? CH__BRANCH_LAST : 0);
	}
	return first;
}

uint32_t ch__branches_free(struct ch_heap *heap, uint32_t first)
{
	uint32_t length = ch__branches_count(heap, first), generation = 0;
	for (uint32_t i = 0; i < length; i++) {
		struct ch__branch *branch = ch__branch_at(heap, first + i);
		/* All branches of a run have the same generation. */
		generation = (ch__branch_generation(branch) + 1) & 0xffff;
		if (branch->site)
			CH_MOVE(ch__branch_moves, first + i, ch__branch_generation(branch),
				ch__branch_state(branch), CH__BRANCH_NONE, ch__held(heap),
				__func__);
		ch__branch_set_site(branch, 0);
		CH_STORE_RELAXED(&branch->next_gen,
				 ch__branch_next(branch) | (generation & 0xff) << 24);
		CH_STORE_RELAXED(&branch->prev_gen,
				 ch__branch_prev(branch) | (generation >> 8) << 24);
	}
	/* 0: the generations began again. The next heap with this id begins behind the highest. */
	uint32_t had = generation ? generation : 1u << 16;
	ch__records_lock(heap);
	if (had > heap->branch_generations)
		heap->branch_generations = had;
	give_run(heap, first, length, generation == 0);
	ch__records_unlock(heap);
	return length;
}
