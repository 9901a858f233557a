/* SPDX-License-Identifier: MIT
 * places.h: the block at an address, alive (find.c) or freed (place.c); the records of freed
 * blocks, for traps (tombstone.c); names and ranges of blocks for sinks (tell.c). */
#pragma once

#include "codeheap/graph/block_parts.h"

/* As ch__heap_at, for a caller whose code keeps the heap. */
static inline struct ch_heap *ch__find_heap(uintptr_t at)
{
	ch__place_read_begin();
	struct ch_heap *found = ch__heap_at(at);
	ch__place_read_end();
	return found;
}

/* --- the one look-up of an address, for callers that read more of the block (code_at.c) and for
 * ch__find. Signal-safe.
 *
 * Reads as I4 says, by loads that acquire. No retry: a block on the caller's own stack cannot
 * change. Code is read through the RW view, which is never without access --- */

/* The block at an address, and the part of the block that holds the address. */
struct ch__found {
	const struct ch__block *block;
	uint32_t index, generation;
	uint32_t at;   /* of the address, from the part's first byte */
	uint32_t head; /* bytes of the part's head */
	bool is_cold;
	enum ch_block_state state; /* LIVE or NOTENTRANT */
};

/* Reads the block at pc after a first look at the generation. What was read, here and by the caller
 * since, counts if ch__found_is_there then. Returns false: no block, or OPEN. */
static inline __attribute__((always_inline)) bool
ch__find_part(const struct ch_heap *heap, uintptr_t pc, struct ch__found *found)
{
	const struct ch__pool *pool = heap->pool;
	if (!ch__pool_has(pool, pc))
		return false;
	uint32_t offset = ch__offset(heap, pc);
	uint32_t start = ch__page_find_start(pool, offset);
	if (start == UINT32_MAX)
		return false;
	found->index = ch__head_index(heap, start);
	/* A start bit that was cleared meanwhile may leave any bytes here. */
	if (!ch__table_has(&heap->blocks, found->index))
		return false;
	const struct ch__block *block = found->block = ch__block_at(heap, found->index);
	found->generation = atomic_load_explicit(&block->generation, memory_order_acquire);
	if (!(found->generation & 1))
		return false;
	/* The record may be OPEN again by now, and the place of an open block still moves. */
	found->state = ch__block_state(block);
	if (found->state == CH_BLOCK_OPEN)
		return false;
	/* Few blocks lie apart: one test of the flag where a block does not. */
	bool is_apart = CH_UNLIKELY(block->flags & CH__FLAG_APART);
	uint32_t hot_bytes = is_apart ? ch__hot_bytes(block)
				      : block->hot_granules * (uint32_t)CH__GRANULE_BYTES;
	found->at = offset - atomic_load_explicit(&block->hot_offset, memory_order_acquire);
	found->head = is_apart ? ch__head_bytes(ch__block_use(heap, block)) : CH__HEAD_BYTES;
	found->is_cold = false;
	if (CH_LIKELY(found->at < hot_bytes))
		return true;
	found->at = offset - ch__cold_offset(heap, block);
	found->head = CH__HEAD_BYTES;
	found->is_cold = true;
	return found->at < ch__cold_bytes(block);
}

/* The second look at the generation. The loads before acquire, so that this one comes last. */
static inline bool ch__found_is_there(const struct ch__found *found)
{
	return CH_LOAD_RELAXED(&found->block->generation) == found->generation;
}

/* Both steps, for a caller that reads no more of the block, or has it held. Signal-safe. */
bool ch__find_whole(const struct ch_heap *, uintptr_t pc, struct ch__found *);
/* Index of the block whose code holds pc, head included; 0 = none, or OPEN. Sets *generation to the
 * block's; pass NULL where the block is held. Signal-safe. */
uint32_t ch__find(const struct ch_heap *, uintptr_t pc, uint32_t *generation);

/* --- freed blocks, and the block at an address of the pool, alive or freed --- */

/* Why the bytes of a block were given back. */
enum ch__death {
	CH__DEATH_UNREACHED,
	CH__DEATH_OWNER_RELEASED,
	CH__DEATH_OWNER_UNREACHED, /* by the VM's collector */
	CH__DEATH_VM_GONE,
	CH__DEATH_NOT_RUNNING,
	CH__DEATH_ABORTED,
	CH__DEATH_COMMIT_FAILED,
	CH__DEATH_FORKED, /* in a child without the thread that had it open */
	CH__DEATH_NO_COPY, /* in a child without a copy of the code */
	/* By ch_code_free: freed by a cycle, and freed at once. */
	CH__DEATH_FREED,
	CH__DEATH_FREED_NOT_RUNNING,
};

/* Read without a lock: who died, the other fields, who died again. Stored under heap, each field
 * with release: a reader that loads a field of the next record finds another one dead. */
struct ch__tombstone {
	/* generation | index << 32 | enum ch__death << 56 | enum ch__cause << 60, different for all
	 * deaths; 0 while it is written */
	_Atomic(uint64_t) dead;
	_Atomic(uint32_t) hot_offset, hot_granules;
	_Atomic(uint32_t) cold; /* enum ch__tomb_cold */
	_Atomic(uint32_t) owner_name, name;  /* short names, referenced; 0: none of its own */
	_Atomic(uint32_t) collection;
};
_Static_assert(sizeof(struct ch__tombstone) == 32, "65,536 tombstones take 2 MiB");

/* Word `cold`: in a span the cold part follows the hot part, elsewhere it begins at a granule. */
enum ch__tomb_cold {
	CH__TOMB_COLD_GRANULES = 0xffff,
	CH__TOMB_COLD_SHIFT = 16, /* granule in the page, 13 bits */
	CH__TOMB_COLD_GRANULE = 0x1fff,
	CH__TOMB_IN_PLACE = 1 << 16, /* of a span: written in place, or data */
	CH__TOMB_SLOT = 1 << 29, /* of a trampoline */
	CH__TOMB_SPAN = 1 << 30,
};

/* Reserves memory for n more tombstones; outside of regions. */
void ch__tombstones_reserve(struct ch_heap *, uint32_t n) CH_HAS_HEAP CH_MAY_WAIT;
/* Writes the tombstone of a dying block; in a region, allocates nothing. */
void ch__tombstone_write(struct ch_heap *, const struct ch__owner *, const struct ch__block *,
			 uint32_t index, enum ch__death) CH_HAS_HEAP_AND_REGION;

/* The block at an address, copied from records that other threads may change meanwhile. */
struct ch__place {
	/* DEAD: freed. FREE: no block is here, and no freed one is on record. */
	enum ch_block_state state;
	uint32_t block, generation;
	uint32_t at; /* bytes from the end of the part's head */
	uint32_t into_head; /* 1 to the head's bytes in the head; 0 outside of the head */
	bool is_cold, is_slot, is_data; /* is_data: never set for DEAD */
	enum ch__cause cause;
	enum ch__death death; /* DEAD only, as the next */
	uint32_t collection;
	char name[CH__NAME_SHORT_BYTES], owner[CH__NAME_SHORT_BYTES];
};

/* Both are signal-safe; the offset lies in the pool. */
void ch__place_find(const struct ch_heap *, uint32_t offset, struct ch__place *);
/* Finds the block that was freed there last. Returns false when none is on record. */
bool ch__place_find_freed(const struct ch_heap *, uint32_t offset, struct ch__place *);

/* --- sinks --- */

/* The ranges of a block of code that sinks are told: of each part the VM's bytes without the head,
 * so that every tool shows the first byte of code as +0x0. Returns how many. */
static inline size_t ch__block_ranges(const struct ch_heap *heap, const struct ch__block *block,
				      uint64_t key, struct ch__sink_range *out)
{
	uint32_t head = ch__head_bytes(ch__block_use(heap, block));
	size_t n = 0;
	if (ch__hot_bytes(block) > head)
		out[n++] = (struct ch__sink_range){ch__exec(heap, block->hot_offset + head),
						   ch__hot_bytes(block) - head, key, false};
	if (ch__cold_bytes(block) > CH__HEAD_BYTES)
		out[n++] = (struct ch__sink_range){
			ch__exec(heap, ch__cold_offset(heap, block) + CH__HEAD_BYTES),
			ch__cold_bytes(block) - CH__HEAD_BYTES, key, true};
	return n;
}
/* Writes the name of a block for sinks: the owner's name, then the block's own. Returns the length.
 * Takes no lock: sinks ask under a lock of their own, while the block is or becomes published, and
 * observers under heap, until the side list is dropped. */
size_t ch__tell_name(void *heap, uint64_t handle, char *out, size_t out_bytes);
/* Call after telling ranges. The sinks write the lines that wait, if the time for it has come. */
void ch__tell_catch_up(struct ch_heap *) CH_HOLDS_NONE;
void ch__tell_poll(struct ch_heap *) CH_HOLDS_NONE; /* while sinks_wait is not 0 */
enum ch_status ch__tell_create(struct ch_heap *, unsigned wanted);
