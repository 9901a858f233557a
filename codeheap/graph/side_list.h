/* SPDX-License-Identifier: MIT
 * side_list.h: the side list of a block (side_list.c). */
#pragma once

#include "codeheap/base/heap.h"

/* The side list of a block: edges, refs, patch points, assumptions. The items lie behind the head.
 * A list that grows is replaced as a whole. The memory of a list stays one of that capacity while
 * the heap lives: readers without a lock judge the values by the block's generation (I4), and all
 * that they read is stored with release. */
enum ch__item_kind {
	CH__ITEM_EDGE,       /* value = block index, at = its generation */
	CH__ITEM_OWNER_EDGE, /* value = owner index, at = its generation */
	CH__ITEM_REF,        /* at = pool offset of the word */
	CH__ITEM_POINT,      /* at = pool offset; value = exit's pool offset */
	CH__ITEM_POINT_USER, /* follows POINT: at | value << 32 = user */
	CH__ITEM_ASSUME,     /* at = assumption index, 0: broken; value = slot in the dependents */
	CH__ITEM_LINES,      /* one at most: at | value << 32 = struct ch__lines * */
	CH__ITEM_OWN,        /* the table for unwinders: likewise struct ch__own * */
};
struct ch__item {
	uint32_t at, value;
};
struct ch__side_list {
	_Atomic(uint16_t) count;
	uint16_t capacity;     /* [const] */
	uint32_t name;         /* names.h */
	uint32_t entry_offset; /* from CH__HEAD_BYTES of the hot part */
	union {
		uint32_t *guard; /* 0 while entrant; apart, since code holds the address */
		struct ch__side_list *next_free; /* while no block has the list [heap] */
	};
	uint8_t kinds[];       /* capacity kinds, padded to 8; then the items */
};

/* Source lines of a block, rising by offset; constant once attached. */
struct ch__lines {
	uint32_t count;
	uint32_t file; /* names.h */
	struct ch__sink_line at[];
};

static inline size_t ch__side_bytes(uint32_t capacity)
{
	return sizeof(struct ch__side_list) + ((capacity + 7u) & ~7u) +
	       capacity * sizeof(struct ch__item);
}
static inline struct ch__item *ch__side_items(const struct ch__side_list *list)
{
	return (struct ch__item *)(uintptr_t)(list->kinds + ((list->capacity + 7u) & ~7u));
}

/* The first item of a kind; NULL: none. The list may be NULL. */
static inline struct ch__item *ch__side_find(const struct ch__side_list *list,
					     enum ch__item_kind kind)
{
	size_t count = list ? list->count : 0;
	const uint8_t *found = count ? memchr(list->kinds, kind, count) : NULL;
	return found ? &ch__side_items(list)[found - list->kinds] : NULL;
}
static inline struct ch__item ch__item_of(const void *pointer)
{
	uint64_t bits = (uintptr_t)pointer;
	return (struct ch__item){(uint32_t)bits, (uint32_t)(bits >> 32)};
}
/* The pointer in a LINES or OWN item; NULL: no item. */
static inline void *ch__side_pointer(const struct ch__side_list *list, enum ch__item_kind kind)
{
	const struct ch__item *item = ch__side_find(list, kind);
	return item ? (void *)(uintptr_t)(item->at | (uint64_t)item->value << 32) : NULL;
}

/* The block of a public call, by an attached thread that has no cycle or visit open. The block may
 * be another thread's: the VM vouches. */
struct ch__subject {
	struct ch_heap *heap;
	struct ch__thread *self;
	struct ch__block *block;
	enum ch_block_state state; /* as ch__subject_look saw it */
};
/* For a block in any state but FREE. */
enum ch_status ch__subject_look(struct ch_block, struct ch__subject *);
/* For an OPEN block that ch_block_open gave: a block that is gone is said to be no OPEN block. */
enum ch_status ch__subject_open_given(const struct ch_code *, struct ch__subject *);
/* For an OPEN block of code. `writes`: the library is to write among the VM's bytes, or to read
 * there while the block is OPEN, so code that is written in place is refused, too. */
enum ch_status ch__subject_open_code(struct ch_block, bool writes, struct ch__subject *);
/* Appends an edge: resolves, tests alive and acts in one region (I5). The list has room. */
enum ch_status ch__edge_add(struct ch__subject *, struct ch_block to);

/* An empty list that no block has; NULL: no memory. Capacities are 0 and doublings of the first. */
enum { CH__SIDE_FIRST = 4 };
struct ch__side_list *ch__side_make(struct ch_heap *, uint32_t capacity) CH_HAS_HEAP;
/* Stores an item in the place `at`, whose kind stays. */
static inline void ch__side_move(struct ch__side_list *list, uint32_t at, struct ch__item item)
{
	struct ch__item *to = &ch__side_items(list)[at];
	__atomic_store_n(&to->at, item.at, __ATOMIC_RELEASE);
	__atomic_store_n(&to->value, item.value, __ATOMIC_RELEASE);
}
/* Appends an item; the list has room. Marking may read the list meanwhile. */
static inline void ch__side_append(struct ch__side_list *list, enum ch__item_kind kind,
				   struct ch__item item)
{
	uint16_t count = CH_LOAD_RELAXED(&list->count);
	CH_ASSERT(CH_CHECK < 2 || count < list->capacity, "an item behind the end of a side list");
	ch__side_move(list, count, item);
	__atomic_store_n(&list->kinds[count], (uint8_t)kind, __ATOMIC_RELEASE);
	atomic_store_explicit(&list->count, (uint16_t)(count + 1), memory_order_release);
}
static inline void ch__side_set_name(struct ch__side_list *list, uint32_t name)
{
	__atomic_store_n(&list->name, name, __ATOMIC_RELEASE);
}
/* Appends an item to an OPEN block's list, which has room; then `second`, if not NULL, as
 * POINT_USER. ch_block_sites reads the second as soon as the first is there. */
void ch__side_add(const struct ch__subject *, enum ch__item_kind, struct ch__item,
		  const struct ch__item *second);
enum ch_status ch__side_need_locked(const struct ch__subject *, uint32_t more)
	CH_HAS_HEAP CH_MAY_WAIT;
enum ch_status ch__side_need(const struct ch__subject *, uint32_t more);
/* Frees the list, with names and table for unwinders. Nothing of the block is on a stack and the
 * bytes are traps, or no other thread ever saw the block. */
void ch__side_drop(struct ch_heap *, struct ch__side_list *) CH_HAS_HEAP;
