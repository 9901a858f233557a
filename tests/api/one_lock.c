/* SPDX-License-Identifier: MIT
 * one_lock.c: a VM with one interpreter lock. Threads run code parked, each under the lock. The
 * collecting thread holds the lock, and `roots` reports the threads' stacks, since the sp and
 * registers published by a park are older than the frames. */
#define _GNU_SOURCE
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <semaphore.h>

static struct rig rig;
static pthread_mutex_t the_lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t is_inside, may_leave;
static const void *const *cell;
static bool reports;
/* The stack of the thread in code: below the innermost call out of code, and the stack's end. */
static char *stack_low, *stack_high;

static void lock(void)
{
	CHECK_EQ(pthread_mutex_lock(&the_lock), 0);
}

static void unlock(void)
{
	CHECK_EQ(pthread_mutex_unlock(&the_lock), 0);
}

static void report(void *user, struct ch_marker *marker)
{
	(void)user;
	if (stack_low && reports)
		ch_mark_stack(marker, stack_low, stack_high);
}

/* The trampoline's target. Lets go of the lock in the middle, like an interpreter that blocks. */
static uint64_t block_inside(void)
{
	char here = 0;
	stack_low = (char *)((uintptr_t)&here & ~(uintptr_t)7) - 256;
	unlock();
	CHECK_EQ(sem_post(&is_inside), 0);
	CHECK_EQ(sem_wait(&may_leave), 0);
	lock();
	stack_low = NULL;
	return 42;
}

/* The call lies deeper than the red zone of the park, because the scan reads the red zone too. */
__attribute__((noinline)) static uint64_t call_deep(void)
{
	volatile char room[4096];
	room[0] = 1;
	uint64_t result = ((uint64_t(*)(void))(uintptr_t)*cell)();
	return result + room[0] - 1;
}

static void *run(void *result)
{
	const void *low, *high;
	pthread_attr_t attributes;
	size_t bytes;
	void *base;
	CHECK_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
	CHECK_EQ(pthread_attr_getstack(&attributes, &base, &bytes), 0);
	CHECK_EQ(pthread_attr_destroy(&attributes), 0);
	low = base;
	high = (char *)base + bytes;
	CHECK_EQ(ch_thread_attach(rig.heap, low, high), CH_OK);
	ch_thread_park();
	lock();
	stack_high = (char *)base + bytes;
	*(uint64_t *)result = call_deep();
	unlock();
	/* The thread detaches while parked, without the lock. */
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

static struct ch_block make(struct ch_owner *owner)
{
	struct ch_block block;
	*owner = rig_owner(&rig, "blocks");
	CHECK_EQ(ch_trampoline_make(*owner, CH_TRAMPOLINE_FRAMED,
				    (const void *)(uintptr_t)block_inside, 0, NULL, NULL, &block),
		 CH_OK);
	CHECK_EQ(ch_owner_set_entry(*owner, block), CH_OK);
	cell = ch_owner_cell(*owner);
	return block;
}

static void start(void)
{
	struct ch_config config = rig_config(0);
	struct ch_ops ops = {.size = sizeof ops, .roots = report};
	rig = rig_create(&config, &ops, NULL);
	CHECK_EQ(sem_init(&is_inside, 0, 0), 0);
	CHECK_EQ(sem_init(&may_leave, 0, 0), 0);
}

/* The calling thread holds the lock, and is not parked. */
static void collect(void)
{
	lock();
	wipe_stack();
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	unlock();
}

struct question {
	struct ch_block block;
	enum ch_block_state state;
	enum ch_status status;
};

static void ask(void *arg)
{
	struct question *question = arg;
	struct ch_info info = {.size = sizeof info};
	question->status = ch_block_info(question->block, &info);
	question->state = info.state;
}

/* Asks on a thread that ends, so no scanned stack keeps an address of the block. */
static enum ch_status status_of(struct ch_block block, enum ch_block_state *state)
{
	struct question question = {.block = block};
	run_on_ended_thread(ask, &question);
	*state = question.state;
	return question.status;
}

TEST(parked_threads_run_code_under_one_lock)
{
	enum ch_block_state state;
	struct ch_owner owner;
	pthread_t thread;
	uint64_t result = 0;
	start();
	struct ch_block block = make(&owner);
	reports = true;
	CHECK_EQ(pthread_create(&thread, NULL, run, &result), 0);
	CHECK_EQ(sem_wait(&is_inside), 0);
	lock();
	CHECK_EQ(ch_blocks_invalidate(&block, 1, NULL), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	unlock();
	collect();
	CHECK_EQ(status_of(block, &state), CH_OK);
	CHECK_EQ(state, CH_BLOCK_NOTENTRANT);
	CHECK_EQ(sem_post(&may_leave), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(result, 42);
	collect();
	CHECK_EQ(status_of(block, &state), CH_E_STALE);
	rig_end(&rig);
}

/* A thread leaves while parked, and the next thread takes the record. */
TEST(parked_threads_detach_and_others_take_their_records)
{
	start();
	reports = true;
	for (int i = 0; i < 8; i++) {
		struct ch_owner owner;
		pthread_t thread;
		uint64_t result = 0;
		make(&owner);
		CHECK_EQ(sem_post(&may_leave), 0);
		CHECK_EQ(pthread_create(&thread, NULL, run, &result), 0);
		CHECK_EQ(pthread_join(thread, NULL), 0);
		CHECK_EQ(result, 42);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
		collect();
		CHECK_EQ(rig_stats(&rig).threads_now, 1);
	}
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	rig_end(&rig);
}
