// SPDX-License-Identifier: MIT
/* Which edges of a call graph lead on in a stack. Functions that call each other in a circle are a
 * component (Tarjan's); it is walked from the node that others enter at the highest cost, along
 * dear edges first, and an edge back to a function that the walk is in is cut: no function is in a
 * stack twice. All nodes of a component are reached so, since each reaches each.
 *
 * What a component costs with all that it calls, less what its callers spent in it, came from
 * where no edge is: the program's beginning, or that of the measurement. Inside a component
 * callgrind counts cost once for each level of the recursion, so only edges that lead in and out
 * are compared. */
#include "tools/callgrind/stacks.h"

#include <stdlib.h>

struct frame {
	uint32_t node, next; /* the edge to look at, or its place among those by cost */
};

struct walk {
	struct cg_ways *ways;
	uint32_t *number, *low; /* Tarjan's; number 0: not seen */
	uint32_t *component;    /* UINT32_MAX: none yet */
	uint32_t *waiting;      /* nodes without a component */
	uint32_t *first_of;     /* by component: where its nodes begin in `members` */
	uint32_t *members;
	uint32_t *dearest; /* edges by caller, the dearest first */
	bool *is_entered;  /* the walk of a component is in the node */
	bool *is_left;     /* and was */
	struct frame *frames;
	uint32_t waiting_count, component_count, member_count;
};

static uint64_t cost_of(const struct cg_ways *ways, uint32_t edge)
{
	return ways->graph->edges[edge].inclusive[ways->event];
}

static uint64_t sum(uint64_t a, uint64_t b)
{
	return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

/* ---- components ------------------------------------------------------------------------------ */

static void enter(struct walk *w, uint32_t node, uint32_t *numbers, uint32_t *depth)
{
	w->number[node] = w->low[node] = ++*numbers;
	w->waiting[w->waiting_count++] = node;
	w->frames[(*depth)++] = (struct frame){node, w->ways->first_out[node]};
}

/* The nodes that wait since this one are a component; callees get theirs before callers. */
static void end_component(struct walk *w, uint32_t node)
{
	w->first_of[w->component_count] = w->member_count;
	uint32_t member;
	do {
		member = w->waiting[--w->waiting_count];
		w->component[member] = w->component_count;
		w->members[w->member_count++] = member;
	} while (member != node);
	w->first_of[++w->component_count] = w->member_count;
}

static void find_components(struct walk *w, uint32_t from, uint32_t *numbers)
{
	const struct cg_graph *graph = w->ways->graph;
	uint32_t depth = 0;
	enter(w, from, numbers, &depth);
	while (depth) {
		struct frame *top = &w->frames[depth - 1];
		uint32_t node = top->node;
		if (top->next < w->ways->first_out[node + 1]) {
			uint32_t callee = graph->edges[top->next++].callee;
			if (!w->number[callee])
				enter(w, callee, numbers, &depth);
			else if (w->component[callee] == UINT32_MAX &&
				 w->number[callee] < w->low[node])
				w->low[node] = w->number[callee];
			continue;
		}
		if (w->low[node] == w->number[node])
			end_component(w, node);
		if (--depth && w->low[node] < w->low[w->frames[depth - 1].node])
			w->low[w->frames[depth - 1].node] = w->low[node];
	}
}

/* ---- where a component is entered ------------------------------------------------------------ */

static bool is_inner(const struct walk *w, uint32_t edge)
{
	const struct cg_edge *e = &w->ways->graph->edges[edge];
	return w->component[e->caller] == w->component[e->callee];
}

/* Of the edges from other components: what they cost, and how often they were gone. */
static uint64_t entering(const struct walk *w, uint32_t node, uint64_t *calls)
{
	const struct cg_ways *ways = w->ways;
	uint64_t cost = 0;
	*calls = 0;
	for (uint32_t i = ways->first_in[node]; i < ways->first_in[node + 1]; i++) {
		if (is_inner(w, ways->in[i]))
			continue;
		cost = sum(cost, cost_of(ways, ways->in[i]));
		*calls = sum(*calls, ways->graph->edges[ways->in[i]].calls);
	}
	return cost;
}

static uint64_t leaving(const struct walk *w, uint32_t node)
{
	uint64_t cost = w->ways->graph->nodes[node].self[w->ways->event];
	for (uint32_t e = w->ways->first_out[node]; e < w->ways->first_out[node + 1]; e++)
		cost = is_inner(w, e) ? cost : sum(cost, cost_of(w->ways, e));
	return cost;
}

/* Returns the node to begin with. One that nobody enters from outside is chosen by what it and its
 * edges cost. */
static uint32_t find_entry(struct walk *w, uint32_t component)
{
	const struct cg_ways *ways = w->ways;
	uint64_t best[3] = {0}, in = 0, out = 0;
	uint32_t found = UINT32_MAX;
	for (uint32_t i = w->first_of[component]; i < w->first_of[component + 1]; i++) {
		uint32_t node = w->members[i];
		uint64_t calls, cost = entering(w, node, &calls);
		uint64_t all = ways->graph->nodes[node].self[ways->event];
		for (uint32_t e = ways->first_out[node]; e < ways->first_out[node + 1]; e++)
			all = sum(all, cost_of(ways, e));
		in = sum(in, cost);
		out = sum(out, leaving(w, node));
		uint64_t mine[] = {cost, calls, all};
		int order = 0;
		for (int k = 0; k < 3 && !order; k++)
			order = (mine[k] > best[k]) - (mine[k] < best[k]);
		if (found == UINT32_MAX || order > 0 || (!order && node < found)) {
			found = node;
			best[0] = cost, best[1] = calls, best[2] = all;
		}
	}
	ways->entered[found] = out > in ? out - in : 0;
	return found;
}

/* ---- cuts and order -------------------------------------------------------------------------- */

/* Nodes are put in front of `*place` when the walk leaves them, so callers come before callees. */
static void walk_component(struct walk *w, uint32_t from, uint32_t *place)
{
	struct cg_ways *ways = w->ways;
	uint32_t depth = 0;
	w->frames[depth++] = (struct frame){from, ways->first_out[from]};
	w->is_entered[from] = true;
	while (depth) {
		struct frame *top = &w->frames[depth - 1];
		if (top->next == ways->first_out[top->node + 1]) {
			w->is_left[top->node] = true;
			ways->order[--*place] = top->node;
			depth--;
			continue;
		}
		uint32_t edge = w->dearest[top->next++];
		uint32_t callee = ways->graph->edges[edge].callee;
		if (!is_inner(w, edge) || w->is_left[callee])
			continue;
		if (w->is_entered[callee]) {
			ways->is_cut[edge] = true;
		} else {
			w->is_entered[callee] = true;
			w->frames[depth++] = (struct frame){callee, ways->first_out[callee]};
		}
	}
}

struct priced {
	uint64_t cost;
	uint32_t edge;
};

static int dearest_first(const void *left, const void *right)
{
	const struct priced *a = left, *b = right;
	if (a->cost != b->cost)
		return a->cost > b->cost ? -1 : 1;
	return (a->edge > b->edge) - (a->edge < b->edge);
}

static bool sort_by_cost(struct walk *w)
{
	const struct cg_ways *ways = w->ways;
	struct priced *priced = calloc(ways->graph->edge_count + 1, sizeof *priced);
	if (!priced)
		return false;
	for (uint32_t node = 0; node < ways->graph->node_count; node++) {
		uint32_t first = ways->first_out[node], n = ways->first_out[node + 1] - first;
		for (uint32_t i = 0; i < n; i++)
			priced[i] = (struct priced){cost_of(ways, first + i), first + i};
		qsort(priced, n, sizeof *priced, dearest_first);
		for (uint32_t i = 0; i < n; i++)
			w->dearest[first + i] = priced[i].edge;
	}
	free(priced);
	return true;
}

/* ---- all ------------------------------------------------------------------------------------- */

static void index_edges(struct cg_ways *ways)
{
	const struct cg_graph *graph = ways->graph;
	uint32_t *out = ways->first_out, *in = ways->first_in;
	for (size_t e = 0; e < graph->edge_count; e++) {
		out[graph->edges[e].caller + 1]++;
		in[graph->edges[e].callee + 1]++;
	}
	for (size_t n = 0; n < graph->node_count; n++) {
		out[n + 1] += out[n];
		in[n + 1] += in[n];
	}
	/* Each node's place moves to its end, which is the next one's beginning. */
	for (uint32_t e = 0; e < graph->edge_count; e++)
		ways->in[in[graph->edges[e].callee]++] = e;
	for (size_t n = graph->node_count; n; n--)
		in[n] = in[n - 1];
	in[0] = 0;
}

static bool walk_all(struct walk *w)
{
	uint32_t n = (uint32_t)w->ways->graph->node_count, numbers = 0, place = n;
	for (uint32_t node = 0; node < n; node++)
		w->component[node] = UINT32_MAX;
	for (uint32_t node = 0; node < n; node++) {
		if (!w->number[node])
			find_components(w, node, &numbers);
	}
	if (!sort_by_cost(w))
		return false;
	for (uint32_t component = 0; component < w->component_count; component++)
		walk_component(w, find_entry(w, component), &place);
	return true;
}

bool cg_ways_find(struct cg_ways *ways, const struct cg_graph *graph, unsigned event)
{
	size_t n = graph->node_count + 2, m = graph->edge_count + 1;
	*ways = (struct cg_ways){
		.graph = graph,
		.event = event,
		.first_out = calloc(n, sizeof(uint32_t)),
		.first_in = calloc(n, sizeof(uint32_t)),
		.in = calloc(m, sizeof(uint32_t)),
		.is_cut = calloc(m, sizeof(bool)),
		.entered = calloc(n, sizeof(uint64_t)),
		.order = calloc(n, sizeof(uint32_t)),
	};
	uint32_t *words = calloc(7 * n + m, sizeof *words);
	bool *marks = calloc(2 * n, sizeof *marks);
	struct frame *frames = calloc(n, sizeof *frames);
	struct walk w = {.ways = ways, .frames = frames};
	bool is_good = ways->first_out && ways->first_in && ways->in && ways->is_cut &&
		       ways->entered && ways->order && words && marks && frames;
	if (is_good) {
		uint32_t **arrays[] = {&w.number,   &w.low,     &w.component, &w.waiting,
				       &w.first_of, &w.members, &w.dearest};
		for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
			*arrays[i] = words + i * n;
		w.is_entered = marks;
		w.is_left = marks + n;
		index_edges(ways);
		is_good = walk_all(&w);
	}
	free(words);
	free(marks);
	free(frames);
	return is_good;
}

void cg_ways_end(struct cg_ways *ways)
{
	free(ways->first_out);
	free(ways->first_in);
	free(ways->in);
	free(ways->is_cut);
	free(ways->entered);
	free(ways->order);
	*ways = (struct cg_ways){0};
}
