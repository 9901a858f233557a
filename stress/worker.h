/* SPDX-License-Identifier: MIT
 * worker.h: one process of the Scheme level: random programs in an interpreter and in a JIT, side
 * by side.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STRESS_COUNTERS(X)          \
	X(programs)                 \
	X(operations)               \
	X(invalidations_on_stack)   \
	X(returns_into_invalidated) \
	X(stale_hits)               \
	X(fibers_across_cycle)      \
	X(collections)              \
	X(blocks_freed)             \
	X(vms)                      \
	X(vms_collecting_at_stubs)  \
	X(vms_collecting_at_calls)  \
	X(vms_discarding)           \
	X(vms_with_trampolines)     \
	X(vms_with_every_sink)      \
	X(half_built)               \
	X(mismatches)

struct counters {
#define X(name) uint64_t name;
	STRESS_COUNTERS(X)
#undef X
};

/* The habits of the VM with a JIT; 0 and false are the shell's habits. */
struct habits {
	uint64_t pool_bytes, page_bytes, collect_every_calls, discard_every;
	bool collects_at_stubs, has_trampolines, has_every_sink, has_lines;
};

/* Shared with the parent of the worker: tells what runs, should the worker die. */
enum { PROGRESS_BYTES = 4 << 20 };
struct progress {
	struct habits habits;
	size_t current; /* where the running program begins; earlier programs ran in the same VM */
	size_t length;
	char text[PROGRESS_BYTES];
};

struct assignment {
	uint64_t seed;
	uint64_t number; /* of the worker: chooses the habits */
	uint64_t milliseconds;
	struct progress *progress;
};

/* Runs programs until the time is over, or a program fails. Returns the counts. */
struct counters work(const struct assignment *assignment);
/* Runs a text in fresh VMs with these habits. Returns whether the outputs agree. */
bool work_agrees(const struct habits *habits, const char *text, size_t length);
/* Writes habits as a comment in front of a program, and reads them back. */
void habits_write(const struct habits *habits, char *text, size_t bytes);
void habits_read(struct habits *habits, const char *text);
