/* SPDX-License-Identifier: MIT
 * code_at.c: ch_code_at: from an address to the block there, the offset in the block, and the VM's
 * word at a call. Signal-safe: no lock, no allocation.
 *
 * I4: all fields are read between two reads of the generation, by loads that acquire, from memory
 * that keeps its type for as long as the heap is there. */
#include "codeheap/base/heaps.h"
#include "arch/sites.h"
#include "codeheap/base/sized.h"
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/branch.h"
#include "codeheap/graph/handles.h"
#include "codeheap/graph/names.h"

/* Reads the VM's word of the branch that ends at the offset. Each site is taken to be as long as a
 * call: a branch that returns there is a call, or the VM made the return address. */
static bool read_branch(const struct ch_heap *heap, const struct ch__block *block, uint32_t offset,
			struct ch_spot *spot)
{
	/* Acquire: pairs with the release in open.c; the records say where a run ends. */
	uint32_t at = atomic_load_explicit(&block->first_branch, memory_order_acquire);
	for (; at; at = ch__branch_after(heap, at)) {
		const struct ch__branch *branch = ch__branch_at(heap, at);
		/* Pairs with the release in ch__branch_set_site. */
		uint32_t site = atomic_load_explicit(&branch->site, memory_order_acquire);
		if (!site || site + ch__arch_site_bytes(CH__SITE_CALL) != offset)
			continue;
		spot->site_user = atomic_load_explicit(&branch->user, memory_order_acquire);
		return true;
	}
	return false;
}

/* Reads the VM's word of the patch point at the offset. */
static bool read_point(const struct ch__block *block, uint32_t offset, struct ch_spot *spot)
{
	const struct ch__side_list *list = __atomic_load_n(&block->side_list, __ATOMIC_ACQUIRE);
	uint32_t count =
		list ? atomic_load_explicit(&list->count, memory_order_acquire) : 0;
	for (uint32_t i = 1; i < count; i++) {
		const struct ch__item *user = &ch__side_items(list)[i];
		if (__atomic_load_n(&list->kinds[i], __ATOMIC_ACQUIRE) != CH__ITEM_POINT_USER ||
		    __atomic_load_n(&user[-1].at, __ATOMIC_ACQUIRE) != offset)
			continue;
		uint64_t low = __atomic_load_n(&user->at, __ATOMIC_ACQUIRE);
		uint64_t high = __atomic_load_n(&user->value, __ATOMIC_ACQUIRE);
		spot->site_user = (void *)(uintptr_t)(high << 32 | low);
		return true;
	}
	return false;
}

/* The least size: a caller that wants the handle alone. */
enum { BARE_BYTES = CH__UP_TO(struct ch_spot, block) };

/* Of a spot of the least size only the handle is written. */
static bool read_spot(const struct ch_heap *heap, uintptr_t pc, bool is_return,
		      struct ch_spot *spot)
{
	uint32_t generation = 0, index = ch__find(heap, pc - is_return, &generation);
	if (!index)
		return false;
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t part = atomic_load_explicit(&block->hot_offset, memory_order_acquire);
	uint32_t head = ch__head_bytes(ch__block_use(heap, block));
	uint32_t at = ch__offset(heap, pc - is_return);
	bool is_cold = at - part >= ch__hot_bytes(block);
	if (is_cold) {
		part = ch__cold_offset(heap, block);
		head = CH__INDEX_WORD_BYTES;
	}
	spot->block.bits = ch__handle(heap->id, index, generation);
	if (spot->size != BARE_BYTES) {
		uint32_t owner = __atomic_load_n(&block->owner, __ATOMIC_ACQUIRE);
		uint32_t offset = ch__offset(heap, pc);
		spot->owner = ch__owner_handle(heap, owner);
		spot->user = __atomic_load_n(&block->user, __ATOMIC_ACQUIRE);
		spot->exec = (const uint8_t *)ch__exec(heap, part + head);
		spot->offset = offset - part - head;
		spot->is_cold = is_cold;
		spot->state = ch__block_state(block);
		spot->site_user = NULL;
		spot->has_site = is_return && (read_branch(heap, block, offset, spot) ||
					       read_point(block, offset, spot));
	}
	/* ch__find saw the block of this generation committed. */
	return at - part >= head &&
	       atomic_load_explicit(&block->generation, memory_order_relaxed) == generation;
}

bool ch_code_at(const struct ch_heap *heap, const void *pc, bool is_return, struct ch_spot *out)
{
	uintptr_t address = (uintptr_t)pc;
	struct ch_spot whole;
	/* No ch__because: making a sentence is not signal-safe. */
	if (out->size < BARE_BYTES || out->size > sizeof whole)
		return false;
	/* A caller's struct with room for what is written is written to directly: this stack keeps
	 * no address. */
	bool is_direct = out->size == BARE_BYTES || out->size == sizeof whole;
	struct ch_spot *spot = is_direct ? out : &whole;
	bool is_counted = !heap;
	if (is_counted) {
		ch__place_read_begin();
		heap = ch__heap_at(address - is_return);
	}
	spot->size = out->size;
	bool is_found = heap && read_spot(heap, address, is_return, spot);
	if (is_counted)
		ch__place_read_end();
	if (!is_found)
		memset(&whole, 0, sizeof whole);
	if (!is_found || !is_direct)
		ch__sized_give(out, &whole);
	return is_found;
}
