/* SPDX-License-Identifier: MIT
 * unwinders.h: the sinks that are unwinders, and the parts that they are made of. */
#ifndef CH_UNWIND_UNWINDERS_H
#define CH_UNWIND_UNWINDERS_H

#include "unwind/sink.h"
#include "unwind/unwind.h"

extern const struct ch__sink_ops ch__sink_libgcc, ch__sink_libunwind;

enum { CH__CIE_BYTES = 128 };
/* What a section covers: whole pages, or the slots of each page. */
struct ch__eh_place {
	uintptr_t exec;
	size_t page_bytes;
	uint32_t pages;
	uint16_t slots_at, slot_bytes, code_at; /* as struct ch__frame_shape says; 0 of pages */
};
void ch__eh_frame_cie(uint8_t *cie, const struct ch__frame_shape *); /* into zeroed bytes */
size_t ch__eh_frame_bytes(const struct ch__eh_place *);
uint32_t ch__eh_frame_count(const struct ch__eh_place *); /* of FDEs, without the sentinel */
/* All FDEs dead, all with the CIE of shape 0; into zeroed bytes, or again. */
void ch__eh_frame_write(uint8_t *section, const struct ch__eh_place *,
			const struct ch__frame_shape *shapes);
void ch__eh_frame_shape(uint8_t *section, uint8_t frame, const struct ch__frame_shape *);
uint8_t *ch__eh_frame_fde(uint8_t *section, uint32_t index);
/* The FDE is dead before; it covers so many bytes from its first pc on. */
void ch__eh_frame_live(uint8_t *section, uint32_t index, size_t bytes, uint8_t frame);
bool ch__eh_frame_is_live(uint8_t *section, uint32_t index);
void ch__eh_frame_dead(uint8_t *section, uint32_t index);
/* The FDE of the slot that begins at exec. */
uint32_t ch__eh_slot_index(const struct ch__eh_place *, uintptr_t exec);
/* The slots of a page have this shape's instructions; all are dead, or have them already. */
void ch__eh_slots_page(uint8_t *section, const struct ch__eh_place *, uint32_t page,
		       const struct ch__frame_shape *shape);

/* Fills what the CIE and the FDE of the template say, and code_bytes. 0 or errno: ENOENT the
 * process has no table for it; ENOTSUP it has one, but in a form that cannot be copied. */
int ch__template_cfi(const struct ch__arch_template *, struct ch__frame_shape *);

#endif
