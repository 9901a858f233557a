/* SPDX-License-Identifier: MIT
 * in_place.c: blocks written where they will run, and blocks of data. The system reports the access
 * of the pages at each step of the blocks' life. Code reaches data by distance, and holds data.
 * Wrong requests are refused. After a death the pages are ordinary code memory.
 * tests/adversary/in_place.c tests forks. */
#define _GNU_SOURCE
#include "codeheap/collect/collect.h"
#include "tests/support/in_place_rig.h"
#include "tests/support/stage_code.h"

#include <signal.h>
#include <sys/prctl.h>

/* --- access --- */

TEST_RIG_BY(code_in_place_is_writable_until_commit_and_runs_from_then_on, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open_in_place(&e, owner, CH_KIND_CODE, 100);
	CHECK_EQ(e.code.write, e.code.exec);
	CHECK_EQ((uintptr_t)e.code.exec % 64, 0);
	CHECK(e.code.hot_bytes >= 100 && !e.code.cold_bytes);
	expect_access(e.code.exec, e.code.hot_bytes, "rw-");
	expect_no_both(&rig);
	emit_landing(&e);
	uint32_t entry = e.at - CODE_LANDING_BYTES;
	emit_answer(&e, 77);
	e.code.entry_offset = entry;
	CHECK_EQ(emit_commit(&e), CH_OK);
	expect_access(e.code.exec, e.code.hot_bytes, "r-x");
	expect_no_both(&rig);
	CHECK_EQ(code_call(e.code.exec), 77);
	CHECK(ch__arch_are_traps(e.code.exec + e.at, e.code.hot_bytes - e.at));
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
	CHECK_EQ(code_call_owner(owner), 77);
	struct ch_info info = block_info(e.code.block);
	CHECK_EQ(info.exec, e.code.exec);
	CHECK_EQ(info.entry, e.code.exec);
	CHECK_EQ(info.hot_bytes, e.code.hot_bytes);
	CHECK_EQ(info.kind, CH_KIND_CODE);
}

TEST_RIG_BY(data_is_never_executable_and_constants_are_writable_until_commit_only,
	    rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	static const char *const kept[] = {[CH_KIND_RODATA] = "r--", [CH_KIND_DATA] = "rw-"};
	for (int kind = CH_KIND_RODATA; kind <= CH_KIND_DATA; kind++) {
		struct emitter e;
		emit_open_in_place(&e, owner, (enum ch_kind)kind, 3 * rig_page_bytes());
		CHECK_EQ(e.code.write, e.code.exec);
		CHECK_EQ((uintptr_t)e.code.exec % 64, 0);
		expect_access(e.code.exec, e.code.hot_bytes, "rw-");
		expect_no_both(&rig);
		memset(e.code.write, 0x11, e.code.hot_bytes);
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		expect_access(e.code.exec, e.code.hot_bytes, kept[kind]);
		expect_no_both(&rig);
		for (uint32_t i = 0; i < e.code.hot_bytes; i++)
			CHECK_EQ(e.code.exec[i], 0x11);
		struct ch_info info = block_info(e.code.block);
		CHECK_EQ(info.kind, kind);
		CHECK_EQ(info.exec, e.code.exec);
		CHECK_EQ(info.entry, NULL);
		rig_check(&rig);
	}
}

/* --- an image of code, constants and variables --- */

TEST_RIG_BY(image_reaches_its_data_by_distance, rig_start(8 << 20))
{
	for (int own_frames = 0; own_frames < 2; own_frames++) {
		struct image image = image_make(&rig, own_frames ? CH_OPEN_OWN_FRAMES : 0);
		for (uint32_t i = 0; i < 5; i++) {
			CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT + i);
			CHECK_EQ(*image.variable, IMAGE_CONSTANT + i + 1);
		}
		CHECK_EQ(code_call(image.reset), IMAGE_CONSTANT);
		rig_check(&rig);
		/* The owner holds the code, and edges of the code hold the data. */
		rig_collect(&rig, 3);
		CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT + 1);
		expect_access(image.variable, 4, "rw-");
	}
}

TEST_RIG_BY(pages_of_an_image_are_ordinary_code_memory_afterwards, rig_start(2 << 20))
{
	uint64_t pages = rig_stats(&rig).pages_now;
	for (int round = 0; round < 20; round++) {
		struct image image = image_make(&rig, round % 2 ? CH_OPEN_OWN_FRAMES : 0);
		CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT);
		const uint8_t *places[3];
		for (int i = 0; i < 3; i++)
			places[i] = block_info(image.blocks[i]).exec;
		CHECK_EQ(ch_owner_release(image.owner, CH_RELEASE_COLLECT), CH_OK);
		rig_collect(&rig, 3);
		for (int i = 0; i < 3; i++) {
			CHECK(!rig_is_there(image.blocks[i]));
			expect_free(places[i], 64);
		}
		CHECK_EQ(rig_stats(&rig).pages_now, pages);
		expect_no_both(&rig);
		rig_check(&rig);
	}
	/* All pages take ordinary code again. */
	struct ch_owner owner = rig_owner(&rig, "code");
	for (uint32_t i = 0;; i++) {
		struct emitter e;
		struct ch_open open = {.owner = owner, .hot_bytes = 2000};
		if (emit_open_as(&e, &open) != CH_OK)
			break;
		emit_value(&e, i);
		emit_filler(&e, 2000 - CODE_RETURN_BYTES);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(code_call(e.code.exec), i);
	}
}

TEST_RIG_BY(abort_gives_traps_back_at_once, rig_start(2 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (int kind = CH_KIND_CODE; kind <= CH_KIND_DATA; kind++) {
		struct emitter e;
		emit_open_in_place(&e, owner, (enum ch_kind)kind, 20000);
		memset(e.code.write, 0x22, e.code.hot_bytes);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		expect_free(e.code.exec, 20000);
		CHECK(!rig_is_there(e.code.block));
		rig_check(&rig);
	}
	CHECK_EQ(rig_stats(&rig).pages_now, 0);
}

/* --- accesses that fault --- */

static void write_to(void *at)
{
	*(volatile uint8_t *)at = 1;
}
static void run_at(void *at)
{
	code_call(at);
}

TEST_RIG_BY(open_code_does_not_run_data_never_does_and_constants_stay, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	for (int kind = CH_KIND_CODE; kind <= CH_KIND_DATA; kind++) {
		emit_open_in_place(&e, owner, (enum ch_kind)kind, 100);
		emit_answer(&e, 1);
		expect_signal(run_at, e.code.exec, SIGSEGV);
		CHECK_EQ(emit_commit(&e), CH_OK);
		expect_signal(run_at, e.code.exec, kind == CH_KIND_CODE ? 0 : SIGSEGV);
		expect_signal(write_to, e.code.exec, kind == CH_KIND_DATA ? 0 : SIGSEGV);
	}
}

TEST(image_works_where_mprotect_may_not_add_execution)
{
	enum { SET_MDWE = 65, REFUSE_EXEC_GAIN = 1 };
	if (prctl(SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
		skip("the kernel has no PR_SET_MDWE");
	struct rig rig = rig_start(2 << 20);
	for (int round = 0; round < 3; round++) {
		struct image image = image_make(&rig, 0);
		CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT);
		CHECK_EQ(ch_owner_release(image.owner, CH_RELEASE_COLLECT), CH_OK);
		rig_collect(&rig, 3);
		expect_no_both(&rig);
	}
	CHECK_EQ(rig_stats(&rig).pages_now, 0);
	CHECK_EQ(code_call(block_info(rig_block(rig_owner(&rig, "code"), 4)).entry), 4);
	rig_end(&rig);
}

/* --- holders of data --- */

static void make_data(const struct rig *rig, void *arg)
{
	struct ch_block *blocks = arg;
	struct ch_owner owner = rig_owner(rig, "owner");
	for (unsigned i = 0; i < 3; i++) {
		struct emitter e;
		struct ch_open open = {.owner = owner,
				       .hot_bytes = 64,
				       .kind = i % 2 ? CH_KIND_DATA : CH_KIND_RODATA,
				       .flags = i == 2 ? CH_OPEN_IMMORTAL : 0};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		if (i == 1)
			CHECK_EQ(ch_edge_attach(e.code.block, blocks[0]), CH_OK);
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		blocks[i] = e.code.block;
	}
}

TEST_RIG_BY(data_dies_when_no_block_and_no_stack_holds_it, rig_start(4 << 20))
{
	struct ch_block blocks[3]; /* 1 has an edge to 0; 2 is immortal */
	rig_apart(&rig, make_data, blocks);
	const void *volatile inside = block_info(blocks[1]).exec + 20;
	for (int i = 0; i < 4; i++)
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	struct ch_block found;
	CHECK(block_at(rig.heap, inside, &found) && found.bits == blocks[1].bits);
	CHECK(rig_is_there(blocks[0]) && rig_is_there(blocks[1]));
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(blocks[0]) && !rig_is_there(blocks[1]) && rig_is_there(blocks[2]));
	CHECK(!block_at(rig.heap, inside, &found));
}

TEST_RIG_BY(data_of_a_newborn_owner_lives_for_two_cycles, rig_start(4 << 20))
{
	struct ch_block blocks[3];
	rig_apart(&rig, make_data, blocks);
	rig_collect(&rig, 2);
	CHECK(rig_is_there(blocks[0]) && rig_is_there(blocks[1]));
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(blocks[0]) && !rig_is_there(blocks[1]));
}

TEST_RIG_BY(invalidation_passes_data_over_and_discard_frees_it_with_its_code, rig_start(4 << 20))
{
	struct image image = image_make(&rig, 0);
	size_t count = 9, freed, kept;
	CHECK_EQ(ch_blocks_invalidate(image.blocks, 2, &count), CH_OK);
	CHECK_EQ(count, 0);
	CHECK_EQ(block_info(image.blocks[0]).state, CH_BLOCK_LIVE);
	CHECK_EQ(code_call_owner(image.owner), IMAGE_CONSTANT);
	image.variable = NULL;
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_vm_discard(rig.heap, NULL, &freed, &kept), CH_OK);
	CHECK_EQ(freed, 1);
	CHECK_EQ(kept, 0);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	for (int i = 0; i < 3; i++)
		CHECK(!rig_is_there(image.blocks[i]));
	CHECK_EQ(code_call_owner(image.owner), RIG_FALLBACK);
}

TEST_RIG_BY(release_of_an_image_that_does_not_run_frees_its_code_and_data_at_once,
	    rig_start(4 << 20))
{
	struct image image = image_make(&rig, CH_OPEN_OWN_FRAMES);
	CHECK_EQ(ch_owner_release(image.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	for (int i = 0; i < 3; i++)
		CHECK(!rig_is_there(image.blocks[i]));
	CHECK_EQ(rig_stats(&rig).cycles, 0);
	rig_check(&rig);
	rig_collect(&rig, 2);
	CHECK_EQ(rig_stats(&rig).pages_now, 0);
}

/* Makes code in place with an edge to `data`. The code returns 1. */
static struct ch_block user_of(struct ch_owner owner, struct ch_block data, bool commits)
{
	struct emitter e;
	emit_open_in_place(&e, owner, CH_KIND_CODE, 64);
	emit_landing(&e);
	emit_answer(&e, 1);
	e.code.used_to = e.at;
	CHECK_EQ(ch_edge_attach(e.code.block, data), CH_OK);
	if (commits)
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	return e.code.block;
}

TEST_RIG_BY(data_of_several_users_dies_with_the_last_of_them, rig_start(4 << 20))
{
	struct ch_owner owners[3], of_data = rig_owner(&rig, "data");
	struct emitter e;
	emit_open_in_place(&e, of_data, CH_KIND_DATA, 64);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	struct ch_block data = e.code.block;
	for (int i = 0; i < 3; i++) {
		owners[i] = rig_owner(&rig, "user");
		(void)user_of(owners[i], data, true);
	}
	/* The data's owner ends first, and users keep the data. */
	CHECK_EQ(ch_owner_release(of_data, CH_RELEASE_NOT_RUNNING), CH_OK);
	for (int i = 0; i < 3; i++) {
		CHECK(rig_is_there(data));
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	}
	CHECK(!rig_is_there(data));
}

static struct ch_block constant_with(struct ch_owner owner, const struct ch_block *edges, int count)
{
	struct ch_open open = {.owner = owner, .hot_bytes = 8, .kind = CH_KIND_RODATA};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	for (int i = 0; i < count; i++)
		CHECK_EQ(ch_edge_attach(e.code.block, edges[i]), CH_OK);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	return e.code.block;
}

static struct emitter open_user_of(struct ch_owner user, const struct ch_block *constants,
				   int count)
{
	struct emitter e;
	emit_open(&e, user, 64, 0);
	emit_answer(&e, 1);
	for (int i = 0; i < count; i++)
		CHECK_EQ(ch_edge_attach(e.code.block, constants[i]), CH_OK);
	return e;
}

/* Makes code of the owner that uses the constants, and releases the owner. */
static void end_user_of(struct ch_owner user, const struct ch_block *constants, int count)
{
	struct emitter e = open_user_of(user, constants, count);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(user, CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* One release takes all of it along, however much, and no cycle comes. */
TEST_RIG_BY(user_takes_thousands_of_constants_along, rig_start(4 << 20))
{
	enum { CONSTANTS = 3000 };
	static struct ch_block constants[CONSTANTS];
	struct ch_owner user = rig_owner(&rig, "user"), of_data = rig_owner(&rig, "data");
	for (int i = 0; i < CONSTANTS; i++)
		constants[i] = constant_with(of_data, NULL, 0);
	end_user_of(user, constants, CONSTANTS);
	CHECK_EQ(rig_stats(&rig).blocks_freed, CONSTANTS + 1);
}

/* While the first of the constants end, the others wait. */
TEST_RIG_BY(user_takes_along_what_its_constants_use, rig_start(4 << 20))
{
	enum { CONSTANTS = 200, EACH = 2 };
	struct ch_block used[EACH], constants[CONSTANTS];
	struct ch_owner user = rig_owner(&rig, "user"), of_data = rig_owner(&rig, "data");
	for (int i = 0; i < CONSTANTS; i++) {
		for (int k = 0; k < EACH; k++)
			used[k] = constant_with(of_data, NULL, 0);
		constants[i] = constant_with(of_data, used, EACH);
	}
	end_user_of(user, constants, CONSTANTS);
	CHECK_EQ(rig_stats(&rig).blocks_freed, CONSTANTS * (EACH + 1) + 1);
}

/* An abort takes no data along: here the release comes to data that other code had an edge to. */
TEST_RIG_BY(constants_whose_user_was_given_up_end_at_once_with_their_owner, rig_start(4 << 20))
{
	enum { CONSTANTS = 3 };
	struct ch_block constants[CONSTANTS];
	struct ch_owner of_data = rig_owner(&rig, "data");
	for (int i = 0; i < CONSTANTS; i++)
		constants[i] = constant_with(of_data, NULL, 0);
	struct emitter e = open_user_of(rig_owner(&rig, "user"), constants, CONSTANTS);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK(rig_is_there(constants[0]));
	CHECK_EQ(ch_owner_release(of_data, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(rig_stats(&rig).blocks_freed, CONSTANTS);
}

TEST_RIG_BY(constants_without_memory_for_their_list_are_left_to_collections, rig_start(4 << 20))
{
	struct ch_owner user = rig_owner(&rig, "user");
	struct ch_block constant = constant_with(rig_owner(&rig, "data"), NULL, 0);
	struct emitter e = open_user_of(user, &constant, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	ch__os_fail_at(1, true);
	enum ch_status status = ch_owner_release(user, CH_RELEASE_NOT_RUNNING);
	ch__os_fail_at(0, false);
	CHECK_EQ(status, CH_OK);
	CHECK(!rig_is_there(e.code.block) && rig_is_there(constant));
}

/* The release comes to the user, which leaves the data, and then to the data. */
TEST_RIG_BY(data_ends_once_with_its_user_of_the_same_owner, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open_in_place(&e, owner, CH_KIND_DATA, 64);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	struct ch_block user = user_of(owner, e.code.block, true);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!rig_is_there(user));
	CHECK(!rig_is_there(e.code.block));
	CHECK_EQ(rig_stats(&rig).blocks_freed, 2);
}

TEST_RIG_BY(data_that_is_a_root_outlives_its_last_user, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "data");
	const struct ch_open roots[] = {{.heap = rig.heap},
					{.owner = owner, .flags = CH_OPEN_KEPT},
					{.owner = owner, .flags = CH_OPEN_IMMORTAL}};
	for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
		struct ch_owner user = rig_owner(&rig, "user");
		struct ch_open open = roots[i];
		struct emitter e;
		open.kind = CH_KIND_DATA;
		open.hot_bytes = 64;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		(void)user_of(user, e.code.block, true);
		CHECK_EQ(ch_owner_release(user, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK(rig_is_there(e.code.block));
	}
}

/* The release kills a full batch of blocks, and data dies together with the first blocks. */
TEST(owner_of_many_blocks_ends_whole_where_data_goes_with_the_first_ones)
{
	struct ch_config config = rig_config(4 << 20);
	config.stop_wait_ms = 20;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block first = rig_block(owner, 1);
	struct emitter e;
	emit_open_in_place(&e, owner, CH_KIND_DATA, 64);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	(void)user_of(owner, e.code.block, true);
	for (uint32_t i = 1; i < 64; i++)
		(void)rig_block(owner, i);
	/* A thread stays in a region: the release cannot freeze, and so looks only once. */
	atomic_store(&rig.heap->guest.inside, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	atomic_store(&rig.heap->guest.inside, 0);
	CHECK(!rig_is_there(e.code.block));
	CHECK(!rig_is_there(first));
	rig_end(&rig);
}

TEST_RIG_BY(data_with_an_edge_of_code_that_is_being_made_stays, rig_start(4 << 20))
{
	struct ch_owner old = rig_owner(&rig, "old"), next = rig_owner(&rig, "next");
	struct emitter e;
	emit_open_in_place(&e, next, CH_KIND_DATA, 64);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	struct ch_block data = e.code.block;
	(void)user_of(old, data, true);
	(void)user_of(next, data, false);
	CHECK_EQ(ch_owner_release(old, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(rig_is_there(data));
}

/* Code that is given up had an edge to data that was given up before it. */
TEST_RIG_BY(data_with_the_record_of_data_that_was_given_up_keeps_its_user, rig_start(4 << 20))
{
	struct ch_owner old = rig_owner(&rig, "old"), next = rig_owner(&rig, "next");
	struct emitter gone, code, e;
	emit_open_in_place(&gone, old, CH_KIND_DATA, 64);
	emit_open_in_place(&code, old, CH_KIND_CODE, 64);
	CHECK_EQ(ch_edge_attach(code.code.block, gone.code.block), CH_OK);
	struct ch_block before = gone.code.block;
	CHECK_EQ(ch_block_abort(&gone.code), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK); /* gives the record back */
	emit_open_in_place(&e, next, CH_KIND_DATA, 64);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ((uint32_t)e.code.block.bits, (uint32_t)before.bits);
	(void)user_of(old, e.code.block, true);
	CHECK_EQ(ch_block_abort(&code.code), CH_OK);
	CHECK_EQ(ch_owner_release(next, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(rig_is_there(e.code.block));
}

TEST_RIG_BY(images_that_are_released_by_hand_never_fill_the_pool, rig_start(4 << 20))
{
	for (int i = 0; i < 1000; i++) {
		struct image image = image_make(&rig, i % 2 ? CH_OPEN_OWN_FRAMES : 0);
		CHECK_EQ(ch_owner_release(image.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		if (!rig.heap->has_core_sync)
			rig_collect(&rig, 1);
	}
	CHECK_EQ(rig_stats(&rig).opens_full, 0);
}

static void advance(const struct rig *rig)
{
	ch__heap_lock(rig->heap);
	(void)ch__quarantine_advance(rig->heap, true);
	ch__heap_unlock(rig->heap);
}

static void mark_nothing(const struct rig *rig)
{
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(rig->heap, &marker), CH_OK);
	ch_mark_stack(marker, rig, rig); /* no stack has code */
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
}

/* Data may hold the unwind table of code that died in the same cycle. The data's bytes stay until
 * the sweep has come to the code. */
TEST(dead_data_keeps_its_bytes_until_the_sweep_is_through)
{
	struct ch_config config = rig_config(4 << 20);
	config.step_blocks = 1;
	config.driver = CH_DRIVER_HOST;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct image image = image_make(&rig, 0);
	mark_nothing(&rig);
	unsigned steps = 0;
	while (atomic_load(&rig.heap->sweep_pending)) {
		advance(&rig);
		expect_access(image.variable, 4, "rw-");
		if (steps++ == 2)
			CHECK(!rig_is_there(image.blocks[0]) && !rig_is_there(image.blocks[1]));
		(void)ch__sweep_step(rig.heap);
	}
	CHECK(steps >= 3);
	/* If the system synchronizes no cores, the stop of the next cycle does. */
	mark_nothing(&rig);
	while (ch__sweep_step(rig.heap))
		;
	advance(&rig);
	expect_free((const uint8_t *)image.variable, 4);
	rig_end(&rig);
}

TEST(what_died_behind_dead_data_does_not_wait_for_it)
{
	struct ch_config config = rig_config(4 << 20);
	config.step_blocks = 1;
	config.driver = CH_DRIVER_HOST;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct image image = image_make(&rig, 0);
	/* The thread has a page at hand: an open that takes a page sweeps. */
	(void)rig_block(rig_owner(&rig, "young"), 1);
	mark_nothing(&rig);
	(void)ch__sweep_step(rig.heap);
	(void)ch__sweep_step(rig.heap);
	CHECK(!rig_is_there(image.blocks[0]) && !rig_is_there(image.blocks[1]));
	CHECK(atomic_load(&rig.heap->sweep_pending));
	uint64_t of_data = atomic_load(&rig.heap->quarantine_bytes);
	struct ch_owner target = rig_owner(&rig, "target");
	struct ch_branch branch;
	(void)rig_jumper(rig_owner(&rig, "jumper"), NULL, &branch);
	CHECK_EQ(ch_branch_link(branch, rig_block(target, 1)), CH_OK);
	CHECK_EQ(ch_owner_release(target, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(atomic_load(&rig.heap->quarantine_bytes) > of_data);
	advance(&rig);
	CHECK(!rig.heap->has_core_sync || atomic_load(&rig.heap->quarantine_bytes) == of_data);
	rig_check(&rig);
	while (ch__sweep_step(rig.heap))
		;
	advance(&rig);
	CHECK(!rig.heap->has_core_sync || atomic_load(&rig.heap->quarantine_bytes) == 0);
	rig_end(&rig);
}

/* --- refusals --- */

TEST_RIG_BY(open_refuses_what_the_library_would_write_among_the_bytes, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	static const struct ch_open refused[] = {
		{.flags = CH_OPEN_IN_PLACE, .branch_room = 1},
		{.flags = CH_OPEN_IN_PLACE, .cold_bytes = 8},
		{.flags = CH_OPEN_IN_PLACE, .entry = CH_ENTRY_PATCH},
		{.flags = 2 * CH_OPEN_KEPT},
		{.kind = CH_KIND_DATA, .branch_room = 1},
		{.kind = CH_KIND_DATA, .cold_bytes = 1},
		{.kind = CH_KIND_RODATA, .entry = CH_ENTRY_GUARD},
		{.kind = CH_KIND_DATA, .flags = CH_OPEN_OWN_FRAMES},
		{.kind = (enum ch_kind)3},
	};
	for (unsigned i = 0; i < sizeof refused / sizeof *refused; i++) {
		struct emitter e;
		struct ch_open open = refused[i];
		open.owner = owner;
		open.hot_bytes = 100;
		CHECK_EQ(emit_open_as(&e, &open), CH_E_ARG);
		CHECK_EQ(e.code.block.bits, 0);
	}
	struct emitter e;
	struct ch_open open = {.owner = owner,
			       .hot_bytes = 100,
			       .flags = CH_OPEN_IN_PLACE,
			       .entry = CH_ENTRY_GUARD,
			       .name = "guarded"};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(e.code.guard && *e.code.guard == 0);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(*e.code.guard, 1);
	CHECK_EQ(rig_stats(&rig).blocks_open_now, 0);
}

static void attach_to(struct rig *rig, struct ch_code *code, enum ch_status of_lines)
{
	struct ch_line line = {code->exec, 1};
	struct ch_assumption fact;
	struct ch_branch branch;
	struct ch_branch_site site = {.at = code->exec, .kind = CH_LITERAL};
	CHECK_EQ(ch_ref_attach(code->block, code->exec), CH_E_STATE);
	CHECK_EQ(ch_patch_point_attach(code->block, code->exec, code->exec + 32, NULL), CH_E_STATE);
	CHECK(ch_branch_attach(code->block, &site, &branch) != CH_OK);
	CHECK_EQ(ch_block_lines(code->block, "file", &line, 1), of_lines);
	CHECK_EQ(ch_assumption_create(rig->vm, &fact), CH_OK);
	CHECK_EQ(ch_block_assume(code->block, fact), of_lines);
}

TEST_RIG_BY(data_has_edges_and_nothing_else, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e, other;
	emit_open_in_place(&e, owner, CH_KIND_CODE, 100);
	attach_to(&rig, &e.code, CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	emit_open_in_place(&e, owner, CH_KIND_DATA, 100);
	attach_to(&rig, &e.code, CH_E_STATE);
	CHECK_EQ(ch_edge_attach(e.code.block, rig_block(owner, 1)), CH_OK);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, owner), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_E_STATE);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_E_STATE);
	struct ch_branch branch;
	rig_jumper(owner, NULL, &branch);
	CHECK_EQ(ch_branch_link(branch, e.code.block), CH_E_STATE);
	/* No exit of code leads into data. */
	emit_open(&other, owner, 100, 1);
	const void *at = emit_site_jmp(&other);
	struct ch_branch_site site = {.at = at, .kind = CH_JMP, .exit = e.code.exec};
	CHECK_EQ(ch_branch_attach(other.code.block, &site, &branch), CH_E_SITE);
	CHECK_EQ(ch_block_abort(&other.code), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_E_STATE);
}

TEST_RIG_BY(handles_of_data_go_stale_as_others_do, rig_start(4 << 20))
{
	struct ch_block blocks[3];
	rig_apart(&rig, make_data, blocks);
	rig_collect(&rig, 3);
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	struct ch_info info = {.size = sizeof info};
	emit_open_in_place(&e, owner, CH_KIND_DATA, 100);
	CHECK_EQ(ch_edge_attach(e.code.block, blocks[0]), CH_E_STALE);
	CHECK_EQ(ch_owner_set_entry(owner, blocks[1]), CH_E_STALE);
	CHECK_EQ(ch_block_info(blocks[1], &info), CH_E_STALE);
	CHECK_EQ(ch_ref_attach(blocks[1], e.code.exec), CH_E_STALE);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}
