/* SPDX-License-Identifier: MIT
 * fdes.c: LLVM's unwinder is told of pages, slots and tables of blocks: of each FDE once while the
 * FDE is live. The FDE is taken back once before its end, so that LLVM's unwinder finds the same as
 * libgcc's. A stand-in for LLVM's unwinder keeps the books. */
#define _GNU_SOURCE
#include "sinks/table.h"
#include "tests/support/unwind_rig.h"
#include "unwind/unwinders.h"

#include <sys/mman.h>

enum { MOST = 1024, CODE_AT = 8 };
enum { SLOT_BYTES = (CODE_AT + CH_ARCH_TEMPLATE_BYTES + 7) & ~7 };
enum { SLOTS_FRAME = CH__FRAME_SLOTS + CH_TRAMPOLINE_TAIL };

/* --- the stand-in --- */

struct told {
	uintptr_t fde;
	uint64_t pc, bytes;
};
static struct told told[MOST];
static size_t told_n;
static struct ch__sinks *told_by; /* NULL: not known yet, or gone */

void __unw_add_dynamic_fde(uintptr_t fde);
void __unw_remove_dynamic_fde(uintptr_t fde);

static struct told read_fde(uintptr_t fde)
{
	struct told t = {.fde = fde};
	uint32_t distance, id;
	memcpy(&distance, (const void *)(fde + 4), sizeof distance);
	memcpy(&t.pc, (const void *)(fde + 8), sizeof t.pc);
	memcpy(&t.bytes, (const void *)(fde + 16), sizeof t.bytes);
	memcpy(&id, (const void *)(fde + 4 - distance + 4), sizeof id);
	CHECK_EQ(id, 0); /* the CIE is there by then */
	CHECK(t.bytes != 0);
	return t;
}

static size_t place_of(uintptr_t fde)
{
	size_t i = 0;
	CHECK(!told_by || ch__lock_is_mine(&told_by->lock));
	while (i < told_n && told[i].fde != fde)
		i++;
	return i;
}

void __unw_add_dynamic_fde(uintptr_t fde)
{
	CHECK_EQ(place_of(fde), told_n);
	CHECK(told_n < MOST);
	told[told_n++] = read_fde(fde);
}

void __unw_remove_dynamic_fde(uintptr_t fde)
{
	size_t i = place_of(fde);
	CHECK(i < told_n);
	struct told t = read_fde(fde);
	CHECK(t.pc == told[i].pc && t.bytes == told[i].bytes);
	told[i] = told[--told_n];
}

/* Says whether both unwinders know pc; fails when only one does. */
static bool is_known(const uint8_t *pc)
{
	unsigned n = 0;
	for (size_t i = 0; i < told_n; i++)
		n += (uintptr_t)pc - told[i].pc < told[i].bytes;
	CHECK(n <= 1);
	CHECK_EQ(libgcc_knows(pc), n);
	return n;
}

/* --- a section --- */

static uint8_t *map_section(size_t bytes)
{
	size_t page = ch__os_page_bytes(), whole = (bytes + page - 1) & ~(page - 1);
	uint8_t *at = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			   -1, 0);
	CHECK(at != MAP_FAILED && mprotect(at + whole, page, PROT_NONE) == 0);
	return at + whole - bytes;
}

/* Unwinders read on to the word that ends the section. */
TEST(section_ends_in_its_bytes)
{
	static const struct ch__frame_shape shapes[CH__FRAMES];
	struct ch__eh_place place = {.exec = 1 << 20, .page_bytes = 4096};
	for (place.pages = 1; place.pages <= 3; place.pages++) {
		uint8_t *section = map_section(ch__eh_frame_bytes(&place));
		struct ch__eh_frame_fde fde;
		uint32_t count = 0;
		memset(section - 4, 0x5a, 4);
		ch__eh_frame_write(section, &place, shapes);
		CHECK(!memcmp(section - 4, "ZZZZ", 4));
		for (size_t at = 0; ch__eh_frame_next(section, &at, &fde);)
			count++;
		CHECK_EQ(count, place.pages + 1); /* and the sentinel */
	}
}

/* Unwinders read the CIE of a live page while another page of the shape comes alive. */
TEST(cie_of_live_code_is_not_written)
{
	struct ch__frame_shape shapes[CH__FRAMES] = {0};
	struct ch__eh_place place = {.exec = 1 << 20, .page_bytes = 4096, .pages = 2};
	size_t page = ch__os_page_bytes();
	uint8_t *map = map_section(2 * page);
	/* The FDEs begin a page of memory. */
	uint8_t *section = map + page - (ch__eh_frame_fde(map, 0) - map);
	CHECK(section >= map && ch__eh_frame_bytes(&place) < 2 * page);
	ch__eh_frame_write(section, &place, shapes);
	shapes[CH_FRAME_LEAF] = (struct ch__frame_shape){.cfi = {0x0a}, .bytes = 1};
	ch__eh_frame_live(section, 0, 4096, shapes, CH_FRAME_LEAF);
	CHECK_EQ(mprotect(map, page, PROT_READ), 0);
	ch__eh_frame_live(section, 1, 4096, shapes, CH_FRAME_LEAF);
	CHECK(ch__eh_frame_is_live(section, 1));
}

/* --- pages --- */

static void expect_pages(const struct bed *bed, uint32_t first, uint32_t pages)
{
	for (uint32_t page = 0; page < BED_CHUNKS * BED_PAGES_PER_CHUNK; page++) {
		const uint8_t *at = bed->pool + (size_t)page * BED_PAGE_BYTES;
		bool is_live = page >= first && page < first + pages;
		CHECK_EQ(is_known(at), is_live);
		CHECK_EQ(is_known(at + BED_PAGE_BYTES - 1), is_live);
	}
	CHECK(is_known(bed->runtime));
	CHECK_EQ(told_n, 1 + pages);
}

TEST(each_page_is_told_once_and_taken_back_once)
{
	struct bed bed;
	bed_open(&bed, CH_SINK_UNWIND);
	expect_pages(&bed, 0, 0);
	for (int twice = 0; twice < 2; twice++)
		CHECK(ch__sinks_page_live(bed.sinks, 60, 70, 0));
	expect_pages(&bed, 60, 70);
	for (int twice = 0; twice < 2; twice++)
		ch__sinks_page_dead(bed.sinks, 60, 3);
	expect_pages(&bed, 63, 67);
	ch__sinks_page_dead(bed.sinks, 129, 1);
	expect_pages(&bed, 63, 66);
	CHECK_EQ(ch__sinks_set(bed.sinks, 0), 0);
	expect_pages(&bed, 0, 0);
	CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_UNWIND), 0);
	expect_pages(&bed, 63, 66);
	ch__sinks_page_dead(bed.sinks, 128, 1);
	ch__sinks_chunk_gone(bed.sinks, 1);
	expect_pages(&bed, 63, 1);
	bed_close(&bed);
	CHECK_EQ(told_n, 0);
}

/* --- slots --- */

static uintptr_t slot_at(const struct bed *bed, uint32_t page, uint32_t slot)
{
	return (uintptr_t)bed->pool + page * BED_PAGE_BYTES + slot * SLOT_BYTES;
}

static void expect_slots(const struct bed *bed, uint32_t page, bool are_live)
{
	enum { SLOTS = BED_PAGE_BYTES / SLOT_BYTES };
	for (uint32_t i = 0; i < SLOTS; i++) {
		const uint8_t *code = (const uint8_t *)slot_at(bed, page, i) + CODE_AT;
		CHECK_EQ(is_known(code), are_live);
		CHECK_EQ(is_known(code + SLOT_BYTES - CODE_AT - 1), are_live);
		CHECK(!is_known(code - 1) && !is_known(code + SLOT_BYTES - CODE_AT));
	}
	CHECK_EQ(told_n, are_live ? 1 + SLOTS : 1);
}

static void open_with_slots(struct bed *bed)
{
	bed_map(bed);
	bed->config.head_bytes = CODE_AT;
	bed->config.slot_bytes = SLOT_BYTES;
	CHECK_EQ(ch__sinks_create(&bed->config, CH_SINK_UNWIND, &bed->sinks), 0);
}

TEST(each_slot_is_told_once_and_taken_back_once)
{
	enum { PAGE = 70 };
	struct bed bed;
	open_with_slots(&bed);
	for (int round = 0; round < 3; round++) {
		for (int twice = 0; twice < 2; twice++)
			CHECK(ch__sinks_page_live(bed.sinks, PAGE, 1, SLOTS_FRAME));
		expect_slots(&bed, PAGE, true);
		for (int twice = 0; twice < 2 && round == 0; twice++)
			ch__sinks_page_dead(bed.sinks, PAGE, 1);
		if (round == 1)
			ch__sinks_chunk_gone(bed.sinks, PAGE / BED_PAGES_PER_CHUNK);
		if (round == 2)
			CHECK_EQ(ch__sinks_set(bed.sinks, 0), 0);
		expect_slots(&bed, PAGE, false);
	}
	CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_UNWIND), 0);
	expect_slots(&bed, PAGE, true);
	bed_close(&bed);
	CHECK_EQ(told_n, 0);
}

TEST(slots_at_a_chunks_end_are_known_beside_pages_of_the_next_chunk)
{
	enum { PAGE = BED_PAGES_PER_CHUNK - 1 };
	struct bed bed;
	open_with_slots(&bed);
	CHECK(ch__sinks_page_live(bed.sinks, PAGE + 1, 1, 0));
	CHECK(ch__sinks_page_live(bed.sinks, PAGE, 1, SLOTS_FRAME));
	CHECK(is_known((const uint8_t *)slot_at(&bed, PAGE, 3) + CODE_AT));
	CHECK(is_known((const uint8_t *)slot_at(&bed, PAGE + 1, 0)));
	bed_close(&bed);
	CHECK_EQ(told_n, 0);
}

/* --- tables of blocks --- */

/* Writes a CIE, and an FDE for each of `fdes` ranges of 64 bytes. */
static void put_table(uint8_t *section, const uint8_t *code, unsigned fdes)
{
	static const uint8_t cie[] = {16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8};
	memcpy(section, cie, sizeof cie);
	memset(section + sizeof cie, 0, 4);
	uint8_t *fde = section + 20;
	for (unsigned i = 0; i < fdes; i++, fde += 24) {
		uint32_t words[2] = {20, (uint32_t)(fde + 4 - section)};
		uint64_t range[2] = {(uintptr_t)code + (size_t)i * 64, 64};
		memcpy(fde, words, sizeof words);
		memcpy(fde + 8, range, sizeof range);
	}
	memset(fde, 0, 4);
}

TEST(each_fde_of_a_table_is_told_once_and_taken_back_once)
{
	enum { FDES = 3 };
	static _Alignas(16) uint8_t sections[2][160];
	struct ch__own *own[2];
	struct bed bed;
	bed_open(&bed, CH_SINK_UNWIND);
	told_by = bed.sinks;
	for (unsigned i = 0; i < 2; i++) {
		put_table(sections[i], bed.pool + (size_t)i * 4096, FDES);
		size_t at;
		CHECK(!ch__eh_frame_fault(sections[i], (uintptr_t)bed.pool + i * 4096,
					  (uintptr_t)bed.pool + i * 4096 + FDES * 64, &at));
		own[i] = ch__sinks_own_create(bed.sinks);
		CHECK(own[i] != NULL);
		ch__sinks_own_live(bed.sinks, own[i], sections[i]);
		CHECK_EQ(told_n, 1 + (i + 1) * FDES);
	}
	for (unsigned on = 0; on < 2; on++) {
		for (unsigned i = 0; i < 2; i++) {
			const uint8_t *code = bed.pool + (size_t)i * 4096;
			CHECK(is_known(code) && is_known(code + FDES * 64 - 1));
			CHECK(!is_known(code + FDES * 64));
		}
		CHECK_EQ(ch__sinks_set(bed.sinks, 0), 0);
		CHECK_EQ(told_n, 1);
		CHECK(!is_known(bed.pool) && !is_known(bed.pool + 4096));
		CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_UNWIND), 0);
		CHECK_EQ(told_n, 1 + 2 * FDES);
	}
	for (unsigned i = 0; i < 2; i++) {
		for (int twice = 0; twice < 2; twice++)
			ch__sinks_own_dead(bed.sinks, own[i]);
		CHECK_EQ(told_n, 1 + (1 - i) * FDES);
		CHECK(!is_known(bed.pool + (size_t)i * 4096));
		CHECK_EQ(is_known(bed.pool + 4096), !i);
		ch__sinks_own_destroy(bed.sinks, own[i]);
	}
	told_by = NULL;
	bed_close(&bed);
	CHECK_EQ(told_n, 0);
}

/* A heap may go with blocks that were never freed. */
TEST(tables_that_are_left_go_with_the_sinks)
{
	static _Alignas(16) uint8_t sections[2][160];
	struct bed bed;
	bed_open(&bed, CH_SINK_UNWIND);
	for (unsigned i = 0; i < 2; i++) {
		uint8_t *code = bed.pool + (size_t)i * 4096;
		struct ch__own *own = ch__sinks_own_create(bed.sinks);
		CHECK(own != NULL);
		put_table(sections[i], code, 1);
		ch__sinks_own_live(bed.sinks, own, sections[i]);
	}
	CHECK_EQ(told_n, 3);
	bed_close(&bed);
	CHECK_EQ(told_n, 0);
}
