/* SPDX-License-Identifier: MIT
 * moves.h: the tables of legal moves of pages/ (moves.c). */
#ifndef CH_PAGES_MOVES_H
#define CH_PAGES_MOVES_H

#include "os/moves.h"

#if CH_CHECK >= 2
extern struct ch__moves ch__page_moves, ch__chunk_moves;
#endif

#endif
