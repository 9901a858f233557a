/* SPDX-License-Identifier: MIT
 * event.h: the latest events of the heaps of this process, for the text of a panic. Events are
 * rare: the opening, linking or freeing of a block is no event. */
#pragma once

#include "codeheap/base/heap.h"

/* The text stands before the value. */
#define CH__EVENT_LIST(X)                                      \
	X(CREATED, "created, bytes reserved:")                 \
	X(DESTROYED, "destroyed, bytes reserved:")             \
	X(ATTACHED, "a thread is attached:")                   \
	X(DETACHED, "a thread is detached:")                   \
	X(CYCLE_BEGINS, "a cycle begins, number:")             \
	X(CYCLE_ENDS, "a cycle ends, blocks reached:")         \
	X(CYCLE_GIVEN_UP, "a cycle is given up, in all:")      \
	X(SWEPT, "a sweep ends, blocks freed in all:")         \
	X(INVALIDATED, "blocks are invalidated:")              \
	X(BROKEN, "an assumption breaks, blocks:")             \
	X(DISCARDED, "code is discarded, blocks:")             \
	X(FULL, "the pool has no room for a block, bytes:")    \
	X(FORKED, "a child of fork goes on, process:")

enum ch__event {
#define X(name, text) CH__EVENT_##name,
	CH__EVENT_LIST(X)
#undef X
	CH__EVENTS
};

enum { CH__EVENTS_KEPT = 64 };

/* Any thread, under any lock, in a signal handler too. */
void ch__event_note(const struct ch_heap *, enum ch__event, uint64_t value); /* at most 2^32 - 1 */
/* Writes the line of the event `age` events before the last: its bytes; 0: none. Signal-safe. */
enum { CH__EVENT_TEXT_BYTES = 128 };
size_t ch__event_text(unsigned age, char text[CH__EVENT_TEXT_BYTES]);

/* The VM's hook of a panic. */
void ch__panic_set_hook(void (*hook)(const char *));
