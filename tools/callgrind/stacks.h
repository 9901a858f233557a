// SPDX-License-Identifier: MIT
/* Stacks from a call graph, which knows callers but not their callers. */
#pragma once
#include "tools/callgrind/graph.h"
#include "flame/flame.h"

/* The graph with its edges by caller and by callee, and what of it is followed. */
struct cg_ways {
	const struct cg_graph *graph; /* sorted */
	unsigned event;
	uint32_t *first_out; /* by node, and one more: its edges, which the graph has by caller */
	uint32_t *first_in;  /* by node, and one more: its places in `in` */
	uint32_t *in;        /* edges by callee */
	bool *is_cut;        /* by edge: it closes a cycle */
	uint64_t *entered;   /* by node: cost that comes from no edge */
	uint32_t *order;     /* nodes, callers before those that they call by edges that stay */
};

/* ---- ways.c */
bool cg_ways_find(struct cg_ways *ways, const struct cg_graph *graph, unsigned event);
void cg_ways_end(struct cg_ways *ways);

/* ---- stacks.c */
/* Adds the graph's costs of this event; false: no memory. */
bool cg_stacks_add(struct ch__flame *flame, const struct cg_graph *graph, unsigned event);
