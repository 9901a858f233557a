/* SPDX-License-Identifier: MIT
 * profile_rig.h: shared by tests of the profiler: work of a known length, and the folded file of a
 * profile as lines to ask. */
#pragma once

#include "codeheap/base/park.h"
#include "codeheap/profile.h"
#include "observe/profile.h"
#include "tests/support/stage.h"
#include "observe/native_names.h"
#include "observe/profiler_inner.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct profile_rig {
	struct stage *stage;
	char path[64];
	char *text; /* of the last file that was read */
};

static inline uint64_t profile_cpu_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The kernel looks at timers of CPU time when its tick interrupts the thread. When threads compete
 * for the processor, a thread may run between ticks only, and nothing expires. A timer beside the
 * profiler's counts the milliseconds that the kernel saw. */
static _Thread_local volatile uint64_t profile_seen_ms;
static _Atomic(uint64_t) profile_spent_ms; /* in all of profile_burn, by all threads */

static void profile_see(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	profile_seen_ms = profile_seen_ms + 1 + (uint64_t)info->si_overrun;
}

static bool profile_watch(timer_t *timer)
{
	struct sigaction action = {.sa_sigaction = profile_see,
				   .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 5};
	struct itimerspec every = {{0, 1000000}, {0, 1000000}};
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	CHECK_EQ(sigaction(event.sigev_signo, &action, NULL), 0);
	profile_seen_ms = 0;
	return !CH_TSAN && timer_create(CLOCK_THREAD_CPUTIME_ID, &event, timer) == 0 &&
	       timer_settime(*timer, 0, &every, NULL) == 0;
}

/* Burns so many milliseconds of the thread's CPU time, and goes on until the kernel has seen nearly
 * all of the spent time, so that nothing is left for the samples of later code. */
static __attribute__((noinline)) uint64_t profile_burn(uint64_t ms)
{
	enum { UNSEEN_MS = 8, SEEN_SELDOM = 20 };
	static _Thread_local volatile uint64_t sum;
	timer_t timer;
	bool is_watched = profile_watch(&timer);
	uint64_t start = profile_cpu_ns(), spent;
	do {
		for (uint64_t i = 0; i < 10000; i++)
			sum = sum * 3 + i;
		spent = (profile_cpu_ns() - start) / 1000000u;
	} while (spent < ms || (is_watched && profile_seen_ms + UNSEEN_MS < spent &&
				spent < ms * SEEN_SELDOM));
	if (is_watched)
		timer_delete(timer);
	atomic_fetch_add(&profile_spent_ms, spent);
	return sum;
}
/* Called by a method; a frame of its own keeps the method's frame visible in each sample. */
static __attribute__((noinline, unused)) uint64_t profile_burn_all(void *ms)
{
	return profile_burn((uintptr_t)ms) | 1;
}

/* ThreadSanitizer holds signals back from a thread that waits or changes stacks, and starts no
 * thread in a child. */
static inline void profile_skip_if_signals_wait(void)
{
	if (CH_TSAN)
		skip("ThreadSanitizer holds signals back");
}

/* Without libdw, or linked statically, a program has names for exported functions only. */
static inline void profile_skip_without_names(void)
{
	char text[64];
	uintptr_t start;
	struct ch__meta *meta = ch__meta_create();
	struct ch__native_names *names = meta ? ch__native_names_open(meta) : NULL;
	bool is_named = names && ch__native_name(names, (uintptr_t)profile_burn_all, text,
						 sizeof text, &start);
	ch__native_names_close(names);
	if (meta)
		ch__meta_destroy(meta);
	if (!is_named)
		skip("functions have no names here");
}

static inline void profile_begin_in(struct profile_rig *rig, struct stage *stage)
{
	rig->stage = stage;
	stage_start(rig->stage);
	snprintf(rig->path, sizeof rig->path, "/tmp/codeheap-profile.%d", (int)getpid());
	rig->text = NULL;
}
static inline void profile_begin(struct profile_rig *rig, enum stage_driver driver)
{
	profile_begin_in(rig, stage_new(driver));
}

static inline void profile_end(struct profile_rig *rig)
{
	free(rig->text);
	unlink(rig->path);
	stage_end(rig->stage);
}
/* A case of a file whose rig is `rig`. */
#define TEST_PROFILE(name) \
	TEST_BETWEEN(name, profile_begin(&rig, STAGE_POLLS), profile_end(&rig))

static inline struct ch_profile_counts profile_stop(struct profile_rig *rig)
{
	struct ch_profile_counts counts = {.size = sizeof counts};
	CHECK_EQ(ch_profile_stop(rig->stage->heap, &counts), CH_OK);
	return counts;
}

static inline char *profile_file(const char *path)
{
	struct stat file;
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && fstat(fd, &file) == 0);
	char *text = calloc(1, (size_t)file.st_size + 1);
	CHECK(text && read(fd, text, (size_t)file.st_size) == file.st_size);
	close(fd);
	return text;
}

/* Writes folded stacks and reads them. */
static inline void profile_read(struct profile_rig *rig, unsigned more_flags)
{
	struct ch_profile_view view = {.size = sizeof view,
				       .flags = CH_PROFILE_FOLDED | more_flags};
	CHECK_EQ(ch_profile_write(rig->stage->heap, rig->path, &view), CH_OK);
	free(rig->text);
	rig->text = profile_file(rig->path);
}

/* The weight of all lines that have the text. Frames are parted by `;`, and here a `;` stands
 * before the first frame, too. */
static inline uint64_t profile_weight(const struct profile_rig *rig, const char *part)
{
	uint64_t weight = 0;
	for (const char *at = rig->text; *at;) {
		char line[1 << 16];
		size_t n = strcspn(at, "\n");
		CHECK(n + 3 < sizeof line);
		line[0] = ';';
		memcpy(line + 1, at, n);
		line[n + 1] = 0;
		char *count = strrchr(line, ' ');
		CHECK(count);
		*count = ';';
		if (strstr(line, part))
			weight += strtoull(count + 1, NULL, 10);
		at += n + (at[n] == '\n');
	}
	return weight;
}

/* While a profile runs: works until the lines that have the text weigh so much. The machine decides
 * how many ticks a thread sees of its time, and how many ticks find room. */
static inline void profile_call_until(struct profile_rig *rig, const struct method *m,
				      const char *part, uint64_t weight)
{
	do {
		method_call(m, (void *)50);
		profile_read(rig, 0);
	} while (profile_weight(rig, part) < weight);
}

/* The thread cannot have had more ticks since its clock said `from_ns`. */
static inline uint64_t profile_ticks_most(uint64_t from_ns, unsigned rate)
{
	return (profile_cpu_ns() - from_ns) / (1000000000u / rate) + 1;
}

static inline struct ch__sampler_slot *profile_slot(const struct profile_rig *rig)
{
	struct ch__thread *self = ch__thread_self(rig->stage->heap);
	struct ch__sampler_slot *slot = atomic_load(ch__look_thread_word(self));
	CHECK(slot);
	return slot;
}
static inline struct ch__profiler *profile_running(const struct profile_rig *rig)
{
	return ch__profile_of(rig->stage->heap)->hears;
}

/* Takes a sample of the calling thread as the handler would, of a stack that the test made: of the
 * pc only, or of records of frames too. */
static inline void profile_take(const struct profile_rig *rig,
				const struct ch__sampler_stack *stack, uint32_t weight)
{
	struct ch__sampler_slot *slot = profile_slot(rig);
	atomic_store(&slot->inside, 1);
	struct ch__sampler *sampler = atomic_load(&slot->sampler);
	CHECK(sampler);
	ch__sampler_take(sampler, stack, weight);
	atomic_store(&slot->inside, 0);
}
static inline void profile_take_pc(const struct profile_rig *rig, const void *pc, uint32_t weight)
{
	struct ch__sampler_stack stack = {.pc = (uintptr_t)pc};
	profile_take(rig, &stack, weight);
}

/* Waits until the worker has all samples that the thread took. */
static inline void profile_wait_for_worker(const struct profile_rig *rig)
{
	struct ch__sampler *sampler = atomic_load(&profile_slot(rig)->sampler);
	while (atomic_load(&sampler->head) != atomic_load(&sampler->tail))
		stage_sleep(1);
}

/* A profile at a rate at which only the samples of the test come. */
static inline void profile_start_still(const struct profile_rig *rig, size_t memory_bytes)
{
	struct ch_profile_options options = {.size = sizeof options, .memory_bytes = memory_bytes};
	CHECK_EQ(ch_profile_start(rig->stage->heap, 1, &options), CH_OK);
	/* No tick even once a second, since tests on slow machines last longer. */
	struct ch__sampler *sampler = atomic_load(&profile_slot(rig)->sampler);
	struct itimerspec never = {.it_value.tv_sec = 0};
	CHECK_EQ(timer_settime((timer_t)sampler->timer.system, 0, &never, NULL), 0);
}

/* Maps executable memory of a file, at an address or, for NULL, anywhere. The bytes are 0. */
static inline void *profile_map_file(const struct profile_rig *rig, const char *name, void *at,
				     size_t bytes)
{
	char path[128];
	snprintf(path, sizeof path, "%s.%s", rig->path, name);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0700);
	CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
	void *mapped =
		mmap(at, bytes, PROT_READ | PROT_EXEC, MAP_PRIVATE | (at ? MAP_FIXED : 0), fd, 0);
	CHECK(mapped != MAP_FAILED);
	close(fd);
	unlink(path);
	return mapped;
}
