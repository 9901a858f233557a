/* SPDX-License-Identifier: MIT
 * invalidate.h: what the files of this room are to each other, and to codeheap/. */
#ifndef CH_INVALIDATE_INVALIDATE_H
#define CH_INVALIDATE_INVALIDATE_H

#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/branch.h"

/* Whether the block is code that may be entered. In a region: acts on it are, too. */
static inline bool ch__block_may_run(const struct ch_heap *heap, const struct ch__block *block)
{
	if (!ch__block_is_alive(heap, block))
		return false;
	bool is_live = ch__block_state(block) == CH_BLOCK_LIVE;
	return is_live && !ch__block_is_data(heap, block);
}
/* Why it may not: CH_E_STALE or CH_E_STATE. */
enum ch_status ch__because_not_entrant(const struct ch_heap *, uint32_t block);
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

/* Every branch that leads to the block, then the block's own, are taken off their targets' lists,
 * and re-pointed to their stubs or exits where it says so: not in code that is dying. */
void ch__block_unlink(struct ch_heap *, uint32_t block, bool patch_incoming, bool patch_outgoing)
	CH_REQUIRES(ch__role_heap, ch__role_region);
void ch__stub_init(struct ch_heap *);

/* Whether bytes in the block may be attached that lead to exit: they overlap nothing that is
 * attached, nothing that leads anywhere leads between two of them, and they lead to no byte but the
 * first of a site, wherever it is. A ref leads nowhere, and its word may overlap another's. The
 * block is OPEN and the thread's, or LIVE and heap is held. */
bool ch__sites_allow(const struct ch__subject *, uintptr_t exec, size_t bytes, uintptr_t exit,
		     bool is_ref);
/* CH_E_ARG of an address that is not in the block: "the ref" ... */
enum ch_status ch__because_outside(const struct ch__subject *, const char *what, uintptr_t at);
/* These bytes are attached now and lead to exit (0: nowhere that matters). */
void ch__sites_note(const struct ch__subject *, uintptr_t exec, size_t bytes, uintptr_t exit);
/* What of the library's has one of these bytes of a block: "a branch", "a ref" ...; NULL: nothing.
 * Under heap. */
const char *ch__sites_among(const struct ch_heap *, const struct ch__block *, uintptr_t exec,
			    size_t bytes);
/* Whether an OPEN block may be committed as *code says: every site lies in what is used and is as
 * it was attached, and the entry is not inside one. */
bool ch__sites_are_sound(const struct ch_heap *, const struct ch__block *,
			 const struct ch_code *code);

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
/* A dead block leaves all lists. */
void ch__assumption_leave(struct ch_heap *, struct ch__side_list *) CH_REQUIRES(ch__role_heap);

/* LIVE -> NOTENTRANT; false: it was not LIVE code. The caller tells the trigger by how much that
 * raised heap->notentrant_bytes, while it has the lock. */
bool ch__invalidate_block(struct ch_heap *, uint32_t block, enum ch__cause)
	CH_REQUIRES(ch__role_heap, ch__role_region);

/* Which blocks a discard found: others come and go before it counts what is left of them. */
struct ch__discard {
	uint8_t *stamps; /* of each record, 0 = not found; NULL = not asked for, or no memory */
	uint32_t records; /* that there are; those that come later are code of afterwards */
	size_t count;     /* blocks to get rid of */
};
/* vm: NULL for all of them. Stamps are made only where is_counted. */
void ch__discard_begin(struct ch_heap *, struct ch_vm *, bool is_counted, struct ch__discard *);
/* How many of them are there yet; the stamps are freed. */
size_t ch__discard_end(struct ch_heap *, struct ch_vm *, const struct ch__discard *);

#endif
