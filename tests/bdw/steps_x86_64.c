/* SPDX-License-Identifier: MIT
 * steps_x86_64.c: a collection at each instruction between the making of an owner's record and the
 * end of the call that writes the owner's anchor. The trap flag is set during the call, and the
 * handler collects at one step more in each scene, until the call has no more steps.
 * length: a process has one handler of SIGTRAP. */
#define _GNU_SOURCE
#include "codeheap/base/heap.h"
#include "codeheap/base/park.h"
#include "tests/bdw/support.h"
#include "tests/support/trap_flag_x86_64.h"

#include <dlfcn.h>
#include <gc/gc_mark.h>
#include <limits.h>
#include <signal.h>

static struct rig rig;
static struct method *made; /* a root of the collector */
static uint32_t owners_before;
static int wanted, steps;
static bool is_stepped;
static void (*collect_at_step)(void);

/* The heap is locked, so no lock of the collector is held. In a region no collection can begin. */
static bool is_collection_possible(void)
{
	return ch__lock_is_mine(&rig.heap->lock) && rig.heap->owners_now > owners_before &&
	       !ch__thread_self(rig.heap)->inside;
}

static void handle_step(int signal)
{
	(void)signal;
	if (is_collection_possible() && ++steps == wanted)
		collect_at_step();
}

/* Replaces libgc's, whose own steps are many: the steps begin when the anchor is allocated. */
void *GC_generic_malloc(size_t bytes, int kind)
{
	void *(*real)(size_t, int);
	*(void **)&real = dlsym(RTLD_NEXT, "GC_generic_malloc");
	void *object = real(bytes, kind);
	if (is_stepped)
		trap_flag_set();
	return object;
}

static void make_at_step(struct rig *of, void *arg)
{
	(void)of, (void)arg;
	made = GC_MALLOC(sizeof *made);
	made->value = made->sum = 7;
	owners_before = rig.heap->owners_now;
	steps = 0;
	is_stepped = true;
	enum ch_status status = ch_bdw_owner_create(rig.vm, "method", (const void *)no_code, made,
						    &made->owner, &made->anchor);
	trap_flag_clear();
	is_stepped = false;
	CHECK_EQ(status, CH_OK);
	CHECK_EQ(rig.heap->owners_now, owners_before + 1);
}

static void compile_and_run(struct rig *of, void *arg)
{
	(void)of, (void)arg;
	CHECK(compile(made, NULL, NULL, plain_callee));
	CHECK_EQ(run_method(made), 7);
}

static void collect_at_each_step(void)
{
	struct sigaction action = {.sa_handler = handle_step};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	for (wanted = 1; wanted == 1 || steps >= wanted - 1; wanted++) {
		run_apart(&rig, make_at_step, NULL);
		run_apart(&rig, compile_and_run, NULL);
		made = NULL;
		for (int i = 0; i < 2; i++)
			collect(&rig);
		CHECK_EQ(stats_of(rig.heap).owners_now, 0);
	}
	CHECK(wanted > 10);
	end_rig(&rig);
}

/* --- a whole collection --- */

static void collect_whole(void)
{
	GC_gcollect();
}

TEST(bdw_owner_made_while_a_collection_ends_is_made_again)
{
	rig = start_rig(0);
	collect_at_step = collect_whole;
	collect_at_each_step();
}

/* --- the first stop of a collection of two --- */

static void give_up_late(void)
{
	asked = 0;
	CHECK(!GC_try_to_collect(stop_after));
}

/* The first stop marks the anchor before it is written. The second, before the thread has left the
 * collector, looks again only at objects that the program says it wrote to. */
TEST(bdw_owner_made_between_two_stops_is_known_to_the_second)
{
	GC_INIT();
	GC_set_full_freq(0);
	GC_set_manual_vdb_allowed(1);
	GC_enable_incremental();
	rig = start_rig(0);
	asked = 0;
	stop_at = INT_MAX;
	CHECK(GC_try_to_collect(stop_after));
	stop_at = asked - 1;
	collect_at_step = give_up_late;
	collect_at_each_step();
}
