/* SPDX-License-Identifier: MIT
 * backtrace.h: stacks of the calling thread (backtrace.c). Signal-safe. */
#ifndef CH_CODEHEAP_LOOK_BACKTRACE_H
#define CH_CODEHEAP_LOOK_BACKTRACE_H

#include "codeheap/base/heap.h"

/* Where the stack of the calling thread, or of the fiber that it is in, ends; 0: sp lies on
 * neither. */
uintptr_t ch__thread_stack_high(const struct ch__thread *, uintptr_t sp);

#endif
