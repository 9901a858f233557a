/* SPDX-License-Identifier: MIT
 * handles.h: from handles to records and back (handles.c), from addresses to blocks (find.c). */
#ifndef CH_CODEHEAP_GRAPH_HANDLES_H
#define CH_CODEHEAP_GRAPH_HANDLES_H

#include "codeheap/graph/block.h"

/* The heap that has the handle, locked: a call that waits begins so. *status is CH_OK; or NULL, and
 * nothing is locked: *status says why, CH_E_STATE or CH_E_STALE of `what`. */
struct ch_heap *ch__handle_lock(const char *what, uint64_t bits, enum ch_status *status)
	CH_TRY_ACQUIRES(true, ch__role_heap) CH_EXCLUDES(CH__RIGHT_OF_HEAP);
/* A record that a handle led to is acted on only as long as it cannot be another one's: with the
 * heap lock, under which every record goes back; in the stopped world; an owner's also while its
 * busy is held (ch__owner_hold); a block also while it is OPEN and the caller's. What is looked up
 * otherwise may be a stranger's at the next instruction. */

/* Whether there is a record where the handle says. */
static inline bool ch__handle_is_known(const struct ch_heap *heap, const struct ch__table *table,
				       uint64_t bits)
{
	return (bits >> 24 & 0xff) == heap->id && ch__table_has(table, ch__handle_index(bits));
}
/* Whether the record is in use, and of the handle's block. */
static inline bool ch__block_is(const struct ch__block *block, struct ch_block handle)
{
	uint32_t generation = atomic_load_explicit(&block->generation, memory_order_acquire);
	return (generation & 1) && generation == ch__handle_generation(handle.bits);
}
/* Index of the handle's block, 0 when stale. With the heap lock or frozen; in a region, to look
 * again under what excludes its reuse, or to look only. */
uint32_t ch__block_resolve(struct ch_heap *, struct ch_block);
/* The same; 0 also when a cycle found the block dead, swept or not (I5). In a region. */
uint32_t ch__block_resolve_alive(struct ch_heap *, struct ch_block) CH_REQUIRES(ch__role_region);
/* OPEN: the block is the calling thread's, which alone ends that. FREE: it is stale. Anywhere. */
enum ch_block_state ch__block_resolve_state(struct ch_heap *, struct ch_block, uint32_t *index);
/* Whether the owner, released or not, is the handle's. */
static inline bool ch__owner_is(const struct ch__owner *owner, struct ch_owner handle)
{
	uint32_t generation = atomic_load_explicit(&owner->generation, memory_order_acquire);
	uint32_t released = CH__LIFE_RELEASING | CH__LIFE_RELEASED;
	return (generation & ~released) == ch__handle_generation(handle.bits);
}
/* Index of the handle's owner, 0 when stale: to look only, or where all regions are frozen. */
static inline uint32_t ch__owner_look_up(const struct ch_heap *heap, struct ch_owner handle)
{
	uint32_t index = ch__handle_index(handle.bits);
	bool is_known = ch__handle_is_known(heap, &heap->owners, handle.bits);
	return is_known && ch__owner_is(ch__owner_at(heap, index), handle) ? index : 0;
}
/* Whether the handle is that of an owner that was not released; of one that is stale at the next
 * instruction, maybe. Anywhere. */
static inline bool ch__owner_is_live(const struct ch_heap *heap, struct ch_owner handle)
{
	uint32_t index = ch__owner_look_up(heap, handle);
	return index && !ch__owner_is_released(ch__owner_at(heap, index));
}
static inline uint32_t ch__owner_resolve(struct ch_heap *heap, struct ch_owner handle)
	CH_REQUIRES(ch__role_heap)
{
	return ch__owner_look_up(heap, handle);
}
uint32_t ch__branch_resolve(struct ch_heap *, struct ch_branch) CH_REQUIRES(ch__role_heap);
struct ch_block ch__block_handle(const struct ch_heap *, uint32_t index);
struct ch_owner ch__owner_handle(const struct ch_heap *, uint32_t index);
struct ch_branch ch__branch_handle(const struct ch_heap *, uint32_t index);

/* The block whose code pc lies in, head included; 0 = none, or OPEN. *generation is valid
 * with it; NULL in the stopped world or under the heap lock. Signal-safe. */
uint32_t ch__find(const struct ch_heap *, uintptr_t pc, uint32_t *generation);

#endif
