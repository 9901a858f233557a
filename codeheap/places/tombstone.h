/* SPDX-License-Identifier: MIT
 * tombstone.h: records of freed blocks, for traps (tombstone.c), and the block at an address of the
 * pool, alive or freed (place.c). */
#pragma once

#include "codeheap/graph/block.h"
#include "codeheap/graph/names.h"

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

/* Read without a lock: number, the other fields, number again. Stored under heap, each field with
 * release: a reader that loads a field of the next record finds the number changed. */
struct ch__tombstone {
	_Atomic(uint32_t) number; /* ch__tombstone_number; 0 while it is written */
	_Atomic(uint32_t) hot_offset, hot_granules;
	_Atomic(uint32_t) cold;      /* enum ch__tomb_cold */
	_Atomic(uint32_t) block_how; /* index | enum ch__death << 24 | enum ch__cause << 28 */
	_Atomic(uint32_t) generation;
	_Atomic(uint32_t) owner_name, name;  /* short names, referenced; 0: none of its own */
	_Atomic(uint32_t) collection;
	_Atomic(uint32_t) by, by_generation; /* the assumption that broke; 0: none */
};
_Static_assert(sizeof(struct ch__tombstone) == 44, "65,536 tombstones take 2.75 MiB");

/* Number of the n-th death, n from 1. Never 0, and different for deaths that share a slot. */
static inline uint32_t ch__tombstone_number(uint64_t n)
{
	return (uint32_t)(n % UINT32_MAX) + 1;
}

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
void ch__tombstones_reserve(struct ch_heap *, uint32_t n)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
/* Writes the tombstone of a dying block; in a region, allocates nothing. */
void ch__tombstone_write(struct ch_heap *, const struct ch__owner *, const struct ch__block *,
			 uint32_t index, enum ch__death)
	CH_REQUIRES(ch__role_heap, ch__role_region);

/* The block at an address, copied from records that other threads may change meanwhile. */
struct ch__place {
	/* DEAD: freed. FREE: no block is here, and no freed one is on record. */
	enum ch_block_state state;
	uint32_t block, generation;
	uint32_t at; /* bytes from the end of the part's head */
	uint32_t into_head; /* 1 to the head's bytes in the head; 0 outside of the head */
	bool is_cold, is_slot, is_data; /* is_data: never set for DEAD */
	enum ch__cause cause;
	enum ch__death death; /* death to by_generation: DEAD only */
	uint32_t collection;
	uint32_t by, by_generation; /* the assumption that broke; 0: not known */
	char name[CH__NAME_SHORT_BYTES], owner[CH__NAME_SHORT_BYTES];
};

/* Both are signal-safe; the offset lies in the pool. */
void ch__place_find(const struct ch_heap *, uint32_t offset, struct ch__place *);
/* Finds the block that was freed there last. Returns false when none is on record. */
bool ch__place_find_freed(const struct ch_heap *, uint32_t offset, struct ch__place *);
