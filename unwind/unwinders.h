/* SPDX-License-Identifier: MIT
 * unwinders.h: the sinks that are unwinders, and their parts. */
#pragma once

#include "unwind/sink.h"
#include "unwind/unwind.h"

extern const struct ch__sink_ops ch__sink_libgcc, ch__sink_libunwind;

enum { CH__CIE_MOST_BYTES = 1024 }; /* of the shape of steps */
/* The code of a section: whole pages, or the slots of each page. */
struct ch__eh_place {
	uintptr_t exec;
	size_t page_bytes;
	uint32_t pages;
	size_t slot_bytes, code_at; /* the code's first byte in a slot; 0 for pages */
};
/* Writes the CIE of shapes[frame] into zeroed bytes, or over an older one. Returns its bytes. */
size_t ch__eh_frame_cie(uint8_t *cie, const struct ch__frame_shape *shapes, uint8_t frame);
size_t ch__eh_frame_bytes(const struct ch__eh_place *);
uint32_t ch__eh_frame_of_page(const struct ch__eh_place *); /* how many FDEs a page has */
/* Writes CIEs and FDEs, dead and of shape 0, into zeroed bytes or over a section. */
void ch__eh_frame_write(uint8_t *section, const struct ch__eh_place *,
			const struct ch__frame_shape *shapes);
uint8_t *ch__eh_frame_fde(uint8_t *section, uint32_t index);
/* Makes a dead FDE live, for so many bytes from its first pc on; writes the CIE of a shape that has
 * come since the section was written. */
void ch__eh_frame_live(uint8_t *section, uint32_t index, size_t bytes,
		       const struct ch__frame_shape *shapes, uint8_t frame);
bool ch__eh_frame_is_live(uint8_t *section, uint32_t index);
void ch__eh_frame_dead(uint8_t *section, uint32_t index);

/* What one unwinder was told of a heap's pages. */
struct ch__sections {
	const struct ch__sinks_config *config;
	const struct ch__sink_ops *ops;
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
int ch__sections_open(const struct ch__sinks_config *, const struct ch__sink_ops *, void **state);
void ch__sections_close(void *state, int error);
void ch__sections_destroy(void *state);
bool ch__sections_live(void *state, uint32_t page, uint32_t pages, uint8_t frame);
void ch__sections_dead(void *state, uint32_t page, uint32_t pages);
void ch__sections_chunk_gone(void *state, uint32_t chunk);
