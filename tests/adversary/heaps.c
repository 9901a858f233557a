/* SPDX-License-Identifier: MIT
 * heaps.c: a fork of a process with two heaps, while a cycle of one heap waits. The locks of the
 * other heap, held by the fork, stop no thread for which the cycle waits. And a fork beside the end
 * of a heap. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "codeheap/graph/names.h"
#include "tests/support/heap_rig.h"
#include "tests/support/libgcc_knows.h"
#include "tests/support/stage.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	struct ch_heap *other; /* made later: later locked by fork */
	_Atomic(int) ready, go, done, collected, asking;
	enum ch_status status;
};

static void attach_other(struct play *p)
{
	CHECK_EQ(ch_thread_attach(p->other, NULL, NULL), CH_OK);
	atomic_fetch_add(&p->ready, 1);
}

static void *hold_up(void *arg)
{
	struct play *p = arg;
	attach_other(p);
	while (!atomic_load(&p->done))
		continue;
	while (!atomic_load(&p->collected))
		ch_thread_poll();
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
	return NULL;
}

static void *collect(void *arg)
{
	struct play *p = arg;
	attach_other(p);
	p->status = ch_heap_collect(p->other);
	atomic_store(&p->collected, 1);
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
	return NULL;
}

static void *fork_once(void *arg)
{
	int status;
	(void)arg;
	pid_t child = fork();
	if (!child)
		_exit(0);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	return NULL;
}

static void *ask_sinks(void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_thread_attach(p->stage->heap, NULL, NULL), CH_OK);
	attach_other(p);
	while (!atomic_load(&p->go))
		continue;
	atomic_store(&p->asking, (int)gettid());
	while (!atomic_load(&p->collected)) {
		uint8_t frame;
		CHECK_EQ(ch_frame_register(p->stage->heap, "", 1, &frame), CH_OK); /* a nop */
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(p->stage->heap), CH_OK);
	CHECK_EQ(ch_thread_detach(p->other), CH_OK);
	return NULL;
}

TEST(fork_waits_for_one_heap_without_the_sinks_of_the_other)
{
	struct play play = {.stage = stage_new(STAGE_POLLS)}, *p = &play;
	stage_start(p->stage);
	CHECK_EQ(ch_heap_create(&p->stage->config, &p->other), CH_OK);
	static void *(*const parts[])(void *) = {hold_up, ask_sinks, collect, fork_once};
	pthread_t threads[4];
	ch_thread_park();
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(pthread_create(&threads[i], NULL, parts[i], p), 0);
		while (i < 3 && atomic_load(&p->ready) <= i)
			usleep(100);
		TEST_UNTIL(i != 2 || atomic_load(&p->other->stopping))
			usleep(100);
	}
	/* The fork has the locks it can get, and waits for one of the cycle's. A thread of both
	 * comes past the first heap's sinks, and stops for the cycle. */
	TEST_UNTIL(atomic_load(&p->other->registry.word) == CH__LOCK_AWAITED)
		usleep(100);
	atomic_store(&p->go, 1);
	TEST_UNTIL(atomic_load(&p->asking) && thread_is_asleep(atomic_load(&p->asking)))
		usleep(100);
	atomic_store(&p->done, 1);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	ch_thread_unpark();
	CHECK_EQ(p->status, CH_OK);
	CHECK_EQ(ch_heap_destroy(p->other), CH_OK);
	stage_end(p->stage);
}

/* --- a heap half gone --- */

struct leaving {
	struct rig rig;
	uint32_t id;
	uintptr_t pc; /* the complement of an address */
	_Atomic(int) forker, has_forked;
};

/* A destroy that had to wait for longer than its patience has left its heap. */
static bool is_unwound(const struct leaving *l)
{
	return libgcc_knows((const void *)~l->pc) && !ch__heaps_left;
}

static void *destroy_slowly(void *arg)
{
	struct leaving *l = arg;
	CHECK_EQ(ch_heap_destroy(l->rig.heap), CH_OK);
	return NULL;
}

static void *fork_meanwhile(void *arg)
{
	struct leaving *l = arg;
	atomic_store(&l->forker, (int)gettid());
	pid_t child = fork();
	if (!child && is_unwound(l))
		FAIL("fork: the child's unwinder knows code of a heap that is not there");
	if (!child)
		_exit(0);
	atomic_store(&l->has_forked, 1);
	expect_exit(child, 0);
	return NULL;
}

/* A reader delays the heap's end: the heap has left the table, but its code is still known. */
TEST(fork_waits_until_a_heap_is_gone)
{
	struct leaving l = {.rig = rig_start(1 << 20)};
	pthread_t destroyer, forker;
	skip_if_allocator_forgets_forks();
	l.pc = ~(uintptr_t)block_info(rig_block(rig_owner(&l.rig, "last"), 3)).entry;
	l.id = l.rig.heap->id;
	CHECK_EQ(ch_vm_detach(l.rig.vm), CH_OK);
	CHECK_EQ(ch_thread_detach(l.rig.heap), CH_OK);
	CHECK(is_unwound(&l));
	atomic_fetch_add(&ch__place_readers, 1);
	CHECK_EQ(pthread_create(&destroyer, NULL, destroy_slowly, &l), 0);
	while (atomic_load(&ch__heaps[l.id]))
		usleep(100);
	CHECK_EQ(pthread_create(&forker, NULL, fork_meanwhile, &l), 0);
	TEST_UNTIL(atomic_load(&l.has_forked) ||
		   (atomic_load(&l.forker) && thread_is_asleep(atomic_load(&l.forker))))
		usleep(100);
	atomic_fetch_sub(&ch__place_readers, 1);
	CHECK_EQ(pthread_join(forker, NULL), 0);
	CHECK_EQ(pthread_join(destroyer, NULL), 0);
	CHECK(!is_unwound(&l));
}

/* A child has its own memory where the heap's code was in the parent. */
TEST(heap_that_stays_for_a_reader_is_freed_in_no_child)
{
	enum { BYTES = 4096 };
	struct rig rig = rig_start(1 << 20), other;
	skip_if_allocator_forgets_forks();
	void *place = (void *)rig.heap->pool->exec_base;
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	atomic_fetch_add(&ch__place_readers, 1);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
	pid_t child = fork();
	if (child == 0) {
		int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
		volatile uint8_t *own = mmap(place, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
		bool is_own = own == place; /* private memory is still there */
		if (is_own)
			own[0] = 1;
		other = rig_start(1 << 20);
		rig_end(&other);
		CHECK(!is_own || own[0] == 1);
		_exit(0);
	}
	atomic_fetch_sub(&ch__place_readers, 1);
	expect_exit(child, 0);
	other = rig_start(1 << 20);
	rig_end(&other);
}
