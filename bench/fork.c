/* SPDX-License-Identifier: MIT
 * fork.c: rows of a server that forks with 32 MiB of code: the time of a fork whose child shares
 * the code until a write, and of a fork with a copy for the child. Both stand beside a fork of the
 * same program without code, measured in turn. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CODE_BYTES = 32 << 20, BLOCK_BYTES = 8000, RUNS = 9, FORKS = 21, FORKS_OF_COPIES = 3 };

static double fork_us(int forks)
{
	double times[FORKS];
	for (int i = 0; i < forks; i++) {
		double start = bench_cpu_ns();
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		times[i] = (bench_cpu_ns() - start) / 1000;
		int status;
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			bench_die("fork");
	}
	return bench_median(times, forks);
}

static struct bench_heap *open_heap(enum ch_fork how)
{
	struct ch_config config;
	ch_config_init(&config);
	config.fork = how;
	return bench_heap_open(&config);
}

/* The same program without code; measures when asked. */
struct peer {
	int ask, answer;
	pid_t pid;
};

static struct peer start_peer(enum ch_fork how)
{
	int ask[2], answer[2];
	if (pipe(ask) != 0 || pipe(answer) != 0)
		bench_die("pipe");
	struct peer peer = {ask[1], answer[0], fork()};
	if (peer.pid < 0)
		bench_die("fork");
	if (peer.pid == 0) {
		char c;
		close(ask[1]);
		open_heap(how);
		while (read(ask[0], &c, 1) == 1) {
			double us = fork_us(FORKS);
			if (write(answer[1], &us, sizeof us) != sizeof us)
				break;
		}
		_exit(0);
	}
	close(ask[0]);
	close(answer[1]);
	return peer;
}

static double ask_peer(const struct peer *peer)
{
	double us = 0;
	if (write(peer->ask, "", 1) != 1 || read(peer->answer, &us, sizeof us) != sizeof us)
		bench_die("the program without code is gone");
	return us;
}

static void end_peer(const struct peer *peer)
{
	int status;
	close(peer->ask);
	close(peer->answer);
	if (waitpid(peer->pid, &status, 0) != peer->pid)
		bench_die("waitpid");
}

static void make_code(struct bench_heap *bench)
{
	struct ch_owner owner = bench_owner(bench, "code");
	for (size_t made = 0; made < CODE_BYTES; made += BLOCK_BYTES)
		bench_block(owner, BLOCK_BYTES);
}

/* The private memory of a fresh child, of all its memory, in KiB. */
static unsigned own_kib(void)
{
	int ends[2];
	unsigned long kib = 0;
	if (pipe(ends) != 0)
		bench_die("pipe");
	pid_t pid = fork();
	if (pid == 0) {
		char line[200];
		FILE *f = fopen("/proc/self/smaps_rollup", "r");
		while (f && fgets(line, sizeof line, f))
			if (sscanf(line, "Private_Dirty: %lu", &kib) == 1)
				break;
		_exit(write(ends[1], &kib, sizeof kib) != sizeof kib);
	}
	int status;
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0 ||
	    read(ends[0], &kib, sizeof kib) != sizeof kib)
		bench_die("the child that counts its memory");
	close(ends[0]);
	close(ends[1]);
	return (unsigned)kib;
}

static void measure(const char *name, enum ch_fork how, int forks, struct bench_goal goal)
{
	struct peer peer = start_peer(how);
	struct bench_heap *bench = open_heap(how);
	struct bench_runs runs = {.count = RUNS};
	char note[128];
	make_code(bench);
	fork_us(forks);
	ask_peer(&peer);
	for (int r = 0; r < RUNS; r++) {
		runs.ours[r] = fork_us(forks);
		runs.peer[runs.peer_count++] = ask_peer(&peer);
	}
	/* A copy is shared memory, mapped by one process only. */
	if (how == CH_FORK_COW)
		bench_format(note, sizeof note,
			     "32 MiB of code; %u KiB of all its memory are the child's own",
			     own_kib());
	else
		bench_format(note, sizeof note, "32 MiB of code");
	bench_emit(name, "us", &runs, "the same program without code", goal, note);
	end_peer(&peer);
	bench_heap_close(bench);
}

void bench_fork(void)
{
	measure("fork_cow", CH_FORK_COW, FORKS, (struct bench_goal){'<', 2, BENCH_OF_PEER});
	measure("fork_copy", CH_FORK_COPY, FORKS_OF_COPIES, (struct bench_goal){0});
}
