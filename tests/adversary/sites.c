/* SPDX-License-Identifier: MIT
 * sites.c: rules of sites on every architecture (I12): no second site on the same bytes, no exit
 * into the inside, the same bytes at the commit. Sites are as tests/support/code.h emits them.
 * Other files test the alignment and the instructions of an architecture. */
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "invalidate/invalidate.h"
#include "tests/support/heap_rig.h"

enum { KINDS = 5 };
static struct rig rig;
static struct ch_owner owner;
static struct spot {
	const uint8_t *at;
	enum ch_branch_kind kind;
	uint32_t bytes;
} spots[KINDS];

static enum ch_status branch(const struct emitter *e, const void *at, enum ch_branch_kind kind,
			     const void *exit)
{
	struct ch_branch_site site = {.at = at, .kind = kind, .exit = exit};
	struct ch_branch made = {1};
	enum ch_status status = ch_branch_attach(e->code.block, &site, &made);
	CHECK((status == CH_OK) == (made.bits != 0));
	return status;
}

static const uint8_t *emit_site(struct emitter *e, enum ch_branch_kind kind)
{
	switch (kind) {
	case CH_JMP:
		return emit_site_jmp(e);
	case CH_JCC:
		return emit_site_jcc(e, EMIT_CC_E);
	case CH_CALL:
		return emit_site_call(e);
	case CH_LEA:
		return emit_site_lea(e);
	default:
		return emit_site_literal(e);
	}
}

/* Opens a block with an attached site of each kind, and a jump that is not attached. */
static const uint8_t *open_with_sites(struct emitter *e)
{
	rig = rig_start(1 << 20);
	owner = rig_owner(&rig, "owner");
	emit_open(e, owner, 256, KINDS + 1);
	for (int kind = 0; kind < KINDS; kind++) {
		struct spot *s = &spots[kind];
		s->kind = (enum ch_branch_kind)kind;
		s->at = emit_site(e, s->kind);
		s->bytes = (uint32_t)(emit_here(e) - s->at);
		CHECK_EQ(branch(e, s->at, s->kind, NULL), CH_OK);
	}
	return emit_site_jmp(e);
}

static void end(struct emitter *e)
{
	CHECK_EQ(emit_commit(e), CH_OK);
	rig_end(&rig);
}

/* A branch reaches no place between two instructions. */
static bool is_refusal(const uint8_t *at, enum ch_status status)
{
	return status == CH_E_SITE ||
	       ((uintptr_t)at % CH_ARCH_TRAP_UNIT_BYTES && status == CH_E_REACH);
}

TEST(bytes_of_a_site_are_no_other_site_s)
{
	struct emitter e;
	const uint8_t *free_jump = open_with_sites(&e);
	for (int i = 0; i < KINDS; i++)
		for (uint32_t byte = 0; byte < spots[i].bytes; byte++) {
			const uint8_t *at = spots[i].at + byte;
			for (int kind = 0; kind < KINDS; kind++)
				CHECK_EQ(branch(&e, at, (enum ch_branch_kind)kind, NULL),
					 CH_E_SITE);
			CHECK_EQ(ch_ref_attach(e.code.block, at), CH_E_SITE);
			CHECK(is_refusal(at, ch_patch_point_attach(e.code.block, at, e.code.exec,
								   NULL)));
		}
	CHECK_EQ(branch(&e, free_jump, CH_JMP, NULL), CH_OK);
	end(&e);
}

TEST(inside_of_a_site_is_no_exit)
{
	struct emitter e;
	const uint8_t *free_jump = open_with_sites(&e);
	for (int i = 0; i < KINDS; i++)
		for (uint32_t byte = 1; byte < spots[i].bytes; byte++)
			CHECK(is_refusal(spots[i].at + byte,
					 branch(&e, free_jump, CH_JMP, spots[i].at + byte)));
	CHECK_EQ(branch(&e, free_jump, CH_JMP, spots[CH_CALL].at), CH_OK);
	end(&e);
}

/* Each part of a block has a head, which is data. */
TEST(head_of_another_block_is_no_exit)
{
	struct emitter other, e;
	const uint8_t *jump = open_with_sites(&e);
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .cold_bytes = 16};
	CHECK_EQ(emit_open_as(&other, &open), CH_OK);
	emit_answer(&other, 1);
	other.code.cold_used = 16;
	const uint8_t *heads[] = {other.code.exec - CH__HEAD_BYTES,
				  other.code.cold_exec - CH__HEAD_BYTES};
	const uint8_t *exec = other.code.exec;
	CHECK_EQ(emit_commit(&other), CH_OK);
	const void *point = emit_point(&e);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(branch(&e, jump, CH_JMP, heads[i]), CH_E_SITE);
		CHECK_EQ(ch_patch_point_attach(e.code.block, point, heads[i], NULL), CH_E_ARG);
	}
	CHECK_EQ(branch(&e, jump, CH_JMP, exec), CH_OK);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, exec, NULL), CH_OK);
	end(&e);
}

TEST(site_of_each_kind_is_there_at_the_commit)
{
	for (int kind = 0; kind < KINDS; kind++) {
		struct emitter e = {0};
		uint8_t kept[32];
		CHECK_EQ(branch(&e, open_with_sites(&e), CH_JMP, NULL), CH_OK);
		uint8_t *write = e.code.write + (spots[kind].at - e.code.exec);
		uint32_t bytes = spots[kind].bytes;
		memcpy(kept, write, bytes);
		memset(write, 0x5a, bytes);
		CHECK_EQ(emit_commit(&e), CH_E_SITE);
		memcpy(write, kept, bytes);
		end(&e);
	}
}

/* Also with a thread's map of the block's sites, which takes each new site. */
TEST_SHARED_RIG(bytes_of_a_ref_are_no_other_site_s, rig_start(1 << 20))
{
	enum { POINTS = 20, REFS = 4, REFS_FROM = 256 };
	struct emitter e;
	owner = rig_owner(&rig, "owner");
	emit_open(&e, owner, 512, 0);
	for (int i = 0; i < POINTS; i++)
		CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), e.code.exec, NULL),
			 CH_OK);
	for (uint32_t at = REFS_FROM; at < REFS_FROM + REFS * 32; at += 32) {
		CHECK_EQ(ch_ref_attach(e.code.block, e.code.exec + at), CH_OK);
		e.at = at + CH_ARCH_TRAP_UNIT_BYTES - CH_ARCH_DIVERTER_BYTES;
		for (; e.at < at + 8; e.at += CH_ARCH_TRAP_UNIT_BYTES - CH_ARCH_DIVERTER_BYTES)
			CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), e.code.exec,
						       NULL),
				 CH_E_SITE);
	}
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* Many exits lead to one jump, and each attach would read all records. A record that the map has is
 * moved to where it would forbid the exit: nobody reads the record. */
TEST(exit_to_the_first_byte_of_a_site_is_judged_by_the_map)
{
	struct emitter e;
	(void)open_with_sites(&e);
	const struct ch__site_map *map = &ch__thread_self(rig.heap)->sites;
	/* The map takes records over at the next attach. */
	for (bool is_taken = false; !is_taken;) {
		is_taken = map->is_made;
		CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), e.code.exec, NULL),
			 CH_OK);
	}
	const struct ch__block *block = ch__block_at(rig.heap, rig_record(e.code.block));
	struct ch__item *first = &ch__side_items(block->side_list)[0], kept = *first;
	for (int i = 0; i < KINDS; i++) {
		const uint8_t *point = emit_point(&e);
		for (uint32_t byte = 1; byte < spots[i].bytes; byte++)
			CHECK(is_refusal(spots[i].at + byte,
					 ch_patch_point_attach(e.code.block, point,
							       spots[i].at + byte, NULL)));
		first->at = ch__offset(rig.heap, (uintptr_t)spots[i].at) - 1;
		CHECK_EQ(ch_patch_point_attach(e.code.block, point, spots[i].at, NULL), CH_OK);
		*first = kept;
	}
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
}

TEST_SHARED_RIG(map_of_a_block_has_room_for_each_of_its_bytes, rig_start(4 << 20))
{
	enum { WITHOUT = 8 };
	size_t before = 0;
	owner = rig_owner(&rig, "owner");
	const struct ch__site_map *map = &ch__thread_self(rig.heap)->sites;
	for (uint32_t pages = 0; pages < 3; pages++) {
		struct ch_open open = {.owner = owner,
				       .hot_bytes = pages * (uint32_t)rig_page_bytes() + 512,
				       .cold_bytes = 64,
				       .branch_room = WITHOUT + 1};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		for (uint32_t i = 0; i < WITHOUT; i++)
			CHECK_EQ(branch(&e, emit_site_jmp(&e), CH_JMP, NULL), CH_OK);
		size_t bytes = ch__meta_bytes(rig.heap->meta);
		CHECK_EQ(branch(&e, emit_site_jmp(&e), CH_JMP, NULL), CH_OK);
		bytes = ch__meta_bytes(rig.heap->meta) + before - bytes;
		CHECK(map->is_made);
		CHECK(map->block == ch__block_at(rig.heap, rig_record(e.code.block)));
		CHECK(bytes > before);
		before = bytes;
		CHECK_EQ(bytes, map->capacity);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
}

/* A byte of the map is spoilt that no site sets: a map that is made again would have it cleared. */
TEST(map_of_a_block_is_made_once)
{
	struct emitter e;
	(void)open_with_sites(&e);
	struct ch__site_map *map = &ch__thread_self(rig.heap)->sites;
	while (!map->is_made)
		CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), e.code.exec, NULL),
			 CH_OK);
	uint8_t *spoilt = map->bytes + ch__offset(rig.heap, (uintptr_t)e.code.exec) + e.at + 64 -
			  map->base;
	CHECK_EQ(*spoilt, 0);
	*spoilt = 1;
	CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), e.code.exec, NULL), CH_OK);
	CHECK_EQ(*spoilt, 1);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
}

/* The cold part of a block in pages of its own lies behind all of the hot part. */
TEST(map_of_a_block_has_room_for_the_last_cold_byte)
{
	struct emitter e;
	rig = rig_start(4 << 20);
	struct ch_open open = {.owner = rig_owner(&rig, "owner"),
			       .hot_bytes = 2 << 16,
			       .cold_bytes = 1 << 16};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	struct ch__site_map *map = &ch__thread_self(rig.heap)->sites;
	while (!map->is_made)
		CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), e.code.exec, NULL),
			 CH_OK);
	uint32_t end = ch__offset(rig.heap, (uintptr_t)e.code.cold_exec) + e.code.cold_bytes;
	CHECK(map->base <= ch__offset(rig.heap, (uintptr_t)e.code.exec));
	CHECK(end - map->base <= map->capacity);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
}

enum { REF_AT = 256, BRANCH_AT = 320 };
static const uint8_t *spot_of_ref, *spot_of_branch;

/* A ref attaches whole words. */
static const uint8_t *word_of(const uint8_t *at)
{
	return at - (uintptr_t)at % 8;
}

static void go_on_with(const struct rig *unused, void *arg)
{
	struct emitter *e = arg;
	(void)unused;
	CHECK_EQ(ch_ref_attach(e->code.block, word_of(spot_of_ref)), CH_OK);
	CHECK_EQ(branch(e, spot_of_branch, CH_JMP, NULL), CH_OK);
}

/* The thread that opened the block has a map of the block, hands the block over, and goes on. */
TEST_SHARED_RIG(site_that_another_thread_attached_is_in_the_map, rig_start(1 << 20))
{
	enum { MAPPED = 12 };
	struct emitter e;
	owner = rig_owner(&rig, "owner");
	emit_open(&e, owner, 512, MAPPED + 2);
	for (int i = 0; i < MAPPED; i++)
		CHECK_EQ(branch(&e, emit_site_jmp(&e), CH_JMP, NULL), CH_OK);
	CHECK(ch__thread_self(rig.heap)->sites.is_made);
	e.at = REF_AT;
	spot_of_ref = emit_site_jmp(&e);
	e.at = BRANCH_AT;
	spot_of_branch = emit_site_jmp(&e);
	rig_apart(&rig, go_on_with, &e);
	CHECK(is_refusal(spot_of_ref, branch(&e, spot_of_ref, CH_JMP, NULL)));
	CHECK_EQ(ch_ref_attach(e.code.block, word_of(spot_of_branch)), CH_E_SITE);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* A thread keeps a map of the sites of its current block. A later block gets the same record and
 * the same place, and has other sites. */
TEST(block_in_the_record_of_another_has_sites_of_its_own)
{
	enum { REFS = 20, REFS_FROM = 128 };
	struct ch_open open = {.hot_bytes = 512, .branch_room = 1};
	struct emitter first, second;
	rig = rig_start(1 << 20);
	open.owner = owner = rig_owner(&rig, "owner");
	CHECK_EQ(emit_open_as(&first, &open), CH_OK);
	for (unsigned i = 0; i < REFS; i++)
		CHECK_EQ(ch_ref_attach(first.code.block, first.code.exec + REFS_FROM + 8 * i),
			 CH_OK);
	CHECK_EQ(ch_block_abort(&first.code), CH_OK);
	open.entry = CH_ENTRY_PATCH;
	CHECK_EQ(emit_open_as(&second, &open), CH_OK);
	CHECK_EQ(rig_record(second.code.block), rig_record(first.code.block));
	for (uint32_t i = 0; i < second.code.entry_bytes; i++)
		CHECK_EQ(ch_ref_attach(second.code.block, second.code.exec + i), CH_E_SITE);
	for (uint32_t i = 8; i <= ch__stub_bytes(rig.heap) + CH_ARCH_VENEER_BYTES; i++)
		CHECK_EQ(ch_ref_attach(second.code.block, second.code.cold_exec - i), CH_E_SITE);
	emit_answer(&second, 1);
	end(&second);
}

TEST_SHARED_RIG(map_of_a_block_has_what_was_attached_before_the_map_was_made, rig_start(1 << 20))
{
	enum { OF_THE_BLOCK_BEFORE = 20, REFS = 10 };
	struct emitter e;
	owner = rig_owner(&rig, "owner");
	emit_open(&e, owner, 512, 1);
	for (unsigned i = 0; i < OF_THE_BLOCK_BEFORE; i++)
		CHECK_EQ(ch_ref_attach(e.code.block, e.code.exec + 8 * i), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	emit_open(&e, owner, 512, 1);
	e.at = REF_AT;
	const uint8_t *site = emit_site_jmp(&e);
	for (unsigned i = 0; i < REFS; i++)
		CHECK_EQ(ch_ref_attach(e.code.block, word_of(site) - 8 + 8 * i), CH_OK);
	CHECK(ch__thread_self(rig.heap)->sites.is_made);
	CHECK(is_refusal(site, branch(&e, site, CH_JMP, NULL)));
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* Before the thread has a map of the block, and with the map. */
TEST_SHARED_RIG(bytes_of_a_stub_are_no_site_s, rig_start(1 << 20))
{
	enum { REFS = 10 };
	struct ch_open open = {.hot_bytes = 512, .cold_bytes = 16, .branch_room = 1};
	struct emitter e;
	open.owner = owner = rig_owner(&rig, "owner");
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	for (unsigned round = 0; round < 2; round++) {
		CHECK_EQ(ch__thread_self(rig.heap)->sites.is_made, round == 1);
		for (uint32_t i = 8; i <= ch__stub_bytes(rig.heap); i++)
			CHECK_EQ(ch_ref_attach(e.code.block, e.code.cold_exec - i), CH_E_SITE);
		for (unsigned i = 0; i < REFS; i++)
			CHECK_EQ(ch_ref_attach(e.code.block, e.code.exec + 8 * i), CH_OK);
	}
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* The entry and the veneer are longer than a byte of the map has bits. The veneer itself is an exit
 * with a map and without. */
TEST(inside_of_an_entry_or_a_veneer_is_no_exit_by_the_map)
{
	enum { MAPPED = 12 };
	struct ch_open open = {.hot_bytes = 512, .branch_room = MAPPED + 2,
			       .entry = CH_ENTRY_PATCH};
	struct emitter e;
	rig = rig_start(1 << 20);
	open.owner = owner = rig_owner(&rig, "owner");
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	const struct ch__block *block = ch__block_at(rig.heap, rig_record(e.code.block));
	uintptr_t veneer = ch__block_veneer_exec(rig.heap, block);
	CHECK_EQ(branch(&e, emit_site_jmp(&e), CH_JMP, (const void *)veneer), CH_OK);
	for (int i = 0; i < MAPPED; i++)
		CHECK_EQ(branch(&e, emit_site_jmp(&e), CH_JMP, NULL), CH_OK);
	CHECK(ch__thread_self(rig.heap)->sites.is_made);
	const uint8_t *jump = emit_site_jmp(&e);
	for (uint32_t i = 1; i < e.code.entry_bytes; i++)
		CHECK(is_refusal(e.code.exec + i, branch(&e, jump, CH_JMP, e.code.exec + i)));
	for (uint32_t i = 1; i < CH_ARCH_VENEER_BYTES; i++) {
		const uint8_t *inside = (const uint8_t *)veneer + i;
		CHECK(is_refusal(inside, branch(&e, jump, CH_JMP, inside)));
	}
	CHECK_EQ(branch(&e, jump, CH_JMP, (const void *)veneer), CH_OK);
	end(&e);
}

/* Exits into other blocks lie below or above the range of a block's map. */
TEST_SHARED_RIG(exit_into_another_page_is_in_no_map_of_the_block, rig_start(64 << 20))
{
	enum { BEFORE = 12, LARGE_BYTES = 3000, BLOCKS = 64 };
	struct ch_open open = {.hot_bytes = 16, .flags = CH_OPEN_IMMORTAL};
	struct emitter e;
	open.owner = owner = rig_owner(&rig, "owner");
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	const uint8_t *exit = e.code.exec;
	for (int n = 0; n < BLOCKS; n++) {
		emit_open(&e, owner, LARGE_BYTES, 2 * BEFORE);
		for (int i = 0; i < BEFORE; i++)
			CHECK_EQ(branch(&e, emit_site_jmp(&e), CH_JMP, NULL), CH_OK);
		for (int i = 0; i < BEFORE; i++)
			CHECK_EQ(branch(&e, emit_site_jmp(&e), CH_JMP, exit), CH_OK);
		e.at = LARGE_BYTES - 64;
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
}

/* The visitor returns false after `wanted` sites. */
struct some_sites {
	unsigned wanted, seen;
};

static bool see_some_sites(void *arg, const struct ch_site *site)
{
	struct some_sites *some = arg;
	(void)site;
	return ++some->seen < some->wanted;
}

TEST_SHARED_RIG(visit_of_sites_ends_at_the_site_or_stub_whose_visitor_says_so, rig_start(1 << 20))
{
	enum { BRANCHES = 3 };
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 256, BRANCHES);
	for (int i = 0; i < BRANCHES; i++)
		(void)emit_attach(&e, emit_site_jmp(&e), CH_JMP, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	for (unsigned wanted = 1; wanted <= 2 * BRANCHES + 1; wanted++) {
		struct some_sites some = {.wanted = wanted};
		CHECK_EQ(ch_block_sites(e.code.block, see_some_sites, &some), CH_OK);
		CHECK_EQ(some.seen, wanted < 2 * BRANCHES ? wanted : 2 * BRANCHES);
	}
}
