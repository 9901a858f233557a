/* SPDX-License-Identifier: MIT
 * commit_check.c: what a commit refuses, before it has changed anything: what the VM says of its
 * bytes, an emitter that left its room, tables and edges that are not sound. */
#include "codeheap/base/sized.h"
#include "codeheap/life/life.h"
#include "invalidate/invalidate.h"
#include "os/text.h"
#include "unwind/steps.h"
#include "unwind/unwind.h"

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
		low + ch__kept_bytes(heap, block, code->used_to) + ch__cold_bytes(block), &at);
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
 * A trampoline has none of them: finish_plain (commit.c) makes it ready, or it is refused. */
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
		*besides |= CH__ASSUMES;
	if (heap->config.driver == CH_DRIVER_HOST && ch__side_find(list, CH__ITEM_REF))
		*besides |= CH__MAY_BE_YOUNG;
	if (block->flags & CH__FLAG_APART)
		*besides |= CH__IS_APART;
	return status;
}

static inline enum ch_status check_code(struct ch_heap *heap, struct ch__thread *self,
					const struct among *among, size_t i, unsigned *besides)
{
	const struct ch_code *code = &among->codes[i];
	struct ch__block *block = ch__code_block(heap, code);
	const struct ch__side_list *list = block->side_list;
	bool has_steps = ch__place_has_steps(heap, block->hot_offset);
	uint32_t index = ch__handle_index(code->block.bits);
	uint32_t hot = block->hot_offset, cold = ch__cold_offset(heap, block);
	if (CH_UNLIKELY(!ch__part_is_kept(heap, index, hot, ch__hot_bytes(block))))
		return because_overrun(heap, index, hot, "hot");
	if (CH_UNLIKELY(block->cold_granules) &&
	    !ch__part_is_kept(heap, index, cold, ch__cold_bytes(block)))
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
	    ch__entry_from(block, code)) {
		struct ch__subject s = {heap, self, block, CH_BLOCK_OPEN};
		status = ch__side_need(&s, 1);
	}
	return status;
}

enum ch_status ch__commit_check(struct ch_heap *heap, struct ch__thread *self,
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
