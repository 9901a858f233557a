/* SPDX-License-Identifier: MIT
 * owner.c: owners: the record, the list of blocks, the end (release.c frees the blocks). A record
 * lives until the owner's last block is free. Lock: heap, except for the list of blocks (the
 * owner's busy, inside a region) and ch__owner_let_go, which takes none. */
#include "codeheap/base/sized.h"
#include "codeheap/look.h"
#include "codeheap/graph/block_parts.h"

static uint32_t count_blocks(struct ch__owner *owner, int32_t more)
{
	uint32_t now = CH_LOAD_RELAXED(&owner->blocks_now) + (uint32_t)more;
	CH_STORE_RELAXED(&owner->blocks_now, now);
	return now;
}

bool ch__owner_hold(struct ch_heap *heap, struct ch_owner handle, struct ch__owner **held)
{
	if (!ch__handle_is_known(heap, &heap->owners, handle.bits))
		return false;
	struct ch__owner *owner = ch__owner_at(heap, ch__handle_index(handle.bits));
	ch__owner_lock(owner);
	/* A release that frees at once marks the owner dead under the same lock (free_blocks), and
	 * the record goes back under the lock. */
	if (ch__owner_is(owner, handle) && ch__owner_is_alive(heap, owner)) {
		*held = owner;
		return true;
	}
	ch__owner_unlock(owner);
	return false;
}

bool ch__owner_insert(struct ch_heap *heap, struct ch_owner handle, struct ch__block *block,
		      uint32_t index)
{
	struct ch__owner *owner;
	if (!ch__owner_hold(heap, handle, &owner))
		return false;
	bool is_let_in = !ch__owner_is_released(owner);
	if (is_let_in) {
		block->owner_prev = 0;
		block->owner_next = owner->first_block;
		if (owner->first_block)
			ch__block_at(heap, owner->first_block)->owner_prev = index;
		atomic_store_explicit(&owner->first_block, index, memory_order_release);
		count_blocks(owner, 1);
	}
	ch__owner_unlock(owner);
	return is_let_in;
}

void ch__owner_drop(struct ch_heap *heap, uint32_t owner_index, uint32_t records)
{
	if (!owner_index)
		return;
	struct ch__owner *owner = ch__owner_at(heap, owner_index);
	struct ch__thread *self = ch__region_enter_for(heap);
	ch__owner_lock(owner);
	bool was_last = count_blocks(owner, -(int32_t)records) == 0;
	ch__owner_unlock(owner);
	ch__region_leave(self);
	if (was_last)
		ch__owner_try_free(heap, owner_index);
}

void ch__owner_reset_cell(struct ch__owner *owner)
{
	owner->entry = 0;
	atomic_store_explicit(&owner->cell, owner->fallback, memory_order_seq_cst);
}

enum ch_status ch__owner_make(struct ch_vm *vm, const char *name, const void *fallback, void *user,
			      uint32_t *index)
{
	struct ch_heap *heap = vm->heap;
	if (!vm->is_attached)
		return ch__because(CH_E_STATE, "the vm was detached");
	uint32_t text = ch__name_take(heap, name ? name : "");
	uint32_t fresh = text ? ch__table_take(&heap->owners) : 0;
	if (!fresh) {
		ch__name_drop(heap, text);
		return ch__because_no_record(text ? &heap->owners : &heap->names,
					     text ? "owners" : "names");
	}
	struct ch__owner *owner = ch__owner_at(heap, fresh);
	struct ch__thread *self = ch__region_enter_for(heap);
	owner->fallback = fallback ? fallback : heap->no_fallback;
	owner->user = user;
	owner->vm = vm;
	vm->owners_now++;
	__atomic_store_n(&owner->name, text, __ATOMIC_RELEASE);
	owner->has_edges = false;
	/* The last owner of the record left no block and no entry. */
	CH_STORE_RELAXED(&owner->cell, owner->fallback);
	CH_STORE_RELAXED(&owner->mark, CH_LOAD_RELAXED(&heap->epoch));
	uint32_t generation = CH_LOAD_RELAXED(&owner->generation);
	CH_MOVE(ch__owner_moves, fresh, generation, ch__owner_state(generation), CH__OWNER_LIVE,
		ch__held(heap), __func__);
	atomic_store_explicit(&owner->generation, generation | CH__LIFE_IN_USE,
			      memory_order_release);
	ch__region_leave(self);
	heap->owners_now++;
	*index = fresh;
	return CH_OK;
}

enum ch_status ch_owner_create(struct ch_vm *vm, const char *name, const void *fallback, void *user,
			       struct ch_owner *out)
{
	struct ch_heap *heap = vm ? vm->heap : NULL;
	bool refuses = !vm || ch__heap_refuses(heap);
	if (refuses || heap->driver.collect) {
		out->bits = 0;
		return refuses ? ch__because_refused(heap)
			       : ch__because(CH_E_ARG, "the heap is Boehm's: ch_bdw_owner_create");
	}
	ch__heap_lock(heap); /* a collector may mark the owner in *out meanwhile */
	uint32_t index = 0;
	enum ch_status status = ch__owner_make(vm, name, fallback, user, &index);
	*out = ch__owner_handle(heap, index);
	ch__heap_unlock(heap);
	return status;
}

void ch__owner_try_free(struct ch_heap *heap, uint32_t index)
{
	struct ch__owner *owner = ch__owner_at(heap, index);
	uint32_t generation = CH_LOAD_RELAXED(&owner->generation);
	uint32_t next = (generation | CH__LIFE) + 1;
	/* A release that has begun holds the record, too. */
	if ((generation & CH__LIFE_RELEASING) || !(generation & CH__LIFE_IN_USE) ||
	    owner->blocks_now || ch__owner_is_alive(heap, owner))
		return;
	struct ch__thread *self = ch__region_enter_for(heap);
	/* One atomic step, since a release takes no lock. Under busy, so that a thread in
	 * ch__owner_hold keeps the record of its handle. */
	ch__owner_lock(owner);
	bool is_taken = atomic_compare_exchange_strong(&owner->generation, &generation, next);
	if (is_taken)
		CH_MOVE(ch__owner_moves, index, generation, ch__owner_state(generation),
			CH__OWNER_NONE, ch__held(heap), __func__);
	ch__owner_unlock(owner);
	ch__region_leave(self);
	/* A release came just now: the next sweep finds the owner. */
	if (!is_taken)
		return;
	ch__name_drop(heap, owner->name);
	__atomic_store_n(&owner->name, 0, __ATOMIC_RELEASE);
	heap->owners_now--;
	ch__vm_owner_gone(owner->vm);
	/* ch__is_worn tests for the largest even number: set the bits of a life, except IN_USE. */
	ch__table_give(&heap->owners, index, ch__is_worn(next | (CH__LIFE & ~CH__LIFE_IN_USE)));
}

static void end_release(struct ch__owner *owner, uint32_t index)
{
	uint32_t generation = CH_LOAD_RELAXED(&owner->generation);
	CH_MOVE(ch__owner_moves, index, generation, CH__OWNER_RELEASING, CH__OWNER_RELEASED, 0,
		__func__);
	atomic_store(&owner->generation, generation ^ CH__LIFE_RELEASING ^ CH__LIFE_RELEASED);
}

/* In no region and under no lock. A record whose release has begun does not go back before the end,
 * however long the thread is stopped here. A thread that sets the cell meanwhile sees the release,
 * and resets the cell. */
bool ch__owner_let_go(struct ch_heap *heap, struct ch_owner handle, uint32_t *blocks)
{
	uint32_t index = ch__handle_index(handle.bits);
	uint32_t live = ch__handle_generation(handle.bits);
	if (!ch__handle_is_known(heap, &heap->owners, handle.bits) || !(live & CH__LIFE_IN_USE))
		return false;
	struct ch__owner *owner = ch__owner_at(heap, index);
	/* One step, and only from LIVE with the generation of the handle. */
	if (!atomic_compare_exchange_strong(&owner->generation, &live, live | CH__LIFE_RELEASING))
		return false;
	CH_MOVE(ch__owner_moves, index, live, CH__OWNER_LIVE, CH__OWNER_RELEASING, 0, __func__);
	atomic_store_explicit(&owner->cell, owner->fallback, memory_order_seq_cst);
	*blocks = CH_LOAD_RELAXED(&owner->blocks_now);
	end_release(owner, index);
	return true;
}

void ch__owners_end_releases(struct ch_heap *heap)
{
	for (uint32_t i = 1; i < heap->owners.used; i++) {
		struct ch__owner *owner = ch__owner_at(heap, i);
		if (!(atomic_load(&owner->generation) & CH__LIFE_RELEASING))
			continue;
		atomic_store(&owner->cell, owner->fallback);
		end_release(owner, i);
	}
}

/* Not under busy, for which other threads spin: a long list would hold them up. No block leaves the
 * list under heap, and a block that comes is whole before the list leads there. */
static CH_COLD void count_bytes(const struct ch_heap *heap, const struct ch__owner *owner,
				struct ch_owner_facts *info)
{
	info->metadata_bytes_now = sizeof *owner;
	for (uint32_t i = owner->first_block; i; i = ch__block_at(heap, i)->owner_next) {
		const struct ch__block *block = ch__block_at(heap, i);
		info->code_bytes_now += ch__hot_bytes(block) + ch__cold_bytes(block);
		info->metadata_bytes_now += sizeof *block;
		info->metadata_bytes_now += ch__branches_count(heap, ch__block_run(block)) *
					    sizeof(struct ch__branch);
		if (block->side_list)
			info->metadata_bytes_now += ch__side_bytes(block->side_list->capacity);
	}
}

enum ch_status ch_owner_info(struct ch_owner handle, struct ch_owner_facts *out)
{
	enum ch_status status = CH__SIZED_CHECK(ch_owner_facts, out, vm, metadata_bytes_now);
	if (status != CH_OK)
		return status;
	struct ch_heap *heap = ch__handle_lock("owner", handle.bits, &status);
	if (!heap)
		return status;
	uint32_t index = ch__owner_look_up(heap, handle);
	if (index) {
		struct ch__owner *owner = ch__owner_at(heap, index);
		struct ch__thread *self = ch__region_enter_for(heap);
		ch__owner_lock(owner);
		struct ch_owner_facts info = {
			.vm = owner->vm,
			.user = owner->user,
			.name = ch__name_text(heap, owner->name),
			.blocks_now = owner->blocks_now,
			.is_released = ch__owner_is_released(owner),
		};
		if (owner->entry)
			info.entry = ch__block_handle(heap, owner->entry);
		ch__owner_unlock(owner);
		ch__region_leave(self);
		count_bytes(heap, owner, &info);
		ch__sized_give(out, &info);
	} else {
		status = ch__because_stale("owner", handle.bits);
	}
	ch__heap_unlock(heap);
	return status;
}
