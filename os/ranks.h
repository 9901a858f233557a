/* SPDX-License-Identifier: MIT
 * ranks.h: the order of the library's locks, watched as they are taken. Clang checks the same order
 * by declarations (arch/base.h), which end at pointers to functions and at bodies that cannot be
 * followed; this sees what a thread holds. Checked builds only (CH_CHECK of at least 2): elsewhere
 * these are nothing.
 *
 * What a thread holds is its own, and noted behind the taking and before the letting go: a signal
 * handler in between finds a lock that is held and not noted, never one that is noted and free.
 * Handlers take locks by trying only, which has no order. */
#ifndef CH_OS_RANKS_H
#define CH_OS_RANKS_H

#include "arch/base.h"

/* Left ones first: a lock is waited for only by who holds none of its own rank, or of one behind
 * it. Whoever is in a region takes no lock, but for the last, around opening the file that code is
 * written to (procmem). */
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
	X(OPENING, "the file of the process's memory")

enum ch__rank {
#define X(name, text) CH__RANK_##name,
	CH__RANK_LIST(X)
#undef X
	CH__RANKS
};

/* How a thread comes to want what it has itself. */
#define CH__MISPLACED_CALL                                                                      \
	"called in a signal handler that interrupted a call of the library, or a call was left " \
	"by longjmp or cancellation"

#if CH_CHECK >= 2
/* The calling thread holds no lock of this rank or behind it; a panic if it does, which names that
 * one and what is wanted: NULL is a lock of the rank. */
CH_GUEST void ch__rank_check_for(enum ch__rank, const char *what);
CH_GUEST void ch__rank_note(enum ch__rank, bool is_taken);
/* The handlers of fork hold the locks of every heap, each heap's in order: between prepare and the
 * other two nothing is noted or asked. */
void ch__ranks_rest(bool);
#else
static inline void ch__rank_check_for(enum ch__rank rank, const char *what)
{
	(void)rank, (void)what;
}
static inline void ch__rank_note(enum ch__rank rank, bool is_taken)
{
	(void)rank, (void)is_taken;
}
static inline void ch__ranks_rest(bool rests)
{
	(void)rests;
}
#endif

#endif
