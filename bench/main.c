/* SPDX-License-Identifier: MIT
 * main.c: runs every row in a process of its own, prints the table and writes bench.json. Rows send
 * their results through a pipe, so that the failure of a row leaves the other rows whole. */
#define _GNU_SOURCE
#include "bench/bench.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROWS_MAX = 96, ROW_SECONDS = 150 };

static const struct {
	const char *name;
	void (*run)(void);
} groups[] = {
	{"alloc_young", bench_alloc_young},
	{"code", bench_code},
	{"alloc_lifo", bench_alloc_lifo},
	{"alloc_aged", bench_alloc_aged},
	{"metadata", bench_metadata},
	{"lookup", bench_lookup},
	{"mark", bench_mark},
	{"sweep", bench_sweep},
	{"stack_scan", bench_stack_scan},
	{"patch", bench_patch},
	{"trampoline_make", bench_trampoline_make},
	{"trampoline_call", bench_trampoline_call},
	{"frame_walk", bench_frame_walk},
	{"profile", bench_profile},
	{"publish", bench_publish},
	{"throw_elsewhere", bench_throw},
	{"withdraw", bench_withdraw},
	{"headline", bench_headline},
	{"stats_file", bench_stats_file},
	{"pressure", bench_pressure},
	{"fork", bench_fork},
	{"heap_create", bench_create},
	{"scheme", bench_scheme},
	{"python", bench_python},
};

static struct bench_row rows[ROWS_MAX];
static int row_count;
static int pipe_write = -1;
static char machine[512];

/* --- in the row's process --- */

static void send_row(const struct bench_row *row)
{
	if (write(pipe_write, row, sizeof *row) != (ssize_t)sizeof *row)
		_exit(3);
}

static double spread_of(double *values, int count)
{
	double middle = bench_median(values, count);
	return count > 1 && middle > 0
		       ? (values[count - 1 - count / 4] - values[count / 4]) / middle
		       : 0;
}

static double shown_of(double *values, int count, bool is_of_best)
{
	double middle = bench_median(values, count);
	return is_of_best && count ? values[0] : middle;
}

static double against(const struct bench_row *row, struct bench_goal goal)
{
	switch (goal.of) {
	case BENCH_OF_PEER:
		return row->ours / row->peer;
	case BENCH_OF_LIMIT:
		return row->ours / row->limit;
	default:
		return row->ours;
	}
}

void bench_emit(const char *name, const char *unit, const struct bench_runs *measured,
		const char *peer_name, struct bench_goal goal, const char *note)
{
	struct bench_runs runs = *measured;
	struct bench_row row = {.runs = runs.count, .goal = goal.value, .goal_sign = goal.sign};
	snprintf(row.name, sizeof row.name, "%s", name);
	snprintf(row.unit, sizeof row.unit, "%s", unit);
	snprintf(row.peer_name, sizeof row.peer_name, "%s", peer_name ? peer_name : "");
	bench_format(row.note, sizeof row.note, "%s%s", runs.is_of_best ? "best run; " : "",
		     note ? note : "");
	row.spread = spread_of(runs.ours, runs.count);
	row.ours = shown_of(runs.ours, runs.count, runs.is_of_best);
	row.peer = runs.peer_count ? shown_of(runs.peer, runs.peer_count, runs.is_of_best) : NAN;
	row.limit =
		runs.limit_count ? shown_of(runs.limit, runs.limit_count, runs.is_of_best) : NAN;
	row.ratio = goal.of == BENCH_OF_LIMIT ? row.ours / row.limit : row.ours / row.peer;
	row.goal_is_of_ratio = goal.of != BENCH_OF_OURS;
	double value = against(&row, goal);
	if (!goal.sign)
		row.met = BENCH_NO_GOAL;
	else if (isnan(value))
		row.met = BENCH_ABSENT;
	else
		row.met = (goal.sign == '<' ? value <= goal.value : value >= goal.value)
				  ? BENCH_MET
				  : BENCH_MISSED;
	send_row(&row);
}

void bench_absent(const char *name, const char *unit, struct bench_goal goal, const char *why)
{
	struct bench_row row = {.ours = NAN,
				.peer = NAN,
				.limit = NAN,
				.ratio = NAN,
				.goal = goal.value,
				.goal_sign = goal.sign,
				.met = BENCH_ABSENT};
	row.goal_is_of_ratio = goal.of != BENCH_OF_OURS;
	snprintf(row.name, sizeof row.name, "%s", name);
	snprintf(row.unit, sizeof row.unit, "%s", unit);
	snprintf(row.note, sizeof row.note, "%s", why);
	send_row(&row);
}

/* --- in the parent --- */

static void print_number(double value, const char *format)
{
	if (isnan(value))
		printf("%10s", "-");
	else
		printf(format, value);
}

static void print_row(const struct bench_row *row)
{
	static const char *const words[] = {"", "met", "MISSED", "n/a"};
	char goal[24] = "";
	if (row->goal_sign)
		snprintf(goal, sizeof goal, "%c= %g%s", row->goal_sign, row->goal,
			 row->goal_is_of_ratio ? " x" : "");
	printf("%-26s %-10s", row->name, row->unit);
	print_number(row->ours, "%10.3f");
	print_number(row->peer, "%10.3f");
	print_number(row->limit, "%10.3f");
	print_number(row->ratio, "%10.3f");
	printf("  %-10s %-6s %2d  %4.0f%%  %s%s%s\n", goal, words[row->met], row->runs,
	       row->spread * 100, row->peer_name, row->peer_name[0] && row->note[0] ? "; " : "",
	       row->note);
	fflush(stdout);
}

static void run_group(int i)
{
	int ends[2];
	if (pipe(ends)) {
		perror("bench: pipe");
		exit(1);
	}
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ends[0]);
		pipe_write = ends[1];
		alarm(ROW_SECONDS);
		bench_pin(1);
		groups[i].run();
		_exit(0);
	}
	close(ends[1]);
	struct bench_row row;
	while (child > 0 && read(ends[0], &row, sizeof row) == (ssize_t)sizeof row) {
		print_row(&row);
		if (row_count < ROWS_MAX)
			rows[row_count++] = row;
	}
	close(ends[0]);
	int status = 0;
	if (child < 0 || waitpid(child, &status, 0) < 0 || status) {
		printf("%-26s FAILED (%s %d)\n", groups[i].name,
		       WIFSIGNALED(status) ? "signal" : "exit",
		       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		rows[row_count] = (struct bench_row){
			.ours = NAN, .peer = NAN, .limit = NAN, .ratio = NAN, .met = BENCH_MISSED};
		snprintf(rows[row_count++].name, sizeof row.name, "%s_failed", groups[i].name);
	}
}

static void json_number(FILE *file, const char *key, double value)
{
	if (isnan(value) || isinf(value))
		fprintf(file, ",\"%s\":null", key);
	else
		fprintf(file, ",\"%s\":%.6g", key, value);
}

static void json_text(FILE *file, const char *key, const char *text)
{
	fprintf(file, ",\"%s\":\"", key);
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			fputc('\\', file);
		if ((unsigned char)*text >= ' ')
			fputc(*text, file);
	}
	fputc('"', file);
}

static bool write_json(const char *path)
{
	static const char *const met[] = {"null", "true", "false", "null"};
	FILE *file = fopen(path, "w");
	if (!file)
		return false;
	fprintf(file, "{\"processors\":%ld", sysconf(_SC_NPROCESSORS_ONLN));
	json_text(file, "machine", machine);
	json_text(file, "compiler", __VERSION__);
	fputs(",\"rows\":[", file);
	for (int i = 0; i < row_count; i++) {
		const struct bench_row *row = &rows[i];
		fprintf(file, "%s\n{\"name\":\"%s\"", i ? "," : "", row->name);
		json_text(file, "unit", row->unit);
		json_number(file, "ours", row->ours);
		json_number(file, "peer", row->peer);
		json_text(file, "peer_name", row->peer_name);
		json_number(file, "limit", row->limit);
		json_number(file, "ratio", row->ratio);
		char goal[32] = "";
		if (row->goal_sign)
			snprintf(goal, sizeof goal, "%c= %g", row->goal_sign, row->goal);
		json_text(file, "goal", goal);
		fprintf(file, ",\"goal_is_of_ratio\":%s,\"met\":%s,\"runs\":%d",
			row->goal_is_of_ratio ? "true" : "false", met[row->met], row->runs);
		json_number(file, "spread", row->spread);
		json_text(file, "note", row->note);
		fputc('}', file);
	}
	fputs("\n]}\n", file);
	return fclose(file) == 0;
}

static void look_at_machine(void)
{
	struct utsname names;
	char line[256], cpu[200] = "unknown processor";
	FILE *info = fopen("/proc/cpuinfo", "r");
	while (info && fgets(line, sizeof line, info))
		if (sscanf(line, "model name : %199[^\n]", cpu) == 1)
			break;
	if (info)
		fclose(info);
	uname(&names);
	snprintf(machine, sizeof machine, "%s, %ld processors, %s %s", cpu,
		 sysconf(_SC_NPROCESSORS_ONLN), names.sysname, names.release);
}

static void print_machine(void)
{
	look_at_machine();
	printf("machine   %s\n", machine);
	printf("compiler  %s, flags of this build: make vars\n", __VERSION__);
	printf("peers     %s | %s\n", peer_asmjit_name(false), peer_asmjit_name(true));
	printf("time      processor time of the thread, unless the row says wall; medians of runs; "
	       "spread is the middle half\n\n");
	printf("%-26s %-10s%10s%10s%10s%10s  %-10s %-6s %2s  %5s  %s\n", "row", "unit", "ours",
	       "peer", "limit", "ratio", "goal", "", "n", "sprd", "peer; note");
}

int main(int argc, char **argv)
{
	const char *json = NULL, *only = NULL;
	for (int i = 1; i < argc; i++) {
		if (!strncmp(argv[i], "--json=", 7)) {
			json = argv[i] + 7;
		} else if (!strncmp(argv[i], "--only=", 7)) {
			only = argv[i] + 7;
		} else if (!strcmp(argv[i], "--counted")) {
			bench_counted();
			return 0;
		} else {
			fprintf(stderr, "usage: bench [--json=FILE] [--only=GROUP] | --counted\n");
			return 2;
		}
	}
	print_machine();
	for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
		if (!only || !strcmp(only, groups[i].name))
			run_group((int)i);
	if (!row_count) {
		fprintf(stderr, "bench: no group is called `%s`\n", only);
		return 2;
	}
	int missed = 0;
	for (int i = 0; i < row_count; i++)
		missed += rows[i].met == BENCH_MISSED;
	printf("\n%d rows, %d MISSED\n", row_count, missed);
	if (json && !write_json(json)) {
		fprintf(stderr, "bench: %s: %s\n", json, strerror(errno));
		return 1;
	}
	return 0;
}
