/* SPDX-License-Identifier: MIT
 * malformed.c: .eh_frame records of every judged form, with one fault at a time: faults in a VM's
 * section (eh_frame_check.c). */
#include "tests/support/harness.h"
#include "unwind/unwinders.h"
#include "unwind/unwind.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum {
	ABSOLUTE = 0x00,
	UDATA2 = 0x02,
	UDATA4 = 0x03,
	UDATA8 = 0x04,
	SDATA2 = 0x0a,
	SDATA4 = 0x0b,
	SDATA8 = 0x0c,
	PC_RELATIVE = 0x10,
	TEXT_RELATIVE = 0x20,
	INDIRECT = 0x80,
	NO_POINTER = 0xff,
	ULEB = 0x01,
	CODE_BYTES = 64,
	SECTION_MOST = 1 << 20,
};

static const uint8_t code[2 * CODE_BYTES];

/* A correct CIE and FDE, and the faults in both; 0 = correct. */
struct form {
	const char *what;
	const char *letters;   /* NULL: zR */
	uintptr_t low;         /* 0: the address of code */
	uint64_t first, bytes; /* of the FDE, from low; bytes 0: CODE_BYTES */
	int cie_length, fde_length, cie_id, distance, data, fde_data; /* added to the right value */
	uint8_t version;                                              /* 0: 1 */
	uint8_t encoding;
	uint8_t personality;
	uint8_t lsda; /* 0: SDATA4 */
	uint8_t factor_bytes;             /* bytes of the code alignment factor's LEB128; 0: 1 */
	uint8_t cfi_bytes, fde_cfi_bytes; /* of the programs, in nops */
	bool unended_letters, no_fde, empty_fde, cie_is_fde, no_end;
	bool long_register, empty_behind; /* two bytes of LEB128; a second FDE, of nothing */
	enum { IN_CIE, IN_FDE, IN_LENGTH, IN_CODE, NO_CODE } fault; /* of an unsound one */
};

/* --- a section --- */

static _Alignas(8) uint8_t section[SECTION_MOST + 64];
static size_t used;
static const uint8_t *fde_at;

static void put(uint64_t value, unsigned bytes)
{
	memcpy(section + used, &value, bytes);
	used += bytes;
}

static void fill(uint8_t byte, unsigned count)
{
	while (count--)
		put(byte, 1);
}

static unsigned bytes_of(uint8_t encoding)
{
	static const uint8_t sizes[16] = {8, 0, 2, 4, 8, 0, 0, 0, 0, 0, 2, 4, 8, 0, 0, 0};
	return sizes[encoding & 15];
}

static size_t begin_record(void)
{
	put(0, 4);
	return used;
}

static void end_record(size_t at, int more)
{
	while ((used - at) % 4)
		put(0, 1);
	uint32_t length = (uint32_t)((int)(used - at) + more);
	memcpy(section + at - 4, &length, 4);
}

static void put_cie(const struct form *f)
{
	const char *letters = f->letters ? f->letters : "zR";
	size_t at = begin_record();
	put((uint64_t)f->cie_id, 4);
	put(f->version ? f->version : 1, 1);
	if (f->unended_letters) {
		fill('z', 7);
		end_record(at, f->cie_length);
		return;
	}
	for (const char *c = letters; *c; c++)
		put((uint8_t)*c, 1);
	put(0, 1);
	fill(0x81, f->factor_bytes ? f->factor_bytes - 1u : 0);
	put(1, 1);
	put(0x78, 1); /* -8 */
	put(f->long_register ? 0x90 : 16, f->long_register ? 2 : 1);
	if (*letters == 'z') {
		size_t length_at = used;
		put(0, 1);
		for (const char *c = letters + 1; *c; c++) {
			if (*c == 'R') {
				put(f->encoding, 1);
			} else if (*c == 'L') {
				put(f->lsda ? f->lsda : SDATA4, 1);
			} else if (*c == 'P') {
				put(f->personality, 1);
				fill(0, bytes_of(f->personality));
			}
		}
		section[length_at] = (uint8_t)((int)(used - length_at - 1) + f->data);
	}
	fill(0, f->cfi_bytes);
	end_record(at, f->cie_length);
}

static void put_fde(const struct form *f, size_t cie)
{
	uintptr_t low = f->low ? f->low : (uintptr_t)code;
	bool has_letters = !f->letters || f->letters[0] == 'z';
	unsigned size = bytes_of(f->encoding);
	size_t at = begin_record();
	fde_at = section + at - 4;
	put((uint64_t)((int)(used - cie) + f->distance), 4);
	uint64_t first = low + f->first;
	if (f->encoding & PC_RELATIVE)
		first -= (uintptr_t)(section + used);
	put(first, size);
	put(f->empty_fde ? 0 : f->bytes ? f->bytes : CODE_BYTES, size);
	if (has_letters)
		put((uint64_t)f->fde_data, 1);
	fill(0, f->fde_cfi_bytes);
	end_record(at, f->fde_length);
}

static void build(const struct form *f)
{
	memset(section, 0, 4096);
	used = 0;
	put_cie(f);
	if (!f->no_fde)
		put_fde(f, f->cie_is_fde ? used : 0);
	struct form behind = *f;
	behind.empty_fde = true;
	if (f->empty_behind)
		put_fde(&behind, 0);
	if (!f->no_end)
		put(0, 4);
}

/* --- a VM's section --- */

static const char *fault; /* of the last section that was looked at; NULL: none */

static bool serves(const void *records, uintptr_t low, uintptr_t high)
{
	size_t at;
	fault = ch__eh_frame_fault(records, low, high, &at);
	return !fault;
}

static bool is_sound(const struct form *f)
{
	uintptr_t low = f->low ? f->low : (uintptr_t)code;
	build(f);
	return serves(section, low, low + CODE_BYTES);
}

TEST(sections_of_every_form_are_sound)
{
	static const struct form forms[] = {
		{.what = "plain"},
		{.what = "udata2", .encoding = UDATA2, .low = 0x8000},
		{.what = "udata4", .encoding = UDATA4, .low = 0xf0000000},
		{.what = "udata8", .encoding = UDATA8},
		{.what = "sdata2", .encoding = SDATA2, .low = 0x1000},
		{.what = "sdata4", .encoding = SDATA4, .low = 0x10000},
		{.what = "negative sdata4", .encoding = SDATA4, .low = (uintptr_t)-0x1000},
		{.what = "a far sdata4", .encoding = SDATA4, .low = (uintptr_t)-0x70000000},
		{.what = "sdata8", .encoding = SDATA8},
		{.what = "relative", .encoding = PC_RELATIVE | SDATA4},
		{.what = "relative, 8 bytes", .encoding = PC_RELATIVE | ABSOLUTE},
		{.what = "version 3", .version = 3},
		{.what = "version 3, two bytes of a register", .version = 3, .long_register = true},
		{.what = "an FDE of nothing behind", .empty_behind = true},
		{.what = "no letters", .letters = ""},
		{.what = "language data", .letters = "zLR"},
		{.what = "no language data", .letters = "zLR", .lsda = NO_POINTER},
		{.what = "language data by way of a word",
		 .letters = "zLR",
		 .lsda = INDIRECT | PC_RELATIVE | SDATA4},
		{.what = "personality", .letters = "zPLR", .personality = PC_RELATIVE | SDATA4},
		{.what = "a personality by way of a word",
		 .letters = "zPR",
		 .personality = INDIRECT | PC_RELATIVE | SDATA4},
		{.what = "signal frame, signed pcs", .letters = "zRSB"},
		{.what = "no encoding", .letters = "z"},
		{.what = "a long factor", .factor_bytes = 10},
		{.what = "a CIE that ends with its encoding", .factor_bytes = 4},
		{.what = "programs", .cfi_bytes = 40, .fde_cfi_bytes = 40},
		{.what = "some of the code", .first = 8, .bytes = 8},
	};
	for (unsigned i = 0; i < sizeof forms / sizeof *forms; i++)
		if (!is_sound(&forms[i]))
			FAIL("a sound section is refused: %s", forms[i].what);
}

static const char *const faults[] = {
	[IN_CIE] = "a CIE that is malformed, or that unwinders may not take",
	[IN_FDE] = "an FDE that is malformed, or without a CIE to take",
	[IN_LENGTH] = "no length of a record",
	[IN_CODE] = "an FDE of other code",
	[NO_CODE] = "the end, and no FDE has code",
};
static const struct form unsound[] = {
	{.what = "version 2", .version = 2},
	{.what = "version 4", .version = 4},
	{.what = "letters without an end", .unended_letters = true},
	{.what = "letters of another kind", .letters = "eh"},
	{.what = "letters without their length", .letters = "R", .cfi_bytes = 4,
	 .fde_cfi_bytes = 4},
	{.what = "a letter that nobody knows", .letters = "zRX"},
	{.what = "data behind the record", .data = 100},
	{.what = "data that end a byte behind the record", .data = 4},
	{.what = "pcs of no fixed length", .encoding = ULEB},
	{.what = "pcs by way of a word", .encoding = INDIRECT | PC_RELATIVE | SDATA4},
	{.what = "pcs relative to a base", .encoding = TEXT_RELATIVE | SDATA4},
	{.what = "a personality of no fixed length", .letters = "zPR", .personality = ULEB},
	{.what = "a personality that is aligned", .letters = "zPR", .personality = 0x50},
	{.what = "a personality of no base", .letters = "zPR", .personality = 0x60},
	{.what = "no personality", .letters = "zPR", .personality = NO_POINTER},
	{.what = "no personality behind an encoding",
	 .letters = "zRP",
	 .personality = NO_POINTER,
	 .cfi_bytes = 12},
	{.what = "language data of no fixed length", .letters = "zLR", .lsda = ULEB},
	{.what = "language data of no form",
	 .letters = "zLR",
	 .lsda = (uint8_t)~INDIRECT},
	{.what = "language data relative to a base",
	 .letters = "zLR",
	 .lsda = TEXT_RELATIVE | SDATA4},
	{.what = "an encoding behind the letter S", .letters = "zSR"},
	{.what = "an encoding behind the letter B", .letters = "zLBR"},
	{.what = "a personality behind the letter B",
	 .letters = "zBP",
	 .personality = PC_RELATIVE | SDATA4},
	{.what = "two encodings", .letters = "zRR", .encoding = PC_RELATIVE | SDATA4},
	{.what = "a CIE that is cut in its factors", .letters = "", .cie_length = -4},
	{.what = "a factor that does not end", .factor_bytes = 30, .cie_length = -24},
	{.what = "a factor of more than 64 bits", .letters = "", .factor_bytes = 11},
	{.fault = IN_FDE,
	 .what = "an FDE whose CIE lies before the section", .distance = 4096},
	{.fault = IN_FDE, .what = "an FDE whose CIE is not aligned", .distance = -2},
	{.fault = IN_FDE, .what = "an FDE whose CIE is none", .cie_id = 4},
	{.fault = IN_FDE, .what = "an FDE whose CIE reaches into it", .distance = -4},
	{.fault = IN_FDE, .what = "an FDE without room for pcs", .fde_length = -12},
	{.fault = IN_FDE, .what = "an FDE with room for one pc", .fde_length = -8},
	{.fault = IN_LENGTH, .what = "an FDE of an odd length", .fde_length = -2},
	{.fault = IN_FDE, .what = "an FDE whose data reach behind it", .fde_data = 100},
	{.fault = IN_FDE, .what = "an FDE whose data end a byte behind it", .fde_data = 4},
	{.fault = IN_CODE, .what = "code before the block", .first = (uint64_t)-8},
	{.fault = IN_CODE, .what = "code behind the block", .first = CODE_BYTES},
	{.fault = IN_CODE, .what = "code over the block's end", .bytes = CODE_BYTES + 1},
	{.fault = NO_CODE, .what = "an FDE of nothing", .empty_fde = true},
	{.fault = NO_CODE, .what = "no FDE", .no_fde = true},
	{.fault = IN_LENGTH, .what = "a short record", .cie_length = -100},
	{.fault = IN_LENGTH, .what = "a record of an odd length", .cie_length = 2},
	{.fault = IN_LENGTH,
	 .what = "a record that leads far away", .cie_length = 2 * SECTION_MOST},
};
TEST(sections_with_one_thing_wrong_are_refused)
{
	for (unsigned i = 0; i < sizeof unsound / sizeof *unsound; i++)
		if (is_sound(&unsound[i]))
			FAIL("an unsound section is accepted: %s", unsound[i].what);
		else if (strcmp(fault, faults[unsound[i].fault]) != 0)
			FAIL("%s is told as %s", unsound[i].what, fault);
}

/* Unwinders extend the sign of the length: the FDE would have all code above, or none. */
TEST(length_of_an_fde_whose_sign_is_set_is_refused)
{
	struct form f = {.what = "a length below 0", .encoding = SDATA2, .low = 0x1000};
	f.bytes = 0x8000;
	build(&f);
	CHECK(!serves(section, f.low, f.low + 0x10000));
	f.bytes = 0x7fff;
	build(&f);
	CHECK(serves(section, f.low, f.low + 0x10000));
}

TEST(section_that_is_not_aligned_or_does_not_end_is_refused)
{
	struct form f = {.what = "plain"};
	uintptr_t low = (uintptr_t)code;
	build(&f);
	memmove(section + 2, section, used);
	CHECK(!serves(section + 2, low, low + CODE_BYTES));
	/* The last record begins within the bound and ends behind the bound. */
	f.no_end = true;
	build(&f);
	uint32_t length = SECTION_MOST - (uint32_t)used - 4;
	memcpy(section + used, &length, 4);
	memcpy(section + used + 8, section + 8, 16);
	CHECK(!serves(section, low, low + CODE_BYTES));
}

/* Debuggers read it, too. */
TEST(cie_that_no_fde_names_is_judged)
{
	struct form f = {.what = "plain", .no_end = true};
	for (uint8_t version = 1; version <= 2; version++) {
		build(&f);
		put_cie(&(struct form){.version = version});
		put(0, 4);
		CHECK_EQ(serves(section, (uintptr_t)code, (uintptr_t)code + CODE_BYTES),
			 version == 1);
	}
	/* The CIE lacks its last byte. Behind the CIE the section ends. */
	build(&f);
	put_cie(&(struct form){.letters = "", .cie_length = -4});
	memset(section + used - 4, 0, 4);
	CHECK(!serves(section, (uintptr_t)code, (uintptr_t)code + CODE_BYTES));
}

/* A CIE whose facts and data are missing, then four bytes of zero, then no memory. */
TEST(nothing_is_read_behind_a_section_whose_last_cie_is_cut)
{
	enum { PAGE_BYTES = 65536, CIE_BYTES = 16, END_BYTES = 4 };
	uint8_t *pages = mmap(NULL, 2 * PAGE_BYTES, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	CHECK_EQ(mprotect(pages + PAGE_BYTES, PAGE_BYTES, PROT_NONE), 0);
	uint8_t *cut = pages + PAGE_BYTES - CIE_BYTES - END_BYTES;
	cut[0] = CIE_BYTES - 4;
	memcpy(cut + 8, "\1zLLLLR", 8);
	CHECK(!serves(cut, (uintptr_t)code, (uintptr_t)code + CODE_BYTES));
	CHECK_EQ(munmap(pages, 2 * PAGE_BYTES), 0);
}

TEST(fde_whose_sound_cie_lies_before_the_section_is_refused)
{
	struct form f = {.what = "plain"};
	build(&f);
	CHECK(!serves(fde_at, (uintptr_t)code, (uintptr_t)code + CODE_BYTES));
}

static void check_fault(const void *record, const char *what)
{
	size_t at;
	CHECK_STR(ch__eh_frame_fault(section, (uintptr_t)code, (uintptr_t)code + CODE_BYTES, &at),
		  what);
	CHECK_EQ(at, (size_t)((const uint8_t *)record - section));
}

/* The CIE lies in the program of another, where no reader of records comes by. */
TEST(cie_that_reaches_into_its_fde_is_refused)
{
	enum { INNER = 16, FIXED_BYTES = 13, ALL = 200 };
	static const uint32_t lengths[] = {20, ALL};
	const struct form f = {.what = "plain", .letters = "", .cfi_bytes = 40};
	build(&f);
	uint32_t distance = (uint32_t)(fde_at + 4 - (section + INNER));
	memcpy(section + INNER, section, FIXED_BYTES);
	memcpy(section + (fde_at - section) + 4, &distance, sizeof distance);
	for (unsigned i = 0; i < 2; i++) {
		memcpy(section + INNER, &lengths[i], sizeof lengths[i]);
		CHECK_EQ(serves(section, (uintptr_t)code, (uintptr_t)code + CODE_BYTES),
			 lengths[i] != ALL);
	}
}

TEST(section_that_is_refused_says_at_which_byte)
{
	build(&(struct form){.fde_length = 1});
	check_fault(fde_at, "no length of a record");
	build(&(struct form){.bytes = CODE_BYTES + 1});
	check_fault(fde_at, "an FDE of other code");
	build(&(struct form){.version = 2});
	check_fault(section, "a CIE that is malformed, or that unwinders may not take");
	build(&(struct form){.distance = 1});
	check_fault(fde_at, "an FDE that is malformed, or without a CIE to take");
	build(&(struct form){.no_fde = true});
	check_fault(section + used - 4, "the end, and no FDE has code");
}
