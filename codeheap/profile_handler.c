/* SPDX-License-Identifier: MIT
 * profile_handler.c: the handler of SIGPROF, and what an address of the pool is to a profiler.
 * Signal-safe: no lock, no allocation. It is the process's, serves every heap, and stays: a signal
 * of a timer that is gone may come late, and would kill.
 *
 * A signal of ours carries the tag of its heap, an address that no timer of others can name, and is
 * for the thread that gets it. What is not ours goes to the action that was there before. */
#include "codeheap/block.h"

#include <errno.h>

static struct {
	_Alignas(16) uint8_t bytes[CH__OS_ACTION_BYTES];
} before;
/* 0 no, 1 being done, 2 yes; a futex while it is 1. Changed under the registry lock of some heap,
 * so that no child of fork finds a 1. */
static _Atomic(uint32_t) installed;
static uint8_t tags[CH__HEAPS_MAX + 1];

void *ch__profile_tag(const struct ch_heap *heap)
{
	return &tags[heap->id];
}

static bool is_generation(const struct ch_heap *heap, uint32_t index, uint32_t generation)
{
	return atomic_load_explicit(&ch__block_at(heap, index)->generation, memory_order_relaxed) ==
	       generation;
}

/* Index and generation of the block, and its part; 0 where there is none, or it goes meanwhile
 * (I4). */
uint64_t ch__profile_key(void *context, uintptr_t pc, uint64_t known)
{
	const struct ch_heap *heap = context;
	/* A block of this generation was published, and stays where it is (I3). */
	if (known && is_generation(heap, (uint32_t)known & CH__INDEX_MAX, (uint32_t)(known >> 24)))
		return known;
	uint32_t generation = 0, index = ch__find(heap, pc, &generation);
	if (!index)
		return 0;
	const struct ch__block *block = ch__block_at(heap, index);
	uint32_t hot = atomic_load_explicit(&block->hot_offset, memory_order_acquire);
	enum ch__frame_part part = CH__PART_HOT;
	if (ch__place_is_slot(heap, hot))
		part = CH__PART_SLOT;
	else if (ch__offset(heap, pc) - hot >= ch__hot_bytes(block))
		part = CH__PART_COLD;
	if (atomic_load_explicit(&block->generation, memory_order_relaxed) != generation)
		return 0;
	return (uint64_t)part << CH__FRAME_PART_SHIFT | (uint64_t)generation << 24 | index;
}

/* What no handler may do. */
static void take(struct ch__thread *thread, const void *ucontext, uint32_t weight)
{
	struct ch__sampler_slot *slot = &thread->sampling;
	/* Only a test's call comes within another. seq_cst: against ch__profiler_remove. */
	if (atomic_exchange_explicit(&slot->inside, 1, memory_order_seq_cst))
		return;
	struct ch__sampler *sampler = atomic_load_explicit(&slot->sampler, memory_order_seq_cst);
	if (sampler) {
		uintptr_t sp = ch__arch_context_sp(ucontext);
		struct ch__sampler_stack stack = {
			.pc = ch__arch_context_pc(ucontext),
			.fp = ch__arch_context_fp(ucontext),
			.sp = sp,
			.high = ch__thread_stack_high(thread, sp),
			.ucontext = ucontext,
		};
		/* To memcheck, what native code has in the frame pointer's register may have no
		 * value. */
		bool is_judged = CH_UNLIKELY(thread->heap->pool->is_translated);
		if (is_judged)
			ch__valgrind_reports(false);
		ch__sampler_take(sampler, &stack, weight);
		if (is_judged)
			ch__valgrind_reports(true);
	}
	/* Release: done with the sampler and the ranges. */
	atomic_store_explicit(&slot->inside, 0, memory_order_release);
}

static void handle(int signal, void *info, void *ucontext)
{
	int error = errno;
	void *value = NULL;
	uint32_t times = 0;
	(void)signal;
	bool is_ours = ch__os_timer_expired(info, &value, &times) &&
		       (uintptr_t)value - (uintptr_t)tags < sizeof tags;
	if (!is_ours)
		ch__os_profile_chain(info, ucontext, before.bytes);
	for (struct ch__thread *t = ch__thread_list; t && is_ours; t = t->next_of_thread)
		if (&tags[t->heap->id] == value)
			take(t, ucontext, times);
	errno = error;
}

bool ch__profile_install(void)
{
	/* Without the handler a timer kills: who comes second, for another heap, waits for it. */
	for (uint32_t is = 0; !atomic_compare_exchange_strong(&installed, &is, 1); is = 0) {
		if (is == 2)
			return true;
		ch__os_futex_wait(&installed, 1, 0);
	}
	bool is_done = ch__os_profile_install(handle, before.bytes, sizeof before.bytes);
	int error = errno;
	atomic_store(&installed, is_done ? 2 : 0);
	ch__os_futex_wake(&installed);
	errno = error;
	return is_done;
}
