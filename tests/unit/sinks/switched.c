/* SPDX-License-Identifier: MIT
 * switched.c: a sink that fails in one thread while another one turns it off and on again: what
 * was turned on anew has not failed. */
#define _GNU_SOURCE
#include "os/ranks.h"
#include "sinks/tools.h"
#include "tests/support/perfmap_reader.h"
#include "tests/support/unwind_rig.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

enum { RANGES = 1024, RANGE_BYTES = 64, FILE_BYTES = 4096 };

struct teller {
	struct bed *bed;
	_Atomic(int) tid;
};

static void add(struct bed *bed, size_t offset, uint64_t key)
{
	struct ch__sink_range range = {(uintptr_t)bed->pool + offset, RANGE_BYTES, key, false};
	ch__sinks_add(bed->sinks, &range, 1);
}

/* Its file may not grow so far. */
static void *tell_too_much(void *arg)
{
	struct teller *teller = arg;
	atomic_store(&teller->tid, (int)gettid());
	for (size_t i = 0; i < RANGES; i++)
		add(teller->bed, i * RANGE_BYTES, i);
	ch__sinks_flush(teller->bed->sinks, CH__FLUSH_BUFFERED);
	return NULL;
}

static void let_files_grow(bool may)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = may ? limit.rlim_max : FILE_BYTES;
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static int error_of(const struct ch__tool_user *user)
{
	ch__tool_lock(ch__sink_perfmap.tool);
	int error = user->error;
	ch__tool_unlock(ch__sink_perfmap.tool);
	return error;
}

/* As ch__sinks_set does, which has the locks likewise, to a sink that has failed. */
static void turn_on_anew(struct bed *bed, void *state)
{
	static struct ch__frame_shape shapes[CH__FRAMES];
	ch__tool_lock(ch__sink_perfmap.tool);
	CHECK_EQ(ch__sink_perfmap.open(&bed->config, shapes, &state), 0);
	ch__tool_unlock(ch__sink_perfmap.tool);
	CHECK_EQ(error_of(state), 0);
}

TEST(sink_that_is_turned_on_anew_while_it_fails_stays_on)
{
	struct bed bed;
	struct teller teller = {&bed, 0};
	pthread_t thread;
	char path[128];
	use_own_folder();
	bed_open(&bed, CH__SINK_PERF_MAP);
	path_of(getpid(), path);
	void *state = (void *)(uintptr_t)ch__sinks_state(bed.sinks, CH__SINK_PERF_MAP);
	let_files_grow(false);
	ch__sinks_lock(bed.sinks); /* the lock */
	CHECK_EQ(pthread_create(&thread, NULL, tell_too_much, &teller), 0);
	TEST_UNTIL(error_of(state) != 0)
		usleep(1000);
	TEST_UNTIL(thread_is_asleep(atomic_load(&teller.tid)))
		usleep(1000);
	let_files_grow(true);
	turn_on_anew(&bed, state);
	ch__sinks_unlock(bed.sinks);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(ch__sinks_on(bed.sinks), CH__SINK_PERF_MAP);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH__SINK_PERF_MAP), 0);
	add(&bed, 0, 7);
	ch__sinks_flush(bed.sinks, CH__FLUSH_BUFFERED);
	check_named(path, bed.pool, "fn_7");
	bed_close(&bed);
	remove_own_folder();
}
