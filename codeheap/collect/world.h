/* SPDX-License-Identifier: MIT
 * world.h: stopping the threads of a heap (world.c). */
#ifndef CH_CODEHEAP_COLLECT_WORLD_H
#define CH_CODEHEAP_COLLECT_WORLD_H

#include "codeheap/base/heap.h"

/* Registry and heap, or none: who has one of them may be held there, as within a region (I10). */
bool ch__world_lock(struct ch_heap *, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_registry, ch__role_heap) CH_EXCLUDES(CH__RIGHT_OF_REGISTRY);
void ch__world_unlock(struct ch_heap *) CH_RELEASES(ch__role_registry, ch__role_heap);
bool ch__world_stop(struct ch_heap *, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_stopped)
	CH_REQUIRES(ch__role_registry, ch__role_heap, ch__role_frozen);
void ch__world_resume(struct ch_heap *) CH_RELEASES(ch__role_stopped);
bool ch__world_install_signal(int signal);
/* The stop signal of the thread's heap, which its handler knows for the library's. Signal-safe. */
bool ch__world_signal(const struct ch__thread *);

#endif
