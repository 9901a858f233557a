/* SPDX-License-Identifier: MIT
 * link.c: attaches, links and unlinks branches. The stub of a branch is reserved when its block is
 * opened, so unlinking needs no memory (P8). A site changes by one store (I12). Lock: heap for the
 * lists of incoming branches, and a region, too, for what marking reads. */
#include "codeheap/base/sized.h"
#include "invalidate/invalidate.h"

static void lead_stub(struct ch_heap *heap, uintptr_t stub, uintptr_t target)
{
	ch__arch_stub_lead(ch__pool_lend(heap->pool, stub), target);
	/* A lead reads its literal in the write view, so nothing is published. */
	if (!heap->pool->stub_lead_bytes)
		ch__pool_publish(heap->pool, stub, CH_ARCH_STUB_BYTES);
}

static inline void write_site_to(struct ch_heap *heap, enum ch_branch_kind kind, uintptr_t exec,
				 uintptr_t target)
{
	ch__arch_site_write(kind, ch__pool_write(heap->pool, exec), exec, target);
	ch__pool_sync(heap->pool, exec, ch__arch_site_bytes(kind));
}

/* Where stubs lead on, site and stub may both change, one after the other. A thread that runs the
 * branch meanwhile goes to the old target, to the new target or to the stub's home, which is right
 * at any time. With leads, only data changes, and nothing can fail (P7). Not inlined: write_site
 * would keep registers for it. */
__attribute__((noinline)) static void
write_site_and_stub(struct ch_heap *heap, const struct ch__block *source, uint32_t index,
		    uintptr_t exec, uintptr_t target)
{
	enum ch_branch_kind kind = ch__branch_kind(ch__branch_at(heap, index));
	uintptr_t stub = ch__stub_exec(heap, source, index);
	bool leads_on = target != stub && (heap->pool->stub_lead_bytes ||
					   !ch__arch_site_reaches(kind, exec, target));
	if (leads_on) {
		lead_stub(heap, stub, target);
		write_site_to(heap, kind, exec, stub);
		return;
	}
	write_site_to(heap, kind, exec, target);
	uintptr_t home = ch__branch_stub_home(heap, source, index);
	if (ch__arch_stub_leads_to(ch__pool_read(heap->pool, stub)) != home)
		lead_stub(heap, stub, home);
}

static void write_site(struct ch_heap *heap, const struct ch__block *source, uint32_t index,
		       uintptr_t target)
{
	const struct ch__branch *branch = ch__branch_at(heap, index);
	uintptr_t exec = ch__exec(heap, branch->site);
	if (ch__stubs_lead_on(heap))
		write_site_and_stub(heap, source, index, exec, target);
	else
		write_site_to(heap, ch__branch_kind(branch), exec, target);
	CH_PUBLISHED(heap->pool, ch__stub_hit_exec(heap, ch__stub_exec(heap, source, index)),
		     CH_ARCH_STUB_BYTES, "stub");
	CH_PUBLISHED(heap->pool, exec, ch__arch_site_bytes(ch__branch_kind(branch)), "branch");
}

/* An instruction that is only unaligned would be a valid site some bytes further on. */
static enum ch_status because_bytes(enum ch_branch_kind kind, const uint8_t *read, uintptr_t at)
{
	static const char *const kinds[] = {"CH_JMP", "CH_JCC", "CH_CALL", "CH_LEA", "CH_LITERAL"};
	_Alignas(8) uint8_t bytes[32]; /* aligned, since machines read words */
	memcpy(bytes, read, ch__arch_site_bytes(kind));
	for (unsigned further = 1; further < 8; further++)
		if (ch__arch_site_is_valid(kind, bytes, at + further))
			return ch__because(CH_E_SITE, "ch_branch_site.at %lx: this %s is "
					   "unaligned: pad by %u bytes", at, kinds[kind], further);
	return ch__because(CH_E_SITE, "ch_branch_site.at %lx: another instruction than %s has", at,
			   kinds[kind]);
}

static enum ch_status check_site(const struct ch__subject *s, const struct ch_branch_site *site,
				 uint32_t *index)
{
	const struct ch_heap *heap = s->heap;
	uintptr_t at = (uintptr_t)site->at, exit = (uintptr_t)site->exit;
	enum ch_branch_kind kind = site->kind;
	if (ch__block_is_data(heap, s->block))
		return ch__because(CH_E_STATE, "the block is data");
	enum ch_status status = CH__SPARE_CHECK(ch_branch_site, site);
	if (status != CH_OK)
		return status;
	if ((unsigned)kind > CH_LITERAL)
		return ch__because(CH_E_ARG, "ch_branch_site.kind is %d: not one of enum "
					     "ch_branch_kind", (int)kind);
	const uint8_t *read = ch__pool_read(heap->pool, at);
	size_t bytes = ch__arch_site_bytes(kind);
	if (!ch__block_has(heap, s->block, at, bytes))
		return ch__because_outside(s, "ch_branch_site.at", at);
	if (!ch__arch_site_is_valid(kind, read, at))
		return because_bytes(kind, read, at);
	*index = ch__block_run(s->block);
	while (*index && ch__branch_at(heap, *index)->site)
		*index = ch__branch_after(heap, *index);
	if (!*index)
		return ch__because(CH_E_FULL, "ch_open.branch_room is 0 or used up");
	status = ch__sites_allow(s, "ch_branch_site.at", at, bytes, exit, false);
	if (status != CH_OK)
		return status;
	if (exit && ch__pool_has(heap->pool, ch__pool_exec_of(heap->pool, exit)))
		return ch__because_outside(s, "ch_branch_site.exit", exit);
	uintptr_t stub = ch__stub_exec(heap, s->block, *index);
	bool has_stub = ch__arch_site_reaches(kind, at, stub);
	/* The jump in the stub goes to the exit, and the site does where stubs do not lead on. */
	bool has_exit = !exit || (ch__arch_jump_reaches(ch__stub_hit_exec(heap, stub), exit) &&
				  (ch__stubs_lead_on(heap) ||
				   ch__arch_site_reaches(kind, at, exit)));
	if (!has_stub || !has_exit)
		return ch__because(CH_E_REACH, "ch_branch_site.%s %lx is too far from %lx",
				   has_stub ? "exit" : "at's stub", has_stub ? exit : stub, at);
	/* Without an exit the stub asks branch_hit. */
	if (exit || ch__owner_at(heap, s->block->owner)->vm->ops.branch_hit)
		return CH_OK;
	return ch__because(CH_E_ARG, "ch_branch_site.exit is NULL, and its owner's vm has no "
				     "branch_hit; code without an owner has no vm");
}

static enum ch_status attach(const struct ch__subject *s, struct ch_block handle,
			     const struct ch_branch_site *site, struct ch_branch *out)
{
	struct ch_heap *heap = s->heap;
	uint32_t index = 0;
	enum ch_status status = check_site(s, site, &index);
	if (status != CH_OK)
		return status;
	struct ch__branch *branch = ch__branch_at(heap, index);
	uintptr_t stub = ch__stub_exec(heap, s->block, index), hit = ch__stub_hit_exec(heap, stub);
	uint8_t *write = ch__pool_write(heap->pool, hit);
	if (site->exit)
		ch__arch_jump_write(write, hit, (uintptr_t)site->exit);
	else
		ch__arch_stub_write(write, hit, heap->pool->runtime_exec, index);
	if (heap->pool->stub_lead_bytes)
		ch__arch_lead_write(ch__pool_lend(heap->pool, stub), heap->pool->delta, hit);
	ch__pool_sync(heap->pool, stub, ch__stub_bytes(heap));
	ch__region_enter_inline(s->self);
	CH_MOVE(ch__branch_moves, index, 0, ch__branch_state(branch), CH__BRANCH_UNLINKED,
		ch__held(heap), __func__);
	uint32_t word = CH_LOAD_RELAXED(&branch->target_kind);
	word = (word & CH__BRANCH_LAST) | (uint32_t)site->kind << CH__BRANCH_KIND_SHIFT;
	if (site->exit)
		word |= CH__BRANCH_OWN_EXIT;
	CH_STORE_RELAXED(&branch->target_kind, word);
	atomic_store_explicit(&branch->user, site->user, memory_order_release);
	ch__branch_set_site(branch, ch__offset(heap, (uintptr_t)site->at));
	ch__region_leave(s->self);
	/* The site is not reachable yet, even when the block is LIVE. */
	write_site(heap, s->block, index, ch__branch_exit(heap, s->block, index));
	ch__sites_note(s);
	*out = ch__branch_handle(handle, index);
	return CH_OK;
}

enum ch_status ch_branch_attach(struct ch_block handle, const struct ch_branch_site *site,
				struct ch_branch *out)
{
	out->bits = 0;
	struct ch__subject s;
	enum ch_status status = ch__subject_look(handle, &s);
	if (status != CH_OK)
		return status;
	if (s.state == CH_BLOCK_OPEN)
		return attach(&s, handle, site, out);
	/* The heap lock keeps a LIVE block from being invalidated or freed meanwhile. */
	ch__heap_lock(s.heap);
	uint32_t index = ch__block_resolve(s.heap, handle);
	if (!index)
		status = ch__because_stale("block", handle.bits);
	else if (!ch__block_may_run(s.heap, s.block))
		status = ch__because_not_entrant(s.heap, index);
	else
		status = attach(&s, handle, site, out);
	ch__heap_unlock(s.heap);
	return status;
}

static void set_target(struct ch__branch *branch, uint32_t target)
{
	uint32_t word = CH_LOAD_RELAXED(&branch->target_kind) & ~(uint32_t)CH__INDEX_MAX;
	atomic_store_explicit(&branch->target_kind, word | target, memory_order_release);
}

/* The site of the source leads to stub or exit then; with NULL the site stays. runs_on: a core may
 * have fetched the old way to this target, and may run it. So the target's place waits for a core
 * synchronization before reuse (I8). */
static void unlink_branch(struct ch_heap *heap, uint32_t index, bool runs_on,
			  const struct ch__block *source) CH_HAS_HEAP_AND_REGION
{
	struct ch__branch *branch = ch__branch_at(heap, index);
	uint32_t target = ch__branch_target(branch);
	if (!target)
		return;
	CH_MOVE(ch__branch_moves, index, 0, ch__branch_state(branch), CH__BRANCH_UNLINKED,
		ch__held(heap), __func__);
	struct ch__block *to = ch__block_at(heap, target);
	uint32_t next = branch->next, prev = branch->prev;
	if (prev)
		ch__branch_at(heap, prev)->next = next;
	else
		to->in_head = next;
	if (next)
		ch__branch_at(heap, next)->prev = prev;
	set_target(branch, 0);
	heap->branches_unlinked++;
	if (runs_on)
		ch__block_set_flag(to, CH__FLAG_UNLINKED);
	if (source)
		write_site(heap, source, index, ch__branch_exit(heap, source, index));
}

/* Tests alive and acts in one region (I5), and says afterwards why not. The heap lock keeps both
 * ends valid meanwhile. */
static enum ch_status link_locked(struct ch_heap *heap, uint32_t index, uint32_t source,
				  uint32_t target) CH_HAS_HEAP
{
	struct ch__branch *branch = ch__branch_at(heap, index);
	struct ch__thread *self = ch__thread_or_guest(heap);
	const struct ch__block *from = ch__block_at(heap, source);
	struct ch__block *to = target ? ch__block_at(heap, target) : NULL;
	bool is_lea_to_none = to && ch__branch_kind(branch) == CH_LEA &&
			      ch__block_entry_kind(to) == CH_ENTRY_NONE;
	if (!source || is_lea_to_none)
		return ch__because(CH_E_STATE, source ? "a CH_LEA to a block with CH_ENTRY_NONE"
				   : "the branch's block is OPEN: link after commit");
	ch__region_enter_inline(self);
	bool from_runs = ch__block_may_run(heap, from);
	bool links = from_runs && (!to || ch__block_may_run(heap, to));
	/* With a new target one store leads the site there, from the old target. */
	if (links && ch__branch_target(branch))
		unlink_branch(heap, index, true, to ? NULL : from);
	if (links && to) {
		CH_MOVE(ch__branch_moves, index, 0, ch__branch_state(branch), CH__BRANCH_LINKED,
			ch__held(heap), __func__);
		set_target(branch, target);
		branch->next = to->in_head;
		branch->prev = 0;
		if (to->in_head)
			ch__branch_at(heap, to->in_head)->prev = index;
		to->in_head = index;
		ch__block_set_flag(to, CH__FLAG_HELD);
		heap->branches_linked++;
		CH_PUBLISHED(heap->pool, ch__exec(heap, to->hot_offset), CH__GRANULE_BYTES,
			     "target of a link");
		write_site(heap, from, index, ch__block_entry(heap, to));
	}
	ch__region_leave(self);
	return links ? CH_OK : ch__because_not_entrant(heap, from_runs ? target : source);
}

/* Returns the index of the committed block that holds the branch's site, or 0. */
static uint32_t source_of(const struct ch_heap *heap, const struct ch__branch *branch) CH_HAS_HEAP
{
	/* Blocks die under the heap lock, so a start nearby and the block's place tell as much as
	 * ch__find. An OPEN block has no start: the start found is then another block's, and an
	 * emitter may have spoilt the index there. */
	uint32_t site = branch->site, start = ch__page_near_start(heap->pool, site);
	uint32_t index = start == UINT32_MAX ? 0 : ch__head_index(heap, start);
	if (ch__table_has(&heap->blocks, index)) {
		const struct ch__block *block = ch__block_at(heap, index);
		if (site - block->hot_offset < ch__hot_bytes(block))
			return index;
	}
	return ch__find(heap, ch__exec(heap, site), NULL);
}

/* The block, OPEN or in its commit, that has the branch, and no start yet; 0: none. */
static CH_COLD uint32_t find_unstarted(const struct ch_heap *heap, uint32_t branch)
{
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		uint32_t run = ch__block_in_use(heap, i) ? ch__block_run(ch__block_at(heap, i)) : 0;
		if (branch - run < CH__RUN_MAX && branch - run < ch__branches_count(heap, run))
			return i;
	}
	return 0;
}

/* Index of the handle's branch, 0 when stale. *source: the committed block that has it, or 0. */
static uint32_t resolve(const struct ch_heap *heap, struct ch_branch handle, uint32_t *source)
	CH_HAS_HEAP
{
	uint32_t index = ch__handle_index(handle.bits);
	*source = 0;
	if (!ch__handle_is_known(heap, &heap->branches, handle.bits) ||
	    !ch__branch_at(heap, index)->site)
		return 0;
	*source = source_of(heap, ch__branch_at(heap, index));
	uint32_t block = *source ? *source : find_unstarted(heap, index);
	uint32_t generation = CH_LOAD_RELAXED(&ch__block_at(heap, block)->generation);
	uint32_t life = ch__branch_life(block, generation);
	return block && life == ch__handle_generation(handle.bits) ? index : 0;
}

enum ch_status ch_branch_link(struct ch_branch handle, struct ch_block target_handle)
{
	enum ch_status status;
	struct ch_heap *heap = ch__handle_lock("branch", handle.bits, &status);
	if (!heap)
		return status;
	uint32_t source, index = resolve(heap, handle, &source);
	uint32_t target = target_handle.bits ? ch__block_resolve(heap, target_handle) : 0;
	if (!index)
		status = ch__because_stale("branch", handle.bits);
	else if (!target && target_handle.bits)
		status = ch__because_stale("block", target_handle.bits);
	else
		status = link_locked(heap, index, source, target);
	ch__heap_unlock(heap);
	return status;
}

void ch__block_unlink(struct ch_heap *heap, uint32_t index, bool patch_incoming,
		      bool patch_outgoing)
{
	struct ch__block *block = ch__block_at(heap, index);
	for (uint32_t at; (at = block->in_head) != 0;) {
		const struct ch__branch *branch = ch__branch_at(heap, at);
		uint32_t source = patch_incoming ? source_of(heap, branch) : 0;
		unlink_branch(heap, at, patch_incoming, source ? ch__block_at(heap, source) : NULL);
	}
	for (uint32_t at = ch__block_run(block); at; at = ch__branch_after(heap, at))
		unlink_branch(heap, at, patch_outgoing, patch_outgoing ? block : NULL);
}
