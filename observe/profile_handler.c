/* SPDX-License-Identifier: MIT
 * profile_handler.c: the handler of SIGPROF.
 * Signal-safe: no lock, no allocation. The process has one handler for all heaps. The handler stays
 * installed: a late signal of a deleted timer would kill the process otherwise.
 *
 * A signal of the library carries its heap's tag, an address in `tags` that no foreign timer has,
 * and is for the receiving thread. Other signals go to the action installed before. */
#include "arch/registers.h"
#include "observe/profile.h"
#include "observe/system.h"

#include <errno.h>
#include <signal.h>

static struct ch__os_action before;
static uint8_t tags[CH__LOOK_HEAPS_MAX + 1];

void *ch__profile_tag(uint32_t heap_id)
{
	return &tags[heap_id];
}

/* The handler takes a sample of the thread that it interrupted. */
static void take(struct ch__thread *thread, const void *ucontext, uint32_t weight)
{
	_Atomic(void *) *word = ch__look_thread_word(thread);
	/* Acquire: pairs with the release of ch__profile_slot. */
	struct ch__sampler_slot *slot = atomic_load_explicit(word, memory_order_acquire);
	/* Calls nest only in tests. seq_cst: against ch__profiler_remove. */
	if (!slot || atomic_exchange_explicit(&slot->inside, 1, memory_order_seq_cst))
		return;
	struct ch__sampler *sampler = atomic_load_explicit(&slot->sampler, memory_order_seq_cst);
	if (sampler) {
		uintptr_t sp = ch__arch_context_sp(ucontext);
		struct ch__sampler_stack stack = {
			.pc = ch__arch_context_pc(ucontext),
			.fp = ch__arch_context_fp(ucontext),
			.sp = sp,
			.high = ch__look_stack_high(thread, sp),
			.ucontext = ucontext,
		};
		ch__look_anywhere(thread, true);
		ch__sampler_take(sampler, &stack, weight);
		ch__look_anywhere(thread, false);
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
		ch__os_profile_chain(info, ucontext, &before);
	uint32_t heap_id = is_ours ? (uint32_t)((uintptr_t)value - (uintptr_t)tags) : 0;
	struct ch__thread *thread = heap_id ? ch__look_self(heap_id) : NULL;
	if (thread)
		take(thread, ucontext, times);
	errno = error;
}

bool ch__profile_install(void)
{
	static bool is_installed CH_GUARDED_BY(ch__role_heaps);
	/* Without a handler the first tick would kill, or count for nothing. A handler installed
	 * later passes the library's signals on: two that pass on to each other would not end.
	 * Every signal is blocked: no other handler may interrupt, and leave by a jump. */
	if (!is_installed || !ch__os_profile_is_handled())
		is_installed = ch__os_signal_install(SIGPROF, handle, &before, CH__OS_UNDISTURBED);
	return is_installed;
}
