/* SPDX-License-Identifier: MIT
 * check.c: the walk of every invariant: records against pages and bitmaps, lists against each
 * other, gauges against what they count, and the bytes at every attached site decoded (P5). Under
 * heap, frozen; says what is broken and changes nothing. */
#include "invalidate/assumption.h"
#include "codeheap/graph/block_parts.h"
#include "invalidate/branch_way.h"
#include "codeheap/graph/find.h"
#include "codeheap/graph/handles.h"
#include "codeheap/base/region.h"
#include "codeheap/collect/world.h"

#include <stdarg.h>
#include <stdio.h>

/* What the records have together, and the lists and gauges of the heap must have, too. */
struct sums {
	uint64_t blocks;   /* of a heap: records that are not FREE */
	uint64_t in_use;   /* of them OPEN, LIVE, NOTENTRANT: on the list of an owner */
	uint64_t granules; /* of all of them, the spans left out */
	uint64_t linked;   /* branches of those in use */
	uint64_t notentrant, notentrant_bytes;
	uint64_t owners, blocks_of_owners, listed, incoming;
};

struct check {
	struct ch_heap *heap;
	char *report;
	size_t room;
	bool broken;
	struct sums is;
};

__attribute__((format(printf, 2, 3))) static void say(struct check *c, const char *format, ...)
{
	if (c->broken)
		return;
	c->broken = true;
	va_list arguments;
	va_start(arguments, format);
	if (c->room)
		vsnprintf(c->report, c->room, format, arguments);
	va_end(arguments);
}

/* --- places --- */

static void check_part(struct check *c, uint32_t index, uint32_t offset, uint32_t bytes,
		       const char *part)
{
	struct ch_heap *heap = c->heap;
	uint32_t word;
	memcpy(&word, ch__pool_read(heap->pool, ch__exec(heap, offset)), sizeof word);
	if (word != index)
		say(c, "block %u: the index word of its %s part says %u", index, part, word);
	uint32_t generation;
	if (ch__find(heap, ch__exec(heap, offset), &generation) != index ||
	    ch__find(heap, ch__exec(heap, offset) + bytes - 1, &generation) != index)
		say(c, "block %u: its %s part is not found by address", index, part);
}

/* The page's header is the pool's business. */
static void check_frames(struct check *c, uint32_t index, const struct ch__block *block)
{
	struct ch__pool *pool = c->heap->pool;
	uint32_t page = block->hot_offset >> pool->page_log2;
	bool has_own = ch__side_own(block->side_list) != NULL || ch__block_is_data(c->heap, block);
	if ((pool->pages[page].frame == CH__FRAME_OWN) != has_own)
		say(c, "block %u: page %u and block disagree on whose unwind table it is", index,
		    page);
}

/* --- branches --- */

static void check_branch(struct check *c, uint32_t source, uint32_t at)
{
	struct ch_heap *heap = c->heap;
	const struct ch__block *block = ch__block_at(heap, source);
	const struct ch__branch *branch = ch__branch_at(heap, at);
	if (!branch->site)
		return;
	uint32_t target = ch__branch_target(branch);
	uintptr_t exec = ch__exec(heap, branch->site);
	enum ch__site kind = ch__branch_kind(branch);
	const uint8_t *read = ch__pool_read(heap->pool, exec);
	if (!ch__arch_site_is_valid(kind, read, exec)) {
		say(c, "block %u: no valid site at the attached branch %u", source, at);
		return;
	}
	uintptr_t leads_to = ch__branch_leads_to(heap, block, at);
	if (!ch__branch_stub_is_valid(heap, block, at))
		say(c, "block %u: the stub of branch %u is overwritten", source, at);
	if (!target) {
		if (leads_to != ch__branch_unlinked_target(heap, at) &&
		    ch__block_is_published(block))
			say(c, "block %u: unlinked branch %u does not lead to its stub", source,
			    at);
		return;
	}
	const struct ch__block *to = ch__block_at(heap, target);
	if (ch__block_state(to) != CH_BLOCK_LIVE || !(atomic_load(&to->generation) & 1))
		say(c, "block %u: branch %u leads to block %u, which is not LIVE", source, at,
		    target);
	else if (leads_to != ch__block_entry(heap, to))
		say(c, "block %u: the bytes of branch %u do not lead to block %u", source, at,
		    target);
}

static void check_in_edges(struct check *c, uint32_t index)
{
	struct ch_heap *heap = c->heap;
	uint32_t seen = 0;
	for (uint32_t at = ch__block_at(heap, index)->in_head; at;
	     at = ch__branch_at(heap, at)->next_gen & CH__INDEX_MAX) {
		if (ch__branch_target(ch__branch_at(heap, at)) != index ||
		    ++seen > heap->branches.used) {
			say(c, "block %u: its list of incoming branches is not its own", index);
			return;
		}
	}
	c->is.incoming += seen;
}

static void check_diverter(struct check *c, uint32_t index, uintptr_t exec, uintptr_t target,
			   bool must_be_armed, const char *what)
{
	const uint8_t *read = ch__pool_read(c->heap->pool, exec);
	bool is_armed = ch__arch_diverter_is_armed(read);
	if (!is_armed && !ch__arch_diverter_is_valid(read, exec, target))
		say(c, "block %u: the bytes of %s changed", index, what);
	else if (is_armed && ch__arch_diverter_target(read, exec) != target)
		say(c, "block %u: %s leads elsewhere than its exit", index, what);
	else if (is_armed != must_be_armed)
		say(c, "block %u: %s is not as its state", index, what);
}

/* The entry that one store closes, and the veneer behind the stubs that it leads to then. */
static void check_entry(struct check *c, uint32_t index)
{
	struct ch_heap *heap = c->heap;
	const struct ch__block *block = ch__block_at(heap, index);
	if (ch__block_entry_kind(block) != CH_ENTRY_PATCH)
		return;
	if (!ch__arch_landing_is_there(ch__pool_read(
		    heap->pool, ch__exec(heap, block->hot_offset) + CH__INDEX_WORD_BYTES)))
		say(c, "block %u: the bytes before the entry changed", index);
	check_diverter(c, index, ch__block_gate_exec(heap, block),
		       ch__block_veneer_exec(heap, block),
		       ch__block_state(block) == CH_BLOCK_NOTENTRANT, "the entry");
}

static void check_points(struct check *c, uint32_t index)
{
	struct ch_heap *heap = c->heap;
	const struct ch__block *block = ch__block_at(heap, index);
	const struct ch__side_list *list = block->side_list;
	bool is_dead_end = ch__block_state(block) == CH_BLOCK_NOTENTRANT;
	for (uint32_t i = 0; list && i < list->count; i++) {
		struct ch__item item = ch__side_items(list)[i];
		if (list->kinds[i] == CH__ITEM_POINT) {
			uintptr_t exec = ch__exec(heap, item.at), exit = ch__exec(heap, item.value);
			check_diverter(c, index, exec, exit, is_dead_end, "a patch point");
		}
		/* The target of an OPEN block may have been aborted: its commit will say so. */
		if (list->kinds[i] == CH__ITEM_EDGE && ch__block_state(block) != CH_BLOCK_OPEN &&
		    atomic_load(&ch__block_at(heap, item.value)->generation) != item.at)
			say(c, "block %u: an edge leads to the free block %u", index, item.value);
		if (list->kinds[i] == CH__ITEM_OWNER_EDGE && ch__block_is_alive(heap, block) &&
		    ch__handle_generation(ch__owner_handle(heap, item.value).bits) != item.at)
			say(c, "block %u: an edge leads to the owner %u, which is another one",
			    index, item.value);
	}
}

/* of_alive: what the bytes at their sites lead to is as the records say. */
static void check_branches(struct check *c, uint32_t index, bool of_alive)
{
	struct ch_heap *heap = c->heap;
	uint32_t at = ch__block_run(ch__block_at(heap, index));
	for (; at; at = ch__branch_after(heap, at)) {
		c->is.linked += ch__branch_target(ch__branch_at(heap, at)) != 0;
		if (of_alive)
			check_branch(c, index, at);
	}
}

static void add_block(struct check *c, const struct ch__block *block)
{
	enum ch_block_state state = ch__block_state(block);
	uint32_t bytes = ch__hot_bytes(block) + ch__cold_bytes(block);
	c->is.blocks += state != CH_BLOCK_FREE;
	/* Of a record whose place went back it has none. */
	if (state != CH_BLOCK_FREE && !(block->flags & CH__FLAG_SPAN))
		c->is.granules += bytes / CH__GRANULE_BYTES;
	if (state == CH_BLOCK_FREE || state == CH_BLOCK_DEAD)
		return;
	c->is.in_use++;
	if (state == CH_BLOCK_NOTENTRANT) {
		c->is.notentrant++;
		c->is.notentrant_bytes += bytes;
	}
}

static void check_block(struct check *c, uint32_t index)
{
	struct ch_heap *heap = c->heap;
	const struct ch__block *block = ch__block_at(heap, index);
	add_block(c, block);
	bool in_use = (atomic_load(&block->generation) & 1) != 0;
	enum ch_block_state state = ch__block_state(block);
	if (in_use != (state == CH_BLOCK_OPEN || ch__block_is_published(block))) {
		say(c, "block %u: generation and state %d disagree", index, state);
		return;
	}
	if (!in_use)
		return;
	if (state == CH_BLOCK_OPEN) {
		check_branches(c, index, false);
		return;
	}
	check_frames(c, index, block);
	check_part(c, index, block->hot_offset, ch__hot_bytes(block), "hot");
	if (block->cold_granules)
		check_part(c, index, ch__cold_offset(heap, block), ch__cold_bytes(block), "cold");
	/* What is unreachable may hold edges to others that wait for the sweep. */
	check_branches(c, index, ch__block_is_alive(heap, block));
	check_in_edges(c, index);
	if (state == CH_BLOCK_NOTENTRANT && block->in_head)
		say(c, "block %u: not entrant, but a branch leads to it", index);
	check_entry(c, index);
	if (ch__block_is_alive(heap, block))
		check_points(c, index);
}

/* --- owners --- */

static void check_owner(struct check *c, uint32_t index)
{
	struct ch_heap *heap = c->heap;
	struct ch__owner *owner = ch__owner_at(heap, index);
	if (!(atomic_load(&owner->generation) & 1))
		return;
	const void *cell = atomic_load(&owner->cell);
	if (owner->entry) {
		const struct ch__block *entry = ch__block_at(heap, owner->entry);
		if (ch__block_state(entry) != CH_BLOCK_LIVE)
			say(c, "owner %u: its entry block %u is not LIVE", index, owner->entry);
		else if (cell != owner->fallback && (uintptr_t)cell != ch__block_entry(heap, entry))
			say(c, "owner %u: its cell leads elsewhere than its entry", index);
	} else if (cell != owner->fallback) {
		say(c, "owner %u: its cell is not its fallback", index);
	}
	uint32_t prev = 0;
	for (uint32_t at = owner->first_block; at; at = ch__block_at(heap, at)->owner_next) {
		const struct ch__block *block = ch__block_at(heap, at);
		if (block->owner != index) {
			say(c, "owner %u: block %u on its list is another's", index, at);
			return;
		}
		if (block->owner_prev != prev) {
			say(c, "owner %u: the links of its block %u disagree", index, at);
			return;
		}
		prev = at;
		c->is.listed++;
	}
	c->is.owners++;
	c->is.blocks_of_owners += atomic_load(&owner->blocks_now);
}

/* --- slots: the unwinder knows those that hold published code, and no free one --- */

static bool is_used(const struct ch__pool *pool, uint32_t offset)
{
	uint32_t bit = offset / CH__GRANULE_BYTES;
	return atomic_load_explicit(&pool->used[bit / 64], memory_order_relaxed) >> bit % 64 & 1;
}

static void check_slots_of(struct check *c, uint32_t p)
{
	struct ch_heap *heap = c->heap;
	struct ch__pool *pool = heap->pool;
	uint32_t page_bytes = (uint32_t)1 << pool->page_log2;
	for (uint32_t at = CH__PAGE_HEADER_BYTES; at + CH__SLOT_BYTES <= page_bytes;
	     at += CH__SLOT_BYTES) {
		uint32_t offset = (p << pool->page_log2) + at;
		bool is_known = ch__sinks_slot_is_live(heap->sinks, ch__exec(heap, offset));
		if (is_known && !is_used(pool, offset))
			say(c, "page %u: the unwinder knows the free slot at +%u", p, at);
		if (!is_known && ch__page_has_start(pool, offset))
			say(c, "page %u: the unwinder does not know the slot at +%u", p, at);
	}
}

static void check_slots(struct check *c)
{
	struct ch__pool *pool = c->heap->pool;
	if (!(ch__sinks_on(c->heap->sinks) & CH__SINK_UNWIND))
		return;
	for (uint32_t p = 0; p < pool->page_count; p++) {
		enum ch__page_state state = (enum ch__page_state)atomic_load(&pool->pages[p].state);
		bool is_used = state != CH__PAGE_FREE && state != CH__PAGE_SPAN;
		if (is_used && ch__frame_has_slots(pool->pages[p].frame))
			check_slots_of(c, p);
	}
}

/* --- assumptions: each dependent knows its item, and the item its dependent --- */

static uint32_t check_assumption(struct check *c, uint32_t index)
{
	struct ch_heap *heap = c->heap;
	const struct ch__assumption *fact = ch__assumption_at(heap, index);
	if (!(atomic_load(&fact->generation) & 1))
		return 0;
	for (uint32_t i = 0; i < fact->count; i++) {
		struct ch__dependent by = fact->dependents[i];
		const struct ch__side_list *list = ch__block_at(heap, by.block)->side_list;
		struct ch__item item = {0};
		if (list && by.item < list->count && list->kinds[by.item] == CH__ITEM_ASSUME)
			item = ch__side_items(list)[by.item];
		if (item.at != index || item.value != i)
			say(c, "assumption %u: block %u does not know that it relies on it", index,
			    by.block);
	}
	return 1;
}

/* --- sums: what records, lists and gauges say of the same thing --- */

static void compare(struct check *c, const char *what, uint64_t said, uint64_t is)
{
	if (said != is)
		say(c, "%s: %llu are said, %llu are there", what, (unsigned long long)said,
		    (unsigned long long)is);
}

static void check_quarantine(struct check *c) CH_REQUIRES(ch__role_heap)
{
	struct ch_heap *heap = c->heap;
	uint32_t last = 0;
	uint64_t bytes = 0, seen = 0;
	bool has_waiting = !heap->quarantine_waits;
	for (uint32_t at = heap->quarantine_head; at && seen <= c->is.blocks;
	     at = ch__block_at(heap, at)->quarantine_next, seen++) {
		const struct ch__block *block = ch__block_at(heap, at);
		if (ch__block_state(block) != CH_BLOCK_DEAD)
			say(c, "block %u: on the quarantine, but not dead", at);
		bytes += ch__hot_bytes(block) + ch__cold_bytes(block);
		has_waiting |= at == heap->quarantine_waits;
		last = at;
	}
	if (last && last != heap->quarantine_tail)
		say(c, "block %u: the quarantine ends elsewhere", last);
	if (!has_waiting)
		say(c, "block %u: waits for a core sync, but not on the quarantine",
		    heap->quarantine_waits);
	compare(c, "bytes on the quarantine", atomic_load(&heap->quarantine_bytes), bytes);
}

static void check_notices(struct check *c) CH_REQUIRES(ch__role_heap)
{
	struct ch_heap *heap = c->heap;
	uint32_t last = 0;
	uint64_t seen = 0;
	for (uint32_t at = heap->notice_head; at && seen <= c->is.blocks;
	     at = ch__block_at(heap, at)->notice_next, seen++) {
		const struct ch__block *block = ch__block_at(heap, at);
		if (ch__block_state(block) != CH_BLOCK_DEAD || !(block->flags & CH__FLAG_NOTICE))
			say(c, "block %u: its notice is due, but it is not dead", at);
		last = at;
	}
	if (last && last != heap->notice_tail)
		say(c, "block %u: the notices end elsewhere", last);
	compare(c, "notices", atomic_load(&heap->notices_now), seen);
}

/* A place is reserved, and given back, in the region in which its record says so, or under heap. */
static void check_granules(struct check *c)
{
	const struct ch__pool *pool = c->heap->pool;
	uint64_t used = 0;
	for (uint32_t i = 0; i < pool->page_count; i++)
		if (atomic_load(&pool->pages[i].state) != CH__PAGE_SPAN)
			used += atomic_load(&pool->pages[i].used_granules);
	compare(c, "granules of blocks", used, c->is.granules);
}

static void check_sums(struct check *c) CH_REQUIRES(ch__role_heap)
{
	struct ch_heap *heap = c->heap;
	uint64_t owners_of_vms = 0, assumptions = 0;
	for (const struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		owners_of_vms += vm->owners_now;
	for (uint32_t i = 1; i < heap->assumptions.used; i++)
		assumptions += check_assumption(c, i);
	check_quarantine(c);
	check_notices(c);
	check_granules(c);
	compare(c, "owners", heap->owners_now, c->is.owners);
	compare(c, "owners of vms", owners_of_vms, c->is.owners);
	compare(c, "blocks of owners", c->is.blocks_of_owners, c->is.blocks);
	compare(c, "blocks on the lists of owners", c->is.listed, c->is.in_use);
	compare(c, "branches that lead to blocks", c->is.incoming, c->is.linked);
	compare(c, "blocks not entrant", heap->blocks_notentrant, c->is.notentrant);
	compare(c, "bytes not entrant", heap->notentrant_bytes, c->is.notentrant_bytes);
	compare(c, "assumptions", heap->assumptions_now, assumptions);
}

enum ch_status ch_heap_check(struct ch_heap *heap, char *report, size_t bytes)
{
	if (ch__is_marking())
		return CH_E_STATE;
	struct check c = {.heap = heap, .report = report, .room = bytes};
	if (bytes)
		report[0] = 0;
	uint64_t until = ch__stop_limit(heap, ch__os_now_ns());
	if (!ch__world_lock(heap, until))
		return CH_E_BUSY;
	char pages[160];
	if (!ch__pool_check(heap->pool, pages, sizeof pages))
		say(&c, "%s", pages);
	if (!ch__freeze_until(heap, until)) {
		ch__world_unlock(heap);
		return CH_E_BUSY;
	}
	for (uint32_t i = 1; i < heap->blocks.used; i++)
		if (heap->blocks.segments[i >> CH__SEGMENT_LOG2])
			check_block(&c, i);
	for (uint32_t i = 1; i < heap->owners.used; i++)
		check_owner(&c, i);
	check_slots(&c);
	check_sums(&c);
	ch__unfreeze(heap);
	ch__world_unlock(heap);
	return c.broken ? CH_E_BROKEN : CH_OK;
}
