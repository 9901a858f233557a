/* SPDX-License-Identifier: MIT
 * moves.c: the pages lock, and the legal moves of pages under it (I17), for checked builds. */
#include "pages/inner.h"

CH__LOCK_FUNCTIONS(ch__pages_lock, ch__pages_unlock, struct ch__pool *pool, ch__lock_take,
		   pool->inner->lock, CH__RANK_PAGES)

#if CH_CHECK >= 2

#define PAGES_AND_BUSY (CH__UNDER_PAGES | CH__UNDER_BUSY)

struct ch__moves ch__page_moves = {
	.noun = "page",
	.states = {"FREE", "OPEN", "PARTLY", "FULL", "SPAN"},
	.rows =
		{
			{"open_page", CH__PAGE_FREE, CH__PAGE_OPEN, PAGES_AND_BUSY},
			{"open_page", CH__PAGE_PARTLY, CH__PAGE_OPEN, PAGES_AND_BUSY},
			{"open_page", CH__PAGE_FULL, CH__PAGE_OPEN, PAGES_AND_BUSY},
			{"settle", CH__PAGE_OPEN, CH__PAGE_FULL, PAGES_AND_BUSY},
			{"settle", CH__PAGE_OPEN, CH__PAGE_PARTLY, PAGES_AND_BUSY},
			{"settle", CH__PAGE_OPEN, CH__PAGE_FREE, PAGES_AND_BUSY},
			{"settle", CH__PAGE_FULL, CH__PAGE_PARTLY, PAGES_AND_BUSY},
			{"settle", CH__PAGE_FULL, CH__PAGE_FREE, PAGES_AND_BUSY},
			{"settle", CH__PAGE_PARTLY, CH__PAGE_FREE, PAGES_AND_BUSY},
			/* An empty page of data goes as a span of one page. */
			{"make_span", CH__PAGE_OPEN, CH__PAGE_SPAN, PAGES_AND_BUSY},
			{"make_span", CH__PAGE_FULL, CH__PAGE_SPAN, PAGES_AND_BUSY},
			{"make_span", CH__PAGE_PARTLY, CH__PAGE_SPAN, PAGES_AND_BUSY},
			/* A page from which the system refused to take execute access. */
			{"make_span", CH__PAGE_FREE, CH__PAGE_SPAN, CH__UNDER_PAGES},
			{"take_run", CH__PAGE_FREE, CH__PAGE_SPAN, CH__UNDER_PAGES},
			{"ch__span_release", CH__PAGE_SPAN, CH__PAGE_FREE, CH__UNDER_PAGES},
		},
};

#endif
