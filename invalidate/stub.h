/* SPDX-License-Identifier: MIT
 * stub.h: what a thread that takes an unlinked branch runs (stub.c). */
#ifndef CH_CODEHEAP_STUB_H
#define CH_CODEHEAP_STUB_H

#include "codeheap/base/heap.h"

void ch__stub_init(struct ch_heap *);

#endif
