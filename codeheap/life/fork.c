/* SPDX-License-Identifier: MIT
 * fork.c: fork() isolates (P9, I16; docs/design.md, section 9, has the steps). A child of vfork or
 * posix_spawn has the parent's memory; a child of _Fork or a raw clone has no shared views. */
#include "codeheap/life/life.h"

/* Any other value is the number of the process in which a thread registers the handlers. */
#define ABSENT 0u
#define STANDING UINT32_MAX
static _Atomic(uint32_t) handlers;

/* Locks of each heap: the prepare handler takes them, the other two handlers let them go. */
#define ALL_OF_A_HEAP ch__role_registry, ch__role_sweep, ch__role_heap, ch__role_records

static void lock_all(struct ch_heap *heap) CH_ACQUIRES(ALL_OF_A_HEAP)
{
	ch__registry_lock(heap);
	ch__sweep_lock(heap);
	ch__heap_lock(heap);
	ch__records_lock(heap);
}

static void prepare_heap(struct ch_heap *heap) CH_REQUIRES(ALL_OF_A_HEAP)
	CH_ACQUIRES(ch__role_frozen, ch__role_pages, ch__role_sinks)
{
	ch__freeze(heap);
	/* When this fails, the child has no code: a jump there faults, and nothing is shared. */
	ch__pool_fork_prepare(heap->pool, heap->config.fork != CH_FORK_NONE);
	ch__sinks_lock(heap->sinks);
}

/* ch__heaps_lock is held throughout, so all three handlers see the same heaps. The parking locks of
 * all heaps come first. Otherwise a fork holding A's sinks lock could wait for B's heap lock, while
 * B's cycle, the holder, waits for a thread that waits for A's sinks lock, which is no park. */
static void prepare(void) CH_UNANALYSED("the locks of all heaps, in a loop")
{
	ch__rank_check_for(CH__RANK_HEAPS, NULL);
	/* The child may lack the thread that is about to say so. */
	atomic_store(&handlers, STANDING);
	if (ch__is_marking())
		ch__panic("a fork between ch_mark_begin and ch_mark_end, or in a visit");
	ch__ranks_rest(true);
	ch__heaps_take();
	CH__EACH_HEAP(heap)
		lock_all(heap);
	CH__EACH_HEAP(heap)
		prepare_heap(heap);
	ch__sinks_fork_files_prepare();
	CH__EACH_HEAP(heap)
		CH__TELL(heap, fork_prepare);
}

static void unlock_all(struct ch_heap *heap) CH_RELEASES(ALL_OF_A_HEAP, ch__role_frozen)
{
	ch__unfreeze(heap);
	ch__records_unlock(heap);
	ch__heap_unlock(heap);
	ch__sweep_unlock(heap);
	ch__registry_unlock(heap);
}

static void parent(void) CH_UNANALYSED("the locks of all heaps, in a loop")
{
	ch__sinks_fork_files_done(false);
	CH__EACH_HEAP(heap) {
		CH__TELL(heap, fork_parent);
		ch__sinks_unlock(heap->sinks);
		ch__pool_fork_parent(heap->pool);
		unlock_all(heap);
	}
	ch__heaps_let_go();
	ch__ranks_rest(false);
}

static void drop_other_threads(struct ch_heap *heap) CH_HAS_HEAP
{
	struct ch__thread *self = ch__thread_self(heap);
	for (struct ch__thread *t = heap->threads; t; t = t->next) {
		if (t == self || !t->is_attached)
			continue;
		atomic_store(&t->inside, 0);
		ch__thread_set_state(t, CH__PARKED, memory_order_seq_cst, __func__);
		/* Nobody else aborts the thread's OPEN blocks. A thread that such a block was
		 * handed to compiles again. Blocks of the record's earlier threads were handed
		 * over, and stay. */
		for (uint32_t i = t->young_of_others; i < t->young_count; i++) {
			uint32_t index = ch__block_resolve(heap, t->young[i]);
			if (index && ch__block_state(ch__block_at(heap, index)) == CH_BLOCK_OPEN)
				ch__blocks_kill(heap, &index, 1, CH__DEATH_FORKED);
		}
		ch__records_flush(heap, t);
		memset(t->open_page, 0, sizeof t->open_page);
		/* The thread may just have freed the memory of its map. */
		memset(&t->sites, 0, sizeof t->sites);
		/* A stop's registers lie on the thread's stack, until its handler goes on. */
		memset(&t->shown, 0, sizeof t->shown);
		t->is_attached = false;
	}
	/* The child lacks the thread that held a try up: if there was one, the next is due. */
	CH_STORE_RELAXED(&heap->held_up_by, 0);
	heap->unasked_after_ns = heap->unasked_after_ns != 0;
	if (self)
		self->thread_id = ch__os_thread_id();
}

/* Retires OPEN pages without a thread, and frees lost spans: a lost thread had taken the span and
 * not yet written the block's record. */
static void reclaim_pages(struct ch_heap *heap)
{
	struct ch__pool *pool = heap->pool;
	const struct ch__thread *self = ch__thread_self(heap);
	for (uint32_t i = 0; i < ch__pool_pages_end(pool); i++) {
		enum ch__page_state state = (enum ch__page_state)atomic_load(&pool->pages[i].state);
		uint32_t frame = pool->pages[i].frame;
		if (state == CH__PAGE_OPEN && !(self && self->open_page[frame] == i + 1))
			ch__page_retire(heap, i);
		else if (state == CH__PAGE_SPAN && pool->pages[i].span_pages &&
			 !pool->pages[i].has_block)
			ch__block_pages_freed(heap, i << pool->page_log2, true);
	}
}

/* Kills all blocks, so that cells lead to the fallbacks: the child goes on in its interpreter. */
static void lose_code(struct ch_heap *heap) CH_HAS_HEAP
{
	heap->is_codeless = true;
	for (uint32_t i = 1; i < heap->blocks.used; i++)
		if (ch__block_in_use(heap, i))
			ch__blocks_kill(heap, &i, 1, CH__DEATH_NO_COPY);
	/* The files of the child began with the names of the parent's blocks. */
	ch__sinks_flush(heap->sinks, CH__FLUSH_EXACT);
	struct ch__thread *self = ch__thread_self(heap);
	if (self)
		memset(self->open_page, 0, sizeof self->open_page);
}

/* The child inherits the parent's locks, held, and the freeze: both end here. */
static void wake_heap(struct ch_heap *heap)
	CH_RELEASES(ALL_OF_A_HEAP, ch__role_frozen, ch__role_pages, ch__role_sinks)
{
	atomic_store(&heap->freeze, 1);
	atomic_store(&heap->opens_in_need, 0);
	atomic_store(&heap->lock_waits, 0);
	(void)ch__lock_set_free(&heap->need);
	atomic_store(&heap->need_is, 0);
	atomic_store(&heap->collects_unasked, 0);
	/* A lost thread may have been about to tell the vms. */
	ch__trigger_tell_again(heap);
	/* A core sync begun by a lost thread ended with the thread. */
	atomic_store(&heap->core_syncs_begun, atomic_load(&heap->core_syncs));
	bool has_code = ch__pool_fork_child(heap->pool);
	bool fast_fence = false, core_sync = false;
	ch__os_membarrier_register(&fast_fence, &core_sync);
	CH__TELL(heap, fork_child);
	ch__sinks_fork_child(heap->sinks, has_code);
	ch__unfreeze(heap);
	ch__records_unlock(heap);
	heap->process = ch__os_process_id();
	if (!has_code)
		lose_code(heap);
	drop_other_threads(heap);
	ch__owners_end_releases(heap);
	/* Ends detaches in the middle of which another thread made callbacks. */
	for (struct ch_vm *vm = heap->vms; vm; vm = vm->next)
		if (!vm->is_attached && vm->told != UINT32_MAX && vm->teller != ch__lock_self())
			ch__vm_told(vm);
	reclaim_pages(heap);
	ch__heap_unlock(heap);
	ch__sweep_unlock(heap);
	ch__registry_unlock(heap);
}

static void child(void) CH_UNANALYSED("the locks of all heaps, in a loop")
{
	/* Readers in other threads of the parent are not in the child. */
	atomic_store(&ch__place_readers, 0);
	/* Destroyed heaps stay: freeing a heap would change files of its sinks, the parent's. */
	ch__heaps_left = NULL;
	/* Side memory comes first, since sinks free memory. */
	CH__EACH_HEAP(heap)
		ch__meta_fork_child(heap->meta);
	ch__sinks_fork_files_done(true);
	CH__EACH_HEAP(heap)
		wake_heap(heap);
	ch__heaps_let_go();
	ch__ranks_rest(false);
}

/* The second caller waits for the first: a fork may come as soon as a heap is there. In a child of
 * fork the first may be lost. */
bool ch__fork_register(void)
{
	uint32_t process = (uint32_t)ch__os_process_id(), seen = ABSENT;
	while (!atomic_compare_exchange_strong(&handlers, &seen, process)) {
		if (seen == STANDING)
			return true;
		if (seen != process)
			continue;
		ch__os_futex_wait(&handlers, process, 1000000);
		seen = ABSENT;
	}
	bool done = ch__os_atfork(prepare, parent, child);
	atomic_store(&handlers, done ? STANDING : ABSENT);
	ch__os_futex_wake(&handlers);
	return done;
}
