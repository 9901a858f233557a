/* SPDX-License-Identifier: MIT
 * cycle.c: full cycles of the built-in and the host driver. Order: the VM's own stop, registry and
 * heap locks, freeze, wait for regions, one core sync, stop the world, scan, trace, `completed`
 * moves, the world goes on, then the sweep. */
#include "codeheap/base/region.h"
#include "codeheap/base/trigger.h"
#include "codeheap/collect/death.h"
#include "codeheap/collect/mark.h"
#include "codeheap/collect/stacks.h"
#include "codeheap/collect/sweep.h"
#include "codeheap/collect/world.h"
#include "codeheap/graph/handles.h"
#include "codeheap/graph/stats.h"

static void call_roots(struct ch_marker *marker)
{
	for (struct ch_vm *vm = marker->heap->vms; vm; vm = vm->next)
		if (vm->is_attached && vm->ops.roots)
			vm->ops.roots(vm->user, marker);
}

/* Owners follow each other in memory, the blocks of their entries do not. */
enum { ENTRIES_AHEAD = 16 };
static void prefetch_entry(const struct ch_heap *heap, uint32_t owner)
{
	if (owner < heap->owners.used && heap->owners.segments[owner >> CH__SEGMENT_LOG2] &&
	    ch__owner_at(heap, owner)->entry)
		__builtin_prefetch(ch__block_at(heap, ch__owner_at(heap, owner)->entry), 1);
}

static void mark_owners(struct ch_marker *marker) CH_REQUIRES(ch__role_frozen)
{
	struct ch_heap *heap = marker->heap;
	for (uint32_t i = 1; i < heap->owners.used; i++) {
		if (!heap->owners.segments[i >> CH__SEGMENT_LOG2])
			continue;
		const struct ch__owner *owner = ch__owner_at(heap, i);
		prefetch_entry(heap, i + ENTRIES_AHEAD);
		if (!(atomic_load_explicit(&owner->generation, memory_order_relaxed) & 1) ||
		    !ch__owner_enters(owner))
			continue;
		ch__mark_owner_index(marker, i);
		if (marker->tail - marker->head > marker->queue_mask / 2)
			ch__mark_drain(marker);
	}
}

static void end_pause(struct ch_heap *heap, uint64_t start, uint64_t marked_from)
{
	uint64_t now = ch__os_now_ns();
	heap->cycles++;
	heap->pause_ns_last = now - start;
	if (heap->pause_ns_last > heap->pause_ns_max)
		heap->pause_ns_max = heap->pause_ns_last;
	ch__stats_note_pause(heap, now, now - start);
	heap->mark_ns_last = now - marked_from;
	heap->mark_ns_total += heap->mark_ns_last;
}

/* --- built-in --- */

/* False: a thread stands on no known stack, and nothing may die. */
static bool mark_all(struct ch_heap *heap, bool is_synced)
	CH_REQUIRES(ch__role_heap, ch__role_frozen, ch__role_stopped)
{
	struct ch_marker *marker = &heap->marker;
	if (!is_synced)
		ch__core_sync_by_stop(heap);
	ch__trigger_cycle_begins(heap);
	ch__cycle_begin(heap);
	ch__marking++;
	ch__mark_roots(marker);
	mark_owners(marker);
	ch__scan_stacks(marker);
	call_roots(marker);
	ch__mark_drain(marker);
	ch__marking--;
	if (!marker->is_blind)
		ch__cycle_complete(heap);
	return !marker->is_blind;
}

/* One limit for all its waits for threads: those with locks or in regions, and those that run. */
static bool run_cycle(struct ch_heap *heap, uint64_t until)
	CH_REQUIRES(ch__role_heap, ch__role_registry)
{
	uint64_t start = ch__os_now_ns();
	if (!ch__freeze_until(heap, until)) {
		ch__cycle_give_up(heap);
		return false;
	}
	heap->freezes++;
	bool is_synced = ch__core_sync(heap), is_done = false;
	if (ch__world_stop(heap, until)) {
		uint64_t marked_from = ch__os_now_ns();
		is_done = mark_all(heap, is_synced);
		if (is_done)
			end_pause(heap, start, marked_from);
		else
			ch__trigger_cycle_abandoned(heap);
		ch__world_resume(heap);
	}
	if (!is_done) {
		ch__cycle_give_up(heap);
	}
	ch__unfreeze(heap);
	if (is_done)
		ch__trigger_cycle_ended(heap, ch__os_now_ns() - start);
	return is_done;
}

/* Two threads that are attached to two heaps and collect one each would wait for each other: to
 * the other heaps the caller is parked meanwhile (I9, I10). */
__attribute__((noinline)) static enum ch_status collect_builtin(struct ch_heap *heap,
							       const struct ch__arch_saved *saved,
							       uint64_t until_ns)
{
	enum ch_status status = CH_E_BUSY;
	ch__threads_park(saved);
	if (ch__world_lock(heap, until_ns)) {
		if (!ch__mark_reserve(heap))
			status = CH_E_MEMORY;
		else if (run_cycle(heap, until_ns))
			status = CH_OK;
		ch__world_unlock(heap);
	}
	ch__threads_unpark();
	return status;
}

enum ch_status ch_heap_collect(struct ch_heap *heap)
{
	if (ch__is_marking())
		return CH_E_STATE;
	if (heap->config.driver == CH_DRIVER_HOST)
		return CH_E_STATE;
	/* Published here and not below: the library's own frames hold stale words only. */
	struct ch__thread *self = ch__thread_self(heap);
	struct ch__arch_saved saved;
	ch__arch_save_registers(&saved);
	if (self)
		ch__thread_publish_saved(self, &saved);
	enum ch_status status =
		heap->driver.collect ? heap->driver.collect(heap)
				     : ch__world_apart(heap, heap->vms, &saved,
						       ch__stop_limit(heap, ch__os_now_ns()),
						       collect_builtin);
	if (status != CH_OK) {
		/* What was asked for is still wanted: it is told again. */
		atomic_store(&heap->collect_told, false);
		return status;
	}
	ch__sweep_all(heap);
	ch__notices_deliver(heap);
	/* A notice may have left this stack to a thread that is not of this heap. */
	if (!self || ch__thread_now(heap))
		ch__trigger_poll(heap);
	return CH_OK;
}

/* --- host --- */

/* From ch_mark_begin to ch_mark_end the marker holds the heap lock and the freeze. */
static void leave_cycle(const struct ch_marker *marker)
	CH_RELEASES(ch__role_heap, ch__role_frozen) CH_UNANALYSED("the marker has them")
{
	ch__heap_lend(marker->heap);
}

static void take_cycle(const struct ch_marker *marker)
	CH_ACQUIRES(ch__role_heap, ch__role_frozen) CH_UNANALYSED("the marker has them")
{
	ch__heap_take_back(marker->heap);
}

enum ch_status ch_mark_begin(struct ch_heap *heap, struct ch_marker **out)
{
	*out = NULL;
	if (heap->config.driver != CH_DRIVER_HOST ||
	    atomic_load_explicit(&heap->marker_is, memory_order_relaxed) == ch__lock_self())
		return CH_E_STATE;
	uint64_t start = ch__os_now_ns(), until = ch__stop_limit(heap, start);
	if (!ch__heap_lock_until(heap, until))
		return CH_E_BUSY;
	bool has_memory = ch__mark_reserve(heap);
	if (!has_memory || !ch__freeze_until(heap, until)) {
		if (has_memory)
			ch__cycle_give_up(heap);
		ch__heap_unlock(heap);
		return has_memory ? CH_E_BUSY : CH_E_MEMORY;
	}
	heap->cycle_start_ns = start;
	heap->freezes++;
	heap->cycle_is_synced = ch__core_sync(heap);
	ch__marker_init(heap, &heap->marker);
	*out = &heap->marker;
	leave_cycle(*out);
	return CH_OK;
}

void ch_mark_owner(struct ch_marker *marker, struct ch_owner handle)
{
	ch__host_has_cycle(marker);
	ch__host_marks(marker);
	uint32_t index = ch__owner_resolve(marker->heap, handle);
	if (!index)
		return;
	ch__mark_owner_index(marker, index);
	ch__mark_drain(marker);
}

void ch_mark_stacks(struct ch_marker *marker)
{
	struct ch_heap *heap = marker->heap;
	struct ch__thread *self = ch__thread_self(heap);
	ch__host_has_cycle(marker);
	ch__host_has_stopped(marker);
	ch__host_marks(marker);
	if (self)
		ch__thread_publish_self(self);
	ch__mark_roots(marker);
	ch__scan_stacks(marker);
	call_roots(marker);
	ch__mark_drain(marker);
}

enum ch_status ch_mark_end(struct ch_marker *marker, bool is_complete)
{
	struct ch_heap *heap = marker->heap;
	enum ch_status status = marker->is_blind ? CH_E_BUSY : CH_OK;
	take_cycle(marker);
	is_complete = is_complete && !marker->is_blind;
	if (is_complete) {
		ch__host_marks(marker);
		ch__mark_drain(marker);
		ch__cycle_complete(heap);
		/* The VM's threads are stopped, or the cycle would not be complete. */
		if (!heap->cycle_is_synced)
			ch__core_sync_by_stop(heap);
		end_pause(heap, heap->cycle_start_ns, heap->cycle_start_ns);
	} else if (heap->cycle_has_begun) {
		ch__cycle_give_up(heap);
		ch__trigger_cycle_abandoned(heap);
	}
	heap->cycle_has_begun = false;
	ch__unfreeze(heap);
	if (is_complete)
		ch__trigger_cycle_ended(heap, ch__os_now_ns() - heap->cycle_start_ns);
	ch__heap_unlock(heap);
	return status;
}
