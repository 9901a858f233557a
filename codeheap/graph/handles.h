/* SPDX-License-Identifier: MIT
 * handles.h: from handles to records and back (handles.c). */
#pragma once

#include "codeheap/base/why.h"
#include "codeheap/graph/block.h"
#include "codeheap/graph/branch.h"

/* Finds and locks the heap of a handle: a call that waits begins so. Returns NULL with nothing
 * locked on failure: *status is CH_E_STATE in a marking thread, CH_E_STALE for a stale `what`. */
struct ch_heap *ch__handle_lock(const char *what, uint64_t bits, enum ch_status *status)
	CH_TRY_ACQUIRES(true, ch__role_heap) CH_EXCLUDES(CH__RIGHT_OF_HEAP);
/* For a handle that leads to nothing, or no longer to anything: "block", "owner" ... */
enum ch_status ch__because_stale(const char *what, uint64_t bits) CH_COLD;
#define ch__because_stale(what, bits) ch__refusal(ch__because_stale(what, bits))
/* A caller acts on a record only under one of the four holds of docs/design.md, section 5: after
 * any other look-up the record may be a stranger's at the next instruction. */

/* Whether the handle is of this heap, and the table has a record at the handle's index. */
static inline bool ch__handle_is_known(const struct ch_heap *heap, const struct ch__table *table,
				       uint64_t bits)
{
	return ch__handle_heap_id(bits) == heap->id && ch__table_has(table, ch__handle_index(bits));
}
/* Whether the record is in use by the handle's block. */
static inline bool ch__block_is(const struct ch__block *block, struct ch_block handle)
{
	uint32_t generation = atomic_load_explicit(&block->generation, memory_order_acquire);
	return (generation & 1) && generation == ch__handle_generation(handle.bits);
}
/* Index of the handle's block, 0 when stale. Call under the heap lock or frozen. Any other call is
 * only a look, or is repeated under a lock that excludes reuse. */
uint32_t ch__block_resolve(struct ch_heap *, struct ch_block);
/* The same, but 0 also when a cycle found the block dead, swept or not (I5). In a region. */
uint32_t ch__block_resolve_alive(struct ch_heap *, struct ch_block) CH_HAS_REGION;
/* State of the handle's block, FREE when stale. Only the caller ends OPEN. Call from anywhere. */
enum ch_block_state ch__block_resolve_state(struct ch_heap *, struct ch_block, uint32_t *index);
/* Whether the handle's owner has the record, released or not. */
static inline bool ch__owner_is(const struct ch__owner *owner, struct ch_owner handle)
{
	uint32_t generation = atomic_load_explicit(&owner->generation, memory_order_acquire);
	return (generation & ~(uint32_t)CH__LIFE_ENDS) == ch__handle_generation(handle.bits);
}
/* Index of the handle's owner, 0 when stale. To look only, or under the heap lock or frozen. */
static inline uint32_t ch__owner_look_up(const struct ch_heap *heap, struct ch_owner handle)
{
	uint32_t index = ch__handle_index(handle.bits);
	bool is_known = ch__handle_is_known(heap, &heap->owners, handle.bits);
	return is_known && ch__owner_is(ch__owner_at(heap, index), handle) ? index : 0;
}
/* Whether the handle's owner was not released. The owner may be released at the next instruction.
 * Call from anywhere. */
static inline bool ch__owner_is_live(const struct ch_heap *heap, struct ch_owner handle)
{
	uint32_t index = ch__owner_look_up(heap, handle);
	return index && !ch__owner_is_released(ch__owner_at(heap, index));
}
struct ch_block ch__block_handle(const struct ch_heap *, uint32_t index);
/* The generation in the handles of a block's branches, which live as long as the block. The next
 * block with the record of a branch may have the same generation, and has another index. */
static inline uint32_t ch__branch_life(uint32_t block, uint32_t generation)
{
	const uint32_t spread = 0x9e3779b1;
	return generation + spread * block;
}
static inline struct ch_branch ch__branch_handle(struct ch_block block, uint32_t branch)
{
	uint32_t life = ch__branch_life(ch__handle_index(block.bits),
					ch__handle_generation(block.bits));
	return (struct ch_branch){ch__handle(ch__handle_heap_id(block.bits), branch, life)};
}
static inline struct ch_owner ch__owner_handle(const struct ch_heap *heap, uint32_t index)
{
	if (!index)
		return (struct ch_owner){0};
	const struct ch__owner *owner = ch__owner_at(heap, index);
	uint32_t generation = atomic_load_explicit(&owner->generation, memory_order_acquire);
	generation &= ~(uint32_t)CH__LIFE_ENDS;
	return (struct ch_owner){ch__handle(heap->id, index, generation)};
}
