// SPDX-License-Identifier: MIT
/* An ELF file for each block of a jitdump: what objdump, nm and gdb read. */
#pragma once
#include "tools/callgrind/jitdump.h"
#include "tools/callgrind/output.h"

struct cg_elf_blocks {
	const char *folder;      /* made if it is not there */
	struct cg_jitdump dump;  /* what was found in it */
	struct cg_output list;   /* a line for each file */
	struct cg_table indexes; /* seen; with their times where an index comes again */
	size_t written;
	char error[400];
};

/* False with `error`; the files that were written by then are whole. */
bool cg_elf_blocks_run(struct cg_elf_blocks *blocks, const char *text, size_t length);
void cg_elf_blocks_end(struct cg_elf_blocks *blocks);
