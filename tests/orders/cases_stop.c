/* SPDX-License-Identifier: MIT
 * cases_stop.c: regions against the freeze, parks against the stop of the world (I1, I9), polls
 * against reasons to poll, and code left to a cycle against the cycle's end. */
#include "codeheap/base/park.h"
#include "codeheap/events/events.h"
#include "codeheap/collect/collect.h"
#include "tests/orders/cases.h"

#include <signal.h>
#include <string.h>
#include <ucontext.h>

static uint32_t shared, seen;

/* --- regions --- */

static void changes_in_regions(void)
{
	struct ch__thread *self = ch__thread_self(scene.heap);
	for (int i = 0; i < 2; i++) {
		ch__region_enter(self);
		/* Threads in regions do not exclude each other. */
		if (order_self() == 1)
			shared++;
		else
			seen++;
		ch__region_leave(self);
	}
}
static void reads_frozen(void)
{
	for (int i = 0; i < 2; i++) {
		ch__freeze(scene.heap);
		shared++;
		seen++;
		ch__unfreeze(scene.heap);
	}
}
static void fenced(void)
{
	scene_make();
	atomic_store(&scene.heap->fence_in_regions, true);
}

/* --- the stop --- */

static void parks(void)
{
	for (int i = 0; i < 3; i++) {
		shared++;
		ch_thread_park();
		ch_thread_unpark();
	}
	shared++;
	ch_thread_park();
}
static void parks_no_more(void)
{
	for (uint32_t t = 1; t <= 2; t++)
		order_as(t, ch_thread_unpark);
}
static void polls(void)
{
	for (int i = 0; i < 3; i++) {
		seen++;
		ch_thread_poll();
	}
	seen++;
	ch_thread_park();
}
static void stops(void)
{
	struct ch_heap *heap = scene.heap;
	for (int i = 0; i < 2; i++) {
		HOLDS(ch__world_stop(heap, UINT64_MAX));
		shared++;
		seen++;
		for (struct ch__thread *t = heap->threads; t; t = t->next)
			HOLDS(t->shown.sp != 1 && t->shown.words_count <= CH_ARCH_CONTEXT_WORDS);
		ch__world_resume(heap);
	}
}

/* A signal comes at any time, also when no stop wants the signal. */
static void is_signalled(void)
{
	uint32_t *word = order_self() == 1 ? &shared : &seen;
	ucontext_t context = {0};
	uintptr_t sp = (uintptr_t)__builtin_frame_address(0);
	memcpy((char *)&context + CH_ARCH_CONTEXT_AT + CH_ARCH_CONTEXT_SP * sizeof sp, &sp,
	       sizeof sp);
	for (int i = 0; i < 3; i++) {
		(*word)++;
		order_stop_handler(SIGUSR1, NULL, &context);
	}
	(*word)++;
	ch_thread_park();
}
static void stops_by_signals(void)
{
	scene_make();
	scene.heap->config.stop_signal = SIGUSR1;
	HOLDS(ch__world_install_signal(SIGUSR1));
}

/* --- a stop in place of a core sync --- */

static uint32_t stops_made, served[THREADS_MAX + 1];

UNSEEN static void note_stop(void)
{
	stops_made++;
}
/* A thread that was stopped and runs again has serialized its core since. */
UNSEEN static void note_run(uint32_t serialized)
{
	if (serialized)
		served[order_self()] = stops_made;
	HOLDS(served[order_self()] == stops_made);
}
static void runs_on(void)
{
	for (int i = 0; i < 3; i++) {
		ch_thread_park();
		uint32_t before = order_serialized;
		ch_thread_unpark();
		note_run(order_serialized - before);
	}
	ch_thread_park();
}
static void syncs_by_stops(void)
{
	struct ch_heap *heap = scene.heap;
	for (int i = 0; i < 2; i++) {
		ch__freeze(heap);
		HOLDS(ch__world_stop(heap, UINT64_MAX));
		ch__core_sync_by_stop(heap);
		note_stop();
		ch__world_resume(heap);
		ch__unfreeze(heap);
	}
}
static void both_parked(void)
{
	scene_make();
	order_as(2, ch_thread_park);
}
static void runs_no_more(void)
{
	order_as(1, ch_thread_unpark);
	served[1] = stops_made;
}

/* --- the word of polls --- */

static void begin_word(void)
{
	struct ch_heap *heap = scene.heap;
	atomic_store(&heap->collect_wanted, false);
	atomic_store(&heap->collect_told, false);
	atomic_store(&heap->sinks_wait, 0);
	atomic_store(&heap->poll_due, 0);
}
static void wants_a_collection(void)
{
	ch__trigger_cycle_abandoned(scene.heap);
}
static void has_names_that_wait(void)
{
	atomic_store_explicit(&scene.heap->sinks_wait, 9, memory_order_relaxed);
	ch__poll_want(scene.heap);
}
static void polls_by_the_word(void)
{
	for (int i = 0; i < 3; i++) {
		ch_thread_poll();
		order_yield();
	}
}
/* Work that no poll has done is still due for a later poll. */
static void end_word(void)
{
	struct ch_heap *heap = scene.heap;
	bool is_asked = atomic_load(&heap->collect_wanted) && !atomic_load(&heap->collect_told);
	HOLDS(atomic_load(&heap->poll_due) || !(is_asked || atomic_load(&heap->sinks_wait)));
}

/* --- code that was left to a cycle --- */

/* An earlier free was left, too, and the cycle that ends took its bytes. */
static void begin_left(void)
{
	scene.heap->dead_bytes = 0;
	scene.heap->waits_for_cycle = true;
}
/* By a thread that is not attached: no stop keeps it out. */
static void leaves_code(void)
{
	ch__trigger_dead(scene.heap, 64);
}
static void finds_nothing_left(void)
{
	ch__trigger_nothing_left(scene.heap);
}
static void end_left(void)
{
	HOLDS(scene.heap->dead_bytes == 64 && scene.heap->waits_for_cycle);
}

const struct order_case cases_stop[] = {
	{"poll_word", 5000, scene_make, begin_word, end_word,
	 {wants_a_collection, polls_by_the_word, has_names_that_wait}},
	{"left", 3000, scene_make, begin_left, end_left, {leaves_code, finds_nothing_left}},
	{"serialize", 1000, both_parked, NULL, runs_no_more, {runs_on, syncs_by_stops}},
	{"regions", 3000, scene_make, NULL, NULL,
	 {changes_in_regions, changes_in_regions, reads_frozen}},
	{"regions_fenced", 3000, fenced, NULL, NULL,
	 {changes_in_regions, changes_in_regions, reads_frozen}},
	{"stop", 3000, scene_make, NULL, parks_no_more, {parks, polls, stops}},
	{"signalled", 3000, stops_by_signals, NULL, parks_no_more,
	 {is_signalled, is_signalled, stops}},
	{NULL},
};
