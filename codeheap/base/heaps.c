/* SPDX-License-Identifier: MIT
 * heaps.c: the heaps of the process: the table for handles, the ids that heaps take and leave, and
 * destroyed heaps that a signal handler may still read. Lock: heaps. */
#include "codeheap/base/park.h"
#include "codeheap/base/why.h"
#include "pages/write.h"

_Atomic(struct ch_heap *) ch__heaps[CH__HEAPS_MAX + 1];
struct ch__lock ch__heaps_lock;
struct ch_heap *ch__heaps_left;

/* First generations of records of the next heap with each id, multiples of CH__LIVES. So no handle
 * of a destroyed heap leads to a record of a later heap. */
static uint32_t first_generations[CH__HEAPS_MAX + 1] CH_GUARDED_BY(ch__heaps_lock);

CH__LOCK_FUNCTIONS(ch__heaps_take, ch__heaps_let_go, void, ch__lock_parking, ch__heaps_lock,
		   CH__RANK_HEAPS)

bool ch__heaps_choose_id(struct ch_heap *heap)
{
	uint32_t id = 1;
	while (id <= CH__HEAPS_MAX && atomic_load(&ch__heaps[id]))
		id++;
	if (id > CH__HEAPS_MAX)
		return false;
	heap->id = id;
	heap->blocks.first_generation = first_generations[id];
	heap->owners.first_generation = first_generations[id];
	heap->assumptions.first_generation = first_generations[id];
	return true;
}

struct ch_heap *ch__heap_at(uintptr_t address)
{
	CH__EACH_HEAP(heap)
		if (ch__pool_has(heap->pool, address))
			return heap;
	return NULL;
}

bool ch__heap_is_listed(const struct ch_heap *heap)
{
	int id = 1;
	while (id <= CH__HEAPS_MAX && (!heap || atomic_load(&ch__heaps[id]) != heap))
		id++;
	return id <= CH__HEAPS_MAX;
}

bool ch__heap_refuses(const struct ch_heap *heap)
{
	return ch__is_marking() || !ch__heap_lives(heap);
}

enum ch_status ch__because_refused(const struct ch_heap *heap)
{
	if (ch__is_marking())
		return ch__because_marking();
	if (!heap)
		return ch__because(CH_E_ARG, "heap, or vm, is NULL");
	return ch__because(CH_E_ARG, "no heap is at %lx: it was destroyed, or never was",
			   (uintptr_t)heap);
}

void ch__heaps_leave_id(const struct ch_heap *heap) CH_UNANALYSED("nobody has a lock of the heap")
{
	const struct ch__table *tables[] = {&heap->blocks, &heap->owners, &heap->assumptions};
	uint32_t most = 0;
	for (unsigned i = 0; i < sizeof tables / sizeof *tables; i++) {
		uint32_t had = ch__table_generations(tables[i]);
		most = had > most ? had : most;
	}
	first_generations[heap->id] =
		heap->blocks.first_generation + most / CH__LIVES * CH__LIVES + CH__LIVES;
}

/* First address of a pool, in whole pages, with the log2 of its bytes; 0: none. One word: a reader
 * never gets the address of one pool and the length of another. */
enum { GONE = 16, GONE_LOG2 = 63 };
static _Atomic(uintptr_t) gone[GONE];

void ch__heaps_pool_goes(const struct ch_heap *heap)
{
	static unsigned next;
	atomic_store(&gone[next++ % GONE],
		     heap->pool->exec_base | (unsigned)__builtin_ctzl(heap->pool->pool_bytes));
}

bool ch__heaps_had(uintptr_t address)
{
	bool had = false;
	for (unsigned i = 0; i < GONE; i++) {
		uintptr_t pool = atomic_load(&gone[i]);
		had |= pool && !((address - (pool & ~(uintptr_t)GONE_LOG2)) >> (pool & GONE_LOG2));
	}
	return had && !ch__heap_at(address);
}
