// SPDX-License-Identifier: MIT
/* print_graph PROFILE..: the call graph that tools/callgrind reads, a line for each node and edge.
 * Built by the tests from tools/callgrind, and from copies of it with one rule broken. */
#include "tools/callgrind/graph.h"
#include "tools/callgrind/perf_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void print_costs(const struct cg_graph *graph, const uint64_t *costs)
{
	for (unsigned i = 0; i < graph->event_count; i++)
		printf("\t%" PRIu64, costs[i]);
	printf("\n");
}

static void print_text(struct cg_text text)
{
	printf("\t%.*s", (int)text.length, text.at);
}

static void print(const struct cg_graph *graph)
{
	printf("events");
	for (unsigned i = 0; i < graph->event_count; i++)
		print_text(graph->events[i]);
	printf("\nparts\t%zu\t%d\t%d\ntotals", graph->part_count, graph->has_instructions,
	       graph->has_lines);
	print_costs(graph, graph->totals);
	for (size_t i = 0; i < graph->node_count; i++) {
		const struct cg_node *node = &graph->nodes[i];
		uint64_t level;
		struct cg_text base = cg_graph_base(node, &level);
		printf("node");
		print_text(node->object);
		print_text(node->file);
		print_text(node->function);
		print_text(base);
		printf("\t%" PRIu64 "\t%d", level, node->is_anonymous);
		print_costs(graph, node->self);
	}
	for (size_t i = 0; i < graph->edge_count; i++) {
		const struct cg_edge *edge = &graph->edges[i];
		printf("edge\t%" PRIu32 "\t%" PRIu32 "\t%" PRIu64, edge->caller, edge->callee,
		       edge->calls);
		print_costs(graph, edge->inclusive);
	}
}

int main(int argc, char **argv)
{
	struct cg_graph graph = {0};
	for (int i = 1; i < argc; i++) {
		size_t length;
		char *text = cg_read_file(argv[i], &length);
		if (!text) {
			perror(argv[i]);
			return 1;
		}
		if (!cg_graph_read(&graph, text, length)) {
			fprintf(stderr, "%s:%zu: %s\n", argv[i], graph.line_number, graph.error);
			free(text);
			cg_graph_end(&graph);
			return 1;
		}
		free(text);
	}
	if (!cg_graph_sort(&graph))
		return 1;
	print(&graph);
	cg_graph_end(&graph);
	return 0;
}
