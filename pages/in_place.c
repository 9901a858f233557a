/* SPDX-License-Identifier: MIT
 * in_place.c: spans that are not RX from the first on (I21; docs/design.md, section 4): code
 * emitted where it will run, data, and large rooms. Pages shared by small blocks of data are taken
 * for one kind, R or RW, and released as a span of one page. Private backends: the bytes at exec
 * and in the write view are two copies, until ch__pool_take_over. Lock: pages. */
#include "pages/chunks.h"
#include "pages/write.h"

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

bool ch__span_lend(struct ch__pool *pool, uint32_t first, enum ch__span_use use)
{
	ch__span_set_word(pool, first, use);
	return lend(pool, first, use);
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
		ch__span_set_word(pool, first, word | CH__SPAN_LANDED);
	ch__pages_unlock(pool);
	return is_landed;
}

bool ch__span_is_retired(const struct ch__pool *pool, uint32_t page)
{
	return ch__pool_span_word(pool, page) & CH__SPAN_RETIRED;
}

bool ch__span_take_back(struct ch__pool *pool, uint32_t first)
{
	struct ch__pool_inner *inner = pool->inner;
	unsigned word = ch__pool_span_word(pool, first);
	size_t offset = ch__pool_page_offset(pool, first), bytes = bytes_of(pool, first);
	bool is_room = word & CH__SPAN_ROOM;
	if (is_all_rx(word)) {
		ch__span_set_word(pool, first, CH__SPAN_CODE);
		return true;
	}
	/* Bytes that were written in place must not run, not even for a moment. */
	if (!is_room)
		ch__arch_fill_traps(inner->views.write + offset, bytes);
	bool is_back = is_room ? ch__views_leave_room(&inner->views, offset, bytes)
			       : ch__views_take_back(&inner->views, offset, bytes);
	inner->spans_retired += !is_back - !!(word & CH__SPAN_RETIRED);
	ch__span_set_word(pool, first, is_back ? CH__SPAN_CODE : word | CH__SPAN_RETIRED);
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
