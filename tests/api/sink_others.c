/* SPDX-License-Identifier: MIT
 * sink_others.c: files of sinks beside the rest of the process: descriptors that the program closed
 * and took for files of its own, lines of another compiler in the perf map, children that ran no
 * fork handler or have no code, and sinks that nobody wants any more. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "codeheap/listener.h"
#include "sinks/tools.h"
#include "tests/support/gdb_list.h"
#include "tests/support/sink_file.h"

#include <sys/resource.h>
#include <sys/wait.h>

TEST_RIG(default_asks_for_the_unwinder_s_sink_again)
{
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_NONE), CH_OK);
	CHECK(!ch_sink_status(rig.heap, CH_SINK_UNWIND, NULL, NULL));
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_DEFAULT), CH_OK);
	CHECK(ch_sink_status(rig.heap, CH_SINK_UNWIND, NULL, NULL));
}

TEST(configuration_may_ask_for_no_sink)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_NONE;
	struct rig rig = rig_create(&config, NULL, NULL);
	CHECK_EQ(rig_stats(&rig).sinks_on, 0);
	rig_end(&rig);
}

TEST(set_of_sinks_of_the_environment_stands_for_the_configuration_s)
{
	static const char *const wishes[] = {"gdb", "none"};
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_UNWIND;
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(setenv("CODEHEAP_SINKS", wishes[i], 1), 0);
		struct rig rig = rig_create(&config, NULL, NULL);
		CHECK(!ch_sink_status(rig.heap, CH_SINK_UNWIND, NULL, NULL));
		CHECK_EQ(ch_sink_status(rig.heap, CH_SINK_GDB, NULL, NULL), i == 0);
		rig_end(&rig);
	}
}

/* --- errors --- */

/* The folder takes no file, with the error of a call of which no sentence was made. */
TEST(sentence_about_a_file_does_not_blame_a_call_that_was_refused_earlier)
{
	struct ch_config config = rig_config(1 << 20);
	config.jitdump_dir = "/proc";
	struct rig rig = rig_create(&config, NULL, NULL);
	errno = ENOENT;
	ch__os_note(false, "mmap");
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_JITDUMP), CH_E_OS);
	CHECK(strstr(ch_why(), "failed and off: jitdump, with ENOENT"));
	rig_end(&rig);
}

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

TEST(jitdump_that_was_removed_is_begun_anew_by_the_next_heap)
{
	use_folder(&jitdump);
	struct rig first = start(&jitdump);
	live_and_write(&first);
	CHECK_EQ(unlink(path), 0);
	struct rig second = start(&jitdump);
	check_on(&second, &jitdump);
	CHECK_EQ(ch_sink_flush(second.heap), CH_OK);
	check_off(&first, &jitdump, ENOENT);
	rig_end(&second);
	rig_end(&first);
	leave_folder(&jitdump);
}

/* --- descriptors --- */
static struct ch__tool *tool_of(const struct sink_file *sink)
{
	return (sink == &jitdump ? &ch__sink_jitdump : &ch__sink_perfmap)->tool;
}
static int number_of(const struct sink_file *sink)
{
	return tool_of(sink)->file.fd;
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

static bool map_has(const char *words)
{
	static char text[1 << 16];
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
	CHECK(n >= 0);
	CHECK_EQ(close(fd), 0);
	return memmem(text, (size_t)n, words, strlen(words)) != NULL;
}

/* The map is written anew under another descriptor, which is the sink's own, too. */
TEST(perf_map_that_was_written_anew_is_still_written)
{
	struct stat first;
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	live_and_die(&rig, 10);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK); /* takes the dead lines out */
	CHECK_EQ(fstat(fd, &first), 0);
	CHECK_EQ(first.st_nlink, 0); /* another file has its name */
	CHECK_EQ(close(fd), 0);
	CHECK(!map_has("somewhat_longer_name_of_life"));
	rig_block(rig_owner(&rig, "behind"), 1);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK(map_has("behind\n"));
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

TEST(perf_map_of_a_heap_that_has_gone_keeps_lines_that_another_compiler_wrote)
{
	use_folder(&perf_map);
	struct rig rig = start(&perf_map);
	live_and_write(&rig);
	rig_end(&rig);
	append_theirs();
	rig = start(&perf_map);
	check_off(&rig, &perf_map, EBUSY);
	CHECK(map_has("theirs\n"));
	CHECK_EQ(unlink(path), 0);
	check_comes_back(&rig, &perf_map);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	append_theirs();
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND | CH_SINK_PERF_MAP), CH_E_OS);
	CHECK_EQ(errno, EBUSY);
	CHECK(map_has("theirs\n"));
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

/* --- another process --- */
/* A clock that stands: the map's time for writes is used up after some, and lines wait. */
static uint64_t stand(uint64_t waited_ns)
{
	(void)waited_ns;
	return UINT64_C(1) << 40;
}

static void let_child_exit(const struct sink_file *sink)
{
	struct stat before, after;
	ch__listener_on_names(NULL);
	use_folder(sink);
	ch__os_pretended.clock = stand;
	struct rig rig = start(sink);
	for (int i = 0; i < 100; i++)
		rig_block(rig_owner(&rig, "waits"), 1);
	if (sink == &jitdump) /* freed code waits, too */
		live_and_die(&rig, 1);
	if (sink == &perf_map && !tool_of(sink)->used)
		FAIL_SINK("no line waits");
	CHECK_EQ(stat(path, &before), 0);
	/* As a thread of the parent has it that is not in the child. */
	ch__tool_lock(tool_of(sink));
	pid_t pid = _Fork();
	CHECK(pid >= 0);
	if (pid == 0)
		exit(0);
	ch__tool_unlock(tool_of(sink));
	expect_exit(pid, 0);
	CHECK_EQ(stat(path, &after), 0);
	if (after.st_size != before.st_size)
		FAIL_SINK("a child without handlers wrote %d bytes to its parent's file",
			  (int)(after.st_size - before.st_size));
	ch__os_pretended.clock = NULL;
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	rig_end(&rig);
	leave_folder(sink);
}

TEST(perf_map_has_nothing_of_a_child_that_ran_no_handler_of_fork)
{
	let_child_exit(&perf_map);
}

TEST(jitdump_has_nothing_of_a_child_that_ran_no_handler_of_fork)
{
	let_child_exit(&jitdump);
}

static bool gdb_knows(uintptr_t pc)
{
	bool is_known = false;
	for (const struct gdb_entry *e = __jit_debug_descriptor.first; e; e = e->next)
		is_known |= gdb_claims(e, pc);
	return is_known;
}

static bool map_of_process_names(const char *name)
{
	char text[4096];
	snprintf(path, sizeof path, "%s/perf-%d.map", folder, (int)getpid());
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
	CHECK(n > 0);
	CHECK_EQ(close(fd), 0);
	return memmem(text, (size_t)n, name, strlen(name)) != NULL;
}

TEST(tools_of_a_child_without_code_are_told_of_none)
{
	struct ch_config config = rig_config(1 << 20);
	use_folder(&perf_map);
	config.sinks = CH_SINK_PERF_MAP | CH_SINK_GDB;
	config.fork = CH_FORK_NONE;
	struct rig rig = rig_create(&config, NULL, NULL);
	struct ch_block block = rig_block(rig_owner(&rig, "of_the_parent"), 1);
	uintptr_t code = (uintptr_t)block_info(block).exec;
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	pid_t pid = fork_child();
	if (pid == 0) {
		CHECK(!map_of_process_names("of_the_parent"));
		CHECK(!gdb_knows(code));
		CHECK_EQ(unlink(path), 0);
		_exit(0);
	}
	expect_exit(pid, 0);
	CHECK(map_of_process_names("of_the_parent"));
	CHECK(gdb_knows(code));
	rig_end(&rig);
	leave_folder(&perf_map);
}
