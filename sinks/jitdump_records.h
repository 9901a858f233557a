/* SPDX-License-Identifier: MIT
 * jitdump_records.h: the bytes of a jitdump file, private to sink_jitdump.c. It writes to the file
 * that it is given and knows of no other; the caller has the file lock. */
#ifndef CH_SINKS_JITDUMP_RECORDS_H
#define CH_SINKS_JITDUMP_RECORDS_H

#include "sinks/tools.h"

/* Bytes on their way to the file. Once a write failed nothing more is written. */
struct ch__jitdump_out {
	uint8_t *buffer;
	size_t room, used;
	int fd;
	int error; /* errno of the write that failed */
	uint64_t now_ns;
	uint32_t process, thread;
};

struct ch__jitdump_code {
	uintptr_t exec;
	size_t bytes;
	bool is_traps; /* the code is written as traps; else it is read at exec */
	const char *name;
	uint64_t index; /* never used before in this process */
};

/* Takes the time, for the records up to the next call: before what they tell can be reached. */
void ch__jitdump_begin(struct ch__jitdump_out *);
void ch__jitdump_header(struct ch__jitdump_out *);
/* What is said of a piece of code comes before its load record. */
void ch__jitdump_lines(struct ch__jitdump_out *, const struct ch__jitdump_code *, const char *file,
		       const struct ch__sink_line *lines, size_t count);
void ch__jitdump_unwinding(struct ch__jitdump_out *, const struct ch__jitdump_code *,
			   const struct ch__frame_shape *);
void ch__jitdump_load(struct ch__jitdump_out *, const struct ch__jitdump_code *);
void ch__jitdump_close(struct ch__jitdump_out *);
/* False: the file has failed. */
bool ch__jitdump_flush(struct ch__jitdump_out *);

#endif
