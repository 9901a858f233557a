/* SPDX-License-Identifier: MIT
 * stage_fibers.c: the fibers of the adversary tests: separate stacks, switched by hand. The
 * collector and ThreadSanitizer hear of each switch. The tests say what runs on a fiber. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

#include <sys/mman.h>

#if CH_TEST_BDW
#define GC_THREADS 1
#define GC_NO_THREAD_REDIRECTS 1
#include <gc/gc.h>
#endif

enum { FIBER_STACK_BYTES = 256 << 10 };

#if CH_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned);
#else
static void *__tsan_get_current_fiber(void)
{
	return NULL;
}
static void *__tsan_create_fiber(unsigned flags)
{
	(void)flags;
	return NULL;
}
static void __tsan_destroy_fiber(void *fiber)
{
	(void)fiber;
}
static void __tsan_switch_to_fiber(void *fiber, unsigned flags)
{
	(void)fiber, (void)flags;
}
#endif

/* libgc scans from sp to the bottom of the stack known for the thread. So begin_switch sets the new
 * bottom under libgc's lock, and end_switch on the new stack gives the lock back. */
static void begin_switch(const struct stage *s, uintptr_t bottom)
{
#if CH_TEST_BDW
	if (s->driver == STAGE_BOEHM) {
		struct GC_stack_base base = {.mem_base = (void *)bottom};
		GC_alloc_lock();
		GC_set_stackbottom(NULL, &base);
	}
#else
	(void)s, (void)bottom;
#endif
}

static void end_switch(const struct stage *s)
{
#if CH_TEST_BDW
	if (s->driver == STAGE_BOEHM)
		GC_alloc_unlock();
#else
	(void)s;
#endif
}

static void fiber_main(void *arg)
{
	struct fiber *f = arg;
	end_switch(f->stage);
	ch_fiber_resume(f->handle);
	f->fn(f, f->arg);
	f->is_done = true;
	fiber_yield(f);
}

void fiber_start(struct stage *s, struct fiber *f, void (*fn)(struct fiber *, void *), void *arg)
{
	*f = (struct fiber){.stage = s, .fn = fn, .arg = arg};
	f->stack = mmap(NULL, FIBER_STACK_BYTES, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(f->stack != MAP_FAILED);
	CHECK_EQ(ch_fiber_attach(s->heap, f->stack, f->stack + FIBER_STACK_BYTES, &f->handle),
		 CH_OK);
	f->sp = stage_new_stack(f->stack + FIBER_STACK_BYTES, fiber_main, f);
	f->tsan = __tsan_create_fiber(0);
}

/* Meanwhile the frames below this frame, on the thread's own stack, count as a fiber's. */
__attribute__((noinline)) void fiber_resume(struct fiber *f)
{
	struct ch_heap *heap = f->stage->heap;
	const struct ch__thread *self = ch__thread_self(heap);
	struct ch_fiber *home;
	CHECK_EQ(ch_fiber_attach(heap, (const void *)self->stack_low,
				 (const void *)self->stack_high, &home),
		 CH_OK);
	ch_fiber_suspend(home, (const void *)code_sp());
	f->tsan_back = __tsan_get_current_fiber();
	f->bottom_back = self->stack_high;
	begin_switch(f->stage, (uintptr_t)f->stack + FIBER_STACK_BYTES);
	__tsan_switch_to_fiber(f->tsan, 0);
	stage_switch(&f->back, f->sp);
	end_switch(f->stage);
	ch_fiber_resume(home);
	CHECK_EQ(ch_fiber_detach(home), CH_OK);
}

__attribute__((noinline)) void fiber_yield(struct fiber *f)
{
	ch_fiber_suspend(f->handle, (const void *)code_sp());
	begin_switch(f->stage, f->bottom_back);
	__tsan_switch_to_fiber(f->tsan_back, 0);
	stage_switch(&f->sp, f->back);
	end_switch(f->stage);
	ch_fiber_resume(f->handle);
}

__attribute__((noinline)) void fiber_yield_holding(struct fiber *f, const uintptr_t *held)
{
	ch_fiber_suspend(f->handle, (const void *)code_sp());
	begin_switch(f->stage, f->bottom_back);
	__tsan_switch_to_fiber(f->tsan_back, 0);
	stage_switch_holding(&f->sp, f->back, held);
	end_switch(f->stage);
	ch_fiber_resume(f->handle);
}

void fiber_end(struct fiber *f)
{
	CHECK_EQ(ch_fiber_detach(f->handle), CH_OK);
	CHECK_EQ(munmap(f->stack, FIBER_STACK_BYTES), 0);
	__tsan_destroy_fiber(f->tsan);
}
