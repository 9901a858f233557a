/* SPDX-License-Identifier: MIT
 * sink_perfmap.c: the text file by which perf and its kin name addresses: /tmp/perf-PID.map, lines
 * of "start size name" in hexadecimal. Readers, other writers and costs: docs/unwinders.md, section
 * 5. The tables of what the file says are in perfmap_lines.c.
 *
 * When a range overlaps a line of the file, live or dead, the next write makes the whole file anew
 * under another name and moves the new file into place. Kept lines of dead ranges are copied from
 * the old file: nobody knows the names of dead blocks any more.
 *
 * The file belongs to the process and stays after all heaps. A heap made after all others have gone
 * starts the file anew. A failed write switches the sink off for every heap. Nothing is mapped: a
 * mapped file that somebody cuts is a SIGBUS in the VM. Lock: the tool's, in every function. */
#include "sinks/perfmap_lines.h"
#include "sinks/sinks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	LINE_BYTES = 64 + CH__TOOL_NAME_BYTES, /* two numbers, two spaces, a newline and a name */
	REWRITE_DEAD_LINES = 256,              /* fewer are not worth a rewrite, 0.1 ms at least */
	/* The time that a write uses up: 1 ms for lines, however long the thread did not run
	 * meanwhile; for the whole file 40 times its duration. SAVED_NS of time can be saved up. */
	LINES_NS = 1000000,
	WORK_SHARE = 40,
	SAVED_NS = 8000000,
};

struct user { /* one heap */
	struct ch__tool_user common;
	struct ch__perfmap_lines *lines; /* [file lock] NULL while the sink is off */
};

static struct ch__tool tool = {
	.rank = CH__RANK_PERF_MAP, .stem = "perf", .extension = "map", .fd = -1};
static struct {
	CH_BY_FILE bool must_rewrite;
	CH_BY_FILE uint64_t next_ns; /* the earliest time of the next catch_up */
	/* Lines of heaps that have gone lie in [orphans_low, orphans_high). */
	CH_BY_FILE uintptr_t orphans_low, orphans_high;
} file;

#define EACH_USER(user) \
	for (struct user *user = (void *)tool.users; user; user = (void *)user->common.next)

/* --- text --- */
/* Begins a line in the buffer; returns where the name goes. */
static char *begin_line(uintptr_t exec, size_t bytes) CH_REQUIRES(ch__role_file)
{
	char *at = ch__tool_hex(ch__tool_room(&tool, LINE_BYTES), exec);
	*at++ = ' ';
	at = ch__tool_hex(at, bytes);
	*at++ = ' ';
	return at;
}

static void end_line(char *at) CH_REQUIRES(ch__role_file)
{
	*at++ = '\n';
	tool.used = (size_t)(at - tool.buffer);
}

static void put_line(const struct ch__sinks_config *config, uintptr_t exec, size_t bytes,
		     uint64_t key) CH_REQUIRES(ch__role_file)
{
	char *at = begin_line(exec, bytes);
	end_line(at + ch__tool_name(config, exec, key, at));
}

static void put_runtime_line(const struct ch__sinks_config *config) CH_REQUIRES(ch__role_file)
{
	static const char name[] = "codeheap_runtime";
	if (!config->runtime_bytes)
		return;
	char *at = begin_line(config->runtime_exec, config->runtime_bytes);
	memcpy(at, name, sizeof name - 1);
	end_line(at + sizeof name - 1);
}

/* --- the file --- */
static void drop_lines(struct user *user)
{
	ch__perfmap_lines_destroy(user->lines);
	user->lines = NULL;
}

static void forget_file(void) CH_REQUIRES(ch__role_file)
{
	ch__tool_forget(&tool);
	file.must_rewrite = false;
	file.orphans_low = file.orphans_high = 0;
}

static bool fail_file(int error) CH_REQUIRES(ch__role_file)
{
	EACH_USER(user)
		drop_lines(user);
	forget_file();
	return ch__tool_fail(&tool, error);
}

static void put_live_lines(void) CH_REQUIRES(ch__role_file)
{
	EACH_USER(user) {
		put_runtime_line(user->common.config);
		ch__perfmap_lines_each_live(user->lines, put_line);
	}
}

/* --- kept lines --- */
static bool has_kept_lines(void) CH_REQUIRES(ch__role_file)
{
	EACH_USER(user)
		if (user->lines->kept)
			return true;
	return false;
}

/* line: n bytes, newline included, which ends the text of the numbers. */
static void copy_if_kept(char *line, size_t n) CH_REQUIRES(ch__role_file)
{
	char *at;
	line[n - 1] = 0;
	uint64_t exec = strtoull(line, &at, 16), bytes = strtoull(at, NULL, 16);
	line[n - 1] = '\n';
	EACH_USER(user) {
		if (ch__perfmap_lines_keeps(user->lines, exec, bytes)) {
			ch__tool_put(&tool, line, n);
			return;
		}
	}
}

/* Comes after the live lines; copies no line that overlaps a live line. */
static bool copy_kept_lines(int from) CH_REQUIRES(ch__role_file)
{
	char *text = ch__os_private(CH__TOOL_BUFFER_BYTES);
	uint64_t offset = 0;
	bool ok = text != NULL, is_end = false;
	while (ok && !is_end) {
		int64_t n = ch__os_file_read(from, offset, text, CH__TOOL_BUFFER_BYTES);
		size_t done = 0;
		const char *end;
		ok = n >= 0;
		while (ok && (end = memchr(text + done, '\n', (size_t)n - done))) {
			size_t line = (size_t)(end - text) + 1 - done;
			copy_if_kept(text + done, line);
			done += line;
		}
		is_end = done == 0; /* also before a rest without a newline */
		offset += done;
	}
	int error = errno;
	if (text)
		ch__os_unmap(text, CH__TOOL_BUFFER_BYTES);
	errno = error;
	return ok;
}

/* --- the whole file anew: a reader sees the old file or the new file, never a half --- */
/* A file that somebody else put at the path, or wrote to, is not replaced. */
static bool is_untouched(int fd, const char *path, uint64_t written)
{
	if (!ch__os_file_is_at(fd, path))
		return false;
	errno = EBUSY;
	return ch__os_file_bytes(fd) == (int64_t)written;
}

/* Somebody may have changed the old file while the new file was written. So both files change
 * places, and the old file is checked where nobody looks for it; a changed file goes back. */
static bool put_in_place(const char *path, int old, uint64_t written) CH_REQUIRES(ch__role_file)
{
	if (!ch__os_file_exchange(path, tool.path))
		return (errno == EINVAL || errno == ENOSYS) && /* no such call, or not there */
		       is_untouched(old, tool.path, written) &&
		       ch__os_file_rename(path, tool.path);
	bool is_replaced = is_untouched(old, path, written);
	int error = errno;
	if (is_replaced)
		ch__os_file_remove(path);
	else
		(void)ch__os_file_rename(path, tool.path);
	errno = error;
	return is_replaced;
}

static bool fill_new_file(const char *path, int old, uint64_t written) CH_REQUIRES(ch__role_file)
{
	bool has_kept = has_kept_lines();
	tool.used = 0;
	tool.written = 0;
	put_live_lines();
	return (!has_kept || copy_kept_lines(old)) && ch__tool_flush(&tool) &&
	       put_in_place(path, old, written);
}

static bool rewrite_file(void) CH_REQUIRES(ch__role_file)
{
	char path[sizeof tool.path + 8];
	snprintf(path, sizeof path, "%s.new", tool.path);
	/* Kept lines are read from the old file, so the buffer goes there first. */
	if (has_kept_lines() && !ch__tool_flush(&tool))
		return fail_file(tool.error);
	int old = tool.fd;
	struct ch__os_file_id old_id = tool.id;
	uint64_t written = tool.written;
	int fd = is_untouched(old, tool.path, written) ? ch__os_file_create(path) : -1;
	if (fd < 0)
		return fail_file(errno);
	tool.fd = fd;
	tool.id = ch__os_file_identify(fd);
	bool ok = ch__os_file_append(fd) && fill_new_file(path, old, written);
	int error = tool.error ? tool.error : errno;
	if (ch__os_file_is(old, old_id))
		ch__os_close(old);
	if (!ok) {
		/* Somebody else's file may lie here, if the way back failed. */
		if (ch__os_file_is_at(fd, path))
			ch__os_file_remove(path);
		fail_file(error);
		tool.id = old_id;
		tool.written = written;
		return false;
	}
	file.must_rewrite = false;
	file.orphans_low = file.orphans_high = 0;
	return true;
}

/* --- writing what waits --- */
static bool write_waiting(void) CH_REQUIRES(ch__role_file)
{
	if (file.must_rewrite)
		return rewrite_file();
	return ch__tool_write(&tool) || fail_file(tool.error);
}

static bool catch_up(void) CH_REQUIRES(ch__role_file)
{
	if (!tool.users || (tool.used == 0 && !file.must_rewrite))
		return true;
	uint64_t from = ch__os_now_ns();
	if (from < file.next_ns)
		return false;
	bool is_anew = file.must_rewrite;
	write_waiting();
	if (file.next_ns + SAVED_NS < from)
		file.next_ns = from - SAVED_NS;
	file.next_ns += is_anew ? (ch__os_now_ns() - from) * WORK_SHARE : LINES_NS;
	return true;
}

/* No other sink buffers what it was told. */
bool ch__sinks_catch_up(void)
{
	ch__tool_lock(&tool);
	bool is_done = catch_up();
	ch__tool_unlock(&tool);
	return is_done;
}

/* --- entries --- */
/* The user leaves; the lines stay in the file, for samples that were taken. */
static void orphan_lines(struct user *user) CH_REQUIRES(ch__role_file)
{
	const struct ch__sinks_config *config = user->common.config;
	uintptr_t low = config->runtime_bytes ? config->runtime_exec : config->pool_exec;
	uintptr_t high = config->pool_exec + config->pool_bytes;
	if (!file.orphans_high || low < file.orphans_low)
		file.orphans_low = low;
	if (high > file.orphans_high)
		file.orphans_high = high;
	drop_lines(user);
	ch__tool_leave(&tool, &user->common);
	if (!tool.users)
		forget_file();
}

static int start_file(void) CH_REQUIRES(ch__role_file)
{
	/* perf looks in /tmp only; the variable is for tests. */
	if (ch__tool_start(&tool, ch__os_environment("CODEHEAP_PERF_MAP_DIR")) &&
	    ch__os_file_append(tool.fd))
		return 0;
	int error = tool.error ? tool.error : errno;
	forget_file();
	return error;
}

static int open_perfmap(const struct ch__sinks_config *config, const struct ch__frame_shape *shapes,
			void **state) CH_REQUIRES(ch__role_file)
{
	struct user *user = ch__tool_state(config, shapes, state, sizeof *user);
	if (!user)
		return ENOMEM;
	user->lines = ch__perfmap_lines_create(config);
	int error = !user->lines ? ENOMEM : tool.users ? 0 : start_file();
	if (error) {
		drop_lines(user);
		return user->common.error = error;
	}
	ch__tool_join(&tool, &user->common);
	file.must_rewrite |= config->pool_exec < file.orphans_high &&
			     config->pool_exec + config->pool_bytes > file.orphans_low;
	if (!file.must_rewrite)
		put_runtime_line(config);
	write_waiting();
	return user->common.error;
}

static void close_perfmap(void *state) CH_REQUIRES(ch__role_file)
{
	if (write_waiting())
		orphan_lines(state);
}

static bool add_range(struct user *user, const struct ch__sink_range *range, bool may_be_known)
	CH_REQUIRES(ch__role_file)
{
	enum ch__perfmap_added added = ch__perfmap_lines_add(user->lines, range, may_be_known);
	if (added == CH__PERFMAP_NO_MEMORY) { /* of this heap; other heaps go on */
		close_perfmap(user);
		user->common.error = ENOMEM;
		return false;
	}
	file.must_rewrite |= added == CH__PERFMAP_OVERLAPS;
	if (added == CH__PERFMAP_FITS && !file.must_rewrite) /* else the rewrite puts this line */
		put_line(user->common.config, range->exec, range->bytes, range->key);
	return true;
}

static bool add_ranges(void *state, const struct ch__sink_range *ranges, size_t n,
		       bool may_be_known) CH_REQUIRES(ch__role_file)
{
	for (size_t i = 0; i < n; i++)
		if (!add_range(state, &ranges[i], may_be_known))
			return false;
	return !tool.error || fail_file(tool.error);
}

static bool remove_ranges(void *state, const struct ch__sink_range *ranges, size_t n)
	CH_REQUIRES(ch__role_file)
{
	struct user *user = state;
	/* A kept line must be in the file, and after this call nobody knows the name. */
	if (user->common.config->keeps_dead_names && file.must_rewrite && !rewrite_file())
		return false;
	for (size_t i = 0; i < n; i++)
		ch__perfmap_lines_remove(user->lines, &ranges[i]);
	return true;
}

static bool wants_rewrite(enum ch__flush how) CH_REQUIRES(ch__role_file)
{
	size_t live = 0, dead = 0;
	EACH_USER(user) {
		live += user->lines->live;
		dead += user->lines->dead;
	}
	if (how >= CH__FLUSH_EXACT)
		return dead > 0;
	return dead > REWRITE_DEAD_LINES && (dead > live || how == CH__FLUSH_COLLECTION);
}

static bool flush_perfmap(void *state, enum ch__flush how) CH_REQUIRES(ch__role_file)
{
	struct user *user = state;
	if (how == CH__FLUSH_IN_NEED && user->lines->kept) {
		ch__perfmap_lines_drop_kept(user->lines);
		file.must_rewrite = true;
	}
	file.must_rewrite |= wants_rewrite(how);
	return write_waiting();
}

/* The old file belongs to the parent, like the lines that wait in the buffer. */
static void resume_child(void) CH_REQUIRES(ch__role_file)
{
	ch__tool_close(&tool);
	file.must_rewrite = false;
	file.orphans_low = file.orphans_high = 0;
	if (!tool.users)
		return;
	bool is_made = ch__tool_create(&tool) && ch__os_file_append(tool.fd);
	if (is_made)
		put_live_lines();
	if (!is_made || !ch__tool_flush(&tool))
		fail_file(tool.error ? tool.error : errno);
}

const struct ch__sink_ops ch__sink_perfmap = {
	.name = "perfmap",
	.bit = CH__SINK_PERF_MAP,
	.tool = &tool,
	.open = open_perfmap,
	.close = close_perfmap,
	.add = add_ranges,
	.remove = remove_ranges,
	.flush = flush_perfmap,
	.fork_child = resume_child,
};
