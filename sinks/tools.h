/* SPDX-License-Identifier: MIT
 * tools.h: the sinks that are tools: debuggers and profilers find names by them. Private to
 * sinks/. */
#ifndef CH_SINKS_TOOLS_H
#define CH_SINKS_TOOLS_H

#include "os/files.h"
#include "unwind/sink.h"

#include <string.h>

/* A page index, or one behind the pool's pages. */
static inline size_t ch__sink_page(const struct ch__sinks_config *config, uintptr_t exec)
{
	return (exec - config->pool_exec) / config->page_bytes;
}

/* The frame shape of a page's code, + 1; 0: it has none. */
static inline uint8_t ch__sink_frame(const struct ch__sinks_config *config, size_t page)
{
	return atomic_load_explicit(&config->frames[page], memory_order_relaxed);
}

/* Whether the range has a byte and lies in the pool. */
static inline bool ch__sink_is_in_pool(const struct ch__sinks_config *config,
				       const struct ch__sink_range *range)
{
	size_t offset = range->exec - config->pool_exec;
	return offset < config->pool_bytes && range->bytes &&
	       range->bytes <= config->pool_bytes - offset;
}

/* One heap; the state of its sink begins with it. [file lock] where not const */
struct ch__tool_user {
	const struct ch__sinks_config *config; /* [const] */
	const struct ch__frame_shape *shapes;  /* [const] */
	size_t bytes;                          /* of the state [const] */
	struct ch__tool_user *next;
	bool is_on;
	int error; /* the errno that switched it off */
};

/* What the process has one of, and each heap uses: the list of a debugger, or a file with a buffer
 * (tools.c). Its lock is right of every heap's locks, and names are asked for under it. */
struct ch__tool {
	struct ch__lock lock;
	enum ch__rank rank;           /* [const] */
	const char *stem, *extension; /* [const] of the file's name, with the process between */
	CH_BY_FILE struct ch__tool_user *users; /* of the file; all are on */
	CH_BY_FILE int fd;                      /* -1: there is no file */
	CH_BY_FILE int error;                   /* of the file: nothing more is written */
	CH_BY_FILE char *buffer;                /* NULL: the file was not begun */
	CH_BY_FILE size_t used;
	CH_BY_FILE uint64_t written;         /* bytes of the file that are ours */
	CH_BY_FILE struct ch__os_file_id id; /* of what lies at the path, also when it is closed */
	CH_BY_FILE size_t folder_bytes;
	CH_BY_FILE char path[512];
};

enum { CH__TOOL_BUFFER_BYTES = 1 << 16, CH__TOOL_NAME_BYTES = 1000 };

void ch__tool_lock(struct ch__tool *) CH_ACQUIRES(ch__role_file) CH_EXCLUDES(CH__RIGHT_OF_FILE);
void ch__tool_unlock(struct ch__tool *) CH_RELEASES(ch__role_file);
static inline bool ch__tool_try_lock(struct ch__tool *tool)
	CH_TRY_ACQUIRES(true, ch__role_file) CH_UNANALYSED("it makes the role")
{
	return ch__lock_try(&tool->lock, tool->rank);
}

/* The state of a heap, so many bytes long: *state, or a first one; NULL: no memory. */
void *ch__tool_state(const struct ch__sinks_config *, const struct ch__frame_shape *, void **state,
		     size_t bytes) CH_REQUIRES(ch__role_file);

/* Writes the name of a key, or one of its address; the length, which is at most
 * CH__TOOL_NAME_BYTES without the 0 at its end. */
size_t ch__tool_name(const struct ch__sinks_config *, uintptr_t exec, uint64_t key, char *name);

/* The first file in the folder, or in `otherwise` where that is none. False: tool->error. */
bool ch__tool_start(struct ch__tool *, const char *folder, const char *otherwise)
	CH_REQUIRES(ch__role_file);
/* A file in the same folder under the process's name, empty: what lies there and is no plain file
 * of ours is refused. False: tool->error. */
bool ch__tool_create(struct ch__tool *) CH_REQUIRES(ch__role_file);
/* What is in the buffer goes to the file. False: tool->error, also of an earlier write. */
bool ch__tool_flush(struct ch__tool *) CH_REQUIRES(ch__role_file);
/* Room in the buffer, for at most CH__TOOL_BUFFER_BYTES; what is written there is counted in
 * tool->used. */
static inline char *ch__tool_room(struct ch__tool *tool, size_t bytes) CH_REQUIRES(ch__role_file)
{
	if (CH_UNLIKELY(bytes > CH__TOOL_BUFFER_BYTES - tool->used))
		ch__tool_flush(tool);
	return tool->buffer + tool->used;
}
/* More bytes than the buffer has, as code of a span, go to the file from where they lie. */
void ch__tool_put_long(struct ch__tool *, const void *, size_t bytes) CH_REQUIRES(ch__role_file);
static inline void ch__tool_put(struct ch__tool *tool, const void *bytes, size_t n)
	CH_REQUIRES(ch__role_file)
{
	if (n > CH__TOOL_BUFFER_BYTES) {
		ch__tool_put_long(tool, bytes, n);
		return;
	}
	memcpy(ch__tool_room(tool, n), bytes, n);
	tool->used += n;
}
/* The same to a file that readers find: one that is not at its path has failed. */
bool ch__tool_write(struct ch__tool *) CH_REQUIRES(ch__role_file);
/* What waits in the buffer is dropped. */
void ch__tool_close(struct ch__tool *) CH_REQUIRES(ch__role_file);
/* The same, and the buffer goes. */
void ch__tool_forget(struct ch__tool *) CH_REQUIRES(ch__role_file);

void ch__tool_join(struct ch__tool *, struct ch__tool_user *) CH_REQUIRES(ch__role_file);
void ch__tool_leave(struct ch__tool *, struct ch__tool_user *) CH_REQUIRES(ch__role_file);
/* Switches every user off; returns false. */
bool ch__tool_fail(struct ch__tool *, int error) CH_REQUIRES(ch__role_file);

extern const struct ch__sink_ops ch__sink_gdb, ch__sink_perfmap, ch__sink_jitdump;

#endif
