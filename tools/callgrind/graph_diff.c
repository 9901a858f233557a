// SPDX-License-Identifier: MIT
/* Both graphs are sorted by names, so one walk over both meets what they share. Nodes of the second
 * graph get the numbers of the first's order by a walk of the same kind, and edges are merged by
 * these numbers. */
#include "tools/callgrind/graph_diff.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool failed(struct cg_diff *diff, const char *why)
{
	snprintf(diff->error, sizeof diff->error, "%s", why);
	return false;
}

/* ---- finding --------------------------------------------------------------------------------- */

static uint64_t distance(uint64_t a, uint64_t b)
{
	return a > b ? a - b : b - a;
}

static uint64_t cost_of(const struct cg_diff *diff, const struct cg_change *change, int which,
			unsigned event)
{
	return change->costs[which] ? change->costs[which][diff->events[which][event]] : 0;
}

/* Keeps it if it is one. */
static bool add_change(struct cg_diff *diff, struct cg_change change)
{
	bool is_change = !change.node[0] || !change.node[1];
	is_change |= change.calls[0] != change.calls[1];
	for (unsigned i = 0; i < diff->event_count; i++) {
		uint64_t d = distance(cost_of(diff, &change, 0, i), cost_of(diff, &change, 1, i));
		is_change |= d != 0;
		if (i == 0)
			change.amount[0] = d;
	}
	change.amount[1] = distance(change.calls[0], change.calls[1]);
	if (!is_change)
		return true;
	change.ordinal = diff->count;
	struct cg_change *larger =
		cg_with_room(diff->changes, diff->count, &diff->room, sizeof *larger);
	if (!larger)
		return failed(diff, "out of memory");
	diff->changes = larger;
	diff->changes[diff->count++] = change;
	return true;
}

struct side {
	const struct cg_graph *graph;
	uint64_t *calls;   /* by node */
	uint32_t *numbers; /* by node: the same for the same name on both sides */
};

static bool begin_side(struct side *side, const struct cg_graph *graph)
{
	side->graph = graph;
	side->calls = calloc(graph->node_count + 1, sizeof *side->calls);
	side->numbers = calloc(graph->node_count + 1, sizeof *side->numbers);
	for (size_t i = 0; side->calls && i < graph->edge_count; i++) {
		uint64_t *sum = &side->calls[graph->edges[i].callee];
		uint64_t calls = graph->edges[i].calls;
		*sum = calls > UINT64_MAX - *sum ? UINT64_MAX : *sum + calls;
	}
	return side->calls && side->numbers;
}

static bool compare_nodes(struct cg_diff *diff, struct side *sides)
{
	size_t at[2] = {0};
	for (uint32_t number = 0;; number++) {
		const struct cg_node *nodes[2];
		for (int s = 0; s < 2; s++)
			nodes[s] = at[s] < sides[s].graph->node_count
					   ? &sides[s].graph->nodes[at[s]]
					   : NULL;
		if (!nodes[0] && !nodes[1])
			return true;
		int order = !nodes[0] ? 1 : !nodes[1] ? -1 : cg_node_compare(nodes[0], nodes[1]);
		struct cg_change change = {0};
		for (int s = 0; s < 2; s++) {
			if (s == 0 ? order > 0 : order < 0)
				continue;
			change.node[s] = nodes[s];
			change.calls[s] = sides[s].calls[at[s]];
			change.costs[s] = nodes[s]->self;
			sides[s].numbers[at[s]++] = number;
		}
		if (!add_change(diff, change))
			return false;
	}
}

static int compare_edges(const struct side *sides, const struct cg_edge *a, const struct cg_edge *b)
{
	uint32_t ends[2][2] = {{sides[0].numbers[a->caller], sides[0].numbers[a->callee]},
			       {sides[1].numbers[b->caller], sides[1].numbers[b->callee]}};
	for (int i = 0; i < 2; i++) {
		if (ends[0][i] != ends[1][i])
			return ends[0][i] < ends[1][i] ? -1 : 1;
	}
	return 0;
}

static bool merge_edges(struct cg_diff *diff, const struct side *sides)
{
	size_t at[2] = {0};
	for (;;) {
		const struct cg_edge *edges[2];
		for (int s = 0; s < 2; s++)
			edges[s] = at[s] < sides[s].graph->edge_count
					   ? &sides[s].graph->edges[at[s]]
					   : NULL;
		if (!edges[0] && !edges[1])
			return true;
		int order = !edges[0]   ? 1
			    : !edges[1] ? -1
					: compare_edges(sides, edges[0], edges[1]);
		struct cg_change change = {0};
		for (int s = 0; s < 2; s++) {
			if (s == 0 ? order > 0 : order < 0)
				continue;
			change.node[s] = &sides[s].graph->nodes[edges[s]->caller];
			change.callee[s] = &sides[s].graph->nodes[edges[s]->callee];
			change.calls[s] = edges[s]->calls;
			change.costs[s] = edges[s]->inclusive;
			at[s]++;
		}
		if (!add_change(diff, change))
			return false;
	}
}

/* Those that the first graph has and the second has, too. */
static bool find_events(struct cg_diff *diff)
{
	const struct cg_graph *const *graphs = diff->graphs;
	for (unsigned a = 0; a < graphs[0]->event_count; a++) {
		for (unsigned b = 0; b < graphs[1]->event_count; b++) {
			if (cg_text_compare(graphs[0]->events[a], graphs[1]->events[b]) != 0)
				continue;
			diff->events[0][diff->event_count] = a;
			diff->events[1][diff->event_count++] = b;
		}
	}
	return diff->event_count || failed(diff, "they have no costs that can be compared");
}

/* The largest change first; then as they were found. */
static int by_amount(const void *left, const void *right)
{
	const struct cg_change *a = left, *b = right;
	for (int i = 0; i < 2; i++) {
		if (a->amount[i] != b->amount[i])
			return a->amount[i] > b->amount[i] ? -1 : 1;
	}
	return a->ordinal < b->ordinal ? -1 : 1;
}

bool cg_diff_find(struct cg_diff *diff, const struct cg_graph *before, const struct cg_graph *after,
		  bool has_costs)
{
	struct side sides[2] = {0};
	diff->graphs[0] = before;
	diff->graphs[1] = after;
	bool has_memory = begin_side(&sides[0], before) && begin_side(&sides[1], after);
	bool is_good = has_memory || failed(diff, "out of memory");
	is_good = is_good && (!has_costs || find_events(diff));
	is_good = is_good && compare_nodes(diff, sides) && merge_edges(diff, sides);
	if (is_good && diff->count)
		qsort(diff->changes, diff->count, sizeof *diff->changes, by_amount);
	for (int s = 0; s < 2; s++) {
		free(sides[s].calls);
		free(sides[s].numbers);
	}
	return is_good;
}

void cg_diff_end(struct cg_diff *diff)
{
	free(diff->changes);
	*diff = (struct cg_diff){0};
}

/* ---- writing --------------------------------------------------------------------------------- */

static const char *kind_of(const struct cg_change *change)
{
	return !change->node[0] ? "came" : !change->node[1] ? "went" : "changed";
}

static void put_node(struct cg_output *output, const struct cg_node *node)
{
	cg_output_word(output, node->function);
	cg_output_print(output, " [");
	cg_output_word(output, node->object);
	cg_output_print(output, ":");
	cg_output_word(output, node->file);
	cg_output_print(output, "]");
}

static void put_change(struct cg_output *output, const struct cg_change *change,
		       struct cg_text what, uint64_t before, uint64_t after)
{
	bool is_more = after >= before;
	cg_output_print(output, "  ");
	cg_output_word(output, what);
	if (change->node[0] && change->node[1])
		cg_output_print(output, " %" PRIu64 " -> %" PRIu64 " (%c%" PRIu64 ")", before,
				after, is_more ? '+' : '-', distance(before, after));
	else
		cg_output_print(output, " %" PRIu64, change->node[0] ? before : after);
}

bool cg_diff_write_text(const struct cg_diff *diff, struct cg_output *output)
{
	for (size_t i = 0; i < diff->count; i++) {
		const struct cg_change *change = &diff->changes[i];
		int s = change->node[0] ? 0 : 1;
		cg_output_print(output, "%c %s ",
				change->node[0] ? change->node[1] ? '~' : '-' : '+',
				change->callee[s] ? "edge" : "node");
		put_node(output, change->node[s]);
		if (change->callee[s]) {
			cg_output_print(output, " -> ");
			put_node(output, change->callee[s]);
		}
		put_change(output, change, cg_text("calls", 5), change->calls[0], change->calls[1]);
		for (unsigned e = 0; e < diff->event_count; e++)
			put_change(output, change, diff->graphs[0]->events[diff->events[0][e]],
				   cost_of(diff, change, 0, e), cost_of(diff, change, 1, e));
		cg_output_print(output, "\n");
	}
	return !output->failed;
}

static void put_json_node(struct cg_output *output, const char *key, const struct cg_node *node)
{
	cg_output_print(output, ", \"%s\": {\"object\": ", key);
	cg_output_json(output, node->object);
	cg_output_print(output, ", \"file\": ");
	cg_output_json(output, node->file);
	cg_output_print(output, ", \"function\": ");
	cg_output_json(output, node->function);
	cg_output_print(output, "}");
}

/* Nodes and edges in two lists, each with its largest change first. */
static void put_json_list(const struct cg_diff *diff, bool is_edges, struct cg_output *output)
{
	bool is_first = true;
	for (size_t i = 0; i < diff->count; i++) {
		const struct cg_change *change = &diff->changes[i];
		int s = change->node[0] ? 0 : 1;
		if ((change->callee[s] != NULL) != is_edges)
			continue;
		cg_output_print(output, "%s\n{\"change\": \"%s\"", is_first ? "" : ",",
				kind_of(change));
		is_first = false;
		put_json_node(output, is_edges ? "caller" : "node", change->node[s]);
		if (is_edges)
			put_json_node(output, "callee", change->callee[s]);
		cg_output_print(output, ", \"calls\": [%" PRIu64 ", %" PRIu64 "]", change->calls[0],
				change->calls[1]);
		for (unsigned e = 0; e < diff->event_count; e++)
			cg_output_print(output, "%s[%" PRIu64 ", %" PRIu64 "]",
					e ? ", " : ", \"costs\": [", cost_of(diff, change, 0, e),
					cost_of(diff, change, 1, e));
		cg_output_print(output, "%s", diff->event_count ? "]}" : "}");
	}
}

bool cg_diff_write_json(const struct cg_diff *diff, struct cg_output *output)
{
	cg_output_print(output, "{\"format\": \"callgrind-names diff 1\",\n");
	for (unsigned e = 0; e < diff->event_count; e++) {
		cg_output_print(output, "%s", e ? ", " : "\"events\": [");
		cg_output_json(output, diff->graphs[0]->events[diff->events[0][e]]);
	}
	cg_output_print(output, "%s\"nodes\": [", diff->event_count ? "],\n" : "");
	put_json_list(diff, false, output);
	cg_output_print(output, "\n],\n\"edges\": [");
	put_json_list(diff, true, output);
	cg_output_print(output, "\n]}\n");
	return !output->failed;
}
