/* SPDX-License-Identifier: MIT
 * jitdump.h: helpers of the jitdump tests: a folder for the file, a bed with live pages, and the
 * check of an address's owner. */
#pragma once

#include "tests/support/jitdump_reader.h"
#include "tests/unit/sinks/ranges.h"

static char folder[] = "/tmp/ch-jitdump-XXXXXX";

static inline void use_own_folder(void)
{
	CHECK(mkdtemp(folder) != NULL);
	CHECK_EQ(setenv("JITDUMPDIR", folder, 1), 0);
}

static inline void path_of(pid_t pid, char path[128])
{
	snprintf(path, 128, "%s/jit-%d.dump", folder, (int)pid);
}

static inline struct dump *read_own(void)
{
	char path[128];
	path_of(getpid(), path);
	return dump_read(path);
}

static inline void remove_own_folder(void)
{
	char path[128];
	path_of(getpid(), path);
	unlink(path);
	CHECK_EQ(rmdir(folder), 0); /* no other file was left there */
}

/* Marks all pages of the bed live, with code of the default shape. */
static inline void pages_live(struct bed *bed)
{
	CHECK(ch__sinks_page_live(bed->sinks, 0, BED_POOL_BYTES / BED_PAGE_BYTES, 0));
}

static inline struct bed *start(struct bed *bed)
{
	bed_open(bed, CH_SINK_JITDUMP);
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_JITDUMP), 0);
	pages_live(bed);
	return bed;
}

static inline void end(struct bed *bed)
{
	bed_close(bed);
	remove_own_folder();
}
/* A case with a dump in a folder of its own. */
#define TEST_DUMP(name) \
	TEST_WITH(name, struct bed *, bed, (use_own_folder(), start(&(struct bed){0})), end(bed))

static inline void flush(struct bed *bed)
{
	ch__sinks_flush(bed->sinks, CH__FLUSH_BUFFERED);
}

static inline void check_now(const void *pc, const char *name)
{
	struct dump *dump = read_own();
	dump_check_owner(dump, pc, now_ns(), name);
	dump_free(dump);
}

static inline size_t count_loads(const struct dump *dump, const char *name)
{
	size_t n = 0;
	for (size_t i = 0; i < dump->count; i++)
		n += dump->records[i].kind == DUMP_LOAD && !strcmp(dump->records[i].name, name);
	return n;
}
