/* SPDX-License-Identifier: MIT
 * open.c: room for a block: what a request takes, its side memory, its place (open_place.c), and
 * what the emitter is told; or why there is none. */
#include "arch/sites.h"
#include "codeheap/events/events.h"
#include "codeheap/life/life.h"
#include "unwind/steps.h"

#include <errno.h>

static enum ch_status size_request(struct ch__request *r)
{
	const struct ch_open *open = r->open;
	const struct ch__pool *pool = r->heap->pool;
	uint64_t hot = (uint64_t)open->hot_bytes + r->head;
	uint64_t cold = (uint64_t)open->cold_bytes +
			(uint64_t)open->branch_room * ch__stub_bytes(r->heap);
	if (r->frame == CH_FRAME_STEPS)
		hot += CH__NOTE_MOST_BYTES + CH__GRANULE_BYTES;
	if (open->entry == CH_ENTRY_PATCH) {
		hot += CH_ARCH_LANDING_BYTES + CH_ARCH_DIVERTER_BYTES;
		cold += CH_ARCH_VENEER_BYTES;
	}
	if (cold)
		cold += CH__HEAD_BYTES;
	hot = CH_ROUND_UP(hot, CH__GRANULE_BYTES);
	cold = CH_ROUND_UP(cold, CH__GRANULE_BYTES);
	r->hot_bytes = (uint32_t)hot;
	r->cold_bytes = (uint32_t)cold;
	r->slack = open->align > r->head ? (uint32_t)open->align - r->head : 0;
	uint64_t whole = hot + r->slack + cold, page_bytes = (uint64_t)1 << pool->page_log2;
	if (CH_LIKELY(!r->span_pages && whole <= page_bytes))
		return CH_OK;
	if (hot + cold > pool->pool_bytes || cold > UINT16_MAX * CH__GRANULE_BYTES)
		return ch__because(CH_E_ARG, "%lu hot and %lu cold bytes of the block, heads and "
					     "all: the pool has %zu, a cold part at most %d",
				   hot, cold, pool->pool_bytes, UINT16_MAX * CH__GRANULE_BYTES);
	r->span_pages = (uint32_t)((whole + page_bytes - 1) >> pool->page_log2);
	/* A closed entry jumps to its veneer, which lies behind all hot bytes. */
	if (open->entry == CH_ENTRY_PATCH &&
	    !ch__arch_diverter_reaches(0, (uintptr_t)r->span_pages << pool->page_log2))
		return ch__because(CH_E_REACH, "the entry of %u bytes does not reach their end",
				   r->hot_bytes);
	/* No collection makes room for a block larger than the pool. */
	if (r->span_pages > pool->page_count)
		return ch__because(CH_E_ARG, "the block takes %u pages of the pool's %u",
				   r->span_pages, pool->page_count);
	return CH_OK;
}

static enum ch_status reserve_side(struct ch__request *r)
{
	struct ch_heap *heap = r->heap;
	if (!ch__open_reserve_young(r) || !(r->record = ch__record_take(heap, r->self)))
		return ch__because_no_record(&heap->blocks, "blocks");
	if (r->open->branch_room && !(r->run = ch__branches_take(heap, r->open->branch_room)))
		return ch__because_no_record(&heap->branches, "branches");
	const char *name = r->open->name;
	if (!name && r->open->entry == CH_ENTRY_NONE &&
	    !(r->open->flags & (CH_OPEN_OWN_FRAMES | CH_OPEN_IN_PLACE)))
		return CH_OK;
	/* Code without an owner has a name, and mostly nothing else. */
	bool has_items = !r->open->heap || (r->open->flags & CH_OPEN_OWN_FRAMES);
	ch__heap_lock(heap);
	r->side_list = ch__side_make(heap, has_items ? CH__SIDE_FIRST : 0);
	if (r->side_list && name)
		ch__side_set_name(r->side_list, ch__name_take(heap, name));
	ch__heap_unlock(heap);
	if (r->side_list && name && !r->side_list->name)
		return ch__because_no_record(&heap->names, "names");
	if (!r->side_list ||
	    (r->open->entry == CH_ENTRY_GUARD &&
	     !(r->side_list->guard = ch__meta_alloc(heap->meta, sizeof *r->side_list->guard))))
		return ch__because_memory("the block");
	if (r->open->flags & CH_OPEN_OWN_FRAMES) {
		struct ch__own *own = ch__sinks_own_create(heap->sinks);
		if (!own)
			return ch__because_memory("the block");
		ch__side_append(r->side_list, CH__ITEM_OWN, ch__item_of(own));
	}
	return CH_OK;
}

static void CH_COLD drop_side(struct ch__request *r)
{
	struct ch_heap *heap = r->heap;
	if (r->record)
		ch__records_give_back(heap, &r->record, 1);
	if (r->run)
		ch__branches_free(heap, r->run);
	if (r->side_list) {
		ch__heap_lock(heap);
		ch__side_drop(heap, r->side_list);
		ch__heap_unlock(heap);
	}
}

static void fill_code(struct ch__request *r, struct ch_code *code)
{
	struct ch_heap *heap = r->heap;
	uintptr_t hot = ch__exec(heap, r->hot_offset) + r->head;
	code->block = r->handle;
	code->exec = (uint8_t *)hot;
	bool is_apart = r->use == CH__SPAN_CODE || r->use == CH__PAGE_RODATA;
	code->write = is_apart ? ch__pool_lend(heap->pool, hot) : code->exec;
	code->hot_bytes = r->frame == CH_FRAME_STEPS ? r->open->hot_bytes
						     : r->hot_bytes - r->head;
	if (r->cold_bytes) {
		uint32_t stubs = r->open->branch_room * ch__stub_bytes(heap);
		uintptr_t cold = ch__exec(heap, r->cold_offset) + CH__HEAD_BYTES + stubs;
		code->cold_exec = (uint8_t *)cold;
		code->cold_write = ch__pool_lend(heap->pool, cold);
		code->cold_bytes = r->cold_bytes - CH__HEAD_BYTES - stubs;
	}
	if (r->open->entry == CH_ENTRY_PATCH) {
		/* The veneer to the not-entrant target lies before the VM's cold bytes. */
		const struct ch__owner *owner =
			ch__owner_at(heap, ch__handle_index(r->open->owner.bits));
		const void *target = r->open->not_entrant ? r->open->not_entrant : owner->fallback;
		ch__arch_veneer_write(code->cold_write, (uintptr_t)code->cold_exec,
				      (uintptr_t)target);
		ch__arch_landing_write(code->write);
		ch__arch_diverter_write(code->write + CH_ARCH_LANDING_BYTES,
					hot + CH_ARCH_LANDING_BYTES, (uintptr_t)code->cold_exec);
		code->cold_write += CH_ARCH_VENEER_BYTES;
		code->cold_exec += CH_ARCH_VENEER_BYTES;
		code->cold_bytes -= CH_ARCH_VENEER_BYTES;
		code->entry_bytes = CH_ARCH_LANDING_BYTES + CH_ARCH_DIVERTER_BYTES;
	}
	if (r->open->entry == CH_ENTRY_GUARD)
		code->guard = r->side_list->guard;
	code->used_to = code->entry_bytes;
}

/* The bytes of this open count at a later one: its commit may give most of them back. */
static void report_open(struct ch__request *r)
{
	const struct ch__counters *c = &r->self->counters;
	uint32_t before = r->self->unreported_bytes, reported = before >= 8192 ? before : 0;
	r->self->unreported_bytes = before - reported + r->hot_bytes + r->cold_bytes;
	if (CH_UNLIKELY(reported)) {
		/* The thread that releases the blocks may have opened none. */
		if (!CH_LOAD_RELAXED(&r->heap->mean_dead_bytes))
			CH_STORE_RELAXED(&r->heap->mean_dead_bytes,
					 c->bytes_opened / c->blocks_opened);
		ch__trigger_opened(r->heap, reported);
		ch__trigger_tell(r->heap);
	}
}

/* A child of fork without code gets CH_E_OS: no collection would help. */
static enum ch_status no_room(const struct ch__request *r)
{
	const struct ch__pool *pool = r->heap->pool;
	uint32_t bytes = r->span_pages ? r->span_pages << pool->page_log2
				       : r->hot_bytes + r->cold_bytes;
	uint32_t used = CH_LOAD_RELAXED(&pool->pages_used);
	if (r->refused) {
		errno = r->refused;
		return ch__because(r->refused == ENOMEM ? CH_E_MEMORY : CH_E_OS,
				   "the system gives the pool no memory for %u bytes: %m", bytes);
	}
	if (r->heap->is_codeless || r->os_error) {
		errno = r->heap->is_codeless ? EACCES : r->os_error;
		return ch__because(CH_E_OS, r->heap->is_codeless
			? "this child of a fork has no code (CH_FORK_NONE, or no memory): %m"
			: "the system gives no page: %m");
	}
	if (r->lacks_memory)
		return ch__because_memory("the block");
	bool is_host = r->heap->config.driver == CH_DRIVER_HOST;
	bool may_collect = r->open->flags & CH_OPEN_MAY_COLLECT;
	bool waits = r->open->heap && CH_LOAD_RELAXED(&r->heap->waits_for_cycle);
	int thread = CH_LOAD_RELAXED(&r->heap->held_up_by);
	if (thread && (may_collect || waits))
		return ch__because(CH_E_FULL, "no room for %u bytes in a pool of %zu: no "
				   "collection, since thread %d did not stop: %s", bytes,
				   pool->pool_bytes, thread,
				   ch__world_reason(&r->heap->config, false));
	return ch__because(CH_E_FULL, "no room for %u bytes in a pool of %zu, %s%s", bytes,
			   pool->pool_bytes,
			   is_host	 ? "and a HOST heap is collected by ch_mark_begin"
			   : r->is_in_vain ? "and a collection was given up"
			   : may_collect ? "after a collection"
			   : waits && !CH_LOAD_RELAXED(&r->heap->dead_bytes)
			   ? "and nothing was left to a collection since the last try"
			   : waits ? "until a collection frees what was left to it"
			   : r->open->heap ? "and no freed code waits for a collection"
					   : "and no collection: ch_heap_collect, or "
					     "CH_OPEN_MAY_COLLECT of an open",
			   (uint64_t)used << pool->page_log2 < pool->pool_bytes
				   ? "; free pages lie apart, or in a chunk of another kind "
				     "(code, data), or the system refused their memory"
				   : "");
}

/* Chooses the pages of a block that is not written as plain code. Data of at most a fourth of a
 * page shares pages, unless the writer knows one address only. */
static void choose_pages(struct ch__request *r)
{
	const struct ch_open *open = r->open;
	bool is_data = open->kind != CH_KIND_CODE, is_constant = open->kind == CH_KIND_RODATA;
	bool is_in_place = (open->flags & CH_OPEN_IN_PLACE) != 0;
	uint64_t bytes = CH__HEAD_BYTES + (uint64_t)open->hot_bytes + open->align;
	if (is_data && !is_in_place && bytes <= UINT64_C(1) << (r->heap->pool->page_log2 - 2)) {
		r->frame = is_constant ? CH__FRAME_RODATA : CH__FRAME_DATA;
		r->use = is_constant ? CH__PAGE_RODATA : CH__PAGE_DATA;
		return;
	}
	if (is_data || (open->flags & CH_OPEN_OWN_FRAMES))
		r->frame = CH__FRAME_OWN;
	r->use = is_constant   ? CH__SPAN_RODATA
		 : is_data     ? CH__SPAN_DATA
		 : is_in_place ? CH__SPAN_IN_PLACE
			       : CH__SPAN_CODE;
	r->head = ch__head_bytes(r->use);
	r->span_pages = 1;
}

enum ch_status ch__block_open(struct ch_heap *heap, struct ch__thread *self,
			      const struct ch_open *open, struct ch_code *code)
{
	struct ch__request r = {.heap = heap, .self = self, .open = open, .frame = open->frame,
			    .head = CH__HEAD_BYTES};
	if (CH_UNLIKELY((open->flags & (CH_OPEN_OWN_FRAMES | CH_OPEN_IN_PLACE)) ||
			open->kind != CH_KIND_CODE))
		choose_pages(&r);
	if (r.frame == CH_FRAME_STEPS && !ch__sinks_steps_begin(heap->sinks))
		return ch__because_memory("the frames of CH_FRAME_STEPS");
	enum ch_status status = size_request(&r);
	if (CH_LIKELY(status == CH_OK))
		status = reserve_side(&r);
	if (CH_UNLIKELY(status != CH_OK)) {
		drop_side(&r);
		return status;
	}
	enum ch__placed placed = ch__place_at_hand(&r);
	if (CH_UNLIKELY(placed == CH__NO_ROOM))
		placed = ch__place_in_need(&r);
	if (CH_UNLIKELY(placed != CH__PLACED)) {
		drop_side(&r);
		return placed == CH__NO_ROOM    ? no_room(&r)
		       : placed == CH__STRANGER ? ch__because_stranger()
					    : ch__because_stale("owner", open->owner.bits);
	}
	fill_code(&r, code);
	report_open(&r);
	return CH_OK;
}
