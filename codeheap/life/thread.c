/* SPDX-License-Identifier: MIT
 * thread.c: attachments of threads to heaps, and fibers. Parks and locks are in park.c, regions in
 * region.c. Lock: registry for the lists. */
#include "codeheap/life/life.h"

/* Each attachment registers this anew, so that a later destructor may attach again. A thread ending
 * between ch_mark_begin and ch_mark_end stays attached: nobody else may take what it holds. */
static void leave_all(void *unused)
{
	(void)unused;
	while (ch__thread_list && ch_thread_detach(ch__thread_list->heap) == CH_OK)
		continue;
}

static void set_stack(struct ch__thread *thread, const void *low, const void *high)
	CH_REQUIRES(ch__role_registry)
{
	thread->stack_grows = ch__os_is_first_stack(low, high);
	thread->stack_low = (uintptr_t)low;
	thread->stack_high = (uintptr_t)high;
}

static enum ch_status because_parked(void)
{
	return ch__because(CH_E_STATE, "thread %d is parked: ch_thread_unpark comes first",
			   ch__thread_list->thread_id);
}

static enum ch_status attach(struct ch_heap *heap, const void *low, const void *high, bool by_call)
{
	/* A park is the thread's, in all its heaps: in a new one the thread would count as running,
	 * and no unpark would undo a park there. */
	if (ch__thread_list && ch__thread_list->park_depth)
		return because_parked();
	if (!ch__os_at_thread_end(leave_all))
		return ch__because(CH_E_OS, "the end of threads cannot be heard of: %m");
	ch__registry_lock(heap);
	struct ch__thread *thread = heap->threads;
	while (thread && thread->is_attached)
		thread = thread->next;
	if (!thread) {
		thread = ch__meta_alloc(heap->meta, sizeof *thread);
		if (!thread) {
			ch__registry_unlock(heap);
			return ch__because_memory("a thread");
		}
		thread->heap = heap;
		atomic_store(&thread->state, CH__PARKED);
		thread->next = heap->threads;
		atomic_store_explicit(&heap->threads, thread, memory_order_release);
	}
	set_stack(thread, low, high);
	thread->thread_id = ch__os_thread_id();
	thread->is_by_call = by_call;
	thread->park_depth = thread->deliveries = 0;
	atomic_store(&thread->fiber, NULL);
	ch__thread_set_state(thread, CH__RUNNING, memory_order_seq_cst, __func__);
	thread->is_attached = true;
	thread->next_of_thread = ch__thread_list;
	/* A signal handler of this thread walks the list. */
	atomic_signal_fence(memory_order_release);
	ch__thread_list = thread;
	/* The thread may have run code of the heap before, and no stop has waited for it since.
	 * Earlier threads of this record serialized other cores. */
	thread->stops_served = 0;
	ch__thread_serialize(thread);
	CH__TELL(heap, thread_comes, thread);
	ch__registry_unlock(heap);
	return CH_OK;
}

static enum ch_status because_bounds(void)
{
	return ch__because(CH_E_OS, "the system does not know the stack of thread %d: %m",
			   ch__os_thread_id());
}

enum ch_status ch_thread_attach(struct ch_heap *heap, const void *low, const void *high)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	struct ch__thread *thread = ch__thread_self(heap);
	if (thread && !thread->is_by_call)
		return ch__because(CH_E_THREAD, "thread %d is attached already", thread->thread_id);
	if (thread && thread->park_depth)
		return because_parked();
	bool asks = !low && !high;
	/* A call that attached the thread asked the system. */
	if (thread && asks) {
		thread->is_by_call = false;
		return CH_OK;
	}
	if (asks && !ch__os_stack_bounds(&low, &high))
		return because_bounds();
	/* With wrong bounds every cycle would find the thread on a foreign stack, and end. */
	const void *sp = __builtin_frame_address(0);
	if (!asks && (!low || sp < low || sp >= high))
		return ch__because(CH_E_ARG, "low %lx to high %lx is not the caller's stack: sp "
					     "is %lx", (uintptr_t)low, (uintptr_t)high,
				   (uintptr_t)sp);
	if (!thread)
		return attach(heap, low, high, false);
	ch__registry_lock(heap);
	/* A cycle of the host or of Boehm reads the bounds without the registry lock (I1). */
	ch__region_enter(thread);
	set_stack(thread, low, high);
	ch__region_leave(thread);
	thread->is_by_call = false;
	ch__registry_unlock(heap);
	return CH_OK;
}

enum ch_status ch__thread_need_cold(struct ch_heap *heap, struct ch__thread **self)
{
	const void *low, *high, *sp = __builtin_frame_address(0);
	if (*self)
		return because_parked();
	if (heap->driver.knows_thread && !heap->driver.knows_thread())
		return ch__because(CH_E_THREAD, "the thread is not attached, and not registered "
						"with the collector");
	if (!ch__os_stack_bounds(&low, &high))
		return because_bounds();
	/* On a fiber's or a signal's stack, the used part of the thread's own is not known. */
	if (sp < low || sp >= high)
		return ch__because(CH_E_THREAD, "the thread is not attached, and runs on a stack "
						"that the system does not know");
	enum ch_status status = attach(heap, low, high, true);
	*self = ch__thread_self(heap);
	return status;
}

enum ch_status ch_thread_detach(struct ch_heap *heap)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	struct ch__thread *thread = ch__thread_self(heap);
	if (!thread)
		return ch__because_stranger();
	ch__registry_lock(heap);
	CH__TELL(heap, thread_leaves, thread);
	ch__heap_lock(heap);
	ch__records_flush(heap, thread);
	for (uint32_t frame = 0; frame < CH__PAGE_FRAMES; frame++)
		ch__thread_use_page(thread, frame, 0);
	/* The stack may be unmapped next, and a Boehm cycle may not have stopped this thread, since
	 * the collector does not know a thread at its end. Hence the region, as in forget_stack. */
	ch__region_enter(thread);
	thread->is_attached = false;
	thread->young_of_others = thread->young_count;
	ch__region_leave(thread);
	struct ch__thread **link = &ch__thread_list;
	while (*link != thread)
		link = &(*link)->next_of_thread;
	*link = thread->next_of_thread;
	ch__thread_set_state(thread, CH__PARKED, memory_order_seq_cst, __func__);
	ch__heap_unlock(heap);
	ch__registry_unlock(heap);
	return CH_OK;
}

enum ch_status ch_fiber_attach(struct ch_heap *heap, const void *low, const void *high,
			       struct ch_fiber **out)
{
	*out = NULL;
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	if (low >= high)
		return ch__because(CH_E_ARG, "low %lx is not below high %lx", (uintptr_t)low,
				   (uintptr_t)high);
	ch__registry_lock(heap);
	struct ch_fiber *fiber = heap->free_fibers;
	if (fiber) {
		heap->free_fibers = fiber->next_free;
	} else {
		fiber = ch__meta_alloc(heap->meta, sizeof *fiber);
		if (!fiber) {
			ch__registry_unlock(heap);
			return ch__because_memory("a fiber");
		}
		fiber->heap = heap;
		fiber->next = heap->fibers;
		atomic_store_explicit(&heap->fibers, fiber, memory_order_release);
	}
	fiber->low = (uintptr_t)low;
	fiber->high = (uintptr_t)high;
	fiber->deliveries = 0;
	if (CH_UNLIKELY(heap->pool->is_translated))
		fiber->stack =
			ch__valgrind_ask(CH__ASK_STACK_REGISTER, fiber->low, fiber->high - 1, 0);
	fiber->is_attached = true;
	ch__registry_unlock(heap);
	*out = fiber;
	return CH_OK;
}

/* Whether the fiber is attached. The record of a detached fiber is kept for another stack. */
static bool is_there(const struct ch_fiber *fiber)
{
	if (!fiber->is_attached)
		(void)ch__because(CH_E_STATE, "the fiber is not attached");
	return fiber->is_attached;
}

void ch_fiber_suspend(struct ch_fiber *fiber, const void *lowest_sp)
{
	uintptr_t sp = (uintptr_t)lowest_sp & ~(uintptr_t)7;
	if (!is_there(fiber))
		return;
	/* sp is not on the fiber's stack: the whole stack is scanned, and no byte besides. */
	if (sp - fiber->low > fiber->high - fiber->low)
		sp = fiber->low;
	atomic_store_explicit(&fiber->suspended_sp, sp, memory_order_release);
}

void ch_fiber_resume(struct ch_fiber *fiber)
{
	struct ch__thread *thread = ch__thread_self(fiber->heap);
	if (!is_there(fiber))
		return;
	if (thread)
		atomic_store_explicit(&thread->fiber, fiber, memory_order_release);
	atomic_store_explicit(&fiber->suspended_sp, 0, memory_order_release);
}

/* A scan may be reading the stack, which is unmapped next. A host's cycle holds the heap lock while
 * scanning. Boehm's cycle holds none, but nobody is in a region meanwhile (I1). */
static void forget_stack(struct ch_fiber *fiber) CH_HAS_HEAP_AND_REGION
{
	for (struct ch__thread *t = fiber->heap->threads; t; t = t->next) {
		struct ch_fiber *expected = fiber;
		atomic_compare_exchange_strong(&t->fiber, &expected, NULL);
	}
	atomic_store(&fiber->suspended_sp, 0);
	fiber->is_attached = false;
}

enum ch_status ch_fiber_detach(struct ch_fiber *fiber)
{
	if (ch__is_marking())
		return ch__because_marking();
	struct ch_heap *heap = fiber->heap;
	ch__registry_lock(heap);
	if (!is_there(fiber)) {
		ch__registry_unlock(heap);
		return ch__told(CH_E_STATE);
	}
	ch__heap_lock(heap);
	struct ch__thread *self = ch__region_enter_for(heap);
	forget_stack(fiber);
	ch__region_leave(self);
	ch__heap_unlock(heap);
	if (CH_UNLIKELY(heap->pool->is_translated))
		ch__valgrind_ask(CH__ASK_STACK_DEREGISTER, fiber->stack, 0, 0);
	fiber->next_free = heap->free_fibers;
	heap->free_fibers = fiber;
	ch__registry_unlock(heap);
	return CH_OK;
}
