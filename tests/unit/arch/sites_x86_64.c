/* SPDX-License-Identifier: MIT
 * sites_x86_64.c: traps, site rules at every offset, diverters, veneers and stubs as bytes, storms
 * of patches against a thread that executes the code, and a request to Valgrind where Valgrind is
 * absent. No pool is needed. */
#define _GNU_SOURCE
#include "tests/support/sites_rig.h"

#include <signal.h>
#include <stdlib.h>

enum {
	CODE_BYTES = 1 << 18,
	/* Storms: the site's line in the middle, a target on each side, so that all four bytes of a
	 * displacement change. A torn displacement leads to a trap within the mapping. */
	STORM_AT = 0x20000,
	STORM_LOW = STORM_AT - 0x1f80,
	STORM_HIGH = STORM_AT + 0x2140,
};

TEST(traps_every_byte_of_a_filled_range_is_recognized)
{
	uint8_t bytes[65];
	for (size_t n = 0; n <= 64; n++)
		expect_traps_are_known(bytes, 0, n);
}

TEST(traps_kill_a_jump_to_every_offset)
{
	struct views v = map_views(CODE_BYTES);
	for (unsigned i = 0; i < 64; i++)
		expect_signal(call_address, v.exec + i, SIGTRAP);
}

static struct {
	enum ch_branch_kind kind;
	uint8_t bytes[8];
	unsigned size, field;
} const forms[] = {
	{CH_JMP, {0xe9}, 5, 1},
	{CH_JCC, {0x0f, 0x80}, 6, 2},
	{CH_JCC, {0x0f, 0x8f}, 6, 2},
	{CH_CALL, {0xe8}, 5, 1},
	{CH_LEA, {0x48, 0x8d, 0x05}, 7, 3},
	{CH_LEA, {0x4c, 0x8d, 0x3d}, 7, 3},
};
enum { FORMS = sizeof forms / sizeof *forms };

TEST(site_is_valid_only_where_its_field_lies_in_one_aligned_8)
{
	_Alignas(64) uint8_t line[128];
	for (unsigned f = 0; f < FORMS; f++)
		for (unsigned at = 0; at < 64; at++) {
			uint8_t *site = line + at;
			memset(line, 0x90, sizeof line);
			memcpy(site, forms[f].bytes, forms[f].field);
			bool inside = (at + forms[f].field) / 8 == (at + forms[f].field + 3) / 8;
			CHECK_EQ(ch__arch_site_is_valid(forms[f].kind, site, (uintptr_t)site),
				 inside);
			CHECK_EQ(ch__arch_site_bytes(forms[f].kind), forms[f].size);
			site[0] ^= 0x10;
			CHECK(!ch__arch_site_is_valid(forms[f].kind, site, (uintptr_t)site));
		}
	for (unsigned at = 0; at < 64; at++)
		CHECK_EQ(
			ch__arch_site_is_valid(CH_LITERAL, line + at, (uintptr_t)(line + at)),
			at % 8 == 0);
}

TEST(site_is_refused_when_its_instruction_is_another)
{
	_Alignas(8) uint8_t bytes[8];
	static const uint8_t wrong[][3] = {
		{0xeb, 0, 0},       {0x0f, 0x70, 0},    {0x0f, 0x90, 0},   {0x48, 0x8b, 0x05},
		{0x48, 0x8d, 0x45}, {0x40, 0x8d, 0x05}, {0x48, 0x8d, 0x04}};
	for (unsigned w = 0; w < sizeof wrong / sizeof *wrong; w++)
		for (enum ch_branch_kind kind = CH_JMP; kind <= CH_LEA; kind++)
			for (uintptr_t exec = 0; exec < 8; exec++) {
				memset(bytes, 0, sizeof bytes);
				memcpy(bytes, wrong[w], 3);
				CHECK(!ch__arch_site_is_valid(kind, bytes, exec));
			}
	CHECK(!ch__arch_site_is_valid((enum ch_branch_kind)99, bytes, 0));
}

TEST(site_write_changes_its_field_only_and_reads_back)
{
	_Alignas(64) uint8_t line[128], before[128];
	uintptr_t const exec_base = 0x7f1234560000;
	static const int64_t distances[] = {0, 1, -1, 0x7fffffff, -0x80000000ll, 0x12345678};
	for (unsigned f = 0; f < FORMS; f++)
		for (unsigned at = 0; at < 64; at++)
			for (unsigned d = 0; d < 6; d++) {
				enum ch_branch_kind kind = forms[f].kind;
				uintptr_t exec = exec_base + at;
				uintptr_t target = exec + forms[f].size + (uintptr_t)distances[d];
				memset(line, 0x90, sizeof line);
				memcpy(line + at, forms[f].bytes, forms[f].field);
				memcpy(before, line, sizeof line);
				CHECK(ch__arch_site_reaches(kind, exec, target));
				ch__arch_site_write(kind, line + at, exec, target);
				CHECK_EQ(ch__arch_site_target(kind, line + at, exec), target);
				memcpy(before + at + forms[f].field,
				       &(int32_t){(int32_t)distances[d]}, 4);
				CHECK(memcmp(line, before, sizeof line) == 0);
			}
	expect_literal_is_written(0x7f0011223344);
}

TEST(site_reaches_exactly_two_gib)
{
	uintptr_t exec = 0x7f0000000000;
	for (unsigned f = 0; f < FORMS; f++) {
		uintptr_t next = exec + forms[f].size;
		CHECK(ch__arch_site_reaches(forms[f].kind, exec, next + 0x7fffffff));
		CHECK(!ch__arch_site_reaches(forms[f].kind, exec, next + 0x80000000));
		CHECK(ch__arch_site_reaches(forms[f].kind, exec, next - 0x80000000));
		CHECK(!ch__arch_site_reaches(forms[f].kind, exec, next - 0x80000001));
	}
	CHECK(ch__arch_site_reaches(CH_LITERAL, exec, 1));
}

TEST(jumps_of_stubs_and_diverters_reach_exactly_two_gib)
{
	static const struct {
		int64_t distance;
		bool is_near;
	} ends[] = {{0x7fffffff, true},
		    {0x80000000ll, false},
		    {-0x80000000ll, true},
		    {-0x80000001ll, false}};
	uintptr_t exec = 0x7f0000000000;
	for (unsigned i = 0; i < 4; i++) {
		uint8_t bytes[8];
		uintptr_t distance = (uintptr_t)ends[i].distance;
		uintptr_t divert = exec + CH_ARCH_DIVERTER_BYTES + distance;
		uintptr_t jump = exec + 5 + distance;
		uintptr_t call = exec + CH_ARCH_STUB_CALL_BYTES + distance;
		CHECK_EQ(ch__arch_diverter_reaches(exec, divert), ends[i].is_near);
		CHECK_EQ(ch__arch_jump_reaches(exec, jump), ends[i].is_near);
		if (!ends[i].is_near) {
			CHECK(!ch__arch_stub_is_valid(bytes, exec, call, 7));
			continue;
		}
		ch__arch_diverter_write(bytes, exec, divert);
		CHECK_EQ(ch__arch_diverter_target(bytes, exec), divert);
		ch__arch_jump_write(bytes, exec, jump);
		CHECK_EQ(bytes[0], 0xe9);
		CHECK_EQ(ch__arch_jump_target(bytes, exec), jump);
		ch__arch_stub_write(bytes, exec, call, 7);
		CHECK(ch__arch_stub_is_valid(bytes, exec, call, 7));
	}
}

static void check_lead(ptrdiff_t delta, int32_t displacement)
{
	_Alignas(8) uint8_t bytes[CH_ARCH_LEAD_BYTES];
	int32_t written;
	CHECK(ch__arch_lead_reaches(delta));
	CHECK_EQ(ch__arch_lead_displacement(delta), displacement);
	ch__arch_lead_write(bytes, delta, 0x7f0011223344);
	memcpy(&written, bytes + 2, sizeof written); /* behind FF 25 */
	CHECK_EQ(written, displacement);
	CHECK(ch__arch_lead_is_valid(bytes, delta));
	CHECK(!ch__arch_lead_is_valid(bytes, delta + 1));
	CHECK(!ch__arch_lead_is_valid(bytes, delta - 1));
}

TEST(lead_reaches_exactly_two_gib)
{
	enum { JUMP_TO_LITERAL = CH_ARCH_STUB_LITERAL - 6 };
	check_lead(0x7fffffff - JUMP_TO_LITERAL, INT32_MAX);
	CHECK(!ch__arch_lead_reaches(0x7fffffff - JUMP_TO_LITERAL + 1));
	check_lead(-0x80000000ll - JUMP_TO_LITERAL, INT32_MIN);
	CHECK(!ch__arch_lead_reaches(-0x80000000ll - JUMP_TO_LITERAL - 1));
}

static void write_out_of_reach(void *arg)
{
	uint8_t site[8] = {0xe9};
	ch__arch_site_write(CH_JMP, site, 0x7f0000000000, (uintptr_t)arg);
}

TEST(site_write_out_of_reach_panics)
{
	expect_signal(write_out_of_reach, (void *)0x1000, SIGABRT);
}

TEST(diverter_falls_through_until_one_byte_arms_it)
{
	struct views v = map_views(CODE_BYTES);
	for (unsigned at = 0; at < 64; at++)
		expect_diverter_leads_when_armed(v, at, 4096, 1);
}

TEST(veneer_reaches_any_address)
{
	struct views v = map_views(CODE_BYTES);
	ch__arch_veneer_write(v.write, (uintptr_t)answer);
	CHECK_EQ(ch__arch_veneer_target(v.write), (uintptr_t)answer);
	CHECK_EQ(((int (*)(void))(uintptr_t)v.exec)(), 42);
}

TEST(stub_index_is_read_at_the_very_end_of_a_mapping)
{
	struct views v = map_views(CODE_BYTES);
	/* The byte behind the stub is unmapped: a read past the stub would fault. */
	CHECK_EQ(munmap(v.write + CODE_BYTES - 4096, 4096), 0);
	uint32_t end = CODE_BYTES - 4096;
	uint8_t *write = v.write + end - CH_ARCH_STUB_BYTES;
	uintptr_t exec = (uintptr_t)v.exec + end - CH_ARCH_STUB_BYTES;
	static const uint32_t indexes[] = {0, 1, 0x123456, 0xffffff};
	for (unsigned i = 0; i < 4; i++) {
		ch__arch_stub_write(write, exec, (uintptr_t)v.exec, indexes[i]);
		CHECK_EQ(ch__arch_stub_index(write + CH_ARCH_STUB_CALL_BYTES), indexes[i]);
		CHECK(ch__arch_stub_is_valid(write, exec, (uintptr_t)v.exec, indexes[i]));
		CHECK(!ch__arch_stub_is_valid(write, exec, (uintptr_t)v.exec, indexes[i] ^ 1));
		CHECK(!ch__arch_stub_is_valid(write, exec, (uintptr_t)v.exec + 1, indexes[i]));
	}
}

/* --- storms --- */

static void patch_site(struct storm *s, bool is_high)
{
	ch__arch_site_write(s->site, s->v.write + s->at, (uintptr_t)s->v.exec + s->at,
			    (uintptr_t)s->v.exec + (is_high ? STORM_HIGH : STORM_LOW));
}

static void patch_diverter(struct storm *s, bool is_high)
{
	__atomic_store_n(s->v.write + s->at, is_high ? 0xe9 : 0xa9, __ATOMIC_RELEASE);
}

/* Fills NOPs up to the site, which lies in the second 64 bytes. The targets return 1 and 2. */
static void prepare_storm(struct storm *s, unsigned at)
{
	uint8_t *write = s->v.write + STORM_AT;
	ch__arch_fill_traps(s->v.write, CODE_BYTES);
	memset(write, 0x90, at);
	write[0] = 0x39; /* cmp eax, eax */
	write[1] = 0xc0;
	ch__arch_constant_function_write(s->v.write + STORM_LOW, 1);
	ch__arch_constant_function_write(s->v.write + STORM_HIGH, 2);
	s->at = STORM_AT + at;
}

static void prepare_site(struct storm *s, enum ch_branch_kind kind, unsigned at)
{
	uintptr_t exec = (uintptr_t)s->v.exec + STORM_AT + at;
	uint8_t *write = s->v.write + STORM_AT + at;
	prepare_storm(s, at);
	s->site = kind;
	write[0] = kind == CH_JMP ? 0xe9 : 0x0f;
	if (kind == CH_JCC)
		write[1] = 0x84; /* je: prepare_storm made the flags equal */
	ch__arch_site_write(kind, write, exec, (uintptr_t)s->v.exec + STORM_LOW);
}

TEST(storm_of_site_patches_never_tears)
{
	struct storm s = {.v = map_views(CODE_BYTES), .patch = patch_site};
	uint64_t start = now_ns(), total = (uint64_t)storm_ms() * 500000;
	unsigned const runs = 2 * 64 * 5 / 8; /* of eight offsets five are valid */
	unsigned done = 0;
	for (enum ch_branch_kind kind = CH_JMP; kind <= CH_JCC; kind++)
		for (unsigned at = 64; at < 128; at++) {
			prepare_site(&s, kind, at);
			if (!ch__arch_site_is_valid(kind, s.v.write + s.at,
						    (uintptr_t)s.v.exec + s.at))
				continue;
			done++;
			execute_under_patches(&s, STORM_AT, start + total * done / runs);
		}
	CHECK_EQ(done, runs);
	expect_no_patch_tore(&s);
}

TEST(storm_of_diverters_never_tears_at_any_offset)
{
	struct storm s = {.v = map_views(CODE_BYTES), .patch = patch_diverter};
	uint64_t start = now_ns(), total = (uint64_t)storm_ms() * 500000;
	for (unsigned at = 64; at < 128; at++) {
		prepare_storm(&s, at);
		uint8_t *write = s.v.write + s.at;
		ch__arch_diverter_write(write, (uintptr_t)s.v.exec + s.at,
					(uintptr_t)s.v.exec + STORM_HIGH);
		ch__arch_constant_function_write(write + CH_ARCH_DIVERTER_BYTES, 1);
		execute_under_patches(&s, STORM_AT, start + total * (at - 63) / 64);
	}
	expect_no_patch_tore(&s);
}

TEST(function_that_returns_a_constant_is_as_long_as_it_says)
{
	uint8_t code[32];
	memset(code, 0xcc, sizeof code);
	size_t bytes = ch__arch_constant_function_write(code, 0x12345678);
	CHECK(bytes > 0 && bytes < sizeof code);
	CHECK_EQ(code[bytes - 1], 0xc3); /* ret */
	CHECK_EQ(code[bytes], 0xcc);
}

TEST(request_to_valgrind_has_no_effect_without_it)
{
	expect_no_valgrind_answers();
}

enum { STORED_BEFORE = 0x5eed0011, STORED_BEHIND = 0x5eed0022 };

__attribute__((noinline)) static void store_twice(uint32_t *at)
{
	*at = STORED_BEFORE;
	ch__arch_sync((const uint8_t *)at, sizeof *at);
	*at = STORED_BEHIND;
}

/* The compiler drops a store that a later store overwrites, unless code in between may read the
 * stored value. */
TEST(stores_stay_on_their_side_of_what_publishes_them)
{
	enum { LOOKED_AT = 128 };
	static const uint32_t values[] = {STORED_BEFORE, STORED_BEHIND};
	const uint8_t *code = (const uint8_t *)(uintptr_t)store_twice;
	uint32_t word = 0;
	store_twice(&word);
	CHECK_EQ(word, STORED_BEHIND);
	for (unsigned i = 0; i < 2; i++)
		CHECK(memmem(code, LOOKED_AT, &values[i], sizeof values[i]) != NULL);
}

TEST(serializing_function_has_the_instruction_that_serializes)
{
	enum { LOOKED_AT = 128 };
	static const uint8_t cpuid[] = {0x0f, 0xa2};
	const uint8_t *code = (const uint8_t *)(uintptr_t)ch__arch_serialize;
	CHECK(memmem(code, LOOKED_AT, cpuid, sizeof cpuid) != NULL);
}
