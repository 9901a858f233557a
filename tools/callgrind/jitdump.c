// SPDX-License-Identifier: MIT
/* Every number in the file is compared with what is left of it before it is used. A record whose
 * length is right but whose contents are not is skipped and counted; behind one whose length cannot
 * be right nothing can be found. */
#include "tools/callgrind/jitdump.h"

#include <elf.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x4a695444, VERSION = 1, HEADER_BYTES = 40, PREFIX_BYTES = 16 };
enum { LOAD_BYTES = 40, LINES_BYTES = 16, ENTRY_BYTES = 16 };
enum record { LOAD = 0, MOVE = 1, LINES = 2, CLOSE = 3, UNWINDING = 4 };

static uint32_t word32(const char *at)
{
	uint32_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

static uint64_t word64(const char *at)
{
	uint64_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

static bool refuse(struct cg_jitdump *dump, const char *why, uint32_t number)
{
	snprintf(dump->error, sizeof dump->error, why, number);
	return false;
}

static bool is_wrong(struct cg_jitdump *dump, const char *record, const char *why)
{
	dump->wrong++;
	dump->wrong_at = (size_t)(record - dump->start);
	dump->why = why;
	return false;
}

bool cg_jitdump_begin(struct cg_jitdump *dump, const char *text, size_t length)
{
	*dump = (struct cg_jitdump){.start = text, .end = text + length};
	if (length < HEADER_BYTES)
		return refuse(dump, "shorter than the header of a jitdump", 0);
	if (word32(text) == __builtin_bswap32(MAGIC))
		return refuse(dump, "a jitdump of a machine with another order of bytes", 0);
	if (word32(text) != MAGIC)
		return refuse(dump, "no jitdump", 0);
	if (word32(text + 4) != VERSION)
		return refuse(dump, "version %" PRIu32 " of the format is not known",
			      word32(text + 4));
	uint32_t header = word32(text + 8), machine = word32(text + 12);
	if (header < HEADER_BYTES || header > length)
		return refuse(dump, "a header of %" PRIu32 " bytes", header);
	if (machine != EM_X86_64 && machine != EM_AARCH64 && machine != EM_RISCV)
		return refuse(dump, "code of machine %" PRIu32 ", which is not known", machine);
	dump->machine = (uint16_t)machine;
	dump->next = text + header;
	return true;
}

void cg_jitdump_end(struct cg_jitdump *dump)
{
	free(dump->lines);
	*dump = (struct cg_jitdump){0};
}

/* ---- source lines ---------------------------------------------------------------------------- */

struct entry {
	uint64_t address;
	uint32_t line;
	const char *file;
};

/* Takes the next entry; the file "\xff" is that of the entry before it. */
static bool next_entry(struct cg_text *entries, struct entry *entry)
{
	if (entries->length <= ENTRY_BYTES)
		return false;
	const char *name = entries->at + ENTRY_BYTES;
	const char *zero = memchr(name, 0, entries->length - ENTRY_BYTES);
	if (!zero)
		return false;
	entry->address = word64(entries->at);
	entry->line = word32(entries->at + 8);
	if (strcmp(name, "\xff") != 0 || !entry->file)
		entry->file = name;
	entries->length -= (size_t)(zero + 1 - entries->at);
	entries->at = zero + 1;
	return true;
}

static void note_lines(struct cg_jitdump *dump, const char *record, const char *body, size_t bytes)
{
	dump->entries = cg_text(NULL, 0);
	dump->entry_count = 0;
	if (bytes < LINES_BYTES) {
		is_wrong(dump, record, "source lines without an address");
		return;
	}
	dump->entries_address = word64(body);
	dump->entry_count = word64(body + 8);
	dump->entries = cg_text(body + LINES_BYTES, bytes - LINES_BYTES);
	if (dump->entry_count > dump->entries.length / (ENTRY_BYTES + 1)) {
		is_wrong(dump, record, "more source lines than the record has room for");
		dump->entry_count = 0;
	}
}

/* Those of the block's first file, rising and inside; where the last one ends is no line. */
static bool take_lines(struct cg_jitdump *dump, struct cg_block *block)
{
	struct cg_text rest = dump->entries;
	struct entry entry = {0};
	size_t count = dump->entries_address == block->address ? (size_t)dump->entry_count : 0;
	dump->entry_count = 0;
	if (count > dump->line_room) {
		free(dump->lines);
		dump->lines = calloc(count, sizeof *dump->lines);
		dump->line_room = dump->lines ? count : 0;
		if (!dump->lines)
			return refuse(dump, "out of memory", 0);
	}
	block->lines = dump->lines;
	for (; count && next_entry(&rest, &entry); count--) {
		uint64_t offset = entry.address - block->address;
		bool is_end = offset == block->code.length;
		uint64_t last = block->line_count ? dump->lines[block->line_count - 1].offset : 0;
		if (!block->file && !is_end)
			block->file = entry.file;
		if (offset >= block->code.length || offset < last ||
		    strcmp(block->file, entry.file) != 0) {
			dump->left_out += !is_end;
			continue;
		}
		dump->lines[block->line_count++] =
			(struct ch__sink_line){(uint32_t)offset, entry.line};
	}
	dump->left_out += count;
	return true;
}

/* ---- records --------------------------------------------------------------------------------- */

static bool read_load(struct cg_jitdump *dump, const char *record, const char *body, size_t bytes,
		      struct cg_block *block)
{
	if (bytes <= LOAD_BYTES)
		return is_wrong(dump, record, "a load record without a name");
	const char *name = body + LOAD_BYTES, *zero = memchr(name, 0, bytes - LOAD_BYTES);
	uint64_t code_bytes = word64(body + 24);
	if (!zero)
		return is_wrong(dump, record, "a name without an end");
	if (code_bytes != (uint64_t)(body + bytes - (zero + 1)))
		return is_wrong(dump, record, "not as many bytes of code as it says");
	*block = (struct cg_block){
		.time = word64(record + 8),
		.process = word32(body),
		.thread = word32(body + 4),
		.address = word64(body + 16),
		.index = word64(body + 32),
		.name = cg_text(name, (size_t)(zero - name)),
		.code = cg_text(zero + 1, (size_t)code_bytes),
	};
	if (!block->address || !code_bytes || code_bytes > INT32_MAX ||
	    block->address > UINT64_MAX - code_bytes)
		return is_wrong(dump, record, "code that lies nowhere");
	/* What libcodeheap writes over code that went. */
	if (cg_text_is(block->name, "[freed]")) {
		dump->freed++;
		return false;
	}
	return true;
}

bool cg_jitdump_next(struct cg_jitdump *dump, struct cg_block *block)
{
	while (dump->next < dump->end) {
		const char *record = dump->next, *body = record + PREFIX_BYTES;
		size_t left = (size_t)(dump->end - record);
		uint32_t bytes = left < PREFIX_BYTES ? UINT32_MAX : word32(record + 4);
		/* A process that was killed while it wrote. */
		if (bytes > left) {
			dump->is_cut = true;
			dump->next = dump->end;
			return false;
		}
		if (bytes < PREFIX_BYTES) {
			dump->next = dump->end;
			return is_wrong(dump, record, "a record shorter than its own beginning");
		}
		dump->next = record + bytes;
		uint32_t kind = word32(record);
		if (kind == LINES)
			note_lines(dump, record, body, bytes - PREFIX_BYTES);
		else if (kind != LOAD)
			dump->others += kind != CLOSE && kind != UNWINDING;
		else if (read_load(dump, record, body, bytes - PREFIX_BYTES, block))
			return take_lines(dump, block);
	}
	return false;
}
