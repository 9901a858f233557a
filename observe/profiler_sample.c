/* SPDX-License-Identifier: MIT
 * profiler_sample.c: one sample, taken in a signal handler by the thread that owns the stack.
 * Signal-safe: no lock, no allocation, no system call.
 *
 * A sample ends at the first address outside the known executable memory, so a word that only looks
 * like a frame is not reported. If the interrupted function has no frame yet, or never makes one,
 * the walk begins with the frame of its caller. In heap code the interrupted instruction may give
 * the caller. Otherwise the caller is missing, and the other frames are right. */
#include "observe/profiler_inner.h"
#include "arch/registers.h"
#include "unwind/unwind.h"

/* Tries the range of the last hit first: neighbours on a stack are often of the same object. */
static bool is_executable(const struct ch__ranges *ranges, uint32_t *last, uintptr_t address)
{
	uint32_t low = 0, high = ranges->count;
	if (*last < high &&
	    address - ranges->at[*last].low < ranges->at[*last].high - ranges->at[*last].low)
		return true;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (ranges->at[middle].high <= address)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == ranges->count || address < ranges->at[low].low)
		return false;
	*last = low;
	return true;
}

/* Stacks repeat, so a cache has keys by address. A known key is only checked for a death. */
static uint64_t key_at(struct ch__sampler *s, uintptr_t pc)
{
	const struct ch__profiler_config *config = &s->profiler->config;
	struct ch__known_code *known = &s->known[(pc ^ pc >> 5 ^ pc >> 12) % CH__KNOWN_CODES];
	uint64_t key = ch__look_code(config->heap, pc, known->pc == pc ? known->key : 0);
	*known = (struct ch__known_code){pc, key};
	return key;
}

/* The word of a pc in another heap of the thread, or 0 if no such heap has the pc. The other heap
 * stays, because the thread is attached to the heap. */
static uint64_t word_elsewhere(uintptr_t pc)
{
	bool is_pool;
	const struct ch_heap *other = ch__look_elsewhere(pc, &is_pool);
	if (!other)
		return 0;
	uint64_t key = is_pool ? ch__look_code(other, pc, 0) : CH__FRAME_WORD_RUNTIME;
	return key ? key : CH__FRAME_WORD_NO_BLOCK;
}

/* The word of an address in the memory of a heap, or 0 outside heaps. */
static uint64_t code_at(struct ch__sampler *s, uintptr_t address)
{
	const struct ch__profiler_config *config = &s->profiler->config;
	if (address - config->look.pool_exec < config->look.pool_bytes) {
		uint64_t key = key_at(s, address);
		return key ? key : CH__FRAME_WORD_NO_BLOCK;
	}
	if (address - config->look.runtime_exec < config->look.runtime_bytes)
		return CH__FRAME_WORD_RUNTIME;
	return word_elsewhere(address);
}

static uint64_t word_of(struct ch__sampler *s, const struct ch__ranges *ranges, uintptr_t address)
{
	uint64_t word = code_at(s, address);
	if (word)
		return word;
	if (is_executable(ranges, &s->last_range, address))
		return address;
	CH_STORE_RELAXED(&s->profiler->maps_wanted, 1);
	return CH__FRAME_WORD_UNKNOWN;
}

/* Turns addresses into words, in place. Returns how many frames remain. */
static uint32_t name_frames(struct ch__sampler *s, const struct ch__ranges *ranges,
			    uint64_t *frames, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		bool is_return = i != 0;
		uint64_t word = word_of(s, ranges, (uintptr_t)frames[i] - is_return);
		if (word == CH__FRAME_WORD_UNKNOWN && i)
			return i;
		frames[i] = word;
		if (word == CH__FRAME_WORD_UNKNOWN || word == CH__FRAME_WORD_NO_BLOCK)
			return i + 1;
	}
	return count;
}

/* Uses the VM's walk instead of a walk by frame pointers. Returns 0 if the VM has no frames.
 * Addresses outside the pool's code are left out, so a VM need not filter native frames. A walk
 * that filled its room may have more frames. */
static uint32_t take_from_vm(struct ch__sampler *s, const struct ch__ranges *ranges,
			     const struct ch__sampler_stack *stack, uint64_t *frames, bool *is_cut)
{
	const struct ch__profiler_config *config = &s->profiler->config;
	size_t found = config->asked.frames(config->asked.user, (const void *)stack->pc,
					    (const void *)stack->sp, (const void *)stack->high,
					    (const void **)(void *)(frames + 1),
					    CH__PROFILE_FRAMES_MAX);
	if (!found)
		return 0;
	if (found > CH__PROFILE_FRAMES_MAX)
		found = CH__PROFILE_FRAMES_MAX;
	uint32_t kept = 1;
	frames[0] = word_of(s, ranges, stack->pc);
	for (size_t i = 1; i <= found; i++) {
		uintptr_t address = (uintptr_t)frames[i] - 1;
		uint64_t key = 0;
		if (address - config->look.pool_exec < config->look.pool_bytes)
			key = key_at(s, address);
		if (key)
			frames[kept++] = key;
	}
	*is_cut = found == CH__PROFILE_FRAMES_MAX;
	return kept;
}

/* The return address of heap code that has no frame record at the interrupted instruction, or 0.
 * The block lives, so its memory can be read. */
static uintptr_t find_unrecorded(struct ch__sampler *s, const struct ch__ranges *ranges,
				 const struct ch__sampler_stack *stack)
{
	enum { WORDS_READ = 2 * sizeof(uintptr_t) };
	if (!stack->ucontext || stack->high - stack->sp < WORDS_READ ||
	    !ch__frame_is_code(word_of(s, ranges, stack->pc)))
		return 0;
	return ch__arch_unrecorded_return(stack->ucontext);
}

/* Walks by frame pointers, to one frame more than a sample keeps. */
static uint32_t take_from_stack(struct ch__sampler *s, const struct ch__ranges *ranges,
				const struct ch__sampler_stack *stack, uint64_t *frames)
{
	uint32_t found = 1;
	frames[0] = stack->pc;
	if (stack->high) {
		uintptr_t caller = find_unrecorded(s, ranges, stack);
		if (caller)
			frames[found++] = caller;
		found += (uint32_t)ch__walk(0, stack->fp, stack->sp, stack->high,
					    (uintptr_t *)(void *)(frames + found),
					    CH__PROFILE_FRAMES_MAX + 1 - found);
	}
	return name_frames(s, ranges, frames, found);
}

void ch__sampler_take(struct ch__sampler *s, const struct ch__sampler_stack *stack, uint32_t weight)
{
	_Static_assert(sizeof(uintptr_t) == sizeof(uint64_t), "frames are walked into the ring");
	uint64_t head = CH_LOAD_RELAXED(&s->head);
	/* Acquire: the worker has read a sample before the handler overwrites the words. */
	uint64_t tail = atomic_load_explicit(&s->tail, memory_order_acquire);
	uint64_t room = s->words - (head - tail);
	uint64_t *at = s->ring + (head & (s->words - 1)), *frames = at + 1;
	if (room <= CH__PROFILE_FRAMES_MAX + 2) {
		CH_STORE_RELAXED(&s->dropped, CH_LOAD_RELAXED(&s->dropped) + weight);
		return;
	}
	/* seq_cst: against ch__maps_read, which then looks at `inside`. */
	const struct ch__ranges *ranges =
		atomic_load_explicit(&s->profiler->ranges, memory_order_seq_cst);
	bool is_cut = false;
	uint32_t count = 0;
	if (s->profiler->config.asked.frames && stack->high)
		count = take_from_vm(s, ranges, stack, frames, &is_cut);
	if (!count)
		count = take_from_stack(s, ranges, stack, frames);
	if (count > CH__PROFILE_FRAMES_MAX) {
		count = CH__PROFILE_FRAMES_MAX;
		is_cut = true;
	}
	at[0] = ch__sample_header(weight, count, is_cut);
	/* Release: the sample is complete before head counts the words. */
	atomic_store_explicit(&s->head, head + 1 + count, memory_order_release);
}
