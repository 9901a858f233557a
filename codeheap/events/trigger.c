/* SPDX-License-Identifier: MIT
 * trigger.c: when a collection is worth while, and how the vms are told (P8: never an endless loop
 * of collections, no request lost). Counters are atomic; callbacks run under no lock. */
#include "codeheap/events/events.h"
#include "codeheap/base/park.h"

enum {
	OPENED_MIN_BYTES = 256 << 10,
	DEAD_MIN_BYTES = 64 << 10,
	COMMITTED_PART = 10, /* and a tenth of what was committed then */
	POOL_WANTED_QUARTERS = 3,
	DOUBLINGS_MAX = 6,
	PUT_OFF_DOUBLINGS_MAX = 2, /* dead bytes pass 4 tenths of pages they fill to a half */
	LATE_BYTES = 4 << 20,
	FLOOR_DOUBLINGS_MAX = 4,
	/* A full pool asks again after changes in this part, or so many lengths of a cycle. */
	WORTH_PART = 10,
	WORTH_PAUSES = 8,
	CYCLE_MOST_S = 10, /* counts: a process may be stopped for hours */
};

static uint64_t committed_bytes(const struct ch_heap *heap)
{
	return (uint64_t)CH_LOAD_RELAXED(&heap->pool->pages_used) << heap->pool->page_log2;
}

static uint64_t scaled(struct ch_heap *heap, uint64_t least, const _Atomic(uint32_t) *doublings)
{
	uint64_t part = CH_LOAD_RELAXED(&heap->committed_then) / COMMITTED_PART;
	least <<= CH_LOAD_RELAXED(&heap->floor_doublings);
	return (part > least ? part : least) << CH_LOAD_RELAXED(doublings);
}

/* Whether a cycle may find something: a full pool would ask for cycles without end otherwise.
 * Blocks held by frames, or by a collector of the VM, die without a word, so time alone is a
 * reason, too. The less the last cycles found, the longer the time. */
static bool is_worth(struct ch_heap *heap)
{
	uint64_t changed =
		CH_LOAD_RELAXED(&heap->bytes_since_cycle) + CH_LOAD_RELAXED(&heap->dead_bytes);
	uint64_t pauses = WORTH_PAUSES << CH_LOAD_RELAXED(&heap->opened_doublings);
	/* When only stops synchronize, the next stop frees the places of dead blocks. */
	bool awaits_stop = !heap->has_core_sync && atomic_load(&heap->quarantine_bytes);
	return awaits_stop || changed >= heap->pool->pool_bytes / WORTH_PART ||
	       ch__os_now_ns() - __atomic_load_n(&heap->last_cycle_end_ns, __ATOMIC_RELAXED) >=
		       pauses * __atomic_load_n(&heap->cycle_ns, __ATOMIC_RELAXED);
}

/* A thread that is about to tell of the last request may store collect_told after its end. */
static void want(struct ch_heap *heap)
{
	if (!atomic_exchange(&heap->collect_wanted, true))
		atomic_store(&heap->collect_told, false);
	ch__poll_want(heap);
}

void ch__trigger_opened(struct ch_heap *heap, uint32_t bytes)
{
	uint64_t sum = bytes + atomic_fetch_add_explicit(&heap->bytes_since_cycle, bytes,
							 memory_order_relaxed);
	bool is_crowded =
		committed_bytes(heap) * 4 > (uint64_t)heap->pool->pool_bytes * POOL_WANTED_QUARTERS;
	/* A crowded pool asks again after opens of a sixteenth, whatever the last cycle left. */
	bool is_due = sum > scaled(heap, OPENED_MIN_BYTES, &heap->opened_doublings) ||
		      (is_crowded && sum > heap->pool->pool_bytes / 16);
	/* A wish that nobody answers stands for long, and so does the word of polls. A store would
	 * then cost every open, which reads these lines. The thread that wished first sets the word
	 * behind the wish. */
	if (is_due && !(CH_LOAD_RELAXED(&heap->collect_wanted) && CH_LOAD_RELAXED(&heap->poll_due)))
		want(heap);
}

void ch__trigger_dead(struct ch_heap *heap, uint64_t bytes)
{
	uint64_t sum = bytes + atomic_fetch_add(&heap->dead_bytes, bytes);
	if (bytes && !atomic_load(&heap->waits_for_cycle))
		atomic_store(&heap->waits_for_cycle, true);
	if (sum > scaled(heap, DEAD_MIN_BYTES, &heap->dead_doublings) ||
	    (CH_UNLIKELY(CH_LOAD_RELAXED(&heap->anyone_wants_space)) && is_worth(heap)))
		want(heap);
}

/* Where only stops synchronize, the places of the dead wait for the next cycle, too. */
void ch__trigger_nothing_left(struct ch_heap *heap)
{
	if (!heap->has_core_sync)
		return;
	atomic_store(&heap->waits_for_cycle, false);
	if (atomic_load(&heap->dead_bytes))
		atomic_store(&heap->waits_for_cycle, true);
}

void ch__trigger_released(struct ch_heap *heap, uint32_t blocks)
{
	uint64_t mean = CH_LOAD_RELAXED(&heap->mean_dead_bytes);
	const struct ch__thread *self = mean ? NULL : ch__thread_self(heap);
	if (self && self->counters.blocks_opened)
		mean = self->counters.bytes_opened / self->counters.blocks_opened;
	ch__trigger_dead(heap, 64 + mean * blocks);
}

void ch__space_came(struct ch_heap *heap)
{
	if (!atomic_load(&heap->anyone_wants_space))
		return;
	atomic_store(&heap->space_came, true);
	ch__poll_want(heap);
}

void ch__trigger_full(struct ch_heap *heap, struct ch_vm *vm, uint64_t space_seen)
{
	/* The first failed open decides: space since then counts, whatever later opens saw. */
	if (!vm->wants_space)
		vm->space_seen = space_seen;
	/* A vm that is not told asks by its opens only: its polls need not look. */
	vm->wants_space = vm->ops.space_free != NULL;
	if (vm->wants_space) {
		atomic_store(&heap->anyone_wants_space, true);
		ch__space_came(heap);
	}
	/* After a try in vain (ch__trigger_put_off) the sums lack what is dead still. */
	if (heap->unasked_after_ns || is_worth(heap))
		want(heap);
}

/* The next request is told whatever became of this one. Polls for a vm that waits for space have to
 * look for a reason to collect again. */
static void end_request(struct ch_heap *heap)
{
	atomic_store(&heap->collect_wanted, false);
	atomic_store(&heap->collect_told, false);
	ch__poll_want(heap);
}

void ch__trigger_cycle_begins(struct ch_heap *heap)
{
	heap->dead_at_cycle = atomic_exchange(&heap->dead_bytes, 0);
	heap->opened_at_cycle = atomic_exchange(&heap->bytes_since_cycle, 0);
	end_request(heap);
}

void ch__trigger_cycle_abandoned(struct ch_heap *heap)
{
	atomic_fetch_add(&heap->dead_bytes, heap->dead_at_cycle);
	atomic_fetch_add(&heap->bytes_since_cycle, heap->opened_at_cycle);
	want(heap);
}

/* Under heap, but for Boehm's hooks; the world is still stopped, or has just resumed. */
void ch__trigger_cycle_ended(struct ch_heap *heap, uint64_t cycle_ns)
{
	uint64_t now = ch__os_now_ns();
	uint64_t between = now - heap->last_cycle_end_ns;
	uint32_t doublings = atomic_load(&heap->floor_doublings);
	/* Boehm's hooks come here without the lock, while another thread may end a sweep. */
	uint64_t swept = __atomic_load_n(&heap->stats.sweep_ns_total, __ATOMIC_RELAXED);
	uint64_t collecting = cycle_ns + swept - heap->sweep_ns_at_cycle;
	if (collecting > CYCLE_MOST_S * UINT64_C(1000000000))
		collecting = CYCLE_MOST_S * UINT64_C(1000000000);
	__atomic_store_n(&heap->last_cycle_end_ns, now, __ATOMIC_RELAXED);
	__atomic_store_n(&heap->cycle_ns, collecting, __ATOMIC_RELAXED);
	heap->sweep_ns_at_cycle = swept;
	heap->blocks_at_cycle = __atomic_load_n(&heap->counters.blocks_freed, __ATOMIC_RELAXED);
	heap->bytes_at_cycle = __atomic_load_n(&heap->counters.bytes_freed, __ATOMIC_RELAXED);
	/* Collections that take over a tenth of the time are wanted half as often. Only the least
	 * values double: by the tenth of the committed bytes each dead block costs the same. */
	if (between && collecting * 10 > between && doublings < FLOOR_DOUBLINGS_MAX)
		atomic_store(&heap->floor_doublings, doublings + 1);
	else if (doublings && collecting * 40 < between)
		atomic_store(&heap->floor_doublings, doublings - 1);
}

/* A doubled part of what is committed at the moment would grow with the dead, and not be passed. */
static void note_committed(struct ch_heap *heap)
{
	CH_STORE_RELAXED(&heap->committed_then, committed_bytes(heap));
}

/* A cycle that found little doubles the threshold by which it was wanted. */
static void back_off(_Atomic(uint32_t) *doublings, bool is_poor, uint32_t most)
{
	uint32_t now = atomic_load(doublings);
	if (!is_poor)
		atomic_store(doublings, 0);
	else if (now < most)
		atomic_store(doublings, now + 1);
}

bool ch__trigger_is_late(const struct ch_heap *heap)
{
	return atomic_load(&heap->dead_doublings) >= PUT_OFF_DOUBLINGS_MAX &&
	       atomic_load(&heap->dead_bytes) >= LATE_BYTES;
}

void ch__trigger_put_off(struct ch_heap *heap)
{
	note_committed(heap);
	back_off(&heap->opened_doublings, true, PUT_OFF_DOUBLINGS_MAX);
	back_off(&heap->dead_doublings, true, PUT_OFF_DOUBLINGS_MAX);
	CH_STORE_RELAXED(&heap->bytes_since_cycle, 0);
	CH_STORE_RELAXED(&heap->dead_bytes, 1); /* what is left is not forgotten */
	end_request(heap);
}

void ch__trigger_swept(struct ch_heap *heap)
{
	uint64_t freed = heap->counters.blocks_freed - heap->blocks_at_cycle;
	uint64_t bytes = heap->counters.bytes_freed - heap->bytes_at_cycle;
	note_committed(heap);
	/* Where no block has an owner, none may be marked: to free none is poor there, too. */
	bool is_poor = !freed || freed * 20 < heap->stats.marked_blocks_last;
	back_off(&heap->opened_doublings, is_poor, DOUBLINGS_MAX);
	/* When code only grows, a poor cycle says nothing of released or invalidated code. */
	if (!is_poor || heap->dead_at_cycle > DEAD_MIN_BYTES)
		back_off(&heap->dead_doublings, is_poor, DOUBLINGS_MAX);
	if (freed)
		CH_STORE_RELAXED(&heap->mean_dead_bytes, bytes / freed);
}

/* Makes a callback of the vm, if the vm is attached. The vm hears of space once, and only if some
 * came since its open failed. The record may be another vm's when the callback comes. */
static void tell(struct ch_heap *heap, struct ch_vm *vm, bool of_space)
{
	void (*call)(void *user) = NULL;
	ch__heap_lock(heap);
	void *user = vm->user;
	if (vm->is_attached && !of_space) {
		call = vm->ops.collect_wanted;
	} else if (vm->is_attached && vm->wants_space && vm->space_seen != ch__space_now(heap)) {
		vm->wants_space = false;
		call = vm->ops.space_free;
	}
	ch__heap_unlock(heap);
	if (!call)
		return;
	ch__holds_nothing();
	call(user);
}

static void tell_space(struct ch_heap *heap)
{
	bool anyone = false, is_ours = ch__thread_self(heap) != NULL;
	if (!atomic_exchange(&heap->space_came, false))
		return;
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		if (!is_ours || ch__thread_now(heap))
			tell(heap, vm, true);
	ch__heap_lock(heap);
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		anyone |= vm->is_attached && vm->wants_space;
	atomic_store(&heap->anyone_wants_space, anyone);
	/* A callback left the heap, and its thread told no more vms. */
	if (is_ours && !ch__thread_now(heap))
		ch__space_came(heap);
	ch__heap_unlock(heap);
}

void ch__trigger_tell(struct ch_heap *heap)
{
	ch__pool_trim_if_worth(heap->pool);
	/* A wish that no vm answers stands for long, and costs no locked instruction meanwhile. */
	if (!CH_LOAD_RELAXED(&heap->collect_wanted) || atomic_load(&heap->collect_told) ||
	    atomic_exchange(&heap->collect_told, true))
		return;
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		tell(heap, vm, false);
}

void ch__trigger_poll(struct ch_heap *heap)
{
	bool is_ours = ch__thread_self(heap) != NULL;
	ch__listeners_use(heap);
	if (atomic_load(&heap->anyone_wants_space)) {
		tell_space(heap);
		/* Since the open failed, a collection may have become worth while. */
		if (atomic_load(&heap->anyone_wants_space) &&
		    !CH_LOAD_RELAXED(&heap->collect_wanted) && is_worth(heap))
			want(heap);
	}
	if (!is_ours || ch__thread_now(heap))
		ch__trigger_tell(heap);
}
