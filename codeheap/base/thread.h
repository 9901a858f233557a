/* SPDX-License-Identifier: MIT
 * thread.h: a heap's records of threads, fibers and vms (thread.c, vm.c).
 *
 * Field tags: see heap.h. */
#pragma once

#include "pages/pool.h"
#include "sinks/sinks.h"

enum {
	CH__THREAD_RECORDS = 1024,
	/* Pages unknown to unwinders: of blocks with a table of their own, and of data; then pages
	 * that small blocks of data share. */
	CH__FRAME_OWN = CH__FRAMES,
	CH__FRAME_RODATA,
	CH__FRAME_DATA,
	CH__PAGE_FRAMES
};
_Static_assert((int)CH__PAGE_FRAMES <= (int)CH__FRAME_NUMBERS, "pages/ knows each frame number");

/* States of a thread; moves (I20): moves.c. SIGNALLED: waits in the stop signal's handler. */
enum ch__thread_state { CH__RUNNING, CH__PARKED, CH__SIGNALLED };

/* Counted by the owning thread without locked instructions, summed by stats.c. What a block counts
 * for changes in the region that changes the block, or under heap: a child of fork, which loses
 * threads, has the counts that its blocks have. */
struct ch__counters {
	uint64_t blocks_opened, blocks_committed, blocks_aborted, blocks_freed;
	uint64_t bytes_opened, bytes_freed, branch_hits, branch_hits_stale, opens_full;
	int64_t code_bytes, cold_bytes, stub_bytes; /* code_bytes has the cold ones, too */
};

/* Adds to a counter of the calling thread's own, which stats.c may be reading. */
#define CH__COUNT(counter, n)                                                                \
	__atomic_store_n(&(counter), __atomic_load_n(&(counter), __ATOMIC_RELAXED) + (n),     \
			 __ATOMIC_RELAXED)

/* A map of the block that the thread works on, rebuilt from the records for another (sites.c). */
struct ch__site_map {
	const struct ch__block *block; /* NULL: of no block */
	uint32_t generation;           /* of the block */
	uint32_t noted;                /* attaching calls; a few need no map */
	bool is_made;
	uint32_t branch, item;         /* the first records that the map may not have yet */
	uint32_t base;                 /* pool offset of the first byte */
	uint32_t capacity;             /* bytes */
	uint8_t *bytes;                /* a set of what is said of each byte */
};

/* Written by a thread before its state says that it stands still; read in the stopped world. */
struct ch__shown {
	uintptr_t sp;
	bool may_end; /* parked by the VM: the thread and its stack may end during the scan */
	uintptr_t signal_stack_end; /* end of the alternate stack around sp, or 0 */
	uintptr_t vectors_low, vectors_high; /* other registers, in a stop by signal; else 0 */
	uint32_t words_count;
	uintptr_t words[CH_ARCH_CONTEXT_WORDS]; /* registers */
};
_Static_assert((int)CH_ARCH_SAVED_WORDS <= (int)CH_ARCH_CONTEXT_WORDS, "room for a park's");

struct ch__thread {
	_Atomic(uint32_t) inside; /* 1 in a region; pairs with heap->freeze (park.h) */
	_Atomic(uint32_t) state; /* enum ch__thread_state; seq_cst against heap->stopping */
	struct ch_heap *heap;    /* [const] */
	_Atomic(bool) is_attached; /* [registry]; statistics read it without the lock */
	/* A call that made code attached the thread, not the VM. Stored by the thread, true under
	 * registry; read relaxed for sentences about a thread. */
	_Atomic(bool) is_by_call;
	_Atomic(int) thread_id;  /* [registry], read anywhere */
	uint32_t park_depth;     /* [own]; read by the thread's handlers */
	uint32_t deliveries;     /* calls on its own stack that make callbacks [own] */
	/* [registry]; as its stack grows, the thread lowers stack_low before it shows sp */
	uintptr_t stack_low, stack_high;
	bool stack_grows; /* the stack is the process's first [registry] */
	_Atomic(struct ch_fiber *) fiber; /* resumed last, suspended since or not; NULL: none */
	struct ch__shown shown;
	uint32_t open_page[CH__PAGE_FRAMES]; /* page + 1 for new blocks, 0: none [own] */
	uint32_t free_records[CH__THREAD_RECORDS]; /* of blocks: a stack [own] */
	uint32_t free_count;
	/* Blocks opened that are roots (ch__block_is_young_root). Handles, since a record that is
	 * used again may be another thread's block [region] */
	struct ch_block *young;
	_Atomic(uint32_t) young_count;  /* stored in regions or frozen, relaxed */
	uint32_t young_capacity;        /* [region] */
	uint32_t young_of_others; /* the first of `young`, opened by earlier threads [region] */
	uint32_t unreported_bytes;            /* opened, not yet in heap->bytes_since_cycle [own] */
	bool has_spare_cold; /* an eighth and more of the last cold bytes came back [own] */
	struct ch__counters counters;         /* [own], read relaxed */
	struct ch__site_map sites;            /* [own] */
	uint64_t stops_served; /* core_syncs_by_stop when the thread last serialized [own] */
	uint32_t serialized; /* how often the thread serialized [own], read relaxed */
	_Atomic(void *) listener_word;    /* ch__look_thread_word */
	struct ch__thread *next; /* all of the heap's, never unlinked [registry], read anywhere */
	struct ch__thread *next_of_thread; /* attachment of the same thread to another heap [own] */
};

struct ch_fiber {
	struct ch_heap *heap;
	uintptr_t low, high;
	_Atomic(uintptr_t) suspended_sp; /* 0 = running; release store pairs with the scan */
	_Atomic(bool) is_attached;       /* [registry]; statistics read it without the lock */
	uintptr_t stack;                 /* Valgrind's number of the stack [registry] */
	uint32_t deliveries; /* as the thread's, of calls on the fiber [the thread that runs it] */
	struct ch_fiber *next;           /* all fibers of the heap, records are reused [registry] */
	struct ch_fiber *next_free;      /* next fiber that is not attached [registry] */
};

struct ch_vm {
	struct ch_heap *heap; /* [const] */
	struct ch_ops ops;
	void *user;
	/* Stored under heap, release after the callbacks; Boehm's hooks read without heap. */
	_Atomic(bool) is_attached;
	CH_BY_HEAP bool wants_space; /* an open failed, and space_free is due [heap] */
	/* ch__space_now before the first failed open looked for room [heap] */
	CH_BY_HEAP uint64_t space_seen;
	struct ch_vm *next; /* all records of the heap, never unlinked [heap], read anywhere */
	CH_BY_HEAP uint32_t owners_now; /* owners of the vm; above 0 the record is kept */
	/* Ends of blocks with lower records are not told: 0 while the vm is attached, UINT32_MAX
	 * once its detach is through [heap] */
	CH_BY_HEAP uint32_t told;
	/* ch__lock_self of the thread that tells of the ends. A callback may leave its stack to
	 * another thread [heap] */
	CH_BY_HEAP uintptr_t teller;
	CH_BY_HEAP struct ch_vm *next_free; /* next record that may be used again */
};

/* An owner of the vm is gone. After the last owner the record of a detached vm is used again. */
void ch__vm_owner_gone(struct ch_vm *) CH_HAS_HEAP;
/* Of the vm's blocks nobody is told any more. Call once per detach. */
void ch__vm_told(struct ch_vm *) CH_HAS_HEAP;
/* The vm is detached from here on. The caller counts as an owner, and tells of its blocks then. */
void ch__vm_leave(struct ch_vm *) CH_HAS_HEAP;
/* Whether refs of its code are reported: a detached vm's may dangle, and its code runs no more. */
static inline bool ch__vm_is_told(const struct ch_vm *vm)
{
	return CH_LOAD_RELAXED(&vm->is_attached);
}
