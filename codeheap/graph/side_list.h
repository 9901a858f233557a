/* SPDX-License-Identifier: MIT
 * side_list.h: the side list of a block (side_list.c). */
#ifndef CH_CODEHEAP_GRAPH_SIDE_LIST_H
#define CH_CODEHEAP_GRAPH_SIDE_LIST_H

#include "codeheap/base/heap.h"

/* The side list of a block: edges, refs, patch points, assumptions. Items lie behind the head; it
 * is replaced as a whole when it grows. Its memory stays a list of that capacity for as long as the
 * heap is there: code_at.c and place.c read it without a lock, by a block that may have it no more,
 * and judge what they read by the generation of the block (I4). So what they read is stored with
 * release, each time. */
enum ch__item_kind {
	CH__ITEM_EDGE,       /* value = block index, at = its generation */
	CH__ITEM_OWNER_EDGE, /* value = owner index, at = its generation */
	CH__ITEM_REF,        /* at = pool offset of the word */
	CH__ITEM_POINT,      /* at = pool offset; value = exit's pool offset */
	CH__ITEM_POINT_USER, /* follows POINT: at | value << 32 = user */
	CH__ITEM_ASSUME,     /* at = assumption index; value = slot in its dependents */
	CH__ITEM_LINES,      /* one at most: at | value << 32 = struct ch__lines * */
	CH__ITEM_OWN,        /* its table for unwinders, likewise struct ch__own * */
	CH__ITEM_BROKEN,     /* was ASSUME; it invalidated the block: index, generation */
};
struct ch__item {
	uint32_t at, value;
};
struct ch__side_list {
	_Atomic(uint16_t) count;
	uint16_t capacity;     /* [const] */
	uint32_t name;         /* interned */
	uint32_t entry_offset; /* from the first byte behind the head */
	union {
		uint32_t *guard; /* 0 while entrant; apart, since code holds its address */
		struct ch__side_list *next_free; /* no block has it [heap] */
	};
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

static inline size_t ch__side_bytes(uint32_t capacity)
{
	return sizeof(struct ch__side_list) + ((capacity + 7u) & ~7u) +
	       capacity * sizeof(struct ch__item);
}
static inline struct ch__item *ch__side_items(const struct ch__side_list *list)
{
	return (struct ch__item *)(uintptr_t)(list->kinds + ((list->capacity + 7u) & ~7u));
}

/* The first item of a kind; NULL when it has none; list may be NULL. */
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
/* What LINES or OWN leads to; NULL without. */
static inline void *ch__side_pointer(const struct ch__side_list *list, enum ch__item_kind kind)
{
	const struct ch__item *item = ch__side_find(list, kind);
	return item ? (void *)(uintptr_t)(item->at | (uint64_t)item->value << 32) : NULL;
}

/* A block that is OPEN and the calling thread's, which has no cycle or visit open. */
struct ch__subject {
	struct ch_heap *heap;
	struct ch__thread *self;
	struct ch__block *block;
	enum ch_block_state state; /* as ch__subject_look saw it */
};
enum ch_status ch__subject_open(struct ch_block, struct ch__subject *);
/* The same, of a block in any state. */
enum ch_status ch__subject_look(struct ch_block, struct ch__subject *);
/* The same, to attach what only code has; `writes`: what the library writes among the VM's bytes,
 * or reads there while the block is OPEN. */
enum ch_status ch__subject_open_code(struct ch_block, bool writes, struct ch__subject *);
/* Resolves, tests alive and acts in one region (I5); there is room for the item. */
enum ch_status ch__edge_add(struct ch__subject *, struct ch_block to);

/* A list of no block, empty; NULL: no memory. Capacities are doublings of the first. */
enum { CH__SIDE_FIRST = 4 };
struct ch__side_list *ch__side_make(struct ch_heap *, uint32_t capacity)
	CH_REQUIRES(ch__role_heap);
/* Changes an item that is there. */
static inline void ch__side_set(struct ch__side_list *list, uint32_t at, enum ch__item_kind kind,
				struct ch__item item)
{
	struct ch__item *to = &ch__side_items(list)[at];
	__atomic_store_n(&to->at, item.at, __ATOMIC_RELEASE);
	__atomic_store_n(&to->value, item.value, __ATOMIC_RELEASE);
	__atomic_store_n(&list->kinds[at], (uint8_t)kind, __ATOMIC_RELEASE);
}
/* Appends one for which there is room; marking may read the list. */
static inline void ch__side_append(struct ch__side_list *list, enum ch__item_kind kind,
				   struct ch__item item)
{
	uint16_t count = atomic_load_explicit(&list->count, memory_order_relaxed);
	ch__side_set(list, count, kind, item);
	atomic_store_explicit(&list->count, (uint16_t)(count + 1), memory_order_release);
}
static inline void ch__side_set_name(struct ch__side_list *list, uint32_t name)
{
	__atomic_store_n(&list->name, name, __ATOMIC_RELEASE);
}
/* Append an item to an OPEN block's list. */
enum ch_status ch__side_add(const struct ch__subject *, enum ch__item_kind, struct ch__item,
			    const struct ch__item *second);
enum ch_status ch__side_need_locked(const struct ch__subject *, uint32_t more)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
enum ch_status ch__side_need(const struct ch__subject *, uint32_t more);
/* With its interned names and its table for unwinders: nothing of the block is on a stack, and its
 * bytes are traps, or nobody ever saw it. */
void ch__side_drop(struct ch_heap *, struct ch__side_list *) CH_REQUIRES(ch__role_heap);

#endif
