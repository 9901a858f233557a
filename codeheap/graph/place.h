/* SPDX-License-Identifier: MIT
 * place.h: what lies at an address of the pool, or lay there (place.c). Signal-safe. */
#ifndef CH_CODEHEAP_GRAPH_PLACE_H
#define CH_CODEHEAP_GRAPH_PLACE_H

#include "codeheap/graph/names.h"
#include "codeheap/graph/tombstone.h"

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
	bool is_cold, is_slot;
	enum ch__cause cause;
	enum ch__death death; /* FREED, and what follows */
	uint32_t collection;
	uint32_t by, by_generation; /* of an assumption; 0: not known */
	char name[CH__NAME_SHORT_BYTES], owner[CH__NAME_SHORT_BYTES];
};

/* The offset lies in the pool. */
void ch__place_find(const struct ch_heap *, uint32_t offset, struct ch__place *);
/* The block that was freed there last and is on record. */
bool ch__place_find_freed(const struct ch_heap *, uint32_t offset, struct ch__place *);

#endif
