/* SPDX-License-Identifier: MIT
 * discard.c: invalidates code of one vm, or of all vms, under one hold of the heap lock; and
 * ends a vm. ch_vm_discard (cycle.c) runs the cycle that frees the blocks that no stack holds. */
#include "codeheap/events/events.h"
#include "invalidate/invalidate.h"

/* Whether a block of the vm, or of any vm if NULL, uses the record. Code without an owner
 * belongs to no vm. */
static bool is_of(struct ch_heap *heap, uint32_t index, const struct ch_vm *vm) CH_HAS_HEAP
{
	return ch__block_in_use(heap, index) && ch__block_at(heap, index)->owner &&
	       (!vm || ch__owner_at(heap, ch__block_at(heap, index)->owner)->vm == vm);
}

size_t ch__discard(struct ch_heap *heap, struct ch_vm *vm, enum ch__cause cause)
{
	struct ch__thread *self = ch__thread_or_guest(heap);
	uint64_t to_die = 0;
	size_t count = 0;
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		const struct ch__block *block = ch__block_at(heap, i);
		ch__region_enter(self);
		if (is_of(heap, i, vm) && !(block->flags & CH__FLAG_IMMORTAL)) {
			if (cause != CH__CAUSE_NONE)
				(void)ch__invalidate_block(heap, i, cause, &to_die);
			count += ch__block_state(block) == CH_BLOCK_NOTENTRANT;
		}
		ch__region_leave(self);
	}
	if (cause != CH__CAUSE_NONE)
		ch__trigger_dead(heap, to_die);
	return count;
}

/* After the detach no callback says when the VM may free the unwind tables of its blocks, and
 * nothing of the VM runs. An OPEN block has a table when its commit is under way, to be refused. */
static void forget_tables(struct ch_heap *heap, const struct ch_vm *vm) CH_HAS_HEAP
{
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		const struct ch__block *block = ch__block_at(heap, i);
		struct ch__own *own = is_of(heap, i, vm)
					      ? ch__side_pointer(block->side_list, CH__ITEM_OWN)
					      : NULL;
		if (own)
			ch__sinks_own_dead(heap->sinks, own);
	}
}

/* Tells of all blocks whose end was not told. From vm->told on, the delivery of notices tells of
 * blocks that die meanwhile. */
static void tell_all(struct ch_heap *heap, struct ch_vm *vm) CH_HOLDS_NONE
{
	enum { AT_ONCE = 64 };
	void *users[AT_ONCE];
	void (*freed)(void *, void *) = vm->ops.block_freed;
	void *vm_user = vm->user;
	uint32_t n;
	do {
		ch__heap_lock(heap);
		uint32_t i = vm->told;
		for (n = 0; n < AT_ONCE && i < heap->blocks.used; i++) {
			const struct ch__block *block = ch__block_at(heap, i);
			enum ch_block_state state = ch__block_state(block);
			/* A notice that waits is due here: delivery skips records below told. */
			bool is_due = state == CH_BLOCK_DEAD ? (block->flags & CH__FLAG_NOTICE) != 0
							     : ch__block_is_published(block);
			if (is_due && ch__owner_at(heap, block->owner)->vm == vm)
				users[n++] = block->user;
		}
		vm->told = i;
		vm->teller = ch__lock_self();
		/* A child of fork may have ended this detach in a callback. */
		if (!n && vm->told != UINT32_MAX)
			ch__vm_told(vm);
		ch__heap_unlock(heap);
		ch__holds_nothing();
		for (uint32_t told = 0; told < n; told++)
			freed(vm_user, users[told]);
	} while (n);
}

enum ch_status ch_vm_detach(struct ch_vm *vm)
{
	struct ch_heap *heap = vm ? vm->heap : NULL;
	if (!vm || ch__heap_refuses(heap))
		return ch__because_refused(heap);
	uint32_t blocks;
	ch__heap_lock(heap);
	if (!vm->is_attached) {
		ch__heap_unlock(heap);
		return ch__because(CH_E_STATE, "the vm was detached before");
	}
	(void)ch__discard(heap, vm, CH__CAUSE_DETACHED);
	for (uint32_t i = 1; i < heap->owners.used; i++) {
		/* When a thread has begun a release of this owner, the thread leads the cell back.
		 * The record waits for a collection, and the vm's record for the owner's. */
		if (ch__owner_at(heap, i)->vm == vm &&
		    ch__owner_let_go(heap, ch__owner_handle(heap, i), &blocks))
			ch__trigger_released(heap, 0);
	}
	bool is_told = vm->ops.tells_detached && vm->ops.block_freed;
	/* A commit tests the owner and makes the block LIVE in one region. So after a freeze every
	 * commit that saw the owner before the release is through. A thread may be held in its
	 * region: a block that goes LIVE later would be told to nobody. */
	bool is_through = ch__await_regions(heap, ch__stop_limit(heap, ch__os_now_ns()));
	if (!is_through && is_told) {
		/* The next call finds the blocks that are left, and goes on. */
		ch__heap_unlock(heap);
		return ch__told(CH_E_BUSY);
	}
	forget_tables(heap, vm);
	/* The record and the heap stay until the other vms and this vm are told. */
	vm->owners_now++;
	vm->teller = ch__lock_self();
	if (!is_told)
		vm->told = UINT32_MAX - 1; /* above all records */
	ch__vm_leave(vm);
	ch__heap_unlock(heap);
	ch__trigger_tell(heap);
	tell_all(heap, vm);
	return CH_OK;
}
