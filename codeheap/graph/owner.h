/* SPDX-License-Identifier: MIT
 * owner.h: what the VM compiles: its record, its cell, its list of blocks (owner.c). */
#ifndef CH_CODEHEAP_GRAPH_OWNER_H
#define CH_CODEHEAP_GRAPH_OWNER_H

#include "codeheap/base/heap.h"

/* Life of an owner's record: one word says whose it is and how far its release has come, so that
 * who has a handle of before changes nothing of who has the record since. */
enum ch__life {
	CH__LIFE_IN_USE = 1,    /* of the generation that handles have; neither bit below is */
	CH__LIFE_RELEASING = 2, /* a thread, in no region, leads the cell back: it has the record */
	CH__LIFE_RELEASED = 4,
	CH__LIFE = CH__LIVES - 1, /* all of them; 0 = none */
};

struct ch__owner {
	_Atomic(const void *) cell; /* first: the VM calls through its address */
	const void *fallback; /* the heap's no_fallback where the VM gave none */
	void *user;
	struct ch_vm *vm;
	_Atomic(uint32_t) generation; /* | enum ch__life; seq_cst against the cell */
	_Atomic(uint32_t) mark;
	uint32_t entry;                /* block index [busy]; the cell, too, save by a release */
	_Atomic(uint32_t) first_block; /* stored under [busy], relaxed */
	/* Records not FREE yet, DEAD ones included; stored under busy, read as it is. */
	_Atomic(uint32_t) blocks_now;
	uint32_t name;
	bool has_edges;        /* some block attached an edge to it [busy] */
	/* 1 while its blocks or its entry change, or it ends. The thread that stored it is in a
	 * region, which a fork awaits: a child inherits none that is 1 (I16). */
	_Atomic(uint8_t) busy;
	uint32_t next_free;
};
_Static_assert(sizeof(struct ch__owner) == CH__LINE_BYTES, "no two share a line");

static inline struct ch__owner *ch__owner_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->owners, index, sizeof(struct ch__owner));
}

/* What is its own root has a mark so many cycles ahead: no cycle that ends before makes it old, and
 * marks are renewed sooner (mark.c). */
enum { CH__MARKS_LAST = 1 << 29, CH__MARK_AHEAD = CH__MARKS_LAST + 64 };
static inline bool ch__is_ahead(const struct ch_heap *heap, uint32_t mark)
{
	return (int32_t)(mark - atomic_load_explicit(&heap->epoch, memory_order_relaxed)) > 0;
}

static inline bool ch__is_alive(const struct ch_heap *heap, uint32_t mark)
{
	return (int32_t)(mark - atomic_load_explicit(&heap->completed, memory_order_relaxed)) >= 0;
}
static inline bool ch__owner_is_alive(const struct ch_heap *heap, const struct ch__owner *owner)
{
	return ch__is_alive(heap, atomic_load_explicit(&owner->mark, memory_order_relaxed));
}
/* Whether calls through the cell may still enter a block. A release begins, stores the cell and
 * ends, outside of regions: a thread that is stopped before its end has not shut the way in yet. */
static inline bool ch__owner_enters(const struct ch__owner *owner)
{
	return !(atomic_load_explicit(&owner->generation, memory_order_relaxed) &
		 CH__LIFE_RELEASED);
}
/* For moves. */
static inline enum ch__owner_state ch__owner_state(uint32_t generation)
{
	return !(generation & CH__LIFE_IN_USE)    ? CH__OWNER_NONE
	       : generation & CH__LIFE_RELEASING ? CH__OWNER_RELEASING
	       : generation & CH__LIFE_RELEASED  ? CH__OWNER_RELEASED
						  : CH__OWNER_LIVE;
}
/* The VM has no more use for it. seq_cst: who stored a cell sees the release, or that sees it. */
static inline bool ch__owner_is_released(const struct ch__owner *owner)
{
	return (atomic_load_explicit(&owner->generation, memory_order_seq_cst) &
		(CH__LIFE_RELEASING | CH__LIFE_RELEASED)) != 0;
}

/* Its list and its entry; in a region. */
static inline void ch__owner_lock(struct ch__owner *owner)
	CH_ACQUIRES(ch__role_owner) CH_REQUIRES(ch__role_region) CH_UNANALYSED("it makes the role")
{
	while (CH_UNLIKELY(atomic_exchange_explicit(&owner->busy, 1, memory_order_acquire)))
		while (atomic_load_explicit(&owner->busy, memory_order_relaxed))
			ch__arch_pause();
}
static inline void ch__owner_unlock(struct ch__owner *owner)
	CH_RELEASES(ch__role_owner) CH_UNANALYSED("it makes the role")
{
	atomic_store_explicit(&owner->busy, 0, memory_order_release);
}

/* With its list locked, which keeps the record the handle's; false, and nothing is locked: it is
 * stale, or found dead. In a region. */
bool ch__owner_hold(struct ch_heap *, struct ch_owner, struct ch__owner **)
	CH_TRY_ACQUIRES(true, ch__role_owner) CH_REQUIRES(ch__role_region);
/* False: the owner died or was released. In a region. */
struct ch__block;
bool ch__owner_insert(struct ch_heap *, struct ch_owner, struct ch__block *, uint32_t index)
	CH_REQUIRES(ch__role_region);
/* It is released, and its cell leads to the fallback; *blocks: that it had, about. False: it is
 * stale, or was released before. Anywhere, without a lock. */
bool ch__owner_let_go(struct ch_heap *, struct ch_owner, uint32_t *blocks);
/* Releases that other threads of the parent had begun; in a child of fork. */
void ch__owners_end_releases(struct ch_heap *) CH_REQUIRES(ch__role_heap);
/* Records of its blocks became FREE; under heap. */
void ch__owner_drop(struct ch_heap *, uint32_t owner, uint32_t records) CH_REQUIRES(ch__role_heap);
/* Record 0 is the owner of code that has none: it is not found, made, entered or released, lists
 * and counts no block, and hears nothing. False: no memory. */
bool ch__owner_of_none(struct ch_heap *);
/* Off its owner's list, whose lock is held. */
void ch__owner_remove(struct ch_heap *, struct ch__owner *, struct ch__block *)
	CH_REQUIRES(ch__role_owner);
void ch__owner_try_free(struct ch_heap *, uint32_t owner) CH_REQUIRES(ch__role_heap);
/* Makes an owner under heap and in a region; the Boehm driver creates its anchor between. */
enum ch_status ch__owner_make(struct ch_vm *, const char *name, const void *fallback, void *user,
			      uint32_t *index) CH_REQUIRES(ch__role_heap);
void ch__owner_reset_cell(struct ch__owner *) CH_REQUIRES(ch__role_owner);

#endif
