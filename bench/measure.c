/* SPDX-License-Identifier: MIT
 * measure.c: clocks, medians, and the heap for rows to measure in. Has no rows. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double read_clock(clockid_t clock)
{
	struct timespec at;
	clock_gettime(clock, &at);
	return (double)at.tv_sec * 1e9 + (double)at.tv_nsec;
}

double bench_cpu_ns(void)
{
	return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

double bench_wall_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

double bench_command_s(const char *command)
{
	pid_t child = fork();
	if (child == 0) {
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	int status;
	struct rusage usage;
	if (child < 0 || wait4(child, &status, 0, &usage) < 0 || status)
		return NAN;
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

void bench_pin(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	for (long i = 0; i < sysconf(_SC_NPROCESSORS_CONF) && i < CPU_SETSIZE; i++)
		if (cpu < 0 || cpu == i)
			CPU_SET((size_t)i, &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void *end_at_once(void *arg)
{
	return arg;
}

void bench_have_threads(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, end_at_once, NULL) || pthread_join(thread, NULL))
		bench_die("pthread_create");
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double bench_median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, compare);
	return count & 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

uint32_t bench_random(uint64_t *state)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(*state >> 33);
}

void bench_die(const char *what)
{
	fprintf(stderr, "bench: %s\n", what);
	_exit(1);
}

void bench_format(char *text, size_t bytes, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int length = vsnprintf(text, bytes, format, args);
	va_end(args);
	if (length < 0 || (size_t)length >= bytes)
		bench_die("a text is too long");
}

void bench_ok(enum ch_status status, const char *what)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "bench: %s: %s\n", what, ch_status_text(status));
	_exit(1);
}

static int fall_back(void)
{
	return -1;
}

const void *bench_fallback(void)
{
	return (const void *)fall_back;
}

/* Never reached: the branches of the benchmarks are linked before they run. */
static struct ch_block no_target(void *user, struct ch_branch branch, void *branch_user,
				 struct ch_regs *regs)
{
	(void)user, (void)branch, (void)branch_user, (void)regs;
	return (struct ch_block){0};
}

struct bench_heap *bench_heap_open(const struct ch_config *config)
{
	struct bench_heap *bench = calloc(1, sizeof *bench);
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = no_target};
	if (!bench)
		bench_die("no memory");
	bench_ok(ch_heap_create(config, &bench->heap), "heap_create");
	bench_ok(ch_vm_attach(bench->heap, &ops, NULL, &bench->vm), "vm_attach");
	bench_ok(ch_thread_attach(bench->heap, NULL, NULL), "thread_attach");
	return bench;
}

void bench_heap_close(struct bench_heap *bench)
{
	bench_ok(ch_vm_detach(bench->vm), "vm_detach");
	bench_ok(ch_thread_detach(bench->heap), "thread_detach");
	bench_ok(ch_heap_destroy(bench->heap), "heap_destroy");
	free(bench);
}

struct ch_stats bench_stats(const struct bench_heap *bench)
{
	struct ch_stats stats = {.size = sizeof stats};
	bench_ok(ch_heap_stats(bench->heap, &stats), "heap_stats");
	return stats;
}

struct ch_owner bench_owner(struct bench_heap *bench, const char *name)
{
	struct ch_owner owner;
	bench_ok(ch_owner_create(bench->vm, name, bench_fallback(), NULL, &owner), "owner_create");
	return owner;
}

struct ch_block bench_block(struct ch_owner owner, uint32_t bytes)
{
	return bench_jumps(owner, bytes, NULL, 0, NULL);
}

struct ch_block bench_jumps(struct ch_owner owner, uint32_t bytes, struct ch_branch *jumps,
			    uint32_t count, const uint8_t **exec)
{
	static const uint8_t jump[5] = {0xe9, 0, 0, 0, 0};
	struct ch_open open = {
		.size = sizeof open, .owner = owner, .hot_bytes = bytes, .branch_room = count};
	struct ch_code code;
	bench_ok(ch_block_open(&open, &code), "block_open");
	memset(code.write, 0xc3, bytes);
	for (uint32_t i = 0; i < count; i++) {
		/* The displacement lies in one aligned 8: exec is a multiple of 8. */
		uint32_t at = BENCH_JUMP_BYTES * i + 3;
		struct ch_branch_site site = {.at = code.exec + at, .kind = CH_JMP};
		memcpy(code.write + at, jump, sizeof jump);
		bench_ok(ch_branch_attach(code.block, &site, &jumps[i]), "branch_attach");
	}
	code.used_to = bytes;
	bench_ok(ch_block_commit(&code, 1), "block_commit");
	if (exec)
		*exec = code.exec;
	return code.block;
}
