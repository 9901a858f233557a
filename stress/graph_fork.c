/* SPDX-License-Identifier: MIT
 * graph_fork.c: forks in the middle of everything. The child goes on with the list of the forking
 * thread, out of the frames of that moment, checks its heaps, and ends; its parent waits,
 * parked. */
#include "graph_world.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for(pid_t child)
{
	uint64_t waited = 0;
	int status = 0;
	pid_t ended;
	while ((ended = waitpid(child, &status, WNOHANG)) == 0 || (ended < 0 && errno == EINTR)) {
		usleep(500);
		if (++waited > 2 * GRAPH_WAIT_MS)
			graph_fail("a forked child does not end");
	}
	if (ended != child || !WIFEXITED(status) || WEXITSTATUS(status))
		graph_fail("a forked child ended with status 0x%x", (unsigned)status);
}

void graph_fork(int operations)
{
	struct graph_thread *t = graph_self();
	if (graph_world.is_child)
		return;
	pid_t child = fork();
	if (child < 0)
		return;
	if (child) {
		graph_driver_park();
		wait_for(child);
		GRAPH_COUNT(graph_forks, 1);
		graph_driver_unpark();
		return;
	}
	alarm(GRAPH_WAIT_MS / 1000);
	graph_world.is_child = true;
	graph_driver_forked();
	if (t->next + (size_t)operations < t->end)
		t->end = t->next + (size_t)operations;
	t->limit = t->end;
}

void graph_fork_end(void)
{
	static const enum ch_sink sinks[] = {CH_SINK_PERF_MAP, CH_SINK_JITDUMP};
	const char *path;
	graph_model_child();
	/* Nobody reads the child's files any more. */
	for (int heap = 0; heap < graph_world.program->heaps; heap++)
		for (int i = 0; i < 2; i++)
			if (ch_sink_status(graph_world.heaps[heap].heap, sinks[i], &path, NULL) &&
			    path[0])
				unlink(path);
	_exit(0);
}
