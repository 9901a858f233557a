/* SPDX-License-Identifier: MIT
 * pages.h: pages and spans of them: taken, lent, retired, given back; what room there is; fork. */
#ifndef CH_PAGES_PAGES_H
#define CH_PAGES_PAGES_H

#include "pages/pool.h"

/* An OPEN page of the frame number, its free bytes trap-filled: a PARTLY one, or a FREE one. Pages
 * of data lose execute access until they are FREE again, or retired as a span is.
 * CH__PAGE_NONE when no page fits (errno 0: the pool is full, or the rest of it is of other
 * zones) or the OS has no memory, and what the pool has would not do if all of it were free
 * (errno): no collection would help. */
uint32_t ch__pool_take_page(struct ch__pool *, uint8_t frame) CH_TAKES_PAGES;
/* When that found none: a FULL page that has the room all the same, in holes that were passed over
 * or are less than the 1/32 that lists a page again. It is OPEN; CH__PAGE_NONE when there is none.
 * A page is searched once after each of its frees. */
uint32_t ch__pool_take_page_in_need(struct ch__pool *, uint8_t frame, size_t hot_bytes,
				    size_t cold_bytes) CH_TAKES_PAGES;
void ch__pool_retire_page(struct ch__pool *, uint32_t page) CH_TAKES_PAGES; /* the caller's */
/* Granules of the page were given back: list it again after 1/32 of it, free it with the last.
 * Returns true when the page became FREE. */
bool ch__pool_note_freed(struct ch__pool *, uint32_t page) CH_TAKES_PAGES;
/* A run of whole FREE pages. First page's index, or CH__PAGE_NONE with errno as above. It may
 * cross chunks, which all are of its zone then. */
uint32_t ch__pool_take_span(struct ch__pool *, uint32_t pages, uint8_t frame) CH_TAKES_PAGES;
void ch__pool_release_span(struct ch__pool *, uint32_t first) CH_TAKES_PAGES;
/* The span keeps so many of its pages, which are code; the others are FREE. */
void ch__pool_cut_span(struct ch__pool *, uint32_t first, uint32_t kept) CH_TAKES_PAGES;
/* Spans that are retired come back, if the system lets them. False: errno, and one more would not
 * come back either. */
bool ch__pool_retry_retired(struct ch__pool *) CH_TAKES_PAGES;
/* A span that was just taken is of this use from here on. False: errno; release it. */
bool ch__pool_lend_span(struct ch__pool *, uint32_t first, enum ch__span_use) CH_TAKES_PAGES;
/* What was written in place is taken over, so that the write view has it. */
void ch__pool_take_over(const struct ch__pool *, uintptr_t exec, size_t bytes);
/* It is complete: access as its use says, also when it had it. Code is not yet published. False:
 * errno; it is as it was, or a part of it: try again, or release it. */
bool ch__pool_land_span(struct ch__pool *, uint32_t first) CH_TAKES_PAGES;
static inline enum ch__span_use ch__pool_span_use(const struct ch__pool *pool, uint32_t first)
{
	return (enum ch__span_use)(
		atomic_load_explicit(&pool->pages[first].span_use, memory_order_relaxed) &
		CH__SPAN_USE);
}
/* Whether its pages are RX, and so hold what the write view does. */
bool ch__pool_span_runs(const struct ch__pool *, uint32_t first);
/* Gives chunks whose pages are all FREE back to the OS, save one. */
void ch__pool_trim(struct ch__pool *) CH_TAKES_PAGES;
/* The same, where several are and have more than a quarter of the memory. For who freed code, and
 * holds no lock. */
static inline void ch__pool_trim_if_worth(struct ch__pool *pool) CH_TAKES_PAGES
{
	if (CH_UNLIKELY(atomic_load_explicit(&pool->wants_trim, memory_order_relaxed)))
		ch__pool_trim(pool);
}

/* --- room: a snapshot, without a lock --- */
/* Bytes that no block has, and the most of them in a row: whole pages, or a hole of one. */
void ch__pool_count_free(const struct ch__pool *, uint64_t *bytes, uint64_t *largest);

/* --- fork --- */
/* Takes the pages lock, also when it returns false (no memory for the copy: the child's views have
 * no access). */
bool ch__pool_fork_prepare(struct ch__pool *, bool has_child_code) CH_ACQUIRES(ch__role_pages);
void ch__pool_fork_parent(struct ch__pool *) CH_RELEASES(ch__role_pages);
/* Maps the copy at the same addresses; false on failure and for NONE: the views stay without
 * access, and no code byte may be read or written. Releases the lock. No page's busy is held: who
 * has one is in a region, which a fork awaits, or holds the lock. */
bool ch__pool_fork_child(struct ch__pool *) CH_RELEASES(ch__role_pages);

/* Broken page invariants: writes a reason, returns false. */
bool ch__pool_check(struct ch__pool *, char *reason, size_t reason_bytes) CH_TAKES_PAGES;

#endif
