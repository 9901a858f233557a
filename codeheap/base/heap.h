/* SPDX-License-Identifier: MIT
 * heap.h: the heap, with all its fields, and for each field its lock or rule (tags below); and the
 * heaps of the process, by the id in handles (heaps.c). Internal to codeheap/ and invalidate/.
 *
 * The order of locks is in os/locks/ranks.h. A wait for a lock of the heap, or for a lock left of
 * these, is a park (I9). Other locks are held for a bounded time, and never by a thread that a poll
 * stopped.
 *
 * Field tags: [const] set at create, [heap] [registry] [records] under that lock, [own] by its
 * thread only, [frozen] while frozen, [region] changed in a region only and read by marking. */
#pragma once

#include "codeheap/base/table.h"
#include "codeheap/base/thread.h"
#include "os/locks/moves.h"

enum {
	CH__LIVES = 8, /* generations from one life of an owner's record to the next */
	CH__SIDE_CLASSES = 16, /* capacities of side lists: 0, 4 * 2^n, the last is 65,535 */
	CH__HEAPS_MAX = 255, CH__TABLES = 6,
	CH__QUEUE_MIN = 1 << 12,
	CH__TOMBSTONES_LOG2 = 16, CH__TOMBSTONES_MOST = 1 << 20,
	CH__COPY_WORDS = 4096,
	CH__NAMES_LAST = 256,
};

/* States of records without a state word of their own, and the tables of legal moves (moves.c). */
enum ch__owner_state { CH__OWNER_NONE, CH__OWNER_LIVE, CH__OWNER_RELEASING, CH__OWNER_RELEASED };
enum ch__branch_state { CH__BRANCH_NONE, CH__BRANCH_UNLINKED, CH__BRANCH_LINKED };
enum { CH__GATE_OPEN, CH__GATE_SHUT };
enum { CH__ASSUMPTION_NONE, CH__ASSUMPTION_HOLDS };

extern struct ch__moves ch__block_moves, ch__owner_moves, ch__branch_moves, ch__gate_moves,
	ch__assumption_moves, ch__thread_moves; /* in checked builds */

struct ch__driver { /* of the heap's cycles */
	enum ch_status (*collect)(struct ch_heap *); /* a full cycle, with final marks; no lock */
	void (*destroy)(struct ch_heap *);
	int (*knows_thread)(void); /* the caller has what a call needs to attach it */
};

struct ch_marker { /* of an open cycle */
	struct ch_heap *heap;
	/* Reports a ref of a newly reached block. NULL: refs go to the vm's callback. */
	void (*ref)(struct ch_marker *, struct ch_vm *, uintptr_t word);
	void *context;       /* belongs to the driver */
	uint32_t *queue;     /* ring of block indices waiting to be traced */
	uint32_t queue_mask; /* capacity - 1 */
	uint32_t head, tail;
	bool overflowed; /* a block did not fit: scan marked blocks again */
	bool has_stacks; /* a host named stacks, or had the library find them */
	uint32_t callbacks; /* of the VM, nested: no cycle ends in its middle */
	int blind_to; /* a thread that stands on an unknown stack; 0: none does */
	uint64_t marked, stack_roots;
	uint64_t own_roots;       /* of the marked */
	bool has_released_owners; /* marked */
};

struct ch__listener;

/* What a cycle leaves to the sweep. AGAIN: a cycle ended in the middle of a sweep, which goes on to
 * its end; then comes another. If each cycle began the sweep anew, frequent cycles would leave all
 * places on the quarantine. */
enum ch__sweep { CH__SWEEP_NONE, CH__SWEEP_DUE, CH__SWEEP_AGAIN };

struct ch_heap {
	struct ch__arch_stub_context stub; /* first: the trampoline passes this address */
	_Atomic(uint32_t) freeze;    /* > 0: no region may be entered; pairs with region enter */
	/* Membarrier is refused, from the start or since a filter came. Then a region enters with a
	 * fence, and a stop of the world is the only core sync. Neither flag goes back. */
	_Atomic(bool) fence_in_regions;
	_Atomic(bool) has_core_sync;
	_Atomic(bool) fence_came_late; /* some thread may still enter without a fence */
	CH_BY_HEAP bool cycle_is_synced; /* a core sync came before the stop [heap] */
	bool cycle_has_begun; /* one began, and neither ended nor was given up [heap, or frozen] */
	_Atomic(uintptr_t) freezer;   /* ch__lock_self of the last freezer, or 0; relaxed */
	bool is_codeless; /* a child of fork without a copy: no block lives [fork.c] */
	int process;      /* the process with this memory [fork.c] */
	uint32_t id;                 /* the heap's number in handles [const] */
	_Atomic(uint32_t) epoch;     /* mark of what the cycle reached; 1 at first [frozen] */
	_Atomic(uint32_t) completed; /* R2: epoch of the last full cycle [frozen] */
	uint32_t marks_renewed;      /* epoch when marks were last made young [frozen] */
	_Atomic(uint32_t) stopping;  /* 1: the library stops the world; futex */
	/* A thread that the last collection's stop waited for in vain, or 0; relaxed. */
	_Atomic(int) held_up_by;
	_Atomic(uint32_t) poll_due;  /* the word of ch_thread_poll_word (events.h) */
	struct ch__pool *pool;       /* [const] */
	struct ch__meta *meta;       /* [const] */
	struct ch__sinks *sinks;     /* [const] */
	_Atomic(unsigned) sinks_on;  /* copy for fast paths */
	/* Lines waited in the sinks: how many polls until a poll asks the sinks again. */
	_Atomic(uint32_t) sinks_wait;
	_Atomic(bool) reports_traps; /* served by trap_install.c */
	struct ch_config config;     /* [const] */
	_Atomic(uint32_t) last_frame; /* highest frame shape there is */
	/* A trap of the runtime page: cells of owners without a fallback lead there [const] */
	const void *no_fallback;
	CH_BY_HEAP uint32_t veneers_from, veneers_to; /* offsets in the runtime page [heap] */
	union {
		struct {
			struct ch__table blocks, branches, owners, assumptions, names, tombstones;
		};
		struct ch__table tables[CH__TABLES];
	};
	CH_BY_HEAP uint32_t names_parked;           /* names that somebody may be reading [heap] */
	/* Free side lists, by capacity. */
	CH_BY_HEAP struct ch__side_list *side_lists_free[CH__SIDE_CLASSES];
	struct ch__lock registry, lock, records, sweep;
	_Atomic(uint32_t) lock_waits; /* threads that wait for `lock`; relaxed */
	/* Taken by opens that may collect: one open at a time looks beyond its thread's page
	 * (open.c). Code of the VM runs under this lock, so it has no rank: a thread that
	 * waits for it holds nothing, and does not wait for ever. */
	struct ch__lock need;
	_Atomic(uintptr_t) need_is; /* the holder of `need`; the thread that clears this lets go */
	_Atomic(bool) stops_apart;  /* a vm that stops its threads itself came; never goes back */
	_Atomic(struct ch__thread *) threads; /* push-only */
	_Atomic(struct ch_fiber *) fibers;         /* push-only */
	struct ch_fiber *free_fibers;              /* [registry] */
	_Atomic(struct ch_vm *) vms;               /* push-only */
	CH_BY_HEAP struct ch_vm *free_vms, *free_vms_last; /* FIFO [heap] */
	CH_BY_HEAP uint32_t free_vms_now;                  /* [heap] */
	struct ch_vm nobody; /* of code without an owner: never attached, no callbacks [heap] */
	struct ch_marker marker;         /* of the open cycle [heap] */
	struct ch__driver driver;        /* [const] */
	void *driver_data;               /* belongs to the driver; the core leaves it alone */
	CH_BY_HEAP uint64_t cycle_start_ns; /* of an open cycle, not Boehm's; or 0 [heap] */
	CH_BY_HEAP bool young_refs_lost;            /* a block found no room on young_refs [heap] */
	_Atomic(uint32_t) sweep_pending; /* enum ch__sweep */
	uint32_t sweep_cursor, sweep_owner; /* next to look at [region], by the sweeper */
	_Atomic(uint64_t) core_syncs; /* completed */
	/* Counted before each: an earlier sync may have passed a core before later stores. */
	_Atomic(uint64_t) core_syncs_begun;
	_Atomic(uint64_t) core_syncs_by_stop; /* stops; threads serialize themselves afterwards */
	CH_BY_HEAP uint32_t quarantine_head, quarantine_tail; /* DEAD blocks, FIFO */
	CH_BY_HEAP uint32_t quarantine_waits; /* first block whose core sync may not have passed */
	CH_BY_HEAP uint64_t quarantine_syncs; /* core syncs begun by the last block's death */
	_Atomic(uint64_t) quarantine_bytes;
	/* DEAD blocks whose block_freed is due; the first is stored under heap */
	_Atomic(uint32_t) notice_head;
	CH_BY_HEAP uint32_t notice_tail;
	_Atomic(uint64_t) tombstones_written; /* release after the entry; place.c, trap.c acquire */
	_Atomic(uint64_t) tombstones_lost;    /* for want of memory; release, trap.c acquires */
	CH_BY_HEAP uint32_t young_refs_count, young_refs_capacity;
	CH_BY_HEAP struct ch_block *young_refs; /* blocks whose refs a minor collection visits */
	/* triggers */
	_Atomic(uint64_t) bytes_since_cycle, dead_bytes;
	/* How often thresholds doubled: of opened bytes, of dead bytes, of the least values. */
	_Atomic(uint32_t) opened_doublings, dead_doublings, floor_doublings;
	_Atomic(bool) collect_wanted;
	/* The vms were told. Cleared with collect_wanted, after a collection in vain, and for a vm
	 * that comes. */
	_Atomic(bool) collect_told;
	_Atomic(uint32_t) vms_asked; /* attached vms with collect_wanted or stop_world */
	/* A cycle may free code. The end of a cycle that found own roots only clears this word and
	 * then looks at dead_bytes: a free that counted meanwhile sets the word again. */
	_Atomic(bool) waits_for_cycle;
	_Atomic(uint32_t) collects_unasked; /* 1: a thread is in ch__collect_unasked */
	_Atomic(uint64_t) unasked_after_ns; /* no such collection before then */
	_Atomic(bool) is_late_told;  /* a line said that dead code piles up */
	_Atomic(bool) anyone_wants_space;
	_Atomic(bool) space_came; /* or an open failed, since polls told the vms */
	_Atomic(uint64_t) space_events; /* while an open asks, or a vm waits: ch__space_returned */
	_Atomic(uint32_t) opens_in_need; /* looked for room, and did not yet ask to be told */
	_Atomic(uint32_t) newborns; /* newborn blocks that the last cycle spared; relaxed */
	uint64_t last_cycle_end_ns, cycle_ns; /* end and length of the last cycle; relaxed */
	uint64_t sweep_ns_at_cycle, opened_at_cycle; /* [frozen] */
	_Atomic(uint64_t) blocks_at_cycle, bytes_at_cycle, dead_at_cycle; /* [frozen] or read */
	_Atomic(uint64_t) committed_then; /* after a sweep, or when one was put off; relaxed */
	_Atomic(uint64_t) mean_dead_bytes; /* of the last sweep; before: of opened; 0: unknown */
	/* statistics under heap, unless atomic */
	CH_BY_HEAP struct ch__counters counters; /* of deaths; the rest is in threads' records */
	CH_BY_HEAP uint64_t blocks_invalidated, branches_linked, branches_unlinked;
	CH_BY_HEAP uint64_t patch_points_armed, code_bytes_peak, notentrant_bytes;
	CH_BY_HEAP uint64_t blocks_notentrant, owners_now, assumptions_now;
	CH_BY_HEAP uint64_t peak_dead_bytes; /* since the last sum for code_bytes_peak */
	/* Of marks, pauses, freezes, sweeps; the rest is 0. Stored frozen, and read under heap: a
	 * snapshot may be amid a stop of Boehm's. sweep_ns_total: under heap, relaxed */
	struct ch_stats stats;
	_Atomic(struct ch__listener *) listeners; /* push-only: release; pairs with events.h */
	struct ch_heap *left_next;   /* destroyed, but still read (heaps.c) [ch__heaps_lock] */
	int no_file; /* errno: a statistics file is wanted, and nobody writes one [const] */
	_Atomic(uint32_t) use_is_awaited; /* ch__listener_await_use; the teller exchanges it */
	/* Data whose last user died in one kill. Cycles free data without room here. */
	CH_BY_HEAP uint32_t *orphans, orphans_count, orphans_capacity;
	/* Large fields stand last: the making of a heap touches few pages. */
	struct ch__thread guest; /* stands for an unattached thread with the heap lock [heap] */
	CH_BY_HEAP uint32_t names_last[CH__NAMES_LAST]; /* to be shared (names.c); 0: none */
	CH_BY_RECORDS uint32_t branch_runs[CH__RUN_MAX + 1]; /* free runs, by length (branch.c) */
	uintptr_t stack_copy[CH__COPY_WORDS]; /* copies of stacks not scanned in place [frozen] */
};

enum ch_status ch__heap_create(const struct ch_config *, const struct ch__driver *,
			       struct ch_heap **);

extern _Atomic(struct ch_heap *) ch__heaps[CH__HEAPS_MAX + 1];
/* Visits each heap. A heap stays under the lock below, and is not freed while places are read. A
 * body leaves by return: break goes on with the next heap. */
#define CH__EACH_HEAP(heap)                            \
	for (int id_ = 1; id_ <= CH__HEAPS_MAX; id_++) \
		for (struct ch_heap *heap = atomic_load(&ch__heaps[id_]); heap; heap = NULL)
/* Held while the set of heaps changes, and over a fork. Left of every heap's locks. */
extern struct ch__lock ch__heaps_lock;
void ch__heaps_take(void) CH_ACQUIRES(ch__heaps_lock) CH_MAY_WAIT; /* parks */
void ch__heaps_let_go(void) CH_RELEASES(ch__heaps_lock);
/* Destroyed heaps that a handler may still read, chained by left_next. */
extern struct ch_heap *ch__heaps_left CH_GUARDED_BY(ch__heaps_lock);
/* Gives the heap a free id, kept free by the lock. The caller fills the slot of the table last,
 * when the heap is whole. Returns false when all ids are taken. */
bool ch__heaps_choose_id(struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
/* Sets the first generation of the next heap with the id. No more handles of this heap are made. */
void ch__heaps_leave_id(const struct ch_heap *) CH_REQUIRES(ch__heaps_lock);

/* Returns the heap with the address in its pool, or NULL. Signal-safe. The heap stays while its
 * code lives or places are read (ch__place_read_begin). O(heaps). */
struct ch_heap *ch__heap_at(uintptr_t address);

/* Remembers the pool of a heap that is being destroyed. The last 16 pools are remembered. */
void ch__heaps_pool_goes(const struct ch_heap *) CH_REQUIRES(ch__heaps_lock);
/* Whether a remembered pool had the address, and no heap has it. Signal-safe. */
bool ch__heaps_had(uintptr_t address);

static inline struct ch_heap *ch__handle_heap(uint64_t bits)
{
	return atomic_load_explicit(&ch__heaps[ch__handle_heap_id(bits)], memory_order_acquire);
}
