/* SPDX-License-Identifier: MIT
 * ranks.h: the order of the library's locks, watched when a lock is taken, in checked builds only
 * (docs/design.md, section 9): elsewhere the functions are empty.
 *
 * Each thread notes its own locks, after taking and before letting go. A signal handler in between
 * finds a lock held and not noted, never a lock noted and free. Handlers only try to take locks,
 * which has no order. */
#pragma once

#include "arch/base.h"

/* Left before right: a thread waits for a lock only while holding none of the same or a later rank.
 * A thread in a region only tries the last lock, to open procmem's file. */
#define CH__RANK_LIST(X)                                                                        \
	X(SETUP, "setup")                                                                       \
	X(HEAPS, "heaps")                                                                       \
	X(REGISTRY, "registry")                                                                 \
	X(SWEEP, "sweep")                                                                       \
	X(HEAP, "heap")                                                                         \
	X(RECORDS, "records")                                                                   \
	X(PAGES, "pages")                                                                       \
	X(SINKS, "sinks")                                                                       \
	X(UNWINDER, "nongnu's objects")                                                         \
	X(JITDUMP, "jitdump")                                                                   \
	X(PERF_MAP, "perf map")                                                                 \
	X(GDB, "gdb")                                                                           \
	X(GUEST, "guest")                                                                       \
	X(ENGINE, "a marker's queue")                                                           \
	X(META, "metadata")                                                                     \
	X(REGION, "region")                                                                     \
	X(BUSY, "a page or an owner")                                                           \
	X(OPENING, "the file of the process's memory")

enum ch__rank {
#define X(name, text) CH__RANK_##name,
	CH__RANK_LIST(X)
#undef X
	CH__RANKS
};

/* How a thread can come to wait for a lock held by itself. */
#define CH__MISPLACED_CALL                                                                      \
	"called in a signal handler that interrupted a call of the library, or a call was left " \
	"by longjmp or cancellation"

#if CH_CHECK >= 2
/* Panics when the calling thread holds a lock of this rank or a later one. The text has the held
 * lock's rank, and `what` is wanted; NULL: a lock of the rank. */
CH_GUEST void ch__rank_check_for(enum ch__rank, const char *what);
CH_GUEST void ch__rank_note(enum ch__rank, bool is_taken);
/* The handlers of fork hold the locks of every heap, each heap's in order: from the prepare handler
 * to the other two nothing is noted or checked. */
void ch__ranks_rest(bool);
#else
#define ch__rank_check_for(rank, what) ((void)(rank))
#define ch__rank_note(rank, is_taken) ((void)(rank))
#define ch__ranks_rest(rests) ((void)0)
#endif
