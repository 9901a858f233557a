/* SPDX-License-Identifier: MIT
 * heap.h: the heap, its vms, threads and fibers, and the table of records. Internal to codeheap/
 * and invalidate/.
 *
 * The order of locks is os/ranks.h's, which watches it.
 * Waiting for the heap's locks and for those left of them is a park (I9); the others are held for a
 * bounded time and never while stopped by a poll. A region (I1) takes no lock but a page's busy,
 * calls no OS but to publish, and does not nest.
 *
 * Field tags: [const] set at create, [heap] [registry] [records] under that lock, [own] its
 * thread only, [region] changed in a region only and read by marking, [atomic: ...] with the
 * pair. */
#ifndef CH_CODEHEAP_HEAP_H
#define CH_CODEHEAP_HEAP_H

#include "codeheap/codeheap.h"
#include "os/lock.h"
#include "pages/pages.h"
#include "sinks/sinks.h"

#include <stdatomic.h>

enum {
	CH__SEGMENT_LOG2 = 10, /* records of one segment of a table */
	CH__SEGMENT_RECORDS = 1 << CH__SEGMENT_LOG2,
	CH__INDEX_MAX = (1 << 24) - 1, /* a stub holds 24 bits of a branch index */
	CH__RUN_MAX = CH__SEGMENT_RECORDS / 2, /* branches of a block */
	CH__BRANCHES_RESTING = 1 << 18,
	CH__HEAPS_MAX = 255,
	CH__LIVES = 8, /* generations from one life of an owner's record to the next */
	CH__THREAD_RECORDS = 1024,
	CH__FRAMES_MAX = CH__FRAMES,
	CH__FRAME_OWN = CH__FRAMES, /* pages whose block has an unwind table of its own */
	CH__QUEUE_MIN = 1 << 12,
	CH__TOMBSTONES_LOG2 = 16,
	CH__COPY_WORDS = 4096,
	CH__PAUSES = 32, /* the last ones, for observers */
};
_Static_assert((int)CH__FRAME_OWN < (int)CH__FRAME_NUMBERS, "pages/ knows the frame number");

_Static_assert((int)CH__FRAMES_MAX <= (int)CH__FRAME_NUMBERS, "pages know every frame number");

/* --- handles --- */

static inline uint64_t ch__handle(uint32_t heap_id, uint32_t index, uint32_t generation)
{
	return (uint64_t)generation << 32 | heap_id << 24 | index;
}
static inline uint32_t ch__handle_index(uint64_t bits)
{
	return (uint32_t)bits & CH__INDEX_MAX;
}
static inline uint32_t ch__handle_generation(uint64_t bits)
{
	return (uint32_t)(bits >> 32);
}

/* Of a record that nobody has: its next generation is the last one before they begin again. */
static inline bool ch__is_worn(uint32_t generation)
{
	return generation == UINT32_MAX - 1;
}

/* --- table: type-stable records, index 0 is none --- */

struct ch__table {
	_Atomic(void *)
		*segments; /* directory; release store of a new segment pairs with ch__table_at */
	uint32_t record_bytes; /* [const] */
	uint32_t link_offset;  /* of the field that chains free records [const] */
	uint32_t limit;        /* records at most [const] */
	_Atomic(uint32_t) used; /* records handed out at least once, record 0 included; stored under
			 * [records], relaxed */
	/* FIFO [records]; of names LIFO, of names, owners and assumptions [heap] */
	uint32_t free_head, free_tail;
	/* Worn ones rest until the table has no other record; likewise FIFO. */
	uint32_t worn_head, worn_tail;
	size_t directory_bytes;        /* [const] */
	/* Of records that nobody has had yet, and where they have it [const] */
	uint32_t first_generation, generation_offset;
};

/* With the size of a record as a constant, where it is known. */
static inline void *ch__table_at_bytes(const struct ch__table *table, uint32_t index, size_t bytes)
{
	char *segment = atomic_load_explicit(&table->segments[index >> CH__SEGMENT_LOG2],
					     memory_order_acquire);
	return segment + (index & (CH__SEGMENT_RECORDS - 1)) * bytes;
}
static inline void *ch__table_at(const struct ch__table *table, uint32_t index)
{
	return ch__table_at_bytes(table, index, table->record_bytes);
}

bool ch__table_create(struct ch__table *, uint32_t record_bytes, uint32_t link_offset,
		      uint32_t limit);
/* Before the first record. */
void ch__table_begin_at(struct ch__table *, uint32_t generation, size_t generation_offset);
/* How many generations the most used of its records is away from the first. */
uint32_t ch__table_generations(const struct ch__table *);
void ch__table_destroy(struct ch__table *);
/* `count` fresh records in a row (one segment); the first index, 0 when there is no memory. Under
 * records. */
uint32_t ch__table_extend(struct ch__table *, struct ch__meta *, uint32_t count);
/* A record: a free one, a fresh one, or a worn one; 0: there is none, or no memory. Under records,
 * and what the table's lists are under. */
uint32_t ch__table_take(struct ch__table *, struct ch__meta *);
/* Gives one back that nobody has. Likewise. */
void ch__table_give(struct ch__table *, uint32_t index, bool is_worn);
/* Memory for one record, of a table whose records have their indices from elsewhere; likewise. */
bool ch__table_back(struct ch__table *, struct ch__meta *, uint32_t index);

/* Runs of branch records of one length that no block has (branch.c). */
struct ch__runs {
	uint32_t free; /* LIFO */
	uint32_t worn, worn_last, worn_now; /* FIFO: those that rest */
};

/* --- threads --- */

/* moves of a thread's state (I9; moves.c has those of attachments and of the Boehm driver, too)
 *                                  RUNNING -> PARKED      itself, sp and registers published
 *                                  first (release)
 *                                  PARKED -> RUNNING      itself, then it looks at `stopping` and
 *                                                         goes back if set
 *                                  RUNNING -> SIGNALLED   its own handler of the stop signal
 *                                  SIGNALLED -> RUNNING   the same handler, once `stopping` is 0 */
enum ch__thread_state { CH__RUNNING, CH__PARKED, CH__SIGNALLED };

/* Counted by the owning thread without locked instructions, summed by stats.c. */
struct ch__counters {
	uint64_t blocks_opened, blocks_committed, blocks_aborted, blocks_freed;
	uint64_t bytes_opened, bytes_freed, branch_hits, branch_hits_stale, opens_full;
	int64_t code_bytes, hot_bytes, cold_bytes, stub_bytes;
};

/* Adds to a counter of the calling thread's own; stats.c reads it meanwhile. */
#define CH__COUNT(counter, n)                                                                \
	__atomic_store_n(&(counter), __atomic_load_n(&(counter), __ATOMIC_RELAXED) + (n),     \
			 __ATOMIC_RELAXED)

/* Which bytes of the block that the thread works on are attached, and where exits lead to: a bit
 * each. A mere index of records, rebuilt from them for another block (sites.c). */
struct ch__site_map {
	const struct ch__block *block; /* NULL: of none */
	uint32_t generation;           /* of the block */
	uint32_t noted;                /* calls that attached; a few need no map */
	bool is_made;
	uint32_t base;                 /* pool offset of the first bit */
	uint32_t capacity;             /* bits in each */
	uint64_t *covered, *targets;
};

/* What a thread shows of itself before it stands still: written by the thread, then its state;
 * read in the stopped world. */
struct ch__shown {
	uintptr_t sp;
	bool may_end; /* the VM parked it: it may end so, and its stack go while it is scanned */
	uintptr_t signal_stack_end; /* of the alternate stack that sp lies on, or 0 */
	uintptr_t vectors_low, vectors_high; /* where a signal's frame has the other registers */
	uint32_t words_count;
	uintptr_t words[CH_ARCH_CONTEXT_WORDS]; /* registers */
};
_Static_assert((int)CH_ARCH_SAVED_WORDS <= (int)CH_ARCH_CONTEXT_WORDS, "room for a park's");

struct ch__thread {
	_Atomic(uint32_t)
		inside;          /* 1 in a region; release store pairs with freeze's acquire load */
	_Atomic(uint32_t) state; /* enum ch__thread_state; seq_cst against heap->stopping */
	struct ch_heap *heap;    /* [const] */
	_Atomic(bool) is_attached; /* [registry]; statistics read it without */
	int thread_id;           /* [registry] */
	uint32_t park_depth;     /* [own]; handlers of the thread look */
	/* [registry]; the thread itself lowers stack_low as its stack grows, before it shows sp */
	uintptr_t stack_low, stack_high;
	bool stack_grows; /* it is the process's first one [registry] */
	_Atomic(struct ch_fiber *) fiber; /* whose stack it runs on; NULL = its own */
	struct ch__shown shown;
	uint32_t open_page[CH__FRAMES_MAX];     /* page + 1 that it opens blocks in [own, region] */
	uint32_t free_records[CH__THREAD_RECORDS]; /* of blocks: a stack [own] */
	uint32_t free_count;
	/* Blocks opened, roots while OPEN or newborn. Handles: a record that is used again may be
	 * another thread's block [region] */
	struct ch_block *young;
	_Atomic(uint32_t) young_count;  /* stored in regions or frozen, relaxed */
	uint32_t young_capacity;        /* [region] */
	uint32_t unreported_bytes;            /* opened, not yet in heap->bytes_since_cycle [own] */
	struct ch__counters counters;         /* [own], read relaxed */
	struct ch__site_map sites;            /* [own] */
	uint64_t stops_served; /* core_syncs_by_stop when it serialized itself last [own] */
	_Atomic(uint32_t) serialized; /* how often it did; relaxed */
	_Atomic(void *) listener_word;    /* ch__look_thread_word */
	struct ch__thread
		*next; /* all records of the heap, never unlinked [registry], read anywhere */
	struct ch__thread *next_of_thread; /* the same thread's attachments to other heaps [own] */
};

struct ch_fiber {
	struct ch_heap *heap;
	uintptr_t low, high;
	_Atomic(uintptr_t) suspended_sp; /* 0 = running; release store pairs with the scan */
	_Atomic(bool) is_attached;       /* [registry]; statistics read it without */
	uintptr_t stack;                 /* Valgrind's number of it [registry] */
	struct ch_fiber *next;           /* all fibers of the heap, records are reused [registry] */
	struct ch_fiber *next_free;      /* of those that are not attached [registry] */
};

struct ch_vm {
	struct ch_heap *heap;
	struct ch_ops ops;
	void *user;
	/* Stored under heap, release after the callbacks; Boehm's hooks read it without. */
	_Atomic(bool) is_attached;
	bool wants_space;   /* an open failed; relaxed */
	/* ch__space_now before the first of them looked for room [heap] */
	CH_BY_HEAP uint64_t space_seen;
	struct ch_vm *next; /* all records of the heap, never unlinked [heap], read anywhere */
	CH_BY_HEAP uint32_t owners_now; /* of the vm; with one it is not used again */
	CH_BY_HEAP struct ch_vm *next_free; /* of those that may be used again */
};

/* --- freed blocks, for traps: tombstone.c writes, place.c reads --- */

/* What took a block out of use first; a block has it above the bits of its state. */
enum ch__cause {
	CH__CAUSE_NONE,
	CH__CAUSE_REPLACED, /* still LIVE: the entry of its owner is another one */
	CH__CAUSE_INVALIDATED,
	CH__CAUSE_ASSUMPTION,
	CH__CAUSE_DISCARDED,
	CH__CAUSE_DETACHED,
};

/* Why its bytes were given back. */
enum ch__death {
	CH__DEATH_UNREACHED,
	CH__DEATH_OWNER_RELEASED,
	CH__DEATH_OWNER_UNREACHED, /* by the VM's collector */
	CH__DEATH_VM_GONE,
	CH__DEATH_NOT_RUNNING,
	CH__DEATH_ABORTED,
	CH__DEATH_COMMIT_FAILED,
	CH__DEATH_FORKED, /* in a child without the thread that had it open */
	CH__DEATH_NO_COPY, /* in a child without a copy of the code */
};

/* Read without a lock: number, the rest, number again. Stored under heap, each with release, so
 * that who reads a field of the next record finds the number changed. */
struct ch__tombstone {
	_Atomic(uint32_t) number; /* ch__tombstone_number; 0 while it is written */
	_Atomic(uint32_t) hot_offset, hot_granules;
	_Atomic(uint32_t) cold;      /* enum ch__tomb_cold */
	_Atomic(uint32_t) block_how; /* index | enum ch__death << 24 | enum ch__cause << 28 */
	_Atomic(uint32_t) generation;
	_Atomic(uint32_t) owner_name; /* a short one, held */
	_Atomic(uint32_t) collection;
};
_Static_assert(sizeof(struct ch__tombstone) == 32, "65,536 tombstones take 2 MiB");

/* Of the n-th death, from 1: never 0, and another one for each death that has the same place. */
static inline uint32_t ch__tombstone_number(uint64_t n)
{
	return (uint32_t)(n % UINT32_MAX) + 1;
}

/* A span's cold part follows its hot one, any other's begins at a granule of the page. */
enum ch__tomb_cold {
	CH__TOMB_COLD_GRANULES = 0xffff,
	CH__TOMB_COLD_SHIFT = 16, /* granule in the page, 13 bits */
	CH__TOMB_COLD_GRANULE = 0x1fff,
	CH__TOMB_IN_PLACE = 1 << 16, /* of a span: written in place, or data */
	CH__TOMB_SLOT = 1 << 29, /* of a trampoline */
	CH__TOMB_SPAN = 1 << 30,
};

/* What few blocks have; of the tombstone in the same place, apart for the sake of the others. */
struct ch__epitaph {
	_Atomic(uint32_t) name;              /* its own, a short one, held; 0: none */
	_Atomic(uint32_t) by, by_generation; /* of the assumption that broke; 0: not known */
};

/* --- what a driver adds --- */

struct ch__driver {
	enum ch_status (*collect)(
		struct ch_heap *); /* one full cycle, its marks final; no lock held */
	void (*destroy)(struct ch_heap *);
	void (*fork_child)(struct ch_heap *);
};

/* --- marking --- */

struct ch_marker {
	struct ch_heap *heap;
	/* A ref of a block newly reached; NULL passes refs to the vm's callback. */
	void (*ref)(struct ch_marker *, struct ch_vm *, uintptr_t word);
	void *context;       /* the driver's */
	uint32_t *queue;     /* ring of block indices waiting to be traced */
	uint32_t queue_mask; /* capacity - 1 */
	uint32_t head, tail;
	bool overflowed; /* a block did not fit: rescan marked blocks */
	bool is_blind; /* a thread stands on a stack that nobody named */
	uint64_t marked, stack_roots;
};

/* --- heap --- */

struct ch__listener;

struct ch__pause {
	_Atomic(uint64_t) at_ns, ns; /* relaxed */
};

struct ch_heap {
	struct ch__arch_stub_context stub; /* first: the trampoline passes its address */
	_Atomic(uint32_t) freeze;    /* > 0: no region may be entered; pairs with region enter */
	/* Membarrier is refused, from the start or since a filter came: enter pays a fence, and a
	 * stop of the world is the only core sync. They never go back. */
	_Atomic(bool) fence_in_regions;
	_Atomic(bool) has_core_sync;
	_Atomic(bool) fence_came_late; /* some thread may still enter without it */
	/* HOST, since ch_mark_begin: there was a core sync; and something was marked [heap] */
	CH_BY_HEAP bool cycle_is_synced, cycle_has_begun;
	_Atomic(uintptr_t) marker_is; /* ch__lock_self of who has a cycle or visit, or 0; relaxed */
	bool is_codeless; /* a child of fork without a copy: no block lives [const] */
	int process;      /* whose memory this is [const] */
	uint32_t id;                 /* of handles [const] */
	/* Of its records, behind all of the heaps that had the id before; a multiple of CH__LIVES
	 * [const] */
	uint32_t first_generation;
	struct ch_heap *left_next;   /* destroyed and read yet (heaps.c) [ch__heaps_lock] */
	_Atomic(uint32_t) epoch;     /* marks of this cycle have this value [frozen] */
	_Atomic(uint32_t) completed; /* R2: epoch of the last full cycle [frozen] */
	uint32_t marks_renewed;      /* epoch when marks were made young last [frozen] */
	_Atomic(uint32_t) stopping;  /* built-in: the world is to stop; futex */
	struct ch__pool *pool;       /* [const] */
	struct ch__meta *meta;       /* [const] */
	struct ch__sinks *sinks;     /* [const] */
	_Atomic(unsigned) sinks_on;  /* copy for fast paths */
	_Atomic(bool) reports_traps; /* trap_install.c serves it */
	struct ch_config config;     /* [const] */
	uintptr_t trampoline;        /* exec [const] */
	_Atomic(uint32_t) last_frame; /* highest frame shape registered */
	_Atomic(uint32_t) templates_ready; /* bits of enum ch__template that have unwind data */
	CH_BY_HEAP uint32_t veneers_from, veneers_to; /* offsets in the runtime page [heap] */
	struct ch__table blocks, branches, owners, assumptions, names, tombstones, epitaphs;
	CH_BY_RECORDS uint32_t branch_generations; /* the most that a run has had */
	CH_BY_RECORDS struct ch__runs branch_runs[CH__RUN_MAX + 1]; /* by their length */
	uint32_t branches_resting; /* worn records of a length that rest [const] */
	uint64_t name_key[2];               /* of their hash, secret [const] */
	CH_BY_HEAP uint32_t *name_hash;     /* [heap] */
	CH_BY_HEAP uint32_t name_hash_mask, names_count;
	CH_BY_HEAP uint32_t names_parked;           /* whose texts are read without a lock [heap] */
	CH_BY_HEAP struct ch__extra *extras_parked; /* likewise [heap] */
	struct ch__lock registry, lock, records, sweep;
	_Atomic(struct ch__thread *) threads; /* push-only */
	struct ch__thread
		guest; /* stands in for a foreign thread that holds the heap lock [heap] */
	_Atomic(struct ch_fiber *) fibers;         /* push-only */
	struct ch_fiber *free_fibers;              /* [registry] */
	_Atomic(struct ch_vm *) vms;               /* push-only */
	CH_BY_HEAP struct ch_vm *free_vms, *free_vms_last; /* FIFO [heap] */
	CH_BY_HEAP uint32_t free_vms_now;                  /* [heap] */
	struct ch_marker marker;         /* of the open cycle [heap] */
	uintptr_t stack_copy[CH__COPY_WORDS]; /* of what cannot be scanned in its place [frozen] */
	struct ch__driver driver;        /* [const] */
	void *driver_data;               /* [const] */
	CH_BY_HEAP uint64_t cycle_start_ns;         /* HOST [heap] */
	CH_BY_HEAP bool young_refs_lost;            /* a block found no room on young_refs [heap] */
	_Atomic(uint32_t) sweep_pending; /* a cycle ended and was not swept */
	uint32_t sweep_cursor;           /* next block to look at [sweep] */
	uint32_t cycle_number;           /* [frozen] */
	uint32_t full_cycles;            /* that were completed [frozen] */
	_Atomic(uint64_t) core_syncs; /* that were completed */
	/* Counted before each: one that began earlier may have passed a core before what happened
	 * since. */
	_Atomic(uint64_t) core_syncs_begun;
	_Atomic(uint64_t) core_syncs_by_stop; /* of them; each thread serializes itself after it */
	CH_BY_HEAP uint32_t quarantine_head, quarantine_tail; /* DEAD blocks, FIFO */
	CH_BY_HEAP uint32_t quarantine_waits; /* the first whose core sync may not have passed */
	CH_BY_HEAP uint64_t quarantine_syncs; /* that had begun by its death */
	_Atomic(uint64_t) quarantine_bytes;
	CH_BY_HEAP uint32_t notice_head, notice_tail; /* DEAD blocks whose block_freed is due */
	_Atomic(uint32_t) notices_now;
	_Atomic(uint64_t) tombstones_written; /* release after the entry; place.c acquires */
	_Atomic(uint64_t) tombstones_lost;    /* for want of memory; likewise */
	uint32_t tombstones_log2;             /* how many there are [const] */
	CH_BY_HEAP bool wants_epitaphs; /* blocks have names of their own, or assumptions [heap] */
	CH_BY_HEAP uint32_t young_refs_count, young_refs_capacity;
	CH_BY_HEAP struct ch_block *young_refs; /* with refs that a minor collection visits */
	/* triggers */
	_Atomic(uint64_t) bytes_since_cycle, dead_bytes;
	_Atomic(uint64_t)
		opened_factor; /* by which the threshold of opened bytes backs off, 0 = 1 */
	_Atomic(uint64_t) dead_factor;    /* and that of dead bytes */
	_Atomic(uint64_t) floor_factor;   /* by which their least values do besides, 0 = 1 */
	_Atomic(bool) collect_wanted;
	_Atomic(bool) collect_told; /* the vms know of it; cleared with collect_wanted */
	_Atomic(bool) anyone_wants_space;
	_Atomic(uint64_t) space_events; /* blocks whose place became reusable, or will in need */
	_Atomic(uint64_t) space_returns; /* places given back besides, while somebody asks */
	_Atomic(uint32_t) opens_in_need; /* have looked for room, and not yet asked to be told */
	uint64_t last_cycle_end_ns, cycle_ns; /* end and length of the last one; relaxed */
	uint64_t sweep_ns_at_cycle, blocks_at_cycle, bytes_at_cycle; /* [frozen] */
	uint64_t dead_at_cycle, opened_at_cycle; /* of the cycle that runs, or ran [frozen] */
	_Atomic(uint64_t)
		mean_dead_bytes; /* of the blocks that the last sweep freed; 0 = unknown */
	/* statistics under heap, unless atomic */
	CH_BY_HEAP struct ch__counters counters; /* of threads that are gone, and of the sweep */
	CH_BY_HEAP uint64_t blocks_invalidated, branches_linked, branches_unlinked;
	CH_BY_HEAP uint64_t patch_points_armed, code_bytes_peak, notentrant_bytes;
	CH_BY_HEAP uint64_t blocks_notentrant, branches_now, owners_now, assumptions_now;
	/* of cycles; Boehm's hooks store them while the world stands, without the lock */
	uint64_t cycles, cycles_abandoned, freezes, mark_ns_last, mark_ns_total, pause_ns_last;
	uint64_t pause_ns_max, marked_last, stack_roots_last;
	uint64_t sweep_ns_total; /* stored under heap, relaxed */
	struct ch__pause pauses[CH__PAUSES];
	_Atomic(uint32_t) pauses_noted; /* release after a pause; pairs with look.c */
	_Atomic(struct ch__listener *) listeners; /* push-only: release; pairs with listener.c */
	_Atomic(uint32_t) use_is_awaited; /* ch__listener_await_use; exchanged by who tells */
};

/* --- park.c: the calling thread, parks, locks --- */

/* ch_thread_park for waits of the library, out of which the thread comes before it may end. */
void ch__thread_park_here(void);

extern _Thread_local struct ch__thread *ch__thread_list; /* attachments of this thread */

static inline struct ch__thread *ch__thread_self(const struct ch_heap *heap)
{
	struct ch__thread *thread = ch__thread_list;
	while (thread && CH_UNLIKELY(thread->heap != heap))
		thread = thread->next_of_thread;
	return thread;
}

/* How many cycles and visits the thread has open. Public functions that would wait for a lock or a
 * region then give CH_E_STATE: the thread has it itself, or one that stands still. */
extern _Thread_local uint32_t ch__marking;
static inline bool ch__is_marking(void)
{
	return CH_UNLIKELY(ch__marking != 0);
}

/* Between the two code of the VM runs in the thread that has the heap lock: each call that would
 * wait for it gives CH_E_STATE. */
void ch__heap_lend(struct ch_heap *);
void ch__heap_take_back(struct ch_heap *);

/* Callbacks may leave their stack to another thread, which goes on there: what comes after one asks
 * anew which thread it is. A function of its own, not inlined: a compiler takes the thread for the
 * same throughout a function. */
struct ch__thread *ch__thread_now(const struct ch_heap *);

/* What a thread that is not attached is told by calls on a block that it cannot have opened. */
static inline enum ch_status ch__stranger_status(void)
{
	return CH_E_THREAD;
}

/* In checked builds only: the calling thread has this record. */
bool ch__thread_is_here(const struct ch__thread *);

/* Takes a lock that may be held for long: waiting is a park. False: it was not free before
 * until_ns, where that is not 0. */
bool ch__lock_wait_parked(struct ch__lock *, uint64_t until_ns) CH_EXCLUDES(CH__STANDING);
static inline bool ch__lock_parking_until(struct ch__lock *lock, enum ch__rank rank,
					  uint64_t until_ns)
	CH_TRY_ACQUIRES(true, lock) CH_EXCLUDES(CH__STANDING) CH_UNANALYSED("it makes the lock")
{
	ch__rank_check(rank);
	if (CH_UNLIKELY(!ch__lock_seize(lock)) && !ch__lock_wait_parked(lock, until_ns))
		return false;
	ch__lock_note(lock, rank, true);
	return true;
}
static inline void ch__lock_parking(struct ch__lock *lock, enum ch__rank rank)
	CH_ACQUIRES(lock) CH_EXCLUDES(CH__STANDING) CH_UNANALYSED("it makes the lock")
{
	(void)ch__lock_parking_until(lock, rank, 0);
}

/* The locks of a heap by their roles, left ones first. */
static inline void ch__registry_lock(struct ch_heap *heap) CH_ACQUIRES(ch__role_registry)
	CH_EXCLUDES(CH__RIGHT_OF_REGISTRY) CH_UNANALYSED("it makes the role")
{
	ch__lock_parking(&heap->registry, CH__RANK_REGISTRY);
}
static inline void ch__registry_unlock(struct ch_heap *heap)
	CH_RELEASES(ch__role_registry) CH_UNANALYSED("it makes the role")
{
	ch__lock_release(&heap->registry, CH__RANK_REGISTRY);
}
static inline void ch__sweep_lock(struct ch_heap *heap) CH_ACQUIRES(ch__role_sweep)
	CH_EXCLUDES(CH__RIGHT_OF_SWEEP) CH_UNANALYSED("it makes the role")
{
	ch__lock_parking(&heap->sweep, CH__RANK_SWEEP);
}
static inline void ch__sweep_unlock(struct ch_heap *heap)
	CH_RELEASES(ch__role_sweep) CH_UNANALYSED("it makes the role")
{
	ch__lock_release(&heap->sweep, CH__RANK_SWEEP);
}
static inline void ch__heap_lock(struct ch_heap *heap) CH_ACQUIRES(ch__role_heap)
	CH_EXCLUDES(CH__RIGHT_OF_HEAP) CH_UNANALYSED("it makes the role")
{
	ch__lock_parking(&heap->lock, CH__RANK_HEAP);
}
static inline bool ch__heap_lock_until(struct ch_heap *heap, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_heap)
	CH_EXCLUDES(CH__RIGHT_OF_HEAP) CH_UNANALYSED("it makes the role")
{
	return ch__lock_parking_until(&heap->lock, CH__RANK_HEAP, until_ns);
}
static inline void ch__heap_unlock(struct ch_heap *heap)
	CH_RELEASES(ch__role_heap) CH_UNANALYSED("it makes the role")
{
	ch__lock_release(&heap->lock, CH__RANK_HEAP);
}
static inline void ch__records_lock(struct ch_heap *heap) CH_ACQUIRES(ch__role_records)
	CH_EXCLUDES(CH__RIGHT_OF_RECORDS) CH_UNANALYSED("it makes the role")
{
	ch__lock_parking(&heap->records, CH__RANK_RECORDS);
}
static inline void ch__records_unlock(struct ch_heap *heap)
	CH_RELEASES(ch__role_records) CH_UNANALYSED("it makes the role")
{
	ch__lock_release(&heap->records, CH__RANK_RECORDS);
}
static inline bool ch__heap_try_lock(struct ch_heap *heap)
	CH_TRY_ACQUIRES(true, ch__role_heap) CH_UNANALYSED("it makes the role")
{
	return ch__lock_try(&heap->lock, CH__RANK_HEAP);
}
/* No lock of the library is held, and the caller is in no region: VM code may run. */
static inline void ch__holds_nothing(void) CH_EXCLUDES(CH__ANY)
{
	ch__rank_check_for((enum ch__rank)0, "code of the VM");
}

/* The record that stands for the caller while it holds the heap lock. */
static inline struct ch__thread *ch__thread_or_guest(struct ch_heap *heap)
{
	struct ch__thread *thread = ch__thread_self(heap);
	return thread ? thread : &heap->guest;
}

/* --- region.c: regions (I1) --- */

void ch__region_wait(struct ch__thread *) CH_COLD;

static inline void ch__region_enter(struct ch__thread *thread) CH_ACQUIRES(ch__role_region)
	CH_EXCLUDES(ch__role_frozen, ch__role_stopped) CH_UNANALYSED("it makes the role")
{
	struct ch_heap *heap = thread->heap;
	/* The same of regions: they do not nest. */
	CH_ASSERT(CH_CHECK < 2 || !atomic_load_explicit(&thread->inside, memory_order_relaxed),
		  "a region within a region: a call was left by longjmp or cancellation, or "
		  "made in a signal handler");
	CH_ASSERT(CH_CHECK < 2 || ch__thread_is_here(thread),
		  "a region of another thread: a callback left its stack to this one");
	for (;;) {
		ch__rank_note(CH__RANK_REGION, true);
		/* seq_cst against ch__freeze, or a plain store: then the membarrier there is
		 * the fence of both sides. */
		if (CH_UNLIKELY(atomic_load_explicit(&heap->fence_in_regions,
						     memory_order_relaxed))) {
			atomic_store_explicit(&thread->inside, 1, memory_order_seq_cst);
		} else {
			atomic_store_explicit(&thread->inside, 1, memory_order_relaxed);
			atomic_signal_fence(memory_order_seq_cst);
		}
		if (CH_LIKELY(!atomic_load_explicit(&heap->freeze, memory_order_seq_cst)))
			return;
		ch__region_wait(thread);
	}
}
static inline void ch__region_leave(struct ch__thread *thread)
	CH_RELEASES(ch__role_region) CH_UNANALYSED("it makes the role")
{
	ch__rank_note(CH__RANK_REGION, false);
	atomic_store_explicit(&thread->inside, 0, memory_order_release);
}
/* Waits for the regions that threads are in, asleep after some spins. A debugger, the VM or the
 * scheduler may hold a thread there: who can fail gives a limit, behind which nothing is frozen. */
bool ch__freeze_until(struct ch_heap *, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_frozen) CH_EXCLUDES(ch__role_region);
void ch__freeze(struct ch_heap *) CH_ACQUIRES(ch__role_frozen) CH_EXCLUDES(ch__role_region);
void ch__unfreeze(struct ch_heap *) CH_RELEASES(ch__role_frozen);
/* When a wait for threads that begins at now_ns is given up (I10). */
static inline uint64_t ch__stop_limit(const struct ch_heap *heap, uint64_t now_ns)
{
	return now_ns + (uint64_t)heap->config.stop_wait_ms * 1000000;
}
/* A core synchronization by membarrier. False: it is refused, and nothing was counted. */
bool ch__core_sync(struct ch_heap *) CH_EXCLUDES(CH__STANDING);
/* Every thread is stopped, was, or will be before it enters a region, since the caller froze them:
 * that counts as one, and each serializes itself before it runs code again. */
void ch__core_sync_by_stop(struct ch_heap *) CH_REQUIRES(ch__role_frozen);
/* The calling thread, which was stopped or parked, runs on. Signal-safe. */
static inline void ch__thread_serialize(struct ch__thread *thread)
{
	uint64_t stops = atomic_load_explicit(&thread->heap->core_syncs_by_stop,
					      memory_order_acquire);
	if (CH_LIKELY(thread->stops_served == stops))
		return;
	thread->stops_served = stops;
	ch__arch_serialize();
	atomic_fetch_add_explicit(&thread->serialized, 1, memory_order_relaxed);
}

/* --- names.c (heap lock) --- */

uint64_t ch__name_hash(const uint64_t key[2], const char *text, size_t bytes);
uint32_t ch__name_intern(struct ch_heap *,
			/* 0: no memory; holds one reference */
			 const char *text)
	CH_REQUIRES(ch__role_heap);
void ch__name_hold(struct ch_heap *, uint32_t name) CH_REQUIRES(ch__role_heap);
void ch__name_drop(struct ch_heap *, uint32_t name)
	CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
/* The same in a region: the text stays until the next of these, or of the dropped. */
void ch__name_park(struct ch_heap *, uint32_t name) CH_REQUIRES(ch__role_heap);
void ch__names_free_parked(struct ch_heap *) CH_REQUIRES(ch__role_heap) CH_EXCLUDES(CH__STANDING);
const char *ch__name_text(const struct ch_heap *, uint32_t name); /* signal-safe; "" for 0 */

/* What a trap says of a name is bounded: longer ones are cut, at a character of UTF-8. */
enum { CH__NAME_SHORT_BYTES = 64, CH__NAME_RECORD_BYTES = 32 };
/* The name itself where it is short, else its cut form, which lives as long. */
uint32_t ch__name_short(const struct ch_heap *, uint32_t name);
void ch__name_cut(char short_text[CH__NAME_SHORT_BYTES], const char *text); /* signal-safe */

/* Readers in signal handlers, of all heaps (place.c): while there is one, what it may have found
 * before it was taken away is not freed but parked. seq_cst: either the reader sees that it is
 * gone, or who frees sees the reader. */
extern _Atomic(uint32_t) ch__place_readers;
static inline bool ch__place_is_read(void)
{
	return atomic_load_explicit(&ch__place_readers, memory_order_seq_cst) != 0;
}

/* --- fork.c --- */
bool ch__fork_register(void);

/* --- panic.c --- */
void ch__panic_set_hook(void (*hook)(const char *));

/* --- triggers (trigger.c) --- */
void ch__trigger_opened(struct ch_heap *, uint32_t bytes);
/* An open found no room: a cycle is wanted, and space_free is due when room came. */
void ch__trigger_full(struct ch_heap *, struct ch_owner, uint64_t space_seen);
void ch__trigger_dead(struct ch_heap *, uint64_t bytes);
void ch__trigger_released(struct ch_heap *, uint32_t blocks); /* some so many, of unknown size */
/* The world stands still: what comes from here on is not of this cycle. */
void ch__trigger_cycle_begins(struct ch_heap *) CH_REQUIRES(ch__role_frozen);
void ch__trigger_cycle_abandoned(struct ch_heap *);
void ch__trigger_cycle_ended(struct ch_heap *, uint64_t cycle_ns);
void ch__trigger_swept(struct ch_heap *) CH_REQUIRES(ch__role_heap);
/* Tells the vms that a collection is wanted; no lock held. */
void ch__trigger_tell(struct ch_heap *) CH_EXCLUDES(CH__ANY);
/* The same, and of space that came; from calls that deliver notices, no lock held. */
void ch__trigger_poll(struct ch_heap *) CH_EXCLUDES(CH__ANY);

/* --- listener.c: what observers are told (listener.h); nobody listens to most heaps --- */

/* The heap has its id, and nobody else knows it. CH_E_OS, ENOSYS: the configuration asks for a
 * statistics file, and the process has no code that writes one. */
enum ch_status ch__listeners_begin(struct ch_heap *);
/* The thread is attached, or about to leave. */
void ch__listeners_thread_comes(struct ch__thread *) CH_REQUIRES(ch__role_registry);
void ch__listeners_thread_leaves(struct ch__thread *) CH_REQUIRES(ch__role_registry);
/* Handles of blocks that were withdrawn and still have their names. */
void ch__listeners_blocks_die(struct ch_heap *, const uint64_t *handles, size_t n)
	CH_REQUIRES(ch__role_heap);
static inline bool ch__has_listeners(const struct ch_heap *heap)
{
	return CH_UNLIKELY(atomic_load_explicit(&heap->listeners, memory_order_relaxed) != NULL);
}
void ch__listeners_used(struct ch_heap *) CH_COLD;
/* A child of fork compiles or collects; not in a region. */
static inline void ch__listeners_use(struct ch_heap *heap)
{
	if (CH_UNLIKELY(atomic_load_explicit(&heap->use_is_awaited, memory_order_relaxed)))
		ch__listeners_used(heap);
}
void ch__listeners_fork_prepare(struct ch_heap *);
void ch__listeners_fork_parent(struct ch_heap *);
void ch__listeners_fork_child(struct ch_heap *) CH_REQUIRES(ch__role_heap);
void ch__listeners_end(struct ch_heap *) CH_EXCLUDES(CH__ANY);
bool ch__listeners_file(const struct ch_heap *, const char **path, int *failed);

/* --- wishes.c --- */

/* What the environment says overrides the configuration; the set of sinks is resolved. CH_E_ARG: a
 * value is unknown, and if it is the environment's, stderr has a line of it. */
enum ch_status ch__wishes_read(struct ch_config *, unsigned *wanted);

/* --- tell.c --- */

/* What sinks are told that a block is called; its record has its names. */
size_t ch__tell_name(const struct ch_heap *, uint64_t handle, char *out, size_t out_bytes);
enum ch_status ch__tell_create(struct ch_heap *, unsigned wanted);

/* Of a branch: its stub, and the lead before it, if stubs have one. */
static inline uint32_t ch__stub_bytes(const struct ch_heap *heap)
{
	return heap->pool->stub_lead_bytes + CH_ARCH_STUB_BYTES;
}

#endif
