/* SPDX-License-Identifier: MIT
 * open.h: opening and committing blocks for trampolines, too (open.c, commit.c). */
#ifndef CH_CODEHEAP_LIFE_OPEN_H
#define CH_CODEHEAP_LIFE_OPEN_H

#include "codeheap/base/heap.h"

/* ch_block_open of a heap that the owner's handle names, for any frame number: open is valid. */
enum ch_status ch__block_open(struct ch_heap *, struct ch__thread *, const struct ch_open *,
			      struct ch_code *);
/* ch_block_commit; a block in a slot is told to the unwinder before it can be reached. */
enum ch_status ch__block_commit(struct ch_heap *, struct ch__thread *, struct ch_code *,
				size_t count, bool in_slots);

#endif
