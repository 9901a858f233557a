/* SPDX-License-Identifier: MIT
 * stacks.c: the roots on stacks (P1, I7): a conservative scan of registers, of each thread's stack
 * from the published sp, of suspended fibers, and of stacks that vms report. Runs in the stopped
 * world; takes no lock, allocates nothing.
 *
 * A word w may be a return address right behind a block's last byte, so w - 1 decides. The head
 * between the start of a part and the code is longer than a byte: so the address of a block's first
 * byte holds the block, too, and a return address holds no neighbour. The words belong to frames of
 * other threads, so sanitizers must not judge the reads. */
#include "codeheap/collect/collect.h"

#define NO_SANITIZE __attribute__((no_sanitize("address", "thread", "undefined")))

enum { FIBER_SLACK_BYTES = 256 };

/* The pool's first address is no root: frames of the library have it, and no code begins there. */
static CH_COLD void root(struct ch_marker *marker, uintptr_t word) CH_HAS_FREEZE
{
	const struct ch_heap *heap = marker->heap;
	/* A root that found no room would be lost: no marked block leads to it (I6). */
	if (CH_UNLIKELY(marker->tail - marker->head > marker->queue_mask / 2))
		ch__mark_drain(marker);
	uint32_t index = ch__find(heap, word - 1, NULL);
	if (index) {
		marker->stack_roots++;
		ch__mark_block(marker, index);
	}
}

/* Four words a turn, of some five instructions each: hardly any word is a root. Aligned, so that
 * the loop lies alike in the lines of the cache wherever the linker puts the neighbours. */
__attribute__((aligned(CH__LINE_BYTES), noinline)) NO_SANITIZE static void
scan_in_place(struct ch_marker *marker, uintptr_t low, uintptr_t high) CH_HAS_STOP
{
	uintptr_t base = marker->heap->pool->exec_base + 1;
	uintptr_t size = marker->heap->pool->pool_bytes;
	low = CH_ROUND_UP(low, 8);
#pragma GCC unroll 4
	for (uintptr_t at = low; at + 8 <= high; at += 8) {
		uintptr_t word = ch__arch_strip(*(volatile uintptr_t *)at);
		if (CH_LIKELY(word - base >= size))
			continue;
		root(marker, word);
	}
}

/* Scans memory that may be guarded, or gone: the kernel makes a copy, and unreadable memory is
 * passed over. After a short copy, single pages are tried until a page can be read. */
static void scan_copied(struct ch_marker *marker, uintptr_t low, uintptr_t high) CH_HAS_STOP
{
	uintptr_t *copy = marker->heap->stack_copy;
	const size_t all = sizeof marker->heap->stack_copy, page = CH_ARCH_SMALLEST_PAGE;
	low = CH_ROUND_UP(low, 8);
	for (size_t most = all; low + 8 <= high;) {
		size_t in_page = page - low % page, bytes = (high - low) & ~(size_t)7;
		bytes = bytes < most ? bytes : most;
		size_t copied = ch__os_copy(copy, low, bytes) & ~(size_t)7;
		scan_in_place(marker, (uintptr_t)copy, (uintptr_t)copy + copied);
		low += copied;
		if (copied)
			most = all;
		else if (bytes > in_page)
			most = in_page;
		else
			low += in_page, most = page;
	}
}

/* Memcheck would report words below sp, and words not written by a frame. In a copy all words have
 * values to memcheck. */
void ch__scan_words(struct ch_marker *marker, uintptr_t low, uintptr_t high)
{
	if (CH_UNLIKELY(marker->heap->pool->is_translated))
		scan_copied(marker, low, high);
	else
		scan_in_place(marker, low, high);
}

static void scan_live(struct ch_marker *marker, const struct ch__thread *thread, uintptr_t low,
		      uintptr_t high) CH_HAS_STOP
{
	if (thread->shown.may_end)
		scan_copied(marker, low, high);
	else
		ch__scan_words(marker, low, high);
}

/* For a thread with frames anywhere on its stack. Guards of the VM there are passed over. */
static void scan_whole_stack(struct ch_marker *marker, const struct ch__thread *thread) CH_HAS_STOP
{
	uintptr_t low = thread->stack_low;
	struct ch_fiber *fiber = atomic_load_explicit(&thread->fiber, memory_order_acquire);
	if (fiber)
		scan_copied(marker, fiber->low, fiber->high);
	if (thread->stack_grows)
		low = ch__os_first_stack_low(low, thread->stack_high);
	scan_copied(marker, low, thread->stack_high);
}

/* Where to begin a scan that includes `bytes` below sp. The page below may be a guard. */
static CH_COLD uintptr_t below(uintptr_t sp, size_t bytes, uintptr_t low)
{
	const uintptr_t page = CH_ARCH_SMALLEST_PAGE;
	uintptr_t at = sp - low > bytes ? sp - bytes : low;
	if (CH_LIKELY(at / page == sp / page) ||
	    ch__os_is_readable((const void *)(at & ~(uintptr_t)7)))
		return at;
	return sp & ~(page - 1);
}

static const struct ch_fiber *fiber_of_sp(struct ch_heap *heap, uintptr_t sp)
{
	const struct ch_fiber *fiber = heap->fibers;
	while (fiber && !(fiber->is_attached && sp >= fiber->low && sp < fiber->high))
		fiber = fiber->next;
	return fiber;
}

/* Returns false when sp lies on no stack that the heap knows. The most certain answer comes first:
 * the system's word, the thread's own bounds, fibers. */
static bool scan_frames(struct ch_marker *marker, const struct ch__thread *thread) CH_HAS_STOP
{
	const struct ch__shown *shown = &thread->shown;
	const struct ch_fiber *fiber = NULL;
	uintptr_t low, high;
	if (shown->signal_stack_end) {
		/* The interrupted frames are somewhere on the stack that the thread runs on, or on
		 * the stack around the alternate stack. */
		scan_live(marker, thread, below(shown->sp, CH_ARCH_RED_ZONE_BYTES, 0),
			  shown->signal_stack_end);
		if ((fiber = fiber_of_sp(marker->heap, shown->sp)))
			scan_copied(marker, fiber->low, fiber->high);
		scan_whole_stack(marker, thread);
		return true;
	}
	if (!ch__thread_stack(thread, shown->sp, &low, &high)) {
		if (!(fiber = fiber_of_sp(marker->heap, shown->sp)))
			return false;
		low = fiber->low;
		high = fiber->high;
		/* Of a handler, if the stack has SS_AUTODISARM: it interrupted the thread's own. */
		scan_whole_stack(marker, thread);
	}
	scan_live(marker, thread, below(shown->sp, CH_ARCH_RED_ZONE_BYTES, low), high);
	return true;
}

static void scan_thread(struct ch_marker *marker, struct ch__thread *thread) CH_HAS_STOP
{
	const struct ch__shown *shown = &thread->shown;
	/* In a stop by the library (`stopping`) each thread has shown both (I7). In any other stop
	 * a running thread has shown nothing: a host stopped it in a way of its own, or under Boehm
	 * it is in a GC_do_blocking that did not go through ch_bdw_do_blocking. */
	bool runs = atomic_load_explicit(&thread->state, memory_order_acquire) == CH__RUNNING;
	if (runs && thread != ch__thread_self(marker->heap) &&
	    !CH_LOAD_RELAXED(&marker->heap->stopping)) {
		scan_whole_stack(marker, thread);
		return;
	}
	ch__scan_words(marker, (uintptr_t)shown->words,
		       (uintptr_t)(shown->words + shown->words_count));
	ch__scan_words(marker, shown->vectors_low, shown->vectors_high);
	if (!scan_frames(marker, thread))
		marker->blind_to = thread->thread_id;
}

void ch__scan_stacks(struct ch_marker *marker)
{
	struct ch_heap *heap = marker->heap;
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		if (t->is_attached)
			scan_thread(marker, t);
	for (struct ch_fiber *f = heap->fibers; f; f = f->next) {
		uintptr_t sp = atomic_load_explicit(&f->suspended_sp, memory_order_acquire);
		if (!f->is_attached || !sp)
			continue;
		/* The whole stack, with the VM's guards in it. */
		if (sp == f->low)
			scan_copied(marker, f->low, f->high);
		else
			ch__scan_words(marker, below(sp, FIBER_SLACK_BYTES, f->low), f->high);
	}
	marker->callbacks++;
	ch__marking++; /* `roots` may call nothing that locks */
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		if (vm->is_attached && vm->ops.roots)
			vm->ops.roots(vm->user, marker);
	ch__marking--;
	marker->callbacks--;
	if (CH_UNLIKELY(marker->blind_to))
		ch__mark_all(marker);
	ch__mark_drain(marker);
}
