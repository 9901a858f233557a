/* SPDX-License-Identifier: MIT
 * fork.c: fork() isolates, from inside JIT frames and beside busy threads. Neither process sees
 * later writes to code by the other process. A child of CH_FORK_NONE has no code. */
#include "codeheap/base/heap.h"
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BUSY = 3 };

static struct rig rig;
static _Atomic(bool) is_over;
static struct ch_owner owner;
static struct ch_branch branch;
static struct ch_block jumper, leaf_one, leaf_two;
static int generations; /* children still to be made */
static pid_t parent_of_all;

static void wait_for(pid_t child)
{
	int how;
	CHECK_EQ(waitpid(child, &how, 0), child);
	if (!WIFEXITED(how) || WEXITSTATUS(how))
		FAIL("the child ended with %x", (unsigned)how);
}

/* A child ends here, and its parent waits. */
static void end_child(pid_t child)
{
	if (!child)
		_exit(0);
	wait_for(child);
}

/* Both processes commit the block that was open, and run it. */
static pid_t fork_and_commit(struct emitter *e, uint32_t answer)
{
	pid_t child = fork_child();
	CHECK_EQ(emit_commit(e), CH_OK);
	CHECK_EQ(code_call(e->code.exec), answer);
	return child;
}

static void *be_busy(void *arg)
{
	uint32_t number = (uint32_t)(uintptr_t)arg, rounds = 0;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	while (!atomic_load(&is_over)) {
		struct ch_owner mine = rig_owner(&rig, "busy");
		/* A new block dies when its thread waits for a lock for three cycles. */
		for (int made = 0; made < 8;) {
			enum ch_status status = ch_owner_set_entry(mine, rig_block(mine, number));
			CHECK(status == CH_OK || status == CH_E_STALE);
			made += status == CH_OK;
		}
		CHECK_EQ(code_call_owner(mine), number);
		CHECK_EQ(ch_owner_release(mine,
					  number % 2 ? CH_RELEASE_COLLECT : CH_RELEASE_NOT_RUNNING),
			 CH_OK);
		/* Thread 2 collects all the time. Each thread collects now and then, since the pool
		 * may be full before thread 2 had a turn. */
		if (number == 2 || ++rounds % 256 == 0)
			CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

/* In either process old code runs, and code can be linked, made and collected. */
static void live_on(uint32_t number)
{
	rig_check(&rig);
	CHECK_EQ(ch_branch_link(branch, number % 2 ? leaf_one : leaf_two), CH_OK);
	CHECK_EQ(code_call(block_info(jumper).entry), number % 2 ? 1 : 2);
	struct ch_owner mine = rig_owner(&rig, "after");
	for (uint32_t i = 0; i < 100; i++) {
		/* Busy threads of the parent collect without end, so a newborn block may die before
		 * set_entry. */
		enum ch_status status;
		do
			status = ch_owner_set_entry(mine, rig_block(mine, number + i));
		while (status == CH_E_STALE);
		CHECK_EQ(status, CH_OK);
		CHECK_EQ(code_call_owner(mine), number + i);
	}
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	CHECK_EQ(ch_owner_release(mine, CH_RELEASE_COLLECT), CH_OK);
	rig_check(&rig);
	CHECK_EQ(code_call(block_info(jumper).entry), number % 2 ? 1 : 2);
}

/* Called from code. The child and the grandchild go on in the frame that forked. */
static void fork_here(void)
{
	while (generations) {
		generations--;
		pid_t child = fork_child();
		if (child) {
			live_on(1001);
			wait_for(child);
			CHECK_EQ(code_call(block_info(jumper).entry), 1);
			return;
		}
		alarm(TEST_PATIENCE_S); /* ends a child that hangs */
		CHECK_EQ(rig_stats(&rig).threads_now, 1);
		live_on(500);
	}
	CHECK_EQ(ch_blocks_invalidate(&jumper, 1, NULL), CH_OK);
	CHECK_EQ(code_call_owner(owner), RIG_FALLBACK);
}

static const void *make_code(void)
{
	owner = rig_owner(&rig, "forks");
	leaf_one = rig_block(owner, 1);
	leaf_two = rig_block(owner, 2);
	jumper = rig_jumper(owner, NULL, &branch);
	CHECK_EQ(ch_branch_link(branch, leaf_two), CH_OK);
	/* The edges of an immortal block hold both leaves and the jumper. */
	struct emitter e;
	struct ch_open open = {.owner = owner, .hot_bytes = 64, .flags = CH_OPEN_IMMORTAL};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_edge_attach(e.code.block, leaf_one), CH_OK);
	CHECK_EQ(ch_edge_attach(e.code.block, leaf_two), CH_OK);
	CHECK_EQ(ch_edge_attach(e.code.block, jumper), CH_OK);
	emit_enter(&e);
	emit_call_c(&e, (const void *)(uintptr_t)fork_here);
	emit_value(&e, 0xf04c);
	emit_leave(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.exec;
}

TEST(fork_from_code_isolates_parent_child_and_grandchild)
{
	skip_if_allocator_forgets_forks();
	rig = rig_start(4 << 20);
	const void *code = make_code();
	parent_of_all = getpid();
	pthread_t busy[BUSY];
	for (uintptr_t i = 0; i < BUSY; i++)
		CHECK_EQ(pthread_create(&busy[i], NULL, be_busy, (void *)(i + 1)), 0);
	for (int i = 0; i < 5 && getpid() == parent_of_all; i++) {
		generations = 2;
		CHECK_EQ(code_call(code), 0xf04c);
		/* The frame that forked has returned, in each process. */
		if (getpid() != parent_of_all) {
			rig_check(&rig);
			_exit(0);
		}
		ch_thread_poll();
	}
	atomic_store(&is_over, true);
	ch_thread_park();
	for (int i = 0; i < BUSY; i++)
		pthread_join(busy[i], NULL);
	ch_thread_unpark();
	rig_end(&rig);
}

/* --- a write after the fork --- */

TEST_SHARED_RIG(a_write_of_the_child_is_not_seen_by_the_parent, rig_start(1 << 20))
{
	make_code();
	int pipes[2];
	char byte;
	CHECK_EQ(pipe(pipes), 0);
	pid_t child = fork_child();
	if (!child) {
		CHECK_EQ(code_call(block_info(jumper).entry), 2);
		CHECK_EQ(ch_branch_link(branch, leaf_one), CH_OK);
		CHECK_EQ(code_call(block_info(jumper).entry), 1);
		CHECK_EQ(write(pipes[1], "x", 1), 1);
		_exit(0);
	}
	CHECK_EQ(read(pipes[0], &byte, 1), 1);
	CHECK_EQ(code_call(block_info(jumper).entry), 2);
	wait_for(child);
}

/* --- open blocks --- */

static struct emitter opened_elsewhere;
static void open_elsewhere(const struct rig *r, void *arg)
{
	(void)arg;
	emit_open(&opened_elsewhere, rig_owner(r, "elsewhere"), 32, 0);
	emit_answer(&opened_elsewhere, 3);
}

/* A thread beside the thread that forks. */
struct other {
	pthread_t thread;
	pthread_barrier_t barrier;
};

static void start_beside_rig(struct other *other, void *(*life)(void *))
{
	CHECK_EQ(pthread_barrier_init(&other->barrier, NULL, 2), 0);
	CHECK_EQ(pthread_create(&other->thread, NULL, life, other), 0);
	pthread_barrier_wait(&other->barrier);
}

static void start_other(struct other *other, void *(*life)(void *))
{
	rig = rig_start(1 << 20);
	start_beside_rig(other, life);
}

static void end_other(struct other *other)
{
	pthread_barrier_wait(&other->barrier);
	pthread_join(other->thread, NULL);
	rig_end(&rig);
}

static void wait_for_the_end(struct other *self)
{
	pthread_barrier_wait(&self->barrier);
	ch_thread_park();
	pthread_barrier_wait(&self->barrier);
	ch_thread_unpark();
}

static void *open_and_wait(void *self)
{
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	open_elsewhere(&rig, NULL);
	wait_for_the_end(self);
	CHECK_EQ(emit_commit(&opened_elsewhere), CH_OK);
	CHECK_EQ(code_call(opened_elsewhere.code.exec), 3);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

TEST(a_child_keeps_its_own_open_blocks_and_drops_those_of_others)
{
	struct other other;
	struct emitter mine;
	start_other(&other, open_and_wait);
	emit_open(&mine, rig_owner(&rig, "mine"), 32, 0);
	emit_answer(&mine, 4);
	pid_t child = fork_and_commit(&mine, 4);
	if (!child) {
		CHECK(!rig_is_there(opened_elsewhere.code.block));
		CHECK_EQ(rig_stats(&rig).blocks_open_now, 0);
		rig_check(&rig);
		_exit(0);
	}
	wait_for(child);
	end_other(&other);
}

/* Until its commit the memory of a large room is private, and gaps hold traps. */
TEST_SHARED_RIG(a_child_and_its_parent_keep_an_open_room, rig_start(64 << 20))
{
	enum { ROOM = 20 << 20, FAR = 9 << 20 };
	struct emitter mine;
	emit_open(&mine, rig_owner(&rig, "room"), ROOM, 0);
	emit_answer(&mine, 4);
	memcpy(mine.code.write + FAR, mine.code.write, mine.at);
	pid_t child = fork_child();
	CHECK(!memcmp(mine.code.write + FAR, mine.code.write, mine.at));
	CHECK(!memcmp(mine.code.write + FAR / 2, &ch__arch_traps, sizeof ch__arch_traps));
	mine.at += FAR;
	CHECK_EQ(emit_commit(&mine), CH_OK);
	CHECK_EQ(code_call(mine.code.exec), 4);
	CHECK_EQ(code_call(mine.code.exec + FAR), 4);
	CHECK(!memcmp(mine.code.exec + FAR / 2, &ch__arch_traps, sizeof ch__arch_traps));
	rig_check(&rig);
	end_child(child);
}

static struct ch_owner given;
static struct ch_block given_block;

static void *make_and_wait(void *self)
{
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	given = rig_owner(&rig, "given");
	given_block = rig_block(given, 3);
	wait_for_the_end(self);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

TEST(a_child_keeps_an_open_block_in_a_record_that_was_anothers)
{
	struct other other;
	struct emitter mine;
	start_other(&other, make_and_wait);
	CHECK_EQ(ch_owner_release(given, CH_RELEASE_NOT_RUNNING), CH_OK);
	emit_open(&mine, rig_owner(&rig, "mine"), 32, 0);
	/* Where cores may run old bytes on, the record waits for a cycle. */
	CHECK(!CH_ARCH_FETCH_FOLLOWS || rig_record(mine.code.block) == rig_record(given_block));
	emit_answer(&mine, 4);
	pid_t child = fork_and_commit(&mine, 4);
	end_child(child);
	end_other(&other);
}

static void *attach_and_wait(void *self)
{
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	wait_for_the_end(self);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

static uint32_t given_blocks;

static void make_and_release(const struct rig *r, void *arg)
{
	(void)arg;
	struct ch_owner its = rig_owner(r, "earlier");
	for (uint32_t i = 0; i < given_blocks; i++)
		rig_block(its, i);
	CHECK_EQ(ch_owner_release(its, CH_RELEASE_NOT_RUNNING), CH_OK);
}

enum { LATER = 200 };
static struct ch_block later[LATER];

static void *open_many_and_wait(void *self)
{
	struct emitter e;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	struct ch_owner its = rig_owner(&rig, "later");
	for (int i = 0; i < LATER; i++) {
		emit_open(&e, its, 32, 0);
		later[i] = e.code.block;
	}
	wait_for_the_end(self);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

/* A thread that ended opened the block, and gave it to the forking thread. Then another thread took
 * the record of the ended thread, and its list, which became full where that thread opens many. */
static void keep_of_an_earlier_thread(void *(*run)(void *))
{
	struct other other;
	rig = rig_start(1 << 20);
	rig_apart(&rig, open_elsewhere, NULL);
	CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	start_beside_rig(&other, run);
	pid_t child = fork_and_commit(&opened_elsewhere, 3);
	end_child(child);
	end_other(&other);
}

TEST(a_child_keeps_an_open_block_that_a_thread_gave_it_before_it_ended)
{
	keep_of_an_earlier_thread(attach_and_wait);
	keep_of_an_earlier_thread(open_many_and_wait);
}

/* The earlier thread's blocks died, and left the list of the record: at a cycle, or when the list
 * was full. */
static void drop_of_a_later_thread(bool collects, uint32_t blocks)
{
	struct other other;
	rig = rig_start(1 << 20);
	given_blocks = blocks;
	rig_apart(&rig, make_and_release, NULL);
	if (collects)
		CHECK_EQ(ch_heap_collect(rig.heap), CH_OK);
	start_beside_rig(&other, open_many_and_wait);
	pid_t child = fork_child();
	if (!child) {
		for (int i = 0; i < LATER; i++)
			CHECK(!rig_is_there(later[i]));
		_exit(0);
	}
	wait_for(child);
	end_other(&other);
}

TEST(a_child_drops_the_open_blocks_of_a_thread_in_a_record_that_was_anothers)
{
	drop_of_a_later_thread(true, 10);
	drop_of_a_later_thread(false, 100);
}

/* The first block that the collection frees forks; both processes go on with the open. */
static pid_t forked;

static void fork_once(void *user, void *block_user)
{
	(void)block_user;
	if (!*(bool *)user)
		forked = fork();
	*(bool *)user = true;
}

TEST(a_child_of_an_open_that_collects_is_in_need_of_nothing)
{
	bool has_forked = false;
	struct ch_ops ops = {.size = sizeof ops, .block_freed = fork_once};
	struct ch_config config = rig_config(1 << 20);
	rig = rig_create(&config, &ops, &has_forked);
	struct ch_owner old = rig_owner(&rig, "old");
	struct ch_open open = {.size = sizeof open, .owner = old, .hot_bytes = 60000};
	struct emitter e;
	while (emit_open_as(&e, &open) == CH_OK) {
		emit_ret(&e);
		e.code.used_to = open.hot_bytes;
		CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	}
	CHECK_EQ(ch_owner_release(old, CH_RELEASE_COLLECT), CH_OK);
	open.owner = rig_owner(&rig, "new");
	open.flags = CH_OPEN_MAY_COLLECT;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK(has_forked && forked >= 0);
	CHECK_EQ(atomic_load(&rig.heap->opens_in_need), 0);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	end_child(forked);
	rig_end(&rig);
}

static void *hold_up(void *arg)
{
	struct other *self = arg;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	pthread_barrier_wait(&self->barrier);
	pthread_barrier_wait(&self->barrier); /* not parked */
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

/* The child lacks the thread that held a try up. No time ends the pause behind the try, nor makes
 * a cycle worth while. */
static void collects_in_a_child(bool has_core_sync)
{
	static const uint8_t bytes[60000];
	void (*f)(void);
	struct other other;
	start_other(&other, hold_up);
	rig.heap->config.stop_wait_ms = 1000;
	rig.heap->has_core_sync &= has_core_sync;
	while (ch_code_add(rig.heap, bytes, sizeof bytes, "f", &f) == CH_OK)
		CHECK_EQ(ch_code_free(rig.heap, (void *)(uintptr_t)f, CH_RELEASE_COLLECT), CH_OK);
	CHECK(rig_stats(&rig).cycles_abandoned > 0);
	atomic_store(&rig.heap->unasked_after_ns, UINT64_MAX);
	rig.heap->cycle_ns = UINT64_MAX >> 16;
	rig.heap->config.stop_wait_ms = TEST_PATIENCE_MS;
	pid_t child = fork_child();
	CHECK_EQ(ch_code_add(rig.heap, bytes, sizeof bytes, "f", &f), child ? CH_E_FULL : CH_OK);
	end_child(child);
	end_other(&other);
}
TEST(a_child_collects_though_a_thread_of_its_parent_did_not_stop)
{
	collects_in_a_child(true);
}
TEST(a_child_collects_twice_where_only_stops_synchronize)
{
	collects_in_a_child(false);
}

/* The state that a thread leaves which is stopped by the fork between its mark and its callback. */
TEST(a_child_tells_what_a_lost_thread_was_about_to_tell)
{
	unsigned asked = 0;
	struct ch_ops ops = {.size = sizeof ops, .collect_wanted = rig_count_asked};
	struct ch_config config = rig_config(1 << 20);
	rig = rig_create(&config, &ops, &asked);
	atomic_store(&rig.heap->collect_wanted, true);
	atomic_store(&rig.heap->collect_told, true);
	pid_t child = fork_child();
	ch_thread_poll();
	CHECK_EQ(asked, child ? 0 : 1);
	end_child(child);
	rig_end(&rig);
}

/* --- no code for the child --- */

TEST(dead_data_is_not_written_in_a_child_without_code)
{
	struct ch_config config = rig_config(1 << 20);
	config.fork = CH_FORK_NONE;
	rig = rig_create(&config, NULL, NULL);
	struct ch_code data;
	struct ch_open open = {
		.size = sizeof open, .heap = rig.heap, .hot_bytes = 64, .kind = CH_KIND_DATA};
	CHECK_EQ(ch_block_open(&open, &data), CH_OK);
	CHECK_EQ(ch_block_commit(&data, 1), CH_OK);
	CHECK_EQ(ch_code_free(rig.heap, data.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
	pid_t child = fork_child();
	rig_collect(&rig, 2);
	rig_check(&rig);
	end_child(child);
	rig_end(&rig);
}

static void call_it(void *entry)
{
	code_call(entry);
}

TEST(a_child_without_code_faults_where_it_would_run_it)
{
	struct ch_config config = rig_config(1 << 20);
	config.fork = CH_FORK_NONE;
	rig = rig_create(&config, NULL, NULL);
	struct ch_block block = rig_block(rig_owner(&rig, "owner"), 9);
	const void *entry = block_info(block).entry;
	expect_signal(call_it, (void *)(uintptr_t)entry, SIGSEGV);
	CHECK_EQ(code_call(entry), 9);
	rig_end(&rig);
}

/* --- heaps that come and go --- */

static _Atomic(int) heaps_made;

static void *make_heaps(void *arg)
{
	(void)arg;
	while (!atomic_load(&is_over)) {
		struct rig other = rig_start(1 << 20);
		struct ch_owner mine = rig_owner(&other, "for a while");
		CHECK_EQ(ch_owner_set_entry(mine, rig_block(mine, 7)), CH_OK);
		CHECK_EQ(code_call_owner(mine), 7);
		rig_end(&other);
		atomic_fetch_add(&heaps_made, 1);
	}
	return NULL;
}

/* All handlers of a fork see the same heaps, so no heap is unlocked without having been locked. */
TEST(heaps_come_and_go_while_another_thread_forks)
{
	skip_if_allocator_forgets_forks();
	rig = rig_start(4 << 20);
	pthread_t maker;
	int forks = 0;
	CHECK_EQ(pthread_create(&maker, NULL, make_heaps, NULL), 0);
	uint64_t end = now_ns() + (uint64_t)storm_ms() * 1000000;
	for (; now_ns() < end || !atomic_load(&heaps_made); forks++)
		end_child(fork());
	atomic_store(&is_over, true);
	ch_thread_park();
	pthread_join(maker, NULL);
	ch_thread_unpark();
	printf("%d heaps, %d forks\n", atomic_load(&heaps_made), forks);
	rig_end(&rig);
}

static _Atomic(bool) has_block;

static void *make_a_block(void *waits)
{
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	(void)rig_block(rig_owner(&rig, "apart"), 1);
	atomic_store(&has_block, true);
	TEST_UNTIL(!waits || atomic_load(&is_over))
		usleep(1000);
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

/* The lost thread's page is nobody's, also when a new thread has the record. */
TEST_SHARED_RIG(record_of_a_lost_thread_has_no_page_for_the_next_thread, rig_start(1 << 20))
{
	pthread_t lost, next;
	CHECK_EQ(pthread_create(&lost, NULL, make_a_block, &rig), 0);
	TEST_UNTIL(atomic_load(&has_block))
		usleep(1000);
	pid_t child = fork_child();
	if (child == 0) {
		CHECK_EQ(pthread_create(&next, NULL, make_a_block, NULL), 0);
		CHECK_EQ(pthread_join(next, NULL), 0);
		rig_check(&rig);
		_exit(0);
	}
	atomic_store(&is_over, true);
	CHECK_EQ(pthread_join(lost, NULL), 0);
	wait_for(child);
}
