/* SPDX-License-Identifier: MIT
 * collector.h: for a VM with a tracing collector of its own (CH_DRIVER_HOST). The VM's marking
 * decides which owners live. ch_mark_stack is for the callback `roots` of each driver, too. All
 * else of a heap is in codeheap.h, and the head of codeheap.h says how functions are described.
 * Boehm's collector has codeheap_bdw.h.
 *
 * A full collection: ch_mark_begin; the VM marks, with ch_mark_owner for each owner that marking
 * reaches; ch_mark_stacks; the VM drains its mark stack; ch_mark_end(marker, true). A minor one:
 * ch_mark_begin, ch_refs_visit, ch_mark_end(marker, false).
 *
 * With ch_config.stops_world ch_mark_begin stops the other attached threads, and ch_mark_end lets
 * the threads go on: "mutators stopped" is true in between. Otherwise the VM does both. */
#ifndef CODEHEAP_COLLECTOR_H
#define CODEHEAP_COLLECTOR_H

#include <codeheap/codeheap.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ch_refs { CH_REFS_ALL, CH_REFS_YOUNG };

/* ch_mark_begin: begin a collection, full or minor. A VM that stops its threads by signals makes
 * this call before the stop; a VM that stops them by polls, after the stop. With
 * ch_config.stops_world the call is the stop, and the caller counts as parked from then on.
 * out   marker  for the other calls, until ch_mark_end
 * ret   CH_OK | CH_E_STATE not a HOST heap, or the thread has begun it | CH_E_MEMORY |
 *       CH_E_BUSY for stop_wait_ms the heap was in use, or a thread was held inside a call or did
 *       not stop. Nobody is stopped then: end the collections of other heaps, and begin again
 * lock  heap, and with stops_world registry before; kept until ch_mark_end. Several heaps may be
 *       begun, in any order. Freezes (ch_heap_check)
 * safe  any thread, attached or not; the same thread calls ch_mark_end. Until then the thread does
 *       not end, fork, run code of a heap, or wait for a thread that attaches, detaches, ends or
 *       forks: such a thread waits for ch_mark_end
 * cost  O(threads of the heap); waits for regions, and with stops_world for threads
 * note  a thread that a stop_signal stopped may stand between ch_owner_create and the VM's note of
 *       the owner: the unmarked owner dies. The VM blocks the signal from the call to the note. A
 *       wait in ch_owner_create leaves *owner as it was: an old owner there can be marked */
CH_API CH_CHECKED enum ch_status ch_mark_begin(struct ch_heap *heap, struct ch_marker **marker);

/* The next four do nothing in another thread, or after ch_mark_end; ch_why says so. */

/* ch_mark_owner: the VM's collector reached the owner. Calls `ref` for each ref of each
 * block newly reached. Passes over a dead owner, or another heap's; ch_why says so.
 * safe  the marking thread, mutators stopped
 * cost  O(blocks newly reached) */
CH_API void ch_mark_owner(struct ch_marker *marker, struct ch_owner owner);

/* ch_mark_stack: scan words conservatively for code addresses.
 * in    low, high  a VM stack, or a stopped thread's registers; each aligned 8 bytes are a word
 * safe  the marking thread, and the `roots` callback
 * cost  O(words, and blocks newly reached) */
CH_API void ch_mark_stack(struct ch_marker *marker, const void *low, const void *high);

/* ch_mark_stacks: mark from the stacks of attached threads and of suspended fibers, from OPEN
 * blocks and blocks that nothing led to yet, and by `roots` of every vm. Of a thread that the VM
 * stopped in its own way the whole stack is scanned; give its registers to ch_mark_stack.
 * safe  the marking thread, mutators stopped; before the VM last drains its own mark stack
 * cost  O(blocks of the heap, and words of the stacks) */
CH_API void ch_mark_stacks(struct ch_marker *marker);

/* ch_refs_visit: rewrite or mark the refs in code, of a minor collection, or within a cycle.
 * in    which  YOUNG: only of blocks that may hold refs to young objects
 *       visit  returns the word, moved or not; *is_young true puts the block on the young list
 * ret   CH_OK | CH_E_ARG which | CH_E_STATE not between the thread's ch_mark_begin and
 *       ch_mark_end, or in a callback
 * safe  the marking thread, mutators stopped
 * cost  O(blocks visited) */
CH_API CH_CHECKED enum ch_status
ch_refs_visit(struct ch_marker *marker, enum ch_refs which,
	      uintptr_t (*visit)(void *arg, uintptr_t word, bool *is_young), void *arg);

/* ch_mark_end: marking is complete: unmarked code is dead from here on.
 * in    is_complete  false: nothing dies (an abandoned cycle, or a minor collection)
 * ret   CH_OK | CH_E_BUSY a thread is on no attached stack: all code was marked, nothing dies |
 *       CH_E_STATE the calling thread has begun none, or ended it, or is in `ref`, `roots` or
 *       `visit`; or is_complete is true, and neither ch_mark_stacks nor ch_mark_stack came before:
 *       the cycle ends, and nothing dies
 * lock  lets the locks of ch_mark_begin go. With stops_world the threads go on, whatever the call
 *       returns. The sweep comes later
 * safe  the thread of ch_mark_begin, mutators stopped, its mark stack drained after ch_mark_stacks
 * cost  O(roots among the blocks) */
CH_API CH_CHECKED enum ch_status ch_mark_end(struct ch_marker *marker, bool is_complete);

#ifdef __cplusplus
}
#endif
#endif
