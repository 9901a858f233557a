/* SPDX-License-Identifier: MIT
 * branch_way.h: whether a block may be entered, where a branch leads, and the veneer of a block's
 * entry (branch_way.c). */
#ifndef CH_INVALIDATE_BRANCH_WAY_H
#define CH_INVALIDATE_BRANCH_WAY_H

#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/branch.h"

/* CH_OK: the block is code that may be entered; else why not. In a region: acts on it are, too. */
static inline enum ch_status ch__block_may_run(const struct ch_heap *heap,
					       const struct ch__block *block)
{
	if (!ch__block_is_alive(heap, block))
		return CH_E_STALE;
	bool is_live = ch__block_state(block) == CH_BLOCK_LIVE;
	return is_live && !ch__block_is_data(heap, block) ? CH_OK : CH_E_STATE;
}
/* Whether sites are led on by what stubs hold. */
static inline bool ch__stubs_lead_on(const struct ch_heap *heap)
{
	return CH_ARCH_STUB_LEADS_FAR || heap->pool->stub_lead_bytes;
}
/* What of a stub is hit, or jumps to the branch's own exit: behind the lead, if it has one. */
static inline uintptr_t ch__stub_hit_exec(const struct ch_heap *heap, uintptr_t stub)
{
	return stub + heap->pool->stub_lead_bytes;
}
/* Index of the block that holds the branch's site, 0 when there is none. */
uint32_t ch__branch_source(const struct ch_heap *, const struct ch__branch *);
/* Where the block's branch leads while it is unlinked: its stub, or the VM's exit. */
uintptr_t ch__branch_exit(const struct ch_heap *, const struct ch__block *, uint32_t branch);
/* Where its bytes lead, those of the stub included where it leads a site on. */
uintptr_t ch__branch_leads_to(const struct ch_heap *, const struct ch__block *, uint32_t branch);
/* Whether its stub is as it must be beside its site. */
bool ch__branch_stub_is_valid(const struct ch_heap *, const struct ch__block *, uint32_t branch);
/* Where the stub leads while the site does not need it to lead further. */
uintptr_t ch__branch_stub_home(const struct ch_heap *, const struct ch__block *, uint32_t branch);
/* Exec address of the veneer that the closed entry of a block with CH_ENTRY_PATCH leads to: it lies
 * behind the stubs. */
uintptr_t ch__block_veneer_exec(const struct ch_heap *, const struct ch__block *);

#endif
