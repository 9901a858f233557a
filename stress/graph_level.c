/* SPDX-License-Identifier: MIT
 * graph_level.c: one program after the other, each in a process of its own; the treatment of a
 * failed program; and how much has to happen. */
#include "graph_world.h"

#include "minimise.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	PROGRAM_MS = 60000, /* a program takes a tenth of a second on an idle machine */
	TRIALS = 6,         /* runs of a shorter program before the program counts as good */
	REPLAYS = 40,
	FAILED = 3,
	FREED_PERCENT = 99, /* of the blocks that the model predicts dead */
	LEAK_LEAST = 300,
	LEAK_PERCENT = 50, /* fewer freed, even before the end: a leak */
};

struct graph_world graph_world;
struct graph_shared *graph_shared;
static _Thread_local struct graph_thread *self;

struct graph_level {
	char folder[PATH_MAX / 2], own[PATH_MAX / 2 + 32]; /* of failures; of sinks' files */
	uint64_t seed, next;
	bool is_running;
	struct run run;
	struct graph_program program;
	struct graph_shared *shared, *trial; /* trial: of uncounted runs */
};

/* --- in a program's process --- */

__attribute__((noinline)) struct graph_thread *graph_self(void)
{
	/* Keeps `self` out of registers over a switch: another thread may go on. */
	__asm__ volatile("" ::: "memory");
	return self;
}

void graph_set_self(struct graph_thread *t)
{
	self = t;
}

void graph_fail(const char *format, ...)
{
	char text[sizeof graph_shared->failure];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	if (!atomic_exchange(&graph_shared->has_failed, true))
		memcpy(graph_shared->failure, text, sizeof text);
	_exit(FAILED);
}

enum ch_status graph_allow(enum ch_status status, unsigned allowed, const char *what)
{
	if (!(allowed & GRAPH_BIT(status)))
		graph_fail("%s: %s", what, ch_status_text(status));
	return status;
}

/* Commits the OPEN blocks in the hand of the thread: no other thread may. */
static void empty_hand(struct graph_thread *t)
{
	for (int i = 0; i < t->handful; i++)
		graph_code_commit(t->hand[i]);
	t->handful = 0;
}

static void *run_thread(void *arg)
{
	struct graph_thread *t = arg;
	/* A signal may be for any thread. */
	pthread_barrier_wait(&graph_world.start);
	graph_driver_enter_thread(t);
	graph_run_thread();
	t = graph_self();
	empty_hand(t);
	if (graph_world.is_child)
		graph_fork_end();
	graph_driver_leave_thread(t);
	/* All threads end before the first join: a signal may still be on the way. */
	pthread_barrier_wait(&graph_world.start);
	return NULL;
}

static void run_round(void)
{
	for (int i = 0; i < graph_world.thread_count; i++) {
		struct graph_thread *t = &graph_world.threads[i];
		t->limit = t->end;
		t->is_over = true;
	}
	if (pthread_barrier_init(&graph_world.start, NULL, (unsigned)graph_world.thread_count))
		graph_fail("no barrier");
	for (int i = 0; i < graph_world.thread_count; i++)
		if (pthread_create(&graph_world.threads[i].thread, NULL, run_thread,
				   &graph_world.threads[i]))
			graph_fail("no thread");
	for (int i = 0; i < graph_world.thread_count; i++)
		pthread_join(graph_world.threads[i].thread, NULL);
	pthread_barrier_destroy(&graph_world.start);
}

static void start_world(const struct graph_program *p, const char *folder)
{
	memset(&graph_world, 0, sizeof graph_world);
	graph_world.program = p;
	graph_world.folder = folder;
	graph_world.thread_count = p->threads;
	graph_world.nodes = calloc(GRAPH_NODES, sizeof *graph_world.nodes);
	graph_world.owners = calloc(GRAPH_OWNERS, sizeof *graph_world.owners);
	graph_world.facts = calloc(GRAPH_FACT_RECORDS, sizeof *graph_world.facts);
	if (!graph_world.nodes || !graph_world.owners || !graph_world.facts)
		graph_fail("no memory");
	atomic_store(&graph_world.node_count, 1);
	atomic_store(&graph_world.owner_count, 1);
	atomic_store(&graph_world.fact_count, 1);
	for (int i = 0; i <= GRAPH_THREADS; i++) {
		struct graph_thread *t = &graph_world.threads[i];
		t->index = i;
		t->list = calloc(p->count + 1, sizeof *t->list);
		if (!t->list)
			graph_fail("no memory");
	}
	graph_stacks_start();
	graph_driver_start();
}

static void drop_all(void)
{
	for (int i = 0; i < GRAPH_FIBERS; i++)
		graph_fiber_forsake(i);
	for (int i = 0; i < GRAPH_SLOTS; i++) {
		uint32_t owner = atomic_exchange(&graph_world.slots[i].owner, 0);
		if (owner)
			graph_driver_drop(owner, i % 2);
	}
}

static void run_program(const struct graph_program *p, const char *folder)
{
	start_world(p, folder);
	for (size_t i = 0; i <= p->count; i++) {
		const struct graph_operation *o = &p->operations[i];
		if (i == p->count || o->kind == GRAPH_round) {
			run_round();
			graph_model_round(false);
			continue;
		}
		struct graph_thread *t = &graph_world.threads[o->thread % p->threads];
		t->list[t->end++] = o;
	}
	drop_all();
	graph_model_round(false);
	graph_model_round(true);
	graph_stacks_end();
	graph_driver_end();
	GRAPH_COUNT(graph_programs, 1);
}

/* --- a program's process, from outside --- */

struct assignment {
	const struct graph_program *program;
	struct graph_shared *shared;
	const char *folder;
};

static int run_assignment(void *arg)
{
	const struct assignment *a = arg;
	graph_shared = a->shared;
	run_program(a->program, a->folder);
	return 0;
}

static void remove_files(const char *folder, pid_t process)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)process);
	unlink(path);
	DIR *files = opendir(folder);
	for (struct dirent *file; files && (file = readdir(files));) {
		snprintf(path, sizeof path, "%s/%s", folder, file->d_name);
		if (file->d_name[0] != '.')
			unlink(path);
	}
	if (files)
		closedir(files);
}

static bool start(struct run *run, const struct graph_program *p, struct graph_shared *shared,
		  const char *folder, bool is_quiet)
{
	struct assignment a = {p, shared, folder};
	atomic_store(&shared->has_failed, false);
	shared->failure[0] = 0;
	return run_start(run, run_assignment, &a, PROGRAM_MS, is_quiet);
}

static enum run_end run_once(struct graph_level *level, const struct graph_program *p)
{
	struct run run;
	if (!start(&run, p, level->trial, level->own, true))
		return RUN_FINE;
	enum run_end end = run_wait(&run);
	remove_files(level->own, run.process);
	return end;
}

static struct graph_shared *share(void)
{
	void *memory = mmap(NULL, sizeof(struct graph_shared), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		abort();
	return memory;
}

struct graph_level *graph_level_start(const char *folder, uint64_t seed)
{
	struct graph_level *level = calloc(1, sizeof *level);
	if (!level)
		abort();
	/* Sinks want a path that is right in every process. */
	if (!realpath(folder, level->folder))
		abort();
	snprintf(level->own, sizeof level->own, "%s/files-%d", level->folder, (int)getpid());
	mkdir(level->own, 0777);
	level->seed = seed;
	level->shared = share();
	level->trial = share();
	return level;
}

const struct graph_shared *graph_level_counts(const struct graph_level *level)
{
	return level->shared;
}

/* --- a failure --- */

struct shorter {
	struct graph_level *level;
	const struct graph_program *program;
	bool is_leak; /* the program ends well, but dead blocks stay */
	uint64_t deadline_ms;
};

/* Whether more than `least` blocks were predicted dead, and most stayed. */
static bool is_leak(const struct graph_shared *c, uint64_t least)
{
	return c->graph_predicted_dead > least &&
	       c->graph_predicted_freed * 100 < c->graph_predicted_dead * LEAK_PERCENT;
}

/* A single run says little of a leak: some blocks stay by chance. */
static bool leaks_still(const struct shorter *s, const struct graph_program *some)
{
	memset(s->level->trial, 0, sizeof *s->level->trial);
	for (int i = 0; i < TRIALS && now_ms() < s->deadline_ms; i++)
		run_once(s->level, some);
	return is_leak(s->level->trial, TRIALS);
}

static bool still_fails(void *context, const bool *keep)
{
	const struct shorter *s = context;
	struct graph_program some = *s->program;
	bool does = false;
	some.operations = calloc(some.count + 1, sizeof *some.operations);
	some.count = 0;
	for (size_t i = 0; some.operations && i < s->program->count; i++)
		if (keep[i])
			some.operations[some.count++] = s->program->operations[i];
	if (some.operations && s->is_leak)
		does = leaks_still(s, &some);
	for (int i = 0; !s->is_leak && some.operations && i < TRIALS && !does &&
			now_ms() < s->deadline_ms;
	     i++)
		does = run_once(s->level, &some) != RUN_FINE;
	free(some.operations);
	return does;
}

static void keep_program(struct graph_level *level, const bool *keep, const char *suffix,
			 const char *what)
{
	char name[64];
	size_t length;
	char *text = graph_program_print(&level->program, keep, &length);
	snprintf(name, sizeof name, "graph-%llu%s.txt", (unsigned long long)level->program.seed,
		 suffix);
	if (text)
		failure_keep(level->folder, name, what, text, length);
	if (text && keep && length < 4000)
		printf("%s", text);
	free(text);
}

static void minimise_program(struct graph_level *level, bool leaks)
{
	struct shorter s = {level, &level->program, leaks, now_ms() + minimise_ms};
	struct minimise list = {.count = level->program.count,
				.keep = calloc(level->program.count + 1, sizeof(bool)),
				.still_fails = still_fails,
				.context = &s,
				.deadline_ms = s.deadline_ms};
	if (!list.keep)
		return;
	memset(list.keep, true, list.count);
	keep_program(level, NULL, "", "program");
	if (!minimise_ms) {
		free(list.keep);
		return;
	}
	if (!still_fails(&s, list.keep)) {
		printf("it did not fail again in %d runs: the schedule matters\n", TRIALS);
	} else {
		size_t left = minimise(&list);
		printf("minimised from %zu operations to %zu\n", list.count, left);
		keep_program(level, list.keep, ".min", "minimised program");
	}
	free(list.keep);
}

static void tell(const struct graph_level *level, enum run_end end)
{
	const char *text = end == RUN_FINE ? "ended, the last before a leak was seen"
					   : run_text(&level->run, end);
	printf("graph program with seed %llu %s%s%s\n", (unsigned long long)level->program.seed,
	       text, level->shared->failure[0] ? ": " : "", level->shared->failure);
	fflush(stdout);
}

/* --- one after the other --- */

/* A chance word in a register or on a stack may hold some blocks for a cycle more. */
static bool is_freed_enough(const struct graph_level *level, uint64_t percent)
{
	const struct graph_shared *c = level->shared;
	if (c->graph_predicted_freed * 100 >= c->graph_predicted_dead * percent)
		return true;
	printf("graph level: of %llu blocks predicted dead only %llu were freed\n",
	       (unsigned long long)c->graph_predicted_dead,
	       (unsigned long long)c->graph_predicted_freed);
	return false;
}

static bool judge(struct graph_level *level, enum run_end end)
{
	level->is_running = false;
	remove_files(level->own, level->run.process);
	bool leaks = end == RUN_FINE && is_leak(level->shared, LEAK_LEAST);
	if (end != RUN_FINE || leaks) {
		atomic_fetch_add(&level->shared->graph_failures, 1);
		tell(level, end);
		if (leaks)
			(void)is_freed_enough(level, LEAK_PERCENT);
		minimise_program(level, leaks);
	}
	graph_program_free(&level->program);
	return end == RUN_FINE && !leaks;
}

bool graph_level_poll(struct graph_level *level)
{
	enum run_end end;
	if (level->is_running && run_poll(&level->run, &end) && !judge(level, end))
		return false;
	if (!level->is_running) {
		graph_program_generate(&level->program, level->seed * 1000003 + level->next++);
		level->is_running =
			start(&level->run, &level->program, level->shared, level->own, false);
	}
	return level->is_running;
}

bool graph_level_end(struct graph_level *level)
{
	bool is_good = !level->is_running || judge(level, run_wait(&level->run));
	rmdir(level->own);
	return is_good;
}

int graph_level_replay(const char *folder, const char *path)
{
	size_t length;
	char *text = failure_read(path, &length);
	struct graph_level *level = graph_level_start(folder, 0);
	if (!text || !graph_program_read(&level->program, text)) {
		fprintf(stderr, "%s: no program of the graph level\n", path);
		rmdir(level->own);
		return 2;
	}
	int failures = 0;
	for (int i = 0; i < REPLAYS && !failures; i++) {
		if (!start(&level->run, &level->program, level->shared, level->own, false)) {
			rmdir(level->own);
			return 2;
		}
		enum run_end end = run_wait(&level->run);
		remove_files(level->own, level->run.process);
		if (end != RUN_FINE) {
			printf("run %d: ", i + 1);
			tell(level, end);
			failures++;
		}
	}
	if (!failures && is_leak(level->shared, REPLAYS))
		failures += !is_freed_enough(level, LEAK_PERCENT);
	if (!failures)
		printf("%d runs were fine\n", REPLAYS);
	rmdir(level->own);
	free(text);
	return failures ? 1 : 0;
}

/* --- enough --- */

bool graph_level_has_enough(const struct graph_level *level, uint64_t seconds)
{
	const struct graph_shared *c = level->shared;
	seconds /= slowness();
	/* For 20 seconds, on a machine that is busy with ten other things. */
	struct {
		const char *name;
		uint64_t got, wanted;
	} least[] = {
		{"programs", c->graph_programs, 3},
		{"operations", c->graph_operations, 3000},
		{"blocks entered", c->graph_entered, 300},
		{"branch hits", c->graph_branch_hits, 60},
		{"stale hits", c->graph_stale_hits, 6},
		{"invalidations on the stack", c->graph_invalidations_on_stack, 30},
		{"exits", c->graph_exits, 20},
		{"blocks without an owner", c->graph_loose, 10},
		{"fibers across a cycle", c->graph_fibers_across_cycle, 10},
		{"fibers in another thread", c->graph_fibers_moved, 10},
		{"signals", c->graph_signals, 10},
		{"forks", c->graph_forks, 2},
		{"blocks that must live", c->graph_must_live, 150},
		{"blocks predicted dead", c->graph_predicted_dead, 60},
	};
	bool is_enough = true;
	for (size_t i = 0; seconds >= 20 && i < sizeof least / sizeof *least; i++)
		if (least[i].got < least[i].wanted * (seconds / 20)) {
			printf("graph level: %llu %s are too few\n",
			       (unsigned long long)least[i].got, least[i].name);
			is_enough = false;
		}
	if (c->graph_predicted_dead >= LEAK_LEAST)
		is_enough &= is_freed_enough(level, FREED_PERCENT);
	return is_enough;
}
