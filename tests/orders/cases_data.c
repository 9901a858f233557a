/* SPDX-License-Identifier: MIT
 * cases_data.c: data that is published once and read without a lock (memory of tables, lists of a
 * heap, unwind data, samplers), an owner's cell against the owner's release, and locks. */
#include "codeheap/graph/handles.h"
#include "codeheap/base/park.h"
#include "observe/profile.h"
#include "pages/granules.h"
#include "tests/orders/cases.h"
#include "unwind/unwinders.h"
#include "observe/profiler_inner.h"
#include "unwind/sink.h"

#include <ucontext.h>

static uint32_t shared;

/* --- tables --- */

enum { RECORD_BYTES = 64, STEP_RECORDS = CH__TABLE_STEP_BYTES / RECORD_BYTES };
static struct ch__table table;

static void begin_table(void)
{
	table = (struct ch__table){.first_generation = 3,
				   .record_bytes = RECORD_BYTES,
				   .generation_offset = 8,
				   .limit = 2 * STEP_RECORDS};
	HOLDS(ch__tables_place(&table, 1, false));
}
static void end_table(void)
{
	ch__tables_free(&table, 1);
}
static void extends(void)
{
	for (int i = 0; i < 2; i++)
		HOLDS(ch__table_extend(&table, STEP_RECORDS - 1) != 0);
}
/* Reads the last of all records, and a record whose index the caller got in another way. */
static void reads_records(void)
{
	for (uint32_t n = 0; n < 4; n++) {
		uint32_t used = table.used;
		if (used) {
			HOLDS(ch__table_has(&table, used - 1));
			HOLDS(((uint32_t *)ch__table_at(&table, used - 1))[2] == 3);
		}
		uint32_t index = 1 + n % 2 * (STEP_RECORDS - 1);
		uint64_t bits = ch__handle(scene.heap->id, index, 3);
		if (ch__handle_is_known(scene.heap, &table, bits))
			HOLDS(((_Atomic(uint32_t) *)ch__table_at(&table, index))[2] % 3 == 0);
		order_yield();
	}
}

/* --- lists --- */

static struct ch__thread *threads_before;

static void attaches(void)
{
	const void *low, *high;
	struct ch_fiber *fiber;
	order_stack(order_self(), &low, &high);
	HOLDS(ch_thread_attach(scene.heap, low, high) == CH_OK);
	HOLDS(ch_fiber_attach(scene.heap, low, high, &fiber) == CH_OK);
}
static void detach(void)
{
	HOLDS(ch_thread_detach(scene.heap) == CH_OK);
}
static void begin_lists(void)
{
	threads_before = scene.heap->threads;
}
/* Each run pushes new records. */
static void end_lists(void)
{
	order_as(3, detach);
	scene.heap->threads = threads_before;
	scene.heap->fibers = NULL;
}
static void walks(void)
{
	for (int i = 0; i < 2; i++) {
		ch__freeze(scene.heap);
		for (struct ch__thread *t = scene.heap->threads; t; t = t->next)
			HOLDS(t->heap == scene.heap);
		for (struct ch_fiber *f = scene.heap->fibers; f; f = f->next)
			HOLDS(f->heap == scene.heap);
		ch__unfreeze(scene.heap);
		order_yield();
	}
}
static void idles(void)
{
	order_yield();
}

/* --- unwind data --- */

static uint8_t *section;
static struct ch__frame_shape shapes[CH__FRAMES];
static const struct ch__eh_place a_page = {.exec = 0x10000, .page_bytes = 0x4000, .pages = 1};

static void make_section(void)
{
	scene_make();
	section = ch__meta_alloc(scene.heap->meta, ch__eh_frame_bytes(&a_page));
}
static void begin_section(void)
{
	ch__eh_frame_write(section, &a_page, shapes);
}
/* Reads the range like an unwinder, but looks by itself: an unwinder's caller knows of the code. */
static void unwinds(void)
{
	uint32_t *fde = (uint32_t *)(void *)ch__eh_frame_fde(section, 0);
	_Atomic(uint64_t) *range = (_Atomic(uint64_t) *)(void *)(fde + 4);
	for (int i = 0; i < 2; i++) {
		if (atomic_load_explicit(range, memory_order_acquire)) {
			HOLDS(fde[1] != 4 + (uint32_t)((uint8_t *)fde - section));
			return;
		}
		order_yield();
	}
}
static void frame_lives_once(void)
{
	ch__eh_frame_live(section, 0, 0x4000, shapes, 2);
}

/* --- an owner's cell --- */

static struct ch_owner owner;
static struct ch_code code;
static const void *const *cell;

static void make_block(void)
{
	HOLDS(ch_owner_create(scene.vm, "owner", &shared, NULL, &owner) == CH_OK);
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 64};
	HOLDS(ch_block_open(&open, &code) == CH_OK);
	code.used_to = 64;
	HOLDS(ch_block_commit(&code, 1) == CH_OK);
	cell = ch_owner_cell(owner);
}
static void begin_cell(void)
{
	order_as(1, make_block);
}
static void sets_entry(void)
{
	enum ch_status status = ch_owner_set_entry(owner, code.block);
	HOLDS(status == CH_OK || status == CH_E_STALE);
}
static void releases(void)
{
	HOLDS(ch_owner_release(owner, CH_RELEASE_COLLECT) == CH_OK);
}
/* No cycle frees the blocks: the pool has room for the blocks of all runs. */
static void end_cell(void)
{
	HOLDS(*cell == &shared);
}

/* --- an owner's list of blocks against the owner's release --- */

static void opens_blocks(void)
{
	for (int i = 0; i < 2; i++) {
		struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 64};
		struct ch_code another;
		if (ch_block_open(&open, &another) != CH_OK)
			return;
		another.used_to = 64;
		enum ch_status status = ch_block_commit(&another, 1);
		HOLDS(status == CH_OK || status == CH_E_STALE);
	}
}
static void releases_at_once(void)
{
	HOLDS(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING) == CH_OK);
}

/* --- samplers --- */

static struct ch__profiler *profiler;
static struct ch__sampler_slot *slot;
static ucontext_t context;

static void make_profiler(void)
{
	scene_make();
	profiler = scene_profiler();
	HOLDS(ch__profile_install());
	order_profile_tag = ch__profile_tag(scene.heap->id);
	getcontext(&context);
}
static void find_slot(void)
{
	slot = ch__meta_alloc(scene.heap->meta, sizeof *slot);
	HOLDS(slot);
	atomic_store(ch__look_thread_word(ch__thread_self(scene.heap)), slot);
}
static void begin_sampler(void)
{
	order_as(1, find_slot);
	HOLDS(ch__profiler_add(profiler, slot, 1) == 0);
}
static void takes_samples(void)
{
	for (int i = 0; i < 3; i++)
		order_profile_handler(0, NULL, &context);
}
static void removes_sampler(void)
{
	ch__profiler_name_all(profiler, scene.heap, scene.heap->id);
	ch__profiler_remove(profiler, slot);
	ch__profiler_name_all(profiler, scene.heap, scene.heap->id);
}

/* --- an owner whose handle came without an order --- */

static struct ch_owner made[2];
static _Atomic(uint64_t) told;

static void makes_owners(void)
{
	for (int i = 0; i < 2; i++) {
		HOLDS(ch_owner_create(scene.vm, "owner", &shared, NULL, &made[i]) == CH_OK);
		atomic_store_explicit(&told, made[i].bits, memory_order_relaxed);
	}
}
/* CH_E_STALE is right while this thread does not yet see the owner in the table. */
static void enters_owners(void)
{
	for (int i = 0; i < 6; i++) {
		struct ch_owner handle = {atomic_load_explicit(&told, memory_order_relaxed)};
		enum ch_status status = CH_OK;
		if (handle.bits)
			status = ch_owner_set_entry(handle, (struct ch_block){0});
		HOLDS(status == CH_OK || status == CH_E_STALE);
		order_yield();
	}
}
static void end_owners(void)
{
	for (int i = 0; i < 2; i++)
		HOLDS(ch_owner_release(made[i], CH_RELEASE_NOT_RUNNING) == CH_OK);
	atomic_store(&told, 0);
}

/* --- locks --- */

static void adds_under_locks(void)
{
	struct ch__page *page = &scene.heap->pool->pages[0];
	struct ch__owner *busy = ch__owner_at(scene.heap, ch__handle_index(owner.bits));
	for (int i = 0; i < 3; i++) {
		ch__heap_lock(scene.heap);
		shared++;
		ch__heap_unlock(scene.heap);
	}
	for (int i = 0; i < 3; i++) {
		ch__page_lock(page);
		page->taker++;
		ch__page_unlock(page);
		ch__owner_lock(busy);
		busy->has_edges = !busy->has_edges;
		ch__owner_unlock(busy);
	}
}
static void make_locked(void)
{
	scene_make();
	order_as(1, make_block);
}

const struct order_case cases_data[] = {
	{"table", 1000, scene_make, begin_table, end_table, {extends, reads_records}},
	{"lists", 1000, scene_make, begin_lists, end_lists, {walks, idles, attaches}},
	{"frames", 1000, make_section, begin_section, NULL, {frame_lives_once, unwinds}},
	{"cell", 6000, scene_make, begin_cell, end_cell, {sets_entry, releases}},
	{"released", 1000, scene_make, begin_cell, NULL, {opens_blocks, releases_at_once}},
	{"owner", 2000, scene_make, NULL, end_owners, {makes_owners, enters_owners}},
	{"sampler", 1000, make_profiler, begin_sampler, NULL, {takes_samples, removes_sampler}},
	{"locks", 1000, make_locked, NULL, NULL, {adds_under_locks, adds_under_locks}},
	{NULL},
};
