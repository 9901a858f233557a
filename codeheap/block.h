/* SPDX-License-Identifier: MIT
 * block.h: the records of the graph: blocks, branches, owners, assumptions, and the side list of
 * a block. Internal to codeheap/ and invalidate/; invalidation works on these records, and the
 * sweep drops them. What has states makes the moves of moves.c only (I20).
 *
 *   hot part of a block    +0 record index (4 bytes) | +4 code ............... | trap fill to the
 *                          granule
 *   in place, data         +0 record index | traps to +32 | the VM's bytes, 64-aligned ...
 *   cold part              +0 record index (4 bytes) | +4 stubs, 8 bytes each | VM's cold bytes |
 *                          trap fill */
#ifndef CH_CODEHEAP_BLOCK_H
#define CH_CODEHEAP_BLOCK_H

#include "codeheap/heap.h"
#include "codeheap/moves.h"

enum { CH__INDEX_WORD_BYTES = 4 };
/* What is written in place begins at a multiple of 64: behind the page's header and this. */
enum { CH__IN_PLACE_HEAD_BYTES = 64 - CH__PAGE_HEADER_BYTES };
/* Slots of trampolines follow each other from the page header on without a gap, so that a page is
 * bump-allocated and its holes are slots: every slot of every kind has this size. */
enum {
	CH__SLOT_BYTES = (CH__INDEX_WORD_BYTES + CH_ARCH_TEMPLATE_BYTES + CH__GRANULE_BYTES - 1) &
			 ~(CH__GRANULE_BYTES - 1),
};

/* Publication (I3): fields, extra -> mark -> generation (release) -> start bit -> in-edge, entry.
 * Withdrawal: in-edges -> tombstone -> generation even -> start bit -> reuse. Readers without a
 * region take generation, fields, generation. */
struct ch__block {
	_Atomic(uint32_t) generation;    /* odd = in use, even = none */
	_Atomic(uint32_t) mark;          /* epoch of the last cycle that reached it (R2) */
	_Atomic(uint32_t) hot_offset;    /* pool offset of the hot part; relaxed, lookup acquires */
	uint32_t owner;                  /* index */
	union {
		_Atomic(uint16_t) hot_granules;
		_Atomic(uint16_t) span_granules_low; /* SPAN: of its hot part */
	};
	union {
		_Atomic(uint16_t) cold_granule; /* granule in the page; 0 = no cold part */
		_Atomic(uint16_t) span_granules_high; /* SPAN: a cold part ends the run of pages */
	};
	_Atomic(uint16_t) cold_granules;
	_Atomic(uint8_t) state;          /* enum ch_block_state | enum ch__cause << 3 [region] */
	_Atomic(uint8_t) flags;          /* [region]; several threads may set bits at once */
	_Atomic(uint32_t) first_branch;  /* of its run; 0 = none */
	/* A DEAD block is on the list of the quarantine, on that of notices, or on both. */
	union {
		uint32_t in_head;     /* not DEAD: first incoming branch [heap, region] */
		uint32_t syncs_begun; /* DEAD: core syncs begun by its death [heap] */
	};
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
	struct ch__extra *extra; /* NULL while nothing is attached [region] */
};
_Static_assert(sizeof(struct ch__block) == 56 &&
		       offsetof(struct ch__block, first_branch) == 24 &&
		       offsetof(struct ch__block, in_head) == 28 &&
		       offsetof(struct ch__block, owner_next) == 32 &&
		       offsetof(struct ch__block, owner_prev) == 36 &&
		       offsetof(struct ch__block, user) == 40,
	       "a block record is 56 bytes without a gap");

enum { CH__STATE_MASK = 7, CH__CAUSE_SHIFT = 3 }; /* of ch__block.state */

enum ch__block_flag {
	CH__FLAG_ENTRY = 3, /* enum ch_entry */
	CH__FLAG_SPAN = 4,
	CH__FLAG_IMMORTAL = 8,
	CH__FLAG_AGE = 0x30, /* heap->full_cycles at the commit, modulo 4, while it is not held */
	CH__FLAG_AGE_ONE = 0x10,
	CH__FLAG_UNLINKED = 0x20, /* held: a branch led to it, and was unlinked where it may run */
	CH__FLAG_HELD = 0x40,   /* has had an in-edge or an entry: newborn no more */
	CH__FLAG_NOTICE = 0x80, /* DEAD: its block_freed is due */
	CH__FLAG_EDGED = 0x80,  /* not DEAD: a block attached an edge to it */
};

/* user | site | target:24 kind:3 flags:5 | next:24 generation low:8 | prev:24 generation high:8 */
struct ch__branch {
	void *user;
	/* Stored relaxed: stale handles are judged while records change owner. */
	_Atomic(uint32_t) site;               /* pool offset of the instruction; 0 = not attached */
	_Atomic(uint32_t) target_kind;        /* [region] */
	_Atomic(uint32_t) next_gen, prev_gen; /* [heap] */
};
_Static_assert(sizeof(struct ch__branch) == 24, "a branch record is 24 bytes");

enum ch__branch_flag {
	CH__BRANCH_KIND_SHIFT = 24,
	CH__BRANCH_KIND = 7 << 24,
	CH__BRANCH_LAST = 1 << 27,     /* of its run */
	CH__BRANCH_OWN_EXIT = 1 << 28, /* its stub slot is a jump to the VM's exit */
};

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
	const void *fallback;
	void *user;
	struct ch_vm *vm;
	_Atomic(uint32_t) generation; /* | enum ch__life; seq_cst against the cell */
	_Atomic(uint32_t) mark;
	uint32_t entry;                /* block index [heap, region] */
	_Atomic(uint32_t) first_block; /* stored under [busy], relaxed */
	/* Records not FREE yet, DEAD ones included; stored under busy, read as it is. */
	_Atomic(uint32_t) blocks_now;
	uint32_t name;
	bool has_edges;        /* some block attached an edge to it [busy] */
	_Atomic(uint8_t) busy; /* 1 while its list of blocks changes, or it ends; in a region */
	uint32_t next_free;
};
_Static_assert(sizeof(struct ch__owner) == CH__LINE_BYTES, "no two share a line");

struct ch__assumption {
	_Atomic(uint32_t) generation;
	uint32_t next_free;
	struct ch_vm *vm;
	struct ch__dependent *dependents; /* [heap] */
	uint32_t count, capacity;
};
struct ch__dependent {
	uint32_t block, item;
};

/* The side list of a block: edges, refs, patch points, assumptions. Items lie behind the head; it
 * is replaced as a whole when it grows, the old one freed outside the region. */
enum ch__item_kind {
	CH__ITEM_EDGE,       /* value = block index, at = its generation */
	CH__ITEM_OWNER_EDGE, /* value = owner index, at = its generation */
	CH__ITEM_REF,        /* at = pool offset of the word */
	CH__ITEM_POINT,      /* at = pool offset; value = exit's pool offset */
	CH__ITEM_POINT_USER, /* follows POINT: at | value << 32 = user */
	CH__ITEM_ASSUME,     /* at = assumption index; value = slot in its dependents */
	CH__ITEM_LINES,      /* at | value << 32 = struct ch__lines * */
	CH__ITEM_OWN,        /* the first item, at | value << 32 = struct ch__own * */
	CH__ITEM_BROKEN,     /* was ASSUME; it invalidated the block: index, generation */
};
struct ch__item {
	uint32_t at, value;
};
struct ch__extra {
	uint16_t count, capacity;
	uint32_t name;         /* interned */
	uint32_t entry_offset; /* from the first byte after the index word */
	uint32_t lines;        /* number of its LINES item, from 1; 0 = it has none */
	uint32_t *guard;       /* 0 while entrant; apart, since code holds its address */
	uint8_t kinds[];       /* capacity kinds, padded to 8; then the items */
};

/* Source lines of a block, rising by offset; constant once attached. */
struct ch__lines {
	uint32_t count;
	uint32_t file; /* interned */
	struct {
		uint32_t offset; /* in the pool */
		uint32_t line;
	} at[];
};

static inline size_t ch__extra_bytes(uint32_t capacity)
{
	return sizeof(struct ch__extra) + ((capacity + 7u) & ~7u) +
	       capacity * sizeof(struct ch__item);
}
static inline struct ch__item *ch__extra_items(const struct ch__extra *extra)
{
	return (struct ch__item *)(uintptr_t)(extra->kinds + ((extra->capacity + 7u) & ~7u));
}

/* NULL when it has none; extra may be NULL. */
static inline const struct ch__lines *ch__extra_lines(const struct ch__extra *extra)
{
	if (!extra || !extra->lines)
		return NULL;
	struct ch__item item = ch__extra_items(extra)[extra->lines - 1];
	return (const struct ch__lines *)(uintptr_t)(item.at | (uint64_t)item.value << 32);
}

/* Its table for unwinders; NULL when it was opened without CH_OPEN_OWN_FRAMES. */
static inline struct ch__own *ch__extra_own(const struct ch__extra *extra)
{
	if (!extra || !extra->count || extra->kinds[0] != CH__ITEM_OWN)
		return NULL;
	struct ch__item item = ch__extra_items(extra)[0];
	return (struct ch__own *)(uintptr_t)(item.at | (uint64_t)item.value << 32);
}

/* --- access --- */

static inline struct ch__block *ch__block_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->blocks, index, sizeof(struct ch__block));
}
static inline struct ch__branch *ch__branch_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->branches, index, sizeof(struct ch__branch));
}
static inline struct ch__owner *ch__owner_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->owners, index, sizeof(struct ch__owner));
}
static inline struct ch__assumption *ch__assumption_at(const struct ch_heap *heap, uint32_t index)
{
	return ch__table_at_bytes(&heap->assumptions, index, sizeof(struct ch__assumption));
}

static inline uint32_t ch__branch_target(const struct ch__branch *branch)
{
	return atomic_load_explicit(&branch->target_kind, memory_order_relaxed) & CH__INDEX_MAX;
}
static inline enum ch__site ch__branch_kind(const struct ch__branch *branch)
{
	return (enum ch__site)((atomic_load_explicit(&branch->target_kind, memory_order_relaxed) &
				CH__BRANCH_KIND) >>
			       CH__BRANCH_KIND_SHIFT);
}
static inline bool ch__branch_has(const struct ch__branch *branch, uint32_t flag)
{
	return (atomic_load_explicit(&branch->target_kind, memory_order_relaxed) & flag) != 0;
}
static inline uint32_t ch__branch_generation(const struct ch__branch *branch)
{
	return (branch->next_gen >> 24) | (branch->prev_gen >> 24) << 8;
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

/* Of a record that a block has; for moves. */
static inline enum ch__branch_state ch__branch_state(const struct ch__branch *branch)
{
	if (!atomic_load_explicit(&branch->site, memory_order_relaxed))
		return CH__BRANCH_NONE;
	return ch__branch_target(branch) ? CH__BRANCH_LINKED : CH__BRANCH_UNLINKED;
}

static inline bool ch__is_alive(const struct ch_heap *heap, uint32_t mark)
{
	return (int32_t)(mark - atomic_load_explicit(&heap->completed, memory_order_relaxed)) >= 0;
}
static inline bool ch__block_is_alive(const struct ch_heap *heap, const struct ch__block *block)
{
	return ch__is_alive(heap, atomic_load_explicit(&block->mark, memory_order_relaxed));
}
static inline enum ch_block_state ch__block_state(const struct ch__block *block)
{
	/* Pairs with the release in ch__block_store: who sees LIVE sees bytes and record. */
	return (enum ch_block_state)(atomic_load_explicit(&block->state, memory_order_acquire) &
				     CH__STATE_MASK);
}
static inline enum ch__cause ch__block_cause(const struct ch__block *block)
{
	return (enum ch__cause)(atomic_load_explicit(&block->state, memory_order_relaxed) >>
				CH__CAUSE_SHIFT);
}
/* Release: who sees LIVE may invalidate it at once; later states keep what go_live released. */
static inline void ch__block_store(struct ch__block *block, enum ch_block_state state,
				   enum ch__cause cause)
{
	atomic_store_explicit(&block->state, (uint8_t)(state | (unsigned)cause << CH__CAUSE_SHIFT),
			      memory_order_release);
}
/* Of a LIVE block, which stays so; under heap and in a region. */
static inline void ch__block_set_cause(struct ch__block *block, enum ch__cause cause)
{
	ch__block_store(block, CH_BLOCK_LIVE, cause);
}
/* What the caller holds, for CH_MOVE. */
static inline uint32_t ch__held(struct ch_heap *heap)
{
	uint32_t held = 0;
	if (atomic_load_explicit(&ch__thread_or_guest(heap)->inside, memory_order_relaxed))
		held |= CH__IN_REGION;
	if (ch__lock_is_mine(&heap->lock))
		held |= CH__UNDER_HEAP;
	if (ch__lock_is_mine(&heap->registry))
		held |= CH__UNDER_REGISTRY;
	return held;
}
/* Every move of a block; by is the function that makes it (moves.c). */
static inline void ch__block_set_state(struct ch_heap *heap, uint32_t index,
				       enum ch_block_state to, enum ch__cause cause,
				       const char *by)
{
	struct ch__block *block = ch__block_at(heap, index);
	const struct ch__owner *owner = ch__owner_at(heap, block->owner);
	CH_MOVE(ch__block_moves, index, atomic_load(&block->generation), ch__block_state(block),
		to, ch__held(heap) | (atomic_load(&owner->busy) ? CH__UNDER_OWNER : 0), by);
	(void)owner;
	ch__block_store(block, to, cause);
}
static inline void ch__thread_set_state(struct ch__thread *thread, enum ch__thread_state to,
					memory_order order, const char *by)
{
	uint32_t from = atomic_load_explicit(&thread->state, memory_order_relaxed);
	if (from != (uint32_t)to)
		CH_MOVE(ch__thread_moves, thread->thread_id, 0, from, to, ch__held(thread->heap),
			by);
	if (order == memory_order_seq_cst)
		atomic_store_explicit(&thread->state, (uint32_t)to, memory_order_seq_cst);
	else
		atomic_store_explicit(&thread->state, (uint32_t)to, memory_order_release);
}
/* The record is a block's, in whatever state. */
static inline bool ch__block_in_use(const struct ch_heap *heap, uint32_t index)
{
	return heap->blocks.segments[index >> CH__SEGMENT_LOG2] &&
	       (atomic_load_explicit(&ch__block_at(heap, index)->generation, memory_order_acquire) &
		1);
}
/* Of a record in use: it was committed. */
static inline bool ch__block_is_published(const struct ch__block *block)
{
	enum ch_block_state state = ch__block_state(block);
	return state == CH_BLOCK_LIVE || state == CH_BLOCK_NOTENTRANT;
}
/* Stores of a block's place: lookup reads it at any time and judges by the generation. Release: who
 * reads the place of the record's next block sees that its first one has no generation any more. */
static inline void ch__set16(_Atomic(uint16_t) *field, uint32_t value)
{
	atomic_store_explicit(field, (uint16_t)value, memory_order_release);
}
static inline void ch__set_hot_offset(struct ch__block *block, uint32_t offset)
{
	atomic_store_explicit(&block->hot_offset, offset, memory_order_release);
}
/* The index word that a part begins with; aligned, written and looked up as a whole. */
static inline void ch__index_word_write(const struct ch_heap *heap, uint32_t offset, uint32_t index)
{
	uint8_t *write = ch__pool_lend(heap->pool, heap->pool->exec_base + offset);
	__atomic_store_n((uint32_t *)(void *)write, index, __ATOMIC_RELAXED);
}
static inline uint32_t ch__hot_bytes(const struct ch__block *block)
{
	uint32_t granules = block->hot_granules;
	if (block->flags & CH__FLAG_SPAN)
		granules = block->span_granules_low | (uint32_t)block->span_granules_high << 16;
	return granules * CH__GRANULE_BYTES;
}
static inline uint32_t ch__cold_bytes(const struct ch__block *block)
{
	return (uint32_t)block->cold_granules * CH__GRANULE_BYTES;
}
uint32_t ch__span_end(const struct ch_heap *, const struct ch__block *);
/* Pool offset of the cold part; meaningless without one. */
static inline uint32_t ch__cold_offset(const struct ch_heap *heap, const struct ch__block *block)
{
	if (CH_UNLIKELY(block->flags & CH__FLAG_SPAN))
		return ch__span_end(heap, block) - ch__cold_bytes(block);
	uint32_t page = block->hot_offset >> heap->pool->page_log2;
	return (page << heap->pool->page_log2) + block->cold_granule * (uint32_t)CH__GRANULE_BYTES;
}
static inline uintptr_t ch__exec(const struct ch_heap *heap, uint32_t offset)
{
	return heap->pool->exec_base + offset;
}
static inline uint32_t ch__offset(const struct ch_heap *heap, uintptr_t exec)
{
	return (uint32_t)(exec - heap->pool->exec_base);
}
/* The diverter of a patchable entry, behind what an indirect call lands on. */
static inline uintptr_t ch__block_gate_exec(const struct ch_heap *heap,
					    const struct ch__block *block)
{
	return ch__exec(heap, block->hot_offset) + CH__INDEX_WORD_BYTES + CH_ARCH_LANDING_BYTES;
}

/* What its pages are for; constant while it has them. */
static inline enum ch__span_use ch__block_use(const struct ch_heap *heap,
					      const struct ch__block *block)
{
	if (CH_LIKELY(!(block->flags & CH__FLAG_SPAN)))
		return CH__SPAN_CODE;
	return ch__pool_span_use(heap->pool, block->hot_offset >> heap->pool->page_log2);
}
static inline bool ch__block_is_data(const struct ch_heap *heap, const struct ch__block *block)
{
	return ch__block_use(heap, block) >= CH__SPAN_RODATA;
}
/* Bytes of the hot part before those of the VM. */
static inline uint32_t ch__head_bytes(enum ch__span_use use)
{
	return use == CH__SPAN_CODE ? CH__INDEX_WORD_BYTES : CH__IN_PLACE_HEAD_BYTES;
}
/* Those of them that offsets into the block do not count: it has its index word at 0 for all who
 * are told of it. */
static inline uint32_t ch__lead_bytes(enum ch__span_use use)
{
	return ch__head_bytes(use) - CH__INDEX_WORD_BYTES;
}
/* What sinks are told of its hot part: an index word, then the VM's bytes. */
static inline struct ch__sink_range ch__hot_range(const struct ch_heap *heap,
						  const struct ch__block *block, uint64_t key)
{
	uint32_t lead = ch__lead_bytes(ch__block_use(heap, block));
	return (struct ch__sink_range){ch__exec(heap, block->hot_offset + lead),
				       ch__hot_bytes(block) - lead, key, false};
}
/* Its pages are not RX: they are data, or code that is being written in place. */
static inline bool ch__block_is_lent(const struct ch_heap *heap, const struct ch__block *block)
{
	return (block->flags & CH__FLAG_SPAN) &&
	       !ch__pool_span_runs(heap->pool, block->hot_offset >> heap->pool->page_log2);
}

static inline uintptr_t ch__block_entry(const struct ch_heap *heap, const struct ch__block *block)
{
	uint32_t skip = block->extra ? block->extra->entry_offset : 0;
	return ch__exec(heap, block->hot_offset + CH__INDEX_WORD_BYTES + skip);
}
static inline enum ch_entry ch__block_entry_kind(const struct ch__block *block)
{
	return (enum ch_entry)(block->flags & CH__FLAG_ENTRY);
}
/* The age of a newborn block is counted from a stamp, so that a block that several lists hold ages
 * once a cycle. */
static inline uint8_t ch__age_stamp(const struct ch_heap *heap)
{
	return (uint8_t)(heap->full_cycles * CH__FLAG_AGE_ONE & CH__FLAG_AGE);
}
/* Whether exec lies in the block's code: behind the index words. */
bool ch__block_has(const struct ch_heap *, const struct ch__block *, uintptr_t exec, size_t bytes);
/* Exec address of the stub slot of a branch of the block: the lead's where it has one. */
static inline uintptr_t ch__stub_exec(const struct ch_heap *heap, const struct ch__block *block,
				      uint32_t branch)
{
	uint32_t first = atomic_load_explicit(&block->first_branch, memory_order_relaxed);
	return ch__exec(heap, ch__cold_offset(heap, block) + CH__INDEX_WORD_BYTES +
				      (branch - first) * ch__stub_bytes(heap));
}

/* A block in a slot has unwind data of its own, told before it is LIVE and after its poison. */
static inline bool ch__place_is_slot(const struct ch_heap *heap, uint32_t hot_offset)
{
	return ch__frame_has_slots(heap->pool->pages[hot_offset >> heap->pool->page_log2].frame);
}

/* --- find.c: signal-safe --- */

/* The block whose code pc lies in, index word included; 0 = none. *generation is valid with it. */
uint32_t ch__find(const struct ch_heap *, uintptr_t pc, uint32_t *generation);
/* The same in the stopped world or under the heap lock: OPEN blocks are not found. */
static inline uint32_t ch__find_frozen(const struct ch_heap *heap, uintptr_t pc)
{
	uint32_t generation;
	return ch__find(heap, pc, &generation);
}

/* --- backtrace.c: signal-safe --- */

/* Where the stack of the calling thread, or of the fiber that it is in, ends; 0: sp lies on
 * neither. */
uintptr_t ch__thread_stack_high(const struct ch__thread *, uintptr_t sp);

/* --- place.c: signal-safe --- */

enum ch__place_kind {
	CH__PLACE_UNUSED, /* no block is here, and none that was is on record */
	CH__PLACE_HEADER, /* of a page */
	CH__PLACE_OPEN,
	CH__PLACE_LIVE,
	CH__PLACE_NOTENTRANT,
	CH__PLACE_FREED,
};

/* What lies at an address, copied out of records that others may be changing. */
struct ch__place {
	enum ch__place_kind kind;
	uint32_t block, generation;
	uint32_t at; /* bytes from the part's first one */
	bool is_cold, is_slot;
	enum ch__cause cause;
	enum ch__death death; /* FREED, and what follows */
	uint32_t collection;
	uint32_t by, by_generation; /* of an assumption; 0: not known */
	char name[CH__NAME_SHORT_BYTES], owner[CH__NAME_SHORT_BYTES];
};

/* Between the two, of one thread, places are read: calls nest. */
void ch__place_read_begin(void);
void ch__place_read_end(void);
/* The offset lies in the pool. */
void ch__place_find(const struct ch_heap *, uint32_t offset, struct ch__place *);
/* The block that was freed there last and is on record. */
bool ch__place_find_freed(const struct ch_heap *, uint32_t offset, struct ch__place *);

/* --- tombstone.c: under heap --- */

/* Room for n more, outside of regions. */
void ch__tombstones_reserve(struct ch_heap *, uint32_t n)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
/* The block is dying; in a region, without memory. */
void ch__tombstone_write(struct ch_heap *, uint32_t block, enum ch__death)
	CH_REQUIRES(ch__role_heap, ch__role_region);

/* --- block.c --- */

/* Give the record back; its part of the pool was given back before. Under heap. */
void ch__block_recycle(struct ch_heap *, uint32_t index) CH_REQUIRES(ch__role_heap);
/* Used bits of the block's parts are cleared; page lists are told by the caller. In a region. */
void ch__block_give_back(struct ch_heap *, struct ch__block *) CH_REQUIRES(ch__role_region);
void ch__block_pages_freed(struct ch_heap *, uint32_t hot_offset, bool is_span);
void ch__page_retire(struct ch_heap *, uint32_t page); /* the caller's open page */
void ch__block_held(struct ch__block *);               /* it has an in-edge or an entry */
uint32_t ch__record_take(struct ch_heap *, struct ch__thread *);
/* NULL: of a thread that is gone. */
void ch__record_give(struct ch_heap *, struct ch__thread *, uint32_t index);
void ch__records_flush(struct ch_heap *, struct ch__thread *);

/* --- open.c, commit.c --- */

/* ch_block_open of a heap that the owner's handle names, for any frame number: open is valid. */
enum ch_status ch__block_open(struct ch_heap *, struct ch__thread *, const struct ch_open *,
			      struct ch_code *);
/* ch_block_commit; a block in a slot is told to the unwinder before it can be reached. */
enum ch_status ch__block_commit(struct ch_heap *, struct ch__thread *, struct ch_code *,
				size_t count, bool in_slots);

/* --- branch.c --- */

uint32_t ch__branches_take(struct ch_heap *, uint32_t count); /* a run, 0: no memory */
uint32_t ch__branches_free(struct ch_heap *, uint32_t first); /* all unlinked; the run's length */
/* Take the branch off its target's list and re-point its bytes to the stub or exit, unless its
 * own code is dying. Under heap, in a region. */
void ch__branch_unlink(struct ch_heap *, uint32_t branch, bool patch)
	CH_REQUIRES(ch__role_heap, ch__role_region);

/* --- sites.c: bytes that are patched or rewritten, and what may not lie among them (I12) --- */

/* Whether `bytes` at exec, in the block, overlap nothing that is attached, and nothing that leads
 * anywhere leads between two of them; the word of a ref may overlap another's. The block is OPEN
 * and the thread's, or LIVE and heap is held. */
bool ch__sites_have_room(struct ch_heap *, struct ch__thread *, const struct ch__block *,
			 uintptr_t exec, size_t bytes, bool is_ref);
/* Whether a branch or a patch point of the block may lead to exec: not between two bytes of one
 * site, wherever it is. Of an OPEN block: takes heap where exec is another block's. */
bool ch__sites_may_lead_to(struct ch_heap *, struct ch__thread *, const struct ch__block *,
			   uintptr_t exec);
/* These bytes are attached now and lead to exit (0: nowhere that matters). */
void ch__sites_note(struct ch_heap *, struct ch__thread *, const struct ch__block *,
		    uintptr_t exec, size_t bytes, uintptr_t exit);
/* Whether an OPEN block may be committed as *code says: every site lies in what is used and is as
 * it was attached, and the entry is not inside one. */
bool ch__sites_are_sound(struct ch_heap *, const struct ch__block *, const struct ch_code *code);

/* --- extra.c --- */

/* Append an item to an OPEN block's list. */
enum ch_status ch__extra_add(struct ch_heap *, struct ch__thread *, struct ch__block *,
			     enum ch__item_kind, struct ch__item, const struct ch__item *second);
enum ch_status ch__extra_need_locked(struct ch_heap *, struct ch__thread *, struct ch__block *,
				     uint32_t more)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
enum ch_status ch__extra_need(struct ch_heap *, struct ch__thread *, struct ch__block *,
			      uint32_t more);
struct ch__extra *ch__extra_take(struct ch__block *); /* from a dead block */
void ch__extra_free(struct ch_heap *, struct ch__extra *); /* of no block that anybody sees */
/* Its interned names are let go, too, and unwinders forget its table: nothing of the block is on a
 * stack, and its bytes are traps. Under heap. */
void ch__extra_drop(struct ch_heap *, struct ch__extra *) CH_REQUIRES(ch__role_heap);

/* --- refs.c --- */
/* HOST: a minor collection visits it */
void ch__young_refs_add(struct ch_heap *, struct ch__thread *, struct ch_block);

/* --- assumption.c --- */
/* broken: its handle is stale */
void ch__assumption_end(struct ch_heap *, uint32_t index)
	CH_REQUIRES(ch__role_heap);
/* The block was invalidated by it, before it ends: its n-th dependent. In a region. */
void ch__assumption_blame(struct ch_heap *, uint32_t index, uint32_t n)
	CH_REQUIRES(ch__role_heap, ch__role_region);
void ch__assumption_leave(struct ch_heap *,
			/* a dead block leaves all lists; under heap */
			  uint32_t block)
	CH_REQUIRES(ch__role_heap);

/* --- owner.c --- */
/* Whether the handle is that of an owner that was not released; of one that is stale at the next
 * instruction, maybe. Anywhere. */
bool ch__owner_is_live(struct ch_heap *, struct ch_owner);
/* With its list locked, which keeps the record the handle's; false, and nothing is locked: it is
 * stale, or found dead. In a region. */
bool ch__owner_hold(struct ch_heap *, struct ch_owner, struct ch__owner **)
	CH_TRY_ACQUIRES(true, ch__role_owner) CH_REQUIRES(ch__role_region);
/* Marks it for the cycle under way while the world runs. Anywhere: what it marks instead of an
 * owner that goes meanwhile lives a cycle longer. */
void ch__owner_note(struct ch_heap *, struct ch_owner);
/* False: the owner died or was released. In a region. */
bool ch__owner_insert(struct ch_heap *, struct ch_owner, uint32_t block)
	CH_REQUIRES(ch__role_region);
/* It is released, and its cell leads to the fallback; *blocks: that it had, about. False: it is
 * stale, or was released before. Anywhere, without a lock. */
bool ch__owner_let_go(struct ch_heap *, struct ch_owner, uint32_t *blocks);
/* Releases that other threads of the parent had begun; in a child of fork. */
void ch__owners_end_releases(struct ch_heap *) CH_REQUIRES(ch__role_heap);
/* Records of its blocks became FREE; under heap. */
void ch__owner_drop(struct ch_heap *, uint32_t owner, uint32_t records) CH_REQUIRES(ch__role_heap);
/* Off its owner's list, whose lock is held. */
void ch__owner_remove(struct ch_heap *, uint32_t block) CH_REQUIRES(ch__role_owner);
/* its list; in a region */
void ch__owner_lock(struct ch__owner *)
	CH_ACQUIRES(ch__role_owner) CH_REQUIRES(ch__role_region);
void ch__owner_unlock(struct ch__owner *) CH_RELEASES(ch__role_owner);
void ch__owner_try_free(struct ch_heap *, uint32_t owner) CH_REQUIRES(ch__role_heap);
/* Makes an owner under heap and in a region; the Boehm driver creates its anchor between. */
enum ch_status ch__owner_make(struct ch_vm *, const char *name, const void *fallback, void *user,
			      uint32_t *index) CH_REQUIRES(ch__role_heap);
void ch__owner_reset_cell(struct ch__owner *);

/* --- mark.c --- */

void ch__marker_init(struct ch_heap *, struct ch_marker *);
void ch__mark_block(struct ch_marker *, uint32_t block) CH_REQUIRES(ch__role_frozen);
void ch__mark_owner_index(struct ch_marker *, uint32_t owner) CH_REQUIRES(ch__role_frozen);
void ch__mark_drain(struct ch_marker *) CH_REQUIRES(ch__role_frozen);
/* OPEN, newborn and immortal blocks */
void ch__mark_roots(struct ch_marker *)
	CH_REQUIRES(ch__role_frozen);
/* Every block that is alive. */
void ch__mark_all(struct ch_marker *) CH_REQUIRES(ch__role_frozen);
bool ch__mark_reserve(struct ch_heap *)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(ch__role_frozen, ch__role_stopped, ch__role_region);
/* frozen: the epoch moves */
void ch__cycle_begin(struct ch_heap *)
	CH_REQUIRES(ch__role_frozen);
/* Nothing dies of the cycle. Under heap, or in a hook of Boehm's. */
void ch__cycle_give_up(struct ch_heap *);
/* frozen: completed = epoch, newborns age */
void ch__cycle_complete(struct ch_heap *)
	CH_REQUIRES(ch__role_frozen);

/* What only the caller of the interface knows: between ch_mark_begin, which took the heap lock and
 * froze, and ch_mark_end; and that the VM's threads stand still. */
static inline void ch__host_has_cycle(const struct ch_marker *marker)
	CH_VOUCHES(ch__role_heap, ch__role_frozen) CH_UNANALYSED("the marker has them")
{
	(void)marker;
}
/* The first call that marks begins the cycle. Who only visits refs has no cycle: what is marked
 * stays as it is, and nothing dies. */
void ch__host_marks(struct ch_marker *) CH_REQUIRES(ch__role_heap, ch__role_frozen);
static inline void ch__host_has_stopped(const struct ch_marker *marker)
	CH_VOUCHES(ch__role_stopped) CH_UNANALYSED("the VM stopped them")
{
	(void)marker;
}

/* --- stacks.c --- */

void ch__scan_words(struct ch_marker *, uintptr_t low, uintptr_t high)
	CH_REQUIRES(ch__role_frozen, ch__role_stopped);
/* Threads, from their published sp, and fibers. Where one stands on no known stack, the marker is
 * blind: every block is marked, and the cycle is not to complete. */
void ch__scan_stacks(struct ch_marker *)
	CH_REQUIRES(ch__role_frozen, ch__role_stopped);
/* Of the calling thread, whose registers a signal's frame has; signal-safe. */
void ch__thread_publish_context(struct ch__thread *, const void *ucontext);
/* Of the calling thread. While a park is open no stop signal publishes it: what a park is to write
 * next, or a cycle may be reading, stays as it is. */
static inline bool ch__park_open(struct ch__thread *thread)
{
	bool is_first = thread->park_depth++ == 0;
	atomic_signal_fence(memory_order_seq_cst);
	return is_first;
}
static inline bool ch__park_close(struct ch__thread *thread)
{
	atomic_signal_fence(memory_order_seq_cst);
	return --thread->park_depth == 0;
}

/* --- cycle.c --- */
/* Refs of its code are reported. A detached vm's may lead to nothing, and its code runs no more. */
static inline bool ch__vm_is_told(const struct ch_vm *vm)
{
	return atomic_load_explicit(&vm->is_attached, memory_order_relaxed);
}

/* --- world.c --- */
/* Registry and heap, or none: who has one of them may be held there, as within a region (I10). */
bool ch__world_lock(struct ch_heap *, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_registry, ch__role_heap) CH_EXCLUDES(CH__RIGHT_OF_REGISTRY);
void ch__world_unlock(struct ch_heap *) CH_RELEASES(ch__role_registry, ch__role_heap);
/* Runs a cycle while each vm that has a way of its own to stop its threads has stopped them. The
 * time that the vms take is theirs: the limit is moved by it. */
typedef enum ch_status ch__cycle_run(struct ch_heap *, const struct ch__arch_saved *,
				     uint64_t until_ns);
enum ch_status ch__world_apart(struct ch_heap *, struct ch_vm *from, const struct ch__arch_saved *,
			       uint64_t until_ns, ch__cycle_run *run) CH_EXCLUDES(CH__ANY);
bool ch__world_stop(struct ch_heap *, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_stopped)
	CH_REQUIRES(ch__role_registry, ch__role_heap, ch__role_frozen);
void ch__world_resume(struct ch_heap *) CH_RELEASES(ch__role_stopped);
bool ch__world_install_signal(int signal);
/* The stop signal of the thread's heap, which its handler knows for the library's. Signal-safe. */
bool ch__world_signal(const struct ch__thread *);
void ch__thread_publish_saved(struct ch__thread *, const struct ch__arch_saved *);
/* Inline: the published sp is that of the function that publishes. */
static inline __attribute__((always_inline)) void ch__thread_publish_self(struct ch__thread *thread)
{
	struct ch__arch_saved saved;
	ch__arch_save_registers(&saved);
	ch__thread_publish_saved(thread, &saved);
}
/* Around a cycle, every attachment of the calling thread; saved are the registers of the function
 * that calls both. */
void ch__threads_park(const struct ch__arch_saved *saved);
void ch__threads_unpark(void);

/* --- stats.c --- */
/* After threads are gone in the middle of their counting, and none runs. Under heap. */
void ch__stats_recount(struct ch_heap *) CH_REQUIRES(ch__role_heap);
/* before code bytes go down; under heap */
void ch__stats_note_peak(struct ch_heap *)
	CH_REQUIRES(ch__role_heap);
/* The world stood still for ns, up to at_ns. */
void ch__stats_note_pause(struct ch_heap *, uint64_t at_ns, uint64_t ns);

/* --- stub.c --- */
void ch__stub_init(struct ch_heap *);

/* --- heap.c, for the Boehm driver --- */
enum ch_status ch__heap_create(const struct ch_config *, const struct ch__driver *,
			       void *driver_data, struct ch_heap **);

#endif
