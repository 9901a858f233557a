/* SPDX-License-Identifier: MIT
 * block.h: the record of a block, its states and the way back to the free list (block.c). For the
 * parts of a block see block_parts.h. States change by the moves of moves.c only (I20). */
#pragma once

#include "codeheap/base/park.h"
#include "codeheap/graph/owner.h"

/* Published and withdrawn in the order of I3, read outside of regions as I4 says. */
struct ch__block {
	_Atomic(uint32_t) generation;    /* odd = in use, even = none */
	_Atomic(uint32_t) mark;          /* epoch of the last cycle that reached the block (R2) */
	_Atomic(uint32_t) hot_offset;    /* pool offset of the hot part; release, lookup acquires */
	uint32_t owner;                  /* index; 0 = none: lives until ch_code_free */
	union {
		_Atomic(uint16_t) hot_granules;
		_Atomic(uint16_t) span_granules_low; /* APART: of the hot part */
	};
	union {
		_Atomic(uint16_t) cold_granule; /* granule in the page; 0 = no cold part */
		_Atomic(uint16_t) span_granules_high; /* APART: a cold part ends its pages */
	};
	_Atomic(uint16_t) cold_granules;
	_Atomic(uint8_t) state;          /* enum ch_block_state | enum ch__cause << 3 [region] */
	_Atomic(uint8_t) flags;          /* several threads may change bits at once */
	_Atomic(uint32_t) first_branch;  /* first of the run; 0 = none */
	union {
		uint32_t in_head; /* of code: the first incoming branch [heap, region] */
		/* Of data: number of edges to this block. Atomic steps: up under the lock of the
		 * owner, down under heap. */
		uint32_t users;
	};
	/* A DEAD block is on the quarantine list, on the list of notices, or on both. */
	union {
		uint32_t owner_next;      /* not DEAD: blocks of the owner [its busy] */
		uint32_t quarantine_next; /* DEAD [heap] */
		uint32_t free_next;       /* FREE [records] */
	};
	union {
		uint32_t owner_prev;  /* not DEAD [the owner's busy] */
		uint32_t notice_next; /* DEAD [heap] */
	};
	void *user;
	struct ch__side_list *side_list; /* NULL while nothing is attached [region] */
};
_Static_assert(sizeof(struct ch__block) == 56, "a block record has no gap");

/* Why a block went out of use first; stored above the state bits of the block. */
enum ch__cause {
	CH__CAUSE_NONE,
	CH__CAUSE_INVALIDATED,
	CH__CAUSE_ASSUMPTION,
	CH__CAUSE_DISCARDED,
	CH__CAUSE_DETACHED,
};

enum { CH__STATE_MASK = 7, CH__CAUSE_SHIFT = 3 }; /* of ch__block.state */

enum ch__block_flag {
	CH__FLAG_ENTRY = 3, /* enum ch_entry */
	CH__FLAG_APART = 4,
	CH__FLAG_IMMORTAL = 8,
	/* heap->stats.cycles at the commit, modulo 4; only without HELD. Cycles renew it before */
	CH__FLAG_AGE = 0x30,
	CH__FLAG_AGE_ONE = 0x10,
	CH__FLAG_LEADS = 0x10, /* with HELD: opened to be its own root */
	CH__FLAG_UNLINKED = 0x20, /* with HELD: a branch to it was unlinked, and may run */
	CH__FLAG_HELD = 0x40,   /* not newborn: had an in-edge, an entry or two cycles */
	CH__FLAG_NOTICE = 0x80, /* DEAD: block_freed is due */
	CH__FLAG_EDGED = 0x80,  /* not DEAD: a block attached an edge to it */
};
_Static_assert(((unsigned)CH_ENTRY_PATCH | CH_ENTRY_GUARD) <= CH__FLAG_ENTRY, "each kind fits");

static inline struct ch__block *ch__block_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->blocks, index, sizeof(struct ch__block));
}

/* Changes *from, the flags as they were read, to `to`. Returns false, with the flags as they are in
 * *from, when another thread was faster: try again. */
static inline bool ch__block_change_flags(struct ch__block *block, uint8_t *from, unsigned to)
{
	if (!ch__is_only_thread())
		return atomic_compare_exchange_weak(&block->flags, from, (uint8_t)to);
	CH_STORE_RELAXED(&block->flags, (uint8_t)to);
	return true;
}

/* Mostly the flag is set already: no locked instruction then. With HELD the block is newborn no
 * more, and has no age. */
static inline void ch__block_set_flag(struct ch__block *block, enum ch__block_flag flag)
{
	uint8_t flags = CH_LOAD_RELAXED(&block->flags);
	unsigned kept = flag == CH__FLAG_HELD ? ~(unsigned)CH__FLAG_AGE : ~0u;
	while (!(flags & flag) && !ch__block_change_flags(block, &flags, (flags & kept) | flag))
		continue;
}

static inline bool ch__block_is_alive(const struct ch_heap *heap, const struct ch__block *block)
{
	return ch__is_alive(heap, CH_LOAD_RELAXED(&block->mark));
}
static inline enum ch_block_state ch__block_state(const struct ch__block *block)
{
	return (enum ch_block_state)(atomic_load_explicit(&block->state, memory_order_acquire) &
				     CH__STATE_MASK);
}
static inline enum ch__cause ch__block_cause(const struct ch__block *block)
{
	/* Not relaxed: place.c judges the value by the generation, which it reads afterwards. */
	return (enum ch__cause)(block->state >> CH__CAUSE_SHIFT);
}
/* The block's owner, for callers without the heap lock. Acquire: the owner of the record's next
 * block comes after the death of this block. */
static inline uint32_t ch__block_owner(const struct ch__block *block)
{
	return __atomic_load_n(&block->owner, __ATOMIC_ACQUIRE);
}
/* Makes every move of a block; `by` is the name of the calling function (moves.c). Release: a
 * thread that sees LIVE may invalidate the block at once. Later states keep go_live's release. */
static inline void ch__block_set_state(struct ch_heap *heap, struct ch__block *block,
				       uint32_t index, enum ch_block_state state,
				       enum ch__cause cause, const char *by)
{
	CH_MOVE(ch__block_moves, index, atomic_load(&block->generation), ch__block_state(block),
		state,
		ch__held(heap) | (atomic_load(&ch__owner_at(heap, block->owner)->busy)
					  ? CH__UNDER_OWNER
					  : 0),
		by);
	atomic_store_explicit(&block->state, (uint8_t)(state | (unsigned)cause << CH__CAUSE_SHIFT),
			      memory_order_release);
}
/* Whether an OPEN, LIVE or NOTENTRANT block has the record. */
static inline bool ch__block_in_use(const struct ch_heap *heap, uint32_t index)
{
	return atomic_load_explicit(&ch__block_at(heap, index)->generation, memory_order_acquire) &
	       1;
}
/* Whether the block, whose record is in use, was committed. */
static inline bool ch__block_is_published(const struct ch__block *block)
{
	enum ch_block_state state = ch__block_state(block);
	return state == CH_BLOCK_LIVE || state == CH_BLOCK_NOTENTRANT;
}

/* The first branch; 0: none. */
static inline uint32_t ch__block_run(const struct ch__block *block)
{
	return CH_LOAD_RELAXED(&block->first_branch);
}
static inline enum ch_entry ch__block_entry_kind(const struct ch__block *block)
{
	return (enum ch_entry)(block->flags & CH__FLAG_ENTRY);
}
/* Whether the block was opened without an owner or to be kept: its own root from commit on. */
static inline bool ch__block_leads(const struct ch__block *block)
{
	uint8_t both = CH__FLAG_HELD | CH__FLAG_LEADS;
	return (CH_LOAD_RELAXED(&block->flags) & both) == both;
}
/* Whether the block is a root: from its commit until it is freed the mark lies ahead. */
static inline bool ch__block_is_own_root(const struct ch_heap *heap, const struct ch__block *block)
{
	return ch__is_ahead(heap, CH_LOAD_RELAXED(&block->mark));
}
/* The age of a newborn block is the distance of a stamp: a block on two lists ages once a cycle. */
static inline uint8_t ch__age_stamp(const struct ch_heap *heap)
{
	return (uint8_t)(heap->stats.cycles * CH__FLAG_AGE_ONE & CH__FLAG_AGE);
}

/* Takes the block off its owner's list; ch__owner_insert puts it there. */
static inline void ch__owner_remove(struct ch_heap *heap, struct ch__owner *owner,
				    struct ch__block *block, uint32_t index)
	CH_REQUIRES(ch__role_owner)
{
	uint32_t next = block->owner_next, prev = block->owner_prev;
	if (owner->release_at == index)
		owner->release_at = next;
	if (prev)
		ch__block_at(heap, prev)->owner_next = next;
	else
		CH_STORE_RELAXED(&owner->first_block, next);
	if (next)
		ch__block_at(heap, next)->owner_prev = prev;
}

void ch__block_pages_freed(struct ch_heap *, uint32_t hot_offset, bool is_span);
void ch__page_retire(struct ch_heap *, uint32_t page); /* open: the caller's, or nobody's */
/* The calling thread opens blocks of the frame number in another page from here on: index + 1, or 0
 * for none. The old page is retired. */
void ch__thread_use_page(struct ch__thread *self, uint32_t frame, uint32_t page);
uint32_t ch__record_take(struct ch_heap *, struct ch__thread *);
void ch__records_give_back(struct ch_heap *, const uint32_t *, uint32_t); /* to the heap's list */
void ch__records_flush(struct ch_heap *, struct ch__thread *);
/* Gives the record back; the place in the pool was given back before. Under heap. */
static inline void ch__block_recycle(struct ch_heap *heap, struct ch__thread *thread,
				     struct ch__block *block, uint32_t index) CH_HAS_HEAP
{
	ch__block_set_state(heap, block, index, CH_BLOCK_FREE, CH__CAUSE_NONE, __func__);
	/* A worn record rests in the table: from a stack a thread would take it at once. */
	if (CH_UNLIKELY(ch__is_worn(CH_LOAD_RELAXED(&block->generation)))) {
		ch__records_give_back(heap, &index, 1);
		return;
	}
	if (CH_UNLIKELY(thread->free_count == CH__THREAD_RECORDS))
		ch__records_flush(heap, thread);
	thread->free_records[thread->free_count++] = index;
}

/* --- sums that the statistics keep (stats.c) --- */

void ch__counters_add(struct ch__counters *sum, const struct ch__counters *more);
/* Call when so many bytes of blocks have gone, with 0 for the peak of this moment. The peak is
 * exact to 16 KiB: a sum over all threads for each death would be most of the death's cost. */
void ch__stats_note_peak(struct ch_heap *, uint64_t died) CH_HAS_HEAP;
/* Notes a pause that began at start_ns, with the marking from marked_from_ns on. */
void ch__stats_note_pause(struct ch_heap *, uint64_t start_ns, uint64_t marked_from_ns);
