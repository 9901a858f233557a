/* SPDX-License-Identifier: MIT
 * pool_check.c: the walk over a pool's invariants: lists, states, counters, bitmaps, traps in
 * unused bytes. Nothing is repaired. Lock: pages, then one page's busy at a time. */
#include "pages/granules.h"
#include "os/text.h"
#include "pages/chunks.h"

struct walk {
	struct ch__pool *pool;
	struct ch__text *reason;
	uint32_t listed, used, open, retired, committed;
};

static bool broken(struct walk *walk, uint32_t page, const char *what)
{
	ch__text_format(walk->reason, "page %u: %s", page, what);
	return false;
}

static bool check_list(struct walk *walk, uint32_t list, enum ch__page_state state,
		       unsigned frame_or_zone) CH_HAS_PAGES
{
	const struct ch__page *pages = walk->pool->pages;
	uint32_t prev = list;
	for (uint32_t at = pages[list].next; at != list; prev = at, at = pages[at].next) {
		const struct ch__page *page = &pages[at];
		if (page->prev != prev)
			return broken(walk, at, "list links disagree");
		if (ch__page_state(page) != state)
			return broken(walk, at, "on the list of another state");
		if (state == CH__PAGE_PARTLY && page->frame != frame_or_zone)
			return broken(walk, at, "on the list of another frame number");
		if (state == CH__PAGE_FREE && ch__pool_zone_at(walk->pool, at) != frame_or_zone)
			return broken(walk, at, "on the free list of another zone");
		walk->listed++; /* ends: the first page of a circle would have two predecessors */
	}
	return pages[list].prev == prev || broken(walk, prev, "list ends elsewhere");
}

static bool check_span(struct walk *walk, uint32_t index) CH_HAS_PAGES
{
	const struct ch__page *page = &walk->pool->pages[index];
	uint32_t first = CH_LOAD_RELAXED(&page->span_first);
	if (first > index || index - first >= walk->pool->pages[first].span_pages)
		return broken(walk, index, "span does not reach it");
	if (first != index)
		return page->span_pages == 0 || broken(walk, index, "span within a span");
	walk->retired += ch__span_is_retired(walk->pool, index);
	return true;
}

static bool check_granules(struct walk *walk, uint32_t index, bool has_memory)
{
	struct ch__pool *pool = walk->pool;
	struct ch__page *page = &pool->pages[index];
	uintptr_t where = ch__pool_page_exec(pool, index);
	const char *fault = ch__granules_fault(pool, index, has_memory, &where);
	if (fault) {
		ch__text_format(walk->reason, "page %u: %s, at %lx", index, fault, where);
		return false;
	}
	if (ch__page_state(page) == CH__PAGE_FREE)
		return page->used_granules == 0 || broken(walk, index, "free and in use");
	return (page->cold_cursor <= ch__pool_granules(pool) &&
		page->hot_cursor <= page->cold_cursor) ||
	       broken(walk, index, "cursors crossed");
}

static bool check_page(struct walk *walk, uint32_t index) CH_HAS_PAGES
{
	struct ch__pool *pool = walk->pool;
	struct ch__page *page = &pool->pages[index];
	enum ch__page_state state = ch__page_state(page);
	bool is_backed = ch__pool_page_is_backed(pool, index);
	const struct ch__pool_config *config = &pool->inner->config;
	unsigned use = state == CH__PAGE_FREE ? CH__SPAN_CODE : config->uses[page->frame];
	if (state != CH__PAGE_FREE)
		walk->used++;
	walk->open += state == CH__PAGE_OPEN;
	walk->committed += is_backed;
	if (state == CH__PAGE_FREE || state == CH__PAGE_PARTLY)
		walk->listed -= is_backed;
	if (state != CH__PAGE_FREE && !is_backed)
		return broken(walk, index, "in use without memory");
	if (state != CH__PAGE_FREE && ch__pool_zone_at(pool, index) != config->zones[page->frame])
		return broken(walk, index, "in a chunk of another zone");
	if (state == CH__PAGE_SPAN)
		return check_span(walk, index);
	if (ch__pool_span_word(pool, index) != use)
		return broken(walk, index, "mapped for another use");
	ch__page_lock(page);
	bool is_sound = check_granules(walk, index, is_backed);
	ch__page_unlock(page);
	return is_sound;
}

static bool check_chunk(struct walk *walk, uint32_t chunk) CH_HAS_PAGES
{
	const struct ch__pool *pool = walk->pool;
	const struct ch__chunk *c = &pool->inner->chunks[chunk];
	uint32_t pages = ch__pool_chunk_pages(pool), first = chunk * pages;
	uint32_t used = walk->used, committed = walk->committed;
	if (c->pages && c->lingers)
		return broken(walk, first, "its chunk has memory, and was given up");
	for (uint32_t i = first; i < first + pages && i < ch__pool_pages_end(pool); i++)
		if (!check_page(walk, i))
			return false;
	if (walk->committed - committed != c->pages)
		return broken(walk, first, "its chunk counts other pages with memory");
	return walk->used - used == c->used ||
	       broken(walk, first, "its chunk counts other pages in use");
}

static bool check_all(struct walk *walk) CH_HAS_PAGES
{
	const struct ch__pool *pool = walk->pool;
	for (unsigned zone = 0; zone < CH__ZONES; zone++)
		if (!check_list(walk, ch__free_list(pool, zone), CH__PAGE_FREE, zone))
			return false;
	for (unsigned frame = 0; frame < CH__FRAME_NUMBERS; frame++)
		if (!check_list(walk, ch__partly_list(pool, frame), CH__PAGE_PARTLY, frame))
			return false;
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++)
		if (!check_chunk(walk, chunk))
			return false;
	if (walk->listed != 0)
		return broken(walk, walk->listed, "pages listed too many or too few");
	if (walk->retired != pool->inner->spans_retired)
		return broken(walk, walk->retired, "spans are retired, but the count differs");
	if (walk->committed != CH_LOAD_RELAXED(&pool->pages_committed))
		return broken(walk, walk->committed, "have memory, but the gauge differs");
	if (walk->used > CH_LOAD_RELAXED(&pool->pages_peak))
		return broken(walk, walk->used, "in use, more than the most");
	if (walk->open != CH_LOAD_RELAXED(&pool->pages_open))
		return broken(walk, walk->open, "open, but the count differs");
	return walk->used == CH_LOAD_RELAXED(&pool->pages_used) ||
	       broken(walk, walk->used, "in use, but the gauge differs");
}

bool ch__pool_check(struct ch__pool *pool, struct ch__text *reason)
{
	struct walk walk = {.pool = pool, .reason = reason};
	ch__pages_lock(pool);
	/* Memcheck would report the check's reads of unused bytes. */
	ch__valgrind_reports(false);
	bool is_sound = !pool->inner->views.has_code || check_all(&walk);
	ch__valgrind_reports(true);
	ch__pages_unlock(pool);
	return is_sound;
}
