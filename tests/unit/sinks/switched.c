/* SPDX-License-Identifier: MIT
 * switched.c: a sink of two heaps that fails for one of them is off for both, and comes back. Then
 * the lock under which sinks are turned on and told of tables. Then children of fork: a child that
 * cannot make a file turns the sink off, and a child of a process without a map makes no file. */
#define _GNU_SOURCE
#include "os/locks/ranks.h"
#include "sinks/table.h"
#include "tests/support/gdb_list.h"
#include "tests/unit/sinks/perfmap.h"
#include "unwind/steps.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

enum { RANGES = 1024, RANGE_BYTES = 64, FILE_BYTES = 4096 };

/* Adds more lines than the file may hold. */
static void tell_too_much(struct bed *bed)
{
	for (size_t i = 0; i < RANGES; i++)
		add(bed, i * RANGE_BYTES, RANGE_BYTES, i);
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
}

static void let_files_grow(bool may)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = may ? limit.rlim_max : FILE_BYTES;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* The heap that hears nothing meanwhile neither tells the sink of code nor turns it off. */
TEST(sink_that_fails_is_off_for_every_heap_at_once)
{
	struct bed beds[2];
	use_own_folder();
	for (int i = 0; i < 2; i++)
		bed_open(&beds[i], CH_SINK_PERF_MAP);
	let_files_grow(false);
	tell_too_much(&beds[0]);
	let_files_grow(true);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ch__sinks_on(beds[i].sinks), 0);
		CHECK_EQ(ch__sinks_status(beds[i].sinks, CH_SINK_PERF_MAP), EFBIG);
	}
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch__sinks_set(beds[i].sinks, CH_SINK_PERF_MAP), 0);
	CHECK_EQ(ch__sinks_status(beds[1].sinks, CH_SINK_PERF_MAP), 0);
	bed_close(&beds[1]);
	end(&beds[0]);
}

struct call {
	void (*function)(struct bed *);
	struct bed *bed;
	_Atomic(int) tid; /* of a thread that makes the call; ENDED behind it */
};

static void call_under_the_lock(void *arg)
{
	const struct call *call = arg;
	ch__rank_note(CH__RANK_SINKS, true);
	call->function(call->bed);
}

/* Checked builds refuse a second lock of a rank, and so show that the call takes the lock. */
static void expect_lock_of_sinks(void (*function)(struct bed *), struct bed *bed)
{
	struct call call = {function, bed, 0};
	char text[400] = "";
	expect_signal_text(call_under_the_lock, &call, SIGABRT, text, sizeof text);
	CHECK(strstr(text, "sinks is wanted by who holds sinks"));
}

static void turn_on(struct bed *bed)
{
	(void)!ch__sinks_set(bed->sinks, (unsigned)CH__SINKS_ALL);
}

TEST(sink_is_turned_on_under_the_lock_of_sinks)
{
	struct bed bed;
	use_own_folder();
	bed_open(&bed, 0);
	expect_lock_of_sinks(turn_on, &bed);
	end(&bed);
}

static struct ch__own *table;
static void register_shape(struct bed *bed)
{
	ch__sinks_frame_register(bed->sinks, (const uint8_t[]){0}, 1);
}
static void begin_steps(struct bed *bed)
{
	CHECK(ch__sinks_steps_begin(bed->sinks));
}
static void bring_table(struct bed *bed)
{
	ch__sinks_own_live(bed->sinks, table, "\0\0\0");
}
static void end_table(struct bed *bed)
{
	ch__sinks_own_dead(bed->sinks, table);
}
TEST(what_sinks_share_is_read_and_written_under_their_lock)
{
	static void (*const calls[])(struct bed *) = {register_shape, begin_steps, bring_table,
						      end_table};
	struct bed bed;
	bed_open(&bed, 0);
	table = ch__sinks_own_create(bed.sinks);
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
		expect_lock_of_sinks(calls[i], &bed);
	ch__sinks_own_destroy(bed.sinks, table);
	bed_close(&bed);
}

static const uint8_t *section_of_table(void *context, uint64_t key)
{
	(void)context, (void)key;
	return table->section;
}

enum { ENDED = -1 };

static void *make_call(void *arg)
{
	struct call *call = arg;
	atomic_store(&call->tid, (int)gettid());
	call->function(call->bed);
	atomic_store(&call->tid, ENDED);
	return NULL;
}

static void expect_to_wait(struct call *call)
{
	TEST_UNTIL(atomic_load(&call->tid) == ENDED ||
		   (atomic_load(&call->tid) && thread_is_asleep(atomic_load(&call->tid))))
		usleep(1000);
	CHECK(atomic_load(&call->tid) != ENDED);
}

/* The VM frees the table next, and who makes an image for the debugger may be reading it. The image
 * after that has none. */
TEST(table_ends_when_no_image_is_made_of_it)
{
	struct bed bed;
	struct call call = {end_table, &bed, 0};
	pthread_t thread;
	bed_map(&bed);
	bed.config.section = section_of_table;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_GDB, &bed.sinks), 0);
	table = ch__sinks_own_create(bed.sinks);
	ch__sinks_own_live(bed.sinks, table, "\0\0\0");
	ch__tool_lock(ch__sink_gdb.tool);
	CHECK(bed.config.section(NULL, 0));
	CHECK_EQ(pthread_create(&thread, NULL, make_call, &call), 0);
	TEST_UNTIL(!bed.config.section(NULL, 0))
		usleep(1000);
	expect_to_wait(&call);
	ch__tool_unlock(ch__sink_gdb.tool);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch__sinks_own_destroy(bed.sinks, table);
	bed_close(&bed);
}

static void end_chunk(struct bed *bed)
{
	ch__sinks_chunk_gone(bed->sinks, 0);
}

/* Who has the lock may be making an image of the chunk, or may read the list. */
TEST(chunk_that_goes_stays_in_the_list_while_the_list_is_used)
{
	struct bed bed;
	struct call call = {end_chunk, &bed, 0};
	pthread_t thread;
	bed_open(&bed, CH_SINK_GDB);
	add(&bed, 64, 64, 1);
	ch__sinks_flush(bed.sinks, CH__FLUSH_EXACT);
	CHECK_EQ(gdb_list_length(), 2);
	ch__tool_lock(ch__sink_gdb.tool);
	CHECK_EQ(pthread_create(&thread, NULL, make_call, &call), 0);
	expect_to_wait(&call);
	CHECK_EQ(gdb_list_length(), 2);
	ch__tool_unlock(ch__sink_gdb.tool);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(gdb_list_length(), 1);
	bed_close(&bed);
}

/* Both find no map, and wait for the lock. */
TEST(two_threads_that_want_notes_make_one_map)
{
	enum { THREADS = 2 };
	struct bed bed, other;
	struct call calls[THREADS];
	pthread_t threads[THREADS];
	bed_open(&bed, 0);
	bed_open(&other, 0);
	size_t before = ch__meta_bytes(bed.config.meta);
	size_t before_one = ch__meta_bytes(other.config.meta);
	CHECK(ch__sinks_steps_begin(other.sinks));
	ch__sinks_lock(bed.sinks);
	for (unsigned i = 0; i < THREADS; i++) {
		calls[i] = (struct call){begin_steps, &bed, 0};
		CHECK_EQ(pthread_create(&threads[i], NULL, make_call, &calls[i]), 0);
		expect_to_wait(&calls[i]);
	}
	ch__sinks_unlock(bed.sinks);
	for (unsigned i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	CHECK_EQ(ch__meta_bytes(bed.config.meta) - before,
		 ch__meta_bytes(other.config.meta) - before_one);
	bed_close(&other);
	bed_close(&bed);
}

/* --- a child --- */

/* Forks with the same steps as fork.c. */
static pid_t fork_with(struct ch__sinks *sinks)
{
	if (sinks)
		ch__sinks_lock(sinks);
	ch__sinks_fork_files_prepare();
	pid_t pid = fork_child();
	if (pid)
		ch__sinks_fork_files_done(false);
	if (pid && sinks)
		ch__sinks_unlock(sinks);
	return pid;
}

/* The map would have a heap that is no more. */
TEST(sinks_that_cannot_be_made_leave_the_map_as_it_was)
{
	use_own_folder();
	unsigned files = open_files();
	uint64_t nth = 1;
	for (;; nth++) {
		struct bed bed;
		bed_map(&bed);
		ch__os_fail_at(nth, false);
		int error = ch__sinks_create(&bed.config, CH_SINK_UNWIND | CH_SINK_PERF_MAP,
					     &bed.sinks);
		ch__os_fail_at(0, false);
		bool is_past = error == 0;
		CHECK(is_past || open_files() == files);
		bed_close(&bed);
		if (is_past)
			break;
	}
	CHECK(nth > 2);
	remove_own_folder();
}

TEST(map_of_a_child_that_cannot_make_its_own_is_off)
{
	struct bed bed;
	use_own_folder();
	bed_open(&bed, CH_SINK_PERF_MAP);
	add(&bed, 0, RANGE_BYTES, 7);
	pid_t pid = fork_with(bed.sinks);
	if (pid == 0) {
		ch__os_fail_at(1, true);
		ch__sinks_fork_files_done(true);
		ch__os_fail_at(0, false);
		ch__sinks_fork_child(bed.sinks, true);
		CHECK(ch__sinks_status(bed.sinks, CH_SINK_PERF_MAP) != 0);
		add(&bed, RANGE_BYTES, RANGE_BYTES, 8);
		CHECK_EQ(ch__sinks_on(bed.sinks), 0);
		_exit(0);
	}
	expect_exit(pid, 0);
	end(&bed);
}

TEST(child_of_a_process_without_a_map_makes_none)
{
	struct bed bed;
	char path[128];
	use_own_folder();
	bed_open(&bed, CH_SINK_PERF_MAP);
	bed_close(&bed);
	pid_t pid = fork_with(NULL);
	if (pid == 0) {
		ch__sinks_fork_files_done(true);
		path_of(getpid(), path);
		CHECK(access(path, F_OK) != 0);
		_exit(0);
	}
	expect_exit(pid, 0);
	remove_own_folder();
}

/* Notes of frames lie in the code. */
TEST(child_has_the_notes_of_its_parent_if_it_has_the_code)
{
	struct bed bed;
	bed_open(&bed, 0);
	CHECK(ch__sinks_steps_begin(bed.sinks));
	struct ch__steps *steps = ch__sinks_steps(bed.sinks);
	uintptr_t exec = (uintptr_t)bed.pool + 64, note = exec + 64;
	CHECK(ch__sinks_page_live(bed.sinks, 0, 1, 0));
	ch__steps_live(steps, exec, note);
	for (int has_code = 1; has_code >= 0; has_code--) {
		ch__sinks_lock(bed.sinks);
		ch__sinks_fork_files_prepare();
		ch__sinks_fork_files_done(true);
		ch__sinks_fork_child(bed.sinks, has_code);
		CHECK_EQ(ch__steps_note(steps, exec), has_code ? note : 0);
	}
	bed_close(&bed);
}

TEST(notes_that_have_no_memory_or_no_heap_keep_none)
{
	struct bed bed;
	bed_open(&bed, 0);
	size_t before = ch__meta_bytes(bed.config.meta);
	ch__os_fail_at(2, false);
	CHECK(!ch__sinks_steps_begin(bed.sinks));
	ch__os_fail_at(0, false);
	CHECK_EQ(ch__meta_bytes(bed.config.meta), before);
	CHECK(ch__sinks_steps_begin(bed.sinks));
	const void *map = (const void *)(uintptr_t)ch__sinks_steps(bed.sinks)->map;
	CHECK(ch__os_is_readable(map));
	bed_close(&bed);
	CHECK(!ch__os_is_readable(map));
}

TEST(range_is_in_the_pool_with_all_its_bytes)
{
	struct ch__sinks_config config = {
		.runtime_exec = (1 << 20) - 4096, .pool_exec = 1 << 20, .pool_bytes = 4096};
	static const struct {
		size_t at, bytes;
		bool is_in;
	} rows[] = {{0, 8192, true}, {0, 8193, false}, {8184, 8, true},
		    {8184, 16, false}, {8192, 8, false}, {8, 0, false}};
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ch__sink_range range = {config.runtime_exec + rows[i].at, rows[i].bytes, 0,
					       false};
		CHECK_EQ(ch__sink_has(&config, &range), rows[i].is_in);
	}
}
