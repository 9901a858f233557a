/* SPDX-License-Identifier: MIT
 * lists.c: lists that are used again. What the side list of a block that went held is given back,
 * and the next block that gets the list finds nothing in it. The same of fibers, of threads, of
 * owners, of the records that a lost thread had, and of lists that became longer. */
#include "codeheap/collect/collect.h"
#include "codeheap/base/heap.h"
#include "codeheap/graph/block_parts.h"
#include "tests/support/heap_rig.h"
#include "tests/support/names_now.h"
#include "tests/support/stage_code.h"

#include <pthread.h>
#include <unistd.h>

TEST_RIG(name_of_a_file_goes_with_its_block)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	uint32_t count = names_now(rig.heap);
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	struct ch_line line = {e.code.exec, 1};
	CHECK_EQ(ch_block_lines(e.code.block, "file", &line, 1), CH_OK);
	CHECK_EQ(names_now(rig.heap), count + 1);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(names_now(rig.heap), count);
}

TEST_RIG(list_that_became_too_short_is_given_back)
{
	enum { EDGES = 20, ROUNDS = 4 };
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block to = rig_block(owner, 7);
	size_t before = 0;
	for (int round = 0; round < ROUNDS; round++) {
		struct emitter e;
		emit_open(&e, owner, 16, 0);
		for (int i = 0; i < EDGES; i++)
			CHECK_EQ(ch_edge_attach(e.code.block, to), CH_OK);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		before = round ? before : ch__meta_bytes(rig.heap->meta);
		CHECK_EQ(ch__meta_bytes(rig.heap->meta), before);
	}
}

static struct emitter open_named(struct rig *rig, const struct ch__block **block)
{
	struct ch_open open = {.heap = rig->heap, .name = "named", .hot_bytes = 64};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	*block = ch__block_at(rig->heap, ch__handle_index(e.code.block.bits));
	CHECK((*block)->side_list->name && (*block)->side_list->capacity == 0);
	return e;
}

/* Small lists serve the next names, and no attachments. */
TEST_RIG(code_without_an_owner_has_a_list_of_its_name_alone_until_something_is_attached)
{
	struct ch_owner owner = rig_owner(&rig, "o");
	const struct ch__side_list *lists[2];
	const struct ch__block *block;
	struct emitter e[2];
	for (int i = 0; i < 2; i++) {
		e[i] = open_named(&rig, &block);
		lists[i] = block->side_list;
		CHECK_EQ(emit_commit(&e[i]), CH_OK);
	}
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_code_free(rig.heap, e[i].code.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
	e[0] = open_named(&rig, &block);
	CHECK(block->side_list == lists[1]);
	uint32_t name = block->side_list->name;
	CHECK_EQ(ch_edge_attach_owner(e[0].code.block, owner), CH_OK);
	CHECK_EQ(block->side_list->capacity, CH__SIDE_FIRST);
	CHECK_EQ(block->side_list->name, name);
	CHECK_EQ(emit_commit(&e[0]), CH_OK);
	e[1] = open_named(&rig, &block);
	CHECK(block->side_list == lists[1]);
	CHECK_EQ(emit_commit(&e[1]), CH_OK);
}

/* A site may lie around the entry of the block that had the list before. */
TEST_RIG(list_of_another_block_has_no_entry_of_it)
{
	enum { ENTRY_MOST = 12 };
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block to = rig_block(owner, 7);
	CHECK_EQ(ch_owner_set_entry(owner, to), CH_OK);
	for (uint32_t entry = 4; entry <= ENTRY_MOST; entry += 4) {
		struct ch_owner other = rig_owner(&rig, "other");
		struct emitter e;
		emit_open(&e, other, 64, 0);
		emit_filler(&e, ENTRY_MOST);
		emit_ret(&e);
		e.code.entry_offset = entry;
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_release(other, CH_RELEASE_NOT_RUNNING), CH_OK);
		rig_settle(&rig);
		emit_open(&e, owner, 64, 1);
		CHECK_EQ(ch_edge_attach(e.code.block, to), CH_OK);
		(void)emit_jmp(&e, NULL);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
}

/* The word that the VM's entry tests is memory of its own. */
TEST_RIG(list_of_another_block_has_no_name_of_it)
{
	struct ch_open open = {
		.owner = rig_owner(&rig, "owner"), .hot_bytes = 64, .entry = CH_ENTRY_GUARD};
	struct emitter e;
	open.name = "named";
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	const struct ch__side_list *list =
		ch__block_at(rig.heap, rig_record(e.code.block))->side_list;
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	open.name = NULL;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(ch__block_at(rig.heap, rig_record(e.code.block))->side_list == list);
	CHECK_STR(block_info(e.code.block).name, "owner");
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST_RIG(lines_whose_file_finds_no_memory_are_given_back)
{
	enum { LINES = 100 };
	static const char file[] = "a file that no block has named before";
	struct ch_line lines[LINES];
	struct emitter e;
	struct ch_owner owner = rig_owner(&rig, "owner");
	emit_open(&e, owner, 2 * LINES, 0);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, owner), CH_OK); /* makes the list */
	for (uint32_t i = 0; i < LINES; i++)
		lines[i] = (struct ch_line){e.code.exec + i, i + 1};
	enum ch_status status = CH_E_MEMORY;
	for (uint64_t nth = 1; status != CH_OK; nth++) {
		size_t before = ch__meta_bytes(rig.heap->meta);
		uint32_t names = names_now(rig.heap);
		ch__os_fail_at(nth, false);
		status = ch_block_lines(e.code.block, file, lines, LINES);
		ch__os_fail_at(0, false);
		CHECK(status == CH_OK || ch__meta_bytes(rig.heap->meta) == before);
		CHECK(status == CH_OK || names_now(rig.heap) == names);
		CHECK(status != CH_OK || nth > 1);
	}
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST_RIG(block_relies_on_more_facts_than_its_first_list_has_places)
{
	enum { FACTS = 5 * CH__SIDE_FIRST };
	struct ch_assumption facts[FACTS];
	struct emitter e;
	size_t invalidated;
	for (int at = 0; at < FACTS; at++) {
		emit_open(&e, rig_owner(&rig, "owner"), 16, 0);
		for (int i = 0; i < FACTS; i++) {
			CHECK_EQ(ch_assumption_create(rig.vm, &facts[i]), CH_OK);
			CHECK_EQ(ch_block_assume(e.code.block, facts[i]), CH_OK);
		}
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_assumption_break(facts[at], &invalidated), CH_OK);
		CHECK_EQ(invalidated, 1);
		CHECK_EQ(block_info(e.code.block).state, CH_BLOCK_NOTENTRANT);
		rig_check(&rig);
	}
}

TEST_RIG(guard_goes_over_to_each_longer_list)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .entry = CH_ENTRY_GUARD};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	const uint32_t *guard = e.code.guard;
	for (int i = 0; i < 5 * CH__SIDE_FIRST; i++)
		CHECK_EQ(ch_edge_attach_owner(e.code.block, owner), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(*guard, 0);
	CHECK_EQ(ch_blocks_invalidate(&e.code.block, 1, NULL), CH_OK);
	CHECK_EQ(*guard, 1);
}

/* The second branch was behind the first in one list, and is alone in the next. */
TEST_RIG(branch_that_is_led_elsewhere_leaves_no_neighbour_behind)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_branch behind, before;
	struct ch_block sources[] = {rig_jumper(owner, NULL, &behind),
				     rig_jumper(owner, NULL, &before)};
	struct ch_block shared = rig_block(owner, 1), own = rig_block(owner, 2), none = {0};
	CHECK_EQ(ch_branch_link(behind, shared), CH_OK);
	CHECK_EQ(ch_branch_link(before, shared), CH_OK);
	CHECK_EQ(ch_branch_link(behind, own), CH_OK);
	CHECK_EQ(ch_branch_link(behind, none), CH_OK);
	CHECK_EQ(ch__block_at(rig.heap, rig_record(own))->in_head, 0);
	rig_check(&rig);
	CHECK(rig_is_there(sources[0]) && rig_is_there(sources[1]));
}

TEST_RIG(guard_of_a_block_that_went_is_given_back)
{
	struct ch_open open = {.size = sizeof open, .hot_bytes = 16, .entry = CH_ENTRY_GUARD};
	size_t before = 0;
	for (int round = 0; round < 4; round++) {
		struct emitter e;
		open.owner = rig_owner(&rig, "guarded");
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK(e.code.guard);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		CHECK_EQ(ch_owner_release(open.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		rig_collect(&rig, 2);
		if (round == 0)
			before = ch__meta_bytes(rig.heap->meta);
		CHECK_EQ(ch__meta_bytes(rig.heap->meta), before);
	}
}

static struct rig staying_rig;
static _Atomic(int) staying;

static void open_abort_and_stay(const struct rig *rig, void *owner)
{
	rig_open_and_abort(rig, owner);
	atomic_store(&staying, 1);
	TEST_UNTIL(atomic_load(&staying) == 2)
		usleep(100);
}

static void *stay_beside(void *owner)
{
	struct rig_call call = {&staying_rig, open_abort_and_stay, owner};
	rig_call_attached(&call);
	return NULL;
}

TEST(s31_records_of_blocks_that_a_lost_thread_had_serve_the_child)
{
	staying_rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&staying_rig, "owner");
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, stay_beside, &owner), 0);
	TEST_UNTIL(atomic_load(&staying) == 1)
		usleep(100);
	uint32_t used = staying_rig.heap->blocks.used;
	pid_t child = fork();
	if (!child) {
		rig_open_and_abort(&staying_rig, &owner);
		_exit(staying_rig.heap->blocks.used != used);
	}
	expect_exit(child, 0);
	atomic_store(&staying, 2);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	rig_end(&staying_rig);
}

/* The test plays a stack that went in the middle of callbacks. */
TEST_RIG(fiber_has_no_callbacks_of_who_had_its_record)
{
	static uint64_t stack[64];
	struct ch_fiber *fiber, *next;
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + 64, &fiber), CH_OK);
	fiber->deliveries = 16;
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + 64, &next), CH_OK);
	CHECK(next == fiber && next->deliveries == 0);
	CHECK_EQ(ch_fiber_detach(next), CH_OK);
}

/* As if the thread before had ended in the middle of callbacks. */
TEST_RIG(thread_has_no_callbacks_of_who_had_its_record)
{
	struct ch__thread *self = ch__thread_self(rig.heap);
	self->deliveries = 16;
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	CHECK(ch__thread_self(rig.heap) == self && self->deliveries == 0);
}

TEST_RIG_BY(lists_that_grow_give_their_old_memory_back, rig_start(16 << 20))
{
	enum { BLOCKS = 5 * CH__QUEUE_MIN };
	struct ch_heap *heap = rig.heap;
	struct ch_owner owner = rig_owner(&rig, "owner");
	const struct ch__thread *self = ch__thread_self(heap);
	uint32_t grown = 0;
	for (int i = 0; i < BLOCKS; i++) {
		uint32_t capacity = self->young_capacity;
		size_t before = ch__meta_bytes(heap->meta);
		rig_block(owner, 1);
		size_t more = ch__meta_bytes(heap->meta) - before;
		if (capacity && self->young_capacity > capacity) {
			CHECK(more < self->young_capacity * sizeof *self->young);
			grown++;
		}
	}
	CHECK(grown > 0);
	uint32_t mask = heap->marker.queue_mask;
	size_t before = ch__meta_bytes(heap->meta);
	ch__heap_lock(heap);
	CHECK(ch__mark_reserve(heap, &heap->marker));
	ch__heap_unlock(heap);
	CHECK(heap->marker.queue_mask > mask);
	CHECK(ch__meta_bytes(heap->meta) - before <
	      (heap->marker.queue_mask + 1) * sizeof *heap->marker.queue);
}

/* --- records of owners --- */

static void release_at_once(const struct rig *rig, struct ch_owner owner, uint64_t gone)
{
	uint64_t before = rig_stats(rig).owners_now;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(before - rig_stats(rig).owners_now, gone);
}

/* Other code may have called the first owner by its cell: the owner stays until a collection. */
TEST_RIG(owner_has_no_callers_of_who_had_its_record)
{
	struct ch_owner caller = rig_owner(&rig, "caller"), called = rig_owner(&rig, "called");
	struct ch_owner next;
	struct emitter e;
	emit_open(&e, caller, 16, 0);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, called), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	release_at_once(&rig, called, 0);
	rig_collect(&rig, 2);
	do
		next = rig_owner(&rig, "next");
	while (ch__handle_index(next.bits) != ch__handle_index(called.bits));
	CHECK(next.bits != called.bits);
	release_at_once(&rig, next, 1);
}

/* The table of owners has no memory for one more. */
TEST_RIG(name_of_an_owner_without_a_record_is_given_back)
{
	struct ch_owner owner;
	do
		owner = rig_owner(&rig, "owner");
	while (rig.heap->owners.used < rig.heap->owners.backed);
	uint32_t names = names_now(rig.heap);
	ch__os_fail_at(2, true); /* the name has memory */
	enum ch_status status = ch_owner_create(rig.vm, "one more", NULL, NULL, &owner);
	ch__os_fail_at(0, false);
	CHECK_EQ(status, CH_E_MEMORY);
	CHECK_EQ(names_now(rig.heap), names);
}

/* Each count of cycles gives newborns another stamp, and an edge to an OPEN block ends the block's
 * infancy before its commit. */
TEST_RIG(block_with_an_edge_before_its_commit_dies_whatever_the_count_of_cycles)
{
	enum { STAMPS = 4 };
	for (int stamp = 0; stamp < STAMPS; stamp++) {
		for (int cycle = 0; cycle < 2; cycle++) {
			struct ch_owner owner = rig_owner(&rig, "owner");
			struct emitter from, to;
			emit_open(&to, owner, 16, 0);
			emit_open(&from, owner, 16, 0);
			emit_ret(&to);
			emit_ret(&from);
			CHECK_EQ(ch_edge_attach(from.code.block, to.code.block), CH_OK);
			if (cycle)
				CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
			struct ch_code codes[] = {from.code, to.code};
			codes[0].used_to = from.at;
			codes[1].used_to = to.at;
			CHECK_EQ(ch_block_commit(codes, 2), CH_OK);
			const struct ch__block *block =
				ch__block_at(rig.heap, rig_record(to.code.block));
			CHECK(!ch__block_leads(block));
			CHECK(!ch__block_is_own_root(rig.heap, block));
			CHECK(!(block->flags & CH__FLAG_UNLINKED));
			CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
		}
	}
}
