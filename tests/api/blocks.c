/* SPDX-License-Identifier: MIT
 * blocks.c: blocks through their life: bytes given from either end, batches of a commit, entries
 * and branches of each kind, commits that are refused. */
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

/* The code and the head of a block that returns a number. */
enum { ANSWER_BLOCK_BYTES = (8 + CODE_LANDING_BYTES + CODE_ANSWER_BYTES + 7) & ~7 };

/* --- bytes from both ends, and unused bytes --- */

TEST_RIG(commit_gives_unused_bytes_back_to_the_page)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open open = {.owner = owner, .hot_bytes = 1000, .cold_bytes = 500};
	uint64_t used = 0;
	enum { COUNT = 200 };
	for (uint32_t i = 0; i < COUNT; i++) {
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_answer(&e, i);
		memset(e.code.cold_write, 0x90, 7);
		e.code.cold_used = 7;
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(code_call(e.code.exec), i);
		CHECK(e.code.cold_exec[6] == 0x90 && ch__arch_are_traps(e.code.cold_exec + 7, 1));
		used += e.at + 7;
	}
	struct ch_stats stats = rig_stats(&rig);
	/* An answer and 7 bytes, each with a head. */
	CHECK_EQ(stats.code_bytes_now, COUNT * (ANSWER_BLOCK_BYTES + 16));
	CHECK_EQ(stats.hot_bytes_now, COUNT * ANSWER_BLOCK_BYTES);
	CHECK_EQ(stats.cold_bytes_now, COUNT * 16);
	CHECK(used < stats.code_bytes_now);
}

TEST_RIG(hot_bytes_that_go_back_are_the_next_ones_taken)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	const uint8_t *last = NULL;
	for (uint32_t i = 0; i < 100; i++) {
		struct emitter e;
		emit_open(&e, owner, 1000, 0);
		emit_answer(&e, i);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK(i == 0 || e.code.exec == last + ANSWER_BLOCK_BYTES);
		last = e.code.exec;
	}
	CHECK_EQ(rig_stats(&rig).pages_now, 1);
}

TEST_RIG(hot_bytes_may_be_given_from_the_end)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (uint32_t room = 16; room < 200; room += 4) {
		struct emitter e;
		emit_open(&e, owner, room, 0);
		uint32_t last = e.code.hot_bytes;
		/* The code takes the last bytes; used_from is the multiple of 8 before the code. */
		uint32_t entry = last - CODE_LANDING_BYTES - CODE_ANSWER_BYTES;
		uint32_t from = entry & ~7u;
		memset(e.code.write, 0x90, entry);
		e.at = entry;
		emit_landing(&e);
		emit_answer(&e, room);
		e.code.used_from = from;
		e.code.entry_offset = entry;
		const uint8_t *start = e.code.exec + from;
		CHECK_EQ(emit_commit(&e), CH_OK);
		struct ch_info info = block_info(e.code.block);
		CHECK_EQ(info.exec, start);
		CHECK_EQ(info.entry, e.code.exec + entry);
		CHECK_EQ((uintptr_t)info.exec % 8, 0);
		CHECK_EQ(code_call(info.entry), room);
		CHECK(ch__arch_are_traps(start - 8, 4)); /* where the emitter had written */
		struct ch_block found;
		CHECK(from == 0 || !block_at(rig.heap, start - 8, &found) ||
		      found.bits != e.code.block.bits);
		CHECK(block_at(rig.heap, start, &found) && found.bits == e.code.block.bits);
		CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
		CHECK_EQ(code_call_owner(owner), room);
	}
}

/* A run of pages used at the end stays whole from the first page on. Unused bytes are traps. */
TEST_RIG_BY(hot_bytes_of_a_run_of_pages_may_be_given_from_the_end, rig_start(8 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	static const struct {
		uint32_t pages;
		unsigned flags;
	} runs[] = {{3, 0}, {0, CH_OPEN_OWN_FRAMES}, {0, CH_OPEN_IN_PLACE}, {2, CH_OPEN_IN_PLACE}};
	for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
		struct ch_open open = {.owner = owner,
				       .hot_bytes =
					       (uint32_t)(runs[i].pages * rig_page_bytes()) + 100,
				       .flags = runs[i].flags};
		for (uint32_t more = 0; more < 16; more += 4) {
			struct emitter e;
			CHECK_EQ(emit_open_as(&e, &open), CH_OK);
			uint32_t from = (e.code.hot_bytes - 64) & ~7u, entry = from + more;
			memset(e.code.write, 0x11, e.code.hot_bytes);
			e.at = entry;
			emit_landing(&e);
			emit_answer(&e, 40 + more);
			e.code.used_from = from;
			e.code.entry_offset = entry;
			CHECK_EQ(emit_commit(&e), CH_OK);
			CHECK(ch__arch_are_traps(e.code.exec, from));
			CHECK(ch__arch_are_traps(e.code.exec + e.at, e.code.hot_bytes - e.at));
			struct ch_info info = block_info(e.code.block);
			CHECK_EQ(info.exec, e.code.exec);
			CHECK_EQ(info.entry, e.code.exec + entry);
			CHECK_EQ(code_call(info.entry), 40 + more);
			struct ch_block found;
			CHECK(block_at(rig.heap, e.code.exec, &found) &&
			      found.bits == e.code.block.bits);
			CHECK(block_at(rig.heap, info.entry, &found) &&
			      found.bits == e.code.block.bits);
			CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
			CHECK_EQ(code_call_owner(owner), 40 + more);
			rig_check(&rig);
		}
	}
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 3);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
}

TEST_RIG(exec_is_a_multiple_of_eight_without_asking)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (uint32_t size = CODE_LANDING_BYTES + CODE_ANSWER_BYTES; size < 80; size++) {
		struct emitter e;
		emit_open(&e, owner, size, 0);
		CHECK_EQ((uintptr_t)e.code.exec % 8, 0);
		CHECK(e.code.hot_bytes >= size);
		emit_answer(&e, size);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(code_call(block_info(e.code.block).entry), size);
	}
}

/* --- batches --- */

TEST_RIG(blocks_committed_together_are_reachable_all_or_none)
{
	struct ch_owner owner = rig_owner(&rig, "owner"), dead = rig_owner(&rig, "dead");
	struct emitter e[8];
	struct ch_code codes[8];
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 8; i++) {
			emit_open(&e[i], round && i == 5 ? dead : owner, 16, 0);
			emit_value(&e[i], i);
			emit_ret(&e[i]);
			e[i].code.used_to = e[i].at;
			codes[i] = e[i].code;
		}
		if (round)
			CHECK_EQ(ch_owner_release(dead, CH_RELEASE_COLLECT), CH_OK);
		CHECK_EQ(ch_block_commit(codes, 8), round ? CH_E_STALE : CH_OK);
		for (uint32_t i = 0; i < 8; i++) {
			CHECK_EQ(rig_is_there(codes[i].block), !round);
			if (!round)
				CHECK_EQ(code_call(codes[i].exec), i);
		}
		rig_check(&rig);
	}
	CHECK_EQ(rig_stats(&rig).blocks_aborted, 8);
	CHECK_EQ(rig_stats(&rig).blocks_open_now, 0);
}

TEST_RIG(one_bad_size_leaves_the_whole_batch_open)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e[2];
	struct ch_code codes[2];
	for (int i = 0; i < 2; i++) {
		emit_open(&e[i], owner, 16, 0);
		emit_value(&e[i], 1);
		emit_ret(&e[i]);
		e[i].code.used_to = e[i].at;
		codes[i] = e[i].code;
	}
	codes[1].used_to = 4000000;
	CHECK_EQ(ch_block_commit(codes, 2), CH_E_ARG);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(block_info(codes[i].block).state, CH_BLOCK_OPEN);
	codes[1].used_to = codes[0].used_to;
	CHECK_EQ(ch_block_commit(codes, 2), CH_OK);
}

/* --- refused commits --- */

TEST_RIG(commit_after_a_broken_assumption_aborts)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_assumption fact, other;
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	CHECK_EQ(ch_assumption_create(rig.vm, &other), CH_OK);
	struct emitter live, open;
	for (int i = 0; i < 2; i++) {
		struct emitter *e = i ? &open : &live;
		emit_open(e, owner, 16, 0);
		emit_answer(e, 1);
		CHECK_EQ(ch_block_assume(e->code.block, fact), CH_OK);
		CHECK_EQ(ch_block_assume(e->code.block, other), CH_OK);
	}
	CHECK_EQ(emit_commit(&live), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, live.code.block), CH_OK);
	size_t count;
	CHECK_EQ(ch_assumption_break(fact, &count), CH_OK);
	CHECK_EQ(count, 1);
	CHECK_EQ(block_info(live.code.block).state, CH_BLOCK_NOTENTRANT);
	CHECK_EQ(code_call_owner(owner), RIG_FALLBACK);
	CHECK_EQ(emit_commit(&open), CH_E_STALE);
	CHECK_STR(ch_why(), "CH_E_STALE: an assumption of a block broke: the blocks were aborted");
	CHECK(!rig_is_there(open.code.block));
	CHECK_EQ(rig_stats(&rig).assumptions_now, 1);
	CHECK_EQ(ch_assumption_break(other, &count), CH_OK);
	CHECK_EQ(count, 0);
}

static struct ch_owner rely(const struct rig *rig, struct ch_assumption fact,
			    struct ch_block *block)
{
	struct ch_owner owner = rig_owner(rig, "relies");
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	CHECK_EQ(ch_block_assume(e.code.block, fact), CH_OK);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	*block = e.code.block;
	return owner;
}

TEST_RIG(assumption_that_breaks_ends_all_who_rely_on_it)
{
	enum { MANY = 9 };
	struct ch_assumption fact;
	struct ch_owner owners[MANY];
	struct ch_block blocks[MANY];
	size_t count;
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	for (int i = 0; i < MANY; i++) {
		owners[i] = rely(&rig, fact, &blocks[i]);
		CHECK_EQ(ch_owner_set_entry(owners[i], blocks[i]), CH_OK);
	}
	CHECK_EQ(ch_assumption_break(fact, &count), CH_OK);
	CHECK_EQ(count, MANY);
	for (int i = 0; i < MANY; i++) {
		CHECK_EQ(block_info(blocks[i]).state, CH_BLOCK_NOTENTRANT);
		CHECK_EQ(code_call_owner(owners[i]), RIG_FALLBACK);
	}
}

/* All but one of four blocks die, in each order. Other blocks take the dead blocks' records. */
TEST_RIG(assumption_knows_who_relies_on_it_whoever_died)
{
	enum { BLOCKS = 4, ORDERS = 4 * 3 * 2 };
	struct ch_owner stranger = rig_owner(&rig, "stranger");
	for (unsigned order = 0; order < ORDERS; order++) {
		struct ch_owner owners[BLOCKS];
		struct ch_block blocks[BLOCKS], strangers[BLOCKS];
		struct ch_assumption fact;
		CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
		for (unsigned i = 0; i < BLOCKS; i++)
			owners[i] = rely(&rig, fact, &blocks[i]);
		for (unsigned left = BLOCKS, rest = order; left > 1; rest /= left--) {
			unsigned next = rest % left;
			CHECK_EQ(ch_owner_release(owners[next], CH_RELEASE_NOT_RUNNING), CH_OK);
			owners[next] = owners[left - 1];
			blocks[next] = blocks[left - 1];
		}
		for (unsigned i = 0; i < BLOCKS; i++)
			strangers[i] = rig_block(stranger, i);
		size_t count;
		CHECK_EQ(ch_assumption_break(fact, &count), CH_OK);
		CHECK_EQ(count, 1);
		CHECK_EQ(block_info(blocks[0]).state, CH_BLOCK_NOTENTRANT);
		for (unsigned i = 0; i < BLOCKS; i++)
			CHECK_EQ(block_info(strangers[i]).state, CH_BLOCK_LIVE);
		CHECK_EQ(ch_owner_release(owners[0], CH_RELEASE_NOT_RUNNING), CH_OK);
	}
}

TEST_RIG(commit_with_an_edge_to_an_aborted_block_aborts)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter target, e, other;
	emit_open(&target, owner, 16, 0);
	emit_open(&e, owner, 16, 0);
	CHECK_EQ(ch_edge_attach(e.code.block, target.code.block), CH_OK);
	emit_ret(&e);
	CHECK_EQ(ch_block_abort(&target.code), CH_OK);
	emit_open(&other, owner, 16, 0);
	CHECK_EQ((uint32_t)other.code.block.bits, (uint32_t)target.code.block.bits);
	CHECK_EQ(emit_commit(&e), CH_E_STALE);
	CHECK(strstr(ch_why(), "a block that an edge names was aborted"));
}

struct spared {
	struct ch_owner owner, user;
	struct ch_block shared, own;
	const void *table[1]; /* the user's code jumps to the address in here */
};

static void make_spared(const struct rig *rig, void *arg)
{
	struct spared *s = arg;
	s->owner = rig_owner(rig, "owner");
	s->user = rig_owner(rig, "user");
	s->shared = rig_block(s->owner, 5);
	s->own = rig_block(s->owner, 6);
	struct emitter e;
	emit_open(&e, s->user, 32, 0);
	CHECK_EQ(ch_edge_attach(e.code.block, s->shared), CH_OK);
	s->table[0] = block_info(s->shared).entry;
	emit_jump_cell(&e, s->table);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(s->user, e.code.block), CH_OK);
}

static void call_user(const struct rig *rig, void *arg)
{
	(void)rig;
	CHECK_EQ(code_call_owner(((struct spared *)arg)->user), 5);
}

TEST_RIG(release_not_running_spares_what_others_have_an_edge_to)
{
	struct spared s;
	rig_apart(&rig, make_spared, &s);
	CHECK_EQ(ch_owner_release(s.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(rig_is_there(s.shared) && !rig_is_there(s.own));
	rig_collect(&rig, 4);
	CHECK(rig_is_there(s.shared));
	rig_apart(&rig, call_user, &s);
	CHECK_EQ(ch_owner_release(s.user, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_check(&rig);
	rig_collect(&rig, 4);
	CHECK(!rig_is_there(s.shared));
	CHECK_EQ(rig_stats(&rig).owners_now, 0);
}

/* --- entry kinds --- */

static uint32_t elsewhere(void)
{
	return 0xe15e;
}

TEST_RIG(a_patchable_entry_leads_to_its_target_when_invalidated)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (int own = 0; own < 2; own++) {
		struct ch_open open = {
			.owner = owner, .hot_bytes = 16, .entry = CH_ENTRY_PATCH,
			.not_entrant = own ? (const void *)(uintptr_t)elsewhere : NULL};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(e.code.entry_bytes, CH_ARCH_LANDING_BYTES + CH_ARCH_DIVERTER_BYTES);
		CHECK(e.code.hot_bytes >= open.hot_bytes + e.code.entry_bytes);
		emit_answer(&e, 3);
		CHECK_EQ(emit_commit(&e), CH_OK);
		const void *entry = block_info(e.code.block).entry;
		CHECK_EQ(code_call(entry), 3);
		CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
		CHECK_EQ(code_call(entry), own ? 0xe15e : RIG_FALLBACK);
	}
}

TEST_RIG(thread_that_loaded_the_cell_before_an_invalidation_enters_a_block_whose_entry_is_not_shut)
{
	struct ch_owner owner = rig_owner(&rig, "loaded");
	struct ch_block block = rig_block(owner, 5);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	const void *loaded = *ch_owner_cell(owner);
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	CHECK_EQ(code_call(loaded), 5);
	CHECK_EQ(code_call_owner(owner), RIG_FALLBACK);
}

TEST_RIG(a_patchable_entry_may_not_be_moved)
{
	struct ch_open open = {
		.owner = rig_owner(&rig, "owner"), .hot_bytes = 32, .entry = CH_ENTRY_PATCH};
	struct emitter e;
	CHECK(emit_open_as(&e, &open) == CH_OK && e.code.used_to == e.code.entry_bytes);
	emit_filler(&e, e.at + 16);
	e.code.entry_offset = 8;
	CHECK_EQ(emit_commit(&e), CH_E_ARG);
	e.code.used_from = 8;
	CHECK_EQ(emit_commit(&e), CH_E_ARG);
	e.code.used_from = e.code.entry_offset = 0;
	CHECK_EQ(emit_commit(&e), CH_OK);
}

TEST_RIG(a_guard_keeps_its_address_whatever_is_attached)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .entry = CH_ENTRY_GUARD};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(*e.code.guard, 0);
	emit_guard_test(&e, e.code.guard, CODE_ANSWER_BYTES);
	emit_answer(&e, 4);
	emit_answer(&e, 44);
	struct ch_block target = rig_block(owner, 1);
	for (int i = 0; i < 100; i++)
		CHECK_EQ(ch_edge_attach(e.code.block, target), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	const void *entry = block_info(e.code.block).entry;
	CHECK_EQ(code_call(entry), 4);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(*e.code.guard, 1);
	CHECK_EQ(code_call(entry), 44);
}

/* --- branches --- */

static struct ch_block target_now;
static int hits;

/* Emits a site of the kind. The block returns the linked block's value. */
static void emit_user_of(struct emitter *e, enum ch_branch_kind kind, struct ch_branch *branch)
{
	const void *at;
	switch (kind) {
	case CH_JMP:
		at = emit_site_jmp(e);
		break;
	case CH_JCC:
		emit_condition_e(e);
		at = emit_site_jcc(e, EMIT_CC_E);
		emit_breakpoint(e);
		break;
	case CH_CALL:
		emit_enter(e);
		at = emit_site_call(e);
		emit_leave(e);
		break;
	case CH_LEA:
		at = emit_site_lea(e);
		emit_jump_address(e);
		break;
	default:
		at = emit_jump_literal(e);
		break;
	}
	*branch = emit_attach(e, at, kind, &hits);
}

static struct ch_block hit_target(void *user, struct ch_branch branch, void *branch_user,
				  struct ch_regs *regs)
{
	(void)user, (void)branch, (void)branch_user, (void)regs;
	hits++;
	return target_now;
}

static struct ch_site told[2];

static bool note_site(void *count, const struct ch_site *site)
{
	told[(*(int *)count)++] = *site;
	return *(int *)count < 2;
}

/* Expects ch_block_sites to report a branch to `target` (NULL: unlinked) and the stub. */
static void expect_sites(struct ch_block block, enum ch_branch_kind kind, struct ch_branch branch,
			 const void *target)
{
	struct ch_info info = block_info(block);
	int count = 0;
	CHECK_EQ(ch_block_sites(block, note_site, &count), CH_OK);
	CHECK(count == 2 && told[0].kind == CH_SITE_BRANCH && told[1].kind == CH_SITE_STUB);
	CHECK(told[0].branch_kind == kind && told[0].user == &hits);
	CHECK(told[0].branch.bits == branch.bits && told[1].branch.bits == branch.bits);
	CHECK(told[0].is_linked == (target != NULL) && (!target || told[0].leads_to == target));
	CHECK((size_t)(told[0].at - info.exec) < info.hot_bytes);
	CHECK((size_t)(told[1].at - info.cold_exec) < info.cold_bytes && !told[1].leads_to);
}

TEST(each_kind_of_branch_links_unlinks_and_hits_its_stub)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = hit_target};
	struct rig rig = rig_create(&config, &ops, NULL);
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (enum ch_branch_kind kind = CH_JMP; kind <= CH_LITERAL; kind++) {
		struct ch_block targets[2];
		for (uint32_t i = 0; i < 2; i++) {
			struct ch_open open = {.owner = owner, .hot_bytes = 16,
					       .entry = CH_ENTRY_PATCH};
			struct emitter t;
			CHECK_EQ(emit_open_as(&t, &open), CH_OK);
			emit_answer(&t, 10 + i);
			CHECK_EQ(emit_commit(&t), CH_OK);
			targets[i] = t.code.block;
		}
		struct emitter e;
		struct ch_branch branch;
		emit_open(&e, owner, 64, 1);
		emit_user_of(&e, kind, &branch);
		CHECK_EQ(emit_commit(&e), CH_OK);
		hits = 0;
		expect_sites(e.code.block, kind, branch, NULL);
		target_now = targets[0];
		CHECK_EQ(code_call(e.code.exec), 10); /* compiled on the first hit */
		CHECK_EQ(hits, 1);
		CHECK_EQ(code_call(e.code.exec), 10);
		CHECK_EQ(hits, 1);
		rig_check(&rig);
		expect_sites(e.code.block, kind, branch, block_info(targets[0]).entry);
		CHECK_EQ(ch_branch_link(branch, targets[1]), CH_OK);
		CHECK_EQ(code_call(e.code.exec), 11);
		expect_sites(e.code.block, kind, branch, block_info(targets[1]).entry);
		CHECK_EQ(ch_branch_link(branch, (struct ch_block){0}), CH_OK);
		expect_sites(e.code.block, kind, branch, NULL);
		target_now = (struct ch_block){0};
		CHECK_EQ(code_call(e.code.exec), RIG_FALLBACK);
		CHECK_EQ(hits, 2);
		CHECK_EQ(ch_branch_link(branch, targets[1]), CH_OK);
		CHECK_EQ(ch_blocks_invalidate(&targets[1], 1, NULL), CH_OK);
		target_now = targets[0];
		CHECK_EQ(code_call(e.code.exec), 10);
		CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
		CHECK_EQ(code_call(e.code.exec), 10); /* unlinked: the source is not entrant */
		CHECK_EQ(hits, 4);
		rig_check(&rig);
	}
	rig_end(&rig);
}

TEST_RIG(a_branch_with_an_exit_of_its_own_leads_there_while_unlinked)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open open = {.owner = owner, .hot_bytes = 16, .flags = CH_OPEN_IMMORTAL};
	struct emitter shared;
	CHECK_EQ(emit_open_as(&shared, &open), CH_OK);
	emit_answer(&shared, 77);
	CHECK_EQ(emit_commit(&shared), CH_OK);
	for (enum ch_branch_kind kind = CH_JMP; kind <= CH_JCC; kind++) {
		struct emitter e;
		emit_open(&e, owner, 64, 1);
		const void *at = emit_site_jmp(&e);
		struct ch_branch_site site = {.at = at, .kind = CH_JMP, .exit = shared.code.exec};
		struct ch_branch branch;
		CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(code_call(e.code.exec), 77);
		struct ch_block target = rig_block(owner, 8);
		CHECK_EQ(ch_branch_link(branch, target), CH_OK);
		CHECK_EQ(code_call(e.code.exec), 8);
		CHECK_EQ(ch_blocks_invalidate(&target, 1, NULL), CH_OK);
		CHECK_EQ(code_call(e.code.exec), 77);
		CHECK_EQ(ch_branch_link(branch, rig_block(owner, 9)), CH_OK);
		CHECK_EQ(code_call(e.code.exec), 9);
		CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
		CHECK_EQ(code_call(e.code.exec), 77);
		rig_check(&rig);
	}
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 3);
	CHECK(rig_is_there(shared.code.block));
	CHECK_EQ(code_call(shared.code.exec), 77);
}

TEST_RIG(a_branch_in_the_cold_bytes_is_led_to_its_target_and_back)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open open = {
		.owner = owner, .hot_bytes = CODE_ROOM(16), .cold_bytes = 32, .branch_room = 1};
	struct ch_block target = rig_block(owner, 6);
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 5);
	struct emitter cold = emit_cold(&e);
	emit_landing(&cold);
	struct ch_branch branch = emit_jmp(&cold, NULL);
	emit_cold_end(&e, &cold);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_branch_link(branch, target), CH_OK);
	CHECK_EQ(code_call(e.code.cold_exec), 6);
	rig_check(&rig);
	CHECK_EQ(ch_blocks_invalidate(&target, 1, NULL), CH_OK);
	CHECK_EQ(code_call(e.code.cold_exec), RIG_FALLBACK);
}

TEST_RIG(a_live_block_takes_branches_while_it_has_room)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open(&e, owner, 64, 2);
	emit_condition_e(&e);
	const void *first = emit_site_jcc(&e, EMIT_CC_NE); /* not taken */
	emit_answer(&e, 2);
	const void *landing = emit_here(&e);
	emit_landing(&e);
	const void *second = emit_site_jmp(&e); /* not reachable yet */
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct ch_branch branch;
	struct ch_branch_site site = {.at = second, .kind = CH_JMP};
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
	CHECK_EQ(ch_branch_link(branch, rig_block(owner, 6)), CH_OK);
	CHECK_EQ(code_call(landing), 6);
	site.at = first;
	site.kind = CH_JCC;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 2);
	CHECK_EQ(block_info(e.code.block).branches_now, 2);
}

/* --- patch points --- */

static struct ch_block inside;

static void invalidate_inside(void)
{
	CHECK_EQ(ch_blocks_invalidate(&inside, 1, NULL), CH_OK);
}

TEST_RIG(a_block_that_invalidates_itself_leaves_at_its_patch_point)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (int other = 0; other < 2; other++) {
		struct emitter exit, e;
		emit_open(&exit, owner, 32, 0);
		emit_value(&exit, 0xe817);
		emit_leave(&exit);
		CHECK_EQ(emit_commit(&exit), CH_OK);
		struct ch_open open = {.owner = owner, .hot_bytes = 64, .cold_bytes = 16};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		struct emitter own = emit_cold(&e);
		emit_value(&own, 0xe817);
		emit_leave(&own);
		emit_cold_end(&e, &own);
		emit_enter(&e);
		emit_call_c(&e, (const void *)(uintptr_t)invalidate_inside);
		const void *leads_to = other ? exit.code.exec : e.code.cold_exec;
		CHECK_EQ(ch_patch_point_attach(e.code.block, emit_point(&e), leads_to, NULL),
			 CH_OK);
		emit_value(&e, 1);
		emit_leave(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		inside = e.code.block;
		CHECK_EQ(ch_owner_set_entry(owner, inside), CH_OK);
		CHECK_EQ(code_call_owner(owner), 0xe817);
		CHECK_EQ(code_call_owner(owner), RIG_FALLBACK);
		CHECK_EQ(rig_stats(&rig).patch_points_armed, other + 1);
		rig_check(&rig);
		CHECK(rig_is_there(exit.code.block));
	}
}

/* --- discard --- */

TEST_RIG(discard_frees_one_vm_and_leaves_the_other)
{
	struct ch_ops none = {.size = sizeof none};
	struct ch_vm *second;
	CHECK_EQ(ch_vm_attach(rig.heap, &none, NULL, &second), CH_OK);
	struct ch_owner mine = rig_owner(&rig, "mine"), other;
	CHECK_EQ(ch_owner_create(second, "other", (const void *)(uintptr_t)rig_fallback, NULL,
				 &other),
		 CH_OK);
	CHECK_EQ(ch_owner_set_entry(mine, rig_block(mine, 1)), CH_OK);
	CHECK_EQ(ch_owner_set_entry(other, rig_block(other, 2)), CH_OK);
	size_t freed = 99, kept = 99;
	CHECK_EQ(ch_vm_discard(rig.heap, second, &freed, &kept), CH_OK);
	CHECK_EQ(freed + kept, 1);
	CHECK_EQ(code_call_owner(mine), 1);
	CHECK_EQ(code_call_owner(other), RIG_FALLBACK);
	CHECK_EQ(ch_vm_discard(rig.heap, NULL, &freed, &kept), CH_OK);
	CHECK(freed + kept >= 1);
	CHECK_EQ(code_call_owner(mine), RIG_FALLBACK);
	CHECK_EQ(ch_vm_detach(second), CH_OK);
	rig_collect(&rig, 3);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	CHECK_EQ(rig_stats(&rig).vms_now, 1);
}

/* A commit wants published targets. Blocks with edges to each other are committed together. */
TEST_RIG(an_edge_to_an_open_block_is_committed_with_it)
{
	struct ch_owner owner = rig_owner(&rig, "pair");
	struct emitter first, second; /* the first fills its room */
	emit_open(&first, owner, ANSWER_BLOCK_BYTES - 8, 0);
	emit_open(&second, owner, 16, 0);
	emit_answer(&first, 1);
	emit_answer(&second, 2);
	CHECK_EQ(ch_edge_attach(first.code.block, second.code.block), CH_OK);
	CHECK_EQ(ch_edge_attach(second.code.block, first.code.block), CH_OK);
	CHECK_EQ(emit_commit(&first), CH_E_STATE);
	CHECK_EQ(emit_commit(&second), CH_E_STATE);
	CHECK_EQ(block_info(first.code.block).state, CH_BLOCK_OPEN);
	struct ch_code both[2] = {first.code, second.code};
	CHECK_EQ(ch_block_commit(both, 2), CH_OK);
	CHECK_EQ(code_call(block_info(second.code.block).entry), 2);
	/* A block is committed alone when its target was committed before. */
	struct emitter third, fourth;
	emit_open(&third, owner, 16, 0);
	emit_open(&fourth, owner, 16, 0);
	emit_ret(&third);
	emit_ret(&fourth);
	CHECK_EQ(ch_edge_attach(fourth.code.block, third.code.block), CH_OK);
	CHECK_EQ(emit_commit(&fourth), CH_E_STATE);
	CHECK_EQ(emit_commit(&third), CH_OK);
	CHECK_EQ(emit_commit(&fourth), CH_OK);
}

TEST_RIG(a_block_that_comes_twice_in_a_commit_is_refused)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "twice"), 64, 0);
	emit_filler(&e, 8);
	e.code.used_from = 8;
	e.code.entry_offset = 8;
	emit_landing(&e);
	emit_answer(&e, 3);
	e.code.used_to = e.at;
	struct ch_code twice[2] = {e.code, e.code};
	CHECK_EQ(ch_block_commit(twice, 2), CH_E_ARG);
	CHECK_EQ(block_info(e.code.block).state, CH_BLOCK_OPEN);
	CHECK_EQ(ch_block_commit(twice, 1), CH_OK);
	CHECK_EQ(code_call(block_info(e.code.block).entry), 3);
}

/* --- unused bytes --- */

static void check_part(const uint8_t *exec, uint32_t from, uint32_t to, uint32_t bytes)
{
	for (uint32_t i = from; i < to; i++)
		CHECK_EQ(exec[i], 0x5a);
	CHECK(ch__arch_are_traps(exec, from));
	CHECK(ch__arch_are_traps(exec + to, bytes - to));
}

/* Fills the whole block, and commits a part of the bytes. */
static void use_part(struct ch_owner owner, uint32_t hot, uint32_t from, uint32_t to)
{
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = hot,
			       .cold_bytes = hot == 64 ? 64 : 0};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	memset(code.write, 0x5a, code.hot_bytes);
	if (code.cold_bytes) {
		memset(code.cold_write, 0x5a, code.cold_bytes);
		code.cold_used = to - from;
	}
	code.used_from = code.entry_offset = from;
	code.used_to = to;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	struct ch_info info = block_info(code.block);
	uint32_t cut = (uint32_t)(info.exec - code.exec);
	check_part(info.exec, from - cut, to - cut, info.hot_bytes);
	if (info.cold_bytes)
		check_part(info.cold_exec, 0, to - from, info.cold_bytes);
}

TEST_RIG(bytes_of_a_block_that_are_not_used_are_traps)
{
	uint32_t span = 2 * (uint32_t)rig_page_bytes();
	for (uint32_t used = CH_ARCH_TRAP_UNIT_BYTES; used <= 24; used += CH_ARCH_TRAP_UNIT_BYTES) {
		struct ch_owner owner = rig_owner(&rig, "owner");
		for (uint32_t from = 0; from <= 16; from += 8)
			use_part(owner, 64, from, from + used);
		use_part(owner, span, 0, used);
		use_part(owner, used, 0, used);
		use_part(owner, span, 4096, 4096 + used);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
}
