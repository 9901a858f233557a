/* SPDX-License-Identifier: MIT
 * rooms.c: large blocks before their commit. A room is written to private copies of traps and does
 * not run. A commit that the system refuses leaves all as it was, whatever came before. */
#include "codeheap/graph/block.h"
#include "os/os.h"
#include "pages/pages.h"
#include "tests/support/heap_rig.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, ROOM = 5 * CHUNK, FAR = 3 * CHUNK + 100, POOL = 32 * CHUNK };

static bool is_room(const struct rig *rig, struct ch_block block)
{
	const struct ch__pool *pool = rig->heap->pool;
	const struct ch__block *record = ch__block_at(rig->heap, ch__handle_index(block.bits));
	return ch__pool_span_is_room(pool, record->hot_offset >> pool->page_log2);
}

static struct emitter open_room(const struct rig *rig, uint32_t bytes, uint32_t value)
{
	struct emitter e;
	emit_open(&e, rig_owner(rig, "room"), bytes, 0);
	emit_value(&e, value);
	emit_ret(&e);
	e.code.used_to = e.at;
	return e;
}

/* Makes the first function once more, far behind, and the room used up to there. */
static void write_far(struct emitter *e)
{
	memcpy(e->code.write + FAR, e->code.write, e->at);
	e->code.used_to = FAR + e->at;
}

/* By the kernel, since a child of fork could read the byte. */
static bool is_readable(const uint8_t *at)
{
	int ends[2];
	CHECK(!pipe(ends));
	bool is_read = write(ends[1], at, 1) == 1;
	CHECK(is_read || errno == EFAULT);
	close(ends[0]);
	close(ends[1]);
	return is_read;
}

TEST(room_does_not_run_before_its_commit)
{
	struct rig rig = rig_start(POOL);
	struct emitter e = open_room(&rig, ROOM, 5);
	CHECK(e.code.hot_bytes >= ROOM);
	CHECK_EQ(is_readable(e.code.exec), !is_room(&rig, e.code.block));
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK(!is_room(&rig, e.code.block));
	CHECK(is_readable(e.code.exec));
	rig_end(&rig);
}

/* Of two rooms that are committed together, the second does not get its memory. The first may be
 * written again, and be longer. */
TEST(rooms_whose_commit_was_refused_are_written_again)
{
	struct rig rig = rig_start(POOL);
	uint32_t refused = 0;
	enum ch_status status = CH_E_OS;
	for (uint64_t nth = 1; status != CH_OK; nth++) {
		struct emitter one = open_room(&rig, ROOM, 1), two = open_room(&rig, ROOM, 2);
		struct ch_code codes[] = {one.code, two.code};
		ch__os_fail_at(nth, false);
		status = ch_block_commit(codes, 2);
		ch__os_fail_at(0, false);
		if (status != CH_OK) {
			refused++;
			CHECK_EQ(status, CH_E_OS);
			rig_check(&rig);
			write_far(&one);
			write_far(&two);
			codes[0].used_to = one.code.used_to;
			codes[1].used_to = two.code.used_to;
			CHECK_EQ(ch_block_commit(codes, 2), CH_OK);
			CHECK_EQ(code_call(codes[0].exec + FAR), 1);
			CHECK_EQ(code_call(codes[1].exec + FAR), 2);
			CHECK(!memcmp(codes[0].exec + FAR / 4 * 2, &ch__arch_traps,
				      sizeof ch__arch_traps));
		}
		CHECK_EQ(code_call(codes[0].exec), 1);
		CHECK_EQ(code_call(codes[1].exec), 2);
		rig_check(&rig);
		rig_collect(&rig, 3);
		CHECK(!rig_is_there(codes[0].block));
	}
	CHECK(refused > 0 || rig.heap->pool->backend == CH__BACKEND_PROCMEM);
	rig_end(&rig);
}

/* A room that was shorter when it was refused, and one that is given up then. */
TEST(room_whose_commit_was_refused_is_given_up_or_ends_before)
{
	struct rig rig = rig_start(POOL);
	for (uint64_t nth = 1; nth < 40; nth++) {
		struct emitter one = open_room(&rig, ROOM, 1), two = open_room(&rig, ROOM, 2);
		struct ch_code codes[] = {one.code, two.code};
		write_far(&one);
		codes[0].used_to = one.code.used_to;
		ch__os_fail_at(nth, false);
		enum ch_status status = ch_block_commit(codes, 2);
		ch__os_fail_at(0, false);
		if (status == CH_OK)
			break;
		codes[0].used_to = one.at;
		CHECK_EQ(ch_block_abort(&codes[1]), CH_OK);
		CHECK_EQ(ch_block_commit(codes, 1), CH_OK);
		CHECK_EQ(code_call(codes[0].exec), 1);
		rig_check(&rig);
		rig_collect(&rig, 3);
	}
	rig_end(&rig);
}

/* Chunks in use leave no run of chunks for a room: the block then has memory from the open on. */
TEST(large_block_between_used_chunks_is_no_room)
{
	struct rig rig = rig_start(4 * CHUNK);
	struct emitter first = open_room(&rig, 9, 1);
	struct emitter e = open_room(&rig, 3 * CHUNK + CHUNK / 2, 5);
	CHECK(!is_room(&rig, e.code.block));
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 5);
	CHECK_EQ(ch_block_abort(&first.code), CH_OK);
	rig_check(&rig);
	rig_end(&rig);
}

/* The memory of a room that came and went serves pages, spans and rooms as before. */
TEST(rooms_come_and_go)
{
	struct rig rig = rig_start(POOL);
	for (uint32_t i = 0; i < 60; i++) {
		struct emitter e = open_room(&rig, ROOM + i * 100000, i);
		struct emitter small = open_room(&rig, 100 + i * 10000, i);
		if (i % 3)
			write_far(&e);
		if (i % 4 == 3)
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		else
			CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		CHECK_EQ(ch_block_commit(&small.code, 1), CH_OK);
		CHECK_EQ(code_call(small.code.exec), i);
		if (i % 4 != 3)
			CHECK_EQ(code_call(e.code.exec + (i % 3 ? FAR : 0)), i);
		rig_check(&rig);
		if (i % 5 == 4)
			rig_collect(&rig, 3);
	}
	rig_end(&rig);
}

/* A room used up to its last chunk shares that chunk with others, who stay when it goes. */
TEST(others_in_the_last_chunk_of_a_room_stay_when_it_goes)
{
	struct rig rig = rig_start(4 * CHUNK);
	struct emitter e = open_room(&rig, 4 * CHUNK - CHUNK / 2, 1);
	CHECK(e.code.hot_bytes > FAR + e.at);
	write_far(&e);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK(!is_room(&rig, e.code.block));
	rig_check(&rig);
	struct emitter small = open_room(&rig, 9, 2);
	rig_collect(&rig, 3);
	CHECK(!rig_is_there(e.code.block));
	rig_check(&rig);
	CHECK_EQ(ch_block_commit(&small.code, 1), CH_OK);
	CHECK_EQ(code_call(small.code.exec), 2);
	rig_end(&rig);
}

/* Code that was committed dies as traps, whatever the system refuses then. */
TEST(room_used_to_its_end_is_a_room_no_more)
{
	struct rig rig = rig_start(4 * CHUNK);
	struct emitter e = open_room(&rig, 4 * CHUNK - CHUNK / 2, 1);
	e.code.used_to = e.code.hot_bytes;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK(!is_room(&rig, e.code.block));
	CHECK_EQ(code_call(e.code.exec), 1);
	rig_end(&rig);
}

static void fork_and_call(struct emitter *e)
{
	pid_t child = fork();
	CHECK(child >= 0);
	CHECK_EQ(ch_block_commit(&e->code, 1), CH_OK);
	CHECK_EQ(code_call(e->code.exec), 3);
	if (!child)
		_exit(0);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* Whatever call fails: a child of fork has code as before, also where the pages of a room wait. */
TEST(room_that_waits_for_the_system_is_copied_for_a_child)
{
	for (unsigned later = 0; later < 2; later++)
		for (uint64_t nth = 1; nth < 20; nth++) {
			struct rig rig = rig_start(POOL);
			struct emitter small = open_room(&rig, 9, 3);
			struct emitter e = open_room(&rig, ROOM, 1);
			ch__os_fail_at(nth, later);
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
			ch__os_fail_at(0, false);
			rig_check(&rig);
			fork_and_call(&small);
			rig_end(&rig);
		}
}

/* The same for an open whose room is refused. */
TEST(refused_room_does_not_take_a_child_its_code)
{
	for (unsigned later = 0; later < 2; later++)
		for (uint64_t nth = 1; nth < 40; nth++) {
			struct rig rig = rig_start(POOL);
			struct emitter small = open_room(&rig, 9, 3);
			struct ch_open open = {.owner = rig_owner(&rig, "room"), .hot_bytes = ROOM};
			struct emitter e;
			ch__os_fail_at(nth, later);
			enum ch_status status = emit_open_as(&e, &open);
			ch__os_fail_at(0, false);
			rig_check(&rig);
			fork_and_call(&small);
			if (status == CH_OK)
				CHECK_EQ(ch_block_abort(&e.code), CH_OK);
			rig_end(&rig);
		}
}

/* A room is a mapping a chunk. At the limit of mappings, a room that is refused half made, and a
 * room that is given up, keep none of them. */
TEST(room_at_the_limit_of_mappings_gives_its_mappings_back)
{
	if (TEST_SANITIZED)
		skip("a sanitizer maps memory of its own");
	struct rig rig = rig_start(POOL);
	struct emitter e, kept = open_room(&rig, ROOM * 2, 1);
	struct ch_open open = {.owner = rig_owner(&rig, "room"), .hot_bytes = ROOM * 4};
	unsigned maps = 0;
	fill_maps(18);
	enum ch_status status = emit_open_as(&e, &open);
	bool is_one = map_one();
	CHECK(status != CH_OK || !is_room(&rig, e.code.block));
	CHECK(is_one);
	fill_maps(2);
	CHECK_EQ(ch_block_abort(&kept.code), CH_OK);
	while (map_one())
		maps++;
	CHECK(maps >= 5);
	if (status == CH_OK)
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	rig_check(&rig);
}
