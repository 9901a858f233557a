// SPDX-License-Identifier: MIT
/* The call graph as a JSON text that is the same for the same program on another machine. */
#pragma once
#include "tools/callgrind/graph.h"
#include "tools/callgrind/output.h"

/* A sorted graph with redacted names (redact.h): nodes and edges that have one name then are added
 * up; functions keep theirs if that is not wanted. `redacted` is empty before. False with its
 * `error`, and it is to be ended. */
bool cg_graph_redact(struct cg_graph *redacted, const struct cg_graph *graph, bool has_functions);

/* One line for each node and edge, in the graph's order. Without costs there are calls only. */
bool cg_graph_write_json(const struct cg_graph *graph, bool has_costs, struct cg_output *output);
/* Reads what was written so; the graph has no events when it has no costs. False with `error`. */
bool cg_graph_read_json(struct cg_graph *graph, const char *text, size_t length);
