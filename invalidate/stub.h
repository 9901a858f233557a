/* SPDX-License-Identifier: MIT
 * stub.h: what a thread that takes an unlinked branch runs (stub.c). */
#ifndef CH_INVALIDATE_STUB_H
#define CH_INVALIDATE_STUB_H

#include "codeheap/base/heap.h"

void ch__stub_init(struct ch_heap *);

#endif
