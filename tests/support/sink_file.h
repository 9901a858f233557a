/* SPDX-License-Identifier: MIT
 * sink_file.h: shared by tests of sinks with a file: a folder of the case's own, a heap whose sink
 * writes there, and the sink's state. The including file defines _GNU_SOURCE. */
#pragma once

#include "tests/support/heap_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct sink_file {
	const char *sink; /* in messages */
	enum ch_sink bit;
	const char *name; /* of the file in the folder; %d is the process's number */
};

static const struct sink_file perf_map = {"perf map", CH_SINK_PERF_MAP, "perf-%d.map"};
static const struct sink_file jitdump = {"jitdump", CH_SINK_JITDUMP, "jit-%d.dump"};

#define FAIL_SINK(...) fail_sink(__LINE__, sink, __VA_ARGS__)
__attribute__((noreturn, format(printf, 3, 4))) static void
fail_sink(int line, const struct sink_file *sink, const char *format, ...)
{
	char text[300];
	va_list rest;
	va_start(rest, format);
	vsnprintf(text, sizeof text, format, rest);
	va_end(rest);
	test_fail(__FILE__, line, "%s: %s", sink->sink, text);
}

/* --- the folder --- */
static char folder[] = "/tmp/ch-sinks-XXXXXX";
static char path[128], other[128]; /* the sink's file, and somebody's file beside it */

static inline void use_folder(const struct sink_file *sink)
{
	char name[64];
	CHECK(mkdtemp(folder) != NULL);
	CHECK_EQ(setenv("CODEHEAP_PERF_MAP_DIR", folder, 1), 0);
	snprintf(name, sizeof name, sink->name, (int)getpid());
	snprintf(path, sizeof path, "%s/%s", folder, name);
	snprintf(other, sizeof other, "%s/other", folder);
}

static inline void leave_folder(const struct sink_file *sink)
{
	unlink(path);
	unlink(other);
	if (rmdir(folder) != 0 && errno != ENOENT)
		FAIL_SINK("it left other files behind in %s", folder);
}

static inline void write_other(void)
{
	int fd = open(other, O_CREAT | O_EXCL | O_WRONLY, 0600);
	CHECK_EQ(write(fd, "precious", 8), 8);
	CHECK_EQ(close(fd), 0);
}

static inline void check_other(const struct sink_file *sink)
{
	char text[16] = "";
	int fd = open(other, O_RDONLY);
	if (fd < 0 || read(fd, text, sizeof text) != 8 || memcmp(text, "precious", 8) != 0)
		FAIL_SINK("somebody's file was harmed");
	CHECK_EQ(close(fd), 0);
}

/* --- a heap at work --- */
static inline struct rig start(const struct sink_file *sink)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_UNWIND | (unsigned)sink->bit;
	config.jitdump_dir = folder;
	return rig_create(&config, NULL, NULL);
}

static inline void live_and_die(const struct rig *rig, int lives)
{
	for (int i = 0; i < lives; i++) {
		char name[40];
		snprintf(name, sizeof name, "somewhat_longer_name_of_life_%d", i);
		struct ch_owner owner = rig_owner(rig, name);
		struct ch_block block = rig_block(owner, 1);
		CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
}

static inline void check_on(const struct rig *rig, const struct sink_file *sink)
{
	const char *at;
	int failed = -1;
	if (!ch_sink_status(rig->heap, sink->bit, &at, &failed) || failed)
		FAIL_SINK("it is off, errno %d", failed);
	CHECK_STR(at, path);
}

static inline void check_off(const struct rig *rig, const struct sink_file *sink, int error)
{
	const char *at;
	int failed = 0;
	if (ch_sink_status(rig->heap, sink->bit, &at, &failed))
		FAIL_SINK("it is on, errno %d wanted", error);
	if (failed != error)
		FAIL_SINK("it is off for errno %d, %d wanted", failed, error);
	CHECK_STR(at, "");
}

/* The sink is off at the next flush, and the heap works on. */
static inline void check_failed(struct rig *rig, const struct sink_file *sink, int error)
{
	live_and_die(rig, 10);
	if (ch_sink_flush(rig->heap) != CH_E_OS || errno != error)
		FAIL_SINK("the flush says errno %d, %d wanted", errno, error);
	check_off(rig, sink, error);
	live_and_die(rig, 100);
	rig_collect(rig, 2);
	CHECK(ch_sink_status(rig->heap, CH_SINK_UNWIND, NULL, NULL));
	rig_check(rig);
}

static inline void check_comes_back(struct rig *rig, const struct sink_file *sink)
{
	struct stat st;
	struct ch_owner owner = rig_owner(rig, "alive");
	rig_block(owner, 1);
	CHECK_EQ(ch_sink_set(rig->heap, CH_SINK_UNWIND | (unsigned)sink->bit), CH_OK);
	check_on(rig, sink);
	CHECK_EQ(ch_sink_flush(rig->heap), CH_OK);
	CHECK_EQ(lstat(path, &st), 0);
	CHECK(S_ISREG(st.st_mode) && st.st_size > 0);
}

/* The flush leaves no line to a later call, which would meet a path changed by the case. */
static inline void live_and_write(const struct rig *rig)
{
	live_and_die(rig, 10);
	CHECK_EQ(ch_sink_flush(rig->heap), CH_OK);
}
