/* SPDX-License-Identifier: MIT
 * graph_driver.c: the heaps of a program under each driver. The built-in driver stops threads by
 * polls, parks or a signal. The host's driver has a collector of methods here: a method is dead
 * unless a slot or a ref of marked code names it. Boehm's driver has methods in the Boehm heap. */
#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include "graph_world.h"

#include "codeheap/codeheap_bdw.h"

#include <errno.h>
#include <gc/gc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STOP_SIGNAL = SIGUSR2, WORD_BASE = 1 << 20 };

/* For the Boehm collector: an array on its heap, not scanned static data. */
struct method {
	void *anchor;
};
static struct method **methods;

/* The host's collector: one stop of the world for all heaps. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	_Atomic(bool) is_wanted;
	int inside, stopped; /* attached threads; stopped threads */
	uint8_t *is_marked;
	uint32_t *queue;
	uint32_t queued;
} host = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static bool is_host(void)
{
	return graph_world.program->driver == GRAPH_HOST;
}

/* The harness stops the host's world, not the heap. */
static bool stops_host(void)
{
	return is_host() && !graph_world.program->stops;
}

static bool is_boehm(void)
{
	return graph_world.program->driver == GRAPH_BOEHM;
}

/* --- callbacks --- */

static uintptr_t on_ref(void *user, uintptr_t word)
{
	(void)user;
	if (!is_host() || word < WORD_BASE)
		return word;
	uint32_t owner = (uint32_t)(word - WORD_BASE) / 16;
	if (owner >= GRAPH_OWNERS)
		graph_fail("a ref says 0x%zx", word);
	if (!host.is_marked[owner]) {
		host.is_marked[owner] = true;
		host.queue[host.queued++] = owner;
	}
	return word;
}

static void on_wanted(void *user)
{
	atomic_store(&((struct graph_heap *)user)->is_wanted, true);
}

const struct ch_ops graph_ops = {.size = sizeof graph_ops,
				 .branch_hit = graph_run_hit,
				 .ref = on_ref,
				 .block_freed = graph_run_freed,
				 .collect_wanted = on_wanted};

static void on_panic(const char *reason)
{
	graph_fail("panic: %s", reason);
}

/* --- life --- */

static void start_boehm(void)
{
	char count[16];
	snprintf(count, sizeof count, "%d", graph_world.program->parallel);
	setenv("GC_MARKERS", count, 1);
	GC_set_handle_fork(1);
	GC_INIT();
	GC_allow_register_threads();
	if (graph_world.program->incremental)
		GC_enable_incremental();
	methods = GC_MALLOC_UNCOLLECTABLE(GRAPH_OWNERS * sizeof(struct method *));
	if (!methods)
		graph_fail("no memory for methods");
}

static void start_heap(int index)
{
	const struct graph_program *p = graph_world.program;
	struct graph_heap *h = &graph_world.heaps[index];
	struct ch_config config;
	ch_config_init(&config);
	config.pool_bytes = (size_t)p->pool_kb << 10;
	config.page_bytes = (size_t)p->page_kb << 10;
	config.driver = is_host() ? CH_DRIVER_HOST : CH_DRIVER_BUILTIN;
	config.backend = p->memfd ? CH_BACKEND_MEMFD : CH_BACKEND_AUTO;
	config.stops_world = p->stops;
	config.stop_signal = p->driver == GRAPH_SIGNALS || p->stops == 2 ? STOP_SIGNAL : 0;
	config.stop_wait_ms = GRAPH_WAIT_MS / 2;
	config.sinks = (unsigned)p->sinks;
	config.jitdump_dir = graph_world.folder;
	config.panic = on_panic;
	enum ch_status status = is_boehm() ? ch_bdw_heap_create(&config, &h->heap)
					   : ch_heap_create(&config, &h->heap);
	graph_allow(status, GRAPH_BIT(CH_OK), "a heap");
	for (int vm = 0; vm < p->vms; vm++)
		graph_allow(ch_vm_attach(h->heap, &graph_ops, h, &h->vms[vm]), GRAPH_BIT(CH_OK),
			    "a vm");
	/* The incremental collector goes on after faults of its own, so its handler has to be the
	 * later handler. */
	if (!p->incremental || !is_boehm())
		graph_allow(ch_trap_install(h->heap), GRAPH_BIT(CH_OK), "the handler of traps");
}

void graph_driver_start(void)
{
	if (is_boehm())
		start_boehm();
	host.is_marked = calloc(GRAPH_OWNERS, 1);
	host.queue = calloc(GRAPH_OWNERS, sizeof *host.queue);
	if (!host.is_marked || !host.queue)
		graph_fail("no memory");
	for (int i = 0; i < graph_world.program->heaps; i++)
		start_heap(i);
}

void graph_driver_end(void)
{
	for (int i = 0; i < graph_world.program->heaps; i++) {
		struct graph_heap *h = &graph_world.heaps[i];
		struct ch_stats stats = {.size = sizeof stats};
		graph_allow(ch_heap_stats(h->heap, &stats), GRAPH_BIT(CH_OK), "statistics");
		GRAPH_COUNT(graph_collections, stats.cycles);
		GRAPH_COUNT(graph_stale_hits, stats.branch_hits_stale);
		for (int vm = 0; vm < graph_world.program->vms; vm++)
			graph_allow(ch_vm_detach(h->vms[vm]), GRAPH_BIT(CH_OK), "a vm's end");
		graph_allow(ch_heap_destroy(h->heap), GRAPH_BIT(CH_OK), "a heap's end");
	}
}

void graph_driver_enter_thread(struct graph_thread *t)
{
	graph_set_self(t);
	struct GC_stack_base base;
	if (is_boehm() &&
	    (GC_get_stack_base(&base) != GC_SUCCESS || GC_register_my_thread(&base) != GC_SUCCESS))
		graph_fail("the collector does not take a thread");
	if (is_host()) {
		pthread_mutex_lock(&host.lock);
		host.inside++;
		pthread_mutex_unlock(&host.lock);
	}
	for (int i = 0; i < graph_world.program->heaps; i++)
		graph_allow(ch_thread_attach(graph_world.heaps[i].heap, NULL, NULL),
			    GRAPH_BIT(CH_OK), "a thread");
	graph_stacks_attach_home(t);
	t->is_over = false;
}

void graph_driver_leave_thread(struct graph_thread *t)
{
	t->is_over = true;
	graph_stacks_detach_home(t);
	for (int i = 0; i < graph_world.program->heaps; i++)
		graph_allow(ch_thread_detach(graph_world.heaps[i].heap), GRAPH_BIT(CH_OK),
			    "a thread's end");
	if (is_host()) {
		pthread_mutex_lock(&host.lock);
		host.inside--;
		pthread_cond_broadcast(&host.changed);
		pthread_mutex_unlock(&host.lock);
	}
	if (is_boehm())
		GC_unregister_my_thread();
}

/* --- owners --- */

/* Stores is_born last: a thread that sees is_born uses the rest. */
static void be_born(struct graph_owner *o)
{
	o->cell = ch_owner_cell(o->handle);
	atomic_store(&o->is_born, true);
}

/* A stop between the call and the store of the result would leave an owner that the collector does
 * not mark. */
static void create_undisturbed(struct ch_vm *of, const char *name, const void *fallback,
			       struct graph_owner *o)
{
	sigset_t stop, before;
	sigemptyset(&stop);
	if (graph_world.program->stops)
		sigaddset(&stop, STOP_SIGNAL);
	pthread_sigmask(SIG_BLOCK, &stop, &before);
	graph_allow(ch_owner_create(of, name, fallback, o, &o->handle), GRAPH_BIT(CH_OK),
		    "an owner");
	be_born(o);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static uint32_t new_owner(int heap, int vm)
{
	uint32_t number = atomic_fetch_add(&graph_world.owner_count, 1);
	if (number >= GRAPH_OWNERS) {
		atomic_store(&graph_world.owner_count, GRAPH_OWNERS);
		return 0;
	}
	struct graph_owner *o = graph_owner(number);
	o->heap = heap;
	o->vm = vm;
	atomic_store(&o->users, 1);
	return number;
}

uint32_t graph_driver_loose(int heap)
{
	return new_owner(heap, GRAPH_NO_VM);
}

void graph_driver_loosen(uint32_t owner, uint32_t number)
{
	struct graph_owner *o = graph_owner(owner);
	o->loose = number;
	o->address = graph_node(number)->entry;
	o->cell = &o->address;
	atomic_store(&o->is_born, true);
}

static void create(uint32_t number, struct ch_vm *of)
{
	struct graph_owner *o = graph_owner(number);
	const void *fallback = (const void *)(uintptr_t)graph_code_fallback;
	char name[16];
	snprintf(name, sizeof name, "o%u", number);
	if (is_boehm()) {
		struct method *method = GC_MALLOC(sizeof *method);
		if (!method)
			graph_fail("no memory for a method");
		methods[number] = method;
		graph_allow(ch_bdw_owner_create(of, name, fallback, o, &o->handle, &method->anchor),
			    GRAPH_BIT(CH_OK), "an owner");
		be_born(o);
	} else {
		create_undisturbed(of, name, fallback, o);
	}
}

uint32_t graph_driver_owner(int heap, int vm)
{
	uint32_t number = new_owner(heap, vm);
	if (number)
		create(number, graph_world.heaps[heap].vms[vm]);
	return number;
}

uint32_t graph_driver_guest(int heap)
{
	struct graph_heap *h = &graph_world.heaps[heap];
	uint32_t number = new_owner(heap, GRAPH_GUEST_VM);
	struct ch_ops ops = graph_ops;
	ops.tells_detached = true;
	if (!number)
		return 0;
	graph_allow(ch_vm_attach(h->heap, &ops, h, &graph_owner(number)->guest),
		    GRAPH_BIT(CH_OK), "a vm");
	create(number, graph_owner(number)->guest);
	return number;
}

uintptr_t graph_driver_word(uint32_t owner)
{
	if (atomic_load(&graph_owner(owner)->is_dropped) || graph_owner(owner)->loose)
		return 0;
	/* This stack holds the pointer from here on: the method cannot go. */
	if (is_boehm())
		return (uintptr_t)__atomic_load_n(&methods[owner], __ATOMIC_RELAXED);
	return WORD_BASE + (uintptr_t)owner * 16;
}

static void drop_now(uint32_t owner)
{
	struct graph_owner *o = graph_owner(owner);
	atomic_store(&o->is_dropped, true);
	if (o->loose) {
		graph_allow(ch_code_free(o->loose % 2 ? graph_world.heaps[o->heap].heap : NULL,
					 graph_node(o->loose)->exec, CH_RELEASE_COLLECT),
			    GRAPH_BIT(CH_OK), "the end of code without an owner");
		GRAPH_COUNT(graph_loose, 1);
		return;
	}
	if (is_boehm())
		__atomic_store_n(&methods[owner], NULL, __ATOMIC_RELAXED);
	if ((!is_boehm() && !is_host()) || atomic_load(&o->by_release)) {
		atomic_store(&o->is_released, true);
		graph_allow(ch_owner_release(o->handle, CH_RELEASE_COLLECT),
			    GRAPH_BIT(CH_OK) | GRAPH_BIT(CH_E_STALE), "a release");
	}
}

void graph_driver_drop(uint32_t owner, bool by_release)
{
	if (by_release)
		atomic_store(&graph_owner(owner)->by_release, true);
	graph_driver_unuse(owner);
}

bool graph_driver_use(uint32_t owner)
{
	int users = atomic_load(&graph_owner(owner)->users);
	while (users > 0)
		if (atomic_compare_exchange_weak(&graph_owner(owner)->users, &users, users + 1))
			return true;
	return false;
}

void graph_driver_unuse(uint32_t owner)
{
	if (atomic_fetch_sub(&graph_owner(owner)->users, 1) == 1)
		drop_now(owner);
}

/* --- stops of the host's world --- */

/* Under the host's lock. */
static void wait_for_change(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += GRAPH_WAIT_MS / 1000;
	if (pthread_cond_timedwait(&host.changed, &host.lock, &until) == ETIMEDOUT)
		graph_fail("the host's world did not stop");
}

static void stand_still(void)
{
	pthread_mutex_lock(&host.lock);
	host.stopped++;
	pthread_cond_broadcast(&host.changed);
	pthread_mutex_unlock(&host.lock);
}

static void move_on(void)
{
	pthread_mutex_lock(&host.lock);
	while (atomic_load(&host.is_wanted))
		wait_for_change();
	host.stopped--;
	pthread_mutex_unlock(&host.lock);
}

void graph_driver_park(void)
{
	ch_thread_park();
	if (stops_host())
		stand_still();
}

void graph_driver_unpark(void)
{
	if (stops_host())
		move_on();
	ch_thread_unpark();
}

void graph_driver_sleep(unsigned us)
{
	struct timespec left = {0, (long)us * 1000};
	graph_driver_park();
	while (nanosleep(&left, &left) && errno == EINTR)
		continue;
	graph_driver_unpark();
}

void graph_driver_safepoint(void)
{
	const struct graph_program *p = graph_world.program;
	if (p->driver == GRAPH_POLLS || p->driver == GRAPH_BOEHM || p->stops ||
	    graph_self()->is_in_handler)
		ch_thread_poll();
	else if (p->driver == GRAPH_PARKS || (is_host() && atomic_load(&host.is_wanted))) {
		graph_driver_park();
		graph_driver_unpark();
	}
	for (int i = 0; i < p->heaps; i++)
		if (p->eager && atomic_load(&graph_world.heaps[i].is_wanted) &&
		    atomic_exchange(&graph_world.heaps[i].is_wanted, false))
			graph_driver_collect(i);
}

/* --- cycles --- */

static void drain(struct ch_marker *marker, int heap)
{
	while (host.queued) {
		uint32_t owner = host.queue[--host.queued];
		if (graph_owner(owner)->heap == heap)
			ch_mark_owner(marker, graph_owner(owner)->handle);
	}
}

/* The objects move to and fro: both words name the same owner. */
static uintptr_t move_object(void *arg, uintptr_t word, bool *is_young)
{
	(void)arg;
	if (word < WORD_BASE || word >= WORD_BASE + (uintptr_t)GRAPH_OWNERS * 16 || word % 8)
		graph_fail("a ref says 0x%zx", word);
	*is_young = word & 16;
	return word ^ 8;
}

static void collect_minor(int heap)
{
	struct ch_marker *marker;
	graph_allow(ch_mark_begin(graph_world.heaps[heap].heap, &marker), GRAPH_BIT(CH_OK),
		    "a minor collection");
	graph_allow(ch_refs_visit(marker, CH_REFS_YOUNG, move_object, NULL), GRAPH_BIT(CH_OK),
		    "refs to young objects");
	graph_allow(ch_mark_end(marker, false), GRAPH_BIT(CH_OK), "a minor collection's end");
}

static void mark_and_end(int heap)
{
	struct ch_marker *marker;
	collect_minor(heap);
	memset(host.is_marked, 0, GRAPH_OWNERS);
	host.queued = 0;
	graph_allow(ch_mark_begin(graph_world.heaps[heap].heap, &marker), GRAPH_BIT(CH_OK),
		    "a cycle");
	uint32_t count = atomic_load(&graph_world.owner_count);
	for (uint32_t i = 1; i < count && i < GRAPH_OWNERS; i++) {
		struct graph_owner *o = graph_owner(i);
		if (!atomic_load(&o->is_born) || atomic_load(&o->is_dropped) || o->loose ||
		    o->heap != heap)
			continue;
		host.is_marked[i] = true;
		ch_mark_owner(marker, o->handle);
		drain(marker, heap);
	}
	ch_mark_stacks(marker);
	drain(marker, heap);
	graph_allow(ch_refs_visit(marker, CH_REFS_ALL, move_object, NULL), GRAPH_BIT(CH_OK),
		    "all refs");
	graph_allow(ch_mark_end(marker, true), GRAPH_BIT(CH_OK), "the end of a cycle");
}

static bool collect_host(int heap)
{
	pthread_mutex_lock(&host.lock);
	bool is_mine = !atomic_exchange(&host.is_wanted, true);
	if (is_mine) {
		while (host.stopped < host.inside - 1)
			wait_for_change();
		pthread_mutex_unlock(&host.lock);
		mark_and_end(heap);
		pthread_mutex_lock(&host.lock);
		atomic_store(&host.is_wanted, false);
		pthread_cond_broadcast(&host.changed);
	}
	pthread_mutex_unlock(&host.lock);
	ch_thread_poll();
	return is_mine;
}

/* A thread that comes during another thread's mark does not collect. */
static bool collect_stopping(int heap)
{
	bool is_mine = !pthread_mutex_trylock(&host.lock);
	if (is_mine) {
		mark_and_end(heap);
		pthread_mutex_unlock(&host.lock);
	}
	ch_thread_poll();
	return is_mine;
}

bool graph_driver_collect(int heap)
{
	if (is_host())
		return stops_host() ? collect_host(heap) : collect_stopping(heap);
	unsigned allowed = GRAPH_BIT(CH_OK);
	if (is_boehm() && graph_world.program->incremental)
		allowed |= GRAPH_BIT(CH_E_BUSY);
	return graph_allow(ch_heap_collect(graph_world.heaps[heap].heap), allowed,
			   "a collection") == CH_OK;
}

void graph_driver_collect_alone(int heap)
{
	if (is_host()) {
		mark_and_end(heap);
		return;
	}
	/* An incremental collector may give up a collection. */
	enum ch_status status = CH_E_BUSY;
	for (int i = 0; status == CH_E_BUSY && i < 10; i++)
		status = ch_heap_collect(graph_world.heaps[heap].heap);
	graph_allow(status, GRAPH_BIT(CH_OK), "a collection at rest");
}

uint64_t graph_cycles(int heap)
{
	struct ch_stats stats = {.size = sizeof stats};
	graph_allow(ch_heap_stats(graph_world.heaps[heap].heap, &stats), GRAPH_BIT(CH_OK),
		    "statistics");
	return stats.cycles;
}

/* --- stacks and forks --- */

/* The collector has to know the stack of each thread, and may not come between. */
void graph_driver_switch(const struct graph_stack *to)
{
	if (!is_boehm())
		return;
	struct GC_stack_base bottom = {.mem_base = to->high};
	GC_alloc_lock();
	GC_set_stackbottom(NULL, &bottom);
}

void graph_driver_switched(void)
{
	if (is_boehm())
		GC_alloc_unlock();
}

void graph_driver_forked(void)
{
	pthread_mutex_init(&host.lock, NULL);
	pthread_cond_init(&host.changed, NULL);
	atomic_store(&host.is_wanted, false);
	host.inside = 1;
	host.stopped = 0;
}
