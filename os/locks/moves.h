/* SPDX-License-Identifier: MIT
 * moves.h: tables of the legal moves of everything with states, and the assertion of checked builds
 * that no other move is made (I20). A row has the function that makes the move, and the locks to be
 * held: a region and a lock count only when the caller has them, a busy, of a page or of an owner's
 * list, when any thread has it. */
#pragma once

#include "arch/base.h"

#include <stdatomic.h>

enum ch__held { /* what a row asks for, and a caller passes */
		CH__IN_REGION = 1,
		CH__UNDER_HEAP = 2,
		CH__UNDER_REGISTRY = 4,
		CH__UNDER_PAGES = 8,
		CH__UNDER_BUSY = 16,  /* of the page */
		CH__UNDER_OWNER = 32, /* of the owner's list */
};

enum { CH__MOVE_ROWS = 24, CH__MOVE_STATES = 6 };

struct ch__move {
	const char *by; /* the function that makes the move; NULL ends the rows */
	uint8_t from, to;
	uint8_t held; /* enum ch__held */
};

struct ch__moves {
	const char *noun;
	const char *states[CH__MOVE_STATES]; /* names; NULL ends them */
	_Atomic(uint32_t) made; /* bit n: row n was seen; for tests. relaxed */
	struct ch__move rows[CH__MOVE_ROWS];
};

#if CH_CHECK >= 2

/* Panics unless a row of the table allows the move; a move may lead to the same state. index and
 * generation name the moved thing in the text, which leaves out a generation of 0. Signal-safe. */
void ch__move(struct ch__moves *, uint32_t index, uint32_t generation, uint32_t from, uint32_t to,
	      uint32_t held, const char *by);

#define CH_MOVE(table, index, generation, from, to, held, by)                       \
	ch__move(&(table), (index), (generation), (uint32_t)(from), (uint32_t)(to), \
		 (uint32_t)(held), (by))
#else
#define CH_MOVE(table, index, generation, from, to, held, by)                                 \
	((void)sizeof(index), (void)sizeof(generation), (void)sizeof(from), (void)sizeof(to), \
	 (void)sizeof(held), (void)sizeof(by))
#endif
