/* SPDX-License-Identifier: MIT
 * counters.c: counters and generations that begin again, each started near the end: no stale handle
 * is believed then, and the heap serves on (docs/design.md, section 5). */
#include "invalidate/invalidate.h"
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/branch.h"
#include "codeheap/places/places.h"
#include "codeheap/collect/collect.h"
#include "tests/support/heap_rig.h"
#include "tests/support/perfmap_reader.h"

/* Sets the generation of a block record that nobody has. */
static void set_generation(const struct rig *rig, uint32_t index, uint32_t generation)
{
	atomic_store(&ch__block_at(rig->heap, index)->generation, generation);
}

static enum ch_status open_block(struct ch_owner owner, uint16_t branch_room, struct emitter *e)
{
	struct ch_open open = {.owner = owner, .hot_bytes = 32, .branch_room = branch_room};
	return emit_open_as(e, &open);
}

/* --- records --- */

/* Opens and aborts `times` blocks. */
static void open_and_abort(struct ch_owner owner, int times)
{
	for (int i = 0; i < times; i++) {
		struct emitter e;
		CHECK_EQ(open_block(owner, 0, &e), CH_OK);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		CHECK(!rig_is_there(e.code.block));
	}
}

TEST_RIG(records_of_blocks_that_wore_out_serve_when_there_are_no_others)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	open_and_abort(owner, 1);
	struct ch__thread *self = ch__thread_self(rig.heap);
	struct ch__table *blocks = &rig.heap->blocks;
	uint32_t records = self->free_count, first = 0;
	CHECK(records > 2);
	for (uint32_t i = 0; i < records; i++)
		set_generation(&rig, self->free_records[i], UINT32_MAX - 3);
	blocks->limit = blocks->used;
	for (uint32_t i = 0; i < records; i++) {
		struct emitter e;
		CHECK_EQ(open_block(owner, 0, &e), CH_OK);
		CHECK_EQ(ch__handle_generation(e.code.block.bits), UINT32_MAX - 2);
		first = first ? first : rig_record(e.code.block);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
	/* All records are worn: the record that rested longest is next. */
	struct emitter e;
	CHECK_EQ(open_block(owner, 0, &e), CH_OK);
	CHECK_EQ(rig_record(e.code.block), first);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	open_and_abort(owner, 10 * (int)records);
}

TEST_RIG(record_of_a_block_that_wore_out_rests_while_there_are_others)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter worn, e;
	open_and_abort(owner, 1);
	struct ch__thread *self = ch__thread_self(rig.heap);
	set_generation(&rig, self->free_records[self->free_count - 1], UINT32_MAX - 3);
	CHECK_EQ(open_block(owner, 0, &worn), CH_OK);
	CHECK_EQ(ch__handle_generation(worn.code.block.bits), UINT32_MAX - 2);
	CHECK_EQ(ch_block_abort(&worn.code), CH_OK);
	for (int i = 0; i < 3000; i++) {
		CHECK_EQ(open_block(owner, 0, &e), CH_OK);
		CHECK(rig_record(e.code.block) != rig_record(worn.code.block));
		if (i % 2)
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

TEST_RIG(records_that_go_back_together_all_come_again)
{
	enum { OWNERS = 50 };
	struct ch__table *owners = &rig.heap->owners;
	uint32_t used = 0;
	for (int turn = 0; turn < 4; turn++) {
		struct ch_owner all[OWNERS];
		for (int i = 0; i < OWNERS; i++)
			all[i] = rig_owner(&rig, "owner");
		used = used ? used : owners->used;
		CHECK_EQ(owners->used, used);
		for (int i = 0; i < OWNERS; i++)
			CHECK_EQ(ch_owner_release(all[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	}
}

TEST_RIG(records_of_owners_that_wore_out_serve_when_there_are_no_others)
{
	struct ch__table *owners = &rig.heap->owners;
	struct ch_owner before = {0};
	for (int i = 0; i < 20; i++) {
		struct ch_owner owner = rig_owner(&rig, "owner");
		CHECK_EQ(ch_owner_cell(before), NULL);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		uint32_t index = ch__handle_index(owner.bits);
		if (!i)
			atomic_store(&ch__owner_at(rig.heap, index)->generation,
				     UINT32_MAX - 3 * CH__LIFE - 2);
		owners->limit = owners->used;
		before = owner;
	}
	CHECK_EQ(owners->used, 2);
}

TEST_RIG(records_of_assumptions_that_wore_out_serve_when_there_are_no_others)
{
	struct ch__table *facts = &rig.heap->assumptions;
	for (int i = 0; i < 20; i++) {
		struct ch_assumption fact;
		CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
		CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
		uint32_t index = ch__handle_index(fact.bits);
		if (!i)
			ch__assumption_at(rig.heap, index)->generation = UINT32_MAX - 3;
		facts->limit = facts->used;
	}
	CHECK_EQ(facts->used, 2);
}

/* The record had its last life, and rests while the table has other records. */
TEST_RIG(record_of_an_owner_that_wore_out_rests_while_there_are_others)
{
	struct ch_owner worn = rig_owner(&rig, "worn");
	uint32_t index = ch__handle_index(worn.bits);
	CHECK_EQ(ch_owner_release(worn, CH_RELEASE_NOT_RUNNING), CH_OK);
	atomic_store(&ch__owner_at(rig.heap, index)->generation, UINT32_MAX - 2 * CH__LIVES + 1);
	worn = rig_owner(&rig, "worn");
	CHECK_EQ(ch__handle_index(worn.bits), index);
	CHECK_EQ(ch_owner_release(worn, CH_RELEASE_NOT_RUNNING), CH_OK);
	for (int i = 0; i < 3000; i++) {
		struct ch_owner owner = rig_owner(&rig, "owner");
		CHECK(ch__handle_index(owner.bits) != index);
		if (i % 2)
			CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
}

TEST_RIG(record_of_an_assumption_that_wore_out_rests_while_there_are_others)
{
	struct ch_assumption fact;
	CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
	uint32_t index = ch__handle_index(fact.bits);
	ch__assumption_at(rig.heap, index)->generation = UINT32_MAX - 2;
	fact.bits = ch__handle(rig.heap->id, index, UINT32_MAX - 2);
	CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	for (int i = 0; i < 3000; i++) {
		CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
		CHECK(ch__handle_index(fact.bits) != index);
		if (i % 2)
			CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
	}
}

/* --- runs of branches --- */

static uint32_t run_of(const struct rig *rig, const struct emitter *e)
{
	return ch__block_at(rig->heap, rig_record(e->code.block))->first_branch;
}

TEST_RIG(handle_of_a_branch_is_stale_in_each_block_that_has_the_record_since)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block none = {0};
	struct emitter first, between, second;
	CHECK_EQ(open_block(owner, 1, &first), CH_OK);
	const struct ch__thread *self = ch__thread_self(rig.heap);
	uint32_t generation = ch__handle_generation(first.code.block.bits);
	struct ch_branch stale = emit_jmp(&first, NULL);
	CHECK_EQ(ch_branch_link(stale, none), CH_E_STATE);
	CHECK_EQ(ch_block_abort(&first.code), CH_OK);
	CHECK_EQ(open_block(owner, 0, &between), CH_OK); /* has the block's record */
	/* The block that gets the branch's record has the generation of the first block. */
	set_generation(&rig, self->free_records[self->free_count - 1], generation - 1);
	CHECK_EQ(open_block(owner, 1, &second), CH_OK);
	CHECK_EQ(ch__handle_generation(second.code.block.bits), generation);
	CHECK_EQ(run_of(&rig, &second), ch__handle_index(stale.bits));
	struct ch_branch branch = emit_jmp(&second, NULL);
	CHECK_EQ(ch_branch_link(stale, none), CH_E_STALE);
	CHECK_EQ(ch_branch_link(branch, none), CH_E_STATE);
	CHECK_EQ(emit_commit(&second), CH_OK);
	CHECK_EQ(ch_branch_link(stale, none), CH_E_STALE);
	CHECK_EQ(ch_branch_link(branch, none), CH_OK);
	CHECK_EQ(ch_block_abort(&between.code), CH_OK);
}

TEST_RIG(branch_of_the_first_record_is_found_before_its_commit)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block none = {0};
	struct emitter e;
	do
		CHECK_EQ(open_block(owner, 1, &e), CH_OK);
	while (rig_record(e.code.block) != 1);
	CHECK_EQ(ch_branch_link(emit_jmp(&e, NULL), none), CH_E_STATE);
}

/* Opens blocks with so many branches each until the heap refuses, then aborts all. */
static int serve(struct ch_owner owner, uint16_t length)
{
	enum { MOST = 70 };
	static struct emitter all[MOST + 1];
	int count = 0;
	while (open_block(owner, length, &all[count]) == CH_OK)
		CHECK(++count <= MOST);
	CHECK(strstr(ch_why(), "its limit"));
	for (int i = 0; i < count; i++)
		CHECK_EQ(ch_block_abort(&all[i].code), CH_OK);
	return count;
}

TEST_RIG(branches_of_dead_blocks_serve_blocks_with_fewer_of_them)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	rig.heap->branches.limit = 1 + 64 + 3;
	CHECK_EQ(serve(owner, 16), 4);
	CHECK_EQ(serve(owner, 15), 4);
	CHECK_EQ(serve(owner, 7), 8);
	CHECK_EQ(serve(owner, 1), 64 + 3);
}

/* Record 0 of owners stands for the missing owner, and its generation is 0. */
TEST_RIG(handle_of_record_0_leads_to_nothing)
{
	struct ch_owner none = {ch__handle(rig.heap->id, 0, 0)};
	struct emitter e;
	CHECK_EQ(open_block(none, 0, &e), CH_E_STALE);
	CHECK_EQ(ch_owner_cell(none), NULL);
	CHECK_EQ(open_block(rig_owner(&rig, "owner"), 0, &e), CH_OK);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, none), CH_E_STALE);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

TEST(heaps_in_one_place_use_no_more_generations_than_their_records)
{
	enum { HEAPS = 4 };
	uint32_t firsts[HEAPS];
	for (int i = 0; i < HEAPS; i++) {
		struct rig rig = rig_start(1 << 20);
		firsts[i] = rig.heap->blocks.first_generation;
		open_and_abort(rig_owner(&rig, "owner"), 10);
		rig_end(&rig);
	}
	CHECK(firsts[1] != firsts[0]);
	for (int i = 2; i < HEAPS; i++)
		CHECK_EQ(firsts[i] - firsts[i - 1], firsts[1] - firsts[0]);
}

/* --- core syncs --- */

/* The marking thread was stopped by nobody. */
TEST(thread_of_a_host_whose_stop_is_the_core_sync_serializes_itself)
{
	struct ch_config config = rig_config(1 << 20);
	config.driver = CH_DRIVER_HOST;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_marker *marker;
	atomic_store(&rig.heap->has_core_sync, false);
	uint32_t before = ch__thread_self(rig.heap)->serialized;
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	ch_mark_stacks(marker);
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	CHECK_EQ(ch__thread_self(rig.heap)->serialized, before + 1);
	rig_end(&rig);
}

/* A thread reports its opens from time to time, and no byte twice. */
TEST_RIG(bytes_of_many_opens_are_reported_once)
{
	enum { REPORT_MOST = 16384, BLOCKS = 200 };
	static const uint8_t bytes[1000];
	for (int i = 0; i < BLOCKS; i++) {
		void (*f)(void);
		CHECK_EQ(ch_code_add(rig.heap, bytes, sizeof bytes, "f", &f), CH_OK);
	}
	uint64_t reported = atomic_load(&rig.heap->bytes_since_cycle);
	uint64_t opened = rig_stats(&rig).bytes_opened;
	CHECK(opened >= BLOCKS * sizeof bytes && reported <= opened);
	CHECK(reported + REPORT_MOST >= opened);
}


static enum ch_status make_block(struct ch_owner owner)
{
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 500};
	enum ch_status status = emit_open_as(&e, &open);
	if (status != CH_OK)
		return status;
	emit_answer(&e, 1);
	e.code.used_to = 500;
	return ch_block_commit(&e.code, 1);
}

TEST(kept_places_come_back_after_any_number_of_core_syncs)
{
	struct ch_config config = rig_config(rig_page_bytes());
	config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
	config.dead_names = CH_DEAD_NAMES_KEPT;
	use_own_folder();
	struct rig rig = rig_create(&config, NULL, NULL);
	if (!rig.heap->has_core_sync)
		skip("places wait for a cycle without core syncs");
	/* Dead blocks fill the pool, and nothing else dies in all rounds. */
	for (int i = 0; i < 3; i++) {
		struct ch_owner owner = rig_owner(&rig, "gone");
		int blocks = 0;
		while (make_block(owner) == CH_OK)
			blocks++;
		CHECK(blocks > 3);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK(rig_stats(&rig).quarantine_bytes_now > 0);
		uint64_t more = (UINT64_C(1) << 31) + 100;
		rig.heap->core_syncs += more;
		rig.heap->core_syncs_begun += more;
	}
	rig_end(&rig);
	remove_own_folder();
}

TEST_RIG(thread_that_comes_after_2_to_the_32_stops_serializes_itself)
{
	rig.heap->core_syncs_by_stop = UINT64_C(1) << 32;
	uint32_t before = ch__thread_self(rig.heap)->serialized;
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	CHECK_EQ(ch__thread_self(rig.heap)->serialized, before + 1);
}

/* --- epochs --- */

static void run_cycle(const struct rig *rig, struct ch_owner owner, bool is_complete)
{
	struct ch_marker *marker;
	CHECK_EQ(ch_mark_begin(rig->heap, &marker), CH_OK);
	ch_mark_owner(marker, owner);
	ch_mark_stack(marker, rig, rig); /* no stack has code */
	CHECK_EQ(ch_mark_end(marker, is_complete), CH_OK);
}

TEST_RIG_BY(code_lives_through_any_number_of_cycles_that_are_given_up, rig_start_host(1 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block block = rig_block(owner, 4);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	struct emitter own_root;
	struct ch_open open = {.heap = rig.heap, .hot_bytes = 16, .branch_room = 1};
	CHECK_EQ(emit_open_as(&own_root, &open), CH_OK);
	emit_ret(&own_root);
	CHECK_EQ(emit_commit(&own_root), CH_OK);
	for (int round = 0; round < 6; round++) {
		/* As many epochs as may pass before marks are made young. */
		rig.heap->epoch += CH__MARKS_LAST - 2;
		for (int i = 0; i < 4; i++)
			run_cycle(&rig, owner, false);
	}
	run_cycle(&rig, owner, true);
	while (ch__sweep_step(rig.heap))
		continue;
	CHECK(rig_is_there(block) && rig_is_there(own_root.code.block));
	CHECK_EQ(code_call_owner(owner), 4);
}

TEST_RIG_BY(what_is_dead_stays_so_through_any_number_of_cycles_without_a_sweep,
	    rig_start_host(1 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner"), dead = rig_owner(&rig, "dead");
	struct ch_block block = rig_block(dead, 4);
	CHECK_EQ(ch_owner_set_entry(dead, block), CH_OK);
	run_cycle(&rig, owner, true);
	CHECK(!rig_is_there(block));
	for (int round = 0; round < 8; round++) {
		rig.heap->epoch += CH__MARKS_LAST - 2;
		rig.heap->completed += CH__MARKS_LAST - 2;
		for (int i = 0; i < 4; i++) {
			/* The live owner has been marked in each cycle. */
			ch__owner_at(rig.heap, ch__handle_index(owner.bits))->mark =
				rig.heap->completed;
			run_cycle(&rig, owner, true);
			CHECK(!rig_is_there(block));
		}
	}
	CHECK_EQ(ch_owner_set_entry(owner, (struct ch_block){0}), CH_OK);
}

/* --- tombstones --- */

/* Returns the tombstone that was written last. */
static const struct ch__tombstone *last_stone(const struct rig *rig)
{
	return ch__table_at(&rig->heap->tombstones, (uint32_t)rig->heap->tombstones_written);
}

/* Code without a cold part, code with a cold part, code in whole pages, and a trampoline. */
TEST_RIG(tombstone_says_where_the_parts_were)
{
	struct ch_owner owner = rig_owner(&rig, "plain");
	(void)rig_owner(&rig, "keeps the pages");
	(void)rig_block(rig_owner(&rig, "stays"), 1);
	(void)rig_block(owner, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(last_stone(&rig)->cold, 0);
	struct ch_branch branch;
	owner = rig_owner(&rig, "with stubs");
	struct ch_info info = block_info(rig_jumper(owner, NULL, &branch));
	uint32_t at = ch__offset(rig.heap, (uintptr_t)info.cold_exec - CH__HEAD_BYTES);
	uint32_t in_page = at % (uint32_t)rig_page_bytes() / CH__GRANULE_BYTES;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	uint32_t cold = last_stone(&rig)->cold;
	CHECK_EQ(cold >> CH__TOMB_COLD_SHIFT, in_page);
	CHECK_EQ(cold & CH__TOMB_COLD_GRANULES,
		 (info.cold_bytes + CH__HEAD_BYTES + CH__GRANULE_BYTES - 1) /
			 CH__GRANULE_BYTES);
	struct emitter e;
	owner = rig_owner(&rig, "span");
	struct ch_open open = {.owner = owner, .hot_bytes = 2 * (uint32_t)rig_page_bytes()};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	e.code.used_to = e.code.hot_bytes;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(last_stone(&rig)->cold, CH__TOMB_SPAN);
	struct ch_block slot;
	owner = rig_owner(&rig, "slot");
	if (ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL, (const void *)(uintptr_t)rig_fallback, 0,
			       NULL, NULL, &slot) == CH_OK) {
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK_EQ(last_stone(&rig)->cold, CH__TOMB_SLOT);
	}
}

/* A heap without code is free in a single row; a span in the middle leaves the larger side. */
TEST(free_room_is_counted_in_rows)
{
	enum { PAGES = 16 };
	struct ch_config config = rig_config(PAGES * rig_page_bytes());
	struct rig rig = rig_create(&config, NULL, NULL);
	uint64_t page = rig_page_bytes();
	uint32_t spans[PAGES];
	CHECK_EQ(rig_stats(&rig).free_bytes_now, PAGES * page);
	CHECK_EQ(rig_stats(&rig).largest_free_bytes_now, PAGES * page);
	for (int i = 0; i < PAGES; i++)
		spans[i] = ch__pool_take_span(rig.heap->pool, 1, 0, CH__SPAN_CODE);
	CHECK_EQ(rig_stats(&rig).free_bytes_now, 0);
	CHECK_EQ(rig_stats(&rig).largest_free_bytes_now, 0);
	/* All pages but 5 and 6 are free: rows of 5 and of 9 pages. */
	for (int i = 0; i < PAGES; i++)
		if (spans[i] != 5 && spans[i] != 6)
			ch__pool_release_span(rig.heap->pool, spans[i]);
	CHECK_EQ(rig_stats(&rig).free_bytes_now, (PAGES - 2) * page);
	CHECK_EQ(rig_stats(&rig).largest_free_bytes_now, 9 * page);
	ch__pool_release_span(rig.heap->pool, 6);
	CHECK_EQ(rig_stats(&rig).largest_free_bytes_now, 10 * page);
	ch__pool_release_span(rig.heap->pool, 5);
	CHECK_EQ(rig_stats(&rig).largest_free_bytes_now, PAGES * page);
	rig_end(&rig);
}

/* Two bits for each granule of the pages in use. */
TEST(metadata_of_a_heap_has_the_bitmaps_of_its_pages)
{
	enum { PAGES = 4 };
	struct rig rig = rig_start(PAGES * 65536);
	struct ch_heap *heap = rig.heap;
	uint64_t before = rig_stats(&rig).metadata_bytes_now - ch__meta_bytes(heap->meta);
	uint32_t span = ch__pool_take_span(heap->pool, PAGES, 0, CH__SPAN_CODE);
	CHECK(span != CH__PAGE_NONE);
	uint64_t after = rig_stats(&rig).metadata_bytes_now - ch__meta_bytes(heap->meta);
	CHECK_EQ(after - before, PAGES * rig_page_bytes() / CH__GRANULE_BYTES / 4);
	ch__pool_release_span(heap->pool, span);
	rig_end(&rig);
}

TEST_RIG(metadata_of_a_heap_has_the_memory_of_its_tables)
{
	struct ch_heap *heap = rig.heap;
	struct ch__table *tables[] = {&heap->blocks, &heap->branches, &heap->owners,
				      &heap->assumptions, &heap->names, &heap->tombstones};
	for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
		uint64_t before = rig_stats(&rig).metadata_bytes_now;
		CHECK(ch__table_back(tables[i], tables[i]->backed));
		CHECK_EQ(rig_stats(&rig).metadata_bytes_now, before + CH__TABLE_STEP_BYTES);
		/* The memory is there up to the last record. */
		uint32_t last = tables[i]->backed - 1;
		memset(ch__table_at(tables[i], last), 0, tables[i]->record_bytes);
	}
}
