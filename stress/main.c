/* SPDX-License-Identifier: MIT
 * main.c: the stress: two levels at a time. Scheme programs run in workers of some seconds each,
 * with pools and pages drawn from the seed and a habit in turn; programs of API calls on blocks of
 * machine code (graph.h) run one by one. Prints the seed first and one JSON line last; exits 1 on a
 * mismatch, a dead worker, or too little happening. Not a benchmark.
 */
#include "graph.h"
#include "minimise.h"
#include "scheme_level.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_EVERY_US = 1000 };
enum level { GRAPH = 1, SCHEME = 2, BOTH = 3 };

static bool read_number(const char *argument, const char *name, uint64_t least, uint64_t most,
			uint64_t *out)
{
	size_t length = strlen(name);
	if (strncmp(argument, name, length) || !isdigit((unsigned char)argument[length]))
		return false;
	char *end;
	errno = 0;
	*out = strtoull(argument + length, &end, 10);
	return *end == 0 && errno == 0 && *out >= least && *out <= most;
}

struct settings {
	uint64_t seconds, seed, levels;
	const char *replay;
	char folder[256];
};

static void print_result(const struct settings *s, const struct counters *scheme,
			 const struct graph_shared *graph)
{
	printf("{\"seed\":%llu,\"seconds\":%llu", (unsigned long long)s->seed,
	       (unsigned long long)s->seconds);
#define X(name) printf(",\"%s\":%llu", #name, (unsigned long long)scheme->name);
	STRESS_COUNTERS(X)
#undef X
#define X(name) printf(",\"%s\":%llu", #name, (unsigned long long)graph->name);
	GRAPH_COUNTERS(X)
#undef X
	printf("}\n");
}

static bool run_levels(const struct settings *s)
{
	struct graph_level *graph = graph_level_start(s->folder, s->seed);
	struct scheme_level *scheme = scheme_level_start(s->folder, s->seed);
	uint64_t end_ms = now_ms() + s->seconds * 1000;
	bool is_good = graph && scheme;
	if (!is_good)
		return false;
	for (uint64_t now = now_ms(); now < end_ms && is_good; now = now_ms()) {
		if (s->levels & GRAPH)
			is_good &= graph_level_poll(graph);
		if (s->levels & SCHEME)
			is_good &= scheme_level_poll(scheme, end_ms - now);
		usleep(LOOK_EVERY_US);
	}
	is_good &= scheme_level_end(scheme);
	is_good &= graph_level_end(graph);
	if (is_good && (s->levels & SCHEME))
		is_good = scheme_level_has_enough(scheme, s->seconds);
	if (is_good && (s->levels & GRAPH))
		is_good = graph_level_has_enough(graph, s->seconds);
	print_result(s, scheme_level_counts(scheme), graph_level_counts(graph));
	return is_good;
}

int main(int argc, char **argv)
{
	struct settings s = {.seconds = 60, .seed = 1, .levels = BOTH};
	for (int i = 1; i < argc; i++)
		if (!strncmp(argv[i], "--replay=", 9)) {
			s.replay = argv[i] + 9;
		} else if (!read_number(argv[i], "--seconds=", 1, UINT32_MAX, &s.seconds) &&
			   !read_number(argv[i], "--seed=", 0, UINT64_MAX, &s.seed) &&
			   !read_number(argv[i], "--minimise-ms=", 0, UINT32_MAX, &minimise_ms) &&
			   !read_number(argv[i], "--levels=", GRAPH, BOTH, &s.levels)) {
			fprintf(stderr, "usage: stress [--seconds=N] [--seed=N] [--levels=1 graph, "
					"2 Scheme, "
					"3 both] [--minimise-ms=N] [--replay=FILE]\n");
			return 2;
		}
	const char *build = getenv("CODEHEAP_BUILD");
	snprintf(s.folder, sizeof s.folder, "%s/stress", build ? build : "build");
	if (mkdir(s.folder, 0777) && errno != EEXIST) {
		perror(s.folder);
		return 2;
	}
	const char *ending = s.replay ? strrchr(s.replay, '.') : NULL;
	if (ending && !strcmp(ending, ".scm"))
		return scheme_level_replay(s.replay);
	if (s.replay)
		return graph_level_replay(s.folder, s.replay);
	printf("seed %llu\n", (unsigned long long)s.seed);
	return run_levels(&s) ? 0 : 1;
}
