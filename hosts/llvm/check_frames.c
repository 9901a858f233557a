/* SPDX-License-Identifier: MIT
 * check_frames.c: frames.c on this program's own .eh_frame, whole, cut at every length, and with
 * bytes changed. The section lies before a page without access: a read behind the section ends the
 * program. */
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "frames.h"

enum { CHANGES = 200000, SECTION_MOST = 1 << 16 };

/* The range of this program, and the program's section. */
struct own {
	uintptr_t low, high; /* of the code */
	const uint8_t *section;
	size_t bytes;
};

static uint32_t read32(const uint8_t *at)
{
	uint32_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

static int find_own(struct dl_phdr_info *info, size_t bytes, void *arg)
{
	struct own *own = arg;
	(void)bytes;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t at = info->dlpi_addr + p->p_vaddr;
		if (p->p_type == PT_LOAD && (p->p_flags & PF_X)) {
			own->low = at;
			own->high = at + p->p_memsz;
		}
		if (p->p_type == PT_GNU_EH_FRAME) {
			/* .eh_frame_hdr: version, three encodings, then in 4 bytes the distance to
			 * the section, from here, as linkers write it. */
			const uint8_t *header = (const uint8_t *)at;
			own->section = header + 4 + (int32_t)read32(header + 4);
		}
	}
	return 1; /* the program itself comes first */
}

/* The number of frames (FDEs), or else of CIEs, in a section that ends with a length of 0. */
static size_t count(const uint8_t *section, bool frames, size_t *bytes)
{
	size_t at = 0, found = 0;
	for (uint32_t length; (length = read32(section + at)) != 0; at += (size_t)length + 4)
		found += (read32(section + at + 4) != 0) == frames;
	*bytes = at + 4;
	return found;
}

int main(void);

static void fail(const char *what)
{
	fprintf(stderr, "check_frames: %s\n", what);
	exit(1);
}

/* A copy that ends right before a page without access. */
static uint8_t *copy_at_edge(const struct own *own, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t room = (bytes + page - 1) / page * page;
	uint8_t *at =
		mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || mprotect(at + room, page, PROT_NONE) != 0)
		fail("no memory");
	return memcpy(at + room - bytes, own->section, bytes);
}

static void forget_at_edge(const uint8_t *at, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t room = (bytes + page - 1) / page * page;
	munmap((void *)(uintptr_t)(at + bytes - room), room + page);
}

static enum frames_status add(const struct own *own, const uint8_t *section, size_t bytes,
			      size_t *frames)
{
	/* Two ranges that meet where a function begins: no frame lies in both. */
	uintptr_t middle = (uintptr_t)main;
	struct frames_range ranges[] = {{.low = own->low, .high = middle},
					{.low = middle, .high = own->high}};
	enum frames_status status = frames_add(section, bytes, (uintptr_t)own->section, ranges, 2);
	*frames = 0;
	for (int i = 0; i < 2; i++) {
		size_t end;
		*frames += ranges[i].table ? count(ranges[i].table, true, &end) : 0;
		if (ranges[i].table && end != ranges[i].bytes + 4)
			fail("a table that does not end where it should");
	}
	frames_free(ranges, 2);
	return status;
}

/* A congruential generator (of MMIX): the same damage in every run, whatever the libc. */
static uint32_t next_random(void)
{
	static uint64_t state = 1;
	state = state * 6364136223846793005 + 1442695040888963407;
	return (uint32_t)(state >> 32);
}

/* The table of a frame of 16 bytes at 0x1000, by a section at 0x3000. Returns the status, and the
 * pointer to the LSDA in the table. */
static enum frames_status add_written(uint8_t lsda_encoding, uint8_t pc_encoding, uint8_t bytes,
				      uint8_t lsda, uint64_t *found)
{
	enum { IN_TABLE = 24 + 25 }; /* behind the CIE's 24 bytes, and the FDE's up to the LSDA */
	const uint8_t section[] = {
		16, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'L', 'R', 0, 1, 0x78, 16, 2, lsda_encoding,
		pc_encoding, 0,
		/* the FDE: length, distance to the CIE, pc, bytes of pc, bytes of data, LSDA */
		28, 0, 0, 0, 24, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, bytes, 0, 0, 0, 0, 0, 0, 0, 4,
		lsda, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
	struct frames_range range = {.low = 0x1000, .high = 0x1010};
	enum frames_status status = frames_add(section, sizeof section, 0x3000, &range, 1);
	if (status == FRAMES_OK)
		memcpy(found, range.table + IN_TABLE, sizeof *found);
	frames_free(&range, 1);
	return status;
}

/* 0x1b: in 4 bytes, from here; 0x80: by way of a word in memory. */
static void read_written(void)
{
	uint64_t lsda;
	if (add_written(0x1b, 0, 16, 1, &lsda) != FRAMES_OK || lsda != 0x3000 + 45 + 1)
		fail("an LSDA is elsewhere");
	if (add_written(0x1b, 0, 16, 0, &lsda) != FRAMES_OK || lsda != 0)
		fail("no LSDA became one");
	if (add_written(0x9b, 0, 16, 1, &lsda) != FRAMES_MALFORMED ||
	    add_written(0x1b, 0x80, 16, 1, &lsda) != FRAMES_MALFORMED)
		fail("a pointer by way of memory is taken for the address");
	if (add_written(0x1b, 0, 17, 1, &lsda) != FRAMES_MALFORMED)
		fail("a frame reaches out of its range");
}

int main(void)
{
	struct own own = {0};
	size_t frames, malformed = 0, fewer = 0;
	read_written();
	dl_iterate_phdr(find_own, &own);
	if (!own.section || !own.low)
		fail("no unwind table of the program");
	size_t all = count(own.section, true, &own.bytes);
	if (all < 5 || own.bytes > SECTION_MOST)
		fail("an odd table");
	uint8_t *section = copy_at_edge(&own, own.bytes);
	if (add(&own, section, own.bytes, &frames) != FRAMES_OK)
		fail("the program's own table is refused");
	if (frames != all)
		fail("frames are missing");
	for (size_t cut = 0; cut < own.bytes; cut++) {
		const uint8_t *part = copy_at_edge(&own, cut ? cut : 1);
		add(&own, part, cut, &frames);
		if (frames > all)
			fail("frames of nothing");
		fewer += frames < all;
		forget_at_edge(part, cut ? cut : 1);
	}
	for (int i = 0; i < CHANGES; i++) {
		size_t at = next_random() % own.bytes;
		uint8_t was = section[at];
		section[at] = (uint8_t)next_random();
		malformed += add(&own, section, own.bytes, &frames) == FRAMES_MALFORMED;
		section[at] = was;
	}
	if (fewer < own.bytes / 2 || malformed < CHANGES / 100 || malformed > CHANGES / 2)
		fail("no damage was seen");
	printf("%zu frames; %zu of %d changes refused\n", all, malformed, CHANGES);
	return 0;
}
