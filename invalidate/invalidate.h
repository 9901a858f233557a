/* SPDX-License-Identifier: MIT
 * invalidate.h: what the files of invalidate/ offer each other and codeheap/. */
#pragma once

#include "arch/sites.h"
#include "codeheap/places/places.h"

/* Whether threads may enter the block. Test, and act on the answer, in one region (I5). */
static inline bool ch__block_may_run(const struct ch_heap *heap, const struct ch__block *block)
{
	return ch__block_is_alive(heap, block) && ch__block_state(block) == CH_BLOCK_LIVE &&
	       !ch__block_is_data(heap, block);
}
/* Notes why the block may not be entered, and returns CH_E_STALE or CH_E_STATE. */
enum ch_status ch__because_not_entrant(const struct ch_heap *, uint32_t block);
/* Whether stubs, or the leads before them, can lead sites on, by an address in data. */
static inline bool ch__stubs_lead_on(const struct ch_heap *heap)
{
	return CH_ARCH_STUB_LEADS_FAR || heap->pool->stub_lead_bytes;
}
/* The stub's code behind the lead, if any: it enters the trampoline, or jumps to the VM's exit. */
static inline uintptr_t ch__stub_hit_exec(const struct ch_heap *heap, uintptr_t stub)
{
	return stub + heap->pool->stub_lead_bytes;
}
/* The address to which an unlinked branch of the block leads: its stub, or the VM's exit. */
uintptr_t ch__branch_exit(const struct ch_heap *, const struct ch__block *, uint32_t branch);
/* The address to which the site's bytes lead, through the stub if the stub leads the site on. */
uintptr_t ch__branch_leads_to(const struct ch_heap *, const struct ch__block *, uint32_t branch);
/* The stub's home: the stub's target while the stub does not lead the site on. */
uintptr_t ch__branch_stub_home(const struct ch_heap *, const struct ch__block *, uint32_t branch);
/* Exec address of the veneer to which the closed entry of a block with CH_ENTRY_PATCH leads. The
 * veneer lies behind the stubs. */
uintptr_t ch__block_veneer_exec(const struct ch_heap *, const struct ch__block *);

/* Unlinks the branches that lead to the block, then the block's own branches. With patch_... the
 * sites lead back to stubs or exits; sites in dying code need no patch. */
void ch__block_unlink(struct ch_heap *, uint32_t block, bool patch_incoming, bool patch_outgoing)
	CH_HAS_HEAP_AND_REGION;
/* What the stubs' trampoline enters. */
void ch__stub_hit(struct ch__arch_stub_context *, struct ch_regs *, uintptr_t return_address);

/* CH_E_SITE unless `what` of so many bytes at exec, with this exit, may be attached. The bytes may
 * not overlap an attached site, no exit of the block and no entry may lead between two of the
 * bytes, and the exit may not lie inside a site of any block. A ref leads nowhere, and may overlap
 * another ref. The block is OPEN and the thread's, or LIVE and heap is held. */
enum ch_status ch__sites_allow(const struct ch__subject *, const char *what, uintptr_t exec,
			       size_t bytes, uintptr_t exit, bool is_ref);
/* Returns CH_E_ARG for an address outside of the block; `what` is "the ref", for example. */
enum ch_status ch__because_outside(const struct ch__subject *, const char *what, uintptr_t at);
/* Counts an attach, and makes a map of the block's sites where the block gets many. */
void ch__sites_note(const struct ch__subject *);
/* Names what is attached among the bytes of a block: "a branch", "a ref" ...; NULL = nothing.
 * Lock: heap. */
const char *ch__sites_among(const struct ch_heap *, const struct ch__block *, uintptr_t exec,
			    size_t bytes);
/* Whether an OPEN block may be committed with codes[i]: every site lies in the used bytes and is
 * unchanged since it was attached, and the entry lies inside no site. Else CH_E_SITE. */
enum ch_status ch__sites_check(const struct ch_heap *, const struct ch__block *,
			       const struct ch_code *codes, size_t i);

struct ch__assumption {
	_Atomic(uint32_t) generation;
	uint32_t next_free;
	struct ch__dependent *dependents; /* [heap] */
	uint32_t count, capacity;
};
struct ch__dependent {
	uint32_t block, item;
};
static inline struct ch__assumption *ch__assumption_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->assumptions, index, sizeof(struct ch__assumption));
}
/* Takes a dead block with the side list off the lists of all assumptions. */
void ch__assumption_leave(struct ch_heap *, struct ch__side_list *) CH_HAS_HEAP;

/* LIVE -> NOTENTRANT. Returns false when the block was not LIVE code. Adds to *to_die the bytes
 * that a cycle may free from here on: none of a block that is its own root. The caller tells the
 * trigger of them, and holds heap until then. */
bool ch__invalidate_block(struct ch_heap *, uint32_t block, enum ch__cause, uint64_t *to_die)
	CH_HAS_HEAP_AND_REGION;

/* Invalidates the blocks of a vm, NULL: of all vms, that are not immortal. Returns how many are
 * NOTENTRANT then. CAUSE_NONE: counts only. */
size_t ch__discard(struct ch_heap *, struct ch_vm *, enum ch__cause) CH_HAS_HEAP;
