/* SPDX-License-Identifier: MIT
 * marking.c: the marker with the smallest possible queue: more roots of each kind than places, a
 * queue filled to the last place, and refs of a graph that is scanned again. No stack is a root
 * here: cycles run on threads that are not attached. A host's cycles have a queue of QUEUE places,
 * by the mask; a built-in cycle reserves its own. */
#include "codeheap/graph/block.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/collect/collect.h"
#include "codeheap/life/life.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>

enum {
	QUEUE = 8,
	MANY = 8 * QUEUE,
	AHEAD = 16, /* edges that the marker prefetched and has not looked at yet (mark.c) */
	WIDTH_MOST = 4 * AHEAD,
};

struct scene {
	struct ch_marker *marker;
	struct ch_owner owners[MANY];
	struct ch_block blocks[MANY];
	uintptr_t words[MANY];
};

static void start_host(struct rig *rig, size_t pool_bytes, const struct ch_ops *ops)
{
	struct ch_config config = rig_config(pool_bytes);
	config.driver = CH_DRIVER_HOST;
	*rig = rig_create(&config, ops, NULL);
}

static void begin_cycle(const struct rig *rig, struct scene *s)
{
	CHECK_EQ(ch_mark_begin(rig->heap, &s->marker), CH_OK);
	CHECK(s->marker->queue_mask >= QUEUE - 1);
}

/* The mask sets the queue's size; both ends are at the queue's beginning. */
static uint32_t shrink_queue(struct ch_marker *marker)
{
	uint32_t mask = marker->queue_mask;
	CHECK_EQ(marker->head, marker->tail);
	marker->queue_mask = QUEUE - 1;
	return mask;
}

static void end_cycle(const struct rig *rig, struct ch_marker *marker, uint32_t mask)
{
	CHECK_EQ(marker->head, marker->tail);
	marker->queue_mask = mask;
	ch_mark_stack(marker, rig, rig); /* no stack has code */
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	ch__sweep_steps(rig->heap, UINT32_MAX);
}

static void expect_blocks(const struct ch_block *blocks, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!rig_is_there(blocks[i]))
			FAIL("block %u of %u was lost", i, count);
}

/* --- more roots than places in the queue --- */

static void make_young(const struct rig *rig, void *arg)
{
	struct scene *s = arg;
	s->owners[0] = rig_owner(rig, "young");
	for (unsigned i = 0; i < MANY; i++)
		s->blocks[i] = rig_block(s->owners[0], i);
}

/* `make` makes more blocks than places in the queue; `mark` runs a cycle. */
static void expect_marked(void (*make)(const struct rig *, void *),
			  void (*mark)(const struct rig *, void *))
{
	static struct scene s;
	struct rig rig;
	start_host(&rig, 1 << 20, NULL);
	rig_apart(&rig, make, &s);
	rig_alone(&rig, mark, &s);
	expect_blocks(s.blocks, MANY);
	rig_end(&rig);
}

static void mark_young_only(const struct rig *rig, void *arg)
{
	struct scene *s = arg;
	begin_cycle(rig, s);
	uint32_t mask = shrink_queue(s->marker);
	ch_mark_stacks(s->marker);
	end_cycle(rig, s->marker, mask);
}

TEST(young_blocks_that_are_more_than_the_queue_holds_are_marked)
{
	expect_marked(make_young, mark_young_only);
}

static void mark_words_only(const struct rig *rig, void *arg)
{
	struct scene *s = arg;
	begin_cycle(rig, s);
	uint32_t mask = shrink_queue(s->marker);
	ch_mark_stack(s->marker, s->words, s->words + MANY);
	end_cycle(rig, s->marker, mask);
}

/* The same blocks when they are new no longer: a stack's words held them. */
static void expect_old_are_marked(void (*mark)(const struct rig *, void *))
{
	static struct scene s;
	struct rig rig;
	start_host(&rig, 1 << 20, NULL);
	rig_apart(&rig, make_young, &s);
	for (unsigned i = 0; i < MANY; i++)
		s.words[i] = (uintptr_t)block_info(s.blocks[i]).entry;
	for (int cycle = 0; cycle < 4; cycle++)
		rig_alone(&rig, mark_words_only, &s);
	rig_alone(&rig, mark, &s);
	expect_blocks(s.blocks, MANY);
	rig_end(&rig);
}

TEST(words_of_a_stack_that_are_more_than_the_queue_holds_are_roots)
{
	expect_old_are_marked(mark_words_only);
}

static void mark_every_block(const struct rig *rig, void *arg)
{
	struct scene *s = arg;
	begin_cycle(rig, s);
	uint32_t mask = shrink_queue(s->marker);
	ch_mark_owner(s->marker, (struct ch_owner){0}); /* begins the cycle */
	ch__marker_has_cycle(s->marker);
	ch__mark_all(s->marker);
	ch__mark_drain(s->marker);
	end_cycle(rig, s->marker, mask);
}

TEST(all_blocks_that_are_more_than_the_queue_holds_are_marked)
{
	expect_old_are_marked(mark_every_block);
}

/* A built-in cycle has a queue of CH__QUEUE_MIN places for four times as many blocks. */
enum { ENTRIES = CH__QUEUE_MIN + 200 };
static struct ch_block entries[ENTRIES];

static void make_entries(const struct rig *rig, void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < ENTRIES; i++) {
		struct ch_owner owner = rig_owner(rig, "entry");
		entries[i] = rig_block(owner, i);
		CHECK_EQ(ch_owner_set_entry(owner, entries[i]), CH_OK);
	}
}

TEST_RIG_BY(entries_that_are_more_than_the_queue_holds_are_roots, rig_start(4 << 20))
{
	rig_apart(&rig, make_entries, NULL);
	rig_collect(&rig, 1);
	CHECK_EQ(rig.heap->marker.queue_mask, CH__QUEUE_MIN - 1);
	expect_blocks(entries, ENTRIES);
}

/* --- a queue filled to the last place --- */

struct fan {
	struct ch_owner owner; /* the owner's entry is the wide block */
	struct ch_block leaves[WIDTH_MOST], behind;
};

static struct fan fans[WIDTH_MOST];
static unsigned width;

/* Makes a block with `width` branches. The leaf of branch `at` has a branch to one more block. */
static struct ch_block make_fan(const struct rig *rig, struct fan *fan, unsigned at)
{
	struct ch_branch branches[WIDTH_MOST], on;
	struct ch_owner leaves = rig_owner(rig, "leaves");
	struct emitter e;
	fan->owner = rig_owner(rig, "fan");
	emit_open(&e, fan->owner, width * 16, width);
	for (unsigned i = 0; i < width; i++)
		branches[i] = emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	fan->behind = rig_block(leaves, 1);
	for (unsigned i = 0; i < width; i++) {
		fan->leaves[i] = i == at ? rig_jumper(leaves, NULL, &on) : rig_block(leaves, i);
		CHECK_EQ(ch_branch_link(branches[i], fan->leaves[i]), CH_OK);
	}
	CHECK_EQ(ch_branch_link(on, fan->behind), CH_OK);
	CHECK_EQ(ch_owner_set_entry(fan->owner, e.code.block), CH_OK);
	return e.code.block;
}

static void make_fans(const struct rig *rig, void *arg)
{
	(void)arg;
	for (unsigned at = 0; at < width; at++)
		make_fan(rig, &fans[at], at);
}

static void mark_fans(const struct rig *rig, void *arg)
{
	struct scene *s = arg;
	begin_cycle(rig, s);
	uint32_t mask = shrink_queue(s->marker);
	for (unsigned at = 0; at < width; at++)
		ch_mark_owner(s->marker, fans[at].owner);
	end_cycle(rig, s->marker, mask);
}

/* No entry of the queue is overwritten: the marker looks at each leaf, whichever leaf takes the
 * last place, and at the block behind. */
TEST(queue_that_is_full_to_its_last_place_loses_nothing)
{
	static const unsigned widths[] = {AHEAD + QUEUE - 1, AHEAD + QUEUE, AHEAD + QUEUE + 1,
					  AHEAD + QUEUE + 2, WIDTH_MOST};
	for (unsigned i = 0; i < sizeof widths / sizeof widths[0]; i++) {
		static struct scene s;
		struct rig rig;
		start_host(&rig, 4 << 20, NULL);
		width = widths[i];
		rig_apart(&rig, make_fans, NULL);
		rig_alone(&rig, mark_fans, &s);
		for (unsigned at = 0; at < width; at++) {
			expect_blocks(fans[at].leaves, width);
			expect_blocks(&fans[at].behind, 1);
		}
		rig_end(&rig);
	}
}

/* A block whose branches lead to AHEAD leaves. */
static struct ch_block make_jumps(const struct rig *rig, struct ch_block *leaves)
{
	struct ch_owner owner = rig_owner(rig, "jumps");
	struct ch_branch branches[AHEAD];
	struct emitter e;
	emit_open(&e, owner, AHEAD * 16, AHEAD);
	for (unsigned i = 0; i < AHEAD; i++)
		branches[i] = emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	for (unsigned i = 0; i < AHEAD; i++) {
		leaves[i] = rig_block(owner, i);
		CHECK_EQ(ch_branch_link(branches[i], leaves[i]), CH_OK);
	}
	return e.code.block;
}

/* The edges of a block fill the queue. Two blocks with branches come last: the marker looks at them
 * first, while their leaves find no room, and a scan of the marked blocks comes to the later record
 * behind all others. */
static void make_full_of_jumps(const struct rig *rig, void *arg)
{
	struct scene *s = arg;
	struct ch_block one = make_jumps(rig, s->blocks);
	struct ch_block other = make_jumps(rig, s->blocks + AHEAD);
	bool is_later = rig_record(other) > rig_record(one);
	struct ch_block to[QUEUE] = {[QUEUE - 2] = is_later ? one : other,
				     [QUEUE - 1] = is_later ? other : one};
	struct emitter e;
	s->owners[0] = rig_owner(rig, "full");
	for (unsigned i = 0; i < QUEUE - 2; i++)
		to[i] = rig_block(s->owners[0], i);
	emit_open(&e, s->owners[0], 16, 0);
	emit_ret(&e);
	for (unsigned i = 0; i < QUEUE; i++)
		CHECK_EQ(ch_edge_attach(e.code.block, to[i]), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(s->owners[0], e.code.block), CH_OK);
}

static void mark_full_of_jumps(const struct rig *rig, void *arg)
{
	struct scene *s = arg;
	begin_cycle(rig, s);
	uint32_t mask = shrink_queue(s->marker);
	ch_mark_owner(s->marker, s->owners[0]);
	end_cycle(rig, s->marker, mask);
}

TEST(last_edges_of_a_scan_of_the_marked_blocks_are_looked_at)
{
	static struct scene s;
	struct rig rig;
	start_host(&rig, 1 << 20, NULL);
	rig_apart(&rig, make_full_of_jumps, &s);
	rig_alone(&rig, mark_full_of_jumps, &s);
	expect_blocks(s.blocks, 2 * AHEAD);
	rig_end(&rig);
}

/* --- refs of a graph that is scanned again --- */

static unsigned reported[WIDTH_MOST];

static uintptr_t count_ref(void *user, uintptr_t word)
{
	(void)user;
	CHECK(word < WIDTH_MOST);
	reported[word]++;
	return word;
}

static struct ch_block make_leaf_with_ref(struct ch_owner owner, uintptr_t word)
{
	struct emitter e;
	emit_open(&e, owner, 64, 0);
	const void *at = emit_ref_word(&e, word);
	emit_ret(&e);
	CHECK_EQ(ch_ref_attach(e.code.block, at), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static void make_fan_of_refs(const struct rig *rig, void *arg)
{
	struct fan *fan = arg;
	struct ch_branch branches[WIDTH_MOST];
	struct ch_owner leaves = rig_owner(rig, "refs");
	struct emitter e;
	fan->owner = rig_owner(rig, "fan");
	emit_open(&e, fan->owner, WIDTH_MOST * 16, WIDTH_MOST);
	for (unsigned i = 0; i < WIDTH_MOST; i++)
		branches[i] = emit_jmp(&e, NULL);
	CHECK_EQ(emit_commit(&e), CH_OK);
	for (unsigned i = 0; i < WIDTH_MOST; i++) {
		fan->leaves[i] = make_leaf_with_ref(leaves, i);
		CHECK_EQ(ch_branch_link(branches[i], fan->leaves[i]), CH_OK);
	}
	CHECK_EQ(ch_owner_set_entry(fan->owner, e.code.block), CH_OK);
}

TEST(ref_of_a_graph_that_is_scanned_again_is_reported_once)
{
	static struct scene s;
	struct ch_ops ops = {.size = sizeof ops, .ref = count_ref};
	struct rig rig;
	start_host(&rig, 1 << 20, &ops);
	width = 1;
	rig_apart(&rig, make_fan_of_refs, &fans[0]);
	rig_alone(&rig, mark_fans, &s);
	expect_blocks(fans[0].leaves, WIDTH_MOST);
	for (unsigned i = 0; i < WIDTH_MOST; i++)
		CHECK_EQ(reported[i], 1);
	rig_end(&rig);
}

/* The edge of an OPEN block still leads to the record of a block that was aborted. The next open
 * takes the record, finds its owner dead, and gives its side list to a third block. */
TEST(record_of_an_open_that_failed_reports_no_ref_of_another_block)
{
	struct ch_ops ops = {.size = sizeof ops, .ref = count_ref};
	struct ch_config config = rig_config(1 << 20);
	struct rig rig = rig_create(&config, &ops, NULL);
	struct ch_open open = {.owner = rig_owner(&rig, "dead"), .hot_bytes = 64, .name = "late"};
	struct ch_owner owner = rig_owner(&rig, "alive");
	struct emitter source, target;
	struct ch_code late;
	CHECK_EQ(ch_owner_release(open.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	emit_open(&source, owner, 64, 0);
	emit_open(&target, owner, 64, 0);
	uint32_t record = rig_record(target.code.block);
	CHECK_EQ(ch_edge_attach(source.code.block, target.code.block), CH_OK);
	CHECK_EQ(ch_block_abort(&target.code), CH_OK);
	CHECK_EQ(ch__block_open(rig.heap, ch__thread_self(rig.heap), &open, &late), CH_E_STALE);
	CHECK_EQ(ch__handle_index(open.owner.bits), ch__block_at(rig.heap, record)->owner);
	make_leaf_with_ref(owner, 0);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(reported[0], 1);
	CHECK_EQ(ch_block_abort(&source.code), CH_OK);
	rig_end(&rig);
}

/* --- callbacks while only a stack is scanned --- */

static unsigned refused;

static uintptr_t call_from_ref(void *user, uintptr_t word)
{
	(void)user;
	refused++;
	CHECK_EQ(ch_thread_attach((struct ch_heap *)word, NULL, NULL), CH_E_STATE);
	return word;
}

static void make_lonely(const struct rig *rig, void *arg)
{
	struct ch_block block = make_leaf_with_ref(rig_owner(rig, "lonely"), (uintptr_t)rig->heap);
	*(uintptr_t *)arg = (uintptr_t)block_info(block).entry;
}

/* By the fourth cycle the block is no young block's root: this frame alone holds it. */
TEST(callback_of_a_block_that_only_a_stack_holds_may_not_call_the_heap)
{
	struct ch_ops ops = {.size = sizeof ops, .ref = call_from_ref};
	struct ch_config config = rig_config(1 << 20);
	struct rig rig = rig_create(&config, &ops, NULL);
	volatile uintptr_t held;
	rig_apart(&rig, make_lonely, (void *)(uintptr_t)&held);
	for (unsigned cycle = 1; cycle <= 4; cycle++) {
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		CHECK_EQ(refused, cycle);
	}
	held = 0;
	rig_collect(&rig, 4);
	CHECK(refused < 8);
	rig_end(&rig);
}

/* --- the end of the pool --- */

static struct ch_block last, before_last;

/* Makes blocks of a page each, without cold bytes: the last block ends at the pool's end. */
static void fill_pool(const struct rig *rig, void *arg)
{
	const struct ch__pool *pool = rig->heap->pool;
	uintptr_t end = pool->exec_base + pool->pool_bytes;
	struct ch_owner owner = rig_owner(rig, "page");
	struct emitter e;
	struct ch_open open = {.owner = owner};
	open.hot_bytes = (1u << pool->page_log2) - CH__HEAD_BYTES;
	(void)arg;
	while (emit_open_as(&e, &open) == CH_OK) {
		emit_ret(&e);
		e.code.used_to = e.code.hot_bytes;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		if ((uintptr_t)e.code.exec + e.code.hot_bytes == end)
			last = e.code.block;
		else
			before_last = e.code.block;
	}
}

static void mark_end_of_pool(const struct rig *rig, void *arg)
{
	const struct ch__pool *pool = rig->heap->pool;
	uintptr_t end = pool->exec_base + pool->pool_bytes;
	struct scene *s = arg;
	begin_cycle(rig, s);
	ch_mark_stack(s->marker, &end, &end + 1);
	end_cycle(rig, s->marker, s->marker->queue_mask);
}

TEST(return_address_at_the_very_end_of_the_pool_holds_its_block)
{
	static struct scene s;
	struct rig rig;
	start_host(&rig, 1 << 20, NULL);
	rig_apart(&rig, fill_pool, NULL);
	CHECK(last.bits && before_last.bits);
	for (int cycle = 0; cycle < 4; cycle++)
		rig_alone(&rig, mark_end_of_pool, &s);
	CHECK(!rig_is_there(before_last));
	CHECK(rig_is_there(last));
	rig_end(&rig);
}

/* --- code without an owner --- */

static void add_many(const struct rig *rig, void *arg)
{
	uint32_t count = *(uint32_t *)arg;
	for (uint32_t i = 0; i < count; i++) {
		uint8_t bytes[16] = {0};
		void (*f)(void);
		CHECK_EQ(ch_code_add(rig->heap, bytes, sizeof bytes, "f", &f), CH_OK);
	}
}

TEST_RIG(code_on_which_nothing_hangs_is_on_no_list_of_roots)
{
	uint32_t count = 5000, listed = 0;
	rig_apart(&rig, add_many, &count);
	rig_collect(&rig, 1);
	for (struct ch__thread *t = rig.heap->threads; t; t = t->next)
		listed += t->young_count;
	CHECK_EQ(listed, 0);
	CHECK_EQ(rig_stats(&rig).marked_blocks_last, 0);
	CHECK_EQ(rig_stats(&rig).blocks_now, count);
}

/* --- a cycle that is given up --- */

TEST(owner_that_is_released_at_once_behind_a_cycle_that_was_given_up_ends_with_the_release)
{
	struct rig rig;
	struct ch_marker *marker;
	start_host(&rig, 1 << 20, NULL);
	struct ch_owner owner = rig_owner(&rig, "released");
	CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
	ch_mark_owner(marker, owner);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	uint64_t owners = rig_stats(&rig).owners_now;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(rig_stats(&rig).owners_now, owners - 1);
	rig_end(&rig);
}

/* --- two heaps in one stop --- */

/* Makes so many blocks that the next cycle wants a larger queue. */
static uint32_t outgrow_queue(const struct rig *rig)
{
	struct ch_owner owner = rig_owner(rig, "owner");
	uint32_t mask = rig->heap->marker.queue_mask;
	while (rig->heap->blocks.used / 4 <= mask + 1)
		(void)rig_block(owner, 1);
	return mask;
}

TEST(cycle_without_memory_for_a_larger_queue_has_the_queue_before)
{
	struct rig rig;
	struct ch_marker *marker;
	start_host(&rig, 4 << 20, NULL);
	uint32_t mask = outgrow_queue(&rig);
	ch__os_fail_at(1, true);
	enum ch_status status = ch_mark_begin(rig.heap, &marker);
	ch__os_fail_at(0, false);
	CHECK_EQ(status, CH_OK);
	CHECK_EQ(marker->queue_mask, mask);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	rig_end(&rig);
}

/* A thread that is stopped may hold the lock of side memory: the second cycle asks for none. */
TEST(queue_of_a_heap_stays_while_the_caller_marks_another)
{
	struct rig one, other;
	struct ch_marker *marker, *second;
	start_host(&one, 1 << 20, NULL);
	start_host(&other, 4 << 20, NULL);
	uint32_t mask = outgrow_queue(&other);
	CHECK_EQ(ch_mark_begin(one.heap, &marker), CH_OK);
	CHECK_EQ(ch_mark_begin(other.heap, &second), CH_OK);
	CHECK_EQ(second->queue_mask, mask);
	CHECK_EQ(ch_mark_end(second, false), CH_OK);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	CHECK_EQ(ch_mark_begin(other.heap, &second), CH_OK);
	CHECK(second->queue_mask > mask);
	CHECK_EQ(ch_mark_end(second, false), CH_OK);
	rig_end(&other);
	rig_end(&one);
}

static _Atomic(bool) is_swept, has_parked;

static bool is_parked(const struct ch__thread *thread)
{
	return atomic_load(&thread->state) == CH__PARKED;
}

/* Ends the stop when the thread stands still, or when its sweep is over. */
static void *await_a_park(void *arg)
{
	struct ch__thread *thread = arg;
	TEST_UNTIL(is_parked(thread) || atomic_load(&is_swept));
	atomic_store(&has_parked, is_parked(thread));
	ch__world_resume(thread->heap);
	return NULL;
}

static void make_dead(const struct rig *rig, void *arg)
{
	(void)arg;
	for (int i = 0; i < 8; i++)
		(void)rig_block(rig_owner(rig, "dead"), 1);
}

TEST(poll_while_marking_serves_no_heap)
{
	struct rig one, other;
	struct ch_marker *marker;
	start_host(&one, 1 << 20, NULL);
	start_host(&other, 1 << 20, NULL);
	rig_apart(&other, make_dead, NULL);
	CHECK_EQ(ch_mark_begin(other.heap, &marker), CH_OK);
	ch_mark_stack(marker, &other, &other); /* no stack has code */
	CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	CHECK_EQ(ch_mark_begin(one.heap, &marker), CH_OK);
	ch_thread_poll();
	CHECK(atomic_load(&other.heap->sweep_pending));
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	ch_thread_poll();
	CHECK(!atomic_load(&other.heap->sweep_pending));
	rig_end(&other);
	rig_end(&one);
}

/* Many steps of the sweep: a stop of the other heap waits for one of them at most. */
TEST(thread_that_sweeps_one_heap_stands_still_for_another)
{
	struct rig one, other = rig_start(1 << 20);
	struct ch_marker *marker;
	pthread_t thread;
	start_host(&one, 1 << 20, NULL);
	one.heap->config.step_blocks = 1;
	rig_apart(&one, make_dead, NULL);
	for (int cycle = 0; cycle < 3; cycle++) {
		ch__sweep_steps(one.heap, UINT32_MAX);
		CHECK_EQ(ch_mark_begin(one.heap, &marker), CH_OK);
		ch_mark_stack(marker, &one, &one); /* no stack has code */
		CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	}
	CHECK(rig_stats(&one).blocks_now > 1);
	atomic_store(&other.heap->stopping, 1);
	struct ch__thread *self = ch__thread_self(other.heap);
	CHECK_EQ(pthread_create(&thread, NULL, await_a_park, self), 0);
	ch__sweep_steps(one.heap, UINT32_MAX);
	atomic_store(&is_swept, true);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(atomic_load(&has_parked));
	CHECK(!is_parked(self));
	CHECK_EQ(rig_stats(&one).blocks_now, 0);
	rig_end(&one);
	rig_end(&other);
}

/* --- a cycle of a host that scans all stacks itself --- */

struct pair {
	struct ch_block root, target;
};

static void make_pair(const struct rig *rig, void *arg)
{
	struct pair *pair = arg;
	struct emitter e;
	struct ch_open open = {.heap = rig->heap, .hot_bytes = 16};
	pair->target = rig_block(rig_owner(rig, "not marked"), 1);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	CHECK_EQ(ch_edge_attach(e.code.block, pair->target), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	pair->root = e.code.block;
}

TEST(own_root_leads_on_in_a_cycle_without_ch_mark_stacks)
{
	static struct pair pair;
	struct rig rig;
	struct ch_marker *marker;
	start_host(&rig, 1 << 20, NULL);
	rig_apart(&rig, make_pair, &pair);
	for (int cycle = 0; cycle < 4; cycle++) {
		CHECK_EQ(ch_mark_begin(rig.heap, &marker), CH_OK);
		ch_mark_stack(marker, &rig, &rig); /* no stack has code */
		CHECK_EQ(ch_mark_end(marker, true), CH_OK);
		ch__sweep_steps(rig.heap, UINT32_MAX);
	}
	CHECK(rig_is_there(pair.root) && rig_is_there(pair.target));
	rig_end(&rig);
}

/* The mark of an own root lies ahead of the marks of the cycle. */
static void make_wide_root(const struct rig *rig, void *arg)
{
	struct scene *s = arg;
	struct ch_owner owner = rig_owner(rig, "not marked");
	struct emitter e;
	struct ch_open open = {.heap = rig->heap, .hot_bytes = 16};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_ret(&e);
	for (unsigned i = 0; i < MANY; i++) {
		s->blocks[i] = rig_block(owner, i);
		CHECK_EQ(ch_edge_attach(e.code.block, s->blocks[i]), CH_OK);
	}
	CHECK_EQ(emit_commit(&e), CH_OK);
}

TEST(own_root_with_more_edges_than_the_queue_holds_leads_on)
{
	expect_marked(make_wide_root, mark_young_only);
}

/* --- a thread that is parked --- */

static __attribute__((noinline)) void collect_deeper(const struct rig *rig)
{
	volatile char frame[500];
	struct ch_marker *marker;
	frame[0] = 0;
	if (rig->heap->config.driver == CH_DRIVER_BUILTIN) {
		CHECK_EQ(ch_heap_collect(rig->heap), CH_OK);
	} else {
		CHECK_EQ(ch_mark_begin(rig->heap, &marker), CH_OK);
		ch_mark_stacks(marker);
		CHECK_EQ(ch_mark_end(marker, true), CH_OK);
	}
	frame[1] = frame[0];
}

/* Cycles of other threads go by it until the unpark. */
TEST(collections_of_a_parked_thread_leave_what_its_park_published)
{
	for (int as = 0; as < 3; as++) {
		struct ch_config config = rig_config(1 << 20);
		config.driver = as ? CH_DRIVER_HOST : CH_DRIVER_BUILTIN;
		config.stops_world = as == 2;
		struct rig rig = rig_create(&config, NULL, NULL);
		const struct ch__thread *self = ch__thread_self(rig.heap);
		ch_thread_park();
		uintptr_t sp = self->shown.sp;
		bool may_end = self->shown.may_end;
		collect_deeper(&rig);
		CHECK_EQ(self->shown.sp, sp);
		CHECK_EQ(self->shown.may_end, may_end);
		ch_thread_unpark();
		rig_end(&rig);
	}
}

static struct ch_marker *earlier_marker;
static unsigned visits;

static bool mark_in_a_visit(void *owner, const struct ch_info *info)
{
	(void)info;
	visits++;
	ch_mark_owner(earlier_marker, *(struct ch_owner *)owner);
	return true;
}

/* The marker is the heap's, and a visit makes its thread a marking thread. */
TEST(nobody_marks_in_a_visit_behind_a_ch_mark_begin_that_failed)
{
	struct rig rig;
	struct ch_marker *none;
	start_host(&rig, 1 << 20, NULL);
	struct ch_owner owner = rig_owner(&rig, "owner");
	(void)rig_block(owner, 1);
	CHECK_EQ(ch_mark_begin(rig.heap, &earlier_marker), CH_OK);
	CHECK_EQ(ch_mark_end(earlier_marker, false), CH_OK);
	rig.heap->config.stop_wait_ms = 1;
	atomic_store(&rig.heap->guest.inside, 1);
	CHECK_EQ(ch_mark_begin(rig.heap, &none), CH_E_BUSY);
	atomic_store(&rig.heap->guest.inside, 0);
	CHECK_EQ(ch_block_each(rig.heap, NULL, mark_in_a_visit, &owner), CH_OK);
	CHECK_EQ(visits, 1);
	CHECK(!rig.heap->cycle_has_begun);
	CHECK(strstr(ch_why(), "not between ch_mark_begin and ch_mark_end"));
	rig_end(&rig);
}
