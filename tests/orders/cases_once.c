/* SPDX-License-Identifier: MIT
 * cases_once.c: a thread fills in data and publishes the data by one word; another thread looks
 * without a lock: heaps, vms, fibers, sinks, listeners, a guard, pauses, rings, signal actions. */
#include "codeheap/base/heap.h"
#include "codeheap/events/events.h"
#include "codeheap/base/park.h"
#include "codeheap/graph/handles.h"
#include "codeheap/graph/names.h"
#include "observe/profile.h"
#include "observe/profiler_inner.h"
#include "observe/stats_walk.h"
#include "os/linux.h"
#include "sinks/sinks.h"
#include "tests/orders/cases.h"
#include "unwind/nongnu.h"
#include "unwind/steps.h"
#include "unwind/unwinders.h"

#include <ucontext.h>
#include <unistd.h>

static uint32_t data;

/* --- heaps --- */

static struct ch_heap *second;

static void creates_heap(void)
{
	second = scene_heap(NULL);
}
/* A handle of a heap that is being made leads to no heap, or to the heap with the right number. */
static void resolves_handles(void)
{
	for (int i = 0; i < 8; i++) {
		uint32_t id = scene.heap->id + 1;
		const struct ch_heap *heap = ch__handle_heap((uint64_t)id << 24);
		if (heap)
			HOLDS(heap->id == id);
		order_yield();
	}
}
static void end_heap(void)
{
	HOLDS(ch_heap_destroy(second) == CH_OK);
}

/* An address is looked for in all heaps while one goes. */
static void make_two_heaps(void)
{
	scene_make();
	creates_heap();
}
static void takes_heap_away(void)
{
	atomic_store(&ch__heaps[second->id], NULL);
	if (!ch__place_is_read())
		second->pool += data; /* as if the memory went */
}
static void asks_all_heaps(void)
{
	struct ch_spot spot = {.size = sizeof spot};
	HOLDS(!ch_code_at(NULL, &data, false, &spot));
}
static void put_heap_back(void)
{
	atomic_store(&ch__heaps[second->id], second);
}

/* --- pools of destroyed heaps --- */

static struct ch__pool gone_pool;
static struct ch_heap gone_heap = {.pool = &gone_pool};
enum { LARGE_POOL = 1 << 28, SMALL_POOL = 1 << 20, PLACES_OF_GONE = 16 };

static void pool_goes(uintptr_t at, size_t bytes)
{
	gone_pool.exec_base = at;
	gone_pool.pool_bytes = bytes;
	ch__heaps_pool_goes(&gone_heap);
}
static void begin_gone(void)
{
	for (uintptr_t i = 0; i < PLACES_OF_GONE; i++)
		pool_goes((i + 1) * LARGE_POOL, LARGE_POOL);
}
static void a_small_pool_goes(void)
{
	pool_goes((uintptr_t)(PLACES_OF_GONE + 1) * LARGE_POOL, SMALL_POOL);
}
/* The address lies behind the small pool, and in no large one. */
static void asks_who_had(void)
{
	for (int i = 0; i < 3; i++) {
		HOLDS(!ch__heaps_had((uintptr_t)(PLACES_OF_GONE + 1) * LARGE_POOL + SMALL_POOL));
		order_yield();
	}
}

/* --- vms --- */

static struct ch_vm *vms_before;
static uint32_t told;

static void wants(void *user)
{
	(void)user;
	told++;
}
static void roots(void *user, struct ch_marker *marker)
{
	(void)user;
	(void)marker;
}
static void begin_vms(void)
{
	vms_before = scene.heap->vms;
	scene.heap->collect_wanted = true;
	scene.heap->collect_told = false;
}
static void end_vms(void)
{
	scene.heap->vms = vms_before;
	scene.heap->collect_wanted = false;
}
static void attaches_vm(void)
{
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = wants, .roots = roots};
	struct ch_vm *vm;
	HOLDS(ch_vm_attach(scene.heap, &ops, &data, &vm) == CH_OK);
}
/* Walks vms as the hook of a Boehm cycle does, without a lock of the heap; then as a poll does. */
static void walks_vms(void)
{
	for (int i = 0; i < 3; i++) {
		for (struct ch_vm *vm = scene.heap->vms; vm; vm = vm->next)
			if (vm->is_attached && vm->ops.roots)
				vm->ops.roots(vm->user, NULL);
		order_yield();
	}
	ch__trigger_tell(scene.heap);
}

/* --- fibers --- */

static struct ch_fiber *leaves, *comes, *fresh;
static struct ch__thread *runs_fibers;
static char fiber_stacks[3][256];

static struct ch_fiber *attach_fiber(int number)
{
	struct ch_fiber *fiber;
	HOLDS(ch_fiber_attach(scene.heap, fiber_stacks[number], fiber_stacks[number + 1] - 1,
			      &fiber) == CH_OK);
	return fiber;
}
static void begin_fibers(void)
{
	data = 0;
	scene.heap->fibers = NULL;
	leaves = attach_fiber(0);
	comes = attach_fiber(1);
	fresh = NULL;
	ch_fiber_suspend(comes, fiber_stacks[1] + 64);
}
static void note_self(void)
{
	runs_fibers = ch__thread_self(scene.heap);
}
static void make_fibers(void)
{
	scene_make();
	order_as(1, note_self);
}
static void end_fibers(void)
{
	runs_fibers->fiber = NULL;
}
static void changes_fibers(void)
{
	data = 1; /* a frame of the fiber */
	ch_fiber_suspend(leaves, fiber_stacks[0] + 64);
	ch_fiber_resume(comes);
	ch_fiber_resume(attach_fiber(1));
}
/* Reads the fibers as the scan does. */
static void looks_at_fibers(void)
{
	for (int i = 0; i < 6; i++) {
		if (atomic_load_explicit(&leaves->suspended_sp, memory_order_acquire))
			HOLDS(data == 1);
		if (!atomic_load_explicit(&comes->suspended_sp, memory_order_acquire))
			HOLDS(runs_fibers->fiber);
		struct ch_fiber *runs =
			atomic_load_explicit(&runs_fibers->fiber, memory_order_acquire);
		if (runs)
			HOLDS(runs->low == (uintptr_t)fiber_stacks[1]);
		order_yield();
	}
}

/* --- sinks --- */

enum { FAKE_PAGE_BYTES = 4096, FAKE_PAGES = 2 };
static const uintptr_t fake_pool = 0x7000000;
static struct ch__sinks_config sinks_config;
static struct ch__sinks *sinks;

static void make_sinks(void)
{
	scene_make();
	sinks_config = (struct ch__sinks_config){
		.pool_exec = fake_pool,
		.pool_bytes = FAKE_PAGES * FAKE_PAGE_BYTES,
		.page_bytes = FAKE_PAGE_BYTES,
		.chunk_bytes = FAKE_PAGE_BYTES,
		.head_bytes = 8,
		.meta = scene.heap->meta,
	};
}
static void begin_sinks(void)
{
	HOLDS(ch__sinks_create(&sinks_config, 0, &sinks) == 0);
}
static void end_sinks(void)
{
	ch__sinks_destroy(sinks);
}

/* Each thread runs this before making a block with steps; the first makes the map of steps. */
static void looks_for_notes(void)
{
	for (uintptr_t i = 0; i < 3; i++) {
		HOLDS(ch__sinks_steps_begin(sinks));
		HOLDS(!ch__steps_note(ch__sinks_steps(sinks), fake_pool + 8 * i));
		order_yield();
	}
}

/* --- objects of libunwind --- */

static void hears(struct ch__nongnu_object *heard)
{
	(void)heard;
}
static struct ch__nongnu_object object;
static const struct ch__nongnu_entry tables[2];
enum { OLD = 0x2000, NEW = 0x1000, OBJECT_BYTES = 0x800 };

static void begin_object(void)
{
	ch__nongnu.add = hears;
	ch__nongnu_fill(&object, OLD, OLD + OBJECT_BYTES, 0, &tables[0], 1);
}
static void object_is_used_again(void)
{
	ch__nongnu_give(&object);
	ch__nongnu_fill(&object, NEW, NEW + OBJECT_BYTES, 0, &tables[1], 1);
}
/* Searches an address of the new code as libunwind does, on a machine that loads in order. */
static void searches_object(void)
{
	for (int i = 0; i < 4; i++) {
		uintptr_t start = __atomic_load_n(&object.start, __ATOMIC_ACQUIRE);
		uintptr_t end = __atomic_load_n(&object.end, __ATOMIC_ACQUIRE);
		if (start <= NEW && NEW < end)
			HOLDS(object.table == (uintptr_t)&tables[1]);
		order_yield();
	}
}

/* --- listeners --- */

static bool is_whole(struct ch__listener *found, const char **path, int *failed)
{
	(void)path;
	(void)failed;
	HOLDS(found->heap == scene.heap && !found->next);
	return true;
}
static const struct ch__listener_calls file_call = {.file = is_whole};
static struct ch__listener listener;
enum { GREETERS = 1000 };
static struct ch__greeter greeters[GREETERS];
static uint32_t greeted;
static bool are_listeners_gone;

/* Greeters stay registered; between runs a greeter refuses no heap. */
static enum ch_status refuses(struct ch_heap *heap, const char **path, bool may_fail)
{
	(void)heap;
	(void)path;
	(void)may_fail;
	return are_listeners_gone ? CH_OK : CH_E_STATE;
}
static void begin_listeners(void)
{
	scene.heap->listeners = NULL;
	listener = (struct ch__listener){.calls = &file_call};
	are_listeners_gone = false;
}
static void end_listeners(void)
{
	scene.heap->listeners = NULL;
	are_listeners_gone = true;
}
static void comes_to_listen(void)
{
	struct ch__greeter *greeter = &greeters[greeted++];
	ch__listener_add(scene.heap, &listener);
	greeter->begins = refuses;
	ch__listener_greet(greeter);
}
static void finds_listeners(void)
{
	for (int i = 0; i < 4; i++) {
		const char *path;
		int failed;
		(void)ch__listeners_file(scene.heap, &path, &failed);
		order_yield();
	}
}
static void greets(void)
{
	for (int i = 0; i < 3; i++) {
		(void)ch__listeners_begin(scene.heap);
		order_yield();
	}
}

/* --- the statistics file --- */

static void make_file(void)
{
	second = scene_heap("statistics.%p");
}
/* As in the child of a fork: the first use opens the file. */
static void begin_file(void)
{
	second->listeners->calls->fork_child(second->listeners);
}
static void opens_file(void)
{
	ch__listeners_use(second);
}
static void asks_path(void)
{
	for (int i = 0; i < 4; i++) {
		const char *path;
		int failed;
		if (ch__listeners_file(second, &path, &failed))
			HOLDS(*path == 's');
		order_yield();
	}
}
static void end_file(void)
{
	const char *path;
	int failed;
	HOLDS(ch__listeners_file(second, &path, &failed));
	HOLDS(unlink(path) == 0);
}

/* --- pauses --- */

static struct ch__stats_pauses pauses;

static void begin_pauses(void)
{
	/* All places are taken: the next pause comes to the oldest one's. */
	for (uint32_t i = 0; i < CH__STATS_PAUSES_MOST; i++) {
		pauses.at[i].at_ns = i;
		pauses.at[i].ns = 0;
	}
	pauses.noted = CH__STATS_PAUSES_MOST;
}
static void notes_pauses(void)
{
	for (uint32_t i = 0; i < 3; i++)
		ch__stats_pauses_note(&pauses, CH__STATS_PAUSES_MOST + i + 7, 7);
}
static void looks_at_pauses(void)
{
	for (int n = 0; n < 4; n++) {
		struct ch__stats_pause seen[CH__STATS_PAUSES_MOST];
		uint32_t count = ch__stats_pauses_read(&pauses, seen);
		for (uint32_t i = 0; i < count; i++)
			HOLDS(seen[i].at_ns - seen[i].ns == seen[0].at_ns - seen[0].ns + i);
		order_yield();
	}
}

/* --- a guard --- */

static struct ch_owner guarded_owner;
static struct ch_code guarded;
static const uint32_t *guard;

static void make_guarded(void)
{
	HOLDS(ch_owner_create(scene.vm, "guarded", &data, NULL, &guarded_owner) == CH_OK);
	struct ch_open open = {.size = sizeof open,
			       .owner = guarded_owner,
			       .hot_bytes = 128,
			       .entry = CH_ENTRY_GUARD};
	HOLDS(ch_block_open(&open, &guarded) == CH_OK);
	guard = guarded.guard;
	guarded.used_to = 128;
	HOLDS(ch_block_commit(&guarded, 1) == CH_OK);
}
static void free_guarded(void)
{
	HOLDS(ch_owner_release(guarded_owner, CH_RELEASE_NOT_RUNNING) == CH_OK);
}
static void begin_guard(void)
{
	data = 0;
	order_as(1, make_guarded);
}
static void end_guard(void)
{
	order_as(1, free_guarded);
}
/* Changes the data that the code relied on, and then invalidates the code. */
static void invalidates(void)
{
	data++;
	HOLDS(ch_blocks_invalidate(&guarded.block, 1, NULL) == CH_OK);
}
static void tests_guard(void)
{
	for (int i = 0; i < 4; i++) {
		if (__atomic_load_n(guard, __ATOMIC_ACQUIRE))
			HOLDS(data);
		order_yield();
	}
}

/* --- core syncs --- */

static _Atomic(uint32_t) trap;
static uint64_t begun_before, begun_seen;
static uint32_t trap_seen;

static void begin_core_sync(void)
{
	trap = 0;
	begun_before = scene.heap->core_syncs_begun;
}
/* Does what the library does when a block is poisoned and put into the quarantine. */
static void poisons(void)
{
	atomic_store_explicit(&trap, 1, memory_order_relaxed);
	begun_seen = atomic_load(&scene.heap->core_syncs_begun);
}
static void syncs_cores(void)
{
	HOLDS(ch__core_sync(scene.heap));
	trap_seen = atomic_load_explicit(&trap, memory_order_relaxed);
}
/* If the block was poisoned before the sync began, the block may go, so the trap must be seen. */
static void end_core_sync(void)
{
	HOLDS(begun_seen != begun_before || trap_seen);
}

/* --- slots and rings of samplers --- */

static struct ch__profile profile;
static struct ch__thread *sampled;
static struct ch__profiler *profiler;
static struct ch__sampler_slot *slot;
static ucontext_t context;
enum { RING_WORDS = 1024, SAMPLES = 300 };

static void find_sampled(void)
{
	sampled = ch__thread_self(scene.heap);
}
static void make_slots_of_threads(void)
{
	scene_make();
	profile.meta = scene.heap->meta;
	HOLDS(ch__profile_install());
	order_profile_tag = ch__profile_tag(scene.heap->id);
	getcontext(&context);
	order_as(2, find_sampled);
}
static void begin_word(void)
{
	atomic_store(ch__look_thread_word(sampled), NULL);
}
static void gives_slot(void)
{
	HOLDS(ch__profile_slot(&profile, sampled));
}
static void is_sampled(void)
{
	for (int i = 0; i < 4; i++) {
		order_profile_handler(0, NULL, &context);
		order_yield();
	}
}
static void end_word(void)
{
	ch__meta_free(profile.meta, atomic_load(ch__look_thread_word(sampled)), sizeof *slot);
}

static void fill_ring(void)
{
	struct ch__sampler *sampler = slot->sampler;
	sampler->words = RING_WORDS;
	while (!sampler->dropped)
		order_profile_handler(0, NULL, &context);
}
static void begin_ring(void)
{
	profiler = scene_profiler();
	slot = ch__profile_slot(&profile, sampled);
	HOLDS(ch__profiler_add(profiler, slot, 1) == 0);
	order_as(2, fill_ring);
}
static void end_ring(void)
{
	ch__profiler_remove(profiler, slot);
	ch__profiler_destroy(profiler);
}
static void merges(void)
{
	for (int i = 0; i < 3; i++) {
		ch__profiler_name_all(profiler, scene.heap, scene.heap->id);
		order_yield();
	}
}
/* More samples than the ring holds: the ring wraps. */
static void samples_on(void)
{
	for (int i = 0; i < SAMPLES; i++) {
		order_profile_handler(0, NULL, &context);
		if (i % 64 == 0)
			order_yield();
	}
}

/* --- the action that a signal had --- */

static union {
	struct ch__os_action kept;
	struct ch__old_action seen;
} old_action;
static _Atomic(uint32_t) actions_taken;

/* Replaces the system's: the new action is in force before the caller hears of the old action. */
int __real_sigaction(int, const struct sigaction *, struct sigaction *);
int __wrap_sigaction(int, const struct sigaction *, struct sigaction *);
int __wrap_sigaction(int signal, const struct sigaction *action, struct sigaction *old)
{
	struct sigaction was;
	int answer = __real_sigaction(signal, action, &was);
	if (action)
		atomic_fetch_add(&actions_taken, 1);
	order_yield();
	if (old)
		*old = was;
	return answer;
}

static void nothing(int signal, void *info, void *ucontext)
{
	(void)signal;
	(void)info;
	(void)ucontext;
}
static void begin_action(void)
{
	signal(SIGUSR2, SIG_IGN);
	memset(&old_action, 0, sizeof old_action);
	actions_taken = 0;
}
static void installs(void)
{
	HOLDS(ch__os_signal_install(SIGUSR2, nothing, &old_action.kept, CH__OS_LIKE_OLD));
}
/* Runs as the handler, from the moment on at which the system has the action. */
static void chains(void)
{
	while (!atomic_load(&actions_taken))
		order_yield();
	for (int i = 0; i < 3; i++) {
		HOLDS(ch__replaced(&old_action.seen)->sa_handler == SIG_IGN);
		order_yield();
	}
}

const struct order_case cases_once[] = {
	{"heap", 300, scene_make, NULL, end_heap, {creates_heap, resolves_handles}},
	{"left_heap", 2000, make_two_heaps, NULL, put_heap_back,
	 {takes_heap_away, asks_all_heaps}},
	{"gone", 1000, NULL, begin_gone, NULL, {a_small_pool_goes, asks_who_had}},
	{"vms", 1000, scene_make, begin_vms, end_vms, {attaches_vm, walks_vms}},
	{"fibers", 1000, make_fibers, begin_fibers, end_fibers, {changes_fibers, looks_at_fibers}},
	{"steps", 1000, make_sinks, begin_sinks, end_sinks, {looks_for_notes, looks_for_notes}},
	{"object", 1000, NULL, begin_object, NULL, {object_is_used_again, searches_object}},
	{"listeners", GREETERS, scene_make, begin_listeners, end_listeners,
	 {comes_to_listen, finds_listeners, greets}},
	{"file", 500, make_file, begin_file, end_file, {opens_file, asks_path}},
	{"pauses", 1000, NULL, begin_pauses, NULL, {notes_pauses, looks_at_pauses}},
	{"guard", 1000, scene_make, begin_guard, end_guard, {invalidates, tests_guard}},
	{"core_sync", 1000, scene_make, begin_core_sync, end_core_sync, {poisons, syncs_cores}},
	{"slot", 1000, make_slots_of_threads, begin_word, end_word, {gives_slot, is_sampled}},
	{"ring", 40, make_slots_of_threads, begin_ring, end_ring, {merges, samples_on}},
	{"action", 1000, NULL, begin_action, NULL, {installs, chains}},
	{NULL},
};
