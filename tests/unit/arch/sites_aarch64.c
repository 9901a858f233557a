/* SPDX-License-Identifier: MIT
 * sites_aarch64.c: traps, site rules, reach, diverters, veneers and stubs as words, storms of
 * patches against a thread that executes the code, and a request to Valgrind where Valgrind is
 * absent. No pool is needed. */
#define _GNU_SOURCE
#include "arch/registers.h"
#include "tests/support/far_stubs.h"
#include "tests/support/sites_rig.h"

#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>

enum {
	CODE_BYTES = 1 << 18,
	/* Storms: a target lies on each side of the site, so that all four bytes change. A torn
	 * word leads to a trap within the mapping, or is neither B, BL nor NOP. */
	STORM_AT = 0x20000,
	STORM_LOW = STORM_AT - 0x1f80,
	STORM_HIGH = STORM_AT + 0x2140,
};

static const uint32_t nop = 0xd503201f, b = 0x14000000, bl = 0x94000000, ret = 0xd65f03c0,
		      bti_c = 0xd503245f, bti_jc = 0xd50324df;

static void put_word(uint8_t *at, uint32_t word)
{
	memcpy(at, &word, sizeof word);
}

static uint32_t word_at(const uint8_t *at)
{
	uint32_t word;
	memcpy(&word, at, sizeof word);
	return word;
}

/* --- traps --- */

TEST(traps_every_byte_of_a_filled_range_is_recognized)
{
	_Alignas(8) uint8_t bytes[72];
	for (size_t from = 0; from < 8; from++)
		for (size_t n = 0; n <= 64; n++) {
			expect_traps_are_known(bytes, from, n);
			for (size_t at = (from + 3) & ~(size_t)3; at + 4 <= from + n; at += 4)
				CHECK_EQ(word_at(bytes + at), 0xd4200000 | 0xc0deu << 5);
		}
}

TEST(traps_kill_a_jump_to_every_word)
{
	struct views v = map_views(CODE_BYTES);
	for (unsigned i = 0; i < 64; i += CH_ARCH_TRAP_UNIT_BYTES)
		expect_signal(call_address, v.exec + i, SIGTRAP);
	/* No call or return leads between two words; a jump to a computed odd address faults. */
	for (unsigned i = 1; i < 4; i++)
		expect_signal(call_address, v.exec + i, SIGBUS);
}

static struct {
	uintptr_t at, pc, lr;
	bool is_foreign;
} trapped;

static void note_trap(int signal, siginfo_t *info, void *ucontext)
{
	ucontext_t *context = ucontext;
	trapped.at = ch__arch_trap_address(signal, info->si_code, ucontext);
	trapped.pc = ch__arch_context_pc(ucontext);
	trapped.lr = ch__arch_context_return(ucontext);
	trapped.is_foreign = ch__arch_trap_is_foreign((const uint8_t *)trapped.at);
	context->uc_mcontext.pc = context->uc_mcontext.regs[30];
}

/* The pc stays at a BRK, whatever the immediate. Debuggers and compilers have other immediates than
 * the library. */
TEST(trap_address_is_the_word_and_its_immediate_says_whose_it_is)
{
	struct sigaction action = {.sa_sigaction = note_trap, .sa_flags = SA_SIGINFO};
	struct views v = map_views(CODE_BYTES);
	static const uint16_t others[] = {0, 1, 0xc0df, 0xc0de ^ 0x8000, 0xf000, 1000, 0xffff};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	for (unsigned i = 0; i < 8; i++) {
		uint8_t *at = v.exec + 16 * i;
		if (i)
			put_word(v.write + 16 * i, 0xd4200000 | (uint32_t)others[i - 1] << 5);
		ch__arch_sync(at, 4);
		call_address(at);
		CHECK_EQ(trapped.at, at);
		CHECK_EQ(trapped.pc, at);
		CHECK(trapped.lr > (uintptr_t)call_address - 64);
		CHECK_EQ(trapped.is_foreign, i != 0);
	}
	put_word(v.write, nop); /* a step stopped there, not a trap */
	CHECK(!ch__arch_trap_is_foreign(v.write));
	put_word(v.write, 0xd4200001); /* unallocated, not a BRK */
	CHECK(!ch__arch_trap_is_foreign(v.write));
}

/* --- sites --- */

/* Sites of each kind as words. The field is the offset of the word or 8-byte literal that
 * changes. */
static const struct {
	enum ch_branch_kind kind;
	uint32_t words[2];
	unsigned bytes, field, align;
} forms[] = {
	{CH_JMP, {0x14000000}, 4, 0, 4},
	{CH_JMP, {0x17ffffff}, 4, 0, 4},
	{CH_CALL, {0x94000000}, 4, 0, 4},
	{CH_JCC, {0x54000040, 0x14000000}, 8, 4, 4},  /* b.eq +8 */
	{CH_JCC, {0x5400004d, 0x14000000}, 8, 4, 4},  /* b.le +8 */
	{CH_JCC, {0x34000045, 0x14000000}, 8, 4, 4},  /* cbz w5, +8 */
	{CH_JCC, {0xb500005e, 0x14000000}, 8, 4, 4},  /* cbnz x30, +8 */
	{CH_JCC, {0x36180047, 0x14000000}, 8, 4, 4},  /* tbz w7, #3, +8 */
	{CH_JCC, {0xb7f80040, 0x14000000}, 8, 4, 4},  /* tbnz x0, #63, +8 */
	{CH_LEA, {0x58000040, 0x14000003}, 16, 8, 8}, /* ldr x0, +8; b +12 */
	{CH_LEA, {0x58000053, 0x14000003}, 16, 8, 8}, /* ldr x19, +8 */
};
enum { FORMS = sizeof forms / sizeof *forms };

static void put_form(uint8_t *at, unsigned f)
{
	put_word(at, forms[f].words[0]);
	if (forms[f].bytes > 4)
		put_word(at + 4, forms[f].words[1]);
}

TEST(site_is_valid_only_at_an_aligned_word)
{
	_Alignas(64) uint8_t line[128];
	for (unsigned f = 0; f < FORMS; f++)
		for (unsigned at = 0; at < 64; at++) {
			memset(line, 0, sizeof line);
			put_form(line + at, f);
			CHECK_EQ(ch__arch_site_is_valid(forms[f].kind, line + at,
							(uintptr_t)(line + at)),
				 at % forms[f].align == 0);
			CHECK_EQ(ch__arch_site_bytes(forms[f].kind), forms[f].bytes);
		}
	for (unsigned at = 0; at < 64; at++)
		CHECK_EQ(
			ch__arch_site_is_valid(CH_LITERAL, line + at, (uintptr_t)(line + at)),
			at % 8 == 0);
}

/* Flipping a bit outside the field gives another instruction, or the same site with another
 * register or condition. */
TEST(site_is_refused_when_its_instruction_is_another)
{
	_Alignas(16) uint8_t bytes[16];
	static const uint32_t keeps[][2] = {
		[CH_JMP] = {0x03ffffff, 0},
		[CH_CALL] = {0x03ffffff, 0},
		[CH_LEA] = {0x1f, 0},
	};
	for (unsigned f = 0; f < FORMS; f++) {
		enum ch_branch_kind kind = forms[f].kind;
		unsigned words = forms[f].bytes > 4 ? 2 : 1, refused = 0;
		for (unsigned bit = 0; bit < 32 * words; bit++) {
			uint32_t flip = UINT32_C(1) << bit % 32;
			put_form(bytes, f);
			put_word(bytes + bit / 32 * 4, forms[f].words[bit / 32] ^ flip);
			bool is_valid = ch__arch_site_is_valid(kind, bytes, 0x1000);
			refused += !is_valid;
			if (kind != CH_JCC)
				CHECK_EQ(is_valid, (keeps[kind][bit / 32] & flip) != 0);
			else if (bit >= 32) /* the B may lead anywhere */
				CHECK_EQ(is_valid, bit < 32 + 26);
			else if (bit >= 5 && bit < 5 + 14) /* the branch over it, nowhere else */
				CHECK(!is_valid);
		}
		CHECK(kind != CH_JCC || refused >= 6 + 14);
	}
	CHECK(!ch__arch_site_is_valid((enum ch_branch_kind)99, bytes, 0));
}

/* The architecture forbids any other change of an instruction that another thread may run. */
TEST(instruction_that_others_run_may_become_b_bl_nop_or_brk_only)
{
	static const uint32_t words[] = {b, bl + 5, nop, 0xd4381bc0, /* all others are refused: */
					 ret, bti_c, 0x54000060, 0x34000000, 0x58000040, 0,
					 0xd4200001 /* no BRK */};
	enum { FIRST_WRONG = 4, WORDS = sizeof words / sizeof *words };
	for (unsigned i = 0; i < WORDS; i++)
		for (unsigned j = 0; j < WORDS; j++) {
			uint8_t from[8] = {0}, to[8] = {0};
			put_word(from, words[i]);
			put_word(to, words[j]);
			CHECK_EQ(ch__arch_may_change(0x1004, from, to, 4),
				 i < FIRST_WRONG && j < FIRST_WRONG);
			CHECK(!ch__arch_may_change(0x1002, from, to, 4));
			CHECK(!ch__arch_may_change(0x1000, from, to, 8));
			CHECK(!ch__arch_may_change(0x1000, from, to, 2));
		}
}

TEST(site_refuses_instructions_that_may_not_change)
{
	static const uint32_t wrong[] = {
		0x54000000, /* b.eq: the condition itself would change */
		0x54000060, /* b.eq +12 */
		0x34000000, /* cbz w0 */
		0x36000000, /* tbz w0, #0 */
		0x10000000, /* adr x0 */
		0x90000000, /* adrp x0 */
		0x58000040, /* ldr x0, +8 alone */
		0x18000040, /* ldr w0, +8 */
		0x1c000040, /* ldr s0, +8 */
		0xd61f0200, /* br x16 */
		0xd63f0200, /* blr x16 */
		0xd65f03c0, /* ret */
		0xd503201f, /* nop */
		0xd503245f, /* bti c */
		0xd4200000, /* brk #0 */
		0xd2800000, /* movz x0, #0 */
		0,
	};
	_Alignas(16) uint8_t bytes[16];
	for (unsigned w = 0; w < sizeof wrong / sizeof *wrong; w++)
		for (enum ch_branch_kind kind = CH_JMP; kind <= CH_LEA; kind++) {
			memset(bytes, 0, sizeof bytes);
			put_word(bytes, wrong[w]);
			put_word(bytes + 4, nop);
			CHECK(!ch__arch_site_is_valid(kind, bytes, 0x1000));
		}
}

static const int64_t reach = INT64_C(1) << 27; /* B and BL: 128 MiB */

TEST(site_write_changes_its_field_only_and_reads_back)
{
	_Alignas(64) uint8_t line[128], before[128];
	uintptr_t const exec_base = 0x7f1234560000;
	const int64_t distances[] = {0, 4, -4, reach - 4, -reach, 0x1234564};
	for (unsigned f = 0; f < FORMS; f++)
		for (unsigned at = 0; at < 64; at += forms[f].align)
			for (unsigned d = 0; d < 6; d++) {
				enum ch_branch_kind kind = forms[f].kind;
				uintptr_t exec = exec_base + at;
				uintptr_t target = exec + forms[f].field + (uintptr_t)distances[d];
				memset(line, 0x90, sizeof line);
				put_form(line + at, f);
				memcpy(before, line, sizeof line);
				CHECK(ch__arch_site_reaches(kind, exec, target));
				ch__arch_site_write(kind, line + at, exec, target);
				CHECK_EQ(ch__arch_site_target(kind, line + at, exec), target);
				CHECK(ch__arch_site_is_valid(kind, line + at, exec));
				uint32_t imm = (uint32_t)((uint64_t)distances[d] >> 2) & 0x3ffffff;
				uint32_t word = (kind == CH_CALL ? bl : b) | imm;
				if (kind == CH_LEA)
					memcpy(before + at + 8, &target, 8);
				else
					put_word(before + at + forms[f].field, word);
				CHECK(memcmp(line, before, sizeof line) == 0);
			}
	expect_literal_is_written(0x7f0011223344);
}

TEST(site_reaches_exactly_128_mib)
{
	uintptr_t exec = 0x7f0000000000;
	for (unsigned f = 0; f < FORMS; f++) {
		uintptr_t from = exec + forms[f].field;
		bool is_literal = forms[f].kind == CH_LEA;
		CHECK(ch__arch_site_reaches(forms[f].kind, exec, from + (uintptr_t)reach - 4));
		CHECK(ch__arch_site_reaches(forms[f].kind, exec, from - (uintptr_t)reach));
		CHECK_EQ(ch__arch_site_reaches(forms[f].kind, exec, from + (uintptr_t)reach),
			 is_literal);
		CHECK_EQ(ch__arch_site_reaches(forms[f].kind, exec, from - (uintptr_t)reach - 4),
			 is_literal);
		CHECK_EQ(ch__arch_site_reaches(forms[f].kind, exec, from + 2), is_literal);
	}
	CHECK(ch__arch_site_reaches(CH_LITERAL, exec, 1));
	CHECK(ch__arch_diverter_reaches(exec, exec + (uintptr_t)reach - 4));
	CHECK(ch__arch_diverter_reaches(exec, exec - (uintptr_t)reach));
	CHECK(!ch__arch_diverter_reaches(exec, exec + (uintptr_t)reach));
	CHECK(!ch__arch_diverter_reaches(exec, exec - (uintptr_t)reach - 4));
	/* Any place of a pool of the usual size reaches any other, and the runtime before it. */
	CHECK(reach - (INT64_C(1) << CH_ARCH_POOL_LOG2) >= 65536);
}

TEST(diverters_reach_exactly_128_mib)
{
	const struct {
		int64_t distance;
		bool is_near;
	} ends[] = {{reach - 4, true}, {reach, false}, {-reach, true}, {-reach - 4, false}};
	uintptr_t exec = 0x7f0000000000;
	for (unsigned i = 0; i < 4; i++) {
		_Alignas(4) uint8_t bytes[4];
		uintptr_t target = exec + (uintptr_t)ends[i].distance;
		put_word(bytes, nop);
		CHECK_EQ(ch__arch_diverter_is_valid(bytes, exec, target), ends[i].is_near);
		if (!ends[i].is_near)
			continue;
		ch__arch_diverter_arm(bytes, exec, target);
		CHECK_EQ(ch__arch_diverter_target(bytes, exec), target);
	}
}

static void write_out_of_reach(void *arg)
{
	_Alignas(4) uint8_t site[4];
	put_word(site, b);
	ch__arch_site_write(CH_JMP, site, 0x7f0000000000, (uintptr_t)arg);
}

TEST(site_write_out_of_reach_panics)
{
	expect_signal(write_out_of_reach, (void *)0x1000, SIGABRT);
}

/* The B of a conditional jump is patched; both arms run. */
TEST(conditional_site_goes_both_ways_and_where_it_is_patched)
{
	struct views v = map_views(CODE_BYTES);
	uint8_t *write = v.write;
	put_word(write, 0x34000040); /* cbz w0, +8 */
	put_word(write + 4, b);
	ch__arch_constant_function_write(write + 8, 1);
	ch__arch_constant_function_write(write + 256, 2);
	ch__arch_constant_function_write(write + 512, 3);
	CHECK(ch__arch_site_is_valid(CH_JCC, write, (uintptr_t)v.exec));
	int (*function)(int) = (int (*)(int))(uintptr_t)v.exec;
	for (unsigned target = 2; target <= 3; target++) {
		ch__arch_site_write(CH_JCC, write, (uintptr_t)v.exec,
				    (uintptr_t)v.exec + 256 * (target - 1));
		ch__arch_sync(v.exec, 8);
		CHECK_EQ(function(0), 1);
		CHECK_EQ(function(7), target);
	}
}

TEST(address_site_loads_what_is_patched)
{
	struct views v = map_views(CODE_BYTES);
	put_word(v.write, 0x58000040); /* ldr x0, +8 */
	put_word(v.write + 4, b + 3);
	put_word(v.write + 16, ret);
	uintptr_t (*function)(void) = (uintptr_t(*)(void))(uintptr_t)v.exec;
	for (uintptr_t target = 0x123456789abc; target; target >>= 8) {
		ch__arch_site_write(CH_LEA, v.write, (uintptr_t)v.exec, target);
		ch__arch_sync(v.exec, 20);
		CHECK_EQ(function(), target);
	}
}

/* --- diverters, veneers, stubs --- */

TEST(diverter_falls_through_until_one_word_arms_it)
{
	struct views v = map_views(CODE_BYTES);
	for (unsigned at = 0; at < 64; at += 4) {
		uint8_t *write = v.write + at;
		ch__arch_diverter_write(write, (uintptr_t)v.exec + at, (uintptr_t)v.exec + 4096);
		CHECK_EQ(word_at(write), nop);
		expect_diverter_leads_when_armed(v, at, 4096, 1);
		for (unsigned i = 1; i < 4; i++)
			CHECK(!ch__arch_diverter_is_there(write + i));
	}
	/* Other hints are no NOP that may become a B. */
	put_word(v.write, bti_c);
	CHECK(!ch__arch_diverter_is_there(v.write));
}

/* The veneer's literal is one aligned load at each alignment that a block or the runtime gives. */
TEST(veneer_reaches_any_address_by_an_aligned_literal)
{
	struct views v = map_views(CODE_BYTES);
	for (unsigned at = 0; at < 64; at += 4) {
		uint8_t *write = v.write + at;
		unsigned literals = 0;
		ch__arch_fill_traps(v.write, 256);
		ch__arch_veneer_write(write, (uintptr_t)answer);
		ch__arch_sync(v.exec, 256);
		CHECK(ch__arch_landing_is_there(write));
		CHECK_EQ(ch__arch_veneer_target(write), (uintptr_t)answer);
		CHECK_EQ(((int (*)(void))((uintptr_t)v.exec + at))(), 42);
		for (unsigned i = 0; i + 8 <= CH_ARCH_VENEER_BYTES; i += 4) {
			uintptr_t word;
			memcpy(&word, write + i, 8);
			literals += word == (uintptr_t)answer && (at + i) % 8 == 0;
		}
		CHECK_EQ(literals, 1);
		CHECK(ch__arch_are_traps(write + CH_ARCH_VENEER_BYTES, 64));
		CHECK(!at || ch__arch_are_traps(v.write, at));
	}
}

/* Every second stub of a block begins at a multiple of 8: its literal comes before its index. */
TEST(stub_index_is_read_at_the_very_end_of_a_mapping)
{
	struct views v = map_views(CODE_BYTES);
	uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE), end = CODE_BYTES - page;
	/* The byte behind the stub is unmapped: a read past the stub would fault. */
	CHECK_EQ(munmap(v.write + end, page), 0);
	for (uint32_t gap = 0; gap < 8; gap += 4) {
		uint32_t at = end - gap - CH_ARCH_STUB_BYTES;
		expect_stub_is_judged(v.write + at, (uintptr_t)v.exec + at, (uintptr_t)v.exec);
		CHECK_EQ(word_at(v.write + at), bti_jc);
	}
}

TEST(stub_leads_on_to_any_address_and_home_again)
{
	struct views v = map_views(CODE_BYTES);
	expect_stub_leads_on(v.exec, v.write, 0x1004, 0x2000);
	expect_stub_leads_on(v.exec, v.write, 0x1008, 0x2000);
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
	uintptr_t exec = (uintptr_t)s->v.exec + s->at;
	if (is_high)
		ch__arch_diverter_arm(write, exec, (uintptr_t)s->v.exec + STORM_HIGH);
	else
		__atomic_store_n((uint32_t *)(void *)write, nop, __ATOMIC_RELEASE);
	ch__arch_sync((uint8_t *)exec, 8);
}

/* Writes: stp x29, x30; the site or diverter; the code behind. The targets return 1 and 2. */
static void prepare_storm(struct storm *s, enum ch_branch_kind kind)
{
	uint8_t *write = s->v.write + STORM_AT;
	uintptr_t exec = (uintptr_t)s->v.exec + STORM_AT;
	bool is_site = s->patch == patch_site, is_call = is_site && kind == CH_CALL;
	ch__arch_constant_function_write(s->v.write + STORM_LOW, 1);
	ch__arch_constant_function_write(s->v.write + STORM_HIGH, 2);
	put_word(write, bti_c);
	put_word(write + 4, is_call ? 0xa9bf7bfd : nop); /* stp x29, x30, [sp, #-16]! */
	s->site = kind;
	s->at = STORM_AT + (kind == CH_JCC ? 12 : 8);
	if (!is_site) {
		ch__arch_diverter_write(write + 8, exec + 8, (uintptr_t)s->v.exec + STORM_HIGH);
		ch__arch_constant_function_write(write + 12, 1);
	} else if (kind == CH_JCC) {
		put_word(write + 8, 0x52800020);  /* mov w0, #1 */
		put_word(write + 12, 0x34000040); /* cbz w0, +8: not taken */
		put_word(write + 16, b);
	} else {
		put_word(write + 8, is_call ? bl : b);
		put_word(write + 12, 0xa8c17bfd); /* ldp x29, x30, [sp], #16 */
		put_word(write + 16, ret);
	}
	if (is_site)
		ch__arch_site_write(kind, s->v.write + s->at, (uintptr_t)s->v.exec + s->at,
				    (uintptr_t)s->v.exec + STORM_LOW);
	ch__arch_sync(s->v.exec, CODE_BYTES);
}

TEST(storm_of_site_patches_never_tears)
{
	struct storm s = {.v = map_views(CODE_BYTES), .patch = patch_site};
	uint64_t total = (uint64_t)storm_ms() * 500000;
	for (enum ch_branch_kind kind = CH_JMP; kind <= CH_CALL; kind++) {
		memset(s.seen, 0, sizeof s.seen);
		prepare_storm(&s, kind);
		execute_under_patches(&s, STORM_AT, now_ns() + total / 3);
		expect_no_patch_tore(&s);
	}
}

TEST(storm_of_diverters_never_tears)
{
	struct storm s = {.v = map_views(CODE_BYTES), .patch = patch_diverter};
	prepare_storm(&s, CH_JMP);
	execute_under_patches(&s, STORM_AT, now_ns() + (uint64_t)storm_ms() * 500000);
	expect_no_patch_tore(&s);
}

TEST(storm_of_stubs_that_lead_on_never_tears)
{
	struct views v = map_views(CODE_BYTES);
	expect_leads_never_tear(v.exec, v.write, 0x4004);
	expect_leads_never_tear(v.exec, v.write, 0x4008);
}

TEST(constant_function_returns_every_kind_of_value)
{
	struct views v = map_views(CODE_BYTES);
	static const uint32_t values[] = {0, 1, 0xffff, 0x10000, 0x7fffffff, 0x80000000};
	for (unsigned i = 0; i < sizeof values / sizeof *values; i++) {
		size_t bytes = ch__arch_constant_function_write(v.write, values[i]);
		ch__arch_sync(v.exec, bytes);
		CHECK_EQ(((uint32_t(*)(void))(uintptr_t)v.exec)(), values[i]);
	}
}

TEST(request_to_valgrind_has_no_effect_without_it)
{
	expect_no_valgrind_answers();
}

TEST(serializing_function_has_the_instruction_that_serializes)
{
	enum { LOOKED_AT = 32 };
	static const uint32_t isb = 0xd5033fdf;
	const uint8_t *code = (const uint8_t *)(uintptr_t)ch__arch_serialize;
	bool is_there = false;
	for (int i = 0; i < LOOKED_AT; i++)
		is_there |= !memcmp(code + 4 * i, &isb, sizeof isb);
	CHECK(is_there);
}
