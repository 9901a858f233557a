/* SPDX-License-Identifier: MIT
 * broken_contracts.c: functions that break one contract of arch/base.h each, and what clang is to
 * say of them. make tidy compiles it with -verify, which fails as soon as one of them is accepted
 * or says something else: the annotations of the headers are proved to be read. Never linked. */
#include "codeheap/graph/branch.h"
#include "codeheap/collect/collect.h"
#include "codeheap/graph/names.h"
#include "invalidate/invalidate.h"
#include "codeheap/base/park.h"

int needs_the_heap_lock(struct ch_heap *heap);
int keeps_the_heap_lock(struct ch_heap *heap);

/* --- locks --- */

int needs_the_heap_lock(struct ch_heap *heap)
{
	/* expected-warning@+1 {{requires holding role 'ch__role_heap'}} */
	return heap->names_parked != 0;
}

int keeps_the_heap_lock(struct ch_heap *heap)
{
	ch__heap_lock(heap); /* expected-note {{acquired here}} */
	if (heap->quarantine_head)
		return 1;
	ch__heap_unlock(heap);
	return 0; /* expected-warning@+1 {{'ch__role_heap' is not held on every path}} */
}

void takes_it_twice(struct ch_heap *heap);
void takes_it_twice(struct ch_heap *heap)
{
	ch__heap_lock(heap); /* expected-note {{acquired here}} */
	ch__heap_lock(heap); /* expected-warning {{'ch__role_heap' that is already held}} */
	ch__heap_unlock(heap);
}

void takes_them_out_of_order(struct ch_heap *heap);
void takes_them_out_of_order(struct ch_heap *heap)
{
	ch__heap_lock(heap);
	ch__registry_lock(heap); /* expected-warning {{while role 'ch__role_heap' is held}} */
	ch__registry_unlock(heap);
	ch__heap_unlock(heap);
}

void interns_without_it(struct ch_heap *heap);
void interns_without_it(struct ch_heap *heap)
{
	ch__name_drop(heap, 1); /* expected-warning {{requires holding role 'ch__role_heap'}} */
}

void lets_go_what_it_has_not(struct ch_heap *heap);
void lets_go_what_it_has_not(struct ch_heap *heap)
{
	ch__records_unlock(heap); /* expected-warning {{'ch__role_records' that was not held}} */
}

void tells_the_vm_under_a_lock(struct ch_heap *heap);
void tells_the_vm_under_a_lock(struct ch_heap *heap)
{
	ch__heap_lock(heap);
	ch__vms_tell(heap); /* expected-warning {{while role 'ch__role_heap' is held}} */
	ch__heap_unlock(heap);
}

/* --- regions --- */

void nests_regions(struct ch__thread *thread);
void nests_regions(struct ch__thread *thread)
{
	ch__region_enter(thread); /* expected-note {{acquired here}} */
	ch__region_enter(thread); /* expected-warning {{'ch__role_region' that is already held}} */
	ch__region_leave(thread);
}

void stays_in_its_region(struct ch__thread *thread, bool leaves);
void stays_in_its_region(struct ch__thread *thread, bool leaves)
{
	ch__region_enter(thread); /* expected-note {{acquired here}} */
	if (leaves) /* expected-warning@+2 {{'ch__role_region' is not held on every path}} */
		ch__region_leave(thread); /* no more */
}

void locks_in_a_region(struct ch_heap *heap, struct ch__thread *thread);
void locks_in_a_region(struct ch_heap *heap, struct ch__thread *thread)
{
	ch__region_enter(thread);
	ch__heap_lock(heap); /* expected-warning {{while role 'ch__role_region' is held}} */
	ch__heap_unlock(heap);
	ch__region_leave(thread);
}

void *allocates_in_a_region(struct ch_heap *heap, struct ch__thread *thread);
void *allocates_in_a_region(struct ch_heap *heap, struct ch__thread *thread)
{
	ch__region_enter(thread);
	/* expected-warning@+1 {{while role 'ch__role_region' is held}} */
	void *at = ch__meta_alloc(heap->meta, 8);
	ch__region_leave(thread);
	return at;
}

void asks_the_system_in_a_region(void *at, struct ch__thread *thread);
void asks_the_system_in_a_region(void *at, struct ch__thread *thread)
{
	ch__region_enter(thread);
	ch__os_unmap(at, 4096); /* expected-warning {{while role 'ch__role_region' is held}} */
	ch__region_leave(thread);
}

void unlinks_outside_of_one(struct ch_heap *heap);
void unlinks_outside_of_one(struct ch_heap *heap)
{
	ch__heap_lock(heap);
	/* expected-warning@+1 {{holding role 'ch__role_region'}} */
	ch__block_unlink(heap, 1, true, true);
	ch__heap_unlock(heap);
}

void changes_a_page_that_is_not_its_own(struct ch__pool *pool);
void changes_a_page_that_is_not_its_own(struct ch__pool *pool)
{
	ch__page_give_back(pool, 0, 0, 8); /* expected-warning {{holding role 'ch__role_busy'}} */
}

/* --- the freeze and the stopped world --- */

void marks_in_a_running_world(struct ch_marker *marker);
void marks_in_a_running_world(struct ch_marker *marker)
{
	ch__mark_block(marker, 1); /* expected-warning {{holding role 'ch__role_frozen'}} */
}

void scans_threads_that_run(struct ch_heap *heap);
void scans_threads_that_run(struct ch_heap *heap)
{
	ch__freeze(heap);
	ch__scan_stacks(&heap->marker); /* expected-warning {{holding role 'ch__role_stopped'}} */
	ch__unfreeze(heap);
}

bool allocates_in_the_stopped_world(struct ch_heap *heap);
bool allocates_in_the_stopped_world(struct ch_heap *heap)
{
	bool has_memory = false;
	ch__registry_lock(heap);
	ch__heap_lock(heap);
	ch__freeze(heap);
	if (ch__world_stop(heap, 0)) {
		/* expected-warning@+1 2 {{is held}} */
		has_memory = ch__mark_reserve(heap, &heap->marker);
		ch__world_resume(heap);
	}
	ch__unfreeze(heap);
	ch__heap_unlock(heap);
	ch__registry_unlock(heap);
	return has_memory;
}

void leaves_the_world_stopped(struct ch_heap *heap) CH_REQUIRES(ch__role_registry, ch__role_heap);
void leaves_the_world_stopped(struct ch_heap *heap)
{
	ch__freeze(heap);
	if (ch__world_stop(heap, 0)) /* expected-note {{acquired here}} */
		heap->stats.freezes++;
	ch__unfreeze(heap); /* expected-warning {{'ch__role_stopped' is not held on every path}} */
}

void enters_a_region_while_it_froze(struct ch_heap *heap, struct ch__thread *thread);
void enters_a_region_while_it_froze(struct ch_heap *heap, struct ch__thread *thread)
{
	ch__freeze(heap);
	ch__region_enter(thread); /* expected-warning {{while role 'ch__role_frozen' is held}} */
	ch__region_leave(thread);
	ch__unfreeze(heap);
}

/* --- write windows --- */

void publishes_nothing(const struct ch__pool *pool, uintptr_t exec);
void publishes_nothing(const struct ch__pool *pool, uintptr_t exec)
{
	*ch__pool_write(pool, exec) = 0; /* expected-note {{acquired here}} */
} /* expected-warning {{'ch__role_window' is still held at the end of function}} */

void publishes_on_one_way_out(const struct ch__pool *pool, uintptr_t exec, bool is_early);
void publishes_on_one_way_out(const struct ch__pool *pool, uintptr_t exec, bool is_early)
{
	*ch__pool_write(pool, exec) = 0; /* expected-note {{acquired here}} */
	if (is_early)
		return;
	ch__pool_sync(pool, exec, 1);
} /* expected-warning {{'ch__role_window' is not held on every path}} */

void writes_two_and_publishes_one(const struct ch__pool *pool, uintptr_t exec);
void writes_two_and_publishes_one(const struct ch__pool *pool, uintptr_t exec)
{
	*ch__pool_write(pool, exec) = 0; /* expected-note {{acquired here}} */
	*ch__pool_write(pool, exec + 64) = 0; /* expected-warning {{that is already held}} */
	ch__pool_sync(pool, exec, 1);
}
