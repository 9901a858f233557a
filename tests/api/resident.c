/* SPDX-License-Identifier: MIT
 * resident.c: the memory that a heap costs, by /proc/self/smaps: the first block, on every backend
 * and size of page; the rest, when many blocks were freed by hand; and the calls to the system and
 * the allocator for a heap. */
#include "os/os.h"
#include "tests/support/heap_rig.h"

#include <stdio.h>
#include <sys/resource.h>

enum {
	KIB = 1024,
	NOTES_KIB = CH_CHECK >= 2 ? 64 : 0, /* checked builds copy published bytes */
	FIRST_BLOCK_KIB = 256 + NOTES_KIB,
	HEAP_KIB = 170, /* and three pages: two views of the runtime page, and notes */
};

/* The system keeps or drops pages of files. A name of shared memory is no file. */
static bool is_of_a_file(const char *mapping)
{
	const char *path = strchr(mapping, '/');
	return path && strncmp(path, "/dev/zero", 9) != 0 && strncmp(path, "/memfd:", 7) != 0;
}

/* KiB of the process in memory. Shared memory counts once for each mapping. */
static unsigned long resident(void)
{
	char line[512];
	unsigned long sum = 0, low, high, kib;
	bool counts = false;
	FILE *smaps = fopen("/proc/self/smaps", "r");
	CHECK(smaps);
	setvbuf(smaps, NULL, _IONBF, 0);
	while (fgets(line, sizeof line, smaps))
		if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
			counts = !is_of_a_file(line);
		else if (counts && sscanf(line, "Rss: %lu kB", &kib) == 1)
			sum += kib;
	fclose(smaps);
	return sum;
}

static void make_first_block(void *of)
{
	struct ch_config config = *(const struct ch_config *)of;
	struct rig rig = rig_create(&config, NULL, NULL);
	unsigned long before = resident();
	struct ch_owner owner = rig_owner(&rig, "first");
	struct ch_block block = rig_block(owner, 5);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(code_call_owner(owner), 5);
	unsigned long after = resident();
	if (!TEST_SANITIZED && after > before + FIRST_BLOCK_KIB)
		FAIL("backend %d, pages of %zu: the first block costs %lu KiB", (int)config.backend,
		     config.page_bytes, after - before);
}

/* Measures in a child for each size of page: a child has had no heap before. */
static void by_each_size_of_page(enum ch_backend backend)
{
	unsetenv("CODEHEAP_WX");
	for (size_t page = 4 * KIB; page <= 64 * KIB; page *= 2) {
		struct ch_config config = rig_config(0);
		config.page_bytes = page;
		config.backend = backend;
		expect_signal(make_first_block, &config, 0);
	}
}

TEST(first_block_costs_at_most_256_kib_dual)
{
	by_each_size_of_page(CH_BACKEND_DUAL);
}

TEST(first_block_costs_at_most_256_kib_memfd)
{
	by_each_size_of_page(CH_BACKEND_MEMFD);
}

TEST(first_block_costs_at_most_256_kib_procmem)
{
	skip_without_procmem();
	by_each_size_of_page(CH_BACKEND_PROCMEM);
}

/* --- unused room --- */

static struct rig rig_on(enum ch_backend backend)
{
	struct ch_config config = rig_config(64 << 20);
	config.backend = backend;
	if (backend != CH_BACKEND_AUTO)
		unsetenv("CODEHEAP_WX");
	return rig_create(&config, NULL, NULL);
}

/* The code returns 7. */
static struct emitter open_room(struct rig *rig, uint32_t room)
{
	struct emitter e;
	emit_open(&e, rig_owner(rig, "large"), room, 0);
	emit_answer(&e, 7);
	return e;
}

/* What an emitter wrote beyond used_to, or before an abort, goes with the room. Checked builds have
 * notes of the first chunk. */
static void open_large(enum ch_backend backend, bool is_aborted)
{
	enum { ROOM = 16 << 20, CODE = 4 << 10, WRITTEN = 3 << 20, CHUNK = 1 << 20 };
	enum { STAYS_KIB = (CH_CHECK >= 2 ? 2 : 1) * CHUNK / KIB + 256 };
	struct rig rig = rig_on(backend);
	struct emitter e = open_room(&rig, ROOM);
	memset(e.code.write + CODE, 0, WRITTEN);
	unsigned long before = resident();
	CHECK_EQ(is_aborted ? ch_block_abort(&e.code) : emit_commit(&e), CH_OK);
	unsigned long after = resident();
	if (rig_stats(&rig).committed_bytes_now > 3 * CHUNK)
		FAIL("%llu KiB are committed",
		     (unsigned long long)rig_stats(&rig).committed_bytes_now / KIB);
	if (!TEST_SANITIZED && after + WRITTEN / KIB > before + STAYS_KIB)
		FAIL("the process has %lu KiB, and had %lu", after, before);
	if (!is_aborted)
		CHECK_EQ(code_call(block_info(e.code.block).exec), 7);
	rig_end(&rig);
}

/* Private memory is there from the open on. */
TEST(room_of_a_large_block_that_was_not_used_is_given_back_by_its_commit)
{
	open_large(CH_BACKEND_AUTO, false);
	if (CH_ARCH_LEAD_BYTES)
		open_large(CH_BACKEND_PROCMEM, false);
}

TEST(room_of_a_large_block_is_given_back_by_its_abort)
{
	open_large(CH_BACKEND_AUTO, true);
	if (CH_ARCH_LEAD_BYTES)
		open_large(CH_BACKEND_PROCMEM, true);
}

static void room_takes_what_is_written(enum ch_backend backend)
{
	enum { ROOM = 48 << 20, WRITTEN = 3 << 20, MOST_KIB = 3 << 10 };
	struct rig rig = rig_on(backend);
	unsigned long before = resident();
	struct emitter e = open_room(&rig, ROOM);
	CHECK(e.code.hot_bytes >= ROOM);
	if (!TEST_SANITIZED && resident() > before + MOST_KIB)
		FAIL("the open takes %lu KiB", resident() - before);
	memset(e.code.write + e.at, 0, WRITTEN);
	if (!TEST_SANITIZED && resident() > before + WRITTEN / KIB + MOST_KIB)
		FAIL("%d KiB written take %lu KiB", WRITTEN / KIB, resident() - before);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(code_call(block_info(e.code.block).exec), 7);
	rig_end(&rig);
}
TEST(open_of_a_large_room_touches_only_what_is_written_dual)
{
	room_takes_what_is_written(CH_BACKEND_DUAL);
}
TEST(open_of_a_large_room_touches_only_what_is_written_memfd)
{
	room_takes_what_is_written(CH_BACKEND_MEMFD);
}

/* The map of a block's sites has three bits for each byte of the block. */
TEST_RIG_BY(sites_of_large_rooms_take_memory_where_they_are, rig_on(CH_BACKEND_AUTO))
{
	enum { ROOM = 48 << 20, SITES = 20, MOST_KIB = 3 << 10 };
	for (int i = 0; i < 2; i++) {
		struct emitter e = open_room(&rig, ROOM);
		unsigned long before = resident();
		for (uint32_t at = 0; at < SITES; at++)
			CHECK_EQ(ch_ref_attach(e.code.block, e.code.exec + 64 + 8 * at), CH_OK);
		if (!TEST_SANITIZED && resident() > before + MOST_KIB)
			FAIL("sites of block %d take %lu KiB", i, resident() - before);
		CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	}
}

/* --- freed by hand --- */

enum { MANY = 20000, MANY_BYTES = 600, LEFT_BYTES = 4 << 20 };

static struct ch_block large_block(struct ch_owner owner)
{
	struct emitter e;
	emit_open(&e, owner, MANY_BYTES, 0);
	emit_ret(&e);
	e.code.used_to = MANY_BYTES;
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	return e.code.block;
}

/* Nobody collects. The place of a linked block waits for a core synchronization. */
static void free_many(bool are_linked)
{
	static struct ch_owner owners[MANY];
	struct rig rig = rig_start(64 << 20);
	struct ch_owner source = rig_owner(&rig, "source");
	struct ch_branch branch;
	rig_jumper(source, NULL, &branch);
	for (int i = 0; i < MANY; i++) {
		owners[i] = rig_owner(&rig, "one of many");
		struct ch_block block = large_block(owners[i]);
		if (are_linked)
			CHECK_EQ(ch_branch_link(branch, block), CH_OK);
	}
	uint64_t most = rig_stats(&rig).committed_bytes_now;
	unsigned long before = resident();
	CHECK(most >= (uint64_t)MANY * MANY_BYTES);
	for (int i = 0; i < MANY; i++)
		CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	struct ch_stats stats = rig_stats(&rig);
	CHECK_EQ(stats.cycles, 0);
	/* The last trim left less than two chunks, and the next waits for two more. */
	if (stats.committed_bytes_now > LEFT_BYTES)
		FAIL("%llu KiB of %llu are committed for %llu bytes of code",
		     (unsigned long long)stats.committed_bytes_now / KIB,
		     (unsigned long long)most / KIB, (unsigned long long)stats.code_bytes_now);
	unsigned long after = resident(), gone = (unsigned long)(most - LEFT_BYTES) / KIB;
	if (!TEST_SANITIZED && after + gone > before)
		FAIL("the process has %lu KiB, and had %lu", after, before);
	rig_end(&rig);
}

TEST(code_freed_by_hand_gives_its_memory_back_without_a_collection)
{
	free_many(false);
}

TEST(code_freed_by_hand_that_branches_led_to_gives_its_memory_back)
{
	free_many(true);
}

/* After a peak: the blocks that stay lie in all chunks. */
TEST_RIG_BY(memory_goes_back_around_the_few_blocks_that_stay, rig_start(64 << 20))
{
	enum { STAYS = 1600, LEFT = 4 << 20 };
	static struct ch_owner owners[MANY];
	for (int i = 0; i < MANY; i++)
		large_block(owners[i] = rig_owner(&rig, "one of many"));
	uint64_t most = rig_stats(&rig).committed_bytes_now;
	unsigned long before = resident();
	CHECK(most > 2 * LEFT);
	for (int i = 0; i < MANY; i++)
		if (i % STAYS != STAYS / 2)
			CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
	uint64_t committed = rig_stats(&rig).committed_bytes_now;
	unsigned long after = resident(), gone = (unsigned long)(most - LEFT) / KIB;
	if (committed > LEFT)
		FAIL("%llu KiB of %llu are committed", (unsigned long long)committed / KIB,
		     (unsigned long long)most / KIB);
	if (!TEST_SANITIZED && after + gone > before)
		FAIL("the process has %lu KiB, and had %lu", after, before);
}

/* Memory stays when only a fifth of the blocks comes and goes. */
TEST_RIG_BY(memory_in_use_again_at_once_is_not_given_back, rig_start(64 << 20))
{
	static struct ch_owner owners[MANY];
	for (int i = 0; i < MANY; i++)
		large_block(owners[i] = rig_owner(&rig, "one of many"));
	uint64_t most = rig_stats(&rig).committed_bytes_now;
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < MANY / 5; i++)
			CHECK_EQ(ch_owner_release(owners[i], CH_RELEASE_NOT_RUNNING), CH_OK);
		CHECK(rig_stats(&rig).committed_bytes_now >= most);
		for (int i = 0; i < MANY / 5; i++)
			large_block(owners[i] = rig_owner(&rig, "one of many"));
	}
}

/* Memory that a large OPEN block has not written yet counts, on each backend. */
TEST_RIG_BY(committed_bytes_are_those_that_an_open_block_may_write, rig_start(32 << 20))
{
	enum { LARGE = 5 << 20 };
	struct ch_open open = {.owner = rig_owner(&rig, "large"), .hot_bytes = LARGE};
	struct emitter e;
	uint64_t before = rig_stats(&rig).committed_bytes_now;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(rig_stats(&rig).committed_bytes_now >= before + LARGE);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}

/* To give a chunk execute access takes as much address space as lies before the chunk: the system
 * refuses in the middle of a long run of pages. */
TEST(open_that_the_system_refuses_in_its_middle_gives_back_what_it_got_dual)
{
	enum { LARGE = 48 << 20, SPACE = 20 << 20, MOST = 2 << 20 };
	/* Two views; and notes of each byte that had memory. */
	enum { MOST_KIB = (2 * MOST + (CH_CHECK >= 2 ? SPACE : 0)) / KIB };
	if (TEST_SANITIZED)
		skip("a sanitizer needs address space of its own");
	struct rig rig = rig_on(CH_BACKEND_DUAL);
	struct ch_open open = {.owner = rig_owner(&rig, "large"), .hot_bytes = LARGE};
	struct emitter e;
	struct rlimit all, few;
	CHECK_EQ(getrlimit(RLIMIT_AS, &all), 0);
	few = all;
	few.rlim_cur = mapped_bytes() + SPACE;
	unsigned long before = resident();
	CHECK_EQ(setrlimit(RLIMIT_AS, &few), 0);
	CHECK_EQ(emit_open_as(&e, &open), CH_E_MEMORY);
	CHECK_EQ(setrlimit(RLIMIT_AS, &all), 0);
	uint64_t committed = rig_stats(&rig).committed_bytes_now;
	unsigned long after = resident();
	if (committed > MOST || after > before + MOST_KIB)
		FAIL("%llu KiB are committed, the process has %lu KiB, and had %lu",
		     (unsigned long long)committed / KIB, after, before);
	rig_end(&rig);
}

/* --- a heap --- */

/* A pool without a given size grows with its code. Statistics skip the unused rest. */
TEST_RIG_BY(pool_that_nobody_gave_a_size_grows_with_its_code, rig_start(0))
{
	enum { PIECE = 1 << 20, MOST = 96 };
	struct ch_owner owner = rig_owner(&rig, "large");
	struct ch_stats stats = rig_stats(&rig);
	CHECK(stats.committed_bytes_now <= PIECE);
	CHECK_EQ(stats.free_bytes_now, stats.pool_bytes);
	CHECK_EQ(stats.largest_free_bytes_now, stats.pool_bytes);
	unsigned count = stats.pool_bytes / PIECE < MOST ? stats.pool_bytes / PIECE - 1 : MOST;
	for (unsigned i = 0; i < count; i++) {
		struct emitter e;
		emit_open(&e, owner, PIECE - 64, 0);
		emit_answer(&e, i);
		e.code.used_to = PIECE - 64;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
		CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
		CHECK_EQ(code_call_owner(owner), (int)i);
	}
	stats = rig_stats(&rig);
	CHECK_EQ(stats.free_bytes_now, stats.pool_bytes - (uint64_t)count * PIECE);
	CHECK(stats.committed_bytes_now >= (uint64_t)count * PIECE);
}

/* Makes a second heap. All calls that may fail pass the gate, and are counted there. */
TEST(heap_is_made_by_few_calls_of_the_system)
{
	enum { MOST_CALLS = 21 };
	struct rig first = rig_start(0);
	struct ch_config config = rig_config(0);
	struct ch_heap *heap;
	config.sinks = CH_SINK_UNWIND;
	unsigned long before = resident();
	ch__os_fail_at(UINT64_MAX, false);
	CHECK_EQ(ch_heap_create(&config, &heap), CH_OK);
	uint64_t calls = ch__os_failable_calls();
	ch__os_fail_at(0, false);
	unsigned long after = resident();
	if (calls > MOST_CALLS)
		FAIL("%llu calls", (unsigned long long)calls);
	if (!TEST_SANITIZED && after > before + HEAP_KIB + 3 * rig_page_bytes() / KIB)
		FAIL("a heap without code has %lu KiB", after - before);
	CHECK_EQ(ch_heap_destroy(heap), CH_OK);
	rig_end(&first);
}
