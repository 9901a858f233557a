/* SPDX-License-Identifier: MIT
 * tell.h: what sinks are told (tell.c). */
#ifndef CH_CODEHEAP_GRAPH_TELL_H
#define CH_CODEHEAP_GRAPH_TELL_H

#include "codeheap/base/heap.h"

/* What sinks are told that a block of the heap is called; its record has its names. Takes no lock:
 * sinks ask under their own, of blocks that are published or are being published. */
size_t ch__tell_name(void *heap, uint64_t handle, char *out, size_t out_bytes);
/* After ranges were told: has the sinks write what waits, if its time has come. */
void ch__tell_catch_up(struct ch_heap *) CH_EXCLUDES(CH__ANY);
void ch__tell_poll(struct ch_heap *) CH_EXCLUDES(CH__ANY); /* while sinks_wait is not 0 */
enum ch_status ch__tell_create(struct ch_heap *, unsigned wanted);

#endif
