/* SPDX-License-Identifier: MIT
 * late_sinks.c: a sink that is turned on while threads commit knows every block live then or later.
 * The walk over all blocks tells the sink of earlier blocks, and commits tell of later blocks. No
 * block falls between the two. */
#include "tests/support/heap_rig.h"
#include "tests/support/perfmap_reader.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MAKERS = 2, OWNERS = 4, BATCH = 64 };

static char path[128];
static struct rig rig;
static _Atomic(bool) is_over, is_paused;
static _Atomic(int) paused;
static _Atomic(uint32_t) made;

static void rest(void)
{
	atomic_fetch_add(&paused, 1);
	ch_thread_park();
	while (atomic_load(&is_paused))
		usleep(100);
	ch_thread_unpark();
	atomic_fetch_sub(&paused, 1);
}

/* Commits a batch. A batch takes time, so the sink comes on in the middle. */
static void make_batch(struct ch_owner owner)
{
	struct ch_code codes[BATCH];
	for (uint32_t i = 0; i < BATCH; i++) {
		struct emitter e;
		emit_open(&e, owner, 16, 0);
		emit_ret(&e);
		codes[i] = e.code;
		codes[i].used_to = e.at;
	}
	CHECK_EQ(ch_block_commit(codes, BATCH), CH_OK);
	atomic_fetch_add(&made, BATCH);
}

static void *commit_blocks(void *arg)
{
	struct ch_owner owners[OWNERS] = {{0}};
	(void)arg;
	CHECK_EQ(ch_thread_attach(rig.heap, NULL, NULL), CH_OK);
	for (uint32_t i = 0; !atomic_load(&is_over); i++) {
		struct ch_owner *owner = &owners[i % OWNERS];
		if (owner->bits)
			CHECK_EQ(ch_owner_release(*owner, CH_RELEASE_NOT_RUNNING), CH_OK);
		*owner = rig_owner(&rig, "made meanwhile");
		make_batch(*owner);
		if (atomic_load(&is_paused))
			rest();
	}
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
	return NULL;
}

static bool check_one(void *arg, const struct ch_info *info)
{
	if (info->state == CH_BLOCK_LIVE && !line_of(arg, (uintptr_t)info->exec))
		FAIL("perf map: the block at %p was made while the sink came on, and has no name",
		     (const void *)info->exec);
	return true;
}

static void check_all(void)
{
	atomic_store(&is_paused, true);
	ch_thread_park();
	while (atomic_load(&paused) < MAKERS)
		usleep(100);
	ch_thread_unpark();
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	struct map_file *map = read_map(path);
	CHECK_EQ(ch_block_each(rig.heap, NULL, check_one, map), CH_OK);
	free(map);
	atomic_store(&is_paused, false);
	/* A maker still on its way out of the pause would count for the next pause, and would
	 * commit while the map is read. */
	ch_thread_park();
	while (atomic_load(&paused))
		usleep(100);
	ch_thread_unpark();
}

/* Turns the sink off, and waits until two batches are committed. */
static void turn_off(void)
{
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND), CH_OK);
	uint32_t before = atomic_load(&made);
	ch_thread_park();
	while (atomic_load(&made) - before < 2 * BATCH)
		usleep(10);
	ch_thread_unpark();
}

TEST(perf_map_that_is_turned_on_misses_no_block)
{
	use_own_folder();
	path_of(getpid(), path);
	rig = rig_start(8 << 20);
	pthread_t makers[MAKERS];
	for (int i = 0; i < MAKERS; i++)
		CHECK_EQ(pthread_create(&makers[i], NULL, commit_blocks, NULL), 0);
	uint64_t end = now_ns() + (uint64_t)storm_ms() * 1000000;
	int rounds = 0;
	for (; now_ns() < end || rounds < 2; rounds++) {
		turn_off();
		CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_UNWIND | CH_SINK_PERF_MAP), CH_OK);
		check_all();
	}
	printf("%d rounds, %u blocks\n", rounds, atomic_load(&made));
	atomic_store(&is_over, true);
	ch_thread_park();
	for (int i = 0; i < MAKERS; i++)
		pthread_join(makers[i], NULL);
	ch_thread_unpark();
	rig_end(&rig);
	remove_own_folder();
}
