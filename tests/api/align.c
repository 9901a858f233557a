/* SPDX-License-Identifier: MIT
 * align.c: where code begins. exec is a multiple of 8 and of ch_open.align, in each kind of block.
 * Bytes skipped for the alignment go back. Tables and reports have exec as offset 0 of the code. */
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/handles.h"
#include "codeheap/places/places.h"
#include "unwind/steps.h"
#include "tests/support/heap_rig.h"
#include "tests/support/perfmap_reader.h"
#include "tests/support/stage_code.h"

enum { MOST = 4096 };

/* The ways to open a block. */
static const struct shape {
	const char *what;
	uint32_t hot_bytes, cold_bytes, branch_room;
	enum ch_entry entry;
	unsigned flags;
	enum ch_kind kind;
} shapes[] = {
	{.what = "plain", .hot_bytes = 24},
	{.what = "cold", .hot_bytes = 40, .cold_bytes = 20, .branch_room = 3},
	{.what = "patch", .hot_bytes = 40, .entry = CH_ENTRY_PATCH},
	{.what = "span", .hot_bytes = 100000, .branch_room = 2},
	{.what = "own frames", .hot_bytes = 100, .flags = CH_OPEN_OWN_FRAMES},
	{.what = "in place", .hot_bytes = 100, .flags = CH_OPEN_IN_PLACE},
	{.what = "rodata", .hot_bytes = 100, .kind = CH_KIND_RODATA},
	{.what = "data", .hot_bytes = 5000, .kind = CH_KIND_DATA},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void check_place(const struct ch_heap *heap, const struct ch_code *code, const uint8_t *exec)
{
	struct ch_spot spot = {.size = sizeof spot};
	struct ch_info info = block_info(code->block);
	CHECK_EQ(info.exec, exec);
	CHECK(ch_code_at(heap, exec, false, &spot));
	CHECK_EQ(spot.exec, exec);
	CHECK_EQ(spot.offset, 0);
	CHECK_EQ(spot.block.bits, code->block.bits);
	CHECK(!ch_code_at(heap, exec - 1, false, &spot) ||
	      spot.block.bits != code->block.bits);
}

/* Opens a block with `align`, writes and commits the block, checks exec, and calls the code. */
static void make_one(struct rig *rig, struct ch_owner owner, const struct shape *shape,
		     size_t align)
{
	struct emitter e;
	struct ch_open open = {.owner = owner,
			       .hot_bytes = shape->hot_bytes,
			       .cold_bytes = shape->cold_bytes,
			       .branch_room = shape->branch_room,
			       .entry = shape->entry,
			       .flags = shape->flags,
			       .kind = shape->kind,
			       .name = shape->what,
			       .align = align};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	if ((uintptr_t)e.code.exec % (align > 8 ? align : 8))
		FAIL("%s: exec of align %zu is %p", shape->what, align, (void *)e.code.exec);
	/* Emitters align by the address that they store at. */
	if (((uintptr_t)e.code.write ^ (uintptr_t)e.code.exec) % 4096)
		FAIL("%s: write is %p", shape->what, (void *)e.code.write);
	CHECK(e.code.hot_bytes >= shape->hot_bytes);
	const uint8_t *exec = e.code.exec;
	if (shape->kind != CH_KIND_CODE) {
		memset(e.code.write, 0x5a, e.code.hot_bytes);
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		check_place(rig->heap, &e.code, exec);
		return;
	}
	emit_answer(&e, (uint32_t)align);
	CHECK_EQ(emit_commit(&e), CH_OK);
	check_place(rig->heap, &e.code, exec);
	CHECK_EQ(code_call(exec), align);
}

TEST_RIG_BY(exec_is_aligned_as_the_open_asks, rig_start(16 << 20))
{
	for (size_t s = 0; s < SHAPES; s++) {
		struct ch_owner owner = rig_owner(&rig, "owner");
		for (size_t align = 1; align <= MOST; align *= 2) {
			make_one(&rig, owner, &shapes[s], align);
			make_one(&rig, owner, &shapes[0], 0);
			make_one(&rig, owner, &shapes[s], align);
		}
		rig_check(&rig);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
	rig_collect(&rig, 3);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	CHECK_EQ(rig_stats(&rig).code_bytes_now, 0);
}

/* The note of a block with steps lies behind the code, and moves with the code. What is behind the
 * note goes back. */
TEST(exec_of_a_block_with_steps_is_aligned)
{
	if (!CH_ARCH_HAS_STEPS)
		skip("no steps on this machine");
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "owner");
	static const struct ch_frame frame = {.steps_n = 0};
	uint32_t bytes = 0;
	for (size_t align = 16; align <= 256; align *= 2) {
		struct emitter e;
		struct ch_open open = {.owner = owner,
				       .hot_bytes = 40,
				       .frame = CH_FRAME_STEPS,
				       .align = align};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ((uintptr_t)e.code.exec % align, 0);
		emit_answer(&e, 7);
		e.code.frame = &frame;
		CHECK_EQ(emit_commit(&e), CH_OK);
		check_place(rig.heap, &e.code, e.code.exec);
		CHECK_EQ(code_call(e.code.exec), 7);
		if (!bytes)
			bytes = block_info(e.code.block).hot_bytes;
		CHECK_EQ(block_info(e.code.block).hot_bytes, bytes);
	}
	rig_end(&rig);
}

/* Code with steps that returns 7, whose first bytes stay unused. */
static void make_behind_a_front(struct emitter *e, const struct rig *rig, uint32_t bytes,
				uint32_t from)
{
	static const struct ch_frame frame = {.steps_n = 0};
	struct ch_open open = {.owner = rig_owner(rig, "owner"),
			       .hot_bytes = bytes,
			       .frame = CH_FRAME_STEPS};
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
	emit_filler(e, from);
	emit_answer(e, 7);
	e->code.frame = &frame;
	e->code.used_from = e->code.entry_offset = from;
	CHECK_EQ(emit_commit(e), CH_OK);
}

/* A span keeps its unused first bytes, and tools hear of the span from there. */
TEST(tools_find_the_steps_of_a_span_whose_first_bytes_are_unused)
{
	if (!CH_ARCH_HAS_STEPS)
		skip("no steps on this machine");
	struct rig rig = rig_start(1 << 20);
	struct emitter e;
	make_behind_a_front(&e, &rig, 20000, 4096);
	struct ch__sink_range ranges[2];
	uint32_t index = ch__block_resolve(rig.heap, e.code.block);
	CHECK_EQ(ch__block_ranges(rig.heap, ch__block_at(rig.heap, index), 0, ranges), 1);
	CHECK(ch__steps_note(ch__sinks_steps(rig.heap->sinks), ranges[0].exec) != 0);
	rig_end(&rig);
}

TEST(first_open_with_steps_is_refused_without_memory_for_their_map)
{
	if (!CH_ARCH_HAS_STEPS)
		skip("no steps on this machine");
	struct rig rig = rig_start(1 << 20);
	struct ch_open open = {.owner = rig_owner(&rig, "owner"),
			       .hot_bytes = 200,
			       .frame = CH_FRAME_STEPS};
	struct emitter e;
	ch__os_fail_at(1, false);
	enum ch_status status = emit_open_as(&e, &open);
	ch__os_fail_at(0, false);
	CHECK_EQ(status, CH_E_MEMORY);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_end(&rig);
}

/* In a page the front goes back: who traps there is no frame of this block. */
TEST(front_that_code_with_steps_gave_back_has_none_of_its_steps)
{
	enum { FROM = 64 };
	if (!CH_ARCH_HAS_STEPS)
		skip("no steps on this machine");
	struct rig rig = rig_start(1 << 20);
	struct emitter e;
	make_behind_a_front(&e, &rig, 200, FROM);
	uintptr_t front = (uintptr_t)e.code.exec;
	CHECK_EQ(ch__steps_note(ch__sinks_steps(rig.heap->sinks), front), 0);
	CHECK(ch__steps_note(ch__sinks_steps(rig.heap->sinks), front + FROM) != 0);
	rig_end(&rig);
}

/* At every alignment a block is counted with its bytes and its head only. */
TEST_RIG(what_an_align_takes_beside_the_block_goes_back)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	uint32_t bytes = 0;
	for (uint32_t i = 0; i < 300; i++) {
		struct emitter e;
		size_t align = (size_t)16 << i % 5;
		struct ch_open open = {.owner = owner, .hot_bytes = 40, .align = align};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		uint32_t room = e.code.hot_bytes + CH__HEAD_BYTES;
		CHECK(room < 40 + CODE_LANDING_BYTES + 16);
		emit_answer(&e, i);
		bytes += (uint32_t)(e.at + 7) / 8 * 8 + CH__HEAD_BYTES;
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(rig_stats(&rig).code_bytes_now, bytes);
	}
}

/* The next block begins right behind an aligned block, as behind any block. */
TEST_RIG(block_behind_an_aligned_one_leaves_no_gap)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter first, e, next;
	struct ch_open open = {.owner = owner, .hot_bytes = 40, .align = 1024};
	emit_open(&first, owner, 40, 0);
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_open(&next, owner, 40, 0);
	CHECK_EQ(next.code.exec, e.code.exec + e.code.hot_bytes + CH__HEAD_BYTES);
	CHECK_EQ(ch_block_abort(&next.code), CH_OK);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_block_abort(&first.code), CH_OK);
}

TEST(align_that_is_no_power_of_two_or_too_large_is_refused)
{
	static const size_t wrong[] = {3, 6, 12, 24, 4095, 8192, (size_t)1 << 32, ~(size_t)0};
	struct rig rig = rig_start(1 << 20);
	struct ch_owner owner = rig_owner(&rig, "owner");
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct emitter e;
		struct ch_open open = {.owner = owner, .hot_bytes = 40, .align = wrong[i]};
		CHECK_EQ(emit_open_as(&e, &open), CH_E_ARG);
		char words[100];
		snprintf(words, sizeof words, "ch_open.align is %zu: not a power of two up to 4096",
			 wrong[i]);
		CHECK(strstr(ch_why(), words));
	}
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	rig_end(&rig);
}

/* The perf map and ch_address_name. */
TEST(first_byte_of_code_is_offset_zero_where_it_is_named)
{
	char path[128], text[64];
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_PERF_MAP;
	use_own_folder();
	struct rig rig = rig_create(&config, NULL, NULL);
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "aligned"),
			       .hot_bytes = 40,
			       .cold_bytes = 16,
			       .align = 64};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 1);
	memset(e.code.cold_write, 0x90, 16);
	e.code.cold_used = 16;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	path_of(getpid(), path);
	struct map_file *map = read_map(path);
	const struct map_line *line = line_of(map, (uintptr_t)e.code.exec);
	CHECK(line && line->start == (uintptr_t)e.code.exec);
	line = line_of(map, (uintptr_t)e.code.cold_exec);
	CHECK(line && line->start == (uintptr_t)e.code.cold_exec);
	CHECK(!line_of(map, (uintptr_t)e.code.exec - 1));
	free(map);
	ch_address_name(rig.heap, e.code.exec, false, text, sizeof text);
	CHECK_STR(text, "aligned+0x0");
	ch_address_name(rig.heap, e.code.cold_exec + 3, false, text, sizeof text);
	CHECK_STR(text, "aligned (cold)+0x3");
	rig_end(&rig);
	remove_own_folder();
}

TEST_RIG(an_entry_may_lie_right_behind_a_patch_point_and_not_inside)
{
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "owner"), 64, 0);
	const void *point = emit_point(&e);
	uint32_t behind = e.at;
	CHECK_EQ(ch_patch_point_attach(e.code.block, point, e.code.exec + behind, NULL), CH_OK);
	emit_landing(&e);
	emit_answer(&e, 42);
	e.code.entry_offset = behind - 1;
	CHECK_EQ(emit_commit(&e), CH_E_SITE);
	e.code.entry_offset = behind;
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(code_call(block_info(e.code.block).entry), 42);
}
