/* SPDX-License-Identifier: MIT
 * stacks.h: words on stacks that lead into code (stacks.c). */
#ifndef CH_CODEHEAP_COLLECT_STACKS_H
#define CH_CODEHEAP_COLLECT_STACKS_H

#include "codeheap/base/heap.h"

void ch__scan_words(struct ch_marker *, uintptr_t low, uintptr_t high)
	CH_REQUIRES(ch__role_frozen, ch__role_stopped);
/* Threads, from their published sp, fibers, and what the vms' callbacks report; then what they hold
 * is traced. Where a thread stands on no known stack, the marker is blind: every block is marked,
 * and the cycle is not to complete. */
void ch__scan_stacks(struct ch_marker *)
	CH_REQUIRES(ch__role_frozen, ch__role_stopped);

#endif
