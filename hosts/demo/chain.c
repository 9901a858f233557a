/* SPDX-License-Identifier: MIT
 * chain.c: A -> B -> C -> D, each the code of a method that lives on. B is invalidated. Only B led
 * to C and D, so C and D are freed although their methods live; A and B follow their own rules.
 * Then a wild jump into freed code, in a child process: from code of C's method with the old
 * address of D. A handler of the VM's own prints the report. */
#include <codeheap/codeheap.h>
#include <codeheap/look.h>

#include "bytes.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINKS = 4 };

static struct ch_heap *heap;
static struct ch_owner owners[LINKS];
static struct ch_block blocks[LINKS];
static struct ch_branch branches[LINKS];
static const char *const names[LINKS] = {"link-A", "link-B", "link-C", "link-D"};
static const uint8_t *entry_of_d;

static void ok(enum ch_status status)
{
	if (status == CH_OK)
		return;
	fprintf(stderr, "chain: %s\n", ch_why());
	exit(1);
}

static int interpret(void)
{
	return -1;
}

/* Returns the number at the chain's end, else jumps on. */
static void compile(int i)
{
	struct ch_open open = {
		.size = sizeof open, .owner = owners[i], .hot_bytes = DEMO_BYTES, .branch_room = 1};
	struct ch_code code;
	ok(ch_block_open(&open, &code));
	if (i < LINKS - 1) {
		uint32_t jump_at;
		code.used_to = demo_number_and_jump(code.write, (uint8_t)i, &jump_at);
		struct ch_branch_site site = {.at = code.exec + jump_at, .kind = CH_JMP};
		ok(ch_branch_attach(code.block, &site, &branches[i]));
	} else {
		code.used_to = demo_return_number(code.write, (uint8_t)i);
		entry_of_d = code.exec;
	}
	ok(ch_block_commit(&code, 1));
	blocks[i] = code.block;
}

static struct ch_block no_target(void *user, struct ch_branch branch, void *branch_user,
				 struct ch_regs *regs)
{
	(void)user, (void)branch, (void)branch_user, (void)regs;
	return (struct ch_block){0};
}

static void say_states(const char *when)
{
	printf("%s\n", when);
	for (int i = 0; i < LINKS; i++) {
		static const char *const states[] = {"free", "open", "live", "not entrant", "dead"};
		struct ch_info info = {.size = sizeof info};
		struct ch_owner_facts facts = {.size = sizeof facts};
		bool is_freed = ch_block_info(blocks[i], &info) == CH_E_STALE;
		ok(ch_owner_info(owners[i], &facts));
		printf("  block of %s: %-12s method %s: lives\n", names[i],
		       is_freed ? "freed" : states[info.state], facts.name);
	}
}

/* Whether /tmp/perf-PID.map, once flushed, names A and no freed block. */
static bool names_are_right(void)
{
	const char *path;
	char line[256];
	bool seen[LINKS] = {false};
	if (ch_sink_flush(heap) != CH_OK || !ch_sink_status(heap, CH_SINK_PERF_MAP, &path, NULL))
		return false;
	FILE *map = fopen(path, "r");
	if (!map)
		return false;
	while (fgets(line, sizeof line, map))
		for (int i = 0; i < LINKS; i++)
			seen[i] |= strstr(line, names[i]) != NULL;
	fclose(map);
	remove(path);
	return seen[0] && !seen[1] && !seen[2] && !seen[3];
}

static void report(int signal_number, siginfo_t *info, void *context)
{
	char line[600];
	size_t length = ch_trap_describe(heap, info, context, line, sizeof line);
	length = length < sizeof line ? length : sizeof line - 1;
	ssize_t written = write(STDOUT_FILENO, "  trapped: ", 11);
	written += write(STDOUT_FILENO, line, length);
	written += write(STDOUT_FILENO, "\n", 1);
	(void)written;
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

/* Makes new code of C's method, which calls the old address of D without holding D. */
static int (*calls_freed(void))(void)
{
	struct ch_open open = {
		.size = sizeof open, .owner = owners[2], .hot_bytes = DEMO_CALL_BYTES};
	struct ch_code code;
	do /* not in the place of D */
		ok(ch_block_open(&open, &code));
	while ((uintptr_t)entry_of_d - (uintptr_t)code.exec < code.hot_bytes);
	code.used_to = demo_call(code.write, entry_of_d);
	ok(ch_block_commit(&code, 1));
	return (int (*)(void))(uintptr_t)code.exec;
}

static bool jump_wild(void)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		struct rlimit none = {0, 0};
		setrlimit(RLIMIT_CORE, &none);
		struct sigaction action = {.sa_flags = SA_SIGINFO};
		action.sa_sigaction = report;
		sigaction(SIGTRAP, &action, NULL);
		calls_freed()();
		_exit(0);
	}
	int status = 0;
	while (waitpid(child, &status, 0) < 0)
		continue;
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGTRAP;
}

/* Runs on a thread of its own, which ends: the scan of stacks is conservative, and the end of the
 * thread takes all stale words along. */
static void *build_and_run(void *unused)
{
	(void)unused;
	ok(ch_thread_attach(heap, NULL, NULL));
	for (int i = 0; i < LINKS; i++)
		compile(i);
	for (int i = 0; i + 1 < LINKS; i++)
		ok(ch_branch_link(branches[i], blocks[i + 1]));
	ok(ch_owner_set_entry(owners[0], blocks[0]));
	int (*const *cell)(void) = (int (*const *)(void))ch_owner_cell(owners[0]);
	printf("  A runs through B and C into D and returns %d\n", (*cell)());
	ok(ch_thread_detach(heap));
	return NULL;
}

int main(void)
{
	struct ch_ops ops = {.size = sizeof ops, .branch_hit = no_target};
	struct ch_vm *vm;
	struct ch_config config;
	ch_config_init(&config);
	config.sinks = CH_SINK_UNWIND | CH_SINK_PERF_MAP;
	ok(ch_heap_create(&config, &heap));
	ok(ch_vm_attach(heap, &ops, NULL, &vm));
	ok(ch_thread_attach(heap, NULL, NULL));
	for (int i = 0; i < LINKS; i++)
		ok(ch_owner_create(vm, names[i], (const void *)interpret, NULL, &owners[i]));
	pthread_t thread;
	ch_thread_park(); /* while main waits for the thread */
	if (pthread_create(&thread, NULL, build_and_run, NULL) || pthread_join(thread, NULL))
		return 2;
	ch_thread_unpark();
	say_states(" before");
	ok(ch_blocks_invalidate(&blocks[1], 1, NULL));
	ok(ch_heap_collect(heap));
	say_states(" B invalidated, collected");
	struct ch_info info = {.size = sizeof info};
	bool right = ch_block_info(blocks[0], &info) == CH_OK && info.state == CH_BLOCK_LIVE;
	for (int i = 1; i < LINKS; i++)
		right &= ch_block_info(blocks[i], &info) == CH_E_STALE;
	printf("chain verdict: %s\n", right ? "kept" : "BROKEN");
	char broken[200];
	bool withdrawn = names_are_right() && ch_heap_check(heap, broken, sizeof broken) == CH_OK;
	printf("names verdict: %s\n", withdrawn ? "kept" : "BROKEN");
	printf(" a wild jump from link-C to where link-D was:\n");
	bool trapped = jump_wild();
	printf("trap verdict: %s\n", trapped ? "kept" : "BROKEN");
	return right && withdrawn && trapped ? 0 : 1;
}
