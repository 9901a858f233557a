/* SPDX-License-Identifier: MIT
 * graph_program.h: a program of the graph level: how the heaps are made, and a list of operations
 * with explicit operands, each for one of the threads, in rounds that end at a quiescent point. A
 * program depends on a seed alone, and can be written to a text file and read back.
 *
 * Operands name slots: of owners, of facts, of fibers. An operation on empty slots does nothing, so
 * any part of a program is a program. `enter` and `take` go into code; the entered block calls
 * back, and the thread goes on with the list inside the callback until `leave`, or `take`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	GRAPH_THREADS = 6,
	GRAPH_SLOTS = 40,
	GRAPH_FACTS = 8,
	GRAPH_FIBERS = 8,
	GRAPH_HEAPS = 2,
	GRAPH_VMS = 2,
	GRAPH_OPERANDS = 4,
};

/* name, number of operands */
#define GRAPH_OPERATIONS(X)                                                                      \
	X(round, 0)  /* all threads end, then the model judges */                                \
	X(owner, 1)  /* slot: an owner, unless it has one */                                     \
	X(drop, 2)   /* slot, whether by release everywhere */                                   \
	X(code, 4)   /* slot, shape, two more slots: a block, and the owner's entry */           \
	X(loose, 4)  /* like code, without an owner, in an empty slot: freed by drop */          \
	X(exit, 1)   /* slot: a block to leave to from patch points */                           \
	X(open, 4)   /* like code, but left OPEN in the thread's hand */                         \
	X(commit, 0) /* the oldest block in the hand */                                          \
	X(abort, 0)                                                                              \
	X(young, 3)     /* slot for its heap, blocks, whether of a new vm: made, run, freed */ \
	X(tramp, 2)     /* slot, kind: a trampoline, called */                                   \
	X(entry, 2)     /* slot, 0: the fallback, 1: the newest block */                         \
	X(link, 3)      /* slot, arm, slot to lead to (-1: the stub) */                          \
	X(enter, 1)     /* slot: called through the cell */                                      \
	X(take, 4)      /* in a block: arm, and for the stub: answer, slot, operations inside */ \
	X(leave, 0)     /* in a block or handler */                                              \
	X(jump, 0)      /* longjmp over all frames of this stack */                              \
	X(kill, 3)      /* slots: the newest blocks, in a batch */                               \
	X(suicide, 0)   /* the block on top of this stack */                                     \
	X(slaughter, 0) /* all blocks on this stack */                                           \
	X(doubt, 1)     /* fact: broken, and a new one */                                        \
	X(collect, 1)   /* heap */                                                               \
	X(discard, 2)   /* heap, vm (-1: all) */                                                 \
	X(fiber, 1)     /* started, or resumed, also on another thread */                        \
	X(yield, 0)                                                                              \
	X(forsake, 1) /* a suspended fiber is gone, unfinished */                                \
	X(raise, 0)   /* a signal; the handler, on a signal stack, goes on with the list */      \
	X(shoot, 1)   /* a signal to a thread: looks at the interrupted code */                  \
	X(fork, 1)    /* the child goes on for some operations, checks, and ends */              \
	X(poll, 0)                                                                               \
	X(park, 1)  /* microseconds */                                                           \
	X(write, 0) /* in a block: into its committed bytes */                                   \
	X(look, 2)  /* slot, kind: lookups, walks, statistics, backtraces */                     \
	X(sinks, 2) /* heap, set */                                                              \
	X(check, 1) /* heap: all invariants, while threads run */

enum graph_kind {
#define X(name, operands) GRAPH_##name,
	GRAPH_OPERATIONS(X)
#undef X
		GRAPH_KINDS
};

struct graph_operation {
	uint8_t kind, thread;
	int16_t operand[GRAPH_OPERANDS];
};

enum graph_driver { GRAPH_POLLS, GRAPH_PARKS, GRAPH_SIGNALS, GRAPH_HOST, GRAPH_BOEHM };

#define GRAPH_SETTINGS(X)                                                                \
	X(driver) /* enum graph_driver */                                                \
	X(heaps)                                                                         \
	X(vms) X(threads) X(page_kb) X(pool_kb) X(memfd) /* backend */                   \
		X(sinks)                                 /* enum ch_sink of all heaps */ \
		X(eager)    /* a collection as soon as one is wanted */                  \
		X(parallel) /* Boehm: markers */                                         \
		X(incremental)                                                           \
		X(stops) /* the host's heap stops threads itself: 1 polls, 2 a signal */ \
		X(data)  /* blocks with an edge have data, too */

struct graph_program {
	uint64_t seed;
#define X(name) int name;
	GRAPH_SETTINGS(X)
#undef X
	struct graph_operation *operations;
	size_t count, room;
};

enum graph_shape {
	/* arms 1 to 6 */
	GRAPH_CALL = 1 << 0,
	GRAPH_JMP = 1 << 1,
	GRAPH_JCC = 1 << 2,
	GRAPH_LEA = 1 << 3,
	GRAPH_LITERAL = 1 << 4,
	GRAPH_CELL = 1 << 5, /* through the cell of the first of the two slots */
	/* held by the block, of the two slots */
	GRAPH_EDGE = 1 << 6,
	GRAPH_REF = 1 << 7,
	GRAPH_FACT = 1 << 8,
	GRAPH_SHARED_EXIT = 1 << 9,
	/* 10, 11: entry; 12, 13: size */
	GRAPH_IMMORTAL = 1 << 14,
};
enum { GRAPH_ENTRY_SHIFT = 10, GRAPH_SIZE_SHIFT = 12, GRAPH_ARMS = 6 };

enum graph_answer {
	GRAPH_OLD,  /* the newest block of a slot */
	GRAPH_NEW,  /* a block that is compiled now */
	GRAPH_DEAD, /* a block that was invalidated or is gone */
	GRAPH_NONE
};

void graph_program_generate(struct graph_program *program, uint64_t seed);
/* Returns the text, allocated, with only the operations whose keep is true (NULL: all). */
char *graph_program_print(const struct graph_program *program, const bool *keep, size_t *length);
/* Returns false when the text is no program, and says why on stderr. */
bool graph_program_read(struct graph_program *program, const char *text);
void graph_program_free(struct graph_program *program);
