/* SPDX-License-Identifier: MIT
 * stats.c: counts and bytes by kind equal a model under random operations, per heap and per owner.
 * Then threads that left, the peak, strings, and the times of cycles. */
#include "codeheap/collector.h"
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

#include <pthread.h>

enum { SLOTS = 60 };

struct slot {
	struct ch_owner owner;
	struct emitter e;
	enum ch_block_state state;    /* FREE: the slot is empty */
	uint32_t hot, cold, branches; /* bytes as counted; branch room */
	struct ch_branch branch;
	uint32_t linked_to; /* slot + 1 */
};

struct model {
	struct slot slots[SLOTS];
	uint64_t opened, committed, aborted, freed, invalidated, bytes_opened, bytes_freed;
	uint64_t owners;
};

static struct rig rig;
static struct model model;
static struct test_random dice;

static uint32_t round8(uint32_t bytes)
{
	return (bytes + 7) & ~7u;
}

static void open_slot(struct slot *s)
{
	uint32_t cold = (uint32_t)test_random_below(&dice, 3) * 13;
	s->branches = (uint32_t)test_random_below(&dice, 12);
	struct ch_open open = {.owner = s->owner = rig_owner(&rig, "slot"),
			       .hot_bytes = 40 + (uint32_t)test_random_below(&dice, 200),
			       .cold_bytes = cold,
			       .branch_room = s->branches};
	CHECK_EQ(emit_open_as(&s->e, &open), CH_OK);
	s->state = CH_BLOCK_OPEN;
	s->hot = round8(open.hot_bytes + CODE_LANDING_BYTES + 8);
	uint32_t stubs = ch__stub_bytes(rig.heap) * s->branches;
	s->cold = cold + s->branches ? round8(8 + stubs + cold) : 0;
	s->linked_to = 0;
	model.opened++;
	model.owners++;
	model.bytes_opened += s->hot + s->cold;
}

static void commit_slot(struct slot *s)
{
	s->branch.bits = 0;
	if (s->branches)
		s->branch = emit_jmp(&s->e, NULL);
	emit_filler(&s->e, s->e.at + (uint32_t)test_random_below(&dice, 20));
	emit_ret(&s->e);
	s->e.code.cold_used = s->e.code.cold_bytes / 2;
	s->hot = round8(8 + s->e.at);
	if (s->cold)
		s->cold = round8(8 + ch__stub_bytes(rig.heap) * s->branches + s->e.code.cold_used);
	CHECK_EQ(emit_commit(&s->e), CH_OK);
	s->state = CH_BLOCK_LIVE;
	model.committed++;
}

static void unlink_all_of(struct slot *s)
{
	s->linked_to = 0;
	for (int i = 0; i < SLOTS; i++)
		if (model.slots[i].linked_to == (uint32_t)(s - model.slots) + 1)
			model.slots[i].linked_to = 0;
}

static void end_slot(struct slot *s)
{
	if (s->state == CH_BLOCK_OPEN) {
		CHECK_EQ(ch_block_abort(&s->e.code), CH_OK);
		model.aborted++;
	} else {
		unlink_all_of(s);
		model.freed++;
	}
	model.bytes_freed += s->hot + s->cold;
	CHECK_EQ(ch_owner_release(s->owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	model.owners--;
	s->state = CH_BLOCK_FREE;
}

static void step(void)
{
	struct slot *s = &model.slots[test_random_below(&dice, SLOTS)];
	struct slot *to = &model.slots[test_random_below(&dice, SLOTS)];
	switch (s->state) {
	case CH_BLOCK_FREE:
		open_slot(s);
		break;
	case CH_BLOCK_OPEN:
		if (test_random_below(&dice, 5))
			commit_slot(s);
		else
			end_slot(s);
		break;
	case CH_BLOCK_LIVE:
		if (s->branch.bits && to->state == CH_BLOCK_LIVE && test_random_below(&dice, 3)) {
			CHECK_EQ(ch_branch_link(s->branch, to->e.code.block), CH_OK);
			s->linked_to = (uint32_t)(to - model.slots) + 1;
		} else if (test_random_below(&dice, 2)) {
			CHECK_EQ(ch_blocks_invalidate(&s->e.code.block, 1, NULL), CH_OK);
			unlink_all_of(s);
			s->state = CH_BLOCK_NOTENTRANT;
			model.invalidated++;
		} else {
			end_slot(s);
		}
		break;
	default:
		end_slot(s);
		break;
	}
}

static void compare(void)
{
	struct ch_stats stats = rig_stats(&rig);
	uint64_t hot = 0, cold = 0, branches = 0, open = 0, blocks = 0, dull = 0, dull_bytes = 0;
	uint64_t linked = 0;
	for (int i = 0; i < SLOTS; i++) {
		const struct slot *s = &model.slots[i];
		if (s->state == CH_BLOCK_FREE)
			continue;
		blocks++;
		open += s->state == CH_BLOCK_OPEN;
		hot += s->hot;
		cold += s->cold;
		branches += s->branches;
		linked += s->linked_to != 0;
		if (s->state == CH_BLOCK_NOTENTRANT) {
			dull++;
			dull_bytes += s->hot + s->cold;
		}
		struct ch_owner_facts facts = {.size = sizeof facts};
		CHECK_EQ(ch_owner_info(s->owner, &facts), CH_OK);
		CHECK_EQ(facts.code_bytes_now, s->hot + s->cold);
		CHECK_EQ(facts.blocks_now, 1);
	}
	CHECK_EQ(stats.blocks_now, blocks);
	CHECK_EQ(stats.blocks_open_now, open);
	CHECK_EQ(stats.blocks_notentrant_now, dull);
	CHECK_EQ(stats.notentrant_bytes_now, dull_bytes);
	CHECK_EQ(stats.hot_bytes_now, hot);
	CHECK_EQ(stats.cold_bytes_now, cold);
	CHECK_EQ(stats.code_bytes_now, hot + cold);
	CHECK_EQ(stats.stub_bytes_now, branches * ch__stub_bytes(rig.heap));
	CHECK_EQ(stats.branches_now, branches);
	CHECK_EQ(stats.branches_linked - stats.branches_unlinked, linked);
	/* A block with incoming branches keeps its owner until a core sync has passed. */
	CHECK(stats.owners_now >= model.owners);
	CHECK_EQ(stats.blocks_opened, model.opened);
	CHECK_EQ(stats.blocks_committed, model.committed);
	CHECK_EQ(stats.blocks_aborted, model.aborted);
	CHECK_EQ(stats.blocks_freed, model.freed);
	CHECK_EQ(stats.blocks_invalidated, model.invalidated);
	CHECK_EQ(stats.bytes_opened, model.bytes_opened);
	CHECK(stats.code_bytes_peak >= stats.code_bytes_now);
	CHECK(stats.pages_peak >= stats.pages_now);
	CHECK(stats.metadata_bytes_now > 0);
}

TEST_SHARED_RIG(stats_equal_a_model_under_random_operations, rig_start(4 << 20))
{
	dice = test_random_new();
	for (int i = 0; i < 20000; i++) {
		step();
		if (i % 97 == 0)
			compare();
	}
	for (int i = 0; i < SLOTS; i++)
		if (model.slots[i].state != CH_BLOCK_FREE)
			end_slot(&model.slots[i]);
	compare();
	CHECK_EQ(rig_stats(&rig).code_bytes_now, 0);
	rig_collect(&rig, 2);
	CHECK_EQ(rig_stats(&rig).quarantine_bytes_now, 0);
	CHECK_EQ(rig_stats(&rig).owners_now, 0);
}

TEST_SHARED_RIG(stats_of_threads_that_left_are_kept, rig_start(1 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	rig_block(owner, 1);
	struct ch_stats before = rig_stats(&rig);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	struct ch_stats after = rig_stats(&rig);
	CHECK_EQ(before.threads_now, 1);
	CHECK_EQ(after.threads_now, 0);
	CHECK_EQ(after.blocks_opened, before.blocks_opened);
	CHECK_EQ(after.code_bytes_now, before.code_bytes_now);
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
}

TEST_SHARED_RIG(the_peak_of_code_bytes_is_seen_without_asking, rig_start(4 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (int i = 0; i < 2000; i++)
		rig_block(owner, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	/* The peak may lack the bytes that a thread opens between two reports. */
	CHECK(rig_stats(&rig).code_bytes_peak + 16384 >= 2000 * 16);
}

enum { MANY_THREADS = 20 };
static pthread_barrier_t all_are_attached;

static void *attach_with_others(void *arg)
{
	(void)arg;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	(void)pthread_barrier_wait(&all_are_attached);
	return NULL;
}

/* A sum over records of threads is made once in 16 KiB of dead code. */
TEST_SHARED_RIG(the_peak_of_code_bytes_is_seen_with_many_threads, rig_start(4 << 20))
{
	enum { OWNERS = 8, BLOCKS = 30, ALL_BYTES = OWNERS * BLOCKS * 1024 };
	pthread_t threads[MANY_THREADS];
	struct ch_owner owners[OWNERS];
	CHECK_EQ(pthread_barrier_init(&all_are_attached, NULL, MANY_THREADS), 0);
	for (int i = 0; i < MANY_THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, attach_with_others, NULL), 0);
	for (int i = 0; i < MANY_THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK(rig_stats(&rig).code_bytes_peak < ALL_BYTES / 2);
	for (int i = 0; i < OWNERS; i++) {
		owners[i] = rig_owner(&rig, "owner");
		for (int block = 0; block < BLOCKS; block++) {
			struct emitter e;
			emit_open(&e, owners[i], 1024, 0);
			emit_filler(&e, 1016);
			emit_ret(&e);
			CHECK_EQ(emit_commit(&e), CH_OK);
		}
	}
	for (int i = 0; i < OWNERS; i++)
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(rig_stats(&rig).code_bytes_peak + (16 << 10) >= ALL_BYTES);
}

TEST_SHARED_RIG(the_peak_of_code_bytes_is_the_most_at_one_time, rig_start(4 << 20))
{
	uint64_t peak = 0;
	for (int round = 0; round < 4; round++) {
		struct ch_owner owner = rig_owner(&rig, "owner");
		for (int i = 0; i < 100; i++)
			rig_block(owner, 1);
		peak = peak ? peak : rig_stats(&rig).code_bytes_peak;
		CHECK(peak && rig_stats(&rig).code_bytes_peak == peak);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		rig_settle(&rig);
		CHECK_EQ(rig_stats(&rig).code_bytes_now, 0);
	}
}

/* What a commit gives back in front of the code and behind it. */
TEST_SHARED_RIG(bytes_that_the_code_did_not_need_are_no_code_bytes, rig_start(1 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "late entry");
	struct emitter e;
	emit_open(&e, owner, 64, 0);
	emit_filler(&e, e.at + 24);
	emit_ret(&e);
	e.code.used_from = e.code.entry_offset = 24;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(rig_stats(&rig).code_bytes_now, 0);
}

/* --- strings --- */

TEST_SHARED_RIG(cold_bytes_are_freed_bytes, rig_start(1 << 20))
{
	struct ch_owner owner = rig_owner(&rig, "cold");
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 16, .cold_bytes = 400};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	memset(e.code.cold_write, 0, 400);
	e.code.cold_used = 400;
	CHECK_EQ(emit_commit(&e), CH_OK);
	struct ch_stats before = rig_stats(&rig);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	struct ch_stats after = rig_stats(&rig);
	CHECK(before.code_bytes_now >= 400);
	CHECK_EQ(after.code_bytes_now, 0);
	CHECK_EQ(after.bytes_freed - before.bytes_freed, before.code_bytes_now);
}

TEST(stats_say_what_the_heap_got)
{
	static const char *const backends[] = {"dual", "memfd", "procmem"};
	const char *wanted = getenv("CODEHEAP_WX");
	rig = rig_start(1 << 20);
	struct ch_stats stats = rig_stats(&rig), again = rig_stats(&rig);
	unsigned known = 0;
	for (unsigned i = 0; i < 3; i++)
		known += !strcmp(stats.backend, backends[i]);
	CHECK_EQ(known, 1);
	if (wanted)
		CHECK_STR(stats.backend, wanted);
	CHECK_STR(stats.version, CH_VERSION_TEXT);
	CHECK(stats.version == again.version && stats.backend == again.backend);
	CHECK_EQ(stats.sinks_on, CH_SINK_UNWIND);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_NONE), CH_OK);
	CHECK_EQ(rig_stats(&rig).sinks_on, 0);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_GDB), CH_OK);
	CHECK_EQ(rig_stats(&rig).sinks_on, CH_SINK_GDB);
	rig_end(&rig);
}

TEST_SHARED_RIG(stats_say_how_long_cycles_marked, rig_start(1 << 20))
{
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	struct ch_stats first = rig_stats(&rig);
	CHECK(first.mark_ns_last > 0 && first.mark_ns_last <= first.pause_ns_last);
	CHECK_EQ(first.mark_ns_total, first.mark_ns_last);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	struct ch_stats second = rig_stats(&rig);
	CHECK(second.mark_ns_last > 0);
	CHECK_EQ(second.mark_ns_total, first.mark_ns_total + second.mark_ns_last);
}

TEST(stop_that_completes_no_cycle_is_a_pause)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_marker *marker;
	config.driver = CH_DRIVER_HOST;
	config.stops_world = true;
	rig = rig_create(&config, NULL, NULL);
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	struct ch_stats stats = rig_stats(&rig);
	CHECK_EQ(stats.cycles, 0);
	CHECK(stats.pause_ns_last > 0 && stats.pause_ns_max == stats.pause_ns_last);
	rig_end(&rig);
}

TEST_SHARED_RIG(freezes_count_without_a_cycle, rig_start(1 << 20))
{
	uint64_t before = rig_stats(&rig).freezes;
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_GDB), CH_OK);
	CHECK_EQ(rig_stats(&rig).freezes, before + 1);
}
