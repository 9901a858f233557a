/* SPDX-License-Identifier: MIT
 * inner.h: shared and seen by the files of pages/ only: the views of the pool's memory, its chunks,
 * the table of legal moves. */
#pragma once

#include "os/locks/lock.h"
#include "os/locks/moves.h"
#include "pages/write.h"

/* The two views of a pool's memory, by each backend. */
struct ch__views {
	enum ch_backend backend; /* not AUTO */
	struct ch__os_held file;  /* MEMFD: the memory, open for the life of the views; PROCMEM: the
				   * process's memory; else none */
	uint8_t *exec, *write;    /* offset 0 of the RX and of the RW view; of private memory, write
				   * is a copy */
	_Atomic(uint32_t) *is_own; /* PROCMEM: file leads to the process, not to a parent */
	_Atomic(uint32_t) *exchanges; /* PROCMEM: odd while a page is exchanged; wiped in a child */
	struct ch__lock *opening;  /* PROCMEM: held while file is opened, nobody waits for it; free
				    * in a child: wiped */
	size_t bytes;             /* of the memory */
	size_t runtime_bytes;     /* committed first, never given back: revives other ranges */
	size_t guard_bytes;       /* without access, on both sides of both views */
	bool has_exec, has_write; /* the address ranges are reserved */
	bool is_part_inherited;   /* a child of fork has some of the ranges all the same */
	bool has_large_pages;     /* asked for, so that a fork copies fewer entries */
	uint8_t sync_steps;       /* set of enum ch__sync_step */
	bool has_code; /* the ranges hold the memory: false in the child of a fork without copy */
};

/* Whether the code is private memory, with a copy of the code at write. */
static inline bool ch__views_are_private(const struct ch__views *v)
{
	return v->backend == CH_BACKEND_PROCMEM;
}
/* The end of the one write path. Returns false with errno when execution does not follow. */
bool ch__views_sync(struct ch__views *, const uint8_t *exec, size_t bytes);
/* Returns 0 or errno. The runtime page is committed and trap-filled, the rest not executable. */
int ch__views_create(struct ch__views *, const struct ch__pool_config *);
void ch__views_destroy(struct ch__views *); /* keeps errno */
/* Memory, then traps, then execute access. Returns false with errno: the range has no memory, or
 * traps. */
bool ch__views_commit(struct ch__views *, size_t offset, size_t bytes);
/* Takes access, then memory. Returns false when the system refused one of both: the write view
 * keeps its bytes, and the range may have lost access. */
bool ch__views_decommit(struct ch__views *, size_t offset, size_t bytes);
/* Takes access, in one mapping. Returns false when the system refused. */
bool ch__views_deny(struct ch__views *, size_t offset, size_t bytes);

/* Gives the write view of a range without memory private copies of one chunk of traps, which take
 * memory as they are written. False: the range has some copies; ch__views_leave_room ends them. */
bool ch__views_room(struct ch__views *, size_t offset, size_t bytes, size_t chunk_bytes);
/* Commits a range with what the copies hold. Returns false with errno; all bytes are as before, but
 * the range may run (*runs). */
bool ch__views_land_room(struct ch__views *, size_t offset, size_t bytes, bool *runs);
/* Maps the range's memory in place of the copies. False: its write view may have no access. */
bool ch__views_leave_room(struct ch__views *, size_t offset, size_t bytes);

/* For a child of fork: a write view of the same kind of memory and, for DUAL, an exec view. The
 * copy has memory where ch__views_populate gives some, and is destroyed in any case. */
bool ch__views_copy(const struct ch__views *, struct ch__views *copy);
/* Gives memory to a range that is mapped RW at `to`. */
bool ch__views_populate(const struct ch__views *, size_t offset, size_t bytes, uint8_t *to);
/* In the child, where the views are gone (DONTFORK): reserves their addresses, without access. */
bool ch__views_reserve_again(struct ch__views *);
/* Puts the copy at the views' addresses, with access everywhere. */
bool ch__views_adopt(struct ch__views *, struct ch__views *copy);
/* Makes lent pages RX again, with the bytes of the write view. Returns false with errno when the
 * system refused; some pages may have changed. */
bool ch__views_take_back(struct ch__views *, size_t offset, size_t bytes);
void ch__views_forget(struct ch__views *);  /* all access away, memory unreferenced */
bool ch__views_exclude(struct ch__views *); /* from fork, and the RW view from core dumps */

bool ch__private_map(struct ch__views *);
bool ch__private_take_back(struct ch__views *, size_t offset, size_t bytes);
/* Carries the copy to exec. Where threads run, at most 1 byte of each aligned 8 may differ. */
bool ch__private_write(struct ch__views *, size_t from, size_t to);
/* Exchanges the system's page around the offset for a page with the copy's bytes, between two
 * instructions of threads in the page. Returns false with errno; then nothing changed. */
bool ch__private_exchange(struct ch__views *, size_t offset);
/* Makes file lead to the calling process's memory; a child of fork inherits the parent's. Returns
 * false also, without errno, while another thread is doing so. */
bool ch__private_open(struct ch__views *);

#if CH_CHECK >= 2
extern struct ch__moves ch__page_moves;
#endif

struct ch__chunk {
	uint32_t used;  /* pages that are not FREE */
	uint32_t pages; /* with memory; FREE ones are on the zone's free list */
	uint8_t zone;   /* enum ch__zone, where there are pages; of a free chunk the last zone */
	bool lingers;   /* given up, but the system refused the memory: it still traps */
};

struct ch__pool_inner {
	struct ch__lock lock; /* the pages lock */
	struct ch__views views;
	struct ch__pool_config config; /* [const]; but `tried` is the creation's */
	CH_PT_GUARDED_BY(ch__role_pages) struct ch__chunk *chunks;
	CH_BY_PAGES uint32_t spans_retired; /* CH__SPAN_RETIRED */
	CH_BY_PAGES uint32_t left_unused;   /* pages that the last trim left, or fewer since */
	CH_BY_PAGES uint32_t looked_in_need; /* page where a search of full pages ended */
	CH_BY_PAGES bool is_short; /* the last step was refused: a chunk grows by what is asked */
	size_t table_bytes; /* of all that map_tables (pool.c) lays out: one private mapping */
	uintptr_t *parts; /* Valgrind: the address of each part, by its first granule */
	uint8_t *notes; /* checked builds: published bytes, by offset (sync.c); NULL: none */
	bool has_copy;         /* the child of a fork gets code */
	struct ch__views copy; /* for the child, where memory is shared */
};

void ch__pages_lock(struct ch__pool *) CH_ACQUIRES(ch__role_pages) CH_EXCLUDES(CH__RIGHT_OF_PAGES);
void ch__pages_unlock(struct ch__pool *) CH_RELEASES(ch__role_pages);

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

static inline uintptr_t ch__pool_page_exec(const struct ch__pool *pool, uint32_t page)
{
	return pool->exec_base + ((uintptr_t)page << pool->page_log2);
}

static inline size_t ch__pool_page_offset(const struct ch__pool *pool, uint32_t page)
{
	return pool->runtime_bytes + ((size_t)page << pool->page_log2); /* in the views */
}

static inline enum ch__page_state ch__page_state(const struct ch__page *page)
{
	return (enum ch__page_state)CH_LOAD_RELAXED(&page->state);
}

void ch__valgrind_pool_born(const struct ch__pool *) CH_COLD;
void ch__valgrind_pool_dead(const struct ch__pool *) CH_COLD;
void ch__valgrind_access(const struct ch__pool *, uintptr_t exec, size_t bytes,
			 bool has_access) CH_COLD;
void ch__valgrind_part_open(const struct ch__pool *, uintptr_t exec, size_t bytes) CH_COLD;
/* Memcheck reports reads and writes of bytes without access, in both views. */
static inline void ch__valgrind_set(const struct ch__pool *pool, uintptr_t exec, size_t bytes,
				    bool has_access)
{
	if (CH_UNLIKELY(pool->is_translated))
		ch__valgrind_access(pool, exec, bytes, has_access);
}
static inline void ch__valgrind_open(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	if (CH_UNLIKELY(pool->is_translated))
		ch__valgrind_part_open(pool, exec, bytes);
}
