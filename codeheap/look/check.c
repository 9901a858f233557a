/* SPDX-License-Identifier: MIT
 * check.c: ch_heap_check, the walk of every invariant: records against pages and bitmaps, lists
 * against each other, gauges against counts, and the bytes at every attached site decoded (P5).
 * Under registry and heap; records frozen, pages not. Reports the first broken thing, and changes
 * nothing. */
#include "invalidate/invalidate.h"
#include "codeheap/collect/collect.h"

/* Sums over all records, to compare with the lists and gauges of the heap. */
struct sums {
	uint64_t blocks;   /* block records that are not FREE */
	uint64_t owned;    /* not FREE, with an owner */
	uint64_t in_use;   /* OPEN, LIVE, NOTENTRANT with an owner: on the owner's list */
	uint64_t granules; /* of blocks that are not FREE, without spans */
	uint64_t linked;   /* branches with a target, of blocks in use */
	uint64_t notentrant, notentrant_bytes;
	uint64_t owners, blocks_of_owners, listed, incoming, assumptions;
};

struct check {
	struct ch_heap *heap;
	struct ch__text report; /* "" while nothing is broken */
	const char *noun; /* of what is checked: "block" ...; NULL: it has no number */
	uint32_t number;
	struct sums is;
};

/* Only the first broken thing is reported. */
__attribute__((format(printf, 2, 3))) static void say(struct check *c, const char *format, ...)
{
	if (c->report.length)
		return;
	if (c->noun)
		ch__text_format(&c->report, "%s %u: ", c->noun, c->number);
	va_list arguments;
	va_start(arguments, format);
	ch__text_put_list(&c->report, format, &arguments);
	va_end(arguments);
	ch__text_end(&c->report);
}

static void look_at(struct check *c, const char *noun, uint32_t number)
{
	c->noun = noun;
	c->number = number;
}

static void check_part(struct check *c, uint32_t offset, uint32_t bytes, const char *part)
{
	const struct ch_heap *heap = c->heap;
	uintptr_t exec = ch__exec(heap, offset);
	if (ch__head_read(heap, offset) != ch__head_of(c->number))
		say(c, "the head of its %s part was written over", part);
	if (ch__find(heap, exec, NULL) != c->number ||
	    ch__find(heap, exec + bytes - 1, NULL) != c->number)
		say(c, "its %s part is not found by address", part);
}

/* Whether the bytes of the branch's stub fit the branch record and the bytes of the site. */
static bool stub_is_valid(const struct ch_heap *heap, const struct ch__block *source,
			  uint32_t index)
{
	const struct ch__branch *branch = ch__branch_at(heap, index);
	uintptr_t exec = ch__exec(heap, branch->site), stub = ch__stub_exec(heap, source, index);
	uintptr_t hit = ch__stub_hit_exec(heap, stub);
	uintptr_t site = ch__arch_site_target(ch__branch_kind(branch),
					      ch__pool_read(heap->pool, exec), exec);
	const uint8_t *read = ch__pool_read(heap->pool, stub);
	/* The target of a lead, or of a linked branch's stub, is not judged here. */
	if (heap->pool->stub_lead_bytes &&
	    (site != stub || !ch__arch_lead_is_valid(read, heap->pool->delta)))
		return false;
	if (CH_ARCH_STUB_LEADS_FAR && !(ch__branch_target(branch) && site == stub) &&
	    ch__arch_stub_leads_to(read) != ch__branch_stub_home(heap, source, index))
		return false;
	if (ch__branch_has(branch, CH__BRANCH_OWN_EXIT))
		return true;
	uintptr_t leads_to = CH_ARCH_STUB_LEADS_FAR ? ch__arch_stub_leads_to(read)
						    : heap->pool->runtime_exec;
	return ch__arch_stub_is_valid(ch__pool_read(heap->pool, hit), hit, leads_to, index);
}

static void check_branch(struct check *c, const struct ch__block *block, uint32_t at)
{
	struct ch_heap *heap = c->heap;
	const struct ch__branch *branch = ch__branch_at(heap, at);
	if (!branch->site)
		return;
	uint32_t target = ch__branch_target(branch);
	uintptr_t exec = ch__exec(heap, branch->site);
	const uint8_t *read = ch__pool_read(heap->pool, exec);
	if (!ch__arch_site_is_valid(ch__branch_kind(branch), read, exec)) {
		say(c, "no valid site at the attached branch %u", at);
		return;
	}
	uintptr_t leads_to = ch__branch_leads_to(heap, block, at);
	if (!stub_is_valid(heap, block, at))
		say(c, "the stub of branch %u is overwritten", at);
	if (!target) {
		if (leads_to != ch__branch_exit(heap, block, at) && ch__block_is_published(block))
			say(c, "unlinked branch %u does not lead to its stub", at);
		return;
	}
	const struct ch__block *to = ch__block_at(heap, target);
	if (ch__block_state(to) != CH_BLOCK_LIVE || !(atomic_load(&to->generation) & 1))
		say(c, "branch %u leads to block %u, which is not LIVE", at, target);
	else if (leads_to != ch__block_entry(heap, to))
		say(c, "the bytes of branch %u do not lead to block %u", at, target);
}

static void check_in_edges(struct check *c, const struct ch__block *block)
{
	struct ch_heap *heap = c->heap;
	uint32_t seen = 0;
	if (ch__block_is_data(heap, block))
		return;
	for (uint32_t at = block->in_head; at; at = ch__branch_at(heap, at)->next) {
		if (ch__branch_target(ch__branch_at(heap, at)) != c->number ||
		    ++seen > heap->branches.used) {
			say(c, "its list of incoming branches is not its own");
			return;
		}
	}
	c->is.incoming += seen;
}

static void check_diverter(struct check *c, uintptr_t exec, uintptr_t target, bool must_be_armed,
			   const char *what)
{
	const uint8_t *read = ch__pool_read(c->heap->pool, exec);
	bool is_armed = ch__arch_diverter_is_armed(read);
	if (!is_armed && !ch__arch_diverter_is_valid(read, exec, target))
		say(c, "the bytes of %s changed", what);
	else if (is_armed && ch__arch_diverter_target(read, exec) != target)
		say(c, "%s leads elsewhere than its exit", what);
	else if (is_armed != must_be_armed)
		say(c, "%s is not as its state", what);
}

static void check_items(struct check *c, const struct ch__block *block, bool is_dead_end)
{
	struct ch_heap *heap = c->heap;
	const struct ch__side_list *list = block->side_list;
	for (uint32_t i = 0; list && i < list->count; i++) {
		struct ch__item item = ch__side_items(list)[i];
		if (list->kinds[i] == CH__ITEM_POINT)
			check_diverter(c, ch__exec(heap, item.at), ch__exec(heap, item.value),
				       is_dead_end, "a patch point");
		if (list->kinds[i] == CH__ITEM_EDGE && !ch__edge_target(heap, item))
			say(c, "an edge leads to the free block %u", item.value);
		if (list->kinds[i] == CH__ITEM_OWNER_EDGE &&
		    ch__handle_generation(ch__owner_handle(heap, item.value).bits) != item.at)
			say(c, "an edge leads to the owner %u, which is another one", item.value);
	}
}

/* of_alive: the bytes at the sites must lead where the records say. */
static void check_branches(struct check *c, const struct ch__block *block, bool of_alive)
{
	struct ch_heap *heap = c->heap;
	for (uint32_t at = ch__block_run(block); at; at = ch__branch_after(heap, at)) {
		c->is.linked += ch__branch_target(ch__branch_at(heap, at)) != 0;
		if (of_alive)
			check_branch(c, block, at);
	}
}

static void add_block(struct check *c, const struct ch__block *block)
{
	enum ch_block_state state = ch__block_state(block);
	uint32_t bytes = ch__hot_bytes(block) + ch__cold_bytes(block);
	c->is.blocks += state != CH_BLOCK_FREE;
	/* A FREE record has no place: its place went back. */
	if (state != CH_BLOCK_FREE && !ch__block_is_span(c->heap, block))
		c->is.granules += bytes / CH__GRANULE_BYTES;
	c->is.owned += state != CH_BLOCK_FREE && block->owner;
	c->is.in_use += state != CH_BLOCK_FREE && state != CH_BLOCK_DEAD && block->owner;
	if (state == CH_BLOCK_NOTENTRANT) {
		c->is.notentrant++;
		c->is.notentrant_bytes += bytes;
	}
}

static void check_block(struct check *c, const struct ch__block *block)
{
	struct ch_heap *heap = c->heap;
	add_block(c, block);
	bool in_use = (atomic_load(&block->generation) & 1) != 0;
	enum ch_block_state state = ch__block_state(block);
	bool is_dead_end = state == CH_BLOCK_NOTENTRANT;
	if (in_use != (state == CH_BLOCK_OPEN || ch__block_is_published(block))) {
		say(c, "generation and state %d disagree", state);
		return;
	}
	if (state == CH_BLOCK_OPEN)
		check_branches(c, block, false);
	if (!ch__block_is_published(block))
		return;
	uint8_t frame = ch__place_frame(heap, block->hot_offset);
	bool has_own = ch__side_find(block->side_list, CH__ITEM_OWN) ||
		       ch__block_is_data(heap, block);
	if ((frame >= CH__FRAME_OWN) != has_own)
		say(c, "it and its page disagree on whose unwind table it is");
	check_part(c, block->hot_offset, ch__hot_bytes(block), "hot");
	if (block->cold_granules)
		check_part(c, ch__cold_offset(heap, block), ch__cold_bytes(block), "cold");
	/* An unreachable block may have edges to blocks that wait for the sweep. */
	check_branches(c, block, ch__block_is_alive(heap, block));
	check_in_edges(c, block);
	if (is_dead_end && block->in_head)
		say(c, "not entrant, but a branch leads to it");
	/* One store closes a patchable entry, to lead to the veneer behind the stubs. */
	if (ch__block_entry_kind(block) == CH_ENTRY_PATCH) {
		uintptr_t first = ch__exec(heap, block->hot_offset) + CH__HEAD_BYTES;
		if (!ch__arch_landing_is_there(ch__pool_read(heap->pool, first)))
			say(c, "the bytes before the entry changed");
		check_diverter(c, ch__block_gate_exec(heap, block),
			       ch__block_veneer_exec(heap, block), is_dead_end, "the entry");
	}
	if (ch__block_is_alive(heap, block))
		check_items(c, block, is_dead_end);
}

static void check_owner(struct check *c, struct ch__owner *owner)
{
	struct ch_heap *heap = c->heap;
	if (!(atomic_load(&owner->generation) & 1))
		return;
	const void *cell = atomic_load(&owner->cell);
	if (owner->entry) {
		const struct ch__block *entry = ch__block_at(heap, owner->entry);
		if (ch__block_state(entry) != CH_BLOCK_LIVE)
			say(c, "its entry block %u is not LIVE", owner->entry);
		else if (cell != owner->fallback && (uintptr_t)cell != ch__block_entry(heap, entry))
			say(c, "its cell leads elsewhere than its entry");
	} else if (cell != owner->fallback) {
		say(c, "its cell is not its fallback");
	}
	uint32_t prev = 0;
	for (uint32_t at = owner->first_block; at; at = ch__block_at(heap, at)->owner_next) {
		const struct ch__block *block = ch__block_at(heap, at);
		if (block->owner != c->number || block->owner_prev != prev) {
			say(c, "block %u on its list is another's, or its links disagree", at);
			return;
		}
		prev = at;
		c->is.listed++;
	}
	c->is.owners++;
	c->is.blocks_of_owners += atomic_load(&owner->blocks_now);
}

/* A dependent names its item, and the item names the dependent. */
static void check_assumption(struct check *c, const struct ch__assumption *fact)
{
	if (!(atomic_load(&fact->generation) & 1))
		return;
	c->is.assumptions++;
	for (uint32_t i = 0; i < fact->count; i++) {
		struct ch__dependent by = fact->dependents[i];
		const struct ch__side_list *list = ch__block_at(c->heap, by.block)->side_list;
		struct ch__item item = {0};
		if (list && by.item < list->count && list->kinds[by.item] == CH__ITEM_ASSUME)
			item = ch__side_items(list)[by.item];
		if (item.at != c->number || item.value != i)
			say(c, "block %u does not know that it relies on it", by.block);
	}
}

static void compare(struct check *c, const char *what, uint64_t said, uint64_t is)
{
	look_at(c, NULL, 0);
	if (said != is)
		say(c, "%s: %lu are said, %lu are there", what, said, is);
}

/* Checks the list of DEAD blocks from block `at` on: the quarantine, or, of_notices, the blocks
 * whose block_freed is due. */
static void check_dead(struct check *c, uint32_t at, uint32_t tail, bool of_notices) CH_HAS_HEAP
{
	struct ch_heap *heap = c->heap;
	const char *list = of_notices ? "notices" : "the quarantine";
	uint64_t bytes = 0, seen = 0;
	bool has_waiting = of_notices || !heap->quarantine_waits;
	look_at(c, "block", 0);
	for (; at && seen <= c->is.blocks; seen++) {
		const struct ch__block *block = ch__block_at(heap, at);
		c->number = at;
		if (ch__block_state(block) != CH_BLOCK_DEAD ||
		    (of_notices && !(block->flags & CH__FLAG_NOTICE)))
			say(c, "on the list of %s, but not dead or not due", list);
		bytes += ch__hot_bytes(block) + ch__cold_bytes(block);
		has_waiting |= at == heap->quarantine_waits;
		at = of_notices ? block->notice_next : block->quarantine_next;
	}
	if (seen && c->number != tail)
		say(c, "the list of %s ends elsewhere", list);
	c->number = heap->quarantine_waits;
	if (!has_waiting)
		say(c, "waits for a core sync, but not on the quarantine");
	if (!of_notices)
		compare(c, "bytes on the quarantine", atomic_load(&heap->quarantine_bytes), bytes);
}

static void check_sums(struct check *c) CH_HAS_HEAP
{
	struct ch_heap *heap = c->heap;
	const struct ch__pool *pool = heap->pool;
	uint64_t owners_of_vms = 0, granules = 0;
	for (uint32_t i = 0; i < ch__pool_pages_end(pool); i++)
		if (atomic_load(&pool->pages[i].state) != CH__PAGE_SPAN)
			granules += atomic_load(&pool->pages[i].used_granules);
	/* A place and its record change in one region, or under the heap lock: the sums agree. */
	compare(c, "granules of blocks", granules, c->is.granules);
	/* ch_vm_detach counts one owner more until the call is through. */
	for (const struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		owners_of_vms += vm->owners_now - (!vm->is_attached && vm->told != UINT32_MAX);
	check_dead(c, heap->quarantine_head, heap->quarantine_tail, false);
	check_dead(c, atomic_load(&heap->notice_head), heap->notice_tail, true);
	compare(c, "owners", heap->owners_now, c->is.owners);
	compare(c, "owners of vms", owners_of_vms, c->is.owners);
	compare(c, "blocks of owners", c->is.blocks_of_owners, c->is.owned);
	compare(c, "blocks on the lists of owners", c->is.listed, c->is.in_use);
	compare(c, "branches that lead to blocks", c->is.incoming, c->is.linked);
	compare(c, "blocks not entrant", heap->blocks_notentrant, c->is.notentrant);
	compare(c, "bytes not entrant", heap->notentrant_bytes, c->is.notentrant_bytes);
	compare(c, "assumptions", heap->assumptions_now, c->is.assumptions);
}

static void check_records(struct check *c) CH_HAS_HEAP
{
	struct ch_heap *heap = c->heap;
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		look_at(c, "block", i);
		check_block(c, ch__block_at(heap, i));
	}
	for (uint32_t i = 1; i < heap->owners.used; i++) {
		look_at(c, "owner", i);
		check_owner(c, ch__owner_at(heap, i));
	}
	for (uint32_t i = 1; i < heap->assumptions.used; i++) {
		look_at(c, "assumption", i);
		check_assumption(c, ch__assumption_at(heap, i));
	}
	check_sums(c);
}

enum ch_status ch_heap_check(struct ch_heap *heap, char *report, size_t bytes)
{
	struct check c = {.heap = heap, .report = {report, bytes, 0}};
	ch__text_end(&c.report);
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	uint64_t until = ch__stop_limit(heap, ch__os_now_ns());
	if (!ch__world_lock(heap, until))
		return ch__because_locked();
	if (!ch__pool_check(heap->pool, &c.report))
		ch__text_end(&c.report);
	bool is_frozen = ch__freeze_until(heap, until);
	if (is_frozen) {
		check_records(&c);
		ch__unfreeze(heap);
	}
	ch__world_unlock(heap);
	if (c.report.length)
		return ch__because(CH_E_BROKEN, "report says what is broken");
	return is_frozen ? CH_OK : ch__told(CH_E_BUSY);
}
