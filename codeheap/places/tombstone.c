/* SPDX-License-Identifier: MIT
 * tombstone.c: the records that dying blocks leave for traps (P4). A ring of bounded memory has the
 * last ones, with short names. Written under the heap lock, read by place.c without the lock. */
#include "codeheap/places/places.h"

void ch__tombstones_reserve(struct ch_heap *heap, uint32_t n)
{
	uint64_t written = CH_LOAD_RELAXED(&heap->tombstones_written);
	uint64_t size = heap->config.remembered_dead, most = written + n;
	uint32_t last = (uint32_t)(most < size ? most : size);
	/* Names of tombstones that were written over since the last call. */
	ch__names_free_parked(heap);
	ch__table_back(&heap->tombstones, last);
}

/* A block that the sweep found dead may be dead because of the owner. */
static enum ch__death death_of(const struct ch_heap *heap, const struct ch__owner *owner,
			       enum ch__death death)
{
	if (death != CH__DEATH_UNREACHED)
		return death;
	if (owner->vm == &heap->nobody)
		return CH__DEATH_FREED;
	if (!owner->vm->is_attached)
		return CH__DEATH_VM_GONE;
	if (ch__owner_is_released(owner))
		return CH__DEATH_OWNER_RELEASED;
	if (!ch__owner_is_alive(heap, owner))
		return CH__DEATH_OWNER_UNREACHED;
	return CH__DEATH_UNREACHED;
}

static void put(_Atomic(uint32_t) *field, uint32_t value)
{
	atomic_store_explicit(field, value, memory_order_release);
}

static inline void put_name(struct ch_heap *heap, _Atomic(uint32_t) *field, uint32_t name)
	CH_HAS_HEAP_AND_REGION
{
	uint32_t old = CH_LOAD_RELAXED(field);
	if (old == name)
		return;
	if (name)
		ch__name_at(heap, name)->references++;
	put(field, name);
	ch__name_park(heap, old);
}

void ch__tombstone_write(struct ch_heap *heap, const struct ch__owner *owner,
			 const struct ch__block *block, uint32_t index, enum ch__death death)
{
	uint64_t written = CH_LOAD_RELAXED(&heap->tombstones_written);
	uint32_t slot = 1 + (uint32_t)(written & (heap->config.remembered_dead - 1));
	if (!ch__table_has(&heap->tombstones, slot)) {
		uint64_t lost = CH_LOAD_RELAXED(&heap->tombstones_lost);
		atomic_store_explicit(&heap->tombstones_lost, lost + 1, memory_order_release);
		return;
	}
	struct ch__tombstone *stone =
		ch__table_at_bytes(&heap->tombstones, slot, sizeof(struct ch__tombstone));
	const struct ch__side_list *list = block->side_list;
	uint32_t cold = block->cold_granules;
	if (ch__place_is_slot(heap, block->hot_offset))
		cold |= CH__TOMB_SLOT;
	if (CH_LIKELY(!(block->flags & CH__FLAG_APART)))
		cold |= (uint32_t)block->cold_granule << CH__TOMB_COLD_SHIFT;
	else if (ch__use_is_in_place(ch__block_use(heap, block)))
		cold |= CH__TOMB_SPAN | CH__TOMB_IN_PLACE;
	else
		cold |= CH__TOMB_SPAN;
	uint64_t how = index | (uint32_t)death_of(heap, owner, death) << 24 |
		       (uint32_t)ch__block_cause(block) << 28;
	__builtin_prefetch(stone + 8, 1);
	CH_STORE_RELAXED(&stone->dead, 0);
	put(&stone->hot_offset, block->hot_offset);
	put(&stone->hot_granules, ch__hot_bytes(block) / CH__GRANULE_BYTES);
	put(&stone->cold, cold);
	put(&stone->collection, CH_LOAD_RELAXED(&heap->epoch) - 1);
	put_name(heap, &stone->owner_name, ch__name_short(heap, owner->name));
	put_name(heap, &stone->name, list ? ch__name_short(heap, list->name) : 0);
	atomic_store_explicit(&stone->dead, CH_LOAD_RELAXED(&block->generation) | how << 32,
			      memory_order_release);
	atomic_store_explicit(&heap->tombstones_written, written + 1, memory_order_release);
}
