/* SPDX-License-Identifier: MIT
 * vm_end.c: a VM that detaches is told of each of its blocks once, if the VM asked, whatever the
 * callback does, whatever dies meanwhile, and whichever thread forks. */
#include "codeheap/base/park.h"
#include "codeheap/graph/block_parts.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <unistd.h>

enum { BLOCKS = 200 }; /* more than a batch */

static struct rig rig;
static struct ch_vm *ending;
static unsigned told[BLOCKS + 1];
static bool collects, is_ending;

/* A block's user word is the block's number. */
static void note_freed(void *vm_user, void *block_user)
{
	uintptr_t number = (uintptr_t)block_user;
	CHECK_EQ((uintptr_t)vm_user, 7);
	CHECK(number >= 1 && number <= BLOCKS);
	told[number]++;
	if (!collects || !is_ending)
		return;
	CHECK_EQ(ch_vm_detach(ending), CH_E_STATE);
	if (number % 50 == 1)
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
}

static struct ch_block make(struct ch_owner owner, uintptr_t number, unsigned flags)
{
	struct ch_open open = {
		.owner = owner, .hot_bytes = 16, .user = (void *)number, .flags = flags};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, (uint32_t)number);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static struct ch_owner own(struct ch_vm *vm)
{
	struct ch_owner owner;
	CHECK_EQ(ch_owner_create(vm, "ending", NULL, NULL, &owner), CH_OK);
	return owner;
}

static void start(bool tells)
{
	struct ch_ops ops = {
		.size = sizeof ops, .block_freed = note_freed, .tells_detached = tells};
	rig = rig_start(1 << 20);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, (void *)7, &ending), CH_OK);
	memset(told, 0, sizeof told);
}

static void check_told(unsigned from, unsigned to, unsigned times)
{
	for (unsigned i = from; i <= to; i++)
		if (told[i] != times)
			FAIL("block %u was told %u times, not %u", i, told[i], times);
}

/* Ordinary blocks, an immortal block, a block with a waiting notice, a block told before, blocks
 * found dead by a cycle meanwhile; and an OPEN block, of which nobody is told. */
static void end_with_blocks_of_all_kinds(void)
{
	struct ch_owner owner = own(ending), released = own(ending), early = own(ending);
	struct ch_owner other = own(rig.vm);
	struct ch_code open_code;
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 16};
	make(early, 1, 0);
	CHECK_EQ(ch_owner_release(early, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_settle(&rig);
	ch_thread_poll();
	CHECK_EQ(told[1], 1);
	make(released, 2, 0);
	CHECK_EQ(ch_owner_release(released, CH_RELEASE_NOT_RUNNING), CH_OK);
	make(owner, 3, CH_OPEN_IMMORTAL);
	for (uintptr_t i = 4; i <= BLOCKS; i++)
		make(owner, i, 0);
	make(other, BLOCKS + 1, 0);
	CHECK_EQ(ch_block_open(&open, &open_code), CH_OK);
	CHECK_EQ(told[2], 0);
	is_ending = true;
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	is_ending = false;
	CHECK_EQ(ch_block_commit(&open_code, 1), CH_E_ARG);
	CHECK_EQ(ch_block_abort(&open_code), CH_OK);
}

static void end_all(void)
{
	ch_thread_poll();
	rig_collect(&rig, 3);
	ch_thread_poll();
	rig_end(&rig);
}

TEST(blocks_of_a_vm_that_detaches_are_told_once_if_it_asked)
{
	struct ch_ops none = {.size = sizeof none};
	struct ch_vm *later;
	start(true);
	CHECK_EQ(ch_vm_attach(rig.heap, &none, (void *)8, &later), CH_OK);
	end_with_blocks_of_all_kinds();
	check_told(1, BLOCKS, 1);
	CHECK_EQ(ch_vm_detach(later), CH_OK);
	end_all();
	check_told(1, BLOCKS, 1);
}

/* The block's end is told when a cycle finds the block dead, while the place waits for a core
 * sync. */
TEST(block_whose_place_waits_is_not_told_again)
{
	start(true);
	struct ch_owner owner = own(ending);
	make(owner, 1, 0);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	while (!told[1])
		rig_collect(&rig, 1);
	CHECK(rig.heap->quarantine_bytes > 0);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	check_told(1, 1, 1);
	rig_end(&rig);
}

/* Only a block that was committed has an end to tell. */
TEST(block_that_is_given_up_is_not_told)
{
	start(false);
	struct ch_owner owner = own(ending);
	struct ch_open open = {
		.size = sizeof open, .owner = owner, .hot_bytes = 16, .user = (void *)1};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	code.used_to = 8;
	CHECK_EQ(ch_block_commit(&code, 1), CH_E_STALE);
	ch_thread_poll();
	rig_collect(&rig, 3);
	ch_thread_poll();
	check_told(1, BLOCKS, 0);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	end_all();
}

TEST(callback_of_a_vm_that_detaches_may_collect)
{
	start(true);
	collects = true;
	end_with_blocks_of_all_kinds();
	check_told(1, BLOCKS, 1);
	end_all();
	check_told(1, BLOCKS, 1);
}

/* The heap, and its other vms, may outlive the vm that made the assumption. */
TEST(assumption_of_a_detached_vm_stays_until_it_breaks)
{
	struct ch_assumption fact;
	start(false);
	CHECK_EQ(ch_assumption_create(ending, &fact), CH_OK);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	rig_collect(&rig, 3);
	CHECK_EQ(rig_stats(&rig).assumptions_now, 1);
	size_t count = 99;
	CHECK_EQ(ch_assumption_break(fact, &count), CH_OK);
	CHECK_EQ(count, 0);
	CHECK_EQ(rig_stats(&rig).assumptions_now, 0);
	end_all();
}

TEST(blocks_of_a_vm_that_detaches_are_not_told_unasked)
{
	start(false);
	end_with_blocks_of_all_kinds();
	check_told(2, BLOCKS, 0);
	end_all();
	check_told(2, BLOCKS, 0);
}

/* The call gathers the words of AT_ONCE blocks on its stack at a time. Between the records of the
 * blocks lie those that the thread has in store. */
static void count_gathered(void *vm_user, void *block_user)
{
	enum { AT_ONCE = 64, IN_STORE = 16 };
	(void)vm_user, (void)block_user;
	if (!is_ending)
		return;
	told[0]++;
	uint32_t batches = (told[0] + AT_ONCE - 1) / AT_ONCE;
	if (ending->told != UINT32_MAX && ending->told > 1 + batches * AT_ONCE + IN_STORE)
		FAIL("block %u is told, and %u records were gone through", told[0], ending->told);
}

TEST(words_of_64_blocks_are_gathered_at_once)
{
	start(true);
	ending->ops.block_freed = count_gathered;
	struct ch_owner owner = own(ending);
	for (unsigned i = 1; i <= BLOCKS; i++)
		make(owner, i, 0);
	is_ending = true;
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	is_ending = false;
	CHECK_EQ(told[0], BLOCKS);
	end_all();
}

static void destroy_heap(void *vm_user, void *block_user)
{
	(void)vm_user, (void)block_user;
	told[0]++;
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_E_BUSY);
}

TEST(heap_stays_until_its_last_vm_is_told)
{
	struct ch_ops ops = {
		.size = sizeof ops, .block_freed = destroy_heap, .tells_detached = true};
	rig = rig_start(1 << 20);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &ending), CH_OK);
	make(own(ending), 1, 0);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	CHECK_EQ(told[0], 1);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
}

static void check_heap(void *vm_user, void *block_user)
{
	(void)vm_user, (void)block_user;
	told[0] += is_ending;
	rig_check(&rig);
}

TEST(heap_whose_vm_is_being_told_is_sound)
{
	start(true);
	ending->ops.block_freed = check_heap;
	make(own(ending), 1, 0);
	is_ending = true;
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	is_ending = false;
	CHECK_EQ(told[0], 1);
	end_all();
}

/* --- a commit under way --- */

static _Atomic(int) step;

enum { LIMIT_MS = 10 };

/* The last steps of a commit, with a halt in the region. */
static void *commit_slowly(void *arg)
{
	const struct ch_code *code = arg;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	uint32_t index = rig_record(code->block);
	struct ch__block *block = ch__block_at(rig.heap, index);
	struct ch__thread *self = ch__thread_self(rig.heap);
	ch__region_enter(self);
	atomic_store(&step, 1);
	TEST_UNTIL(atomic_load(&step) == 2);
	if (rig.heap->pool->is_translated)
		ch__valgrind_part_born(rig.heap->pool, ch__exec(rig.heap, block->hot_offset),
				       ch__hot_bytes(block));
	ch__block_set_state(rig.heap, block, index, CH_BLOCK_LIVE, CH__CAUSE_NONE, "go_live");
	ch__page_set_start(rig.heap->pool, block->hot_offset, true);
	ch__region_leave(self);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

static uint32_t patience_ms;

static pthread_t hold_commit(struct ch_owner owner, struct ch_code *code, unsigned flags)
{
	pthread_t thread;
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 16,
			       .user = (void *)1, .flags = flags};
	CHECK_EQ(ch_block_open(&open, code), CH_OK);
	atomic_store(&step, 0);
	CHECK_EQ(pthread_create(&thread, NULL, commit_slowly, code), 0);
	TEST_UNTIL(atomic_load(&step) == 1);
	patience_ms = rig.heap->config.stop_wait_ms;
	rig.heap->config.stop_wait_ms = LIMIT_MS;
	return thread;
}

static void let_commit_go(pthread_t thread)
{
	rig.heap->config.stop_wait_ms = patience_ms;
	atomic_store(&step, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(block_whose_commit_is_held_during_the_detach_is_told)
{
	struct ch_code code;
	start(true);
	pthread_t thread = hold_commit(own(ending), &code, 0);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ch_vm_detach(ending), CH_E_BUSY);
		CHECK(strstr(ch_why(), " is held inside a call"));
		check_told(1, 1, 0);
	}
	let_commit_go(thread);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	end_all();
	check_told(1, 1, 1);
}

TEST(detach_of_a_vm_that_asked_for_nothing_ends_while_a_commit_is_held)
{
	struct ch_code code;
	start(false);
	pthread_t thread = hold_commit(own(ending), &code, 0);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	let_commit_go(thread);
	end_all();
}

TEST(immortal_block_whose_commit_is_held_during_its_owners_release_dies)
{
	struct ch_code code;
	start(false);
	struct ch_owner owner = own(ending);
	pthread_t thread = hold_commit(owner, &code, CH_OPEN_IMMORTAL);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	let_commit_go(thread);
	struct ch_block block = code.block;
	memset(&code, 0, sizeof code);
	rig_collect(&rig, 3);
	CHECK(!rig_is_there(block));
	check_told(1, 1, 1);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	end_all();
}

/* --- fork --- */

static pid_t child;

static void start_telling(void (*freed)(void *, void *), unsigned blocks)
{
	struct ch_ops ops = {.size = sizeof ops, .block_freed = freed, .tells_detached = true};
	rig = rig_start(1 << 20);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &ending), CH_OK);
	struct ch_owner owner = own(ending);
	for (unsigned i = 1; i <= blocks; i++)
		make(owner, i, 0);
	told[0] = 0;
}

static void wait_in_callback(void *vm_user, void *block_user)
{
	(void)vm_user, (void)block_user;
	atomic_store(&step, 1);
	TEST_UNTIL(atomic_load(&step) == 2);
}

static void *detach_vm(void *arg)
{
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	return arg;
}

TEST(child_ends_the_detach_that_a_thread_of_its_parent_began)
{
	pthread_t thread;
	start_telling(wait_in_callback, 1);
	CHECK_EQ(pthread_create(&thread, NULL, detach_vm, NULL), 0);
	TEST_UNTIL(atomic_load(&step) == 1);
	pid_t pid = fork();
	if (!pid)
		_exit(ch_heap_destroy(rig.heap) == CH_OK ? 42 : 1);
	expect_exit(pid, 42);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_E_BUSY);
	atomic_store(&step, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
}

static void fork_in_callback(void *vm_user, void *block_user)
{
	(void)vm_user, (void)block_user;
	if (!told[0]++)
		child = fork();
}

/* The thread that detaches the vm is the thread of the child. */
TEST(child_is_told_of_the_blocks_whose_end_its_thread_was_told)
{
	start_telling(fork_in_callback, BLOCKS);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	CHECK_EQ(told[0], BLOCKS);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
	if (!child)
		_exit(42);
	expect_exit(child, 42);
}

static void count(void *vm_user, void *block_user)
{
	(void)vm_user, (void)block_user;
	told[0]++;
}

static void fork_for_a_collection(void *vm_user)
{
	(void)vm_user;
	child = fork();
}

TEST(child_of_another_vm_s_callback_in_a_detach_is_told_of_the_blocks)
{
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = fork_for_a_collection};
	struct ch_vm *other;
	start_telling(count, BLOCKS);
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, NULL, &other), CH_OK);
	atomic_store(&rig.heap->collect_wanted, true);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	CHECK_EQ(told[0], BLOCKS);
	if (!child)
		_exit(42);
	expect_exit(child, 42);
}

/* As if the callback had left its stack to the thread that forks. */
static void fork_in_callback_elsewhere(void *vm_user, void *block_user)
{
	ending->teller = 1;
	fork_in_callback(vm_user, block_user);
}

TEST(detach_that_a_child_ended_does_not_end_again)
{
	start_telling(fork_in_callback_elsewhere, 1);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	CHECK_EQ(ending->owners_now, 1); /* the owner, whose block is there */
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
	if (!child)
		_exit(42);
	expect_exit(child, 42);
}

/* The record of a vm that detached rests, while others come and go. */
TEST_SHARED_RIG(second_detach_of_a_vm_does_not_end_the_vm_that_came_since, rig_start(1 << 20))
{
	const struct ch_ops none = {.size = sizeof none};
	struct ch_vm *gone, *since;
	struct ch_owner owner;
	CHECK_EQ(ch_vm_attach(rig.heap, &none, NULL, &gone), CH_OK);
	CHECK_EQ(ch_vm_detach(gone), CH_OK);
	CHECK_EQ(ch_vm_attach(rig.heap, &none, NULL, &since), CH_OK);
	CHECK_EQ(ch_vm_detach(gone), CH_E_STATE);
	CHECK_EQ(ch_owner_create(gone, "owner", NULL, NULL, &owner), CH_E_STATE);
	CHECK_EQ(ch_vm_detach(since), CH_OK);
}

static unsigned stops;

static bool stop_world(void *user)
{
	stops += user == &stops;
	return true;
}

/* Its record stays for the blocks that a collection is to free. */
TEST_SHARED_RIG(vm_that_was_detached_is_not_asked_to_stop_its_threads, rig_start(1 << 20))
{
	struct ch_ops ops = {.size = sizeof ops, .stop_world = stop_world};
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, &stops, &ending), CH_OK);
	(void)make(own(ending), 1, 0);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(stops, 1);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	const struct ch_vm *vm = rig.heap->vms;
	while (vm && vm != ending)
		vm = vm->next;
	CHECK(vm != NULL);
	rig_collect(&rig, 3);
	CHECK_EQ(stops, 1);
}

static unsigned asked_for_roots;

static void count_roots(void *user, struct ch_marker *marker)
{
	(void)marker;
	asked_for_roots += user == &asked_for_roots;
}

TEST_SHARED_RIG(vm_that_was_detached_is_not_asked_for_its_roots, rig_start(1 << 20))
{
	struct ch_ops ops = {.size = sizeof ops, .roots = count_roots};
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, &asked_for_roots, &ending), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(asked_for_roots, 1);
	CHECK_EQ(ch_vm_detach(ending), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(asked_for_roots, 1);
}
