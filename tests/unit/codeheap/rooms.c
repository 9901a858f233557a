/* SPDX-License-Identifier: MIT
 * rooms.c: large blocks before their commit. A room is written to private copies of traps and does
 * not run. A commit that the system refuses leaves all as it was, whatever came before. */
#include "codeheap/graph/block.h"
#include "os/os.h"
#include "pages/inner.h"
#include "tests/support/heap_rig.h"

#include <errno.h>
#include <sys/resource.h>
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
	emit_answer(&e, value);
	e.code.used_to = e.at;
	return e;
}

/* Makes the first function once more, far behind, and the room used up to there. */
static void write_at(struct emitter *e, uint32_t far)
{
	memcpy(e->code.write + far, e->code.write, e->at);
	e->code.used_to = far + e->at;
}

static void write_far(struct emitter *e)
{
	write_at(e, FAR);
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

TEST_RIG_BY(room_does_not_run_before_its_commit, rig_start(POOL))
{
	struct emitter e = open_room(&rig, ROOM, 5);
	CHECK(e.code.hot_bytes >= ROOM);
	CHECK_EQ(is_readable(e.code.exec), !is_room(&rig, e.code.block));
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK(!is_room(&rig, e.code.block));
	CHECK(is_readable(e.code.exec));
}

/* Private memory has no rooms, nor has a process under Valgrind. */
static bool has_rooms(const struct rig *rig)
{
	struct emitter e = open_room(rig, ROOM, 1);
	bool is = is_room(rig, e.code.block);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	return is;
}

static void skip_without_rooms(const struct rig *rig)
{
	if (!has_rooms(rig))
		skip("no rooms in private memory, under a translator or a limit of address space");
}

/* Of two rooms that are committed together, the second does not get its memory. The first may be
 * written again, and be longer. */
TEST_RIG_BY(rooms_whose_commit_was_refused_are_written_again, rig_start(POOL))
{
	uint32_t refused = 0;
	enum ch_status status = CH_E_OS;
	for (uint64_t nth = 1; status != CH_OK; nth++) {
		struct emitter one = open_room(&rig, ROOM, 1), two = open_room(&rig, ROOM, 2);
		struct ch_code codes[] = {one.code, two.code};
		ch__os_fail_as(nth, false, EXDEV);
		status = ch_block_commit(codes, 2);
		int error = errno;
		ch__os_fail_at(0, false);
		if (status != CH_OK) {
			refused++;
			CHECK_EQ(status, CH_E_OS);
			CHECK_EQ(error, EXDEV);
			rig_check(&rig);
			write_far(&one);
			write_far(&two);
			codes[0].used_to = one.code.used_to;
			codes[1].used_to = two.code.used_to;
			CHECK_EQ(ch_block_commit(codes, 2), CH_OK);
			CHECK_EQ(code_call(codes[0].exec + FAR), 1);
			CHECK_EQ(code_call(codes[1].exec + FAR), 2);
			CHECK(!memcmp(codes[0].exec + FAR / 8 * 4, &ch__arch_traps,
				      sizeof ch__arch_traps));
		}
		CHECK_EQ(code_call(codes[0].exec), 1);
		CHECK_EQ(code_call(codes[1].exec), 2);
		rig_check(&rig);
		rig_collect(&rig, 3);
		CHECK(!rig_is_there(codes[0].block));
	}
	CHECK(refused > 0 || !has_rooms(&rig));
}

/* A room that was shorter when it was refused, and one that is given up then. */
TEST_RIG_BY(room_whose_commit_was_refused_is_given_up_or_ends_before, rig_start(POOL))
{
	for (uint64_t nth = 1; nth < 40; nth++) {
		struct emitter one = open_room(&rig, ROOM, 1), two = open_room(&rig, ROOM, 2);
		struct ch_code codes[] = {one.code, two.code};
		write_far(&one);
		codes[0].used_to = one.code.used_to;
		ch__os_fail_at(nth, false);
		enum ch_status status = ch_block_commit(codes, 2);
		ch__os_fail_at(0, false);
		CHECK(status != CH_OK || nth > 1 || !has_rooms(&rig));
		if (status == CH_OK)
			break;
		codes[0].used_to = one.at;
		CHECK_EQ(ch_block_abort(&codes[1]), CH_OK);
		CHECK_EQ(ch_block_commit(codes, 1), CH_OK);
		CHECK_EQ(code_call(codes[0].exec), 1);
		rig_check(&rig);
		rig_collect(&rig, 3);
	}
}

/* Whatever call fails: a room that is refused at its commit, and given up, leaves no mapping. */
TEST_RIG_BY(room_whose_commit_was_refused_leaves_no_mapping, rig_start(POOL))
{
	enum ch_status status = CH_E_OS;
	bool rooms = has_rooms(&rig); /* the first room maps more */
	for (uint64_t nth = 1; status != CH_OK; nth++) {
		size_t before = mapped_bytes();
		struct emitter e = open_room(&rig, ROOM, 1);
		ch__os_fail_at(nth, false);
		status = ch_block_commit(&e.code, 1);
		ch__os_fail_at(0, false);
		CHECK(status != CH_OK || nth > 1 || !rooms);
		if (status != CH_OK) {
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
			CHECK(mapped_bytes() < before + CHUNK);
		}
	}
}

/* The chunks of a room are of the kind that the room's frames ask for. */
TEST_RIG_BY(room_of_code_with_frames_of_its_own_lies_in_chunks_of_their_kind, rig_start(POOL))
{
	struct ch_open open = {.owner = rig_owner(&rig, "room"),
			       .hot_bytes = ROOM,
			       .flags = CH_OPEN_OWN_FRAMES};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(is_room(&rig, e.code.block), has_rooms(&rig));
	rig_check(&rig);
	emit_answer(&e, 5);
	CHECK_EQ(emit_commit(&e), CH_OK);
	rig_check(&rig);
	CHECK_EQ(code_call(e.code.exec), 5);
}

/* Chunks in use leave no run of chunks for a room: the block then has memory from the open on. */
TEST_RIG_BY(large_block_between_used_chunks_is_no_room, rig_start(4 * CHUNK))
{
	struct emitter first = open_room(&rig, 9, 1);
	struct emitter e = open_room(&rig, 3 * CHUNK + CHUNK / 2, 5);
	CHECK(!is_room(&rig, e.code.block));
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 5);
	CHECK_EQ(ch_block_abort(&first.code), CH_OK);
}

/* A cold part lies at the end: such a block has its memory from the open on, so that its commit
 * needs none. */
TEST_RIG_BY(large_block_with_a_cold_part_is_no_room, rig_start(POOL))
{
	struct ch_open open = {
		.owner = rig_owner(&rig, "parts"), .hot_bytes = ROOM, .cold_bytes = 64};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(!is_room(&rig, e.code.block));
	emit_answer(&e, 5);
	ch__os_pretended.commit_error = ENOMEM;
	CHECK_EQ(emit_commit(&e), CH_OK);
	ch__os_pretended.commit_error = 0;
	CHECK_EQ(code_call(e.code.exec), 5);
}

/* The memory of a room that came and went serves pages, spans and rooms as before. */
TEST_RIG_BY(rooms_come_and_go, rig_start(POOL))
{
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
}

/* A room used up to its last chunk shares that chunk with others, who stay when it goes. */
TEST_RIG_BY(others_in_the_last_chunk_of_a_room_stay_when_it_goes, rig_start(4 * CHUNK))
{
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
}

/* Code that was committed dies as traps, whatever the system refuses then. Unwinders know all its
 * pages, also those behind the bytes that were asked for. */
TEST_RIG_BY(room_used_to_its_end_is_a_room_no_more, rig_start(4 * CHUNK))
{
	struct emitter e = open_room(&rig, 4 * CHUNK - CHUNK / 2, 1);
	uint32_t last = e.code.hot_bytes - e.at;
	memcpy(e.code.write + last, e.code.write, e.at);
	e.code.used_to = e.code.hot_bytes;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK(!is_room(&rig, e.code.block));
	CHECK_EQ(code_call(e.code.exec), 1);
	CHECK_EQ(code_call(e.code.exec + last), 1);
	const struct ch__pool *pool = rig.heap->pool;
	for (uint32_t at = 0; at < e.code.hot_bytes; at += (uint32_t)rig_page_bytes())
		CHECK(ch__sinks_page_is_live(
			rig.heap->sinks,
			(uint32_t)((uintptr_t)e.code.exec + at - pool->exec_base) >>
				pool->page_log2,
			CH_FRAME_POINTER));
}

static void fork_and_call(struct emitter *e)
{
	pid_t child = fork_child();
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
			/* A room has traps in each of its chunks, or is none. */
			for (uint32_t at = CHUNK / 2; status == CH_OK && at < ROOM; at += CHUNK)
				CHECK(ch__arch_are_traps(e.code.write + at, 8));
			fork_and_call(&small);
			if (status == CH_OK)
				CHECK_EQ(ch_block_abort(&e.code), CH_OK);
			rig_end(&rig);
		}
}

/* Whatever call fails: while a room waits for the system, no other room comes to wait. */
TEST(refused_rooms_keep_the_pages_of_one)
{
	for (uint64_t nth = 1; nth < 40; nth++) {
		struct rig rig = rig_start(POOL);
		struct emitter e = open_room(&rig, ROOM, 1);
		const struct ch__pool_inner *inner = rig.heap->pool->inner;
		struct ch_open open = {.owner = rig_owner(&rig, "room"), .hot_bytes = ROOM};
		bool was_room = is_room(&rig, e.code.block);
		ch__os_fail_at(1, true);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		ch__os_fail_at(nth, true);
		CHECK_EQ(inner->spans_retired, was_room);
		enum ch_status status = emit_open_as(&e, &open);
		CHECK(inner->spans_retired <= 1);
		ch__os_fail_at(0, false);
		CHECK(status != CH_OK || ch_block_abort(&e.code) == CH_OK);
		rig_end(&rig);
	}
}

TEST_RIG_BY(room_that_waits_for_the_system_is_back_after_a_collection, rig_start(POOL))
{
	struct emitter e = open_room(&rig, ROOM, 1);
	bool was_room = is_room(&rig, e.code.block);
	ch__os_fail_at(1, true);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	ch__os_fail_at(0, false);
	CHECK_EQ(rig.heap->pool->inner->spans_retired, was_room);
	rig_collect(&rig, 1);
	CHECK_EQ(rig.heap->pool->inner->spans_retired, 0);
}

/* The page behind a room is the first of a run that a collection may bring back. */
TEST_RIG_BY(run_behind_a_room_counts_from_its_first_page, rig_start(POOL))
{
	struct emitter e = open_room(&rig, ROOM, 1);
	struct ch__pool *pool = rig.heap->pool;
	uint32_t pages = ch__pool_chunk_pages(pool),
		 first = ch__pool_take_span(pool, pages, 0, CH__SPAN_CODE);
	CHECK(first != CH__PAGE_NONE);
	uint32_t room = ch__block_at(rig.heap, rig_record(e.code.block))->hot_offset >>
			pool->page_log2;
	CHECK(!is_room(&rig, e.code.block) || first == room + pool->pages[room].span_pages);
	errno = 0;
	ch__os_fail_at(1, true);
	uint32_t none = ch__pool_take_span(pool, pages, 0, CH__SPAN_CODE);
	int error = errno;
	ch__os_fail_at(0, false);
	CHECK_EQ(none, CH__PAGE_NONE);
	CHECK_EQ(error, 0);
	ch__pool_release_span(pool, first);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* A room that dies leaves no memory: where the system has none, no collection would help. */
TEST_RIG_BY(room_is_no_memory_that_a_collection_brings_back, rig_start(POOL))
{
	struct emitter small, e = open_room(&rig, ROOM, 1);
	struct ch_open open = {.owner = rig_owner(&rig, "small"), .hot_bytes = 9};
	bool was_room = is_room(&rig, e.code.block);
	ch__os_pretended.commit_error = ENOMEM;
	if (was_room)
		CHECK_EQ(emit_open_as(&small, &open), CH_E_MEMORY);
	ch__os_fail_at(1, true);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	ch__os_fail_at(0, false);
	if (was_room)
		CHECK_EQ(emit_open_as(&small, &open), CH_E_MEMORY);
	ch__os_pretended.commit_error = 0;
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

/* Bytes of the emitter that are not used become traps, also those before used_from. All of the
 * room's pages behind the used ones go back. */
TEST_RIG_BY(room_keeps_what_is_used_of_it, rig_start(POOL))
{
	enum { FROM = 64 };
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "room"), .hot_bytes = ROOM - CHUNK / 2,
			       .align = 4096};
	uint32_t used = rig.heap->pool->pages_used, page = (uint32_t)rig_page_bytes();
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	memset(e.code.write, 0, FROM);
	e.at = FROM;
	emit_answer(&e, 6);
	memcpy(e.code.write + FAR, e.code.write + FROM, e.at - FROM);
	e.code.used_from = e.code.entry_offset = FROM;
	e.code.used_to = FAR + e.at - FROM;
	memset(e.code.write + e.code.used_to, 0, 4096);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(code_call(e.code.exec + FROM), 6);
	CHECK_EQ(code_call(e.code.exec + FAR), 6);
	for (uint32_t at = 0; at < FROM; at += 8)
		CHECK(!memcmp(e.code.exec + at, &ch__arch_traps, 8));
	CHECK(!memcmp(e.code.exec + FAR - CHUNK, &ch__arch_traps, 8));
	CHECK(!memcmp(e.code.exec + (e.code.used_to + 15) / 8 * 8, &ch__arch_traps, 8));
	CHECK_EQ(rig.heap->pool->pages_used - used, (4096 + e.code.used_to + page - 1) / page);
}

/* A limit of address space leaves none for the second view of a room that lands. */
TEST_RIG_BY(large_block_is_no_room_where_address_space_is_limited, rig_start(POOL))
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_AS, &limit), 0);
	limit.rlim_cur = limit.rlim_max - 1; /* not RLIM_INFINITY */
	CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
	struct emitter e = open_room(&rig, ROOM, 5);
	CHECK(!is_room(&rig, e.code.block));
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(code_call(e.code.exec), 5);
}

static bool is_executable(const uint8_t *at)
{
	char line[300], access[5];
	bool is_found = false;
	unsigned long low, high;
	FILE *maps = fopen("/proc/self/maps", "re");
	CHECK(maps);
	while (!is_found && fgets(line, sizeof line, maps))
		is_found = sscanf(line, "%lx-%lx %4s", &low, &high, access) == 3 &&
			   (uintptr_t)at >= low && (uintptr_t)at < high;
	fclose(maps);
	CHECK(is_found);
	return access[2] == 'x';
}

TEST_RIG_BY(room_does_not_run_in_a_child_before_its_commit, rig_start(POOL))
{
	struct emitter e = open_room(&rig, ROOM, 3);
	bool runs = !is_room(&rig, e.code.block);
	pid_t child = fork_child();
	CHECK_EQ(is_executable(e.code.exec), runs);
	if (!child)
		_exit(0);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* Returns a room that landed up to `far`, while the commit was refused for the sake of another. */
static struct emitter open_landed(struct rig *rig, uint32_t bytes, uint32_t far)
{
	for (uint64_t nth = 1;; nth++) {
		struct emitter one = open_room(rig, bytes, 1), two = open_room(rig, ROOM, 2);
		write_at(&one, far);
		struct ch_code codes[] = {one.code, two.code};
		uint32_t page_log2 = rig->heap->pool->page_log2;
		const struct ch__block *block =
			ch__block_at(rig->heap, ch__handle_index(one.code.block.bits));
		ch__os_fail_at(nth, false);
		enum ch_status status = ch_block_commit(codes, 2);
		ch__os_fail_at(0, false);
		bool runs = ch__pool_span_runs(rig->heap->pool, block->hot_offset >> page_log2);
		CHECK(status != CH_OK);
		CHECK_EQ(ch_block_abort(&codes[1]), CH_OK);
		if (runs)
			return one;
		CHECK_EQ(ch_block_abort(&codes[0]), CH_OK);
	}
}

static struct emitter open_landed_room(struct rig *rig)
{
	return open_landed(rig, ROOM, FAR);
}

static void check_trapped(const uint8_t *exec)
{
	CHECK(!is_executable(exec) || !memcmp(exec, &ch__arch_traps, sizeof ch__arch_traps));
}

/* Where the system refuses to take access away, traps stay, and the chunks are not for a room. */
TEST(room_does_not_run_where_another_landed)
{
	for (uint64_t nth = 1; nth < 20; nth++) {
		struct rig rig = rig_start(2 * POOL);
		skip_without_rooms(&rig);
		struct emitter landed = open_landed_room(&rig);
		ch__os_fail_at(nth, true);
		CHECK_EQ(ch_block_abort(&landed.code), CH_OK);
		ch__os_fail_at(0, false);
		check_trapped(landed.code.exec);
		check_trapped(landed.code.exec + FAR / 8 * 8);
		struct emitter e = open_room(&rig, ROOM, 3);
		CHECK_EQ(is_executable(e.code.exec), !is_room(&rig, e.code.block));
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		rig_collect(&rig, 1);
		rig_end(&rig);
	}
}

/* The commit that is not refused keeps less than the one before. */
TEST(room_leaves_traps_where_it_landed_in_vain)
{
	enum ch_status status = CH_E_OS;
	for (uint64_t nth = 1; status != CH_OK || nth < 30; nth++) {
		struct rig rig = rig_start(2 * POOL);
		skip_without_rooms(&rig);
		struct emitter e = open_landed_room(&rig);
		e.code.used_to = e.at;
		ch__os_fail_at(nth, true);
		status = ch_block_commit(&e.code, 1);
		ch__os_fail_at(0, false);
		if (status == CH_OK)
			check_trapped(e.code.exec + FAR / 8 * 8);
		rig_check(&rig);
		CHECK(status == CH_OK || ch_block_abort(&e.code) == CH_OK);
		rig_end(&rig);
	}
}

/* All of the room landed in vain, and then one chunk is kept. */
TEST(room_that_is_cut_leaves_its_neighbour_alone)
{
	enum { BYTES = ROOM - CHUNK / 2 };
	struct rig rig = rig_start(2 * POOL);
	skip_without_rooms(&rig);
	struct emitter e = open_landed(&rig, BYTES, BYTES - 4096);
	struct emitter neighbour = open_room(&rig, ROOM, 3);
	CHECK_EQ(neighbour.code.exec - e.code.exec, ROOM);
	CHECK_EQ(ch_block_commit(&neighbour.code, 1), CH_OK);
	e.code.used_to = e.at;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(code_call(neighbour.code.exec), 3);
	rig_end(&rig);
}

static struct rig start_on(enum ch_backend backend, size_t pool_bytes)
{
	struct ch_config config = rig_config(pool_bytes);
	config.backend = backend;
	return rig_create(&config, NULL, NULL);
}

/* The system refuses the commit from some call on, and then the abort. */
static void refuse_late(enum ch_backend backend)
{
	enum ch_status status = CH_E_OS;
	for (uint64_t nth = 1; status != CH_OK; nth++) {
		struct rig rig = start_on(backend, POOL);
		struct emitter e = open_room(&rig, ROOM, 1);
		write_far(&e);
		const uint8_t *exec = e.code.exec;
		ch__os_fail_at(nth, true);
		status = ch_block_commit(&e.code, 1);
		CHECK(status == CH_OK || ch_block_abort(&e.code) == CH_OK);
		ch__os_fail_at(0, false);
		CHECK(status != CH_OK || nth > 1 || !has_rooms(&rig));
		CHECK(status == CH_OK || !is_executable(exec) ||
		      !memcmp(exec, &ch__arch_traps, sizeof ch__arch_traps));
		rig_end(&rig);
	}
}

static void expect_rooms(enum ch_backend backend)
{
	unsetenv("CODEHEAP_WX");
	struct rig rig = start_on(backend, POOL);
	CHECK_EQ(has_rooms(&rig), !rig.heap->pool->is_translated && !ch__os_space_is_limited());
	rig_end(&rig);
}

TEST(room_is_what_a_large_block_is_dual)
{
	expect_rooms(CH_BACKEND_DUAL);
}
TEST(room_is_what_a_large_block_is_memfd)
{
	expect_rooms(CH_BACKEND_MEMFD);
}

TEST(room_that_is_refused_late_leaves_no_code_dual)
{
	refuse_late(CH_BACKEND_DUAL);
}
TEST(room_that_is_refused_late_leaves_no_code_memfd)
{
	refuse_late(CH_BACKEND_MEMFD);
}

TEST(room_that_landed_does_not_run_in_a_child_before_its_commit)
{
	struct rig rig = rig_start(2 * POOL);
	skip_without_rooms(&rig);
	struct emitter e = open_landed_room(&rig);
	pid_t child = fork_child();
	CHECK_EQ(is_executable(e.code.exec), child != 0);
	rig_check(&rig);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(code_call(e.code.exec + FAR), 1);
	if (!child)
		_exit(0);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	rig_end(&rig);
}

/* A commit asks for memory, and not for more than is used. An open asks for the traps' memory, and
 * keeps no file. */
static void room_asks_for_memory(enum ch_backend backend)
{
	enum { LARGE = 120 * CHUNK, MOST_KIB = 60 << 10 };
	struct rig rig = start_on(backend, (size_t)256 << 20);
	struct ch_open open = {.owner = rig_owner(&rig, "room"), .hot_bytes = LARGE};
	struct emitter e;
	ch__os_pretended.commit_error = ENOMEM;
	CHECK(emit_open_as(&e, &open) != CH_OK);
	ch__os_pretended.commit_error = 0;
	int file = dup(STDERR_FILENO);
	close(file);
	e = open_room(&rig, LARGE, 5);
	CHECK_EQ(dup(STDERR_FILENO), file);
	struct rusage before, after;
	bool was_room = is_room(&rig, e.code.block);
	ch__os_pretended.commit_error = ENOMEM;
	enum ch_status status = ch_block_commit(&e.code, 1);
	ch__os_pretended.commit_error = 0;
	CHECK_EQ(status, was_room ? CH_E_OS : CH_OK);
	CHECK_EQ(getrusage(RUSAGE_SELF, &before), 0);
	if (was_room)
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(getrusage(RUSAGE_SELF, &after), 0);
	CHECK(TEST_SANITIZED || after.ru_maxrss - before.ru_maxrss < MOST_KIB);
	CHECK_EQ(code_call(e.code.exec), 5);
	rig_end(&rig);
}

TEST(room_asks_for_memory_of_what_is_used_dual)
{
	room_asks_for_memory(CH_BACKEND_DUAL);
}
TEST(room_asks_for_memory_of_what_is_used_memfd)
{
	room_asks_for_memory(CH_BACKEND_MEMFD);
}

/* A child without the library's handler has neither view. */
static void check_views(const uint8_t *write, const uint8_t *exec)
{
	for (size_t at = 0; at < ROOM; at += CHUNK)
		CHECK(mapping_has_flag(write + at, " dd") && mapping_has_flag(write + at, " dc") &&
		      mapping_has_flag(exec + at, " dc"));
}

static void room_is_in_no_core_file(enum ch_backend backend)
{
	struct rig rig = start_on(backend, POOL);
	for (int is_aborted = 0; is_aborted < 2; is_aborted++) {
		struct emitter e = open_room(&rig, ROOM, 5);
		const uint8_t *write = e.code.write, *exec = e.code.exec;
		bool was_room = is_room(&rig, e.code.block);
		if (was_room)
			check_views(write, exec);
		if (is_aborted)
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
		else
			CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		if (was_room)
			check_views(write, exec);
	}
	rig_end(&rig);
}

TEST(room_is_in_no_core_file_and_no_strange_child_dual)
{
	room_is_in_no_core_file(CH_BACKEND_DUAL);
}
TEST(room_is_in_no_core_file_and_no_strange_child_memfd)
{
	room_is_in_no_core_file(CH_BACKEND_MEMFD);
}
