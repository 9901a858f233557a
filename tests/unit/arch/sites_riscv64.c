/* SPDX-License-Identifier: MIT
 * sites_riscv64.c: traps at every halfword, site rules at every offset, diverters, veneers and
 * stubs as bytes, where a stub leads on to, storms of patches against a thread that executes the
 * code, and a request to Valgrind where Valgrind is absent. No pool is needed. */
#define _GNU_SOURCE
#include "arch/registers.h"
#include "tests/support/far_stubs.h"
#include "tests/support/sites_rig.h"

#include <signal.h>
#include <stdlib.h>

enum {
	CODE_BYTES = 1 << 20,
	/* Storms: the site lies in the middle, with a target on each side, so that all bits of a
	 * jal's distance change. A torn distance leads to a trap within the mapping. */
	STORM_AT = 0x80000,
	STORM_LOW = STORM_AT - 0x5555c,
	STORM_HIGH = STORM_AT + 0x2aaa8,
};

enum {
	NOP = 0x00000013,
	JAL_X0 = 0x0000006f,
	JAL_RA = 0x000000ef,
	LUI_X0 = 0x00000037,
	BEQZ_A0_OVER_ONE = 0x00050463,
	AUIPC_A0 = 0x00000517,
	LD_A0_12_A0 = 0x00c53503,
	JUMP_12 = 0x00c0006f,
};

/* --- traps --- */

TEST(traps_every_byte_of_a_filled_range_is_recognized)
{
	_Alignas(8) uint8_t bytes[80];
	for (size_t from = 0; from < 16; from++)
		for (size_t n = 0; n <= 64; n++) {
			expect_traps_are_known(bytes, from, n);
			for (size_t i = from; i < from + n; i++)
				CHECK_EQ(bytes[i], i % 2 ? 0x90 : 0x02);
		}
}

static uintptr_t expected_pc;

static void end_at_expected_pc(int signal, siginfo_t *info, void *ucontext)
{
	bool is_exact = ch__arch_context_pc(ucontext) == expected_pc &&
			ch__arch_trap_address(signal, info->si_code, ucontext) == expected_pc;
	_exit(is_exact ? 0 : 1);
}

static void call_and_expect_its_pc(void *address)
{
	struct sigaction action = {.sa_sigaction = end_at_expected_pc, .sa_flags = SA_SIGINFO};
	expected_pc = (uintptr_t)address;
	sigaction(SIGTRAP, &action, NULL);
	((void (*)(void))(uintptr_t)address)();
}

TEST(traps_raise_sigtrap_with_their_own_address_at_every_halfword)
{
	struct views v = map_views(CODE_BYTES);
	for (unsigned i = 0; i < 64; i += CH_ARCH_TRAP_UNIT_BYTES)
		expect_signal(call_and_expect_its_pc, v.exec + i, 0);
}

TEST(traps_kill_a_jump_to_every_halfword)
{
	struct views v = map_views(CODE_BYTES);
	for (unsigned i = 0; i < 16; i += CH_ARCH_TRAP_UNIT_BYTES)
		expect_signal(call_address, v.exec + i, SIGTRAP);
}

/* --- sites --- */

static const struct form {
	enum ch_branch_kind kind;
	uint32_t words[3];
	unsigned count, field, bytes; /* words; offset of the word or literal that changes */
} forms[] = {
	{CH_JMP, {JAL_X0}, 1, 0, 4},
	{CH_JCC, {BEQZ_A0_OVER_ONE, JAL_X0}, 2, 4, 8},
	{CH_JCC, {BEQZ_A0_OVER_ONE | 7 << 12 | 31 << 20, JAL_X0}, 2, 4, 8},
	{CH_CALL, {JAL_RA}, 1, 0, 4},
	{CH_LEA, {AUIPC_A0, LD_A0_12_A0, JUMP_12}, 3, 12, 20},
	{CH_LEA, {0x00000f97, 0x00cfbf83, JUMP_12}, 3, 12, 20}, /* t6 */
};
enum { FORMS = sizeof forms / sizeof *forms };

static bool has_literal(enum ch_branch_kind kind)
{
	return kind == CH_LEA || kind == CH_LITERAL;
}

static bool accepts(enum ch_branch_kind kind, const uint32_t *words, unsigned count, uintptr_t exec)
{
	_Alignas(8) uint8_t bytes[24] = {0};
	memcpy(bytes, words, count * sizeof *words);
	return ch__arch_site_is_valid(kind, bytes, exec);
}

TEST(site_is_valid_only_where_what_changes_is_aligned)
{
	for (unsigned f = 0; f < FORMS; f++)
		for (uintptr_t exec = 0x1000; exec < 0x1040; exec++) {
			unsigned unit = has_literal(forms[f].kind) ? 8 : 4;
			CHECK_EQ(accepts(forms[f].kind, forms[f].words, forms[f].count, exec),
				 (exec + forms[f].field) % unit == 0);
			CHECK_EQ(ch__arch_site_bytes(forms[f].kind), forms[f].bytes);
		}
	for (uintptr_t exec = 0; exec < 64; exec++)
		CHECK_EQ(accepts(CH_LITERAL, forms[0].words, 1, exec), exec % 8 == 0);
	CHECK_EQ(ch__arch_site_bytes(CH_LITERAL), 8);
}

/* Only instructions of four bytes, which end in the bits 11, may change to one another. */
TEST(instruction_that_others_run_is_an_aligned_one_of_four_bytes)
{
	for (unsigned i = 0; i < 4; i++)
		for (unsigned j = 0; j < 4; j++) {
			uint8_t from[8] = {(uint8_t)(0x10 | i)}, to[8] = {(uint8_t)(0x30 | j)};
			CHECK_EQ(ch__arch_may_change(0x1004, from, to, 4), i == 3 && j == 3);
			CHECK(!ch__arch_may_change(0x1002, from, to, 4));
			CHECK(!ch__arch_may_change(0x1000, from, to, 8));
			CHECK(!ch__arch_may_change(0x1000, from, to, 2));
		}
}

TEST(site_is_refused_when_a_bit_of_its_instructions_is_another)
{
	for (unsigned f = 0; f < FORMS; f++) {
		uintptr_t exec = has_literal(forms[f].kind) ? 0x1004 : 0x1000;
		for (unsigned w = 0; w < forms[f].count; w++)
			for (unsigned bit = 0; bit < 32; bit++) {
				uint32_t words[3];
				memcpy(words, forms[f].words, sizeof words);
				words[w] ^= UINT32_C(1) << bit;
				bool is_distance = 4 * w == forms[f].field && bit >= 12;
				/* A branch has any registers, and any condition but 2 and 3
				 * (unused). */
				bool is_branch = forms[f].kind == CH_JCC && w == 0;
				uint32_t condition = words[0] >> 12 & 7;
				bool is_operand = is_branch && bit >= 12 && bit < 25 &&
						  condition != 2 && condition != 3;
				CHECK_EQ(accepts(forms[f].kind, words, forms[f].count, exec),
					 is_distance || is_operand);
			}
	}
	static const uint32_t wrong[][3] = {
		{NOP, NOP, NOP},
		{LUI_X0, 0, 0},
		{0xa001a001, 0xa001a001, 0},       /* compressed jumps */
		{0x00028067, 0, 0},                /* jr t0 */
		{AUIPC_A0, 0x00050067, 0},         /* auipc and jalr, the far jump */
		{0x00000017, 0x00c03003, JUMP_12}, /* an address load into x0 */
		{AUIPC_A0, 0x00c53583, JUMP_12},   /* loads another register */
		{BEQZ_A0_OVER_ONE, JAL_RA, 0},     /* a conditional call */
		{0x00050663, JAL_X0, JAL_X0},      /* over two instructions */
	};
	for (unsigned w = 0; w < sizeof wrong / sizeof *wrong; w++)
		for (enum ch_branch_kind kind = CH_JMP; kind <= CH_LEA; kind++)
			for (uintptr_t exec = 0x1000; exec < 0x1008; exec += 4)
				CHECK(!accepts(kind, wrong[w], 3, exec));
	CHECK(!accepts((enum ch_branch_kind)99, forms[0].words, 1, 0));
}

TEST(site_write_changes_its_field_only_and_reads_back)
{
	uintptr_t const exec_base = 0x3f12345600;
	static const int64_t near[] = {0,       2,        -2,    0xffffe, -0x100000,
				       0x5555c, -0x2aaa8, 0x800, 0x7fe};
	static const int64_t far[] = {0, 1, -1, 0x7fffffffffff, -0x3f00000000, 0x12345678};
	for (unsigned f = 0; f < FORMS; f++)
		for (unsigned d = 0; d < (has_literal(forms[f].kind) ? 6u : 9u); d++) {
			_Alignas(8) uint8_t line[64], before[64];
			enum ch_branch_kind kind = forms[f].kind;
			unsigned at = has_literal(kind) ? 12 : 8, field = at + forms[f].field;
			uintptr_t exec = exec_base + at;
			memset(line, 0x13, sizeof line);
			memcpy(line + at, forms[f].words, 4 * forms[f].count);
			memcpy(before, line, sizeof line);
			uintptr_t target = exec_base + field +
					   (uintptr_t)(has_literal(kind) ? far[d] : near[d]);
			CHECK(ch__arch_site_reaches(kind, exec, target));
			ch__arch_site_write(kind, line + at, exec, target);
			CHECK_EQ(ch__arch_site_target(kind, line + at, exec), target);
			CHECK(ch__arch_site_is_valid(kind, line + at, exec));
			CHECK(memcmp(line, before, field) == 0);
			unsigned end = field + (has_literal(kind) ? 8 : 4);
			CHECK(memcmp(line + end, before + end, sizeof line - end) == 0);
			CHECK(has_literal(kind) ||
			      (line[field] == before[field] &&
			       (line[field + 1] & 15) == (before[field + 1] & 15)));
		}
	expect_literal_is_written(0x3f0011223344);
}

TEST(site_reaches_exactly_one_mib)
{
	uintptr_t exec = 0x3f00000004;
	for (unsigned f = 0; f < FORMS; f++) {
		uintptr_t at = exec + forms[f].field;
		bool is_far = has_literal(forms[f].kind);
		CHECK(ch__arch_site_reaches(forms[f].kind, exec, at + 0xffffe));
		CHECK_EQ(ch__arch_site_reaches(forms[f].kind, exec, at + 0x100000), is_far);
		CHECK(ch__arch_site_reaches(forms[f].kind, exec, at - 0x100000));
		CHECK_EQ(ch__arch_site_reaches(forms[f].kind, exec, at - 0x100002), is_far);
		CHECK_EQ(ch__arch_site_reaches(forms[f].kind, exec, at + 1), is_far);
	}
	CHECK(ch__arch_site_reaches(CH_LITERAL, exec, 1));
	CHECK(ch__arch_diverter_reaches(exec, exec + 0xffffe));
	CHECK(!ch__arch_diverter_reaches(exec, exec + 0x100000));
	CHECK(ch__arch_diverter_reaches(exec, exec - 0x100000));
	CHECK(!ch__arch_diverter_reaches(exec, exec - 0x100002));
}

TEST(diverters_lead_to_the_ends_of_their_reach)
{
	static const int64_t near[] = {0xffffe, -0x100000};
	uintptr_t exec = 0x3f00000004;
	for (unsigned i = 0; i < 2; i++) {
		_Alignas(8) uint8_t write[CH_ARCH_DIVERTER_BYTES];
		uintptr_t target = exec + (uintptr_t)near[i];
		ch__arch_diverter_write(write, exec, target);
		CHECK_EQ(ch__arch_diverter_target(write, exec), target);
		CHECK(ch__arch_diverter_is_valid(write, exec, target));
		ch__arch_diverter_arm(write, exec, target);
		CHECK_EQ(ch__arch_diverter_target(write, exec), target);
	}
}

static void write_out_of_reach(void *arg)
{
	_Alignas(8) uint32_t site[2] = {JAL_X0};
	ch__arch_site_write(CH_JMP, (uint8_t *)site, 0x3f00000000, (uintptr_t)arg);
}

TEST(site_write_out_of_reach_panics)
{
	expect_signal(write_out_of_reach, (void *)0x1000, SIGABRT);
}

/* --- sites that run --- */

static void put_words(struct views v, size_t at, const uint32_t *words, unsigned count)
{
	memcpy(v.write + at, words, count * sizeof *words);
	ch__arch_sync(v.exec + at, count * sizeof *words);
}

static size_t put_value(struct views v, size_t at, uint32_t value)
{
	size_t bytes = ch__arch_constant_function_write(v.write + at, value);
	ch__arch_sync(v.exec + at, bytes);
	return bytes;
}

static uint64_t call(const uint8_t *exec, uint64_t a0)
{
	return ((uint64_t(*)(uint64_t))(uintptr_t)exec)(a0);
}

TEST(constant_function_returns_every_kind_of_value)
{
	struct views v = map_views(CODE_BYTES);
	static const uint32_t values[] = {0,      1,          0x7ff,      0x800,      0xfff,
					  0x1000, 0x7fffffff, 0x80000000, 0xfffff800, 0xffffffff};
	for (unsigned i = 0; i < 10; i++) {
		put_value(v, 0, values[i]);
		CHECK_EQ((uint32_t)call(v.exec, 5), values[i]);
	}
}

TEST(site_leads_where_it_was_written_to)
{
	struct views v = map_views(CODE_BYTES);
	static const size_t targets[] = {0x100, 0x7f00, 0xaaaa8, 0xffff0};
	for (unsigned t = 0; t < 4; t++)
		for (unsigned f = 0; f < FORMS - 1; f++) { /* the last form's register is not a0 */
			size_t at = has_literal(forms[f].kind) ? 0x80004 : 0x80000, end;
			uintptr_t exec = (uintptr_t)v.exec + at,
				  to = (uintptr_t)v.exec + targets[t];
			ch__arch_fill_traps(v.write, CODE_BYTES);
			ch__arch_sync(v.exec, CODE_BYTES);
			put_value(v, targets[t], 70 + t);
			put_words(v, at, forms[f].words, forms[f].count);
			ch__arch_site_write(forms[f].kind, v.write + at, exec, to);
			end = at + forms[f].bytes;
			ch__arch_sync(v.exec + at, forms[f].bytes);
			if (forms[f].kind == CH_LEA) {
				put_words(v, end, (const uint32_t[]){0x00008067}, 1); /* ret */
				CHECK_EQ(call(v.exec + at, 0), to);
			} else if (forms[f].kind == CH_JCC) {
				uint32_t branch = BEQZ_A0_OVER_ONE;
				put_words(v, at, &branch, 1);
				put_value(v, end, 5);
				CHECK_EQ(call(v.exec + at, 0), 5);
				CHECK_EQ(call(v.exec + at, 1), 70 + t);
			} else if (forms[f].kind == CH_JMP) {
				CHECK_EQ(call(v.exec + at, 0), 70 + t);
			}
		}
}

/* --- diverters --- */

TEST(diverter_falls_through_until_one_store_arms_it)
{
	struct views v = map_views(CODE_BYTES);
	for (size_t at = 0; at < 64; at += 4)
		expect_diverter_leads_when_armed(v, at, 0x2aaa8, 4);
}

TEST(diverter_is_nothing_but_an_aligned_lui_of_x0)
{
	_Alignas(8) uint8_t bytes[16];
	for (unsigned at = 0; at < 8; at++) {
		memset(bytes, 0, sizeof bytes);
		memcpy(bytes + at, &(uint32_t){LUI_X0 | 0xabcde000}, 4);
		CHECK_EQ(ch__arch_diverter_is_there(bytes + at), at % 4 == 0);
	}
	for (unsigned bit = 0; bit < 32; bit++) {
		uint32_t word = LUI_X0 ^ UINT32_C(1) << bit;
		CHECK_EQ(ch__arch_diverter_is_there((uint8_t *)&word), bit >= 12);
	}
}

/* A diverter that falls through keeps every register: any register may hold a value there. */
TEST(diverter_that_falls_through_changes_no_register)
{
	struct views v = map_views(CODE_BYTES);
	ch__arch_diverter_write(v.write, (uintptr_t)v.exec, (uintptr_t)v.exec + 0xaaaa8);
	put_words(v, 4, (const uint32_t[]){0x00008067}, 1);
	ch__arch_sync(v.exec, 4);
	for (uint64_t a0 = 1; a0; a0 <<= 1)
		CHECK_EQ(call(v.exec, a0), a0);
}

/* --- veneers, stubs --- */

TEST(veneer_reaches_any_address_and_its_literal_is_aligned)
{
	struct views v = map_views(CODE_BYTES);
	for (size_t at = 0; at < 64; at += 4) {
		uintptr_t exec = (uintptr_t)v.exec + at, target = (uintptr_t)answer;
		memset(v.write + at + CH_ARCH_VENEER_BYTES, 0x5a, 8);
		ch__arch_veneer_write(v.write + at, target);
		ch__arch_sync((uint8_t *)exec, CH_ARCH_VENEER_BYTES);
		CHECK_EQ(v.write[at + CH_ARCH_VENEER_BYTES], 0x5a);
		CHECK_EQ(ch__arch_veneer_target(v.write + at), target);
		CHECK_EQ(call((uint8_t *)exec, 0), 42);
		unsigned found = 0;
		for (size_t i = (8 - at % 8) % 8; i + 8 <= CH_ARCH_VENEER_BYTES; i += 8)
			found += memcmp(v.write + at + i, &target, 8) == 0;
		CHECK_EQ(found, 1);
	}
}

TEST(stub_index_is_read_at_the_very_end_of_a_mapping)
{
	struct views v = map_views(CODE_BYTES);
	enum { END = CODE_BYTES - 4096 };
	/* The page behind the stub is unmapped: a read far past the stub would fault. */
	CHECK_EQ(munmap(v.write + CODE_BYTES - 4096, 4096), 0);
	expect_stub_is_judged(v.write + END - CH_ARCH_STUB_BYTES,
			      (uintptr_t)v.exec + END - CH_ARCH_STUB_BYTES, (uintptr_t)v.exec);
}

TEST(stub_leads_on_to_any_address_and_home_again)
{
	struct views v = map_views(CODE_BYTES);
	expect_stub_leads_on(v.exec, v.write, 0x1000, 0x2000);
}

/* --- storms --- */

static void patch_site(struct storm *s, bool is_high)
{
	uintptr_t exec = (uintptr_t)s->v.exec + s->at;
	ch__arch_site_write(s->site, s->v.write + s->at, exec,
			    (uintptr_t)s->v.exec + (is_high ? STORM_HIGH : STORM_LOW));
	ch__arch_sync((uint8_t *)exec, 8);
}

static void patch_diverter(struct storm *s, bool is_high)
{
	uint8_t *write = s->v.write + s->at;
	uintptr_t exec = (uintptr_t)s->v.exec + s->at, high = (uintptr_t)s->v.exec + STORM_HIGH;
	if (is_high)
		ch__arch_diverter_arm(write, exec, high);
	else
		ch__arch_diverter_write(write, exec, high);
	ch__arch_sync((uint8_t *)exec, 8);
}

/* Fills NOPs up to the site. The targets return 1 and 2. */
static void prepare_storm(struct storm *s, unsigned at)
{
	ch__arch_fill_traps(s->v.write, CODE_BYTES);
	for (unsigned i = 0; i < at; i += 4)
		memcpy(s->v.write + STORM_AT + i, &(uint32_t){NOP}, 4);
	put_value(s->v, STORM_LOW, 1);
	put_value(s->v, STORM_HIGH, 2);
	s->at = STORM_AT + at;
}

static void prepare_site(struct storm *s, const struct form *form, unsigned at)
{
	uint32_t words[3];
	prepare_storm(s, at);
	s->site = form->kind;
	memcpy(words, form->words, sizeof words);
	if (form->kind == CH_JCC)
		words[0] |= 1 << 12; /* bne: a0 is 0, so the jump behind runs */
	put_words(s->v, s->at, words, form->count);
	if (form->kind == CH_LEA)
		put_words(s->v, s->at + form->bytes, (const uint32_t[]){0x00050067}, 1); /* jr a0 */
	s->patch(s, false);
	ch__arch_sync(s->v.exec, CODE_BYTES);
}

TEST(storm_of_site_patches_never_tears)
{
	struct storm s = {.v = map_views(CODE_BYTES), .patch = patch_site};
	uint64_t start = now_ns(), total = (uint64_t)storm_ms() * 500000;
	static const unsigned which[] = {0, 1, 4}; /* jal, a branch over one, an address load */
	enum { OFFSETS = 16, RUNS = 3 * OFFSETS };
	for (unsigned i = 0; i < RUNS; i++) {
		const struct form *form = &forms[which[i / OFFSETS]];
		unsigned at = has_literal(form->kind) ? 4 + i % OFFSETS * 8 : i % OFFSETS * 4;
		prepare_site(&s, form, at);
		execute_under_patches(&s, STORM_AT, start + total * (i + 1) / RUNS);
	}
	expect_no_patch_tore(&s);
}

TEST(storm_of_diverters_never_tears_at_any_word)
{
	struct storm s = {.v = map_views(CODE_BYTES), .patch = patch_diverter};
	uint64_t start = now_ns(), total = (uint64_t)storm_ms() * 500000;
	for (unsigned at = 0; at < 64; at += 4) {
		prepare_storm(&s, at);
		put_value(s.v, s.at + CH_ARCH_DIVERTER_BYTES, 1);
		patch_diverter(&s, false);
		ch__arch_sync(s.v.exec, CODE_BYTES);
		execute_under_patches(&s, STORM_AT, start + total * (at / 4 + 1) / 16);
	}
	expect_no_patch_tore(&s);
}

TEST(storm_of_stubs_that_lead_on_never_tears)
{
	struct views v = map_views(CODE_BYTES);
	expect_leads_never_tear(v.exec, v.write, 0x4000);
}

TEST(request_to_valgrind_has_no_effect_without_it)
{
	expect_no_valgrind_answers();
}
