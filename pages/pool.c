/* SPDX-License-Identifier: MIT
 * pool.c: a pool's life, its page and chunk lists, commit and trim. Granules are placed by
 * granules.c, memory is mapped by views.c.
 *
 * A page's busy is taken under the pages lock, never the other way round. Lists (inner.h) are
 * circles through a head, and first in, first out: a freed page rests longest, and under pressure
 * every page gets a turn. A thread takes pages that it took before, as far as there are any.
 * Zones: I18. */
#include "pages/granules.h"
#include "pages/inner.h"
#include "pages/write.h"

#include <errno.h>

enum {
	TABLE_ALIGN = CH__LINE_BYTES,
	LISTED_SHARE_LOG2 = 5, /* a page is listed when 1/32 is free */
	TRIMMED_SHARE = 4,     /* chunks go back when the unused chunks have more than 1/4 */
	STEP_BYTES = 64 << 10, /* a chunk's first memory */
	STEP_FACTOR_LOG2 = 2,  /* and then four times as much as before */
	ROOM_CHUNKS = 2,       /* a span as long as that may be a room */
	FAMILIAR_TRIES = 32,   /* pages of a list that a thread looks at for one of its own */
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

static uint32_t first_of(const struct ch__pool *pool, uint32_t list) CH_REQUIRES(ch__role_pages)
{
	uint32_t first = pool->pages[list].next;
	return first != list ? first : CH__PAGE_NONE;
}

static size_t take_table(size_t *used, size_t bytes)
{
	size_t at = *used;
	*used += (bytes + TABLE_ALIGN - 1) & ~(size_t)(TABLE_ALIGN - 1);
	return at;
}

static void set_shape(struct ch__pool *pool, const struct ch__pool_config *config)
{
	size_t chunk_bytes = config->is_for_forks ? CH__LARGE_CHUNK_BYTES : CH__CHUNK_BYTES;
	if (chunk_bytes > config->pool_bytes)
		chunk_bytes = config->pool_bytes;
	pool->pool_bytes = config->pool_bytes;
	pool->page_log2 = (uint32_t)__builtin_ctzll(config->page_bytes);
	pool->chunk_log2 = (uint32_t)__builtin_ctzll(chunk_bytes);
	pool->page_count = (uint32_t)(config->pool_bytes >> pool->page_log2);
	pool->chunk_count = (uint32_t)(config->pool_bytes >> pool->chunk_log2);
}

/* One mapping, touched as far as the pool is used: a large pool costs no memory before. What a
 * creation writes lies together, in one page. Returns NULL with errno. */
static struct ch__pool *map_tables(const struct ch__pool_config *config)
{
	struct ch__pool shape;
	struct ch__pool_inner *inner;
	set_shape(&shape, config);
	uint32_t lists_end = shape.page_count + CH__LISTS;
	size_t bytes = 0, bitmap_bytes = config->pool_bytes / CH__GRANULE_BYTES / 8;
	size_t pages = take_table(&bytes, lists_end * sizeof *shape.pages);
	size_t own = take_table(&bytes, sizeof shape);
	size_t inners = take_table(&bytes, sizeof *inner);
	size_t used = take_table(&bytes, bitmap_bytes);
	size_t starts = take_table(&bytes, bitmap_bytes);
	size_t chunks = take_table(&bytes, shape.chunk_count * sizeof *inner->chunks);
	uint8_t *at = ch__os_private(bytes);
	if (!at)
		return NULL;
	struct ch__pool *pool = (struct ch__pool *)(void *)(at + own);
	set_shape(pool, config);
	pool->inner = inner = (struct ch__pool_inner *)(void *)(at + inners);
	pool->pages = (struct ch__page *)(void *)(at + pages);
	pool->used = (_Atomic(uint64_t) *)(void *)(at + used);
	pool->starts = (_Atomic(uint64_t) *)(void *)(at + starts);
	inner->tables = at;
	inner->table_bytes = bytes;
	inner->chunks = (struct ch__chunk *)(void *)(at + chunks);
	for (uint32_t list = pool->page_count; list < lists_end; list++)
		pool->pages[list].next = pool->pages[list].prev = list;
	return pool;
}

int ch__pool_create(const struct ch__pool_config *config, struct ch__pool **out)
{
	struct ch__pool *pool = *out = map_tables(config);
	if (!pool)
		return errno;
	struct ch__pool_inner *inner = pool->inner;
	inner->config = *config;
	int error = ch__views_create(&inner->views, config);
	if (error) {
		*out = NULL;
		ch__os_unmap(inner->tables, inner->table_bytes);
		return error;
	}
	pool->backend = inner->views.backend;
	pool->stub_lead_bytes = pool->backend == CH__BACKEND_PROCMEM ? CH_ARCH_LEAD_BYTES : 0;
	pool->is_translated = ch__valgrind_runs();
	pool->sync_steps = inner->views.sync_steps;
	pool->runtime_exec = (uintptr_t)inner->views.exec;
	pool->runtime_bytes = inner->views.runtime_bytes;
	pool->exec_base = pool->runtime_exec + pool->runtime_bytes;
	pool->delta = inner->views.write - inner->views.exec;
	if (pool->is_translated)
		ch__valgrind_pool_born(pool);
	ch__ledger_open(pool, 0, pool->runtime_bytes);
	return 0;
}

void ch__pool_destroy(struct ch__pool *pool)
{
	struct ch__pool_inner *inner = pool->inner;
	if (pool->is_translated)
		ch__valgrind_pool_dead(pool);
	ch__ledger_destroy(pool);
	ch__views_destroy(&inner->views);
	ch__os_unmap(inner->tables, inner->table_bytes); /* the records of the pool, too */
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

/* The only store of a page's state; list and counters follow. Staying in a state is no move. */
static void set_state(struct ch__pool *pool, uint32_t index, enum ch__page_state to, const char *by)
	CH_REQUIRES(ch__role_pages)
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

/* The child of a fork without copy has no memory to hand out. */
static bool has_code(const struct ch__pool *pool)
{
	if (!pool->inner->views.has_code)
		errno = EACCES;
	return pool->inner->views.has_code;
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

/* The chunk counts as given up in any case. Where the system refuses (its limit of mappings), the
 * traps stay, and the next trim asks again. */
static void give_up_chunk(struct ch__pool *pool, uint32_t chunk) CH_REQUIRES(ch__role_pages)
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

/* The pages of a chunk from `from` to `to` have memory from here on. */
static void add_pages(struct ch__pool *pool, uint32_t chunk, uint32_t from, uint32_t to,
		      enum ch__zone zone) CH_REQUIRES(ch__role_pages)
{
	uint32_t end = chunk * ch__pool_chunk_pages(pool) + to;
	pool->inner->chunks[chunk].lingers = false;
	pool->inner->chunks[chunk].pages = to;
	if (end > ch__pool_pages_end(pool))
		CH_STORE_RELAXED(&pool->pages_end, end);
	list_pages(pool, chunk, from, zone);
	atomic_fetch_add_explicit(&pool->pages_committed, to - from, memory_order_relaxed);
}

/* Gives memory to at least `least` pages of a chunk. A chunk that had none joins the zone. With
 * large pages of the system the whole chunk gets memory. */
static bool commit_chunk(struct ch__pool *pool, uint32_t chunk, uint32_t least, enum ch__zone zone)
	CH_REQUIRES(ch__role_pages)
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
	add_pages(pool, chunk, had, step, zone);
	return true;
}

/* Gives a chunk of the zone more memory. Returns false when no chunk lacks any, or with errno. */
static bool widen_zone(struct ch__pool *pool, enum ch__zone zone) CH_REQUIRES(ch__role_pages)
{
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++) {
		const struct ch__chunk *c = &pool->inner->chunks[chunk];
		if (c->pages && c->pages < ch__pool_chunk_pages(pool) && c->zone == zone)
			return commit_chunk(pool, chunk, c->pages + 1, zone);
	}
	return false;
}

/* The system refused memory (errno) for a run of pages. Sets errno to 0 when the pages with memory
 * could hold such a run if their code were gone. A room leaves no memory behind. */
static void judge_refusal(const struct ch__pool *pool, uint32_t pages) CH_REQUIRES(ch__role_pages)
{
	uint32_t run = 0;
	for (uint32_t page = 0; page < ch__pool_pages_end(pool); page++) {
		run = ch__pool_page_is_backed(pool, page) ? run + 1 : 0;
		if (ch__pool_span_is_room(pool, page)) {
			page += pool->pages[page].span_pages - 1;
			run = 0;
		}
		if (run >= pages)
			errno = 0;
	}
}

/* Returns the first page of the lowest run of FREE pages for the zone. A chunk in use keeps its
 * zone, any other chunk may join the zone. */
static uint32_t find_run(const struct ch__pool *pool, uint32_t pages, enum ch__zone zone,
			 bool backed_only) CH_REQUIRES(ch__role_pages)
{
	uint32_t run = 0, all = ch__pool_chunk_pages(pool);
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++) {
		const struct ch__chunk *c = &pool->inner->chunks[chunk];
		uint32_t has = backed_only ? c->pages : all;
		if (c->used && (c->used == all || c->zone != zone))
			has = 0;
		for (uint32_t i = chunk * all; i < chunk * all + has; i++) {
			run = ch__page_state(&pool->pages[i]) == CH__PAGE_FREE ? run + 1 : 0;
			if (run == pages)
				return i + 1 - pages;
		}
		if (has < all)
			run = 0;
	}
	errno = 0;
	return CH__PAGE_NONE;
}

/* Returns the first of a run of FREE pages in the zone, and commits memory where the run lacks
 * some. Prefers a run with memory. CH__PAGE_NONE: errno as of ch__pool_take_page. */
static uint32_t try_run(struct ch__pool *pool, uint32_t pages, enum ch__zone zone)
	CH_REQUIRES(ch__role_pages)
{
	uint32_t first = find_run(pool, pages, zone, true);
	if (first == CH__PAGE_NONE)
		first = find_run(pool, pages, zone, false);
	if (first == CH__PAGE_NONE)
		return CH__PAGE_NONE;
	uint32_t end = first + pages, all = ch__pool_chunk_pages(pool);
	for (uint32_t chunk = ch__pool_chunk_of(pool, first); chunk * all < end; chunk++) {
		const struct ch__chunk *c = &pool->inner->chunks[chunk];
		uint32_t needed = end - chunk * all < all ? end - chunk * all : all;
		if (c->pages && c->zone != zone) {
			unlist_chunk(pool, chunk);
			list_pages(pool, chunk, 0, zone);
		}
		if (c->pages < needed && !commit_chunk(pool, chunk, needed, zone)) {
			judge_refusal(pool, pages);
			return CH__PAGE_NONE;
		}
	}
	return first;
}

static void open_page(struct ch__pool *pool, uint32_t index)
	CH_REQUIRES(ch__role_pages, ch__role_busy)
{
	struct ch__page *page = &pool->pages[index];
	page->taker = ch__lock_self();
	page->refused_hot = UINT16_MAX;
	CH_STORE_RELAXED(&page->freed_granules, CH__FREED_MANY);
	ch__granules_reset_cursors(pool, index);
	set_state(pool, index, CH__PAGE_OPEN, __func__);
}

/* Returns false when the span is retired. */
static bool release_span(struct ch__pool *pool, uint32_t first) CH_REQUIRES(ch__role_pages)
{
	uint32_t pages = pool->pages[first].span_pages;
	uintptr_t exec = ch__pool_page_exec(pool, first);
	size_t bytes = (size_t)pages << pool->page_log2;
	bool has_code = pool->inner->views.has_code;
	bool is_room = has_code && ch__pool_span_is_room(pool, first);
	CH_ASSERT(ch__page_state(&pool->pages[first]) == CH__PAGE_SPAN && pages,
		  "not a span's first page");
	if (has_code) {
		/* To Valgrind, dead parts are without access. */
		ch__valgrind_set(pool, exec, bytes, true);
		/* What landed and was not published becomes traps while it has both views: the
		 * system may refuse to take execute access away. */
		if (is_room) {
			ch__pool_poison(pool, exec, pool->pages[first].landed_bytes);
			pool->pages[first].landed_bytes = 0;
		}
		if (!ch__span_take_back(pool, first))
			return false;
		if (!is_room)
			ch__pool_poison(pool, exec, bytes);
	}
	if (!is_room)
		CH_PUBLISHED(pool, exec, bytes, "poison of a span");
	ch__valgrind_set(pool, exec, bytes, false);
	for (uint32_t i = first; i < first + pages; i++) {
		pool->pages[i].span_pages = 0;
		set_state(pool, i, CH__PAGE_FREE, __func__);
	}
	for (uint32_t i = first; is_room && i < first + pages; i += ch__pool_chunk_pages(pool))
		give_up_chunk(pool, ch__pool_chunk_of(pool, i));
	return true;
}

static bool retry_retired(struct ch__pool *pool) CH_REQUIRES(ch__role_pages)
{
	bool is_back = true;
	for (uint32_t i = 0; pool->inner->spans_retired && is_back && i < ch__pool_pages_end(pool);
	     i++)
		if (ch__span_is_retired(pool, i))
			is_back = release_span(pool, i);
	return is_back;
}

/* For a request without room. Keeps errno. */
static bool have_retired_back(struct ch__pool *pool) CH_REQUIRES(ch__role_pages)
{
	int error = errno;
	bool is_back = pool->inner->spans_retired && retry_retired(pool);
	errno = error;
	return is_back;
}

/* Retired spans may be what the pool lacks. */
static uint32_t have_run(struct ch__pool *pool, uint32_t pages, enum ch__zone zone)
	CH_REQUIRES(ch__role_pages)
{
	uint32_t first;
	do
		first = try_run(pool, pages, zone);
	while (first == CH__PAGE_NONE && have_retired_back(pool));
	return first;
}

/* Returns a page that no other thread was the last to take, or CH__PAGE_NONE. The lines of another
 * thread's page are in the cache of that thread's core, and while that thread frees blocks there,
 * two cores would pass the page to and fro. */
static uint32_t first_familiar(const struct ch__pool *pool, uint32_t list)
	CH_REQUIRES(ch__role_pages)
{
	uintptr_t self = ch__lock_self();
	uint32_t page = pool->pages[list].next;
	for (int i = 0; i < FAMILIAR_TRIES && page != list; i++, page = pool->pages[page].next)
		if (!pool->pages[page].taker || pool->pages[page].taker == self)
			return page;
	return CH__PAGE_NONE;
}

/* A page of other threads comes before more memory. */
static uint32_t next_page(struct ch__pool *pool, uint8_t frame) CH_REQUIRES(ch__role_pages)
{
	enum ch__zone zone = (enum ch__zone)pool->inner->config.zones[frame];
	uint32_t partly = ch__partly_list(pool, frame), free = ch__free_list(pool, zone);
	uint32_t page = first_familiar(pool, partly);
	if (page == CH__PAGE_NONE)
		page = first_familiar(pool, free);
	if (page == CH__PAGE_NONE)
		page = first_of(pool, partly);
	if (page == CH__PAGE_NONE)
		page = first_of(pool, free);
	if (page == CH__PAGE_NONE && widen_zone(pool, zone))
		page = first_of(pool, free);
	return page != CH__PAGE_NONE ? page : have_run(pool, 1, zone);
}

static void make_span(struct ch__pool *pool, uint32_t index) CH_REQUIRES(ch__role_pages)
{
	pool->pages[index].span_pages = 1;
	CH_STORE_RELAXED(&pool->pages[index].span_first, index);
	set_state(pool, index, CH__PAGE_SPAN, __func__);
}

/* Takes execute access from a FREE page that is not for code. Returns false with errno. */
static bool has_access(struct ch__pool *pool, uint32_t index, uint8_t frame)
	CH_REQUIRES(ch__role_pages)
{
	enum ch__span_use use = (enum ch__span_use)pool->inner->config.uses[frame];
	bool is_free = ch__page_state(&pool->pages[index]) == CH__PAGE_FREE;
	if (CH_LIKELY(use == CH__SPAN_CODE || !is_free))
		return true;
	/* At the limit of mappings, each further try would retire another page. */
	if (!retry_retired(pool))
		return false;
	if (CH_LIKELY(ch__span_lend(pool, index, use)))
		return true;
	/* A page of several mappings may have lost execute access in part. */
	int error = errno;
	/* Of the chunk's zone, as of all pages in use. */
	atomic_store_explicit(&pool->pages[index].frame, frame, memory_order_release);
	make_span(pool, index);
	(void)release_span(pool, index);
	errno = error;
	return false;
}

uint32_t ch__pool_take_page(struct ch__pool *pool, uint8_t frame)
{
	CH_ASSERT(frame < CH__FRAME_NUMBERS, "frame number out of range");
	ch__pages_lock(pool);
	uint32_t index = has_code(pool) ? next_page(pool, frame) : CH__PAGE_NONE;
	if (index != CH__PAGE_NONE && !has_access(pool, index, frame))
		index = CH__PAGE_NONE;
	if (index != CH__PAGE_NONE) {
		struct ch__page *page = &pool->pages[index];
		ch__page_lock(page);
		/* Frees read the frame number without a lock: an equal number is not stored. */
		if (page->frame != frame)
			atomic_store_explicit(&page->frame, frame, memory_order_release);
		open_page(pool, index);
		ch__page_unlock(page);
	}
	ch__pages_unlock(pool);
	return index;
}

uint32_t ch__pool_take_page_in_need(struct ch__pool *pool, uint8_t frame, size_t hot_bytes,
				    size_t cold_bytes)
{
	uint32_t found = CH__PAGE_NONE;
	ch__pages_lock(pool);
	uint32_t pages = has_code(pool) ? ch__pool_pages_end(pool) : 0;
	for (uint32_t i = 0; i < pages && found == CH__PAGE_NONE; i++) {
		struct ch__page *page = &pool->pages[i];
		if (ch__page_state(page) != CH__PAGE_FULL || page->frame != frame)
			continue;
		ch__page_lock(page);
		if (ch__page_has_room(pool, i, hot_bytes, cold_bytes)) {
			found = i;
			open_page(pool, i);
		}
		ch__page_unlock(page);
	}
	ch__pages_unlock(pool);
	return found;
}

/* Puts a page that nobody has open in the state of its granules. An empty page of data becomes a
 * span of one page, to be released. Under busy. */
static void settle(struct ch__pool *pool, uint32_t index) CH_REQUIRES(ch__role_pages)
{
	struct ch__page *page = &pool->pages[index];
	enum ch__page_state before = ch__page_state(page), to = CH__PAGE_FULL;
	uint32_t used = CH_LOAD_RELAXED(&page->used_granules);
	uint32_t freed = CH_LOAD_RELAXED(&page->freed_granules);
	uint32_t enough = ch__pool_granules(pool) >> LISTED_SHARE_LOG2;
	uint32_t unused = ch__pool_granules(pool) - used;
	if (used == 0 && CH_UNLIKELY(ch__pool_span_use(pool, index) != CH__SPAN_CODE)) {
		make_span(pool, index);
		return;
	}
	if (used == 0)
		to = CH__PAGE_FREE;
	else if (before == CH__PAGE_PARTLY || (unused >= enough && freed >= enough))
		to = CH__PAGE_PARTLY;
	set_state(pool, index, to, __func__);
}

void ch__pool_retire_page(struct ch__pool *pool, uint32_t index)
{
	struct ch__page *page = &pool->pages[index];
	ch__pages_lock(pool);
	/* Under busy: earlier frees are counted here, and a later free sees the state. */
	ch__page_lock(page);
	CH_ASSERT(ch__page_state(page) == CH__PAGE_OPEN, "retired page is not open");
	settle(pool, index);
	ch__page_unlock(page);
	if (CH_UNLIKELY(ch__page_state(page) == CH__PAGE_SPAN))
		(void)release_span(pool, index);
	ch__pages_unlock(pool);
}

bool ch__pool_note_freed(struct ch__pool *pool, uint32_t index)
{
	struct ch__page *page = &pool->pages[index];
	enum ch__page_state state = ch__page_state(page);
	uint32_t enough = ch__pool_granules(pool) >> LISTED_SHARE_LOG2;
	if (state != CH__PAGE_FULL && state != CH__PAGE_PARTLY)
		return false;
	if (CH_LOAD_RELAXED(&page->used_granules) != 0 &&
	    (state == CH__PAGE_PARTLY || CH_LOAD_RELAXED(&page->freed_granules) < enough))
		return false;
	ch__pages_lock(pool);
	ch__page_lock(page);
	bool is_freed = false;
	state = ch__page_state(page);
	if (state == CH__PAGE_FULL || state == CH__PAGE_PARTLY) {
		settle(pool, index);
		is_freed = ch__page_state(page) == CH__PAGE_FREE;
	}
	ch__page_unlock(page);
	if (CH_UNLIKELY(state != CH__PAGE_SPAN && ch__page_state(page) == CH__PAGE_SPAN))
		is_freed = release_span(pool, index);
	ch__pages_unlock(pool);
	return is_freed;
}

static void take_run(struct ch__pool *pool, uint32_t first, uint32_t pages, uint8_t frame)
	CH_REQUIRES(ch__role_pages)
{
	for (uint32_t i = first; i < first + pages; i++) {
		struct ch__page *page = &pool->pages[i];
		ch__valgrind_set(pool, ch__pool_page_exec(pool, i), (size_t)1 << pool->page_log2,
				 true);
		atomic_store_explicit(&page->frame, frame, memory_order_release);
		page->landed_bytes = 0;
		page->span_pages = i == first ? pages : 0;
		ch__span_set_word(pool, i, CH__SPAN_CODE);
		CH_STORE_RELAXED(&page->span_first, first);
		set_state(pool, i, CH__PAGE_SPAN, __func__);
	}
}

uint32_t ch__pool_take_span(struct ch__pool *pool, uint32_t pages, uint8_t frame)
{
	CH_ASSERT(frame < CH__FRAME_NUMBERS && pages, "no such frame number, or no pages");
	ch__pages_lock(pool);
	enum ch__zone zone = (enum ch__zone)pool->inner->config.zones[frame];
	uint32_t first = has_code(pool) ? have_run(pool, pages, zone) : CH__PAGE_NONE;
	if (first != CH__PAGE_NONE)
		take_run(pool, first, pages, frame);
	ch__pages_unlock(pool);
	return first;
}

static uint32_t in_chunks(const struct ch__pool *pool, uint32_t pages)
{
	uint32_t last = ch__pool_chunk_pages(pool) - 1;
	return (pages + last) & ~last;
}

/* Returns the first page of the lowest run of chunks without memory. */
static uint32_t find_bare(const struct ch__pool *pool, uint32_t pages) CH_REQUIRES(ch__role_pages)
{
	uint32_t run = 0, all = ch__pool_chunk_pages(pool);
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++) {
		const struct ch__chunk *c = &pool->inner->chunks[chunk];
		run = c->pages || c->lingers ? 0 : run + all;
		if (run == pages)
			return (chunk + 1) * all - pages;
	}
	return CH__PAGE_NONE;
}

/* Private memory has a copy as its write view already. A limit of address space has no room for the
 * views of a room that lands. Where a span waits for the system, a room could be the next. */
uint32_t ch__pool_take_room(struct ch__pool *pool, uint32_t pages, uint8_t frame)
{
	struct ch__pool_inner *inner = pool->inner;
	uint32_t all = ch__pool_chunk_pages(pool), first = CH__PAGE_NONE;
	uint32_t whole = in_chunks(pool, pages);
	if (pages < ROOM_CHUNKS * all || ch__views_are_private(&inner->views) ||
	    pool->is_translated || ch__os_space_is_limited())
		return CH__PAGE_NONE;
	ch__pages_lock(pool);
	enum ch__zone zone = (enum ch__zone)inner->config.zones[frame];
	if (has_code(pool) && retry_retired(pool) &&
	    find_run(pool, pages, zone, true) == CH__PAGE_NONE)
		first = find_bare(pool, whole);
	if (first != CH__PAGE_NONE) {
		for (uint32_t i = first; i < first + whole; i += all)
			add_pages(pool, ch__pool_chunk_of(pool, i), 0, all, zone);
		take_run(pool, first, whole, frame);
		ch__span_set_word(pool, first, CH__SPAN_ROOM);
		if (!ch__views_room(&inner->views,
				    pool->runtime_bytes + ((size_t)first << pool->page_log2),
				    (size_t)whole << pool->page_log2, ch__pool_chunk_bytes(pool))) {
			(void)release_span(pool, first);
			first = CH__PAGE_NONE;
		}
	}
	ch__pages_unlock(pool);
	return first;
}

void ch__pool_release_span(struct ch__pool *pool, uint32_t first)
{
	ch__pages_lock(pool);
	(void)release_span(pool, first);
	ch__pages_unlock(pool);
}

void ch__pool_cut_span(struct ch__pool *pool, uint32_t first, uint32_t kept)
{
	ch__pages_lock(pool);
	struct ch__page *pages = pool->pages;
	uint32_t end = first + pages[first].span_pages, rest = first + kept, bare = end;
	CH_ASSERT(kept && rest <= end && ch__pool_span_runs(pool, first),
		  "a span keeps some of its pages, which run");
	pages[first].span_pages = kept;
	if (ch__pool_span_is_room(pool, first)) {
		/* The part that landed is code like other code, also where nothing is cut: others
		 * may lie in its last chunk. */
		ch__span_set_word(pool, first, CH__SPAN_CODE);
		bare = in_chunks(pool, rest);
	}
	if (bare < end) {
		/* The rest is a room of its own. */
		ch__span_set_word(pool, bare, CH__SPAN_ROOM);
		pages[bare].span_pages = end - bare;
		pages[bare].landed_bytes =
			pages[first].landed_bytes - ((size_t)(bare - first) << pool->page_log2);
		for (uint32_t i = bare; i < end; i++)
			CH_STORE_RELAXED(&pages[i].span_first, bare);
		(void)release_span(pool, bare);
	}
	if (rest < bare) {
		pages[rest].span_pages = bare - rest;
		(void)release_span(pool, rest);
	}
	ch__pages_unlock(pool);
}

bool ch__pool_retry_retired(struct ch__pool *pool)
{
	ch__pages_lock(pool);
	bool is_back = retry_retired(pool);
	ch__pages_unlock(pool);
	return is_back;
}

void ch__pool_count_free(const struct ch__pool *pool, uint64_t *bytes, uint64_t *largest)
{
	bool has_code = pool->inner->views.has_code;
	uint32_t end = ch__pool_pages_end(pool);
	uint64_t page_bytes = UINT64_C(1) << pool->page_log2;
	uint64_t run = has_code ? (pool->page_count - end) * page_bytes : 0;
	*bytes = *largest = run;
	/* From above, where most free pages are: their run is mostly longer than what is free in
	 * any other page, and then holes are not looked at. */
	for (uint32_t i = has_code ? end : 0; i-- > 0;) {
		const struct ch__page *page = &pool->pages[i];
		enum ch__page_state state = ch__page_state(page);
		uint64_t used = CH_LOAD_RELAXED(&page->used_granules);
		uint64_t unused = page_bytes, row = run += page_bytes;
		if (state != CH__PAGE_FREE) {
			row = run = 0;
			unused -= used * CH__GRANULE_BYTES;
			if (state == CH__PAGE_SPAN)
				unused = 0;
			else if (unused > *largest)
				row = ch__granules_largest_hole(pool, i) *
				      (uint64_t)CH__GRANULE_BYTES;
		}
		*bytes += unused;
		*largest = row > *largest ? row : *largest;
	}
}

void ch__pool_trim(struct ch__pool *pool)
{
	struct ch__pool_inner *inner = pool->inner;
	bool has_spare = false;
	ch__pages_lock(pool);
	CH_STORE_RELAXED(&pool->wants_trim, false);
	uint32_t chunks = inner->views.has_code ? pool->chunk_count : 0;
	for (uint32_t chunk = 0; chunk < chunks; chunk++) {
		const struct ch__chunk *c = &inner->chunks[chunk];
		if ((!c->pages && !c->lingers) || c->used != 0)
			continue;
		if (c->pages && !has_spare)
			has_spare = true; /* the next block need not wait for the system */
		else
			give_up_chunk(pool, chunk);
	}
	ch__pages_unlock(pool);
}
