/* SPDX-License-Identifier: MIT
 * frames.c: reads .eh_frame records as LLVM writes them for ELF, and writes each record again with
 * absolute pointers, behind a copy of its CIE.
 *
 *   read     CIE  length | 0 | version | letters, 0 | code, data alignment | return register
 *                 | bytes of data | data by letter | program
 *            FDE  length | distance to the CIE | first pc | bytes of pc | bytes of data | LSDA
 *                 | program
 *   written  the same fields; letter R = absolute, L = absolute, P = absolute, and still through
 *            the pointer in the module's data where LLVM wrote such a pointer. Programs are copied:
 *            they hold distances only.
 *
 * Sources: LSB Core 5.0, 10.5 and 10.6. */
#include "frames.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	FORMAT = 0x0f,
	FORMAT_ABSOLUTE = 0x00,
	BASE = 0x70,
	BASE_PC = 0x10,
	INDIRECT = 0x80,
	OMITTED = 0xff,
	NOP = 0,
	POINTER_BYTES = 8,
	CIES_MOST = 32, /* LLVM writes a CIE for each personality of the module */
};

struct reader {
	const uint8_t *section, *at, *end;
	uintptr_t address;
	bool is_over; /* a read went behind the end */
};

struct cie {
	uint32_t offset; /* in the section that is read */
	uint8_t version;
	const char *letters;
	const uint8_t *facts; /* alignment factors and return register */
	size_t facts_bytes;
	uint8_t pc_encoding, lsda_encoding, personality_encoding;
	uintptr_t personality;
	bool has_data;
	const uint8_t *program;
	size_t program_bytes;
};

static const uint8_t *take(struct reader *r, size_t bytes)
{
	static const uint8_t zeros[POINTER_BYTES];
	if ((size_t)(r->end - r->at) < bytes || bytes > POINTER_BYTES) {
		r->is_over = true;
		r->at = r->end;
		return zeros;
	}
	r->at += bytes;
	return r->at - bytes;
}

static uint64_t take_leb128(struct reader *r)
{
	uint64_t value = 0;
	unsigned shift = 0;
	uint8_t byte;
	do {
		byte = *take(r, 1);
		if (shift < 64)
			value |= (uint64_t)(byte & 0x7f) << shift;
		shift += 7;
	} while ((byte & 0x80) && !r->is_over);
	return value;
}

static uint32_t read32(const uint8_t *at)
{
	uint32_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

static unsigned pointer_bytes(uint8_t encoding)
{
	switch (encoding & FORMAT) {
	case 0x0: /* absolute */
	case 0x4: /* 8 bytes without sign */
	case 0xc: /* 8 bytes with sign */
		return 8;
	case 0x2:
	case 0xa:
		return 2;
	case 0x3:
	case 0xb:
		return 4;
	default:
		return 0;
	}
}

/* A pointer of an encoding. 0 in the section is no pointer, whatever the base. */
static uintptr_t take_pointer(struct reader *r, uint8_t encoding)
{
	unsigned bytes = pointer_bytes(encoding);
	uint8_t base = encoding & BASE;
	if (!bytes || (base != 0 && base != BASE_PC)) {
		r->is_over = true;
		return 0;
	}
	uintptr_t place = r->address + (uintptr_t)(r->at - r->section);
	uint64_t value = 0;
	memcpy(&value, take(r, bytes), bytes);
	if ((encoding & 0x08) && bytes < 8 && value >> (bytes * 8 - 1))
		value |= ~UINT64_C(0) << (bytes * 8);
	if (value && base == BASE_PC)
		value += place;
	return (uintptr_t)value;
}

static bool read_cie_data(struct reader *r, struct cie *cie)
{
	for (const char *letter = cie->letters + 1; *letter; letter++) {
		if (*letter == 'R') {
			cie->pc_encoding = *take(r, 1);
		} else if (*letter == 'L') {
			cie->lsda_encoding = *take(r, 1);
		} else if (*letter == 'P') {
			cie->personality_encoding = *take(r, 1);
			if (cie->personality_encoding != OMITTED)
				cie->personality = take_pointer(r, cie->personality_encoding);
		} else if (*letter != 'S' && *letter != 'B') {
			return false;
		}
	}
	return !r->is_over;
}

static bool read_cie(const struct reader *section, uint32_t offset, struct cie *cie)
{
	size_t all = (size_t)(section->end - section->section);
	if (offset > all || all - offset < 12)
		return false;
	const uint8_t *record = section->section + offset;
	uint32_t length = read32(record);
	if (length < 8 || length > all - offset - 4 || read32(record + 4) != 0)
		return false;
	struct reader r = {section->section, record + 8, record + 4 + length, section->address,
			   false};
	*cie = (struct cie){.offset = offset, .lsda_encoding = OMITTED};
	cie->personality_encoding = OMITTED;
	cie->version = *take(&r, 1);
	cie->letters = (const char *)r.at;
	while (*take(&r, 1))
		continue;
	cie->facts = r.at;
	take_leb128(&r);
	take_leb128(&r);
	if (cie->version == 1)
		take(&r, 1);
	else
		take_leb128(&r);
	cie->facts_bytes = (size_t)(r.at - cie->facts);
	if (r.is_over || (cie->version != 1 && cie->version != 3))
		return false;
	cie->has_data = *cie->letters == 'z';
	cie->program = r.at;
	if (cie->has_data) {
		uint64_t data = take_leb128(&r);
		if (r.is_over || data > (size_t)(r.end - r.at))
			return false;
		cie->program = r.at + data;
		if (!read_cie_data(&r, cie) || r.at > cie->program)
			return false;
	} else if (*cie->letters) {
		return false;
	}
	cie->program_bytes = (size_t)(record + 4 + length - cie->program);
	return true;
}

/* --- writing --- */

static bool put(struct frames_range *range, const void *bytes, size_t count)
{
	/* The word that ends the table is always there, behind the bytes in use. */
	if (range->room < range->bytes + count + 4) {
		size_t room = (range->bytes + count + 4) * 2 + 256;
		uint8_t *table = realloc(range->table, room);
		if (!table)
			return false;
		range->table = table;
		range->room = room;
	}
	if (count)
		memcpy(range->table + range->bytes, bytes, count);
	range->bytes += count;
	memset(range->table + range->bytes, 0, 4);
	return true;
}

static bool put_byte(struct frames_range *range, uint8_t byte)
{
	return put(range, &byte, 1);
}

static bool put32(struct frames_range *range, uint32_t word)
{
	return put(range, &word, sizeof word);
}

static bool put_pointer(struct frames_range *range, uint64_t value)
{
	return put(range, &value, sizeof value);
}

/* Records are padded to 8, so that the pointers of the next record are aligned for readers. */
static bool end_record(struct frames_range *range, size_t start)
{
	while ((range->bytes - start) % 8 != 0)
		if (!put_byte(range, NOP))
			return false;
	uint32_t length = (uint32_t)(range->bytes - start - 4);
	memcpy(range->table + start, &length, sizeof length);
	return true;
}

static bool put_cie_data(struct frames_range *range, const struct cie *cie)
{
	size_t at = range->bytes;
	bool is_put = put_byte(range, 0);
	for (const char *letter = cie->letters + 1; *letter && is_put; letter++) {
		if (*letter == 'R') {
			is_put = put_byte(range, FORMAT_ABSOLUTE);
		} else if (*letter == 'L') {
			is_put = put_byte(range, cie->lsda_encoding == OMITTED ? OMITTED
									       : FORMAT_ABSOLUTE);
		} else if (*letter == 'P') {
			bool has_one = cie->personality_encoding != OMITTED;
			uint8_t encoding = FORMAT_ABSOLUTE | (cie->personality_encoding & INDIRECT);
			is_put = put_byte(range, has_one ? encoding : OMITTED) &&
				 (!has_one || put_pointer(range, cie->personality));
		}
	}
	if (is_put)
		range->table[at] = (uint8_t)(range->bytes - at - 1);
	return is_put;
}

static bool put_cie(struct frames_range *range, const struct cie *cie)
{
	size_t start = range->bytes;
	return put32(range, 0) && put32(range, 0) && put_byte(range, cie->version) &&
	       put(range, cie->letters, strlen(cie->letters) + 1) &&
	       put(range, cie->facts, cie->facts_bytes) &&
	       (!cie->has_data || put_cie_data(range, cie)) &&
	       put(range, cie->program, cie->program_bytes) && end_record(range, start);
}

struct fde {
	uintptr_t low, lsda;
	uint64_t bytes;
	const uint8_t *program;
	size_t program_bytes;
};

static bool read_fde(const struct reader *section, const uint8_t *record, uint32_t length,
		     const struct cie *cie, struct fde *fde)
{
	struct reader r = {section->section, record + 8, record + 4 + length, section->address,
			   false};
	bool has_lsda = cie->lsda_encoding != OMITTED;
	if ((cie->pc_encoding | (has_lsda ? cie->lsda_encoding : 0)) & INDIRECT)
		return false;
	*fde = (struct fde){.low = take_pointer(&r, cie->pc_encoding)};
	fde->bytes = take_pointer(&r, cie->pc_encoding & 0x07);
	fde->program = r.at;
	if (cie->has_data) {
		uint64_t data = take_leb128(&r);
		if (r.is_over || data > (size_t)(r.end - r.at))
			return false;
		fde->program = r.at + data;
		if (has_lsda && data)
			fde->lsda = take_pointer(&r, cie->lsda_encoding);
	}
	fde->program_bytes = (size_t)(record + 4 + length - fde->program);
	return !r.is_over;
}

static bool put_fde(struct frames_range *range, const struct cie *cie, size_t cie_at,
		    const struct fde *fde)
{
	size_t start = range->bytes;
	bool has_lsda = cie->lsda_encoding != OMITTED;
	return put32(range, 0) && put32(range, (uint32_t)(start + 4 - cie_at)) &&
	       put_pointer(range, fde->low) && put_pointer(range, fde->bytes) &&
	       (!cie->has_data || put_byte(range, has_lsda ? POINTER_BYTES : 0)) &&
	       (!has_lsda || put_pointer(range, fde->lsda)) &&
	       put(range, fde->program, fde->program_bytes) && end_record(range, start);
}

/* The places of a section's CIEs in the table of each range. */
struct copies {
	struct cie cies[CIES_MOST];
	size_t count;
	size_t *at; /* CIES_MOST of each range; 0 = not there, else the place and 1 more */
};

static enum frames_status add_one(struct copies *copies, const struct reader *section,
				  const uint8_t *record, uint32_t length,
				  struct frames_range *ranges, size_t count)
{
	uint32_t here = (uint32_t)(record + 4 - section->section);
	uint32_t distance = read32(record + 4);
	struct fde fde;
	size_t c = 0;
	if (distance > here)
		return FRAMES_MALFORMED;
	while (c < copies->count && copies->cies[c].offset != here - distance)
		c++;
	if (c == copies->count) {
		if (c == CIES_MOST || !read_cie(section, here - distance, &copies->cies[c]))
			return FRAMES_MALFORMED;
		copies->count++;
	}
	const struct cie *cie = &copies->cies[c];
	if (!read_fde(section, record, length, cie, &fde))
		return FRAMES_MALFORMED;
	for (size_t i = 0; i < count; i++) {
		struct frames_range *range = &ranges[i];
		size_t *copy = &copies->at[i * CIES_MOST + c];
		if (!fde.bytes || fde.low < range->low || fde.low >= range->high)
			continue;
		if (fde.bytes > range->high - fde.low)
			return FRAMES_MALFORMED;
		if (!*copy) {
			size_t at = range->bytes;
			if (!put_cie(range, cie))
				return FRAMES_NO_MEMORY;
			*copy = at + 1;
		}
		return put_fde(range, cie, *copy - 1, &fde) ? FRAMES_OK : FRAMES_NO_MEMORY;
	}
	return FRAMES_OK;
}

enum frames_status frames_add(const uint8_t *section, size_t bytes, uintptr_t address,
			      struct frames_range *ranges, size_t count)
{
	struct reader r = {section, section, section + bytes, address, false};
	struct copies *copies = calloc(1, sizeof *copies);
	enum frames_status status = FRAMES_OK;
	if (!copies)
		return FRAMES_NO_MEMORY;
	copies->at = calloc(count ? count : 1, CIES_MOST * sizeof *copies->at);
	if (!copies->at)
		status = FRAMES_NO_MEMORY;
	for (size_t at = 0; status == FRAMES_OK && bytes - at >= 4;) {
		uint32_t length = read32(section + at);
		if (length == 0)
			break;
		if (length < 4 || length > bytes - at - 4) {
			status = FRAMES_MALFORMED;
			break;
		}
		if (length >= 8 && read32(section + at + 4) != 0)
			status = add_one(copies, &r, section + at, length, ranges, count);
		at += (size_t)length + 4;
	}
	free(copies->at);
	free(copies);
	return status;
}

enum ch_status frames_give(const struct frames_range *range, struct ch_owner owner, unsigned flags,
			   struct ch_code *code)
{
	struct ch_open open = {.size = sizeof open, .owner = owner, .kind = CH_KIND_RODATA};
	struct ch_code data;
	if (!range->table)
		return CH_OK;
	size_t bytes = range->bytes + 4;
	open.hot_bytes = bytes <= UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
	open.flags = flags & CH_OPEN_MAY_COLLECT;
	enum ch_status status = ch_block_open(&open, &data);
	if (status != CH_OK)
		return status;
	memcpy(data.write, range->table, bytes);
	code->eh_frame = data.exec;
	status = ch_edge_attach(code->block, data.block);
	if (status == CH_OK)
		status = ch_block_commit(&data, 1);
	if (status != CH_OK)
		(void)!ch_block_abort(&data);
	return status;
}

void frames_free(struct frames_range *ranges, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		free(ranges[i].table);
		ranges[i].table = NULL;
	}
}
