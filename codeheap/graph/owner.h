/* SPDX-License-Identifier: MIT
 * owner.h: owners, such as methods and traces: record, cell, list of blocks (owner.c). */
#pragma once

#include "codeheap/base/heap.h"

/* Life of an owner's record. One word holds the generation and how far the release is, so that a
 * stale handle changes nothing of the owner that has the record since. */
enum ch__life {
	CH__LIFE_IN_USE = 1,    /* part of the generation in handles; the bits below are not */
	CH__LIFE_RELEASING = 2, /* a thread, in no region, resets the cell: the record stays */
	CH__LIFE_RELEASED = 4,
	CH__LIFE_ENDS = CH__LIFE_RELEASING | CH__LIFE_RELEASED,
	CH__LIFE = CH__LIVES - 1, /* all three; 0: no owner has the record */
};

struct ch__owner {
	_Atomic(const void *) cell; /* first: the VM calls through the cell's address */
	const void *fallback; /* heap->no_fallback if the VM gave none */
	void *user;
	struct ch_vm *vm;
	_Atomic(uint32_t) generation; /* | enum ch__life; seq_cst against the cell */
	_Atomic(uint32_t) mark;
	uint32_t entry;                /* block index [busy]; so is the cell, but for a release */
	_Atomic(uint32_t) first_block; /* [busy]; a walk under heap acquires */
	/* Records of blocks, not FREE yet, DEAD included; stored under busy, read without busy. */
	_Atomic(uint32_t) blocks_now;
	uint32_t name;
	bool has_edges;        /* another owner's block attached an edge to it [busy] */
	/* 1 while the list of blocks or the entry changes, or the owner ends. The thread that
	 * stored 1 is in a region, and a fork waits for regions: no child inherits a 1 (I16). */
	_Atomic(uint8_t) busy;
	/* Of a free record; or where kill_committed goes on [heap]. */
	union { uint32_t next_free, release_at; };
};
_Static_assert(sizeof(struct ch__owner) == CH__LINE_BYTES, "no two share a line");

static inline struct ch__owner *ch__owner_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->owners, index, sizeof(struct ch__owner));
}

/* A block that is its own root has a mark so many cycles ahead. Marks are renewed (mark.c) before
 * any cycle could make such a mark old. */
enum { CH__MARKS_LAST = 1 << 29, CH__MARK_AHEAD = CH__MARKS_LAST + 64 };
static inline bool ch__is_ahead(const struct ch_heap *heap, uint32_t mark)
{
	return (int32_t)(mark - CH_LOAD_RELAXED(&heap->epoch)) > 0;
}

static inline bool ch__is_alive(const struct ch_heap *heap, uint32_t mark)
{
	return (int32_t)(mark - CH_LOAD_RELAXED(&heap->completed)) >= 0;
}
static inline bool ch__owner_is_alive(const struct ch_heap *heap, const struct ch__owner *owner)
{
	return ch__is_alive(heap, CH_LOAD_RELAXED(&owner->mark));
}
/* Whether calls through the cell may still enter a block. A release begins, stores the cell and
 * ends, outside of regions: before its end a thread may still come in through the old cell. */
static inline bool ch__owner_enters(const struct ch__owner *owner)
{
	return !(CH_LOAD_RELAXED(&owner->generation) & CH__LIFE_RELEASED);
}
/* For CH_MOVE. */
static inline enum ch__owner_state ch__owner_state(uint32_t generation)
{
	return !(generation & CH__LIFE_IN_USE)    ? CH__OWNER_NONE
	       : generation & CH__LIFE_RELEASING ? CH__OWNER_RELEASING
	       : generation & CH__LIFE_RELEASED  ? CH__OWNER_RELEASED
						  : CH__OWNER_LIVE;
}
/* Released by the VM. seq_cst against a store of the cell: one of the two sees the other. */
static inline bool ch__owner_is_released(const struct ch__owner *owner)
{
	return atomic_load_explicit(&owner->generation, memory_order_seq_cst) & CH__LIFE_ENDS;
}

/* Locks the list of blocks and the entry; in a region. */
static inline void ch__owner_lock(struct ch__owner *owner)
	CH_ACQUIRES(ch__role_owner) CH_HAS_REGION CH_UNANALYSED("it makes the role")
{
	CH__TAKE_BUSY(&owner->busy);
}
static inline void ch__owner_unlock(struct ch__owner *owner)
	CH_RELEASES(ch__role_owner) CH_UNANALYSED("it makes the role")
{
	CH__LET_BUSY_GO(&owner->busy);
}

/* Finds and locks the handle's owner, and so keeps the record the handle's. Returns false, with
 * nothing locked, when the handle is stale or the owner was found dead. In a region. */
bool ch__owner_hold(struct ch_heap *, struct ch_owner, struct ch__owner **)
	CH_TRY_ACQUIRES(true, ch__role_owner) CH_HAS_REGION;
/* Puts the block on the owner's list. Returns false when the owner died or was released. */
struct ch__block;
bool ch__owner_insert(struct ch_heap *, struct ch_owner, struct ch__block *, uint32_t index)
	CH_HAS_REGION;
/* Releases the owner: the cell leads to the fallback, *blocks is about the number of its blocks.
 * Returns false when the handle is stale or was released before. Anywhere, without a lock. */
bool ch__owner_let_go(struct ch_heap *, struct ch_owner, uint32_t *blocks);
/* In a child of fork: ends the releases that other threads of the parent had begun. */
void ch__owners_end_releases(struct ch_heap *) CH_HAS_HEAP;
/* So many records of the owner's blocks became FREE; after the last the owner may go. */
void ch__owner_drop(struct ch_heap *, uint32_t owner, uint32_t records) CH_HAS_HEAP;
void ch__owner_try_free(struct ch_heap *, uint32_t owner) CH_HAS_HEAP;
/* Makes an owner. The Boehm driver then writes the anchor, under the same hold of the lock. */
enum ch_status ch__owner_make(struct ch_vm *, const char *name, const void *fallback, void *user,
			      uint32_t *index) CH_HAS_HEAP;
void ch__owner_reset_cell(struct ch__owner *) CH_REQUIRES(ch__role_owner);
