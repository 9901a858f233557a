/* SPDX-License-Identifier: MIT
 * chunks.c: the chunks of a pool, which get memory and give it back, the states of their pages and
 * the lists of these. Lists (chunks.h) are circles through a head, and first in, first out: a freed
 * page rests longest, and under pressure every page gets a turn. Zones: I18. Lock: pages. */
#include "pages/chunks.h"

#include <errno.h>

enum {
	TRIMMED_SHARE = 4,     /* chunks go back when the unused chunks have more than 1/4 */
	STEP_BYTES = 64 << 10, /* a chunk's first memory */
	STEP_FACTOR_LOG2 = 2,  /* and then four times as much as before */
};

static void append(struct ch__pool *pool, uint32_t list, uint32_t page) CH_REQUIRES(ch__role_pages)
{
	uint32_t last = pool->pages[list].prev;
	pool->pages[page].next = list;
	pool->pages[page].prev = last;
	pool->pages[last].next = pool->pages[list].prev = page;
}

static void unlist(struct ch__pool *pool, uint32_t page) CH_REQUIRES(ch__role_pages)
{
	const struct ch__page *p = &pool->pages[page];
	pool->pages[p->prev].next = p->next;
	pool->pages[p->next].prev = p->prev;
}

bool ch__pool_has_code(const struct ch__pool *pool)
{
	if (!pool->inner->views.has_code)
		errno = EACCES;
	return pool->inner->views.has_code;
}

/* A chunk became unused. Asks for a trim when several chunks and more than a quarter of the memory
 * are unused; less stays, because less comes and goes. */
static void judge_unused(struct ch__pool *pool) CH_REQUIRES(ch__role_pages)
{
	uint32_t chunks = 0, pages = 0;
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++) {
		const struct ch__chunk *c = &pool->inner->chunks[chunk];
		chunks += c->pages && !c->used;
		pages += c->used ? 0 : c->pages;
	}
	uint32_t all = CH_LOAD_RELAXED(&pool->pages_committed);
	if (chunks > 1 && pages > all / TRIMMED_SHARE)
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
	uint32_t used = CH_LOAD_RELAXED(&pool->pages_used) + more;
	CH_STORE_RELAXED(&pool->pages_used, used);
	if (used > CH_LOAD_RELAXED(&pool->pages_peak))
		CH_STORE_RELAXED(&pool->pages_peak, used);
	struct ch__chunk *chunk = &pool->inner->chunks[ch__pool_chunk_of(pool, index)];
	chunk->used += more;
	if (to == CH__PAGE_FREE && !chunk->used)
		judge_unused(pool);
	atomic_store_explicit(&page->state, (uint8_t)to, memory_order_release);
}

/* Lists the chunk's pages with memory, from the page `from` on; all are FREE. */
static void list_pages(struct ch__pool *pool, uint32_t chunk, uint32_t from, enum ch__zone zone)
	CH_REQUIRES(ch__role_pages)
{
	uint32_t first = chunk * ch__pool_chunk_pages(pool);
	pool->inner->chunks[chunk].zone = (uint8_t)zone;
	for (uint32_t i = from; i < pool->inner->chunks[chunk].pages; i++)
		append(pool, ch__free_list(pool, zone), first + i);
}

static void unlist_chunk(struct ch__pool *pool, uint32_t chunk) CH_REQUIRES(ch__role_pages)
{
	uint32_t first = chunk * ch__pool_chunk_pages(pool);
	const struct ch__pool_config *config = &pool->inner->config;
	if (config->gone)
		config->gone(config->gone_arg, chunk);
	for (uint32_t i = 0; i < pool->inner->chunks[chunk].pages; i++)
		unlist(pool, first + i);
}

void ch__chunk_join(struct ch__pool *pool, uint32_t chunk, enum ch__zone zone)
{
	unlist_chunk(pool, chunk);
	list_pages(pool, chunk, 0, zone);
}

void ch__chunk_give_up(struct ch__pool *pool, uint32_t chunk)
{
	struct ch__chunk *c = &pool->inner->chunks[chunk];
	if (c->pages) {
		unlist_chunk(pool, chunk);
		atomic_fetch_sub_explicit(&pool->pages_committed, c->pages, memory_order_relaxed);
		c->pages = 0;
	}
	size_t offset = pool->runtime_bytes + ((size_t)chunk << pool->chunk_log2);
	c->lingers = !ch__views_decommit(&pool->inner->views, offset, ch__pool_chunk_bytes(pool));
}

void ch__chunk_add_pages(struct ch__pool *pool, uint32_t chunk, uint32_t from, uint32_t to,
			 enum ch__zone zone)
{
	uint32_t end = chunk * ch__pool_chunk_pages(pool) + to;
	pool->inner->chunks[chunk].lingers = false;
	pool->inner->chunks[chunk].pages = to;
	if (end > ch__pool_pages_end(pool))
		CH_STORE_RELAXED(&pool->pages_end, end);
	list_pages(pool, chunk, from, zone);
	atomic_fetch_add_explicit(&pool->pages_committed, to - from, memory_order_relaxed);
}

bool ch__chunk_commit(struct ch__pool *pool, uint32_t chunk, uint32_t least, enum ch__zone zone)
{
	uint32_t all = ch__pool_chunk_pages(pool), had = pool->inner->chunks[chunk].pages;
	uint32_t step = had ? had << STEP_FACTOR_LOG2 : (uint32_t)STEP_BYTES >> pool->page_log2;
	if (step < least)
		step = least;
	if (step > all || pool->inner->views.has_large_pages)
		step = all;
	size_t offset = pool->runtime_bytes + ((size_t)chunk << pool->chunk_log2) +
			((size_t)had << pool->page_log2);
	size_t bytes = (size_t)(step - had) << pool->page_log2;
	uintptr_t exec = pool->runtime_exec + offset;
	ch__valgrind_set(pool, exec, bytes, true);
	if (!ch__views_commit(&pool->inner->views, offset, bytes))
		return false;
	ch__ledger_open(pool, offset, bytes);
	ch__valgrind_set(pool, exec, bytes, false);
	ch__chunk_add_pages(pool, chunk, had, step, zone);
	return true;
}
