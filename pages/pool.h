/* SPDX-License-Identifier: MIT
 * pool.h: the pool of code pages and the records of its pages: its life, its pages and spans, fork.
 * A pool knows no blocks: callers give ranges.
 *
 *   each view   [guard][runtime page][pool .......................][guard]   RW at RX + delta
 *   in memory          0             runtime_bytes                 bytes
 *   code page   +0 hot -> ... trap fill ... <- cold | end
 *
 * Offsets are bytes from the pool's base. Granules, chunks and zones: docs/design.md, section 4.
 *
 * Locks: the pages lock (in the pool) guards lists, states (legal moves: chunks.c) and commit. A
 * page's `busy` guards its cursors and used bits; busy is held inside a region or under the pages
 * lock, for some instructions, and by ch__pool_check for a look at all bytes of the page. */
#pragma once

#include "arch/arch.h"
#include "os/os.h"
#include "os/valgrind.h"

#include <stdatomic.h>

enum {
	CH__GRANULE_BYTES = 8,
	CH__CHUNK_BYTES = 1 << 20,
	CH__LARGE_CHUNK_BYTES = 2 << 20,
	CH__PAGE_NO_ACCESS = 0xfffffffe,
	CH__PAGE_NONE = 0xffffffff,
	CH__FRAME_NUMBERS = 22, /* blocks of different frame numbers share no pages */
};

#define CH_TAKES_PAGES CH_EXCLUDES(ch__role_pages, CH__STANDING)

enum ch__page_state { CH__PAGE_FREE, CH__PAGE_OPEN, CH__PAGE_PARTLY, CH__PAGE_FULL, CH__PAGE_SPAN };

/* How unwinders are told of a chunk: an FDE a page, an FDE a slot, or the table of each block. */
enum ch__zone { CH__ZONE_PAGES, CH__ZONE_SLOTS, CH__ZONE_OWN, CH__ZONES };

/* The use of a span, or of a page shared by blocks of one kind, and so its mapping at exec. No page
 * is ever writable and executable, and execute access comes back by a fresh mapping. */
enum ch__span_use {
	CH__SPAN_CODE,     /* RX, written through the write view; pages of code, too */
	CH__SPAN_IN_PLACE, /* RW until ch__pool_land_span, RX from then on */
	CH__SPAN_RODATA,   /* RW until ch__pool_land_span, R from then on */
	CH__SPAN_DATA,     /* RW */
	CH__PAGE_RODATA,   /* R, written through the write view */
	CH__PAGE_DATA,     /* RW */
	CH__SPAN_USE = 7,
	CH__SPAN_LANDED = 8,
	/* Released, but the system refuses to make the pages executable again: they belong to
	 * nobody, cannot run, and are full of traps in the write view. */
	CH__SPAN_RETIRED = 16,
	/* Of code, in whole chunks: not executable, and the write view has private copies of traps.
	 * LANDED: pages from the first on run, up to the rest that is to be cut. */
	CH__SPAN_ROOM = 32,
};

enum { CH__FREED_MANY = UINT16_MAX / 2 }; /* beyond any page */

struct ch__page {
	/* 1 while cursors or used bits change; acq/rel. Each record has a cache line of its own,
	 * because threads change several at once. */
	_Alignas(CH__LINE_BYTES) _Atomic(uint32_t) busy;
	_Atomic(uint8_t) state; /* enum ch__page_state [pages]; relaxed reads by lookup of spans */
	_Atomic(uint8_t) frame; /* number of its blocks [pages]; constant while it has some */
	/* enum ch__span_use [pages]. SPAN: in the first page; else of a shared page */
	_Atomic(uint8_t) span_use;
	uint16_t hot_cursor;       /* granule in page: next place to try for hot [busy] */
	uint16_t cold_cursor;      /* granule in page: cold is placed below [busy] */
	uint16_t cold_next;        /* granule in page: behind the last cold part placed [busy] */
	_Atomic(uint16_t) used_granules;  /* stored under busy */
	/* Given back since an allocation did not fit; CH__FREED_MANY when the page is taken. */
	_Atomic(uint16_t) freed_granules;
	/* In granules, until a free: where both parts of a request are as large as these or larger,
	 * the page has no room. Stored under busy. The store of a free is seq_cst, as is its look
	 * for opens without room: such an open reads the new value, or is told of space. */
	_Atomic(uint16_t) refused_hot, refused_cold;
	bool has_block;         /* SPAN's first page: a block has it [region; cleared: pages] */
	bool has_memory;        /* a page without memory is FREE [pages] */
	uint32_t span_pages;    /* SPAN: pages in the run; 0 except in the first page [pages] */
	_Atomic(uint32_t) span_first; /* SPAN: the run's first page [pages]; relaxed in lookup */
	uint32_t next, prev;    /* list links [pages] */
	uintptr_t taker;        /* ch__lock_self of the last thread that took it; 0: none [pages] */
	size_t landed_bytes;    /* first page of a room: have memory, and may run [pages] */
};

struct ch__pool_config {
	size_t pool_bytes;      /* power of two */
	size_t page_bytes;      /* power of two, 4096..65536, >= the system's page */
	uintptr_t near_address; /* 0 = near the library */
	enum ch_backend backend;
	bool is_for_forks;      /* a fork copies few entries: large pages, chunks of 2 MiB */
	/* by frame number: enum ch__zone of the chunks for such pages */
	uint8_t zones[CH__FRAME_NUMBERS];
	uint8_t uses[CH__FRAME_NUMBERS]; /* by frame number: enum ch__span_use, CODE or PAGE_... */
	/* Called under the pages lock for each chunk that loses its memory or changes its zone,
	 * with all pages FREE. */
	void (*gone)(void *arg, uint32_t chunk);
	void *gone_arg;
	/* Gets "NAME: CALL ERROR" of each backend that was refused. */
	struct ch__text *tried;
};

struct ch__pool {
	uintptr_t exec_base;    /* of page 0; a multiple of 64 MiB, or of a smaller pool [const] */
	ptrdiff_t delta;        /* write = exec + delta [const] */
	size_t pool_bytes;      /* [const] */
	uint32_t page_log2;     /* [const] */
	uint32_t page_count;    /* [const] */
	uint32_t chunk_log2;    /* [const] */
	uint32_t chunk_count;   /* [const] */
	/* Bytes of the lead before each stub, or 0 [const]. A branch then leads by data, in the
	 * write view nearby, because code is not patched while it runs. */
	uint32_t stub_lead_bytes;
	uintptr_t runtime_exec; /* the runtime page, below exec_base [const] */
	size_t runtime_bytes;   /* [const] */
	enum ch_backend backend; /* in use; not AUTO [const] */
	bool is_translated;       /* by Valgrind, which judges accesses too [const] */
	uint8_t sync_steps;       /* set of enum ch__sync_step [const] */
	struct ch__page *pages; /* pages, then the heads of lists [const pointer] */
	_Atomic(uint64_t) *used;   /* 1 bit a granule; written under the page's busy */
	_Atomic(uint64_t) *starts; /* 1 bit a granule: a part begins; release, lookup acquires */
	struct ch__pool_inner *inner; /* views, chunks, lock: pages/inner.h */
	/* Apart from the fields above, which every open, commit and death reads. */
	_Alignas(CH__LINE_BYTES) _Atomic(uint32_t) pages_used; /* gauges, relaxed */
	_Atomic(uint32_t) pages_peak, pages_committed;
	_Atomic(uint32_t) pages_open; /* stored under [pages]; how many a search may find */
	/* Pages from here on never had memory: all are FREE, and no walk goes beyond the first run
	 * of them. Grows under [pages]; relaxed: a thread that is told of a page later has its
	 * record from there. */
	_Atomic(uint32_t) pages_end;
	_Atomic(bool) wants_trim; /* stored under [pages]; relaxed: the next free sees it, too */
};

/* Returns 0, or errno of the call that failed. The configuration is sound: heap.c judges it. The
 * runtime page is committed and trap-filled. */
int ch__pool_create(const struct ch__pool_config *, struct ch__pool **);
void ch__pool_destroy(struct ch__pool *);
extern const char *const ch__backend_names[]; /* by enum ch_backend; none for AUTO */
/* Returns false when no backend has the name. */
bool ch__backend_of_name(const char *name, enum ch_backend *);

static inline uint32_t ch__pool_pages_end(const struct ch__pool *pool)
{
	return CH_LOAD_RELAXED(&pool->pages_end);
}

/* Makes a PARTLY page of the frame number, or a FREE one, OPEN; its free bytes hold traps. A page
 * of data loses execute access until it is FREE again, or retired like a span. Returns
 * CH__PAGE_NONE with errno 0 when the pool is full, or has room only in other zones. Returns
 * CH__PAGE_NONE with an errno when no collection would help: the system refused memory, and the
 * pool could not serve the request if all of its code were gone. Returns CH__PAGE_NO_ACCESS with
 * errno when there was room, and the system refused to change the access of pages. */
uint32_t ch__pool_take_page(struct ch__pool *, uint8_t frame) CH_TAKES_PAGES;
/* After ch__pool_take_page found none: makes a FULL page OPEN, by holes that were passed over or
 * are less than the 1/32 that lists a page. Returns CH__PAGE_NONE when no page has room. A page
 * that was searched in vain is searched again only after a free, or for what it did not refuse. */
uint32_t ch__pool_take_page_in_need(struct ch__pool *, uint8_t frame, size_t hot_bytes,
				    size_t cold_bytes) CH_TAKES_PAGES;
void ch__pool_retire_page(struct ch__pool *, uint32_t page) CH_TAKES_PAGES; /* OPEN, the caller's */
/* Call after granules of the page were given back. Lists the page again when 1/32 of it came free,
 * frees it with the last granule. Returns true when the page became FREE. */
bool ch__pool_note_freed(struct ch__pool *, uint32_t page) CH_TAKES_PAGES;
/* Takes a run of whole FREE pages for the use. Returns the first page's index, or as above. A run
 * may cross chunks: all of them are then of the frame number's zone. CH__SPAN_ROOM asks for code
 * whose pages need no memory yet. A large one gets whole chunks without memory where the pool has
 * them and the system lets it: it may have more pages, and what the emitter writes is private until
 * ch__pool_land_span. Else it is a span of code as usual; ch__pool_span_is_room tells. */
uint32_t ch__pool_take_span(struct ch__pool *, uint32_t pages, uint8_t frame,
			    enum ch__span_use) CH_TAKES_PAGES;
void ch__pool_release_span(struct ch__pool *, uint32_t first) CH_TAKES_PAGES;
/* Keeps the first `kept` pages of a span of code; the rest becomes FREE, and a room a span. */
void ch__pool_cut_span(struct ch__pool *, uint32_t first, uint32_t kept) CH_TAKES_PAGES;
/* Private backends: copies bytes that were written in place into the write view. */
void ch__pool_take_over(const struct ch__pool *, uintptr_t exec, size_t bytes);
/* The span is complete: gives its pages the access of their use, unless they have it. Code is not
 * yet published. The first room_bytes of a room get memory, too, and the rest is to be cut. Returns
 * false with errno; some pages may have changed, but no byte: try again, or release. */
bool ch__pool_land_span(struct ch__pool *, uint32_t first, size_t room_bytes) CH_TAKES_PAGES;
/* A set of enum ch__span_use. */
static inline unsigned ch__pool_span_word(const struct ch__pool *pool, uint32_t first)
{
	return atomic_load_explicit(&pool->pages[first].span_use, memory_order_acquire);
}
static inline enum ch__span_use ch__pool_span_use(const struct ch__pool *pool, uint32_t first)
{
	return (enum ch__span_use)(ch__pool_span_word(pool, first) & CH__SPAN_USE);
}
static inline bool ch__pool_span_is_room(const struct ch__pool *pool, uint32_t first)
{
	return ch__pool_span_word(pool, first) & CH__SPAN_ROOM;
}
/* Whether the span's pages are RX, and so hold the same bytes as the write view. */
bool ch__pool_span_runs(const struct ch__pool *, uint32_t first);
/* Whether only a release may write traps there: pages that are not RX, and all of a room. */
bool ch__pool_span_waits_for_traps(const struct ch__pool *, uint32_t first);
/* Releases retired spans. Gives memory back to the OS: that of wholly FREE chunks, save one; then
 * that of runs of FREE pages, while much is unused. */
void ch__pool_trim(struct ch__pool *) CH_TAKES_PAGES;
/* Trims when much is unused, and more than the last trim left. For callers after a free, with no
 * lock held. */
static inline void ch__pool_trim_if_worth(struct ch__pool *pool) CH_TAKES_PAGES
{
	if (CH_UNLIKELY(CH_LOAD_RELAXED(&pool->wants_trim)))
		ch__pool_trim(pool);
}

/* A snapshot, without a lock: bytes without a block, and the most of them in a row: whole pages, or
 * a hole within a page. */
void ch__pool_count_free(const struct ch__pool *, uint64_t *bytes, uint64_t *largest);

/* Takes the pages lock. Without memory for the copy the child's views will have no access. */
void ch__pool_fork_prepare(struct ch__pool *, bool has_child_code) CH_ACQUIRES(ch__role_pages);
void ch__pool_fork_parent(struct ch__pool *) CH_RELEASES(ch__role_pages);
/* Maps the copy at the same addresses and releases the lock. Returns false on failure, and for fork
 * NONE: the views stay without access, no code byte may be read or written, no page taken. No busy
 * of a page is held: a thread that has one is in a region, which a fork awaits, or has the lock. */
bool ch__pool_fork_child(struct ch__pool *) CH_RELEASES(ch__role_pages);

/* Returns false and puts a reason when an invariant of the pages is broken. */
bool ch__pool_check(struct ch__pool *, struct ch__text *reason) CH_TAKES_PAGES;
