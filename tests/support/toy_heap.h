/* SPDX-License-Identifier: MIT
 * toy_heap.h: a small mark-sweep heap of objects, the collector of HOST heaps in the tests. Objects
 * are methods, each with an owner, and constants, each naming a method. Marking is precise, from
 * the heap's roots and from the refs that the code heap reports. */
#pragma once

#include "codeheap/codeheap.h"
#include "codeheap/collector.h"
#include "tests/support/harness.h"

#include <stdlib.h>

struct toy_object {
	struct toy_object *next, *field;
	struct ch_owner owner; /* none: a constant */
	bool is_root, is_marked;
};

struct toy_heap {
	struct ch_heap *code;
	struct toy_object *objects;
	struct toy_object **queue;
	size_t count, queued;
};

static inline struct toy_object *toy_new(struct toy_heap *toy, struct ch_owner owner,
					 struct toy_object *field)
{
	struct toy_object *object = calloc(1, sizeof *object);
	CHECK(object);
	object->next = toy->objects;
	object->field = field;
	object->owner = owner;
	toy->objects = object;
	toy->count++;
	return object;
}

static inline void toy_mark(struct toy_heap *toy, struct toy_object *object)
{
	if (!object || object->is_marked)
		return;
	object->is_marked = true;
	toy->queue[toy->queued++] = object;
}

/* ops.ref of a vm with the toy heap as user. */
static inline uintptr_t toy_ref(void *user, uintptr_t word)
{
	toy_mark(user, (struct toy_object *)word);
	return word;
}

static inline void toy_drain(struct toy_heap *toy, struct ch_marker *marker)
{
	while (toy->queued) {
		struct toy_object *object = toy->queue[--toy->queued];
		toy_mark(toy, object->field);
		if (object->owner.bits)
			ch_mark_owner(marker, object->owner);
	}
}

static inline void toy_sweep(struct toy_heap *toy)
{
	for (struct toy_object **link = &toy->objects, *object; (object = *link);) {
		if (object->is_marked) {
			object->is_marked = false;
			link = &object->next;
			continue;
		}
		*link = object->next;
		toy->count--;
		free(object);
	}
}

/* A full collection of both heaps; all threads but the caller are parked. */
static inline void toy_collect(struct toy_heap *toy)
{
	toy->queue = calloc(toy->count + 1, sizeof(void *));
	CHECK(toy->queue);
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(toy->code, &marker), CH_OK);
	for (struct toy_object *object = toy->objects; object; object = object->next)
		if (object->is_root)
			toy_mark(toy, object);
	toy_drain(toy, marker);
	ch_mark_stacks(marker);
	toy_drain(toy, marker);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	free(toy->queue);
	toy_sweep(toy);
}

static inline void toy_destroy(struct toy_heap *toy)
{
	toy_sweep(toy);
}
