/* SPDX-License-Identifier: MIT
 * moves.h: the tables of legal moves of codeheap/ (moves.c), and the states of records that have no
 * word of their own for them. */
#ifndef CH_CODEHEAP_BASE_MOVES_H
#define CH_CODEHEAP_BASE_MOVES_H

#include "os/moves.h"

enum ch__owner_state { CH__OWNER_NONE, CH__OWNER_LIVE, CH__OWNER_RELEASING, CH__OWNER_RELEASED };
enum ch__branch_state { CH__BRANCH_NONE, CH__BRANCH_UNLINKED, CH__BRANCH_LINKED };
enum ch__gate_state { CH__GATE_OPEN, CH__GATE_SHUT };
enum ch__assumption_state { CH__ASSUMPTION_NONE, CH__ASSUMPTION_HOLDS };

extern struct ch__moves ch__block_moves, ch__owner_moves, ch__branch_moves, ch__gate_moves,
	ch__assumption_moves, ch__thread_moves; /* in checked builds */

#endif
