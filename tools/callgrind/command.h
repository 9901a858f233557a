// SPDX-License-Identifier: MIT
/* What a command line asks for, and the parts of the program that do it. */
#pragma once
#include "tools/callgrind/names.h"
#include "tools/callgrind/output.h"

/* Sets of them say which switches go with which. */
enum cg_mode {
	CG_NAMES = 1,
	CG_JSON = 2,
	CG_FOLDED = 4,
	CG_SVG = 8,
	CG_DIFF = 16,
	CG_ELF = 32,
};

struct cg_command {
	enum cg_mode mode;
	struct cg_input *inputs;
	size_t input_count;
	const char *perf_map, *output;
	bool is_by_name;
	/* of graphs */
	bool has_costs, is_redacted, is_icicle, is_reversed;
	bool is_json; /* of a diff */
	const char *event, *title;
	const char *folder; /* of CG_ELF */
};

/* ---- main.c: a line on standard error */
void cg_complain(const char *what, const char *why);
void cg_complain_line(const char *name, size_t line, const char *why);

/* Each returns the exit status, and has complained if there was trouble. */
int cg_command_names(const struct cg_command *command);
/* ---- graph_command.c */
int cg_command_graph(const struct cg_command *command);
int cg_command_diff(const struct cg_command *command);
/* ---- elf_blocks.c */
int cg_command_elf(const struct cg_command *command);

/* Writes the names of a part of the inputs; false with complaint. */
bool cg_command_name(struct cg_naming *naming, const struct cg_command *command,
		     const struct cg_input *inputs, size_t count);
bool cg_command_save(const struct cg_command *command, const struct cg_output *output);
