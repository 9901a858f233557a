/* SPDX-License-Identifier: MIT
 * mark.c: the one engine of the three drivers (P2): a breadth-first walk over the side records,
 * while regions are frozen; takes no lock, allocates nothing, writes to code only refs that moved
 * (I5, I6). */
#include "codeheap/collect/collect.h"

void ch__marker_init(struct ch_heap *heap, struct ch_marker *marker)
{
	CH_ASSERT(CH_CHECK < 2 || marker->queue, "a marker without a queue");
	*marker = (struct ch_marker){.heap = heap, .queue = marker->queue,
				     .queue_mask = marker->queue_mask,
				     .callbacks = marker->callbacks}; /* in a visit's first mark */
}

bool ch__mark_reserve(struct ch_heap *heap, struct ch_marker *marker)
{
	uint32_t wanted = CH__QUEUE_MIN;
	while (wanted < heap->blocks.used / 4 && wanted < (1u << 20))
		wanted *= 2;
	/* A thread that a cycle of another heap has stopped may hold the lock of side memory. */
	if (marker->queue && (marker->queue_mask + 1 >= wanted || ch__is_marking()))
		return true;
	uint32_t *queue = ch__meta_alloc(heap->meta, wanted * sizeof *queue), *old = marker->queue;
	size_t old_bytes = (marker->queue_mask + 1) * sizeof *queue;
	if (!queue)
		return old != NULL;
	/* Markers of Boehm's run while frozen. */
	struct ch__thread *self = ch__region_enter_for(heap);
	marker->queue = queue;
	marker->queue_mask = wanted - 1;
	ch__region_leave(self);
	ch__meta_free(heap->meta, old, old_bytes);
	return true;
}

/* The values to compare a block's mark with. */
struct cycle {
	uint32_t completed, cycles; /* cycles: from completed to the epoch */
};

static inline struct cycle this_cycle(const struct ch_heap *heap)
{
	uint32_t completed = CH_LOAD_RELAXED(&heap->completed);
	uint32_t epoch = CH_LOAD_RELAXED(&heap->epoch);
	return (struct cycle){completed, epoch - completed};
}

static inline void mark_record(struct ch_marker *marker, struct ch__block *block, uint32_t index,
			       struct cycle cycle)
{
	uint32_t mark = CH_LOAD_RELAXED(&block->mark);
	/* The distance tells three cases: dead (older than completed), marked in this cycle, or
	 * ahead. ch__mark_roots comes to the blocks ahead that lead on. */
	if (mark - cycle.completed >= cycle.cycles)
		return;
	if (CH_UNLIKELY(marker->tail - marker->head > marker->queue_mask)) {
		marker->overflowed = true;
		return;
	}
	CH_STORE_RELAXED(&block->mark, cycle.completed + cycle.cycles);
	marker->queue[marker->tail++ & marker->queue_mask] = index;
	marker->marked++;
}

void ch__mark_block(struct ch_marker *marker, uint32_t index)
{
	struct ch_heap *heap = marker->heap;
	mark_record(marker, ch__block_at(heap, index), index, this_cycle(heap));
}

bool ch__mark_owner_index(struct ch_marker *marker, uint32_t index)
{
	struct ch_heap *heap = marker->heap;
	struct ch__owner *owner = ch__owner_at(heap, index);
	uint32_t mark = CH_LOAD_RELAXED(&owner->mark);
	if (!ch__is_alive(heap, mark))
		return false;
	CH_STORE_RELAXED(&owner->mark, CH_LOAD_RELAXED(&heap->epoch));
	marker->has_released_owners |= ch__owner_is_released(owner);
	if (owner->entry && ch__owner_enters(owner))
		ch__mark_block(marker, owner->entry);
	return true;
}

void ch__ref_move(struct ch_heap *heap, uintptr_t exec, uintptr_t moved)
{
	/* The world stands between instructions: no thread decodes half a word. */
	memcpy(ch__pool_write(heap->pool, exec), &moved, sizeof moved);
	ch__pool_sync(heap->pool, exec, sizeof moved);
	CH_PUBLISHED(heap->pool, exec, sizeof moved, "ref");
}

static void report_ref(struct ch_marker *marker, const struct ch__block *block, uint32_t offset)
{
	struct ch_heap *heap = marker->heap;
	struct ch_vm *vm = ch__owner_at(heap, block->owner)->vm;
	uintptr_t exec = ch__exec(heap, offset), word;
	memcpy(&word, ch__pool_read(heap->pool, exec), sizeof word);
	if (marker->ref) {
		marker->ref(marker, vm, word);
	} else if (ch__vm_is_told(vm) && vm->ops.ref) {
		marker->callbacks++;
		uintptr_t moved = vm->ops.ref(vm->user, word);
		marker->callbacks--;
		if (moved != word)
			ch__ref_move(heap, exec, moved);
	}
}

static CH_OPAQUE void trace_extra(struct ch_marker *marker, const struct ch__block *block,
				  bool refs) CH_HAS_FREEZE
{
	const struct ch__side_list *list = block->side_list;
	const struct ch__item *items = ch__side_items(list);
	for (uint32_t i = 0; i < list->count; i++) {
		switch (list->kinds[i]) {
		case CH__ITEM_EDGE:
			if (ch__edge_target(marker->heap, items[i]))
				ch__mark_block(marker, items[i].value);
			break;
		case CH__ITEM_OWNER_EDGE:
			ch__mark_owner_index(marker, items[i].value);
			break;
		case CH__ITEM_REF:
			if (refs)
				report_ref(marker, block, items[i].at);
			break;
		default:
			break;
		}
	}
}

/* Targets with records on their way into the cache. The walk looks at a target when EDGES_AHEAD
 * more have been asked for, or when nothing else is left: it seldom waits for a record. */
enum { EDGES_AHEAD = 16, BLOCKS_AHEAD = 8 };
struct lookahead {
	struct cycle cycle;
	uint32_t next;
	struct edge {
		struct ch__block *block; /* NULL: none */
		uint32_t index;
	} ring[EDGES_AHEAD];
};

/* Marks the edge at a place of the ring, and puts another edge there. */
static inline void exchange_edge(struct ch_marker *marker, struct lookahead *look, uint32_t place,
				 struct edge edge)
{
	struct edge *slot = &look->ring[place], waited = *slot;
	*slot = edge;
	if (waited.block)
		mark_record(marker, waited.block, waited.index, look->cycle);
}

/* Newest first: in a chain of blocks no other record is on the way. */
static bool mark_newest(struct ch_marker *marker, struct lookahead *look, uint32_t most)
{
	uint32_t marked = marker->tail;
	for (uint32_t i = 0; i < EDGES_AHEAD && marker->tail - marked < most; i++) {
		look->next = (look->next - 1) % EDGES_AHEAD;
		exchange_edge(marker, look, look->next, (struct edge){NULL, 0});
	}
	return marker->tail != marked;
}

static inline void trace(struct ch_marker *marker, struct lookahead *look, uint32_t index,
			 bool refs) CH_HAS_FREEZE
{
	struct ch_heap *heap = marker->heap;
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t first = ch__block_run(block);
	/* The records of a run are adjacent. */
	const struct ch__branch *branch = first ? ch__branch_at(heap, first) : NULL;
	for (uint32_t word = first ? 0 : CH__BRANCH_LAST; !(word & CH__BRANCH_LAST); branch++) {
		word = CH_LOAD_RELAXED(&branch->target_kind);
		uint32_t target = word & CH__INDEX_MAX;
		if (!target)
			continue;
		struct edge edge = {ch__block_at(heap, target), target};
		__builtin_prefetch(edge.block, 1);
		exchange_edge(marker, look, look->next, edge);
		look->next = (look->next + 1) % EDGES_AHEAD;
	}
	if (block->side_list)
		trace_extra(marker, block, refs);
}

/* After an overflow: traces every marked block again, without its refs. */
static void CH_COLD rescan(struct ch_marker *marker) CH_HAS_FREEZE
{
	struct ch_heap *heap = marker->heap;
	uint32_t epoch = CH_LOAD_RELAXED(&heap->epoch);
	struct lookahead look = {.cycle = this_cycle(heap)};
	marker->overflowed = false;
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		uint32_t mark = CH_LOAD_RELAXED(&ch__block_at(heap, i)->mark);
		if (ch__block_in_use(heap, i) && (int32_t)(mark - epoch) >= 0)
			trace(marker, &look, i, false);
	}
	mark_newest(marker, &look, EDGES_AHEAD);
}

static void prefetch_branches(const struct ch_marker *marker, uint32_t place)
{
	const struct ch__block *block =
		ch__block_at(marker->heap, marker->queue[place & marker->queue_mask]);
	uint32_t first = ch__block_run(block);
	if (!first)
		return;
	const char *branch = (const char *)ch__branch_at(marker->heap, first);
	__builtin_prefetch(branch);
	__builtin_prefetch(branch + 64);
}

static void drain_queue(struct ch_marker *marker) CH_HAS_FREEZE
{
	struct lookahead look = {.cycle = this_cycle(marker->heap)};
	do {
		uint32_t mask = marker->queue_mask, waiting, place;
		while ((waiting = marker->tail - marker->head)) {
			/* Depth first when the queue fills: then a wide graph needs no room. */
			place = waiting > mask - mask / 4 ? --marker->tail : marker->head++;
			if (waiting > BLOCKS_AHEAD)
				prefetch_branches(marker, marker->head + BLOCKS_AHEAD);
			trace(marker, &look, marker->queue[place & mask], true);
		}
	} while (mark_newest(marker, &look, 1));
}

void ch__mark_drain(struct ch_marker *marker)
{
	drain_queue(marker);
	while (CH_UNLIKELY(marker->overflowed)) {
		rescan(marker);
		drain_queue(marker);
	}
}

/* Whether a kept block's owner has ended. Only edges and stacks hold the block from here on. */
static bool ends_with_owner(struct ch_heap *heap, struct ch__block *block)
{
	const struct ch__owner *owner = ch__owner_at(heap, block->owner);
	if (!ch__block_is_own_root(heap, block) ||
	    (ch__owner_is_alive(heap, owner) && !ch__owner_is_released(owner)))
		return false;
	CH_STORE_RELAXED(&block->mark, heap->epoch - 1);
	return true;
}

/* An edge may have marked a block of the list before the block is traced as a root: the mark
 * decides, save for own roots. An own root needs no mark, is traced in each cycle, and counts as
 * marked: the cycle costs the same, and the trigger learns how much is left. */
void ch__mark_roots(struct ch_marker *marker)
{
	struct ch_heap *heap = marker->heap;
	for (struct ch__thread *t = heap->threads; t; t = t->next) {
		uint32_t kept = 0, of_others = 0;
		for (uint32_t i = 0; i < t->young_count; i++) {
			uint32_t index = ch__block_resolve(heap, t->young[i]);
			if (!index || !ch__block_is_young_root(heap, ch__block_at(heap, index)) ||
			    ends_with_owner(heap, ch__block_at(heap, index)))
				continue;
			of_others += i < t->young_of_others;
			t->young[kept++] = t->young[i];
			if (ch__block_is_own_root(heap, ch__block_at(heap, index))) {
				/* The queue has room: half is free. */
				marker->queue[marker->tail++ & marker->queue_mask] = index;
				marker->marked++;
				marker->own_roots++;
			} else {
				ch__mark_block(marker, index);
			}
			if (marker->tail - marker->head > marker->queue_mask / 2)
				ch__mark_drain(marker);
		}
		t->young_of_others = of_others;
		CH_STORE_RELAXED(&t->young_count, kept);
	}
}

/* Alive marks become this epoch, others the one before, and marks ahead are as far ahead again. */
static void renew(const struct ch_heap *heap, _Atomic(uint32_t) *mark, uint32_t epoch)
{
	uint32_t seen = atomic_load(mark);
	atomic_store(mark, ch__is_ahead(heap, seen)   ? epoch + CH__MARK_AHEAD
			   : ch__is_alive(heap, seen) ? epoch
						      : epoch - 1);
}

void ch__mark_all(struct ch_marker *marker)
{
	struct ch_heap *heap = marker->heap;
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		if (!ch__block_in_use(heap, i))
			continue;
		ch__mark_block(marker, i);
		if (marker->tail - marker->head > marker->queue_mask / 2)
			ch__mark_drain(marker);
	}
}

void ch__cycle_begin(struct ch_heap *heap)
{
	ch__marker_init(heap, &heap->marker);
	uint32_t epoch = CH_LOAD_RELAXED(&heap->epoch);
	/* Marks are compared by distance, so none may grow old (docs/design.md, section 5). */
	if (CH_UNLIKELY(epoch - heap->marks_renewed >= CH__MARKS_LAST)) {
		for (uint32_t i = 1; i < heap->blocks.used; i++)
			renew(heap, &ch__block_at(heap, i)->mark, epoch);
		renew(heap, &ch__owner_at(heap, 0)->mark, epoch);
		for (uint32_t i = 1; i < heap->owners.used; i++)
			renew(heap, &ch__owner_at(heap, i)->mark, epoch);
		atomic_store(&heap->completed, epoch);
		heap->marks_renewed = epoch;
	}
	CH_STORE_RELAXED(&heap->epoch, epoch + 1);
	heap->cycle_has_begun = true;
	ch__trigger_cycle_begins(heap);
}

/* The second full cycle after the block's commit ends: from here on only marks hold the block.
 * Returns true when no cycle before the next can find the block dead. */
static bool end_infancy(struct ch_heap *heap, struct ch_block handle)
{
	uint32_t index = ch__block_resolve(heap, handle);
	if (!index)
		return false;
	struct ch__block *block = ch__block_at(heap, index);
	/* Infancy begins with the commit. In a block that is held the bits are other flags. */
	if (ch__block_state(block) == CH_BLOCK_OPEN && !(block->flags & CH__FLAG_HELD))
		block->flags = (uint8_t)((block->flags & ~CH__FLAG_AGE) | ch__age_stamp(heap));
	/* The stamp alone: flags in lower bits would borrow from the age. */
	uint8_t age = (uint8_t)(ch__age_stamp(heap) - (block->flags & CH__FLAG_AGE)) & CH__FLAG_AGE;
	if (ch__block_state(block) != CH_BLOCK_LIVE || (block->flags & CH__FLAG_HELD))
		return false;
	if (age >= 2 * CH__FLAG_AGE_ONE)
		ch__block_set_flag(block, CH__FLAG_HELD);
	return true;
}

void ch__cycle_complete(struct ch_heap *heap, uint64_t start_ns)
{
	CH__COUNT(heap->stats.cycles, 1);
	heap->cycle_has_begun = false;
	uint32_t newborns = 0;
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		for (uint32_t i = 0; i < t->young_count; i++)
			newborns += end_infancy(heap, t->young[i]);
	CH_STORE_RELAXED(&heap->newborns, newborns);
	if (heap->marker.marked == heap->marker.own_roots && !heap->marker.has_released_owners)
		ch__trigger_nothing_left(heap);
	heap->stats.marked_blocks_last = heap->marker.marked;
	heap->stats.stack_roots_last = heap->marker.stack_roots;
	CH_STORE_RELAXED(&heap->completed, CH_LOAD_RELAXED(&heap->epoch));
	bool is_amid = CH_LOAD_RELAXED(&heap->sweep_pending) &&
		       (heap->sweep_cursor | heap->sweep_owner) > 1;
	atomic_store_explicit(&heap->sweep_pending, is_amid ? CH__SWEEP_AGAIN : CH__SWEEP_DUE,
			      memory_order_release);
	ch__poll_want(heap);
	ch__trigger_cycle_ended(heap, ch__os_now_ns() - start_ns);
}

void ch__cycle_give_up(struct ch_heap *heap)
{
	heap->stats.cycles_abandoned++;
	if (heap->cycle_has_begun)
		ch__trigger_cycle_abandoned(heap);
	heap->cycle_has_begun = false;
}
