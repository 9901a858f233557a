/* SPDX-License-Identifier: MIT
 * profiler_sample.c: one sample, taken in a signal handler by the thread whose stack it is.
 * Signal-safe: no lock, no allocation, no system call.
 *
 * It ends at the first address that is in no executable memory that is known: nothing that only
 * looks like a frame is told as one. Where the interrupted function has not made its frame yet, or
 * has none, the walk begins with its caller's. Of code of a heap the instruction may say who the
 * caller is; else the caller is left out, and the rest is right. */
#include "observe/profiler_inner.h"
#include "arch/registers.h"
#include "unwind/unwind.h"

/* The range that was hit last comes first: neighbours on a stack are often of one object. */
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

/* Stacks come again: what was found at an address before is asked whether it lives, and no more. */
static uint64_t key_at(struct ch__sampler *s, uintptr_t pc)
{
	const struct ch__profiler_config *config = &s->profiler->config;
	struct ch__known_code *known = &s->known[(pc ^ pc >> 5 ^ pc >> 12) % CH__KNOWN_CODES];
	uint64_t key = ch__look_code(config->heap, pc, known->pc == pc ? known->key : 0);
	*known = (struct ch__known_code){pc, key};
	return key;
}

/* The frame of a pc in another heap; 0: it is in none that the thread is attached to. It is, and so
 * the other heap stays. */
static uint64_t word_elsewhere(const struct ch_heap *heap, uintptr_t pc)
{
	bool is_pool;
	const struct ch_heap *other = ch__look_elsewhere(heap, pc, &is_pool);
	if (!other)
		return 0;
	uint64_t key = is_pool ? ch__look_code(other, pc, 0) : CH__FRAME_WORD_RUNTIME;
	return key ? key : CH__FRAME_WORD_NO_BLOCK;
}

/* The frame of an address in the memory of a heap; 0: it is in none. */
static uint64_t code_at(struct ch__sampler *s, uintptr_t address)
{
	const struct ch__profiler_config *config = &s->profiler->config;
	if (address - config->pool_exec < config->pool_bytes) {
		uint64_t key = key_at(s, address);
		return key ? key : CH__FRAME_WORD_NO_BLOCK;
	}
	if (address - config->runtime_exec < config->runtime_bytes)
		return CH__FRAME_WORD_RUNTIME;
	return CH_UNLIKELY(s->is_elsewhere) ? word_elsewhere(config->heap, address) : 0;
}

static uint64_t word_of(struct ch__sampler *s, const struct ch__ranges *ranges, uintptr_t address)
{
	uint64_t word = code_at(s, address);
	if (word)
		return word;
	if (is_executable(ranges, &s->last_range, address) && ch__frame_is_native(address))
		return address;
	atomic_store_explicit(&s->profiler->maps_wanted, 1, memory_order_relaxed);
	return CH__FRAME_WORD_UNKNOWN;
}

/* Addresses become frames, in place; how many there are. */
static uint32_t name_frames(struct ch__sampler *s, uint64_t *frames, uint32_t count)
{
	/* Acquire: pairs with the release of who read the maps. */
	const struct ch__ranges *ranges =
		atomic_load_explicit(&s->profiler->ranges, memory_order_seq_cst);
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

/* The VM's walk in place of one by frame pointers; 0: it has no frames. What is no code of the pool
 * is left out, so that native frames of an interpreter need not be told apart. */
static uint32_t take_from_vm(struct ch__sampler *s, const struct ch__sampler_stack *stack,
			     uint64_t *frames, bool *is_cut)
{
	const struct ch__profiler_config *config = &s->profiler->config;
	size_t found = config->frames(config->frames_user, (const void *)stack->pc,
				      (const void *)stack->sp, (const void *)stack->high,
				      (const void **)(void *)(frames + 1), CH__PROFILE_FRAMES_MAX);
	if (!found)
		return 0;
	if (found > CH__PROFILE_FRAMES_MAX)
		found = CH__PROFILE_FRAMES_MAX;
	/* Acquire: pairs with the release of who read the maps. */
	const struct ch__ranges *ranges =
		atomic_load_explicit(&s->profiler->ranges, memory_order_seq_cst);
	uint32_t kept = 1;
	frames[0] = word_of(s, ranges, stack->pc);
	for (size_t i = 1; i <= found && kept < CH__PROFILE_FRAMES_MAX; i++) {
		uintptr_t address = (uintptr_t)frames[i] - 1;
		uint64_t key = 0;
		if (address - config->pool_exec < config->pool_bytes)
			key = key_at(s, address);
		if (key)
			frames[kept++] = key;
	}
	*is_cut = found == CH__PROFILE_FRAMES_MAX;
	return kept;
}

/* The caller of code of a heap that has no frame record at this instruction; 0: it has one, or is
 * no such code. A block that lives has its memory. */
static uintptr_t find_unrecorded(struct ch__sampler *s, const struct ch__sampler_stack *stack)
{
	enum { WORDS_READ = 2 * sizeof(uintptr_t) };
	if (!stack->ucontext || stack->high - stack->sp < WORDS_READ ||
	    !ch__frame_is_code(code_at(s, stack->pc)))
		return 0;
	return ch__arch_unrecorded_return(stack->ucontext);
}

/* By frame pointers. */
static uint32_t take_from_stack(struct ch__sampler *s, const struct ch__sampler_stack *stack,
				uint64_t *frames, bool *is_cut)
{
	enum { NOWHERE = 1 }; /* an address of nothing, where the pc is 0 */
	uintptr_t pc = stack->pc ? stack->pc : NOWHERE;
	uint32_t found = 1, count;
	frames[0] = pc;
	if (stack->high) {
		uintptr_t caller = find_unrecorded(s, stack);
		if (caller)
			frames[found++] = caller;
		found += (uint32_t)ch__walk(0, stack->fp, stack->sp, stack->high,
					    (uintptr_t *)(void *)(frames + found),
					    CH__PROFILE_FRAMES_MAX + 1 - found);
	}
	count = found > CH__PROFILE_FRAMES_MAX ? CH__PROFILE_FRAMES_MAX : found;
	count = name_frames(s, frames, count);
	*is_cut = count == CH__PROFILE_FRAMES_MAX && found > count;
	return count;
}

static void drop(struct ch__sampler *s, uint32_t weight)
{
	uint64_t dropped = atomic_load_explicit(&s->dropped, memory_order_relaxed);
	atomic_store_explicit(&s->dropped, dropped + weight, memory_order_relaxed);
}

void ch__sampler_take(struct ch__sampler *s, const struct ch__sampler_stack *stack, uint32_t weight)
{
	_Static_assert(sizeof(uintptr_t) == sizeof(uint64_t), "frames are walked into the ring");
	uint64_t head = atomic_load_explicit(&s->head, memory_order_relaxed);
	/* Acquire: what was read is read before it is written over. */
	uint64_t tail = atomic_load_explicit(&s->tail, memory_order_acquire);
	uint64_t room = s->words - (head - tail);
	uint64_t *at = s->ring + (head & (s->words - 1)), *frames = at + 1;
	if (room <= CH__PROFILE_FRAMES_MAX + 2) {
		drop(s, weight);
		return;
	}
	const struct ch__profiler_config *config = &s->profiler->config;
	s->is_elsewhere = ch__look_is_elsewhere(config->heap);
	bool is_cut = false;
	uint32_t count = 0;
	if (config->frames && stack->high)
		count = take_from_vm(s, stack, frames, &is_cut);
	if (!count)
		count = take_from_stack(s, stack, frames, &is_cut);
	at[0] = ch__sample_header(weight, count, is_cut);
	/* Release: the sample is there before it is counted. */
	atomic_store_explicit(&s->head, head + 1 + count, memory_order_release);
}
