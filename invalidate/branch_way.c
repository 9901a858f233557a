/* SPDX-License-Identifier: MIT
 * branch_way.c: where a branch leads, by its exit, its stub, and the bytes of site and stub. Also
 * why a block may not be entered, and where the veneer of a closed entry lies, behind the stubs.
 * Reads only; link.c attaches and changes. */
#include "invalidate/invalidate.h"

enum ch_status ch__because_not_entrant(const struct ch_heap *heap, uint32_t index)
{
	const struct ch__block *block = ch__block_at(heap, index);
	if (!ch__block_is_alive(heap, block))
		return ch__because_stale("block", ch__block_handle(heap, index).bits);
	return ch__because(CH_E_STATE, "block #%u is %s", index,
			   ch__block_is_data(heap, block)		   ? "data"
			   : ch__block_state(block) == CH_BLOCK_OPEN ? "OPEN"
								   : "NOTENTRANT");
}

uintptr_t ch__branch_exit(const struct ch_heap *heap, const struct ch__block *source,
			  uint32_t index)
{
	uintptr_t stub = ch__stub_exec(heap, source, index), hit = ch__stub_hit_exec(heap, stub);
	if (ch__branch_has(ch__branch_at(heap, index), CH__BRANCH_OWN_EXIT))
		return ch__arch_jump_target(ch__pool_read(heap->pool, hit), hit);
	return stub;
}

/* Returns the address to which a stub leads, unless the stub leads its site on. */
static uintptr_t hit_of(const struct ch_heap *heap, uintptr_t stub)
{
	return heap->pool->stub_lead_bytes ? ch__stub_hit_exec(heap, stub)
					   : heap->pool->runtime_exec;
}

uintptr_t ch__branch_stub_home(const struct ch_heap *heap, const struct ch__block *source,
			       uint32_t index)
{
	bool has_exit = ch__branch_has(ch__branch_at(heap, index), CH__BRANCH_OWN_EXIT);
	return has_exit ? ch__branch_exit(heap, source, index)
			: hit_of(heap, ch__stub_exec(heap, source, index));
}

uintptr_t ch__branch_leads_to(const struct ch_heap *heap, const struct ch__block *source,
			      uint32_t index)
{
	const struct ch__branch *branch = ch__branch_at(heap, index);
	uintptr_t exec = ch__exec(heap, branch->site), stub = ch__stub_exec(heap, source, index);
	uintptr_t leads_to = ch__arch_site_target(ch__branch_kind(branch),
						  ch__pool_read(heap->pool, exec), exec);
	if (!ch__stubs_lead_on(heap) || leads_to != stub)
		return leads_to;
	uintptr_t further = ch__arch_stub_leads_to(ch__pool_read(heap->pool, stub));
	return further == hit_of(heap, stub) ? stub : further;
}

uintptr_t ch__block_veneer_exec(const struct ch_heap *heap, const struct ch__block *block)
{
	uint32_t branches = ch__branches_count(heap, ch__block_run(block));
	return ch__stub_exec(heap, block, ch__block_run(block) + branches);
}
