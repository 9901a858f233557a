/* SPDX-License-Identifier: MIT
 * owner.c: what the VM compiles: its record, its entry cell (I11), its list of blocks, its
 * release. A record lives until its last block is free. Lock: heap, save the list of blocks (the
 * owner's busy, inside a region) and ch_owner_release(COLLECT), which takes none. */
#include "codeheap/block.h"

/* --- list of blocks --- */

void ch__owner_lock(struct ch__owner *owner) CH_UNANALYSED("it makes the role")
{
	while (CH_UNLIKELY(atomic_exchange_explicit(&owner->busy, 1, memory_order_acquire)))
		while (atomic_load_explicit(&owner->busy, memory_order_relaxed))
			ch__arch_pause();
}
void ch__owner_unlock(struct ch__owner *owner) CH_UNANALYSED("it makes the role")
{
	atomic_store_explicit(&owner->busy, 0, memory_order_release);
}

static uint32_t count_blocks(struct ch__owner *owner, int32_t more)
{
	uint32_t now = atomic_load_explicit(&owner->blocks_now, memory_order_relaxed) +
		       (uint32_t)more;
	atomic_store_explicit(&owner->blocks_now, now, memory_order_relaxed);
	return now;
}

bool ch__owner_insert(struct ch_heap *heap, uint32_t owner_index, uint32_t index)
{
	struct ch__owner *owner = ch__owner_at(heap, owner_index);
	struct ch__block *block = ch__block_at(heap, index);
	ch__owner_lock(owner);
	/* A release that frees at once marks it dead under the same lock (free_blocks). */
	if (!ch__is_alive(heap, atomic_load_explicit(&owner->mark, memory_order_relaxed))) {
		ch__owner_unlock(owner);
		return false;
	}
	block->owner_prev = 0;
	block->owner_next = owner->first_block;
	if (owner->first_block)
		ch__block_at(heap, owner->first_block)->owner_prev = index;
	atomic_store_explicit(&owner->first_block, index, memory_order_relaxed);
	count_blocks(owner, 1);
	ch__owner_unlock(owner);
	return true;
}

void ch__owner_drop(struct ch_heap *heap, uint32_t owner_index, uint32_t records)
{
	struct ch__owner *owner = ch__owner_at(heap, owner_index);
	struct ch__thread *self = ch__thread_or_guest(heap);
	ch__region_enter(self);
	ch__owner_lock(owner);
	bool was_last = count_blocks(owner, -(int32_t)records) == 0;
	ch__owner_unlock(owner);
	ch__region_leave(self);
	if (was_last)
		ch__owner_try_free(heap, owner_index);
}

void ch__owner_remove(struct ch_heap *heap, uint32_t index)
{
	struct ch__block *block = ch__block_at(heap, index);
	struct ch__owner *owner = ch__owner_at(heap, block->owner);
	if (block->owner_prev)
		ch__block_at(heap, block->owner_prev)->owner_next = block->owner_next;
	else
		atomic_store_explicit(&owner->first_block, block->owner_next, memory_order_relaxed);
	if (block->owner_next)
		ch__block_at(heap, block->owner_next)->owner_prev = block->owner_prev;
	block->owner_prev = block->owner_next = 0;
}

/* --- cell --- */

void ch__owner_reset_cell(struct ch__owner *owner)
{
	owner->entry = 0;
	if (!CH_MUTANT(CH__MUTANT_NO_CELL_RESET))
		atomic_store_explicit(&owner->cell, owner->fallback, memory_order_seq_cst);
}

/* The block was the entry until now. */
static void note_replaced(struct ch_heap *heap, uint32_t index)
{
	struct ch__block *block = index ? ch__block_at(heap, index) : NULL;
	if (block && ch__block_state(block) == CH_BLOCK_LIVE)
		ch__block_set_cause(block, CH__CAUSE_REPLACED);
}

static enum ch_status set_entry(struct ch_heap *heap, uint32_t owner_index, uint32_t index)
{
	struct ch__owner *owner = ch__owner_at(heap, owner_index);
	struct ch__block *block = index ? ch__block_at(heap, index) : NULL;
	if (!ch__is_alive(heap, atomic_load_explicit(&owner->mark, memory_order_relaxed)) ||
	    atomic_load(&owner->is_released))
		return CH_E_STALE;
	if (!block) {
		note_replaced(heap, owner->entry);
		ch__owner_reset_cell(owner);
		return CH_OK;
	}
	/* Invalidation and death of a block look for it in its own owner's cell only. */
	if (block->owner != owner_index)
		return CH_E_ARG;
	if (!ch__block_is_alive(heap, block) && !CH_MUTANT(CH__MUTANT_NO_ALIVE_TEST))
		return CH_E_STALE;
	if (ch__block_state(block) != CH_BLOCK_LIVE ||
	    (ch__block_is_data(heap, block) && !CH_MUTANT(CH__MUTANT_ANY_KIND)))
		return CH_E_STATE;
	if (owner->entry != index)
		note_replaced(heap, owner->entry);
	if (ch__block_cause(block) != CH__CAUSE_NONE)
		ch__block_set_cause(block, CH__CAUSE_NONE);
	CH_PUBLISHED(heap->pool, ch__exec(heap, block->hot_offset), CH__GRANULE_BYTES, "entry");
	owner->entry = index;
	ch__block_held(block);
	/* seq_cst against ch_owner_release: either it sees the entry and resets it, or the flag
	 * is seen here. */
	atomic_store_explicit(&owner->cell, (const void *)ch__block_entry(heap, block),
			      memory_order_seq_cst);
	if (atomic_load_explicit(&owner->is_released, memory_order_seq_cst))
		atomic_store_explicit(&owner->cell, owner->fallback, memory_order_seq_cst);
	return CH_OK;
}

enum ch_status ch_owner_set_entry(struct ch_owner handle, struct ch_block block)
{
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	if (!heap)
		return CH_E_STALE;
	ch__heap_lock(heap);
	struct ch__thread *self = ch__thread_or_guest(heap);
	enum ch_status status = CH_E_STALE;
	ch__region_enter(self);
	uint32_t owner = ch__owner_resolve(heap, handle);
	uint32_t index = block.bits ? ch__block_resolve(heap, block) : 0;
	if (owner && (index || !block.bits))
		status = set_entry(heap, owner, index);
	ch__region_leave(self);
	ch__heap_unlock(heap);
	return status;
}

const void *const *ch_owner_cell(struct ch_owner handle)
{
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	uint32_t index = heap ? ch__owner_resolve(heap, handle) : 0;
	return index ? (const void *const *)(uintptr_t)&ch__owner_at(heap, index)->cell : NULL;
}

/* --- life --- */

/* The heap lock is held, the name interned: what is written here cannot fail. */
enum ch_status ch__owner_make(struct ch_vm *vm, const char *name, const void *fallback, void *user,
			      uint32_t *index)
{
	struct ch_heap *heap = vm->heap;
	uint32_t text = ch__name_intern(heap, name ? name : "");
	uint32_t fresh = text ? ch__table_take(&heap->owners, heap->meta) : 0;
	if (!fresh) {
		ch__name_drop(heap, text);
		return CH_E_MEMORY;
	}
	struct ch__owner *owner = ch__owner_at(heap, fresh);
	struct ch__thread *self = ch__thread_or_guest(heap);
	ch__region_enter(self);
	owner->fallback = fallback;
	owner->user = user;
	owner->vm = vm;
	vm->owners_now++;
	__atomic_store_n(&owner->name, text, __ATOMIC_RELAXED); /* place.c reads it */
	owner->entry = 0;
	owner->first_block = 0;
	atomic_store_explicit(&owner->blocks_now, 0, memory_order_relaxed);
	owner->has_edges = false;
	atomic_store_explicit(&owner->is_released, 0, memory_order_relaxed);
	atomic_store_explicit(&owner->cell, fallback, memory_order_relaxed);
	atomic_store_explicit(&owner->mark,
			      atomic_load_explicit(&heap->epoch, memory_order_relaxed),
			      memory_order_relaxed);
	uint32_t generation = atomic_load_explicit(&owner->generation, memory_order_relaxed);
	CH_MOVE(ch__owner_moves, fresh, generation + 1, generation & 1, CH__OWNER_LIVE,
		ch__held(heap), __func__);
	/* Release: fields before the generation (I3). */
	atomic_store_explicit(&owner->generation, generation + 1, memory_order_release);
	ch__region_leave(self);
	heap->owners_now++;
	*index = fresh;
	return CH_OK;
}

enum ch_status ch_owner_create(struct ch_vm *vm, const char *name, const void *fallback, void *user,
			       struct ch_owner *out)
{
	out->bits = 0;
	struct ch_heap *heap = vm->heap;
	if (!fallback || heap->driver.collect)
		return CH_E_ARG;
	ch__heap_lock(heap);
	uint32_t index;
	enum ch_status status = ch__owner_make(vm, name, fallback, user, &index);
	if (status == CH_OK)
		out->bits = ch__handle(heap->id, index, ch__owner_at(heap, index)->generation);
	ch__heap_unlock(heap);
	return status;
}

/* Under heap. The record goes when no block, no edge of a live block and no collector holds it. */
void ch__owner_try_free(struct ch_heap *heap, uint32_t index)
{
	struct ch__owner *owner = ch__owner_at(heap, index);
	uint32_t generation = atomic_load_explicit(&owner->generation, memory_order_relaxed);
	if (!(generation & 1) || owner->blocks_now ||
	    ch__is_alive(heap, atomic_load_explicit(&owner->mark, memory_order_relaxed)))
		return;
	struct ch__thread *self = ch__thread_or_guest(heap);
	ch__region_enter(self);
	ch__owner_reset_cell(owner);
	CH_MOVE(ch__owner_moves, index, generation,
		owner->is_released ? CH__OWNER_RELEASED : CH__OWNER_LIVE, CH__OWNER_NONE,
		ch__held(heap), __func__);
	atomic_store_explicit(&owner->generation, generation + 1, memory_order_release);
	ch__region_leave(self);
	ch__name_drop(heap, owner->name);
	__atomic_store_n(&owner->name, 0, __ATOMIC_RELAXED);
	heap->owners_now--;
	ch__vm_owner_gone(owner->vm);
	ch__table_give(&heap->owners, index, ch__is_worn(generation + 1));
}

static uint64_t owner_code_bytes(const struct ch_heap *heap, const struct ch__owner *owner)
{
	uint64_t bytes = 0;
	for (uint32_t i = owner->first_block; i; i = ch__block_at(heap, i)->owner_next)
		bytes += ch__hot_bytes(ch__block_at(heap, i)) +
			 ch__cold_bytes(ch__block_at(heap, i));
	return bytes;
}

/* All blocks of an owner that nobody runs are freed at once. Under heap. */
static void free_blocks(struct ch_heap *heap, uint32_t index) CH_REQUIRES(ch__role_heap)
{
	struct ch__owner *owner = ch__owner_at(heap, index);
	uint32_t batch[CH__KILLED_AT_ONCE], count = 0;
	for (uint32_t at = owner->first_block; at; at = ch__block_at(heap, at)->owner_next) {
		if (count == CH__KILLED_AT_ONCE) {
			ch__blocks_kill_now(heap, batch, count, CH__DEATH_NOT_RUNNING);
			count = 0;
		}
		/* An OPEN block is its thread's; its commit will say CH_E_STALE. */
		if (ch__block_state(ch__block_at(heap, at)) != CH_BLOCK_OPEN)
			batch[count++] = at;
	}
	ch__blocks_kill_now(heap, batch, count, CH__DEATH_NOT_RUNNING);
	struct ch__thread *self = ch__thread_or_guest(heap);
	ch__region_enter(self);
	ch__owner_reset_cell(owner);
	/* Dead from here on for every driver, unless a block may call through its cell. */
	ch__owner_lock(owner);
	if (!owner->has_edges)
		atomic_store_explicit(&owner->mark,
				      atomic_load_explicit(&heap->completed, memory_order_relaxed) -
					      1,
				      memory_order_relaxed);
	ch__owner_unlock(owner);
	ch__region_leave(self);
	ch__owner_try_free(heap, index);
}

/* A thread may be stopped here: without an entry nothing holds the record, which may be another
 * owner's afterwards. While the cell leads into code the owner is a root (ch__owner_enters); who
 * changes it meanwhile resets it, as it sees the flag. */
static void reset_released_cell(struct ch__owner *owner, const void *fallback, uint32_t generation)
{
	const void *cell = atomic_load(&owner->cell);
	if (cell != fallback && atomic_load(&owner->generation) == generation)
		atomic_compare_exchange_strong(&owner->cell, &cell, fallback);
}

enum ch_status ch_owner_release(struct ch_owner handle, enum ch_release how)
{
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	uint32_t index = heap ? ch__owner_resolve(heap, handle) : 0;
	if (!index)
		return CH_E_STALE;
	struct ch__owner *owner = ch__owner_at(heap, index);
	if (how == CH_RELEASE_COLLECT) {
		const void *fallback = owner->fallback;
		if (atomic_exchange(&owner->is_released, 1))
			return CH_E_STALE;
		CH_MOVE(ch__owner_moves, index, ch__handle_generation(handle.bits), CH__OWNER_LIVE,
			CH__OWNER_RELEASED, 0, __func__);
		reset_released_cell(owner, fallback, ch__handle_generation(handle.bits));
		/* The count is an estimate: blocks may come and go meanwhile. */
		ch__trigger_released(heap, atomic_load_explicit(&owner->blocks_now,
								memory_order_relaxed));
		return CH_OK;
	}
	ch__heap_lock(heap);
	enum ch_status status = CH_E_STALE;
	if (ch__owner_resolve(heap, handle) == index && !atomic_exchange(&owner->is_released, 1)) {
		CH_MOVE(ch__owner_moves, index, ch__handle_generation(handle.bits), CH__OWNER_LIVE,
			CH__OWNER_RELEASED, ch__held(heap), __func__);
		free_blocks(heap, index);
		status = CH_OK;
	}
	ch__heap_unlock(heap);
	ch__trigger_tell(heap);
	return status;
}

static uint64_t side_bytes(const struct ch_heap *heap, const struct ch__owner *owner)
{
	uint64_t bytes = sizeof *owner;
	for (uint32_t i = owner->first_block; i; i = ch__block_at(heap, i)->owner_next) {
		const struct ch__block *block = ch__block_at(heap, i);
		bytes += sizeof *block;
		/* The thread that has it OPEN may be replacing its list. */
		if (ch__block_state(block) != CH_BLOCK_OPEN && block->extra)
			bytes += ch__extra_bytes(block->extra->capacity);
		uint32_t at = atomic_load_explicit(&block->first_branch, memory_order_relaxed);
		for (bool last = !at; !last; at++) {
			last = ch__branch_has(ch__branch_at(heap, at), CH__BRANCH_LAST);
			bytes += sizeof(struct ch__branch);
		}
	}
	return bytes;
}

enum ch_status ch_owner_info(struct ch_owner handle, struct ch_owner_facts *info)
{
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	if (!heap)
		return CH_E_STALE;
	ch__heap_lock(heap);
	struct ch__thread *self = ch__thread_or_guest(heap);
	ch__region_enter(self);
	uint32_t index = ch__owner_resolve(heap, handle);
	if (index) {
		struct ch__owner *owner = ch__owner_at(heap, index);
		ch__owner_lock(owner);
		*info = (struct ch_owner_facts){
			.vm = owner->vm,
			.user = owner->user,
			.name = ch__name_text(heap, owner->name),
			.blocks_now = owner->blocks_now,
			.code_bytes_now = owner_code_bytes(heap, owner),
			.metadata_bytes_now = side_bytes(heap, owner),
			.is_released = atomic_load(&owner->is_released) != 0,
		};
		if (owner->entry)
			info->entry = ch__block_handle(heap, owner->entry);
		ch__owner_unlock(owner);
	}
	ch__region_leave(self);
	ch__heap_unlock(heap);
	return index ? CH_OK : CH_E_STALE;
}
