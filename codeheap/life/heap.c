/* SPDX-License-Identifier: MIT
 * heap.c: the life of a heap, from its configuration and the environment's wishes to its end.
 * Locks: heaps, registry, heap. */
#include "codeheap/base/sized.h"
#include "codeheap/life/life.h"
#include "invalidate/invalidate.h"
#include "unwind/nongnu.h"

enum {
	POOL_LEAST_BYTES = 1 << 20, /* of a pool that is made smaller than was asked for */
	LIMITED_POOL_BYTES = 64 << 20, /* the default where RLIMIT_AS limits address space */
	PAGE_MIN_BYTES = 4096,
	PAGE_MAX_BYTES = 65536,
	ROOM_SHARE = 8,            /* of the pool's size that is left to others, besides */
	ALLOCATOR_BYTES = 2 << 20, /* which the allocator maps for its first cache */
	STOP_WAIT_DEFAULT_MS = 1000,
	TRIED_BYTES = 160,
	FLUSH_PRIORITY = 60000, /* at exit: behind destructors without a priority */
};

static enum ch_status check_ranges(const struct ch_config *config)
{
	/* A negative value is larger than any limit. */
	const struct {
		const char *field;
		uint64_t is, least, most;
		bool is_power_of_two;
	} ranges[] = {
		{"page_bytes", config->page_bytes, PAGE_MIN_BYTES, PAGE_MAX_BYTES, true},
		{"pool_bytes", config->pool_bytes, config->page_bytes,
		 (size_t)1 << CH_ARCH_POOL_LOG2_MAX, true},
		{"driver", config->driver, 0, CH_DRIVER_HOST, false},
		{"backend", config->backend, 0, CH_BACKEND_PROCMEM, false},
		{"fork", config->fork, 0, CH_FORK_COW, false},
		{"dead_names", config->dead_names, 0, CH_DEAD_NAMES_KEPT, false},
		{"step_blocks", config->step_blocks, 0, 64, false},
		{"remembered_dead", config->remembered_dead, CH__KILLED_AT_ONCE,
		 CH__TOMBSTONES_MOST, true},
	};
	for (unsigned i = 0; i < sizeof ranges / sizeof *ranges; i++) {
		if (ranges[i].is_power_of_two && (ranges[i].is & (ranges[i].is - 1)))
			return ch__because(CH_E_ARG, "ch_config.%s is %lu: not a power of two",
					   ranges[i].field, ranges[i].is);
		if (ranges[i].is < ranges[i].least || ranges[i].is > ranges[i].most)
			return ch__because(CH_E_ARG, "ch_config.%s is %lu: not %lu to %lu",
					   ranges[i].field, ranges[i].is, ranges[i].least,
					   ranges[i].most);
	}
	return CH_OK;
}

static enum ch_status read_config(const struct ch_config *in, struct ch_config *config)
{
	struct ch_config defaults;
	ch_config_init(&defaults);
	in = in ? in : &defaults;
	enum ch_status status = CH__SIZED_CHECK(ch_config, in, driver, panic);
	if (status != CH_OK)
		return status;
	ch__sized_take(config, sizeof *config, in);
	if (!config->pool_bytes)
		config->pool_bytes = ch__os_space_is_limited() ? LIMITED_POOL_BYTES
							       : (size_t)1 << CH_ARCH_POOL_LOG2;
	if (!config->page_bytes)
		config->page_bytes = 16384;
	if (!config->stop_wait_ms)
		config->stop_wait_ms = STOP_WAIT_DEFAULT_MS;
	if (!config->step_blocks)
		config->step_blocks = 64;
	if (!config->remembered_dead)
		config->remembered_dead = 1u << CH__TOMBSTONES_LOG2;
	if (config->fork == CH_FORK_COW &&
	    (config->backend == CH_BACKEND_DUAL || config->backend == CH_BACKEND_MEMFD))
		return ch__because(CH_E_ARG, "ch_config.fork is CH_FORK_COW, and backend is %s: "
					     "only AUTO and PROCMEM go with it",
				   ch__backend_names[config->backend]);
	bool is_number = config->stop_signal >= 0 && config->stop_signal <= 64;
	if (!is_number || ch__os_signal_is_fault(config->stop_signal))
		return ch__because(CH_E_ARG, "ch_config.stop_signal is %d: %s", config->stop_signal,
				   is_number ? "a fault raises it" : "not 0 to 64");
	if (config->stops_world && config->driver != CH_DRIVER_HOST)
		return ch__because(CH_E_ARG, "ch_config.stops_world is for CH_DRIVER_HOST only");
	/* The kept configuration says whether the library stops the threads. */
	config->stops_world |= config->driver == CH_DRIVER_BUILTIN;
	status = check_ranges(config);
	size_t least = ch__os_page_bytes();
	if (status == CH_OK && least > PAGE_MAX_BYTES)
		return ch__because(CH_E_ARG, "the system's pages have %zu bytes: at most %d",
				   least, PAGE_MAX_BYTES);
	/* The system protects whole pages only: a smaller page gets the system's size. */
	if (config->page_bytes < least)
		config->page_bytes = least;
	if (config->pool_bytes < config->page_bytes)
		config->pool_bytes = config->page_bytes;
	return status;
}

/* The environment: the user of a program overrides the program there: the backend, the sinks, the
 * names of dead code. Paths are read where the files are made. An empty value asks for nothing.
 * Backends and sinks are known here by name only.
 *
 * An unknown value of these three is refused, with a line on stderr: the program sees only a
 * status, and the user would look in vain for the wanted sink or backend. An unknown value of
 * CODEHEAP_DEBUG has the line only --- */

enum { LINE_BYTES = 128 };

static const char *wish(const char *variable)
{
	const char *value = ch__os_environment(variable);
	return value && *value ? value : NULL;
}

/* The value may be anything: its control characters are taken out, and its end may be cut off. */
static enum ch_status refuse(const char *variable, const char *set, const char *values)
{
	return ch__because_user(CH_E_ARG, "%s must be %s%s, and is `%s`", variable, set, values,
				wish(variable));
}

static enum ch_status read_sinks(struct ch_config *config, unsigned *wanted)
{
	char names[LINE_BYTES];
	const char *list = wish("CODEHEAP_SINKS");
	*wanted = config->sinks == CH_SINK_DEFAULT ? CH_SINK_UNWIND : config->sinks;
	*wanted &= ~(unsigned)CH_SINK_NONE;
	if (list && ch__sinks_parse(list, wanted))
		return CH_OK;
	if (!list && !(*wanted & ~(unsigned)CH__SINKS_ALL))
		return CH_OK;
	ch__sinks_print((unsigned)CH__SINKS_ALL, names, sizeof names);
	if (!list)
		return ch__because(CH_E_ARG, "ch_config.sinks is %x: not a set of %s",
				   config->sinks, names);
	return refuse("CODEHEAP_SINKS", "none, or some of ", names);
}

/* For a wish in the environment stderr has a line. For a wish of the program CODEHEAP_DEBUG=1
 * writes the line, and the program asks ch_sink_status. */
static void tell_off(const struct ch_heap *heap, unsigned wanted)
{
	bool is_users = wish("CODEHEAP_SINKS") != NULL;
	for (unsigned bit = 1; bit & CH__SINKS_ALL; bit <<= 1) {
		char name[LINE_BYTES];
		int error = wanted & bit ? ch__sinks_status(heap->sinks, (enum ch_sink)bit) : 0;
		if (!error)
			continue;
		ch__sinks_print(bit, name, sizeof name);
		errno = error;
		if (is_users)
			(void)ch__because_user(CH_E_OS, "CODEHEAP_SINKS: %s is off, with %m", name);
		else
			(void)ch__because(CH_E_OS, "ch_config.sinks: %s is off, with %m", name);
	}
}

/* Reads all variables before failing, so that one run tells of each mistake. CODEHEAP_DEBUG changes
 * no heap: a wrong value has the line only. */
static enum ch_status read_wishes(struct ch_config *config, unsigned *wanted)
{
	enum ch_status status = CH_OK;
	const char *backend = wish("CODEHEAP_WX"), *names = wish("CODEHEAP_DEAD_NAMES");
	if (backend && !ch__backend_of_name(backend, &config->backend))
		status = refuse("CODEHEAP_WX", "", "dual, memfd or procmem");
	if (names && strcmp(names, "kept") == 0)
		config->dead_names = CH_DEAD_NAMES_KEPT;
	else if (names && strcmp(names, "replaced") == 0)
		config->dead_names = CH_DEAD_NAMES_REPLACED;
	else if (names)
		status = refuse("CODEHEAP_DEAD_NAMES", "", "replaced or kept");
	enum ch_status sinks = read_sinks(config, wanted);
	const char *debug = wish("CODEHEAP_DEBUG");
	if (debug && strcmp(debug, "0") != 0 && strcmp(debug, "1") != 0)
		(void)refuse("CODEHEAP_DEBUG", "", "0 or 1");
	return status != CH_OK ? status : sinks;
}

static void chunk_gone(void *arg, uint32_t chunk)
{
	struct ch_heap *heap = arg;
	ch__sinks_chunk_gone(heap->sinks, chunk);
}

/* errno is of the refused call, or of the allocator. */
static enum ch_status because_records(void)
{
	return ch__because(CH_E_MEMORY, "no side memory for the heap: %m");
}

static void set_records(struct ch__table *table, uint32_t bytes, uint32_t link, uint32_t generation,
			uint32_t limit)
{
	table->record_bytes = bytes;
	table->link_offset = link;
	table->generation_offset = generation;
	table->limit = limit;
}

static bool create_tables(struct ch_heap *heap)
{
	enum {
		KEPT = 1024 * CH__THREAD_RECORDS, /* free records that threads keep */
		RESERVING_HEAPS = 32, /* user space may have no more than 256 GiB (Sv39) */
	};
	size_t granules = heap->config.pool_bytes / CH__GRANULE_BYTES + KEPT;
	uint32_t most = granules < CH__INDEX_MAX ? (uint32_t)granules : CH__INDEX_MAX;
	/* Valgrind has little address space for a process. */
	uint32_t others = heap->pool->is_translated ? most : CH__INDEX_MAX;
	set_records(&heap->owners, sizeof(struct ch__owner), offsetof(struct ch__owner, next_free),
		    offsetof(struct ch__owner, generation), others);
	set_records(&heap->blocks, sizeof(struct ch__block), offsetof(struct ch__block, free_next),
		    offsetof(struct ch__block, generation), most);
	set_records(&heap->branches, sizeof(struct ch__branch), 0, 0, others);
	set_records(&heap->assumptions, sizeof(struct ch__assumption),
		    offsetof(struct ch__assumption, next_free),
		    offsetof(struct ch__assumption, generation), others);
	set_records(&heap->names, sizeof(struct ch__name), offsetof(struct ch__name, next), 0,
		    others);
	set_records(&heap->tombstones, sizeof(struct ch__tombstone), 0, 0,
		    heap->config.remembered_dead + 1);
	/* ThreadSanitizer has no random places, and Valgrind few. */
	bool is_one_of_many = heap->id > RESERVING_HEAPS && !heap->pool->is_translated && !CH_TSAN;
	return ch__tables_place(heap->tables, CH__TABLES,
				is_one_of_many || ch__os_space_is_limited());
}

static enum ch_status create_pool(struct ch_heap *heap)
{
	const struct ch_config *config = &heap->config;
	struct ch__pool_config pool = {
		.pool_bytes = config->pool_bytes,
		.page_bytes = config->page_bytes,
		.near_address = (uintptr_t)config->near_address,
		.backend = config->backend,
		.is_for_forks = config->fork == CH_FORK_COW,
		.zones = {[CH__FRAME_OWN] = CH__ZONE_OWN,
			  [CH__FRAME_RODATA] = CH__ZONE_OWN,
			  [CH__FRAME_DATA] = CH__ZONE_OWN},
		.uses = {[CH__FRAME_RODATA] = CH__PAGE_RODATA, [CH__FRAME_DATA] = CH__PAGE_DATA},
		.gone = chunk_gone,
		.gone_arg = heap,
	};
	for (uint8_t frame = CH__FRAME_SLOTS; ch__frame_has_slots(frame); frame++)
		pool.zones[frame] = CH__ZONE_SLOTS;
	if (pool.is_for_forks && pool.backend == CH_BACKEND_AUTO)
		pool.backend = CH_BACKEND_PROCMEM;
	char words[TRIED_BYTES] = "";
	struct ch__text tried = {words, sizeof words, 0};
	pool.tried = &tried;
	int error = ch__pool_create(&pool, &heap->pool);
	if (!error)
		return CH_OK;
	if (!tried.length)
		ch__os_put_error(&tried, error);
	ch__text_end(&tried);
	errno = error;
	return ch__because(error == ENOMEM || error == EAGAIN ? CH_E_MEMORY : CH_E_OS,
			   "no pool of %zu bytes: %s", config->pool_bytes, words);
}

static enum ch_status fill_heap(struct ch_heap *heap, unsigned wanted)
	CH_UNANALYSED("nobody else knows the heap")
{
	enum ch_status status = create_pool(heap);
	if (status != CH_OK)
		return status;
	/* Epochs start above 0, so that a mark of 0 is dead. */
	atomic_store(&heap->epoch, 1);
	atomic_store(&heap->completed, 1);
	heap->sweep_cursor = heap->sweep_owner = 1;
	heap->nobody.heap = heap->guest.heap = heap;
	if (!create_tables(heap) || !ch__mark_reserve(heap, &heap->marker) ||
	    !ch__table_back(&heap->owners, 0))
		return because_records();
	/* The owner of code that has none: it is never found, made, entered or released, lists and
	 * counts no block, and hears nothing. */
	struct ch__owner *none = ch__owner_at(heap, 0);
	none->vm = &heap->nobody;
	atomic_store(&none->mark, heap->epoch + CH__MARK_AHEAD);
	bool fast_fence = false, core_sync = false;
	ch__os_membarrier_register(&fast_fence, &core_sync);
	atomic_store(&heap->fence_in_regions, !fast_fence);
	atomic_store(&heap->has_core_sync, core_sync);
	heap->process = ch__os_process_id();
	ch__runtime_begin(heap);
	if (heap->config.stops_world && heap->config.stop_signal &&
	    !ch__world_install_signal(heap->config.stop_signal))
		return ch__because(errno == EINVAL ? CH_E_ARG : CH_E_OS,
				   "no handler for ch_config.stop_signal %d: %m",
				   heap->config.stop_signal);
	return ch__tell_create(heap, wanted);
}

static void free_heap(struct ch_heap *heap)
{
	struct ch__meta *meta = heap->meta;
	/* Sinks first: until told, unwinders and debuggers know the code and the tables. Each later
	 * unwind reads the tables that an unwinder keeps. */
	if (!ch__sinks_destroy(heap->sinks))
		return;
	if (heap->pool)
		ch__pool_destroy(heap->pool);
	ch__tables_free(heap->tables, CH__TABLES);
	ch__meta_destroy(meta);
}

/* Frees all destroyed heaps: there was a moment without readers since the last left the table. */
static void free_left_heaps(void) CH_REQUIRES(ch__heaps_lock)
{
	struct ch_heap *heap;
	while ((heap = ch__heaps_left) != NULL) {
		ch__heaps_left = heap->left_next;
		free_heap(heap);
	}
}

/* Whether as much address space is left as will be needed (docs/design.md, section 4). */
static bool has_room(const struct ch_heap *heap)
{
	if (!ch__os_space_is_limited())
		return true;
	size_t pool = heap->config.pool_bytes, bytes = pool / ROOM_SHARE + ALLOCATOR_BYTES;
	bool is_dual = heap->pool->backend == CH_BACKEND_DUAL;
	void *room = ch__os_private(bytes), *below = NULL;
	if (room && is_dual)
		below = ch__os_reserve(pool, ch__os_page_bytes(), 0, ch__os_anywhere);
	if (below)
		ch__os_unreserve(below, pool);
	if (room)
		ch__os_unmap(room, bytes);
	return room && (below || !is_dual);
}

/* The heaps lock makes a fork wait until the heap is whole, or gone. So a child has whole heaps:
 * no unwinder or debugger knows half a heap there, and none of their locks is held (I16). Fork
 * handlers are registered before: glibc's lock for handlers is held by a fork. */
static enum ch_status create_heap(const struct ch_config *config, unsigned wanted,
				  const struct ch__driver *driver, struct ch_heap **out)
{
	struct ch__meta *meta = ch__meta_create();
	struct ch_heap *heap = meta ? ch__meta_alloc(meta, sizeof *heap) : NULL;
	if (!heap) {
		if (meta)
			ch__meta_destroy(meta);
		return because_records();
	}
	heap->meta = meta;
	heap->config = *config;
	heap->last_frame = CH__FRAMES_FIXED - 1;
	if (driver)
		heap->driver = *driver;
	enum ch_status status =
		ch__fork_register() ? CH_OK : ch__because(CH_E_OS, "no fork handlers: %m");
	ch__heaps_take();
	if (!ch__place_is_read())
		free_left_heaps();
	/* CH_E_OS, as a smaller pool would not help. */
	if (status == CH_OK && !ch__heaps_choose_id(heap)) {
		errno = EMFILE;
		status = ch__because(CH_E_OS, "the process has %d heaps: %m", CH__HEAPS_MAX);
	}
	if (status == CH_OK)
		status = fill_heap(heap, wanted);
	if (status == CH_OK && !has_room(heap))
		status = ch__because(CH_E_MEMORY,
				     "a pool of %zu bytes leaves too little address space",
				     heap->config.pool_bytes);
	if (status == CH_OK)
		status = ch__listeners_begin(heap);
	if (status == CH_OK) {
		atomic_store(&ch__heaps[heap->id], heap);
		if (config->panic)
			ch__panic_set_hook(config->panic);
		*out = heap;
	} else {
		int error = errno;
		free_heap(heap);
		errno = error;
	}
	ch__heaps_let_go();
	return status;
}

enum ch_status ch__heap_create(const struct ch_config *in, const struct ch__driver *driver,
			       struct ch_heap **out)
{
	*out = NULL;
	if (ch__is_marking())
		return ch__because_marking();
	struct ch_config config;
	unsigned wanted = 0;
	enum ch_status status = read_config(in, &config);
	if (status == CH_OK)
		status = read_wishes(&config, &wanted);
	if (status != CH_OK)
		return status;
	if (wanted & CH_SINK_LIBUNWIND)
		ch__nongnu_find();
	/* Each size of the first backend comes before any size of the next: a limit costs size, not
	 * the backend, and with the backend what tools see of the code. */
	size_t asked = config.pool_bytes;
	bool is_first = config.backend == CH_BACKEND_AUTO && config.fork != CH_FORK_COW;
	if (is_first)
		config.backend = CH_BACKEND_DUAL;
	for (;;) {
		status = create_heap(&config, wanted, driver, out);
		if (status == CH_E_MEMORY && config.pool_bytes / 2 >= POOL_LEAST_BYTES) {
			/* With address space short, half as much may be there. */
			config.pool_bytes /= 2;
		} else if (status != CH_OK && is_first) {
			is_first = false;
			config.backend = CH_BACKEND_AUTO;
			config.pool_bytes = asked;
		} else {
			if (status == CH_OK)
				tell_off(*out, wanted);
			return status;
		}
	}
}

enum ch_status ch_heap_create(const struct ch_config *config, struct ch_heap **heap)
{
	return ch__heap_create(config, NULL, heap);
}

/* A signal handler in another thread may have found the heap in the table. The wait has a limit,
 * since a reader never ends if its thread died in the handler. Returns whether nobody reads. */
static bool wait_for_readers(void)
{
	enum { PATIENCE_MS = 1000, NS_PER_MS = 1000000 };
	static _Atomic(uint32_t) never;
	for (int ms = 0; ms < PATIENCE_MS && ch__place_is_read(); ms++)
		ch__os_futex_wait(&never, 0, NS_PER_MS);
	return !ch__place_is_read();
}

enum ch_status ch_heap_destroy(struct ch_heap *heap)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	ch__registry_lock(heap);
	ch__heap_lock(heap);
	struct ch__thread *self = ch__thread_self(heap);
	unsigned threads = 0, vms = 0, fibers = 0;
	const struct ch__thread *one = NULL; /* of the other threads */
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		if (t->is_attached && t != self) {
			if (!one || ch__os_thread_is_gone(t->thread_id))
				one = t;
			threads++;
		}
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		vms += vm->told != UINT32_MAX; /* or is being told of its blocks */
	/* A suspended fiber returns through code, too. */
	for (struct ch_fiber *fiber = heap->fibers; fiber; fiber = fiber->next)
		fibers += fiber->is_attached;
	if (one)
		(void)ch__because(CH_E_BUSY, "other attached threads: %u; one is %d%s", threads,
				  one->thread_id, ch__thread_how(one));
	ch__heap_unlock(heap);
	ch__registry_unlock(heap);
	if (threads)
		return ch__told(CH_E_BUSY);
	if (vms || fibers)
		return ch__because(CH_E_BUSY, "attached vms: %u, fibers: %u", vms, fibers);
	if (self)
		(void)!ch_thread_detach(heap);
	if (heap->driver.destroy)
		heap->driver.destroy(heap);
	/* A fork waits, as in create_heap: a heap without its listeners is in no child's table. */
	ch__heaps_take();
	ch__listeners_end(heap);
	ch__heaps_leave_id(heap);
	ch__heaps_pool_goes(heap);
	atomic_store(&ch__heaps[heap->id], NULL);
	heap->left_next = ch__heaps_left;
	ch__heaps_left = heap;
	if (wait_for_readers())
		free_left_heaps();
	ch__heaps_let_go();
	return CH_OK;
}

/* Writes buffered names, which the reader of the file would miss. A heap whose lock another thread
 * holds is left alone. Nothing is freed: other threads run on around the end of the process. A heap
 * that another thread destroys stays while places are read. A child that ran no fork handler has
 * its parent's names, and locks of lost threads. */
__attribute__((destructor(FLUSH_PRIORITY))) static void flush_at_exit(void)
{
	ch__place_read_begin();
	CH__EACH_HEAP(heap) {
		if (heap->process != ch__os_process_id() || !ch__heap_try_lock(heap))
			continue;
		ch__sinks_flush(heap->sinks, CH__FLUSH_BUFFERED);
		ch__heap_unlock(heap);
	}
	ch__place_read_end();
}
