/* SPDX-License-Identifier: MIT
 * gc_bdw.c: the driver that lets the Boehm collector mark code: anchors, hooks, roots. No other
 * file knows libgc. Tracing is in mark.c, freeing in death.c.
 *
 * Lock: every hook runs under the collector's allocation lock, takes no lock of the library but a
 * marker's queue (a leaf), and allocates nothing. Owners are made under heap, after their anchors
 * were allocated. The list of heaps changes under the allocation lock.
 *
 * A stop of the collector, by its events (world: R runs, S stopped)
 *   start callback  R  a full collection was asked for; it may still be given up, so only a flag
 *                   is set
 *   PRE_STOP        R  every heap is frozen (I1), one core sync; in a full collection the epoch
 *                   moves
 *   POST_STOP       S  roots are scanned (push_other_roots, any number of times), anchors are
 *                   marked
 *   MARK_END        S  tracing is complete, except for objects that finalizers revive
 *   POST_START      R  a stop that was given up thaws here; after any other the heaps stay frozen
 *   RECLAIM_END     R  GC_finalize has revived all it will: a full collection moves `completed`,
 *                   all thaw
 *
 * The sentinel is an object that every complete mark phase marks. If it is unmarked at PRE_STOP,
 * the mark bits were cleared, so every anchor will be marked afresh. A start that was given up
 * before the clearing leaves the sentinel marked.
 *
 * Incremental mode marks in steps with the world running, while blocks change under the marker.
 * These steps only note the owners whose anchors they reach; each stop traces afresh, under a new
 * epoch, from all owners noted since the bits were cleared. A stop of a partial collection, which
 * does not visit old anchors again, pushes the refs of all blocks instead, and nothing dies. */
#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include "codeheap/graph/block_parts.h"
#include "codeheap/codeheap_bdw.h"
#include "codeheap/graph/handles.h"
#include "codeheap/collect/collect.h"
#include "codeheap/base/sized.h"
#include "codeheap/base/park.h"
#include "os/threads.h"

#include <errno.h>
#include <gc/gc.h>
#include <gc/gc_mark.h>

_Static_assert(GC_VERSION_MAJOR * 100 + GC_VERSION_MINOR >= 802, "the driver needs libgc 8.2");

/* An object on a free list of the collector has a link in the first word and zeros behind. A dead
 * object that is on no free list may keep all words for ever, and be marked by a stale word. So the
 * tag is not the first word and is written last, and an anchor holds no address: the generation in
 * the handle decides. */
struct anchor {
	uint32_t place, generation; /* low and high half of the owner's handle */
	_Atomic(uint32_t) tag;      /* TAG; release, pairs with mark_anchor */
};
/* With the byte that the collector adds an anchor is one granule of 16. */
_Static_assert(sizeof(struct anchor) == 12, "an anchor is one granule of the collector");

/* A queue for one marker thread at a time. Several may trace at once: the only effect is that a
 * block which two threads mark is traced twice. */
struct engine {
	struct ch__lock lock;
	struct ch_marker marker; /* [lock] */
	char apart[CH__LINE_BYTES]; /* no line of the cache is shared with the next engine's lock */
};

enum { ENGINES = 4 };

/* heap->driver_data; [GC] under the collector's allocation lock */
struct bdw {
	struct ch_heap *heap; /* [const] */
	struct bdw *next;     /* [GC] */
	uint32_t first_epoch; /* of the full collection; owners marked since then are roots [GC] */
	bool is_frozen;       /* [GC] */
	bool is_full;         /* a full collection is under way [GC] */
	bool must_retrace;    /* is_full, and code ran since its first stop [GC] */
	bool is_done;         /* this stop reached the end of marking [GC] */
	uint64_t stop_ns;     /* [GC] */
	_Atomic(int) blind_to; /* the thread whose stack the last scan did not know; 0: none */
	struct engine engines[ENGINES];
};

/* The libgc mark stack on which the mark procedure pushes refs. */
struct mark_stack {
	struct GC_ms_entry *top, *limit;
	void **source;
};

enum { TAG = 0x43480001 }; /* no plausible half of a link or a small number */

static struct bdw *heaps;     /* [GC] */
static struct ch__lock setup; /* outermost, and not held over a fork */
static bool is_begun, is_set_up; /* [setup] */
static unsigned anchor_kind; /* [const] */
static void *sentinel;       /* [const] */
static bool full_asked;      /* since the last PRE_STOP [GC] */
static bool world_stopped;   /* [GC] */
static struct ch__os_action previous_suspend; /* [setup] */
static GC_start_callback_proc previous_start;
static GC_on_collection_event_proc previous_event;
static GC_push_other_roots_proc previous_roots;

static enum ch_status collect(struct ch_heap *);

static bool is_bdw(const struct ch_heap *heap)
{
	return heap->driver.collect == collect;
}

/* --- the engine, from any marker thread --- */

static struct engine *take_engine(struct bdw *bdw) CH_UNANALYSED("which one, is found out")
{
	enum { STACK_LOG2 = 16 };
	/* Marker threads run on different stacks, so each thread tries a different engine first. */
	unsigned at = (unsigned)((uintptr_t)__builtin_frame_address(0) >> STACK_LOG2);
	for (int i = 0; i < ENGINES; i++, at++)
		if (ch__lock_try(&bdw->engines[at % ENGINES].lock, CH__RANK_ENGINE))
			return &bdw->engines[at % ENGINES];
	ch__lock_take(&bdw->engines[at % ENGINES].lock, CH__RANK_ENGINE);
	return &bdw->engines[at % ENGINES];
}
static void give_engine(struct engine *engine) CH_UNANALYSED("take_engine's")
{
	ch__lock_release(&engine->lock, CH__RANK_ENGINE);
}

/* The events of libgc say what holds: frozen from PRE_STOP_WORLD to RECLAIM_END, stopped from
 * POST_STOP_WORLD to PRE_START_WORLD. */
static void has_frozen(const struct bdw *bdw)
	CH_VOUCHES(ch__role_frozen) CH_UNANALYSED("libgc says so")
{
	CH_ASSERT(bdw->is_frozen, "a Boehm cycle outside of its freeze");
}
static void has_stopped(const struct bdw *bdw)
	CH_VOUCHES(ch__role_frozen, ch__role_stopped) CH_UNANALYSED("libgc says so")
{
	CH_ASSERT(bdw->is_frozen && world_stopped, "a Boehm scan outside of its stop");
}

static void push_from_anchor(struct ch_marker *marker, struct ch_vm *vm, uintptr_t word)
{
	(void)vm;
	struct mark_stack *stack = marker->context;
	stack->top = GC_MARK_AND_PUSH((void *)word, stack->top, stack->limit, stack->source);
}

/* Marks the owner for the cycle under way while the world runs. If the owner goes meanwhile, the
 * next owner of the record is marked and lives a cycle longer. */
static void note_owner(const struct ch_heap *heap, struct ch_owner handle)
{
	uint32_t index = ch__owner_look_up(heap, handle);
	if (!index)
		return;
	_Atomic(uint32_t) *mark = &ch__owner_at(heap, index)->mark;
	uint32_t seen = CH_LOAD_RELAXED(mark);
	/* One atomic step: a release may mark the owner dead meanwhile, which is final. */
	if (ch__is_alive(heap, seen))
		atomic_compare_exchange_strong_explicit(mark, &seen, CH_LOAD_RELAXED(&heap->epoch),
							memory_order_relaxed, memory_order_relaxed);
}

/* The mark procedure. Runs in the stopped world; or in GC_finalize, with the world running and
 * regions still frozen; or in a step of incremental marking, with nothing frozen. */
static struct GC_ms_entry *mark_anchor(GC_word *object, struct GC_ms_entry *top,
				       struct GC_ms_entry *limit, GC_word environment)
{
	(void)environment;
	/* The collector may have found the object by a word that memcheck takes for undefined. */
	if (heaps && CH_UNLIKELY(heaps->heap->pool->is_translated))
		ch__valgrind_copy((uintptr_t *)(void *)&object, (uintptr_t)&object, 1);
	const struct anchor *anchor = (const void *)object;
	if (atomic_load_explicit(&anchor->tag, memory_order_acquire) != TAG)
		return top;
	struct ch_owner handle = {(uint64_t)anchor->generation << 32 | anchor->place};
	struct bdw *bdw = heaps;
	while (bdw && bdw->heap->id != ch__handle_heap_id(handle.bits))
		bdw = bdw->next;
	if (!bdw || !bdw->is_full)
		return top;
	struct ch_heap *heap = bdw->heap;
	if (!bdw->is_frozen) {
		note_owner(heap, handle);
		return top;
	}
	struct mark_stack stack = {top, limit, (void **)object};
	has_frozen(bdw);
	uint32_t index = ch__owner_look_up(heap, handle);
	if (!index)
		return top;
	struct engine *engine = take_engine(bdw);
	engine->marker.ref = push_from_anchor;
	engine->marker.context = &stack;
	ch__mark_owner_index(&engine->marker, index);
	ch__mark_drain(&engine->marker);
	give_engine(engine);
	return stack.top;
}

/* --- roots --- */

static void push_word(uintptr_t word)
{
	void *slot = (void *)word;
	/* Marked at once, since the slot may be gone when the collector looks at the mark stack. */
	GC_push_all_eager(&slot, &slot + 1);
}

static void push_root_ref(struct ch_marker *marker, struct ch_vm *vm, uintptr_t word)
{
	(void)marker;
	(void)vm;
	push_word(word);
}

/* Marks the owners whose anchors this collection reached in or between earlier stops: the mark
 * procedures do not run again for these anchors. Owners born since are among the noted owners. */
static void mark_noted_owners(struct bdw *bdw, struct ch_marker *marker) CH_HAS_FREEZE
{
	struct ch_heap *heap = bdw->heap;
	for (uint32_t i = 1; i < heap->owners.used; i++) {
		const struct ch__owner *owner = ch__owner_at(heap, i);
		uint32_t mark = CH_LOAD_RELAXED(&owner->mark);
		if (!(CH_LOAD_RELAXED(&owner->generation) & 1) ||
		    (int32_t)(mark - bdw->first_epoch) < 0)
			continue;
		ch__mark_owner_index(marker, i);
		if (marker->tail - marker->head > marker->queue_mask / 2)
			ch__mark_drain(marker);
	}
}

static void push_roots_of(struct bdw *bdw) CH_HAS_STOP
{
	struct engine *engine = take_engine(bdw);
	struct ch_marker *marker = &engine->marker;
	marker->ref = push_root_ref;
	marker->context = NULL;
	if (bdw->must_retrace)
		mark_noted_owners(bdw, marker);
	ch__mark_roots(marker);
	ch__scan_stacks(marker);
	CH_STORE_RELAXED(&bdw->blind_to, marker->blind_to);
	give_engine(engine);
}

static void push_all_refs(const struct ch_heap *heap)
{
	for (uint32_t i = 1; i < heap->blocks.used; i++) {
		const struct ch__block *block = ch__block_at(heap, i);
		if (!(atomic_load_explicit(&block->generation, memory_order_acquire) & 1) ||
		    !ch__block_is_alive(heap, block))
			continue;
		const struct ch__side_list *list = block->side_list;
		for (uint32_t at = 0; list && at < list->count; at++) {
			uintptr_t exec = ch__exec(heap, ch__side_items(list)[at].at), word;
			if (list->kinds[at] != CH__ITEM_REF)
				continue;
			memcpy(&word, ch__pool_read(heap->pool, exec), sizeof word);
			push_word(word);
		}
	}
}

/* The collecting thread gets no signal, so its record is SIGNALLED while its stack is scanned. */
static void publish_collector(bool is_stopped)
{
	uint32_t from = is_stopped ? CH__RUNNING : CH__SIGNALLED;
	for (struct ch__thread *t = ch__thread_list; t; t = t->next_of_thread) {
		if (!is_bdw(t->heap) || CH_LOAD_RELAXED(&t->state) != from)
			continue;
		if (is_stopped) {
			ch__thread_publish_self(t);
			/* A calling frame has no red zone; below sp lie words of the last scan. */
			t->shown.sp += CH_ARCH_RED_ZONE_BYTES;
		}
		ch__thread_set_state(t, is_stopped ? CH__SIGNALLED : CH__RUNNING,
				     memory_order_release, __func__);
	}
}

/* Called again in a stop when the collector's mark stack overflowed. Marked blocks are passed over,
 * save own roots, which are traced and counted again; a ref that was pushed before is a marked
 * object, which the collector looks at again. */
static void push_other_roots(void)
{
	/* Puts the registers of the collecting thread into this frame, which is scanned. */
	__builtin_unwind_init();
	if (previous_roots)
		previous_roots();
	push_word((uintptr_t)sentinel);
	/* Steps of incremental marking stop no thread; the stop pushes the roots again. */
	if (!world_stopped)
		return;
	publish_collector(true);
	for (struct bdw *bdw = heaps; bdw; bdw = bdw->next) {
		has_stopped(bdw);
		if (bdw->is_full)
			push_roots_of(bdw);
		else
			push_all_refs(bdw->heap);
	}
	publish_collector(false);
}

/* --- threads --- */

/* Publishes one record of the thread in each call, then calls libgc's handler, which sleeps until
 * the world goes on. The images are put back afterwards: the signal may have come in the middle of
 * a park, between two stores of the same fields. */
static void stop_with(struct ch__thread *thread, int signal, void *info, void *ucontext)
{
	while (thread && (!is_bdw(thread->heap) || CH_LOAD_RELAXED(&thread->state) != CH__RUNNING))
		thread = thread->next_of_thread;
	if (!thread) {
		ch__os_signal_chain(signal, info, ucontext, &previous_suspend, false);
		return;
	}
	struct ch__shown before = thread->shown;
	ch__thread_publish_context(thread, ucontext);
	ch__thread_set_state(thread, CH__SIGNALLED, memory_order_release, __func__);
	stop_with(thread->next_of_thread, signal, info, ucontext);
	ch__thread_set_state(thread, CH__RUNNING, memory_order_release, __func__);
	atomic_signal_fence(memory_order_seq_cst);
	thread->shown = before;
	ch__thread_serialize(thread);
}

static void handle_suspend(int signal, void *info, void *ucontext)
{
	stop_with(ch__thread_list, signal, info, ucontext);
}

/* --- cycles --- */

static void before_stop(void) CH_UNANALYSED("a freeze of each heap, in a loop")
{
	bool is_cleared = full_asked && !GC_is_marked(sentinel);
	full_asked = false;
	for (struct bdw *bdw = heaps; bdw; bdw = bdw->next) {
		struct ch_heap *heap = bdw->heap;
		bdw->stop_ns = ch__os_now_ns();
		bdw->is_done = false;
		ch__freeze(heap);
		bdw->is_frozen = true;
		/* Refused: the collector stops all threads before any enters a region. */
		if (!ch__core_sync(heap))
			ch__core_sync_by_stop(heap);
		if (!is_cleared && !bdw->is_full)
			continue;
		bdw->must_retrace = !is_cleared;
		bdw->is_full = true;
		ch__cycle_begin(heap);
		for (int i = 0; i < ENGINES; i++)
			ch__marker_init(heap, &bdw->engines[i].marker);
		if (is_cleared)
			bdw->first_epoch = CH_LOAD_RELAXED(&heap->epoch);
	}
}

static void thaw(struct bdw *bdw) CH_UNANALYSED("a freeze that lasts from event to event")
{
	if (!bdw->is_frozen)
		return;
	bdw->is_frozen = false;
	ch__unfreeze(bdw->heap);
}

static void after_start(void)
{
	for (struct bdw *bdw = heaps; bdw; bdw = bdw->next) {
		if (!bdw->is_frozen)
			continue;
		has_frozen(bdw);
		ch__stats_note_pause(bdw->heap, bdw->stop_ns, bdw->stop_ns);
		if (bdw->is_done)
			continue;
		ch__cycle_give_up(bdw->heap);
		thaw(bdw);
	}
}

static void after_reclaim(void)
{
	for (struct bdw *bdw = heaps; bdw; bdw = bdw->next) {
		if (!bdw->is_frozen)
			continue;
		has_frozen(bdw);
		if (bdw->is_full && CH_LOAD_RELAXED(&bdw->blind_to)) {
			ch__cycle_give_up(bdw->heap);
			bdw->is_full = false;
		} else if (bdw->is_full) {
			bdw->is_full = false;
			for (int i = 0; i < ENGINES; i++) {
				const struct ch_marker *of = &bdw->engines[i].marker;
				bdw->heap->marker.marked += of->marked;
				bdw->heap->marker.stack_roots += of->stack_roots;
				bdw->heap->marker.own_roots += of->own_roots;
				bdw->heap->marker.has_released_owners |= of->has_released_owners;
			}
			ch__cycle_complete(bdw->heap, bdw->stop_ns);
		}
		thaw(bdw);
	}
}

static void on_start(void)
{
	full_asked = true;
	if (previous_start)
		previous_start();
}

static void on_event(GC_EventType event)
{
	switch (event) {
	case GC_EVENT_PRE_STOP_WORLD:
		before_stop();
		break;
	case GC_EVENT_POST_STOP_WORLD:
		world_stopped = true;
		break;
	case GC_EVENT_MARK_END:
		for (struct bdw *bdw = heaps; bdw; bdw = bdw->next)
			bdw->is_done = true;
		break;
	case GC_EVENT_PRE_START_WORLD:
		world_stopped = false;
		break;
	case GC_EVENT_POST_START_WORLD:
		after_start();
		break;
	case GC_EVENT_RECLAIM_END:
		after_reclaim();
		break;
	default:
		break;
	}
	if (previous_event)
		previous_event(event);
}

/* --- the driver --- */

/* `completed` moves when marks grow old, too. */
static uint64_t cycles_of(const struct ch_heap *heap)
{
	return __atomic_load_n(&heap->stats.cycles, __ATOMIC_RELAXED);
}

static enum ch_status because_unregistered(void)
{
	return ch__because(CH_E_THREAD, "the collector of Boehm does not know thread %d",
			   ch__os_thread_id());
}

static enum ch_status collect(struct ch_heap *heap)
{
	if (!GC_thread_is_registered())
		return because_unregistered();
	struct bdw *bdw = heap->driver_data;
	uint64_t before = cycles_of(heap);
	/* Of an earlier collection, which has ended. */
	GC_alloc_lock();
	CH_STORE_RELAXED(&bdw->blind_to, 0);
	GC_alloc_unlock();
	GC_gcollect();
	if (cycles_of(heap) != before)
		return CH_OK;
	if (GC_is_disabled())
		return ch__because(CH_E_BUSY, "the collector of Boehm is disabled");
	int blind_to = CH_LOAD_RELAXED(&bdw->blind_to);
	return blind_to ? ch__because_blind(blind_to)
			: ch__because(CH_E_BUSY, "the collector of Boehm gave up");
}

static void destroy(struct ch_heap *heap)
{
	struct bdw *bdw = heap->driver_data;
	if (!bdw)
		return;
	GC_alloc_lock();
	struct bdw **link = &heaps;
	/* In a child of fork the heap may be on no list: a lost thread began to destroy it. */
	while (*link && *link != bdw)
		link = &(*link)->next;
	if (*link)
		*link = bdw->next;
	GC_alloc_unlock();
}

/* A child of fork has nothing to mend. If the collector handles forks, its lock is held across the
 * fork, and no stop is under way. Otherwise a child that lost a stop lost the lock with it. */
static const struct ch__driver driver = {collect, destroy, GC_thread_is_registered};

/* The static tables of the allocator inside the library: 2 MiB of words that lead to side memory
 * only. A scan at each collection would cost more than all other roots, and hold objects by chance.
 * The linker makes the names; weak, because a library built to use malloc has no tables. */
extern char __start_ch_alloc_tables[] __attribute__((weak, visibility("hidden")));
extern char __stop_ch_alloc_tables[] __attribute__((weak, visibility("hidden")));

static void exclude_tables(void)
{
	uintptr_t from = (uintptr_t)__start_ch_alloc_tables;
	if (from < (uintptr_t)__stop_ch_alloc_tables)
		GC_exclude_static_roots(__start_ch_alloc_tables, __stop_ch_alloc_tables);
}

static void leave_setup(void)
{
	(void)ch__lock_set_free(&setup);
}

/* Called before the lock is taken. To register twice does no harm. */
static bool hear_of_forks(void)
{
	static _Atomic(bool) does_hear;
	if (!atomic_load(&does_hear) && !ch__os_atfork(NULL, NULL, leave_setup))
		return false;
	atomic_store(&does_hear, true);
	return true;
}

/* In a child of fork a setup may be begun with nobody at it. It cannot be repeated: a hook of this
 * file, installed already, would be taken for another library's hook and lead on to itself. */
static bool set_up_once(void *object, bool *is_first)
{
	ch__lock_parking(&setup, CH__RANK_SETUP);
	bool is_ready = is_set_up || !is_begun;
	if (!is_ready)
		errno = ENOTRECOVERABLE;
	if (is_ready && !is_set_up) {
		is_begun = true;
		/* With libgc's mask: no signal that libgc blocks may interrupt the handler. */
		is_ready = ch__os_signal_install(GC_get_suspend_signal(), handle_suspend,
						 &previous_suspend, CH__OS_LIKE_OLD);
		if (is_ready) {
			sentinel = object;
			exclude_tables();
			unsigned procedure = GC_new_proc(mark_anchor);
			anchor_kind =
				GC_new_kind(GC_new_free_list(), GC_MAKE_PROC(procedure, 0), 0, 1);
			previous_roots = GC_get_push_other_roots();
			previous_event = GC_get_on_collection_event();
			previous_start = GC_get_start_callback();
			GC_set_push_other_roots(push_other_roots);
			GC_set_on_collection_event(on_event);
			GC_set_start_callback(on_start);
			is_set_up = *is_first = true;
		}
		is_begun = is_set_up;
	}
	ch__lock_release(&setup, CH__RANK_SETUP);
	return is_ready;
}

static enum ch_status prepare_collector(void)
{
	if (!GC_is_init_called())
		GC_INIT();
	if (!GC_thread_is_registered())
		return because_unregistered();
	/* Allocated before the lock is taken: finalizers may run, and may make a heap. */
	void *object = GC_MALLOC_ATOMIC(1);
	if (!object)
		return ch__because_memory("the collector of Boehm");
	bool is_first = false;
	if (!hear_of_forks() || !set_up_once(object, &is_first))
		return ch__because(CH_E_OS, "the collector of Boehm cannot be set up: %m");
	if (is_first)
		GC_gcollect(); /* marks the sentinel */
	return CH_OK;
}

/* --- heaps --- */

/* Not in hooks: a forking thread can hold the allocator's locks and wait for the collector's. */
static bool grow_queues(struct bdw *bdw) CH_HAS_HEAP
{
	for (int i = 0; i < ENGINES; i++)
		if (!ch__mark_reserve(bdw->heap, &bdw->engines[i].marker))
			return false;
	return true;
}

/* Returns NULL when there is no memory. All memory goes with the heap's side memory. */
static struct bdw *new_bdw(struct ch_heap *heap)
{
	struct bdw *bdw = ch__meta_alloc(heap->meta, sizeof *bdw);
	if (!bdw)
		return NULL;
	bdw->heap = heap;
	ch__heap_lock(heap);
	bool has_queues = grow_queues(bdw);
	ch__heap_unlock(heap);
	return has_queues ? bdw : NULL;
}

enum ch_status ch_bdw_heap_create(const struct ch_config *config, struct ch_heap **out)
{
	*out = NULL;
	if (ch__is_marking())
		return ch__because_marking();
	enum ch_status status = CH_OK;
	if (config)
		status = CH__SIZED_CHECK(ch_config, config, driver, panic);
	if (status == CH_OK && config && config->driver != CH_DRIVER_BUILTIN)
		status = ch__because(CH_E_ARG, "ch_config.driver is %d: not CH_DRIVER_BUILTIN",
				     (int)config->driver);
	if (status == CH_OK)
		status = prepare_collector();
	if (status != CH_OK)
		return status;
	struct ch_config own;
	ch_config_init(&own);
	if (config)
		ch__sized_take(&own, sizeof own, config);
	own.stop_signal = 0;
	struct ch_heap *heap;
	status = ch__heap_create(&own, &driver, &heap);
	if (status != CH_OK)
		return status;
	struct bdw *bdw = new_bdw(heap);
	if (!bdw) {
		(void)!ch_heap_destroy(heap);
		return ch__because_memory("a heap of Boehm");
	}
	GC_alloc_lock();
	heap->driver_data = bdw;
	bdw->next = heaps;
	heaps = bdw;
	GC_alloc_unlock();
	*out = heap;
	return CH_OK;
}

/* --- owners --- */

/* Writes the anchor. Returns false if a full cycle ended since the record's birth. */
static bool write_anchor(struct ch_heap *heap, uint32_t index, struct anchor *anchor,
			 struct ch_owner *handle) CH_HAS_HEAP
{
	struct ch__owner *owner = ch__owner_at(heap, index);
	struct ch__thread *self = ch__region_enter_for(heap);
	bool is_alive = ch__owner_is_alive(heap, owner);
	if (is_alive) {
		*handle = ch__owner_handle(heap, index);
		anchor->place = (uint32_t)handle->bits;
		anchor->generation = (uint32_t)(handle->bits >> 32);
		CH_STORE_RELAXED(&owner->mark, CH_LOAD_RELAXED(&heap->epoch));
		atomic_store_explicit(&anchor->tag, TAG, memory_order_release);
	}
	ch__region_leave(self);
	return is_alive;
}

enum ch_status ch_bdw_owner_create(struct ch_vm *vm, const char *name, const void *fallback,
				   void *user, struct ch_owner *owner, void **out)
{
	owner->bits = 0;
	*out = NULL;
	struct ch_heap *heap = vm ? vm->heap : NULL;
	if (!vm || ch__heap_refuses(heap))
		return ch__because_refused(heap);
	if (!is_bdw(heap))
		return ch__because(CH_E_ARG, "the heap is not Boehm's: ch_owner_create");
	if (!GC_thread_is_registered())
		return because_unregistered();
	struct anchor *anchor = GC_generic_malloc(sizeof *anchor, (int)anchor_kind);
	if (!anchor)
		return ch__because_memory("an owner");
	ch__heap_lock(heap);
	grow_queues(heap->driver_data);
	enum ch_status status;
	for (;;) {
		uint32_t index;
		status = ch__owner_make(vm, name, fallback, user, &index);
		if (status != CH_OK || write_anchor(heap, index, anchor, owner))
			break;
		ch__owner_try_free(heap, index);
	}
	ch__heap_unlock(heap);
	if (status == CH_OK)
		*out = anchor;
	return status;
}

/* --- blocking --- */

void *ch_bdw_do_blocking(void *(*fn)(void *), void *arg)
{
	/* Puts the caller's registers into this frame, which is above the published sp. */
	__builtin_unwind_init();
	ch_thread_park();
	void *result = GC_do_blocking(fn, arg);
	ch_thread_unpark();
	return result;
}
