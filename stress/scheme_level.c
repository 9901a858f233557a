/* SPDX-License-Identifier: MIT
 * scheme_level.c: runs workers, and makes a failed program as short as possible while the program
 * still fails. The failure may need the earlier programs of the worker's VMs. */
#include "scheme_level.h"

#include "forms.h"
#include "minimise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	WORKER_MS = 4000,
	GRACE_MS = 30000,
	TRIES = 4, /* of one text: each run has another schedule */
	TRY_MS = 10000,
	ON_STACK_A_MINUTE = 10000,
};

struct shared {
	struct counters counts; /* of the worker, at its end */
	struct progress progress;
};

struct scheme_level {
	const char *folder;
	uint64_t seed, next;
	struct run run;
	struct assignment assignment;
	struct shared *shared; /* with the workers */
	bool is_running;
	struct counters sum;
};

/* --- workers --- */

static int run_worker(void *arg)
{
	struct scheme_level *level = arg;
	setenv("CODEHEAP_PERF_MAP_DIR", level->folder, 1);
	level->shared->counts = work(&level->assignment);
	return level->shared->counts.mismatches != 0;
}

static bool start(struct scheme_level *level, uint64_t milliseconds)
{
	uint64_t number = level->next++;
	memset(&level->shared->counts, 0, sizeof level->shared->counts);
	level->shared->progress.length = 0;
	level->assignment = (struct assignment){level->seed * 1000003 + number, number,
						milliseconds, &level->shared->progress};
	return run_start(&level->run, run_worker, level, milliseconds + GRACE_MS, false);
}

static void add(struct counters *sum, const struct counters *more)
{
#define X(name) sum->name += more->name;
	STRESS_COUNTERS(X)
#undef X
}

static void remove_perf_map(const struct scheme_level *level)
{
	char path[512];
	snprintf(path, sizeof path, "%s/perf-%d.map", level->folder, (int)level->run.process);
	unlink(path);
}

/* --- a failure --- */

struct trial {
	struct habits habits;
	const char *text;
	size_t length;
	const struct forms *forms;
};

static int run_trial(void *arg)
{
	const struct trial *trial = arg;
	return !work_agrees(&trial->habits, trial->text, trial->length);
}

/* An empty text does not fail. */
static bool fails(struct trial *trial)
{
	for (int i = 0; i < TRIES && trial->length; i++) {
		struct run run;
		if (run_start(&run, run_trial, trial, TRY_MS, true) && run_wait(&run) != RUN_FINE)
			return true;
	}
	return false;
}

static bool fails_with(void *context, const bool *keep)
{
	const struct trial *whole = context;
	struct trial trial = *whole;
	char *text = forms_join(whole->forms, keep, &trial.length);
	trial.text = text;
	bool is_failure = text && fails(&trial);
	free(text);
	return is_failure;
}

/* Leaves out as many forms of the trial as possible; replaces the text. */
static void shorten(struct trial *trial, bool is_deep, uint64_t deadline_ms)
{
	struct forms forms;
	bool *keep = NULL;
	if (forms_split(&forms, trial->text, trial->length, is_deep))
		keep = malloc(forms.count + 1);
	if (keep) {
		memset(keep, true, forms.count);
		trial->forms = &forms;
		struct minimise list = {forms.count, keep, fails_with, trial, deadline_ms};
		minimise(&list);
		size_t length;
		char *text = forms_join(&forms, keep, &length);
		if (text) {
			free((void *)(uintptr_t)trial->text);
			trial->text = text;
			trial->length = length;
		}
	}
	free(keep);
	forms_free(&forms);
}

static void keep_text(const struct scheme_level *level, const char *what, const char *suffix,
		      const struct trial *trial)
{
	char name[80], head[300];
	snprintf(name, sizeof name, "scheme-%llu%s.scm", (unsigned long long)level->assignment.seed,
		 suffix);
	habits_write(&trial->habits, head, sizeof head);
	size_t head_bytes = strlen(head);
	char *text = malloc(head_bytes + trial->length);
	if (!text)
		return;
	memcpy(text, head, head_bytes);
	memcpy(text + head_bytes, trial->text, trial->length);
	failure_keep(level->folder, name, what, text, head_bytes + trial->length);
	free(text);
}

static char *copy(const char *text, size_t length)
{
	char *to = malloc(length + 1);
	if (to) {
		memcpy(to, text, length);
		to[length] = 0;
	}
	return to;
}

/* Tries the last program alone, then with all earlier programs; where nothing is to be tried, and
 * where neither fails again, the trial has all that ran. */
static bool find_failing(const struct progress *progress, struct trial *trial)
{
	bool does = false;
	for (int i = 0; i < 2 && !does; i++) {
		size_t from = i ? 0 : progress->current;
		free((void *)(uintptr_t)trial->text);
		trial->length = progress->length - from;
		trial->text = copy(progress->text + from, trial->length);
		does = minimise_ms && trial->text && fails(trial);
	}
	return does;
}

static void explain(struct scheme_level *level, enum run_end end)
{
	const struct progress *progress = &level->shared->progress;
	struct trial trial = {.habits = progress->habits};
	uint64_t deadline_ms = now_ms() + minimise_ms;
	printf("scheme: worker %llu, seed %llu: %s\n", (unsigned long long)level->assignment.number,
	       (unsigned long long)level->assignment.seed,
	       end == RUN_FAILED ? "outputs differ" : run_text(&level->run, end));
	if (!progress->length)
		return;
	bool is_repeated = find_failing(progress, &trial);
	keep_text(level,
		  is_repeated   ? "whole program"
		  : minimise_ms ? "it did not fail again; all that ran"
				: "all that ran",
		  "", &trial);
	if (is_repeated) {
		shorten(&trial, false, deadline_ms);
		shorten(&trial, true, deadline_ms);
		keep_text(level, "minimised program", "-min", &trial);
		printf("%.*s\n", trial.length < 3000 ? (int)trial.length : 3000, trial.text);
	}
	free((void *)(uintptr_t)trial.text);
	fflush(stdout);
}

/* --- the level --- */

struct scheme_level *scheme_level_start(const char *folder, uint64_t seed)
{
	struct scheme_level *level = calloc(1, sizeof *level);
	void *shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!level || shared == MAP_FAILED)
		return NULL;
	level->folder = folder;
	level->seed = seed;
	level->shared = shared;
	return level;
}

static bool finish(struct scheme_level *level, enum run_end end)
{
	level->is_running = false;
	remove_perf_map(level);
	add(&level->sum, &level->shared->counts);
	if (end == RUN_FINE)
		return true;
	if (!level->shared->counts.mismatches)
		level->sum.mismatches++;
	explain(level, end);
	return false;
}

bool scheme_level_poll(struct scheme_level *level, uint64_t left_ms)
{
	enum run_end end;
	if (level->is_running && run_poll(&level->run, &end) && !finish(level, end))
		return false;
	if (!level->is_running)
		level->is_running = start(level, left_ms < WORKER_MS ? left_ms : WORKER_MS);
	return level->is_running;
}

bool scheme_level_end(struct scheme_level *level)
{
	return !level->is_running || finish(level, run_wait(&level->run));
}

const struct counters *scheme_level_counts(const struct scheme_level *level)
{
	return &level->sum;
}

/* The processor time of this process and its children, less on a shared machine. */
static uint64_t seconds_of_two_processors(void)
{
	struct rusage own, children;
	if (getrusage(RUSAGE_SELF, &own) != 0 || getrusage(RUSAGE_CHILDREN, &children) != 0)
		return UINT64_MAX;
	return (uint64_t)(own.ru_utime.tv_sec + own.ru_stime.tv_sec + children.ru_utime.tv_sec +
			  children.ru_stime.tv_sec) /
	       2;
}

bool scheme_level_has_enough(const struct scheme_level *level, uint64_t seconds)
{
	const struct counters *sum = &level->sum;
	seconds /= slowness();
	uint64_t had = seconds_of_two_processors() / slowness();
	uint64_t wanted = (uint64_t)ON_STACK_A_MINUTE * (had < seconds ? had : seconds) / 60;
	bool enough =
		sum->invalidations_on_stack >= wanted && sum->returns_into_invalidated >= wanted;
	if (seconds >= 20)
		enough &= sum->programs && sum->operations && sum->stale_hits &&
			  sum->fibers_across_cycle && sum->collections && sum->blocks_freed &&
			  sum->half_built;
	if (seconds >= 60)
		enough &= sum->vms_collecting_at_stubs && sum->vms_collecting_at_calls &&
			  sum->vms_discarding && sum->vms_with_trampolines &&
			  sum->vms_with_every_sink;
	if (!enough)
		printf("scheme: too little happened for %llu seconds\n",
		       (unsigned long long)seconds);
	return enough;
}

int scheme_level_replay(const char *path)
{
	struct trial trial = {.length = 0};
	trial.text = failure_read(path, &trial.length);
	if (!trial.text || !trial.length) {
		fprintf(stderr, "%s: there is no program to be read\n", path);
		return 2;
	}
	habits_read(&trial.habits, trial.text);
	bool is_failure = fails(&trial);
	printf("%s: %s\n", path, is_failure ? "it fails" : "it is fine");
	return is_failure;
}
