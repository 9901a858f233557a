/* SPDX-License-Identifier: MIT
 * tools.c: shared parts of sinks with a file: the file's name and life, a buffer that is written as
 * a whole, and the users, which a failure switches off. No format is known here. A failed write is
 * the file's last, so a writer asks for errors once, at the end. */
#include "sinks/tools.h"

#include <stdio.h>
#include <stdlib.h>

enum { NAME_ROOM = 64 }; /* behind the folder */

CH__LOCK_FUNCTIONS(ch__tool_lock, ch__tool_unlock, struct ch__tool *tool, ch__lock_take, tool->lock,
		   tool->rank)

void *ch__tool_state(const struct ch__sinks_config *config, void **state, size_t bytes)
{
	struct ch__tool_user *user = *state;
	if (!user && (user = *state = ch__meta_alloc(config->meta, bytes)))
		*user = (struct ch__tool_user){.config = config, .bytes = bytes};
	return user;
}

size_t ch__tool_name(const struct ch__sinks_config *config, uintptr_t exec, uint64_t key,
		     char *name)
{
	static const char runtime[] = "codeheap_runtime";
	if (exec == config->runtime_exec)
		return memcpy(name, runtime, sizeof runtime), sizeof runtime - 1;
	size_t n = config->name(config->context, key, name, CH__TOOL_NAME_BYTES);
	if (n == 0) {
		memcpy(name, "jit_", 4);
		n = (size_t)(ch__tool_hex(name + 4, exec) - name);
	}
	name[n] = 0;
	return n;
}

struct ch__tool_lines ch__tool_lines(const struct ch__sinks_config *config,
				     const struct ch__sink_range *range)
{
	struct ch__tool_lines lines = {.pool_exec = config->pool_exec, .low = range->exec};
	size_t n = 0, first = 0, end, low = range->exec - config->pool_exec;
	if (config->lines && range->exec >= config->pool_exec)
		lines.at = config->lines(config->context, range->key, &lines.file, &n);
	if (!n || !*lines.file) /* an empty name ends DWARF's table of files */
		return lines;
	while (first < n && lines.at[first].offset < low)
		first++;
	for (end = first; end < n && lines.at[end].offset < low + range->bytes; end++)
		continue;
	/* The range begins behind a line where the first bytes of the hot part are not used; lines
	 * before the cold part are of the hot part. */
	if (first && !range->is_cold && (first == end || lines.at[first].offset > low))
		first--;
	lines.at += first;
	lines.count = end - first;
	return lines;
}

static bool fail_with(struct ch__tool *tool, int error) CH_HAS_FILE
{
	tool->error = error ? error : EIO;
	return false;
}

bool ch__tool_create(struct ch__tool *tool)
{
	tool->error = 0;
	tool->process = ch__os_process_id();
	snprintf(tool->path + tool->folder_bytes, NAME_ROOM, "/%s-%d.%s", tool->stem,
		 tool->process, tool->extension);
	int fd = ch__os_file_create(tool->path, &tool->file, tool->written);
	if (fd < 0)
		return fail_with(tool, errno);
	tool->written = 0;
	return ch__os_file_hold(fd, &tool->file) || fail_with(tool, errno);
}

bool ch__tool_start(struct ch__tool *tool, const char *folder)
{
	char whole[CH__OS_PATH_BYTES]; /* holds when the process changes its folder */
	if (!ch__os_note(realpath(folder && *folder ? folder : "/tmp", whole) != NULL, NULL))
		return fail_with(tool, errno);
	tool->folder_bytes = strlen(whole);
	if (tool->folder_bytes >= sizeof tool->path - NAME_ROOM)
		return fail_with(tool, ENAMETOOLONG);
	memcpy(tool->path, whole, tool->folder_bytes);
	tool->buffer = ch__os_private(CH__TOOL_BUFFER_BYTES);
	return tool->buffer ? ch__tool_create(tool) : fail_with(tool, ENOMEM);
}

static void write_through(struct ch__tool *tool, const void *bytes, size_t n) CH_HAS_FILE
{
	if (tool->error || !n)
		return;
	errno = EFAULT; /* a child of a raw clone has the parent's file and no code */
	bool is_ours = tool->process == ch__os_process_id() && ch__os_holds(&tool->file);
	size_t done = is_ours ? ch__os_file_put(tool->file.fd, bytes, n) : 0;
	tool->written += done;
	if (done < n)
		fail_with(tool, errno);
}

bool ch__tool_flush(struct ch__tool *tool)
{
	write_through(tool, tool->buffer, tool->used);
	tool->used = 0;
	return !tool->error;
}

bool ch__tool_write(struct ch__tool *tool)
{
	if (!tool->error && !ch__os_file_is_at(tool->file.fd, tool->path))
		fail_with(tool, errno);
	return ch__tool_flush(tool) || ch__tool_fail(tool, tool->error);
}

void ch__tool_put(struct ch__tool *tool, const void *bytes, size_t n)
{
	if (n > CH__TOOL_BUFFER_BYTES) { /* such as the code of a span */
		ch__tool_flush(tool);
		write_through(tool, bytes, n);
		return;
	}
	memcpy(ch__tool_room(tool, n), bytes, n);
	tool->used += n;
}

void ch__tool_close(struct ch__tool *tool)
{
	ch__os_let_go(&tool->file);
	tool->used = 0;
}

void ch__tool_forget(struct ch__tool *tool)
{
	ch__tool_close(tool);
	if (tool->buffer)
		ch__os_unmap(tool->buffer, CH__TOOL_BUFFER_BYTES);
	tool->buffer = NULL;
}

void ch__tool_join(struct ch__tool *tool, struct ch__tool_user *user)
{
	user->next = tool->users;
	tool->users = user;
	atomic_fetch_or(user->config->on, (unsigned)tool->sink);
}

void ch__tool_leave(struct ch__tool *tool, struct ch__tool_user *user, int error)
{
	struct ch__tool_user **at = &tool->users;
	while (*at != user)
		at = &(*at)->next;
	*at = user->next;
	/* In this order: who finds the sink off finds why. */
	atomic_store(ch__sink_error(user->config, tool->sink), error);
	atomic_fetch_and(user->config->on, ~(unsigned)tool->sink);
}

bool ch__tool_fail(struct ch__tool *tool, int error)
{
	tool->forget();
	while (tool->users)
		ch__tool_leave(tool, tool->users, error);
	return false;
}
