/* SPDX-License-Identifier: MIT
 * sink_others.c: files of sinks beside the rest of the process: descriptors that the program closed
 * and took for files of its own, lines of another compiler in the perf map, children that ran no
 * fork handler, and sinks that nobody wants any more. */
#define _GNU_SOURCE
#include "sinks/tools.h"
#include "tests/support/sink_file.h"

#include <sys/resource.h>

/* --- errors --- */
static void fail_unwanted(const struct sink_file *sink)
{
	int failed = -1;
	use_folder(sink);
	struct rig rig = start(sink);
	live_and_write(&rig);
	CHECK_EQ(unlink(path), 0);
	check_failed(&rig, sink, ENOENT);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK(!ch_sink_status(rig.heap, sink->bit, NULL, &failed));
	CHECK_EQ(failed, 0);
	check_comes_back(&rig, sink);
	rig_end(&rig);
	leave_folder(sink);
}

TEST(perf_map_that_failed_fails_no_flush_when_nobody_wants_it)
{
	fail_unwanted(&perf_map);
}

TEST(jitdump_that_failed_fails_no_flush_when_nobody_wants_it)
{
	fail_unwanted(&jitdump);
}

/* --- descriptors --- */
static int number_of(const struct sink_file *sink)
{
	return (sink == &jitdump ? &ch__sink_jitdump : &ch__sink_perfmap)->tool->fd;
}

/* Somebody's file gets the number of the sink's file. */
static int take_number(const struct sink_file *sink)
{
	int number = number_of(sink);
	write_other();
	int fd = open(other, O_RDWR);
	CHECK(fd >= 0 && number > STDERR_FILENO);
	CHECK_EQ(dup2(fd, number), number);
	CHECK_EQ(close(fd), 0);
	return number;
}

static void check_number(const struct sink_file *sink, int number)
{
	struct stat open_file, named;
	CHECK_EQ(stat(other, &named), 0);
	if (fstat(number, &open_file) != 0 || open_file.st_ino != named.st_ino)
		FAIL_SINK("it closed somebody's descriptor");
	check_other(sink);
}

static void lose_number(const struct sink_file *sink)
{
	use_folder(sink);
	struct rig rig = start(sink);
	live_and_write(&rig);
	int number = take_number(sink);
	rig_block(rig_owner(&rig, "told_to_the_file_that_has_the_number"), 1);
	check_other(sink);
	check_failed(&rig, sink, sink == &jitdump ? EBADF : EEXIST);
	check_number(sink, number);
	check_comes_back(&rig, sink);
	rig_end(&rig);
	check_number(sink, number);
	leave_folder(sink);
}

TEST(perf_map_whose_number_another_file_got_leaves_that_file_alone)
{
	lose_number(&perf_map);
}

TEST(jitdump_whose_number_another_file_got_leaves_that_file_alone)
{
	lose_number(&jitdump);
}

/* The map is written anew under another descriptor, which is the sink's own, too. */
TEST(perf_map_that_was_written_anew_is_still_written)
{
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	live_and_die(&rig, 10);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK); /* takes the dead lines out */
	rig_block(rig_owner(&rig, "behind"), 1);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	check_on(&rig, &perf_map);
	rig_end(&rig);
	leave_folder(&perf_map);
}

/* --- another compiler --- */
static void append_theirs(void)
{
	int fd = open(path, O_WRONLY | O_APPEND);
	CHECK(fd >= 0);
	CHECK_EQ(write(fd, "1000 10 theirs\n", 15), 15);
	CHECK_EQ(close(fd), 0);
}

static bool has_theirs(void)
{
	static char text[1 << 16];
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
	CHECK(n >= 0);
	CHECK_EQ(close(fd), 0);
	return memmem(text, (size_t)n, "theirs\n", 7) != NULL;
}

TEST(perf_map_of_a_heap_that_has_gone_keeps_lines_that_another_compiler_wrote)
{
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	live_and_write(&rig);
	rig_end(&rig);
	append_theirs();
	rig = start(&perf_map);
	check_off(&rig, &perf_map, EBUSY);
	CHECK(has_theirs());
	CHECK_EQ(unlink(path), 0);
	check_comes_back(&rig, &perf_map);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	append_theirs();
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND | CH_SINK_PERF_MAP), CH_E_OS);
	CHECK_EQ(errno, EBUSY);
	CHECK(has_theirs());
	rig_end(&rig);
	leave_folder(&perf_map);
}

/* A write that the system cut short leaves a part of its bytes, which are the sink's own. */
TEST(perf_map_that_ends_within_a_line_is_begun_anew)
{
	struct rlimit limit = {0, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
	struct stat before, after;
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	live_and_write(&rig);
	CHECK_EQ(stat(path, &before), 0);
	limit.rlim_cur = (rlim_t)before.st_size + 3;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	struct ch_owner owner = rig_owner(&rig, "a_name_that_finds_no_room");
	rig_block(owner, 1);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_E_OS);
	check_off(&rig, &perf_map, EFBIG);
	CHECK_EQ(stat(path, &after), 0);
	CHECK_EQ(after.st_size, before.st_size + 3);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
	check_comes_back(&rig, &perf_map);
	rig_end(&rig);
	leave_folder(&perf_map);
}
