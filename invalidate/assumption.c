/* SPDX-License-Identifier: MIT
 * assumption.c: facts on which blocks rely. An assumption has a vector of dependents (block, item),
 * and the item knows its slot there, so a dying block leaves in O(1). Lock: heap. The thread that
 * makes an OPEN block reads the list without the lock: all kinds, and items but those of ASSUME. So
 * other threads change no kind there. */
#include "codeheap/events/events.h"
#include "invalidate/invalidate.h"

static uint32_t resolve(struct ch_heap *heap, struct ch_assumption handle) CH_HAS_HEAP
{
	uint32_t index = ch__handle_index(handle.bits);
	if (!ch__handle_is_known(heap, &heap->assumptions, handle.bits))
		return 0;
	uint32_t generation = ch__assumption_at(heap, index)->generation;
	return (generation & 1) && generation == ch__handle_generation(handle.bits) ? index : 0;
}

enum ch_status ch_assumption_create(struct ch_vm *vm, struct ch_assumption *out)
{
	struct ch_heap *heap = vm ? vm->heap : NULL;
	out->bits = 0;
	if (!vm || ch__heap_refuses(heap))
		return ch__because_refused(heap);
	ch__heap_lock(heap);
	bool is_attached = vm->is_attached;
	uint32_t index = is_attached ? ch__table_take(&heap->assumptions) : 0;
	if (index) {
		struct ch__assumption *fact = ch__assumption_at(heap, index);
		CH_MOVE(ch__assumption_moves, index, fact->generation + 1, fact->generation & 1,
			CH__ASSUMPTION_HOLDS, ch__held(heap), __func__);
		fact->generation++;
		heap->assumptions_now++;
		out->bits = ch__handle(heap->id, index, fact->generation);
	}
	ch__heap_unlock(heap);
	if (!is_attached)
		return ch__because(CH_E_STATE, "the vm was detached");
	return index ? CH_OK : ch__because_no_record(&heap->assumptions, "assumptions");
}

enum ch_status ch_block_assume(struct ch_block handle, struct ch_assumption assumption)
{
	struct ch__subject s;
	enum ch_status status = ch__subject_open_code(handle, false, &s);
	if (status != CH_OK)
		return status;
	ch__heap_lock(s.heap);
	uint32_t index = resolve(s.heap, assumption);
	struct ch__assumption *fact = index ? ch__assumption_at(s.heap, index) : NULL;
	if (!fact)
		status = ch__because_stale("assumption", assumption.bits);
	else if (fact->count == fact->capacity &&
		 !ch__meta_grow(s.heap->meta, &fact->dependents, &fact->capacity, 4,
				sizeof *fact->dependents))
		status = ch__because_memory("a dependent of the assumption");
	else
		status = ch__side_need_locked(&s, 1);
	if (status == CH_OK) {
		uint32_t block = ch__handle_index(handle.bits), at = s.block->side_list->count;
		struct ch__item item = {.at = index, .value = fact->count};
		ch__side_add(&s, CH__ITEM_ASSUME, item, NULL);
		fact->dependents[fact->count++] = (struct ch__dependent){block, at};
	}
	ch__heap_unlock(s.heap);
	return status;
}

void ch__assumption_leave(struct ch_heap *heap, struct ch__side_list *list)
{
	for (uint32_t i = 0; i < list->count; i++) {
		struct ch__item item = ch__side_items(list)[i];
		if (list->kinds[i] != CH__ITEM_ASSUME || !item.at)
			continue;
		struct ch__assumption *fact = ch__assumption_at(heap, item.at);
		struct ch__dependent last = fact->dependents[--fact->count];
		fact->dependents[item.value] = last;
		ch__side_move(ch__block_at(heap, last.block)->side_list, last.item, item);
	}
}

enum ch_status ch_assumption_break(struct ch_assumption handle, size_t *invalidated)
{
	enum ch_status status;
	size_t unused;
	if (!invalidated)
		invalidated = &unused;
	*invalidated = 0;
	struct ch_heap *heap = ch__handle_lock("assumption", handle.bits, &status);
	if (!heap)
		return status;
	uint32_t index = resolve(heap, handle);
	if (index) {
		struct ch__assumption *fact = ch__assumption_at(heap, index);
		uint64_t to_die = 0;
		for (uint32_t i = 0; i < fact->count; i++) {
			struct ch__dependent by = fact->dependents[i];
			struct ch__thread *self = ch__region_enter_for(heap);
			/* The commit of an OPEN block finds no assumption there, and fails. */
			ch__side_move(ch__block_at(heap, by.block)->side_list, by.item,
				      (struct ch__item){0});
			*invalidated += ch__invalidate_block(heap, by.block, CH__CAUSE_ASSUMPTION,
							     &to_die);
			ch__region_leave(self);
		}
		/* The handle is stale from here on. */
		CH_MOVE(ch__assumption_moves, index, fact->generation, fact->generation & 1,
			CH__ASSUMPTION_NONE, ch__held(heap), __func__);
		fact->generation++;
		ch__meta_free(heap->meta, fact->dependents,
			      fact->capacity * sizeof *fact->dependents);
		fact->dependents = NULL;
		fact->count = fact->capacity = 0;
		heap->assumptions_now--;
		ch__table_give(&heap->assumptions, index, ch__is_worn(fact->generation));
		ch__trigger_dead(heap, to_die);
	} else {
		status = ch__because_stale("assumption", handle.bits);
	}
	ch__heap_unlock(heap);
	ch__trigger_tell(heap);
	return status;
}
