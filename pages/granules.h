/* SPDX-License-Identifier: MIT
 * granules.h: the bitmaps of used granules and of block starts, and a page's busy (granules.c). */
#pragma once

#include "os/locks/lock.h"
#include "pages/pool.h"

static inline void ch__page_lock(struct ch__page *page)
	CH_ACQUIRES(ch__role_busy) CH_UNANALYSED("it makes the role")
{
	CH__TAKE_BUSY(&page->busy);
}
static inline void ch__page_unlock(struct ch__page *page)
	CH_RELEASES(ch__role_busy) CH_UNANALYSED("it makes the role")
{
	CH__LET_BUSY_GO(&page->busy);
}

/* Reserves hot bytes upwards and cold bytes (may be 0) downwards; writes offsets from the pool's
 * base. Cold bytes of which many will be given back have spare bytes behind them, if there is room:
 * the next cold parts lie there. Returns false when there is no room for both. */
bool ch__page_reserve(struct ch__pool *, uint32_t page, uint32_t hot_bytes, uint32_t cold_bytes,
		      uint32_t spare_bytes, uint32_t *hot, uint32_t *cold)
	CH_REQUIRES(ch__role_busy);
/* Whether a search since the last free has shown that the page has no room for so much. */
static inline bool ch__page_refuses(const struct ch__page *page, size_t hot_bytes,
				    size_t cold_bytes)
{
	return hot_bytes / CH__GRANULE_BYTES >= CH_LOAD_RELAXED(&page->refused_hot) &&
	       cold_bytes / CH__GRANULE_BYTES >= CH_LOAD_RELAXED(&page->refused_cold);
}
/* Whether both, multiples of a granule, would fit with the cursors at the page's ends; if so, puts
 * the cursors there. */
bool ch__page_has_room(struct ch__pool *, uint32_t page, uint32_t hot_bytes, uint32_t cold_bytes)
	CH_COLD CH_REQUIRES(ch__role_busy);
/* Gives back a range of used granules, which holds traps. A cursor at the range moves back. */
void ch__page_give_back(struct ch__pool *, uint32_t page, uint32_t offset, size_t bytes)
	CH_REQUIRES(ch__role_busy);
void ch__page_set_start(struct ch__pool *, uint32_t offset, bool begins); /* atomic; release */
static inline bool ch__page_has_start(const struct ch__pool *pool, uint32_t offset)
{
	uint32_t granule = offset / CH__GRANULE_BYTES;
	return atomic_load_explicit(&pool->starts[granule >> 6], memory_order_acquire) >>
		       (granule & 63) &
	       1;
}
/* Under the page's busy the answer stays true. */
static inline bool ch__page_uses(const struct ch__pool *pool, uint32_t offset)
{
	uint32_t granule = offset / CH__GRANULE_BYTES;
	return CH_LOAD_RELAXED(&pool->used[granule >> 6]) >> (granule & 63) & 1;
}
/* The same as the next function, behind the first looks, for words of the bitmap below `at`. */
uint32_t ch__page_find_far_start(const struct ch__pool *, uint32_t first, uint32_t at);
/* Returns the offset of the last start at or below `offset` in its page, or UINT32_MAX. In a
 * span: of a start nearby, or the last start of the first page. No lock; signal-safe. Every lookup
 * comes here, and no branch predictor knows where blocks begin: so two words of the bitmap (1 KiB
 * of code) are looked at without a branch between them. */
static inline uint32_t ch__page_find_start(const struct ch__pool *pool, uint32_t offset)
{
	uint32_t granule = offset / CH__GRANULE_BYTES, first = offset >> pool->page_log2;
	const struct ch__page *page = &pool->pages[first];
	if (CH_UNLIKELY(CH_LOAD_RELAXED(&page->state) == CH__PAGE_SPAN)) {
		uint32_t index = first;
		first = CH_LOAD_RELAXED(&page->span_first);
		/* While a page becomes a span, span_first may be of an earlier span. */
		if (CH_UNLIKELY(first > index))
			return UINT32_MAX;
	}
	uint32_t lowest = first << (pool->page_log2 - 9), at = granule >> 6;
	uint64_t word = atomic_load_explicit(&pool->starts[at], memory_order_acquire)
			<< (63 - (granule & 63));
	uint64_t below = 0;
	if (CH_LIKELY(at > lowest))
		below = atomic_load_explicit(&pool->starts[--at], memory_order_acquire);
	uint64_t is_below = 0u - (uint64_t)(word == 0);
	word |= below & is_below;
	uint32_t top = granule - (((granule & 63) + 1) & (uint32_t)is_below);
	if (CH_UNLIKELY(!word))
		return ch__page_find_far_start(pool, first, at);
	return (top - (uint32_t)__builtin_clzll(word)) * CH__GRANULE_BYTES;
}
/* The same, but looks at one word only, up to 512 bytes below `offset`. */
static inline uint32_t ch__page_near_start(const struct ch__pool *pool, uint32_t offset)
{
	uint32_t granule = offset / CH__GRANULE_BYTES;
	uint64_t word = atomic_load_explicit(&pool->starts[granule >> 6], memory_order_acquire)
			<< (63 - (granule & 63));
	return word ? (granule - (uint32_t)__builtin_clzll(word)) * CH__GRANULE_BYTES : UINT32_MAX;
}

/* The rest is for files of pages/ only. */
void ch__granules_reset_cursors(struct ch__pool *, uint32_t page) CH_REQUIRES(ch__role_busy);
/* The longest run of unused granules. */
uint32_t ch__granules_largest_hole(const struct ch__pool *, uint32_t page);
/* Returns a fault of the page's bitmaps, or of traps where has_memory; NULL when there is none. Of
 * a missing trap, `where` gets the address. */
const char *ch__granules_fault(const struct ch__pool *, uint32_t page, bool has_memory,
			       uintptr_t *where) CH_COLD;
/* Takes Valgrind's access to the unused granules of a page away. */
void ch__granules_revoke_unused(const struct ch__pool *, uint32_t page);
