/* SPDX-License-Identifier: MIT
 * tombstone.h: freed blocks, for traps (tombstone.c), and what lies at an address of the pool, or
 * lay there (place.c). */
#ifndef CH_CODEHEAP_GRAPH_TOMBSTONE_H
#define CH_CODEHEAP_GRAPH_TOMBSTONE_H

#include "codeheap/graph/names.h"

/* What took a block out of use first; a block has it above the bits of its state. */
enum ch__cause {
	CH__CAUSE_NONE,
	CH__CAUSE_REPLACED, /* still LIVE: the entry of its owner is another one */
	CH__CAUSE_INVALIDATED,
	CH__CAUSE_ASSUMPTION,
	CH__CAUSE_DISCARDED,
	CH__CAUSE_DETACHED,
};

/* Why its bytes were given back. */
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
	/* By ch_code_free: of a cycle, and at once. */
	CH__DEATH_FREED,
	CH__DEATH_FREED_NOT_RUNNING,
};

/* Read without a lock: number, the rest, number again. Stored under heap, each with release, so
 * that who reads a field of the next record finds the number changed. */
struct ch__tombstone {
	_Atomic(uint32_t) number; /* ch__tombstone_number; 0 while it is written */
	_Atomic(uint32_t) hot_offset, hot_granules;
	_Atomic(uint32_t) cold;      /* enum ch__tomb_cold */
	_Atomic(uint32_t) block_how; /* index | enum ch__death << 24 | enum ch__cause << 28 */
	_Atomic(uint32_t) generation;
	_Atomic(uint32_t) owner_name; /* a short one, held */
	_Atomic(uint32_t) collection;
};
_Static_assert(sizeof(struct ch__tombstone) == 32, "65,536 tombstones take 2 MiB");

/* Of the n-th death, from 1: never 0, and another one for each death that has the same place. */
static inline uint32_t ch__tombstone_number(uint64_t n)
{
	return (uint32_t)(n % UINT32_MAX) + 1;
}

/* A span's cold part follows its hot one, any other's begins at a granule of the page. */
enum ch__tomb_cold {
	CH__TOMB_COLD_GRANULES = 0xffff,
	CH__TOMB_COLD_SHIFT = 16, /* granule in the page, 13 bits */
	CH__TOMB_COLD_GRANULE = 0x1fff,
	CH__TOMB_IN_PLACE = 1 << 16, /* of a span: written in place, or data */
	CH__TOMB_SLOT = 1 << 29, /* of a trampoline */
	CH__TOMB_SPAN = 1 << 30,
};

/* What few blocks have; of the tombstone in the same place, apart for the sake of the others. */
struct ch__epitaph {
	_Atomic(uint32_t) name;              /* its own, a short one, held; 0: none */
	_Atomic(uint32_t) by, by_generation; /* of the assumption that broke; 0: not known */
};

/* Room for n more, outside of regions. */
void ch__tombstones_reserve(struct ch_heap *, uint32_t n)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
/* The block is dying; in a region, without memory. */
void ch__tombstone_write(struct ch_heap *, const struct ch__block *, uint32_t index, enum ch__death)
	CH_REQUIRES(ch__role_heap, ch__role_region);

enum ch__place_kind {
	CH__PLACE_UNUSED, /* no block is here, and none that was is on record */
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
	bool is_cold, is_slot, is_data; /* is_data: not of FREED */
	enum ch__cause cause;
	enum ch__death death; /* FREED, and what follows */
	uint32_t collection;
	uint32_t by, by_generation; /* of an assumption; 0: not known */
	char name[CH__NAME_SHORT_BYTES], owner[CH__NAME_SHORT_BYTES];
};

/* Both are signal-safe; the offset lies in the pool. */
void ch__place_find(const struct ch_heap *, uint32_t offset, struct ch__place *);
/* The block that was freed there last and is on record. */
bool ch__place_find_freed(const struct ch_heap *, uint32_t offset, struct ch__place *);

#endif
