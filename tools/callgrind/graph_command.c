// SPDX-License-Identifier: MIT
/* Call graphs of profiles as JSON, as stacks and as a picture, and the difference of two. */
#define _GNU_SOURCE /* asprintf */
#include "tools/callgrind/command.h"
#include "tools/callgrind/graph_diff.h"
#include "tools/callgrind/graph_json.h"
#include "tools/callgrind/stacks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_json(const struct cg_input *input)
{
	size_t i = 0;
	while (i < input->length && memchr(" \t\r\n", input->text[i], 4))
		i++;
	return i < input->length && input->text[i] == '{';
}

/* What is written of the inputs has their lines, and one between each two. */
static void complain_graph(const struct cg_graph *graph, const struct cg_input *inputs)
{
	size_t line = graph->line_number;
	for (;; inputs++) {
		bool is_ended = !inputs->length || inputs->text[inputs->length - 1] == '\n';
		size_t lines = !is_ended;
		for (size_t i = 0; i < inputs->length; i++)
			lines += inputs->text[i] == '\n';
		if (line <= lines)
			break;
		line -= lines + 1;
	}
	cg_complain_line(inputs->name, line, graph->error);
}

/* The graph of profiles, with names; false with complaint. */
static bool read_graph(struct cg_graph *graph, const struct cg_command *command,
		       const struct cg_input *inputs, size_t count)
{
	struct cg_naming naming = {0};
	bool is_good = cg_command_name(&naming, command, inputs, count);
	if (is_good &&
	    (!cg_graph_read(graph, naming.out.at, naming.out.length) || !cg_graph_sort(graph))) {
		complain_graph(graph, inputs);
		is_good = false;
	}
	cg_naming_end(&naming);
	return is_good;
}

/* The same with redacted names, of all of it or of objects and files only. */
static bool read_redacted(struct cg_graph *redacted, struct cg_graph *graph,
			  const struct cg_command *command, const struct cg_input *inputs,
			  size_t count, bool has_functions)
{
	if (!read_graph(graph, command, inputs, count))
		return false;
	if (cg_graph_redact(redacted, graph, has_functions))
		return true;
	cg_complain(inputs[0].name, redacted->error);
	return false;
}

/* ---- stacks ---------------------------------------------------------------------------------- */

static bool put(void *output, const char *text, size_t bytes)
{
	return cg_output_put(output, text, bytes);
}

static bool find_event(const struct cg_graph *graph, const struct cg_command *command,
		       unsigned *event)
{
	*event = 0;
	while (command->event && *event < graph->event_count &&
	       !cg_text_is(graph->events[*event], command->event))
		++*event;
	if (*event < graph->event_count)
		return true;
	cg_complain(command->event ? command->event : command->inputs[0].name,
		    "the profile has no such event");
	return false;
}

/* The words of a command without their folders. */
static char *redact_words(struct cg_text text)
{
	struct cg_output words = {0};
	for (size_t i = 0, start = 0; i <= text.length; i++) {
		bool is_end = i == text.length || text.at[i] == ' ';
		if (!is_end && text.at[i] == '/')
			start = i + 1;
		if (!is_end)
			continue;
		cg_output_put(&words, words.length ? " " : "", words.length != 0);
		cg_output_put(&words, text.at + start, i - start);
		start = i + 1;
	}
	if (cg_output_put(&words, "", 1))
		return words.at;
	cg_output_end(&words);
	return NULL;
}

static bool draw(struct ch__flame *flame, const struct cg_command *command,
		 const struct cg_graph *graph, struct cg_text title, unsigned event,
		 struct cg_output *output)
{
	char *texts[2] = {NULL},
	     *made_title = command->is_redacted
				   ? redact_words(title)
				   : strndup(title.length ? title.at : "", title.length);
	struct cg_text unit = graph->events[event];
	bool is_made = made_title && asprintf(&texts[0], "%.*s", (int)unit.length, unit.at) >= 0 &&
		       asprintf(&texts[1], "%" PRIu64 " %s, %zu functions", graph->totals[event],
				texts[0], graph->node_count) >= 0;
	const struct ch__flame_view view = {
		.title = command->title ? command->title : made_title,
		.subtitle = texts[1],
		.unit = texts[0],
		.is_icicle = command->is_icicle,
		.is_reversed = command->is_reversed,
	};
	bool is_drawn = is_made && ch__flame_write_svg(flame, &view, put, output);
	free(made_title);
	free(texts[0]);
	free(texts[1]);
	return is_drawn;
}

static bool write_stacks(const struct cg_command *command, const struct cg_graph *graph,
			 struct cg_text title, struct cg_output *output)
{
	unsigned event;
	if (!find_event(graph, command, &event))
		return false;
	struct ch__meta *meta = ch__meta_create();
	struct ch__flame *flame = meta ? ch__flame_create(meta) : NULL;
	bool is_good = flame && cg_stacks_add(flame, graph, event);
	if (is_good && command->mode == CG_FOLDED)
		is_good = ch__flame_write_folded(flame, command->is_reversed, put, output);
	else if (is_good)
		is_good = draw(flame, command, graph, title, event, output);
	if (!is_good)
		cg_complain(command->inputs[0].name, "out of memory");
	if (meta)
		ch__meta_destroy(meta);
	return is_good;
}

int cg_command_graph(const struct cg_command *command)
{
	struct cg_graph graph = {0}, redacted = {0};
	struct cg_output output = {0};
	bool has_functions = command->mode == CG_JSON || command->is_redacted;
	bool is_good = read_redacted(&redacted, &graph, command, command->inputs,
				     command->input_count, has_functions);
	if (is_good && command->mode == CG_JSON) {
		cg_graph_write_json(&redacted, command->has_costs, &output);
	} else if (is_good) {
		is_good = write_stacks(command, &redacted, graph.command, &output);
	}
	is_good = is_good && cg_command_save(command, &output);
	cg_output_end(&output);
	cg_graph_end(&redacted);
	cg_graph_end(&graph);
	return is_good ? 0 : 1;
}

/* ---- difference ------------------------------------------------------------------------------ */

static bool read_side(struct cg_graph *side, const struct cg_command *command,
		      const struct cg_input *input)
{
	struct cg_graph graph = {0};
	bool is_good;
	if (is_json(input)) {
		is_good = cg_graph_read_json(side, input->text, input->length);
		if (!is_good)
			cg_complain_line(input->name, side->line_number, side->error);
	} else {
		is_good = read_redacted(side, &graph, command, input, 1, true);
	}
	cg_graph_end(&graph);
	return is_good;
}

int cg_command_diff(const struct cg_command *command)
{
	struct cg_graph sides[2] = {{0}, {0}};
	struct cg_diff diff = {0};
	struct cg_output output = {0};
	bool is_good = read_side(&sides[0], command, &command->inputs[0]) &&
		       read_side(&sides[1], command, &command->inputs[1]);
	if (is_good && !cg_diff_find(&diff, &sides[0], &sides[1], command->has_costs)) {
		cg_complain("diff", diff.error);
		is_good = false;
	}
	if (is_good && command->is_json)
		cg_diff_write_json(&diff, &output);
	else if (is_good)
		cg_diff_write_text(&diff, &output);
	is_good = is_good && cg_command_save(command, &output);
	int status = is_good ? diff.count != 0 : 2;
	cg_output_end(&output);
	cg_diff_end(&diff);
	cg_graph_end(&sides[0]);
	cg_graph_end(&sides[1]);
	return status;
}
