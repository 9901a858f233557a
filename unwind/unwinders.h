/* SPDX-License-Identifier: MIT
 * unwinders.h: the sinks that are unwinders, and their parts. */
#pragma once

#include "unwind/sink.h"
#include "unwind/unwind.h"

extern const struct ch__sink_ops ch__sink_libgcc, ch__sink_libunwind;

enum { CH__CIE_BYTES = 136 };
/* The code of a section: whole pages, or the slots of each page. */
struct ch__eh_place {
	uintptr_t exec;
	size_t page_bytes;
	uint32_t pages;
	size_t slot_bytes, code_at; /* the code's first byte in a slot; 0 for pages */
};
void ch__eh_frame_cie(uint8_t *cie, const struct ch__frame_shape *); /* into zeroed bytes */
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
