/* SPDX-License-Identifier: MIT
 * listeners.h: the core's calls to its observers (listener.c). Observers look at a heap through
 * guest_look.h. Most heaps have no listener. */
#pragma once

#include "codeheap/base/heap.h"
#include "codeheap/listener.h"

/* The heap has its id, and nobody else knows the heap. Returns CH_E_OS (ENOSYS) when the
 * configuration asks for a statistics file, and the process has no code to write one. When the
 * environment asks, ch_sink_status says so, and a line on stderr. */
enum ch_status ch__listeners_begin(struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
static inline struct ch__listener *ch__listeners_first(const struct ch_heap *heap)
{
	/* Acquire: pairs with the release of ch__listener_add. */
	return atomic_load_explicit(&heap->listeners, memory_order_acquire);
}
/* Calls one function of each listener, where the listener has the function (listener.h). */
#define CH__TELL(heap, call, ...)                                                             \
	for (struct ch__listener *l_ = ch__listeners_first(heap); l_; l_ = l_->next)           \
		if (l_->calls->call)                                                           \
	l_->calls->call(l_, ##__VA_ARGS__)
void ch__listeners_used(struct ch_heap *) CH_COLD;
/* Called where a child of fork compiles or collects; not in a region. */
static inline void ch__listeners_use(struct ch_heap *heap)
{
	if (CH_UNLIKELY(CH_LOAD_RELAXED(&heap->use_is_awaited)))
		ch__listeners_used(heap);
}
void ch__listeners_fork_child(struct ch_heap *) CH_REQUIRES(ch__role_heap);
void ch__listeners_end(struct ch_heap *) CH_REQUIRES(ch__heaps_lock) CH_EXCLUDES(CH__ANY);
void ch__listeners_names_wait(void) CH_EXCLUDES(CH__ANY); /* names wait for the perf map */
bool ch__listeners_file(const struct ch_heap *, const char **path, int *failed);
