/* SPDX-License-Identifier: MIT
 * meta.h: side memory of a heap: threads, names, side lists, states of sinks. Each heap has one
 * arena; letting it go frees all. Side memory holds no pointer that a tracing collector must see.
 * Any thread may call; never in a stopped world or a signal handler. */
#pragma once

#include "arch/base.h"

struct ch__meta;

CH_GUEST struct ch__meta *ch__meta_create(void) CH_MAY_WAIT;
CH_GUEST void ch__meta_destroy(struct ch__meta *) CH_MAY_WAIT;
/* Zeroed, 16-byte aligned; NULL when memory is short. */
CH_GUEST void *ch__meta_alloc(struct ch__meta *, size_t bytes) CH_MAY_WAIT;
/* at may be NULL */
CH_GUEST void ch__meta_free(struct ch__meta *, void *at, size_t bytes) CH_MAY_WAIT;
/* Makes an array of items twice as long, or `least` items long the first time. `array` points to
 * the pointer to the items. Returns false, and changes nothing, when memory is short. */
bool ch__meta_grow(struct ch__meta *, void *array, uint32_t *capacity, uint32_t least,
		   size_t item_bytes) CH_MAY_WAIT;
size_t ch__meta_bytes(struct ch__meta *); /* handed out and not freed */
/* In the child: locks of vanished threads are free again. */
void ch__meta_fork_child(struct ch__meta *);
