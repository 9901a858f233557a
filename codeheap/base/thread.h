/* SPDX-License-Identifier: MIT
 * thread.h: what a heap knows of its threads, fibers and vms (thread.c, vm.c).
 *
 * Field tags: those of heap.h. */
#ifndef CH_CODEHEAP_BASE_THREAD_H
#define CH_CODEHEAP_BASE_THREAD_H

#include "codeheap/codeheap.h"
#include "os/lock.h"
#include "pages/pages.h"
#include "sinks/sinks.h"

#include <stdatomic.h>

enum {
	CH__THREAD_RECORDS = 1024,
	/* Pages of which unwinders are told nothing: whose block has a table of its own, or is
	 * data; and those that small blocks of data share. */
	CH__FRAME_OWN = CH__FRAMES,
	CH__FRAME_RODATA,
	CH__FRAME_DATA,
	CH__PAGE_FRAMES
};
_Static_assert((int)CH__PAGE_FRAMES <= (int)CH__FRAME_NUMBERS, "pages/ knows each frame number");

/* Of a thread; I9 and moves.c say who moves it. SIGNALLED: its handler of the stop signal waits. */
enum ch__thread_state { CH__RUNNING, CH__PARKED, CH__SIGNALLED };

/* Counted by the owning thread without locked instructions, summed by stats.c. */
struct ch__counters {
	uint64_t blocks_opened, blocks_committed, blocks_aborted, blocks_freed;
	uint64_t bytes_opened, bytes_freed, branch_hits, branch_hits_stale, opens_full;
	int64_t code_bytes, cold_bytes, stub_bytes; /* code: cold ones too */
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
	uint8_t *covered, *targets;
};

/* What a thread writes before its state says that it stands still; read in the stopped world. */
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
	_Atomic(uint32_t) inside; /* 1 in a region; release, pairs with freeze's acquire */
	_Atomic(uint32_t) state; /* enum ch__thread_state; seq_cst against heap->stopping */
	struct ch_heap *heap;    /* [const] */
	_Atomic(bool) is_attached; /* [registry]; statistics read it without */
	/* ch_block_open attached it, not the VM. Stored by the thread, under registry where it
	 * becomes true; whoever says why a thread runs reads it, relaxed. */
	_Atomic(bool) is_by_call;
	int thread_id;           /* [registry] */
	uint32_t park_depth;     /* [own]; handlers of the thread look */
	/* [registry]; the thread itself lowers stack_low as its stack grows, before it shows sp */
	uintptr_t stack_low, stack_high;
	bool stack_grows; /* it is the process's first one [registry] */
	_Atomic(struct ch_fiber *) fiber; /* whose stack it runs on; NULL = its own */
	struct ch__shown shown;
	uint32_t open_page[CH__PAGE_FRAMES]; /* page + 1 that it opens blocks in [own, region] */
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
	struct ch__thread *next; /* all of the heap's, never unlinked [registry], read anywhere */
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
	/* The end of blocks with lower records is told no more: none of them while the vm is
	 * attached, all of them once it was detached [heap] */
	CH_BY_HEAP uint32_t told;
	CH_BY_HEAP struct ch_vm *next_free; /* of those that may be used again */
};

/* An owner of the vm is gone; behind the last one the record of a detached vm is used again. */
void ch__vm_owner_gone(struct ch_vm *) CH_REQUIRES(ch__role_heap);
/* The vm is detached from here on. Who has told of its blocks sets `told`. */
void ch__vm_leave(struct ch_vm *) CH_REQUIRES(ch__role_heap);
/* Refs of its code are reported. A detached vm's may lead to nothing, and its code runs no more. */
static inline bool ch__vm_is_told(const struct ch_vm *vm)
{
	return atomic_load_explicit(&vm->is_attached, memory_order_relaxed);
}

#endif
