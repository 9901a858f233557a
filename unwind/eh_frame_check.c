/* SPDX-License-Identifier: MIT
 * eh_frame_check.c: reads .eh_frame: whether a section of the VM's may be given to unwinders, and
 * FDEs of such sections. A section may be given when its records lead to its end, its FDEs name
 * CIEs of the section and code of the block, and unwinders read each form of pointer: at others
 * they end the process. A wrong range would hide the code of others. What the VM's CFI programs,
 * LSDAs and personalities do is not judged. No lock; reads the section only.
 *
 *   record   +0 length, 0 = the end | +4 0 = a CIE, else distance back to the CIE
 *   CIE      +8 version | +9 augmentation, 0-terminated | code and data alignment | return register
 *            | length of what follows, when the augmentation starts with z | a part for each letter
 *   FDE      +8 first pc and bytes of pc, as the CIE's letter R says
 *
 * Sources: LSB Core 5.0, 10.6 (.eh_frame) and 10.5 (pointer encodings). */
#include "unwind/unwind.h"

#include <string.h>

enum {
	SECTION_MOST_BYTES = 1 << 20,
	RECORD_ALIGN = 4,
	ENCODING_FORMAT = 0x0f,
	ENCODING_BASE = 0x70,
	ENCODING_PC_RELATIVE = 0x10,
	ENCODING_INDIRECT = 0x80,
	ENCODING_NONE = 0xff,
};

struct cursor {
	const uint8_t *at, *end;
	bool is_over; /* a read went behind the end */
};

static const uint8_t *take(struct cursor *c, size_t bytes)
{
	static const uint8_t zeros[8];
	if ((size_t)(c->end - c->at) < bytes) {
		c->is_over = true;
		return zeros;
	}
	c->at += bytes;
	return c->at - bytes;
}

static uint32_t read32(const uint8_t *at)
{
	uint32_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

/* Serves SLEB128, too, when only the length matters. A number of more than 10 bytes ends the
 * reading: unwinders shift its last bits by more than 63, and may find any value. */
static uint64_t take_leb128(struct cursor *c)
{
	uint64_t value = 0;
	for (unsigned shift = 0; shift < 64; shift += 7) {
		uint8_t byte = *take(c, 1);
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return value;
	}
	c->is_over = true;
	return 0;
}

/* Bytes of a pointer of the encoding; 0: of no fixed length. */
static unsigned encoded_bytes(uint8_t encoding)
{
	/* absptr, udata2, udata4, udata8, sdata2, sdata4, sdata8 */
	static const uint8_t bytes[ENCODING_FORMAT + 1] = {
		[0x0] = 8, [0x2] = 2, [0x3] = 4, [0x4] = 8, [0xa] = 2, [0xb] = 4, [0xc] = 8};
	return bytes[encoding & ENCODING_FORMAT];
}

static uint64_t value_of(const uint8_t *at, uint8_t encoding)
{
	unsigned bytes = encoded_bytes(encoding);
	uint64_t value = 0;
	memcpy(&value, at, bytes); /* little-endian, as all supported architectures are */
	if ((encoding & 0x08) && bytes && bytes < 8 && value >> (bytes * 8 - 1))
		value |= ~UINT64_C(0) << (bytes * 8);
	return value;
}

/* Whether the encoding can be judged here: a registered section has no base for other encodings. */
static bool is_judged(uint8_t encoding)
{
	uint8_t base = encoding & ENCODING_BASE;
	return encoded_bytes(encoding) && !(encoding & ENCODING_INDIRECT) &&
	       (base == 0 || base == ENCODING_PC_RELATIVE);
}

/* Writes what an FDE inherits to *fde. Returns false when malformed, or of a kind not judged. */
static bool read_cie(const uint8_t *record, uint32_t bytes, struct ch__eh_frame_fde *fde)
{
	struct cursor c = {record + 8, record + bytes, false};
	uint8_t version = *take(&c, 1);
	const char *letter = (const char *)c.at;
	while (*take(&c, 1))
		continue;
	if (c.is_over || (version != 1 && version != 3))
		return false;
	fde->version = version;
	fde->letters = letter;
	fde->facts = c.at;
	take_leb128(&c);
	take_leb128(&c);
	if (version == 1)
		take(&c, 1);
	else
		take_leb128(&c);
	fde->facts_bytes = (uint32_t)(c.at - fde->facts);
	fde->initial = c.at;
	fde->initial_bytes = (uint32_t)(c.end - c.at);
	fde->encoding = 0; /* of pcs */
	if (*letter == 0)
		return !c.is_over;
	if (*letter++ != 'z')
		return false;
	uint64_t data = take_leb128(&c);
	if ((size_t)(c.end - c.at) < data)
		return false;
	fde->initial = c.at + data;
	fde->initial_bytes = (uint32_t)(c.end - fde->initial);
	for (bool has_encoding = false;; letter++) {
		if (*letter == 'R' && !has_encoding) {
			fde->encoding = *take(&c, 1);
			has_encoding = true;
		} else if (*letter == 'L' || *letter == 'P') {
			/* The forms of compilers, and none for an LSDA. At others libgcc or LLVM's
			 * libunwind ends the process. */
			uint8_t form = *take(&c, 1);
			bool is_none = form == ENCODING_NONE && *letter == 'L';
			if (!is_none && !is_judged(form & (uint8_t)~ENCODING_INDIRECT))
				return false;
			take(&c, *letter == 'P' ? encoded_bytes(form) : 0);
		} else {
			/* libgcc takes the first R, looks up to S, and skips a byte for B. */
			return !letter[strspn(letter, "SB")] && !c.is_over &&
			       is_judged(fde->encoding);
		}
	}
}

static bool read_fde(const uint8_t *section, const uint8_t *record, uint32_t bytes,
		     struct ch__eh_frame_fde *fde)
{
	uint32_t distance = read32(record + 4);
	if (distance > (size_t)(record + 4 - section) || distance % RECORD_ALIGN)
		return false;
	const uint8_t *cie = record + 4 - distance;
	uint32_t cie_bytes = read32(cie) + 4;
	if (cie_bytes < 12 || cie_bytes > (size_t)(record - cie) || read32(cie + 4) != 0 ||
	    !read_cie(cie, cie_bytes, fde))
		return false;
	uint8_t encoding = fde->encoding;
	unsigned size = encoded_bytes(encoding);
	if (bytes < 8 + 2 * size)
		return false;
	uint64_t first = value_of(record + 8, encoding);
	if ((encoding & ENCODING_BASE) == ENCODING_PC_RELATIVE)
		first += (uintptr_t)(record + 8);
	/* The length is a number, whatever the first pc is relative to. Its sign is extended. */
	fde->low = first;
	fde->bytes = value_of(record + 8 + size, encoding & ENCODING_FORMAT);
	struct cursor c = {record + 8 + (size_t)2 * size, record + bytes, false};
	uint64_t data = *fde->letters ? take_leb128(&c) : 0;
	if (data > (size_t)(c.end - c.at))
		return false;
	fde->record = record;
	fde->program = c.at + data;
	fde->program_bytes = (uint32_t)(c.end - fde->program);
	return !c.is_over;
}

bool ch__eh_frame_next(const uint8_t *section, size_t *at, struct ch__eh_frame_fde *fde)
{
	for (uint32_t length; (length = read32(section + *at)) != 0;) {
		const uint8_t *record = section + *at;
		*at += length + 4;
		if (read32(record + 4) != 0 && read_fde(section, record, length + 4, fde))
			return true;
	}
	return false;
}

const char *ch__eh_frame_fault(const void *eh_frame, uintptr_t low, uintptr_t high, size_t *at)
{
	const uint8_t *section = eh_frame;
	bool covers = false;
	*at = 0;
	if ((uintptr_t)section % RECORD_ALIGN)
		return "the section is not aligned to 4 bytes";
	for (uint32_t length; *at < SECTION_MOST_BYTES; *at += length + 4) {
		const uint8_t *record = section + *at;
		length = read32(record);
		if (length == 0)
			return covers ? NULL : "the end, and no FDE has code";
		/* 0xffffffff announces a 64-bit length, which unwinders refuse. */
		if (length < 8 || length % RECORD_ALIGN || length > SECTION_MOST_BYTES)
			return "no length of a record";
		struct ch__eh_frame_fde fde;
		if (read32(record + 4) == 0) {
			if (!read_cie(record, length + 4, &fde))
				return "a CIE that is malformed, or that unwinders may not take";
			continue;
		}
		if (!read_fde(section, record, length + 4, &fde))
			return "an FDE that is malformed, or without a CIE to take";
		if (fde.low < low || fde.low >= high || fde.bytes > high - fde.low)
			return "an FDE of other code";
		covers |= fde.bytes != 0;
	}
	return "a section has at most 1 MiB";
}
