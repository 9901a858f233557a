/* SPDX-License-Identifier: MIT
 * spans.c: runs of whole pages: found, taken, lent, taken back, cut and released, and rooms, which
 * are spans of whole chunks. Zones: I18.
 *
 * Spans that are not RX from the first on (I21; docs/design.md, section 4): code emitted where it
 * will run, data, and large rooms. Pages shared by small blocks of data are taken for one kind, R
 * or RW, and released as a span of one page. Private backends: the bytes at exec and in the write
 * view are two copies, until ch__pool_take_over. Lock: pages. */
#include "pages/chunks.h"

enum { ROOM_CHUNKS = 2 }; /* a span as long as that may be a room */

static void set_word(struct ch__pool *pool, uint32_t first, unsigned word) CH_HAS_PAGES
{
	atomic_store_explicit(&pool->pages[first].span_use, (uint8_t)word, memory_order_release);
}

/* A shared page counts as a single page. */
static size_t bytes_of(const struct ch__pool *pool, uint32_t first)
{
	size_t pages = pool->pages[first].span_pages;
	return (pages ? pages : 1) << pool->page_log2;
}

/* Of a room that landed, only a part is RX. */
static bool is_all_rx(unsigned word)
{
	return word == CH__SPAN_CODE || word == (CH__SPAN_IN_PLACE | CH__SPAN_LANDED);
}

bool ch__pool_span_runs(const struct ch__pool *pool, uint32_t first)
{
	unsigned word = ch__pool_span_word(pool, first);
	return is_all_rx(word) || word == (CH__SPAN_ROOM | CH__SPAN_LANDED);
}

bool ch__pool_span_waits_for_traps(const struct ch__pool *pool, uint32_t first)
{
	return !is_all_rx(ch__pool_span_word(pool, first));
}

/* Takes execute access away from the pages. Returns false when the system refused; some pages may
 * have lost execute access. */
static bool lend(const struct ch__pool *pool, uint32_t first, unsigned word)
{
	bool is_writable = word != CH__PAGE_RODATA && word != (CH__SPAN_RODATA | CH__SPAN_LANDED);
	return ch__os_protect(pool->inner->views.exec + ch__pool_page_offset(pool, first),
			      bytes_of(pool, first), is_writable);
}

void ch__pool_take_over(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	if (ch__views_are_private(&pool->inner->views))
		memcpy(ch__pool_lend(pool, exec), (const void *)exec, bytes);
}

bool ch__pool_land_span(struct ch__pool *pool, uint32_t first, size_t room_bytes)
{
	ch__pages_lock(pool);
	struct ch__page *page = &pool->pages[first];
	struct ch__views *views = &pool->inner->views;
	size_t offset = ch__pool_page_offset(pool, first);
	unsigned word = ch__pool_span_word(pool, first);
	CH_ASSERT(word != CH__SPAN_CODE && !(word & CH__SPAN_RETIRED),
		  "not a span that is written in place");
	bool is_landed = true, runs = false;
	size_t landed = CH_ROUND_UP(room_bytes, ch__pool_chunk_bytes(pool));
	if (word & CH__SPAN_ROOM)
		is_landed = ch__views_land_room(views, offset, landed, &runs);
	else if (word == CH__SPAN_IN_PLACE)
		is_landed = ch__views_take_back(views, offset, bytes_of(pool, first));
	else if (word == CH__SPAN_RODATA)
		is_landed = lend(pool, first, word | CH__SPAN_LANDED);
	/* Bytes that run, though the landing was refused, count: an abort makes traps of them. */
	if (runs && landed > page->landed_bytes)
		page->landed_bytes = landed;
	if (is_landed)
		set_word(pool, first, word | CH__SPAN_LANDED);
	ch__pages_unlock(pool);
	return is_landed;
}

bool ch__span_is_retired(const struct ch__pool *pool, uint32_t page)
{
	return ch__pool_span_word(pool, page) & CH__SPAN_RETIRED;
}

/* Makes the span's pages RX like ordinary pages, with traps in pages that were not RX; those of a
 * room have no access and no copies. Returns false when the system refused: the span is retired. */
static bool take_back(struct ch__pool *pool, uint32_t first) CH_HAS_PAGES
{
	struct ch__pool_inner *inner = pool->inner;
	unsigned word = ch__pool_span_word(pool, first);
	size_t offset = ch__pool_page_offset(pool, first), bytes = bytes_of(pool, first);
	bool is_room = word & CH__SPAN_ROOM;
	if (is_all_rx(word)) {
		set_word(pool, first, CH__SPAN_CODE);
		return true;
	}
	/* Bytes that were written in place must not run, not even for a moment. */
	if (!is_room)
		ch__arch_fill_traps(inner->views.write + offset, bytes);
	bool is_back = is_room ? ch__views_leave_room(&inner->views, offset, bytes)
			       : ch__views_take_back(&inner->views, offset, bytes);
	inner->spans_retired += !is_back - !!(word & CH__SPAN_RETIRED);
	set_word(pool, first, is_back ? CH__SPAN_CODE : word | CH__SPAN_RETIRED);
	return is_back;
}

/* Only the first page of a span, or a shared page, has a word other than the word of code. */
bool ch__spans_lend_again(struct ch__pool *pool)
{
	for (uint32_t i = 0; i < ch__pool_pages_end(pool); i++) {
		unsigned word = ch__pool_span_word(pool, i);
		if (!is_all_rx(word) && !lend(pool, i, word))
			return false;
	}
	return true;
}

/* An unwinder with a table there goes on to read: zeros are the end of a table. If the system
 * refuses, the read is a fault. */
void ch__spans_leave_zeros(struct ch__pool *pool)
{
	/* Without has_exec, the range may be somebody else's. */
	uint32_t pages = pool->inner->views.has_exec ? ch__pool_pages_end(pool) : 0;
	for (uint32_t i = 0; i < pages; i++) {
		enum ch__span_use use = ch__pool_span_use(pool, i);
		if (use != CH__SPAN_RODATA && use != CH__PAGE_RODATA)
			continue;
		(void)ch__os_map_private(pool->inner->views.exec + ch__pool_page_offset(pool, i),
					 bytes_of(pool, i), CH__OS_R);
	}
}

/* The system refused memory (errno) for a run of pages. Sets errno to 0 when the pages with memory
 * could hold such a run if their code were gone. A room leaves no memory behind. */
static void judge_refusal(const struct ch__pool *pool, uint32_t pages) CH_HAS_PAGES
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
			 bool backed_only) CH_HAS_PAGES
{
	uint32_t run = 0, all = ch__pool_chunk_pages(pool);
	for (uint32_t chunk = 0; chunk < pool->chunk_count; chunk++) {
		const struct ch__chunk *c = &pool->inner->chunks[chunk];
		if ((c->used && (c->used == all || c->zone != zone)) ||
		    (backed_only && !c->pages)) {
			run = 0;
			continue;
		}
		for (uint32_t i = chunk * all; i < (chunk + 1) * all; i++) {
			bool is_fit = ch__page_state(&pool->pages[i]) == CH__PAGE_FREE &&
				      (!backed_only || ch__pool_page_is_backed(pool, i));
			run = is_fit ? run + 1 : 0;
			if (run == pages)
				return i + 1 - pages;
		}
	}
	errno = 0;
	return CH__PAGE_NONE;
}

/* Prefers a run with memory, and commits memory where a run lacks some. */
uint32_t ch__pool_have_run(struct ch__pool *pool, uint32_t pages, enum ch__zone zone)
{
	uint32_t first = find_run(pool, pages, zone, true);
	if (first == CH__PAGE_NONE)
		first = find_run(pool, pages, zone, false);
	if (first == CH__PAGE_NONE)
		return CH__PAGE_NONE;
	uint32_t end = first + pages, all = ch__pool_chunk_pages(pool);
	for (uint32_t chunk = ch__pool_chunk_of(pool, first); chunk * all < end; chunk++) {
		const struct ch__chunk *c = &pool->inner->chunks[chunk];
		uint32_t from = chunk * all > first ? chunk * all : first;
		uint32_t to = (chunk + 1) * all < end ? (chunk + 1) * all : end;
		if (c->pages && c->zone != zone)
			ch__chunk_join(pool, chunk, zone);
		if (!ch__chunk_commit(pool, from, to, zone)) {
			judge_refusal(pool, pages);
			return CH__PAGE_NONE;
		}
	}
	return first;
}

bool ch__span_release(struct ch__pool *pool, uint32_t first)
{
	uint32_t pages = pool->pages[first].span_pages;
	uintptr_t exec = ch__pool_page_exec(pool, first);
	size_t bytes = (size_t)pages << pool->page_log2;
	bool has_code = pool->inner->views.has_code;
	bool is_room = has_code && ch__pool_span_is_room(pool, first);
	CH_ASSERT(ch__page_state(&pool->pages[first]) == CH__PAGE_SPAN && pages,
		  "not a span's first page");
	pool->pages[first].has_block = false;
	if (has_code) {
		/* To Valgrind, dead parts are without access. */
		ch__valgrind_set(pool, exec, bytes, true);
		/* What landed and was not published becomes traps while it has both views: the
		 * system may refuse to take execute access away. */
		if (is_room) {
			ch__pool_poison(pool, exec, pool->pages[first].landed_bytes);
			pool->pages[first].landed_bytes = 0;
		}
		if (!take_back(pool, first))
			return false;
		if (!is_room)
			ch__pool_poison(pool, exec, bytes);
	}
	if (!is_room)
		CH_PUBLISHED(pool, exec, bytes, "poison of a span");
	ch__valgrind_set(pool, exec, bytes, false);
	for (uint32_t i = first; i < first + pages; i++)
		ch__page_set_state(pool, i, CH__PAGE_FREE, __func__);
	for (uint32_t i = first; is_room && i < first + pages; i += ch__pool_chunk_pages(pool))
		ch__chunk_give_up(pool, ch__pool_chunk_of(pool, i));
	return true;
}

static bool give_retired_back(struct ch__pool *pool) CH_HAS_PAGES
{
	bool is_back = true;
	for (uint32_t i = 0; pool->inner->spans_retired && is_back && i < ch__pool_pages_end(pool);
	     i++)
		if (ch__span_is_retired(pool, i))
			is_back = ch__span_release(pool, i);
	return is_back;
}

/* Makes one span, and one mapping, of retired spans of a chunk with FREE pages only between
 * them. The spans may be what took the last mappings. */
static void join_retired(struct ch__pool *pool, uint32_t first) CH_HAS_PAGES
{
	const struct ch__page *pages = pool->pages;
	uint32_t old = first + pages[first].span_pages, end = old, i = old;
	while (i & (ch__pool_chunk_pages(pool) - 1))
		if (ch__span_is_retired(pool, i)) {
			pool->inner->spans_retired--;
			set_word(pool, i, CH__SPAN_CODE);
			end = i += pages[i].span_pages;
		} else if (ch__page_state(&pages[i]) == CH__PAGE_FREE &&
			   ch__pool_page_is_backed(pool, i)) {
			i++;
		} else {
			break;
		}
	if (end == old)
		return;
	(void)ch__span_make(pool, first, end - first, pages[first].frame, CH__SPAN_CODE);
	(void)ch__views_deny(&pool->inner->views, ch__pool_page_offset(pool, first),
			     (size_t)(end - first) << pool->page_log2);
}

bool ch__spans_retry_retired(struct ch__pool *pool)
{
	if (give_retired_back(pool))
		return true;
	for (uint32_t i = 0; i < ch__pool_pages_end(pool); i++)
		if (ch__span_is_retired(pool, i))
			join_retired(pool, i);
	return give_retired_back(pool);
}

uint32_t ch__span_make(struct ch__pool *pool, uint32_t first, uint32_t pages, uint8_t frame,
		       enum ch__span_use use)
{
	for (uint32_t i = first; i < first + pages; i++) {
		struct ch__page *page = &pool->pages[i];
		ch__valgrind_set(pool, ch__pool_page_exec(pool, i), (size_t)1 << pool->page_log2,
				 true);
		atomic_store_explicit(&page->frame, frame, memory_order_release);
		page->landed_bytes = 0;
		page->span_pages = i == first ? pages : 0;
		CH_STORE_RELAXED(&page->span_first, first);
		ch__page_set_state(pool, i, CH__PAGE_SPAN, __func__);
	}
	if (use == CH__SPAN_CODE)
		return first;
	/* First: where the system refuses, some pages may have lost execute access. */
	set_word(pool, first, use);
	if (lend(pool, first, use))
		return first;
	int error = errno;
	(void)ch__span_release(pool, first);
	errno = error;
	return CH__PAGE_NO_ACCESS;
}

/* Returns the first page of the lowest run of chunks without memory. */
static uint32_t find_bare(const struct ch__pool *pool, uint32_t pages) CH_HAS_PAGES
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

/* Returns the first page of a room, or CH__PAGE_NONE where a span with memory does better. Private
 * memory has a copy as its write view already. A limit of address space has no room for the views
 * of a room that lands. */
static uint32_t take_room(struct ch__pool *pool, uint32_t pages, uint8_t frame, enum ch__zone zone)
	CH_HAS_PAGES
{
	struct ch__views *views = &pool->inner->views;
	uint32_t all = ch__pool_chunk_pages(pool), whole = (uint32_t)CH_ROUND_UP(pages, all);
	if (pages < ROOM_CHUNKS * all || ch__views_are_private(views) || pool->is_translated ||
	    ch__os_space_is_limited() || find_run(pool, pages, zone, true) != CH__PAGE_NONE)
		return CH__PAGE_NONE;
	uint32_t first = find_bare(pool, whole);
	if (first == CH__PAGE_NONE)
		return CH__PAGE_NONE;
	for (uint32_t i = first; i < first + whole; i += all)
		ch__chunk_add_pages(pool, i, i + all, zone);
	(void)ch__span_make(pool, first, whole, frame, CH__SPAN_CODE);
	set_word(pool, first, CH__SPAN_ROOM);
	if (ch__views_room(views, ch__pool_page_offset(pool, first),
			   (size_t)whole << pool->page_log2, ch__pool_chunk_bytes(pool)))
		return first;
	(void)ch__span_release(pool, first);
	return CH__PAGE_NONE;
}

uint32_t ch__pool_take_span(struct ch__pool *pool, uint32_t pages, uint8_t frame,
			    enum ch__span_use use)
{
	CH_ASSERT(frame < CH__FRAME_NUMBERS && pages, "no such frame number, or no pages");
	ch__pages_lock(pool);
	enum ch__zone zone = (enum ch__zone)pool->inner->config.zones[frame];
	uint32_t first = CH__PAGE_NONE;
	bool are_back = ch__spans_retry_retired(pool);
	bool is_code = use == CH__SPAN_CODE || use == CH__SPAN_ROOM;
	/* Where a span waits for the system, a room could be the next. */
	if (use == CH__SPAN_ROOM && are_back)
		first = take_room(pool, pages, frame, zone);
	bool is_room = first != CH__PAGE_NONE;
	/* At the limit of mappings, each further try would retire another span. */
	if (!is_code && !are_back)
		first = CH__PAGE_NO_ACCESS;
	else if (!is_room)
		first = ch__pool_have_run(pool, pages, zone);
	if (first < CH__PAGE_NO_ACCESS && !is_room)
		first = ch__span_make(pool, first, pages, frame, is_code ? CH__SPAN_CODE : use);
	ch__pages_unlock(pool);
	return first;
}

void ch__pool_release_span(struct ch__pool *pool, uint32_t first)
{
	ch__pages_lock(pool);
	(void)ch__span_release(pool, first);
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
		set_word(pool, first, CH__SPAN_CODE);
		bare = (uint32_t)CH_ROUND_UP(rest, ch__pool_chunk_pages(pool));
	}
	if (bare < end) {
		/* The rest is a room of its own. */
		set_word(pool, bare, CH__SPAN_ROOM);
		pages[bare].span_pages = end - bare;
		pages[bare].landed_bytes =
			pages[first].landed_bytes - ((size_t)(bare - first) << pool->page_log2);
		for (uint32_t i = bare; i < end; i++)
			CH_STORE_RELAXED(&pages[i].span_first, bare);
		(void)ch__span_release(pool, bare);
	}
	if (rest < bare) {
		pages[rest].span_pages = bare - rest;
		(void)ch__span_release(pool, rest);
	}
	ch__pages_unlock(pool);
}
