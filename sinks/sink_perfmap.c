/* SPDX-License-Identifier: MIT
 * sink_perfmap.c: the text file by which perf and its kin name addresses: /tmp/perf-PID.map, lines
 * of "start size name" in hexadecimal. It knows nothing of time: who is named is the last owner of
 * an address (a tool that must know who owned it earlier needs jitdump). The tables of what the
 * file says are in perfmap_lines.c.
 *
 * A reader that finds two lines for one address takes either, so there never are two: a range that
 * overlaps any line of the file, also a dead one, makes the next flush write the whole file anew
 * under another name and move it into place. Dead lines stay until then, or until they are many;
 * those of a heap that keeps them stay until it flushes in need of their addresses. Their blocks
 * can say no name any more, so they are copied from the old file.
 * Lines are written whole: a reader loses the end of a part. perf knows one file a process, so the
 * file is the process's and each heap is a user of it. It stays after exit and after its heaps, for
 * whoever reads the samples then; a heap made after all others have gone starts it anew. A failed
 * write switches the file off for every user and is kept as their status. Other compilers of the
 * process have the same name for theirs: a file that one of them has open is left to it, and one
 * that another has written to is not replaced.
 *
 * Lines are told into a buffer, and written when the sink is asked to catch up: at once as a rule,
 * because a program that has compiled all it needs calls little more, and may be killed; but when
 * commits come thick, no sooner than a share of the time allows. Then they wait for the next
 * question. A mapped file would need no write, but a file that somebody cuts is a SIGBUS in the VM.
 * Lock: the file lock, one for the process, right of every heap's locks; names are asked for under
 * it. */
#include "sinks/perfmap_lines.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	BUFFER_BYTES = 1 << 16,
	NAME_BYTES = 1000,
	LINE_BYTES = 64 + NAME_BYTES, /* two numbers, two spaces, a newline and a name at most */
	PATH_BYTES = 512,
	REWRITE_DEAD_LINES = 256, /* fewer are not worth a rewrite, 0.1 ms at least */
	/* What a write takes up of the time: lines 1 ms, however long the thread did not run
	 * meanwhile; the whole file 40 times as long as it took. So much is saved up. */
	LINES_NS = 1000000,
	WORK_SHARE = 40,
	SAVED_NS = 8000000,
};

struct user { /* one heap; [file lock] where not const */
	const struct ch__sinks_config *config;
	struct user *next;
	struct ch__perfmap_lines *lines; /* NULL while it is off */
	int error;                       /* the errno that switched it off */
};

static struct {
	struct ch__lock lock;
	CH_BY_FILE int fd;
	CH_BY_FILE struct user *users;
	CH_BY_FILE char *buffer;
	CH_BY_FILE size_t used;
	CH_BY_FILE uint64_t written; /* bytes of the file that are ours */
	/* Of what lies at the path, also when it is closed. */
	CH_BY_FILE struct ch__os_file_id id;
	CH_BY_FILE bool must_rewrite;
	CH_BY_FILE uint64_t next_ns; /* what is told is not written before */
	/* Lines of heaps that have gone lie in [orphans_low, orphans_high). */
	CH_BY_FILE uintptr_t orphans_low, orphans_high;
	CH_BY_FILE char path[PATH_BYTES];
	CH_BY_FILE char folder[PATH_BYTES - 64];
} file = {.fd = -1};

/* --- text --- */
static char *put_hex(char *at, uint64_t value)
{
	unsigned digits = (unsigned)(67 - __builtin_clzll(value | 1)) / 4;
	for (unsigned i = digits; i-- > 0; value >>= 4)
		at[i] = "0123456789abcdef"[value & 15];
	return at + digits;
}

static bool write_buffer(void) CH_REQUIRES(ch__role_file)
{
	size_t n = file.used;
	file.used = 0;
	file.written += n;
	return n == 0 || ch__os_file_write(file.fd, file.buffer, n);
}

/* Begins a line in the buffer; NULL when the buffer was full and could not be written. */
static char *begin_line(uintptr_t exec, size_t bytes) CH_REQUIRES(ch__role_file)
{
	if (BUFFER_BYTES - file.used < LINE_BYTES && !write_buffer())
		return NULL;
	char *at = put_hex(file.buffer + file.used, exec);
	*at++ = ' ';
	at = put_hex(at, bytes);
	*at++ = ' ';
	return at;
}

static void end_line(char *at) CH_REQUIRES(ch__role_file)
{
	*at++ = '\n';
	file.used = (size_t)(at - file.buffer);
}

static size_t clean_name(char *name, size_t n, uintptr_t exec)
{
	if (n == 0) {
		memcpy(name, "jit_", 4);
		return (size_t)(put_hex(name + 4, exec) - name);
	}
	if (n > NAME_BYTES)
		n = NAME_BYTES;
	for (char *at = name; (at = memchr(at, '\n', n - (size_t)(at - name)));)
		*at = ' '; /* would end the line in the middle of the name */
	return n;
}

static bool put_line(void *arg, uintptr_t exec, size_t bytes, uint64_t key)
	CH_REQUIRES(ch__role_file)
{
	const struct user *user = arg;
	char *at = begin_line(exec, bytes);
	if (!at)
		return false;
	size_t n = user->config->name(user->config->context, key, at, NAME_BYTES);
	end_line(at + clean_name(at, n, exec));
	return true;
}

static bool put_runtime_line(const struct user *user) CH_REQUIRES(ch__role_file)
{
	static const char name[] = "codeheap_runtime";
	if (!user->config->runtime_bytes)
		return true;
	char *at = begin_line(user->config->runtime_exec, user->config->runtime_bytes);
	if (!at)
		return false;
	memcpy(at, name, sizeof name - 1);
	end_line(at + sizeof name - 1);
	return true;
}

/* --- the file --- */
static void close_fd(void) CH_REQUIRES(ch__role_file)
{
	if (file.fd >= 0)
		ch__os_close(file.fd);
	file.fd = -1;
}

static void drop_lines(struct user *user)
{
	ch__perfmap_lines_destroy(user->lines);
	user->lines = NULL;
}

static void forget_file(void) CH_REQUIRES(ch__role_file)
{
	close_fd();
	if (file.buffer)
		ch__os_unmap(file.buffer, BUFFER_BYTES);
	file.buffer = NULL;
	file.used = 0;
	file.must_rewrite = false;
	file.orphans_low = file.orphans_high = 0;
}

static bool fail_file(int error) CH_REQUIRES(ch__role_file)
{
	for (struct user *user = file.users; user; user = user->next) {
		drop_lines(user);
		user->error = error ? error : EIO;
	}
	file.users = NULL;
	forget_file();
	return false;
}

static bool put_live_lines(void) CH_REQUIRES(ch__role_file)
{
	file.used = 0;
	for (struct user *user = file.users; user; user = user->next)
		if (!put_runtime_line(user) ||
		    !ch__perfmap_lines_each_live(user->lines, put_line, user))
			return false;
	return true;
}

/* --- kept lines --- */
static bool has_kept_lines(void) CH_REQUIRES(ch__role_file)
{
	for (const struct user *user = file.users; user; user = user->next)
		if (ch__perfmap_lines_has_kept(user->lines))
			return true;
	return false;
}

static const char *take_hex(const char *at, uint64_t *value)
{
	*value = 0;
	for (;; at++) {
		unsigned digit = *at >= 'a' ? (unsigned)(*at - 'a') + 10 : (unsigned)(*at - '0');
		if (digit > 15)
			return at;
		*value = *value << 4 | digit;
	}
}

/* A whole line, newline included. */
static bool copy_if_kept(const char *line, size_t n) CH_REQUIRES(ch__role_file)
{
	uint64_t exec, bytes;
	const char *at = take_hex(line, &exec);
	take_hex(*at == ' ' ? at + 1 : at, &bytes);
	struct user *user = file.users;
	while (user && !ch__perfmap_lines_keeps(user->lines, exec, bytes))
		user = user->next;
	if (!user)
		return true;
	if (BUFFER_BYTES - file.used < n && !write_buffer())
		return false;
	memcpy(file.buffer + file.used, line, n);
	file.used += n;
	return true;
}

/* After the live lines: none that overlaps one of them. */
static bool copy_kept_lines(int from) CH_REQUIRES(ch__role_file)
{
	char *text = ch__os_private(BUFFER_BYTES);
	uint64_t offset = 0;
	bool ok = text != NULL, is_end = false;
	while (ok && !is_end) {
		int64_t n = ch__os_file_read(from, offset, text, BUFFER_BYTES);
		size_t done = 0;
		const char *end;
		ok = n >= 0;
		while (ok && (end = memchr(text + done, '\n', (size_t)n - done))) {
			size_t line = (size_t)(end - text) + 1 - done;
			ok = copy_if_kept(text + done, line);
			done += line;
		}
		is_end = done == 0; /* also of a part that no newline ends */
		offset += done;
	}
	int error = errno;
	if (text)
		ch__os_unmap(text, BUFFER_BYTES);
	errno = error;
	return ok;
}

/* --- the whole file anew: a reader sees the old one or the new one, never a half --- */
/* What somebody else put in its place, or wrote to, is not replaced. */
static bool is_untouched(int fd, const char *path, uint64_t written)
{
	if (!ch__os_file_is_at(fd, path))
		return false;
	errno = EBUSY;
	return ch__os_file_bytes(fd) == (int64_t)written;
}

/* Others may have come while the new one was written. So both change places, and what was there is
 * looked at where nobody looks for it; what is not as it was left goes back. */
static bool put_in_place(const char *path, int old, uint64_t written) CH_REQUIRES(ch__role_file)
{
	if (!ch__os_file_exchange(path, file.path))
		return (errno == EINVAL || errno == ENOSYS) && /* no such call, or not there */
		       is_untouched(old, file.path, written) &&
		       ch__os_file_rename(path, file.path);
	bool is_replaced = is_untouched(old, path, written);
	int error = errno;
	if (is_replaced)
		ch__os_file_remove(path);
	else
		(void)ch__os_file_rename(path, file.path);
	errno = error;
	return is_replaced;
}

static bool fill_new_file(int fd, const char *path) CH_REQUIRES(ch__role_file)
{
	bool has_kept = has_kept_lines();
	if (has_kept && !write_buffer())
		return false;
	int old = file.fd;
	uint64_t written = file.written;
	file.fd = fd;
	file.written = 0;
	bool ok = put_live_lines() && (!has_kept || copy_kept_lines(old)) && write_buffer() &&
		  put_in_place(path, old, written);
	int error = errno;
	ch__os_close(old);
	errno = error;
	return ok;
}

static bool rewrite_file(void) CH_REQUIRES(ch__role_file)
{
	char path[PATH_BYTES + 8];
	snprintf(path, sizeof path, "%s.new", file.path);
	int fd = is_untouched(file.fd, file.path, file.written) ? ch__os_file_create(path) : -1;
	if (fd < 0)
		return fail_file(errno);
	if (!ch__os_file_append(fd) || !fill_new_file(fd, path)) {
		int error = errno;
		/* Not where somebody else's file did not get back to its place. */
		if (ch__os_file_is_at(fd, path))
			ch__os_file_remove(path);
		if (file.fd != fd)
			ch__os_close(fd);
		return fail_file(error);
	}
	file.id = ch__os_file_identify(fd);
	file.must_rewrite = false;
	file.orphans_low = file.orphans_high = 0;
	return true;
}

/* The process's first file: what lies at its name and is no plain file of ours is refused. */
static bool create_file(void) CH_REQUIRES(ch__role_file)
{
	snprintf(file.path, sizeof file.path, "%s/perf-%d.map", file.folder, ch__os_process_id());
	file.written = 0;
	file.fd = ch__os_file_create_known(file.path, file.id);
	if (file.fd >= 0)
		file.id = ch__os_file_identify(file.fd);
	return file.fd >= 0 && ch__os_file_append(file.fd);
}

static int start_file(void) CH_REQUIRES(ch__role_file)
{
	/* perf looks in /tmp only; the variable is for tests. */
	const char *folder = ch__os_environment("CODEHEAP_PERF_MAP_DIR");
	if (!folder)
		folder = "/tmp";
	if (strlen(folder) >= sizeof file.folder)
		return ENAMETOOLONG;
	memcpy(file.folder, folder, strlen(folder) + 1);
	file.buffer = ch__os_private(BUFFER_BYTES);
	if (!file.buffer)
		return ENOMEM;
	if (!create_file()) {
		int error = errno ? errno : EIO;
		forget_file();
		return error;
	}
	return 0;
}

/* --- writing what waits --- */
/* Nobody reads a file that is not at its place. */
static bool write_waiting(void) CH_REQUIRES(ch__role_file)
{
	if (file.must_rewrite)
		return rewrite_file();
	return (ch__os_file_is_at(file.fd, file.path) && write_buffer()) || fail_file(errno);
}

/* Returns whether nothing waits. */
static bool write_in_turn(void) CH_REQUIRES(ch__role_file)
{
	if (!file.users || (file.used == 0 && !file.must_rewrite))
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

/* --- entries --- */
static bool meets_orphans(const struct ch__sinks_config *config) CH_REQUIRES(ch__role_file)
{
	return config->pool_exec < file.orphans_high &&
	       config->pool_exec + config->pool_bytes > file.orphans_low;
}

static void unlink_user(const struct user *gone) CH_REQUIRES(ch__role_file)
{
	struct user **at = &file.users;
	while (*at && *at != gone)
		at = &(*at)->next;
	if (*at)
		*at = gone->next;
	if (!file.users)
		forget_file();
}

/* Its lines stay in the file, for samples that were taken. */
static void orphan_lines(struct user *user) CH_REQUIRES(ch__role_file)
{
	uintptr_t low = user->config->pool_exec, high = low + user->config->pool_bytes;
	if (user->config->runtime_bytes && user->config->runtime_exec < low)
		low = user->config->runtime_exec;
	if (!file.orphans_high || low < file.orphans_low)
		file.orphans_low = low;
	if (high > file.orphans_high)
		file.orphans_high = high;
	drop_lines(user);
	unlink_user(user);
}

static int join_file(struct user *user) CH_REQUIRES(ch__role_file)
{
	int error = file.users ? 0 : start_file();
	if (error)
		return error;
	user->next = file.users;
	file.users = user;
	file.must_rewrite |= meets_orphans(user->config);
	if (!file.must_rewrite && (!put_runtime_line(user) || !write_buffer()))
		fail_file(errno);
	else if (file.must_rewrite)
		rewrite_file();
	return user->error;
}

static int open_perfmap(const struct ch__sinks_config *config, const struct ch__frame_shape *shapes,
			void **state)
{
	(void)shapes;
	struct user *user = *state;
	if (!user)
		user = ch__meta_alloc(config->meta, sizeof *user);
	if (!user)
		return ENOMEM;
	*state = user;
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
	user->config = config;
	user->error = 0;
	user->lines = ch__perfmap_lines_create(config);
	int error = user->lines ? join_file(user) : ENOMEM;
	if (error) {
		drop_lines(user);
		user->error = error;
	}
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
	return error;
}

static void close_perfmap(void *state)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
	if (user->lines &&
	    (file.must_rewrite ? rewrite_file() : (write_buffer() || fail_file(errno))))
		orphan_lines(user);
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
}

static void destroy_perfmap(void *state)
{
	struct user *user = state;
	close_perfmap(user);
	ch__meta_free(user->config->meta, user, sizeof *user);
}

static bool add_range(struct user *user, const struct ch__sink_range *range, bool may_be_known)
	CH_REQUIRES(ch__role_file)
{
	switch (ch__perfmap_lines_add(user->lines, range, may_be_known)) {
	case CH__PERFMAP_IGNORED:
		return true;
	case CH__PERFMAP_NO_MEMORY: /* this heap's; the others go on */
		user->error = ENOMEM;
		orphan_lines(user);
		return false;
	case CH__PERFMAP_OVERLAPS:
		file.must_rewrite = true;
		return true;
	case CH__PERFMAP_FITS:
		break;
	}
	if (file.must_rewrite) /* it will write this line too */
		return true;
	return put_line(user, range->exec, range->bytes, range->key) || fail_file(errno);
}

static bool add_ranges(void *state, const struct ch__sink_range *ranges, size_t n,
		       bool may_be_known)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
	bool ok = user->lines != NULL;
	for (size_t i = 0; ok && i < n; i++)
		ok = add_range(user, &ranges[i], may_be_known);
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
	return ok;
}

static bool remove_ranges(void *state, const struct ch__sink_range *ranges, size_t n)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
	bool ok = user->lines != NULL;
	/* A line that stays must be in the file, and its name can be had only here. */
	if (ok && user->config->keeps_dead_names && file.must_rewrite)
		ok = rewrite_file();
	for (size_t i = 0; ok && i < n; i++)
		ch__perfmap_lines_remove(user->lines, &ranges[i]);
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
	return ok;
}

static bool wants_rewrite(enum ch__flush how) CH_REQUIRES(ch__role_file)
{
	size_t live = 0, dead = 0;
	for (const struct user *user = file.users; user; user = user->next)
		ch__perfmap_lines_count(user->lines, &live, &dead);
	if (how >= CH__FLUSH_EXACT)
		return dead > 0;
	return dead > REWRITE_DEAD_LINES && (dead > live || how == CH__FLUSH_COLLECTION);
}

static bool flush_perfmap(void *state, enum ch__flush how)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
	bool ok = user->lines != NULL;
	if (ok && how == CH__FLUSH_IN_NEED && ch__perfmap_lines_has_kept(user->lines)) {
		ch__perfmap_lines_drop_kept(user->lines);
		file.must_rewrite = true;
	}
	if (ok) {
		file.must_rewrite |= wants_rewrite(how);
		ok = write_waiting();
	}
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
	return ok;
}

static bool catch_up_perfmap(void)
{
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
	bool is_done = write_in_turn();
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
	return is_done;
}

static int perfmap_status(void *state)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
	int error = user->error;
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
	return error;
}

static const char *perfmap_path(void *state)
{
	struct user *user = state;
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
	const char *path = user->lines ? file.path : "";
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
	return path;
}

/* --- fork --- */
static void prepare_fork(void) CH_ACQUIRES(ch__role_file)
{
	ch__file_lock(&file.lock, CH__RANK_PERF_MAP);
}

static void resume_parent(void) CH_RELEASES(ch__role_file)
{
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
}

/* The old file is the parent's, and so are the lines that wait in the buffer. */
static void resume_child(void) CH_RELEASES(ch__role_file)
{
	close_fd();
	file.must_rewrite = false;
	file.orphans_low = file.orphans_high = 0;
	for (struct user *user = file.users; user; user = user->next)
		ch__perfmap_lines_drop_kept(user->lines); /* nobody can be sampled there */
	if (file.users && (!create_file() || !put_live_lines() || !write_buffer()))
		fail_file(errno);
	ch__file_unlock(&file.lock, CH__RANK_PERF_MAP);
}

const struct ch__sink_ops ch__sink_perfmap = {
	.name = "perfmap",
	.bit = CH__SINK_PERF_MAP,
	.open = open_perfmap,
	.close = close_perfmap,
	.destroy = destroy_perfmap,
	.add = add_ranges,
	.remove = remove_ranges,
	.flush = flush_perfmap,
	.catch_up = catch_up_perfmap,
	.status = perfmap_status,
	.path = perfmap_path,
	.fork_prepare = prepare_fork,
	.fork_parent = resume_parent,
	.fork_child = resume_child,
};
