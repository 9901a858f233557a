/* SPDX-License-Identifier: MIT
 * inner.h: shared and seen by the files of pages/ only: the pool's lists, the table of legal
 * moves. */
#ifndef CH_PAGES_INNER_H
#define CH_PAGES_INNER_H

#include "os/lock.h"
#include "os/moves.h"
#include "pages/pool.h"
#include "pages/views.h"

#if CH_CHECK >= 2
extern struct ch__moves ch__page_moves;
#endif

struct ch__chunk {
	uint32_t used;  /* pages that are not FREE */
	uint32_t pages; /* with memory, from the first on; FREE ones are on the zone's free list */
	uint8_t zone;   /* enum ch__zone, where there are pages; of a free chunk the last zone */
	bool lingers;   /* given up, but the system refused the memory: it still traps */
};

struct ch__pool_inner {
	struct ch__lock lock; /* the pages lock */
	struct ch__views views;
	struct ch__pool_config config; /* [const]; but `tried` is the creation's */
	CH_AT_PAGES struct ch__chunk *chunks;
	CH_BY_PAGES uint32_t spans_retired; /* CH__SPAN_RETIRED */
	void *tables; /* the pool itself, its records and bitmaps: one private mapping */
	size_t table_bytes;
	uintptr_t *parts; /* Valgrind: the address of each part, by its first granule */
#if CH_CHECK >= 2
	uint8_t *notes; /* published bytes, by offset; NULL: none */
#endif
	bool has_copy;         /* the child of a fork gets code */
	struct ch__views copy; /* for the child, where memory is shared */
};

void ch__pages_lock(struct ch__pool *) CH_ACQUIRES(ch__role_pages) CH_EXCLUDES(CH__RIGHT_OF_PAGES);
void ch__pages_unlock(struct ch__pool *) CH_RELEASES(ch__role_pages);

/* Lists of pages: heads are numbered behind the pages; a head's next is the first page, its prev
 * the last. FREE pages of committed chunks are listed by zone, PARTLY pages by frame number. */
enum { CH__LISTS = CH__ZONES + CH__FRAME_NUMBERS };
static inline uint32_t ch__free_list(const struct ch__pool *pool, unsigned zone)
{
	return pool->page_count + zone;
}
static inline uint32_t ch__partly_list(const struct ch__pool *pool, unsigned frame)
{
	return pool->page_count + CH__ZONES + frame;
}

static inline uint32_t ch__pool_granules(const struct ch__pool *pool) /* of a page */
{
	return UINT32_C(1) << (pool->page_log2 - 3);
}

static inline size_t ch__pool_chunk_bytes(const struct ch__pool *pool)
{
	return (size_t)1 << pool->chunk_log2;
}

static inline uint32_t ch__pool_chunk_pages(const struct ch__pool *pool)
{
	return UINT32_C(1) << (pool->chunk_log2 - pool->page_log2);
}

static inline uint32_t ch__pool_chunk_of(const struct ch__pool *pool, uint32_t page)
{
	return page >> (pool->chunk_log2 - pool->page_log2);
}

/* Whether the page has memory; bytes without a block then hold traps. */
static inline bool ch__pool_page_is_backed(const struct ch__pool *pool, uint32_t page)
	CH_REQUIRES(ch__role_pages)
{
	uint32_t chunk = ch__pool_chunk_of(pool, page);
	return page - chunk * ch__pool_chunk_pages(pool) < pool->inner->chunks[chunk].pages;
}

static inline unsigned ch__pool_zone_at(const struct ch__pool *pool, uint32_t page)
	CH_REQUIRES(ch__role_pages)
{
	return pool->inner->chunks[ch__pool_chunk_of(pool, page)].zone;
}

static inline uintptr_t ch__pool_page_exec(const struct ch__pool *pool, uint32_t page)
{
	return pool->exec_base + ((uintptr_t)page << pool->page_log2);
}

static inline enum ch__page_state ch__page_state(const struct ch__page *page)
{
	return (enum ch__page_state)atomic_load_explicit(&page->state, memory_order_relaxed);
}

#if CH_CHECK >= 2
/* The runtime page, or a part of a chunk, was committed and holds traps. */
void ch__ledger_open(struct ch__pool *, size_t offset, size_t bytes);
void ch__ledger_destroy(struct ch__pool *);
#else
#define ch__ledger_open(pool, offset, bytes) ((void)0)
#define ch__ledger_destroy(pool) ((void)0)
#endif

static inline void ch__span_set_word(struct ch__pool *pool, uint32_t first, unsigned word)
	CH_REQUIRES(ch__role_pages)
{
	atomic_store_explicit(&pool->pages[first].span_use, (uint8_t)word, memory_order_relaxed);
}
/* Takes execute access from a span or a page, for the use. Returns false with errno when the system
 * refused: the use is noted all the same, and some pages may have lost execute access. A page that
 * is one mapping keeps execute access. */
bool ch__span_lend(struct ch__pool *, uint32_t first, enum ch__span_use)
	CH_REQUIRES(ch__role_pages);
/* Makes the span's pages RX like ordinary pages, with traps in pages that were not RX; those of a
 * room have no access and no copies. Returns false when the system refused: the span is retired. */
bool ch__span_take_back(struct ch__pool *, uint32_t first) CH_REQUIRES(ch__role_pages);
bool ch__span_is_retired(const struct ch__pool *, uint32_t page) CH_REQUIRES(ch__role_pages);
/* In a child of fork without code: makes constants read as zero. */
void ch__spans_leave_zeros(struct ch__pool *) CH_REQUIRES(ch__role_pages);
/* In a child of fork with all pages RX: lends spans and shared pages for their uses again. */
bool ch__spans_lend_again(struct ch__pool *) CH_REQUIRES(ch__role_pages);

void ch__valgrind_pool_born(const struct ch__pool *) CH_COLD;
void ch__valgrind_pool_dead(const struct ch__pool *) CH_COLD;
void ch__valgrind_access(const struct ch__pool *, uintptr_t exec, size_t bytes,
			 bool has_access) CH_COLD;
/* Memcheck reports reads and writes of bytes without access, in both views. */
static inline void ch__valgrind_grant(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	if (CH_UNLIKELY(pool->is_translated))
		ch__valgrind_access(pool, exec, bytes, true);
}
static inline void ch__valgrind_revoke(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	if (CH_UNLIKELY(pool->is_translated))
		ch__valgrind_access(pool, exec, bytes, false);
}

#endif
