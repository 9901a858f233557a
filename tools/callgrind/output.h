// SPDX-License-Identifier: MIT
/* A text that is made in memory, and the file that it becomes: whole or not at all. */
#pragma once
#include "tools/callgrind/table.h"

/* What is put behind a failure is dropped: it is enough to look at `failed` at the end. */
struct cg_output {
	char *at;
	size_t length, room;
	bool failed; /* memory ran out */
};

bool cg_output_put(struct cg_output *output, const void *at, size_t length);
bool cg_output_text(struct cg_output *output, struct cg_text text);
bool cg_output_print(struct cg_output *output, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* A JSON string with its quotes. Bytes that are no UTF-8 become U+FFFD. */
bool cg_output_json(struct cg_output *output, struct cg_text text);
/* As a word of a line: control characters, which a terminal would obey, are question marks. */
void cg_output_word(struct cg_output *output, struct cg_text text);
void cg_output_end(struct cg_output *output);

/* Writes a file beside the path and gives it that name, so that who reads the path sees the old
 * file or the whole new one; a link stays, and what it leads to is replaced. What is no regular
 * file is written as it is, what a standard stream leads to behind what is there. NULL: standard
 * output.
 * False with errno, and what was at the path is as it was. */
bool cg_output_save(const struct cg_output *output, const char *path);

/* The bytes of the character at the beginning, 1 to 4; 0 when they are no UTF-8. */
unsigned cg_character(struct cg_text text);
