/* SPDX-License-Identifier: MIT
 * jitdump_reader.h: a reader of jitdump files for tests, written from the description of the format
 * and sharing nothing with the writer. The reader checks the rules that every reader relies on, and
 * says who owned an address at a time. */
#pragma once

#include "arch/arch.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum dump_kind { DUMP_LOAD = 0, DUMP_LINES = 2, DUMP_UNWINDING = 4 };
enum { DUMP_MOST = 1 << 17 };

struct dump_record {
	uint32_t kind, bytes;
	uint64_t time;
	const uint8_t *body; /* behind kind, bytes and time */
	/* LOAD */
	uint64_t at, code_bytes, index;
	const char *name;
	const uint8_t *code;
	/* Records before the load that belong to the load; NULL: none. */
	const struct dump_record *lines, *unwinding;
};

struct dump {
	uint8_t *bytes;
	size_t size;
	uint32_t pid;
	bool is_cut; /* the last record is not whole */
	size_t count;
	struct dump_record records[DUMP_MOST];
};

static inline uint32_t dump_u32(const uint8_t *at)
{
	uint32_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

static inline uint64_t dump_u64(const uint8_t *at)
{
	uint64_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

static inline void dump_read_load(struct dump *dump, struct dump_record *r)
{
	CHECK(r->bytes >= 16 + 40 + 1);
	CHECK_EQ(dump_u32(r->body), dump->pid);
	CHECK(dump_u32(r->body + 4) != 0); /* thread */
	r->at = dump_u64(r->body + 16);
	CHECK_EQ(dump_u64(r->body + 8), r->at);
	r->code_bytes = dump_u64(r->body + 24);
	r->index = dump_u64(r->body + 32);
	r->name = (const char *)r->body + 40;
	size_t room = r->bytes - 16 - 40;
	size_t name_bytes = strnlen(r->name, room) + 1;
	CHECK_EQ(name_bytes + r->code_bytes, room);
	CHECK(r->code_bytes > 0);
	r->code = (const uint8_t *)r->name + name_bytes;
}

/* Entries rise, lie in the code, and end at the end of the code. */
static inline void dump_check_lines(const struct dump_record *lines, const struct dump_record *load)
{
	const uint8_t *at = lines->body + 16, *end = lines->body + lines->bytes - 16;
	uint64_t count = dump_u64(lines->body + 8), last = 0;
	CHECK_EQ(dump_u64(lines->body), load->at);
	CHECK(count >= 2);
	for (uint64_t i = 0; i < count; i++) {
		CHECK(end - at > 16);
		uint64_t pc = dump_u64(at);
		CHECK(pc >= load->at && pc <= load->at + load->code_bytes && pc >= last);
		last = pc;
		CHECK_EQ(dump_u64(at + 8) >> 32, 0); /* no column */
		at += 16 + strnlen((const char *)at + 16, (size_t)(end - at - 16)) + 1;
	}
	CHECK_EQ(last, load->at + load->code_bytes);
	CHECK(at == end);
}

/* --- unwinding: .eh_frame of one CIE, then FDEs; then .eh_frame_hdr --- */
static inline const uint8_t *dump_cie(const struct dump_record *u)
{
	return u->body + 24;
}

static inline const uint8_t *dump_hdr(const struct dump_record *u)
{
	return dump_cie(u) + dump_u64(u->body) - dump_u64(u->body + 8);
}

static inline const uint8_t *dump_fde(const struct dump_record *u, size_t i)
{
	const uint8_t *entry = dump_cie(u);
	for (; i != SIZE_MAX; i--)
		entry += 4 + dump_u32(entry);
	return entry;
}

static inline size_t dump_count_fdes(const struct dump_record *u)
{
	size_t n = 0;
	while (dump_u32(dump_cie(u)) && dump_fde(u, n) < dump_hdr(u))
		n++;
	return n;
}

/* Where the code of an FDE begins, as a distance from the load's code. The section starts at the
 * first multiple of 8 bytes behind the code. */
static inline int64_t dump_fde_pc(const struct dump_record *u, const struct dump_record *load,
				  size_t i)
{
	const uint8_t *fde = dump_fde(u, i);
	int64_t section = (int64_t)((load->code_bytes + 7) & ~UINT64_C(7));
	return section + (fde + 8 - dump_cie(u)) + (int32_t)dump_u32(fde + 8);
}

static inline void dump_check_unwinding(const struct dump_record *u, const struct dump_record *load)
{
	const uint8_t *cie = dump_cie(u), *hdr = dump_hdr(u);
	uint64_t bytes = dump_u64(u->body), hdr_bytes = dump_u64(u->body + 8), end = 0;
	CHECK_EQ(u->bytes, 16 + 24 + ((bytes + 7) & ~UINT64_C(7)));
	CHECK_EQ(u->bytes % 8, 0);
	CHECK_EQ(dump_u64(u->body + 16), 0);         /* would be taken from the block behind */
	CHECK(hdr_bytes >= 20 && hdr_bytes < bytes); /* perf reads 20 */
	CHECK_EQ(dump_u32(cie + 4), 0);
	size_t count = dump_count_fdes(u); /* 0: there is the end mark only */
	CHECK(hdr == (count ? dump_fde(u, count) : cie + 8));
	CHECK(!count || memcmp(cie + 8, "\001zR", 4) == 0);
	for (size_t i = 0; i < count; i++) {
		const uint8_t *fde = dump_fde(u, i);
		int64_t pc = dump_fde_pc(u, load, i);
		CHECK_EQ((uintptr_t)(fde - cie) % 8, 0);
		CHECK_EQ(dump_u32(fde + 4), (uint64_t)(fde + 4 - cie));
		CHECK(pc >= (int64_t)end);
		end = (uint64_t)pc + dump_u32(fde + 12);
		CHECK(dump_u32(fde + 12) > 0 && end <= load->code_bytes);
	}
	if (count == 1)
		CHECK_EQ(dump_u32(dump_fde(u, 0) + 12), load->code_bytes);
	CHECK_EQ(hdr[0], 1);
	CHECK_EQ(hdr[1], 0x1b);
	CHECK(hdr + 4 + (int32_t)dump_u32(hdr + 4) == cie);
}

static inline void dump_read_records(struct dump *dump, size_t at)
{
	const struct dump_record *lines = NULL, *unwinding = NULL;
	uint64_t last_time = dump_u64(dump->bytes + 24), last_index = 0;
	while (at < dump->size) {
		struct dump_record *r = &dump->records[dump->count];
		const uint8_t *raw = dump->bytes + at;
		if (dump->size - at < 16 || dump->size - at < dump_u32(raw + 4)) {
			dump->is_cut = true;
			return;
		}
		*r = (struct dump_record){.kind = dump_u32(raw),
					  .bytes = dump_u32(raw + 4),
					  .time = dump_u64(raw + 8),
					  .body = raw + 16};
		CHECK(r->bytes >= 16 && ++dump->count < DUMP_MOST);
		at += r->bytes;
		CHECK(r->time >= last_time);
		last_time = r->time;
		if (r->kind == DUMP_LINES) {
			lines = r;
		} else if (r->kind == DUMP_UNWINDING) {
			unwinding = r;
		} else {
			CHECK_EQ(r->kind, DUMP_LOAD);
			dump_read_load(dump, r);
			CHECK(r->index > last_index); /* so the index is unique */
			last_index = r->index;
			if ((r->lines = lines))
				dump_check_lines(lines, r);
			if ((r->unwinding = unwinding))
				dump_check_unwinding(unwinding, r);
			lines = unwinding = NULL;
		}
	}
	CHECK(!lines && !unwinding);
}

static inline struct dump *dump_read(const char *path)
{
	struct dump *dump = calloc(1, sizeof *dump);
	FILE *in = fopen(path, "rb");
	if (!dump || !in)
		FAIL("jitdump: no file %s", path);
	CHECK_EQ(fseek(in, 0, SEEK_END), 0);
	dump->size = (size_t)ftell(in);
	dump->bytes = malloc(dump->size + 1);
	rewind(in);
	CHECK(dump->bytes && fread(dump->bytes, 1, dump->size, in) == dump->size);
	fclose(in);
	CHECK(dump->size >= 40);
	CHECK_EQ(dump_u32(dump->bytes), 0x4a695444);
	CHECK_EQ(dump_u32(dump->bytes + 4), 1);
	CHECK_EQ(dump_u32(dump->bytes + 8), 40);
	CHECK_EQ(dump_u32(dump->bytes + 12), CH_ARCH_ELF_MACHINE);
	dump->pid = dump_u32(dump->bytes + 20);
	CHECK_EQ(dump_u64(dump->bytes + 32), 0);
	dump_read_records(dump, 40);
	return dump;
}

static inline void dump_free(struct dump *dump)
{
	free(dump->bytes);
	free(dump);
}

/* The record that perf finds for pc at that time: the last load with pc; NULL: nobody's. */
static inline const struct dump_record *dump_owner(const struct dump *dump, uintptr_t pc,
						   uint64_t time)
{
	const struct dump_record *owner = NULL;
	for (size_t i = 0; i < dump->count; i++) {
		const struct dump_record *r = &dump->records[i];
		if (r->kind == DUMP_LOAD && r->time <= time && pc - r->at < r->code_bytes)
			owner = r;
	}
	return owner;
}

static inline void dump_check_owner(const struct dump *dump, const void *pc, uint64_t time,
				    const char *name)
{
	const struct dump_record *owner = dump_owner(dump, (uintptr_t)pc, time);
	const char *is = owner ? owner->name : "nobody";
	if (strcmp(is, name) != 0)
		FAIL("jitdump: %p is said to be of \"%s\", and is of \"%s\"", pc, is, name);
}
