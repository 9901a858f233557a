/* SPDX-License-Identifier: MIT
 * sink_jitdump.c: the file by which perf inject names code by time: jit-PID.dump, with the bytes,
 * source lines and unwind rules of every piece of code from the moment it was published. It is the
 * one table that is right for an address with several owners one after the other. The bytes of the
 * records are jitdump_records.c's.
 *
 * A record cannot be taken back, so code that goes is written over by a load record named "[freed]"
 * with traps: what perf sees there later is nobody's. Neighbours that go together share one; all
 * are written before the next load. perf finds the file because a page of it is mapped executable;
 * a folder mounted noexec forbids that, and the sink is off with EPERM then. Loads are written when
 * they are told, in one write(2) if they fit in the buffer: nothing that runs waits in memory.
 *
 * perf knows one file a process, so the file is the process's, each heap is a user of it, and it
 * stays open until exit, for heaps that come later. It lies in the folder of the heap that opened
 * it. A failed write switches it off for every user and is kept as their status; the next heap that
 * asks starts it anew.
 * Lock: the file lock, one for the process, right of every heap's locks; names and lines are asked
 * for under it. */
#include "sinks/jitdump_records.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	BUFFER_BYTES = 1 << 16,
	NAME_BYTES = 1000,
	PATH_BYTES = 512,
	MOST_LINES = 4096, /* of one block */
	GONE_MOST = 16,
};

struct user { /* one heap; [file lock] where not const */
	const struct ch__sinks_config *config;
	const struct ch__frame_shape *shapes;
	struct user *next;
	bool is_on, is_runtime_told;
	int error; /* the errno that switched it off */
};

struct gone {
	uintptr_t exec;
	size_t bytes;
};

static struct {
	struct ch__lock lock;
	CH_BY_FILE struct ch__jitdump_out out;
	CH_BY_FILE struct ch__sink_line *lines;
	CH_BY_FILE void *marker;
	CH_BY_FILE struct user *users;
	CH_BY_FILE uint64_t index; /* of the last load record */
	CH_BY_FILE struct ch__os_file_id id; /* of the last file, also when it is closed */
	CH_BY_FILE struct gone gone[GONE_MOST];
	CH_BY_FILE size_t gone_count;
	CH_BY_FILE char path[PATH_BYTES];
	CH_BY_FILE char folder[PATH_BYTES - 64];
} file = {.out.fd = -1};

/* --- the file --- */
static size_t lines_bytes(void)
{
	return MOST_LINES * sizeof file.lines[0];
}

static void close_file(void) CH_REQUIRES(ch__role_file)
{
	if (file.marker)
		ch__os_unmap(file.marker, ch__os_page_bytes());
	if (file.out.fd >= 0)
		ch__os_close(file.out.fd);
	file.marker = NULL;
	file.out.fd = -1;
	file.out.used = 0;
	file.gone_count = 0;
}

static void forget_file(void) CH_REQUIRES(ch__role_file)
{
	close_file();
	if (file.out.buffer)
		ch__os_unmap(file.out.buffer, BUFFER_BYTES);
	if (file.lines)
		ch__os_unmap(file.lines, lines_bytes());
	file.out.buffer = NULL;
	file.lines = NULL;
}

static bool fail_file(int error) CH_REQUIRES(ch__role_file)
{
	for (struct user *user = file.users; user; user = user->next) {
		user->is_on = false;
		user->error = error ? error : EIO;
	}
	file.users = NULL;
	forget_file();
	return false;
}

/* The header comes before the marker: who sees the mapping may read the file at once. */
static int create_file(void) CH_REQUIRES(ch__role_file)
{
	snprintf(file.path, sizeof file.path, "%s/jit-%d.dump", file.folder, ch__os_process_id());
	file.out.error = 0;
	file.out.fd = ch__os_file_create_known(file.path, file.id);
	if (file.out.fd < 0)
		return errno ? errno : EIO;
	file.id = ch__os_file_identify(file.out.fd);
	ch__jitdump_begin(&file.out);
	ch__jitdump_header(&file.out);
	int error = ch__jitdump_flush(&file.out) ? 0 : file.out.error;
	if (!error && !(file.marker = ch__os_file_marker(file.out.fd)))
		error = errno ? errno : EIO;
	if (error)
		ch__os_file_remove(file.path);
	return error;
}

static int start_file(const struct ch__sinks_config *config) CH_REQUIRES(ch__role_file)
{
	const char *folder = config->jitdump_dir;
	if (!folder || !*folder)
		folder = ch__os_environment("JITDUMPDIR");
	if (!folder || !*folder)
		folder = "/tmp";
	if (strlen(folder) >= sizeof file.folder)
		return ENAMETOOLONG;
	memcpy(file.folder, folder, strlen(folder) + 1);
	file.out.buffer = ch__os_private(BUFFER_BYTES);
	file.out.room = BUFFER_BYTES;
	file.lines = ch__os_private(lines_bytes());
	int error = file.out.buffer && file.lines ? create_file() : ENOMEM;
	if (error)
		forget_file();
	return error;
}

/* --- records --- */
/* Also takes the time for what is told next. */
static void tell_gone(void) CH_REQUIRES(ch__role_file)
{
	ch__jitdump_begin(&file.out);
	for (size_t i = 0; i < file.gone_count; i++) {
		struct ch__jitdump_code code = {.exec = file.gone[i].exec,
						.bytes = file.gone[i].bytes,
						.is_traps = true,
						.name = "[freed]",
						.index = ++file.index};
		ch__jitdump_load(&file.out, &code);
	}
	file.gone_count = 0;
}

/* Blocks lie side by side and die in runs: perf inject makes a file of every record. */
static void note_gone(uintptr_t exec, size_t bytes) CH_REQUIRES(ch__role_file)
{
	for (size_t i = file.gone_count; i-- > 0;) {
		struct gone *gone = &file.gone[i];
		if (gone->exec + gone->bytes != exec && exec + bytes != gone->exec)
			continue;
		gone->exec = exec < gone->exec ? exec : gone->exec;
		gone->bytes += bytes;
		return;
	}
	if (file.gone_count == GONE_MOST)
		tell_gone();
	file.gone[file.gone_count++] = (struct gone){exec, bytes};
}

static void clean_name(char *name, size_t n, uintptr_t exec)
{
	if (n == 0)
		n = (size_t)snprintf(name, NAME_BYTES, "jit_%llx", (unsigned long long)exec);
	name[n < NAME_BYTES ? n : NAME_BYTES] = 0;
}

static const struct ch__frame_shape *shape_of(const struct user *user,
					      const struct ch__sink_range *range)
{
	static const struct ch__frame_shape none;
	const struct ch__sinks_config *config = user->config;
	size_t page = (range->exec - config->pool_exec) / config->page_bytes;
	uint8_t frame = atomic_load_explicit(&config->frames[page], memory_order_relaxed);
	return frame ? &user->shapes[frame - 1] : &none;
}

static void load(struct ch__jitdump_code *code, const struct ch__frame_shape *shape)
	CH_REQUIRES(ch__role_file)
{
	ch__jitdump_unwinding(&file.out, code, shape);
	code->index = ++file.index;
	ch__jitdump_load(&file.out, code);
}

static void tell_block(const struct user *user, const struct ch__sink_range *range)
	CH_REQUIRES(ch__role_file)
{
	const struct ch__sinks_config *config = user->config;
	char name[NAME_BYTES + 1];
	const struct ch__frame_shape *shape = shape_of(user, range);
	/* A disassembler begins with the first byte, and so do the rules of a slot. */
	size_t head = shape->slot_bytes ? shape->code_at : config->head_bytes;
	size_t lead = range->bytes > head ? head : 0;
	struct ch__jitdump_code code = {
		.exec = range->exec + lead, .bytes = range->bytes - lead, .name = name};
	clean_name(name, config->name(config->context, range->key, name, NAME_BYTES), range->exec);
	const char *source = NULL;
	size_t lines = config->lines ? config->lines(config->context, range->key, &source,
						     file.lines, MOST_LINES)
				     : 0;
	if (lines)
		ch__jitdump_lines(&file.out, &code, source, file.lines,
				  lines < MOST_LINES ? lines : MOST_LINES);
	load(&code, shape);
}

/* The trampoline and the veneers. */
static void tell_runtime(struct user *user) CH_REQUIRES(ch__role_file)
{
	struct ch__jitdump_code code = {.exec = user->config->runtime_exec,
					.bytes = user->config->runtime_bytes,
					.name = "codeheap_runtime"};
	user->is_runtime_told = true;
	if (!code.bytes)
		return;
	load(&code, &user->shapes[0]);
}

/* --- entries --- */
static void join_file(struct user *user) CH_REQUIRES(ch__role_file)
{
	user->next = file.users;
	file.users = user;
	user->is_on = true;
	ch__jitdump_begin(&file.out);
	tell_runtime(user);
	if (!ch__jitdump_flush(&file.out))
		fail_file(file.out.error);
}

static int open_jitdump(const struct ch__sinks_config *config, const struct ch__frame_shape *shapes,
			void **state)
{
	struct user *user = *state;
	if (!user) {
		if (!(user = *state = ch__meta_alloc(config->meta, sizeof *user)))
			return ENOMEM;
		*user = (struct user){.config = config, .shapes = shapes};
	}
	ch__file_lock(&file.lock, CH__RANK_JITDUMP);
	user->is_runtime_told = false;
	if (file.out.fd >= 0 && !ch__os_file_is_at(file.out.fd, file.path))
		fail_file(errno);
	user->error = file.out.fd < 0 ? start_file(config) : 0;
	if (!user->error)
		join_file(user);
	int error = user->error;
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
	return error;
}

static void unlink_user(struct user *gone)
{
	struct user **at = &file.users;
	while (*at && *at != gone)
		at = &(*at)->next;
	if (*at)
		*at = gone->next;
	gone->is_on = false;
}

/* Nobody reads a file that is not at its place. */
static bool flush_file(void) CH_REQUIRES(ch__role_file)
{
	tell_gone();
	if (!ch__os_file_is_at(file.out.fd, file.path))
		return fail_file(errno);
	return ch__jitdump_flush(&file.out) || fail_file(file.out.error);
}

/* The caller has removed every range before. */
static void close_jitdump(void *state)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_JITDUMP);
	if (user->is_on && user->config->runtime_bytes)
		note_gone(user->config->runtime_exec, user->config->runtime_bytes);
	if (user->is_on && flush_file())
		unlink_user(user);
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
}

static void destroy_jitdump(void *state)
{
	struct user *user = state;
	close_jitdump(user);
	ch__meta_free(user->config->meta, user, sizeof *user);
}

static bool add_ranges(void *state, const struct ch__sink_range *ranges, size_t n,
		       bool may_be_known)
{
	(void)may_be_known; /* told twice, code keeps its name */
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_JITDUMP);
	if (user->is_on) {
		tell_gone();
		if (!user->is_runtime_told)
			tell_runtime(user);
		for (size_t i = 0; i < n; i++)
			if (ch__sink_is_in_pool(user->config, &ranges[i]))
				tell_block(user, &ranges[i]);
		if (!ch__jitdump_flush(&file.out))
			fail_file(file.out.error);
	}
	bool ok = user->is_on;
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
	return ok;
}

static bool remove_ranges(void *state, const struct ch__sink_range *ranges, size_t n)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_JITDUMP);
	bool ok = user->is_on;
	for (size_t i = 0; ok && i < n; i++)
		if (ch__sink_is_in_pool(user->config, &ranges[i]))
			note_gone(ranges[i].exec, ranges[i].bytes);
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
	return ok;
}

static bool flush_jitdump(void *state, enum ch__flush how)
{
	(void)how;
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_JITDUMP);
	bool ok = user->is_on && flush_file();
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
	return ok;
}

static int jitdump_status(void *state)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_JITDUMP);
	int error = user->error;
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
	return error;
}

static const char *jitdump_path(void *state)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_JITDUMP);
	const char *path = user->is_on ? file.path : "";
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
	return path;
}

/* --- fork and exit --- */
static void prepare_fork(void) CH_ACQUIRES(ch__role_file)
{
	ch__file_lock(&file.lock, CH__RANK_JITDUMP);
}

static void resume_parent(void) CH_RELEASES(ch__role_file)
{
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
}

/* The old file is the parent's, and so is what waits in the buffer. The heaps tell what is live,
 * when they have their code back. */
static void resume_child(void) CH_RELEASES(ch__role_file)
{
	bool was_open = file.out.fd >= 0;
	close_file();
	int error = was_open ? create_file() : 0;
	for (struct user *user = file.users; user; user = user->next)
		user->is_runtime_told = false;
	if (error)
		fail_file(error);
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
}

/* A lock that another thread holds at this point is left alone: the file ends without a close
 * record then, which no reader asks for. */
__attribute__((destructor)) static void close_at_exit(void)
{
	if (!ch__file_try_lock(&file.lock, CH__RANK_JITDUMP))
		return;
	if (file.out.fd >= 0) {
		tell_gone();
		ch__jitdump_close(&file.out);
		ch__jitdump_flush(&file.out);
		close_file();
		for (struct user *user = file.users; user; user = user->next)
			user->is_on = false;
		file.users = NULL;
	}
	ch__file_unlock(&file.lock, CH__RANK_JITDUMP);
}

const struct ch__sink_ops ch__sink_jitdump = {
	.name = "jitdump",
	.bit = CH__SINK_JITDUMP,
	.knows_time = true,
	.open = open_jitdump,
	.close = close_jitdump,
	.destroy = destroy_jitdump,
	.add = add_ranges,
	.remove = remove_ranges,
	.flush = flush_jitdump,
	.status = jitdump_status,
	.path = jitdump_path,
	.fork_prepare = prepare_fork,
	.fork_parent = resume_parent,
	.fork_child = resume_child,
};
