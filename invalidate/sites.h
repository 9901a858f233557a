/* SPDX-License-Identifier: MIT
 * sites.h: bytes that are patched or rewritten, and what may not lie among them (sites.c, I12). */
#ifndef CH_INVALIDATE_SITES_H
#define CH_INVALIDATE_SITES_H

#include "codeheap/base/heap.h"

/* Whether `bytes` at exec, in the block, overlap nothing that is attached, and nothing that leads
 * anywhere leads between two of them; the word of a ref may overlap another's. The block is OPEN
 * and the thread's, or LIVE and heap is held. */
bool ch__sites_have_room(struct ch_heap *, struct ch__thread *, const struct ch__block *,
			 uintptr_t exec, size_t bytes, bool is_ref);
/* Whether a branch or a patch point of the block may lead to exec: not between two bytes of one
 * site, wherever it is. Of an OPEN block: takes heap where exec is another block's. */
bool ch__sites_may_lead_to(struct ch_heap *, struct ch__thread *, const struct ch__block *,
			   uintptr_t exec);
/* These bytes are attached now and lead to exit (0: nowhere that matters). */
void ch__sites_note(struct ch_heap *, struct ch__thread *, const struct ch__block *,
		    uintptr_t exec, size_t bytes, uintptr_t exit);
/* Whether an OPEN block may be committed as *code says: every site lies in what is used and is as
 * it was attached, and the entry is not inside one. */
bool ch__sites_are_sound(struct ch_heap *, const struct ch__block *, const struct ch_code *code);

#endif
