/* SPDX-License-Identifier: MIT
 * main.c: runs the cases of `make orders` whose names are given, or all. */
#include "observe/profiler.h"
#include "tests/orders/cases.h"

#include <stdio.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/single_threaded.h>
#include <unistd.h>

struct scene scene;

static void attach(void)
{
	enum { AROUND = 4096 };
	const void *low, *high;
	/* On the stack of order_as; from here on the thread is on its own. */
	char here = 0;
	HOLDS(ch_thread_attach(scene.heap, &here - AROUND, &here + AROUND) == CH_OK);
	order_stack(order_self(), &low, &high);
	struct ch__thread *thread = ch__thread_self(scene.heap);
	thread->stack_low = (uintptr_t)low;
	thread->stack_high = (uintptr_t)high;
}

struct ch_heap *scene_heap(const char *stats_file)
{
	struct ch_config config;
	struct ch_heap *heap;
	ch_config_init(&config);
	config.pool_bytes = 1 << 20;
	config.sinks = CH_SINK_NONE;
	config.stats_file = stats_file;
	HOLDS(ch_heap_create(&config, &heap) == CH_OK);
	return heap;
}

void scene_make(void)
{
	struct ch_ops ops = {.size = sizeof ops};
	scene.heap = scene_heap(NULL);
	HOLDS(ch_vm_attach(scene.heap, &ops, NULL, &scene.vm) == CH_OK);
	order_as(1, attach);
	order_as(2, attach);
}

struct ch__profiler *scene_profiler(void)
{
	struct ch__profiler_config config = {.rate = 1, .heap = scene.heap};
	struct ch__profiler *profiler;
	HOLDS(ch__profiler_create(&config, &profiler) == 0);
	return profiler;
}

static const struct order_case *const rooms[] = {cases_stop, cases_find, cases_data,
						 cases_once};

static bool is_wanted(const char *name, char **names)
{
	for (char **n = names; *n; n++)
		if (!strcmp(*n, name))
			return true;
	return !*names;
}

int main(int argc, char **argv)
{
	(void)argc;
	/* Addresses decide where threads change, so each start has the same addresses. */
	if (!(personality(UINT32_MAX) & ADDR_NO_RANDOMIZE)) {
		if (personality(ADDR_NO_RANDOMIZE) != -1)
			execv("/proc/self/exe", argv);
	}
	/* The threads here are no threads of the C library. */
	__libc_single_threaded = 0;
	int n = 0;
	for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
		for (const struct order_case *c = rooms[i]; c->name; c++)
			if (is_wanted(c->name, argv + 1)) {
				n++;
				order_run(c);
				printf("%s: %u runs\n", c->name, c->runs);
			}
	return n ? 0 : 2;
}
