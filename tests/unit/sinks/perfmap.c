/* SPDX-License-Identifier: MIT
 * perfmap.c: the perf map as readers see it. After every flush the map names each live range once,
 * and no address twice. The map survives forks, other heaps and full disks. tests/api/sink_files.c
 * tests foreign files at the same name. */
#include "os/locks/ranks.h"
#include "tests/unit/sinks/perfmap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GRANULES = BED_POOL_BYTES / 8 };

TEST(map_names_ranges_after_flush)
{
	struct bed bed;
	char path[128];
	start(&bed, path);
	CHECK_STR(ch__sinks_path(bed.sinks, CH_SINK_PERF_MAP), path);
	add(&bed, 64, 40, 7);
	add(&bed, BED_CHUNK_BYTES - 64, 128, 8); /* crosses chunks */
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	check_named(path, bed.pool + 64, "fn_7");
	check_named(path, bed.pool + 103, "fn_7");
	check_named(path, bed.pool + 104, NULL);
	check_named(path, bed.pool + BED_CHUNK_BYTES + 63, "fn_8");
	check_named(path, bed.runtime, "codeheap_runtime");
	bed_close(&bed);
	check_named(path, bed.pool + 64, "fn_7"); /* readers come later */
	remove_own_folder();
}

/* perf looks in /tmp. A shell that gives no folder may give an empty word. */
TEST(map_lies_in_tmp_where_no_folder_is_given)
{
	char path[128];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
	for (int is_empty = 0; is_empty < 2; is_empty++) {
		struct bed bed;
		CHECK_EQ(unsetenv("CODEHEAP_PERF_MAP_DIR"), 0);
		CHECK_EQ(is_empty ? setenv("CODEHEAP_PERF_MAP_DIR", "", 1) : 0, 0);
		bed_open(&bed, CH_SINK_PERF_MAP);
		const char *at = ch__sinks_path(bed.sinks, CH_SINK_PERF_MAP);
		check_named(at, bed.runtime, "codeheap_runtime");
		CHECK_EQ(unlink(at), 0);
		CHECK_STR(at, path);
		bed_close(&bed);
	}
}

/* Commits and polls only ask the sinks to catch up; there is no flush. */
static void catch_up(void)
{
	TEST_UNTIL(ch__sinks_catch_up())
		usleep(100);
}

static void check_name_or_status(struct bed *bed, const char *path, const void *pc,
				 const char *name)
{
	catch_up();
	if (ch__sinks_status(bed->sinks, CH_SINK_PERF_MAP) == 0)
		check_named(path, pc, name);
}

static void check_name(struct bed *bed, const char *path, const void *pc, const char *name)
{
	catch_up();
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_PERF_MAP), 0);
	check_named(path, pc, name);
}

TEST_MAP(map_names_ranges_without_a_flush)
{
	add(bed, 64, 64, 1);
	check_name(bed, path, bed->pool + 64, "fn_1");
	add(bed, 512, 64, 2);
	check_name(bed, path, bed->pool + 512, "fn_2");
	discard(bed, 64, 64, 1);
	add(bed, 96, 64, 3); /* the file is written anew */
	add(bed, 1024, 64, 4);
	check_name(bed, path, bed->pool + 96, "fn_3");
	check_name(bed, path, bed->pool + 1024, "fn_4");
	check_named(path, bed->pool + 64, NULL);
}

static uint64_t told_ns, each_ns;

static uint64_t tell_time(uint64_t waited_ns)
{
	return told_ns += waited_ns + each_ns;
}

static void write_anew(struct bed *bed, uint64_t work_ns)
{
	told_ns = UINT64_C(1) << 40;
	ch__os_pretended.clock = tell_time;
	add(bed, 64, 40, 7);
	CHECK(ch__sinks_catch_up());
	discard(bed, 64, 40, 7);
	add(bed, 64, 40, 8);
	each_ns = work_ns;
	CHECK(ch__sinks_catch_up());
	each_ns = 0;
}

/* The whole file costs its duration many times over, no more. */
TEST_MAP(map_that_was_written_anew_is_soon_written_again)
{
	write_anew(bed, 0);
	check_named(path, bed->pool + 64, "fn_8");
	add(bed, 128, 40, 9);
	told_ns += UINT64_C(1000000000);
	CHECK(ch__sinks_catch_up());
	check_named(path, bed->pool + 128, "fn_9");
	ch__os_pretended.clock = NULL;
}

/* Nor does it use up the time of the next lines. */
TEST_MAP(map_that_nothing_waits_for_is_not_written)
{
	enum { TRIES = 100 };
	told_ns = UINT64_C(1) << 40;
	ch__os_pretended.clock = tell_time;
	for (unsigned i = 0; i < TRIES; i++)
		CHECK(ch__sinks_catch_up());
	CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
	for (unsigned i = 0; i < TRIES; i++)
		CHECK(ch__sinks_catch_up());
	ch__os_pretended.clock = NULL;
	CHECK_EQ(access(path, F_OK), 0);
}

/* A stop, of the process or of its container, is no work. */
TEST_MAP(map_that_was_written_anew_as_the_process_stopped_for_hours_is_soon_written_again)
{
	const uint64_t second = 1000000000;
	write_anew(bed, 3 * 3600 * second);
	add(bed, 128, 40, 9);
	told_ns += 40 * second; /* it may have worked for one */
	CHECK(ch__sinks_catch_up());
	check_named(path, bed->pool + 128, "fn_9");
	ch__os_pretended.clock = NULL;
}

/* Writes without end get only a share of the time; the waiting lines are written afterwards. */
TEST_MAP(map_is_written_at_once_until_commits_come_thick)
{
	enum { MOST = 5000 };
	size_t at_once = 0;
	do
		add(bed, at_once * 64, 64, at_once);
	while (ch__sinks_catch_up() && ++at_once < MOST);
	CHECK(at_once >= 4 && at_once < MOST);
	char name[32];
	snprintf(name, sizeof name, "fn_%zu", at_once);
	check_name(bed, path, bed->pool + at_once * 64, name);
}

/* A failing call may turn the file off, with a reason. */
TEST(map_names_ranges_without_a_flush_when_any_call_fails)
{
	char path[128];
	bool has_failed = true;
	use_own_folder();
	path_of(getpid(), path);
	for (uint64_t nth = 1; has_failed; nth++) {
		struct bed bed;
		bed_open(&bed, CH_SINK_PERF_MAP);
		ch__os_fail_at(nth, false);
		for (size_t i = 1; i <= 3; i++) {
			add(&bed, i * 64, 64, 1);
			check_name_or_status(&bed, path, bed.pool + i * 64, "fn_1");
		}
		has_failed = ch__os_failable_calls() >= nth;
		CHECK(has_failed || (nth > 6 && !ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP)));
		ch__os_fail_at(0, false);
		bed_close(&bed);
	}
	remove_own_folder();
}

TEST(map_that_another_compiler_has_open_is_left_alone)
{
	struct bed bed;
	char path[128];
	const struct timespec long_ago[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	use_own_folder();
	path_of(getpid(), path);
	int other = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
	CHECK_EQ(dprintf(other, "1000 10 theirs\n"), 15);
	CHECK_EQ(futimens(other, long_ago), 0);
	bed_open(&bed, CH_SINK_PERF_MAP);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP), EBUSY);
	check_named(path, (void *)0x1000, "theirs");
	CHECK_EQ(close(other), 0);
	end(&bed);
}

/* Appending keeps the lines of both compilers; writing the file anew would lose the other's. */
TEST_MAP(map_that_another_compiler_writes_to_keeps_its_lines)
{
	int other = open(path, O_WRONLY | O_APPEND);
	for (size_t i = 1; i <= 3; i++) {
		add(bed, i * 64, 64, i);
		ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
		CHECK_EQ(dprintf(other, "%zx 10 theirs\n", i << 12), 15);
	}
	check_named(path, (void *)0x1000, "theirs");
	check_named(path, bed->pool + 64, "fn_1");
	check_named(path, bed->pool + 192, "fn_3");
	discard(bed, 64, 64, 1);
	add(bed, 96, 32, 4);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_PERF_MAP), EBUSY);
	check_named(path, (void *)0x3000, "theirs");
	check_named(path, bed->pool + 192, "fn_3");
	CHECK_EQ(close(other), 0);
}

/* A file that no heap uses is closed. */
TEST(map_of_heaps_that_have_gone_is_closed)
{
	use_own_folder();
	int before = open("/dev/null", O_RDONLY);
	CHECK(before >= 0 && close(before) == 0);
	for (int i = 0; i < 5; i++) {
		struct bed bed;
		bed_open(&bed, CH_SINK_PERF_MAP);
		add(&bed, 64, 64, 1);
		bed_close(&bed);
	}
	int after = open("/dev/null", O_RDONLY);
	CHECK(after >= 0 && close(after) == 0);
	CHECK_EQ(after, before);
	remove_own_folder();
}

/* The new line is longer than the dead one at its beginning, by far. */
TEST_MAP(map_has_one_name_where_a_long_range_follows_a_short_one)
{
	add(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	discard(bed, 64, 64, 1);
	add(bed, 64, 4000, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	check_named(path, bed->pool + 70, "fn_2");
	check_named(path, bed->pool + 4000, "fn_2");
}

/* The log of lines becomes shorter when few of many lines are live. */
TEST_MAP(map_keeps_the_one_line_of_many_that_is_live)
{
	enum { LINES = 5000, LAST = LINES - 1 };
	for (uint32_t i = 0; i < LINES; i++)
		add(bed, i * 16, 16, i);
	for (uint32_t i = 0; i < LAST; i++)
		discard(bed, i * 16, 16, i);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	check_named(path, bed->pool + LAST * 16, "fn_4999");
	check_named(path, bed->pool + 16, NULL);
}

/* The file before is open no longer than it takes to make the next one. */
TEST(map_written_anew_keeps_one_file_open)
{
	struct bed bed;
	use_own_folder();
	bed_open(&bed, CH_SINK_PERF_MAP);
	int before = open("/dev/null", O_RDONLY);
	CHECK(before >= 0 && close(before) == 0);
	for (uint64_t i = 0; i < 20; i++) {
		add(&bed, 64, 64, i);
		discard(&bed, 64, 64, i);
		ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	}
	int after = open("/dev/null", O_RDONLY);
	CHECK(after >= 0 && close(after) == 0);
	CHECK(after <= before + 1);
	end(&bed);
}

/* --- a storm against a model: owner[granule] = key of the live range there, 0 = none --- */
struct model {
	struct bed bed;
	struct test_random random;
	uint32_t owner[GRANULES];
	uint32_t first[1 << 16]; /* granule where the key's range begins */
	uint32_t length[1 << 16];
	uint32_t used; /* granules of the pool in play */
	uint32_t keys;
};

static void model_add(struct model *m)
{
	uint32_t length = 1 + (uint32_t)test_random_below(&m->random, 40);
	uint32_t at = (uint32_t)test_random_below(&m->random, m->used - length);
	for (uint32_t i = 0; i < length; i++)
		if (m->owner[at + i])
			return;
	uint32_t key = m->keys++;
	for (uint32_t i = 0; i < length; i++)
		m->owner[at + i] = key;
	m->first[key] = at;
	m->length[key] = length;
	add(&m->bed, at * 8u, length * 8u - test_random_below(&m->random, 8), key);
}

static void model_remove(struct model *m, uint32_t key)
{
	if (!key)
		return;
	for (uint32_t i = 0; i < m->length[key]; i++)
		m->owner[m->first[key] + i] = 0;
	discard(&m->bed, m->first[key] * 8u, m->length[key] * 8u, key);
}

static void check_against_model(struct model *m, const char *path)
{
	struct map_file *map = read_map(path);
	size_t at = 0;
	for (uint32_t granule = 0; granule < m->used; granule++) {
		uint32_t key = m->owner[granule];
		if (!key || m->first[key] != granule)
			continue;
		uintptr_t pc = (uintptr_t)m->bed.pool + granule * 8u;
		while (at < map->count && map->lines[at].start < pc)
			at++;
		char name[40];
		bed_name(NULL, key, name, sizeof name);
		CHECK(at < map->count && map->lines[at].start == pc);
		CHECK_STR(map->lines[at].name, name);
		CHECK_EQ((map->lines[at].bytes + 7) / 8, m->length[key]);
	}
	free(map);
}

TEST(map_storm_never_overlaps)
{
	struct model *m = calloc(1, sizeof *m);
	char path[128];
	CHECK(m != NULL);
	start(&m->bed, path);
	m->random = test_random_new();
	m->used = BED_CHUNK_BYTES / 8 + 4096; /* over a chunk's edge */
	m->keys = 1;
	uint64_t until_ns = now_ns() + storm_ms() * UINT64_C(1000000);
	unsigned rounds = 0;
	for (; (rounds < 2 || now_ns() < until_ns) && m->keys < (1 << 16) - 2000; rounds++) {
		uint32_t before = m->keys;
		for (uint64_t n = test_random_below(&m->random, 400); n > 0; n--)
			model_add(m);
		for (uint64_t n = test_random_below(&m->random, 500); n > 0; n--)
			model_remove(m, m->owner[test_random_below(&m->random, m->used)]);
		if (test_random_below(&m->random, 16) == 0) /* born and dead in one batch */
			for (uint32_t key = before; key < m->keys; key++)
				if (m->owner[m->first[key]] == key)
					model_remove(m, key);
		ch__sinks_flush(m->bed.sinks,
				(enum ch__flush)(test_random_below(&m->random, 8) % 3));
		check_against_model(m, path);
	}
	CHECK_EQ(ch__sinks_status(m->bed.sinks, CH_SINK_PERF_MAP), 0);
	bed_close(&m->bed);
	free(m);
	remove_own_folder();
}

/* --- threads: each has an area of its own, as compiling threads have their pages --- */
enum { THREADS = 2, AREA_BYTES = 1 << 16, THREAD_RANGES = AREA_BYTES / 64 };

struct area {
	struct bed *bed;
	size_t first;
	uint64_t end_ns;
	bool live[THREAD_RANGES];
};

static void *churn(void *arg)
{
	struct area *area = arg;
	struct test_random random = test_random_new();
	while (now_ns() < area->end_ns) {
		for (int n = 0; n < 100; n++) {
			size_t i = test_random_below(&random, THREAD_RANGES);
			size_t offset = area->first + i * 64;
			(area->live[i] ? discard : add)(area->bed, offset, 64, offset);
			area->live[i] = !area->live[i];
		}
		ch__sinks_flush(area->bed->sinks,
				(enum ch__flush)(test_random_below(&random, 4) % 3));
	}
	return NULL;
}

TEST_MAP(map_told_by_threads_is_whole)
{
	static struct area areas[THREADS];
	pthread_t threads[THREADS];
	uint64_t until_ns = now_ns() + storm_ms() * UINT64_C(500000);
	for (size_t i = 0; i < THREADS; i++) {
		areas[i] = (struct area){.bed = bed, .first = i * AREA_BYTES, .end_ns = until_ns};
		CHECK_EQ(pthread_create(&threads[i], NULL, churn, &areas[i]), 0);
	}
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	struct map_file *map = read_map(path);
	for (size_t i = 0; i < THREADS * THREAD_RANGES; i++) {
		const struct area *area = &areas[i / THREAD_RANGES];
		const struct map_line *line = line_of(map, (uintptr_t)bed->pool + i * 64);
		char name[40];
		if (!area->live[i % THREAD_RANGES])
			continue;
		bed_name(NULL, i * 64, name, sizeof name);
		CHECK(line != NULL);
		CHECK_STR(line->name, name);
	}
	free(map);
}

/* --- failures --- */
static void check_switched_off(struct bed *bed, int error)
{
	CHECK_EQ(ch__sinks_on(bed->sinks), 0);
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_PERF_MAP), error);
	CHECK_STR(ch__sinks_path(bed->sinks, CH_SINK_PERF_MAP), "");
	add(bed, 64, 64, 1); /* no sink is told, no harm */
	discard(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_COLLECTION);
}

TEST(map_is_switched_off_when_the_file_may_not_grow)
{
	struct bed bed;
	struct rlimit limit = {4096, 4096};
	use_own_folder();
	bed_open(&bed, CH_SINK_PERF_MAP);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	for (size_t i = 0; i < 1024; i++)
		add(&bed, i * 64, 64, i);
	CHECK_EQ(ch__sinks_on(bed.sinks), CH_SINK_PERF_MAP);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	check_switched_off(&bed, EFBIG);
	end(&bed);
}

/* The folder of the map is missing, and each try would need memory of its own. */
TEST(map_that_cannot_be_opened_keeps_no_memory)
{
	enum { TRIES = 64, TRY_BYTES = GRANULES / 8 };
	struct bed bed;
	CHECK_EQ(setenv("CODEHEAP_PERF_MAP_DIR", "/nonexistent", 1), 0);
	bed_open(&bed, 0);
	CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_PERF_MAP), ENOENT);
	size_t before = mapped_bytes();
	for (int i = 0; i < TRIES; i++)
		CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_PERF_MAP), ENOENT);
	CHECK(mapped_bytes() < before + TRIES / 2 * TRY_BYTES);
	bed_close(&bed);
}

/* What a failed try leaves is known to be the library's own. */
TEST_MAP(map_that_could_not_be_begun_replaces_its_file_at_the_next_try)
{
	bool has_failed = true;
	for (uint64_t nth = 1; has_failed; nth++) {
		CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
		ch__os_fail_at(nth, false);
		has_failed = ch__sinks_set(bed->sinks, CH_SINK_PERF_MAP) != 0;
		CHECK(has_failed || nth > 1);
		ch__os_fail_at(0, false);
		CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
		CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_PERF_MAP), 0);
		add(bed, 64, 64, nth);
	}
	CHECK_EQ(access(path, F_OK), 0);
}

/* Fails each system or metadata call of a life in turn: the map is right, or off with a reason. */
TEST(map_is_right_or_off_when_any_call_fails)
{
	char path[128], beside[136];
	use_own_folder();
	path_of(getpid(), path);
	snprintf(beside, sizeof beside, "%s.new", path);
	uint64_t nth = 1;
	for (;; nth++) {
		struct bed bed;
		bed_map(&bed);
		ch__os_fail_at(nth, false);
		int error = ch__sinks_create(&bed.config, CH_SINK_PERF_MAP, &bed.sinks);
		bool has_failed = ch__os_failable_calls() >= nth;
		CHECK(!error || has_failed);
		if (!error) {
			add(&bed, 64, 64, 1);
			ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
			discard(&bed, 64, 64, 1);
			add(&bed, 64, 32, 2);
			add(&bed, BED_CHUNK_BYTES, 32, 3);
			ch__sinks_flush(bed.sinks, CH__FLUSH_COLLECTION);
			bool is_on = ch__sinks_on(bed.sinks) != 0;
			has_failed = ch__os_failable_calls() >= nth;
			ch__os_fail_at(0, false);
			CHECK_EQ(is_on, ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP) == 0);
			CHECK(is_on || has_failed);
			CHECK(access(beside, F_OK) != 0);
			if (is_on) {
				check_named(path, bed.pool + 64, "fn_2");
				check_named(path, bed.pool + 96, NULL);
				check_named(path, bed.pool + BED_CHUNK_BYTES, "fn_3");
			}
		}
		ch__os_fail_at(0, false);
		bed_close(&bed); /* destroying NULL does nothing */
		if (!has_failed)
			break;
	}
	CHECK(nth > 6);
	remove_own_folder();
}

static void replace_an_earlier_map(void)
{
	char path[128];
	struct bed bed;
	use_own_folder();
	path_of(getpid(), path);
	FILE *old = fopen(path, "w");
	CHECK(old != NULL);
	fputs("1000 10 stale\n", old);
	fclose(old);
	const struct timespec long_ago[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	CHECK_EQ(utimensat(AT_FDCWD, path, long_ago, 0), 0);
	bed_open(&bed, CH_SINK_PERF_MAP);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP), 0);
	add(&bed, 64, 64, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	check_named(path, (void *)0x1000, NULL);
	check_named(path, bed.pool + 64, "fn_1");
	end(&bed);
}

TEST(map_of_an_earlier_process_of_the_same_number_is_replaced)
{
	replace_an_earlier_map();
}

/* Without an input, descriptor 0 is the folder of descriptors, read to learn who has the map
 * open. */
TEST(map_of_an_earlier_process_is_replaced_by_one_without_an_input)
{
	close(STDIN_FILENO);
	replace_an_earlier_map();
}

/* --- several heaps, late start, fork --- */
TEST(map_is_shared_by_heaps)
{
	struct bed a, b;
	char path[128];
	start(&a, path);
	bed_open(&b, CH_SINK_PERF_MAP);
	add(&a, 64, 64, 1);
	add(&b, 64, 64, 2);
	ch__sinks_flush(a.sinks, CH__FLUSH_BUFFERED);
	check_named(path, a.pool + 64, "fn_1");
	check_named(path, b.pool + 64, "fn_2");
	discard(&b, 64, 64, 2);
	add(&b, 64, 64, 3); /* the whole file is written anew */
	ch__sinks_flush(b.sinks, CH__FLUSH_BUFFERED);
	check_named(path, a.pool + 64, "fn_1");
	check_named(path, b.pool + 64, "fn_3");
	/* A new heap at the addresses of an ended heap: the old lines must go first. */
	ch__sinks_destroy(a.sinks);
	check_named(path, a.pool + 64, "fn_1");
	CHECK_EQ(ch__sinks_create(&a.config, CH_SINK_PERF_MAP, &a.sinks), 0);
	add(&a, 80, 64, 4);
	ch__sinks_flush(a.sinks, CH__FLUSH_BUFFERED);
	check_named(path, a.pool + 64, NULL);
	check_named(path, a.pool + 80, "fn_4");
	check_named(path, b.pool + 64, "fn_3");
	bed_close(&b);
	end(&a);
}

static void visit_two(void *context, void (*visit)(void *, const struct ch__sink_range *),
		      void *arg)
{
	struct bed *bed = context;
	struct ch__sink_range one = range_at(bed, 64, 64, 1), two = range_at(bed, 128, 64, 2);
	visit(arg, &one);
	visit(arg, &two);
}

TEST(map_turned_on_late_names_live_ranges)
{
	struct bed bed;
	char path[128];
	use_own_folder();
	path_of(getpid(), path);
	bed_map(&bed);
	bed.config.each = visit_two;
	bed.config.context = &bed;
	CHECK_EQ(ch__sinks_create(&bed.config, 0, &bed.sinks), 0);
	CHECK_STR(ch__sinks_path(bed.sinks, CH_SINK_PERF_MAP), "");
	for (int round = 0; round < 2; round++) { /* off and on again */
		CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_PERF_MAP), 0);
		check_named(path, bed.pool + 64, "fn_1");
		check_named(path, bed.pool + 128, "fn_2");
		CHECK_EQ(ch__sinks_set(bed.sinks, 0), 0);
		CHECK_STR(ch__sinks_path(bed.sinks, CH_SINK_PERF_MAP), "");
	}
	end(&bed);
}

static void child_works(struct bed *a, struct bed *b)
{
	char path[128];
	path_of(getpid(), path);
	ch__sinks_fork_files_done(true);
	ch__sinks_fork_child(a->sinks, true);
	discard(a, 512, 64, 5); /* the other heap's handler has yet to run */
	ch__sinks_fork_child(b->sinks, true);
	CHECK_STR(ch__sinks_path(a->sinks, CH_SINK_PERF_MAP), path);
	check_named(path, a->pool + 64, "fn_1"); /* added before the fork, and not flushed */
	check_named(path, b->pool + 64, "fn_2");
	check_named(path, a->pool + BED_CHUNK_BYTES, "fn_0"); /* more lines than the buffer holds */
	add(a, 256, 64, 3);
	ch__sinks_flush(a->sinks, CH__FLUSH_BUFFERED);
	check_named(path, a->pool + 256, "fn_3");
	unlink(path);
	_exit(0);
}

TEST(map_of_a_child_is_its_own)
{
	enum { LINES = 5000 };
	struct bed a, b;
	char path[128];
	start(&a, path);
	bed_open(&b, CH_SINK_PERF_MAP);
	add(&a, 512, 64, 5);
	ch__sinks_flush(a.sinks, CH__FLUSH_BUFFERED);
	for (size_t i = LINES; i-- > 0;)
		add(&a, BED_CHUNK_BYTES + i * 8, 8, 0);
	add(&a, 64, 64, 1);
	add(&b, 64, 64, 2);
	ch__ranks_rest(true); /* as fork.c does: the locks of two heaps are all held */
	ch__sinks_lock(b.sinks);
	ch__sinks_lock(a.sinks);
	ch__sinks_fork_files_prepare();
	pid_t pid = fork();
	if (pid == 0)
		child_works(&a, &b);
	ch__sinks_fork_files_done(false);
	ch__sinks_unlock(a.sinks);
	ch__sinks_unlock(b.sinks);
	ch__ranks_rest(false);
	expect_exit(pid, 0);
	check_named(path, a.pool + 256, NULL);
	ch__sinks_flush(a.sinks, CH__FLUSH_BUFFERED);
	check_named(path, a.pool + 64, "fn_1");
	check_named(path, b.pool + 64, "fn_2");
	bed_close(&a);
	end(&b);
}

/* The parent's file has two lines of an address, and is to be written anew. */
TEST(map_that_a_child_began_is_not_written_anew)
{
	struct bed bed;
	char path[128];
	struct stat before, after;
	start(&bed, path);
	add(&bed, 64, 64, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	discard(&bed, 64, 64, 1);
	add(&bed, 64, 64, 2);
	ch__sinks_lock(bed.sinks);
	ch__sinks_fork_files_prepare();
	pid_t pid = fork();
	ch__sinks_fork_files_done(pid == 0);
	if (pid == 0) {
		ch__sinks_fork_child(bed.sinks, true);
		path_of(getpid(), path);
		CHECK_EQ(stat(path, &before), 0);
		ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
		CHECK_EQ(stat(path, &after), 0);
		CHECK_EQ(after.st_ino, before.st_ino);
		check_named(path, bed.pool + 64, "fn_2");
		unlink(path);
		_exit(0);
	}
	ch__sinks_unlock(bed.sinks);
	expect_exit(pid, 0);
	end(&bed);
}

/* --- names --- */
static size_t odd_name(void *context, uint64_t key, char *out, size_t out_bytes)
{
	(void)context;
	if (key == 1)
		return 0;
	memset(out, 'x', out_bytes);
	return out_bytes - 1;
}

TEST(map_lines_stay_whole_with_odd_names)
{
	struct bed bed;
	char path[128];
	use_own_folder();
	path_of(getpid(), path);
	bed_open_named(&bed, CH_SINK_PERF_MAP, odd_name);
	for (size_t i = 1; i <= 300; i++)
		add(&bed, i * 64, 64, i);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	struct map_file *map = read_map(path);
	CHECK_EQ(map->count, 301);
	char nameless[40];
	snprintf(nameless, sizeof nameless, "jit_%lx", (unsigned long)(bed.pool + 64));
	CHECK_STR(line_of(map, (uintptr_t)bed.pool + 64)->name, nameless);
	free(map);
	end(&bed);
}
