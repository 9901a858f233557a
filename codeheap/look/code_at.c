/* SPDX-License-Identifier: MIT
 * code_at.c: ch_code_at: from an address to the block there, the offset in the block, and the VM's
 * word at a call, read as places.h says (I4). Signal-safe: no lock, no allocation. */
#include "arch/sites.h"
#include "codeheap/base/sized.h"
#include "codeheap/places/places.h"

/* Reads the VM's word of the branch that ends at the offset. Each site is taken to be as long as a
 * call: a branch that returns there is a call, or the VM made the return address. */
static bool read_branch(const struct ch_heap *heap, const struct ch__block *block, uint32_t offset,
			struct ch_spot *spot)
{
	uint32_t at = atomic_load_explicit(&block->first_branch, memory_order_acquire);
	for (; at; at = ch__branch_after(heap, at)) {
		const struct ch__branch *branch = ch__branch_at(heap, at);
		uint32_t site = atomic_load_explicit(&branch->site, memory_order_acquire);
		if (!site || site + ch__arch_site_bytes(CH_CALL) != offset)
			continue;
		spot->site_user = atomic_load_explicit(&branch->user, memory_order_acquire);
		return true;
	}
	return false;
}

static bool read_point(const struct ch__block *block, uint32_t offset, struct ch_spot *spot)
{
	const struct ch__side_list *list = __atomic_load_n(&block->side_list, __ATOMIC_ACQUIRE);
	uint32_t count = list ? atomic_load_explicit(&list->count, memory_order_acquire) : 0;
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

/* The calls of this and the next are the last steps of a look-up, which keeps nothing over them. */
static __attribute__((noinline)) bool give_none(struct ch_spot *out)
{
	memset(&out->block, 0, out->size - offsetof(struct ch_spot, block));
	return false;
}

static __attribute__((noinline)) bool read_site(const struct ch_heap *heap,
						const struct ch__block *block, uint32_t generation,
						uint32_t offset, struct ch_spot *spot)
{
	spot->has_site = read_branch(heap, block, offset, spot) || read_point(block, offset, spot);
	return CH_LOAD_RELAXED(&block->generation) == generation || give_none(spot);
}

/* Of a spot of the least size only the handle is written. */
static bool read_spot(const struct ch_heap *heap, uintptr_t pc, bool is_return,
		      struct ch_spot *spot)
{
	struct ch__found found;
	if (!ch__find_part(heap, pc - is_return, &found) || found.at < found.head)
		return give_none(spot);
	const struct ch__block *block = found.block;
	spot->block.bits = ch__handle(heap->id, found.index, found.generation);
	if (spot->size != BARE_BYTES) {
		spot->owner = ch__owner_handle(heap, ch__block_owner(block));
		spot->user = __atomic_load_n(&block->user, __ATOMIC_ACQUIRE);
		spot->offset = found.at - found.head + is_return;
		spot->exec = (const uint8_t *)pc - spot->offset;
		spot->is_cold = found.is_cold;
		spot->has_site = false;
		spot->state = found.state;
		spot->site_user = NULL;
		if (is_return)
			return read_site(heap, block, found.generation, ch__offset(heap, pc), spot);
	}
	return ch__found_is_there(&found) || give_none(spot);
}

static __attribute__((noinline)) bool find_anywhere(const void *pc, bool is_return,
						    struct ch_spot *out)
{
	ch__place_read_begin();
	const struct ch_heap *heap = ch__heap_at((uintptr_t)pc - is_return);
	bool is_found = heap ? ch_code_at(heap, pc, is_return, out) : give_none(out);
	ch__place_read_end();
	return is_found;
}

static CH_COLD bool find_for_less(const struct ch_heap *heap, const void *pc, bool is_return,
				  struct ch_spot *out)
{
	struct ch_spot whole = {.size = sizeof whole};
	bool is_found = ch_code_at(heap, pc, is_return, &whole);
	ch__sized_give(out, &whole);
	return is_found;
}

bool ch_code_at(const struct ch_heap *heap, const void *pc, bool is_return, struct ch_spot *out)
{
	/* A caller's struct with enough room is written directly: this stack keeps no address. */
	if (CH_LIKELY(heap) && (CH_LIKELY(out->size == sizeof *out) || out->size == BARE_BYTES))
		return read_spot(heap, (uintptr_t)pc, is_return, out);
	CH__ENDS_WITH(ch_spot, site_user);
	/* No ch__because: the sentence of an interrupted call stays. */
	if (out->size < BARE_BYTES || out->size > sizeof *out || out->size % CH__SIZED_BY)
		return false;
	return heap ? find_for_less(heap, pc, is_return, out) : find_anywhere(pc, is_return, out);
}
