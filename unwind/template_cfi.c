/* SPDX-License-Identifier: MIT
 * template_cfi.c: takes the frame of a template from the linked image: finds its FDE as an unwinder
 * would and copies the instructions of CIE and FDE, which count from the template's first byte and
 * so hold in every copy. It writes no DWARF of its own and understands no instruction.
 *
 * The linker has resolved everything in the image's tables; an object file's are not usable, since
 * the lengths themselves are relocations there on some architectures (riscv64). A table in a form
 * that this file does not know is refused, never guessed at.
 * Sources: LSB Core 5.0, 10.6 (.eh_frame) and 10.5.1 (encodings). */
#include "unwind/sink.h"

#include <errno.h>
#include <string.h>

struct bases {
	void *text, *data, *function;
};
extern const void *_Unwind_Find_FDE(const void *pc, struct bases *) __attribute__((weak));

enum {
	ENCODING_FORMAT = 0x0f,
	ENCODING_PCREL = 0x10,
	ENCODING_SDATA4 = 0x0b,
	ENCODING_SDATA8 = 0x0c,
	ENCODING_ABSPTR = 0x00,
	HEADER_BYTES = 8, /* length, and id or distance of the CIE */
};

/* What is left to read; `is_bad` once something did not fit. */
struct reader {
	const uint8_t *at, *end;
	bool is_bad;
};

static uint64_t take(struct reader *r, size_t bytes)
{
	uint64_t word = 0;
	if ((size_t)(r->end - r->at) < bytes) {
		r->is_bad = true;
		return 0;
	}
	memcpy(&word, r->at, bytes);
	r->at += bytes;
	return word;
}

/* LEB128 of one byte: every number here is small. */
static uint8_t take_small(struct reader *r)
{
	uint8_t byte = (uint8_t)take(r, 1);
	r->is_bad |= (byte & 0x80) != 0;
	return byte;
}

static uint64_t take_pointer(struct reader *r, uint8_t encoding)
{
	uintptr_t here = (uintptr_t)r->at;
	uint64_t word;
	switch (encoding & ENCODING_FORMAT) {
	case ENCODING_SDATA4:
		word = (uint64_t)(int64_t)(int32_t)take(r, 4);
		break;
	case ENCODING_ABSPTR:
	case ENCODING_SDATA8:
		word = take(r, 8);
		break;
	default:
		return 0; /* where no template begins */
	}
	return encoding & ENCODING_PCREL ? here + word : word;
}

/* The body of a record behind its length and id. Records of 4 GiB have another header. */
static struct reader open_record(const uint8_t *record, uint32_t *id)
{
	uint32_t length;
	memcpy(&length, record, sizeof length);
	memcpy(id, record + 4, sizeof *id);
	bool is_bad = length < 4 || length == UINT32_MAX;
	return (struct reader){record + HEADER_BYTES,
			       is_bad ? record + HEADER_BYTES : record + 4 + length, is_bad};
}

static bool take_program(struct reader *r, uint8_t *program, size_t room, uint8_t *bytes)
{
	size_t n = (size_t)(r->end - r->at);
	if (r->is_bad || n > room)
		return false;
	memcpy(program, r->at, n);
	*bytes = (uint8_t)n;
	return true;
}

/* Augmentation "zR" only: an encoding, and nothing else that a copy would have to say. */
static bool read_cie(const uint8_t *cie, struct ch__frame_shape *shape, uint8_t *encoding)
{
	uint32_t id;
	struct reader r = open_record(cie, &id);
	uint8_t version = (uint8_t)take(&r, 1);
	if (r.is_bad || id != 0 || (version != 1 && version != 3))
		return false;
	if (take(&r, 1) != 'z' || take(&r, 1) != 'R' || take(&r, 1) != 0)
		return false;
	shape->code_align = take_small(&r);
	uint8_t align = take_small(&r);
	shape->data_align = (int8_t)(align & 0x40 ? align | 0x80 : align); /* SLEB128's sign */
	shape->return_register = take_small(&r);
	if (take_small(&r) != 1)
		return false;
	*encoding = (uint8_t)take(&r, 1);
	if (*encoding & ~(ENCODING_FORMAT | ENCODING_PCREL))
		return false;
	return take_program(&r, shape->cfi, sizeof shape->cfi, &shape->bytes);
}

static bool read_fde(const uint8_t *fde, const struct ch__arch_template *template,
		     struct ch__frame_shape *shape)
{
	uint32_t distance;
	uint8_t encoding;
	struct reader r = open_record(fde, &distance);
	if (r.is_bad || distance == 0 || !read_cie(fde + 4 - distance, shape, &encoding))
		return false;
	uint64_t begin = take_pointer(&r, encoding);
	uint64_t bytes = take_pointer(&r, encoding & ENCODING_FORMAT);
	if (r.is_bad || begin != (uintptr_t) template->begin || bytes != template->bytes)
		return false;
	if (take_small(&r) != 0)
		return false;
	shape->code_bytes = (uint8_t)bytes;
	if (!take_program(&r, shape->fde, sizeof shape->fde, &shape->fde_bytes))
		return false;
	return true;
}

int ch__template_cfi(const struct ch__arch_template *template, struct ch__frame_shape *shape)
{
	struct bases bases;
	const void *fde = NULL;
	*shape = (struct ch__frame_shape){0};
	if (_Unwind_Find_FDE)
		fde = _Unwind_Find_FDE(template->begin + 1, &bases);
	if (!fde)
		return ENOENT;
	if (template->bytes > UINT8_MAX || !read_fde(fde, template, shape)) {
		*shape = (struct ch__frame_shape){0};
		return ENOTSUP;
	}
	return 0;
}
