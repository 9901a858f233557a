/* SPDX-License-Identifier: MIT
 * in_place_rig.h: shared by the tests of blocks in place and of data: the access that the system
 * reports for a range, and an image of code, a constant and a variable that reach each other by
 * distance. */
#pragma once

#include "codeheap/graph/block.h"
#include "tests/support/heap_rig.h"

#include <stdio.h>

/* Visits each mapping of a range in /proc/self/maps; returning false ends the walk. */
typedef bool (*maps_visit)(void *arg, uintptr_t low, uintptr_t high, const char *access);

static inline void walk_maps(uintptr_t low, uintptr_t high, maps_visit visit, void *arg)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[600], access[8];
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx %7s", &from, &to, access) != 3 || to <= low ||
		    from >= high)
			continue;
		if (!visit(arg, from < low ? low : from, to > high ? high : to, access))
			break;
	}
	fclose(maps);
}

struct access_of {
	const char *wanted;
	uintptr_t at; /* the end of the part seen so far */
	char found[8];
};

static inline bool compare_access(void *arg, uintptr_t low, uintptr_t high, const char *access)
{
	struct access_of *of = arg;
	/* An emulator's own mappings never execute. Of readable mappings the emulator tells the
	 * access of the first page, whatever lies behind. */
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	bool is_told = !emulator || !strstr(emulator, "qemu") || access[1] == 'w';
	if (low == of->at && strncmp(access, of->wanted, is_told ? 3 : 2) == 0) {
		of->at = high;
		return true;
	}
	memcpy(of->found, access, 4);
	return false;
}

/* The whole range must have this access: "rw-", "r-x". */
static inline void expect_access(const void *at, size_t bytes, const char *wanted)
{
	uintptr_t low = (uintptr_t)at, high = low + bytes;
	struct access_of of = {.wanted = wanted, .at = low};
	walk_maps(low, high, compare_access, &of);
	if (of.at != high)
		FAIL("+0x%zx of %zu bytes is \"%s\", not \"%s\"", (size_t)(of.at - low), bytes,
		     of.found, wanted);
}

static inline bool note_access(void *arg, uintptr_t low, uintptr_t high, const char *access)
{
	(void)low, (void)high;
	memcpy(arg, access, 4);
	return false;
}

/* The range must be free code memory: traps that run, or memory that went back to the system. */
static inline void expect_free(const uint8_t *at, size_t bytes)
{
	char found[8] = "";
	walk_maps((uintptr_t)at, (uintptr_t)at + 1, note_access, found);
	if (strncmp(found, "---", 3) == 0)
		return;
	expect_access(at, bytes, "r-x");
	/* To memcheck this is a read of freed memory. */
	if (ch__valgrind_runs())
		ch__valgrind_reports(false);
	CHECK(ch__arch_are_traps(at, bytes));
	if (ch__valgrind_runs())
		ch__valgrind_reports(true);
}

static inline bool refuse_both(void *arg, uintptr_t low, uintptr_t high, const char *access)
{
	(void)arg;
	if (access[1] == 'w' && access[2] == 'x')
		FAIL("0x%zx to 0x%zx is \"%s\"", (size_t)low, (size_t)high, access);
	return true;
}

/* No page of the pool is writable and executable, at either address. */
static inline void expect_no_both(const struct rig *rig)
{
	const struct ch__pool *pool = rig->heap->pool;
	uintptr_t low = pool->runtime_exec, high = pool->exec_base + pool->pool_bytes;
	walk_maps(low, high, refuse_both, NULL);
	walk_maps(low + (uintptr_t)pool->delta, high + (uintptr_t)pool->delta, refuse_both, NULL);
}

/* The open must succeed. */
static inline void emit_open_in_place(struct emitter *e, struct ch_owner owner, enum ch_kind kind,
				      size_t bytes)
{
	struct ch_open open = {.owner = owner,
			       .hot_bytes = (uint32_t)bytes,
			       .kind = kind,
			       .flags = kind == CH_KIND_CODE ? CH_OPEN_IN_PLACE : 0};
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
}

/* The owner's code returns the variable and adds 1 to the variable. The code at `reset` returns the
 * constant, and sets the variable to the constant + 1. */
enum { IMAGE_CONSTANT = 4100, IMAGE_CODE = 2, IMAGE_SHARES = 1 << 30 /* pages of data */ };

struct image {
	struct ch_owner owner;
	struct ch_block blocks[3]; /* constants, variables, code */
	uint32_t *variable;
	const uint8_t *reset;
};

static inline struct image image_make(const struct rig *rig, unsigned flags)
{
	struct image image = {.owner = rig_owner(rig, "image")};
	struct emitter parts[3];
	struct ch_code codes[3];
	static const enum ch_kind kinds[] = {CH_KIND_RODATA, CH_KIND_DATA, CH_KIND_CODE};
	unsigned of_data = flags & IMAGE_SHARES ? 0 : CH_OPEN_IN_PLACE;
	unsigned of_code = (flags & ~(unsigned)IMAGE_SHARES) | CH_OPEN_IN_PLACE;
	/* Records are handed out downwards, so the sweep comes to the data first. */
	for (int i = IMAGE_CODE; i >= 0; i--) {
		struct ch_open open = {.owner = image.owner,
				       .hot_bytes = 256,
				       .kind = kinds[i],
				       .flags = i == IMAGE_CODE ? of_code : of_data};
		CHECK_EQ(emit_open_as(&parts[i], &open), CH_OK);
		image.blocks[i] = parts[i].code.block;
	}
	uint32_t constant = IMAGE_CONSTANT;
	memcpy(parts[0].code.write, &constant, sizeof constant);
	memcpy(parts[1].code.write + 64, &constant, sizeof constant);
	image.variable = (uint32_t *)(void *)(parts[1].code.exec + 64);
	emit_landing(&parts[2]);
	emit_count(&parts[2], image.variable, image.variable);
	image.reset = emit_here(&parts[2]);
	emit_landing(&parts[2]);
	emit_count(&parts[2], parts[0].code.exec, image.variable);
	parts[2].code.used_to = parts[2].at;
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_edge_attach(image.blocks[IMAGE_CODE], image.blocks[i]), CH_OK);
	for (int i = 0; i < 3; i++)
		codes[i] = parts[i].code;
	CHECK_EQ(ch_block_commit(codes, 3), CH_OK);
	CHECK_EQ(ch_owner_set_entry(image.owner, image.blocks[IMAGE_CODE]), CH_OK);
	return image;
}
