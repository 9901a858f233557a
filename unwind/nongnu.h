/* SPDX-License-Identifier: MIT
 * nongnu.h: declarations of nongnu libunwind, written down here because neither building nor
 * linking the library asks for libunwind. The layouts are of libunwind 1.6 and later. A test
 * compares them with the real header; ch__nongnu_prove proves that the process has them.
 * Source: libunwind-dynamic.h, libunwind-common.h of libunwind 1.6. */
#pragma once

#include "unwind/sink.h"

#include <ucontext.h>

/* NULL with a C library that has none, as musl. */
extern __typeof__(getcontext) getcontext __attribute__((weak));

/* unw_dyn_info_t with the member rti of its union. */
struct ch__nongnu_object {
	struct ch__nongnu_object *next, *prev; /* libunwind's */
	uintptr_t start, end; /* of the code; read by walks at any time, also when cancelled */
	uintptr_t global_pointer; /* 0, like load_offset and name */
	int32_t format, pad;
	uintptr_t load_offset;
	uintptr_t name, segment; /* all offsets are from segment */
	uintptr_t table_words;   /* of 8 bytes */
	uintptr_t table;         /* struct ch__nongnu_entry, rising */
	/* for the library */
	struct ch__nongnu_object *next_free;
	bool is_added; /* libunwind has the object, for good */
};
enum { CH__NONGNU_REMOTE_TABLE = 2 }; /* UNW_INFO_FORMAT_REMOTE_TABLE */

struct ch__nongnu_entry {
	int32_t start, fde;
};

/* unw_proc_info_t begins with the range of the procedure; the rest is libunwind's. */
struct ch__nongnu_procedure {
	uintptr_t start, end, rest[14];
};

struct ch__nongnu_cursor {
	_Alignas(16) uintptr_t words[CH_ARCH_NONGNU_CURSOR_WORDS];
};
enum { CH__NONGNU_SIGNAL_FRAME = 1 }; /* UNW_INIT_SIGNAL_FRAME */

/* A context is a ucontext_t, as getcontext and signals give it. */
struct ch__nongnu {
	void (*add)(struct ch__nongnu_object *);
	void (*flush)(void *space, uintptr_t low, uintptr_t high);
	int (*procedure)(void *space, uintptr_t pc, struct ch__nongnu_procedure *, void *);
	int (*start)(struct ch__nongnu_cursor *, void *context, int flags);
	int (*step)(struct ch__nongnu_cursor *); /* > 0: there is a caller */
	int (*get)(struct ch__nongnu_cursor *, int number, uintptr_t *value);
	void **space;         /* of walks in this process by its local interface */
	void **general_space; /* by its general interface; NULL when that is not loaded */
};

/* The libunwind of the process, for all heaps; set once, by ch__nongnu_find. */
extern struct ch__nongnu ch__nongnu;
/* Sets it if the process has libunwind, and all of it. Call before the sink is wanted, without a
 * lock: the dynamic linker runs constructors under a lock of its own, and they may call. */
void ch__nongnu_find(void) CH_HOLDS_NONE;
/* Returns 0 if libunwind reads objects as laid out here, by an object over no code. ENOSYS: none
 * was found. ENOMEM: no memory, or none at a low address. ENOTSUP: another layout. */
int ch__nongnu_prove(const struct ch__frame_shape *);
/* Empties libunwind's caches of frames, so that tables are read anew. */
void ch__nongnu_flush(void);

/* An object that covers nothing, for the life of the process: walks may read it at any time. NULL:
 * no memory. An object that is given back covers nothing from then on. */
struct ch__nongnu_object *ch__nongnu_take(void);
void ch__nongnu_give(struct ch__nongnu_object *);
void ch__nongnu_lock(void) CH_ACQUIRES(ch__role_file) CH_EXCLUDES(CH__RIGHT_OF_FILE);
void ch__nongnu_unlock(void) CH_RELEASES(ch__role_file);

/* An object covers [start, end) from a single store on, and nothing before: walks read objects
 * without a lock. From the first fill on libunwind has the object. */
void ch__nongnu_fill(struct ch__nongnu_object *, uintptr_t start, uintptr_t end, uintptr_t segment,
		     const struct ch__nongnu_entry *table, size_t entries);
