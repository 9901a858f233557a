/* SPDX-License-Identifier: MIT
 * kept.c: the perf map of a heap that keeps the names of dead code. No rewrite loses a name,
 * whoever causes the rewrite, until the heap needs the addresses. */
#include "sinks/tools.h"
#include "tests/support/perfmap_reader.h"
#include "tests/unit/sinks/ranges.h"

#include <sys/stat.h>

static char path[128];

static void open_keeping(struct bed *bed, unsigned wanted)
{
	bed_map(bed);
	bed->config.keeps_dead_names = true;
	CHECK_EQ(ch__sinks_create(&bed->config, wanted, &bed->sinks), 0);
}

static void start(struct bed *keeping)
{
	use_own_folder();
	path_of(getpid(), path);
	open_keeping(keeping, CH_SINK_PERF_MAP);
}

/* Makes the next flush of any heap write the whole file. */
static void want_rewrite(struct bed *other)
{
	add(other, 0, 64, 100);
	discard(other, 0, 64, 100);
	add(other, 0, 64, 101);
}

TEST(kept_names_outlive_every_flush)
{
	struct bed bed;
	start(&bed);
	add(&bed, 64, 64, 1);
	add(&bed, 128, 64, 2);
	discard(&bed, 64, 64, 1); /* the line is still in the buffer */
	for (int how = CH__FLUSH_BUFFERED; how <= CH__FLUSH_EXACT; how++) {
		ch__sinks_flush(bed.sinks, (enum ch__flush)how);
		check_named(path, bed.pool + 64, "fn_1");
		check_named(path, bed.pool + 128, "fn_2");
	}
	bed_close(&bed);
	check_named(path, bed.pool + 64, "fn_1");
	remove_own_folder();
}

TEST(kept_names_outlive_a_rewrite_that_another_heap_wants)
{
	struct bed bed, other;
	start(&bed);
	bed_open(&other, CH_SINK_PERF_MAP);
	add(&bed, 64, 64, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	discard(&bed, 64, 64, 1);
	add(&bed, 128, 64, 2);
	want_rewrite(&other);
	add(&bed, 192, 64, 3); /* only a rewrite would write the line */
	discard(&bed, 128, 64, 2);
	discard(&bed, 192, 64, 3);
	ch__sinks_flush(other.sinks, CH__FLUSH_EXACT);
	check_named(path, other.pool, "fn_101");
	for (int round = 0; round < 2; round++) {
		check_named(path, bed.pool + 64, "fn_1");
		check_named(path, bed.pool + 128, "fn_2");
		check_named(path, bed.pool + 192, "fn_3");
		want_rewrite(&other);
		ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	}
	bed_close(&other);
	bed_close(&bed);
	remove_own_folder();
}

TEST(map_that_is_written_anew_takes_no_more_memory)
{
	enum { TIMES = 64 };
	struct bed bed, other;
	size_t before = 0, after = 0;
	start(&bed);
	bed_open(&other, CH_SINK_PERF_MAP);
	add(&bed, 64, 64, 1);
	discard(&bed, 64, 64, 1);
	for (int i = 0; i < TIMES; i++) {
		want_rewrite(&other);
		ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
		after = mapped_bytes();
		before = i ? before : after;
	}
	check_named(path, bed.pool + 64, "fn_1");
	CHECK(after < before + TIMES / 2 * CH__TOOL_BUFFER_BYTES);
	bed_close(&other);
	bed_close(&bed);
	remove_own_folder();
}

TEST(kept_names_go_when_their_heap_is_in_need)
{
	struct bed bed, other;
	struct stat before, after;
	start(&bed);
	open_keeping(&other, CH_SINK_PERF_MAP);
	add(&bed, 64, 64, 1);
	add(&bed, 128, 64, 2);
	add(&other, 64, 64, 3);
	discard(&bed, 64, 64, 1);
	discard(&other, 64, 64, 3);
	ch__sinks_flush(bed.sinks, CH__FLUSH_IN_NEED);
	check_named(path, bed.pool + 64, NULL);
	check_named(path, bed.pool + 128, "fn_2");
	check_named(path, other.pool + 64, "fn_3"); /* the other heap is not in need */
	/* Nothing of this heap is kept now, and a second need writes no file anew. */
	CHECK_EQ(stat(path, &before), 0);
	ch__sinks_flush(bed.sinks, CH__FLUSH_IN_NEED);
	CHECK(stat(path, &after) == 0 && after.st_ino == before.st_ino);
	add(&bed, 96, 64, 4);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	check_named(path, bed.pool + 96, "fn_4");
	discard(&bed, 96, 64, 4); /* the name is kept again, like any other */
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	check_named(path, bed.pool + 96, "fn_4");
	bed_close(&other);
	bed_close(&bed);
	remove_own_folder();
}

/* A new owner of a kept address should not happen; even then no address has two names. */
TEST(kept_name_yields_to_a_new_owner_of_its_address)
{
	struct bed bed;
	start(&bed);
	add(&bed, 64, 64, 1);
	add(&bed, 128, 64, 2);
	add(&bed, 256, 64, 3);
	add(&bed, 320, 64, 6);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	discard(&bed, 64, 64, 1);
	discard(&bed, 128, 64, 2);
	discard(&bed, 320, 64, 6);
	add(&bed, 64, 64, 4);  /* the same place */
	add(&bed, 160, 64, 5); /* overlaps part of the range */
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	check_named(path, bed.pool + 64, "fn_4");
	check_named(path, bed.pool + 128, NULL);
	check_named(path, bed.pool + 160, "fn_5");
	check_named(path, bed.pool + 256, "fn_3");
	check_named(path, bed.pool + 320, "fn_6");
	bed_close(&bed);
	remove_own_folder();
}

TEST(kept_names_in_a_file_that_somebody_wrote_over_are_lost_and_nothing_else)
{
	enum { RANGES = 8 };
	struct bed bed, other;
	start(&bed);
	bed_open(&other, CH_SINK_PERF_MAP);
	for (size_t i = 1; i <= RANGES; i++)
		add(&bed, i * 64, 64, i);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	discard(&bed, 64, 64, 1);
	FILE *file = fopen(path, "r+");
	CHECK(file != NULL);
	CHECK_EQ(fseek(file, 0, SEEK_END), 0);
	long bytes = ftell(file);
	rewind(file);
	/* Two lines for the kept place, too long for the pool; the last line has no newline. */
	fprintf(file, "%lx fffffff long\n%lx 7fffffffffffffff longer\n",
		(unsigned long)bed.pool + 64, (unsigned long)bed.pool + 64);
	CHECK(ftell(file) < bytes);
	while (ftell(file) < bytes)
		fputc('x', file);
	fclose(file);
	want_rewrite(&other);
	ch__sinks_flush(other.sinks, CH__FLUSH_BUFFERED);
	check_named(path, bed.pool + 64, NULL);
	check_named(path, bed.pool + 128, "fn_2");
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP), 0);
	bed_close(&other);
	bed_close(&bed);
	remove_own_folder();
}

/* --- a storm: places are taken in order, and again only after a flush in need --- */
enum { PLACES = 8192, PLACE_BYTES = 64 };

struct storm {
	struct bed bed, other;
	struct test_random random;
	uint64_t named[PLACES]; /* key of the name that the file has there, 0: none */
	bool live[PLACES];
	uint64_t keys;
};

static void check_storm(struct storm *s)
{
	struct map_file *map = read_map(path);
	size_t at = 0;
	for (size_t i = 0; i < PLACES; i++) {
		uintptr_t pc = (uintptr_t)s->bed.pool + i * PLACE_BYTES;
		char name[40];
		while (at < map->count && map->lines[at].start < pc)
			at++;
		bool is_named = at < map->count && map->lines[at].start == pc;
		CHECK_EQ(is_named, s->named[i] != 0);
		bed_name(NULL, s->named[i], name, sizeof name);
		if (is_named)
			CHECK_STR(map->lines[at].name, name);
	}
	free(map);
}

static void take_places(struct storm *s, size_t wanted)
{
	for (size_t i = 0; i < PLACES && wanted; i++) {
		if (s->named[i])
			continue;
		s->named[i] = ++s->keys;
		s->live[i] = true;
		add(&s->bed, i * PLACE_BYTES, 64, s->keys);
		wanted--;
	}
	if (!wanted)
		return;
	ch__sinks_flush(s->bed.sinks, CH__FLUSH_IN_NEED);
	for (size_t i = 0; i < PLACES; i++)
		if (!s->live[i])
			s->named[i] = 0;
}

TEST(kept_storm_loses_no_name)
{
	struct storm *s = calloc(1, sizeof *s);
	unsigned rounds = 0;
	CHECK(s != NULL);
	start(&s->bed);
	bed_open(&s->other, CH_SINK_PERF_MAP);
	s->random = test_random_new();
	uint64_t end = now_ns() + storm_ms() * UINT64_C(500000);
	for (; now_ns() < end || rounds < 40; rounds++) {
		take_places(s, test_random_below(&s->random, PLACES / 8));
		for (uint64_t n = test_random_below(&s->random, PLACES / 4); n > 0; n--) {
			size_t i = test_random_below(&s->random, PLACES);
			if (s->live[i])
				discard(&s->bed, i * PLACE_BYTES, 64, s->named[i]);
			s->live[i] = false;
		}
		if (test_random_below(&s->random, 3) == 0)
			want_rewrite(&s->other);
		ch__sinks_flush(s->bed.sinks,
				(enum ch__flush)test_random_below(&s->random, CH__FLUSH_IN_NEED));
		check_storm(s);
	}
	CHECK(s->keys > PLACES); /* the heap was in need */
	CHECK_EQ(ch__sinks_status(s->bed.sinks, CH_SINK_PERF_MAP), 0);
	bed_close(&s->other);
	bed_close(&s->bed);
	free(s);
	remove_own_folder();
}

/* --- failures --- */
static void live_and_die(struct bed *bed, struct bed *other)
{
	add(bed, 64, 64, 1);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
	discard(bed, 64, 64, 1);
	add(bed, 128, 64, 2);
	want_rewrite(other);
	ch__sinks_flush(other->sinks, CH__FLUSH_BUFFERED);
	discard(bed, 128, 64, 2);
	add(bed, 192, 64, 3);
	want_rewrite(other);
	discard(bed, 192, 64, 3); /* the file is written anew first */
	ch__sinks_flush(bed->sinks, CH__FLUSH_EXACT);
}

TEST(kept_names_are_there_or_the_map_is_off_when_any_call_fails)
{
	uint64_t nth = 1;
	bool has_failed = true;
	use_own_folder();
	path_of(getpid(), path);
	for (; has_failed; nth++) {
		struct bed bed, other;
		open_keeping(&bed, CH_SINK_PERF_MAP);
		bed_open(&other, CH_SINK_PERF_MAP);
		ch__os_fail_at(nth, false);
		live_and_die(&bed, &other);
		has_failed = ch__os_failable_calls() >= nth;
		ch__os_fail_at(0, false);
		bool is_on = ch__sinks_on(bed.sinks) != 0;
		CHECK_EQ(is_on, ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP) == 0);
		CHECK(is_on || has_failed);
		if (is_on) {
			check_named(path, bed.pool + 64, "fn_1");
			check_named(path, bed.pool + 128, "fn_2");
			check_named(path, bed.pool + 192, "fn_3");
		}
		bed_close(&other);
		bed_close(&bed);
	}
	CHECK(nth > 6);
	remove_own_folder();
}
