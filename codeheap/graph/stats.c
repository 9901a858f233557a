/* SPDX-License-Identifier: MIT
 * stats.c: counters and gauges, summed over threads, as a struct. Under the heap lock, save the
 * count of free bytes. Counters of running threads change while they are read, so a snapshot is
 * exact only where nothing runs. */
#include "codeheap/base/sized.h"
#include "codeheap/events/events.h"
#include "codeheap/graph/block_parts.h"

void ch__counters_add(struct ch__counters *sum, const struct ch__counters *more)
{
	uint64_t *to = (uint64_t *)(void *)sum;
	const uint64_t *from = (const uint64_t *)(const void *)more;
	for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
		to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

static struct ch__counters sum_counters(struct ch_heap *heap) CH_HAS_HEAP
{
	struct ch__counters sum = heap->counters;
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		ch__counters_add(&sum, &t->counters);
	return sum;
}

void ch__stats_note_peak(struct ch_heap *heap, uint64_t died)
{
	enum { MOST_DEAD_BYTES = 16 << 10 };
	heap->peak_dead_bytes += died;
	if (died && heap->peak_dead_bytes < MOST_DEAD_BYTES)
		return;
	heap->peak_dead_bytes = 0;
	int64_t bytes = sum_counters(heap).code_bytes + (int64_t)died;
	if (bytes > (int64_t)heap->code_bytes_peak)
		heap->code_bytes_peak = (uint64_t)bytes;
}

/* Calls do not overlap: the caller has the heap frozen. */
void ch__stats_note_pause(struct ch_heap *heap, uint64_t start_ns, uint64_t marked_from_ns)
{
	uint64_t at_ns = ch__os_now_ns(), ns = at_ns - start_ns;
	CH__TELL(heap, paused, at_ns, ns);
	heap->stats.pause_ns_last = ns;
	if (ns > heap->stats.pause_ns_max)
		heap->stats.pause_ns_max = ns;
	heap->stats.mark_ns_last = at_ns - marked_from_ns;
	heap->stats.mark_ns_total += heap->stats.mark_ns_last;
}

/* Counters that change while they are read may differ by less than nothing. */
static uint64_t gauge(int64_t difference)
{
	return difference > 0 ? (uint64_t)difference : 0;
}

static void fill_counters(const struct ch__counters *c, struct ch_stats *s)
{
	s->code_bytes_now = gauge(c->code_bytes);
	s->hot_bytes_now = gauge(c->code_bytes - c->cold_bytes);
	s->cold_bytes_now = gauge(c->cold_bytes);
	s->stub_bytes_now = gauge(c->stub_bytes);
	s->blocks_opened = c->blocks_opened;
	s->blocks_committed = c->blocks_committed;
	s->blocks_aborted = c->blocks_aborted;
	s->blocks_freed = c->blocks_freed;
	s->blocks_open_now = gauge((int64_t)(c->blocks_opened - c->blocks_committed -
					     c->blocks_aborted));
	s->blocks_now = c->blocks_opened - c->blocks_aborted - c->blocks_freed;
	s->bytes_opened = c->bytes_opened;
	s->bytes_freed = c->bytes_freed;
	s->branch_hits = c->branch_hits;
	s->branch_hits_stale = c->branch_hits_stale;
	s->opens_full = c->opens_full;
}

/* After fill_counters, whose bytes of stubs say how many branches there are. */
static void fill_gauges(struct ch_heap *heap, struct ch_stats *s) CH_HAS_HEAP
{
	struct ch__pool *pool = heap->pool;
	s->pool_bytes = pool->pool_bytes;
	s->page_bytes = (uint64_t)1 << pool->page_log2;
	s->pages_now = atomic_load(&pool->pages_used);
	s->pages_peak = atomic_load(&pool->pages_peak);
	s->committed_bytes_now = (uint64_t)atomic_load(&pool->pages_committed) << pool->page_log2;
	uint64_t bitmaps = s->pages_now * s->page_bytes / CH__GRANULE_BYTES / 8 * 2;
	s->metadata_bytes_now = ch__meta_bytes(heap->meta) + bitmaps;
	for (unsigned i = 0; i < CH__TABLES; i++)
		s->metadata_bytes_now += ch__table_backed_bytes(&heap->tables[i]);
	s->quarantine_bytes_now = atomic_load(&heap->quarantine_bytes);
	s->notentrant_bytes_now = heap->notentrant_bytes;
	for (struct ch__thread *t = heap->threads; t; t = t->next)
		s->threads_now += t->is_attached;
	for (struct ch_fiber *f = heap->fibers; f; f = f->next)
		s->fibers_now += f->is_attached;
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		s->vms_now += vm->is_attached;
	s->owners_now = heap->owners_now;
	s->assumptions_now = heap->assumptions_now;
	s->blocks_notentrant_now = heap->blocks_notentrant;
	s->branches_now = s->stub_bytes_now / ch__stub_bytes(heap);
	s->blocks_invalidated = heap->blocks_invalidated;
	s->branches_linked = heap->branches_linked;
	s->branches_unlinked = heap->branches_unlinked;
	s->patch_points_armed = heap->patch_points_armed;
	s->core_syncs = atomic_load(&heap->core_syncs);
}

enum ch_status ch_heap_stats(struct ch_heap *heap, struct ch_stats *out)
{
	if (ch__heap_refuses(heap))
		return ch__because_refused(heap);
	enum ch_status status = CH__SIZED_CHECK(ch_stats, out, backend, freezes);
	if (status != CH_OK)
		return status;
	ch__heap_lock(heap);
	struct ch__counters sum = sum_counters(heap);
	struct ch_stats whole = heap->stats, *stats = &whole;
	/* The version of the library: the program's headers may have another. */
	stats->version = CH_VERSION_TEXT;
	stats->backend = ch__backend_names[heap->pool->backend];
	stats->sinks_on = ch__sinks_on(heap->sinks);
	fill_counters(&sum, stats);
	fill_gauges(heap, stats);
	ch__stats_note_peak(heap, 0);
	stats->code_bytes_peak = heap->code_bytes_peak;
	ch__heap_unlock(heap);
	/* The walk over all pages is long, and needs no lock. */
	ch__pool_count_free(heap->pool, &stats->free_bytes_now, &stats->largest_free_bytes_now);
	ch__sized_give(out, stats);
	return CH_OK;
}
