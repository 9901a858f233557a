/* SPDX-License-Identifier: MIT
 * stacks.c: the roots that stacks are: a conservative scan of registers, of each thread's stack
 * from its published sp, and of suspended fibers (P1, I7). Runs in the stopped world; takes no
 * lock, allocates nothing.
 *
 * A word w may be a return address right behind a block's last byte, so w - 1 decides; a word
 * that is a block's start or entry holds that block too. The words belong to other threads'
 * frames, so sanitizers must not judge the reads. */
#include "codeheap/block.h"

#define NO_SANITIZE __attribute__((no_sanitize("address", "thread", "undefined")))

enum { FIBER_SLACK_BYTES = 256 };

static void root(struct ch_marker *marker, uintptr_t word) CH_REQUIRES(ch__role_frozen)
{
	struct ch_heap *heap = marker->heap;
	/* A root that found no room would be lost: no marked block leads to it (I6). */
	if (CH_UNLIKELY(marker->tail - marker->head > marker->queue_mask / 2))
		ch__mark_drain(marker);
	uintptr_t before = CH_MUTANT(CH__MUTANT_RETURN_WITHOUT_MINUS_ONE) ? word : word - 1;
	uint32_t index = ch__find_frozen(heap, before);
	if (index && CH_MUTANT(CH__MUTANT_STUB_RETURN_NO_ROOT)) {
		const struct ch__block *block = ch__block_at(heap, index);
		if (block->cold_granules &&
		    before - ch__exec(heap, ch__cold_offset(heap, block)) < ch__cold_bytes(block))
			index = 0;
	}
	if (index) {
		marker->stack_roots++;
		ch__mark_block(marker, index);
	}
	/* Only a granule's first address can start another block than the one before. */
	if (word % CH__GRANULE_BYTES == 0 && !CH_MUTANT(CH__MUTANT_START_NO_ROOT)) {
		uint32_t starts = ch__find_frozen(heap, word);
		if (starts && starts != index) {
			marker->stack_roots++;
			ch__mark_block(marker, starts);
		}
	}
}

/* As it stands on a stack, without what an architecture signs it with. */
static uintptr_t address_of(uintptr_t word)
{
	return CH_MUTANT(CH__MUTANT_NO_STRIP) ? word : ch__arch_strip(word);
}

/* A mutant only: what is not entrant is left by way of the frame instead of a patch point. */
static void redirect_return(const struct ch_marker *marker, uintptr_t at)
{
	uintptr_t *word = (uintptr_t *)at;
	uint32_t index = ch__find_frozen(marker->heap, *word - 1);
	if (index && ch__block_state(ch__block_at(marker->heap, index)) == CH_BLOCK_NOTENTRANT)
		*word = marker->heap->trampoline;
}

/* Memcheck would report words below sp, and those that a frame has not written: a copy is looked at
 * instead, so that the stack stays what it is to memcheck. */
static void scan_copies(struct ch_marker *marker, uintptr_t low, uintptr_t high)
	CH_REQUIRES(ch__role_frozen)
{
	enum { WORDS = 64 };
	const struct ch__pool *pool = marker->heap->pool;
	uintptr_t words[WORDS];
	for (uintptr_t at = low; at + 8 <= high; at += sizeof words) {
		size_t count = (high - at) / 8 < WORDS ? (high - at) / 8 : WORDS;
		ch__valgrind_copy(words, at, count);
		for (size_t i = 0; i < count; i++) {
			uintptr_t word = address_of(words[i]);
			if (word - pool->exec_base - 1 < pool->pool_bytes)
				root(marker, word);
		}
	}
	/* No later frame of this stack shall find them. */
	memset(words, 0, sizeof words);
	__asm__ volatile("" ::"r"(words) : "memory");
}

NO_SANITIZE void ch__scan_words(struct ch_marker *marker, uintptr_t low, uintptr_t high)
{
	uintptr_t base = marker->heap->pool->exec_base;
	uintptr_t size = marker->heap->pool->pool_bytes;
	low = (low + 7) & ~(uintptr_t)7;
	if (CH_UNLIKELY(marker->heap->pool->is_translated) &&
	    !CH_MUTANT(CH__MUTANT_VALGRIND_SCAN_JUDGED)) {
		scan_copies(marker, low, high);
		return;
	}
	for (uintptr_t at = low; at + 8 <= high; at += 8) {
		uintptr_t word = address_of(*(volatile uintptr_t *)at);
		if (CH_LIKELY(word - base - 1 >= size))
			continue;
		root(marker, word);
		if (CH_MUTANT(CH__MUTANT_RETURN_REWRITTEN))
			redirect_return(marker, at);
	}
}

void ch__scan_whole_stack(struct ch_marker *marker, const struct ch__thread *thread)
{
	uintptr_t low = thread->stack_low;
	struct ch_fiber *fiber = atomic_load_explicit(&thread->fiber, memory_order_acquire);
	if (fiber)
		ch__scan_words(marker, fiber->low, fiber->high);
	if (!CH_MUTANT(CH__MUTANT_SCAN_UNMAPPED))
		low = ch__os_mapped_from(low, thread->stack_high);
	ch__scan_words(marker, low, thread->stack_high);
}

static struct ch_fiber *fiber_of_sp(struct ch_heap *heap, uintptr_t sp)
{
	for (struct ch_fiber *f = heap->fibers; f; f = f->next)
		if (f->is_attached && sp >= f->low && sp < f->high)
			return f;
	return NULL;
}

static void scan_thread(struct ch_marker *marker, struct ch__thread *thread)
	CH_REQUIRES(ch__role_frozen, ch__role_stopped)
{
	/* Acquire: pairs with the release of PARKED, behind sp and registers; a host that stops its
	 * threads by itself looks at no state before. */
	(void)atomic_load_explicit(&thread->state, memory_order_acquire);
	uintptr_t sp =
		thread->shown.sp - (CH_MUTANT(CH__MUTANT_NO_RED_ZONE) ? 0 : CH_ARCH_RED_ZONE_BYTES);
	if (!CH_MUTANT(CH__MUTANT_SKIP_REGISTERS))
		ch__scan_words(marker, (uintptr_t)thread->shown.words,
			       (uintptr_t)(thread->shown.words + thread->shown.words_count));
	if (!CH_MUTANT(CH__MUTANT_VECTORS_SKIPPED))
		ch__scan_words(marker, thread->shown.vectors_low, thread->shown.vectors_high);
	struct ch_fiber *fiber = atomic_load_explicit(&thread->fiber, memory_order_acquire);
	if (CH_MUTANT(CH__MUTANT_SCAN_BELOW_SP))
		sp = 0;
	if (!thread->shown.signal_stack_end && thread->shown.sp >= thread->stack_low &&
	    thread->shown.sp < thread->stack_high) {
		ch__scan_words(marker, sp < thread->stack_low ? thread->stack_low : sp,
			       thread->stack_high);
		return;
	}
	if (!fiber || thread->shown.sp < fiber->low || thread->shown.sp >= fiber->high)
		fiber = fiber_of_sp(marker->heap, thread->shown.sp);
	if (fiber && !thread->shown.signal_stack_end) {
		ch__scan_words(marker, sp < fiber->low ? fiber->low : sp, fiber->high);
		return;
	}
	/* On an alternate stack: the interrupted frames are somewhere on the stack it runs on. */
	if (!CH_MUTANT(CH__MUTANT_SIGNAL_STACK_SKIPPED))
		ch__scan_words(marker, sp, thread->shown.signal_stack_end);
	if (CH_MUTANT(CH__MUTANT_ALTERNATE_STACK_ONLY))
		return;
	ch__scan_whole_stack(marker, thread);
}

static void scan_fibers(struct ch_marker *marker) CH_REQUIRES(ch__role_frozen, ch__role_stopped)
{
	for (struct ch_fiber *f = marker->heap->fibers; f; f = f->next) {
		/* Acquire: pairs with ch_fiber_suspend. */
		uintptr_t sp = atomic_load_explicit(&f->suspended_sp, memory_order_acquire);
		if (!f->is_attached || !sp)
			continue;
		uintptr_t slack = CH_MUTANT(CH__MUTANT_NO_FIBER_SLACK) ? 0 : FIBER_SLACK_BYTES;
		uintptr_t low = sp - f->low > slack ? sp - slack : f->low;
		ch__scan_words(marker, low, f->high);
	}
}

void ch__scan_stacks(struct ch_marker *marker)
{
	struct ch_heap *heap = marker->heap;
	if (CH_MUTANT(CH__MUTANT_SKIP_STACKS))
		return;
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		if (t->is_attached)
			scan_thread(marker, t);
	if (!CH_MUTANT(CH__MUTANT_SKIP_FIBERS))
		scan_fibers(marker);
}

void ch_mark_stack(struct ch_marker *marker, const void *low, const void *high)
{
	ch__host_has_cycle(marker);
	ch__host_has_stopped(marker);
	ch__host_marks(marker);
	ch__scan_words(marker, (uintptr_t)low, (uintptr_t)high);
	/* The refs found are the VM's to trace: reported here, not at the end of the cycle. */
	ch__mark_drain(marker);
}
