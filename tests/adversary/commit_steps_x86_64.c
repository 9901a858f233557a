/* SPDX-License-Identifier: MIT
 * commit_steps_x86_64.c: the cost of a commit of many blocks, and of a block's end in a heap that
 * had many threads, in instructions counted by the trap flag; and how long a look at an owner holds
 * the owner. The counted commit is refused for its last block, when all blocks are judged. */
#define _GNU_SOURCE
#include "codeheap/graph/owner.h"
#include "codeheap/look.h"
#include "os/meta.h"
#include "os/os.h"
#include "tests/support/heap_rig.h"
#include "tests/support/trap_flag_x86_64.h"

#include <pthread.h>
#include <signal.h>

enum { FEW = 60, TIMES = 8, MANY = TIMES * FEW };

static volatile unsigned long steps;
static struct rig rig_of_all;

static void count_step(int signal)
{
	(void)signal;
	steps++;
}

/* Each block has an edge to the block before. */
static void open_all(struct rig *rig, struct ch_code *codes, unsigned count)
{
	struct ch_owner owner = rig_owner(rig, "many");
	for (unsigned i = 0; i < count; i++) {
		struct emitter e;
		emit_open(&e, owner, 16, 0);
		emit_ret(&e);
		codes[i] = e.code;
		codes[i].used_to = 1;
		if (i)
			CHECK_EQ(ch_edge_attach(codes[i].block, codes[i - 1].block), CH_OK);
	}
}

static unsigned long steps_of(struct ch_code *codes, unsigned count, enum ch_status expected)
{
	steps = 0;
	trap_flag_set();
	enum ch_status status = ch_block_commit(codes, count);
	trap_flag_clear();
	CHECK_EQ(status, expected);
	return steps;
}

TEST_RIG_BY(commit_of_many_blocks_looks_at_each_a_bounded_number_of_times, rig_start(8 << 20))
{
	static struct ch_code codes[MANY];
	struct sigaction action = {.sa_handler = count_step};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	open_all(&rig, codes, MANY);
	unsigned long few, many;
	codes[FEW - 1].used_to = 1 << 20;
	few = steps_of(codes, FEW, CH_E_ARG);
	codes[FEW - 1].used_to = 1;
	codes[MANY - 1].used_to = 1 << 20;
	many = steps_of(codes, MANY, CH_E_ARG);
	codes[MANY - 1].used_to = 1;
	if (many > few * TIMES * 3 / 2)
		FAIL("%d blocks take %lu instructions, and %d blocks %lu", FEW, few, MANY, many);
	CHECK(few > FEW);
	CHECK_EQ(ch_block_commit(codes, MANY), CH_OK);
}

/* A commit that cannot do everything does nothing. */
TEST_RIG_BY(commit_of_many_blocks_is_refused_as_a_small_one_is, rig_start(8 << 20))
{
	static struct ch_code codes[FEW];
	open_all(&rig, codes, FEW);
	struct ch_code last = codes[FEW - 1];
	size_t side_bytes = ch__meta_bytes(rig.heap->meta);
	codes[FEW - 1] = codes[3];
	CHECK_EQ(ch_block_commit(codes, FEW), CH_E_ARG);
	codes[FEW - 1] = last;
	/* codes[0] is left out, and codes[1] has an edge to codes[0]. */
	CHECK_EQ(ch_block_commit(codes + 1, FEW - 1), CH_E_STATE);
	CHECK_EQ(ch__meta_bytes(rig.heap->meta), side_bytes);
	ch__os_fail_at(1, false);
	enum ch_status status = ch_block_commit(codes, FEW);
	ch__os_fail_at(0, false);
	CHECK_EQ(status, CH_E_MEMORY);
	CHECK_EQ(rig_stats(&rig).blocks_open_now, FEW);
	CHECK_EQ(ch_block_commit(codes, FEW), CH_OK);
	CHECK_EQ(rig_stats(&rig).blocks_open_now, 0);
}

/* --- the end of a block --- */

enum { THREADS = 256 };

static void *come(void *arg)
{
	pthread_barrier_t *all = arg;
	CHECK_EQ(ch_thread_attach(rig_of_all.heap, NULL, NULL), CH_OK);
	pthread_barrier_wait(all);
	return NULL;
}

/* All are attached at once, so each has a record of its own, which stays. */
static void have_many_threads(void)
{
	static pthread_t threads[THREADS];
	pthread_barrier_t all;
	CHECK_EQ(pthread_barrier_init(&all, NULL, THREADS), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, come, &all), 0);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

static unsigned long steps_of_an_end(void)
{
	struct ch_owner owner = rig_owner(&rig_of_all, "short");
	rig_block(owner, 1);
	steps = 0;
	trap_flag_set();
	enum ch_status status = ch_owner_release(owner, CH_RELEASE_NOT_RUNNING);
	trap_flag_clear();
	CHECK_EQ(status, CH_OK);
	return steps;
}

/* The peak of the bytes of code is a sum over threads. */
TEST(end_of_a_block_costs_the_same_in_a_heap_that_had_many_threads)
{
	rig_of_all = rig_start(8 << 20);
	struct sigaction action = {.sa_handler = count_step};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	(void)steps_of_an_end();
	unsigned long few = steps_of_an_end(), many;
	CHECK(few > 0);
	have_many_threads();
	(void)steps_of_an_end();
	many = steps_of_an_end();
	if (many > few + THREADS)
		FAIL("%lu instructions, and beside records of threads %lu", few, many);
	uint64_t peak = rig_stats(&rig_of_all).code_bytes_peak;
	struct emitter e;
	emit_open(&e, rig_owner(&rig_of_all, "large"), 100 << 10, 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK(rig_stats(&rig_of_all).code_bytes_peak >= peak + (100 << 10));
	rig_end(&rig_of_all);
}

/* --- a look at an owner --- */

static const struct ch__owner *watched;
static volatile unsigned long held;

static void count_held(int signal)
{
	count_step(signal);
	held += watched->busy;
}

/* Instructions while threads that enter or make code of the owner would spin. */
static unsigned long held_by_a_look(struct ch_owner owner)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	watched = ch__owner_at(rig_of_all.heap, (uint32_t)owner.bits & CH__INDEX_MAX);
	held = 0;
	trap_flag_set();
	enum ch_status status = ch_owner_info(owner, &facts);
	trap_flag_clear();
	CHECK_EQ(status, CH_OK);
	return held;
}

TEST(look_at_an_owner_holds_up_nobody_for_its_many_blocks)
{
	rig_of_all = rig_start(8 << 20);
	struct ch_owner owner = rig_owner(&rig_of_all, "large");
	struct sigaction action = {.sa_handler = count_held};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	rig_block(owner, 1);
	unsigned long few = held_by_a_look(owner);
	for (int i = 0; i < MANY; i++)
		rig_block(owner, 1);
	unsigned long many = held_by_a_look(owner);
	CHECK(few > 0);
	if (many > few + MANY)
		FAIL("the owner is held for %lu instructions, and with many blocks for %lu", few,
		     many);
	rig_end(&rig_of_all);
}
