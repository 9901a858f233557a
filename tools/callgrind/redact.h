// SPDX-License-Identifier: MIT
/* Names without what differs from machine to machine and from run to run: addresses, folders, the
 * versions of libraries. */
#pragma once
#include "tools/callgrind/output.h"

/* Paths by the least of their ends that tells them apart: mostly the name of the file. */
struct cg_paths {
	struct cg_table labels; /* by path; .text is the label, once they are made */
	struct cg_table ends;   /* the labels' texts */
};
/* All of them first. False: no memory. */
bool cg_paths_add(struct cg_paths *paths, struct cg_text path);
bool cg_paths_label(struct cg_paths *paths);
struct cg_text cg_paths_find(const struct cg_paths *paths, struct cg_text path);
void cg_paths_end(struct cg_paths *paths);

/* Appends the text, U+FFFD for each byte that is no UTF-8. */
bool cg_redact_bytes(struct cg_output *output, struct cg_text text);
/* Appends the name. Of code in no object file, a name is whatever the program has said. */
bool cg_redact_function(struct cg_output *output, struct cg_text name, bool is_in_no_object);
