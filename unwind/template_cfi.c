/* SPDX-License-Identifier: MIT
 * template_cfi.c: takes the frame of a template from the linked image: finds its FDE as an unwinder
 * would, and copies the instructions of CIE and FDE, which count from the template's first byte and
 * so hold in every copy. No DWARF is written here, and no instruction is understood.
 *
 * The linker has resolved everything in the image's tables; an object file's tables are not usable,
 * since on some architectures (riscv64) the lengths themselves are relocations there. A table in a
 * form that this file does not copy is refused, never guessed at. */
#include "unwind/unwinders.h"

#include <errno.h>

struct bases {
	void *text, *data, *function;
};
extern const void *_Unwind_Find_FDE(const void *pc, struct bases *) __attribute__((weak));

static bool copy(const uint8_t *program, uint32_t bytes, uint8_t *to, size_t room, uint8_t *copied)
{
	if (bytes > room)
		return false;
	memcpy(to, program, bytes);
	*copied = (uint8_t)bytes;
	return true;
}

/* Augmentation "zR" only: an encoding, and nothing else for a copy to say. Every number of the CIE
 * is small: a LEB128 of one byte. */
static bool take_cie(const struct ch__eh_frame_fde *fde, struct ch__frame_shape *shape)
{
	enum { FACTS = 3, DATA = 2 }; /* DATA: a length and the encoding */
	const uint8_t *facts = fde->facts;
	if (strcmp(fde->letters, "zR") != 0 || fde->facts_bytes != FACTS ||
	    fde->initial != facts + FACTS + DATA || ((facts[0] | facts[1] | facts[2]) & 0x80))
		return false;
	shape->code_align = facts[0];
	/* SLEB128's sign */
	shape->data_align = (int8_t)(facts[1] & 0x40 ? facts[1] | 0x80 : facts[1]);
	shape->return_register = facts[2];
	return copy(fde->initial, fde->initial_bytes, shape->cfi, sizeof shape->cfi, &shape->bytes);
}

static bool take_fde(const struct ch__eh_frame_fde *fde, const struct ch__arch_template *template,
		     struct ch__frame_shape *shape)
{
	if (fde->low != (uintptr_t) template->begin || fde->bytes != template->bytes ||
	    fde->bytes > UINT8_MAX || fde->data_bytes)
		return false;
	shape->code_bytes = (uint8_t)fde->bytes;
	return copy(fde->program, fde->program_bytes, shape->fde, sizeof shape->fde,
		    &shape->fde_bytes);
}

int ch__template_cfi(const struct ch__arch_template *template, struct ch__frame_shape *shape)
{
	struct bases bases;
	struct ch__eh_frame_fde fde;
	const void *record = NULL;
	*shape = (struct ch__frame_shape){0};
	if (_Unwind_Find_FDE)
		record = _Unwind_Find_FDE(template->begin + 1, &bases);
	if (!record)
		return ENOENT;
	bool is_copied = ch__eh_frame_of_image(record, &fde) && take_cie(&fde, shape) &&
			 take_fde(&fde, template, shape);
	if (!is_copied)
		*shape = (struct ch__frame_shape){0};
	return is_copied ? 0 : ENOTSUP;
}
