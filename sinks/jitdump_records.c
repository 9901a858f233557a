/* SPDX-License-Identifier: MIT
 * jitdump_records.c: the records of a jitdump file as perf reads them, through one buffer: what
 * fits in it goes to the file by one write(2). It decides nothing about which code is told.
 *
 *   file      header, then records: [id u32 | bytes u32 | CLOCK_MONOTONIC ns u64 | body]
 *   LOAD      pid tid u32, address, address, bytes, index u64, name, 0, code
 *   DEBUG     address, entries u64, then entries: address u64, line u32, column u32, file, 0
 *   UNWINDING bytes, bytes of .eh_frame_hdr, bytes mapped behind the code u64, .eh_frame,
 *             .eh_frame_hdr, padding to 8
 *
 * perf inject makes a shared object of each LOAD: the code, then .eh_frame at the next 8 bytes,
 * then .eh_frame_hdr; the record before it tells both. Two things are not as one would expect:
 *   - Nothing is said to be mapped behind the code. What is mapped there in perf's view of the
 *     address space is taken from the block behind it, which is in its place, so that its samples
 *     lose their name.
 *   - .eh_frame_hdr has no table: perf with libunwind would read it through that map. Without one
 *     libunwind says that it has no information and follows the frame pointer, which is right for
 *     blocks that keep it; perf with libdw reads .eh_frame from the file and has the exact rules.
 * The last entry of DEBUG is at the code's end: a line holds up to the next entry only.
 * Sources: Linux, tools/perf/Documentation/jitdump-specification.txt; LSB Core 5.0, 10.6. */
#include "sinks/jitdump_records.h"

#include "arch/arch.h"

#include <errno.h>
#include <string.h>

enum {
	MAGIC = 0x4a695444, /* "JiTD", in the writer's byte order */
	VERSION = 1,
	HEADER_BYTES = 40,
	PREFIX_BYTES = 16,
	LOAD_BYTES = PREFIX_BYTES + 40,
	DEBUG_BYTES = PREFIX_BYTES + 16,
	DEBUG_ENTRY_BYTES = 16,
	UNWINDING_BYTES = PREFIX_BYTES + 24,
	HDR_BYTES = 20,
	CIE_FIXED_BYTES = 17, /* length, id, version, "zR", alignments, return register, encoding */
	FDE_FIXED_BYTES = 17, /* length, CIE, pc, range, no augmentation */
	ENTRY_BYTES = 128,    /* most that a CIE takes, and an FDE */
	PCREL_SDATA4 = 0x1b,
	OMIT = 0xff,
};
_Static_assert(CIE_FIXED_BYTES + CH__FRAME_CFI_BYTES + 7 <= ENTRY_BYTES &&
		       FDE_FIXED_BYTES + CH__FRAME_FDE_BYTES + 7 <= ENTRY_BYTES,
	       "room for an entry");

enum record { LOAD = 0, DEBUG_INFO = 2, CLOSE = 3, UNWINDING_INFO = 4 };

/* --- the buffer --- */
bool ch__jitdump_flush(struct ch__jitdump_out *out)
{
	size_t n = out->used;
	out->used = 0;
	if (out->error == 0 && n && !ch__os_file_write(out->fd, out->buffer, n))
		out->error = errno ? errno : EIO;
	return out->error == 0;
}

static void put(struct ch__jitdump_out *out, const void *bytes, size_t n)
{
	if (n > out->room - out->used)
		ch__jitdump_flush(out);
	if (n > out->room) { /* code of a span: from where it lies */
		if (out->error == 0 && !ch__os_file_write(out->fd, bytes, n))
			out->error = errno ? errno : EIO;
		return;
	}
	memcpy(out->buffer + out->used, bytes, n);
	out->used += n;
}

/* As they lie from exec on: a trap of several bytes begins where its address is aligned. */
static void put_traps(struct ch__jitdump_out *out, uintptr_t exec, size_t n)
{
	enum { PART = 256, ALIGN = 16 };
	_Alignas(ALIGN) uint8_t traps[ALIGN + PART];
	ch__arch_fill_traps(traps, sizeof traps);
	for (size_t part; n && out->error == 0; n -= part) {
		part = n < PART ? n : PART;
		put(out, traps + exec % ALIGN, part);
	}
}

static void put32(struct ch__jitdump_out *out, uint32_t word)
{
	put(out, &word, sizeof word);
}

static void put64(struct ch__jitdump_out *out, uint64_t word)
{
	put(out, &word, sizeof word);
}

void ch__jitdump_begin(struct ch__jitdump_out *out)
{
	out->now_ns = ch__os_now_ns();
	out->process = (uint32_t)ch__os_process_id();
	out->thread = (uint32_t)ch__os_thread_id();
}

static void put_prefix(struct ch__jitdump_out *out, enum record id, size_t bytes)
{
	put32(out, id);
	put32(out, (uint32_t)bytes);
	put64(out, out->now_ns);
}

/* --- records --- */
void ch__jitdump_header(struct ch__jitdump_out *out)
{
	put32(out, MAGIC);
	put32(out, VERSION);
	put32(out, HEADER_BYTES);
	put32(out, CH_ARCH_ELF_MACHINE);
	put32(out, 0);
	put32(out, out->process);
	put64(out, out->now_ns);
	put64(out, 0); /* times are the clock's, not the processor's */
}

void ch__jitdump_load(struct ch__jitdump_out *out, const struct ch__jitdump_code *code)
{
	size_t name_bytes = strlen(code->name) + 1;
	put_prefix(out, LOAD, LOAD_BYTES + name_bytes + code->bytes);
	put32(out, out->process);
	put32(out, out->thread);
	put64(out, code->exec);
	put64(out, code->exec);
	put64(out, code->bytes);
	put64(out, code->index);
	put(out, code->name, name_bytes);
	if (code->is_traps)
		put_traps(out, code->exec, code->bytes);
	else
		put(out, (const void *)code->exec, code->bytes);
}

void ch__jitdump_close(struct ch__jitdump_out *out)
{
	put_prefix(out, CLOSE, PREFIX_BYTES);
}

/* Whether the line speaks of any of the code; the last one holds to the end. */
static bool is_inside(const struct ch__jitdump_code *code, const struct ch__sink_line *lines,
		      size_t count, size_t i)
{
	uintptr_t end = i + 1 < count ? lines[i + 1].exec : UINTPTR_MAX;
	return lines[i].exec < code->exec + code->bytes && end > code->exec;
}

static void put_line(struct ch__jitdump_out *out, uint64_t at, uint32_t line, const char *file)
{
	put64(out, at);
	put32(out, line);
	put32(out, 0);
	put(out, file, strlen(file) + 1);
}

void ch__jitdump_lines(struct ch__jitdump_out *out, const struct ch__jitdump_code *code,
		       const char *file, const struct ch__sink_line *lines, size_t count)
{
	size_t inside = 0, last = 0;
	for (size_t i = 0; i < count; i++) {
		if (is_inside(code, lines, count, i)) {
			inside++;
			last = i;
		}
	}
	if (!inside)
		return;
	put_prefix(out, DEBUG_INFO,
		   DEBUG_BYTES + (inside + 1) * (DEBUG_ENTRY_BYTES + strlen(file) + 1));
	put64(out, code->exec);
	put64(out, inside + 1);
	for (size_t i = 0; i < count; i++)
		if (is_inside(code, lines, count, i))
			put_line(out, lines[i].exec > code->exec ? lines[i].exec : code->exec,
				 lines[i].line, file);
	put_line(out, code->exec + code->bytes, lines[last].line, file);
}

/* --- unwinding --- */
static uint8_t *write32(uint8_t *at, uint32_t word)
{
	memcpy(at, &word, sizeof word);
	return at + sizeof word;
}

/* Ends an entry: its length, and no-ops up to 8 bytes. Returns all its bytes. */
static size_t end_entry(uint8_t *entry, const uint8_t *at)
{
	size_t bytes = ((size_t)(at - entry) + 7) & ~(size_t)7;
	write32(entry, (uint32_t)bytes - 4);
	return bytes;
}

/* Of code without a shape a section says nothing: it is the end mark only. */
static size_t write_cie(uint8_t entry[ENTRY_BYTES], const struct ch__frame_shape *shape)
{
	memset(entry, 0, ENTRY_BYTES);
	if (!shape->bytes)
		return 8;
	uint8_t *at = entry + 8; /* length and id */
	*at++ = 1;               /* version */
	memcpy(at, "zR", 3);
	at += 3;
	*at++ = shape->code_align;
	*at++ = (uint8_t)shape->data_align & 0x7f; /* SLEB128 of a small number */
	*at++ = shape->return_register;
	*at++ = 1; /* byte of augmentation */
	*at++ = PCREL_SDATA4;
	memcpy(at, shape->cfi, shape->bytes);
	return end_entry(entry, at + shape->bytes);
}

/* An FDE that will lie at `place` of the section, of `bytes` of code that begin `code` bytes from
 * the section's start: in front of it, so less than 0. */
static size_t write_fde(uint8_t entry[ENTRY_BYTES], const struct ch__frame_shape *shape,
			size_t place, int64_t code, size_t bytes)
{
	memset(entry, 0, ENTRY_BYTES);
	uint8_t *at = write32(entry + 4, (uint32_t)place + 4); /* back to the CIE */
	at = write32(at, (uint32_t)(int32_t)(code - (int64_t)place - 8));
	at = write32(at, (uint32_t)bytes);
	*at++ = 0; /* bytes of augmentation */
	memcpy(at, shape->fde, shape->fde_bytes);
	return end_entry(entry, at + shape->fde_bytes);
}

static void put_hdr(struct ch__jitdump_out *out, size_t section_bytes)
{
	uint8_t hdr[HDR_BYTES + 4] = {1, PCREL_SDATA4, OMIT /* count */, OMIT /* table */};
	write32(hdr + 4, (uint32_t) - (int32_t)(section_bytes + 4));
	put(out, hdr, sizeof hdr);
}

void ch__jitdump_unwinding(struct ch__jitdump_out *out, const struct ch__jitdump_code *code,
			   const struct ch__frame_shape *shape)
{
	uint8_t cie[ENTRY_BYTES], fde[ENTRY_BYTES];
	if (code->bytes > INT32_MAX / 2)
		return;
	/* The section begins at the first 8 bytes behind the code. */
	int64_t start = -(int64_t)((code->bytes + 7) & ~(size_t)7);
	size_t cie_bytes = write_cie(cie, shape);
	size_t fde_bytes = shape->bytes ? write_fde(fde, shape, cie_bytes, start, code->bytes) : 0;
	size_t section_bytes = cie_bytes + fde_bytes;
	put_prefix(out, UNWINDING_INFO, UNWINDING_BYTES + section_bytes + HDR_BYTES + 4);
	put64(out, section_bytes + HDR_BYTES);
	put64(out, HDR_BYTES);
	put64(out, 0); /* mapped */
	put(out, cie, cie_bytes);
	put(out, fde, fde_bytes);
	put_hdr(out, section_bytes);
}
