/* SPDX-License-Identifier: MIT
 * cycle.c: full cycles of the built-in and the host driver (docs/design.md, section 6), also where
 * no vm hears that a collection is wanted. */
#include "codeheap/collector.h"
#include "codeheap/collect/collect.h"
#include "invalidate/invalidate.h"

/* Owners are adjacent in memory; the blocks of their entries are not, and so are prefetched. */
static void mark_owners(struct ch_marker *marker) CH_HAS_FREEZE
{
	enum { ENTRIES_AHEAD = 16 };
	struct ch_heap *heap = marker->heap;
	for (uint32_t i = 1; i < heap->owners.used; i++) {
		const struct ch__owner *owner = ch__owner_at(heap, i);
		uint32_t ahead = i + ENTRIES_AHEAD;
		if (ahead < heap->owners.used && ch__owner_at(heap, ahead)->entry)
			__builtin_prefetch(ch__block_at(heap, ch__owner_at(heap, ahead)->entry), 1);
		if (!(CH_LOAD_RELAXED(&owner->generation) & 1) || !ch__owner_enters(owner))
			continue;
		ch__mark_owner_index(marker, i);
		if (marker->tail - marker->head > marker->queue_mask / 2)
			ch__mark_drain(marker);
	}
}

enum ch_status ch__because_blind(int thread_id)
{
	return ch__because(CH_E_BUSY, "thread %d stood on a stack that is neither its own nor an "
				      "attached fiber's: ch_fiber_attach it", thread_id);
}

/* Gives back the locks, and the park of the caller. */
static void leave(struct ch_heap *heap)
	CH_RELEASES(ch__role_heap) CH_UNANALYSED("the registry where it stops")
{
	ch__heap_unlock(heap);
	if (!heap->config.stops_world)
		return;
	ch__registry_unlock(heap);
	ch_thread_unpark();
}

/* No thread is stopped inside a region (I1). All waits share one limit (I10). Returns false when
 * nothing is frozen or stopped. Threads of a host with a stop of its own count as stopped. */
static bool freeze_and_stop(struct ch_heap *heap, uint64_t until_ns)
	CH_TRY_ACQUIRES(true, ch__role_frozen, ch__role_stopped)
	CH_HAS_HEAP CH_UNANALYSED("some stop, some do not")
{
	if (!ch__freeze_until(heap, until_ns))
		return false;
	heap->cycle_is_synced = ch__core_sync(heap);
	return !heap->config.stops_world || ch__world_stop(heap, until_ns);
}

/* A thread that stops others is parked itself, to every heap, from before the first wait to the
 * end. Otherwise two threads that collect a heap each would wait for each other (I9, I10). The
 * thread has the registry, too, left of heap: coming and going threads wait. */
static enum ch_status begin(struct ch_heap *heap, uint64_t until_ns)
	CH_UNANALYSED("a cycle keeps the locks")
{
	bool is_locked = heap->config.stops_world ? ch__world_lock(heap, until_ns)
						  : ch__heap_lock_until(heap, until_ns);
	if (!is_locked) {
		if (heap->config.stops_world)
			ch_thread_unpark();
		return ch__because_locked();
	}
	bool has_memory = ch__mark_reserve(heap, &heap->marker);
	heap->cycle_start_ns = ch__os_now_ns();
	if (has_memory && freeze_and_stop(heap, until_ns))
		return CH_OK;
	heap->cycle_start_ns = 0;
	if (has_memory)
		ch__cycle_give_up(heap);
	leave(heap);
	return has_memory ? ch__told(CH_E_BUSY) : ch__because_memory("what a cycle marks");
}

/* When a thread stands on no known stack, nothing may die. Threads run on before the thaw. */
static enum ch_status end(struct ch_heap *heap, bool is_complete, uint64_t marked_from_ns)
	CH_RELEASES(ch__role_heap, ch__role_frozen) CH_UNANALYSED("begin has taken the locks")
{
	int blind_to = heap->marker.blind_to;
	uint64_t start = heap->cycle_start_ns;
	heap->cycle_start_ns = 0;
	if (is_complete && !blind_to) {
		ch__cycle_complete(heap, start);
		/* A host says complete only while the threads are stopped. */
		if (!heap->cycle_is_synced)
			ch__core_sync_by_stop(heap);
	} else if (heap->cycle_has_begun) {
		ch__cycle_give_up(heap);
	}
	ch__stats_note_pause(heap, start, marked_from_ns);
	if (heap->config.stops_world)
		ch__world_resume(heap);
	ch__unfreeze(heap);
	leave(heap);
	return blind_to ? ch__because_blind(blind_to) : CH_OK;
}

__attribute__((noinline)) static enum ch_status
collect_builtin(struct ch_heap *heap, const struct ch__arch_saved *saved, uint64_t until_ns)
{
	struct ch_marker *marker = &heap->marker;
	ch__threads_park(saved);
	enum ch_status status = begin(heap, until_ns);
	if (status != CH_OK)
		return status;
	ch__marker_has_cycle(marker);
	uint64_t marked_from = ch__os_now_ns();
	ch__cycle_begin(heap);
	ch__marking++;
	ch__mark_roots(marker);
	mark_owners(marker);
	ch__scan_stacks(marker);
	ch__marking--;
	return end(heap, true, marked_from);
}

/* Recurses for each vm, from `vm` on, with a stop of its own for its threads: every stop has its
 * end, whatever the next vms say. Time spent by the vms does not count, since the limit moves by as
 * much. A vm may be detached meanwhile, so the calls use copies. */
static enum ch_status collect_apart(struct ch_heap *heap, struct ch_vm *vm,
				    const struct ch__arch_saved *saved, uint64_t until_ns)
	CH_HOLDS_NONE
{
	if (!ch__heap_lock_until(heap, until_ns))
		return ch__because_locked();
	while (vm && !(vm->is_attached && vm->ops.stop_world))
		vm = vm->next;
	bool (*stop)(void *) = vm ? vm->ops.stop_world : NULL;
	void (*resume)(void *) = vm ? vm->ops.resume_world : NULL;
	void *user = vm ? vm->user : NULL;
	ch__heap_unlock(heap);
	if (!stop)
		return collect_builtin(heap, saved, until_ns);
	ch__holds_nothing();
	uint64_t asked_ns = ch__os_now_ns();
	bool has_stopped = stop(user);
	until_ns += ch__os_now_ns() - asked_ns;
	if (!has_stopped) {
		if (ch__heap_lock_until(heap, until_ns)) {
			ch__cycle_give_up(heap);
			ch__heap_unlock(heap);
		}
		return ch__because(CH_E_BUSY, "ch_ops.stop_world of a vm returned false");
	}
	enum ch_status status = collect_apart(heap, vm->next, saved, until_ns);
	ch__holds_nothing();
	if (resume)
		resume(user);
	return status;
}

/* As ch_heap_collect, not of a HOST heap, and until the limit at most. The caller tells the vms of
 * what died. */
static enum ch_status collect_until(struct ch_heap *heap, uint64_t until_ns) CH_HOLDS_NONE
{
	/* Published here and not deeper: the library's own frames hold only stale words. Words
	 * published by a park of the VM stay: other threads' cycles read them until the unpark. */
	struct ch__thread *self = ch__thread_self(heap);
	struct ch__arch_saved saved;
	ch__arch_save_registers(&saved);
	if (self && !self->park_depth)
		ch__thread_publish_saved(self, &saved);
	CH_STORE_RELAXED(&heap->held_up_by, 0);
	enum ch_status status = heap->driver.collect
					? heap->driver.collect(heap)
					: collect_apart(heap, heap->vms, &saved, until_ns);
	if (status != CH_OK) {
		ch__trigger_tell_again(heap);
		return status;
	}
	heap->unasked_after_ns = 0; /* nobody holds up the next */
	ch__sweep_steps(heap, UINT32_MAX);
	return CH_OK;
}

enum ch_status ch_heap_collect(struct ch_heap *heap)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	if (heap->config.driver == CH_DRIVER_HOST)
		return ch__because(CH_E_STATE, "a HOST heap is collected by ch_mark_begin");
	enum ch_status status = collect_until(heap, ch__stop_limit(heap, ch__os_now_ns()));
	if (status == CH_OK)
		ch__vms_tell(heap);
	return status;
}

/* The caller asked for no stop, and waits a tenth of stop_wait_ms for other threads: a busy machine
 * keeps a thread from its processor for some 30 ms. After a try in vain no thread tries for 50
 * times as long as that try took, save where much is dead, or the thread that held the try up
 * stands still or left. Of a try its wait counts and TRY_NS: a process may be stopped for hours. */
enum { UNASKED_PART = 10, REST = 50, TRY_NS = 1000000000 };

/* Whether a thread held up the last collection, and stands still since, left, or is the caller. */
static bool is_let_go(const struct ch_heap *heap, const struct ch__thread *self)
{
	int held_up_by = CH_LOAD_RELAXED(&heap->held_up_by);
	const struct ch__thread *t = heap->threads;
	while (t && !(CH_LOAD_RELAXED(&t->thread_id) == held_up_by && t->is_attached &&
		      t != self && CH_LOAD_RELAXED(&t->state) == CH__RUNNING))
		t = t->next;
	return held_up_by && !t;
}

/* Callbacks come when collects_unasked is 0 again: one may collect, too, or never return here. */
bool CH_COLD ch__collect_unasked(struct ch_heap *heap)
{
	const struct ch__thread *self = ch__thread_self(heap);
	bool is_asked = heap->config.driver == CH_DRIVER_HOST || heap->driver.collect ||
			heap->is_codeless || CH_LOAD_RELAXED(&heap->vms_asked);
	if (is_asked || !self || self->park_depth || atomic_exchange(&heap->collects_unasked, 1))
		return false;
	uint64_t now = ch__os_now_ns(), limit_ns = ch__stop_limit(heap, 0) / UNASKED_PART;
	bool is_late = ch__trigger_is_late(heap);
	bool is_tried = is_late || now >= heap->unasked_after_ns || is_let_go(heap, self);
	bool has_collected = is_tried && collect_until(heap, now + limit_ns) == CH_OK;
	if (is_tried && !has_collected) {
		uint64_t end = ch__os_now_ns(), tried_ns = end - now;
		if (tried_ns > limit_ns + TRY_NS)
			tried_ns = limit_ns + TRY_NS;
		heap->unasked_after_ns = end + tried_ns * REST;
	}
	if (!has_collected) {
		/* No call fails meanwhile, so nothing else would tell the user. */
		if (is_late && !heap->is_late_told)
			ch__why_print("dead code piles up: ");
		heap->is_late_told |= is_late;
		ch__trigger_put_off(heap);
	}
	atomic_store(&heap->collects_unasked, 0);
	if (has_collected)
		ch__vms_tell(heap);
	return is_tried;
}

bool ch__await_unasked(struct ch_heap *heap)
{
	enum { NAP_NS = 50000 };
	if (!atomic_load(&heap->collects_unasked))
		return false;
	uint64_t until_ns = ch__stop_limit(heap, ch__os_now_ns());
	ch__thread_park_here();
	while (atomic_load(&heap->collects_unasked) && ch__os_now_ns() < until_ns)
		ch__os_futex_wait(&heap->collects_unasked, 1, NAP_NS);
	ch_thread_unpark();
	return true;
}

enum ch_status ch_vm_discard(struct ch_heap *heap, struct ch_vm *vm, size_t *freed, size_t *kept)
{
	size_t unused = 0;
	freed = freed ? freed : &unused;
	kept = kept ? kept : &unused;
	*freed = *kept = 0;
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	if (vm && vm->heap != heap)
		return ch__because(CH_E_ARG, "the vm is another heap's");
	ch__heap_lock(heap);
	size_t found = *kept = ch__discard(heap, vm, CH__CAUSE_DISCARDED);
	ch__heap_unlock(heap);
	/* A VM with a collector of its own runs the next cycle itself. */
	if (heap->config.driver == CH_DRIVER_HOST || heap->driver.collect) {
		ch__trigger_tell(heap);
		return CH_OK;
	}
	enum ch_status status = collect_until(heap, ch__stop_limit(heap, ch__os_now_ns()));
	/* Before the callbacks, which may invalidate more. */
	ch__heap_lock(heap);
	*kept = ch__discard(heap, vm, CH__CAUSE_NONE);
	ch__heap_unlock(heap);
	*freed = *kept < found ? found - *kept : 0;
	if (status == CH_OK)
		ch__vms_tell(heap);
	return status;
}

/* From ch_mark_begin to ch_mark_end the marker holds the locks and the freeze. */
static void leave_cycle(const struct ch_marker *marker)
	CH_RELEASES(ch__role_heap, ch__role_frozen) CH_UNANALYSED("the marker has them")
{
	ch__heap_lend();
	if (marker->heap->config.stops_world)
		ch__rank_note(CH__RANK_REGISTRY, false);
}

static void take_cycle(const struct ch_marker *marker)
	CH_ACQUIRES(ch__role_heap, ch__role_frozen) CH_UNANALYSED("the marker has them")
{
	if (marker->heap->config.stops_world)
		ch__rank_note(CH__RANK_REGISTRY, true);
	ch__heap_take_back();
}

/* A thread in a visit of ch_block_each, or in a callback of a cycle of the library's, has the lock,
 * too. */
bool ch__host_may_mark(const struct ch_heap *heap) CH_UNANALYSED("a marking thread has the lock")
{
	bool may = ch__lock_is_mine(&heap->lock) && heap->cycle_start_ns &&
		   heap->config.driver == CH_DRIVER_HOST;
	if (CH_UNLIKELY(!may))
		(void)ch__because(CH_E_STATE, "the calling thread is not between ch_mark_begin and "
					      "ch_mark_end");
	return may;
}

/* The first call that marks begins the cycle. A host that only visits refs has no cycle: marks stay
 * as they are, and nothing dies. */
static void begin_to_mark(struct ch_marker *marker) CH_REQUIRES(ch__role_heap, ch__role_frozen)
{
	if (CH_LIKELY(marker->heap->cycle_has_begun))
		return;
	ch__cycle_begin(marker->heap);
	ch__mark_roots(marker);
}

static uint32_t begin_host(const struct ch__arch_saved *saved, void *of, void *at)
{
	struct ch_heap *heap = of;
	struct ch_marker **out = at;
	*out = NULL;
	if (!ch__heap_lives(heap))
		return ch__because_refused(heap);
	if (heap->config.driver != CH_DRIVER_HOST)
		return ch__because(CH_E_STATE, "ch_config.driver is not CH_DRIVER_HOST");
	if (ch__lock_is_mine(&heap->lock))
		return ch__because_marking();
	if (heap->config.stops_world)
		ch__threads_park_away(saved);
	CH_STORE_RELAXED(&heap->held_up_by, 0);
	enum ch_status status = begin(heap, ch__stop_limit(heap, ch__os_now_ns()));
	if (status != CH_OK) {
		ch__trigger_tell_again(heap);
		return status;
	}
	ch__marker_init(heap, &heap->marker);
	*out = &heap->marker;
	ch__marker_has_cycle(*out);
	leave_cycle(*out);
	return status;
}

/* May return parked, so the published registers must be the caller's. */
__attribute__((noinline)) enum ch_status ch_mark_begin(struct ch_heap *heap, struct ch_marker **out)
{
	return (enum ch_status)ch__arch_call_with_registers(begin_host, heap, out);
}

void ch_mark_owner(struct ch_marker *marker, struct ch_owner handle)
{
	if (!ch__host_may_mark(marker->heap))
		return;
	ch__marker_has_cycle(marker);
	begin_to_mark(marker);
	uint32_t index = ch__owner_look_up(marker->heap, handle);
	if (CH_UNLIKELY(!index || !ch__mark_owner_index(marker, index))) {
		(void)ch__because_stale("owner", handle.bits);
		return;
	}
	ch__mark_drain(marker);
}

void ch_mark_stack(struct ch_marker *marker, const void *low, const void *high)
{
	/* `roots` of another driver has that driver's cycle. */
	bool is_host = marker->heap->config.driver == CH_DRIVER_HOST;
	if ((is_host || !marker->heap->cycle_has_begun) && !ch__host_may_mark(marker->heap))
		return;
	ch__marker_has_cycle(marker);
	begin_to_mark(marker);
	marker->has_stacks = true;
	ch__scan_words(marker, (uintptr_t)low, (uintptr_t)high);
	/* The VM traces the refs found, so they are reported here, not at the end of the cycle. */
	ch__mark_drain(marker);
}

void ch_mark_stacks(struct ch_marker *marker)
{
	struct ch__thread *self = ch__thread_self(marker->heap);
	if (!ch__host_may_mark(marker->heap))
		return;
	ch__marker_has_cycle(marker);
	begin_to_mark(marker);
	marker->has_stacks = true;
	/* Words published by a park of the VM stay, until the VM's unpark. */
	if (self && self->park_depth <= (marker->heap->config.stops_world ? 1u : 0u))
		ch__thread_publish_self(self);
	ch__scan_stacks(marker);
}

enum ch_status ch_mark_end(struct ch_marker *marker, bool is_complete)
{
	struct ch_heap *heap = marker->heap;
	if (!ch__host_may_mark(heap))
		return ch__told(CH_E_STATE);
	if (marker->callbacks)
		return ch__because_marking();
	bool lacks_stacks = is_complete && !marker->has_stacks;
	take_cycle(marker);
	enum ch_status status = end(heap, is_complete && !lacks_stacks, heap->cycle_start_ns);
	/* The code that the caller returns to would have died. */
	if (lacks_stacks)
		return ch__because(CH_E_STATE, "is_complete is true, and neither ch_mark_stacks "
					       "nor ch_mark_stack came before: nothing dies");
	return status;
}
