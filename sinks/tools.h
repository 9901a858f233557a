/* SPDX-License-Identifier: MIT
 * tools.h: the sinks that are tools, by which debuggers and profilers find names. Private to
 * sinks/. */
#pragma once

#include "os/files.h"
#include "unwind/steps.h"

/* The frame shape of a page's code, + 1; 0 = the page has none. */
static inline uint8_t ch__sink_frame(const struct ch__sinks_config *config, size_t page)
{
	return atomic_load_explicit(&config->frames[page], memory_order_acquire);
}
/* The same, by an address. The runtime page keeps the frame pointer (sections.c). */
static inline uint8_t ch__sink_frame_at(const struct ch__sinks_config *config, uintptr_t exec)
{
	if (exec < config->pool_exec)
		return CH_FRAME_POINTER + 1;
	return ch__sink_frame(config, (exec - config->pool_exec) / config->page_bytes);
}

/* Bytes of all code that tools are told of, from runtime_exec on. */
static inline size_t ch__sink_bytes(const struct ch__sinks_config *config)
{
	return config->pool_exec + config->pool_bytes - config->runtime_exec;
}
/* Whether the range has a byte and lies there. */
static inline bool ch__sink_has(const struct ch__sinks_config *config,
				const struct ch__sink_range *range)
{
	size_t offset = range->exec - config->runtime_exec, all = ch__sink_bytes(config);
	return offset < all && range->bytes && range->bytes <= all - offset;
}

static inline bool ch__sink_is_on(const struct ch__sinks_config *config, enum ch_sink sink)
{
	return (CH_LOAD_RELAXED(config->on) & (unsigned)sink) != 0;
}
static inline _Atomic(int) *ch__sink_error(const struct ch__sinks_config *config, enum ch_sink sink)
{
	return &config->errors[__builtin_ctz((unsigned)sink)];
}

/* One heap, and the first field of the sink's state. [file lock] where not const */
struct ch__tool_user {
	const struct ch__sinks_config *config; /* [const] */
	size_t bytes;                          /* of the state [const] */
	struct ch__tool_user *next;
};

/* Shared by all heaps of the process: the list of a debugger, or a file with a buffer (tools.c).
 * The lock is right of every heap's locks. Names are asked for under the lock. */
struct ch__tool {
	struct ch__lock lock;
	enum ch__rank rank;           /* [const] */
	enum ch_sink sink;            /* [const] */
	const char *stem, *extension; /* [const] the file is stem-PID.extension */
	void (*forget)(void);         /* [const] closes the file, and drops what was told */
	CH_BY_FILE struct ch__tool_user *users; /* of the file; all users are on */
	CH_BY_FILE int error;                   /* of the file, which is not written again */
	CH_BY_FILE char *buffer;                /* NULL: the file was not begun */
	CH_BY_FILE size_t used;
	CH_BY_FILE struct ch__os_held file; /* at the path; also says which it was when closed */
	CH_BY_FILE uint64_t written;        /* bytes that the library wrote to that file */
	int process;                        /* that made the file [file lock] */
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

/* Returns *state, or makes a state of so many bytes if NULL. Returns NULL without memory. */
void *ch__tool_state(const struct ch__sinks_config *, void **state, size_t bytes) CH_HAS_FILE;

/* Writes the name of a key, one made of exec, or that of the runtime page. Returns the length,
 * below CH__TOOL_NAME_BYTES. */
size_t ch__tool_name(const struct ch__sinks_config *, uintptr_t exec, uint64_t key, char *name);
/* Returns the place behind the digits, 16 at most. */
static inline char *ch__tool_hex(char *at, uint64_t value)
{
	unsigned digits = (unsigned)(67 - __builtin_clzll(value | 1)) / 4;
	for (unsigned i = digits; i-- > 0; value >>= 4)
		at[i] = "0123456789abcdef"[value & 15];
	return at + digits;
}

/* The source lines of a range: the first may begin before the range. */
struct ch__tool_lines {
	const char *file;
	const struct ch__sink_line *at;
	size_t count;
	uintptr_t pool_exec, low; /* of the range */
};
/* Finds the lines of a range. A line holds to the next one, or to the end of the hot or cold part
 * with its address. */
struct ch__tool_lines ch__tool_lines(const struct ch__sinks_config *,
				     const struct ch__sink_range *);
static inline uintptr_t ch__tool_line_exec(const struct ch__tool_lines *lines, size_t i)
{
	uintptr_t exec = lines->pool_exec + lines->at[i].offset;
	return exec > lines->low ? exec : lines->low;
}

/* Begins a file in the folder, if one is given, else in /tmp. False: tool->error. */
bool ch__tool_start(struct ch__tool *, const char *folder) CH_HAS_FILE;
/* Creates an empty file in the same folder, named by the process. Replaces only a leftover of an
 * earlier process, or our own file, unchanged. Returns false with tool->error. */
bool ch__tool_create(struct ch__tool *) CH_HAS_FILE;
/* Writes the buffer. Returns false with tool->error, also after an earlier failure. */
bool ch__tool_flush(struct ch__tool *) CH_HAS_FILE;
/* Returns room for at most CH__TOOL_BUFFER_BYTES. The caller adds what is written to tool->used. */
static inline char *ch__tool_room(struct ch__tool *tool, size_t bytes) CH_HAS_FILE
{
	if (CH_UNLIKELY(bytes > CH__TOOL_BUFFER_BYTES - tool->used))
		ch__tool_flush(tool);
	return tool->buffer + tool->used;
}
void ch__tool_put(struct ch__tool *, const void *bytes, size_t n) CH_HAS_FILE;
/* Flushes a file that readers find by the path. A file that is not at the path, or is not written,
 * ends by ch__tool_fail. */
bool ch__tool_write(struct ch__tool *) CH_HAS_FILE;
/* Closes the file and drops the contents of the buffer. */
void ch__tool_close(struct ch__tool *) CH_HAS_FILE;
/* Closes the file and frees the buffer. */
void ch__tool_forget(struct ch__tool *) CH_HAS_FILE;

/* The user's sink is on, or off with an errno or 0. */
void ch__tool_join(struct ch__tool *, struct ch__tool_user *) CH_HAS_FILE;
void ch__tool_leave(struct ch__tool *, struct ch__tool_user *, int error) CH_HAS_FILE;
/* Forgets the file, and switches every user off; returns false. */
bool ch__tool_fail(struct ch__tool *, int error) CH_HAS_FILE;

extern const struct ch__sink_ops ch__sink_gdb, ch__sink_perfmap, ch__sink_jitdump;
