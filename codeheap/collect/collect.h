/* SPDX-License-Identifier: MIT
 * collect.h: the functions of collect/, for its files and for callers. */
#pragma once

#include "codeheap/events/events.h"
#include "codeheap/places/places.h"

void ch__marker_init(struct ch_heap *, struct ch_marker *);
void ch__mark_block(struct ch_marker *, uint32_t block) CH_HAS_FREEZE;
/* Returns false, and marks nothing, when the owner is dead. */
bool ch__mark_owner_index(struct ch_marker *, uint32_t owner) CH_HAS_FREEZE;
void ch__mark_drain(struct ch_marker *) CH_HAS_FREEZE;
/* Marks the blocks that need no edge to live: OPEN, newborn, immortal, own roots. */
void ch__mark_roots(struct ch_marker *) CH_HAS_FREEZE;
/* Stores in code the word that a VM gave for a ref; while the VM's threads stand. */
void ch__ref_move(struct ch_heap *, uintptr_t exec, uintptr_t moved);
/* Marks every alive block. */
void ch__mark_all(struct ch_marker *) CH_HAS_FREEZE;
/* Gives a marker a queue that fits the number of blocks: not in hooks, which may not allocate. */
bool ch__mark_reserve(struct ch_heap *, struct ch_marker *)
	CH_HAS_HEAP CH_EXCLUDES(ch__role_frozen, ch__role_stopped, ch__role_region);
/* Begins a cycle: the epoch moves. */
void ch__cycle_begin(struct ch_heap *) CH_HAS_FREEZE;
/* Gives a cycle up, also one that has not begun: nothing dies. Under heap, or in Boehm's hooks. */
void ch__cycle_give_up(struct ch_heap *);
/* Ends a cycle that has worked since start_ns: completed = epoch, newborns age. */
void ch__cycle_complete(struct ch_heap *, uint64_t start_ns) CH_HAS_FREEZE;

/* Whether the caller is between its ch_mark_begin and ch_mark_end; ch_why says so if not. */
bool ch__host_may_mark(const struct ch_heap *);
/* Vouches for the thread of a cycle: the cycle took the heap lock and froze; the threads stand. */
static inline void ch__marker_has_cycle(const struct ch_marker *marker)
	CH_VOUCHES(ch__role_heap, ch__role_frozen, ch__role_stopped)
	CH_UNANALYSED("the marker has them")
{
	(void)marker;
}

void ch__scan_words(struct ch_marker *, uintptr_t low, uintptr_t high) CH_HAS_STOP;
/* Scans threads from their published sp, fibers, and the stacks that vms report, then traces from
 * the blocks found. If a thread stands on no known stack, the marker is blind: every block is
 * marked, and the cycle must not complete. */
void ch__scan_stacks(struct ch_marker *) CH_HAS_STOP;
enum ch_status ch__because_blind(int thread_id); /* CH_E_BUSY: the marker was blind */

/* Takes registry and heap, or neither: the thread that holds one may itself be held up (I10). */
bool ch__world_lock(struct ch_heap *, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_registry, ch__role_heap) CH_EXCLUDES(CH__RIGHT_OF_REGISTRY);
void ch__world_unlock(struct ch_heap *) CH_RELEASES(ch__role_registry, ch__role_heap);
/* Returns false, with no thread stopped and the freeze ended, when a thread did not stop. */
bool ch__world_stop(struct ch_heap *, uint64_t until_ns) CH_TRY_ACQUIRES(true, ch__role_stopped)
	CH_REQUIRES(ch__role_registry, ch__role_heap, ch__role_frozen);
void ch__world_resume(struct ch_heap *) CH_RELEASES(ch__role_stopped);
/* For a sentence: why a thread did not stop, and what helps, unless the thread is gone. */
const char *ch__world_reason(const struct ch_config *, bool is_gone) CH_COLD;
/* For ch_config.stop_signal, which is sound. A child of fork knows whether the handler is there. */
bool ch__world_install_signal(int signal) CH_REQUIRES(ch__heaps_lock);
/* Sends the stop signal of the thread's heap, tagged as the library's. Signal-safe. */
bool ch__world_signal(const struct ch__thread *);

/* One step. Returns true while there is more. No lock held; takes sweep, heap, pages, sinks. */
bool ch__sweep_step(struct ch_heap *) CH_HOLDS_NONE;
/* Steps while there is more, as many at most; UINT32_MAX: to the end of the sweep. */
void ch__sweep_steps(struct ch_heap *, unsigned steps) CH_HOLDS_NONE;
/* Frees DEAD blocks after their core sync. An extra sync comes first in need, or when many bytes
 * wait. Blocks with kept names: in need only. Returns whether any was freed. Under heap. */
bool ch__quarantine_advance(struct ch_heap *, bool in_need) CH_HAS_HEAP CH_MAY_WAIT;
/* Makes the VM's callbacks that are due. Inside of 16 such calls on the stack they stay due. */
void ch__vms_tell(struct ch_heap *) CH_HOLDS_NONE;
enum { CH__KILLED_AT_ONCE = 64 };
/* OPEN|LIVE|NOTENTRANT -> DEAD, for CH__KILLED_AT_ONCE blocks at most. Places go on the quarantine
 * or are free at once. A release leaves blocks with an edge from another block. Branches go back to
 * their stubs, save where their blocks die, too (unreached), or a child has no copy of the code. */
void ch__blocks_kill(struct ch_heap *, const uint32_t *blocks, uint32_t count, enum ch__death)
	CH_HAS_HEAP CH_MAY_WAIT;

/* HOST: a minor collection visits these blocks, some with refs (refs.c). */
void ch__young_refs_add(struct ch_heap *, const struct ch_code *, size_t count);

/* Makes the wanted collection where no vm is asked: in a BUILTIN heap where code was left to a
 * cycle, and no vm hears collect_wanted or stops its threads itself. Only an attached thread that
 * is not parked collects, and never two at once. Returns whether a collection was tried. */
bool ch__collect_unasked(struct ch_heap *) CH_HOLDS_NONE;
/* An open without room waits while another thread collects: that thread may have no processor. At
 * most as long as for a stop. Returns whether it waited. */
bool ch__await_unasked(struct ch_heap *) CH_HOLDS_NONE;
/* One load where no collection is wanted, two where no code was left to a collection. */
static inline bool ch__collect_if_unasked(struct ch_heap *heap) CH_HOLDS_NONE
{
	return CH_UNLIKELY(CH_LOAD_RELAXED(&heap->collect_wanted)) &&
	       CH_UNLIKELY(CH_LOAD_RELAXED(&heap->waits_for_cycle)) && ch__collect_unasked(heap);
}
