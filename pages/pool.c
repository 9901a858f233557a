/* SPDX-License-Identifier: MIT
 * pool.c: a pool's life, its pages that are handed out and come back, and trim.
 *
 * A page's busy is taken under the pages lock, never the other way round. A thread takes pages that
 * it took before, as far as there are any. States: I17; zones: I18. */
#include "pages/granules.h"
#include "pages/chunks.h"

enum {
	TABLE_ALIGN = CH__LINE_BYTES,
	LISTED_SHARE_LOG2 = 5, /* a page is listed when 1/32 is free */
	FAMILIAR_TRIES = 32,   /* pages of a list that a thread looks at for one of its own */
	RUN_BYTES = 128 << 10, /* each run without memory takes two of the process's mappings */
};

static size_t take_table(size_t *used, size_t bytes)
{
	size_t at = *used;
	*used += CH_ROUND_UP(bytes, TABLE_ALIGN);
	return at;
}

/* One mapping, touched as far as the pool is used: a large pool costs no memory before. All that a
 * creation writes lies together, in one page. Returns NULL with errno. */
static struct ch__pool *map_tables(const struct ch__pool_config *config)
{
	struct ch__pool *pool;
	struct ch__pool_inner *inner;
	size_t chunk_bytes = config->is_for_forks ? CH__LARGE_CHUNK_BYTES : CH__CHUNK_BYTES;
	if (chunk_bytes > config->pool_bytes)
		chunk_bytes = config->pool_bytes;
	uint32_t page_count = (uint32_t)(config->pool_bytes / config->page_bytes);
	uint32_t chunk_count = (uint32_t)(config->pool_bytes / chunk_bytes);
	uint32_t lists_end = page_count + CH__LISTS;
	size_t bytes = 0, bitmap_bytes = config->pool_bytes / CH__GRANULE_BYTES / 8;
	size_t pages = take_table(&bytes, lists_end * sizeof *pool->pages);
	size_t own = take_table(&bytes, sizeof *pool);
	size_t inners = take_table(&bytes, sizeof *inner);
	size_t used = take_table(&bytes, bitmap_bytes);
	size_t starts = take_table(&bytes, bitmap_bytes);
	size_t chunks = take_table(&bytes, chunk_count * sizeof *inner->chunks);
	/* Where address space is limited, notes would take what is left. */
	bool has_notes = CH_CHECK >= 2 && !ch__os_space_is_limited();
	size_t all = config->page_bytes + config->pool_bytes;
	size_t notes = take_table(&bytes, has_notes ? all : 0);
	uint8_t *at = ch__os_private(bytes);
	if (!at)
		return NULL;
	pool = (struct ch__pool *)(void *)(at + own);
	pool->pool_bytes = config->pool_bytes;
	pool->page_log2 = (uint32_t)__builtin_ctzll(config->page_bytes);
	pool->page_count = page_count;
	pool->chunk_log2 = (uint32_t)__builtin_ctzll(chunk_bytes);
	pool->chunk_count = chunk_count;
	pool->inner = inner = (struct ch__pool_inner *)(void *)(at + inners);
	pool->pages = (struct ch__page *)(void *)(at + pages);
	pool->used = (_Atomic(uint64_t) *)(void *)(at + used);
	pool->starts = (_Atomic(uint64_t) *)(void *)(at + starts);
	inner->table_bytes = bytes;
	inner->notes = has_notes ? at + notes : NULL;
	inner->chunks = (struct ch__chunk *)(void *)(at + chunks);
	for (uint32_t list = page_count; list < lists_end; list++)
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
		ch__os_unmap(pool->pages, inner->table_bytes);
		return error;
	}
	pool->backend = inner->views.backend;
	pool->stub_lead_bytes = pool->backend == CH_BACKEND_PROCMEM ? CH_ARCH_LEAD_BYTES : 0;
	pool->is_translated = ch__valgrind_runs();
	pool->sync_steps = inner->views.sync_steps;
	pool->runtime_exec = (uintptr_t)inner->views.exec;
	pool->runtime_bytes = inner->views.runtime_bytes;
	pool->exec_base = pool->runtime_exec + pool->runtime_bytes;
	pool->delta = inner->views.write - inner->views.exec;
	if (pool->is_translated)
		ch__valgrind_pool_born(pool);
	ch__ledger_note(pool, 0, pool->runtime_bytes);
	return 0;
}

void ch__pool_destroy(struct ch__pool *pool)
{
	struct ch__pool_inner *inner = pool->inner;
	if (pool->is_translated)
		ch__valgrind_pool_dead(pool);
	ch__views_destroy(&inner->views);
	ch__os_unmap(pool->pages, inner->table_bytes); /* the pool itself, too */
}

static uint32_t first_of(const struct ch__pool *pool, uint32_t list) CH_HAS_PAGES
{
	uint32_t first = pool->pages[list].next;
	return first != list ? first : CH__PAGE_NONE;
}

static void open_page(struct ch__pool *pool, uint32_t index)
	CH_REQUIRES(ch__role_pages, ch__role_busy)
{
	struct ch__page *page = &pool->pages[index];
	page->taker = ch__lock_self();
	CH_STORE_RELAXED(&page->refused_hot, UINT16_MAX);
	CH_STORE_RELAXED(&page->freed_granules, CH__FREED_MANY);
	ch__granules_reset_cursors(pool, index);
	ch__page_set_state(pool, index, CH__PAGE_OPEN, __func__);
}

/* Returns a page that no other thread was the last to take, or CH__PAGE_NONE. The lines of another
 * thread's page are in the cache of that thread's core, and while that thread frees blocks there,
 * two cores would pass the page to and fro. */
static uint32_t first_familiar(const struct ch__pool *pool, uint32_t list) CH_HAS_PAGES
{
	uintptr_t self = ch__lock_self();
	uint32_t page = pool->pages[list].next;
	for (int i = 0; i < FAMILIAR_TRIES && page != list; i++, page = pool->pages[page].next)
		if (!pool->pages[page].taker || pool->pages[page].taker == self)
			return page;
	return CH__PAGE_NONE;
}

/* Gives a chunk of the zone more memory. Returns false when no chunk lacks any, or with errno. */
static bool widen_zone(struct ch__pool *pool, enum ch__zone zone) CH_HAS_PAGES
{
	uint32_t all = ch__pool_chunk_pages(pool);
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++) {
		const struct ch__chunk *c = &pool->inner->chunks[chunk];
		if (!c->pages || c->pages == all || c->zone != zone)
			continue;
		uint32_t page = chunk * all;
		while (ch__pool_page_is_backed(pool, page))
			page++;
		return ch__chunk_commit(pool, page, page + 1, zone);
	}
	return false;
}

/* A page of other threads comes before more memory. */
static uint32_t next_page(struct ch__pool *pool, uint8_t frame) CH_HAS_PAGES
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
	/* Where widening was refused, this asks for less, and its refusal counts. */
	return page != CH__PAGE_NONE ? page : ch__pool_have_run(pool, 1, zone);
}

/* A FREE page for data is taken like a span of one page, as it goes back. */
static uint32_t next_of_use(struct ch__pool *pool, uint8_t frame) CH_HAS_PAGES
{
	enum ch__span_use use = (enum ch__span_use)pool->inner->config.uses[frame];
	bool are_back = ch__spans_retry_retired(pool);
	if (use != CH__SPAN_CODE && !are_back) {
		uint32_t partly = first_of(pool, ch__partly_list(pool, frame));
		return partly != CH__PAGE_NONE ? partly : CH__PAGE_NO_ACCESS;
	}
	uint32_t index = next_page(pool, frame);
	if (CH_LIKELY(use == CH__SPAN_CODE) || index == CH__PAGE_NONE ||
	    ch__page_state(&pool->pages[index]) != CH__PAGE_FREE)
		return index;
	index = ch__span_make(pool, index, 1, frame, use);
	if (index == CH__PAGE_NO_ACCESS)
		return index;
	pool->pages[index].span_pages = 0;
	ch__valgrind_set(pool, ch__pool_page_exec(pool, index), (size_t)1 << pool->page_log2,
			 false);
	return index;
}

uint32_t ch__pool_take_page(struct ch__pool *pool, uint8_t frame)
{
	CH_ASSERT(frame < CH__FRAME_NUMBERS, "frame number out of range");
	ch__pages_lock(pool);
	uint32_t index = next_of_use(pool, frame);
	if (index < CH__PAGE_NO_ACCESS) {
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
	uint32_t pages = ch__pool_pages_end(pool), i = pool->inner->looked_in_need;
	for (uint32_t n = 0; n < pages && found == CH__PAGE_NONE; n++) {
		i = i + 1 < pages ? i + 1 : 0;
		struct ch__page *page = &pool->pages[i];
		if (ch__page_state(page) != CH__PAGE_FULL || page->frame != frame ||
		    ch__page_refuses(page, hot_bytes, cold_bytes))
			continue;
		ch__page_lock(page);
		if (ch__page_has_room(pool, i, hot_bytes, cold_bytes)) {
			found = pool->inner->looked_in_need = i;
			open_page(pool, i);
		}
		ch__page_unlock(page);
	}
	ch__pages_unlock(pool);
	return found;
}

/* Puts a page that nobody has open in the state of its granules. An empty page of data becomes a
 * span of one page, to be released. Under busy. */
static void settle(struct ch__pool *pool, uint32_t index) CH_HAS_PAGES
{
	struct ch__page *page = &pool->pages[index];
	enum ch__page_state before = ch__page_state(page), to = CH__PAGE_FULL;
	uint32_t used = CH_LOAD_RELAXED(&page->used_granules);
	uint32_t freed = CH_LOAD_RELAXED(&page->freed_granules);
	uint32_t enough = ch__pool_granules(pool) >> LISTED_SHARE_LOG2;
	uint32_t unused = ch__pool_granules(pool) - used;
	if (used == 0 && CH_UNLIKELY(ch__pool_span_use(pool, index) != CH__SPAN_CODE)) {
		(void)ch__span_make(pool, index, 1, page->frame, CH__SPAN_CODE);
		return;
	}
	if (used == 0)
		to = CH__PAGE_FREE;
	else if (before == CH__PAGE_PARTLY || (unused >= enough && freed >= enough))
		to = CH__PAGE_PARTLY;
	ch__page_set_state(pool, index, to, __func__);
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
		(void)ch__span_release(pool, index);
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
		is_freed = ch__span_release(pool, index);
	ch__pages_unlock(pool);
	return is_freed;
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

/* Whether the page is unused, and others of its chunk are not. */
static bool may_go(const struct ch__pool *pool, uint32_t page) CH_HAS_PAGES
{
	return ch__page_state(&pool->pages[page]) == CH__PAGE_FREE &&
	       ch__pool_page_is_backed(pool, page) &&
	       pool->inner->chunks[ch__pool_chunk_of(pool, page)].used;
}

/* From above: code that is to come finds room below. Each run that goes may cost the process
 * mappings, and without any no page would get its memory back. So 128 mappings are held meanwhile.
 * Where the system refuses, the loop ends and these go back; the refused run then goes by them. */
static void give_up_runs(struct ch__pool *pool) CH_HAS_PAGES
{
	uint32_t in_chunk = ch__pool_chunk_pages(pool) - 1, least = RUN_BYTES >> pool->page_log2;
	uint32_t from = ch__pool_pages_end(pool), end = from;
	void *held = ch__pool_has_much_unused(pool) ? ch__os_hold_mappings() : NULL;
	bool is_taken = held;
	while (from && is_taken && ch__pool_has_much_unused(pool)) {
		end = from--;
		while (may_go(pool, from) && (from & in_chunk) && may_go(pool, from - 1))
			from--;
		if (end - from >= least)
			is_taken = ch__pages_give_up(pool, from, end);
	}
	if (!held)
		return;
	ch__os_let_mappings_go(held);
	if (!is_taken)
		(void)ch__pages_give_up(pool, from, end);
}

void ch__pool_trim(struct ch__pool *pool)
{
	struct ch__pool_inner *inner = pool->inner;
	bool has_spare = false;
	ch__pages_lock(pool);
	CH_STORE_RELAXED(&pool->wants_trim, false);
	(void)ch__spans_retry_retired(pool);
	uint32_t chunks = inner->views.has_code ? pool->chunk_count : 0;
	for (uint32_t chunk = 0; chunk < chunks; chunk++) {
		const struct ch__chunk *c = &inner->chunks[chunk];
		if ((!c->pages && !c->lingers) || c->used != 0)
			continue;
		if (c->pages && !has_spare)
			has_spare = true; /* the next block need not wait for the system */
		else
			ch__chunk_give_up(pool, chunk);
	}
	if (chunks && !inner->views.has_large_pages)
		give_up_runs(pool);
	inner->left_unused = ch__pool_unused_pages(pool);
	ch__pages_unlock(pool);
}
