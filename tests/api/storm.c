/* SPDX-License-Identifier: MIT
 * storm.c: four threads create, link, run, invalidate, release, discard and collect, stopped by
 * polls, by parks, or by a signal. The oracle: code answers with the owner's number or the
 * fallback's, or through an exit with the number marked, and with nothing else. Every call into
 * code returns. */
#include "arch/base.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 4, SHARED = 48, EXIT_MARK = 1 << 24, NUMBER_MASK = EXIT_MARK - 1 };

enum stop { BY_POLLS, BY_PARKS, BY_SIGNAL };

static struct rig rig;
static enum stop mode;
static _Atomic(uint64_t) owners[SHARED]; /* handles; owner of slot i answers i + 1 */
static _Atomic(uint64_t) branches[SHARED];
static _Atomic(bool) is_over;
static _Atomic(uint64_t) calls, returns, fallbacks, exits, hits, notices, failed_opens;
static _Thread_local struct test_random dice;
static _Thread_local int depth;

static void safepoint(void)
{
	if (mode == BY_POLLS)
		ch_thread_poll();
	if (mode == BY_PARKS) {
		ch_thread_park();
		ch_thread_unpark();
	}
}

/* --- code --- */

static void in_code(void);

static enum ch_status finish(struct emitter *e, struct ch_owner owner, bool set)
{
	enum ch_status status = emit_commit(e);
	if (status == CH_OK && set)
		status = ch_owner_set_entry(owner, e->code.block);
	return status;
}

/* A framed block that calls in_code, where anything may happen. If the block is invalidated
 * meanwhile, the call returns to an exit. */
static enum ch_status make_caller(struct ch_owner owner, uint32_t number)
{
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .cold_bytes = 16,
			       .entry = CH_ENTRY_PATCH};
	struct emitter e;
	enum ch_status status = emit_open_as(&e, &open);
	if (status != CH_OK)
		return status;
	struct emitter cold = emit_cold(&e);
	emit_value(&cold, number | EXIT_MARK);
	emit_leave(&cold);
	emit_cold_end(&e, &cold);
	emit_enter(&e);
	emit_call_c(&e, (const void *)(uintptr_t)in_code);
	status = ch_patch_point_attach(e.code.block, emit_point(&e), e.code.cold_exec, NULL);
	CHECK_EQ(status, CH_OK);
	emit_value(&e, number);
	emit_leave(&e);
	return finish(&e, owner, true);
}

/* A block that goes on through a branch. The first hit compiles the branch's target. */
static enum ch_status make_lazy(struct ch_owner owner, uint32_t number)
{
	struct ch_open open = {.owner = owner, .hot_bytes = 32, .branch_room = 1};
	struct emitter e;
	enum ch_status status = emit_open_as(&e, &open);
	if (status != CH_OK)
		return status;
	struct ch_branch branch = emit_jmp(&e, (void *)(uintptr_t)number);
	status = finish(&e, owner, true);
	if (status == CH_OK)
		atomic_store(&branches[number - 1], branch.bits);
	return status;
}

static enum ch_status make_leaf(struct ch_owner owner, uint32_t number, struct ch_block *block)
{
	struct ch_open open = {.owner = owner, .hot_bytes = 16};
	struct emitter e;
	enum ch_status status = emit_open_as(&e, &open);
	if (status != CH_OK)
		return status;
	emit_answer(&e, number);
	*block = e.code.block;
	return finish(&e, owner, false);
}

static struct ch_block hit(void *user, struct ch_branch branch, void *branch_user,
			   struct ch_regs *regs)
{
	(void)user, (void)branch, (void)regs;
	struct ch_block block = {0};
	uint32_t number = (uint32_t)(uintptr_t)branch_user;
	struct ch_owner owner = {atomic_load(&owners[number - 1])};
	atomic_fetch_add(&hits, 1);
	if (depth < 3 && test_random_below(&dice, 4) == 0)
		in_code();
	if (owner.bits && make_leaf(owner, number, &block) != CH_OK)
		block.bits = 0;
	return block;
}

static void freed(void *user, void *block_user)
{
	(void)user, (void)block_user;
	atomic_fetch_add(&notices, 1);
}

/* --- actions of the threads --- */

static bool is_expected(enum ch_status status)
{
	return status == CH_OK || status == CH_E_STALE || status == CH_E_STATE ||
	       status == CH_E_FULL;
}

static void replace(uint64_t slot)
{
	struct ch_owner fresh = rig_owner(&rig, "storm"), old;
	uint32_t number = (uint32_t)slot + 1;
	old.bits = atomic_exchange(&owners[slot], fresh.bits);
	if (old.bits)
		CHECK_EQ(ch_owner_release(old, CH_RELEASE_COLLECT), CH_OK);
	enum ch_status status = test_random_below(&dice, 2) ? make_caller(fresh, number)
							    : make_lazy(fresh, number);
	if (status == CH_E_FULL)
		atomic_fetch_add(&failed_opens, 1);
	CHECK(is_expected(status));
}

static void run(uint64_t slot)
{
	struct ch_owner owner = {atomic_load(&owners[slot])};
	const void *const *cell = owner.bits ? ch_owner_cell(owner) : NULL;
	if (!cell)
		return;
	const void *entry = __atomic_load_n(cell, __ATOMIC_ACQUIRE);
	/* The cell's record may have gone to another owner since the lookup. */
	if (ch_owner_cell(owner) != cell)
		return;
	atomic_fetch_add(&calls, 1);
	depth++;
	uint32_t answer = code_call(entry);
	depth--;
	atomic_fetch_add(&returns, 1);
	if (answer == RIG_FALLBACK)
		atomic_fetch_add(&fallbacks, 1);
	else if ((answer & NUMBER_MASK) != slot + 1)
		FAIL("owner %llu answered %u", (unsigned long long)slot + 1, answer);
	if (answer & EXIT_MARK)
		atomic_fetch_add(&exits, 1);
}

static void invalidate(uint64_t slot)
{
	struct ch_owner owner = {atomic_load(&owners[slot])};
	struct ch_owner_facts facts = {.size = sizeof facts};
	if (owner.bits && ch_owner_info(owner, &facts) == CH_OK && facts.entry.bits)
		CHECK_EQ(ch_blocks_invalidate(&facts.entry, 1, NULL), CH_OK);
}

static void unlink_branch(uint64_t slot)
{
	struct ch_branch branch = {atomic_load(&branches[slot])};
	if (branch.bits)
		CHECK(is_expected(ch_branch_link(branch, (struct ch_block){0})));
}

static void private_owner(void)
{
	struct ch_owner owner = rig_owner(&rig, "private");
	struct ch_block block;
	enum ch_status status = make_leaf(owner, 7, &block);
	if (status == CH_OK && ch_owner_set_entry(owner, block) == CH_OK) {
		uint32_t answer = code_call_owner(owner);
		CHECK(answer == 7 || answer == RIG_FALLBACK); /* after a discard */
	}
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* ThreadSanitizer holds the signal back from a thread that waits for a stopped thread. */
static bool may_be_busy(void)
{
	return CH_TSAN && mode == BY_SIGNAL;
}

static void check_cycle(enum ch_status status)
{
	CHECK(status == CH_OK || (status == CH_E_BUSY && may_be_busy()));
}

static void act(void)
{
	uint64_t what = test_random_below(&dice, 1000), slot = test_random_below(&dice, SHARED);
	if (what < 150)
		replace(slot);
	else if (what < 250)
		invalidate(slot);
	else if (what < 300)
		unlink_branch(slot);
	else if (what < 400)
		private_owner();
	else if (what < 402)
		check_cycle(ch_heap_collect(rig.heap));
	else if (what < 403)
		check_cycle(ch_vm_discard(rig.heap, NULL, NULL, NULL));
	else if (what < 404)
		rig_check(&rig);
	else if (depth < 4)
		run(slot);
}

static void in_code(void)
{
	safepoint();
	if (test_random_below(&dice, 3) == 0)
		act();
}

static void *storm(void *arg)
{
	dice = test_random_new();
	dice.state ^= (uint64_t)(uintptr_t)arg * 0x9e3779b97f4a7c15u;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	while (!atomic_load(&is_over)) {
		act();
		safepoint();
	}
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

static bool enough_happened(void)
{
	return atomic_load(&calls) > 100 && atomic_load(&exits) > 0 && atomic_load(&hits) > 0;
}

/* Waits for storm_ms(), and longer if a loaded machine or a sanitizer slows the storm. */
static void wait_for_enough(void)
{
	usleep(storm_ms() * 1000);
	while (!enough_happened())
		usleep(10 * 1000);
	atomic_store(&is_over, true);
}

static void run_storm(enum stop how, int signal)
{
	mode = how;
	struct ch_config config = rig_config(4 << 20);
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = hit, .block_freed = freed};
	config.stop_signal = signal;
	if (may_be_busy())
		config.stop_wait_ms = 1000;
	rig = rig_create(&config, &ops, NULL);
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, storm, (void *)(i + 1)), 0);
	ch_thread_park();
	wait_for_enough();
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ch_thread_unpark();
	rig_check(&rig);
	CHECK_EQ(atomic_load(&calls), atomic_load(&returns));
	for (int slot = 0; slot < SHARED; slot++) {
		struct ch_owner owner = {atomic_load(&owners[slot])};
		if (owner.bits)
			CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	}
	rig_collect(&rig, 4);
	ch_thread_poll();
	struct ch_stats stats = rig_stats(&rig);
	CHECK_EQ(stats.blocks_now, 0);
	CHECK_EQ(stats.blocks_freed, atomic_load(&notices));
	printf("%llu calls, %llu fallbacks, %llu exits, %llu hits, %llu freed, %llu cycles\n",
	       (unsigned long long)calls, (unsigned long long)fallbacks, (unsigned long long)exits,
	       (unsigned long long)hits, (unsigned long long)stats.blocks_freed,
	       (unsigned long long)stats.cycles);
	CHECK(stats.cycles_abandoned == 0 || may_be_busy());
	rig_end(&rig);
}

TEST(storm_stopped_by_polls)
{
	run_storm(BY_POLLS, 0);
}
TEST(storm_stopped_by_parks)
{
	run_storm(BY_PARKS, 0);
}
TEST(storm_stopped_by_a_signal)
{
	run_storm(BY_SIGNAL, SIGUSR2);
}
TEST(storm_stopped_by_a_real_time_signal)
{
	run_storm(BY_SIGNAL, SIGRTMIN + 1);
}
