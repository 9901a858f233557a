/* SPDX-License-Identifier: MIT
 * granules.c: the bitmaps of used granules and of block starts. Used words change under their
 * page's busy only, by plain loads and stores; start words are shared with lookups without lock
 * (ch__page_find_start). The owners of pages are not known here. */
#include "pages/granules.h"
#include "pages/inner.h"

enum { NOT_FOUND = 0xffffffff };

static uint64_t load(const _Atomic(uint64_t) *words, uint32_t index)
{
	return CH_LOAD_RELAXED(&words[index]);
}

static _Atomic(uint64_t) *words_of(_Atomic(uint64_t) *all, const struct ch__pool *pool,
				   uint32_t page)
{
	/* 8 bytes a granule, 64 granules a word */
	return all + ((size_t)page << (pool->page_log2 - 9));
}

/* A search flips each word by one of these, and then looks for a bit that is set. */
static const uint64_t used_bits = 0, unused_bits = ~UINT64_C(0);

/* The first such bit in [from, limit), or limit. */
static inline uint32_t next_of(const _Atomic(uint64_t) *words, uint32_t from, uint32_t limit,
			       uint64_t flip)
{
	while (from < limit) {
		uint64_t word = (load(words, from >> 6) ^ flip) >> (from & 63);
		if (word) {
			from += (uint32_t)__builtin_ctzll(word);
			break;
		}
		from = (from | 63) + 1;
	}
	return from < limit ? from : limit;
}

/* One above the last such bit in [low, high), or low. */
static inline uint32_t after_last_of(const _Atomic(uint64_t) *words, uint32_t low, uint32_t high,
				     uint64_t flip)
{
	while (high > low) {
		uint64_t word = (load(words, (high - 1) >> 6) ^ flip) << (63 - ((high - 1) & 63));
		if (word) {
			high -= (uint32_t)__builtin_clzll(word);
			break;
		}
		high = (high - 1) & ~UINT32_C(63);
	}
	return high > low ? high : low;
}

/* The lowest run of n unused granules in [from, limit). Mostly it begins at `from`, a cursor. */
static uint32_t find_upward(const _Atomic(uint64_t) *words, uint32_t from, uint32_t limit,
			    uint32_t n)
{
	while (from + n <= limit) {
		uint32_t end = next_of(words, from, from + n, used_bits);
		if (end == from + n)
			return from;
		from = next_of(words, end, limit, unused_bits);
	}
	return NOT_FOUND;
}

static uint32_t find_downward(const _Atomic(uint64_t) *words, uint32_t low, uint32_t high,
			      uint32_t n)
{
	while (high >= low + n) {
		uint32_t start = after_last_of(words, high - n, high, used_bits);
		if (start == high - n)
			return start;
		high = after_last_of(words, low, start, unused_bits);
	}
	return NOT_FOUND;
}

/* Moves *at to the first hole at or behind *at, and *end to the hole's end. */
static CH_COLD bool next_hole(const _Atomic(uint64_t) *words, uint32_t *at, uint32_t limit,
			      uint32_t *end)
{
	*at = next_of(words, *at, limit, unused_bits);
	*end = next_of(words, *at, limit, used_bits);
	return *at < limit;
}

/* Flips n bits, 1 at least. */
static inline void flip(_Atomic(uint64_t) *words, uint32_t from, uint32_t n)
{
	uint32_t last = from + n - 1, at = from >> 6;
	uint64_t mask = ~UINT64_C(0) << (from & 63);
	for (; at < last >> 6; at++, mask = ~UINT64_C(0))
		CH_STORE_RELAXED(&words[at], load(words, at) ^ mask);
	mask &= ~UINT64_C(0) >> (~last & 63);
	CH_STORE_RELAXED(&words[at], load(words, at) ^ mask);
}

static inline uint32_t granules_in(uint32_t bytes)
{
	return (uint32_t)(((uint64_t)bytes + CH__GRANULE_BYTES - 1) / CH__GRANULE_BYTES);
}

static inline uint16_t add(_Atomic(uint16_t) *counter, uint32_t n)
{
	uint16_t sum = (uint16_t)(CH_LOAD_RELAXED(counter) + n);
	CH_STORE_RELAXED(counter, sum);
	return sum;
}

/* First, right behind the last cold part, if the unused rest of that part came back. Else the
 * highest place with the spare granules behind it: most of the part will come back, and the next
 * part fits there; without them that rest would be too short for the next part. Else the highest
 * place. The spare takes at most half of the room, so that hot granules keep the other half. */
static uint32_t find_cold(const _Atomic(uint64_t) *words, const struct ch__page *page, uint32_t low,
			  uint32_t end, uint32_t n, uint32_t spare)
{
	uint32_t next = page->cold_next, high = page->cold_cursor, at = NOT_FOUND;
	if (!n)
		return high;
	if (next >= low && next + n <= end &&
	    next_of(words, next, next + n, used_bits) == next + n)
		return next;
	uint32_t most = high > low + n ? (high - low - n) / 2 : 0;
	if (spare)
		at = find_downward(words, low, high, n + (spare < most ? spare : most));
	return at != NOT_FOUND ? at : find_downward(words, low, high, n);
}

bool ch__page_reserve(struct ch__pool *pool, uint32_t index, uint32_t hot_bytes,
		      uint32_t cold_bytes, uint32_t spare_bytes, uint32_t *hot, uint32_t *cold)
{
	struct ch__page *page = &pool->pages[index];
	_Atomic(uint64_t) *words = words_of(pool->used, pool, index);
	uint32_t base = index << pool->page_log2, cold_at = NOT_FOUND;
	uint32_t hot_n = granules_in(hot_bytes), cold_n = granules_in(cold_bytes);
	uint32_t hot_at = find_upward(words, page->hot_cursor, page->cold_cursor, hot_n);
	if (hot_at != NOT_FOUND)
		cold_at = find_cold(words, page, hot_at + hot_n, ch__pool_granules(pool), cold_n,
				    spare_bytes / CH__GRANULE_BYTES);
	if (cold_at == NOT_FOUND) {
		CH_STORE_RELAXED(&page->freed_granules, 0);
		return false;
	}
	*cold = base;
	if (cold_n) {
		flip(words, cold_at, cold_n);
		*cold = base + cold_at * CH__GRANULE_BYTES;
		page->cold_next = (uint16_t)(cold_at + cold_n);
		if (cold_at < page->cold_cursor)
			page->cold_cursor = (uint16_t)cold_at;
		ch__valgrind_open(pool, pool->exec_base + *cold,
				  (size_t)cold_n * CH__GRANULE_BYTES);
	}
	*hot = base;
	if (hot_n) {
		flip(words, hot_at, hot_n);
		*hot = base + hot_at * CH__GRANULE_BYTES;
		page->hot_cursor = (uint16_t)(hot_at + hot_n);
		ch__valgrind_open(pool, pool->exec_base + *hot, (size_t)hot_n * CH__GRANULE_BYTES);
	}
	add(&page->used_granules, hot_n + cold_n);
	return true;
}

void ch__granules_reset_cursors(struct ch__pool *pool, uint32_t index)
{
	pool->pages[index].hot_cursor = 0;
	pool->pages[index].cold_cursor = (uint16_t)ch__pool_granules(pool);
	pool->pages[index].cold_next = pool->pages[index].cold_cursor;
}

void ch__page_give_back(struct ch__pool *pool, uint32_t index, uint32_t offset, size_t bytes)
{
	struct ch__page *page = &pool->pages[index];
	_Atomic(uint64_t) *words = words_of(pool->used, pool, index);
	uint32_t at = (offset & ((UINT32_C(1) << pool->page_log2) - 1)) / CH__GRANULE_BYTES;
	uint32_t n = (uint32_t)(bytes + 7) / CH__GRANULE_BYTES;
	if (n == 0)
		return;
	CH_ASSERT(at + n <= ch__pool_granules(pool), "range outside its page");
	CH_ASSERT(load(words, at >> 6) >> (at & 63) & 1, "granules given back twice, "
							 "as by two commits of one block");
	CH_PUBLISHED(pool, pool->exec_base + offset, bytes, "poison");
	flip(words, at, n);
	ch__valgrind_set(pool, pool->exec_base + offset, (size_t)n * CH__GRANULE_BYTES, false);
	uint16_t used = add(&page->used_granules, -n);
	/* More may come back to an open page than the counter holds; half of its range will do. */
	if (CH_LOAD_RELAXED(&page->freed_granules) < CH__FREED_MANY)
		add(&page->freed_granules, n);
	/* Mostly nothing was refused, and a seq_cst store costs some 5 ns. */
	if (CH_LOAD_RELAXED(&page->refused_hot) != UINT16_MAX)
		atomic_store(&page->refused_hot, UINT16_MAX);
	if (at + n == page->hot_cursor)
		page->hot_cursor = (uint16_t)at;
	if (at == page->cold_cursor)
		page->cold_cursor = (uint16_t)(at + n);
	if (at + n == page->cold_next)
		page->cold_next = (uint16_t)at;
	if (used == 0)
		ch__granules_reset_cursors(pool, index);
}

bool ch__page_has_room(struct ch__pool *pool, uint32_t index, uint32_t hot_bytes,
		       uint32_t cold_bytes)
{
	struct ch__page *page = &pool->pages[index];
	const _Atomic(uint64_t) *words = words_of(pool->used, pool, index);
	uint32_t granules = ch__pool_granules(pool);
	uint32_t hot_n = hot_bytes / CH__GRANULE_BYTES, cold_n = cold_bytes / CH__GRANULE_BYTES;
	if (ch__page_refuses(page, hot_bytes, cold_bytes))
		return false;
	uint32_t largest = ch__granules_largest_hole(pool, index);
	if (hot_n > largest) {
		hot_n = largest + 1;
		cold_n = 0;
	} else if (!cold_n || find_downward(words, find_upward(words, 0, granules, hot_n) + hot_n,
					    granules, cold_n) != NOT_FOUND) {
		ch__granules_reset_cursors(pool, index);
		return true;
	}
	CH_STORE_RELAXED(&page->refused_hot, (uint16_t)hot_n);
	CH_STORE_RELAXED(&page->refused_cold, (uint16_t)cold_n);
	return false;
}

uint32_t ch__granules_largest_hole(const struct ch__pool *pool, uint32_t index)
{
	const _Atomic(uint64_t) *words = words_of(pool->used, pool, index);
	uint32_t end = ch__pool_granules(pool), largest = 0;
	for (uint32_t at = 0, next; next_hole(words, &at, end, &next); at = next)
		largest = next - at > largest ? next - at : largest;
	return largest;
}

void ch__page_set_start(struct ch__pool *pool, uint32_t offset, bool begins)
{
	_Atomic(uint64_t) *starts = pool->starts + offset / CH__GRANULE_BYTES / 64;
	uint64_t bit = UINT64_C(1) << (offset / CH__GRANULE_BYTES & 63);
	if (ch__is_only_thread())
		atomic_store_explicit(starts, begins ? *starts | bit : *starts & ~bit,
				      memory_order_release);
	else if (begins)
		atomic_fetch_or_explicit(starts, bit, memory_order_release);
	else
		atomic_fetch_and_explicit(starts, ~bit, memory_order_release);
}

/* A span has a start in its first page, by which the cold part is found, too. No word between is
 * looked at: a large span has thousands. */
uint32_t ch__page_find_far_start(const struct ch__pool *pool, uint32_t first, uint32_t at)
{
	uint32_t log2 = pool->page_log2 - 9, end = (first + 1) << log2;
	at = at < end ? at : end;
	while (at > first << log2) {
		uint64_t word = atomic_load_explicit(&pool->starts[--at], memory_order_acquire);
		if (word)
			return (at * 64 + 63 - (uint32_t)__builtin_clzll(word)) * CH__GRANULE_BYTES;
	}
	return UINT32_MAX;
}

/* In private memory the write view is a copy: the code that would run is looked at, too. */
static bool is_untrapped(const struct ch__pool *pool, uintptr_t exec)
{
	return !ch__arch_are_traps(ch__pool_read(pool, exec), CH__GRANULE_BYTES) ||
	       (ch__views_are_private(&pool->inner->views) &&
		!ch__arch_are_traps((const uint8_t *)exec, CH__GRANULE_BYTES));
}

const char *ch__granules_fault(const struct ch__pool *pool, uint32_t index, bool has_memory,
			       uintptr_t *where)
{
	const _Atomic(uint64_t) *words = words_of(pool->used, pool, index),
				*starts = words_of(pool->starts, pool, index);
	uint32_t used = 0, end = ch__pool_granules(pool);
	for (uint32_t i = 0; i < end / 64; i++) {
		used += (uint32_t)__builtin_popcountll(load(words, i));
		if (load(starts, i) & ~load(words, i))
			return "start in an unused granule";
	}
	if (used != CH_LOAD_RELAXED(&pool->pages[index].used_granules))
		return "count and bitmap of used granules disagree";
	for (uint32_t at = 0, next; next_hole(words, &at, end, &next); at = next)
		for (; has_memory && at < next; at++) {
			*where = ch__pool_page_exec(pool, index) + (size_t)at * CH__GRANULE_BYTES;
			if (is_untrapped(pool, *where))
				return "unused granule without trap";
		}
	return NULL;
}

void ch__granules_revoke_unused(const struct ch__pool *pool, uint32_t page)
{
	const _Atomic(uint64_t) *words = words_of(pool->used, pool, page);
	uintptr_t exec = ch__pool_page_exec(pool, page);
	uint32_t end = ch__pool_granules(pool);
	for (uint32_t at = 0, next; next_hole(words, &at, end, &next); at = next)
		ch__valgrind_set(pool, exec + (size_t)at * CH__GRANULE_BYTES,
				 (size_t)(next - at) * CH__GRANULE_BYTES, false);
}
