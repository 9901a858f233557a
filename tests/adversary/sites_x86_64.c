/* SPDX-License-Identifier: MIT
 * sites_x86_64.c: the checks of a site at the attach, and again at the commit of its block (I12):
 * alignment and cache line, the one instruction, reach, no shared byte, nothing that leads between
 * two bytes of a site. A refusal is a status and changes nothing. Code that breaks a rule is shown
 * by tests/tool/patch_rules_x86_64.c; the rules of every architecture are in sites.c. */
#include "codeheap/graph/block.h"
#include "pages/inner.h"
#include "tests/support/heap_rig.h"

static struct rig rig;
static struct ch_owner owner;

static void start(void)
{
	rig = rig_start(1 << 20);
	owner = rig_owner(&rig, "owner");
}

/* --- a refused call changes nothing --- */

struct picture {
	uint8_t hot[4096], cold[4096];
	unsigned sites;
	enum ch_block_state state;
	struct ch_stats stats;
};

static bool count_site(void *arg, const struct ch_site *site)
{
	(void)site;
	++*(unsigned *)arg;
	return true;
}

static void take_picture(struct picture *p, const struct emitter *e)
{
	const struct ch_code *code = &e->code;
	memset(p, 0, sizeof *p);
	CHECK(code->hot_bytes <= sizeof p->hot && code->cold_bytes <= sizeof p->cold);
	memcpy(p->hot, code->exec, code->hot_bytes);
	if (code->cold_bytes)
		memcpy(p->cold, code->cold_exec, code->cold_bytes);
	CHECK_EQ(ch_block_sites(code->block, count_site, &p->sites), CH_OK);
	p->state = block_info(code->block).state;
	p->stats = rig_stats(&rig);
}

static void check_picture(const struct picture *before, const struct emitter *e, int line)
{
	struct picture after;
	take_picture(&after, e);
	if (memcmp(before, &after, sizeof after) != 0)
		FAIL("the call that line %d has refused changed something", line);
}

/* The block's bytes, sites and state, and every figure of the heap, are as before. */
#define REFUSED(e, call, status)                      \
	do {                                          \
		struct picture before_;               \
		take_picture(&before_, e);            \
		CHECK_EQ(call, status);               \
		check_picture(&before_, e, __LINE__); \
	} while (0)

static enum ch_status branch(const struct emitter *e, const void *at, enum ch_branch_kind kind,
			     const void *exit)
{
	struct ch_branch_site site = {.at = at, .kind = kind, .exit = exit};
	struct ch_branch made = {1};
	enum ch_status status = ch_branch_attach(e->code.block, &site, &made);
	CHECK((status == CH_OK) == (made.bits != 0));
	return status;
}

static enum ch_status point(const struct emitter *e, const void *at, const void *exit)
{
	return ch_patch_point_attach(e->code.block, at, exit, NULL);
}

static enum ch_status ref(const struct emitter *e, const void *at)
{
	return ch_ref_attach(e->code.block, at);
}

static const struct form {
	enum ch_branch_kind kind;
	uint8_t bytes[8];
	uint32_t size, field;
} forms[] = {
	{CH_JMP, {0xe9}, 5, 1},  {CH_JCC, {0x0f, 0x84}, 6, 2},
	{CH_CALL, {0xe8}, 5, 1}, {CH_LEA, {0x48, 0x8d, 0x05}, 7, 3},
	{CH_LITERAL, {0}, 8, 0},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* Opens room for a case, filled with NOPs: no NOP is an instruction of a site. */
static void open_nops(struct emitter *e, uint32_t hot, uint32_t cold, uint32_t branches,
		      enum ch_entry entry)
{
	struct ch_open open = {.owner = owner,
			       .hot_bytes = hot,
			       .cold_bytes = cold,
			       .branch_room = branches,
			       .entry = entry};
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
	memset(e->code.write + e->code.entry_bytes, 0x90, e->code.hot_bytes - e->code.entry_bytes);
	if (e->code.cold_bytes)
		memset(e->code.cold_write, 0x90, e->code.cold_bytes);
	e->at = e->code.hot_bytes;
}

static const uint8_t *put(struct emitter *e, uint32_t at, const void *bytes, size_t count)
{
	memcpy(e->code.write + at, bytes, count);
	return e->code.exec + at;
}

static const uint8_t *put_form(struct emitter *e, uint32_t at, const struct form *form)
{
	return put(e, at, form->bytes, form->size);
}

/* Returns the first offset from `at` on where the form is aligned. */
static uint32_t aligned(const struct emitter *e, uint32_t at, const struct form *form)
{
	while ((((uintptr_t)e->code.exec + at + form->field) & 7) > (form->field ? 4 : 0))
		at++;
	return at;
}

static const uint8_t *put_point(struct emitter *e, uint32_t at)
{
	return put(e, at, (const uint8_t[]){0xa9, 0, 0, 0, 0}, 5);
}

/* All attachments are sound: the block is committed and the heap agrees. */
static void finish(struct emitter *e)
{
	CHECK_EQ(emit_commit(e), CH_OK);
	rig_end(&rig);
}

#define TEST_SITES(name) TEST_BETWEEN(name, start(), rig_end(&rig))

/* --- alignment and cache line, the instruction --- */

TEST_SITES(site_is_refused_where_its_field_leaves_an_aligned_8)
{
	for (unsigned f = 0; f < FORMS; f++)
		for (uint32_t in_line = 0; in_line < 64; in_line++) {
			struct emitter e;
			open_nops(&e, 256, 0, 1, CH_ENTRY_NONE);
			uint32_t line = 64 - (uint32_t)((uintptr_t)e.code.exec & 63);
			const uint8_t *site = put_form(&e, line + in_line, &forms[f]);
			uintptr_t field = (uintptr_t)site + forms[f].field;
			uintptr_t last = field + (forms[f].field ? 3 : 7);
			if (field / 8 == last / 8)
				CHECK_EQ(branch(&e, site, forms[f].kind, NULL), CH_OK);
			else
				REFUSED(&e, branch(&e, site, forms[f].kind, NULL), CH_E_SITE);
			CHECK_EQ(emit_commit(&e), CH_OK);
		}
}

TEST(site_is_refused_where_another_instruction_stands)
{
	static const uint8_t wrong[][8] = {{0xeb},
					   {0x74},
					   {0x0f, 0x74},
					   {0x0f, 0x94},
					   {0xff, 0x25},
					   {0x48, 0x8b, 0x05},
					   {0x48, 0x8d, 0x45},
					   {0x40, 0x8d, 0x05},
					   {0x8d, 0x05},
					   {0x48, 0x8d, 0x04},
					   {0x66, 0xe9},
					   {0xf2, 0xe8},
					   {0xa9},
					   {0xcc},
					   {0x90}};
	start();
	struct emitter e;
	open_nops(&e, 256, 0, 4, CH_ENTRY_NONE);
	for (unsigned f = 0; f < FORMS - 1; f++) {
		uint32_t at = aligned(&e, 16, &forms[f]);
		for (unsigned w = 0; w < sizeof wrong / sizeof *wrong; w++) {
			const uint8_t *site = put(&e, at, wrong[w], 8);
			REFUSED(&e, branch(&e, site, forms[f].kind, NULL), CH_E_SITE);
		}
		for (unsigned other = 0; other < FORMS - 1; other++) {
			const uint8_t *site = put_form(&e, at, &forms[other]);
			if (other != f)
				REFUSED(&e, branch(&e, site, forms[f].kind, NULL), CH_E_SITE);
		}
	}
	memset(e.code.write, 0x90, e.code.hot_bytes);
	finish(&e);
}

TEST(patch_point_is_refused_where_another_instruction_stands)
{
	start();
	struct emitter e;
	open_nops(&e, 64, 0, 0, CH_ENTRY_NONE);
	for (unsigned opcode = 0; opcode < 256; opcode++) {
		const uint8_t *at = put(&e, 16, (const uint8_t[]){(uint8_t)opcode, 1, 2, 3, 4}, 5);
		if (opcode != 0xa9)
			REFUSED(&e, point(&e, at, e.code.exec), CH_E_SITE);
	}
	CHECK_EQ(point(&e, put_point(&e, 16), e.code.exec), CH_OK);
	finish(&e);
}

/* An exit may be one byte long, as `ret` is. */
TEST_SITES(exit_of_a_patch_point_may_be_the_last_byte_of_other_code)
{
	struct ch_info other = block_info(rig_block(owner, 1));
	const uint8_t *last = (const uint8_t *)other.exec + other.hot_bytes - 1;
	struct emitter e;
	emit_open(&e, owner, 64, 0);
	const void *point = emit_point(&e);
	emit_ret(&e);
	REFUSED(&e, ch_patch_point_attach(e.code.block, point, last + 1, NULL), CH_E_ARG);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, last, NULL), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
}

/* --- reach --- */

TEST_SITES(exit_is_refused_that_the_site_or_its_stub_cannot_reach)
{
	struct emitter e;
	open_nops(&e, 256, 0, FORMS, CH_ENTRY_NONE);
	const uint8_t *far = e.code.exec + (UINT64_C(3) << 30);
	for (unsigned f = 0; f < FORMS; f++) {
		uint32_t at = aligned(&e, 16 + 16 * f, &forms[f]);
		const uint8_t *site = put_form(&e, at, &forms[f]);
		char text[80];
		REFUSED(&e, branch(&e, site, forms[f].kind, far), CH_E_REACH);
		snprintf(text, sizeof text, "ch_branch_site.exit %p is too far from %p",
			 (const void *)far, (const void *)site);
		CHECK(strstr(ch_why(), text));
		/* The last byte in the site's reach is too far for the stub's slot, which lies
		 * behind the site in the page, and the other way round. */
		const uint8_t *low = site + forms[f].size - (UINT64_C(1) << 31);
		REFUSED(&e, branch(&e, site, forms[f].kind, low), CH_E_REACH);
		REFUSED(&e, branch(&e, site, forms[f].kind, low - 1), CH_E_REACH);
		CHECK_EQ(branch(&e, site, forms[f].kind, low + 65536), CH_OK);
	}
	const uint8_t *at = put_point(&e, 128);
	REFUSED(&e, point(&e, at, far), CH_E_ARG);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* --- no two sites share a byte --- */

/* A form is in the middle of the block. Tries each other kind of site around, at each distance. */
static void crowd(struct emitter *e, const uint8_t *there, uint32_t size)
{
	uint32_t middle = (uint32_t)(there - e->code.exec);
	uint8_t kept[64];
	memcpy(kept, e->code.write + middle - 16, sizeof kept);
	for (uint32_t at = middle - 7; at < middle + size; at++) {
		for (unsigned f = 0; f < FORMS; f++) {
			if (at + forms[f].size <= middle || at != aligned(e, at, &forms[f]))
				continue;
			const uint8_t *site = put_form(e, at, &forms[f]);
			REFUSED(e, branch(e, site, forms[f].kind, NULL), CH_E_SITE);
			memcpy(e->code.write + middle - 16, kept, sizeof kept);
		}
		if (at + 5 > middle) {
			const uint8_t *site = put_point(e, at);
			REFUSED(e, point(e, site, e->code.exec), CH_E_SITE);
			memcpy(e->code.write + middle - 16, kept, sizeof kept);
		}
	}
}

TEST_SITES(site_is_refused_over_another_one)
{
	for (unsigned f = 0; f < FORMS; f++) {
		struct emitter e;
		open_nops(&e, 256, 0, 8, CH_ENTRY_NONE);
		uint32_t at = aligned(&e, 64, &forms[f]);
		const uint8_t *site = put_form(&e, at, &forms[f]);
		CHECK_EQ(branch(&e, site, forms[f].kind, NULL), CH_OK);
		crowd(&e, site, forms[f].size);
		for (uint32_t i = at - 7; i < at + forms[f].size; i++)
			REFUSED(&e, ref(&e, e.code.exec + i), CH_E_SITE);
		CHECK_EQ(ref(&e, site - 8), CH_OK);
		CHECK_EQ(ref(&e, site + forms[f].size), CH_OK);
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
}

TEST(site_is_refused_over_a_patch_point_and_over_a_ref)
{
	start();
	struct emitter e;
	open_nops(&e, 256, 0, 8, CH_ENTRY_NONE);
	const uint8_t *there = put_point(&e, 64);
	CHECK_EQ(point(&e, there, e.code.exec), CH_OK);
	crowd(&e, there, 5);
	for (int i = -7; i < 5; i++)
		REFUSED(&e, ref(&e, there + i), CH_E_SITE);
	CHECK_EQ(ref(&e, e.code.exec + 128), CH_OK);
	CHECK_EQ(ref(&e, e.code.exec + 128), CH_OK); /* only its owner's words move */
	crowd(&e, e.code.exec + 128, 8);
	CHECK_EQ(ref(&e, there - 8), CH_OK);
	CHECK_EQ(ref(&e, there + 5), CH_OK);
	CHECK_EQ(point(&e, put_point(&e, 192), e.code.exec), CH_OK);
	CHECK_EQ(point(&e, put_point(&e, 197), e.code.exec), CH_OK);
	finish(&e);
}

TEST(site_is_refused_over_a_patchable_entry_and_over_stubs)
{
	start();
	struct emitter e;
	open_nops(&e, 256, 64, 4, CH_ENTRY_PATCH);
	for (uint32_t i = 0; i < 5; i++)
		REFUSED(&e, ref(&e, e.code.exec + i), CH_E_SITE);
	/* The entry is a `test eax`, too. A literal may be any bytes. */
	REFUSED(&e, point(&e, e.code.exec, e.code.cold_exec), CH_E_SITE);
	for (uintptr_t at = (uintptr_t)e.code.exec & ~(uintptr_t)7; at < (uintptr_t)e.code.exec + 5;
	     at += 8)
		if (at >= (uintptr_t)e.code.exec)
			REFUSED(&e, branch(&e, (void *)at, CH_LITERAL, NULL), CH_E_SITE);
	/* Stubs and the veneer behind them lie before the VM's cold bytes. */
	for (const uint8_t *at = e.code.cold_exec - 16 - 4 * 8; at < e.code.cold_exec; at++) {
		REFUSED(&e, ref(&e, at), CH_E_SITE);
		if ((uintptr_t)at % 8 == 0)
			REFUSED(&e, branch(&e, at, CH_LITERAL, NULL), CH_E_SITE);
	}
	CHECK_EQ(ref(&e, e.code.exec + 5), CH_OK);
	CHECK_EQ(ref(&e, e.code.cold_exec), CH_OK);
	e.code.cold_used = 64;
	finish(&e);
}

/* --- nothing leads into a site --- */

struct victim {
	const uint8_t *at;
	uint32_t size;
};

/* Attaches a site of each kind. Later exits are tried on the bytes of these sites. */
static unsigned put_victims(struct emitter *e, struct victim *victims)
{
	unsigned n = 0;
	for (unsigned f = 0; f < FORMS; f++) {
		uint32_t at = aligned(e, 64 + 16 * f, &forms[f]);
		victims[n] = (struct victim){put_form(e, at, &forms[f]), forms[f].size};
		CHECK_EQ(branch(e, victims[n++].at, forms[f].kind, NULL), CH_OK);
	}
	victims[n] = (struct victim){put_point(e, 160), 5};
	CHECK_EQ(point(e, victims[n++].at, e->code.exec), CH_OK);
	victims[n] = (struct victim){e->code.exec + 176, 8};
	CHECK_EQ(ref(e, victims[n++].at), CH_OK);
	if (e->code.entry_bytes)
		victims[n++] = (struct victim){e->code.exec, 5};
	return n;
}

static void lead_into(struct emitter *e, const struct victim *victims, unsigned n)
{
	const uint8_t *site = put_form(e, aligned(e, 200, &forms[0]), &forms[0]);
	const uint8_t *at = put_point(e, 216);
	for (unsigned v = 0; v < n; v++)
		for (uint32_t i = 1; i < victims[v].size; i++) {
			REFUSED(e, branch(e, site, CH_JMP, victims[v].at + i), CH_E_SITE);
			REFUSED(e, point(e, at, victims[v].at + i), CH_E_SITE);
		}
}

/* With many sites a thread has a map of the sites; with a few it reads the records. */
static void put_many(struct emitter *e, bool are_many)
{
	for (uint32_t at = 256; are_many && at < 384; at += 8)
		CHECK_EQ(ref(e, e->code.exec + at), CH_OK);
}

static void lead_into_all(bool are_many)
{
	start();
	struct emitter e;
	struct victim victims[FORMS + 3];
	open_nops(&e, 384, 16, FORMS + 3, CH_ENTRY_PATCH);
	put_many(&e, are_many);
	unsigned n = put_victims(&e, victims);
	lead_into(&e, victims, n);
	/* Into a stub, and into itself. */
	const uint8_t *site = put_form(&e, aligned(&e, 200, &forms[0]), &forms[0]);
	const uint8_t *stub = e.code.cold_exec - 16 - 8;
	for (uint32_t i = 1; i < 8; i++)
		REFUSED(&e, branch(&e, site, CH_JMP, stub + i), CH_E_SITE);
	for (uint32_t i = 1; i < 5; i++) {
		REFUSED(&e, branch(&e, site, CH_JMP, site + i), CH_E_SITE);
		REFUSED(&e, point(&e, e.code.exec + 216, e.code.exec + 216 + i), CH_E_SITE);
	}
	/* To a site's start, or right behind the site. */
	CHECK_EQ(branch(&e, site, CH_JMP, victims[0].at), CH_OK);
	CHECK_EQ(point(&e, e.code.exec + 216, victims[5].at + 5), CH_OK);
	e.code.cold_used = 16;
	finish(&e);
}

TEST(exit_inside_a_site_is_refused)
{
	lead_into_all(false);
	lead_into_all(true);
}

TEST(exit_inside_a_site_of_another_block_is_refused)
{
	start();
	struct emitter other, e;
	struct victim victims[FORMS + 3];
	open_nops(&other, 256, 0, FORMS, CH_ENTRY_PATCH);
	unsigned n = put_victims(&other, victims);
	CHECK_EQ(emit_commit(&other), CH_OK);
	open_nops(&e, 256, 0, 2, CH_ENTRY_NONE);
	lead_into(&e, victims, n);
	const uint8_t *site = put_form(&e, aligned(&e, 200, &forms[0]), &forms[0]);
	CHECK_EQ(branch(&e, site, CH_JMP, victims[0].at), CH_OK);
	CHECK_EQ(point(&e, e.code.exec + 216, victims[1].at), CH_OK);
	finish(&e);
}

/* In a page that is not the pool's first: a map counts from its page's offset. */
TEST_SITES(site_around_a_known_target_is_refused)
{
	struct emitter first;
	emit_open(&first, rig_owner(&rig, "first"), 1u << rig.heap->pool->page_log2, 0);
	for (int round = 0; round < 6; round++) {
		bool by_branch = round & 1;
		struct emitter e;
		open_nops(&e, 384, 0, 4, CH_ENTRY_NONE);
		CHECK((uintptr_t)e.code.exec >= ch__pool_page_exec(rig.heap->pool, 1));
		put_many(&e, round / 2 == 1);
		const uint8_t *target = e.code.exec + aligned(&e, 65, &forms[0]) + 2;
		if (by_branch) {
			const uint8_t *site = put_form(&e, aligned(&e, 16, &forms[0]), &forms[0]);
			CHECK_EQ(branch(&e, site, CH_JMP, target), CH_OK);
		} else {
			CHECK_EQ(point(&e, put_point(&e, 16), target), CH_OK);
		}
		put_many(&e, round / 2 == 2);
		for (uint32_t back = 1; back < 8; back++) {
			uint32_t at = (uint32_t)(target - e.code.exec) - back;
			for (unsigned f = 0; f < FORMS; f++) {
				if (back >= forms[f].size || at != aligned(&e, at, &forms[f]))
					continue;
				const uint8_t *site = put_form(&e, at, &forms[f]);
				REFUSED(&e, branch(&e, site, forms[f].kind, NULL), CH_E_SITE);
			}
			const uint8_t *here = put_point(&e, at);
			if (back < 5)
				REFUSED(&e, point(&e, here, e.code.exec), CH_E_SITE);
			memset(e.code.write + at, 0x90, 8);
		}
		CHECK_EQ(point(&e, put_point(&e, (uint32_t)(target - e.code.exec)), e.code.exec),
			 CH_OK);
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	CHECK_EQ(ch_block_abort(&first.code), CH_OK);
}

static enum ch_status commit_as(struct emitter *e, uint32_t from, uint32_t to, uint32_t entry,
				uint32_t cold)
{
	e->code.used_from = from;
	e->code.used_to = to;
	e->code.entry_offset = entry;
	e->code.cold_used = cold;
	return ch_block_commit(&e->code, 1);
}

TEST_SITES(site_of_a_live_block_obeys_the_same_rules)
{
	struct emitter other, e;
	open_nops(&other, 64, 0, 0, CH_ENTRY_NONE);
	CHECK_EQ(emit_commit(&other), CH_OK);
	open_nops(&e, 256, 0, 4, CH_ENTRY_NONE);
	uint32_t entry = aligned(&e, 64, &forms[0]);
	const uint8_t *first = put_form(&e, entry - 24, &forms[0]);
	const uint8_t *around = put_form(&e, entry - 8, &forms[0]);
	const uint8_t *over = put_form(&e, entry + 16, &forms[0]);
	const uint8_t *away = put_form(&e, entry + 32, &forms[0]);
	CHECK_EQ(branch(&e, first, CH_JMP, NULL), CH_OK);
	CHECK_EQ(commit_as(&e, 0, 256, entry - 6, 0), CH_OK);
	REFUSED(&e, branch(&e, first, CH_JMP, NULL), CH_E_SITE);
	REFUSED(&e, branch(&e, around, CH_JMP, NULL), CH_E_SITE); /* the entry is inside */
	REFUSED(&e, branch(&e, over, CH_CALL, NULL), CH_E_SITE);
	REFUSED(&e, branch(&e, over, CH_JMP, first + 2), CH_E_SITE);
	REFUSED(&e, branch(&e, over, CH_JMP, over + 2), CH_E_SITE);
	REFUSED(&e, branch(&e, over, CH_JMP, over + (UINT64_C(3) << 30)), CH_E_REACH);
	CHECK_EQ(branch(&e, over, CH_JMP, first), CH_OK);
	CHECK_EQ(branch(&e, away, CH_JMP, other.code.exec), CH_OK);
}

/* --- at commit --- */

TEST_SITES(entry_inside_a_site_is_refused)
{
	struct emitter e;
	struct victim victims[FORMS + 3];
	open_nops(&e, 256, 0, FORMS, CH_ENTRY_NONE);
	unsigned n = put_victims(&e, victims);
	for (unsigned v = 0; v < n; v++)
		for (uint32_t i = 1; i < victims[v].size; i++) {
			uint32_t entry = (uint32_t)(victims[v].at + i - e.code.exec);
			REFUSED(&e, commit_as(&e, 0, e.at, entry, 0), CH_E_SITE);
		}
	CHECK_EQ(commit_as(&e, 0, e.at, (uint32_t)(victims[0].at - e.code.exec), 0), CH_OK);
}

/* Unused bytes go back to another block. A site there would patch the other block's bytes, or would
 * hold the block's start. */
TEST_SITES(site_outside_of_what_is_used_is_refused)
{
	for (unsigned f = 0; f <= FORMS; f++) {
		struct emitter e;
		open_nops(&e, 256, 64, 1, CH_ENTRY_NONE);
		uint32_t at = f < FORMS ? aligned(&e, 65, &forms[f]) : 64;
		uint32_t size = f < FORMS ? forms[f].size : 5;
		if (f < FORMS)
			CHECK_EQ(branch(&e, put_form(&e, at, &forms[f]), forms[f].kind, NULL),
				 CH_OK);
		else
			CHECK_EQ(point(&e, put_point(&e, at), e.code.cold_exec + 40), CH_OK);
		for (uint32_t to = 1; to < at + size; to++)
			REFUSED(&e, commit_as(&e, 0, to, 0, 64), CH_E_SITE);
		for (uint32_t from = (at & ~7u) + 8; from < 128; from += 8)
			REFUSED(&e, commit_as(&e, from, 256, from, 64), CH_E_SITE);
		for (uint32_t cold = 0; cold <= 40 && f == FORMS; cold++)
			REFUSED(&e, commit_as(&e, 0, 256, 0, cold), CH_E_SITE);
		uint32_t from = at & ~7u;
		CHECK_EQ(commit_as(&e, from, at + size, from, f == FORMS ? 41 : 0), CH_OK);
	}
	struct emitter e;
	/* An exit at the block's last byte. */
	open_nops(&e, 64, 64, 0, CH_ENTRY_NONE);
	CHECK_EQ(point(&e, put_point(&e, 8), e.code.cold_exec + e.code.cold_bytes - 1), CH_OK);
	REFUSED(&e, commit_as(&e, 0, 64, 0, (uint32_t)e.code.cold_bytes - 1), CH_E_SITE);
	CHECK_EQ(commit_as(&e, 0, 64, 0, (uint32_t)e.code.cold_bytes), CH_OK);
	open_nops(&e, 64, 64, 0, CH_ENTRY_NONE);
	CHECK_EQ(ref(&e, e.code.cold_exec + 8), CH_OK);
	REFUSED(&e, commit_as(&e, 0, 64, 0, 15), CH_E_SITE);
	CHECK_EQ(commit_as(&e, 0, 64, 0, 16), CH_OK);
}

TEST(site_that_was_written_over_is_refused)
{
	start();
	struct emitter e;
	struct victim victims[FORMS + 3];
	open_nops(&e, 256, 0, FORMS, CH_ENTRY_PATCH);
	unsigned n = put_victims(&e, victims);
	for (unsigned v = 0; v < n; v++)
		for (uint32_t i = 0; i < victims[v].size; i++) {
			uint8_t *byte = e.code.write + (victims[v].at - e.code.exec) + i;
			*byte ^= 0x40;
			/* A ref's word is the VM's to write. */
			if (v != FORMS + 1)
				REFUSED(&e, commit_as(&e, 0, e.at, 0, 0), CH_E_SITE);
			*byte ^= 0x40;
		}
	finish(&e);
}
