// SPDX-License-Identifier: MIT
/* {"format": "callgrind-names 1", "events": ["Ir"],
 *  "nodes": [{"object": "a.out", "file": "a.c", "function": "main", "costs": [12]}],
 *  "edges": [{"caller": 0, "callee": 0, "calls": 1, "costs": [9]}]}
 *
 * Nodes are meant by their place in the list. "events" and "costs" are there together or not at
 * all. The reader takes the keys in this order only. */
#include "tools/callgrind/graph_json.h"

#include "tools/callgrind/redact.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char format_name[] = "callgrind-names 1";

/* ---- redaction ------------------------------------------------------------------------------- */

static bool fail(struct cg_graph *graph, const char *why)
{
	snprintf(graph->error, sizeof graph->error, "%s", why);
	return false;
}

static bool add_all(struct cg_graph *graph, uint64_t *sums, const uint64_t *more)
{
	for (unsigned i = 0; i < graph->event_count; i++) {
		if (!cg_graph_add(graph, &sums[i], more[i]))
			return false;
	}
	return true;
}

/* The three names one behind the other. */
static bool redact_names(struct cg_output *names, const struct cg_node *node,
			 const struct cg_paths *objects, const struct cg_paths *files,
			 bool has_functions, struct cg_place *place)
{
	bool is_good = cg_redact_bytes(names, cg_paths_find(objects, node->object));
	size_t object = names->length;
	is_good = is_good && cg_redact_bytes(names, cg_paths_find(files, node->file));
	size_t file = names->length;
	is_good = is_good &&
		  (has_functions ? cg_redact_function(names, node->function, node->is_anonymous)
				 : cg_output_text(names, node->function));
	/* So that there are bytes to point to. */
	is_good = is_good && cg_output_put(names, "", 1);
	if (!is_good)
		return false;
	place->object = cg_text(names->at, object);
	place->file = cg_text(names->at + object, file - object);
	place->function = cg_text(names->at + file, names->length - 1 - file);
	return true;
}

static bool redact_node(struct cg_graph *redacted, const struct cg_node *node,
			const struct cg_paths *objects, const struct cg_paths *files,
			bool has_functions, uint32_t *at)
{
	struct cg_output names = {0};
	struct cg_place place;
	bool is_named = redact_names(&names, node, objects, files, has_functions, &place);
	bool is_done = is_named ? cg_graph_node(redacted, &place, at) &&
					  add_all(redacted, redacted->nodes[*at].self, node->self)
				: fail(redacted, "out of memory");
	cg_output_end(&names);
	return is_done;
}

static bool redact_edges(struct cg_graph *redacted, const struct cg_graph *graph,
			 const uint32_t *places)
{
	for (size_t i = 0; i < graph->edge_count; i++) {
		const struct cg_edge *edge = &graph->edges[i];
		uint32_t at;
		if (!cg_graph_edge(redacted, places[edge->caller], places[edge->callee], &at) ||
		    !cg_graph_add(redacted, &redacted->edges[at].calls, edge->calls) ||
		    !add_all(redacted, redacted->edges[at].inclusive, edge->inclusive))
			return false;
	}
	return true;
}

static bool redact_all(struct cg_graph *redacted, const struct cg_graph *graph, bool has_functions,
		       struct cg_paths *objects, struct cg_paths *files, uint32_t *places)
{
	bool is_good = places != NULL;
	for (size_t i = 0; is_good && i < graph->node_count; i++)
		is_good = cg_paths_add(objects, graph->nodes[i].object) &&
			  cg_paths_add(files, graph->nodes[i].file);
	if (!is_good || !cg_paths_label(objects) || !cg_paths_label(files))
		return fail(redacted, "out of memory");
	for (unsigned i = 0; is_good && i < graph->event_count; i++) {
		unsigned which;
		is_good = cg_graph_event(redacted, graph->events[i], &which);
	}
	for (size_t i = 0; is_good && i < graph->node_count; i++)
		is_good = redact_node(redacted, &graph->nodes[i], objects, files, has_functions,
				      &places[i]);
	for (unsigned i = 0; i < graph->event_count; i++)
		redacted->totals[i] = graph->totals[i];
	return is_good && redact_edges(redacted, graph, places) && cg_graph_sort(redacted);
}

bool cg_graph_redact(struct cg_graph *redacted, const struct cg_graph *graph, bool has_functions)
{
	struct cg_paths objects = {0}, files = {0};
	uint32_t *places = calloc(graph->node_count + 1, sizeof *places);
	bool is_done = redact_all(redacted, graph, has_functions, &objects, &files, places);
	cg_paths_end(&objects);
	cg_paths_end(&files);
	free(places);
	return is_done;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_costs(struct cg_output *output, const uint64_t *costs, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		cg_output_print(output, "%s%" PRIu64, i ? ", " : ", \"costs\": [", costs[i]);
	cg_output_print(output, "%s", count ? "]}" : "}");
}

static void put_key(struct cg_output *output, const char *key, struct cg_text value)
{
	cg_output_print(output, "%s\": ", key);
	cg_output_json(output, value);
}

bool cg_graph_write_json(const struct cg_graph *graph, bool has_costs, struct cg_output *output)
{
	unsigned events = has_costs ? graph->event_count : 0;
	cg_output_print(output, "{\"format\": \"%s\",\n", format_name);
	for (unsigned i = 0; i < events; i++) {
		cg_output_print(output, "%s", i ? ", " : "\"events\": [");
		cg_output_json(output, graph->events[i]);
	}
	cg_output_print(output, "%s\"nodes\": [", events ? "],\n" : "");
	for (size_t i = 0; i < graph->node_count; i++) {
		const struct cg_node *node = &graph->nodes[i];
		put_key(output, i ? ",\n{\"object" : "\n{\"object", node->object);
		put_key(output, ", \"file", node->file);
		put_key(output, ", \"function", node->function);
		put_costs(output, node->self, events);
	}
	cg_output_print(output, "\n],\n\"edges\": [");
	for (size_t i = 0; i < graph->edge_count; i++) {
		const struct cg_edge *edge = &graph->edges[i];
		cg_output_print(output,
				"%s\n{\"caller\": %" PRIu32 ", \"callee\": %" PRIu32
				", \"calls\": %" PRIu64,
				i ? "," : "", edge->caller, edge->callee, edge->calls);
		put_costs(output, edge->inclusive, events);
	}
	cg_output_print(output, "\n]}\n");
	return !output->failed;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct source {
	struct cg_graph *graph;
	struct cg_text rest;
	struct cg_output text[3]; /* strings that were read */
};

static void skip_space(struct source *source)
{
	while (source->rest.length && strchr(" \t\r\n", *source->rest.at) && *source->rest.at) {
		source->graph->line_number += *source->rest.at == '\n';
		source->rest.at++, source->rest.length--;
	}
}

static bool follows(struct source *source, const char *wanted)
{
	size_t n = strlen(wanted);
	skip_space(source);
	if (source->rest.length < n || memcmp(source->rest.at, wanted, n) != 0)
		return false;
	source->rest.at += n, source->rest.length -= n;
	return true;
}

static bool expect(struct source *source, const char *wanted)
{
	if (follows(source, wanted))
		return true;
	snprintf(source->graph->error, sizeof source->graph->error, "there is no %s", wanted);
	return false;
}

static bool expect_key(struct source *source, const char *key)
{
	char wanted[24];
	snprintf(wanted, sizeof wanted, "\"%s\"", key);
	return expect(source, wanted) && expect(source, ":");
}

static bool read_number(struct source *source, uint64_t *number)
{
	skip_space(source);
	/* cg_take_number knows hexadecimal ones too, which JSON does not. */
	const char *at = source->rest.at;
	if (source->rest.length > 1 && at[0] == '0' && (at[1] | 32) == 'x')
		return fail(source->graph, "no number");
	return cg_take_number(&source->rest, number) || fail(source->graph, "no number of 64 bits");
}

/* \uXXXX, of which this format uses the first plane only. */
static bool read_code(struct source *source, struct cg_output *to)
{
	char digits[8] = "";
	if (source->rest.length < 4)
		return fail(source->graph, "a string without an end");
	memcpy(digits, source->rest.at, 4);
	unsigned long code = strtoul(digits, NULL, 16);
	if (strspn(digits, "0123456789abcdefABCDEF") != 4 || (code & 0xf800) == 0xd800)
		return fail(source->graph, "a character that is none");
	source->rest.at += 4, source->rest.length -= 4;
	if (code < 0x80)
		return cg_output_put(to, (const char[]){(char)code}, 1);
	if (code < 0x800)
		return cg_output_put(
			to, (const char[]){(char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f))},
			2);
	return cg_output_put(to,
			     (const char[]){(char)(0xe0 | code >> 12),
					    (char)(0x80 | (code >> 6 & 0x3f)),
					    (char)(0x80 | (code & 0x3f))},
			     3);
}

static bool read_escape(struct source *source, struct cg_output *to)
{
	static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
	const char *which =
		source->rest.length && *source->rest.at ? strchr(names, *source->rest.at) : NULL;
	char first = (char)(source->rest.length ? *source->rest.at : 0);
	if (!which && first != 'u')
		return fail(source->graph, "a backslash before what it does not stand before");
	source->rest.at++, source->rest.length--;
	return which ? cg_output_put(to, &meant[which - names], 1) : read_code(source, to);
}

static bool read_string(struct source *source, struct cg_output *to)
{
	to->length = 0;
	if (!expect(source, "\""))
		return false;
	while (source->rest.length && *source->rest.at != '"') {
		char c = *source->rest.at;
		if ((unsigned char)c < ' ')
			return fail(source->graph, "a control character in a string");
		source->rest.at++, source->rest.length--;
		if (c == '\\' ? !read_escape(source, to) : !cg_output_put(to, &c, 1))
			return !to->failed ? false : fail(source->graph, "out of memory");
	}
	return follows(source, "\"") || fail(source->graph, "a string without an end");
}

static struct cg_text text_of(const struct cg_output *output)
{
	return cg_text(output->at ? output->at : "", output->length);
}

static bool read_costs(struct source *source, uint64_t *sums, uint64_t *totals)
{
	struct cg_graph *graph = source->graph;
	for (unsigned i = 0; i < graph->event_count; i++) {
		uint64_t cost;
		if (!(i ? expect(source, ",")
			: expect(source, ",") && expect_key(source, "costs") &&
				      expect(source, "[")))
			return false;
		if (!read_number(source, &cost) || !cg_graph_add(graph, &sums[i], cost) ||
		    (totals && !cg_graph_add(graph, &totals[i], cost)))
			return false;
	}
	return (!graph->event_count || expect(source, "]")) && expect(source, "}");
}

static bool read_node(struct source *source)
{
	static const char *const keys[] = {"object", "file", "function"};
	struct cg_graph *graph = source->graph;
	size_t before = graph->node_count;
	uint32_t at;
	for (int i = 0; i < 3; i++) {
		if (!expect(source, i ? "," : "{") || !expect_key(source, keys[i]) ||
		    !read_string(source, &source->text[i]))
			return false;
	}
	struct cg_place place = {text_of(&source->text[0]), text_of(&source->text[1]),
				 text_of(&source->text[2])};
	if (!cg_graph_node(graph, &place, &at))
		return false;
	if (graph->node_count == before)
		return fail(graph, "a node that was there before");
	return read_costs(source, graph->nodes[at].self, graph->totals);
}

static bool read_edge(struct source *source)
{
	struct cg_graph *graph = source->graph;
	uint64_t caller, callee, calls;
	size_t before = graph->edge_count;
	uint32_t at;
	if (!expect(source, "{") || !expect_key(source, "caller") ||
	    !read_number(source, &caller) || !expect(source, ",") ||
	    !expect_key(source, "callee") || !read_number(source, &callee) ||
	    !expect(source, ",") || !expect_key(source, "calls") || !read_number(source, &calls))
		return false;
	if (caller >= graph->node_count || callee >= graph->node_count)
		return fail(graph, "an edge of a node that is not there");
	if (!cg_graph_edge(graph, (uint32_t)caller, (uint32_t)callee, &at))
		return false;
	if (graph->edge_count == before)
		return fail(graph, "an edge that was there before");
	graph->edges[at].calls = calls;
	return read_costs(source, graph->edges[at].inclusive, NULL);
}

static bool read_list(struct source *source, const char *key, bool (*read)(struct source *))
{
	if (!expect_key(source, key) || !expect(source, "["))
		return false;
	for (bool is_first = true; !follows(source, "]"); is_first = false) {
		if ((!is_first && !expect(source, ",")) || !read(source))
			return false;
	}
	return true;
}

static bool read_event(struct source *source)
{
	unsigned before = source->graph->event_count, which;
	if (!read_string(source, &source->text[0]) ||
	    !cg_graph_event(source->graph, text_of(&source->text[0]), &which))
		return false;
	return source->graph->event_count > before ||
	       fail(source->graph, "an event that was there before");
}

static bool read_all(struct source *source)
{
	if (!expect(source, "{") || !expect_key(source, "format") ||
	    !read_string(source, &source->text[0]))
		return false;
	if (!cg_text_is(text_of(&source->text[0]), format_name))
		return fail(source->graph, "another format than callgrind-names 1");
	if (!expect(source, ","))
		return false;
	struct cg_text here = source->rest;
	size_t line = source->graph->line_number;
	bool has_events = follows(source, "\"events\"");
	source->rest = here;
	source->graph->line_number = line;
	if (has_events && (!read_list(source, "events", read_event) || !expect(source, ",")))
		return false;
	if (!read_list(source, "nodes", read_node) || !expect(source, ",") ||
	    !read_list(source, "edges", read_edge) || !expect(source, "}"))
		return false;
	skip_space(source);
	return !source->rest.length || fail(source->graph, "something behind the end");
}

bool cg_graph_read_json(struct cg_graph *graph, const char *text, size_t length)
{
	struct source source = {.graph = graph, .rest = cg_text(text, length)};
	graph->line_number = 1;
	bool is_good = read_all(&source) && cg_graph_sort(graph);
	for (int i = 0; i < 3; i++)
		cg_output_end(&source.text[i]);
	if (is_good)
		graph->line_number = 0;
	return is_good;
}
