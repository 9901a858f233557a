/* SPDX-License-Identifier: MIT
 * walk_tables.h: the walk of a stack by the tables of the process's unwinder. */
#ifndef CH_CODEHEAP_LOOK_WALK_TABLES_H
#define CH_CODEHEAP_LOOK_WALK_TABLES_H

#include "sinks/sinks.h"

/* Return addresses of the calling thread by the tables of the process's unwinder, innermost first
 * (not signal-safe); where they end in code of the heap, frame pointers go on in [low, high). First
 * comes the frame of the ucontext, or without one the frame that goes on at `first`. Returns 0 when
 * the unwinder does not get there. */
size_t ch__walk_tables(const struct ch__sinks *, void *ucontext, uintptr_t first, uintptr_t low,
		       uintptr_t high, uintptr_t *out, size_t max);

#endif
