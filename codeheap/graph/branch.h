/* SPDX-License-Identifier: MIT
 * branch.h: branches between blocks: records, and runs of them (branch.c). */
#pragma once

#include "codeheap/base/heap.h"

/* user | site | target:24 kind:3 flags:5 | next | prev */
struct ch__branch {
	/* Stored with release, user before site: code_at.c finds a branch by the site, and judges
	 * both words by the generation of the block, in any life of the record. */
	_Atomic(void *) user;
	_Atomic(uint32_t) site;        /* pool offset of the instruction; 0 = not attached */
	_Atomic(uint32_t) target_kind; /* [region] */
	/* Of the branches that lead to the target [heap]. Of a free run's first record, next is the
	 * next run [records]. */
	uint32_t next, prev;
};
_Static_assert(sizeof(struct ch__branch) == 24, "a branch record is 24 bytes");

enum ch__branch_flag {
	CH__BRANCH_KIND_SHIFT = 24,
	CH__BRANCH_KIND = 7 << 24,
	CH__BRANCH_LAST = 1 << 27,     /* last of its run */
	CH__BRANCH_OWN_EXIT = 1 << 28, /* the stub is a jump to the VM's exit */
};

static inline struct ch__branch *ch__branch_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->branches, index, sizeof(struct ch__branch));
}
static inline uint32_t ch__branch_target(const struct ch__branch *branch)
{
	return atomic_load_explicit(&branch->target_kind, memory_order_acquire) & CH__INDEX_MAX;
}
static inline enum ch_branch_kind ch__branch_kind(const struct ch__branch *branch)
{
	return (enum ch_branch_kind)((CH_LOAD_RELAXED(&branch->target_kind) & CH__BRANCH_KIND) >>
				     CH__BRANCH_KIND_SHIFT);
}
static inline bool ch__branch_has(const struct ch__branch *branch, uint32_t flag)
{
	return (CH_LOAD_RELAXED(&branch->target_kind) & flag) != 0;
}
/* Call after the other fields of the branch are stored. */
static inline void ch__branch_set_site(struct ch__branch *branch, uint32_t site)
{
	atomic_store_explicit(&branch->site, site, memory_order_release);
}
/* The next branch of the run; 0: none. */
static inline uint32_t ch__branch_after(const struct ch_heap *heap, uint32_t index)
{
	return ch__branch_has(ch__branch_at(heap, index), CH__BRANCH_LAST) ? 0 : index + 1;
}
/* Number of branches in the run that begins at `first`; 0 for no run. */
static inline uint32_t ch__branches_count(const struct ch_heap *heap, uint32_t first)
{
	uint32_t count = 0;
	for (uint32_t at = first; at; at = ch__branch_after(heap, at))
		count++;
	return count;
}
/* State of a branch whose record a block has, for CH_MOVE. */
static inline enum ch__branch_state ch__branch_state(const struct ch__branch *branch)
{
	if (!CH_LOAD_RELAXED(&branch->site))
		return CH__BRANCH_NONE;
	return ch__branch_target(branch) ? CH__BRANCH_LINKED : CH__BRANCH_UNLINKED;
}

uint32_t ch__branches_take(struct ch_heap *, uint32_t count); /* a run, 0: no memory */
uint32_t ch__branches_free(struct ch_heap *, uint32_t first); /* all unlinked; returns the length */
