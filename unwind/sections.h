/* SPDX-License-Identifier: MIT
 * sections.h: the sections of a heap that one unwinder was told of. */
#pragma once

#include "unwind/unwinders.h"

struct ch__unwinder {
	bool (*own_live)(void *state, struct ch__own *); /* as in struct ch__sink_ops */
	void (*own_dead)(void *state, struct ch__own *);
	void (*fde_live)(uintptr_t fde), (*fde_dead)(uintptr_t fde); /* NULL: not told */
	void (*forget)(void); /* called when FDEs have died, or NULL */
	/* Sections lie within 2 GiB of the code. Pages of slots are told as pages of the frame
	 * pointer: returns into a slot lead behind a call of the framed template. Otherwise slots
	 * have sections of their own. */
	bool is_near;
};

struct ch__sections {
	const struct ch__sinks_config *config;
	const struct ch__unwinder *by;
	uint8_t *memory; /* of a near unwinder: a part for each of `parts` */
	size_t memory_bytes, part_bytes;
	size_t row_bytes; /* what a section of slots covers */
	uint32_t rows; /* of slots, in a chunk; 0: slots have no sections */
	uint32_t end;  /* parts from here on never were: no walk reads them */
	/* Of the runtime page, one FDE. Then for each chunk: of its pages, of its slots by row.
	 * NULL: not told. */
	struct ch__part *parts[];
};

/* Entries of struct ch__sink_ops; `state` is a struct ch__sections. */
int ch__sections_open(const struct ch__sinks_config *, const struct ch__unwinder *, void **state);
void ch__sections_close(void *state, int error);
void ch__sections_destroy(void *state);
bool ch__sections_live(void *state, uint32_t page, uint32_t pages, uint8_t frame);
void ch__sections_dead(void *state, uint32_t page, uint32_t pages);
void ch__sections_chunk_gone(void *state, uint32_t chunk);
