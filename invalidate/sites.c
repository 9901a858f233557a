/* SPDX-License-Identifier: MIT
 * sites.c: the bytes of a block that others may change: patch sites, patch points, refs, a
 * patchable entry, stubs (I12). Each changes as a whole, so no two share a byte, and nothing that
 * the library knows of leads between two bytes of one. It judges places only; what stands there is
 * the architecture's duty, and the VM's own jumps within a block are nobody's but the VM's.
 *
 * Records of a block that is OPEN belong to its thread; of others they are read under heap. */
#include "codeheap/base/heaps.h"
#include "codeheap/base/region.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/find.h"
#include "codeheap/graph/handles.h"
#include "invalidate/branch_way.h"
#include "invalidate/sites.h"

/* A range that changes as a whole, in pool offsets, and where it may lead by itself. */
struct place {
	uint32_t at, end;
	uint32_t leads_to; /* 0 = nowhere in the pool that stays */
	uint32_t branch;   /* its index; 0 = none */
	bool is_point, is_ref;
};

/* Most walks are over two or three records: a call for each would be most of the cost. */
struct walk {
	const struct ch_heap *heap;
	const struct ch__block *block;
	bool has_entry, has_stubs;
	uint32_t branch, item;
};

static uint32_t first_byte(const struct ch__block *block)
{
	return block->hot_offset + CH__INDEX_WORD_BYTES;
}

__attribute__((always_inline)) static inline struct walk walk_of(const struct ch_heap *heap,
								 const struct ch__block *block)
{
	bool has_entry = ch__block_entry_kind(block) == CH_ENTRY_PATCH;
	uint32_t first = ch__block_run(block);
	return (struct walk){heap, block, has_entry, has_entry || first, first, 0};
}

__attribute__((always_inline)) static inline bool next_branch(struct walk *w, struct place *p)
{
	while (w->branch) {
		uint32_t index = w->branch;
		const struct ch__branch *branch = ch__branch_at(w->heap, index);
		w->branch = ch__branch_after(w->heap, index);
		if (!branch->site)
			continue;
		uintptr_t exec = ch__exec(w->heap, branch->site), exit = 0;
		const uint8_t *read = ch__pool_read(w->heap->pool, exec);
		uint32_t at = branch->site;
		if (ch__branch_has(branch, CH__BRANCH_OWN_EXIT))
			exit = ch__branch_exit(w->heap, w->block, index);
		bool is_ours = exit && ch__pool_has(w->heap->pool, exit);
		uint32_t bytes = (uint32_t)ch__arch_site_bytes(ch__branch_kind(branch), read);
		*p = (struct place){.at = at,
				    .end = at + bytes,
				    .branch = index,
				    .leads_to = is_ours ? ch__offset(w->heap, exit) : 0};
		return true;
	}
	return false;
}

__attribute__((always_inline)) static inline bool next_item(struct walk *w, struct place *p)
{
	const struct ch__side_list *list = w->block->side_list;
	while (list && w->item < list->count) {
		uint32_t i = w->item++;
		if (list->kinds[i] != CH__ITEM_POINT && list->kinds[i] != CH__ITEM_REF)
			continue;
		struct ch__item item = ch__side_items(list)[i];
		bool is_point = list->kinds[i] == CH__ITEM_POINT;
		uint32_t bytes = is_point ? CH_ARCH_DIVERTER_BYTES : sizeof(uintptr_t);
		*p = (struct place){.at = item.at,
				    .end = item.at + bytes,
				    .is_point = is_point,
				    .is_ref = !is_point,
				    .leads_to = is_point ? item.value : 0};
		return true;
	}
	return false;
}

/* Entry, stubs with their veneer, branches, then patch points and refs. */
__attribute__((always_inline)) static inline bool next_place(struct walk *w, struct place *p)
{
	const struct ch__block *block = w->block;
	*p = (struct place){0};
	if (w->has_entry) {
		w->has_entry = false;
		p->at = first_byte(block);
		p->end = p->at + CH_ARCH_LANDING_BYTES + CH_ARCH_DIVERTER_BYTES;
		return true;
	}
	if (w->has_stubs) {
		w->has_stubs = false;
		p->at = ch__cold_offset(w->heap, block) + CH__INDEX_WORD_BYTES;
		p->end = ch__offset(w->heap, ch__block_veneer_exec(w->heap, block));
		if (ch__block_entry_kind(block) == CH_ENTRY_PATCH)
			p->end += CH_ARCH_VENEER_BYTES;
		return true;
	}
	return next_branch(w, p) || next_item(w, p);
}

static bool is_stub(const struct ch_heap *heap, const struct ch__block *block, uint32_t offset)
{
	uint32_t base = ch__cold_offset(heap, block) + CH__INDEX_WORD_BYTES;
	return block->cold_granules && offset >= base &&
	       ch__exec(heap, offset) <= ch__block_veneer_exec(heap, block) &&
	       (offset - base) % ch__stub_bytes(heap) == 0;
}

/* --- the thread's map of the block that it works on: without it each attach would read all the
 * records before it --- */

static uint32_t end_of_word(uint32_t bit, uint32_t end)
{
	uint32_t next = (bit | 63) + 1;
	return next < end ? next : end;
}

static uint64_t mask_of(uint32_t from, uint32_t to)
{
	return (~UINT64_C(0) >> (64 - (to - from))) << from % 64;
}

static bool any_bit(const uint64_t *words, uint32_t from, uint32_t to)
{
	for (uint32_t next; from < to; from = next) {
		next = end_of_word(from, to);
		if (words[from / 64] & mask_of(from, next))
			return true;
	}
	return false;
}

static void set_bits(uint64_t *words, uint32_t from, uint32_t to)
{
	for (uint32_t next; from < to; from = next) {
		next = end_of_word(from, to);
		words[from / 64] |= mask_of(from, next);
	}
}

static void clear_bits(uint64_t *words, uint32_t from, uint32_t to)
{
	for (uint32_t next; from < to; from = next) {
		next = end_of_word(from, to);
		words[from / 64] &= ~mask_of(from, next);
	}
}

static void note(struct ch__site_map *map, uint32_t at, uint32_t end, uint32_t leads_to)
{
	set_bits(map->covered, at - map->base, end - map->base);
	uint32_t bit = leads_to - map->base;
	if (leads_to && bit < map->capacity)
		set_bits(map->targets, bit, bit + 1);
}

static bool reserve_map(struct ch_heap *heap, struct ch__site_map *map, uint32_t bits)
{
	if (bits <= map->capacity)
		return true;
	uint64_t *words = ch__meta_alloc(heap->meta, (size_t)bits / 8 * 2);
	if (!words)
		return false;
	if (map->capacity)
		ch__meta_free(heap->meta, map->covered, (size_t)map->capacity / 8 * 2);
	map->covered = words;
	map->targets = words + bits / 64;
	map->capacity = bits;
	return true;
}

static bool is_of(const struct ch__site_map *map, const struct ch__block *block)
{
	return map->block == block && ch__block_state(block) == CH_BLOCK_OPEN &&
	       map->generation == atomic_load_explicit(&block->generation, memory_order_relaxed);
}

/* NULL: there is none of the block, and the records have to be read. */
static const struct ch__site_map *map_of(const struct ch__thread *self,
					 const struct ch__block *block)
{
	return self->sites.is_made && is_of(&self->sites, block) ? &self->sites : NULL;
}

/* From all that is attached. Without memory there is none. */
static void make_map(struct ch_heap *heap, struct ch__site_map *map, const struct ch__block *block)
{
	uint32_t page_bytes = (uint32_t)1 << heap->pool->page_log2;
	uint32_t base = block->hot_offset & ~(page_bytes - 1), hot = block->hot_offset;
	uint32_t end = block->flags & CH__FLAG_SPAN ? ch__span_end(heap, block) : base + page_bytes;
	if (!reserve_map(heap, map, end - base))
		return;
	map->base = base;
	uint32_t parts[2][2] = {{hot, hot + ch__hot_bytes(block)}, {0, 0}};
	if (block->cold_granules) {
		parts[1][0] = ch__cold_offset(heap, block);
		parts[1][1] = parts[1][0] + ch__cold_bytes(block);
	}
	for (int i = 0; i < 2 && parts[i][0]; i++) {
		clear_bits(map->covered, parts[i][0] - base, parts[i][1] - base);
		clear_bits(map->targets, parts[i][0] - base, parts[i][1] - base);
	}
	struct walk w = walk_of(heap, block);
	for (struct place p; next_place(&w, &p);)
		note(map, p.at, p.end, p.leads_to);
	map->is_made = true;
}

void ch__sites_note(struct ch_heap *heap, struct ch__thread *self, const struct ch__block *block,
		    uintptr_t exec, size_t bytes, uintptr_t exit)
{
	enum { NOTED_WITHOUT = 8 };
	struct ch__site_map *map = &self->sites;
	uint32_t at = ch__offset(heap, exec);
	if (!is_of(map, block)) {
		map->block = ch__block_state(block) == CH_BLOCK_OPEN ? block : NULL;
		map->generation = atomic_load_explicit(&block->generation, memory_order_relaxed);
		map->noted = 0;
		map->is_made = false;
	}
	if (!map->block)
		return;
	if (!map->is_made && ++map->noted > NOTED_WITHOUT)
		make_map(heap, map, block);
	else if (map->is_made)
		note(map, at, at + (uint32_t)bytes,
		     exit && ch__pool_has(heap->pool, exit) ? ch__offset(heap, exit) : 0);
}

/* --- when a site is attached --- */

bool ch__sites_have_room(struct ch_heap *heap, struct ch__thread *self,
			 const struct ch__block *block, uintptr_t exec, size_t bytes, bool is_ref)
{
	uint32_t at = ch__offset(heap, exec), end = at + (uint32_t)bytes;
	/* Of an OPEN block it is not known yet, and the first byte is inside of nothing. */
	uint32_t entry = ch__offset(heap, ch__block_entry(heap, block));
	if (entry > at && entry < end)
		return false;
	const struct ch__site_map *map = map_of(self, block);
	uint32_t base = map ? map->base : 0;
	if (map && !any_bit(map->covered, at - base, end - base) &&
	    (is_ref || !any_bit(map->targets, at + 1 - base, end - base)))
		return true;
	struct walk w = walk_of(heap, block);
	w.has_stubs &= block->cold_granules && end > ch__cold_offset(heap, block);
	for (struct place p; next_place(&w, &p);) {
		if (p.at < end && at < p.end && !(is_ref && p.is_ref))
			return false;
		if (p.leads_to > at && p.leads_to < end && !is_ref)
			return false;
	}
	return true;
}

static bool is_inside_a_place(const struct ch_heap *heap, const struct ch__block *block,
			      uint32_t offset)
{
	struct walk w = walk_of(heap, block);
	for (struct place p; next_place(&w, &p);)
		if (offset > p.at && offset < p.end && !is_stub(heap, block, offset))
			return true;
	return false;
}

/* To exec in another block than the one that is asked about, or in none. */
static bool has_way_to(const struct ch_heap *heap, uintptr_t exec, uint32_t offset)
{
	uint32_t other = ch__find_frozen(heap, exec);
	const struct ch__block *block = ch__block_at(heap, other);
	return !other ||
	       (!ch__block_is_data(heap, block) && !is_inside_a_place(heap, block, offset));
}

bool ch__sites_may_lead_to(struct ch_heap *heap, struct ch__thread *self,
			   const struct ch__block *block, uintptr_t exec)
{
	if (!ch__pool_has(heap->pool, exec))
		return true;
	uint32_t offset = ch__offset(heap, exec);
	if (ch__block_has(heap, block, exec, 1)) {
		const struct ch__site_map *map = map_of(self, block);
		uint32_t bit = map ? offset - map->base : 0;
		return (map && !any_bit(map->covered, bit, bit + 1)) ||
		       !is_inside_a_place(heap, block, offset);
	}
	if (ch__block_state(block) != CH_BLOCK_OPEN)
		return has_way_to(heap, exec, offset);
	ch__heap_lock(heap);
	bool may = has_way_to(heap, exec, offset);
	ch__heap_unlock(heap);
	return may;
}

/* --- when a block is committed --- */

struct used {
	uint32_t hot, hot_end, cold, cold_end, entry;
};

static bool is_used(const struct used *used, uint32_t from, uint32_t to)
{
	return (from >= used->hot && to <= used->hot_end) ||
	       (from >= used->cold && to <= used->cold_end);
}

static struct used used_of(const struct ch_heap *heap, const struct ch__block *block,
			   const struct ch_code *code)
{
	uint32_t exec = first_byte(block), cold_bytes = ch__cold_bytes(block);
	struct used used = {.hot = exec + code->used_from,
			    .hot_end = exec + code->used_to,
			    .entry = exec + code->entry_offset};
	if (cold_bytes) {
		used.cold = ch__cold_offset(heap, block) + CH__INDEX_WORD_BYTES;
		used.cold_end = ch__cold_offset(heap, block) + cold_bytes -
				(code->cold_bytes - code->cold_used);
	}
	return used;
}

/* Bytes that the VM wrote after it attached them. */
static bool bytes_are_kept(const struct ch_heap *heap, const struct ch__block *block,
			   const struct place *p)
{
	uintptr_t exec = ch__exec(heap, p->at);
	const uint8_t *read = ch__pool_read(heap->pool, exec);
	if (p->branch) {
		enum ch__site kind = ch__branch_kind(ch__branch_at(heap, p->branch));
		return ch__arch_site_is_valid(kind, read, exec) &&
		       ch__branch_leads_to(heap, block, p->branch) ==
			       ch__branch_exit(heap, block, p->branch);
	}
	if (p->is_point)
		return ch__arch_diverter_is_valid(read, exec, ch__exec(heap, p->leads_to));
	if (p->at == first_byte(block) && ch__block_entry_kind(block) == CH_ENTRY_PATCH)
		return ch__arch_landing_is_there(read) &&
		       ch__arch_diverter_is_valid(read + CH_ARCH_LANDING_BYTES,
						  exec + CH_ARCH_LANDING_BYTES,
						  ch__block_veneer_exec(heap, block));
	return true;
}

bool ch__sites_are_sound(struct ch_heap *heap, const struct ch__block *block,
			 const struct ch_code *code)
{
	struct used used = used_of(heap, block, code);
	struct walk w = walk_of(heap, block);
	w.has_stubs = false; /* they lie before what the VM may use, which always stays */
	for (struct place p; next_place(&w, &p);) {
		if (!is_used(&used, p.at, p.end))
			return false;
		if (p.leads_to && ch__block_has(heap, block, ch__exec(heap, p.leads_to), 1) &&
		    !is_used(&used, p.leads_to, p.leads_to + 1))
			return false;
		if (used.entry > p.at && used.entry < p.end)
			return false;
		if (!bytes_are_kept(heap, block, &p))
			return false;
	}
	return true;
}

enum ch_status ch_ref_attach(struct ch_block block, const void *at)
{
	struct ch__subject s;
	enum ch_status status = ch__subject_open_code(block, true, &s);
	if (status != CH_OK)
		return status;
	if (!ch__block_has(s.heap, s.block, (uintptr_t)at, sizeof(uintptr_t)))
		return CH_E_ARG;
	if (!ch__sites_have_room(s.heap, s.self, s.block, (uintptr_t)at, sizeof(uintptr_t), true))
		return CH_E_SITE;
	struct ch__item item = {.at = ch__offset(s.heap, (uintptr_t)at)};
	status = ch__side_add(s.heap, s.self, s.block, CH__ITEM_REF, item, NULL);
	if (status == CH_OK)
		ch__sites_note(s.heap, s.self, s.block, (uintptr_t)at, sizeof(uintptr_t), 0);
	return status;
}

/* --- sites, for disassemblers --- */

/* user: of a patch point, the item behind its own. */
static struct ch_site site_of(const struct ch_heap *heap, const struct ch__block *block,
			      const struct place *p, const struct ch__item *user)
{
	uintptr_t exec = ch__exec(heap, p->at);
	const uint8_t *read = ch__pool_read(heap->pool, exec);
	struct ch_site site = {.at = (const uint8_t *)exec};
	if (p->branch) {
		const struct ch__branch *branch = ch__branch_at(heap, p->branch);
		site.kind = CH_SITE_BRANCH;
		site.leads_to = (const void *)ch__branch_leads_to(heap, block, p->branch);
		site.branch_kind = (enum ch_branch_kind)ch__branch_kind(branch);
		site.is_linked = ch__branch_target(branch) != 0;
		site.branch = ch__branch_handle(heap, p->branch);
		site.user = branch->user;
	} else if (p->is_ref) {
		site.kind = CH_SITE_REF;
		memcpy(&site.word, read, sizeof site.word);
	} else {
		site.kind = CH_SITE_PATCH_POINT;
		site.leads_to = (const void *)ch__exec(heap, p->leads_to);
		site.is_linked = ch__arch_diverter_is_armed(read);
		site.user = (void *)((uintptr_t)user->value << 32 | user->at);
	}
	return site;
}

static void visit_sites(const struct ch_heap *heap, const struct ch__block *block,
			bool (*visit)(void *arg, const struct ch_site *site), void *arg)
{
	struct walk w = walk_of(heap, block);
	w.has_entry = w.has_stubs = false;
	for (struct place p; next_place(&w, &p);) {
		const struct ch__item *user =
			p.is_point ? &ch__side_items(block->side_list)[w.item] : NULL;
		struct ch_site site = site_of(heap, block, &p, user);
		if (!visit(arg, &site))
			return;
		if (!p.branch)
			continue;
		site.kind = CH_SITE_STUB;
		site.at = (const uint8_t *)ch__stub_exec(heap, block, p.branch);
		site.leads_to = NULL;
		if (!visit(arg, &site))
			return;
	}
}

/* 0: stale, or found dead: its refs may lead to what the VM has freed. */
static uint32_t resolve_alive(struct ch_heap *heap, struct ch_block handle, uintptr_t *exec)
	CH_REQUIRES(ch__role_heap)
{
	struct ch__thread *self = ch__thread_or_guest(heap);
	ch__region_enter(self);
	uint32_t index = ch__block_resolve(heap, handle);
	if (index && !ch__block_is_alive(heap, ch__block_at(heap, index)))
		index = 0;
	if (index)
		*exec = ch__exec(heap, ch__block_at(heap, index)->hot_offset);
	ch__region_leave(self);
	return index;
}

enum ch_status ch_block_sites(struct ch_block handle,
			      bool (*visit)(void *arg, const struct ch_site *site), void *arg)
{
	if (ch__is_marking())
		return CH_E_STATE;
	struct ch_heap *heap = ch__handle_heap(handle.bits);
	if (!heap)
		return CH_E_STALE;
	/* The heap lock keeps branches linked as they are and the block from being swept. */
	ch__heap_lock(heap);
	uintptr_t exec = 0; /* a scan of this stack meanwhile finds the block */
	uint32_t index = resolve_alive(heap, handle, &exec);
	if (index) {
		ch__heap_lend(heap);
		visit_sites(heap, ch__block_at(heap, index), visit, arg);
		ch__heap_take_back(heap);
	}
	ch__heap_unlock(heap);
	__asm__ volatile("" ::"m"(exec));
	return index ? CH_OK : CH_E_STALE;
}
