/* SPDX-License-Identifier: MIT
 * promises.c: promises that a short program can show: no mapping is writable and executable,
 * under PR_SET_MDWE too (P3); a signal handler resolves addresses while code is made and
 * collected (P6); fork isolates (P9); a heap starts no thread (P10). */
#include <codeheap/codeheap.h>

#include "bytes.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

enum { ROUNDS = 200000, RUN_LENGTH = 100 };

static struct ch_heap *heap;
static struct ch_vm *vm;
static struct ch_block steady; /* lives for the whole run */
static const uint8_t *steady_entry;
static volatile sig_atomic_t looked_up, looked_up_wrong;

static void ok(enum ch_status status)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "promises: %s\n", ch_why());
	exit(1);
}

static int interpret(void)
{
	return -1;
}

static struct ch_owner compile(const char *name, uint8_t number, struct ch_code *code)
{
	struct ch_owner owner;
	ok(ch_owner_create(vm, name, (const void *)interpret, NULL, &owner));
	struct ch_open open = {.size = sizeof open,
			       .owner = owner,
			       .hot_bytes = DEMO_BYTES,
			       .flags = CH_OPEN_MAY_COLLECT};
	ok(ch_block_open(&open, code));
	code->used_to = demo_return_number(code->write, number);
	ok(ch_block_commit(code, 1));
	ok(ch_owner_set_entry(owner, code->block));
	return owner;
}

static void look_up(int signal_number)
{
	struct ch_spot spot = {.size = sizeof spot};
	(void)signal_number;
	looked_up++;
	if (!ch_code_at(heap, steady_entry, false, &spot) || spot.block.bits != steady.bits)
		looked_up_wrong++;
}

static void say(const char *promise, bool is_kept, const char *detail)
{
	printf("  %s\n%s verdict: %s\n", detail, promise, is_kept ? "kept" : "BROKEN");
}

static int count_wx_mappings(void)
{
	char line[512], access[8];
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	if (!maps)
		return -1;
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%*s %7s", access) == 1)
			count += access[1] == 'w' && access[2] == 'x';
	fclose(maps);
	return count;
}

static int count_threads(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *task; tasks && (task = readdir(tasks));)
		count += task->d_name[0] != '.';
	if (tasks)
		closedir(tasks);
	return count;
}

/* Makes and drops procedures under a timer whose handler looks up the steady procedure. */
static void churn(void)
{
	struct sigaction action = {.sa_handler = look_up, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		static struct ch_code code;
		ok(ch_owner_release(compile("short-lived", (uint8_t)(i % RUN_LENGTH), &code),
				    CH_RELEASE_COLLECT));
		if (i % 4096 == 0)
			ok(ch_heap_collect(heap));
		ch_thread_poll();
	}
	setitimer(ITIMER_REAL, &never, NULL);
}

/* The child frees code that the parent runs, and makes code in its place. */
static bool fork_isolates(void)
{
	static struct ch_code code;
	struct ch_owner owner = compile("before the fork", 7, &code);
	int (*const *cell)(void) = (int (*const *)(void))ch_owner_cell(owner);
	int (*entry)(void) = *cell;
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		bool was_right = entry() == 7;
		ok(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING));
		static struct ch_code other;
		compile("of the child", 9, &other);
		_exit(was_right ? 0 : 1);
	}
	int status = 0;
	while (waitpid(child, &status, 0) < 0)
		continue;
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 && entry() == 7;
}

int main(void)
{
	static struct ch_code code;
	char detail[160];
	bool is_denied = prctl(PR_SET_MDWE, 1UL, 0UL, 0UL, 0UL) == 0;
	struct ch_ops ops = {.size = sizeof ops};
	ok(ch_heap_create(NULL, &heap));
	ok(ch_vm_attach(heap, &ops, NULL, &vm));
	ok(ch_thread_attach(heap, NULL, NULL));
	compile("steady", 42, &code);
	steady = code.block;
	steady_entry = code.exec;
	churn();
	int wx = count_wx_mappings(), threads = count_threads();
	snprintf(detail, sizeof detail,
		 "made %d procedures with PR_SET_MDWE %s: %d writable and executable mappings",
		 ROUNDS, is_denied ? "on" : "unknown to this kernel", wx);
	say("P3", wx == 0, detail);
	snprintf(detail, sizeof detail,
		 "looked up an address %d times in a signal handler while %d procedures "
		 "came and went: %d wrong",
		 (int)looked_up, ROUNDS, (int)looked_up_wrong);
	say("P6", looked_up > 0 && looked_up_wrong == 0, detail);
	say("P9", fork_isolates(),
	    "forked, freed and made code in the child: the parent's ran on");
	snprintf(detail, sizeof detail, "counted the threads after %d procedures: %d", ROUNDS,
		 threads);
	say("P10", threads == 1, detail);
	return 0;
}
