/* SPDX-License-Identifier: MIT
 * commit.c: publication of open blocks, and their abort. First comes what a commit refuses, before
 * it has changed anything: what the VM says of its bytes, an emitter that left its room, tables and
 * edges that are not sound. Unused bytes go back to the page then. Order after that (I3): bytes and
 * instruction cache, unwind tables of blocks, names, then LIVE and start bits. The last step is one
 * region, without the owner's busy. Lock: heap for assumptions, an entry offset, HOST refs and
 * ranges for sinks; sinks for an eh_frame. */
#include "codeheap/base/sized.h"
#include "codeheap/life/life.h"
#include "invalidate/invalidate.h"
#include "unwind/steps.h"
#include "unwind/unwind.h"

static inline struct ch__block *block_of(const struct ch_heap *heap, const struct ch_code *code)
{
	return ch__block_at(heap, ch__handle_index(code->block.bits));
}

/* Bytes that a run of pages keeps for a block: its pages up to the last used byte. A block with
 * cold bytes at the end keeps all pages, since every address has a block. */
static inline uint32_t kept_bytes(const struct ch_heap *heap, const struct ch__block *block,
				  uint32_t used_to)
{
	uint32_t in_page = ((uint32_t)1 << heap->pool->page_log2) - 1;
	uint32_t end = block->hot_offset + ch__head_bytes(ch__block_use(heap, block)) + used_to;
	if (block->cold_granules)
		return ch__hot_bytes(block);
	return ((end + in_page) & ~in_page) - block->hot_offset;
}

/* Offset of the entry from the first byte that the block has after the shrink. */
static inline uint32_t entry_from(const struct ch__block *block, const struct ch_code *code)
{
	bool stays_whole = (block->flags & CH__FLAG_APART) != 0;
	return code->entry_offset - (stays_whole ? 0 : code->used_from);
}

/* Whether the emitter kept to the room of its block. Under Valgrind, Valgrind tells. */
static inline bool part_is_kept(const struct ch_heap *heap, uint32_t index, uint32_t offset,
				uint32_t bytes)
{
	return CH_UNLIKELY(heap->pool->is_translated) ||
	       (ch__head_read(heap, offset) == ch__head_of(index) &&
		ch__is_trap_behind(heap, offset + bytes));
}

/* What some blocks need besides the usual steps. */
enum { ASSUMES = 1, MAY_BE_YOUNG = 2, IS_APART = 4 };

static enum ch_status check_used(const struct ch_heap *heap, const struct ch__block *block,
				 const struct ch_code *code, size_t i, bool has_steps)
{
	uint32_t from = code->used_from, to = code->used_to, entry = code->entry_offset;
	enum ch__span_use use = ch__block_use(heap, block);
	if (use >= CH__SPAN_RODATA)
		return CH_OK; /* all room of data is used */
	uint32_t room = ch__hot_bytes(block) - ch__head_bytes(use);
	if (CH_UNLIKELY(has_steps)) {
		room -= CH__NOTE_MOST_BYTES + CH__GRANULE_BYTES;
		/* Whole pages have more room than a note's 16 bits describe. */
		room = room < CH__STEPS_CODE_BYTES ? room : CH__STEPS_CODE_BYTES;
	}
	if (!to)
		return ch__because(CH_E_ARG, "ch_code[%zu].used_to is 0: set it to the hot bytes "
					     "that were emitted", i);
	if (to > room)
		return ch__because(CH_E_ARG, "ch_code[%zu].used_to is %u: of %u hot bytes", i, to,
				   room);
	if (from >= to || from % 8)
		return ch__because(CH_E_ARG, "ch_code[%zu].used_from is %u: not a multiple of 8 "
					     "below used_to, %u", i, from, to);
	/* Stubs lie in front: with more room than the open's, the unused bytes would be theirs. */
	uint32_t cold = code->cold_bytes;
	if (code->cold_used > cold ||
	    (cold && !ch__block_has(heap, block, (uintptr_t)code->cold_exec, cold)))
		return ch__because(CH_E_ARG, "ch_code[%zu].cold_used is %u: of %u cold bytes, "
					     "which the block must have", i, code->cold_used, cold);
	if (ch__block_entry_kind(block) == CH_ENTRY_PATCH && (from || entry))
		return ch__because(CH_E_ARG, "ch_code[%zu].%s is %u: 0 with CH_ENTRY_PATCH", i,
				   from ? "used_from" : "entry_offset", from ? from : entry);
	if (entry < from || entry >= to)
		return ch__because(CH_E_ARG, "ch_code[%zu].entry_offset is %u: not from used_from, "
					     "%u, to below used_to, %u", i, entry, from, to);
	return CH_OK;
}

/* Checks that code->frame and code->eh_frame are sound, wanted at open, and for this block only. */
static enum ch_status check_table(const struct ch_heap *heap, const struct ch__block *block,
				  const struct ch_code *code, bool has_steps)
{
	const struct ch_frame *frame = code->frame;
	uintptr_t low = ch__exec(heap, block->hot_offset);
	if (has_steps != (frame != NULL))
		return ch__because(CH_E_ARG, "ch_code.frame is %s: the block was opened with%s "
					     "CH_FRAME_STEPS",
				   frame ? "set" : "NULL", frame ? "out" : "");
	if (frame) {
		char words[96];
		struct ch__text fault = {words, sizeof words, 0};
		ch__frame_fault(&fault, frame, code->used_to);
		if (ch__text_end(&fault))
			return ch__because(CH_E_ARG, "ch_code.frame: %s", words);
	}
	if (!code->eh_frame)
		return CH_OK;
	if (!ch__side_find(block->side_list, CH__ITEM_OWN))
		return ch__because(CH_E_ARG, "ch_code.eh_frame is set: the block was opened "
					     "without CH_OPEN_OWN_FRAMES");
	size_t at;
	const char *eh_fault = ch__eh_frame_fault(
		code->eh_frame, low,
		low + kept_bytes(heap, block, code->used_to) + ch__cold_bytes(block), &at);
	if (eh_fault)
		return ch__because(CH_E_ARG, "ch_code.eh_frame, byte %zu: %s", at, eh_fault);
	return CH_OK;
}

/* The blocks that are committed together. A few are compared one by one. For many, `slots` holds
 * the indices: a table with open addressing, at most half full, where 0 is an empty slot. */
struct among {
	const struct ch_code *codes;
	size_t count;
	uint32_t *slots, mask;
};

enum { FEW = 16 };

/* The slot that has the index, or the empty slot for it. */
static uint32_t *slot_of(const struct among *among, uint32_t index)
{
	uint32_t at = index * UINT32_C(0x9e3779b1);
	while (among->slots[at & among->mask] && among->slots[at & among->mask] != index)
		at++;
	return &among->slots[at & among->mask];
}

static inline bool is_among(const struct among *among, uint32_t index, size_t count)
{
	if (among->slots)
		return *slot_of(among, index) != 0;
	for (size_t i = 0; i < count; i++)
		if (ch__handle_index(among->codes[i].block.bits) == index)
			return true;
	return false;
}

/* Returns CH_E_STATE: a code is not an OPEN block of the heap. CH_E_ARG: a block comes twice. */
static enum ch_status gather(struct ch_heap *heap, struct among *among)
{
	if (among->count > FEW) {
		uint32_t slots = UINT32_C(4) << (31 - __builtin_clz((uint32_t)among->count));
		among->mask = slots - 1;
		among->slots = ch__meta_alloc(heap->meta, slots * sizeof *among->slots);
		if (!among->slots)
			return ch__because(CH_E_MEMORY, "no side memory for a commit of %zu blocks",
					   among->count);
	}
	for (size_t i = 0; i < among->count; i++) {
		uint32_t index;
		if (ch__block_resolve_state(heap, among->codes[i].block, &index) != CH_BLOCK_OPEN)
			return ch__because(CH_E_STATE, "ch_code %zu of %zu is not OPEN%s", i,
					   among->count,
					   i ? ", or of another heap than the first" : "");
		if (is_among(among, index, i))
			return ch__because(CH_E_ARG, "ch_code %zu is there twice", i);
		if (among->slots)
			*slot_of(among, index) = index;
		/* Before any check: the table of code is read where procmem has no byte yet. */
		const struct ch__block *block = ch__block_at(heap, index);
		if (CH_UNLIKELY(heap->pool->sync_steps) &&
		    ch__block_use(heap, block) == CH__PAGE_RODATA)
			ch__pool_publish(heap->pool, ch__exec(heap, block->hot_offset),
					 ch__hot_bytes(block));
	}
	return CH_OK;
}

/* Whether an edge leads to an OPEN block that is not committed along: an abort would leave an edge
 * to nothing. From here on targets are only committed, or aborted, which publish() sees. */
static bool waits_for_others(struct ch_heap *heap, const struct ch__block *block,
			     const struct among *among)
{
	const struct ch__side_list *list = block->side_list;
	for (uint32_t i = 0; list && i < list->count; i++) {
		const struct ch__item *item = &ch__side_items(list)[i];
		if (list->kinds[i] != CH__ITEM_EDGE || is_among(among, item->value, among->count))
			continue;
		/* The state comes first: the block that is still there had it. */
		if (ch__block_state(ch__block_at(heap, item->value)) == CH_BLOCK_OPEN &&
		    ch__edge_target(heap, *item))
			return true;
	}
	return false;
}

/* The head of a part was written over, or the traps behind the part. */
static CH_COLD enum ch_status because_overrun(const struct ch_heap *heap, uint32_t index,
					      uint32_t offset, const char *part)
{
	const char *name = ch__block_name(heap, ch__block_at(heap, index));
	if (ch__head_read(heap, offset) != ch__head_of(index))
		return ch__because(CH_E_BROKEN,
				   "what lies in front of the %s bytes of block #%u `%s` was "
				   "written over: by its emitter, or that of the block before",
				   part, index, name);
	return ch__because(CH_E_BROKEN,
			   "the emitter of block #%u `%s` wrote behind its %s bytes: what lies "
			   "there is damaged", index, name, part);
}

/* For a block that has branches, an entry of its own or items on its side list, or that lies apart.
 * A trampoline has none of them: finish_plain makes it ready, or it is refused. */
__attribute__((noinline)) static enum ch_status
check_besides(struct ch_heap *heap, const struct ch__block *block, const struct among *among,
	      size_t i, unsigned *besides)
{
	const struct ch__side_list *list = block->side_list;
	bool has_sites = list || ch__block_run(block);
	enum ch_status status =
		has_sites ? ch__sites_check(heap, block, among->codes, i) : CH_OK;
	if (status == CH_OK && waits_for_others(heap, block, among))
		return ch__because(CH_E_STATE, "ch_code %zu has an edge to an OPEN block "
					       "that is not committed with it", i);
	if (ch__side_find(list, CH__ITEM_ASSUME))
		*besides |= ASSUMES;
	if (heap->config.driver == CH_DRIVER_HOST && ch__side_find(list, CH__ITEM_REF))
		*besides |= MAY_BE_YOUNG;
	if (block->flags & CH__FLAG_APART)
		*besides |= IS_APART;
	return status;
}

static inline enum ch_status check_code(struct ch_heap *heap, struct ch__thread *self,
					const struct among *among, size_t i, unsigned *besides)
{
	const struct ch_code *code = &among->codes[i];
	struct ch__block *block = block_of(heap, code);
	const struct ch__side_list *list = block->side_list;
	bool has_steps = ch__place_has_steps(heap, block->hot_offset);
	uint32_t index = ch__handle_index(code->block.bits);
	uint32_t hot = block->hot_offset, cold = ch__cold_offset(heap, block);
	if (CH_UNLIKELY(!part_is_kept(heap, index, hot, ch__hot_bytes(block))))
		return because_overrun(heap, index, hot, "hot");
	if (CH_UNLIKELY(block->cold_granules) &&
	    !part_is_kept(heap, index, cold, ch__cold_bytes(block)))
		return because_overrun(heap, index, cold, "cold");
	enum ch_status status = CH__SPARE_CHECK(ch_code, code);
	if (CH_LIKELY(status == CH_OK))
		status = check_used(heap, block, code, i, has_steps);
	if (CH_LIKELY(status == CH_OK))
		status = check_table(heap, block, code, has_steps);
	if (CH_LIKELY(status == CH_OK) &&
	    (ch__block_run(block) || (list && list->count) ||
	     (block->flags & (CH__FLAG_ENTRY | CH__FLAG_APART))))
		status = check_besides(heap, block, among, i, besides);
	if (CH_LIKELY(status == CH_OK) && code->entry_offset && !list &&
	    entry_from(block, code)) {
		struct ch__subject s = {heap, self, block, CH_BLOCK_OPEN};
		status = ch__side_need(&s, 1);
	}
	return status;
}

/* Returns CH_OK when all blocks may be committed, and what they need besides. */
static enum ch_status check(struct ch_heap *heap, struct ch__thread *self,
			    const struct ch_code *codes, size_t count, unsigned *besides)
{
	struct among among = {.codes = codes, .count = count};
	enum ch_status status = gather(heap, &among);
	for (size_t i = 0; i < count && status == CH_OK; i++)
		status = check_code(heap, self, &among, i, besides);
	if (among.slots)
		ch__meta_free(heap->meta, among.slots, (among.mask + 1) * sizeof *among.slots);
	return status;
}

void ch__part_cut(struct ch_heap *heap, uint32_t offset, uint32_t bytes)
{
	uint32_t page = offset >> heap->pool->page_log2;
	if (!bytes)
		return;
	ch__pool_poison(heap->pool, ch__exec(heap, offset), bytes);
	ch__page_lock(&heap->pool->pages[page]);
	ch__page_give_back(heap->pool, page, offset, bytes);
	ch__page_unlock(&heap->pool->pages[page]);
}

static void fill_gap(struct ch_heap *heap, uint32_t from, uint32_t to)
{
	if (to > from)
		ch__arch_fill_traps(ch__pool_lend(heap->pool, ch__exec(heap, from)), to - from);
}

/* Returns the bytes of the pages of the run that are nobody's from here on. Pages written in place
 * all stay until they run: the rest becomes traps before. */
static uint32_t CH_COLD shrink_span(struct ch_heap *heap, struct ch__block *block,
				    const struct ch_code *code, uint32_t used_to) CH_HAS_REGION
{
	uint32_t hot = block->hot_offset, bytes = ch__hot_bytes(block);
	uint32_t room = hot + ch__head_bytes(ch__block_use(heap, block));
	bool runs = ch__pool_span_runs(heap->pool, hot >> heap->pool->page_log2);
	uint32_t kept = runs ? kept_bytes(heap, block, used_to) : bytes;
	fill_gap(heap, room, room + code->used_from);
	fill_gap(heap, room + used_to, hot + kept);
	ch__set16(&block->span_granules_low, kept / CH__GRANULE_BYTES);
	ch__set16(&block->span_granules_high, kept / CH__GRANULE_BYTES >> 16);
	return bytes - kept;
}

enum { SPARE_SHARE = 8 }; /* so much of the cold bytes came back: open.c asks for more */

/* Shrinks the parts of a block in a page to the used bytes, the hot part to used_to. Returns the
 * bytes that went back. */
static inline uint32_t shrink(struct ch_heap *heap, struct ch__thread *self,
			      struct ch__block *block, const struct ch_code *code, uint32_t used_to)
	CH_HAS_REGION
{
	uint32_t hot = block->hot_offset, hot_bytes = block->hot_granules * CH__GRANULE_BYTES;
	uint32_t hot_end = hot + CH__HEAD_BYTES + used_to;
	uint32_t keep = CH_ROUND_UP(hot_end - hot, CH__GRANULE_BYTES), cut = code->used_from;
	fill_gap(heap, hot_end, hot + keep);
	if (keep < hot_bytes) {
		ch__set16(&block->hot_granules, keep / CH__GRANULE_BYTES);
		ch__part_cut(heap, hot + keep, hot_bytes - keep);
		cut += hot_bytes - keep;
	}
	if (code->used_from) {
		/* The head moves to just before the first used byte. */
		uint32_t start = hot + code->used_from;
		ch__head_write(heap, start, ch__handle_index(code->block.bits));
		ch__set_hot_offset(block, start);
		ch__set16(&block->hot_granules,
			  block->hot_granules - code->used_from / CH__GRANULE_BYTES);
		ch__part_cut(heap, hot, code->used_from);
	}
	uint32_t cold_bytes = ch__cold_bytes(block);
	uint32_t cold_end = cold_bytes - (code->cold_bytes - code->cold_used);
	uint32_t cold_keep = CH_ROUND_UP(cold_end, CH__GRANULE_BYTES);
	if (code->cold_bytes)
		self->has_spare_cold = (cold_bytes - cold_keep) * SPARE_SHARE >= code->cold_bytes;
	if (cold_end >= cold_bytes)
		return cut;
	uint32_t cold = ch__cold_offset(heap, block);
	fill_gap(heap, cold + cold_end, cold + cold_keep);
	ch__set16(&block->cold_granules, cold_keep / CH__GRANULE_BYTES);
	ch__part_cut(heap, cold + cold_keep, cold_bytes - cold_keep);
	CH__COUNT(self->counters.cold_bytes, -(int64_t)(cold_bytes - cold_keep));
	return cut + cold_bytes - cold_keep;
}

/* Result of a commit. UNTOLD: sinks want ranges that were not told; nothing was changed. From
 * OWNER_GONE on: a block may not become reachable. */
enum published { PUBLISHED, UNTOLD, OWNER_GONE, FACT_BROKE, TARGET_ABORTED };

/* Whether the owner lives, all assumptions of the block hold, and no block has been aborted that
 * was OPEN when an edge to it was attached. In a region. */
static inline enum published may_go_live(struct ch_heap *heap, const struct ch__block *block)
{
	const struct ch__owner *owner = ch__owner_at(heap, block->owner);
	const struct ch__side_list *list = block->side_list;
	if (!ch__owner_is_alive(heap, owner) || ch__owner_is_released(owner))
		return OWNER_GONE;
	for (uint32_t i = 0; list && i < list->count; i++) {
		struct ch__item item = ch__side_items(list)[i];
		if (list->kinds[i] == CH__ITEM_ASSUME && item.at == 0)
			return FACT_BROKE;
		if (list->kinds[i] == CH__ITEM_EDGE && !ch__edge_target(heap, item))
			return TARGET_ABORTED;
	}
	return PUBLISHED;
}

/* Tells ranges in batches: a sink with a file writes once a call. */
static void tell_sinks(struct ch_heap *heap, const struct ch_code *codes, size_t count, bool add)
{
	enum { RANGES = 64 };
	struct ch__sink_range ranges[RANGES];
	size_t n = 0;
	for (size_t i = 0; i < count; i++) {
		const struct ch__block *block = block_of(heap, &codes[i]);
		if (!ch__block_is_data(heap, block))
			n += ch__block_ranges(heap, block, codes[i].block.bits, &ranges[n]);
		if (i + 1 < count && n + 2 <= RANGES)
			continue;
		if (add)
			ch__sinks_add(heap->sinks, ranges, n);
		else
			ch__sinks_remove(heap->sinks, ranges, n);
		n = 0;
	}
}

/* Called when a part has its final place and all its bytes. */
static void show_part(const struct ch__pool *pool, uintptr_t exec, uint32_t bytes)
{
	CH_PUBLISHED(pool, exec, bytes, "commit");
	if (CH_UNLIKELY(pool->is_translated))
		ch__valgrind_part_born(pool, exec, bytes);
}

/* In a region, with the owner alive. */
static inline void go_live(struct ch_heap *heap, struct ch__block *block, uint32_t index)
{
	uint32_t cold = block->cold_granules ? ch__cold_offset(heap, block) : 0;
	/* Data stays readable: an unwinder may read data until the last of its code is gone. */
	if (!ch__block_is_data(heap, block))
		show_part(heap->pool, ch__exec(heap, block->hot_offset), ch__hot_bytes(block));
	if (cold)
		show_part(heap->pool, ch__exec(heap, cold), ch__cold_bytes(block));
	bool is_own_root = ch__block_leads(block) && !(block->flags & CH__FLAG_IMMORTAL);
	uint32_t epoch = CH_LOAD_RELAXED(&heap->epoch);
	CH_STORE_RELAXED(&block->mark, epoch + (is_own_root ? CH__MARK_AHEAD : 0));
	ch__block_set_state(heap, block, index, CH_BLOCK_LIVE, CH__CAUSE_NONE, __func__);
	ch__page_set_start(heap->pool, block->hot_offset, true);
	if (cold)
		ch__page_set_start(heap->pool, cold, true);
}

static void abort_open(struct ch_heap *heap, uint32_t index, enum ch__death death)
{
	ch__heap_lock(heap);
	ch__blocks_kill(heap, &index, 1, death);
	ch__heap_unlock(heap);
	ch__trigger_tell(heap);
}

/* A late store faults; in silence it would be lost, or damage another block. */
static inline void end_writing(struct ch_code *code)
{
	code->write = code->cold_write = NULL;
}

/* Code dies first: an unwind table of the code may lie in the data. */
static void abort_all(struct ch_heap *heap, struct ch_code *codes, size_t count)
{
	for (int is_data = 0; is_data < 2; is_data++)
		for (size_t i = 0; i < count; i++) {
			uint32_t index = ch__block_resolve(heap, codes[i].block);
			if (index && ch__block_is_data(heap, ch__block_at(heap, index)) == is_data)
				abort_open(heap, index, CH__DEATH_COMMIT_FAILED);
			end_writing(&codes[i]);
		}
}

/* Publishes all blocks in one region, so that a cycle finds all of them LIVE, or none,
 * and a sink that comes on misses none (I19). */
static inline enum published publish(struct ch_heap *heap, struct ch__thread *self,
				     struct ch_code *codes, size_t count, bool is_told)
{
	const struct ch_code *end = codes + count;
	ch__region_enter_inline(self);
	bool is_wanted = !is_told && ch__sinks_want_ranges(CH_LOAD_RELAXED(&heap->sinks_on));
	enum published result = is_wanted ? UNTOLD : PUBLISHED;
	for (struct ch_code *code = codes; code < end && result == PUBLISHED; code++)
		result = may_go_live(heap, block_of(heap, code));
	for (struct ch_code *code = codes; code < end && result == PUBLISHED; code++) {
		go_live(heap, block_of(heap, code), ch__handle_index(code->block.bits));
		end_writing(code);
	}
	if (result == PUBLISHED)
		CH__COUNT(self->counters.blocks_committed, count);
	ch__region_leave(self);
	return result;
}

/* Gives pages that were written in place, or to private copies, their final access, before anything
 * else is done. Returns false when the system refused; all blocks are OPEN as before. By then the
 * write view has all the code, and traps in unused bytes. */
static bool land(struct ch_heap *heap, struct ch__thread *self, const struct ch_code *code)
{
	struct ch__block *block = block_of(heap, code);
	enum ch__span_use use = ch__block_use(heap, block);
	uint32_t page = block->hot_offset >> heap->pool->page_log2;
	bool is_room = ch__pool_span_is_room(heap->pool, page);
	if (!is_room && !ch__use_is_in_place(use))
		return true;
	/* Landed already, by a commit refused for another block: finish_bytes cuts the rest. */
	if (use == CH__SPAN_IN_PLACE && !ch__pool_span_runs(heap->pool, page)) {
		ch__pool_take_over(heap->pool,
				   ch__exec(heap, block->hot_offset + ch__head_bytes(use)),
				   code->used_to);
		ch__region_enter(self);
		(void)shrink_span(heap, block, code, code->used_to);
		ch__region_leave(self);
	}
	/* An align takes less than a page in front, so the chunks are the same. */
	return ch__pool_land_span(heap->pool, page, kept_bytes(heap, block, code->used_to));
}

/* Writes a CH_FRAME_STEPS note behind the block's code. Returns where the used bytes end then. */
static uint32_t write_note(struct ch_heap *heap, const struct ch__block *block,
			   const struct ch_code *code)
{
	uint32_t room = block->hot_offset + ch__head_bytes(CH__SPAN_CODE);
	uint32_t at = CH_ROUND_UP(room + code->used_to, CH__GRANULE_BYTES);
	uintptr_t exec = ch__exec(heap, at);
	fill_gap(heap, room + code->used_to, at);
	uint32_t bytes =
		ch__frame_note(ch__pool_lend(heap->pool, exec), code->frame, at - room);
	/* A span stays whole: tools ask by its first byte. */
	uint32_t first = room + (block->flags & CH__FLAG_APART ? 0 : code->used_from);
	ch__steps_live(ch__sinks_steps(heap->sinks), ch__exec(heap, first), exec);
	return at + bytes - room;
}

/* Gives back, fills, syncs: the blocks are still OPEN, and have their final place afterwards. */
static void finish_bytes(struct ch_heap *heap, struct ch__thread *self, const struct ch_code *code)
{
	struct ch__block *block = block_of(heap, code);
	enum ch__span_use use = ch__block_use(heap, block);
	bool is_apart = (block->flags & CH__FLAG_APART) != 0;
	uint32_t used_to = code->used_to;
	if (use >= CH__SPAN_RODATA)
		return;
	ch__region_enter_inline(self);
	if (code->frame)
		used_to = write_note(heap, block, code);
	uint32_t cut = CH_UNLIKELY(is_apart) ? shrink_span(heap, block, code, used_to)
					     : shrink(heap, self, block, code, used_to);
	if (block->side_list)
		block->side_list->entry_offset =
			entry_from(block, code) + ch__head_bytes(use) - CH__HEAD_BYTES;
	CH__COUNT(self->counters.code_bytes, -(int64_t)cut);
	ch__region_leave(self);
	if (is_apart) {
		uint32_t first = block->hot_offset >> heap->pool->page_log2;
		uint32_t pages = cut >> heap->pool->page_log2;
		uint32_t kept = heap->pool->pages[first].span_pages - pages;
		if (pages)
			ch__sinks_page_dead(heap->sinks, first + kept, pages);
		ch__pool_cut_span(heap->pool, first, kept); /* a room is a room no more */
		ch__pool_trim_if_worth(heap->pool);
	}
	if (cut) {
		ch__space_returned(heap);
		self->unreported_bytes -= cut < self->unreported_bytes ? cut
								       : self->unreported_bytes;
	}
	ch__pool_publish(heap->pool, ch__exec(heap, block->hot_offset), ch__hot_bytes(block));
	if (block->cold_granules)
		ch__pool_publish(heap->pool, ch__exec(heap, ch__cold_offset(heap, block)),
				 ch__cold_bytes(block));
	if (code->eh_frame)
		ch__sinks_own_live(heap->sinks, ch__side_pointer(block->side_list, CH__ITEM_OWN),
				   code->eh_frame);
}

/* Under the heap lock an assumption cannot break, and a rewrite of names sees all or none of a
 * commit. */
static inline enum published publish_told(struct ch_heap *heap, struct ch__thread *self,
					  struct ch_code *codes, size_t count, bool tell,
					  unsigned besides)
	CH_UNANALYSED("it takes the lock where the lock is needed")
{
	bool is_locked = tell || (besides & ASSUMES);
	if (is_locked)
		ch__heap_lock(heap);
	if (tell)
		tell_sinks(heap, codes, count, true);
	enum published result = publish(heap, self, codes, count, tell);
	if (tell && result != PUBLISHED)
		tell_sinks(heap, codes, count, false);
	if (is_locked)
		ch__heap_unlock(heap);
	if (tell)
		ch__tell_catch_up(heap);
	return result;
}

/* Makes a block ready that is as most are: code that fills its room, with nothing attached. Returns
 * false, and has changed nothing, when the block is another, or is to be refused. */
static inline bool finish_plain(struct ch_heap *heap, const struct ch_code *code)
{
	uint32_t index, used = CH__HEAD_BYTES + code->used_to;
	uint64_t rare = code->used_from | code->entry_offset | code->cold_used |
			(uintptr_t)code->cold_exec | (uintptr_t)code->frame |
			(uintptr_t)code->eh_frame | code->spare[0] | code->spare[1] |
			code->spare[2] | code->spare[3];
	if (rare || ch__block_resolve_state(heap, code->block, &index) != CH_BLOCK_OPEN)
		return false;
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t hot = block->hot_offset, bytes = block->hot_granules * CH__GRANULE_BYTES;
	if ((block->flags & (CH__FLAG_APART | CH__FLAG_ENTRY)) || block->cold_granules ||
	    (block->side_list && block->side_list->count) || bytes - used >= CH__GRANULE_BYTES ||
	    ch__place_has_steps(heap, hot) || !part_is_kept(heap, index, hot, bytes))
		return false;
	fill_gap(heap, hot + used, hot + bytes);
	ch__pool_publish(heap->pool, ch__exec(heap, hot), bytes);
	return true;
}

/* The same for any blocks. When it refuses, they stay OPEN. */
static enum ch_status finish(struct ch_heap *heap, struct ch__thread *self, struct ch_code *codes,
			     size_t count, unsigned *besides)
{
	enum ch_status status = check(heap, self, codes, count, besides);
	if (status != CH_OK)
		return status;
	for (size_t i = 0; (*besides & IS_APART) && i < count; i++)
		if (!land(heap, self, &codes[i]))
			return ch__because(CH_E_OS, "ch_code %zu, large or written in place, does "
						    "not get its memory or access: %m", i);
	for (size_t i = 0; i < count; i++)
		finish_bytes(heap, self, &codes[i]);
	/* While the blocks are OPEN, and so visited anyway: each wait may be a minor collection. */
	if (*besides & MAY_BE_YOUNG)
		ch__young_refs_add(heap, codes, count);
	return CH_OK;
}

static enum ch_status commit(struct ch_heap *heap, struct ch__thread *self, struct ch_code *codes,
			     size_t count)
{
	unsigned besides = 0;
	enum ch_status status = count == 1 && finish_plain(heap, codes)
					? CH_OK : finish(heap, self, codes, count, &besides);
	if (status != CH_OK)
		return status;
	enum published result;
	do {
		bool tell = ch__sinks_want_ranges(CH_LOAD_RELAXED(&heap->sinks_on));
		result = publish_told(heap, self, codes, count, tell, besides);
	} while (result == UNTOLD);
	if (result != PUBLISHED) {
		abort_all(heap, codes, count);
		return ch__because(CH_E_STALE, "%s: the blocks were aborted",
				   result == OWNER_GONE	  ? "the owner of a block died"
				   : result == FACT_BROKE ? "an assumption of a block broke"
				   : "a block that an edge names was aborted");
	}
	return CH_OK;
}

enum ch_status ch_block_commit(struct ch_code *codes, size_t count)
{
	if (ch__is_marking())
		return ch__because_marking();
	/* With more blocks than there are, one would come twice. */
	if (!count || count > CH__INDEX_MAX)
		return ch__because(CH_E_ARG, "count is %zu: not 1 to %d", count, CH__INDEX_MAX);
	struct ch_heap *heap = ch__handle_heap(codes[0].block.bits);
	if (!heap)
		return ch__because(CH_E_STATE, "ch_code.block is of no heap");
	struct ch__thread *self = ch__thread_self(heap);
	return self ? commit(heap, self, codes, count) : ch__because_stranger();
}

/* The first four bytes behind a part are traps whoever has them: without the fill the commit of the
 * next block would blame the emitter of that block. An unused granule that another thread reserves,
 * or gives back, holds traps by then. */
static void CH_COLD fill_behind(struct ch_heap *heap, struct ch__thread *self, uint32_t at)
{
	uint32_t in_page = ((uint32_t)1 << heap->pool->page_log2) - 1;
	struct ch__page *page = &heap->pool->pages[at >> heap->pool->page_log2];
	if (ch__is_trap_behind(heap, at))
		return;
	ch__region_enter(self);
	ch__page_lock(page);
	ch__arch_fill_traps(ch__pool_lend(heap->pool, ch__exec(heap, at)), sizeof(uint32_t));
	for (; (at & in_page) && !ch__page_uses(heap->pool, at); at += CH__GRANULE_BYTES)
		ch__pool_poison(heap->pool, ch__exec(heap, at), CH__GRANULE_BYTES);
	ch__page_unlock(page);
	ch__region_leave(self);
}

enum ch_status ch_block_abort(struct ch_code *code)
{
	struct ch__subject s;
	enum ch_status status = ch__subject_open_given(code, &s);
	if (status != CH_OK)
		return status;
	/* The bytes behind the parts get their traps back (P4). Under Valgrind, these bytes are
	 * nobody's to write. */
	bool mends = !s.heap->pool->is_translated;
	if (mends)
		fill_behind(s.heap, s.self, s.block->hot_offset + ch__hot_bytes(s.block));
	if (mends && s.block->cold_granules)
		fill_behind(s.heap, s.self,
			    ch__cold_offset(s.heap, s.block) + ch__cold_bytes(s.block));
	abort_open(s.heap, ch__handle_index(code->block.bits), CH__DEATH_ABORTED);
	end_writing(code);
	return CH_OK;
}
