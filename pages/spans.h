/* SPDX-License-Identifier: MIT
 * spans.h: runs of whole pages, under the pages lock: found and released (spans.c), lent for their
 * use and taken back (in_place.c). */
#pragma once

#include "pages/chunks.h"

/* Returns the first of a run of FREE pages in the zone, with memory, or CH__PAGE_NONE with errno as
 * of ch__pool_take_page. Where there is none, retired spans come back, and the search goes on. */
uint32_t ch__pool_have_run(struct ch__pool *, uint32_t pages, enum ch__zone)
	CH_REQUIRES(ch__role_pages);
/* Returns false when the span is retired. */
bool ch__span_release(struct ch__pool *, uint32_t first) CH_REQUIRES(ch__role_pages);
/* As ch__pool_retry_retired. */
bool ch__spans_retry_retired(struct ch__pool *) CH_REQUIRES(ch__role_pages);

static inline void ch__span_set_word(struct ch__pool *pool, uint32_t first, unsigned word)
	CH_REQUIRES(ch__role_pages)
{
	atomic_store_explicit(&pool->pages[first].span_use, (uint8_t)word, memory_order_release);
}
/* Takes execute access from a span or a page, for the use. Returns false with errno when the system
 * refused: the use is noted all the same, and some pages may have lost execute access. A page that
 * is one mapping keeps execute access. */
bool ch__span_lend(struct ch__pool *, uint32_t first, enum ch__span_use)
	CH_REQUIRES(ch__role_pages);
/* Makes the span's pages RX like ordinary pages, with traps in pages that were not RX; those of a
 * room have no access and no copies. Returns false when the system refused: the span is retired. */
bool ch__span_take_back(struct ch__pool *, uint32_t first) CH_REQUIRES(ch__role_pages);
bool ch__span_is_retired(const struct ch__pool *, uint32_t page) CH_REQUIRES(ch__role_pages);
/* In a child of fork without code: makes constants read as zero. */
void ch__spans_leave_zeros(struct ch__pool *) CH_REQUIRES(ch__role_pages);
/* In a child of fork with all pages RX: lends spans and shared pages for their uses again. */
bool ch__spans_lend_again(struct ch__pool *) CH_REQUIRES(ch__role_pages);
