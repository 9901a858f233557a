/* SPDX-License-Identifier: MIT
 * reach.c: branches, exits, patch points and veneers with targets farther than a jump reaches.
 * Sites lead there through their stubs, come back, leave no address of dead code behind, and are
 * patched under execution. A site without a stub to lead on is refused. Between near and far lies a
 * block that is open, and takes no memory. */
#include "arch/sites.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MIB = 1 << 20, NEAR = 11, FAR = 22, ASKED = 33, EXIT = 44 };

struct bed {
	struct rig rig;
	struct ch_owner owner;
	struct emitter filler;
	struct ch_block near, far;
	struct ch_branch branch;
	struct ch_block source;
	unsigned hits;
	struct ch_block answer; /* the result of branch_hit */
};

static uint32_t asked(void)
{
	return ASKED;
}

static struct ch_block hit(void *vm_user, struct ch_branch branch, void *branch_user,
			   struct ch_regs *regs)
{
	struct bed *bed = vm_user;
	(void)branch, (void)branch_user;
	bed->hits++;
	regs->pc = (uintptr_t)asked;
	return bed->answer;
}

static uintptr_t entry_of(struct ch_block block)
{
	return (uintptr_t)block_info(block).entry;
}

static bool is_far(uintptr_t from, uintptr_t to)
{
	return !ch__arch_site_reaches(CH_JMP, from, to);
}

/* 1 MiB on riscv64, 128 MiB on aarch64 */
static uint32_t reach(void)
{
	uint32_t bytes = MIB;
	if (!CH_ARCH_STUB_LEADS_FAR)
		skip("a jump reaches all of a pool");
	while (!is_far(0, bytes))
		bytes *= 2;
	return bytes;
}

/* The code returns the value. The block lies behind the filler, since at its open it has whole
 * chunks without memory; the commit gives the most of them back. */
static struct ch_block make_far(struct bed *bed, uint32_t value)
{
	struct ch_open open = {
		.owner = bed->owner, .hot_bytes = 2 * MIB, .entry = CH_ENTRY_GUARD};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, value);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

/* A block with nothing but the branch. After a CH_CALL the block returns the target's result. The
 * chunk of the near target has no room for a far source, whose branch is near its stub. */
static void make_source(struct bed *bed, enum ch_branch_kind kind, const void *exit, bool lies_far)
{
	const uint32_t hot = lies_far ? MIB - 8192 : 128;
	struct emitter e;
	const void *at;
	struct ch_branch_site site = {.kind = kind, .exit = exit};
	emit_open(&e, bed->owner, hot, 1);
	switch (kind) {
	case CH_JCC:
		emit_condition_e(&e);
		at = emit_site_jcc(&e, EMIT_CC_E);
		break;
	case CH_CALL:
		emit_enter(&e);
		at = emit_site_call(&e);
		emit_leave(&e);
		break;
	case CH_LEA:
		at = emit_site_lea(&e);
		emit_jump_address(&e);
		break;
	case CH_LITERAL:
		at = emit_jump_literal(&e);
		break;
	default:
		at = emit_site_jmp(&e);
	}
	site.at = at;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &bed->branch), CH_OK);
	if (lies_far)
		e.at = hot - 16; /* the commit would move the cold part */
	CHECK_EQ(emit_commit(&e), CH_OK);
	bed->source = e.code.block;
	CHECK_EQ(is_far(entry_of(bed->source), entry_of(bed->near)), lies_far);
	CHECK_EQ(ch_owner_set_entry(bed->owner, bed->source), CH_OK);
}

/* Lays out a near target, the filler, and a far target. */
static void lay_out(struct bed *bed)
{
	size_t pool_bytes = (size_t)8 * reach();
	struct ch_config config = rig_config(pool_bytes);
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = hit};
	memset(bed, 0, sizeof *bed);
	bed->rig = rig_create(&config, &ops, bed);
	CHECK_EQ(rig_stats(&bed->rig).pool_bytes, pool_bytes);
	bed->owner = rig_owner(&bed->rig, "far");
	struct ch_open open = {.owner = bed->owner, .hot_bytes = 16, .entry = CH_ENTRY_GUARD};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, NEAR);
	CHECK_EQ(emit_commit(&e), CH_OK);
	bed->near = e.code.block;
	emit_open(&bed->filler, bed->owner, 2 * reach(), 0);
	bed->far = make_far(bed, FAR);
	CHECK(is_far(entry_of(bed->near), entry_of(bed->far)));
}

static void finish(struct bed *bed)
{
	CHECK_EQ(ch_block_abort(&bed->filler.code), CH_OK);
	rig_end(&bed->rig);
}

static uint32_t run(struct bed *bed)
{
	return code_call((const void *)entry_of(bed->source));
}

static void link_to(struct bed *bed, struct ch_block target, uint32_t value)
{
	CHECK_EQ(ch_branch_link(bed->branch, target), CH_OK);
	unsigned before = bed->hits;
	CHECK_EQ(run(bed), value);
	CHECK_EQ(bed->hits, before);
	rig_check(&bed->rig);
}

/* --- reports of ch_block_sites --- */

struct told {
	const void *leads_to, *at, *stub;
	bool is_linked;
};

static bool note_site(void *arg, const struct ch_site *site)
{
	struct told *told = arg;
	if (site->kind == CH_SITE_BRANCH)
		told->leads_to = site->leads_to, told->at = site->at,
		told->is_linked = site->is_linked;
	if (site->kind == CH_SITE_STUB)
		told->stub = site->at;
	return true;
}

static struct told tell(struct bed *bed)
{
	struct told told = {0};
	CHECK_EQ(ch_block_sites(bed->source, note_site, &told), CH_OK);
	return told;
}

/* The first word of a block's cold bytes with a value in the range, or NULL. */
static const uint8_t *find_word(struct ch_block block, const uint8_t *low, const uint8_t *high)
{
	struct ch_info info = block_info(block);
	for (uint32_t i = 0; i + 8 <= info.cold_bytes; i += 4) {
		const uint8_t *word;
		memcpy(&word, info.cold_exec + i, sizeof word);
		if (word >= low && word < high)
			return info.cold_exec + i;
	}
	return NULL;
}

TEST(branch_leads_far_and_near_and_back_to_its_stub)
{
	for (enum ch_branch_kind kind = CH_JMP; kind <= CH_LITERAL; kind++) {
		struct bed bed;
		lay_out(&bed);
		make_source(&bed, kind, NULL, false);
		CHECK_EQ(run(&bed), ASKED);
		link_to(&bed, bed.far, FAR);
		CHECK_EQ(tell(&bed).leads_to, entry_of(bed.far));
		CHECK(tell(&bed).is_linked);
		link_to(&bed, bed.near, NEAR);
		CHECK_EQ(tell(&bed).leads_to, entry_of(bed.near));
		link_to(&bed, bed.far, FAR);
		CHECK_EQ(ch_branch_link(bed.branch, (struct ch_block){0}), CH_OK);
		CHECK_EQ(tell(&bed).leads_to, tell(&bed).stub);
		CHECK_EQ(run(&bed), ASKED);
		CHECK_EQ(bed.hits, 2);
		bed.answer = bed.far;
		CHECK_EQ(run(&bed), FAR); /* linked by the stub */
		CHECK_EQ(run(&bed), FAR);
		CHECK_EQ(bed.hits, 3);
		finish(&bed);
	}
}

/* The trampoline, which lies before the pool, is far, too. */
TEST(stub_far_from_the_trampoline_asks_and_leads_on)
{
	for (enum ch_branch_kind kind = CH_JMP; kind <= CH_LITERAL; kind++) {
		struct bed bed;
		lay_out(&bed);
		make_source(&bed, kind, NULL, true);
		CHECK_EQ(run(&bed), ASKED);
		link_to(&bed, bed.near, NEAR);
		CHECK_EQ(tell(&bed).leads_to, entry_of(bed.near));
		CHECK_EQ(ch_branch_link(bed.branch, (struct ch_block){0}), CH_OK);
		CHECK_EQ(run(&bed), ASKED);
		bed.answer = bed.near;
		CHECK_EQ(run(&bed), NEAR);
		CHECK_EQ(run(&bed), NEAR);
		CHECK_EQ(bed.hits, 3);
		finish(&bed);
	}
}

TEST(invalidated_far_target_is_left_for_the_stub)
{
	struct bed bed;
	lay_out(&bed);
	make_source(&bed, CH_JMP, NULL, false);
	link_to(&bed, bed.far, FAR);
	CHECK_EQ(ch_blocks_invalidate(&bed.far, 1, NULL), CH_OK);
	CHECK(!tell(&bed).is_linked);
	CHECK_EQ(run(&bed), ASKED);
	rig_check(&bed.rig);
	/* An invalidated source leaves by the stub, too. */
	bed.far = make_far(&bed, FAR);
	link_to(&bed, bed.far, FAR);
	uintptr_t entry = entry_of(bed.source);
	CHECK_EQ(ch_blocks_invalidate(&bed.source, 1, NULL), CH_OK);
	CHECK_EQ(code_call((const void *)entry), ASKED);
	finish(&bed);
}

/* No live code has the address of dead code, wherever the branch leads. */
static void check_nothing_is_left(bool goes_near)
{
	struct bed bed;
	lay_out(&bed);
	make_source(&bed, CH_JMP, NULL, false);
	struct ch_info far = block_info(bed.far);
	link_to(&bed, bed.far, FAR);
	CHECK(find_word(bed.source, far.exec, far.exec + far.hot_bytes));
	if (goes_near)
		CHECK_EQ(ch_branch_link(bed.branch, bed.near), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&bed.far, 1, NULL), CH_OK);
	rig_collect(&bed.rig, 2);
	CHECK(!rig_is_there(bed.far));
	if (find_word(bed.source, far.exec, far.exec + far.hot_bytes))
		FAIL("a stub still leads to the code of a block that is dead");
	CHECK_EQ(run(&bed), goes_near ? NEAR : ASKED);
	finish(&bed);
}

TEST(dead_far_target_leaves_no_address_behind)
{
	check_nothing_is_left(false);
}

TEST(far_target_that_was_exchanged_leaves_no_address_behind)
{
	check_nothing_is_left(true);
}

/* The VM's own exit, near in the first round and far in the second. */
TEST(exit_of_the_vms_own_is_led_to_from_near_and_far)
{
	for (unsigned is_far_exit = 0; is_far_exit < 2; is_far_exit++) {
		struct bed bed;
		lay_out(&bed);
		struct ch_block exit =
			is_far_exit ? make_far(&bed, EXIT) : rig_block(bed.owner, EXIT);
		make_source(&bed, CH_JMP, (const void *)entry_of(exit), false);
		CHECK_EQ(is_far(entry_of(bed.source), entry_of(exit)), is_far_exit);
		CHECK_EQ(run(&bed), EXIT);
		CHECK_EQ(tell(&bed).leads_to, entry_of(exit));
		rig_check(&bed.rig);
		link_to(&bed, bed.far, FAR);
		link_to(&bed, bed.near, NEAR);
		link_to(&bed, bed.far, FAR);
		CHECK_EQ(ch_branch_link(bed.branch, (struct ch_block){0}), CH_OK);
		CHECK_EQ(run(&bed), EXIT);
		CHECK_EQ(tell(&bed).leads_to, entry_of(exit));
		CHECK_EQ(bed.hits, 0);
		finish(&bed);
	}
}

TEST(point_and_entry_that_do_not_reach_are_refused)
{
	struct bed bed;
	lay_out(&bed);
	struct emitter e;
	const void *far = (const void *)entry_of(bed.far), *near = (const void *)entry_of(bed.near);
	emit_open(&e, bed.owner, 128, 0);
	const void *point = emit_point(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, far, NULL), CH_E_REACH);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, near, NULL), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	/* A patchable entry would close by a single jump over the whole block. */
	struct ch_open open = {.owner = bed.owner, .hot_bytes = reach(), .entry = CH_ENTRY_PATCH};
	CHECK_EQ(emit_open_as(&e, &open), CH_E_REACH);
	open.hot_bytes = MIB / 2;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	finish(&bed);
}

/* A veneer lies before the pool, as the trampoline does. */
TEST(veneer_that_a_block_does_not_reach_is_refused)
{
	struct bed bed;
	lay_out(&bed);
	struct emitter near, far;
	struct ch_open open = {.owner = bed.owner, .hot_bytes = 2 * MIB};
	const void *veneer, *other, *target = (const void *)(uintptr_t)asked;
	emit_open(&near, bed.owner, 128, 0);
	CHECK_EQ(ch_block_veneer(&near.code, target, &veneer), CH_OK);
	CHECK_EQ(code_call(veneer), ASKED);
	CHECK_EQ(emit_open_as(&far, &open), CH_OK);
	uintptr_t distance = (uintptr_t)far.code.exec - (uintptr_t)veneer;
	bool has_reach = distance >> CH_ARCH_VENEER_REACH_LOG2 == 0;
	CHECK_EQ(ch_block_veneer(&far.code, target, &other), has_reach ? CH_OK : CH_E_REACH);
	CHECK_EQ(other, has_reach ? veneer : NULL);
	CHECK_EQ(ch_block_abort(&far.code), CH_OK);
	CHECK_EQ(ch_block_abort(&near.code), CH_OK);
	finish(&bed);
}

/* In a block larger than a jump reaches, a site's own stub is too far. */
TEST(what_no_stub_can_lead_on_is_refused)
{
	struct bed bed;
	if (reach() > MIB)
		skip("a block of more than 128 MiB with a stub has its memory from its open on");
	lay_out(&bed);
	struct emitter e;
	struct ch_branch branch;
	emit_open(&e, bed.owner, 2 * MIB, 2);
	const void *early = emit_site_jmp(&e);
	const void *point = emit_point(&e);
	const void *literal = emit_site_literal(&e);
	struct ch_branch_site site = {.at = early, .kind = CH_JMP};
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_E_REACH);
	CHECK(strstr(ch_why(), "ch_branch_site.at's stub 0x"));
	site.exit = e.code.exec + 64;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_E_REACH);
	CHECK(strstr(ch_why(), "ch_branch_site.at's stub 0x"));
	e.at = 2 * MIB - 32;
	const void *late = emit_site_jmp(&e);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, late, NULL), CH_E_REACH);
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, (const uint8_t *)point + 64, NULL),
		 CH_OK);
	site = (struct ch_branch_site){.at = literal, .kind = CH_LITERAL};
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
	site = (struct ch_branch_site){.at = late, .kind = CH_JMP};
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	finish(&bed);
}

TEST(patchable_entry_closes_to_its_far_veneer)
{
	struct bed bed;
	lay_out(&bed);
	struct emitter e;
	struct ch_open open = {.owner = bed.owner,
			       .hot_bytes = 600000,
			       .entry = CH_ENTRY_PATCH,
			       .not_entrant = (const void *)(uintptr_t)asked};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 5);
	e.at = 600000 - 64;
	CHECK_EQ(emit_commit(&e), CH_OK);
	const void *entry = block_info(e.code.block).entry;
	CHECK_EQ(code_call(entry), 5);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(code_call(entry), ASKED);
	finish(&bed);
}

/* --- patches under execution --- */

static _Atomic(bool) stop;

static void *relink_all_the_time(void *arg)
{
	struct bed *bed = arg;
	const struct ch_block targets[] = {bed->far, bed->near, {0}, bed->near, bed->far, {0}};
	for (unsigned i = 0; !atomic_load_explicit(&stop, memory_order_relaxed); i++)
		CHECK_EQ(ch_branch_link(bed->branch, targets[i % 6]), CH_OK);
	return NULL;
}

TEST(storm_of_links_near_and_far_reaches_one_of_them)
{
	struct bed bed;
	lay_out(&bed);
	make_source(&bed, CH_JMP, NULL, false);
	CHECK_EQ(ch_owner_set_entry(bed.owner, bed.source), CH_OK);
	const void *entry = (const void *)entry_of(bed.source);
	pthread_t patcher;
	unsigned seen[3] = {0};
	atomic_store(&stop, false);
	CHECK_EQ(pthread_create(&patcher, NULL, relink_all_the_time, &bed), 0);
	uint64_t end = now_ns() + (uint64_t)storm_ms() * 1000000;
	while (now_ns() < end || !seen[0] || !seen[1] || !seen[2]) {
		uint32_t got = code_call(entry);
		if (got != NEAR && got != FAR && got != ASKED)
			FAIL("the branch led to neither end: %u", got);
		seen[got == NEAR ? 0 : got == FAR ? 1 : 2]++;
	}
	atomic_store(&stop, true);
	pthread_join(patcher, NULL);
	printf("near %u, far %u, asked %u\n", seen[0], seen[1], seen[2]);
	finish(&bed);
}
