/* SPDX-License-Identifier: MIT
 * pages.h: taking, lending and giving back pages and spans; the room in a pool; fork. */
#ifndef CH_PAGES_PAGES_H
#define CH_PAGES_PAGES_H

#include "pages/pool.h"

/* Makes a PARTLY page of the frame number OPEN, else a FREE page; its free bytes hold traps. A page
 * of data loses execute access until it is FREE again, or retired like a span. Returns
 * CH__PAGE_NONE with errno 0 when the pool is full, or has room only in other zones. Returns
 * CH__PAGE_NONE with an errno when no collection would help: the system refused memory, and the
 * pool could not serve the request if all of its code were gone. */
uint32_t ch__pool_take_page(struct ch__pool *, uint8_t frame) CH_TAKES_PAGES;
/* After ch__pool_take_page found none: makes a FULL page OPEN, by holes that were passed over or
 * are less than the 1/32 that lists a page. Returns CH__PAGE_NONE when no page has room. A search
 * without success is repeated only after a free in the page, or for a smaller request. */
uint32_t ch__pool_take_page_in_need(struct ch__pool *, uint8_t frame, size_t hot_bytes,
				    size_t cold_bytes) CH_TAKES_PAGES;
void ch__pool_retire_page(struct ch__pool *, uint32_t page) CH_TAKES_PAGES; /* OPEN, the caller's */
/* Call after granules of the page were given back. Lists the page again when 1/32 of it came free,
 * frees it with the last granule. Returns true when the page became FREE. */
bool ch__pool_note_freed(struct ch__pool *, uint32_t page) CH_TAKES_PAGES;
/* Takes a run of whole FREE pages. Returns the first page's index, or CH__PAGE_NONE with errno as
 * above. A run may cross chunks: all of them are then of the frame number's zone. */
uint32_t ch__pool_take_span(struct ch__pool *, uint32_t pages, uint8_t frame) CH_TAKES_PAGES;
/* The same for a large span of code, in whole chunks without memory, and so mostly longer. An
 * emitter's memory is private until ch__pool_land_span. Returns CH__PAGE_NONE where
 * ch__pool_take_span does better, or the system refuses. */
uint32_t ch__pool_take_room(struct ch__pool *, uint32_t pages, uint8_t frame) CH_TAKES_PAGES;
void ch__pool_release_span(struct ch__pool *, uint32_t first) CH_TAKES_PAGES;
/* Keeps the first `kept` pages of a span of code; the rest becomes FREE, and a room a span. */
void ch__pool_cut_span(struct ch__pool *, uint32_t first, uint32_t kept) CH_TAKES_PAGES;
/* Releases retired spans. Returns false with errno at the first refusal of the system: another span
 * would be refused too. */
bool ch__pool_retry_retired(struct ch__pool *) CH_TAKES_PAGES;
/* Gives a span that was just taken its use. Returns false with errno: release the span then. */
bool ch__pool_lend_span(struct ch__pool *, uint32_t first, enum ch__span_use) CH_TAKES_PAGES;
/* Private backends: copies bytes that were written in place into the write view. */
void ch__pool_take_over(const struct ch__pool *, uintptr_t exec, size_t bytes);
/* The span is complete: gives its pages the access of their use, unless they have it. Code is not
 * yet published. The first room_bytes of a room get memory, too, and the rest is to be cut. Returns
 * false with errno; some pages may have changed, but no byte: try again, or release. */
bool ch__pool_land_span(struct ch__pool *, uint32_t first, size_t room_bytes) CH_TAKES_PAGES;
/* A set of enum ch__span_use. */
static inline unsigned ch__pool_span_word(const struct ch__pool *pool, uint32_t first)
{
	return atomic_load_explicit(&pool->pages[first].span_use, memory_order_relaxed);
}
static inline enum ch__span_use ch__pool_span_use(const struct ch__pool *pool, uint32_t first)
{
	return (enum ch__span_use)(ch__pool_span_word(pool, first) & CH__SPAN_USE);
}
static inline bool ch__pool_span_is_room(const struct ch__pool *pool, uint32_t first)
{
	return ch__pool_span_word(pool, first) & CH__SPAN_ROOM;
}
/* Whether the span's pages are RX, and so hold the same bytes as the write view. */
bool ch__pool_span_runs(const struct ch__pool *, uint32_t first);
/* Whether only a release may write traps there: pages that are not RX, and all of a room. */
bool ch__pool_span_waits_for_traps(const struct ch__pool *, uint32_t first);
/* Gives wholly FREE chunks back to the OS, save one. */
void ch__pool_trim(struct ch__pool *) CH_TAKES_PAGES;
/* Trims when several chunks are wholly FREE and have more than a quarter of the memory. For callers
 * behind a free, with no lock held. */
static inline void ch__pool_trim_if_worth(struct ch__pool *pool) CH_TAKES_PAGES
{
	if (CH_UNLIKELY(atomic_load_explicit(&pool->wants_trim, memory_order_relaxed)))
		ch__pool_trim(pool);
}

/* --- room: a snapshot, without a lock --- */
/* Bytes without a block, and the most of them in a row: whole pages, or a hole within a page. */
void ch__pool_count_free(const struct ch__pool *, uint64_t *bytes, uint64_t *largest);

/* --- fork --- */
/* Takes the pages lock, also when the result is false: there is no memory for the copy, and the
 * child's views will have no access. */
bool ch__pool_fork_prepare(struct ch__pool *, bool has_child_code) CH_ACQUIRES(ch__role_pages);
void ch__pool_fork_parent(struct ch__pool *) CH_RELEASES(ch__role_pages);
/* Maps the copy at the same addresses and releases the lock. Returns false on failure, and for fork
 * NONE: the views stay without access, and no code byte may be read or written. No page's busy is
 * held: a thread that has one is in a region, which a fork awaits, or holds the lock. */
bool ch__pool_fork_child(struct ch__pool *) CH_RELEASES(ch__role_pages);

/* Returns false and writes a reason when an invariant of the pages is broken. */
bool ch__pool_check(struct ch__pool *, char *reason, size_t reason_bytes) CH_TAKES_PAGES;

#endif
