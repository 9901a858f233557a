/* SPDX-License-Identifier: MIT
 * pages.h: the pool of code pages: reservation, views, commit and release, page records, the
 * bitmaps of used granules and of block starts, poison, fork. It knows no blocks: callers give it
 * ranges.
 *
 *   each view   [guard][runtime page][pool .......................][guard]   RW at RX + delta
 *   in memory          0             runtime_bytes                 bytes
 *   code page   +0 hot -> ... trap fill ... <- cold | end
 *
 * Offsets are bytes from the pool's base; a granule is 8 bytes; a chunk is 1 MiB (the pool when
 * that is smaller), and gets its memory in steps, from its first page on. The pages in use of one
 * chunk are of one zone, because unwinders are told of whole chunks, each zone in another way; a
 * chunk whose pages are all FREE may change its zone.
 *
 * Locks: the pages lock (in the pool) guards lists, states (their legal moves: moves.c) and commit.
 * A page's `busy` guards its cursors and used bits; it is held for some instructions, only inside a
 * region (ch__pages_lock within fork and the check walk). */
#ifndef CH_PAGES_PAGES_H
#define CH_PAGES_PAGES_H

#include "arch/arch.h"
#include "os/meta.h"
#include "os/os.h"
#include "os/valgrind.h"

#include <stdatomic.h>

enum {
	CH__GRANULE_BYTES = 8,
	CH__CHUNK_BYTES = 1 << 20,
	CH__LARGE_CHUNK_BYTES = 2 << 20,
	CH__PAGE_NONE = 0xffffffff,
	CH__FRAME_NUMBERS = 22, /* pages of different frame numbers share no blocks */
};

/* Takes the pages lock. */
#define CH_TAKES_PAGES CH_EXCLUDES(ch__role_pages, CH__STANDING)

enum ch__page_state { CH__PAGE_FREE, CH__PAGE_OPEN, CH__PAGE_PARTLY, CH__PAGE_FULL, CH__PAGE_SPAN };

/* How unwinders are told of a chunk: one FDE a page, one a slot of each page, or what each block
 * brings along. */
enum ch__zone { CH__ZONE_PAGES, CH__ZONE_SLOTS, CH__ZONE_OWN, CH__ZONES };

enum ch__backend {
	CH__BACKEND_AUTO,
	CH__BACKEND_DUAL,
	CH__BACKEND_MEMFD,
	CH__BACKEND_PROCMEM,
};

/* What a span is for, or a page that blocks of one kind share, and so how it is mapped at exec. No
 * page is ever writable and executable, and execute access comes back by a fresh mapping. */
enum ch__span_use {
	CH__SPAN_CODE,     /* RX, written through the write view; pages of code, too */
	CH__SPAN_IN_PLACE, /* RW until ch__pool_land_span, RX from then on */
	CH__SPAN_RODATA,   /* RW until then, R from then on */
	CH__SPAN_DATA,     /* RW */
	CH__PAGE_RODATA,   /* R, written through the write view */
	CH__PAGE_DATA,     /* RW */
	CH__SPAN_USE = 7,
	CH__SPAN_LANDED = 8,
	/* Released, but the system does not give the pages execute access again: nobody's, without
	 * it, full of traps in the write view. */
	CH__SPAN_RETIRED = 16,
};

struct ch__page {
	/* 1 while cursors or used bits change; acq/rel. No two pages share a line of the cache:
	 * their threads change them at once. */
	_Alignas(CH__LINE_BYTES) _Atomic(uint32_t) busy;
	_Atomic(uint8_t) state; /* enum ch__page_state [pages]; relaxed reads by lookup of spans */
	uint8_t frame;          /* frame number of its blocks [pages]; constant while it has some */
	uint8_t has_failed;     /* an allocation did not fit since it was listed [busy] */
	/* enum ch__span_use: SPAN: in its first page; of a shared page [pages]; relaxed */
	_Atomic(uint8_t) span_use;
	uint16_t hot_cursor;       /* granule in page: next place to try for hot [busy] */
	uint16_t cold_cursor;      /* granule in page: cold is placed below it [busy] */
	_Atomic(uint16_t) used_granules;  /* stored under busy */
	_Atomic(uint16_t) freed_granules; /* given back since taken, or since it failed; likewise */
	/* Granules that found no room in the whole page, and nothing came free since [busy] */
	uint16_t refused_hot, refused_cold;
	bool is_lost;           /* SPAN, while a child of fork looks for those that no block has */
	uint32_t span_pages;    /* SPAN: pages in the run; 0 but in its first page [pages] */
	_Atomic(uint32_t) span_first; /* SPAN: the run's first page [pages]; relaxed in lookup */
	uint32_t next, prev;    /* list links [pages] */
};

struct ch__pool_config {
	size_t pool_bytes;      /* power of two */
	size_t page_bytes;      /* power of two, 4096..65536, >= the system's page */
	uintptr_t near_address; /* 0 = near the library */
	enum ch__backend backend;
	bool random_alias;      /* false under TSan */
	bool is_for_forks;      /* a fork copies few entries: large pages, chunks of 2 MiB */
	/* enum ch__zone of the chunks in which pages of a frame number lie */
	uint8_t zones[CH__FRAME_NUMBERS];
	uint8_t uses[CH__FRAME_NUMBERS]; /* enum ch__span_use of their pages: CODE, PAGE_... */
	/* Hears, under the pages lock, of each chunk that loses its memory or changes its zone: all
	 * its pages are FREE. NULL: nobody asks. */
	void (*gone)(void *arg, uint32_t chunk);
	void *gone_arg;
	/* Gets "NAME: CALL ERROR; " of each backend that cannot be, unless NULL. */
	struct ch__text *tried;
};

struct ch__pool {
	uintptr_t exec_base;    /* of page 0, at a multiple of 64 MiB or a smaller pool [const] */
	ptrdiff_t delta;        /* write = exec + delta [const] */
	size_t pool_bytes;      /* [const] */
	uint32_t page_log2;     /* [const] */
	uint32_t page_count;    /* [const] */
	uint32_t chunk_log2;    /* [const] */
	uint32_t chunk_count;   /* [const] */
	/* Before each stub: code is not patched while it runs, and the write view is so near that
	 * what a branch leads by is data there; or 0 [const] */
	uint32_t stub_lead_bytes;
	uintptr_t runtime_exec; /* the runtime page, below exec_base [const] */
	size_t runtime_bytes;   /* [const] */
	enum ch__backend backend; /* the one in use [const] */
	bool is_translated;       /* by Valgrind, which judges accesses too [const] */
	uint8_t sync_steps;       /* set of enum ch__sync_step [const] */
	struct ch__page *pages; /* and behind them the heads of lists [const pointer] */
	_Atomic(uint64_t) *used;   /* one bit a granule; written under the page's busy */
	_Atomic(uint64_t) *starts; /* one bit a granule: a part begins; release, lookup acquires */
	struct ch__meta *meta;  /* [const] */
	struct ch__pool_inner *inner; /* views, lists, chunk states, lock: pages/inner.h */
	_Atomic(uint32_t) pages_used, pages_peak, pages_committed; /* gauges, relaxed */
	/* No page from here on ever had memory: they are FREE, and nobody walks over their records.
	 * Grows under [pages]; relaxed: who is told of a page later has its record from there. */
	_Atomic(uint32_t) pages_end;
	_Atomic(bool) wants_trim; /* stored under [pages]; relaxed: who frees next sees it, too */
};

/* --- life --- */
/* 0, or errno of the call that failed; EINVAL for a bad configuration. The runtime page is
 * committed and trap-filled. */
int ch__pool_create(const struct ch__pool_config *, struct ch__meta *, struct ch__pool **);
void ch__pool_destroy(struct ch__pool *);
extern const char *const ch__backend_names[]; /* by enum ch__backend; of AUTO there is none */
/* False: none has that name. */
bool ch__backend_of_name(const char *name, enum ch__backend *);

static inline uint32_t ch__pool_pages_end(const struct ch__pool *pool)
{
	return atomic_load_explicit(&pool->pages_end, memory_order_relaxed);
}

/* --- addresses --- */
static inline bool ch__pool_has(const struct ch__pool *pool, uintptr_t exec)
{
	return exec - pool->exec_base < pool->pool_bytes;
}
/* Opens a write window, which ch__pool_sync of what was written ends in the same function. */
static inline uint8_t *ch__pool_write(const struct ch__pool *pool, uintptr_t exec)
	CH_ACQUIRES(ch__role_window) CH_UNANALYSED("it makes the role")
{
	return (uint8_t *)(exec + (uintptr_t)pool->delta);
}
/* The same of an OPEN block, whose commit syncs all of it: nothing leads there before. */
static inline uint8_t *ch__pool_lend(const struct ch__pool *pool, uintptr_t exec)
{
	return (uint8_t *)(exec + (uintptr_t)pool->delta);
}
/* Code bytes are read through the RW view too: it is never without access, so a signal handler may
 * read it. */
static inline const uint8_t *ch__pool_read(const struct ch__pool *pool, uintptr_t exec)
{
	return (const uint8_t *)(exec + (uintptr_t)pool->delta);
}

/* --- the end of the one write path --- */
/* What execution needs beside the instruction cache to follow a store. */
enum ch__sync_step {
	CH__SYNC_VALGRIND = 1, /* its translations are discarded */
	CH__SYNC_REMAP = 2,    /* the page is mapped again: emulators forget its translations */
	CH__SYNC_COPY = 4,     /* what was written is a copy, and is carried over */
};
void ch__pool_sync_steps(const struct ch__pool *, uintptr_t exec, size_t bytes) CH_COLD;
/* The ledger of checked builds (ledger.c): what is written in a range must be what was published
 * there, or the process dies and says of what. The caller holds what keeps others from writing. */
#if CH_CHECK >= 2
/* By offsets from the runtime page: an address would stay on the stack, and hold its block. */
void ch__ledger_note(const struct ch__pool *, size_t offset, size_t bytes);
void ch__ledger_check(const struct ch__pool *, size_t offset, size_t bytes, const char *what);
#define CH_PUBLISHED(pool, exec, bytes, what) \
	ch__ledger_check(pool, (exec) - (pool)->runtime_exec, bytes, what)
#else
#define ch__ledger_note(pool, offset, bytes) ((void)0)
#define CH_PUBLISHED(pool, exec, bytes, what) ((void)0)
#endif
/* Publish bytes that were lent: execution at the RX address follows. */
static inline void ch__pool_publish(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
{
	if (CH_UNLIKELY(pool->sync_steps))
		ch__pool_sync_steps(pool, exec, bytes);
	else
		ch__arch_sync((const uint8_t *)exec, bytes);
	ch__ledger_note(pool, exec - pool->runtime_exec, bytes);
}
/* The same of what was written in a window, which it ends. */
static inline void ch__pool_sync(const struct ch__pool *pool, uintptr_t exec, size_t bytes)
	CH_RELEASES(ch__role_window) CH_UNANALYSED("it makes the role")
{
	ch__pool_publish(pool, exec, bytes);
}
/* The aligned 8 bytes at exec change as one, while others run or load them, and are published.
 * False: errno, and nothing changed. The caller keeps others from writing them. */
bool ch__pool_store(const struct ch__pool *, uintptr_t exec, uint64_t word);
/* Fill with traps, then sync. */
void ch__pool_poison(const struct ch__pool *, uintptr_t exec, size_t bytes);

/* --- what Valgrind is told (valgrind.c), where pool->is_translated --- */
/* A block's part has its final place; is withdrawn and holds traps. */
void ch__valgrind_part_born(const struct ch__pool *, uintptr_t exec, size_t bytes) CH_COLD;
void ch__valgrind_part_dead(const struct ch__pool *, uintptr_t exec) CH_COLD;

/* --- pages --- */
/* An OPEN page of the frame number, its free bytes trap-filled: a PARTLY one, or a FREE one. Pages
 * of data lose execute access until they are FREE again, or retired as a span is.
 * CH__PAGE_NONE when no page fits (errno 0: the pool is full, or the rest of it is of other
 * zones) or the OS has no memory, and what the pool has would not do if all of it were free
 * (errno): no collection would help. */
uint32_t ch__pool_take_page(struct ch__pool *, uint8_t frame) CH_TAKES_PAGES;
/* When that found none: a FULL page that has the room all the same, in holes that were passed over
 * or are less than the 1/32 that lists a page again. It is OPEN; CH__PAGE_NONE when there is none.
 * A page is searched once after each of its frees. */
uint32_t ch__pool_take_page_in_need(struct ch__pool *, uint8_t frame, size_t hot_bytes,
				    size_t cold_bytes) CH_TAKES_PAGES;
void ch__pool_retire_page(struct ch__pool *, uint32_t page) CH_TAKES_PAGES; /* the caller's */
/* Granules of the page were given back: list it again after 1/32 of it, free it with the last.
 * Returns true when the page became FREE. */
bool ch__pool_note_freed(struct ch__pool *, uint32_t page) CH_TAKES_PAGES;
/* A run of whole FREE pages. First page's index, or CH__PAGE_NONE with errno as above. It may
 * cross chunks, which all are of its zone then. */
uint32_t ch__pool_take_span(struct ch__pool *, uint32_t pages, uint8_t frame) CH_TAKES_PAGES;
void ch__pool_release_span(struct ch__pool *, uint32_t first) CH_TAKES_PAGES;
/* The span keeps so many of its pages, which are code; the others are FREE. */
void ch__pool_cut_span(struct ch__pool *, uint32_t first, uint32_t kept) CH_TAKES_PAGES;
/* Spans that are retired come back, if the system lets them. False: errno, and one more would not
 * come back either. */
bool ch__pool_retry_retired(struct ch__pool *) CH_TAKES_PAGES;
/* A span that was just taken is of this use from here on. False: errno; release it. */
bool ch__pool_lend_span(struct ch__pool *, uint32_t first, enum ch__span_use) CH_TAKES_PAGES;
/* What was written in place is taken over, so that the write view has it. */
void ch__pool_take_over(const struct ch__pool *, uintptr_t exec, size_t bytes);
/* It is complete: access as its use says, also when it had it. Code is not yet published. False:
 * errno; it is as it was, or a part of it: try again, or release it. */
bool ch__pool_land_span(struct ch__pool *, uint32_t first) CH_TAKES_PAGES;
static inline enum ch__span_use ch__pool_span_use(const struct ch__pool *pool, uint32_t first)
{
	return (enum ch__span_use)(
		atomic_load_explicit(&pool->pages[first].span_use, memory_order_relaxed) &
		CH__SPAN_USE);
}
/* Whether its pages are RX, and so hold what the write view does. */
bool ch__pool_span_runs(const struct ch__pool *, uint32_t first);
/* Gives chunks whose pages are all FREE back to the OS, save one. */
void ch__pool_trim(struct ch__pool *) CH_TAKES_PAGES;
/* The same, where several are and have more than a quarter of the memory. For who freed code, and
 * holds no lock. */
static inline void ch__pool_trim_if_worth(struct ch__pool *pool) CH_TAKES_PAGES
{
	if (CH_UNLIKELY(atomic_load_explicit(&pool->wants_trim, memory_order_relaxed)))
		ch__pool_trim(pool);
}

static inline void ch__page_lock(struct ch__page *page)
	CH_ACQUIRES(ch__role_busy) CH_UNANALYSED("it makes the role")
{
	while (CH_UNLIKELY(atomic_exchange_explicit(&page->busy, 1, memory_order_acquire)))
		while (atomic_load_explicit(&page->busy, memory_order_relaxed))
			ch__arch_pause();
}
static inline void ch__page_unlock(struct ch__page *page)
	CH_RELEASES(ch__role_busy) CH_UNANALYSED("it makes the role")
{
	atomic_store_explicit(&page->busy, 0, memory_order_release);
}

/* --- granules of a page, under its busy --- */
/* Reserve hot bytes upwards and cold bytes (may be 0) downwards; offsets from the pool's base.
 * False: does not fit. */
bool ch__page_reserve(struct ch__pool *, uint32_t page, size_t hot_bytes, size_t cold_bytes,
		       uint32_t *hot, uint32_t *cold) CH_REQUIRES(ch__role_busy);
/* Whether they would fit with the cursors at the page's ends; then they are put there. */
bool ch__page_has_room(struct ch__pool *, uint32_t page, size_t hot_bytes, size_t cold_bytes)
	CH_REQUIRES(ch__role_busy);
/* Give a range of used granules back (it holds traps already); moves a cursor back when the range
 * ends at it. */
void ch__page_give_back(struct ch__pool *, uint32_t page, uint32_t offset, size_t bytes)
	CH_REQUIRES(ch__role_busy);
void ch__page_set_start(struct ch__pool *, uint32_t offset);   /* atomic; release */
static inline bool ch__page_has_start(const struct ch__pool *pool, uint32_t offset)
{
	uint32_t granule = offset / CH__GRANULE_BYTES;
	return atomic_load_explicit(&pool->starts[granule >> 6], memory_order_acquire) >>
		       (granule & 63) &
	       1;
}
/* The starts `mask` of one word of the bitmap, which holds 64 granules. */
void ch__page_clear_starts(struct ch__pool *, uint32_t word, uint64_t mask);
/* Offset of the last start at or below `offset` in its page; UINT32_MAX when none. No lock;
 * signal-safe. Every lookup goes through it: two words of the bitmap, which are 1 KiB of code, are
 * looked at without a branch between them, since no branch predictor knows where blocks begin. */
static inline uint32_t ch__page_find_start(const struct ch__pool *pool, uint32_t offset)
{
	uint32_t granule = offset / CH__GRANULE_BYTES, first = offset >> pool->page_log2;
	const struct ch__page *page = &pool->pages[first];
	if (CH_UNLIKELY(atomic_load_explicit(&page->state, memory_order_relaxed) ==
			CH__PAGE_SPAN)) {
		uint32_t index = first;
		first = atomic_load_explicit(&page->span_first, memory_order_relaxed);
		/* A page that is becoming a span may show any first page of an earlier one. */
		if (CH_UNLIKELY(first > index))
			return UINT32_MAX;
	}
	uint32_t lowest = first << (pool->page_log2 - 9), at = granule >> 6;
	uint64_t word = atomic_load_explicit(&pool->starts[at], memory_order_acquire)
			<< (63 - (granule & 63));
	uint64_t below = 0;
	if (CH_LIKELY(at > lowest))
		below = atomic_load_explicit(&pool->starts[--at], memory_order_acquire);
	uint32_t is_below = 0u - (uint32_t)(word == 0);
	word |= below & (uint64_t)(int64_t)(int32_t)is_below;
	uint32_t top = (granule & ~is_below) | ((at * 64 + 63) & is_below);
	while (CH_UNLIKELY(!word)) {
		if (at <= lowest)
			return UINT32_MAX;
		word = atomic_load_explicit(&pool->starts[--at], memory_order_acquire);
		top = at * 64 + 63;
	}
	return (top - (uint32_t)__builtin_clzll(word)) * CH__GRANULE_BYTES;
}

/* --- room: a snapshot, without a lock --- */
/* Bytes that no block has, and the most of them in a row: whole pages, or a hole of one. */
void ch__pool_count_free(const struct ch__pool *, uint64_t *bytes, uint64_t *largest);

/* --- fork --- */
/* Takes the pages lock, also when it returns false (no memory for the copy: the child's views have
 * no access). */
bool ch__pool_fork_prepare(struct ch__pool *, bool has_child_code) CH_ACQUIRES(ch__role_pages);
void ch__pool_fork_parent(struct ch__pool *) CH_RELEASES(ch__role_pages);
/* Maps the copy at the same addresses; false on failure and for NONE: the views stay without
 * access, and no code byte may be read or written. Releases the lock. No page's busy is held: who
 * has one is in a region, which a fork awaits, or holds the lock. */
bool ch__pool_fork_child(struct ch__pool *) CH_RELEASES(ch__role_pages);

/* Broken page invariants: writes a reason, returns false. */
bool ch__pool_check(struct ch__pool *, char *reason, size_t reason_bytes) CH_TAKES_PAGES;

#endif
