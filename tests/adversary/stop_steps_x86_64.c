/* SPDX-License-Identifier: MIT
 * stop_steps_x86_64.c: the stop signal at every instruction of an unpark. A thread unparks with the
 * trap flag set, while a cycle, which saw the thread parked, reads the published registers. Each
 * SIGTRAP sends the thread the cycle's signal once more. */
#define _GNU_SOURCE
#include "codeheap/collect/collect.h"
#include "tests/support/stage.h"
#include "tests/support/trap_flag_x86_64.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct play {
	struct stage *stage;
	struct ch__thread *thread;
	pid_t tid;
	_Atomic(int) is_parked, is_held;
	_Atomic(unsigned) steps;
};

static struct play *stepped;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	int error = errno;
	(void)signal, (void)info, (void)context;
	atomic_fetch_add(&stepped->steps, 1);
	CHECK(ch__world_signal(stepped->thread));
	errno = error;
}

static void unpark_in_steps(struct stage *stage, void *arg)
{
	struct play *p = arg;
	p->thread = ch__thread_self(stage->heap);
	p->tid = (pid_t)syscall(SYS_gettid);
	ch_thread_park();
	atomic_store(&p->is_parked, 1);
	while (!atomic_load(&p->is_held))
		usleep(100);
	trap_flag_set();
	ch_thread_unpark();
	trap_flag_clear();
	ch_thread_poll();
}

/* In the stopped world, until the thread waits for the stop's end: asleep, and no step since. */
static void watch(struct stage *stage, struct ch_marker *marker)
{
	struct play *p = stage->user;
	struct ch__thread before = *p->thread;
	(void)marker;
	atomic_store(&p->is_held, 1);
	unsigned steps;
	do {
		usleep(1000);
		steps = atomic_load(&p->steps);
	} while (!steps || !thread_is_asleep(p->tid) || atomic_load(&p->steps) != steps);
	CHECK_EQ(atomic_load(&p->thread->state), CH__PARKED);
	CHECK(memcmp(&p->thread->shown, &before.shown, sizeof before.shown) == 0);
}

TEST(stop_signal_at_each_instruction_of_an_unpark_finds_it_parked)
{
	struct stage *stage = stage_new(STAGE_SIGNALS);
	struct play *p = stage_play(stage, sizeof *p);
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
	struct stage_thread t;
	stepped = p;
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	stage_spawn(stage, &t, unpark_in_steps, p);
	stage_wait(&p->is_parked, 1);
	stage->roots = watch;
	stage_collect(stage);
	stage->roots = NULL;
	stage_join(&t);
	CHECK(atomic_load(&p->steps) > 30);
	CHECK_EQ(stage_stats(stage).cycles_abandoned, 0);
	stage_end(stage);
}
