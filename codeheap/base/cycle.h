/* SPDX-License-Identifier: MIT
 * cycle.h: the driver of a heap's cycles, and the marker of an open cycle. Internal to
 * codeheap/. */
#ifndef CH_CODEHEAP_BASE_CYCLE_H
#define CH_CODEHEAP_BASE_CYCLE_H

#include "codeheap/codeheap.h"

struct ch__driver {
	enum ch_status (*collect)(struct ch_heap *); /* a full cycle, with final marks; no lock */
	void (*destroy)(struct ch_heap *);
	void (*fork_child)(struct ch_heap *);
	bool (*knows_thread)(void); /* the caller has what a call needs to attach it */
};

struct ch_marker {
	struct ch_heap *heap;
	/* Reports a ref of a newly reached block. NULL: refs go to the vm's callback. */
	void (*ref)(struct ch_marker *, struct ch_vm *, uintptr_t word);
	void *context;       /* belongs to the driver */
	uint32_t *queue;     /* ring of block indices waiting to be traced */
	uint32_t queue_mask; /* capacity - 1 */
	uint32_t head, tail;
	bool overflowed; /* a block did not fit: scan marked blocks again */
	bool has_stacks; /* a host named stacks, or had the library find them */
	bool is_blind; /* a thread stands on an unknown stack */
	uint64_t marked, stack_roots;
};

#endif
