/* SPDX-License-Identifier: MIT
 * sites.c: the places of a block that may change after commit: branches, patch points, refs, a
 * patchable entry, stubs (I12). Two refs alone may share bytes. The architecture judges the bytes
 * of a place, and the VM answers for jumps of the VM within a block.
 *
 * Lock: none for an OPEN block, whose records belong to its thread; heap for other blocks. */
#include "codeheap/look.h"
#include "invalidate/invalidate.h"

enum place_kind { STUBS, ENTRY, BRANCH, POINT, REF };

/* A range of pool offsets that changes as a whole, and the exit of a branch or a point. */
struct place {
	enum place_kind kind;
	uint32_t at, end;
	uint32_t leads_to; /* 0 = to no lasting place in the pool */
	uint32_t index;    /* of the branch, or of the item */
};

/* Visits, from a kind on: stubs with their veneer, the entry, branches, then points and refs. */
struct walk {
	const struct ch_heap *heap;
	const struct ch__block *block;
	enum place_kind next;
	uint32_t branch, item;
};

static struct walk walk_from(enum place_kind first, const struct ch_heap *heap,
			     const struct ch__block *block)
{
	return (struct walk){heap, block, first, ch__block_run(block), 0};
}

static uint32_t first_byte(const struct ch__block *block)
{
	return block->hot_offset + CH__HEAD_BYTES;
}

static bool next_branch(struct walk *w, struct place *p)
{
	while (w->branch) {
		uint32_t index = w->branch;
		const struct ch__branch *branch = ch__branch_at(w->heap, index);
		uint32_t at = branch->site;
		w->branch = ch__branch_after(w->heap, index);
		if (!at)
			continue;
		uintptr_t exit = 0;
		if (ch__branch_has(branch, CH__BRANCH_OWN_EXIT))
			exit = ch__branch_exit(w->heap, w->block, index);
		*p = (struct place){
			.kind = BRANCH,
			.at = at,
			.end = at + (uint32_t)ch__arch_site_bytes(ch__branch_kind(branch)),
			.leads_to = ch__pool_has(w->heap->pool, exit)
					    ? ch__offset(w->heap, exit) : 0,
			.index = index};
		return true;
	}
	return false;
}

static bool next_item(struct walk *w, struct place *p)
{
	const struct ch__side_list *list = w->block->side_list;
	while (list && w->item < list->count) {
		uint32_t index = w->item++;
		const struct ch__item *item = &ch__side_items(list)[index];
		if (list->kinds[index] == CH__ITEM_POINT)
			*p = (struct place){POINT, item->at, item->at + CH_ARCH_DIVERTER_BYTES,
					    item->value, index};
		else if (list->kinds[index] == CH__ITEM_REF)
			*p = (struct place){REF, item->at, item->at + sizeof(uintptr_t), 0, index};
		else
			continue;
		return true;
	}
	return false;
}

/* An attach or a commit mostly walks over two or three records: calls would be most of the cost. */
#define FLAT __attribute__((flatten))

static bool next_place(struct walk *w, struct place *p)
{
	const struct ch__block *block = w->block;
	bool is_patched = ch__block_entry_kind(block) == CH_ENTRY_PATCH;
	if (w->next == STUBS) {
		w->next = ENTRY;
		if (is_patched || w->branch) {
			uint32_t at = ch__cold_offset(w->heap, block) + CH__HEAD_BYTES;
			uint32_t end = ch__offset(w->heap, ch__block_veneer_exec(w->heap, block));
			end += is_patched ? CH_ARCH_VENEER_BYTES : 0;
			*p = (struct place){.kind = STUBS, .at = at, .end = end};
			return true;
		}
	}
	if (w->next == ENTRY) {
		w->next = BRANCH;
		if (is_patched) {
			uint32_t at = first_byte(block);
			uint32_t end = at + CH_ARCH_LANDING_BYTES + CH_ARCH_DIVERTER_BYTES;
			*p = (struct place){.kind = ENTRY, .at = at, .end = end};
			return true;
		}
	}
	return next_branch(w, p) || next_item(w, p);
}

/* What a map says of a byte: a place has it; a place has it and the byte before; an exit leads to
 * it. */
enum { COVERED = 1, INNER = 2, TARGET = 4 };

static bool has_any(const struct ch__site_map *map, uint32_t from, uint32_t to, uint8_t what)
{
	for (; from < to; from++)
		if (map->bytes[from - map->base] & what)
			return true;
	return false;
}

/* Not inlined: it has three callers, and would be most of their text. */
__attribute__((noinline)) static void note(struct ch__site_map *map, const struct place *p)
{
	for (uint32_t at = p->at; at < p->end; at++)
		map->bytes[at - map->base] |= at == p->at ? COVERED : COVERED | INNER;
	if (p->leads_to && p->leads_to - map->base < map->capacity)
		map->bytes[p->leads_to - map->base] |= TARGET;
}

static bool is_of(const struct ch__site_map *map, const struct ch__block *block)
{
	return map->block == block && map->generation == CH_LOAD_RELAXED(&block->generation);
}

/* Returns NULL when the thread has no map of the block, and all earlier records have to be read. A
 * map serves only while the block is OPEN, since other threads attach to a LIVE block, too. */
static const struct ch__site_map *map_of(const struct ch__subject *s)
{
	struct ch__site_map *map = &s->self->sites;
	if (!map->is_made || !is_of(map, s->block) || ch__block_state(s->block) != CH_BLOCK_OPEN)
		return NULL;
	/* What was attached since: by this thread, or by a thread that had the OPEN block in
	 * between. The branches of a run get their sites in order. */
	struct walk w = {s->heap, s->block, BRANCH, map->branch, map->item};
	struct place p;
	while (w.branch && ch__branch_at(s->heap, w.branch)->site && next_branch(&w, &p))
		note(map, &p);
	while (next_item(&w, &p))
		note(map, &p);
	map->branch = w.branch;
	map->item = w.item;
	return map;
}

/* Makes a map of stubs and entry; map_of adds what is attached. Fresh memory is zero, and takes no
 * page where no site is. Without memory there is no map. */
static void make_map(struct ch_heap *heap, struct ch__site_map *map, const struct ch__block *block)
{
	uint32_t page_bytes = (uint32_t)1 << heap->pool->page_log2;
	uint32_t base = block->hot_offset & ~(page_bytes - 1);
	uint32_t end = block->flags & CH__FLAG_APART
			       ? ch__cold_offset(heap, block) + ch__cold_bytes(block)
			       : base + page_bytes;
	/* Freed first: under a limit of address space there may be no room for two. */
	ch__meta_free(heap->meta, map->bytes, map->capacity);
	map->bytes = ch__meta_alloc(heap->meta, end - base);
	map->capacity = map->bytes ? end - base : 0;
	map->base = base;
	map->branch = ch__block_run(block);
	map->item = 0;
	map->is_made = map->bytes != NULL;
	struct walk w = walk_from(STUBS, heap, block);
	for (struct place p; map->is_made && w.next != BRANCH && next_place(&w, &p);)
		note(map, &p);
}

void ch__sites_note(const struct ch__subject *s)
{
	enum { NOTED_WITHOUT = 8 };
	struct ch__site_map *map = &s->self->sites;
	if (ch__block_state(s->block) != CH_BLOCK_OPEN)
		return;
	if (!is_of(map, s->block)) {
		map->block = s->block;
		map->generation = CH_LOAD_RELAXED(&s->block->generation);
		map->noted = 0;
		map->is_made = false;
	}
	if (!map->is_made && ++map->noted > NOTED_WITHOUT)
		make_map(s->heap, map, s->block);
}

FLAT static bool has_room(const struct ch__subject *s, uint32_t at, uint32_t end, bool is_ref)
{
	/* While the block is OPEN, this is the first byte, which lies inside of no site. */
	uint32_t entry = ch__offset(s->heap, ch__block_entry(s->heap, s->block));
	if (entry > at && entry < end)
		return false;
	const struct ch__site_map *map = map_of(s);
	if (map && !has_any(map, at, end, COVERED) &&
	    (is_ref || !has_any(map, at + 1, end, TARGET)))
		return true;
	bool is_cold = s->block->cold_granules && end > ch__cold_offset(s->heap, s->block);
	struct walk w = walk_from(is_cold ? STUBS : ENTRY, s->heap, s->block);
	for (struct place p; next_place(&w, &p);) {
		if (p.at < end && at < p.end && !(is_ref && p.kind == REF))
			return false;
		if (p.leads_to > at && p.leads_to < end && !is_ref)
			return false;
	}
	return true;
}

static bool is_inside_a_place(const struct ch_heap *heap, const struct ch__block *block,
			      uint32_t offset)
{
	struct walk w = walk_from(STUBS, heap, block);
	for (struct place p; next_place(&w, &p);) {
		/* Exits may lead to the first byte of a stub or of the veneer. */
		bool is_stub = p.kind == STUBS && (offset - p.at) % ch__stub_bytes(heap) == 0 &&
			       ch__exec(heap, offset) <= ch__block_veneer_exec(heap, block);
		if (offset > p.at && offset < p.end && !is_stub)
			return true;
	}
	return false;
}

/* Whether an exit may lead to exec in another block, or outside of blocks. */
static bool has_way_to(const struct ch_heap *heap, uintptr_t exec, uint32_t offset)
{
	uint32_t other = ch__find(heap, exec, NULL);
	const struct ch__block *block = ch__block_at(heap, other);
	return !other || (ch__block_has(heap, block, exec, 1) && !ch__block_is_data(heap, block) &&
			  !is_inside_a_place(heap, block, offset));
}

static bool may_lead_to(const struct ch__subject *s, uintptr_t exec)
{
	struct ch_heap *heap = s->heap;
	uint32_t offset = ch__offset(heap, exec);
	if (ch__block_has(heap, s->block, exec, 1)) {
		const struct ch__site_map *map = map_of(s);
		return (map && !has_any(map, offset, offset + 1, INNER)) ||
		       !is_inside_a_place(heap, s->block, offset);
	}
	if (ch__block_state(s->block) != CH_BLOCK_OPEN)
		return has_way_to(heap, exec, offset);
	ch__heap_lock(heap);
	bool may = has_way_to(heap, exec, offset);
	ch__heap_unlock(heap);
	return may;
}

enum ch_status ch__sites_allow(const struct ch__subject *s, const char *what, uintptr_t exec,
			       size_t bytes, uintptr_t exit, bool is_ref)
{
	uint32_t at = ch__offset(s->heap, exec);
	if (!has_room(s, at, at + (uint32_t)bytes, is_ref))
		return ch__because(CH_E_SITE, "%s %lx shares bytes with what is attached, or an "
					      "exit or the entry leads inside", what, exec);
	if ((exit > exec && exit < exec + bytes) ||
	    (ch__pool_has(s->heap->pool, exit) && !may_lead_to(s, exit)))
		return ch__because(CH_E_SITE, "%s %lx: the exit %lx leads inside of what is "
					      "attached", what, exec, exit);
	return CH_OK;
}

static const char *const names[] = {[STUBS] = "a stub",
				    [ENTRY] = "the patchable entry",
				    [BRANCH] = "a branch",
				    [POINT] = "a patch point",
				    [REF] = "a ref"};

const char *ch__sites_among(const struct ch_heap *heap, const struct ch__block *block,
			    uintptr_t exec, size_t bytes)
{
	uint32_t at = ch__offset(heap, exec);
	struct walk w = walk_from(STUBS, heap, block);
	for (struct place p; next_place(&w, &p);)
		if (p.at < at + bytes && at < p.end)
			return names[p.kind];
	return NULL;
}

static bool is_used(const struct ch_heap *heap, const struct ch__block *block,
		    const struct ch_code *code, uint32_t from, uint32_t to)
{
	uint32_t hot = first_byte(block);
	if (from >= hot + code->used_from && to <= hot + code->used_to)
		return true;
	uint32_t cold = ch__cold_offset(heap, block), unused = code->cold_bytes - code->cold_used;
	return block->cold_granules && from >= cold + CH__HEAD_BYTES &&
	       to <= cold + ch__cold_bytes(block) - unused;
}

/* Whether the VM left the bytes unchanged since the attach. A ref may be any word. */
static bool bytes_are_kept(const struct ch_heap *heap, const struct ch__block *block,
			   const struct place *p)
{
	uintptr_t exec = ch__exec(heap, p->at), gate = exec + CH_ARCH_LANDING_BYTES;
	const uint8_t *read = ch__pool_read(heap->pool, exec);
	if (p->kind == BRANCH) {
		enum ch_branch_kind kind = ch__branch_kind(ch__branch_at(heap, p->index));
		return ch__arch_site_is_valid(kind, read, exec) &&
		       ch__branch_leads_to(heap, block, p->index) ==
			       ch__branch_exit(heap, block, p->index);
	}
	if (p->kind == POINT)
		return ch__arch_diverter_is_valid(read, exec, ch__exec(heap, p->leads_to));
	return p->kind == REF || (ch__arch_landing_is_there(read) &&
				  ch__arch_diverter_is_valid(read + CH_ARCH_LANDING_BYTES, gate,
							     ch__block_veneer_exec(heap, block)));
}

/* Returns what is wrong with a place of a block that is committed, or NULL. */
static inline const char *fault_of(const struct ch_heap *heap, const struct ch__block *block,
				   const struct ch_code *code, const struct place *p)
{
	uint32_t entry = first_byte(block) + code->entry_offset;
	if (!is_used(heap, block, code, p->at, p->end))
		return "is outside of what is used";
	if (p->leads_to && ch__block_has(heap, block, ch__exec(heap, p->leads_to), 1) &&
	    !is_used(heap, block, code, p->leads_to, p->leads_to + 1))
		return "has an exit outside of what is used";
	if (entry > p->at && entry < p->end)
		return "has the entry inside";
	if (!bytes_are_kept(heap, block, p))
		return p->kind == ENTRY ? "was written over: emit behind its entry_bytes"
					: "was written over";
	return NULL;
}

FLAT enum ch_status ch__sites_check(const struct ch_heap *heap, const struct ch__block *block,
				    const struct ch_code *codes, size_t i)
{
	/* Stubs need no check: every commit keeps the part before the VM's cold bytes. */
	struct walk w = walk_from(ENTRY, heap, block);
	for (struct place p; next_place(&w, &p);) {
		const char *fault = fault_of(heap, block, &codes[i], &p);
		if (CH_UNLIKELY(fault != NULL))
			return ch__because(CH_E_SITE, "ch_code %zu: %s at %lx, exec + %u, %s", i,
					   names[p.kind], ch__exec(heap, p.at),
					   p.at - first_byte(block), fault);
	}
	return CH_OK;
}

enum ch_status ch__because_outside(const struct ch__subject *s, const char *what, uintptr_t at)
{
	uintptr_t exec = ch__pool_exec_of(s->heap->pool, at);
	if (ch__pool_has(s->heap->pool, exec))
		return ch__because(CH_E_ARG, "%s %lx is an address of write: its exec is %lx", what,
				   at, exec);
	return ch__because(CH_E_ARG, "%s %lx is not in the block, or not all of it", what, at);
}

/* At a patch point a thread that returns into an invalidated block leaves the block. */
enum ch_status ch_patch_point_attach(struct ch_block block, const void *at, const void *exit,
				     void *user)
{
	struct ch__subject s;
	enum ch_status status = ch__subject_open_code(block, true, &s);
	if (status != CH_OK)
		return status;
	uintptr_t point = (uintptr_t)at, leads_to = (uintptr_t)exit;
	if (!ch__block_has(s.heap, s.block, point, CH_ARCH_DIVERTER_BYTES))
		return ch__because_outside(&s, "the point", point);
	struct ch_block holder = {0};
	if (!ch__block_has(s.heap, s.block, leads_to, 1)) {
		uint32_t generation, other = ch__find(s.heap, leads_to, &generation);
		const struct ch__block *there = ch__block_at(s.heap, other);
		if (!other || ch__block_is_data(s.heap, there) ||
		    !ch__block_has(s.heap, there, leads_to, 1))
			return ch__because_outside(&s, "in no code: the exit", leads_to);
		holder.bits = ch__handle(s.heap->id, other, generation);
	}
	if (!ch__arch_diverter_reaches(point, leads_to))
		return ch__because(CH_E_REACH, "the exit %lx is out of the point's reach",
				   leads_to);
	if (!ch__arch_diverter_is_there(ch__pool_read(s.heap->pool, point)))
		return ch__because(CH_E_SITE, "the point %lx has other bytes than a patch point",
				   point);
	status = ch__sites_allow(&s, "the point", point, CH_ARCH_DIVERTER_BYTES, leads_to, false);
	/* Room for edge, point and user word comes first: a failure changes nothing (I15). */
	if (status != CH_OK || (status = ch__side_need(&s, holder.bits ? 3 : 2)) != CH_OK)
		return status;
	if (holder.bits && (status = ch__edge_add(&s, holder)) != CH_OK)
		return status;
	struct ch__item item = {ch__offset(s.heap, point), ch__offset(s.heap, leads_to)};
	struct ch__item second = {(uint32_t)(uintptr_t)user, (uint32_t)((uintptr_t)user >> 32)};
	ch__side_add(&s, CH__ITEM_POINT, item, &second);
	ch__arch_diverter_write(ch__pool_lend(s.heap->pool, point), point, leads_to);
	ch__sites_note(&s);
	return CH_OK;
}

enum ch_status ch_ref_attach(struct ch_block block, const void *at)
{
	uintptr_t exec = (uintptr_t)at;
	struct ch__subject s;
	enum ch_status status = ch__subject_open_code(block, true, &s);
	if (status != CH_OK)
		return status;
	/* Without an owner there is no vm to which the ref could be reported. */
	if (!s.block->owner && !s.heap->driver.collect)
		return ch__because(CH_E_STATE, "the block has no owner whose vm knows refs");
	if (!ch__block_has(s.heap, s.block, exec, sizeof(uintptr_t)))
		return ch__because_outside(&s, "the ref", exec);
	status = ch__sites_allow(&s, "the ref", exec, sizeof(uintptr_t), 0, true);
	if (status != CH_OK || (status = ch__side_need(&s, 1)) != CH_OK)
		return status;
	struct ch__item item = {.at = ch__offset(s.heap, exec)};
	ch__side_add(&s, CH__ITEM_REF, item, NULL);
	ch__sites_note(&s);
	return CH_OK;
}

static struct ch_site site_of(const struct ch_heap *heap, uint32_t index, const struct place *p)
{
	const struct ch__block *block = ch__block_at(heap, index);
	uintptr_t exec = ch__exec(heap, p->at);
	const uint8_t *read = ch__pool_read(heap->pool, exec);
	struct ch_site site = {.at = (const uint8_t *)exec};
	if (p->kind == BRANCH) {
		const struct ch__branch *branch = ch__branch_at(heap, p->index);
		site.kind = CH_SITE_BRANCH;
		site.leads_to = (const void *)ch__branch_leads_to(heap, block, p->index);
		site.branch_kind = ch__branch_kind(branch);
		site.is_linked = ch__branch_target(branch) != 0;
		site.branch = ch__branch_handle(ch__block_handle(heap, index), p->index);
		site.user = branch->user;
	} else if (p->kind == REF) {
		site.kind = CH_SITE_REF;
		memcpy(&site.word, read, sizeof site.word);
	} else {
		struct ch__item user = ch__side_items(block->side_list)[p->index + 1];
		site.kind = CH_SITE_PATCH_POINT;
		site.leads_to = (const void *)ch__exec(heap, p->leads_to);
		site.is_linked = ch__arch_diverter_is_armed(read);
		site.user = (void *)((uintptr_t)user.value << 32 | user.at);
	}
	return site;
}

static void visit_sites(const struct ch_heap *heap, uint32_t index,
			bool (*visit)(void *arg, const struct ch_site *site), void *arg)
{
	const struct ch__block *block = ch__block_at(heap, index);
	struct walk w = walk_from(BRANCH, heap, block);
	for (struct place p; next_place(&w, &p);) {
		struct ch_site site = site_of(heap, index, &p);
		if (!visit(arg, &site))
			return;
		if (p.kind != BRANCH)
			continue;
		site.kind = CH_SITE_STUB;
		site.at = (const uint8_t *)ch__stub_exec(heap, block, p.index);
		site.leads_to = NULL;
		if (!visit(arg, &site))
			return;
	}
}

enum ch_status ch_block_sites(struct ch_block handle,
			      bool (*visit)(void *arg, const struct ch_site *site), void *arg)
{
	/* The heap lock keeps links as they are, and the block from being swept. */
	enum ch_status status;
	struct ch_heap *heap = ch__handle_lock("block", handle.bits, &status);
	if (!heap)
		return status;
	struct ch__thread *self = ch__region_enter_for(heap);
	/* The refs of a block that was found dead may lead to what the VM has freed. */
	uint32_t index = ch__block_resolve_alive(heap, handle);
	const struct ch__block *block = ch__block_at(heap, index);
	/* A scan of this stack finds the block by the word. */
	uintptr_t exec = index ? ch__exec(heap, first_byte(block)) : 0;
	ch__region_leave(self);
	if (index) {
		ch__heap_lend();
		visit_sites(heap, index, visit, arg);
		ch__heap_take_back();
	} else {
		status = ch__because_stale("block", handle.bits);
	}
	ch__heap_unlock(heap);
	__asm__ volatile("" ::"m"(exec));
	return status;
}
