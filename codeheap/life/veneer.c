/* SPDX-License-Identifier: MIT
 * veneer.c: the runtime page of a heap: the stubs' trampoline, a trap for cells that lead nowhere,
 * and veneers, for calls of functions far away. Each is written once and stays. Lock: heap. */
#include "codeheap/life/life.h"
#include "invalidate/invalidate.h"

void ch__runtime_begin(struct ch_heap *heap)
{
	struct ch__pool *pool = heap->pool;
	uintptr_t exec = pool->runtime_exec;
	ch__arch_stub_context_init(&heap->stub);
	heap->stub.hit = ch__stub_hit;
	size_t bytes = ch__arch_trampoline_write(ch__pool_write(pool, exec), &heap->stub);
	ch__pool_sync(pool, exec, bytes);
	CH_PUBLISHED(pool, exec, bytes, "trampoline of stubs");
	/* The page was filled with traps. */
	bytes = CH_ROUND_UP(bytes, 16);
	heap->no_fallback = (const void *)(exec + bytes);
	heap->veneers_from = heap->veneers_to = (uint32_t)bytes + 16;
}

enum ch_status ch_block_veneer(const struct ch_code *code, const void *target, const void **at)
{
	*at = NULL;
	struct ch__subject s;
	enum ch_status status = ch__subject_open_given(code, &s);
	if (status != CH_OK)
		return status;
	struct ch_heap *heap = s.heap;
	struct ch__pool *pool = heap->pool;
	uintptr_t end = (uintptr_t)code->exec + code->hot_bytes;
	if (code->cold_bytes)
		end = (uintptr_t)code->cold_exec + code->cold_bytes;
	if (end - pool->runtime_exec > UINT64_C(1) << CH_ARCH_VENEER_REACH_LOG2)
		return ch__because(CH_E_REACH, "the block ends %lu bytes behind the veneers",
				   end - pool->runtime_exec);
	ch__heap_lock(heap);
	uint32_t offset = heap->veneers_from;
	for (; offset < heap->veneers_to; offset += CH_ARCH_VENEER_BYTES)
		if (ch__arch_veneer_target(ch__pool_read(pool, pool->runtime_exec + offset)) ==
		    (uintptr_t)target)
			break;
	if (offset == heap->veneers_to && offset + CH_ARCH_VENEER_BYTES <= pool->runtime_bytes) {
		uintptr_t exec = pool->runtime_exec + offset;
		ch__arch_veneer_write(ch__pool_write(pool, exec), (uintptr_t)target);
		ch__pool_sync(pool, exec, CH_ARCH_VENEER_BYTES);
		CH_PUBLISHED(pool, exec, CH_ARCH_VENEER_BYTES, "veneer");
		heap->veneers_to += CH_ARCH_VENEER_BYTES;
	}
	if (offset < heap->veneers_to)
		*at = (const void *)(pool->runtime_exec + offset);
	else
		status = ch__because(CH_E_FULL, "the veneers' page of %zu bytes is full for good",
				     pool->runtime_bytes);
	ch__heap_unlock(heap);
	return status;
}
