/* SPDX-License-Identifier: MIT
 * stub.c: what happens when a thread takes an unlinked branch (docs/design.md, section 5). The
 * trampoline enters ch__stub_hit with the registers of the site, and the thread goes on at
 * regs->pc. */
#include "invalidate/invalidate.h"

enum { ASKED_AT_MOST = 8 };

/* Returns 0 if the block may not be entered. The load of the state acquires what commit wrote.
 * Outside of a region the record could become another block's before the address is read (I1). */
static uintptr_t entry_of(const struct ch__thread *self, uint32_t index) CH_HAS_REGION
{
	const struct ch_heap *heap = self->heap;
	const struct ch__block *block = ch__block_at(heap, index);
	CH_ASSERT(CH_CHECK < 2 || CH_LOAD_RELAXED(&self->inside),
		  "a stub's way is looked for outside of a region");
	return index && ch__block_may_run(heap, block) ? ch__block_entry(heap, block) : 0;
}

static struct ch__thread *thread_of_now(const struct ch_heap *heap)
{
	struct ch__thread *self = ch__thread_now(heap);
	if (CH_UNLIKELY(!self))
		ch__panic("a thread that is not attached took a stub: it calls ch_thread_attach "
			  "first");
	return self;
}

/* Returns the block that holds the stub, or 0. The return address is that of the stub's index. When
 * two threads race on this stub, the second finds the branch linked: *linked is the entry to go on
 * at, or 0. Without a block the stub's bytes may name any branch, and none is read. */
static uint32_t find_source(struct ch__thread *self, uintptr_t return_address,
			    const struct ch__branch *branch, uintptr_t *linked)
{
	ch__region_enter(self);
	uint32_t source = ch__find(self->heap, return_address, NULL);
	*linked = source ? entry_of(self, ch__branch_target(branch)) : 0;
	ch__region_leave(self);
	return source;
}

/* A commit makes blocks LIVE and then sets their starts, all in one region. Other threads may enter
 * a LIVE block before its start is set, and no lookup finds such a block (I3). After a freeze each
 * LIVE block has its start. */
static uint32_t CH_COLD find_late(struct ch__thread *self, uintptr_t return_address,
				  const struct ch__branch *branch, uintptr_t *linked)
{
	struct ch_heap *heap = self->heap;
	ch__heap_lock(heap);
	ch__freeze(heap);
	ch__unfreeze(heap);
	ch__heap_unlock(heap);
	uint32_t source = find_source(self, return_address, branch, linked);
	if (!source)
		ch__panic("a stub without a block was taken");
	return source;
}

void ch__stub_hit(struct ch__arch_stub_context *context, struct ch_regs *regs,
		  uintptr_t return_address)
{
	/* The context is the heap's first field. */
	struct ch_heap *heap = (struct ch_heap *)(void *)context;
	struct ch__thread *self = thread_of_now(heap);
	uint32_t index = ch__arch_stub_index(ch__pool_read(heap->pool, return_address));
	const struct ch__branch *branch = ch__branch_at(heap, index);
	uintptr_t linked;
	uint32_t source = find_source(self, return_address, branch, &linked);
	if (CH_UNLIKELY(!source))
		source = find_late(self, return_address, branch, &linked);
	CH__COUNT(self->counters.branch_hits, 1);
	if (linked) {
		CH__COUNT(self->counters.branch_hits_stale, 1);
		regs->pc = linked;
		return;
	}
	/* This thread's stack holds the source block, so the block's records stay. */
	const struct ch__owner *owner = ch__owner_at(heap, ch__block_at(heap, source)->owner);
	const struct ch_vm *vm = owner->vm;
	struct ch_branch handle = ch__branch_handle(ch__block_handle(heap, source), index);
	void *user = branch->user;
	for (int asked = 0; asked < ASKED_AT_MOST; asked++) {
		regs->pc = (uintptr_t)owner->fallback;
		/* Under no lock, and nothing is noted that must be undone: the callback may leave
		 * by an exception, a longjmp or a cancellation (I14). */
		ch__holds_nothing();
		struct ch_block block = vm->ops.branch_hit(vm->user, handle, user,
							   (struct ch_regs *)(void *)regs);
		if (!block.bits)
			return;
		self = thread_of_now(heap);
		/* CH_E_STATE: the source is not entrant any more; the thread goes on unlinked. */
		enum ch_status status = ch_branch_link(handle, block);
		/* From here on `entry`, a word on the stack, keeps the target block. */
		ch__region_enter(self);
		uintptr_t entry = entry_of(self, ch__block_resolve(heap, block));
		ch__region_leave(self);
		if (status != CH_OK || !entry)
			CH__COUNT(self->counters.branch_hits_stale, 1);
		if (entry) {
			regs->pc = entry;
			return;
		}
	}
	/* Every answer died before it could be entered: go on at the pc that the callback left. */
}
