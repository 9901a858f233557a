/* SPDX-License-Identifier: MIT
 * sink_perfmap.c: the text file by which perf and its kin name addresses: /tmp/perf-PID.map, lines
 * of "start size name" in hexadecimal. Readers, other writers and costs: docs/unwinders.md, section
 * 5.
 *
 * When a range overlaps a line of the file, live or dead, the next write makes the whole file anew
 * under another name and moves the new file into place. Kept lines of dead ranges are copied from
 * the old file: nobody knows the names of dead blocks any more.
 *
 * The file belongs to the process and stays after all heaps. A heap made after all others have gone
 * starts the file anew. A failed write switches the sink off for every heap. Nothing is mapped: a
 * mapped file that somebody cuts is a SIGBUS in the VM. Lock: the tool's, but for a guess.
 *
 * Each heap has a log of its lines, and bitmaps of its runtime page and pool, one bit for 8 bytes:
 *
 *   live      a range that starts in the granule was added and not removed
 *   covered   a line in the file or its buffer, live or dead, covers the granule
 *
 * The log costs 16 bytes a line and is walked only when it is full or the file is written anew,
 * newest line first: when several lines began at a granule, `live` is about the newest line.
 * A page of a bitmap takes memory on first use. An add touches words next to the words of the
 * neighbouring block, and so takes tens of ns where a hash table would miss the cache. */
#include "sinks/sinks.h"
#include "sinks/tools.h"

#include <stdio.h>
#include <stdlib.h>

enum {
	LINE_BYTES = 64 + CH__TOOL_NAME_BYTES, /* two numbers, two spaces, a newline and a name */
	REWRITE_DEAD_LINES = 256,              /* fewer are not worth a rewrite, 0.1 ms at least */
	/* The time that a write uses up: 1 ms for lines, however long the thread did not run
	 * meanwhile; for the whole file 40 times its duration, of which WORK_MOST_NS count: a
	 * process may be stopped for hours. SAVED_NS of time can be saved up. */
	LINES_NS = 1000000,
	WORK_SHARE = 40,
	WORK_MOST_NS = 1000000000,
	SAVED_NS = 8000000,
	GRANULE_LOG2 = 3,
	LIVE = 0,
	COVERED,
	MAPS,
	LOG_LEAST = 1 << 12, /* lines */
};

struct line {
	uint64_t key;
	uint32_t offset; /* from the runtime page */
	uint32_t bytes;
};

struct user { /* one heap; [file lock], and while the sink is off all but common is 0 */
	struct ch__tool_user common;
	struct line *log;
	size_t lines, capacity; /* of the log */
	size_t dead; /* lines that the next rewrite drops */
	bool keeps; /* the lines of its pool that no live line covers are dead, and stay */
	size_t map_bytes; /* of a bitmap: whole pages */
	uint8_t *maps;    /* live, then covered */
};

static void forget_file(void) CH_HAS_FILE;
static struct ch__tool tool = {.rank = CH__RANK_PERF_MAP, .sink = CH_SINK_PERF_MAP, .stem = "perf",
			       .extension = "map", .forget = forget_file, .file.fd = -1};
static struct {
	CH_BY_FILE bool must_rewrite;
	_Atomic(uint64_t) next_ns; /* the earliest time of the next catch_up [file]; relaxed */
	/* Lines of heaps that have gone lie in [orphans_low, orphans_high). */
	CH_BY_FILE uintptr_t orphans_low, orphans_high;
} file;

#define EACH_USER(each) \
	for (struct user *each = (void *)tool.users; each; each = (void *)each->common.next)

static void put_line(const struct ch__sinks_config *config, uintptr_t exec, size_t bytes,
		     uint64_t key) CH_HAS_FILE
{
	char *at = ch__tool_hex(ch__tool_room(&tool, LINE_BYTES), exec);
	*at++ = ' ';
	at = ch__tool_hex(at, bytes);
	*at++ = ' ';
	const char *least = at + 3; /* perf passes over a line with a shorter name */
	at += ch__tool_name(config, exec, key, at);
	while (at < least)
		*at++ = ' ';
	*at++ = '\n';
	tool.used = (size_t)(at - tool.buffer);
}

static void drop_lines(struct user *user)
{
	ch__meta_free(user->common.config->meta, user->log, user->capacity * sizeof *user->log);
	if (user->maps)
		ch__os_unmap(user->maps, MAPS * user->map_bytes);
	*user = (struct user){.common = user->common};
}

static uint64_t *word_of(struct user *user, size_t granule, unsigned map)
{
	return (uint64_t *)(void *)(user->maps + map * user->map_bytes) + granule / 64;
}

static uint64_t bit_of(size_t granule)
{
	return UINT64_C(1) << (granule % 64);
}

/* Covers all granules of the range. Returns whether one was covered before. */
static bool cover(struct user *user, size_t offset, size_t bytes)
{
	size_t at = offset >> GRANULE_LOG2;
	size_t end = (offset + bytes + (1 << GRANULE_LOG2) - 1) >> GRANULE_LOG2;
	uint64_t seen = 0;
	while (at < end) {
		size_t n = 64 - at % 64 < end - at ? 64 - at % 64 : end - at;
		uint64_t mask = ~UINT64_C(0) >> (64 - n) << (at % 64);
		uint64_t *word = word_of(user, at, COVERED);
		seen |= *word & mask;
		*word |= mask;
		at += n;
	}
	return seen != 0;
}

static void resize_log(struct user *user, size_t capacity)
{
	struct line *log = ch__meta_alloc(user->common.config->meta, capacity * sizeof *log);
	if (!log)
		return;
	if (user->lines)
		memcpy(log, user->log, user->lines * sizeof *log);
	ch__meta_free(user->common.config->meta, user->log, user->capacity * sizeof *log);
	user->log = log;
	user->capacity = capacity;
}

static void drop_dead_lines(struct user *user)
{
	size_t from = user->lines;
	for (size_t i = user->lines; i-- > 0;) {
		struct line line = user->log[i];
		uint64_t *live = word_of(user, line.offset >> GRANULE_LOG2, LIVE);
		uint64_t bit = bit_of(line.offset >> GRANULE_LOG2);
		if (!(*live & bit))
			continue;
		*live &= ~bit; /* an older line of this granule is dead */
		user->log[--from] = line;
	}
	user->lines -= from;
	if (user->lines)
		memmove(user->log, user->log + from, user->lines * sizeof *user->log);
	if (user->capacity > LOG_LEAST && user->lines < user->capacity / 4)
		resize_log(user, user->capacity / 2);
	for (size_t i = 0; i < user->lines; i++) {
		size_t granule = user->log[i].offset >> GRANULE_LOG2;
		*word_of(user, granule, LIVE) |= bit_of(granule);
	}
}

/* A full log drops its dead lines first. So it takes memory for live lines, however many died. */
static bool make_room(struct user *user)
{
	drop_dead_lines(user);
	if (user->lines >= user->capacity / 2)
		resize_log(user, user->capacity ? user->capacity * 2 : LOG_LEAST);
	return user->lines < user->capacity;
}

static void forget_file(void)
{
	EACH_USER(user)
		drop_lines(user);
	ch__tool_forget(&tool);
	file.must_rewrite = false;
	file.orphans_low = file.orphans_high = 0;
}

/* Of a new file. */
static void put_live_lines(void) CH_HAS_FILE
{
	file.must_rewrite = false;
	file.orphans_low = file.orphans_high = 0; /* none is in the new file */
	EACH_USER(user) {
		const struct ch__sinks_config *config = user->common.config;
		uint8_t *covered = user->maps + COVERED * user->map_bytes;
		drop_dead_lines(user);
		if (!ch__os_advise(covered, user->map_bytes, CH__OS_DROP))
			memset(covered, 0, user->map_bytes);
		for (size_t i = user->lines; i-- > 0;) {
			struct line line = user->log[i];
			if (!cover(user, line.offset, line.bytes))
				put_line(config, config->runtime_exec + line.offset, line.bytes,
					 line.key);
		}
		user->dead = 0;
	}
}

/* Copies a line if no live line, and no line that was kept before, covers a part of the range. The
 * text may be anything. line: n bytes, newline included, which ends the text of the numbers. */
static void copy_if_kept(char *line, size_t n) CH_HAS_FILE
{
	char *at;
	line[n - 1] = 0;
	struct ch__sink_range range = {.exec = strtoull(line, &at, 16)};
	range.bytes = strtoull(at, NULL, 16);
	line[n - 1] = '\n';
	EACH_USER(user) {
		const struct ch__sinks_config *config = user->common.config;
		if (user->keeps && ch__sink_has(config, &range) &&
		    !cover(user, range.exec - config->runtime_exec, range.bytes)) {
			ch__tool_put(&tool, line, n);
			return;
		}
	}
}

/* Comes after the live lines; copies no line that overlaps a live line. */
static bool copy_kept_lines(int from) CH_HAS_FILE
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
	if (text)
		ch__os_unmap(text, CH__TOOL_BUFFER_BYTES);
	return ok;
}

/* A file that somebody else put at the path, made or wrote to, is not replaced. */
static bool is_untouched(int fd, const char *path, uint64_t written)
{
	if (!ch__os_file_is_at(fd, path))
		return false;
	errno = EBUSY;
	return tool.process == ch__os_process_id() && ch__os_file_bytes(fd) == (int64_t)written;
}

/* A reader sees the old file or the new file, never a half. Somebody may have changed the old file
 * while the new file was written, so it is looked at once more before the new one goes there. */
static bool rewrite_file(void) CH_HAS_FILE
{
	char path[sizeof tool.path + 8];
	snprintf(path, sizeof path, "%s.new", tool.path);
	bool has_kept_lines = false;
	EACH_USER(user)
		has_kept_lines |= user->keeps;
	/* Kept lines are read from the old file, so the buffer goes there first. */
	if (has_kept_lines && !ch__tool_flush(&tool))
		return ch__tool_fail(&tool, tool.error);
	struct ch__os_held old = tool.file;
	uint64_t written = tool.written;
	int fd = is_untouched(old.fd, tool.path, written) ? ch__os_file_create(path, NULL, 0) : -1;
	bool ok = ch__os_file_hold(fd, &tool.file);
	if (ok) {
		tool.used = 0;
		tool.written = 0;
		put_live_lines();
		ok = (!has_kept_lines || copy_kept_lines(old.fd)) && ch__tool_flush(&tool) &&
		     is_untouched(old.fd, tool.path, written) &&
		     ch__os_file_rename(path, tool.path);
	}
	int error = tool.error ? tool.error : errno;
	ch__os_let_go(&old);
	if (!ok) {
		if (ch__os_file_is_at(fd, path))
			ch__os_file_remove(path);
		ch__tool_fail(&tool, error);
		tool.file = old;
		tool.written = written;
		return false;
	}
	return true;
}

static bool write_waiting(void) CH_HAS_FILE
{
	return file.must_rewrite ? rewrite_file() : ch__tool_write(&tool);
}

static bool catch_up(void) CH_HAS_FILE
{
	if (!tool.users || (tool.used == 0 && !file.must_rewrite))
		return true;
	uint64_t from = ch__os_now_ns(), next_ns = CH_LOAD_RELAXED(&file.next_ns);
	if (from < next_ns)
		return false;
	bool is_anew = file.must_rewrite;
	write_waiting();
	if (next_ns + SAVED_NS < from)
		next_ns = from - SAVED_NS;
	uint64_t worked = is_anew ? ch__os_now_ns() - from : 0;
	if (worked > WORK_MOST_NS)
		worked = WORK_MOST_NS;
	CH_STORE_RELAXED(&file.next_ns, next_ns + (is_anew ? worked * WORK_SHARE : LINES_NS));
	return true;
}

/* No other sink buffers what was added. */
bool ch__sinks_catch_up(void)
{
	ch__tool_lock(&tool);
	bool is_done = catch_up();
	ch__tool_unlock(&tool);
	return is_done;
}

bool ch__sinks_wait_for_time(void)
{
	return ch__os_now_ns() < CH_LOAD_RELAXED(&file.next_ns);
}

static int open_perfmap(const struct ch__sinks_config *config, void **state) CH_HAS_FILE
{
	struct user *user = ch__tool_state(config, state, sizeof *user);
	if (!user)
		return ENOMEM;
	size_t bytes = ch__sink_bytes(config) >> GRANULE_LOG2 >> 3;
	user->map_bytes = CH_ROUND_UP(bytes, ch__os_page_bytes());
	user->maps = ch__os_private(MAPS * user->map_bytes);
	int error = user->maps ? 0 : ENOMEM;
	/* perf looks in /tmp only; the variable is for tests. */
	if (!error && !tool.users &&
	    !ch__tool_start(&tool, ch__os_environment("CODEHEAP_PERF_MAP_DIR"))) {
		error = tool.error;
		forget_file();
	}
	if (error) {
		drop_lines(user);
		return error;
	}
	ch__tool_join(&tool, &user->common);
	file.must_rewrite |= config->runtime_exec < file.orphans_high &&
			     config->pool_exec + config->pool_bytes > file.orphans_low;
	return 0;
}

/* The user leaves; the lines stay in the file, for samples that were taken. */
static void close_perfmap(void *state, int error) CH_HAS_FILE
{
	struct user *user = state;
	const struct ch__sinks_config *config = user->common.config;
	uintptr_t low = config->runtime_exec, high = config->pool_exec + config->pool_bytes;
	if (!write_waiting())
		return;
	if (!file.orphans_high || low < file.orphans_low)
		file.orphans_low = low;
	if (high > file.orphans_high)
		file.orphans_high = high;
	drop_lines(user);
	ch__tool_leave(&tool, &user->common, error);
	if (!tool.users)
		forget_file();
}

static void add_ranges(void *state, const struct ch__sink_range *ranges, size_t n, bool is_late)
	CH_HAS_FILE
{
	struct user *user = state;
	const struct ch__sinks_config *config = user->common.config;
	(void)is_late;
	for (const struct ch__sink_range *range = ranges; range < ranges + n; range++) {
		size_t offset = range->exec - config->runtime_exec;
		size_t granule = offset >> GRANULE_LOG2;
		if (user->lines == user->capacity && !make_room(user)) { /* other heaps go on */
			close_perfmap(user, ENOMEM);
			return;
		}
		user->log[user->lines++] =
			(struct line){range->key, (uint32_t)offset, (uint32_t)range->bytes};
		*word_of(user, granule, LIVE) |= bit_of(granule);
		file.must_rewrite |= cover(user, offset, range->bytes);
		if (!file.must_rewrite) /* else the rewrite puts this line */
			put_line(config, range->exec, range->bytes, range->key);
	}
}

static void remove_ranges(void *state, const struct ch__sink_range *ranges, size_t n) CH_HAS_FILE
{
	struct user *user = state;
	const struct ch__sinks_config *config = user->common.config;
	/* A kept line must be in the file, and after this call nobody knows the name. */
	if (config->keeps_dead_names && file.must_rewrite && !rewrite_file())
		return;
	for (size_t i = 0; i < n; i++) {
		size_t granule = (ranges[i].exec - config->runtime_exec) >> GRANULE_LOG2;
		uint64_t *live = word_of(user, granule, LIVE);
		if (!(*live & bit_of(granule)))
			continue;
		*live &= ~bit_of(granule);
		if (config->keeps_dead_names)
			user->keeps = true;
		else
			user->dead++;
	}
}

static void flush_perfmap(void *state, enum ch__flush how) CH_HAS_FILE
{
	struct user *user = state;
	if (how == CH__FLUSH_IN_NEED && user->keeps) {
		user->keeps = false;
		file.must_rewrite = true;
	}
	size_t dead = 0;
	EACH_USER(other)
		dead += other->dead;
	file.must_rewrite |= how >= CH__FLUSH_EXACT
				     ? dead > 0
				     : how == CH__FLUSH_COLLECTION && dead > REWRITE_DEAD_LINES;
	write_waiting();
}

/* The old file belongs to the parent, like the lines that wait in the buffer. */
static void resume_child(void) CH_HAS_FILE
{
	ch__tool_close(&tool);
	if (!tool.users)
		return;
	(void)ch__tool_create(&tool);
	put_live_lines();
	if (!ch__tool_flush(&tool))
		ch__tool_fail(&tool, tool.error);
}

const struct ch__sink_ops ch__sink_perfmap = {
	.name = "perfmap",
	.bit = CH_SINK_PERF_MAP,
	.tool = &tool,
	.open = open_perfmap,
	.close = close_perfmap,
	.add = add_ranges,
	.remove = remove_ranges,
	.flush = flush_perfmap,
	.fork_child = resume_child,
};
