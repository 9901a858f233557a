/* SPDX-License-Identifier: MIT
 * open.c: room for a block: what a request takes, its side memory, its place in a page of the
 * opening thread or in a run of pages, its record, and what the emitter is told; or why there is no
 * room. The fast path takes the page's busy inside one region; everything that may call the OS or
 * take a lock happens outside of regions.
 *
 * Order when the thread's page does not fit: another page, holes in the open pages of all threads,
 * both again after a sweep, the quarantine after an extra core sync, holes in full pages,
 * collections if the caller allows, CH_E_FULL (P8). */
#include "arch/sites.h"
#include "codeheap/life/life.h"
#include "unwind/steps.h"

struct request {
	struct ch_heap *heap;
	struct ch__thread *self;
	const struct ch_open *open;
	uint32_t hot_bytes, cold_bytes; /* whole parts with heads and stubs, granule multiples */
	uint32_t head;  /* hot bytes before the VM's */
	uint32_t slack; /* hot bytes reserved besides, to move the part for `align` */
	uint32_t record, run;
	struct ch_block handle; /* of the record, once it is written */
	struct ch__side_list *side_list;
	uint32_t hot_offset, cold_offset;
	uint32_t span_pages;   /* 0 = within a page; 1 at least where whole pages are asked for */
	uint8_t frame;         /* frame number of the pages */
	enum ch__span_use use; /* of the pages */
	int os_error;          /* errno of the last try, which had room */
	int refused;           /* errno: no room, no memory, and no collection would help */
	bool lacks_memory;     /* the last try found no side memory */
	bool is_in_vain;       /* the last collection was given up */
	uint64_t space_seen;   /* ch__space_now before the last try */
};

/* STRANGER: a callback left its stack to a thread that is not attached. */
enum placed { PLACED, NO_ROOM, OWNER_DEAD, STRANGER };

static bool CH_COLD make_young(struct request *r)
{
	struct ch__thread *self = r->self;
	uint32_t capacity = self->young_capacity, kept = 0, of_others = 0;
	ch__region_enter(self);
	for (uint32_t i = 0; i < self->young_count; i++) {
		struct ch_block handle = self->young[i];
		const struct ch__block *block =
			ch__block_at(r->heap, ch__handle_index(handle.bits));
		if (!ch__block_is(block, handle) || !ch__block_is_young_root(r->heap, block))
			continue;
		of_others += i < self->young_of_others;
		self->young[kept++] = handle;
	}
	self->young_of_others = of_others;
	CH_STORE_RELAXED(&self->young_count, kept);
	ch__region_leave(self);
	/* Most blocks on the list got an entry or an in-edge since: then the old size is enough. */
	if (kept < capacity / 2)
		return true;
	uint32_t longer = capacity ? capacity * 2 : 64;
	struct ch_block *old = self->young;
	struct ch_block *grown = ch__meta_alloc(r->heap->meta, longer * sizeof *grown);
	if (!grown)
		return kept < capacity;
	ch__region_enter(self);
	if (old)
		memcpy(grown, old, capacity * sizeof *old);
	self->young = grown;
	self->young_capacity = longer;
	ch__region_leave(self);
	ch__meta_free(r->heap->meta, old, capacity * sizeof *old);
	return true;
}

/* Makes room in the thread's list of young blocks. Returns false when there is no memory. */
static bool reserve_young(struct request *r)
{
	return r->self->young_count < r->self->young_capacity || make_young(r);
}

/* Moves the hot part to where its code is aligned. The slack before and behind goes back, and holds
 * traps still. The tail moves the page's cursor back. */
static void move_to_align(struct request *r, uint32_t page_index) CH_REQUIRES(ch__role_busy)
{
	struct ch__pool *pool = r->heap->pool;
	uint32_t from = r->hot_offset, mask = (uint32_t)r->open->align - 1;
	uint32_t front = -(from + CH__HEAD_BYTES) & mask;
	r->hot_offset = from + front;
	ch__page_give_back(pool, page_index, r->hot_offset + r->hot_bytes, r->slack - front);
	ch__page_give_back(pool, page_index, from, front);
}

/* For emitters that ask for cold bytes before they know how many they need. */
enum { COLD_SPARE = 3 };

/* How far a try looks: behind the cursors of the thread's own page; every hole in the open pages of
 * all threads. */
enum look { LOOK_AT_OWN, LOOK_AT_OPEN };

static inline __attribute__((always_inline)) bool
reserve_in(struct request *r, uint32_t page_index, enum look look)
{
	struct ch__page *page = &r->heap->pool->pages[page_index];
	ch__page_lock(page);
	uint32_t hot_bytes = r->hot_bytes + r->slack, spare = COLD_SPARE * r->open->cold_bytes;
	/* Most of a part may be stubs, which do not come back: the next part would not fit. */
	bool has_spare = r->self->has_spare_cold && spare >= r->cold_bytes;
	/* The page may have been retired and taken for another shape since its index was read.
	 * Another thread's page is open before unwinders know the page. Of data unwinders are not
	 * told. */
	bool fits = CH_LOAD_RELAXED(&page->state) == CH__PAGE_OPEN && page->frame == r->frame &&
		    (look == LOOK_AT_OWN ||
		     ((r->frame >= CH__FRAME_OWN ||
		       ch__sinks_page_is_live(r->heap->sinks, page_index, r->frame)) &&
		      ch__page_has_room(r->heap->pool, page_index, hot_bytes, r->cold_bytes))) &&
		    ch__page_reserve(r->heap->pool, page_index, hot_bytes, r->cold_bytes,
				     has_spare ? spare : 0, &r->hot_offset, &r->cold_offset);
	if (fits && r->slack)
		move_to_align(r, page_index);
	ch__page_unlock(page);
	return fits;
}

/* A search of open pages, then of full pages, misses a page that changes in between. Such a change
 * counts as room for other opens in need; the caller itself is in need, and lost nothing. */
static void note_moved(struct ch_heap *heap)
{
	if (atomic_load(&heap->opens_in_need) > 1)
		ch__space_returned(heap);
}

/* Returns a page, or the first of a span, known to the unwinders; CH__PAGE_NONE: there is none. */
static CH_COLD uint32_t take_pages(struct request *r, bool in_need)
{
	struct ch_heap *heap = r->heap;
	struct ch__pool *pool = heap->pool;
	/* A room is for a block of one part, whose used bytes come first. */
	bool may_be_room = r->use == CH__SPAN_CODE && !r->cold_bytes;
	uint32_t taken;
	ch__listeners_use(heap);
	/* Under this lock forget_page cannot tell a page dead after the page is told live here. */
	ch__records_lock(heap);
	if (r->span_pages)
		taken = ch__pool_take_span(pool, r->span_pages, r->frame,
					   may_be_room ? CH__SPAN_ROOM : r->use);
	else
		taken = in_need ? ch__pool_take_page_in_need(pool, r->frame,
							     r->hot_bytes + r->slack, r->cold_bytes)
				: ch__pool_take_page(pool, r->frame);
	if (!in_need) {
		r->refused = taken == CH__PAGE_NONE ? errno : 0;
		r->os_error = taken == CH__PAGE_NO_ACCESS ? errno : 0;
	}
	bool is_told = taken >= CH__PAGE_NO_ACCESS || r->frame >= CH__FRAME_OWN ||
		       ch__sinks_page_live(heap->sinks, taken,
					   r->span_pages ? pool->pages[taken].span_pages : 1,
					   r->frame);
	ch__records_unlock(heap);
	if (is_told)
		return taken < CH__PAGE_NO_ACCESS ? taken : CH__PAGE_NONE;
	r->lacks_memory = true;
	if (r->span_pages)
		ch__pool_release_span(pool, taken);
	else
		ch__pool_retire_page(pool, taken);
	note_moved(heap);
	return CH__PAGE_NONE;
}

/* Takes another page for the thread, outside of regions. Returns false when there is none. */
static bool next_page(struct request *r, bool in_need)
{
	uint32_t taken = take_pages(r, in_need);
	if (taken == CH__PAGE_NONE)
		return false;
	note_moved(r->heap);
	ch__thread_use_page(r->self, r->frame, taken + 1);
	return true;
}

static bool CH_COLD share_page(struct request *r)
{
	struct ch__pool *pool = r->heap->pool;
	uint32_t own = r->self->open_page[r->frame];
	if (own && reserve_in(r, own - 1, LOOK_AT_OPEN))
		return true;
	uint32_t others = CH_LOAD_RELAXED(&pool->pages_open) - (own != 0);
	for (uint32_t i = 0; others && i < ch__pool_pages_end(pool); i++)
		if (i + 1 != own && CH_LOAD_RELAXED(&pool->pages[i].state) == CH__PAGE_OPEN) {
			if (reserve_in(r, i, LOOK_AT_OPEN))
				return true;
			others--;
		}
	return false;
}

static bool take_span(struct request *r)
{
	struct ch_heap *heap = r->heap;
	uint32_t first = take_pages(r, false);
	if (first == CH__PAGE_NONE)
		return false;
	uint32_t end = first + heap->pool->pages[first].span_pages;
	r->hot_offset = (first << heap->pool->page_log2) + r->slack;
	r->cold_offset = (end << heap->pool->page_log2) - r->cold_bytes;
	/* Hot reaches to the cold part, so that every address behind the head has a block. */
	r->hot_bytes = r->cold_offset - r->hot_offset;
	return true;
}

static void count_open(const struct request *r) CH_HAS_REGION
{
	struct ch__counters *c = &r->self->counters;
	uint32_t bytes = r->hot_bytes + r->cold_bytes;
	CH__COUNT(c->blocks_opened, 1);
	CH__COUNT(c->bytes_opened, bytes);
	CH__COUNT(c->code_bytes, bytes);
	if (r->cold_bytes) {
		CH__COUNT(c->cold_bytes, r->cold_bytes);
		CH__COUNT(c->stub_bytes, (long)r->open->branch_room * ch__stub_bytes(r->heap));
	}
}

/* Writes the record of a block whose place is reserved. Returns false when the owner died. */
static bool write_record(struct request *r) CH_HAS_REGION
{
	struct ch_heap *heap = r->heap;
	const struct ch_open *open = r->open;
	struct ch__block *block = ch__block_at(heap, r->record);
	uint32_t page_mask = ((uint32_t)1 << heap->pool->page_log2) - 1;
	bool is_apart = (r->span_pages | (unsigned)r->use) != 0;
	uint32_t hot = r->hot_bytes / CH__GRANULE_BYTES;
	ch__set_hot_offset(block, r->hot_offset);
	__atomic_store_n(&block->owner, ch__handle_index(open->owner.bits), __ATOMIC_RELEASE);
	if (is_apart) {
		ch__set16(&block->span_granules_low, hot);
		ch__set16(&block->span_granules_high, hot >> 16);
	} else {
		ch__set16(&block->hot_granules, hot);
		ch__set16(&block->cold_granule, (r->cold_offset & page_mask) / CH__GRANULE_BYTES);
	}
	ch__set16(&block->cold_granules, r->cold_bytes / CH__GRANULE_BYTES);
	bool is_own_root = open->heap || (open->flags & CH_OPEN_KEPT);
	unsigned flags = open->entry | (is_apart ? CH__FLAG_APART : 0) |
			 (open->flags & CH_OPEN_IMMORTAL ? CH__FLAG_IMMORTAL : 0) |
			 (is_own_root ? CH__FLAG_HELD | CH__FLAG_LEADS : ch__age_stamp(heap));
	atomic_store_explicit(&block->flags, (uint8_t)flags, memory_order_release);
	atomic_store_explicit(&block->first_branch, r->run, memory_order_release);
	block->owner_next = block->owner_prev = 0;
	__atomic_store_n(&block->user, open->user, __ATOMIC_RELEASE);
	__atomic_store_n(&block->side_list, r->side_list, __ATOMIC_RELEASE);
	ch__head_write(heap, r->hot_offset, r->record);
	if (r->cold_bytes)
		ch__head_write(heap, r->cold_offset, r->record);
	CH_STORE_RELAXED(&block->mark, CH_LOAD_RELAXED(&heap->epoch));
	ch__block_set_state(heap, block, r->record, CH_BLOCK_OPEN, CH__CAUSE_NONE, __func__);
	uint32_t generation = CH_LOAD_RELAXED(&block->generation);
	if (!open->heap && !ch__owner_insert(heap, open->owner, block, r->record)) {
		ch__block_set_state(heap, block, r->record, CH_BLOCK_FREE, CH__CAUSE_NONE,
				    __func__);
		return false;
	}
	atomic_store_explicit(&block->generation, generation + 1, memory_order_release);
	r->handle.bits = ch__handle(heap->id, r->record, generation + 1);
	uint32_t young = CH_LOAD_RELAXED(&r->self->young_count);
	r->self->young[young] = r->handle;
	CH_STORE_RELAXED(&r->self->young_count, young + 1);
	if (r->span_pages)
		heap->pool->pages[r->hot_offset >> heap->pool->page_log2].has_block = true;
	count_open(r);
	return true;
}

/* Tries once, with the pages at hand. One region covers the reservation and the record, so that a
 * cycle sees both or none. */
static enum placed try_place(struct request *r, enum look look)
{
	if (r->span_pages && !take_span(r))
		return NO_ROOM;
	ch__region_enter_inline(r->self);
	/* A block of CH__FRAME_OWN always has span_pages. */
	uint32_t page = r->span_pages ? 0 : r->self->open_page[r->frame];
	bool fits = r->span_pages || (look == LOOK_AT_OWN ? page && reserve_in(r, page - 1, look)
							  : share_page(r));
	bool alive = fits && write_record(r);
	/* In the region of the reservation, so that a child of fork has no place without a block. A
	 * span goes back as a whole, and a child finds a lost span by its pages (fork.c). */
	if (fits && !alive && !r->span_pages) {
		ch__part_cut(r->heap, r->hot_offset, r->hot_bytes);
		ch__part_cut(r->heap, r->cold_offset, r->cold_bytes);
	}
	ch__region_leave(r->self);
	if (!fits || alive)
		return fits ? PLACED : NO_ROOM;
	ch__block_pages_freed(r->heap, r->hot_offset, r->span_pages != 0);
	/* Another open may have looked meanwhile, and found no room. */
	ch__space_returned(r->heap);
	return OWNER_DEAD;
}

/* One cycle is enough where nothing changes meanwhile. Newborn blocks outlive two cycles. A place
 * freed by a cycle may be too small, may go to an open that never collects, or may wait for the
 * next cycle's stop as its core sync: then another cycle is worth a try, too. */
static bool is_worth_a_cycle(struct request *r, unsigned cycles, uint64_t deaths)
{
	struct ch_heap *heap = r->heap;
	unsigned most = heap->has_core_sync ? 3 : 4;
	if (!(r->open->flags & CH_OPEN_MAY_COLLECT) || r->refused || cycles == most)
		return false;
	return cycles == 0 || atomic_load(&heap->space_events) != deaths ||
	       CH_LOAD_RELAXED(&heap->newborns) > 0;
}

/* A VM may have no polls that sweep: so an open that takes a page sweeps as many blocks as the page
 * has room for. With fewer, opens of small blocks would be faster than the sweep. */
static unsigned steps_of_a_page(const struct ch_heap *heap)
{
	enum { LEAST_BYTES = CH__HEAD_BYTES + CH__GRANULE_BYTES };
	return (1u << heap->pool->page_log2) / LEAST_BYTES / heap->config.step_blocks;
}

static enum placed place_slowly(struct request *r)
{
	struct ch_heap *heap = r->heap;
	uint64_t deaths = 0;
	unsigned cycles = 0;
	/* In the turn, so that what the cycle freed is this open's. */
	if ((r->open->flags & CH_OPEN_MAY_COLLECT) && ch__collect_if_unasked(heap) &&
	    !(r->self = ch__thread_now(heap)))
		return STRANGER;
	for (int attempt = 0;; attempt++) {
		enum placed placed;
		ch__sweep_steps(heap, attempt ? UINT32_MAX : steps_of_a_page(heap));
		/* Callbacks of a collection may have opened blocks. */
		r->lacks_memory = !reserve_young(r);
		if (r->lacks_memory)
			return NO_ROOM;
		r->space_seen = ch__space_now(heap);
		while (!r->span_pages && next_page(r, false))
			if ((placed = try_place(r, LOOK_AT_OWN)) != NO_ROOM)
				return placed;
		if ((placed = try_place(r, LOOK_AT_OPEN)) != NO_ROOM)
			return placed;
		/* A span needs whole pages, and slots whole chunks: the thread may hold some. */
		for (uint32_t frame = 0; frame < CH__PAGE_FRAMES; frame++)
			if (r->span_pages || frame != r->frame)
				ch__thread_use_page(r->self, frame, 0);
		if (attempt == 0)
			continue;
		ch__heap_lock(heap);
		bool has_freed = ch__quarantine_advance(heap, true);
		ch__heap_unlock(heap);
		if (has_freed)
			continue;
		/* Into holes of full pages: too small to list a page again, or before a cursor. */
		if (!r->span_pages && next_page(r, true) &&
		    (placed = try_place(r, LOOK_AT_OWN)) != NO_ROOM)
			return placed;
		if (!is_worth_a_cycle(r, cycles++, deaths))
			return NO_ROOM;
		deaths = atomic_load(&heap->space_events);
		r->is_in_vain = ch_heap_collect(heap) != CH_OK;
		if (r->is_in_vain)
			return NO_ROOM;
		r->self = ch__thread_now(heap);
		if (!r->self)
			return STRANGER;
	}
}

/* A callback may leave the thread with its fiber, so a fiber has the turn where there is one. A
 * fiber may also stay away: after the limit the next open takes the turn over. */
uintptr_t ch__need_enter(struct ch_heap *heap, const struct ch__thread *self)
{
	struct ch_fiber *fiber = CH_LOAD_RELAXED(&self->fiber);
	uintptr_t me = fiber ? (uintptr_t)fiber : (uintptr_t)self;
	ch__holds_nothing();
	if (heap->config.driver == CH_DRIVER_HOST || atomic_load(&heap->stops_apart) ||
	    atomic_load(&heap->need_is) == me)
		return 0;
	if (!ch__lock_seize(&heap->need) &&
	    !ch__lock_wait_parked(&heap->need, ch__stop_limit(heap, ch__os_now_ns()))) {
		uintptr_t away = atomic_load(&heap->need_is);
		return away && atomic_compare_exchange_strong(&heap->need_is, &away, me) ? me : 0;
	}
	atomic_store(&heap->need_is, me);
	return me;
}

void ch__need_leave(struct ch_heap *heap, uintptr_t entered)
{
	if (entered && atomic_compare_exchange_strong(&heap->need_is, &entered, 0))
		ch__lock_let_go(&heap->need);
}

/* Places the block wherever there is room, after the work that makes room. While opens_in_need is
 * above 0, space that comes free is counted: until ch__trigger_full has noted that the vm waits. */
static CH_COLD enum placed place_in_need(struct request *r)
{
	struct ch_heap *heap = r->heap;
	if (heap->is_codeless)
		return NO_ROOM;
	int process = heap->process;
	uintptr_t entered = r->open->flags & CH_OPEN_MAY_COLLECT
				    ? ch__need_enter(heap, r->self) : 0;
	atomic_fetch_add(&heap->opens_in_need, 1);
	enum placed placed = place_slowly(r);
	ch__need_leave(heap, entered);
	/* After a refusal by the system, no event of the heap would help the vm. A collection may
	 * bring side memory or a mapping back, but the pool was not full (no_room). */
	if (placed == NO_ROOM && !r->refused) {
		CH__COUNT(r->self->counters.opens_full, !r->os_error && !r->lacks_memory);
		ch__heap_lock(heap);
		uint32_t owner = ch__owner_look_up(heap, r->open->owner);
		if (owner || r->open->heap)
			ch__trigger_full(heap, ch__owner_at(heap, owner)->vm, r->space_seen);
		ch__heap_unlock(heap);
		ch__trigger_tell(heap);
	}
	/* What a long run of pages got before the refusal. */
	if (placed == NO_ROOM && r->refused)
		ch__pool_trim(heap->pool);
	/* In a child that a callback of the collection forked, the count began again at 0. */
	if (heap->process == process)
		atomic_fetch_sub(&heap->opens_in_need, 1);
	return placed;
}

static enum ch_status size_request(struct request *r)
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

static enum ch_status reserve_side(struct request *r)
{
	struct ch_heap *heap = r->heap;
	if (!reserve_young(r) || !(r->record = ch__record_take(heap, r->self)))
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

static void CH_COLD drop_side(struct request *r)
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

static void fill_code(struct request *r, struct ch_code *code)
{
	struct ch_heap *heap = r->heap;
	uintptr_t hot = ch__exec(heap, r->hot_offset) + r->head;
	code->block = r->handle;
	code->exec = (uint8_t *)hot;
	bool has_view = r->use == CH__SPAN_CODE || r->use == CH__PAGE_RODATA;
	code->write = has_view ? ch__pool_lend(heap->pool, hot) : code->exec;
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
		ch__arch_veneer_write(code->cold_write, (uintptr_t)target);
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
static void report_open(struct request *r)
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
static enum ch_status no_room(const struct request *r)
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
static void choose_pages(struct request *r)
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
	struct request r = {.heap = heap, .self = self, .open = open, .frame = open->frame,
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
	enum placed placed = r.span_pages ? NO_ROOM : try_place(&r, LOOK_AT_OWN);
	if (CH_UNLIKELY(placed == NO_ROOM))
		placed = place_in_need(&r);
	if (CH_UNLIKELY(placed != PLACED)) {
		drop_side(&r);
		return placed == NO_ROOM    ? no_room(&r)
		       : placed == STRANGER ? ch__because_stranger()
					    : ch__because_stale("owner", open->owner.bits);
	}
	fill_code(&r, code);
	report_open(&r);
	return CH_OK;
}
