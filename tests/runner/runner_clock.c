/* SPDX-License-Identifier: MIT
 * runner_clock.c: how long a case has run, without the time that the case waited for a processor,
 * and the end of all processes of the case.
 *
 * A thread that is kept from the processors for nine seconds of ten has run one second. About once
 * a second the clock looks at each thread of the case's process, of the process's group, and of all
 * descendants. While no thread is runnable the case waits for something else, and the time since
 * the last look counts. Otherwise the processor time of the threads counts, divided by the number
 * of threads that could have run at once. When nothing can be read all time counts.
 */
#define _GNU_SOURCE
#include "tests/runner/runner.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 300, STOPS_MAX = 100 };

struct process {
	pid_t pid, parent, group;
	char state;
	double processor_s; /* with the time of reaped children */
	bool is_member;
};

static struct process *processes;
static size_t process_count, process_room;

double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Reads the text behind the name in parentheses (any bytes). Returns false when there is none. */
static bool read_stat(const char *path, char *text, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, bytes - 1);
	if (fd >= 0)
		close(fd);
	text[n < 0 ? 0 : n] = 0;
	const char *behind = strrchr(text, ')');
	if (!behind)
		return false;
	memmove(text, behind + 1, strlen(behind + 1) + 1);
	return true;
}

static void read_process(const char *name)
{
	char path[PATH_BYTES], text[1000];
	unsigned long user, system;
	long children_user, children_system;
	struct process p = {.pid = (pid_t)atol(name)};
	snprintf(path, sizeof path, "/proc/%s/stat", name);
	if (p.pid <= 0 || !read_stat(path, text, sizeof text) ||
	    sscanf(text, " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld", &p.state,
		   &p.parent, &p.group, &user, &system, &children_user, &children_system) != 7)
		return;
	p.processor_s = (double)(user + system + (unsigned long)(children_user + children_system)) /
			(double)sysconf(_SC_CLK_TCK);
	if (process_count == process_room) {
		process_room = process_room ? 2 * process_room : 512;
		processes = realloc(processes, process_room * sizeof *processes);
		if (!processes)
			die("realloc");
	}
	processes[process_count++] = p;
}

static void read_processes(void)
{
	DIR *folder = opendir("/proc");
	process_count = 0;
	for (struct dirent *entry; folder && (entry = readdir(folder));)
		read_process(entry->d_name);
	if (folder)
		closedir(folder);
}

static bool has_member(pid_t pid)
{
	for (size_t i = 0; i < process_count; i++)
		if (processes[i].pid == pid)
			return processes[i].is_member;
	return false;
}

/* A child that leads its own group is found by the parent, an orphan by the group. */
static void find_members(pid_t first)
{
	bool has_found = true;
	for (size_t i = 0; i < process_count; i++)
		processes[i].is_member = processes[i].pid == first || processes[i].group == first;
	while (has_found) {
		has_found = false;
		for (size_t i = 0; i < process_count; i++) {
			struct process *p = &processes[i];
			if (p->is_member || !has_member(p->parent))
				continue;
			p->is_member = has_found = true;
		}
	}
}

/* Counts the threads of a process that run or wait for a processor. */
static int count_runnable(pid_t pid)
{
	char path[PATH_BYTES], text[1000];
	int runnable = 0;
	snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
	DIR *folder = opendir(path);
	for (struct dirent *entry; folder && (entry = readdir(folder));) {
		snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)pid, entry->d_name);
		runnable += *entry->d_name != '.' && read_stat(path, text, sizeof text) &&
			    strncmp(text, " R", 2) == 0;
	}
	if (folder)
		closedir(folder);
	return runnable;
}

void clock_start(struct case_clock *clock, pid_t pid)
{
	*clock = (struct case_clock){.pid = pid, .at_s = now_s()};
}

static void charge(struct case_clock *clock)
{
	double processor_s = 0, now = now_s(), more = now - clock->at_s;
	int runnable = 0, at_once = (int)sysconf(_SC_NPROCESSORS_ONLN);
	find_members(clock->pid);
	for (size_t i = 0; i < process_count; i++) {
		if (!processes[i].is_member)
			continue;
		processor_s += processes[i].processor_s;
		runnable += count_runnable(processes[i].pid);
	}
	double ran = processor_s - clock->processor_s;
	if (runnable < at_once)
		at_once = runnable;
	if (runnable && ran < more * at_once)
		more = ran > 0 ? ran / at_once : 0;
	clock->processor_s = processor_s;
	clock->at_s = now;
	clock->run_s += more;
}

double clock_left(struct case_clock *clock, double limit_s)
{
	double unseen = now_s() - clock->at_s;
	if (unseen >= 1 || clock->run_s + unseen >= limit_s) {
		read_processes();
		charge(clock);
		unseen = 0;
	}
	return limit_s - clock->run_s - unseen;
}

/* Stops all processes before killing any: no process can then start another or leave an orphan that
 * is not found. */
void end_all_of(pid_t first)
{
	bool has_found = true;
	for (int i = 0; has_found && i < STOPS_MAX; i++) {
		has_found = false;
		read_processes();
		find_members(first);
		for (struct process *p = processes; p < processes + process_count; p++)
			if (p->is_member && !strchr("TtZX", p->state))
				has_found |= kill(p->pid, SIGSTOP) == 0;
	}
	for (struct process *p = processes; p < processes + process_count; p++)
		if (p->is_member)
			kill(p->pid, SIGKILL);
	kill(-first, SIGKILL);
}
