// SPDX-License-Identifier: MIT
/* What two call graphs have not in common. */
#pragma once
#include "tools/callgrind/graph.h"
#include "tools/callgrind/output.h"

/* A node or an edge of either graph, or of both. */
struct cg_change {
	const struct cg_node *node[2];   /* of an edge, its caller; NULL: the graph has none */
	const struct cg_node *callee[2]; /* NULL: this is no edge */
	uint64_t calls[2];               /* of a node, by all its callers */
	const uint64_t *costs[2];        /* NULL: the graph has none */
	uint64_t amount[2]; /* by which changes are sorted: of the first event, and of calls */
	size_t ordinal;     /* and, of equal ones, by when they were found */
};

struct cg_diff {
	struct cg_change *changes; /* nodes and edges, the largest change first */
	size_t count, room;
	unsigned event_count;              /* that are compared; 0: calls only */
	unsigned events[2][CG_EVENTS_MAX]; /* of each, its place in either graph */
	const struct cg_graph *graphs[2];
	char error[200];
};

/* Both sorted and with redacted names; with costs those of the events that both have. False with
 * `error`. */
bool cg_diff_find(struct cg_diff *diff, const struct cg_graph *before, const struct cg_graph *after,
		  bool has_costs);
bool cg_diff_write_text(const struct cg_diff *diff, struct cg_output *output);
bool cg_diff_write_json(const struct cg_diff *diff, struct cg_output *output);
void cg_diff_end(struct cg_diff *diff);
