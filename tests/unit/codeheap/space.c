/* SPDX-License-Identifier: MIT
 * space.c: places become free while another thread looks for room: the notice of space for a thread
 * that looked too early, and the core synchronizations that a place waits for. The test plays the
 * other thread by that thread's last steps. */
#include "codeheap/graph/block.h"
#include "codeheap/collect/collect.h"
#include "codeheap/events/events.h"
#include "pages/inner.h"
#include "pages/write.h"
#include "tests/support/full_rig.h"
#include "tests/support/stage_code.h"
#include "unwind/steps.h"

static _Atomic(int) told;

static void hear(void *user)
{
	(void)user;
	told++;
}

static struct rig start(void)
{
	struct ch_ops ops = {.size = sizeof ops, .space_free = hear};
	struct ch_config config = rig_config(2 * rig_page_bytes());
	return rig_create(&config, &ops, NULL);
}

/* A thread looked for room before places left the quarantine, and then sees no place waiting. */
TEST_RIG_BY(places_that_leave_the_quarantine_are_told_to_who_looked_before, start())
{
	struct ch_heap *heap = rig.heap;
	struct filled f = fill_pool(&rig, 2, 60);
	/* Fewer than a step of the sweep frees: the next step would wait for the steps before. */
	for (uint32_t i = 0; i < f.count && i < 20; i++)
		CHECK_EQ(ch_owner_release(f.owners[i], CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	CHECK(atomic_load(&heap->quarantine_bytes) > 0);
	ch_thread_poll();
	told = 0;
	ch__heap_lock(heap);
	ch__trigger_full(heap, rig.vm, ch__space_now(heap));
	(void)ch__quarantine_advance(heap, true);
	ch__heap_unlock(heap);
	ch_thread_poll();
	/* Where only stops synchronize, the poll collects, and the stop frees the places. */
	CHECK_EQ(atomic_load(&heap->quarantine_bytes), 0);
	if (told != 1)
		FAIL("space_free: places left the quarantine, and it was told %d times", told);
	forget(&f);
}

/* A core may have fetched the dead code, and would run it in place of the new code. The place is
 * used again after a core synchronization, unless cores follow published code. No core has fetched
 * code that was never published. */
TEST_RIG_BY(place_of_released_code_waits_where_fetch_does_not_follow, start())
{
	struct ch_owner owner = rig_owner(&rig, "released");
	struct ch_block block = rig_block(owner, 1);
	const uint8_t *exec = block_info(block).exec;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	bool waits = atomic_load(&rig.heap->quarantine_bytes) > 0;
	if (waits == (CH_ARCH_FETCH_FOLLOWS != 0))
		FAIL("the place of released code %s a core synchronization",
		     waits ? "waits for" : "does not wait for");
	CHECK(ch__arch_are_traps(ch__pool_read(rig.heap->pool, (uintptr_t)exec), 8));
	struct emitter e;
	owner = rig_owner(&rig, "aborted");
	emit_open(&e, owner, 16, 0);
	size_t before = atomic_load(&rig.heap->quarantine_bytes);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(atomic_load(&rig.heap->quarantine_bytes), before);
}

/* A thread has asked for a core synchronization, which this core may have passed, and is about to
 * count the synchronization as done. Code freed in between waits for another synchronization. */
TEST_RIG_BY(place_that_is_freed_while_cores_are_told_waits_for_the_next_time, start())
{
	struct ch_heap *heap = rig.heap;
	struct ch_owner source = rig_owner(&rig, "source"), owner = rig_owner(&rig, "released");
	struct ch_branch branch;
	rig_jumper(source, NULL, &branch);
	CHECK_EQ(ch_branch_link(branch, rig_block(owner, 1)), CH_OK);
	atomic_fetch_add(&heap->core_syncs_begun, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	atomic_fetch_add(&heap->core_syncs, 1);
	CHECK(atomic_load(&heap->quarantine_bytes) > 0);
	ch__heap_lock(heap);
	bool has_freed = ch__quarantine_advance(heap, false);
	ch__heap_unlock(heap);
	if (has_freed)
		FAIL("quarantine: %d bytes wait, others were free too early",
		     (int)atomic_load(&heap->quarantine_bytes));
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	CHECK_EQ(atomic_load(&heap->quarantine_bytes), 0);
}

/* A core may have fetched the way out of the source, which runs on. */
TEST_RIG_BY(place_waits_where_the_source_of_its_branch_was_invalidated, start())
{
	struct ch_owner owner = rig_owner(&rig, "released");
	struct ch_branch branch;
	struct ch_block source = rig_jumper(rig_owner(&rig, "source"), NULL, &branch);
	CHECK_EQ(ch_branch_link(branch, rig_block(owner, 1)), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&source, 1, NULL), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(atomic_load(&rig.heap->quarantine_bytes) > 0);
}

/* Cores were told in between: the first place has waited for them. */
TEST_RIG_BY(place_that_has_waited_goes_back_though_another_comes_to_wait, start())
{
	struct ch_heap *heap = rig.heap;
	struct ch_branch branch;
	uint64_t waits[2];
	rig_jumper(rig_owner(&rig, "source"), NULL, &branch);
	for (uint32_t i = 0; i < 2; i++) {
		struct ch_owner owner = rig_owner(&rig, "released");
		CHECK_EQ(ch_branch_link(branch, rig_block(owner, i)), CH_OK);
		atomic_fetch_add(&heap->core_syncs_begun, i);
		atomic_fetch_add(&heap->core_syncs, i);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		waits[i] = atomic_load(&heap->quarantine_bytes);
	}
	ch__heap_lock(heap);
	CHECK(ch__quarantine_advance(heap, false));
	ch__heap_unlock(heap);
	CHECK_EQ(atomic_load(&heap->quarantine_bytes), waits[1] - waits[0]);
}

/* No core is told in between. */
TEST_RIG_BY(place_waits_on_when_another_place_comes_to_wait, start())
{
	enum { RELEASES = 3 };
	struct ch_heap *heap = rig.heap;
	struct ch_branch branch;
	uint64_t waits = 0;
	rig_jumper(rig_owner(&rig, "source"), NULL, &branch);
	for (uint32_t i = 0; i < RELEASES; i++) {
		struct ch_owner owner = rig_owner(&rig, "released");
		CHECK_EQ(ch_branch_link(branch, rig_block(owner, i)), CH_OK);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK(atomic_load(&heap->quarantine_bytes) > waits);
		waits = atomic_load(&heap->quarantine_bytes);
	}
	ch__heap_lock(heap);
	CHECK(!ch__quarantine_advance(heap, false));
	ch__heap_unlock(heap);
	CHECK_EQ(atomic_load(&heap->quarantine_bytes), waits);
	CHECK_EQ(ch_heap_collect(heap), CH_OK);
	CHECK_EQ(atomic_load(&heap->quarantine_bytes), 0);
}

/* One step of the sweep ends several blocks. None of their places is free before cores are told. */
TEST_RIG_BY(places_of_blocks_that_die_together_all_wait, start())
{
	enum { BLOCKS = 3, CYCLES_MOST = 4 };
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (uint32_t i = 0; i < BLOCKS; i++)
		(void)rig_block(owner, i);
	struct ch_stats before = rig_stats(&rig), after = before;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	for (int i = 0; i < CYCLES_MOST && after.code_bytes_now == before.code_bytes_now; i++) {
		rig_collect(&rig, 1);
		after = rig_stats(&rig);
	}
	CHECK_EQ(after.blocks_freed - before.blocks_freed, BLOCKS);
	CHECK_EQ(after.quarantine_bytes_now, before.code_bytes_now - after.code_bytes_now);
	rig_collect(&rig, 1);
	CHECK_EQ(rig_stats(&rig).quarantine_bytes_now, 0);
}

static struct ch_code open_data(const struct rig *rig)
{
	struct ch_open open = {.size = sizeof open,
			       .owner = rig_owner(rig, "data"),
			       .hot_bytes = 16,
			       .kind = CH_KIND_RODATA};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	memset(code.write, 7, code.hot_bytes);
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	return code;
}

static void open_user(const struct rig *rig, struct emitter *e, struct ch_owner *owner)
{
	*owner = rig_owner(rig, "user");
	emit_open(e, *owner, 16, 0);
	emit_ret(e);
}

/* Code, data, code die in one cycle. The data may hold the code's unwind table, and its place waits
 * for the end of the sweep. The places of the code do not, on both sides of the data. */
TEST(place_of_data_waits_for_the_sweep_and_no_other)
{
	struct ch_config config = rig_config(4 << 20);
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_heap *heap = rig.heap;
	struct emitter e[2];
	struct ch_owner owners[2];
	open_user(&rig, &e[0], &owners[0]);
	struct ch_code data = open_data(&rig);
	open_user(&rig, &e[1], &owners[1]);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ch_edge_attach(e[i].code.block, data.block), CH_OK);
		CHECK_EQ(emit_commit(&e[i]), CH_OK);
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_COLLECT), CH_OK);
	}
	uint32_t its_record = rig_record(data.block);
	for (int i = 0; i < 4 && !heap->quarantine_head; i++)
		rig_collect(&rig, 1);
	CHECK(heap->quarantine_head);
	ch__heap_lock(heap);
	atomic_store(&heap->sweep_pending, 1);
	bool has_freed = ch__quarantine_advance(heap, true);
	if (atomic_load(&heap->has_core_sync)) {
		CHECK(has_freed);
		CHECK_EQ(heap->quarantine_head, its_record);
		CHECK_EQ(heap->quarantine_tail, its_record);
		CHECK_EQ(ch__block_at(heap, its_record)->quarantine_next, 0);
	}
	atomic_store(&heap->sweep_pending, 0);
	(void)ch__quarantine_advance(heap, true);
	ch__heap_unlock(heap);
	rig_collect(&rig, 1);
	CHECK_EQ(heap->quarantine_head, 0);
	CHECK_EQ(atomic_load(&heap->quarantine_bytes), 0);
	rig_end(&rig);
}

/* Blocks whose frames are told by notes die together, the longest last. */
TEST(no_address_of_a_dead_block_leads_to_its_note)
{
	static const struct ch_frame frame = {.steps_n = 0};
	if (!CH_ARCH_HAS_STEPS)
		skip("no CH_FRAME_STEPS on this machine");
	struct ch_config config = rig_config(4 << 20);
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_heap *heap = rig.heap;
	struct ch_owner owner = rig_owner(&rig, "steps");
	uintptr_t exec[3];
	for (int i = 0; i < 3; i++) {
		struct ch_open open = {.owner = owner,
				       .hot_bytes = i ? 16 : 256,
				       .frame = CH_FRAME_STEPS};
		struct emitter e;
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_ret(&e);
		e.at = open.hot_bytes;
		e.code.frame = &frame;
		CHECK_EQ(emit_commit(&e), CH_OK);
		exec[i] = (uintptr_t)e.code.exec;
	}
	const struct ch__steps *steps = ch__sinks_steps(heap->sinks);
	CHECK(ch__steps_note(steps, exec[2]) && ch__steps_note(steps, exec[0] + 200));
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	for (int i = 0; i < 3; i++)
		for (uintptr_t at = exec[i]; at < exec[i] + (i ? 16 : 256); at += 8)
			CHECK_EQ(ch__steps_note(steps, at), 0);
	rig_end(&rig);
}

/* The vm has no block_freed. A block with an edge to it has a flag that dead blocks have for a
 * notice that is due. */
TEST(nobody_is_told_of_a_block_whose_vm_does_not_ask)
{
	struct ch_config config = rig_config(4 << 20);
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_owner owner;
	struct emitter e;
	open_user(&rig, &e, &owner);
	CHECK_EQ(ch_edge_attach(e.code.block, open_data(&rig).block), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	uint64_t before = rig_stats(&rig).blocks_freed;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(rig_stats(&rig).blocks_freed - before, 2);
	CHECK_EQ(atomic_load(&rig.heap->notice_head), 0);
	rig_end(&rig);
}

static void count_serialized(const struct rig *rig, void *arg)
{
	*(uint32_t *)arg = ch__thread_self(rig->heap)->serialized;
}

/* Two threads use the same record in turn. When a stop of the world was the core sync, the second
 * thread serializes itself, too. */
TEST_RIG_BY(thread_that_gets_a_used_record_serializes_itself, start())
{
	uint32_t first = 0, second = 0;
	atomic_fetch_add(&rig.heap->core_syncs_by_stop, 1);
	rig_apart(&rig, count_serialized, &first);
	rig_apart(&rig, count_serialized, &second);
	CHECK_EQ(first, 1);
	CHECK_EQ(second, 2);
}

/* --- linked targets --- */

/* How the last branch to a block ends before the block is released. */
enum last_branch { NEVER_WAS, UNLINKED, LINKED_ELSEWHERE, CLOSED_ITS_SOURCE, CLOSED, DIED };

/* A core may have fetched a branch to a block, even when the branch leads elsewhere by now, as long
 * as the branch's own block lives. Returns whether the block's place waits. */
static bool waits_after(const struct rig *rig, enum last_branch how)
{
	struct ch_heap *heap = rig->heap;
	struct ch_owner from = rig_owner(rig, "source"), to = rig_owner(rig, "target");
	struct ch_branch branch;
	struct ch_block source = rig_jumper(from, NULL, &branch), target = rig_block(to, 1);
	if (how != NEVER_WAS)
		CHECK_EQ(ch_branch_link(branch, target), CH_OK);
	if (how == UNLINKED)
		CHECK_EQ(ch_branch_link(branch, (struct ch_block){0}), CH_OK);
	if (how == LINKED_ELSEWHERE)
		CHECK_EQ(ch_branch_link(branch, source), CH_OK);
	if (how == CLOSED_ITS_SOURCE)
		CHECK_EQ(ch_blocks_invalidate(&source, 1, NULL), CH_OK);
	if (how == CLOSED)
		CHECK_EQ(ch_blocks_invalidate(&target, 1, NULL), CH_OK);
	if (how == DIED)
		CHECK_EQ(ch_owner_release(from, CH_RELEASE_NOT_RUNNING), CH_OK);
	uint64_t before = atomic_load(&heap->quarantine_bytes);
	CHECK_EQ(ch_owner_release(to, CH_RELEASE_NOT_RUNNING), CH_OK);
	bool waits = atomic_load(&heap->quarantine_bytes) > before;
	(void)!ch_owner_release(from, CH_RELEASE_NOT_RUNNING);
	return waits;
}

TEST_RIG_BY(place_of_code_that_a_branch_led_to_waits, start())
{
	/* The rounds give age stamps of all kinds. */
	for (int cycle = 0; cycle < 4; cycle++) {
		for (int how = UNLINKED; how <= CLOSED; how++)
			if (!waits_after(&rig, (enum last_branch)how))
				FAIL("way %d: a place is free before cores know that no branch "
				     "leads there",
				     how);
		CHECK_EQ(waits_after(&rig, NEVER_WAS), !CH_ARCH_FETCH_FOLLOWS);
		CHECK_EQ(waits_after(&rig, DIED), !CH_ARCH_FETCH_FOLLOWS);
		rig_collect(&rig, 1);
	}
}

/* When the system has no mapping left, a page can be neither lent nor taken back. Many failed opens
 * keep a single page in all. */
TEST(refused_opens_in_place_keep_at_most_a_page)
{
	enum { PAGES = 4, TRIES = PAGES };
	struct ch_config config = rig_config(PAGES * rig_page_bytes());
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_open open = {.size = sizeof open,
			       .owner = rig_owner(&rig, "in place"),
			       .hot_bytes = 64,
			       .flags = CH_OPEN_IN_PLACE};
	struct ch_code code;
	uint32_t kept = 0;
	unsigned refused = 1;
	/* Otherwise the system would refuse the page's memory. */
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(ch_block_abort(&code), CH_OK);
	for (uint64_t nth = 1; refused && nth < 20; nth++) {
		refused = 0;
		for (int i = 0; i < TRIES; i++) {
			ch__os_fail_at(nth, true);
			enum ch_status status = ch_block_open(&open, &code);
			ch__os_fail_at(0, false);
			refused += status != CH_OK;
			if (status == CH_OK)
				CHECK_EQ(ch_block_abort(&code), CH_OK);
			if (rig.heap->pool->inner->spans_retired > kept)
				kept = rig.heap->pool->inner->spans_retired;
		}
	}
	CHECK_EQ(kept, 1);
	rig_end(&rig);
}

/* Live code calls a released owner through the owner's cell. The cell stays, leads to the fallback,
 * and is given to no other owner. */
TEST_RIG_BY(cell_of_a_released_owner_stays_while_code_calls_through_it, start())
{
	enum { CALLED = 31, STRANGERS = 40 };
	struct ch_owner called = rig_owner(&rig, "called"), caller = rig_owner(&rig, "caller");
	struct emitter e;
	CHECK_EQ(ch_owner_set_entry(called, rig_block(called, CALLED)), CH_OK);
	emit_open(&e, caller, 64, 0);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, called), CH_OK);
	const void *exec = emit_here(&e);
	emit_jump_cell(&e, ch_owner_cell(called));
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(code_call(exec), CALLED);
	CHECK_EQ(ch_owner_release(called, CH_RELEASE_NOT_RUNNING), CH_OK);
	for (int i = 0; i < STRANGERS; i++) {
		struct ch_owner stranger = rig_owner(&rig, "stranger");
		CHECK_EQ(ch_owner_set_entry(stranger, rig_block(stranger, 7)), CH_OK);
		CHECK_EQ(code_call(exec), RIG_FALLBACK);
	}
}

/* Also in a slot that is used again. On x86-64 both templates fill their slots. */
TEST_RIG_BY(behind_the_template_of_a_slot_there_are_traps, start())
{
	enum { SLOTS = 20 };
	for (int round = 0; round < 2; round++) {
		struct ch_owner owner = rig_owner(&rig, "slots");
		for (int i = 0; i < SLOTS; i++) {
			struct ch_block slot;
			CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_TAIL,
						    (const void *)(uintptr_t)rig_fallback, 0, NULL,
						    NULL, &slot),
				 CH_OK);
			struct ch_info info = block_info(slot);
			uint8_t same[CH_ARCH_TEMPLATE_BYTES];
			size_t used = ch__arch_template_write(CH_TRAMPOLINE_TAIL, same, 0, 0);
			/* A slot is as wide as the longest template needs. */
			CHECK_EQ(info.hot_bytes, (CH_ARCH_TEMPLATE_BYTES + 7) & ~7);
			CHECK(ch__arch_are_traps((const uint8_t *)info.exec + used,
						 info.hot_bytes - used));
		}
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
}

/* The shared byte may be any byte of both. */
TEST(ref_that_shares_a_byte_with_a_branch_is_refused_and_another_is_not)
{
	enum { REF = sizeof(uintptr_t), PADS = 2, PAD = 4, OTHERS = 10 };
	static const uint8_t padding[64 + PADS * PAD];
	struct rig rig = start();
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (int pad = 0; pad < PADS; pad++)
		for (int at = -2 * REF; at <= 2 * REF; at++) {
			struct emitter e;
			struct ch_branch branch;
			emit_open(&e, owner, 512, 1);
			emit_bytes(&e, padding, 64 + (size_t)pad * PAD);
			const uint8_t *low = emit_site_jmp(&e), *high = emit_here(&e);
			struct ch_branch_site site = {.at = low, .kind = CH_JMP};
			CHECK_EQ(ch_branch_attach(e.code.block, &site, &branch), CH_OK);
			/* With so many refs the thread has a map of the block. */
			for (int i = 0; i < OTHERS; i++)
				CHECK_EQ(ch_ref_attach(e.code.block, low + 160 + REF * i), CH_OK);
			bool is_shared = low + at + REF > low && low + at < high;
			CHECK_EQ(ch_ref_attach(e.code.block, low + at),
				 is_shared ? CH_E_SITE : CH_OK);
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		}
	rig_end(&rig);
}

/* The blocks of two owners lie in turn in one page. */
static void make_in_turn(const struct rig *rig, void *unused)
{
	(void)unused;
	struct ch_owner owners[2] = {rig_owner(rig, "one"), rig_owner(rig, "other")};
	for (int i = 0; i < 6; i++)
		(void)rig_block(owners[i % 2], 1);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_COLLECT), CH_OK);
}

TEST_RIG(owners_end_whose_places_leave_the_quarantine_together)
{
	rig_apart(&rig, make_in_turn, NULL);
	rig_collect(&rig, 4);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	CHECK_EQ(rig_stats(&rig).owners_now, 0);
}

/* A fourth of the listed blocks have an entry since: the list has room, and need not be longer. */
TEST_RIG(open_does_without_memory_where_the_list_of_newborns_has_room)
{
	struct ch_owner owner = rig_owner(&rig, "newborns");
	struct ch__thread *self = ch__thread_self(rig.heap);
	do
		rig_block(owner, 1);
	while (self->young_count < self->young_capacity);
	for (uint32_t i = 0; i < self->young_count / 4; i++)
		CHECK_EQ(ch_owner_set_entry(owner, self->young[i]), CH_OK);
	uint32_t capacity = self->young_capacity;
	ch__os_fail_at(1, false);
	enum ch_status status = try_open(owner, 16, 0);
	ch__os_fail_at(0, false);
	CHECK_EQ(status, CH_OK);
	CHECK_EQ(self->young_capacity, capacity);
}

static struct ch_owner filler;

static bool is_filled;
static void fill_the_list_of_newborns(void *user, void *block_user)
{
	const struct ch__thread *self = ch__thread_self(user);
	(void)block_user;
	while (!is_filled || self->young_count < self->young_capacity) {
		rig_block(filler, 1);
		is_filled = true;
	}
}

static void make_held_until_full(const struct rig *rig, void *arg)
{
	struct ch_owner *owners = arg;
	struct ch_open open = {.hot_bytes = (uint32_t)rig_page_bytes() / 5};
	struct emitter e;
	for (unsigned i = 0;; i++) {
		open.owner = owners[i] = rig_owner(rig, "held");
		if (emit_open_as(&e, &open) != CH_OK)
			return;
		emit_ret(&e);
		e.code.used_to = e.code.hot_bytes;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		CHECK_EQ(ch_owner_set_entry(open.owner, e.code.block), CH_OK);
	}
}

/* The collection of an open calls back, and the callback takes the places that the open reserved on
 * the list of newborns. */
TEST(open_has_a_place_among_the_newborns_behind_callbacks_that_took_all)
{
	struct ch_owner owners[100] = {{0}};
	struct ch_config config = rig_config(16 * rig_page_bytes());
	struct ch_ops ops = {.size = sizeof ops, .block_freed = fill_the_list_of_newborns};
	struct ch_heap *heap;
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	struct rig rig = {.heap = heap};
	CHECK_EQ(ch_vm_attach(heap, &ops, heap, &rig.vm), CH_OK);
	CHECK_EQ(ch_thread_attach(heap, NULL, NULL), CH_OK);
	filler = rig_owner(&rig, "filler");
	rig_apart(&rig, make_held_until_full, owners);
	for (unsigned i = 0; owners[i].bits; i++)
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_COLLECT), CH_OK);
	struct ch_open open = {.owner = filler,
			       .hot_bytes = (uint32_t)rig_page_bytes() / 5,
			       .flags = CH_OPEN_MAY_COLLECT};
	struct emitter e;
	const struct ch__thread *self = ch__thread_self(heap);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(is_filled && self->young_capacity && self->young_count <= self->young_capacity);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
}

/* Other calls wait for the heap lock during one step, and not for the end of all owners. */
TEST_RIG_BY(owners_that_died_end_in_steps, rig_start_host(1 << 20))
{
	enum { STEP = 2048, OWNERS = 2 * STEP + 1 };
	struct ch_marker *marker;
	for (int sweeps = 0; sweeps < 2; sweeps++) {
		for (int i = 0; i < OWNERS; i++)
			(void)rig_owner(&rig, "owner");
		CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
		ch_mark_stack(marker, &rig, &rig); /* no stack has code */
		CHECK_EQ(ch_mark_end(marker, true), CH_OK);
		uint64_t left = OWNERS, is;
		while (atomic_load(&rig.heap->sweep_pending)) {
			(void)ch__sweep_step(rig.heap);
			is = rig_stats(&rig).owners_now;
			CHECK(left - is <= STEP);
			left = is;
		}
		CHECK_EQ(left, 0);
	}
}

/* The sweep has passed the owner when a cycle finds it dead. The heap never had a block. */
TEST_RIG_BY(owner_that_died_amid_a_sweep_ends_with_the_next, rig_start_host(1 << 20))
{
	enum { OWNERS = 2 * 2048 + 1 };
	struct ch_owner first = rig_owner(&rig, "first");
	struct ch_marker *marker;
	for (int i = 1; i < OWNERS; i++)
		(void)rig_owner(&rig, "owner");
	for (int cycle = 0; cycle < 2; cycle++) {
		CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
		ch_mark_stack(marker, &rig, &rig);
		if (cycle == 0)
			ch_mark_owner(marker, first);
		CHECK_EQ(ch_mark_end(marker, true), CH_OK);
		CHECK(ch__sweep_step(rig.heap));
	}
	while (ch__sweep_step(rig.heap) || atomic_load(&rig.heap->sweep_pending))
		continue;
	CHECK_EQ(rig_stats(&rig).owners_now, 0);
}

/* More comes back than was opened since the thread last counted. */
TEST_RIG(room_that_comes_back_after_it_was_counted_asks_for_no_collection)
{
	struct ch_owner owner = rig_owner(&rig, "short");
	struct emitter large, small;
	emit_open(&large, owner, 9000, 0);
	emit_open(&small, owner, 64, 0);
	emit_ret(&large);
	emit_ret(&small);
	CHECK_EQ(emit_commit(&large), CH_OK);
	CHECK_EQ(emit_commit(&small), CH_OK);
	(void)rig_block(owner, 1);
	CHECK(atomic_load(&rig.heap->bytes_since_cycle) < 2 * 9000);
	CHECK(!atomic_load(&rig.heap->collect_wanted));
}

/* Each block has another file. */
static void make_with_all(struct ch_owner owner, struct ch_assumption fact)
{
	enum { LINES = 50 };
	static char file[] = "0 source";
	struct ch_line lines[LINES];
	struct emitter e;
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 64,
			       .entry = CH_ENTRY_GUARD};
	file[0]++;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	for (uint32_t i = 0; i < LINES; i++)
		lines[i] = (struct ch_line){e.code.exec + i, i};
	CHECK_EQ(ch_block_lines(e.code.block, file, lines, LINES), CH_OK);
	CHECK_EQ(ch_block_assume(e.code.block, fact), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
}

/* The first turn makes what the heap keeps. */
TEST_RIG(side_memory_of_what_has_ended_goes_back)
{
	size_t freed, kept, bytes = 0;
	for (int turn = 0; turn < 3; turn++) {
		struct ch_owner owner = rig_owner(&rig, "owner");
		struct ch_assumption fact;
		CHECK_EQ(ch_assumption_create(rig.vm, &fact), CH_OK);
		make_with_all(owner, fact);
		CHECK_EQ(ch_assumption_break(fact, NULL), CH_OK);
		CHECK_EQ(ch_vm_discard(rig.heap, NULL, &freed, &kept), CH_OK);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		size_t before = bytes;
		bytes = ch__meta_bytes(rig.heap->meta);
		if (turn > 1)
			CHECK_EQ(bytes, before);
	}
}

static bool invalidate_and_refuse(void *user)
{
	const struct ch_owner *owner = user;
	struct ch_block more = rig_block(*owner, 2);
	CHECK_EQ(ch_blocks_invalidate(&more, 1, NULL), CH_OK);
	return false;
}

/* More is left than the discard found. */
TEST_RIG(discard_whose_collection_fails_has_freed_nothing)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_ops ops = {.size = sizeof ops, .stop_world = invalidate_and_refuse};
	struct ch_vm *vm;
	size_t freed = 7, kept = 7;
	CHECK_EQ(ch_vm_attach(rig.heap, &ops, &owner, &vm), CH_OK);
	(void)rig_block(owner, 1);
	CHECK_EQ(ch_vm_discard(rig.heap, NULL, &freed, &kept), CH_E_BUSY);
	CHECK_EQ(freed, 0);
	CHECK_EQ(kept, 2);
	CHECK_EQ(ch_vm_detach(vm), CH_OK);
}

/* Two of ten chunks are unused: too few for a trim beside a release. */
TEST_RIG_BY(collection_leaves_one_unused_chunk, rig_start(16 << 20))
{
	enum { CHUNKS = 10, UNUSED = 2 };
	const struct ch__pool *pool = rig.heap->pool;
	uint32_t bytes = (uint32_t)ch__pool_chunk_bytes(pool) - HEAD_BYTES;
	struct ch_owner owners[CHUNKS];
	for (unsigned i = 0; i < CHUNKS; i++) {
		struct emitter e;
		owners[i] = rig_owner(&rig, "chunk");
		emit_open(&e, owners[i], bytes, 0);
		emit_filler(&e, bytes - CODE_RETURN_BYTES);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
	uint32_t before = pool->pages_committed;
	for (unsigned i = 0; i < UNUSED; i++)
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(pool->pages_committed, before);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(pool->pages_committed, before - (UNUSED - 1) * ch__pool_chunk_pages(pool));
}
