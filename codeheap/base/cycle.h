/* SPDX-License-Identifier: MIT
 * cycle.h: who drives the cycles of a heap, and what a cycle has while it is open. Internal to
 * codeheap/. */
#ifndef CH_CODEHEAP_BASE_CYCLE_H
#define CH_CODEHEAP_BASE_CYCLE_H

#include "codeheap/codeheap.h"

struct ch__driver {
	enum ch_status (*collect)(struct ch_heap *); /* a full cycle, its marks final; no lock */
	void (*destroy)(struct ch_heap *);
	void (*fork_child)(struct ch_heap *);
	bool (*knows_thread)(void); /* the calling one: what it needs, to be attached by a call */
};

struct ch_marker {
	struct ch_heap *heap;
	/* A ref of a block newly reached; NULL passes refs to the vm's callback. */
	void (*ref)(struct ch_marker *, struct ch_vm *, uintptr_t word);
	void *context;       /* the driver's */
	uint32_t *queue;     /* ring of block indices waiting to be traced */
	uint32_t queue_mask; /* capacity - 1 */
	uint32_t head, tail;
	bool overflowed; /* a block did not fit: rescan marked blocks */
	bool has_stacks; /* a host named some, or had them found */
	bool is_blind; /* a thread stands on a stack that nobody named */
	uint64_t marked, stack_roots;
};

#endif
