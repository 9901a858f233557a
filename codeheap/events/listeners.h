/* SPDX-License-Identifier: MIT
 * listeners.h: the core's calls to its observers (listener.c). Observers look at a heap through
 * guest_look.h. Most heaps have no listener. */
#pragma once

#include "codeheap/base/heaps.h"

/* The heap has its id, and nobody else knows the heap. Returns CH_E_OS (ENOSYS) when the
 * configuration asks for a statistics file, and the process has no code to write one. When the
 * environment asks, ch_sink_status says so, and a line on stderr. */
enum ch_status ch__listeners_begin(struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
/* The thread is attached, or about to leave. */
void ch__listeners_thread_comes(struct ch__thread *) CH_REQUIRES(ch__role_registry);
void ch__listeners_thread_leaves(struct ch__thread *) CH_REQUIRES(ch__role_registry);
/* The blocks were withdrawn and still have their names. */
void ch__listeners_blocks_die(struct ch_heap *, const uint64_t *handles, size_t n)
	CH_REQUIRES(ch__role_heap);
void ch__listeners_used(struct ch_heap *) CH_COLD;
/* Called where a child of fork compiles or collects; not in a region. */
static inline void ch__listeners_use(struct ch_heap *heap)
{
	if (CH_UNLIKELY(CH_LOAD_RELAXED(&heap->use_is_awaited)))
		ch__listeners_used(heap);
}
void ch__listeners_fork_prepare(struct ch_heap *);
void ch__listeners_fork_parent(struct ch_heap *);
void ch__listeners_fork_child(struct ch_heap *) CH_REQUIRES(ch__role_heap);
void ch__listeners_end(struct ch_heap *) CH_REQUIRES(ch__heaps_lock) CH_EXCLUDES(CH__ANY);
void ch__listeners_names_wait(void) CH_EXCLUDES(CH__ANY); /* names wait for the perf map */
bool ch__listeners_file(const struct ch_heap *, const char **path, int *failed);
