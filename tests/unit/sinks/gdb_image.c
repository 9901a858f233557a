/* SPDX-License-Identifier: MIT
 * gdb_image.c: the content of the images of GDB's JIT interface: symbols with sizes, sections, call
 * frames and source lines. gdb.c tests when an image is made, and which. */
#include "arch/arch.h"
#include "sinks/elf_image.h"
#include "sinks/table.h"
#include "tests/unit/sinks/gdb.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

TEST_GDB(image_has_symbols_with_sizes_and_a_frame_for_each_range)
{
	struct ch__sink_range block[] = {range_at(bed, 64, 40, 7), range_at(bed, 8000, 24, 7),
					 range_at(bed, BED_PAGE_BYTES * 3, 100, 8)};
	block[1].is_cold = true;
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, 0));
	CHECK(ch__sinks_page_live(bed->sinks, 3, 1, 0));
	ch__sinks_add(bed->sinks, block, 3);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	uintptr_t pool = (uintptr_t)bed->pool;
	const struct gdb_entry *entry = gdb_entry_of(pool + 64);
	const char *name;
	CHECK(entry);
	CHECK_EQ(gdb_symbol_count(entry), 3);
	const Elf64_Sym *symbol = gdb_symbol_at(entry, pool + 64, &name);
	CHECK(symbol);
	CHECK_STR(name, "fn_7");
	CHECK_EQ(symbol->st_value, pool + 64); /* the bytes before are not code */
	CHECK_EQ(symbol->st_size, 40);
	CHECK_EQ(ELF64_ST_TYPE(symbol->st_info), STT_FUNC);
	CHECK(gdb_symbol_at(entry, pool + 8000, &name));
	CHECK_STR(name, "fn_7 [cold]");
	CHECK(gdb_symbol_at(entry, pool + BED_PAGE_BYTES * 3 + 99, &name));
	CHECK_STR(name, "fn_8");
	CHECK(!gdb_symbol_at(entry, pool + 63, &name));
	CHECK(!gdb_symbol_at(entry, pool + 104, &name));
	/* Later the bytes around a range may belong to another image. */
	CHECK(gdb_claims(entry, pool + 64) && gdb_claims(entry, pool + 103));
	CHECK(!gdb_claims(entry, pool + 63) && !gdb_claims(entry, pool + 104));
	CHECK(gdb_fde_at(entry, pool + 64) && gdb_fde_at(entry, pool + 103));
	CHECK(gdb_fde_at(entry, pool + 8000) && gdb_fde_at(entry, pool + BED_PAGE_BYTES * 3));
	CHECK(!gdb_fde_at(entry, pool + 63) && !gdb_fde_at(entry, pool + 104));
}

TEST_GDB(range_keeps_its_frame_when_its_neighbour_goes)
{
	uintptr_t pool = (uintptr_t)bed->pool;
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, 0));
	add(bed, 64, 40, 1);
	add(bed, 128, 40, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	discard(bed, 64, 40, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	const struct gdb_entry *entry = gdb_entry_of(pool + 128);
	CHECK(entry && !gdb_entry_of(pool + 64));
	CHECK(gdb_fde_at(entry, pool + 128) && !gdb_fde_at(entry, pool + 64));
}

/* Otherwise each range would have its own section, and an image has room for 65279 sections. */
TEST_GDB(ranges_with_a_head_between_them_are_one_section)
{
	uintptr_t pool = (uintptr_t)bed->pool;
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, 0));
	struct ch__sink_range block[] = {range_at(bed, 64, 40, 7),
					 range_at(bed, 104 + HEAD, 24, 8),
					 range_at(bed, 136 + 2 * HEAD, 24, 9)};
	ch__sinks_add(bed->sinks, block, 3);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	const struct gdb_entry *entry = gdb_entry_of(pool + 64);
	const char *name;
	CHECK(entry && gdb_claims(entry, pool + 104) && !gdb_claims(entry, pool + 136));
	CHECK(!gdb_symbol_at(entry, pool + 104, &name));
	CHECK(gdb_symbol_at(entry, pool + 104 + HEAD, &name));
	CHECK_STR(name, "fn_8");
}

static size_t name_without_end(void *context, uint64_t key, char *out, size_t out_bytes)
{
	(void)context, (void)key;
	memset(out, 'n', out_bytes - 1);
	out[out_bytes - 1] = 0;
	return out_bytes - 1;
}

TEST(long_name_is_cut_as_in_other_tools)
{
	enum { MOST = CH__TOOL_NAME_BYTES - 1 };
	struct bed bed;
	use_heads(&bed);
	bed.config.name = name_without_end;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_GDB, &bed.sinks), 0);
	struct ch__sink_range block[] = {range_at(&bed, 64, 40, 7), range_at(&bed, 8000, 24, 7)};
	block[1].is_cold = true;
	CHECK(ch__sinks_page_live(bed.sinks, 0, 1, 0));
	ch__sinks_add(bed.sinks, block, 2);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	uintptr_t pool = (uintptr_t)bed.pool;
	const struct gdb_entry *entry = gdb_entry_of(pool + 64);
	const char *name;
	CHECK(entry && gdb_symbol_at(entry, pool + 64, &name));
	CHECK_EQ(strlen(name), MOST);
	CHECK_EQ(strspn(name, "n"), MOST);
	CHECK(gdb_symbol_at(entry, pool + 8000, &name));
	CHECK_EQ(strspn(name, "n"), MOST);
	CHECK_STR(name + MOST, " [cold]");
	bed_close(&bed);
}

/* Readers walk the table by the fields of the section header. */
TEST_GDB(table_of_symbols_says_how_long_and_of_which_binding_they_are)
{
	add(bed, 64, 40, 1);
	add(bed, 128, 40, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	const struct gdb_entry *entry = gdb_entry_of((uintptr_t)bed->pool + 64);
	CHECK(entry);
	const Elf64_Ehdr *header = gdb_header(entry);
	CHECK_EQ(header->e_shentsize, sizeof(Elf64_Shdr));
	CHECK_EQ(header->e_ehsize, sizeof(Elf64_Ehdr));
	CHECK_EQ(header->e_type, ET_EXEC);
	unsigned sections;
	const Elf64_Shdr *all = gdb_sections(entry, &sections);
	const Elf64_Shdr *table = gdb_section(entry, ".symtab");
	CHECK(table);
	CHECK_EQ(table->sh_type, SHT_SYMTAB);
	CHECK_EQ(table->sh_entsize, sizeof(Elf64_Sym));
	CHECK_EQ(table->sh_addralign, _Alignof(Elf64_Sym));
	CHECK_EQ(table->sh_offset % table->sh_addralign, 0);
	CHECK_EQ(table->sh_size, (2 + 1) * sizeof(Elf64_Sym));
	CHECK_EQ(all[table->sh_link].sh_type, SHT_STRTAB);
	CHECK_EQ(table->sh_link, (size_t)(gdb_section(entry, ".strtab") - all));
	/* sh_info is the index of the first symbol that is not local. */
	const Elf64_Sym *symbols =
		(const Elf64_Sym *)(const void *)(entry->file + table->sh_offset);
	for (unsigned i = 0; i < 2 + 1; i++)
		CHECK_EQ(ELF64_ST_BIND(symbols[i].st_info) == STB_LOCAL, i < table->sh_info);
}

TEST_GDB(frames_are_those_of_the_shape_of_the_page)
{
	static const uint8_t cfi[] = {0x0c, 7, 8, 0x90, 1};
	uint8_t frame = ch__sinks_frame_register(bed->sinks, cfi, sizeof cfi);
	CHECK(frame);
	CHECK(ch__sinks_page_live(bed->sinks, 0, 1, 0));
	CHECK(ch__sinks_page_live(bed->sinks, 1, 1, frame));
	add(bed, 64, 40, 1);
	add(bed, BED_PAGE_BYTES + 64, 40, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	uintptr_t pool = (uintptr_t)bed->pool;
	const struct gdb_entry *entry = gdb_entry_of(pool + 64);
	const uint8_t *first = gdb_fde_at(entry, pool + 64);
	const uint8_t *second = gdb_fde_at(entry, pool + BED_PAGE_BYTES + 64);
	CHECK(first && second);
	CHECK(!memcmp(program_of(first), ch__arch_cfi_frame_pointer,
		      sizeof ch__arch_cfi_frame_pointer));
	CHECK(!memcmp(program_of(second), cfi, sizeof cfi));
	uintptr_t runtime = (uintptr_t)bed->runtime;
	const uint8_t *third = gdb_fde_at(gdb_entry_of(runtime), runtime);
	CHECK(third && !memcmp(program_of(third), program_of(first), CH__FRAME_CFI_BYTES));
}

TEST(frame_of_a_block_with_steps_is_the_rule_of_steps)
{
	if (!CH_ARCH_HAS_STEPS)
		skip("no steps on this machine");
	struct bed bed;
	open_gdb(&bed);
	add_steps(&bed);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	uintptr_t pc = (uintptr_t)bed.pool + 64;
	const uint8_t *fde = gdb_fde_at(gdb_entry_of(pc), pc);
	const struct ch__steps *steps = ch__sinks_steps(bed.sinks);
	CHECK(fde && !memcmp(program_of(fde), steps->program, steps->program_bytes));
	bed_close(&bed);
}

TEST_GDB(span_is_one_symbol_and_one_frame)
{
	CHECK(ch__sinks_page_live(bed->sinks, BED_PAGES_PER_CHUNK - 1, 3, 0)); /* two chunks */
	size_t at = BED_CHUNK_BYTES - BED_PAGE_BYTES;
	add(bed, at, 3 * BED_PAGE_BYTES, 5);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_list_length(), 2);
	check_shown(bed, at, "fn_5");
	check_shown(bed, at + 3 * BED_PAGE_BYTES - 1, "fn_5");
	uintptr_t pc = (uintptr_t)bed->pool + at + 3 * BED_PAGE_BYTES - 1;
	CHECK(gdb_fde_at(gdb_entry_of(pc), pc));
}

/* The hot part of a span of three pages reaches to the cold part at the span's end. */
static void check_span_with_cold(struct bed *bed, uint32_t page, size_t cold_bytes, uint64_t key)
{
	char hot_name[40], cold_name[48];
	size_t at = (size_t)page * BED_PAGE_BYTES, cold = at + 3 * BED_PAGE_BYTES - cold_bytes;
	uintptr_t pool = (uintptr_t)bed->pool;
	struct ch__sink_range block[] = {range_at(bed, at + 16, cold - at - 16, key),
					 range_at(bed, cold, cold_bytes, key)};
	block[1].is_cold = true;
	bed_name(NULL, key, hot_name, sizeof hot_name);
	snprintf(cold_name, sizeof cold_name, "%s [cold]", hot_name);
	CHECK(ch__sinks_page_live(bed->sinks, page, 3, 0));
	ch__sinks_add(bed->sinks, block, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	gdb_check_sections();
	check_shown(bed, at + 16, hot_name);
	check_shown(bed, cold - 1, hot_name);
	check_shown(bed, cold, cold_name);
	check_shown(bed, cold + cold_bytes - 1, cold_name);
	CHECK(gdb_fde_at(gdb_entry_of(pool + cold - 1), pool + cold - 1));
	CHECK(gdb_fde_at(gdb_entry_of(pool + cold), pool + cold));
}

TEST_GDB(cold_part_of_a_span_has_a_section_that_is_its_own)
{
	check_span_with_cold(bed, 4, 512, 1); /* all in one image */
	check_span_with_cold(bed, 8, 512, 2); /* an image for each part */
	check_span_with_cold(bed, 12, BED_PAGE_BYTES, 3);
	check_span_with_cold(bed, 16, BED_PAGE_BYTES + 512, 4);
	check_span_with_cold(bed, 20, 2 * BED_PAGE_BYTES + 512, 5); /* begins in the first page */
	check_span_with_cold(bed, BED_PAGES_PER_CHUNK - 1, 512, 6); /* two chunks */
	add(bed, 23 * BED_PAGE_BYTES, 64, 7);                       /* neighbours of spans */
	add(bed, 7 * BED_PAGE_BYTES + 640, 64, 8);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	gdb_check_sections();
}

TEST(slots_have_frames_of_their_own)
{
	static struct ch__frame_shape shapes[CH__FRAMES];
	struct ch__elf_range ranges[] = {{.key = 1, .offset = 72, .bytes = 56},
					 {.key = 2, .offset = 200, .bytes = 56}};
	struct ch__elf_page page = {.ranges = ranges, .count = 2};
	_Atomic(uint8_t) frame = CH__FRAME_SLOTS + 1;
	struct ch__sinks_config config = {
		.pool_exec = 0x10000,
		.page_bytes = BED_PAGE_BYTES,
		.name = bed_name,
		.head_bytes = HEAD,
		.frames = &frame,
		.shapes = shapes,
	};
	struct ch__elf_input in = {
		.config = &config,
		.pages = &page,
		.page_count = 1,
		.image = ranges[0].image,
		.base = 0x10000,
	};
	shapes[CH__FRAME_SLOTS] = (struct ch__frame_shape){
		.slot_bytes = 64, .fde_bytes = 2, .fde = {0x41, 0x0e}};
	size_t bytes;
	uint8_t *memory = ch__elf_image_make(&in, 16, &bytes);
	CHECK(memory != NULL);
	struct gdb_entry entry = {.file = memory + 16, .file_bytes = bytes - 16};
	const char *name;
	const Elf64_Sym *symbol = gdb_symbol_at(&entry, 0x10000 + 192 + 8, &name);
	CHECK(symbol);
	CHECK_EQ(symbol->st_value, 0x10000 + 192 + 8);
	CHECK_EQ(symbol->st_size, 56);
	const uint8_t *fde = gdb_fde_at(&entry, 0x10000 + 64 + 8);
	CHECK(fde && fde != gdb_fde_at(&entry, 0x10000 + 192 + 8));
	CHECK(fde[24] == 0x41 && fde[25] == 0x0e);
	CHECK(!gdb_fde_at(&entry, 0x10000 + 64 + 7) && !gdb_fde_at(&entry, 0x10000 + 64 + 64));
	ch__os_unmap(memory, bytes);
}

/* Key 7 has the section at chunk 2. */
static const uint8_t *their_section;

static const uint8_t *section_of_seven(void *context, uint64_t key)
{
	(void)context;
	return key == 7 ? their_section : NULL;
}

static struct bed *open_with_section(struct bed *bed)
{
	use_heads(bed);
	bed->config.section = section_of_seven;
	CHECK_EQ(ch__sinks_create(&bed->config, CH_SINK_GDB, &bed->sinks), 0);
	their_section = bed->pool + 2 * BED_CHUNK_BYTES;
	return bed;
}
#define TEST_SECTION(name) \
	TEST_WITH(name, struct bed *, bed, open_with_section(&(struct bed){0}), bed_close(bed))

static void add_cold(struct bed *bed, size_t offset, size_t bytes, uint64_t key)
{
	struct ch__sink_range range = range_at(bed, offset, bytes, key);
	range.is_cold = true;
	ch__sinks_add(bed->sinks, &range, 1);
}

static void put(uint8_t **at, const void *bytes, size_t n)
{
	memcpy(*at, bytes, n);
	*at += n;
}

/* Writes a CIE with a personality and pc-relative FDEs, and an FDE for `bytes` from low on, as if
 * the section lay at `home`. Returns the section's length. */
static size_t write_section(uint8_t *to, uintptr_t home, uintptr_t low, uint32_t bytes)
{
	static const uint8_t cie[] = {28, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'P',  'R',  0, 1, 0x78, 16,
				      10, 0, 1, 2, 3, 4, 5, 6, 7, 8,   0x1b, 0x0c, 7, 8, 0x90, 1};
	static const uint8_t program[] = {0, 0x41, 0x0e, 0x10};
	uint8_t *at = to;
	uint32_t words[] = {16, sizeof cie + 4, 0, bytes};
	words[2] = (uint32_t)(low - (home + sizeof cie + 8));
	put(&at, cie, sizeof cie);
	put(&at, words, sizeof words);
	put(&at, program, sizeof program);
	memset(at, 0, 4);
	return (size_t)(at + 4 - to);
}

TEST_SECTION(block_with_frames_of_its_own_has_those)
{
	uint8_t section[128];
	uintptr_t pool = (uintptr_t)bed->pool, home = pool + 2 * BED_CHUNK_BYTES;
	size_t n = write_section(section, home, pool + 64, 30);
	bed_code(bed, 2 * BED_CHUNK_BYTES, section, n);
	size_t fault_at;
	CHECK(!ch__eh_frame_fault((const void *)home, pool, pool + 200, &fault_at));
	add(bed, 64, 40, 7);
	add_cold(bed, 128, 40, 7);       /* in the same page: shown no second time */
	add(bed, BED_PAGE_BYTES, 40, 8); /* no frames, page not live */
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	const struct gdb_entry *entry = gdb_entry_of(pool + 64);
	const uint8_t *fde = gdb_fde_at(entry, pool + 64);
	CHECK(fde && fde == gdb_fde_at(entry, pool + 64 + 29));
	CHECK(!gdb_fde_at(entry, pool + 63) && !gdb_fde_at(entry, pool + 64 + 30));
	CHECK(!gdb_fde_at(entry, pool + BED_PAGE_BYTES));
	CHECK(!memcmp(program_of(fde), "\x0c\x07\x08\x90\x01", 5));
	CHECK(!memcmp(fde + 24, "\x41\x0e\x10", 3));
	CHECK(program_of(fde)[-4] == 0 && program_of(fde)[-1] == 16); /* no augmentation; rip */
	/* Behind either program DW_CFA_nop fills the record; then the next record begins. */
	static const uint8_t nops[8];
	const uint8_t *cie = program_of(fde) - 13;
	uint32_t cie_bytes, fde_bytes, behind;
	memcpy(&cie_bytes, cie, 4);
	memcpy(&fde_bytes, fde, 4);
	memcpy(&behind, fde + 4 + fde_bytes, 4);
	CHECK_EQ(behind, 0); /* the end */
	CHECK_EQ(cie + 4 + cie_bytes, fde);
	CHECK(cie_bytes + 4 == 24 && fde_bytes + 4 == 32);
	CHECK(!memcmp(cie + 18, nops, 24 - 18) && !memcmp(fde + 27, nops, 32 - 27));
	discard(bed, 64, 40, 7);
	add(bed, 64, 40, 9); /* without own frames */
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	check_shown(bed, 64, "fn_9");
	CHECK(!gdb_fde_at(gdb_entry_of(pool + 64), pool + 64));
}

/* Addresses are absolute there, and the program of the CIE begins behind the return register. */
TEST_SECTION(frames_of_its_own_without_augmentation_keep_both_programs)
{
	static const uint8_t cie[20] = {16, 0, 0,    0,  0,    0, 0, 0,    1,
					0,  1, 0x78, 16, 0x0c, 7, 8, 0x90, 1};
	static const uint8_t program[] = {0x41, 0x0e, 0x10, 0};
	uint8_t section[128] = {0}, *at = section;
	uintptr_t pool = (uintptr_t)bed->pool, home = pool + 2 * BED_CHUNK_BYTES;
	const uint32_t head[] = {24, sizeof cie + 4};
	const uint64_t range[] = {pool + 64, 30};
	put(&at, cie, sizeof cie);
	put(&at, head, sizeof head);
	put(&at, range, sizeof range);
	put(&at, program, sizeof program);
	bed_code(bed, 2 * BED_CHUNK_BYTES, section, (size_t)(at + 4 - section));
	size_t fault_at;
	CHECK(!ch__eh_frame_fault((const void *)home, pool, pool + 200, &fault_at));
	add(bed, 64, 40, 7);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	const uint8_t *fde = gdb_fde_at(gdb_entry_of(pool + 64), pool + 64);
	CHECK(fde);
	CHECK(!memcmp(program_of(fde), "\x0c\x07\x08\x90\x01", 5));
	CHECK(!memcmp(fde + 24, program, sizeof program));
}

/* The cold part begins in a page of the block, and shows the section no second time. */
TEST_SECTION(frames_of_its_own_may_begin_beyond_the_first_page_of_a_block)
{
	uint8_t section[128];
	uintptr_t pool = (uintptr_t)bed->pool, home = pool + 2 * BED_CHUNK_BYTES;
	uintptr_t low = pool + BED_PAGE_BYTES + 16;
	size_t n = write_section(section, home, low, 30);
	bed_code(bed, 2 * BED_CHUNK_BYTES, section, n);
	add(bed, 64, BED_PAGE_BYTES, 7);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	CHECK(gdb_fde_at(gdb_entry_of(pool + 64), low));
	add_cold(bed, BED_PAGE_BYTES + 64, 40, 7);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	const uint8_t *fde = gdb_fde_at(gdb_entry_of(pool + 64), low);
	CHECK(fde);
	uint32_t bytes;
	memcpy(&bytes, fde, 4);
	memcpy(&bytes, fde + 4 + bytes, 4);
	CHECK_EQ(bytes, 0); /* the end */
}

/* --- lines --- */
static struct ch__sink_line two_lines[2];
static const char *their_file = "/src/prog.scm";

static const struct ch__sink_line *lines_of_seven(void *context, uint64_t key, const char **file,
						  size_t *n)
{
	(void)context;
	*file = their_file;
	*n = key == 7 ? 2 : 0;
	return two_lines;
}

/* Key 7 has the two lines. Returns the pool's address. */
static uintptr_t begin_with_lines(struct bed *bed)
{
	use_heads(bed);
	bed->config.lines = lines_of_seven;
	CHECK_EQ(ch__sinks_create(&bed->config, CH_SINK_GDB, &bed->sinks), 0);
	return (uintptr_t)bed->pool;
}

TEST(image_has_the_lines_of_a_range)
{
	struct bed bed;
	const char *file = "";
	uintptr_t pool = begin_with_lines(&bed);
	two_lines[0] = (struct ch__sink_line){70, 300};
	two_lines[1] = (struct ch__sink_line){90, 12};
	add(&bed, 64, 40, 7);
	add(&bed, 128, 40, 8);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_line_of(pool + 69, &file), 0);
	CHECK_EQ(gdb_line_of(pool + 70, &file), 300);
	CHECK_STR(file, "/src/prog.scm");
	CHECK_EQ(gdb_line_of(pool + 89, &file), 300);
	CHECK_EQ(gdb_line_of(pool + 90, &file), 12);
	CHECK_EQ(gdb_line_of(pool + 103, &file), 12);
	CHECK_EQ(gdb_line_of(pool + 104, &file), 0);
	CHECK_EQ(gdb_line_of(pool + 140, &file), 0);
	CHECK(gdb_section(gdb_entry_of(pool + 70), ".debug_info"));
	CHECK(gdb_section(gdb_entry_of(pool + 70), ".debug_abbrev"));
	bed_close(&bed);
}

/* The longest distances of one byte, and the shortest of two, in lines and in code. */
TEST(image_has_each_distance_of_two_lines)
{
	static const int distances[] = {-65, -64, 63, 64};
	const char *file = "";
	for (unsigned i = 0; i < 4; i++) {
		struct bed bed;
		uint32_t second = 70 + 127 + i % 2;
		uintptr_t pool = begin_with_lines(&bed);
		two_lines[0] = (struct ch__sink_line){70, 300};
		two_lines[1] = (struct ch__sink_line){second, (uint32_t)(300 + distances[i])};
		add(&bed, 64, 200, 7);
		ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
		CHECK_EQ(gdb_line_of(pool + second - 1, &file), 300);
		CHECK_EQ(gdb_line_of(pool + second, &file), 300 + distances[i]);
		bed_close(&bed);
	}
}

TEST(image_has_no_lines_of_a_file_without_a_name)
{
	struct bed bed;
	uintptr_t pool = begin_with_lines(&bed);
	two_lines[0] = (struct ch__sink_line){64, 1};
	two_lines[1] = (struct ch__sink_line){70, 2};
	their_file = "";
	add(&bed, 64, 40, 7);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	check_shown(&bed, 64, "fn_7");
	CHECK(!gdb_section(gdb_entry_of(pool + 64), ".debug_line"));
	bed_close(&bed);
}

static unsigned long mapped_pages(void)
{
	char text[64] = "";
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
	CHECK_EQ(close(fd), 0);
	return strtoul(text, NULL, 10);
}

TEST(memory_for_lines_goes_when_the_image_is_made)
{
	struct bed bed;
	unsigned long pages = 0;
	(void)begin_with_lines(&bed);
	two_lines[0] = (struct ch__sink_line){70, 300};
	two_lines[1] = (struct ch__sink_line){90, 12};
	for (int i = 0; i < 16; i++) {
		pages = i == 2 ? mapped_pages() : pages;
		add(&bed, 64, 40, 7);
		ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
		discard(&bed, 64, 40, 7);
		ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	}
	CHECK_EQ(mapped_pages(), pages);
	bed_close(&bed);
}

TEST(line_reaches_no_further_than_the_part_of_its_block)
{
	struct bed bed;
	const char *file = "";
	uintptr_t pool = begin_with_lines(&bed);
	struct ch__sink_range block[] = {range_at(&bed, 64, 40, 7), range_at(&bed, 8000, 40, 7)};
	block[1].is_cold = true;
	two_lines[0] = (struct ch__sink_line){56, 300}; /* in bytes that are not used */
	two_lines[1] = (struct ch__sink_line){8010, 12};
	ch__sinks_add(bed.sinks, block, 2);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_line_of(pool + 63, &file), 0);
	CHECK_EQ(gdb_line_of(pool + 64, &file), 300);
	CHECK_EQ(gdb_line_of(pool + 103, &file), 300);
	CHECK_EQ(gdb_line_of(pool + 104, &file), 0);
	CHECK_EQ(gdb_line_of(pool + 8009, &file), 0);
	CHECK_EQ(gdb_line_of(pool + 8010, &file), 12);
	bed_close(&bed);
}

/* Two units in DWARF 4, written by hand, each with a file, a function and rows. */
struct written {
	uint8_t bytes[400];
	size_t n;
};

static void w(struct written *to, uint64_t value, size_t bytes)
{
	memcpy(to->bytes + to->n, &value, bytes);
	to->n += bytes;
}

static void w_text(struct written *to, const char *text)
{
	memcpy(to->bytes + to->n, text, strlen(text) + 1);
	to->n += strlen(text) + 1;
}

static void w_close(struct written *to, size_t at)
{
	uint32_t length = (uint32_t)(to->n - at - 4);
	memcpy(to->bytes + at, &length, 4);
}

static void write_unit(struct written *info, const char *name, uint32_t line_at, uint64_t low,
		       uint64_t high)
{
	size_t at = info->n;
	w(info, 0, 4);
	w(info, 4, 2); /* version */
	w(info, 0, 4); /* abbreviations */
	w(info, 8, 1); /* bytes of an address */
	w(info, 1, 1); /* a unit with lines */
	w(info, 12, 1); /* C99 */
	w_text(info, "/src/prog.scm");
	w(info, line_at, 4);
	w(info, low, 8);
	w(info, high - low, 8);
	w(info, 2, 1); /* the function */
	w_text(info, name);
	w(info, low, 8);
	w(info, high - low, 8);
	w(info, 0, 1); /* no more children */
	w_close(info, at);
}

/* Writes rows: line 300 first, line 12 from 20 bytes further to the end. */
static void write_lines(struct written *line, uint64_t first, uint64_t high)
{
	static const uint8_t header[] = {1, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1};
	static const uint8_t row_300[] = {3, 0xab, 2, 1}, row_12[] = {2, 20, 3, 0xe0, 0x7d, 1};
	size_t at = line->n;
	w(line, 0, 4);
	w(line, 4, 2);
	size_t header_at = line->n;
	w(line, 0, 4);
	memcpy(line->bytes + line->n, header, sizeof header);
	line->n += sizeof header;
	w(line, 0, 1); /* no folders */
	w_text(line, "/src/prog.scm");
	w(line, 0, 4); /* no further data of the file, no further file */
	w_close(line, header_at);
	w(line, 0x020900, 3); /* extended, 9 bytes: the address */
	w(line, first, 8);
	memcpy(line->bytes + line->n, row_300, sizeof row_300);
	line->n += sizeof row_300;
	memcpy(line->bytes + line->n, row_12, sizeof row_12);
	line->n += sizeof row_12;
	w(line, 2, 1);
	w(line, high - (first + 20), 1);
	w(line, 0x010100, 3); /* extended, 1 byte: the end */
	w_close(line, at);
}

static void check_section(const struct gdb_entry *entry, const char *name, const void *bytes,
			  size_t n)
{
	const Elf64_Shdr *section = gdb_section(entry, name);
	if (!section || section->sh_size != n)
		FAIL("%s has %zu bytes, not %zu", name, section ? (size_t)section->sh_size : 0, n);
	for (size_t i = 0; i < n; i++)
		if (entry->file[section->sh_offset + i] != ((const uint8_t *)bytes)[i])
			FAIL("%s is another at byte %zu", name, i);
}

static const struct ch__sink_line *lines_of_both(void *context, uint64_t key, const char **file,
						 size_t *n)
{
	static struct ch__sink_line moved[2];
	(void)context;
	*file = their_file;
	*n = 2;
	for (size_t i = 0; i < 2; i++) {
		moved[i] = two_lines[i];
		moved[i].offset += (uint32_t)key * 64;
	}
	return moved;
}

TEST(debug_sections_are_those_of_the_standard_byte_for_byte)
{
	static const uint8_t abbreviations[] = {
		1,    0x11, 1, 0x13, 0x0b, 0x03, 0x08, 0x10, 0x17, 0x11, 0x01, 0x12, 0x07, 0, 0,
		2,    0x2e, 0, 0x03, 0x08, 0x3f, 0x19, 0x11, 0x01, 0x12, 0x07, 0,    0,
		3,    0x11, 1, 0x13, 0x0b, 0x11, 0x01, 0x12, 0x07, 0,    0,    0};
	static struct written info, line;
	struct bed bed;
	use_heads(&bed);
	bed.config.lines = lines_of_both;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_GDB, &bed.sinks), 0);
	uintptr_t pool = (uintptr_t)bed.pool;
	two_lines[0] = (struct ch__sink_line){6, 300};
	two_lines[1] = (struct ch__sink_line){26, 12};
	for (uint64_t key = 1; key < 3; key++) {
		uintptr_t low = pool + key * 64, high = pool + key * 64 + 40;
		add(&bed, key * 64, 40, key);
		write_unit(&info, key == 1 ? "fn_1" : "fn_2", (uint32_t)line.n, low, high);
		write_lines(&line, pool + key * 64 + 6, high);
	}
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	const struct gdb_entry *entry = gdb_entry_of(pool + 64);
	CHECK(entry && entry == gdb_entry_of(pool + 128));
	check_section(entry, ".debug_abbrev", abbreviations, sizeof abbreviations);
	check_section(entry, ".debug_line", line.bytes, line.n);
	check_section(entry, ".debug_info", info.bytes, info.n);
	bed_close(&bed);
}

/* --- names that a debugger would take for names of another language --- */
static size_t name_of_language(void *context, uint64_t key, char *to, size_t room)
{
	static const char *const names[] = {
		"py::f:/a.py", "my__func", "plain", "Capital__.py", "with a space__.py",
		"run$1",       "workB",	   "onE_E1s", "runN",	      "Oadd",
		"boxX",	       "_ada_main", "_i_a_b_", "fUaa",	      "fWaa12"};
	(void)context;
	return (size_t)snprintf(to, room, "%s", names[key]);
}

/* Returns the function's name of the unit that covers pc, and its language; NULL if none. */
static const char *named_by_unit(uintptr_t pc, unsigned *language)
{
	const struct gdb_entry *entry = gdb_entry_of(pc);
	const Elf64_Shdr *info = gdb_section(entry, ".debug_info");
	const uint8_t *at = entry->file + (info ? info->sh_offset : 0);
	const uint8_t *end = at + (info ? info->sh_size : 0);
	for (uint32_t bytes; at < end; at += 4 + bytes) {
		memcpy(&bytes, at, 4);
		const uint8_t *unit = at + 11; /* behind length, version, abbreviations, bytes */
		uint64_t low, high;
		if (unit[0] != 3)
			continue;
		memcpy(&low, unit + 2, 8);
		memcpy(&high, unit + 10, 8);
		const char *name = (const char *)unit + 19;
		CHECK_EQ(unit[18], 2);
		CHECK(!memcmp(name + strlen(name) + 1, unit + 2,
			      16)); /* the function fills the unit */
		*language = unit[1];
		if (pc - low < high)
			return name;
	}
	return NULL;
}

static size_t no_name(void *context, uint64_t key, char *to, size_t room)
{
	(void)context, (void)key, (void)to, (void)room;
	return 0;
}

/* The number of a section has 16 bits, of which the highest values mean something else. */
TEST(image_has_as_many_sections_as_a_file_can_have_or_there_is_none)
{
	enum { OTHERS = 4, MOST = SHN_LORESERVE - 1 - OTHERS }; /* null, frames, symbols, strings */
	static struct ch__elf_range ranges[MOST + 1];
	static const _Atomic(uint8_t) no_frame;
	static const struct ch__sinks_config config = {
		.page_bytes = 1 << 30, .name = no_name, .frames = &no_frame};
	struct ch__elf_page page = {.ranges = ranges, .count = MOST};
	struct ch__elf_input in = {
		.config = &config, .pages = &page, .page_count = 1, .base = 4096};
	for (uint32_t i = 0; i <= MOST; i++)
		ranges[i] = (struct ch__elf_range){.offset = 16 * i, .bytes = 8};
	size_t bytes;
	uint8_t *memory = ch__elf_image_make(&in, 0, &bytes);
	CHECK(memory != NULL);
	CHECK_EQ(((const Elf64_Ehdr *)(const void *)memory)->e_shnum, SHN_LORESERVE - 1);
	ch__os_unmap(memory, bytes);
	page.count++;
	CHECK(ch__elf_image_make(&in, 0, &bytes) == NULL);
}

/* A debugger passes over a symbol without a name. */
TEST(code_without_a_name_is_named_by_its_address)
{
	struct bed bed;
	char name[40];
	use_heads(&bed);
	bed.config.name = no_name;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_GDB, &bed.sinks), 0);
	add(&bed, 64, 40, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	snprintf(name, sizeof name, "jit_%zx", (size_t)bed.pool + 64);
	check_shown(&bed, 64, name);
	bed_close(&bed);
}

TEST(image_says_the_language_of_names_that_would_be_changed)
{
	enum { C99 = 12 };
	struct bed bed;
	unsigned language = 0;
	use_heads(&bed);
	bed.config.name = name_of_language;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_GDB, &bed.sinks), 0);
	uintptr_t pool = (uintptr_t)bed.pool;
	for (uint64_t key = 2; key < 5; key++)
		add(&bed, 64 + 64 * key, 40, key);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	check_shown(&bed, 64 + 64 * 2, "plain");
	CHECK(!gdb_section(gdb_entry_of(pool + 200), ".debug_info"));
	for (uint64_t key = 0; key < 15; key++)
		if (key < 2 || key > 4)
			add(&bed, 64 + 64 * key, 40, key);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK_STR(named_by_unit(pool + 64, &language), "py::f:/a.py");
	CHECK_EQ(language, C99);
	CHECK(!gdb_entry_of(pool + 64 - 1));
	CHECK_STR(named_by_unit(pool + 128 + 39, &language), "my__func");
	for (uint64_t key = 2; key < 15; key++)
		CHECK_EQ(named_by_unit(pool + 64 + 64 * key, &language) != NULL, key > 4);
	CHECK(gdb_section(gdb_entry_of(pool + 70), ".debug_abbrev"));
	CHECK(!gdb_section(gdb_entry_of(pool + 70), ".debug_line"));
	bed_close(&bed);
}
