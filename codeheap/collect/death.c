/* SPDX-License-Identifier: MIT
 * death.c: the end of a block, for any reason: no cycle reached the block (sweep.c), it or its
 * owner was freed, its open or commit was given up, or a child of fork has no thread or no copy for
 * it. The block is withdrawn and filled with traps. After a core sync the place is reused (P2, P4,
 * P5).
 *
 * Order: I3, I8. Lock: heap; pages and sinks inside. */
#include "codeheap/collect/collect.h"
#include "invalidate/invalidate.h"
#include "unwind/steps.h"

enum { QUARANTINE_MANY_BYTES = 64 << 10 };

/* Holds no address of code: on the sweeper's stack, the address would hold the next block at the
 * same place. The record has the block's place until the place is given back. */
struct dead {
	struct ch__block *block;
	uint32_t index;
	uint32_t run;   /* of branches, all unlinked */
	uint32_t hot_bytes;
	bool must_wait; /* goes on the quarantine: the place may not go back at once */
	bool is_data;
	uint8_t was;    /* enum ch_block_state */
};

/* Blocks that end together. */
struct end {
	uint32_t count;
	bool must_wait; /* each of them goes on the quarantine */
	struct dead dead[CH__KILLED_AT_ONCE];
};

/* Whether places of dead blocks stay unused: an address has one name in the perf map for ever. */
static bool dead_names_kept(const struct ch_heap *heap)
{
	return heap->config.dead_names == CH_DEAD_NAMES_KEPT &&
	       (ch__sinks_on(heap->sinks) & CH_SINK_PERF_MAP) != 0;
}

static void count_death(struct ch_heap *heap, const struct dead *dead) CH_HAS_HEAP
{
	struct ch__counters *c = &heap->counters;
	uint32_t cold = ch__cold_bytes(dead->block);
	int64_t bytes = (int64_t)dead->hot_bytes + cold;
	if (dead->was == CH_BLOCK_OPEN)
		c->blocks_aborted++;
	else
		c->blocks_freed++;
	c->bytes_freed += (uint64_t)bytes;
	c->code_bytes -= bytes;
	c->cold_bytes -= cold;
	if (dead->was == CH_BLOCK_NOTENTRANT) {
		heap->blocks_notentrant--;
		heap->notentrant_bytes -= (uint64_t)bytes;
	}
}

/* Whether other cores may still jump to the block, by a stale jump of a branch that is or was
 * linked, or may run stale bytes at the block's place. */
static bool is_known(const struct ch__block *block, bool is_data, bool was_open)
{
	const uint8_t both = CH__FLAG_HELD | CH__FLAG_UNLINKED;
	uint8_t flags = CH_LOAD_RELAXED(&block->flags);
	bool was_linked = (flags & both) == both;
	/* Data has the number of its users in this word. */
	return block->in_head != 0 || was_linked ||
	       ((!CH_ARCH_FETCH_FOLLOWS || is_data) && !was_open);
}

/* Makes room for all data that may lose its last user when the blocks die. In no region, as memory
 * is asked for. */
static void reserve_orphans(struct ch_heap *heap, const uint32_t *blocks, uint32_t count)
	CH_HAS_HEAP
{
	uint32_t most = heap->orphans_count + count;
	for (uint32_t i = 0; i < count; i++) {
		const struct ch__side_list *list = ch__block_at(heap, blocks[i])->side_list;
		most += list ? list->count : 0;
	}
	while (heap->orphans_capacity < most &&
	       ch__meta_grow(heap->meta, &heap->orphans, &heap->orphans_capacity, 128,
			     sizeof *heap->orphans))
		continue;
}

static void push_orphan(struct ch_heap *heap, uint32_t index) CH_HAS_HEAP
{
	if (heap->orphans_count < heap->orphans_capacity)
		heap->orphans[heap->orphans_count++] = index;
}

/* Drops a block's edges to data. With `adopts` (the block does not run) data without a user left
 * is an orphan: it dies when the unwind table of its last user has gone. Under heap. */
static void leave_data(struct ch_heap *heap, const struct ch__side_list *list, bool adopts)
	CH_HAS_HEAP
{
	for (uint32_t i = 0; i < list->count; i++) {
		struct ch__item item = ch__side_items(list)[i];
		if (list->kinds[i] != CH__ITEM_EDGE)
			continue;
		struct ch__block *to = ch__edge_target(heap, item);
		if (!to || !ch__block_is_data(heap, to) ||
		    __atomic_sub_fetch(&to->users, 1, __ATOMIC_RELAXED) || !adopts ||
		    (to->flags & CH__FLAG_IMMORTAL) || ch__block_is_own_root(heap, to))
			continue;
		push_orphan(heap, item.value);
	}
}

static bool is_by_hand(enum ch__death death)
{
	return death == CH__DEATH_NOT_RUNNING || death == CH__DEATH_FREED_NOT_RUNNING;
}

/* A released block with an edge from another block dies with the other. Attaching an edge takes the
 * owner's lock: an orphan may have a user again. Data whose users have all left is an orphan. */
static bool edged_ends(struct ch_heap *heap, struct ch__block *block, uint32_t index,
		       bool is_orphan) CH_REQUIRES(ch__role_heap, ch__role_owner)
{
	bool is_left = ch__block_is_data(heap, block) &&
		       !__atomic_load_n(&block->users, __ATOMIC_RELAXED);
	if (is_left && is_orphan)
		return true;
	/* Immortal no more: its owner ends, and cycles free the block. */
	block->flags &= (uint8_t)~CH__FLAG_IMMORTAL;
	if (!is_left)
		return false;
	/* A user that ended just now may have put the block on the list. */
	for (uint32_t i = 0; i < heap->orphans_count; i++)
		if (heap->orphans[i] == index)
			return false;
	push_orphan(heap, index);
	return false;
}

/* LIVE | NOTENTRANT | OPEN -> DEAD. In a region, under heap, with the list of the owner locked. */
static void kill(struct ch_heap *heap, struct ch__owner *owner, struct ch__block *block,
		 uint32_t index, enum ch__death death, struct end *end)
	CH_REQUIRES(ch__role_heap, ch__role_owner, ch__role_region)
{
	struct dead *dead = &end->dead[end->count++];
	enum ch_block_state was = ch__block_state(block);
	bool was_open = was == CH_BLOCK_OPEN, is_data = ch__block_is_data(heap, block);
	/* Sources of a block that no cycle reached are dead, too. Without a copy there are none. */
	bool patch_sources = death != CH__DEATH_UNREACHED && death != CH__DEATH_NO_COPY;
	uint32_t generation = CH_LOAD_RELAXED(&block->generation);
	struct ch__side_list *list = block->side_list;
	*dead = (struct dead){.block = block, .index = index, .run = ch__block_run(block),
			      .hot_bytes = ch__hot_bytes(block), .is_data = is_data,
			      .must_wait = end->must_wait || is_known(block, is_data, was_open),
			      .was = (uint8_t)was};
	if (list && list->count) {
		leave_data(heap, list, is_by_hand(death));
		ch__assumption_leave(heap, list);
	}
	if (is_data)
		block->users = 0; /* its users die, too */
	else if (block->in_head || dead->run)
		ch__block_unlink(heap, index, patch_sources, false);
	if (owner->entry == index)
		ch__owner_reset_cell(owner);
	if (block->owner)
		ch__owner_remove(heap, owner, block, index);
	ch__tombstone_write(heap, owner, block, index, death);
	atomic_store_explicit(&block->generation, generation + 1, memory_order_release);
	atomic_store_explicit(&block->first_branch, 0, memory_order_release);
	if (!was_open) {
		ch__page_set_start(heap->pool, block->hot_offset, false);
		if (block->cold_granules)
			ch__page_set_start(heap->pool, ch__cold_offset(heap, block), false);
	}
	ch__block_set_state(heap, block, index, CH_BLOCK_DEAD, CH__CAUSE_NONE, __func__);
	/* A flag set by another thread at the same time (HELD) may be lost: nobody asks for it any
	 * more. */
	uint8_t flags = CH_LOAD_RELAXED(&block->flags) & (uint8_t)~CH__FLAG_NOTICE;
	if (!was_open && owner->vm->ops.block_freed)
		flags |= CH__FLAG_NOTICE;
	CH_STORE_RELAXED(&block->flags, flags);
}

/* Outside of regions: all names are withdrawn first, then traps are written. Observers may take the
 * names. A sink takes its lock once. An OPEN block was never told to sinks. */
_Static_assert((int)CH__KILLED_AT_ONCE <= (int)CH__LOOK_DEATHS_MOST, "listeners have room");
static void withdraw_names(struct ch_heap *heap, const struct end *end) CH_HAS_HEAP
{
	struct ch__sink_range ranges[2 * CH__KILLED_AT_ONCE];
	uint64_t keys[CH__KILLED_AT_ONCE];
	bool wants_ranges = ch__sinks_want_ranges(CH_LOAD_RELAXED(&heap->sinks_on));
	size_t n = 0;
	if (!wants_ranges && !CH_LOAD_RELAXED(&heap->listeners))
		return;
	for (uint32_t i = 0; i < end->count; i++) {
		const struct dead *dead = &end->dead[i];
		/* The handle's generation is the one before. */
		keys[i] = ch__block_handle(heap, dead->index).bits - (UINT64_C(1) << 32);
		if (wants_ranges && dead->was != CH_BLOCK_OPEN && !dead->is_data)
			n += ch__block_ranges(heap, dead->block, keys[i], &ranges[n]);
	}
	if (end->count)
		CH__TELL(heap, blocks_die, keys, end->count);
	if (n)
		ch__sinks_remove(heap->sinks, ranges, n);
}

static uint32_t page_of(const struct ch_heap *heap, const struct ch__block *block)
{
	return block->hot_offset >> heap->pool->page_log2;
}

static void fill_with_traps(struct ch_heap *heap, const struct dead *dead)
{
	const struct ch__block *block = dead->block;
	uintptr_t hot = ch__exec(heap, block->hot_offset), cold = 0;
	/* Data, code written in place and rooms get traps, or lose their memory, when their places
	 * go back. */
	if (!dead->is_data && !(ch__block_is_span(heap, block) &&
				ch__pool_span_waits_for_traps(heap->pool, page_of(heap, block))))
		ch__pool_poison(heap->pool, hot, dead->hot_bytes);
	if (block->cold_granules) {
		cold = ch__exec(heap, ch__cold_offset(heap, block));
		ch__pool_poison(heap->pool, cold, ch__cold_bytes(block));
	}
	if (CH_LIKELY(!heap->pool->is_translated) || dead->was == CH_BLOCK_OPEN || dead->is_data)
		return;
	ch__valgrind_part_dead(heap->pool, hot);
	if (cold)
		ch__valgrind_part_dead(heap->pool, cold);
}

/* Drops everything of the block except the place, and queues the notice to the VM. */
static void drop_side(struct ch_heap *heap, const struct dead *dead) CH_HAS_HEAP
{
	struct ch__block *block = dead->block;
	if (dead->run) {
		uint32_t length = ch__branches_free(heap, dead->run);
		heap->counters.stub_bytes -= (int64_t)length * ch__stub_bytes(heap);
	}
	/* Sinks could read the list until the names were withdrawn. */
	struct ch__side_list *list = block->side_list;
	if (list) {
		__atomic_store_n(&block->side_list, NULL, __ATOMIC_RELEASE);
		ch__side_drop(heap, list);
	}
	if (!(block->flags & CH__FLAG_NOTICE))
		return;
	block->notice_next = 0;
	if (CH_LOAD_RELAXED(&heap->notice_head)) {
		ch__block_at(heap, heap->notice_tail)->notice_next = dead->index;
	} else {
		CH_STORE_RELAXED(&heap->notice_head, dead->index);
		ch__poll_want(heap);
	}
	heap->notice_tail = dead->index;
}

/* Gives back places: of an owner's blocks in a page, or of a block with a span. (Blocks that end
 * together have one owner, save orphans and what a cycle found, which wait and are sorted then.)
 * DEAD -> FREE, the records too unless a notice is due. Under heap. */
static void free_places(struct ch_heap *heap, const struct dead *dead, uint32_t count) CH_HAS_HEAP
{
	struct ch__thread *self = ch__thread_or_guest(heap);
	const struct ch__block *first = dead->block;
	uint32_t hot_offset = first->hot_offset, page = page_of(heap, first);
	uint32_t owner = first->owner, finished = 0;
	bool is_span = ch__block_is_span(heap, first);
	bool has_steps = ch__place_has_steps(heap, hot_offset);
	/* A child without code has no memory there. */
	bool is_shared = dead->is_data && !is_span && !heap->is_codeless;
	/* Notes of steps go last (I8), while nobody else can have the places. */
	for (uint32_t i = 0; i < count && (is_shared || has_steps); i++) {
		uintptr_t hot = ch__exec(heap, dead[i].block->hot_offset);
		if (is_shared)
			ch__pool_poison(heap->pool, hot, dead[i].hot_bytes);
		else
			ch__steps_dead(ch__sinks_steps(heap->sinks), hot, dead[i].hot_bytes);
	}
	ch__region_enter_inline(self);
	ch__page_lock(&heap->pool->pages[page]);
	for (uint32_t i = 0; !is_span && i < count; i++) {
		const struct ch__block *block = dead[i].block;
		ch__page_give_back(heap->pool, page, block->hot_offset, dead[i].hot_bytes);
		if (block->cold_granules)
			ch__page_give_back(heap->pool, page, ch__cold_offset(heap, block),
					   ch__cold_bytes(block));
	}
	ch__page_unlock(&heap->pool->pages[page]);
	ch__region_leave(self);
	/* A page that a thread has open stays as it is until the thread lets it go. */
	if (CH_LOAD_RELAXED(&heap->pool->pages[page].state) != CH__PAGE_OPEN)
		ch__block_pages_freed(heap, hot_offset, is_span);
	for (uint32_t i = 0; i < count; i++) {
		struct ch__block *block = dead[i].block;
		uint8_t flags = CH_LOAD_RELAXED(&block->flags);
		ch__set16(&block->hot_granules, 0);
		ch__set16(&block->cold_granules, 0);
		if (CH_UNLIKELY(flags & (CH__FLAG_APART | CH__FLAG_NOTICE))) {
			flags &= (uint8_t)~CH__FLAG_APART;
			atomic_store_explicit(&block->flags, flags, memory_order_release);
			if (flags & CH__FLAG_NOTICE)
				continue;
		}
		ch__block_recycle(heap, self, block, dead[i].index);
		finished++;
	}
	if (finished)
		ch__owner_drop(heap, owner, finished);
}

/* If more syncs are complete than had begun when the last block was poisoned, a sync began since,
 * and all waiting blocks have passed. */
static void pass_syncs(struct ch_heap *heap) CH_HAS_HEAP
{
	if (heap->quarantine_syncs < atomic_load(&heap->core_syncs))
		heap->quarantine_waits = 0;
}

/* Stored under heap only. */
static void count_waiting(struct ch_heap *heap, int64_t bytes) CH_HAS_HEAP
{
	uint64_t now = CH_LOAD_RELAXED(&heap->quarantine_bytes);
	CH_STORE_RELAXED(&heap->quarantine_bytes, now + (uint64_t)bytes);
}

static void quarantine(struct ch_heap *heap, const struct dead *dead, uint32_t count) CH_HAS_HEAP
{
	uint32_t *link = &heap->quarantine_head;
	int64_t bytes = 0;
	if (*link)
		link = &ch__block_at(heap, heap->quarantine_tail)->quarantine_next;
	pass_syncs(heap);
	if (!heap->quarantine_waits)
		heap->quarantine_waits = dead->index;
	for (uint32_t i = 0; i < count; i++) {
		*link = heap->quarantine_tail = dead[i].index;
		link = &dead[i].block->quarantine_next;
		bytes += dead[i].hot_bytes + ch__cold_bytes(dead[i].block);
	}
	*link = 0;
	/* A sync that is under way began too early for these blocks, and so counts as over: Boehm's
	 * hook syncs without the heap lock. */
	heap->quarantine_syncs = atomic_load(&heap->core_syncs_begun);
	count_waiting(heap, bytes);
}

/* Asked for while the block before is given back. */
static void prefetch_return(const struct ch_heap *heap, const struct ch__block *block)
{
	uint32_t granule = block->hot_offset / CH__GRANULE_BYTES;
	__builtin_prefetch(ch__block_at(heap, block->quarantine_next), 1);
	__builtin_prefetch(ch__owner_at(heap, block->owner), 1);
	__builtin_prefetch((const void *)(uintptr_t)&heap->pool->used[granule / 64], 1);
}

bool ch__quarantine_advance(struct ch_heap *heap, bool in_need)
{
	if (!heap->quarantine_head)
		return false;
	if (dead_names_kept(heap)) {
		if (!in_need)
			return false;
		/* Old names leave before their addresses get new names. */
		ch__sinks_flush(heap->sinks, CH__FLUSH_IN_NEED);
	}
	if (in_need || CH_LOAD_RELAXED(&heap->quarantine_bytes) > QUARANTINE_MANY_BYTES)
		(void)ch__core_sync(heap);
	pass_syncs(heap);
	struct dead same[CH__KILLED_AT_ONCE];
	uint32_t kept = 0, count = 0, page = 0, owner = 0, index = heap->quarantine_head;
	uint32_t *link = &heap->quarantine_head; /* where the next block that stays is linked */
	int64_t bytes = 0;
	for (uint32_t next; index != heap->quarantine_waits; index = next) {
		struct ch__block *block = ch__block_at(heap, index);
		bool is_data = ch__block_is_data(heap, block);
		next = block->quarantine_next;
		prefetch_return(heap, block);
		/* Data that died with its code may hold the code's unwind table, in use until the
		 * sweep reaches the code. Blocks that died after such data do not wait. */
		if (is_data && atomic_load(&heap->sweep_pending)) {
			*link = kept = index;
			link = &block->quarantine_next;
			continue;
		}
		if (count == CH__KILLED_AT_ONCE ||
		    (count && (page_of(heap, block) != page || block->owner != owner))) {
			free_places(heap, same, count);
			count = 0;
		}
		page = page_of(heap, block);
		owner = block->owner;
		same[count] = (struct dead){.block = block, .index = index,
					    .hot_bytes = ch__hot_bytes(block), .is_data = is_data};
		bytes += same[count++].hot_bytes + ch__cold_bytes(block);
	}
	*link = index;
	if (!index)
		heap->quarantine_tail = kept;
	if (!count)
		return false;
	count_waiting(heap, -bytes);
	free_places(heap, same, count);
	/* Told when the blocks died, too: without core syncs no open could have the places then.
	 * And an open that looked meanwhile found them neither free nor on the quarantine. */
	ch__space_returned(heap);
	return true;
}

/* A notice may leave this stack to a thread outside of this heap: the rest stay queued then. */
static CH_COLD bool deliver(struct ch_heap *heap) CH_HOLDS_NONE
{
	bool is_ours = ch__thread_self(heap) != NULL;
	while (!is_ours || ch__thread_now(heap)) {
		ch__heap_lock(heap);
		uint32_t index = CH_LOAD_RELAXED(&heap->notice_head);
		if (!index) {
			ch__heap_unlock(heap);
			return true;
		}
		struct ch__block *block = ch__block_at(heap, index);
		uint32_t owner = block->owner;
		struct ch_vm *vm = ch__owner_at(heap, owner)->vm;
		void *user = block->user;
		CH_STORE_RELAXED(&heap->notice_head, block->notice_next);
		void (*freed)(void *, void *) = index >= vm->told ? vm->ops.block_freed : NULL;
		void *vm_user = vm->user;
		block->flags &= (uint8_t)~CH__FLAG_NOTICE;
		/* The place went back before: the record waited for this notice only. */
		if (!ch__hot_bytes(block)) {
			ch__block_recycle(heap, ch__thread_or_guest(heap), block, index);
			ch__owner_drop(heap, owner, 1);
		}
		ch__heap_unlock(heap);
		ch__holds_nothing();
		if (freed)
			freed(vm_user, user);
	}
	return false;
}

/* Asked anew after a callback, as ch__thread_now: a compiler may not keep the address. */
static __attribute__((noinline)) uint32_t *of_stranger(void)
{
	static _Thread_local uint32_t deliveries;
	__asm__ volatile("");
	return &deliveries;
}

/* How many calls on this stack make callbacks. */
static uint32_t *deliveries_here(const struct ch_heap *heap)
{
	struct ch__thread *self = ch__thread_self(heap);
	if (!self)
		return of_stranger();
	struct ch_fiber *fiber = CH_LOAD_RELAXED(&self->fiber);
	return fiber ? &fiber->deliveries : &self->deliveries;
}

/* A callback that polls or collects comes here again: a stack has room for some such calls, and not
 * for one for each notice that waits, or each time that an open in space_free fails. */
void ch__vms_tell(struct ch_heap *heap)
{
	enum { DEEPEST = 16 };
	const struct ch__thread *self = ch__thread_self(heap);
	uint32_t *here = deliveries_here(heap), before = *here;
	bool is_of_fiber = self && here != &self->deliveries;
	if (before >= DEEPEST)
		return;
	*here = before + 1;
	if (!CH_LOAD_RELAXED(&heap->notice_head) || deliver(heap))
		ch__trigger_poll(heap);
	/* A callback may leave the stack to a stranger, and the thread's record to another. The
	 * count of a fiber is the stack's own. A thread that is back may have a fiber since, and a
	 * stranger a record. */
	if (is_of_fiber || (self ? ch__thread_now(heap) == self : of_stranger() == here))
		*here = before;
}

/* Places that need no core sync go back, page by page; the rest goes on the quarantine. */
static void free_or_quarantine(struct ch_heap *heap, const struct end *end) CH_HAS_HEAP
{
	const struct dead *dead = end->dead;
	uint32_t count = end->count;
	unsigned page_log2 = heap->pool->page_log2;
	for (uint32_t i = 0, to; i < count; i = to) {
		bool must_wait = dead[i].must_wait;
		uint32_t hot = dead[i].block->hot_offset;
		to = end->must_wait ? count : i + 1;
		while (to < count && dead[to].must_wait == must_wait &&
		       (must_wait || (dead[to].block->hot_offset ^ hot) >> page_log2 == 0))
			to++;
		if (must_wait)
			quarantine(heap, &dead[i], to - i);
		else
			free_places(heap, &dead[i], to - i);
	}
}

static void kill_some(struct ch_heap *heap, const uint32_t *blocks, uint32_t count,
		      enum ch__death death, bool are_orphans) CH_HAS_HEAP
{
	struct ch__thread *self = ch__thread_or_guest(heap);
	bool by_hand = is_by_hand(death);
	struct end end;
	end.count = 0;
	end.must_wait = death == CH__DEATH_UNREACHED || dead_names_kept(heap);
	uint64_t freed = heap->counters.bytes_freed;
	ch__tombstones_reserve(heap, count);
	if (by_hand)
		reserve_orphans(heap, blocks, count);
	ch__region_enter_inline(self);
	for (uint32_t i = 0; i < count;) {
		struct ch__block *block = ch__block_at(heap, blocks[i]);
		uint32_t of = block->owner;
		struct ch__owner *owner = ch__owner_at(heap, of);
		ch__owner_lock(owner);
		do {
			if (!by_hand || !(block->flags & CH__FLAG_EDGED) ||
			    edged_ends(heap, block, blocks[i], are_orphans))
				kill(heap, owner, block, blocks[i], death, &end);
		} while (++i < count && (block = ch__block_at(heap, blocks[i]))->owner == of);
		ch__owner_unlock(owner);
	}
	ch__region_leave(self);
	withdraw_names(heap, &end);
	/* A child of fork without a copy has no byte touched. The places stay in use: unwinders
	 * know the frames on its stack. */
	bool is_here = death != CH__DEATH_NO_COPY;
	for (uint32_t i = 0; i < end.count; i++) {
		count_death(heap, &end.dead[i]);
		if (is_here)
			fill_with_traps(heap, &end.dead[i]);
		drop_side(heap, &end.dead[i]);
	}
	ch__stats_note_peak(heap, heap->counters.bytes_freed - freed);
	if (is_here && end.count) {
		free_or_quarantine(heap, &end);
		ch__space_returned(heap);
	}
}

void ch__blocks_kill(struct ch_heap *heap, const uint32_t *blocks, uint32_t count,
		     enum ch__death death)
{
	uint32_t orphans[CH__KILLED_AT_ONCE];
	for (bool are_orphans = false; count || heap->orphans_count; are_orphans = true) {
		kill_some(heap, blocks, count, death, are_orphans);
		blocks = orphans;
		for (count = 0; heap->orphans_count && count < CH__KILLED_AT_ONCE;) {
			uint32_t index = heap->orphans[--heap->orphans_count];
			/* Cycles free a block that is still in a commit. */
			if (ch__block_is_committed(heap, ch__block_at(heap, index)))
				orphans[count++] = index;
		}
	}
	/* A VM that frees by hand never collects, so the quarantine advances here. */
	if (is_by_hand(death) && !atomic_load(&heap->sweep_pending) &&
	    CH_LOAD_RELAXED(&heap->quarantine_bytes) > QUARANTINE_MANY_BYTES)
		(void)ch__quarantine_advance(heap, false);
}
