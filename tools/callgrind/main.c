// SPDX-License-Identifier: MIT
/* callgrind-names: the command line, and profiles written with names. */
#define _GNU_SOURCE /* strerrordesc_np */
#include "tools/callgrind/command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"callgrind-names [SWITCH ...] PROFILE ...\n"
	"callgrind-names --json|--folded|--svg [SWITCH ...] PROFILE ...\n"
	"callgrind-names diff [--json] [SWITCH ...] BEFORE AFTER\n"
	"callgrind-names --elf=DIR [--output=FILE] DUMP\n"
	"\n"
	"Writes profiles (callgrind.out.PID; - is standard input) with names for the functions "
	"that callgrind\n"
	"calls by their addresses, because they are in no object file: code made at run time. The "
	"names come from\n"
	"the perf map that the process wrote. Costs, calls and all other names stay as they are.\n"
	"\n"
	"  --perf-map=FILE  the names; default /tmp/perf-PID.map, of the PID that the profile "
	"says\n"
	"  --by-name        blocks of one name become one function; else each gets its address "
	"behind the name\n"
	"  --output=FILE    where to write; default standard output\n"
	"\n"
	"Or their call graph:\n"
	"  --json           nodes and edges, sorted, without addresses, folders and versions: the "
	"same on every machine\n"
	"  --folded         stacks, as flamegraph.pl, inferno and speedscope read them\n"
	"  --svg            a flame graph\n"
	"  --costs          costs, too; else calls only (--json, diff)\n"
	"  --event=NAME     whose costs stacks have; default the profile's first (--folded, "
	"--svg)\n"
	"  --redact         stacks have the names that --json has (--folded, --svg)\n"
	"  --title=TEXT     default the profiled command (--svg)\n"
	"  --icicle         the root is on top (--svg)\n"
	"  --reversed       stacks begin where they ended (--folded, --svg)\n"
	"\n"
	"diff compares two graphs, profiles or what --json wrote, and writes what came (+), went "
	"(-) and changed (~),\n"
	"the largest change first; --json: as JSON.\n"
	"\n"
	"  --elf=DIR        an ELF file in the folder for each block of code in a jitdump "
	"(jit-PID.dump), for objdump;\n"
	"                   the output is a list: index, time, address, bytes, file, name\n"
	"\n"
	"Exit status: 0; 1 when something cannot be read or the output not be written: then there "
	"is no output\n"
	"file, and a file that was there is as it was; 1 with output when --elf met wrong records; "
	"2 for another\n"
	"command line than this. Of diff: 0 no difference, 1 there is one, 2 trouble.\n";

void cg_complain(const char *what, const char *why)
{
	fprintf(stderr, "callgrind-names: %s: %s\n", what, why);
}

void cg_complain_line(const char *name, size_t line, const char *why)
{
	if (line)
		fprintf(stderr, "callgrind-names: %s:%zu: %s\n", name, line, why);
	else
		cg_complain(name, why);
}

bool cg_command_save(const struct cg_command *command, const struct cg_output *output)
{
	if (cg_output_save(output, command->output))
		return true;
	cg_complain(command->output ? command->output : "standard output", strerrordesc_np(errno));
	return false;
}

bool cg_command_name(struct cg_naming *naming, const struct cg_command *command,
		     const struct cg_input *inputs, size_t count)
{
	naming->map_path = command->perf_map;
	naming->is_by_name = command->is_by_name;
	/* Programs without blocks have addresses, too, which a graph may show. */
	naming->may_lack_map = command->mode != CG_NAMES;
	if (!cg_naming_run(naming, inputs, count)) {
		cg_complain_line(naming->input->name, naming->line_number, naming->error);
		return false;
	}
	if (naming->wrong_totals)
		cg_complain_line(naming->wrong_input->name, naming->wrong_totals,
				 "the costs do not add up to these totals");
	for (size_t i = 0; i < naming->process_count; i++) {
		if (naming->processes[i].map.skipped)
			fprintf(stderr, "callgrind-names: perf map: %zu lines are not understood\n",
				naming->processes[i].map.skipped);
	}
	if (naming->may_lack_map && naming->unnamed)
		fprintf(stderr, "callgrind-names: %zu functions are in no perf map\n",
			naming->unnamed);
	return true;
}

int cg_command_names(const struct cg_command *command)
{
	struct cg_naming naming = {0};
	bool is_written = cg_command_name(&naming, command, command->inputs, command->input_count);
	is_written = is_written && cg_command_save(command, &naming.out);
	if (is_written)
		fprintf(stderr, "callgrind-names: %zu functions named, %zu are in no perf map\n",
			naming.named, naming.unnamed);
	cg_naming_end(&naming);
	return is_written ? 0 : 1;
}

/* ---- the command line ------------------------------------------------------------------------ */

/* A switch stands for a mode, sets a flag, or has a value. */
struct known_switch {
	const char *name; /* ends in = when a value follows */
	unsigned modes;   /* with which it goes */
	bool *flag;
	const char **value;
};

/* Whether the argument is a switch that is known; *given gets those modes with which it goes. */
static bool take_switch(struct cg_command *command, const char *argument, unsigned *given)
{
	const unsigned graphs = CG_JSON | CG_FOLDED | CG_SVG, all = CG_NAMES | graphs | CG_DIFF;
	struct cg_command *c = command;
	const struct known_switch switches[] = {
		{"--perf-map=", all, NULL, &c->perf_map},
		{"--by-name", all, &c->is_by_name, NULL},
		{"--output=", all | CG_ELF, NULL, &c->output},
		{"--costs", CG_JSON | CG_DIFF, &c->has_costs, NULL},
		{"--event=", CG_FOLDED | CG_SVG, NULL, &c->event},
		{"--redact", CG_FOLDED | CG_SVG, &c->is_redacted, NULL},
		{"--title=", CG_SVG, NULL, &c->title},
		{"--icicle", CG_SVG, &c->is_icicle, NULL},
		{"--reversed", CG_FOLDED | CG_SVG, &c->is_reversed, NULL},
		{"--json", CG_JSON | CG_DIFF, &c->is_json, NULL},
		{"--folded", CG_FOLDED, NULL, NULL},
		{"--svg", CG_SVG, NULL, NULL},
		{"--elf=", CG_ELF, NULL, &c->folder},
	};
	for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
		const struct known_switch *s = &switches[i];
		size_t n = strlen(s->name);
		if (s->value ? strncmp(argument, s->name, n) != 0 || !argument[n]
			     : strcmp(argument, s->name) != 0)
			continue;
		*given &= s->modes;
		if (s->value)
			*s->value = argument + n;
		if (s->flag)
			*s->flag = true;
		return true;
	}
	return false;
}

/* False: the command line is another than the usage says. */
static bool read_arguments(struct cg_command *command, int argc, char **argv)
{
	unsigned modes = CG_NAMES | CG_JSON | CG_FOLDED | CG_SVG | CG_DIFF | CG_ELF;
	bool is_diff = argc > 1 && !strcmp(argv[1], "diff");
	for (int i = is_diff ? 2 : 1; i < argc; i++) {
		if (argv[i][0] != '-' || !argv[i][1]) {
			command->inputs[command->input_count++].name = argv[i];
		} else if (!take_switch(command, argv[i], &modes)) {
			fprintf(stderr, "callgrind-names: %s: no such option; --help tells\n",
				argv[i]);
			return false;
		}
	}
	/* The least that the switches leave: without one that names the mode, profiles are
	 * written. */
	modes &= is_diff ? CG_DIFF : ~(unsigned)CG_DIFF;
	command->mode = (enum cg_mode)(modes & -modes);
	if (!modes) {
		fprintf(stderr, "callgrind-names: these switches do not go together\n");
		return false;
	}
	if (command->mode == CG_JSON && !command->is_json) {
		fprintf(stderr, "callgrind-names: --costs is for --json and diff\n");
		return false;
	}
	bool is_stacks_only = (modes & CG_FOLDED) && (modes & CG_SVG);
	if (is_stacks_only && command->mode == CG_FOLDED) {
		fprintf(stderr, "callgrind-names: --folded or --svg?\n");
		return false;
	}
	size_t wanted = command->mode == CG_DIFF ? 2 : command->mode == CG_ELF ? 1 : 0;
	if (!command->input_count || (wanted && command->input_count != wanted)) {
		fprintf(stderr, "callgrind-names: %zu inputs, where %s; --help tells\n",
			command->input_count,
			wanted == 2   ? "diff takes two"
			: wanted == 1 ? "--elf takes one"
				      : "one or more are needed");
		return false;
	}
	return true;
}

/* Each of several inputs is read whole before any is looked at. */
static bool read_inputs(const struct cg_command *command)
{
	for (size_t i = 0; i < command->input_count; i++) {
		struct cg_input *input = &command->inputs[i];
		input->text = cg_read_file(input->name, &input->length);
		if (!input->text) {
			cg_complain(input->name, strerrordesc_np(errno));
			return false;
		}
	}
	return true;
}

static int run(const struct cg_command *command)
{
	if (!read_inputs(command))
		return command->mode == CG_DIFF ? 2 : 1;
	if (command->mode == CG_NAMES)
		return cg_command_names(command);
	if (command->mode == CG_DIFF)
		return cg_command_diff(command);
	return command->mode == CG_ELF ? cg_command_elf(command) : cg_command_graph(command);
}

int main(int argc, char **argv)
{
	struct cg_command command = {.inputs = calloc((size_t)argc + 1, sizeof *command.inputs)};
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help")) {
			free(command.inputs);
			if (fputs(usage, stdout) >= 0 && !fflush(stdout))
				return 0;
			cg_complain("standard output", strerrordesc_np(errno));
			return 1;
		}
	}
	if (!command.inputs) {
		cg_complain("arguments", "out of memory");
		return argc > 1 && !strcmp(argv[1], "diff") ? 2 : 1;
	}
	int status = read_arguments(&command, argc, argv) ? run(&command) : 2;
	for (size_t i = 0; i < command.input_count; i++)
		free(command.inputs[i].text);
	free(command.inputs);
	return status;
}
