// SPDX-License-Identifier: MIT
/* Adds up what the lines of profiles say: nodes and edges are made where costs or calls are, so a
 * function that is only named is no node. */
#include "tools/callgrind/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool failed(struct cg_graph *graph, const char *why)
{
	snprintf(graph->error, sizeof graph->error, "%s", why);
	return false;
}

static bool keep_text(struct cg_graph *graph, struct cg_text text, struct cg_text *kept)
{
	struct cg_entry *entry = cg_table_make(&graph->texts, text.at ? text.at : "", text.length);
	if (!entry)
		return failed(graph, "out of memory");
	*kept = entry->key;
	return true;
}

/* The array with room for one more; NULL, and the array as it was, when there is none. */
static void *with_room(struct cg_graph *graph, void *array, size_t count, size_t *room, size_t size)
{
	void *larger = count < UINT32_MAX ? cg_with_room(array, count, room, size) : NULL;
	if (!larger)
		failed(graph, "out of memory for nodes and edges");
	return larger;
}

static uint64_t *new_costs(struct cg_graph *graph)
{
	uint64_t *costs = calloc(graph->event_count, sizeof *costs);
	if (!costs)
		failed(graph, "out of memory");
	return costs;
}

bool cg_graph_add(struct cg_graph *graph, uint64_t *sum, uint64_t more)
{
	if (more > UINT64_MAX - *sum)
		return failed(graph, "the costs do not fit into 64 bits");
	*sum += more;
	return true;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool widen(uint64_t **costs, unsigned from, unsigned to)
{
	uint64_t *wider = realloc(*costs, to * sizeof *wider);
	if (!wider)
		return false;
	memset(wider + from, 0, (to - from) * sizeof *wider);
	*costs = wider;
	return true;
}

struct part {
	struct cg_graph *graph;
	struct cg_reader reader;
	unsigned event_of[CG_EVENTS_MAX]; /* the graph's event of each of the part's */
	uint32_t node, edge;              /* of the costs, and of the call; UINT32_MAX: find it */
};

bool cg_graph_event(struct cg_graph *graph, struct cg_text name, unsigned *which)
{
	unsigned known = graph->event_count;
	bool is_good = true;
	for (*which = 0; *which < known; ++*which) {
		if (!cg_text_compare(graph->events[*which], name))
			return true;
	}
	if (known == CG_EVENTS_MAX)
		return failed(graph, "too many events");
	for (size_t i = 0; is_good && i < graph->node_count; i++)
		is_good = widen(&graph->nodes[i].self, known, known + 1);
	for (size_t i = 0; is_good && i < graph->edge_count; i++)
		is_good = widen(&graph->edges[i].inclusive, known, known + 1);
	if (!is_good)
		return failed(graph, "out of memory");
	if (!keep_text(graph, name, &graph->events[known]))
		return false;
	graph->event_count++;
	return true;
}

/* Where a part's events are among the graph's, which get those that are new. */
static bool read_events(struct part *part, struct cg_text list)
{
	struct cg_text word;
	for (unsigned i = 0; cg_next_word(&list, &word); i++) {
		if (!cg_graph_event(part->graph, word, &part->event_of[i]))
			return false;
	}
	part->graph->part_count++;
	return true;
}

static bool add_costs(struct part *part, uint64_t *sums, const struct cg_line *line)
{
	for (unsigned i = 0; i < part->reader.event_count; i++) {
		if (!cg_graph_add(part->graph, &sums[part->event_of[i]], line->costs[i]))
			return false;
	}
	return true;
}

/* ---- nodes and edges ------------------------------------------------------------------------- */

/* Texts are kept once each, so a node is found by where its three are. */
bool cg_graph_node(struct cg_graph *graph, const struct cg_place *place, uint32_t *found)
{
	struct cg_node node = {0};
	if (!keep_text(graph, place->object, &node.object) ||
	    !keep_text(graph, place->file, &node.file) ||
	    !keep_text(graph, place->function, &node.function))
		return false;
	const char *key[3] = {node.object.at, node.file.at, node.function.at};
	struct cg_entry *entry = cg_table_make(&graph->node_table, key, sizeof key);
	if (!entry)
		return failed(graph, "out of memory");
	if (!entry->flag) {
		struct cg_node *nodes = with_room(graph, graph->nodes, graph->node_count,
						  &graph->node_room, sizeof node);
		if (!nodes)
			return false;
		graph->nodes = nodes;
		node.self = new_costs(graph);
		if (!node.self)
			return false;
		node.is_anonymous = !node.object.length || cg_text_is(node.object, "???");
		entry->number = graph->node_count;
		entry->flag = true;
		graph->nodes[graph->node_count++] = node;
	}
	*found = (uint32_t)entry->number;
	return true;
}

bool cg_graph_edge(struct cg_graph *graph, uint32_t caller, uint32_t callee, uint32_t *found)
{
	const uint32_t key[2] = {caller, callee};
	struct cg_entry *entry = cg_table_make(&graph->edge_table, key, sizeof key);
	if (!entry)
		return failed(graph, "out of memory");
	if (!entry->flag) {
		struct cg_edge edge = {.caller = caller, .callee = callee};
		struct cg_edge *edges = with_room(graph, graph->edges, graph->edge_count,
						  &graph->edge_room, sizeof edge);
		if (!edges)
			return false;
		graph->edges = edges;
		edge.inclusive = new_costs(graph);
		if (!edge.inclusive)
			return false;
		entry->number = graph->edge_count;
		entry->flag = true;
		graph->edges[graph->edge_count++] = edge;
	}
	*found = (uint32_t)entry->number;
	return true;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool read_header(struct part *part, const struct cg_line *line)
{
	struct cg_graph *graph = part->graph;
	struct cg_text rest = line->value, word;
	if (cg_text_is(line->key, "events")) {
		part->node = UINT32_MAX;
		return read_events(part, rest);
	}
	if (cg_text_is(line->key, "positions")) {
		while (cg_next_word(&rest, &word)) {
			graph->has_instructions |= cg_text_is(word, "instr");
			graph->has_lines |= cg_text_is(word, "line");
		}
	}
	if (cg_text_is(line->key, "cmd") && !graph->command.at) {
		while (rest.length && *rest.at == ' ')
			rest.at++, rest.length--;
		return keep_text(graph, rest, &graph->command);
	}
	return true;
}

static bool read_line(struct part *part, const struct cg_line *line)
{
	struct cg_graph *graph = part->graph;
	uint32_t callee;
	if (line->kind == CG_HEADER)
		return read_header(part, line);
	if (line->kind == CG_NAME)
		part->node = UINT32_MAX;
	if (line->kind != CG_COST && line->kind != CG_CALLS && line->kind != CG_CALL_COST)
		return true;
	if (part->node == UINT32_MAX && !cg_graph_node(graph, &part->reader.now, &part->node))
		return false;
	if (line->kind == CG_COST)
		return add_costs(part, graph->nodes[part->node].self, line) &&
		       add_costs(part, graph->totals, line);
	if (line->kind == CG_CALL_COST)
		return add_costs(part, graph->edges[part->edge].inclusive, line);
	return cg_graph_node(graph, &part->reader.called, &callee) &&
	       cg_graph_edge(graph, part->node, callee, &part->edge) &&
	       cg_graph_add(graph, &graph->edges[part->edge].calls, line->times);
}

bool cg_graph_read(struct cg_graph *graph, const char *text, size_t length)
{
	struct part part = {.graph = graph, .node = UINT32_MAX};
	struct cg_line line = {.kind = CG_SKIPPED};
	bool is_good = true;
	cg_reader_begin(&part.reader, text, length);
	while (is_good && cg_reader_next(&part.reader, &line))
		is_good = read_line(&part, &line);
	if (part.reader.error[0])
		is_good = failed(graph, part.reader.error);
	if (!is_good)
		graph->line_number = part.reader.line_number;
	cg_reader_end(&part.reader);
	return is_good;
}

/* ---- order ----------------------------------------------------------------------------------- */

int cg_node_compare(const struct cg_node *left, const struct cg_node *right)
{
	int order = cg_text_compare(left->object, right->object);
	order = order ? order : cg_text_compare(left->file, right->file);
	return order ? order : cg_text_compare(left->function, right->function);
}

struct sorted {
	struct cg_node node;
	uint32_t was;
};

static int by_names(const void *left, const void *right)
{
	const struct sorted *a = left, *b = right;
	return cg_node_compare(&a->node, &b->node);
}

static int by_nodes(const void *left, const void *right)
{
	const struct cg_edge *a = left, *b = right;
	if (a->caller != b->caller)
		return a->caller < b->caller ? -1 : 1;
	return (a->callee > b->callee) - (a->callee < b->callee);
}

bool cg_graph_sort(struct cg_graph *graph)
{
	struct sorted *sorted = calloc(graph->node_count + 1, sizeof *sorted);
	uint32_t *now = calloc(graph->node_count + 1, sizeof *now);
	bool is_good = sorted && now;
	for (size_t i = 0; is_good && i < graph->node_count; i++)
		sorted[i] = (struct sorted){graph->nodes[i], (uint32_t)i};
	if (is_good)
		qsort(sorted, graph->node_count, sizeof *sorted, by_names);
	for (size_t i = 0; is_good && i < graph->node_count; i++) {
		graph->nodes[i] = sorted[i].node;
		now[sorted[i].was] = (uint32_t)i;
	}
	for (size_t i = 0; is_good && i < graph->edge_count; i++) {
		graph->edges[i].caller = now[graph->edges[i].caller];
		graph->edges[i].callee = now[graph->edges[i].callee];
	}
	if (is_good && graph->edge_count)
		qsort(graph->edges, graph->edge_count, sizeof *graph->edges, by_nodes);
	free(sorted);
	free(now);
	return is_good ? true : failed(graph, "out of memory");
}

struct cg_text cg_graph_base(const struct cg_node *node, uint64_t *level)
{
	struct cg_text name = node->function;
	const char *mark = name.length ? memchr(name.at + 1, '\'', name.length - 1) : NULL;
	*level = 0;
	if (!mark)
		return name;
	/* The depth is in front of the callers, which may be addresses. */
	struct cg_text rest = cg_text(mark + 1, (size_t)(name.at + name.length - mark) - 1);
	bool is_address = rest.length > 1 && rest.at[0] == '0' && rest.at[1] == 'x';
	if (is_address || !cg_take_number(&rest, level) || (rest.length && *rest.at != '\''))
		*level = 0;
	return cg_text(name.at, (size_t)(mark - name.at));
}

void cg_graph_end(struct cg_graph *graph)
{
	for (size_t i = 0; i < graph->node_count; i++)
		free(graph->nodes[i].self);
	for (size_t i = 0; i < graph->edge_count; i++)
		free(graph->edges[i].inclusive);
	free(graph->nodes);
	free(graph->edges);
	cg_table_end(&graph->texts);
	cg_table_end(&graph->node_table);
	cg_table_end(&graph->edge_table);
	*graph = (struct cg_graph){0};
}
