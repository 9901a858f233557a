// SPDX-License-Identifier: MIT
/* The call graph of one or more profiles. A node is an object file, a source file and a function:
 * functions of one name in two files are two nodes. The source file is that of fl=, whatever code
 * was inlined. Edges come from calls= lines only; jumps make none. Parts, and profiles that are
 * read one after another, are added up; their events may differ, and one that a profile has not is
 * 0 there. What callgrind puts behind a name, the depth of recursion or the callers, is part of the
 * name: cg_graph_base takes it away. */
#pragma once
#include "tools/callgrind/reader.h"

/* Texts belong to the graph. What the profile does not say is empty; callgrind's own word for what
 * it does not know is ???. */
struct cg_node {
	struct cg_text object, file, function;
	uint64_t *self;    /* its own costs, of each event */
	bool is_anonymous; /* in no object file: code made at run time */
};

struct cg_edge {
	uint32_t caller, callee; /* nodes */
	uint64_t calls;
	uint64_t *inclusive; /* what was spent in these calls, of each event */
};

struct cg_graph {
	struct cg_node *nodes;
	struct cg_edge *edges;
	size_t node_count, edge_count;
	struct cg_text events[CG_EVENTS_MAX]; /* in the order in which they came */
	unsigned event_count;
	uint64_t totals[CG_EVENTS_MAX]; /* sums of the nodes' own costs */
	size_t part_count;
	bool has_instructions, has_lines; /* positions that a part had */
	struct cg_text command;           /* what cmd: says first */
	size_t line_number;               /* of what was refused, or 0 */
	char error[200];
	/* for graph.c: where texts, nodes (by their texts) and edges (by their nodes) are found */
	struct cg_table texts, node_table, edge_table;
	size_t node_room, edge_room;
};

/* Adds a whole profile, which may be freed behind that. False with `error`; then the graph is to be
 * ended. Names that are addresses stay so: read what cg_naming_run wrote. */
bool cg_graph_read(struct cg_graph *graph, const char *text, size_t length);

/* The node and the edge of these names and nodes, made without costs if there are none yet, and the
 * event's place; false with `error`. An edge's callee may be its caller. */
bool cg_graph_event(struct cg_graph *graph, struct cg_text name, unsigned *which);
bool cg_graph_node(struct cg_graph *graph, const struct cg_place *place, uint32_t *found);
bool cg_graph_edge(struct cg_graph *graph, uint32_t caller, uint32_t callee, uint32_t *found);
/* False with `error` when the sum is none of 64 bits. */
bool cg_graph_add(struct cg_graph *graph, uint64_t *sum, uint64_t more);

/* Nodes by object, file and function, edges by caller and callee: the same for the same program,
 * whatever order the profile has. Once, when everything is read. */
bool cg_graph_sort(struct cg_graph *graph);
void cg_graph_end(struct cg_graph *graph);

/* By object, file and function: less than, equal to, or greater than 0. */
int cg_node_compare(const struct cg_node *left, const struct cg_node *right);

/* The function without what callgrind put behind its name. *level: how deep in its recursion, from
 * 1, or 0 where that is not told apart. */
struct cg_text cg_graph_base(const struct cg_node *node, uint64_t *level);
