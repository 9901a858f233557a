/* SPDX-License-Identifier: MIT
 * side_list.c: the side list of a block, with edges and lines; refs, patch points and assumptions
 * belong to invalidate/. The thread that opened a block attaches items, while OPEN and in a region,
 * since marking reads the lists of OPEN blocks too. */
#include "codeheap/graph/block_parts.h"

/* Free lists of one capacity. The largest capacity is one item short of a doubling. */
static struct ch__side_list **free_of(struct ch_heap *heap, uint32_t capacity) CH_HAS_HEAP
{
	unsigned class = 0;
	for (uint32_t holds = 0; holds < capacity; holds = holds ? 2 * holds : CH__SIDE_FIRST)
		class++;
	return &heap->side_lists_free[class];
}

struct ch__side_list *ch__side_make(struct ch_heap *heap, uint32_t capacity)
{
	struct ch__side_list **free = free_of(heap, capacity), *list = *free;
	if (!list) {
		list = ch__meta_alloc(heap->meta, ch__side_bytes(capacity));
		if (list)
			list->capacity = (uint16_t)capacity;
		return list;
	}
	*free = list->next_free;
	atomic_store_explicit(&list->count, 0, memory_order_release);
	ch__side_set_name(list, 0);
	list->entry_offset = 0;
	list->guard = NULL;
	return list;
}

static void give_back(struct ch_heap *heap, struct ch__side_list *list) CH_HAS_HEAP
{
	struct ch__side_list **free = free_of(heap, list->capacity);
	list->next_free = *free;
	*free = list;
}

static bool has_room(const struct ch__subject *s, uint32_t more)
{
	const struct ch__side_list *list = s->block->side_list;
	return list && list->count + more <= list->capacity;
}

enum ch_status ch__side_need_locked(const struct ch__subject *s, uint32_t more)
{
	if (has_room(s, more))
		return CH_OK;
	struct ch__block *block = s->block;
	struct ch__side_list *old = block->side_list;
	uint32_t count = old ? old->count : 0;
	uint32_t capacity = old && old->capacity ? old->capacity * 2u : CH__SIDE_FIRST;
	CH_ASSERT(more <= CH__SIDE_FIRST, "side list: more at once than its first length");
	if (count + more > UINT16_MAX)
		return ch__because(CH_E_MEMORY, "the block has %u attached things already", count);
	if (capacity > UINT16_MAX)
		capacity = UINT16_MAX;
	struct ch__side_list *grown = ch__side_make(s->heap, capacity);
	if (!grown)
		return ch__because_memory("what is attached to the block");
	for (uint32_t i = 0; i < count; i++)
		ch__side_append(grown, old->kinds[i], ch__side_items(old)[i]);
	if (old) {
		ch__side_set_name(grown, old->name);
		grown->guard = old->guard;
	}
	ch__region_enter(s->self);
	__atomic_store_n(&block->side_list, grown, __ATOMIC_RELEASE);
	ch__region_leave(s->self);
	/* The guard went over to the new list. */
	if (old)
		give_back(s->heap, old);
	return CH_OK;
}

enum ch_status ch__side_need(const struct ch__subject *s, uint32_t more)
{
	if (has_room(s, more))
		return CH_OK;
	/* Other threads change ASSUME items under the heap lock. Without the lock, the copy would
	 * lose such changes. */
	ch__heap_lock(s->heap);
	enum ch_status status = ch__side_need_locked(s, more);
	ch__heap_unlock(s->heap);
	return status;
}

static size_t lines_bytes(uint32_t count)
{
	return sizeof(struct ch__lines) + count * sizeof((struct ch__lines *)0)->at[0];
}

void ch__side_drop(struct ch_heap *heap, struct ch__side_list *list)
{
	ch__name_drop(heap, list->name);
	if (list->count || list->guard) {
		struct ch__lines *lines = ch__side_pointer(list, CH__ITEM_LINES);
		if (lines) {
			ch__name_drop(heap, lines->file);
			ch__meta_free(heap->meta, lines, lines_bytes(lines->count));
		}
		ch__meta_free(heap->meta, list->guard, sizeof *list->guard);
		ch__sinks_own_destroy(heap->sinks, ch__side_pointer(list, CH__ITEM_OWN));
	}
	give_back(heap, list);
}

void ch__side_add(const struct ch__subject *s, enum ch__item_kind kind, struct ch__item item,
		  const struct ch__item *second)
{
	ch__region_enter(s->self);
	if (second)
		ch__side_move(s->block->side_list, s->block->side_list->count + 1u, *second);
	ch__side_append(s->block->side_list, kind, item);
	if (second)
		ch__side_append(s->block->side_list, CH__ITEM_POINT_USER, *second);
	ch__region_leave(s->self);
}

enum ch_status ch__subject_look(struct ch_block handle, struct ch__subject *s)
{
	if (ch__is_marking())
		return ch__because_marking();
	s->heap = ch__handle_heap(handle.bits);
	if (!s->heap)
		return ch__because_stale("block", handle.bits);
	s->self = ch__thread_self(s->heap);
	if (!s->self)
		return ch__because_stranger();
	uint32_t index;
	s->state = ch__block_resolve_state(s->heap, handle, &index);
	if (s->state == CH_BLOCK_FREE)
		return ch__because_stale("block", handle.bits);
	s->block = ch__block_at(s->heap, index);
	return CH_OK;
}

static enum ch_status subject_open(struct ch_block handle, struct ch__subject *s)
{
	enum ch_status status = ch__subject_look(handle, s);
	if (status == CH_OK && s->state != CH_BLOCK_OPEN)
		return ch__because(CH_E_STATE, "the block is not OPEN");
	return status;
}

enum ch_status ch__subject_open_given(const struct ch_code *code, struct ch__subject *s)
{
	enum ch_status status = subject_open(code->block, s);
	return status == CH_E_STALE ? ch__because(CH_E_STATE, "ch_code.block is not OPEN") : status;
}

enum ch_status ch__subject_open_code(struct ch_block handle, bool writes, struct ch__subject *s)
{
	enum ch_status status = subject_open(handle, s);
	if (status != CH_OK)
		return status;
	enum ch__span_use use = ch__block_use(s->heap, s->block);
	if (use == CH__SPAN_CODE || (use == CH__SPAN_IN_PLACE && !writes))
		return CH_OK;
	return ch__because(CH_E_STATE, "the block is %s",
			   use == CH__SPAN_IN_PLACE ? "written in place" : "data");
}

enum ch_status ch__edge_add(struct ch__subject *s, struct ch_block to)
{
	bool is_there = false;
	ch__region_enter(s->self);
	uint32_t target = ch__block_resolve(s->heap, to);
	if (target) {
		struct ch__block *block = ch__block_at(s->heap, target);
		struct ch__owner *owner = ch__owner_at(s->heap, ch__block_owner(block));
		/* A NOT_RUNNING release kills blocks without edges under this lock. */
		ch__owner_lock(owner);
		if (ch__block_resolve_alive(s->heap, to) == target) {
			struct ch__item item = {ch__handle_generation(to.bits), target};
			ch__side_append(s->block->side_list, CH__ITEM_EDGE, item);
			ch__block_set_flag(block, CH__FLAG_HELD);
			ch__block_set_flag(block, CH__FLAG_EDGED);
			if (ch__block_is_data(s->heap, block))
				__atomic_add_fetch(&block->users, 1, __ATOMIC_RELAXED);
			is_there = true;
		}
		ch__owner_unlock(owner);
	}
	ch__region_leave(s->self);
	return is_there ? CH_OK : ch__because_stale("block", to.bits);
}

enum ch_status ch_edge_attach(struct ch_block block, struct ch_block to)
{
	struct ch__subject s;
	enum ch_status status = subject_open(block, &s);
	/* With an edge to itself, no release would free the block at once. */
	if (status != CH_OK || to.bits == block.bits)
		return status;
	if (!ch__block_resolve(s.heap, to))
		return ch__because_stale("block", to.bits);
	status = ch__side_need(&s, 1);
	return status == CH_OK ? ch__edge_add(&s, to) : status;
}

enum ch_status ch_edge_attach_owner(struct ch_block block, struct ch_owner to)
{
	struct ch__subject s;
	enum ch_status status = subject_open(block, &s);
	if (status == CH_OK)
		status = ch__side_need(&s, 1);
	if (status != CH_OK)
		return status;
	struct ch__owner *owner;
	ch__region_enter(s.self);
	/* A NOT_RUNNING release looks at has_edges and marks the owner dead under this lock. */
	bool is_there = ch__owner_hold(s.heap, to, &owner);
	if (is_there) {
		struct ch__item item = {ch__handle_generation(to.bits), ch__handle_index(to.bits)};
		ch__side_append(s.block->side_list, CH__ITEM_OWNER_EDGE, item);
		owner->has_edges |= item.value != s.block->owner;
		ch__owner_unlock(owner);
	}
	ch__region_leave(s.self);
	return is_there ? CH_OK : ch__because_stale("owner", to.bits);
}

static enum ch_status check_lines(const struct ch__subject *s, const struct ch_line *lines,
				  size_t n)
{
	const size_t most = UINT32_MAX / sizeof *lines;
	if (!n || n > most)
		return ch__because(CH_E_ARG, "n is %zu: not 1 to %zu", n, most);
	for (size_t i = 0; i < n; i++) {
		uintptr_t at = (uintptr_t)lines[i].at;
		bool is_inside = ch__block_has(s->heap, s->block, at, 1);
		if (!is_inside || (i && at <= (uintptr_t)lines[i - 1].at))
			return ch__because(CH_E_ARG, "lines[%zu].at is %lx: not %s", i, at,
					   is_inside ? "above the one before" : "in the block");
	}
	return CH_OK;
}

enum ch_status ch_block_lines(struct ch_block block, const char *file, const struct ch_line *lines,
			      size_t n)
{
	struct ch__subject s;
	enum ch_status status = ch__subject_open_code(block, false, &s);
	if (status == CH_OK && ch__side_find(s.block->side_list, CH__ITEM_LINES))
		status = ch__because(CH_E_STATE, "the block has lines already");
	if (status == CH_OK && (!file || !lines))
		status = ch__because(CH_E_ARG, "%s is NULL", file ? "lines" : "file");
	if (status == CH_OK)
		status = check_lines(&s, lines, n);
	if (status == CH_OK)
		status = ch__side_need(&s, 1);
	if (status != CH_OK)
		return status;
	struct ch__lines *made = ch__meta_alloc(s.heap->meta, lines_bytes((uint32_t)n));
	if (!made)
		return ch__because_memory("the lines");
	made->count = (uint32_t)n;
	for (size_t i = 0; i < n; i++) {
		made->at[i].offset = ch__offset(s.heap, (uintptr_t)lines[i].at);
		made->at[i].line = lines[i].line;
	}
	ch__heap_lock(s.heap);
	made->file = ch__name_take(s.heap, file);
	ch__heap_unlock(s.heap);
	if (!made->file) {
		ch__meta_free(s.heap->meta, made, lines_bytes((uint32_t)n));
		return ch__because_no_record(&s.heap->names, "names");
	}
	ch__side_add(&s, CH__ITEM_LINES, ch__item_of(made), NULL);
	return CH_OK;
}
