// SPDX-License-Identifier: MIT
/* read_many MAP: reads profiles from standard input, each after 4 bytes with the length, as
 * mutate.py writes profiles. Names each profile and reads the graph, as callgrind-names does, and
 * prints a line for each: `read NODES EDGES`, or `refused LINE WHY`. */
#include "tools/callgrind/graph.h"
#include "tools/callgrind/names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The named profile must be readable again, with the same sums. */
static void read_one(const char *map, char *text, size_t length)
{
	struct cg_naming naming = {.map_path = map};
	struct cg_input input = {.name = "", .text = text, .length = length};
	struct cg_graph graph = {0}, named = {0};
	bool is_named = cg_naming_run(&naming, &input, 1);
	bool is_read = cg_graph_read(&graph, text, length);
	if (!is_named || !is_read) {
		/* The sum of several parts may not fit in 64 bits where each part fits. */
		if (is_named && !strstr(graph.error, "64 bits") && !strstr(graph.error, "memory"))
			printf("wrong: named, but %s\n", graph.error);
		else if (!is_named)
			printf("refused %zu %s\n", naming.line_number, naming.error);
		else
			printf("refused %zu %s\n", graph.line_number, graph.error);
	} else if ((!cg_graph_read(&named, naming.out.at, naming.out.length) ||
		    !cg_graph_sort(&named)) &&
		   strstr(named.error, "memory")) {
		printf("refused %zu %s\n", named.line_number, named.error);
	} else if (named.error[0]) {
		printf("wrong: what was written is refused: %zu %s\n", named.line_number,
		       named.error);
	} else if (named.event_count != graph.event_count ||
		   memcmp(named.totals, graph.totals, sizeof graph.totals) != 0) {
		printf("wrong: other sums\n");
	} else {
		for (size_t i = 0; i < named.node_count; i++) {
			uint64_t level;
			cg_graph_base(&named.nodes[i], &level);
		}
		printf("read %zu %zu\n", graph.node_count, graph.edge_count);
	}
	fflush(stdout);
	cg_graph_end(&graph);
	cg_graph_end(&named);
	cg_naming_end(&naming);
}

int main(int argc, char **argv)
{
	uint32_t length;
	while (argc == 2 && fread(&length, sizeof length, 1, stdin) == 1) {
		/* The allocation has the exact size, so that a read behind the end is seen. */
		char *text = malloc(length ? length : 1);
		if (!text || fread(text, 1, length, stdin) != length)
			return 1;
		read_one(argv[1], text, length);
		free(text);
	}
	return argc != 2;
}
