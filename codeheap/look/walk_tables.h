/* SPDX-License-Identifier: MIT
 * walk_tables.h: the walk of a stack by the tables of the process's unwinder. */
#ifndef CH_CODEHEAP_LOOK_WALK_TABLES_H
#define CH_CODEHEAP_LOOK_WALK_TABLES_H

#include "sinks/sinks.h"

/* Writes return addresses of the calling thread by the unwinder's tables, innermost first (not
 * signal-safe). If the tables end in code of the heap, frame pointers go on in [low, high). The
 * first frame is the ucontext's, else the frame that goes on at `first`. Returns how many addresses
 * there are; 0 when the unwinder does not reach the first frame. */
size_t ch__walk_tables(const struct ch__sinks *, void *ucontext, uintptr_t first, uintptr_t low,
		       uintptr_t high, uintptr_t *out, size_t max);

#endif
