/* SPDX-License-Identifier: MIT
 * notices.c: block_freed may call every function. A callback that polls or collects delivers other
 * notices, whose callbacks do the same: no stack overflows, and each notice comes once. */
#include "codeheap/graph/block.h"
#include "codeheap/guest_look.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { BLOCKS = 2000, DEPTH_MOST = 64 };

static struct rig rig;
static unsigned notices, depth, most;
static void (*in_notice)(void);
static pid_t child;

static void note(void *vm_user, void *block_user)
{
	(void)vm_user, (void)block_user;
	notices++;
	most = ++depth > most ? depth : most;
	in_notice();
	depth--;
}

/* The blocks are freed, and nobody is told yet. */
static void free_blocks(void)
{
	notices = 0;
	for (int i = 0; i < BLOCKS; i++) {
		struct ch_owner owner = rig_owner(&rig, "freed");
		rig_block(owner, 1);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
	CHECK_EQ(notices, 0);
}

static void start(void (*call)(void))
{
	struct ch_ops ops = {.size = sizeof ops, .block_freed = note};
	struct ch_config config = rig_config(1 << 20);
	in_notice = call;
	rig = rig_create(&config, &ops, NULL);
	free_blocks();
}

static void end(void)
{
	CHECK_EQ(notices, BLOCKS);
	CHECK(most <= DEPTH_MOST);
	rig_end(&rig);
}

static void expect_bytes(void *unused, const struct ch__look_block *block)
{
	(void)unused;
	CHECK(block->hot_bytes);
}

/* The bytes went back, and other code may lie there. */
TEST(block_that_waits_for_its_notice_alone_is_shown_to_no_observer)
{
	uint32_t next = 1;
	start(ch_thread_poll);
	ch__look_lock_blocks(rig.heap);
	while (ch__look_blocks(rig.heap, &next, BLOCKS, expect_bytes, NULL))
		continue;
	ch__look_unlock_blocks(rig.heap);
	ch_thread_poll();
	end();
}

TEST(notice_that_polls_goes_no_deeper_for_more_notices)
{
	start(ch_thread_poll);
	ch_thread_poll();
	end();
}

static void call_nothing(void)
{
}

/* The VM's own cycle comes later, and frees what was discarded. */
TEST(discard_that_runs_no_cycle_makes_no_callback)
{
	struct ch_ops ops = {.size = sizeof ops, .block_freed = note};
	struct ch_config config = rig_config(1 << 20);
	size_t freed, kept;
	config.driver = CH_DRIVER_HOST;
	in_notice = call_nothing;
	rig = rig_create(&config, &ops, NULL);
	free_blocks();
	CHECK_EQ(ch_vm_discard(rig.heap, NULL, &freed, &kept), CH_OK);
	CHECK_EQ(notices, 0);
	ch_thread_poll();
	end();
}

static struct ch_fiber *home;

/* The thread's own stack is a fiber from the first switch away on. */
static void leave_and_return(void)
{
	const struct ch__thread *self = ch__thread_self(rig.heap);
	CHECK_EQ(ch_fiber_attach(rig.heap, (const void *)self->stack_low,
				 (const void *)self->stack_high, &home),
		 CH_OK);
	ch_fiber_suspend(home, (const void *)self->stack_low);
	ch_fiber_resume(home);
}

/* Each round frees a block, of which `tell` has to bring the notice. */
static void hear_each_round(void (*callback)(void), void (*tell)(void))
{
	enum { ROUNDS = 20 };
	struct ch_ops ops = {.size = sizeof ops, .block_freed = note};
	struct ch_config config = rig_config(1 << 20);
	in_notice = callback;
	rig = rig_create(&config, &ops, NULL);
	for (unsigned i = 1; i <= ROUNDS; i++) {
		struct ch_owner owner = rig_owner(&rig, "freed");
		rig_block(owner, 1);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		tell();
		CHECK_EQ(notices, i);
	}
	rig_end(&rig);
}

static void poll_and_end_fiber(void)
{
	ch_thread_poll();
	CHECK_EQ(ch_fiber_detach(home), CH_OK);
}

TEST(thread_hears_of_blocks_however_often_its_first_fiber_comes_in_a_notice)
{
	hear_each_round(leave_and_return, poll_and_end_fiber);
}

static void add_code(void)
{
	void *code;
	CHECK_EQ(ch_code_add(rig.heap, "", 1, "added", &code), CH_OK);
}

static void collect_as_a_stranger(void)
{
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
}

/* The code in the notice attaches the thread that collects. */
TEST(stranger_hears_of_blocks_however_often_a_notice_attaches_it)
{
	hear_each_round(add_code, collect_as_a_stranger);
}

static void do_nothing(void)
{
}

/* The pages go back before the notice comes. */
TEST(record_of_large_code_is_free_after_its_notice)
{
	struct ch_ops ops = {.size = sizeof ops, .block_freed = note};
	struct ch_config config = rig_config(8 << 20);
	enum { BYTES = 600000 }; /* the number of granules has more than 16 bits */
	struct emitter e;
	in_notice = do_nothing;
	rig = rig_create(&config, &ops, NULL);
	struct ch_owner owner = rig_owner(&rig, "large");
	emit_open(&e, owner, BYTES, 0);
	emit_answer(&e, 1);
	e.at = BYTES;
	CHECK_EQ(emit_commit(&e), CH_OK);
	const struct ch__block *block = ch__block_at(rig.heap, rig_record(e.code.block));
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(notices, 1);
	CHECK_EQ(ch__block_state(block), CH_BLOCK_FREE);
	rig_end(&rig);
}

static void collect(void)
{
	if (notices % 100 < 20)
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
}

TEST(notice_that_collects_goes_no_deeper_for_more_notices)
{
	start(collect);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	end();
}

static void poll_or_fork(void)
{
	static bool has_forked;
	if (has_forked || depth < 3) {
		ch_thread_poll();
		return;
	}
	has_forked = true;
	child = fork_child();
}

TEST(child_that_a_notice_forked_hears_of_the_rest)
{
	start(poll_or_fork);
	ch_thread_poll();
	CHECK_EQ(notices, BLOCKS);
	free_blocks();
	ch_thread_poll();
	end();
	if (!child)
		_exit(42);
	expect_exit(child, 42);
}

enum { WAITERS = 20 };
static _Atomic(unsigned) waiting, told_here;
static _Atomic(bool) may_go;
static pthread_t first;

static void wait_in_notice(void *vm_user, void *block_user)
{
	(void)vm_user, (void)block_user;
	if (pthread_equal(pthread_self(), first)) {
		told_here++;
		return;
	}
	waiting++;
	while (!may_go)
		usleep(100);
}

static void free_one(void)
{
	struct ch_owner owner = rig_owner(&rig, "freed");
	rig_block(owner, 1);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	ch_thread_poll();
}

static void *hear_and_wait(void *unused)
{
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	free_one();
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return unused;
}

TEST(notices_that_wait_in_many_threads_hold_up_no_other)
{
	struct ch_ops ops = {.size = sizeof ops, .block_freed = wait_in_notice};
	struct ch_config config = rig_config(1 << 20);
	pthread_t threads[WAITERS];
	first = pthread_self();
	rig = rig_create(&config, &ops, NULL);
	for (unsigned i = 0; i < WAITERS; i++) {
		CHECK(!pthread_create(&threads[i], NULL, hear_and_wait, NULL));
		while (waiting <= i)
			usleep(100);
	}
	free_one();
	CHECK_EQ(told_here, 1);
	may_go = true;
	for (unsigned i = 0; i < WAITERS; i++)
		CHECK(!pthread_join(threads[i], NULL));
	rig_end(&rig);
}
