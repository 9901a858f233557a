/* SPDX-License-Identifier: MIT
 * graph.h: the graph level of the stress, as main.c sees the level: random programs of API calls on
 * real blocks of machine code, one process each, against a model of life and death of blocks.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define GRAPH_COUNTERS(X)                                                         \
	X(graph_programs)                                                         \
	X(graph_operations)                                                       \
	X(graph_blocks)                                                           \
	X(graph_entered)                                                          \
	X(graph_branch_hits)                                                      \
	X(graph_stub_races) /* asked while another was: some in a minute */       \
	X(graph_stale_hits) /* answers and races that came late, or to the dead */ \
	X(graph_invalidations_on_stack)                                           \
	X(graph_exits) /* frames that left an invalidated block by its exit */    \
	X(graph_loose)       /* blocks without an owner, freed by their address */ \
	X(graph_discards)                                                         \
	X(graph_full_pools)                                                       \
	X(graph_fibers_across_cycle)                                              \
	X(graph_fibers_moved) /* resumed by another thread */                     \
	X(graph_fibers_forsaken)                                                  \
	X(graph_signals)                                                          \
	X(graph_forks)                                                            \
	X(graph_collections)                                                      \
	X(graph_blocks_freed)                                                     \
	X(graph_rounds)                                                           \
	X(graph_must_live) /* blocks that the model reached, looked at and run */ \
	X(graph_predicted_dead)                                                   \
	X(graph_predicted_freed)                                                  \
	X(graph_failures)

/* In memory shared by a program's process, its forks and main. */
struct graph_shared {
#define X(name) _Atomic(uint64_t) name;
	GRAPH_COUNTERS(X)
#undef X
	_Atomic(bool) has_failed;
	char failure[500]; /* the first failure */
};

struct graph_level;
struct graph_level *graph_level_start(const char *folder, uint64_t seed);
/* Starts and ends programs in turn. Returns false after a failure, which was minimised and kept. */
bool graph_level_poll(struct graph_level *level);
bool graph_level_end(struct graph_level *level); /* waits for the running program */
const struct graph_shared *graph_level_counts(const struct graph_level *level);
/* Whether as much happened as seconds should bring; prints the missing. */
bool graph_level_has_enough(const struct graph_level *level, uint64_t seconds);
/* Runs the program of a file some times. Returns 0, 1 for a failure, 2 if it could not be run. */
int graph_level_replay(const char *folder, const char *path);
