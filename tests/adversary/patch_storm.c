/* SPDX-License-Identifier: MIT
 * patch_storm.c: everything in the library that patches code, against threads that run the code.
 * Branches of every kind are linked, re-linked and unlinked, entries closed by patch and by guard,
 * patch points diverted, blocks invalidated, released, collected and discarded, and the bytes used
 * again at once in a small pool; with membarrier and without. The oracle: entered code answers with
 * its slot's number, or with the fallback's. There is no other answer, and no trap. */
#include "tests/support/stage.h"

enum kind { JUMP, CONDITIONAL, CALL, ADDRESS, LITERAL, ENTRY, GUARD, CALLER, KINDS };
enum { SLOTS = 2 * KINDS, RUNNERS = 2, STEP = 16, LEFT_BY_EXIT = 2, SEEN = 1 << 12 };
enum { FULL_MS = 30000, USUAL_MS = 2000 };

struct slot {
	enum kind kind;
	uint32_t answer; /* of the slot's targets; a multiple of STEP */
	struct method source;
	_Atomic(uint64_t) targets;                 /* the owner of the branch's targets */
	_Atomic(uint64_t) entered, target, branch; /* handles */
};

struct counts {
	_Atomic(uint64_t) calls, fallbacks, exits, hits, links, unlinks, invalidated, sources, full;
	_Atomic(uint64_t) released, released_at_once, discards, reused;
};

struct play {
	struct stage *stage;
	struct slot slots[SLOTS];
	struct counts n;
	_Atomic(int) is_over;
	_Atomic(unsigned) hot;         /* the slot patched most at the moment */
	_Atomic(uintptr_t) seen[SEEN]; /* addresses that had code */
};

static _Thread_local struct test_random dice;

static uint64_t throw_below(uint64_t bound)
{
	if (!dice.state)
		dice.state = (now_ns() ^ (uint64_t)(uintptr_t)&dice) | 1;
	return test_random_below(&dice, bound);
}

static void count(_Atomic(uint64_t) *n)
{
	atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

static bool is_expected(enum ch_status status)
{
	return status == CH_OK || status == CH_E_STALE || status == CH_E_STATE ||
	       status == CH_E_FULL;
}

static void note_address(struct play *p, const uint8_t *exec)
{
	uintptr_t address = (uintptr_t)exec;
	if (atomic_exchange(&p->seen[address / 8 % SEEN], address) == address)
		count(&p->n.reused);
}

static enum ch_status open_in(struct play *p, struct emitter *e, struct ch_owner owner,
			      enum ch_entry entry, uint32_t branches)
{
	struct ch_open open = {.owner = owner,
			       .hot_bytes = 96,
			       .cold_bytes = 20,
			       .branch_room = branches,
			       .entry = entry};
	enum ch_status status = emit_open_as(e, &open);
	CHECK(is_expected(status));
	if (status == CH_E_FULL)
		count(&p->n.full);
	if (status == CH_OK)
		note_address(p, e->code.exec);
	return status;
}

/* A guarded block tests its word at the entry. The code behind a failed test answers like the
 * owner's fallback. */
static void emit_guarded_answer(struct emitter *e, uint32_t answer)
{
	if (e->code.guard)
		emit_guard_test(e, e->code.guard, CODE_ANSWER_BYTES);
	emit_answer(e, answer);
	if (e->code.guard)
		emit_answer(e, STAGE_FALLBACK);
}

static struct ch_block commit(struct emitter *e)
{
	enum ch_status status = emit_commit(e);
	CHECK(is_expected(status));
	return status == CH_OK ? e->code.block : (struct ch_block){0};
}

/* A target for the slot's branch. An address-load needs an entry that can be closed. */
static struct ch_block make_target(struct play *p, struct slot *slot)
{
	struct emitter e;
	enum ch_entry entry = (enum ch_entry)throw_below(3);
	if (slot->kind == ADDRESS && entry == CH_ENTRY_NONE)
		entry = throw_below(2) ? CH_ENTRY_PATCH : CH_ENTRY_GUARD;
	if (open_in(p, &e, (struct ch_owner){atomic_load(&slot->targets)}, entry, 0) != CH_OK)
		return (struct ch_block){0};
	emit_guarded_answer(&e, slot->answer);
	return commit(&e);
}

/* --- sources --- */

/* Called in a frame of the slot's block, and invalidates this block now and then. */
static uint64_t called(void *arg)
{
	struct slot *slot = arg;
	struct ch_block block = {atomic_load(&slot->entered)};
	if (throw_below(4) == 0 && block.bits)
		CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	ch_thread_poll();
	return slot->answer;
}

static void emit_caller(struct emitter *e, struct slot *slot)
{
	struct emitter cold = {.code = {.exec = e->code.cold_exec,
					.write = e->code.cold_write,
					.hot_bytes = e->code.cold_bytes}};
	emit_enter(e);
	emit_argument(e, (uintptr_t)slot);
	emit_call_c(e, (const void *)(uintptr_t)called);
	const void *point = emit_point(e);
	emit_leave(e);
	emit_add(&cold, LEFT_BY_EXIT);
	emit_leave(&cold);
	e->code.cold_used = cold.at;
	CHECK_EQ(ch_patch_point_attach(e->code.block, point, e->code.cold_exec, NULL), CH_OK);
}

static struct ch_branch emit_source(struct emitter *e, struct slot *slot)
{
	struct ch_branch branch = {0};
	const void *site;
	switch (slot->kind) {
	case JUMP:
		return emit_jmp(e, slot);
	case CONDITIONAL:
		emit_condition_e(e);
		site = emit_site_jcc(e, EMIT_CC_E);
		branch = emit_attach(e, site, CH_JCC, slot);
		emit_breakpoint(e);
		return branch;
	case CALL:
		emit_enter(e);
		branch = emit_attach(e, emit_site_call(e), CH_CALL, slot);
		emit_add(e, 1);
		emit_leave(e);
		return branch;
	case ADDRESS:
		branch = emit_attach(e, emit_site_lea(e), CH_LEA, slot);
		emit_jump_address(e);
		return branch;
	case LITERAL:
		return emit_attach(e, emit_jump_literal(e), CH_LITERAL, slot);
	case CALLER:
		emit_caller(e, slot);
		return branch;
	default:
		emit_guarded_answer(e, slot->answer);
		return branch;
	}
}

static enum ch_entry entry_of(const struct slot *slot)
{
	if (slot->kind == GUARD)
		return CH_ENTRY_GUARD;
	return slot->kind == ENTRY || throw_below(2) ? CH_ENTRY_PATCH : CH_ENTRY_NONE;
}

static void make_source(struct play *p, struct slot *slot)
{
	struct emitter e;
	if (open_in(p, &e, slot->source.owner, entry_of(slot), 1) != CH_OK)
		return;
	struct ch_branch branch = emit_source(&e, slot);
	struct ch_block block = commit(&e), old = {atomic_load(&slot->entered)};
	if (!block.bits)
		return;
	enum ch_status status = ch_owner_set_entry(slot->source.owner, block);
	CHECK(is_expected(status));
	atomic_store(&slot->branch, branch.bits);
	atomic_store(&slot->entered, block.bits);
	if (old.bits && throw_below(2))
		CHECK_EQ(ch_blocks_invalidate(&old, 1, NULL), CH_OK);
	count(&p->n.sources);
}

static struct ch_block hit(struct stage *stage, struct ch_branch branch, void *user,
			   struct ch_regs *regs)
{
	struct play *p = stage->user;
	struct slot *slot = user;
	(void)branch, (void)regs;
	count(&p->n.hits);
	if (throw_below(8) == 0)
		return (struct ch_block){0};
	struct ch_block block = make_target(p, slot);
	if (block.bits)
		atomic_store(&slot->target, block.bits);
	return block;
}

/* --- the runners --- */

static void check_answer(struct play *p, const struct slot *slot, uint64_t got)
{
	if (got == STAGE_FALLBACK || (slot->kind == CALL && got == STAGE_FALLBACK + 1))
		count(&p->n.fallbacks);
	else if (slot->kind == CALLER && got == slot->answer + LEFT_BY_EXIT)
		count(&p->n.exits);
	else if (got != slot->answer + (slot->kind == CALL))
		FAIL("code of slot %u answered %llu", slot->answer / STEP, (unsigned long long)got);
}

static void run_code(struct stage *stage, void *arg)
{
	struct play *p = arg;
	while (!atomic_load(&p->is_over)) {
		bool is_hot = throw_below(2);
		unsigned hot = atomic_load_explicit(&p->hot, memory_order_relaxed);
		const struct slot *slot = &p->slots[is_hot ? hot : throw_below(SLOTS)];
		int times = is_hot ? 64 : 8;
		for (int i = 0; i < times; i++)
			check_answer(p, slot, method_call(&slot->source, NULL));
		atomic_fetch_add_explicit(&p->n.calls, (unsigned)times, memory_order_relaxed);
		if (stage->driver != STAGE_SIGNALS || throw_below(64) == 0)
			ch_thread_poll();
	}
}

/* --- the patcher --- */

static void link_slot(struct play *p, struct slot *slot, bool anew)
{
	struct ch_block target = {atomic_load(&slot->target)};
	struct ch_branch branch = {atomic_load(&slot->branch)};
	if (anew)
		target = make_target(p, slot);
	if (!target.bits || !branch.bits)
		return;
	atomic_store(&slot->target, target.bits);
	enum ch_status status = ch_branch_link(branch, target);
	CHECK(is_expected(status));
	if (status == CH_OK)
		count(&p->n.links);
}

static void unlink_slot(struct play *p, struct slot *slot)
{
	struct ch_branch branch = {atomic_load(&slot->branch)};
	if (!branch.bits)
		return;
	enum ch_status status = ch_branch_link(branch, (struct ch_block){0});
	CHECK(is_expected(status));
	if (status == CH_OK)
		count(&p->n.unlinks);
}

static void invalidate(struct play *p, _Atomic(uint64_t) *handle)
{
	struct ch_block block = {atomic_load(handle)};
	size_t n = 0;
	if (block.bits)
		CHECK_EQ(ch_blocks_invalidate(&block, 1, &n), CH_OK);
	atomic_fetch_add_explicit(&p->n.invalidated, n, memory_order_relaxed);
}

/* Makes targets of a new owner. The old owner goes, and the old code goes with the next cycle. */
static void replace_targets(struct play *p, struct slot *slot)
{
	struct method fresh, old = {.owner = {atomic_load(&slot->targets)}};
	method_new(p->stage, &fresh, "targets");
	atomic_store(&slot->targets, fresh.owner.bits);
	link_slot(p, slot, true);
	method_drop(p->stage, &old);
	count(&p->n.released);
}

/* Releases code that only this thread runs: the bytes are free at once, for any thread. */
static void release_at_once(struct play *p)
{
	struct method m;
	struct emitter e;
	method_new(p->stage, &m, "private");
	if (open_in(p, &e, m.owner, CH_ENTRY_NONE, 0) == CH_OK) {
		emit_guarded_answer(&e, 5);
		struct ch_block block = commit(&e);
		if (block.bits && ch_owner_set_entry(m.owner, block) == CH_OK) {
			uint64_t got = method_call(&m, NULL);
			CHECK(got == 5 || got == STAGE_FALLBACK);
		}
	}
	CHECK_EQ(ch_owner_release(m.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	if (p->stage->driver == STAGE_BOEHM)
		method_drop(p->stage, &m);
	count(&p->n.released_at_once);
}

static uintptr_t entry_address(struct ch_block block)
{
	struct ch_info info = {.size = sizeof info};
	return ch_block_info(block, &info) == CH_OK ? (uintptr_t)info.entry : 0;
}

/* Two targets with addresses that differ in several bytes: a torn displacement leads elsewhere. */
static bool make_two(struct play *p, struct slot *slot, struct ch_block ends[2])
{
	ends[0] = make_target(p, slot);
	for (int i = 0; i < 16; i++) {
		ends[1] = make_target(p, slot);
		uintptr_t low = entry_address(ends[0]), high = entry_address(ends[1]);
		if (!low || !high)
			return false;
		if (low >> 8 != high >> 8 && (uint8_t)low != (uint8_t)high)
			return true;
	}
	return false;
}

/* Links to and fro between two targets and, now and then, the stub, at full speed, while other
 * threads run the branch. */
static void hammer(struct play *p, struct slot *slot)
{
	enum { BLOWS = 300 };
	struct ch_block ends[3] = {{0}};
	make_source(p, slot);
	struct ch_branch branch = {atomic_load(&slot->branch)};
	if (!branch.bits || !make_two(p, slot, ends))
		return;
	atomic_store_explicit(&p->hot, (unsigned)(slot - p->slots), memory_order_relaxed);
	for (int i = 0; i < BLOWS; i++) {
		enum ch_status status = ch_branch_link(branch, ends[i % 63 ? i % 2 : 2]);
		CHECK(is_expected(status));
		if (status == CH_OK)
			count(&p->n.links);
	}
}

static void patch_something(struct play *p)
{
	struct slot *slot = &p->slots[throw_below(SLOTS)];
	uint64_t what = throw_below(100);
	if (what < 5)
		hammer(p, slot);
	else if (what < 30)
		link_slot(p, slot, true);
	else if (what < 50)
		link_slot(p, slot, false);
	else if (what < 65)
		unlink_slot(p, slot);
	else if (what < 75)
		invalidate(p, &slot->target);
	else if (what < 80)
		invalidate(p, &slot->entered);
	else if (what < 92)
		make_source(p, slot);
	else if (what < 95)
		replace_targets(p, slot);
	else
		release_at_once(p);
}

static void start_play(struct play *p)
{
	for (unsigned i = 0; i < SLOTS; i++) {
		struct slot *slot = &p->slots[i];
		struct method targets;
		slot->kind = (enum kind)(i % KINDS);
		slot->answer = (i + 1) * STEP;
		method_new(p->stage, &slot->source, "source");
		method_new(p->stage, &targets, "targets");
		atomic_store(&slot->targets, targets.owner.bits);
		make_source(p, slot);
	}
}

static bool has_happened(struct play *p)
{
	struct counts *n = &p->n;
	return n->calls > 1000 && n->fallbacks && n->exits && n->hits && n->links > 1000 &&
	       n->unlinks > 100 && n->invalidated > 100 && n->sources > 100 && n->released &&
	       n->released_at_once && n->discards && n->reused > 100;
}

static void print_counts(struct play *p)
{
	struct ch_stats stats = stage_stats(p->stage);
#define N(name) (unsigned long long)p->n.name
	printf("%llu calls (%llu fallbacks, %llu exits), %llu hits, %llu links, %llu unlinks\n",
	       N(calls), N(fallbacks), N(exits), N(hits), N(links), N(unlinks));
	printf("%llu invalidated, %llu sources, %llu released, %llu at once, %llu discards\n",
	       N(invalidated), N(sources), N(released), N(released_at_once), N(discards));
	printf("%llu addresses used again, %llu blocks freed in %llu cycles, %llu opens full\n",
	       N(reused), (unsigned long long)stats.blocks_freed, (unsigned long long)stats.cycles,
	       N(full));
#undef N
}

static void patch_storm(struct stage *stage, unsigned ms)
{
	stage->config.pool_bytes = 256 << 10;
	stage->config.stop_wait_ms = TEST_PATIENCE_MS; /* under ThreadSanitizer, too */
	stage->counts_only = true;
	stage->hit = hit;
	struct play *p = stage_play(stage, sizeof *p);
	start_play(p);
	struct stage_thread threads[RUNNERS];
	for (int i = 0; i < RUNNERS; i++)
		stage_spawn(stage, &threads[i], run_code, p);
	uint64_t end = now_ns() + ms * UINT64_C(1000000);
	/* A slow machine goes on until each thing has happened. */
	for (uint64_t round = 1; now_ns() < end || !has_happened(p); round++) {
		for (int i = 0; i < 64; i++)
			patch_something(p);
		if (round % 4 == 0)
			stage_collect(stage);
		if (round % 32 == 0)
			stage_check(stage);
		if (round % 64 == 0) {
			CHECK_EQ(ch_vm_discard(stage->heap, NULL, NULL, NULL), CH_OK);
			count(&p->n.discards);
			for (unsigned i = 0; i < SLOTS; i++)
				make_source(p, &p->slots[i]);
		}
	}
	atomic_store(&p->is_over, 1);
	for (int i = 0; i < RUNNERS; i++)
		stage_join(&threads[i]);
	print_counts(p);
	stage_end(stage);
}

static unsigned full_length(void)
{
	unsigned ms = storm_ms_of(FULL_MS);
	return ms > TEST_STORM_DEFAULT_MS || ms < USUAL_MS ? ms : USUAL_MS;
}

#define PATCH_STORM(name, driver, ms)               \
	TEST_LIMIT(name, 90)                        \
	{                                           \
		patch_storm(stage_new(driver), ms); \
	}
PATCH_STORM(storm_of_patches_polls, STAGE_POLLS, full_length())
PATCH_STORM(storm_of_patches_signals, STAGE_SIGNALS, full_length())
#if CH_TEST_BDW
PATCH_STORM(storm_of_patches_boehm, STAGE_BOEHM, storm_ms_of(USUAL_MS))
#endif

/* --- without membarrier --- */

static void refused_storm(enum stage_driver driver, enum stage_refusal how)
{
	stage_refuse_membarrier(how);
	patch_storm(stage_new(driver), storm_ms_of(USUAL_MS / 2));
}

TEST(storm_of_patches_without_membarrier_polls)
{
	refused_storm(STAGE_POLLS, STAGE_REFUSE_EPERM);
}

TEST(storm_of_patches_without_membarrier_signals)
{
	refused_storm(STAGE_SIGNALS, STAGE_REFUSE_ENOSYS);
}

TEST(storm_of_patches_without_core_sync_polls)
{
	refused_storm(STAGE_POLLS, STAGE_REFUSE_CORE_SYNC);
}

#if CH_TEST_BDW
TEST(storm_of_patches_without_membarrier_boehm)
{
	refused_storm(STAGE_BOEHM, STAGE_REFUSE_EPERM);
}
#endif
