/* SPDX-License-Identifier: MIT
 * chunks.h: what the files of pages/ that hand pages out share, under the pages lock: states and
 * lists of pages, the memory of chunks (chunks.c), spans (spans.c). */
#pragma once

#include "pages/inner.h"

/* Lists of pages: heads are numbered behind the pages; a head's next is the first page, its prev
 * the last. FREE pages with memory are listed by zone, PARTLY pages by frame number. */
enum { CH__LISTS = CH__ZONES + CH__FRAME_NUMBERS };
static inline uint32_t ch__free_list(const struct ch__pool *pool, unsigned zone)
{
	return pool->page_count + zone;
}
static inline uint32_t ch__partly_list(const struct ch__pool *pool, unsigned frame)
{
	return pool->page_count + CH__ZONES + frame;
}

/* Whether the page has memory; bytes without a block then hold traps. */
static inline bool ch__pool_page_is_backed(const struct ch__pool *pool, uint32_t page) CH_HAS_PAGES
{
	return pool->pages[page].has_memory;
}

static inline unsigned ch__pool_zone_at(const struct ch__pool *pool, uint32_t page) CH_HAS_PAGES
{
	return pool->inner->chunks[ch__pool_chunk_of(pool, page)].zone;
}

/* The only store of a page's state; list and counters follow. Staying in a state is no move. */
void ch__page_set_state(struct ch__pool *, uint32_t page, enum ch__page_state to, const char *by)
	CH_HAS_PAGES;
/* Puts a chunk whose pages are all FREE in another zone. */
void ch__chunk_join(struct ch__pool *, uint32_t chunk, enum ch__zone) CH_HAS_PAGES;
/* The pages from `from` to `to`, which lie in one chunk and had no memory, have some from here on.
 * A chunk that had none joins the zone. */
void ch__chunk_add_pages(struct ch__pool *, uint32_t from, uint32_t to, enum ch__zone) CH_HAS_PAGES;
/* Gives memory to the pages from `from` to `to`, which lie in one chunk. Where one of them has
 * none, some behind them get memory, too, because a chunk that is used will be used more. With
 * large pages of the system the whole chunk gets memory. Returns false with errno; some pages may
 * have got theirs. */
bool ch__chunk_commit(struct ch__pool *, uint32_t from, uint32_t to, enum ch__zone) CH_HAS_PAGES;
/* Takes the memory of FREE pages, which lie in one chunk. They count as given up in any case. Where
 * the system refuses (its limit of mappings), the traps stay, and the result is false. */
bool ch__pages_give_up(struct ch__pool *, uint32_t from, uint32_t to) CH_HAS_PAGES;
/* The same for a chunk whose pages are all FREE. What was refused, the next trim asks for again. */
void ch__chunk_give_up(struct ch__pool *, uint32_t chunk) CH_HAS_PAGES;
/* FREE pages with memory. */
static inline uint32_t ch__pool_unused_pages(const struct ch__pool *pool)
{
	return CH_LOAD_RELAXED(&pool->pages_committed) - CH_LOAD_RELAXED(&pool->pages_used);
}
/* Whether unused pages are some chunks' worth, and more than a quarter of the memory. */
bool ch__pool_has_much_unused(const struct ch__pool *);

/* --- spans: runs of whole pages, found, lent for a use, taken back and released --- */

/* Returns the first of a run of FREE pages in the zone, with memory, or CH__PAGE_NONE with errno as
 * of ch__pool_take_page. */
uint32_t ch__pool_have_run(struct ch__pool *, uint32_t pages, enum ch__zone) CH_HAS_PAGES;
/* Makes a span of pages with memory, which hold no block, for the use; CH__SPAN_CODE: their access
 * stays. Returns its first page, or CH__PAGE_NO_ACCESS with errno, as ch__pool_take_span. */
uint32_t ch__span_make(struct ch__pool *, uint32_t first, uint32_t pages, uint8_t frame,
		       enum ch__span_use) CH_HAS_PAGES;
/* Returns false when the span is retired. */
bool ch__span_release(struct ch__pool *, uint32_t first) CH_HAS_PAGES;
/* Releases retired spans. Returns false with errno at the first refusal of the system: another span
 * would be refused too. */
bool ch__spans_retry_retired(struct ch__pool *) CH_HAS_PAGES;
bool ch__span_is_retired(const struct ch__pool *, uint32_t page) CH_HAS_PAGES;
/* In a child of fork without code: makes constants read as zero. */
void ch__spans_leave_zeros(struct ch__pool *) CH_HAS_PAGES;
/* In a child of fork with all pages RX: lends spans and shared pages for their uses again. */
bool ch__spans_lend_again(struct ch__pool *) CH_HAS_PAGES;
