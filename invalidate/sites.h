/* SPDX-License-Identifier: MIT
 * sites.h: bytes that are patched or rewritten, and what may not lie among them (sites.c, I12). */
#ifndef CH_INVALIDATE_SITES_H
#define CH_INVALIDATE_SITES_H

#include "codeheap/graph/block_parts.h"

/* Whether bytes in the block may be attached that lead to exit: they overlap nothing that is
 * attached, nothing that leads anywhere leads between two of them, and they lead to no byte but the
 * first of a site, wherever it is. A ref leads nowhere, and its word may overlap another's. The
 * block is OPEN and the thread's, or LIVE and heap is held. */
bool ch__sites_allow(const struct ch__subject *, uintptr_t exec, size_t bytes, uintptr_t exit,
		     bool is_ref);
/* These bytes are attached now and lead to exit (0: nowhere that matters). */
void ch__sites_note(const struct ch__subject *, uintptr_t exec, size_t bytes, uintptr_t exit);
/* Whether an OPEN block may be committed as *code says: every site lies in what is used and is as
 * it was attached, and the entry is not inside one. */
bool ch__sites_are_sound(const struct ch_heap *, const struct ch__block *,
			 const struct ch_code *code);

#endif
