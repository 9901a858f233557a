/* SPDX-License-Identifier: MIT
 * stacks.c: contexts and fibers, their stacks, the switch between fibers, and the stacks as the
 * collector sees them. The lists of contexts and of fibers with stacks are process-wide, under one
 * leaf lock. The collector walks both in the stopped world without the lock: each change of a list
 * is one store. A switch holds the collector's own lock, so that no stop comes during a switch.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define GC_THREADS /* otherwise GC_alloc_lock is an empty macro */
#include <gc/gc.h>
#include <gc/gc_mark.h>
#include <sys/mman.h>

#include "frame.h"
#include "switch.h"

enum {
	GUARD_BYTES = 4096,
	FIBER_C_BYTES = 1 << 20,
	FIBER_VALUE_BYTES = 512 << 10,
	C_MARGIN_BYTES = 128 << 10,
	VALUE_MARGIN_SLOTS = 8192,
	CLEARED_SLOTS = 8192,
	POOLED_MAPPINGS = 64,
};

static struct context *contexts;
static struct fiber *fibers;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static char *pooled[POOLED_MAPPINGS];
static int pooled_count;
static GC_push_other_roots_proc previous_push;

/* ---- stacks as the collector sees them ---- */

static void push_values(value *base, value *fp, value *arg_top, value *end)
{
	value *top = fp;

	if (!base)
		return;
	if (is_type(fp[-1], T_CLOSURE))
		top += AS(closure, fp[-1])->code->frame_slots;
	if (arg_top > top)
		top = arg_top;
	if (top > end)
		top = end;
	GC_push_all_eager(base, top);
	/* Values of popped frames must not live on in new frames at the same place. */
	size_t left = (size_t)(end - top);
	memset(top, 0, (left < CLEARED_SLOTS ? left : CLEARED_SLOTS) * sizeof *top);
}

static void push_fiber(struct fiber *fiber)
{
	if (fiber->state != FIBER_SUSPENDED && fiber->state != FIBER_WAITING)
		return;
	GC_push_all_eager(fiber->saved_sp, fiber->c_high);
	push_values(fiber->saved.stack_base, fiber->saved.fp, fiber->saved.arg_top,
		    fiber->saved.stack_end);
}

static void push_roots(void)
{
	if (previous_push)
		previous_push();
	for (struct context *ctx = contexts; ctx; ctx = ctx->next_context) {
		push_values(ctx->now.stack_base, ctx->now.fp, ctx->now.arg_top, ctx->now.stack_end);
		push_fiber(ctx->main_fiber);
	}
	for (struct fiber *fiber = fibers; fiber; fiber = fiber->next)
		push_fiber(fiber);
}

void stacks_init(void)
{
	static int is_done;

	pthread_mutex_lock(&list_lock);
	if (!is_done) {
		previous_push = GC_get_push_other_roots();
		GC_set_push_other_roots(push_roots);
		is_done = 1;
	}
	pthread_mutex_unlock(&list_lock);
}

/* ---- contexts ---- */

static void *map_bytes(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void set_value_stack(struct stack_state *state, void *low, size_t bytes)
{
	size_t slots = bytes / sizeof(value), margin = slots / 8;

	state->stack_base = low;
	state->stack_end = state->stack_base + slots;
	state->stack_limit = state->stack_end - (margin < VALUE_MARGIN_SLOTS ? margin
									  : VALUE_MARGIN_SLOTS);
	state->fp = state->stack_base + FRAME_HEADER;
	state->arg_top = NULL;
	state->handlers = V_NIL;
	state->winders = V_NIL;
	state->catcher = NULL;
	state->escape = NULL;
}

static size_t thread_stack_bytes(void)
{
	pthread_attr_t attr;
	void *low;
	size_t bytes = 1 << 20;

	if (pthread_getattr_np(pthread_self(), &attr) == 0) {
		pthread_attr_getstack(&attr, &low, &bytes);
		pthread_attr_destroy(&attr);
	}
	return bytes > ((size_t)1 << 30) ? (size_t)1 << 30 : bytes;
}

struct context *context_create(struct vm *vm)
{
	struct context *ctx = GC_MALLOC_UNCOLLECTABLE(sizeof *ctx);
	struct fiber *fiber = GC_MALLOC(sizeof *fiber);
	size_t bytes = (size_t)vm->options.stack_bytes;
	struct GC_stack_base bottom;
	void *stack = ctx && fiber ? map_bytes(bytes) : NULL;

	if (!stack) {
		GC_FREE(ctx);
		return NULL;
	}
	memset(ctx, 0, sizeof *ctx);
	ctx->vm = vm;
	ctx->exit_code = -1;
	ctx->last_error = V_NONE;
	ctx->thread = V_FALSE;
	ctx->is_alive = 1;
	ctx->gc_countdown = vm->options.gc_every_calls;
	atomic_store(&ctx->interrupt, vm->options.gc_every_calls != 0);
	ctx->main_fiber = fiber;
	ctx->main_fiber->header = T_FIBER;
	ctx->main_fiber->state = FIBER_RUNNING;
	ctx->main_fiber->home = fiber;
	ctx->fiber = ctx->main_fiber;
	set_value_stack(&ctx->now, stack, bytes);
	GC_get_stack_base(&bottom);
	ctx->main_fiber->c_high = bottom.mem_base;
	ctx->now.c_limit = (char *)__builtin_frame_address(0) - thread_stack_bytes() +
			   (size_t)2 * C_MARGIN_BYTES;
	pthread_mutex_lock(&list_lock);
	ctx->next_context = contexts;
	contexts = ctx;
	pthread_mutex_unlock(&list_lock);
	return ctx;
}

void context_destroy(struct context *ctx)
{
	struct context **at;
	value *base = ctx->now.stack_base;
	size_t bytes = (size_t)(ctx->now.stack_end - base) * sizeof *base;

	pthread_mutex_lock(&list_lock);
	for (at = &contexts; *at != ctx; at = &(*at)->next_context)
		;
	*at = ctx->next_context;
	pthread_mutex_unlock(&list_lock);
	munmap(base, bytes);
	GC_FREE(ctx);
}

/* ---- fibers ---- */

static struct fiber *fiber_create(struct context *ctx, value thunk)
{
	struct fiber *fiber = alloc_bytes(ctx, T_FIBER, sizeof *fiber);

	fiber->state = FIBER_NEW;
	fiber->thunk = thunk;
	fiber->home = ctx->main_fiber;
	return fiber;
}

static value fiber_yield(struct context *ctx, value v);

static void fiber_start(struct context *ctx)
{
	struct fiber *fiber = ctx->fiber;
	struct catcher catcher;

	GC_alloc_unlock();
	if (ctx->vm->hooks.fiber_resumed)
		ctx->vm->hooks.fiber_resumed(ctx, fiber);
	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0) {
		fiber->transfer = apply(ctx, fiber->thunk, 0, NULL);
	} else {
		fiber->failed = 1;
		fiber->transfer = catcher.error;
	}
	fiber_yield(ctx, V_NONE);
	__builtin_unreachable();
}

static int give_stacks(struct fiber *fiber)
{
	size_t bytes = GUARD_BYTES + FIBER_C_BYTES + FIBER_VALUE_BYTES;
	char *mapping = NULL;

	pthread_mutex_lock(&list_lock);
	if (pooled_count)
		mapping = pooled[--pooled_count];
	pthread_mutex_unlock(&list_lock);
	if (!mapping) {
		mapping = map_bytes(bytes);
		if (!mapping)
			return 0;
		if (mprotect(mapping, GUARD_BYTES, PROT_NONE)) {
			munmap(mapping, bytes);
			return 0;
		}
	}
	fiber->mapping = mapping;
	fiber->mapping_bytes = bytes;
	fiber->c_low = mapping + GUARD_BYTES;
	fiber->c_high = fiber->c_low + FIBER_C_BYTES;
	set_value_stack(&fiber->saved, fiber->c_high, FIBER_VALUE_BYTES);
	fiber->saved.fp[-1] = fiber->saved.fp[-2] = fiber->saved.fp[-3] = 0;
	fiber->saved.c_limit = fiber->c_low + C_MARGIN_BYTES;
	fiber->saved_sp = switch_prepare(fiber->c_high, fiber_start);
	pthread_mutex_lock(&list_lock);
	fiber->previous = NULL;
	fiber->next = fibers;
	if (fibers)
		fibers->previous = fiber;
	fibers = fiber;
	pthread_mutex_unlock(&list_lock);
	return 1;
}

static void take_stacks(struct fiber *fiber)
{
	char *mapping = fiber->mapping;

	pthread_mutex_lock(&list_lock);
	if (fiber->previous)
		fiber->previous->next = fiber->next;
	else
		fibers = fiber->next;
	if (fiber->next)
		fiber->next->previous = fiber->previous;
	fiber->next = fiber->previous = NULL;
	if (pooled_count < POOLED_MAPPINGS) {
		pooled[pooled_count++] = mapping;
		mapping = NULL;
	}
	pthread_mutex_unlock(&list_lock);
	if (mapping)
		munmap(mapping, fiber->mapping_bytes);
	fiber->mapping = NULL;
	fiber->resumer = NULL;
}

/* Switches to `to`; returns on the stack of `from` after a switch back. */
static void switch_fibers(struct context *ctx, struct fiber *from, struct fiber *to,
			  enum fiber_state state)
{
	struct GC_stack_base bottom = {.mem_base = to->c_high};
	const struct insn *pc = ctx->pc;

	if (ctx->vm->hooks.fiber_suspending)
		ctx->vm->hooks.fiber_suspending(ctx, from, __builtin_frame_address(0));
	GC_alloc_lock();
	from->state = state;
	from->saved = ctx->now;
	to->state = FIBER_RUNNING;
	ctx->now = to->saved;
	ctx->fiber = to;
	GC_set_stackbottom(NULL, &bottom);
	switch_stacks(ctx, &from->saved_sp, to->saved_sp);
	GC_alloc_unlock();
	ctx->pc = pc;
	if (ctx->vm->hooks.fiber_resumed)
		ctx->vm->hooks.fiber_resumed(ctx, from);
}

static value fiber_resume(struct context *ctx, struct fiber *fiber, value v)
{
	struct fiber *self = ctx->fiber;

	if (fiber->home != ctx->main_fiber)
		raise_error(ctx, "error", "fiber belongs to another thread", 0);
	if (fiber->state != FIBER_NEW && fiber->state != FIBER_SUSPENDED)
		raise_error(ctx, "error", fiber->state == FIBER_DONE ? "fiber is done"
								      : "fiber is running", 0);
	if (fiber->state == FIBER_NEW) {
		if (!give_stacks(fiber))
			raise_error(ctx, "memory", "no memory for a fiber's stacks", 0);
		if (ctx->vm->hooks.fiber_created && !ctx->vm->hooks.fiber_created(ctx, fiber)) {
			take_stacks(fiber);
			raise_error(ctx, "memory", "no memory for a fiber's record", 0);
		}
	}
	fiber->resumer = self;
	fiber->transfer = v;
	switch_fibers(ctx, self, fiber, FIBER_WAITING);
	if (fiber->state == FIBER_DONE) {
		if (ctx->vm->hooks.fiber_ended)
			ctx->vm->hooks.fiber_ended(ctx, fiber);
		take_stacks(fiber);
		if (fiber->failed)
			raise_value(ctx, fiber->transfer);
	}
	return fiber->transfer;
}

/* Ends the fiber if v is V_NONE. */
static value fiber_yield(struct context *ctx, value v)
{
	struct fiber *self = ctx->fiber;

	if (!self->resumer)
		raise_error(ctx, "error", "fiber-yield outside a fiber", 0);
	if (v != V_NONE)
		self->transfer = v;
	switch_fibers(ctx, self, self->resumer, v == V_NONE ? FIBER_DONE : FIBER_SUSPENDED);
	return self->transfer;
}

/* ---- procedures ---- */

static struct fiber *fiber_arg(struct context *ctx, const char *who, value v)
{
	return AS(fiber, object_arg(ctx, who, T_FIBER, v));
}

PRIM(make_fiber)
{
	if (!is_procedure(args[0]))
		raise_type(ctx, "make-fiber", "procedure", args[0]);
	return (value)fiber_create(ctx, args[0]);
}

PRIM(resume)
{
	struct fiber *fiber = fiber_arg(ctx, "fiber-resume", args[0]);
	return fiber_resume(ctx, fiber, argc > 1 ? args[1] : V_UNSPEC);
}

PRIM(yield) { return fiber_yield(ctx, argc ? args[0] : V_UNSPEC); }
PRIM(done_p) { return make_bool(fiber_arg(ctx, "fiber-done?", args[0])->state == FIBER_DONE); }
PRIM(fiber_p) { return make_bool(is_type(args[0], T_FIBER)); }
PRIM(current_fiber) { return (value)ctx->fiber; }

void init_fibers(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"make-fiber", make_fiber, 1, 1}, {"fiber-resume", resume, 1, 2},
		{"fiber-yield", yield, 0, 1}, {"fiber-done?", done_p, 1, 1},
		{"fiber?", fiber_p, 1, 1}, {"current-fiber", current_fiber, 0, 0},
	};

	DEFINE_PRIMS(ctx, defs);
}
