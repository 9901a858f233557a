/* SPDX-License-Identifier: MIT
 * chunks.c: the chunks of a pool, which get memory and give it back, the states of their pages and
 * the lists of these. Lists (chunks.h) are circles through a head, and first in, first out: a freed
 * page rests longest, and under pressure every page gets a turn. Zones: I18. Lock: pages. */
#include "pages/chunks.h"

enum {
	UNUSED_CHUNKS = 2,     /* memory goes back when as many chunks are unused, */
	UNUSED_SHARE = 4,      /* and more than 1/4 of the memory */
	STEP_BYTES = 64 << 10, /* a chunk's first memory */
	STEP_FACTOR = 4,       /* and then four times as much as before */
};

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
			{"ch__span_make", CH__PAGE_OPEN, CH__PAGE_SPAN, PAGES_AND_BUSY},
			{"ch__span_make", CH__PAGE_FULL, CH__PAGE_SPAN, PAGES_AND_BUSY},
			{"ch__span_make", CH__PAGE_PARTLY, CH__PAGE_SPAN, PAGES_AND_BUSY},
			{"ch__span_make", CH__PAGE_FREE, CH__PAGE_SPAN, CH__UNDER_PAGES},
			/* A page of data comes as such a span, too. */
			{"open_page", CH__PAGE_SPAN, CH__PAGE_OPEN, PAGES_AND_BUSY},
			{"ch__span_release", CH__PAGE_SPAN, CH__PAGE_FREE, CH__UNDER_PAGES},
		},
};

#endif

static void append(struct ch__pool *pool, uint32_t list, uint32_t page) CH_HAS_PAGES
{
	uint32_t last = pool->pages[list].prev;
	pool->pages[page].next = list;
	pool->pages[page].prev = last;
	pool->pages[last].next = pool->pages[list].prev = page;
}

static void unlist(struct ch__pool *pool, uint32_t page) CH_HAS_PAGES
{
	const struct ch__page *p = &pool->pages[page];
	pool->pages[p->prev].next = p->next;
	pool->pages[p->next].prev = p->prev;
}

bool ch__pool_has_much_unused(const struct ch__pool *pool)
{
	uint32_t unused = ch__pool_unused_pages(pool);
	return unused >= UNUSED_CHUNKS * ch__pool_chunk_pages(pool) &&
	       unused > CH_LOAD_RELAXED(&pool->pages_committed) / UNUSED_SHARE;
}

/* A page became FREE. Less than two chunks beyond what the last trim left comes and goes. */
static void judge_unused(struct ch__pool *pool) CH_HAS_PAGES
{
	struct ch__pool_inner *inner = pool->inner;
	uint32_t unused = ch__pool_unused_pages(pool);
	if (unused < inner->left_unused)
		inner->left_unused = unused;
	if (unused - inner->left_unused >= UNUSED_CHUNKS * ch__pool_chunk_pages(pool) &&
	    ch__pool_has_much_unused(pool))
		CH_STORE_RELAXED(&pool->wants_trim, true);
}

void ch__page_set_state(struct ch__pool *pool, uint32_t index, enum ch__page_state to,
			const char *by)
{
	struct ch__page *page = &pool->pages[index];
	enum ch__page_state from = ch__page_state(page);
	if (from == to)
		return;
	CH_MOVE(ch__page_moves, index, 0, from, to,
		(ch__lock_is_mine(&pool->inner->lock) ? CH__UNDER_PAGES : 0) |
			(page->busy ? CH__UNDER_BUSY : 0),
		by);
	if (from == CH__PAGE_FREE || from == CH__PAGE_PARTLY)
		unlist(pool, index);
	if (to == CH__PAGE_FREE)
		append(pool, ch__free_list(pool, ch__pool_zone_at(pool, index)), index);
	else if (to == CH__PAGE_PARTLY)
		append(pool, ch__partly_list(pool, page->frame), index);
	uint32_t more = (uint32_t)((to != CH__PAGE_FREE) - (from != CH__PAGE_FREE));
	uint32_t open = (uint32_t)((to == CH__PAGE_OPEN) - (from == CH__PAGE_OPEN));
	CH_STORE_RELAXED(&pool->pages_open, CH_LOAD_RELAXED(&pool->pages_open) + open);
	uint32_t used = CH_LOAD_RELAXED(&pool->pages_used) + more;
	CH_STORE_RELAXED(&pool->pages_used, used);
	if (used > CH_LOAD_RELAXED(&pool->pages_peak))
		CH_STORE_RELAXED(&pool->pages_peak, used);
	struct ch__chunk *chunk = &pool->inner->chunks[ch__pool_chunk_of(pool, index)];
	chunk->used += more;
	if (to == CH__PAGE_FREE)
		judge_unused(pool);
	atomic_store_explicit(&page->state, (uint8_t)to, memory_order_release);
}

static uint32_t first_page(const struct ch__pool *pool, uint32_t chunk)
{
	return chunk * ch__pool_chunk_pages(pool);
}

void ch__chunk_join(struct ch__pool *pool, uint32_t chunk, enum ch__zone zone)
{
	uint32_t end = first_page(pool, chunk + 1);
	pool->inner->config.gone(pool->inner->config.gone_arg, chunk);
	pool->inner->chunks[chunk].zone = (uint8_t)zone;
	for (uint32_t page = first_page(pool, chunk); page < end; page++)
		if (ch__pool_page_is_backed(pool, page)) {
			unlist(pool, page);
			append(pool, ch__free_list(pool, zone), page);
		}
}

bool ch__pages_give_up(struct ch__pool *pool, uint32_t from, uint32_t to)
{
	uint32_t lost = 0;
	for (uint32_t page = from; page < to; page++)
		if (ch__pool_page_is_backed(pool, page)) {
			unlist(pool, page);
			pool->pages[page].has_memory = false;
			lost++;
		}
	pool->inner->chunks[ch__pool_chunk_of(pool, from)].pages -= lost;
	atomic_fetch_sub_explicit(&pool->pages_committed, lost, memory_order_relaxed);
	return ch__views_decommit(&pool->inner->views, ch__pool_page_offset(pool, from),
				  (size_t)(to - from) << pool->page_log2);
}

void ch__chunk_give_up(struct ch__pool *pool, uint32_t chunk)
{
	struct ch__chunk *c = &pool->inner->chunks[chunk];
	if (c->pages)
		pool->inner->config.gone(pool->inner->config.gone_arg, chunk);
	c->lingers = !ch__pages_give_up(pool, first_page(pool, chunk), first_page(pool, chunk + 1));
}

void ch__chunk_add_pages(struct ch__pool *pool, uint32_t from, uint32_t to, enum ch__zone zone)
{
	struct ch__chunk *chunk = &pool->inner->chunks[ch__pool_chunk_of(pool, from)];
	chunk->lingers = false;
	chunk->pages += to - from;
	chunk->zone = (uint8_t)zone;
	if (to > ch__pool_pages_end(pool))
		CH_STORE_RELAXED(&pool->pages_end, to);
	for (uint32_t page = from; page < to; page++) {
		pool->pages[page].has_memory = true;
		append(pool, ch__free_list(pool, zone), page);
	}
	atomic_fetch_add_explicit(&pool->pages_committed, to - from, memory_order_relaxed);
}

static bool commit(struct ch__pool *pool, uint32_t from, uint32_t to, enum ch__zone zone)
	CH_HAS_PAGES
{
	size_t offset = ch__pool_page_offset(pool, from);
	size_t bytes = (size_t)(to - from) << pool->page_log2;
	uintptr_t exec = pool->runtime_exec + offset;
	ch__valgrind_set(pool, exec, bytes, true);
	bool is_done = ch__views_commit(&pool->inner->views, offset, bytes);
	if (is_done)
		ch__ledger_note(pool, offset, bytes);
	ch__valgrind_set(pool, exec, bytes, false);
	if (is_done)
		ch__chunk_add_pages(pool, from, to, zone);
	return is_done;
}

bool ch__chunk_commit(struct ch__pool *pool, uint32_t from, uint32_t to, enum ch__zone zone)
{
	while (from < to && ch__pool_page_is_backed(pool, from))
		from++;
	if (from == to)
		return true;
	uint32_t chunk = ch__pool_chunk_of(pool, from), all = first_page(pool, chunk + 1);
	uint32_t had = pool->inner->chunks[chunk].pages;
	uint32_t step = had ? (STEP_FACTOR - 1) * had : (uint32_t)STEP_BYTES >> pool->page_log2;
	uint32_t asked = to;
	if (to < from + step && !pool->inner->is_short)
		to = from + step;
	if (to > all || pool->inner->views.has_large_pages)
		to = all;
	if (pool->inner->views.has_large_pages)
		from = first_page(pool, chunk);
	for (uint32_t end; from < to; from = end) {
		bool is_backed = ch__pool_page_is_backed(pool, from);
		for (end = from + 1; end < to && ch__pool_page_is_backed(pool, end) == is_backed;)
			end++;
		if (is_backed || commit(pool, from, end, zone))
			continue;
		/* The system clears the pages before it refuses their place: no step costs so much
		 * twice. What was asked for may fit. */
		pool->inner->is_short = true;
		if (from >= asked || to == asked || pool->inner->views.has_large_pages)
			return from >= asked;
		to = asked;
		end = from;
	}
	if (!had)
		pool->inner->is_short = false;
	return true;
}
