/* SPDX-License-Identifier: MIT
 * moves.h: the legal moves of everything that has states, as tables, and the assertion that no
 * other move is made. pages/moves.c has the tables of pages and chunks, codeheap/base/moves.c those
 * of blocks, owners, branches, gates, assumptions and threads: each row says who makes the move and
 * what must be held.
 *
 * Checked builds only (CH_CHECK of at least 2: every object that tests link, and make DEBUG=1):
 * elsewhere CH_MOVE is nothing, and there are no tables. An illegal move is a broken invariant: it
 * ends the process with a line that names what moved, from where and to where.
 *
 * The region and the locks are the caller's own; of the two kinds of busy only that somebody has
 * them can be seen. */
#ifndef CH_OS_MOVES_H
#define CH_OS_MOVES_H

#include "arch/base.h"

#include <stdatomic.h>

enum ch__held { /* what a row asks for, and what a caller says is held */
		CH__IN_REGION = 1,
		CH__UNDER_HEAP = 2,
		CH__UNDER_REGISTRY = 4,
		CH__UNDER_PAGES = 8,
		CH__UNDER_BUSY = 16,  /* the page's */
		CH__UNDER_OWNER = 32, /* the busy of the owner's list */
};

enum { CH__MOVE_ROWS = 24, CH__MOVE_STATES = 6 };

struct ch__move {
	const char *by; /* the function that makes it; NULL ends the rows */
	uint8_t from, to;
	uint8_t held; /* enum ch__held */
};

struct ch__moves {
	const char *noun;
	const char *states[CH__MOVE_STATES]; /* their names; NULL behind the last */
	_Atomic(uint32_t) made; /* bit n: row n was seen; tests read it. relaxed */
	struct ch__move rows[CH__MOVE_ROWS];
};

#if CH_CHECK >= 2

/* Panics unless a row of the table allows it; to stay is a move like any other. index and
 * generation name what moves; generation 0 is left out of the text. Signal-safe. */
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

#endif
