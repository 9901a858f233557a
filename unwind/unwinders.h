/* SPDX-License-Identifier: MIT
 * unwinders.h: the sinks that are unwinders, and the parts that they are made of. */
#ifndef CH_UNWIND_UNWINDERS_H
#define CH_UNWIND_UNWINDERS_H

#include "unwind/sink.h"
#include "unwind/unwind.h"

extern const struct ch__sink_ops ch__sink_libgcc, ch__sink_libunwind;

/* --- sink_libunwind.c --- */
struct ch__nongnu;
const struct ch__nongnu *ch__sink_libunwind_its(const void *state);

/* --- libunwind_own.c: the part of the libunwind sink that serves tables of blocks --- */
struct ch__libunwind_owns {
	const struct ch__nongnu *its;
	struct ch__meta *meta;
	struct ch__libunwind_own *all, *free;
};
void ch__libunwind_own_live(struct ch__libunwind_owns *, struct ch__own *);
void ch__libunwind_own_dead(struct ch__libunwind_owns *, struct ch__own *);
void ch__libunwind_own_destroy(struct ch__libunwind_owns *); /* all are dead */

/* --- eh_frame.c: a section of one CIE a shape, one FDE a page, and a last sentinel --- */
enum { CH__CIE_BYTES = 128 };
void ch__eh_frame_cie(uint8_t *cie, const struct ch__frame_shape *); /* into zeroed bytes */
size_t ch__eh_frame_bytes(uint32_t pages);
/* All FDEs dead, all with the CIE of shape 0. */
void ch__eh_frame_write(uint8_t *section, uintptr_t exec, uint32_t pages, size_t page_bytes,
			const struct ch__frame_shape *shapes);
void ch__eh_frame_shape(uint8_t *section, uint8_t frame, const struct ch__frame_shape *);
/* The page is dead before; page_bytes is the one given to write. */
void ch__eh_frame_live(uint8_t *section, uint32_t page, size_t page_bytes, uint8_t frame);
bool ch__eh_frame_is_live(uint8_t *section, uint32_t page);
void ch__eh_frame_dead(uint8_t *section, uint32_t page);
uint8_t *ch__eh_frame_fde(uint8_t *section, uint32_t page);

/* --- eh_slots.c: a section of one CIE a slot shape, one FDE a slot, and a last sentinel --- */
struct ch__eh_slots { /* where it covers what */
	uintptr_t exec;
	size_t page_bytes;
	uint32_t pages;
	uint16_t slots_at, slot_bytes, code_at;
};
uint32_t ch__eh_slots_in_page(const struct ch__eh_slots *);
size_t ch__eh_slots_bytes(const struct ch__eh_slots *);
/* All FDEs dead; shapes: the first slot shape's. */
void ch__eh_slots_write(uint8_t *section, const struct ch__eh_slots *,
			const struct ch__frame_shape *shapes);
void ch__eh_slots_shape(uint8_t *section, unsigned which, const struct ch__frame_shape *shape);
/* The slots of a page are of this slot shape from here on; all are dead, or of it already. */
void ch__eh_slots_page(uint8_t *section, const struct ch__eh_slots *s, uint32_t page,
		       unsigned which, const struct ch__frame_shape *shape);
uint8_t *ch__eh_slots_fde(uint8_t *section, uint32_t index);
/* The slot that begins at exec; its page's are counted before it. */
uint32_t ch__eh_slots_index(const struct ch__eh_slots *, uintptr_t exec);
bool ch__eh_slots_is_live(uint8_t *section, uint32_t index);
void ch__eh_slots_live(uint8_t *section, uint32_t index, const struct ch__frame_shape *);
void ch__eh_slots_dead(uint8_t *section, uint32_t index);

/* --- libgcc_slots.c: the part of the libgcc sink that serves slot shapes --- */
struct ch__libgcc_slots;
struct ch__libgcc_slots *ch__libgcc_slots_create(const struct ch__sinks_config *,
						 const struct ch__frame_shape *shapes);
void ch__libgcc_slots_destroy(struct ch__libgcc_slots *);
bool ch__libgcc_slots_page(struct ch__libgcc_slots *, uint32_t page, uint8_t frame);
void ch__libgcc_slots_live(struct ch__libgcc_slots *, uintptr_t exec, uint8_t frame);
void ch__libgcc_slots_dead(struct ch__libgcc_slots *, uintptr_t exec);
bool ch__libgcc_slots_is_live(struct ch__libgcc_slots *, uintptr_t exec);
void ch__libgcc_slots_shape(struct ch__libgcc_slots *, uint8_t frame);
void ch__libgcc_slots_close(struct ch__libgcc_slots *); /* all dead */
void ch__libgcc_slots_chunk_gone(struct ch__libgcc_slots *, uint32_t chunk);

/* --- template_cfi.c: what the linked image says of a template's frame --- */
/* Fills what the CIE and the FDE of the template say, and code_bytes. 0 or errno: ENOENT the
 * process has no table for it; ENOTSUP it has one, but in a form that cannot be copied. */
int ch__template_cfi(const struct ch__arch_template *, struct ch__frame_shape *);

#endif
