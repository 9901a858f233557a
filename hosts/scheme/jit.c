/* SPDX-License-Identifier: MIT
 * jit.c: the code heap shared by the VM instances of a process, and its ties to a VM: threads,
 * fibers, redefinitions, safepoints. Lock order: a VM's compile lock, then its list lock (a leaf).
 */
#define GC_THREADS
#define _GNU_SOURCE
#include <gc/gc.h>
#include <stdlib.h>

#include "jit.h"

static struct {
	pthread_mutex_t lock;
	struct ch_heap *heap;
	_Atomic int shows_lines;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* One thread may run several VM instances and is attached while any instance needs it. */
static __thread int attached_count;
static __thread struct ch_fiber *own_stack;

uint64_t jit_returns_into_invalidated(struct vm *vm)
{
	const struct jit_vm *jit = vm->jit;

	return jit ? (uint64_t)jit->returns_into_invalidated : 0;
}

void jit_count_left(struct context *ctx)
{
	jit_of(ctx)->returns_into_invalidated++;
}

struct ch_heap *jit_heap(void)
{
	return shared.heap;
}

int jit_shows_lines(void)
{
	return shared.shows_lines;
}

void jit_lock(struct jit_vm *jit)
{
	if (pthread_mutex_trylock(&jit->lock) == 0)
		return;
	ch_thread_park();
	pthread_mutex_lock(&jit->lock);
	ch_thread_unpark();
}

void jit_unlock(struct jit_vm *jit)
{
	pthread_mutex_unlock(&jit->lock);
}

/* ---- safepoints ---- */

static void refresh_entry_limit(struct context *ctx)
{
	atomic_store(&ctx->entry_limit, ctx->now.c_limit);
	if (atomic_load(&ctx->interrupt))
		atomic_store(&ctx->entry_limit, (char *)UINTPTR_MAX);
}

void jit_interrupt_all(struct jit_vm *jit)
{
	pthread_mutex_lock(&jit->list_lock);
	for (int i = 0; i < jit->context_count; i++) {
		atomic_store(&jit->contexts[i]->interrupt, 1);
		atomic_store(&jit->contexts[i]->entry_limit, (char *)UINTPTR_MAX);
	}
	pthread_mutex_unlock(&jit->list_lock);
}

void jit_collect(struct context *ctx)
{
	jit_of(ctx)->collect_wanted = 0;
	jit_of(ctx)->collections++;
	/* Collects for the VM, and sweeps dead code. If a thread would not stop, the next request
	 * collects. */
	if (ch_heap_collect(shared.heap) != CH_OK)
		ch_thread_poll();
}

static void poll(struct context *ctx)
{
	struct jit_vm *jit = jit_of(ctx);
	int64_t every = ctx->vm->options.discard_every;

	if (!jit->keeps_interrupt)
		atomic_store(&ctx->interrupt, ctx->vm->options.gc_every_calls != 0);
	refresh_entry_limit(ctx);
	if (jit->is_arena)
		return;
	if (every && __atomic_add_fetch(&jit->calls, 1, __ATOMIC_RELAXED) % every == 0 &&
	    ch_vm_discard(shared.heap, jit->ch, NULL, NULL) != CH_OK)
		return;
	if (atomic_exchange(&jit->collect_wanted, 0))
		jit_collect(ctx);
	ch_thread_poll();
}

/* ---- callbacks of the heap ---- */

static void block_freed(void *vm_user, void *block_user)
{
	(void)vm_user;
	free(block_user);
}

static void collect_wanted(void *vm_user)
{
	struct jit_vm *jit = vm_user;

	if (!atomic_exchange(&jit->collect_wanted, 1))
		jit_interrupt_all(jit);
}

static void space_free(void *vm_user)
{
	struct jit_vm *jit = vm_user;

	jit->is_full = 0;
	jit->trampolines_full = 0;
}

/* ---- hooks of the VM ---- */

static void code_created(struct context *ctx, struct code *code)
{
	(void)ctx;
	code->entry_cell = (void *)(uintptr_t)jit_unowned_cell;
	code->entry = jit_enter;
}

static void code_created_interpreted(struct context *ctx, struct code *code)
{
	(void)ctx;
	code->entry = trampoline_entry;
}

static machine_entry *loop_head(struct context *ctx, value *fp, const struct insn *pc)
{
	struct code *code = AS(closure, fp[-1])->code;

	if (code->entry != jit_enter || jit_of(ctx)->is_full)
		return NULL;
	ctx->jit_words[0] = (uint64_t)pc;
	return jit_loop_entry;
}

int arena_assume(struct jit_vm *jit, struct jit_record *record)
{
	if (jit->assumed_count == jit->assumed_capacity) {
		int capacity = jit->assumed_capacity * 2 + 64;
		struct jit_record **grown = realloc(jit->assumed, (size_t)capacity * sizeof *grown);
		if (!grown)
			return 0;
		jit->assumed = grown;
		jit->assumed_capacity = capacity;
	}
	jit->assumed[jit->assumed_count++] = record;
	return 1;
}

/* Another thread may have broken the assumption already. */
static void end_assumption(struct cell *cell)
{
	struct ch_assumption assumption = {
		__atomic_exchange_n(&cell->assumption, 0, __ATOMIC_SEQ_CST)};

	if (assumption.bits)
		(void)!ch_assumption_break(assumption, NULL);
}

static void cell_changed(struct context *ctx, struct cell *cell)
{
	struct jit_vm *jit = jit_of(ctx);

	if (jit->is_arena) {
		jit_lock(jit);
		for (int i = 0; i < jit->assumed_count; i++) {
			if (jit->assumed[i]->assumed != cell)
				continue;
			jit->assumed[i]->hits = 1;
			emit_patch_rel(jit->assumed[i]->arena_at,
				       jit->assumed[i]->record_kind == REC_LEAF
					       ? jit->assumed[i]->arena_at + 4
					       : jit->assumed[i]->arena_stub);
		}
		jit_unlock(jit);
		return;
	}
	end_assumption(cell);
}

static void *stack_low(void)
{
	pthread_attr_t attr;
	void *low = NULL;
	size_t bytes;

	if (pthread_getattr_np(pthread_self(), &attr) == 0) {
		pthread_attr_getstack(&attr, &low, &bytes);
		pthread_attr_destroy(&attr);
	}
	return low;
}

/* Returns 0 without memory. */
static int list_context(struct jit_vm *jit, struct context *ctx)
{
	int capacity = jit->context_capacity * 2 + 8, is_listed = 1;

	pthread_mutex_lock(&jit->list_lock);
	if (jit->context_count == jit->context_capacity) {
		struct context **grown =
			realloc(jit->contexts, (size_t)capacity * sizeof *jit->contexts);
		is_listed = grown != NULL;
		if (grown) {
			jit->contexts = grown;
			jit->context_capacity = capacity;
		}
	}
	if (is_listed)
		jit->contexts[jit->context_count++] = ctx;
	pthread_mutex_unlock(&jit->list_lock);
	return is_listed;
}

static void unlist_context(struct jit_vm *jit, struct context *ctx)
{
	pthread_mutex_lock(&jit->list_lock);
	for (int i = 0; i < jit->context_count; i++)
		if (jit->contexts[i] == ctx)
			jit->contexts[i] = jit->contexts[--jit->context_count];
	pthread_mutex_unlock(&jit->list_lock);
}

/* A copy: the calls that undo what was done before may change the sentence. */
static const char *why_refused(void)
{
	static __thread char why[256];

	snprintf(why, sizeof why, "%s", ch_why());
	return why;
}

/* Returns NULL, or the reason for a failure. */
static const char *attach_stack(void)
{
	struct GC_stack_base bottom;

	if (ch_thread_attach(shared.heap, NULL, NULL) != CH_OK)
		return why_refused();
	GC_get_stack_base(&bottom);
	if (ch_fiber_attach(shared.heap, stack_low(), bottom.mem_base, &own_stack) == CH_OK)
		return NULL;
	const char *refusal = why_refused();
	if (ch_thread_detach(shared.heap) != CH_OK)
		abort();
	return refusal;
}

static const char *attach_thread(struct context *ctx)
{
	struct jit_vm *jit = jit_of(ctx);
	const char *refusal = NULL;

	if (!list_context(jit, ctx))
		return "no memory";
	if (!jit->is_arena && attached_count == 0)
		refusal = attach_stack();
	if (refusal) {
		unlist_context(jit, ctx);
		return refusal;
	}
	attached_count += !jit->is_arena;
	if (jit->keeps_interrupt)
		atomic_store(&ctx->interrupt, 1);
	refresh_entry_limit(ctx);
	return NULL;
}

static void detach_thread(struct context *ctx)
{
	struct jit_vm *jit = jit_of(ctx);

	unlist_context(jit, ctx);
	if (jit->is_arena || --attached_count)
		return;
	if (ch_fiber_detach(own_stack) != CH_OK || ch_thread_detach(shared.heap) != CH_OK)
		abort();
}

static int fiber_created(struct context *ctx, struct fiber *fiber)
{
	struct ch_fiber *handle = NULL;

	if (!jit_of(ctx)->is_arena &&
	    ch_fiber_attach(shared.heap, fiber->c_low, fiber->c_high, &handle) != CH_OK)
		return 0;
	fiber->jit_words[0] = (uint64_t)handle;
	return 1;
}

static struct ch_fiber *handle_of(struct context *ctx, struct fiber *fiber)
{
	if (jit_of(ctx)->is_arena)
		return NULL;
	return fiber == ctx->main_fiber ? own_stack : (struct ch_fiber *)fiber->jit_words[0];
}

static void fiber_suspending(struct context *ctx, struct fiber *fiber, void *lowest_sp)
{
	if (handle_of(ctx, fiber))
		ch_fiber_suspend(handle_of(ctx, fiber), lowest_sp);
}

static void fiber_resumed(struct context *ctx, struct fiber *fiber)
{
	refresh_entry_limit(ctx);
	if (handle_of(ctx, fiber))
		ch_fiber_resume(handle_of(ctx, fiber));
}

static void fiber_ended(struct context *ctx, struct fiber *fiber)
{
	struct ch_fiber *handle = handle_of(ctx, fiber);

	fiber->jit_words[0] = 0;
	if (handle && ch_fiber_detach(handle) != CH_OK)
		abort();
}

/* ---- life ---- */

/* Commas separate names, as in CODEHEAP_SINKS. Returns 0 for an unknown name. */
static int parse_sinks(const char *list, unsigned *sinks)
{
	static const struct {
		const char *name;
		unsigned bits;
	} names[] = {
		{"none", CH_SINK_NONE}, {"unwind", CH_SINK_UNWIND},
		{"perfmap", CH_SINK_PERF_MAP}, {"jitdump", CH_SINK_JITDUMP},
		{"gdb", CH_SINK_GDB}, {"libunwind", CH_SINK_LIBUNWIND},
	};
	enum { COUNT = sizeof names / sizeof *names };

	*sinks = CH_SINK_DEFAULT;
	while (list) {
		size_t length = strcspn(list, ","), i = 0;
		while (i < COUNT && (strlen(names[i].name) != length ||
				     memcmp(names[i].name, list, length) != 0))
			i++;
		if (i == COUNT)
			return 0;
		*sinks |= names[i].bits;
		list = list[length] ? list + length + 1 : NULL;
	}
	return 1;
}

/* Returns true if a sink shows lines; other sinks have no use for lines. */
static int wants_lines(struct ch_heap *heap)
{
	return ch_sink_status(heap, CH_SINK_JITDUMP, NULL, NULL) ||
	       ch_sink_status(heap, CH_SINK_GDB, NULL, NULL);
}

/* Returns NULL, or the reason for a failure. */
static const char *share_heap(const struct vm_options *options)
{
	struct ch_config config;
	enum ch_status status = CH_OK;

	ch_config_init(&config);
	config.pool_bytes = (size_t)options->pool_bytes;
	config.page_bytes = (size_t)options->page_bytes;
	if (!parse_sinks(options->sinks, &config.sinks))
		return "--sinks: none, or some of unwind,libunwind,jitdump,perfmap,gdb";
	config.near_address = (const void *)jit_enter;
	pthread_mutex_lock(&shared.lock);
	if (!shared.heap)
		status = ch_bdw_heap_create(&config, &shared.heap);
	if (status == CH_OK)
		shared.shows_lines = options->lines || options->dump_ir || wants_lines(shared.heap);
	pthread_mutex_unlock(&shared.lock);
	return status == CH_OK ? NULL : ch_why();
}

static const struct vm_hooks hooks = {
	.code_created = code_created,
	.loop_head = loop_head,
	.cell_changed = cell_changed,
	.thread_started = attach_thread,
	.thread_ended = detach_thread,
	.fiber_created = fiber_created,
	.fiber_suspending = fiber_suspending,
	.fiber_resumed = fiber_resumed,
	.fiber_ended = fiber_ended,
	.poll = poll,
};

static void choose_hooks(struct vm *vm)
{
	struct vm_hooks chosen = hooks;

	if (vm->options.mode == MODE_INTERP) { /* with trampolines: they are the only code */
		chosen.code_created = code_created_interpreted;
		chosen.loop_head = NULL;
		chosen.cell_changed = NULL;
	}
	if (vm->options.trampolines)
		chosen.run = trampoline_run;
	vm_enable_hooks(vm, &chosen);
}

/* Returns NULL, or the reason for a failure. */
static const char *open_code(struct jit_vm *jit)
{
	static const struct ch_ops ops = {
		.size = sizeof ops,
		.branch_hit = jit_branch_hit,
		.block_freed = block_freed,
		.tells_detached = true,
		.collect_wanted = collect_wanted,
		.space_free = space_free,
	};
	const char *folder = jit->vm->options.dump_ir;

	if (jit->is_arena)
		return arena_start() ? NULL
				     : "--arena: the system refuses memory that is writable and "
				       "executable";
	if (folder && !(jit->listings = jit_listing_folder(folder)))
		return "--dump-ir: no folder to write in";
	const char *refusal = share_heap(&jit->vm->options);
	if (!refusal && ch_vm_attach(shared.heap, &ops, jit, &jit->ch) != CH_OK)
		refusal = ch_why();
	return refusal;
}

/* Waits for a commit of another VM's thread that the system or a debugger holds. */
static void end_code(const struct jit_vm *jit)
{
	enum ch_status status;

	if (jit->is_arena)
		return;
	while ((status = ch_vm_detach(jit->ch)) == CH_E_BUSY)
		continue;
	if (status != CH_OK)
		abort();
}

static const char *open_and_attach(struct vm *vm, struct jit_vm *jit)
{
	const char *refusal = open_code(jit);

	if (refusal)
		return refusal;
	vm->jit = jit;
	refusal = attach_thread(vm->main);
	if (!refusal) {
		choose_hooks(vm);
		return NULL;
	}
	vm->jit = NULL;
	end_code(jit);
	return refusal;
}

const char *jit_start(struct vm *vm)
{
	struct jit_vm *jit;

	if (vm->options.trampolines && vm->options.mode == MODE_ARENA)
		return "--arena: trampolines are blocks of the code heap";
	/* A thread of another VM may be about to make a callback when this VM ends: the thread's
	 * stack holds the record then. Nothing is scanned for the sake of the record. */
	jit = GC_MALLOC_ATOMIC(sizeof *jit);
	if (!jit)
		return "no memory";
	memset(jit, 0, sizeof *jit);
	jit->vm = vm;
	jit->is_arena = vm->options.mode == MODE_ARENA;
	jit->keeps_interrupt = vm->options.discard_every != 0;
	jit->emitter = calloc(1, sizeof *jit->emitter);
	pthread_mutex_init(&jit->lock, NULL);
	pthread_mutex_init(&jit->list_lock, NULL);
	const char *refusal = jit->emitter ? open_and_attach(vm, jit) : "no memory";
	if (refusal) {
		free((char *)jit->listings);
		free(jit->contexts);
		free(jit->emitter);
	}
	return refusal;
}

/* No thread of the VM runs. A callback that another VM's thread was about to make may come later:
 * the callback finds no context in the list. */
void jit_stop(struct vm *vm)
{
	struct jit_vm *jit = vm->jit;

	if (!jit)
		return;
	end_code(jit);
	/* The facts of a VM end with it. */
	for (int64_t i = 0; i < vm->cell_capacity; i++)
		for (struct cell *cell = vm->cells[i]; cell; cell = cell->next)
			end_assumption(cell);
	detach_thread(vm->main);
	free((char *)jit->listings);
	free(jit->contexts);
	free(jit->assumed);
	free(jit->emitter);
	GC_FREE(jit->kept);
	vm->jit = NULL;
	vm_enable_hooks(vm, &(struct vm_hooks){0});
}
