/* SPDX-License-Identifier: MIT
 * perfmap_lines.c: which lines of the perf map stay when their ranges die, and what the lines take
 * in memory. What becomes of them when another compiler changes the file meanwhile. */
#define _GNU_SOURCE /* _Fork */
#include "tests/unit/sinks/perfmap.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

TEST_MAP(map_names_the_last_owner_of_an_address)
{
	add(bed, 64, 64, 1);
	add(bed, 512, 64, 2);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	discard(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_COLLECTION);
	check_named(path, bed->pool + 64, "fn_1"); /* a few dead lines may stay */
	add(bed, 96, 64, 3);
	add(bed, 1024, 64, 4);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	check_named(path, bed->pool + 64, NULL);
	check_named(path, bed->pool + 96, "fn_3");
	check_named(path, bed->pool + 512, "fn_2");
	check_named(path, bed->pool + 1024, "fn_4");
}

/* fork's handlers, by which a child begins a file of its own, do not run. Lines wait, or the file
 * waits to be written anew. */
TEST_MAP(map_is_not_written_by_a_child_of_a_raw_clone)
{
	struct stat before, after;
	add(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	CHECK_EQ(stat(path, &before), 0);
	for (int is_anew = 0; is_anew < 2; is_anew++) {
		pid_t child = _Fork();
		if (child == 0) {
			if (is_anew)
				discard(bed, 64, 64, 1);
			add(bed, is_anew ? 96 : 128, 64, 2);
			ch__sinks_destroy(bed->sinks);
			_exit(0);
		}
		expect_exit(child, 0);
		CHECK_EQ(stat(path, &after), 0);
		CHECK_EQ(after.st_size, before.st_size);
		CHECK_EQ(after.st_ino, before.st_ino);
	}
	check_named(path, bed->pool + 64, "fn_1");
}

static size_t name_of_length(void *context, uint64_t key, char *to, size_t room)
{
	(void)context;
	return (size_t)snprintf(to, room, "%.*s", (int)key, "fgh4");
}

/* perf passes over a line whose name has fewer than three bytes. */
TEST(map_has_no_name_too_short_for_perf)
{
	struct bed bed;
	char path[128];
	use_own_folder();
	bed_open_named(&bed, CH_SINK_PERF_MAP, name_of_length);
	path_of(getpid(), path);
	for (size_t key = 1; key < 5; key++)
		add(&bed, 64 * key, 64, key);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	check_named(path, bed.pool + 64, "f  ");
	check_named(path, bed.pool + 128, "fg ");
	check_named(path, bed.pool + 192, "fgh");
	check_named(path, bed.pool + 256, "fgh4");
	end(&bed);
}

/* A heap has gone while another stays, and the next one's runtime page lies where it had code. */
TEST(map_has_one_line_where_a_runtime_page_replaces_code_of_a_heap_that_has_gone)
{
	enum { HALF = BED_POOL_BYTES / 2, AT = HALF - 128 };
	struct bed stays, gone, next;
	char path[128];
	start(&stays, path);
	bed_map(&gone);
	gone.config.pool_bytes = HALF;
	CHECK_EQ(ch__sinks_create(&gone.config, CH_SINK_PERF_MAP, &gone.sinks), 0);
	add(&gone, AT, 64, 1);
	ch__sinks_destroy(gone.sinks);
	check_named(path, gone.pool + AT, "fn_1");
	next = gone;
	next.config.runtime_exec += HALF;
	next.config.pool_exec += HALF;
	CHECK_EQ(ch__sinks_create(&next.config, CH_SINK_PERF_MAP, &next.sinks), 0);
	check_named(path, gone.pool + AT, "codeheap_runtime");
	bed_close(&next);
	end(&stays);
}

/* A dead line stays until another name takes a byte of the dead range, even the last byte. */
TEST(map_drops_a_dead_line_whose_last_bytes_have_another_name)
{
	enum { BEGIN = 64, LIVE_FROM = 1 << 16 };
	static const struct {
		size_t bytes, next;
		bool is_dropped;
	} rows[] = {{64, 120, true}, {64, 128, false}, {60, 120, true},
		    {57, 120, true}, {56, 120, false}, {456, 512, true},
		    {448, 512, false}};
	struct bed bed;
	char path[128], name[32];
	start(&bed, path);
	for (size_t key = 100; key < 120; key++)
		add(&bed, LIVE_FROM + 64 * key, 64, key);
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
		size_t page = 1024 * i;
		snprintf(name, sizeof name, "fn_%zu", i);
		add(&bed, page + BEGIN, rows[i].bytes, i);
		ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
		discard(&bed, page + BEGIN, rows[i].bytes, i);
		add(&bed, page + rows[i].next, 64, 20 + i);
		ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
		check_named(path, bed.pool + page + BEGIN, rows[i].is_dropped ? NULL : name);
	}
	end(&bed);
}

TEST_MAP(map_forgets_many_dead_lines_when_a_collection_ends)
{
	enum { LINES = 1000 };
	for (size_t i = 0; i < LINES; i++)
		add(bed, i * 64, 64, i);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	for (size_t i = 0; i < 300; i++)
		discard(bed, i * 64, 64, i);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	struct map_file *map = read_map(path);
	CHECK_EQ(map->count, LINES + 1);
	free(map);
	ch__sinks_flush(bed->sinks, CH__FLUSH_COLLECTION);
	map = read_map(path);
	CHECK_EQ(map->count, LINES - 300 + 1);
	free(map);
	for (size_t i = 300; i < 900; i++)
		discard(bed, i * 64, 64, i);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED); /* as at the end of the process */
	map = read_map(path);
	CHECK_EQ(map->count, LINES - 300 + 1);
	free(map);
}

/* Nobody asks for the file meanwhile, so each of the many lines waits until the file is written. */
TEST(map_takes_memory_for_lines_that_live_only)
{
	enum { LIVING = 100, DEAD = 100000, ONCE = 10000 };
	struct bed bed;
	char path[128], name[32];
	start(&bed, path);
	add(&bed, 64, 64, 1);
	add(&bed, 64, 64, 2); /* takes the place of a name that nobody withdrew */
	for (size_t i = 0; i < LIVING; i++)
		add(&bed, 4096 + i * 64, 64, 10 + i);
	size_t before = ch__meta_bytes(bed.config.meta);
	for (size_t i = 0; i < ONCE; i++) /* many live at once, and die */
		add(&bed, 16384 + i * 8, 8, 200000 + i);
	for (size_t i = 0; i < ONCE; i++)
		discard(&bed, 16384 + i * 8, 8, 200000 + i);
	/* When the log is full, one of the two places has a name, and many dead ones. */
	for (size_t i = 0; i < DEAD + 2; i++) {
		size_t place = 1024 + i % 2 * 64;
		if (i > 1)
			discard(&bed, place, 64, 1000 + i - 2);
		if (i < DEAD)
			add(&bed, place, 64, 1000 + i);
	}
	CHECK_EQ(ch__meta_bytes(bed.config.meta), before);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	check_named(path, bed.pool + 64, "fn_2");
	check_named(path, bed.pool + 1024, NULL);
	for (size_t i = 0; i < LIVING; i++) {
		snprintf(name, sizeof name, "fn_%zu", 10 + i);
		check_named(path, bed.pool + 4096 + i * 64, name);
	}
	end(&bed);
}

/* Without memory for one line more the heap leaves the map, which has the lines so far. */
TEST(map_without_memory_for_a_line_has_the_lines_that_waited)
{
	enum { LOG = 4095 }; /* and the line of the runtime page */
	struct bed bed;
	char path[128], name[32];
	start(&bed, path);
	for (size_t i = 0; i < LOG; i++)
		add(&bed, i * 64, 64, i);
	ch__os_fail_at(1, false);
	add(&bed, LOG * 64, 64, LOG);
	ch__os_fail_at(0, false);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP), ENOMEM);
	CHECK_EQ(ch__sinks_on(bed.sinks), 0);
	snprintf(name, sizeof name, "fn_%d", LOG - 1);
	check_named(path, bed.pool + (LOG - 1) * 64, name);
	CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_PERF_MAP), 0);
	add(&bed, LOG * 64, 64, LOG);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	snprintf(name, sizeof name, "fn_%d", LOG);
	check_named(path, bed.pool + LOG * 64, name);
	end(&bed);
}

TEST(map_without_memory_for_a_longer_log_goes_on_where_lines_have_died)
{
	enum { LOG = 4095, DEAD = LOG / 4 + 1 };
	struct bed bed;
	char path[128], name[32];
	start(&bed, path);
	for (size_t i = 0; i < LOG; i++)
		add(&bed, i * 64, 64, i);
	for (size_t i = 0; i < DEAD; i++)
		discard(&bed, i * 64, 64, i);
	ch__os_fail_at(1, false);
	add(&bed, LOG * 64, 64, LOG);
	ch__os_fail_at(0, false);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP), 0);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	snprintf(name, sizeof name, "fn_%d", LOG);
	check_named(path, bed.pool + LOG * 64, name);
	check_named(path, bed.pool, NULL);
	end(&bed);
}

/* The lines of a heap that went stay until a heap has a place of theirs. */
TEST(map_has_the_lines_of_a_heap_that_went_until_its_place_is_used)
{
	struct bed one, other, high, third;
	char path[128];
	use_own_folder();
	bed_map(&one);
	bed_map(&other);
	bed_open(&third, CH_SINK_PERF_MAP);
	high = one.pool > other.pool ? one : other;
	struct bed low = one.pool > other.pool ? other : one;
	path_of(getpid(), path);
	CHECK_EQ(ch__sinks_create(&high.config, CH_SINK_PERF_MAP, &high.sinks), 0);
	add(&high, 64, 64, 1);
	CHECK(ch__sinks_destroy(high.sinks));
	CHECK_EQ(ch__sinks_create(&low.config, CH_SINK_PERF_MAP, &low.sinks), 0);
	ch__sinks_flush(low.sinks, CH__FLUSH_EXACT);
	check_named(path, high.pool + 64, "fn_1");
	check_named(path, high.runtime, "codeheap_runtime");
	struct ch__sinks_config config = low.config;
	config.pool_exec = (uintptr_t)high.runtime + BED_PAGE_BYTES - BED_POOL_BYTES;
	config.runtime_exec = config.pool_exec - BED_PAGE_BYTES;
	high.sinks = NULL;
	CHECK_EQ(ch__sinks_create(&config, CH_SINK_PERF_MAP, &high.sinks), 0);
	check_named(path, high.runtime, NULL);
	check_named(path, high.pool + 64, NULL);
	CHECK(ch__sinks_destroy(high.sinks));
	high.sinks = NULL;
	bed_close(&low);
	bed_close(&high);
	end(&third);
}

/* The file was written anew since: no line of that heap is there. */
TEST(map_has_the_lines_of_a_heap_that_went_where_one_of_long_ago_comes_again)
{
	struct bed stays, first, second;
	char path[128];
	start(&stays, path);
	bed_open(&first, CH_SINK_PERF_MAP);
	add(&first, 64, 64, 1);
	CHECK(ch__sinks_destroy(first.sinks));
	add(&stays, 64, 64, 2);
	discard(&stays, 64, 64, 2);
	ch__sinks_flush(stays.sinks, CH__FLUSH_EXACT);
	check_named(path, first.pool + 64, NULL);
	bed_open(&second, CH_SINK_PERF_MAP);
	add(&second, 64, 64, 3);
	CHECK(ch__sinks_destroy(second.sinks));
	CHECK_EQ(ch__sinks_create(&first.config, CH_SINK_PERF_MAP, &first.sinks), 0);
	check_named(path, first.runtime, "codeheap_runtime");
	check_named(path, second.pool + 64, "fn_3");
	second.sinks = NULL;
	bed_close(&second);
	bed_close(&first);
	end(&stays);
}

/* The neighbours begin where the heap that went ended, and end where it began. */
TEST(map_has_the_lines_of_a_heap_that_went_beside_the_next_heap)
{
	struct bed gone, third;
	char path[128];
	start(&third, path);
	bed_open(&gone, CH_SINK_PERF_MAP);
	add(&gone, 64, 64, 1);
	CHECK(ch__sinks_destroy(gone.sinks));
	for (int is_above = 0; is_above < 2; is_above++) {
		struct ch__sinks_config config = gone.config;
		config.runtime_exec = is_above ? gone.config.pool_exec + BED_POOL_BYTES
					       : gone.config.pool_exec - 2 * BED_PAGE_BYTES -
							 BED_POOL_BYTES;
		config.pool_exec = config.runtime_exec + BED_PAGE_BYTES;
		CHECK_EQ(ch__sinks_create(&config, CH_SINK_PERF_MAP, &gone.sinks), 0);
		check_named(path, gone.pool + 64, "fn_1");
		check_named(path, (void *)config.runtime_exec, "codeheap_runtime");
		CHECK(ch__sinks_destroy(gone.sinks));
	}
	gone.sinks = NULL;
	bed_close(&gone);
	end(&third);
}

/* Whichever of two heaps goes first, and wherever of both the next heap comes. */
TEST(map_has_no_line_of_two_heaps_that_went_where_another_comes)
{
	struct bed third;
	char path[128];
	start(&third, path);
	for (unsigned i = 0; i < 4; i++) {
		struct bed beds[2], *next = &beds[i / 2];
		for (int k = 0; k < 2; k++) {
			bed_open(&beds[k], CH_SINK_PERF_MAP);
			add(&beds[k], 64, 64, 1);
		}
		CHECK(ch__sinks_destroy(beds[i % 2].sinks));
		CHECK(ch__sinks_destroy(beds[1 - i % 2].sinks));
		beds[0].sinks = beds[1].sinks = NULL;
		CHECK_EQ(ch__sinks_create(&next->config, CH_SINK_PERF_MAP, &next->sinks), 0);
		check_named(path, next->pool + 64, NULL);
		bed_close(&beds[0]);
		bed_close(&beds[1]);
	}
	end(&third);
}

/* A file without dead lines is not written anew. */
TEST_MAP(map_stays_the_same_file_when_what_it_does_not_name_dies)
{
	struct stat before, after;
	add(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	CHECK_EQ(stat(path, &before), 0);
	discard(bed, 128, 64, 2);
	discard(bed, BED_POOL_BYTES - 64, 64, 3);
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
	CHECK(stat(path, &after) == 0 && after.st_ino == before.st_ino);
	check_named(path, bed->pool + 64, "fn_1");
}

/* Another compiler comes while the rewrite asks for a name, after the look at the old file. */
static char comes_to[128], comes_as[128];
static int comes_by = -1;

static size_t name_when_another_comes(void *context, uint64_t key, char *out, size_t out_bytes)
{
	(void)context, (void)key;
	if (comes_by >= 0)
		CHECK_EQ(dprintf(comes_by, "1000 10 theirs\n"), 15);
	if (*comes_as)
		CHECK_EQ(rename(comes_as, comes_to), 0);
	comes_by = -1;
	*comes_as = 0;
	return (size_t)snprintf(out, out_bytes, "ours");
}

static void write_anew_when_another_comes(bool is_in_place, int wanted)
{
	struct bed bed;
	use_own_folder();
	path_of(getpid(), comes_to);
	bed_open_named(&bed, CH_SINK_PERF_MAP, name_when_another_comes);
	add(&bed, 64, 64, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	char name[sizeof comes_to + 8];
	snprintf(name, sizeof name, "%s.other", comes_to);
	int other = open(is_in_place ? name : comes_to, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (is_in_place) {
		CHECK_EQ(dprintf(other, "1000 10 theirs\n"), 15);
		strcpy(comes_as, name);
	} else {
		comes_by = other;
	}
	discard(&bed, 64, 64, 1);
	add(&bed, 96, 32, 2); /* overlaps: the next flush writes the file anew */
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK(!*comes_as && comes_by < 0);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP), wanted);
	check_named(comes_to, (void *)0x1000, "theirs");
	check_named(comes_to, bed.pool + 96, is_in_place ? NULL : "ours");
	CHECK_EQ(close(other), 0);
	end(&bed); /* no other file is left */
}

TEST(map_written_anew_replaces_no_file_that_came_meanwhile)
{
	write_anew_when_another_comes(true, EEXIST);
}

TEST(map_written_anew_drops_no_line_that_another_compiler_wrote_meanwhile)
{
	write_anew_when_another_comes(false, EBUSY);
}

/* The new file's name is taken. */
TEST(map_written_anew_removes_no_file_of_the_new_one_s_name)
{
	struct bed bed;
	char new[sizeof comes_to + 8];
	use_own_folder();
	path_of(getpid(), comes_to);
	snprintf(new, sizeof new, "%s.new", comes_to);
	bed_open(&bed, CH_SINK_PERF_MAP);
	CHECK_EQ(symlink("elsewhere", new), 0);
	add(&bed, 64, 64, 1);
	discard(&bed, 64, 64, 1);
	add(&bed, 96, 32, 2);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP), EEXIST);
	CHECK_EQ(unlink(new), 0);
	end(&bed);
}

static bool is_theirs(const char *path)
{
	char line[64] = "";
	FILE *f = fopen(path, "r");
	if (f && !fgets(line, sizeof line, f))
		*line = 0;
	if (f)
		fclose(f);
	return strcmp(line, "1000 10 theirs\n") == 0;
}

/* Returns true when nth is beyond the last call, so no call failed. */
static bool write_anew_and_fail(uint64_t nth)
{
	struct bed bed;
	char other[sizeof comes_to + 8], new[sizeof comes_to + 8];
	path_of(getpid(), comes_to);
	snprintf(other, sizeof other, "%s.other", comes_to);
	snprintf(new, sizeof new, "%s.new", comes_to);
	bed_open_named(&bed, CH_SINK_PERF_MAP, name_when_another_comes);
	add(&bed, 64, 64, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	FILE *f = fopen(other, "w");
	CHECK(f && fputs("1000 10 theirs\n", f) >= 0 && fclose(f) == 0);
	strcpy(comes_as, other);
	discard(&bed, 64, 64, 1);
	ch__os_fail_as(nth, false, EIO);
	add(&bed, 96, 32, 2);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	bool is_through = ch__os_failable_calls() < nth;
	ch__os_fail_at(0, false);
	if (!is_theirs(comes_to) && !is_theirs(new) && !is_theirs(other))
		FAIL("the file of another compiler is lost when call %d fails", (int)nth);
	*comes_as = 0;
	bed_close(&bed);
	unlink(comes_to), unlink(new), unlink(other);
	return is_through;
}

TEST(map_written_anew_loses_no_file_that_came_meanwhile_whatever_call_fails)
{
	use_own_folder();
	for (uint64_t nth = 1; !write_anew_and_fail(nth); nth++)
		;
	remove_own_folder();
}

/* A folder has the name of the map. */
TEST(map_that_cannot_be_made_takes_no_memory)
{
	enum { TIMES = 64, LEFT_MOST = 1 << 20 };
	struct bed bed;
	char path[128];
	use_own_folder();
	path_of(getpid(), path);
	CHECK_EQ(mkdir(path, 0700), 0);
	bed_open(&bed, 0);
	size_t before = mapped_bytes();
	for (int i = 0; i < TIMES; i++)
		CHECK(ch__sinks_set(bed.sinks, CH_SINK_PERF_MAP) != 0);
	CHECK(mapped_bytes() < before + LEFT_MOST);
	bed_close(&bed);
	CHECK_EQ(rmdir(path), 0);
	remove_own_folder();
}
