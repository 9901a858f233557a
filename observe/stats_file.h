/* SPDX-License-Identifier: MIT
 * stats_file.h: the layout of the statistics file, which a heap writes (stats_file.c) and
 * tools/codeheap-top reads, in the byte order of the machine.
 *
 *   +0   head, 64 bytes, at the same place in every format
 *   +64  sections, head.body_bytes together: a section's head, then its entries, then zeros up to a
 *        multiple of 8
 *
 * A reader skips unknown sections, and steps from entry to entry by entry_bytes: later versions add
 * sections, names, and fields at the end of entries.
 *
 * Writer: head with an odd sequence, sections, head with an even sequence. Reader: head, sections,
 * head; again if the sequence was odd or has changed, or if the checksum is wrong. The writer holds
 * a lock (F_OFD_SETLK) on the whole file while alive. CH__STATS_FILE_LOCKED in head.flags says that
 * the file system has such locks. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
	CH__STATS_FILE_ORDER = 0x01020304, /* as the writer stores it */
	CH__STATS_FILE_FORMAT = 1,
	CH__STATS_FILE_LOCKED = 1,
	CH__STATS_NAME_BYTES = 40, /* all texts end in a 0 */
	CH__STATS_TEXT_BYTES = 96,
};
#define CH__STATS_FILE_MAGIC "CHSTATS"

enum ch__stats_state {
	CH__STATS_RUNNING,
	CH__STATS_ENDED, /* the heap ended, or the process by exit */
};

struct ch__stats_head {
	char magic[8];
	uint32_t byte_order;
	uint32_t format;
	uint64_t sequence; /* odd while the file changes */
	uint64_t body_bytes;
	uint64_t checksum;   /* ch__stats_checksum of the sections */
	uint64_t written_ns; /* CLOCK_MONOTONIC */
	uint32_t process;
	uint32_t heap;  /* its number in the process, from 1 */
	uint32_t state; /* enum ch__stats_state */
	uint32_t flags;
};
_Static_assert(sizeof(struct ch__stats_head) == 64, "the head is 64 bytes");
_Static_assert(offsetof(struct ch__stats_head, sequence) == 16, "the sequence is at 16");

enum ch__stats_section_kind {
	CH__STATS_TEXTS = 1,   /* struct ch__stats_text: process, version, backend, sinks */
	CH__STATS_NUMBERS,     /* struct ch__stats_number: all of CH_STATS_LIST */
	CH__STATS_OWNER_KINDS, /* struct ch__stats_kind: owners' names before "::" */
	CH__STATS_BLOCK_KINDS, /* struct ch__stats_kind: code, trampoline, rodata, data */
	CH__STATS_SAMPLES,     /* struct ch__stats_sample, the oldest first */
	CH__STATS_PAUSES,      /* struct ch__stats_pause, the oldest first */
	CH__STATS_PAGES,       /* struct ch__stats_page: pages in use, rising */
	CH__STATS_PARTS,       /* struct ch__stats_part: all of the first pages */
};

struct ch__stats_section {
	uint32_t kind;
	uint32_t entry_bytes;
	uint32_t count;
	uint32_t left_out; /* entries without room */
};

struct ch__stats_text {
	char name[CH__STATS_NAME_BYTES];
	char text[CH__STATS_TEXT_BYTES];
};
struct ch__stats_number {
	char name[CH__STATS_NAME_BYTES];
	uint64_t value;
};
/* Dead: withdrawn, the place not yet used again. Bytes are the sum of hot and cold bytes. */
struct ch__stats_kind {
	char name[CH__STATS_NAME_BYTES];
	uint64_t live_blocks, live_bytes;
	uint64_t notentrant_blocks, notentrant_bytes;
	uint64_t dead_blocks, dead_bytes;
};
/* Counters at the times when the file was written. */
struct ch__stats_sample {
	uint64_t at_ns; /* CLOCK_MONOTONIC, as all times here */
	uint64_t blocks_opened, bytes_opened, blocks_freed, bytes_freed;
	uint64_t blocks_invalidated, cycles, code_bytes;
};
struct ch__stats_pause {
	uint64_t at_ns; /* its end */
	uint64_t ns;
};
/* The kind of a page's blocks: a page has blocks of one kind only. */
enum ch__stats_page_kind {
	CH__STATS_PAGE_CODE,
	CH__STATS_PAGE_TRAMPOLINES,
	CH__STATS_PAGE_OWN_FRAMES, /* blocks with unwind tables of their own */
	CH__STATS_PAGE_DATA,
	CH__STATS_PAGE_KINDS
};
/* hot_bytes and cold_bytes are of live blocks. Bytes in no count are of open blocks. */
struct ch__stats_page {
	uint32_t page;  /* its number in the pool */
	uint32_t pages; /* 1; of a span: how many it has */
	uint32_t kind;  /* enum ch__stats_page_kind */
	uint32_t blocks;
	uint32_t hot_bytes, cold_bytes, notentrant_bytes, dead_bytes, free_bytes;
	uint32_t spare;
};
enum ch__stats_part_kind {
	CH__STATS_PART_HOT,
	CH__STATS_PART_COLD,
	CH__STATS_PART_NOTENTRANT,
	CH__STATS_PART_DEAD,
	CH__STATS_PART_KINDS
};
/* Where blocks lie in the pool. */
struct ch__stats_part {
	uint32_t offset;
	uint32_t bytes_kind; /* bytes | enum ch__stats_part_kind << CH__STATS_PART_SHIFT */
};
enum { CH__STATS_PART_SHIFT = 28 };

_Static_assert(sizeof(struct ch__stats_section) == 16, "no gaps");
_Static_assert(sizeof(struct ch__stats_text) == 136, "no gaps");
_Static_assert(sizeof(struct ch__stats_number) == 48, "no gaps");
_Static_assert(sizeof(struct ch__stats_kind) == 88, "no gaps");
_Static_assert(sizeof(struct ch__stats_sample) == 64, "no gaps");
_Static_assert(sizeof(struct ch__stats_pause) == 16, "no gaps");
_Static_assert(sizeof(struct ch__stats_page) == 40, "no gaps");
_Static_assert(sizeof(struct ch__stats_part) == 8, "no gaps");

/* Over whole words; bytes is a multiple of 8. Detects a torn text, not a forged text. */
static inline uint64_t ch__stats_checksum(const void *body, size_t bytes)
{
	const unsigned char *at = (const unsigned char *)body;
	uint64_t sum = UINT64_C(0x9e3779b97f4a7c15) ^ bytes, word;
	for (size_t i = 0; i + sizeof word <= bytes; i += sizeof word) {
		__builtin_memcpy(&word, at + i, sizeof word);
		sum = (sum ^ word) * UINT64_C(0xff51afd7ed558ccd);
		sum ^= sum >> 32;
	}
	return sum;
}
