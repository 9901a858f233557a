/* SPDX-License-Identifier: MIT
 * minimise.c: runs in child processes, delta debugging over a list of any items, files of
 * failures. */
#include "minimise.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_EVERY_US = 2000, KEPT_FILES = 64, KEPT_BYTES = 1 << 20, READ_BYTES = 64 << 20 };

uint64_t minimise_ms = 60000;

uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t slowness(void)
{
	const char *text = getenv("CODEHEAP_TEST_SLOW");
	uint64_t times = text ? strtoull(text, NULL, 10) : 1;
	return times ? times : 1;
}

/* --- runs --- */

static void be_quiet(void)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (null < 0)
		return;
	dup2(null, STDOUT_FILENO);
	dup2(null, STDERR_FILENO);
}

bool run_start(struct run *run, int (*fn)(void *arg), void *arg, uint64_t limit_ms, bool is_quiet)
{
	fflush(stdout);
	fflush(stderr);
	run->deadline_ms = now_ms() + limit_ms;
	run->code = 0;
	run->process = fork();
	if (run->process == 0) {
		setpgid(0, 0);
		if (is_quiet)
			be_quiet();
		int code = fn(arg);
		fflush(stdout);
		_exit(code);
	}
	/* Parent and child both call setpgid, so neither has to wait for the group. */
	if (run->process > 0)
		setpgid(run->process, run->process);
	else
		perror("stress: there is no process for a run");
	return run->process > 0;
}

static enum run_end end_of(struct run *run, int status)
{
	/* Processes that the run forked and left behind end here, too. */
	kill(-run->process, SIGKILL);
	if (WIFSIGNALED(status)) {
		run->code = WTERMSIG(status);
		return RUN_DIED;
	}
	run->code = WEXITSTATUS(status);
	return run->code ? RUN_FAILED : RUN_FINE;
}

void run_kill(struct run *run)
{
	int status;
	kill(-run->process, SIGKILL);
	kill(run->process, SIGKILL);
	while (waitpid(run->process, &status, 0) < 0 && errno == EINTR)
		continue;
}

bool run_poll(struct run *run, enum run_end *end)
{
	int status;
	pid_t ended = waitpid(run->process, &status, WNOHANG);
	if (ended == run->process) {
		*end = end_of(run, status);
		return true;
	}
	if (ended == 0 && now_ms() < run->deadline_ms)
		return false;
	run_kill(run);
	*end = RUN_HUNG;
	return true;
}

enum run_end run_wait(struct run *run)
{
	enum run_end end;
	while (!run_poll(run, &end))
		usleep(LOOK_EVERY_US);
	return end;
}

const char *run_text(const struct run *run, enum run_end end)
{
	static char text[64];
	if (end == RUN_DIED)
		snprintf(text, sizeof text, "died of signal %d", run->code);
	else if (end == RUN_FAILED)
		snprintf(text, sizeof text, "ended with %d", run->code);
	else
		snprintf(text, sizeof text, "%s", end == RUN_HUNG ? "did not end" : "was fine");
	return text;
}

/* --- fewer items --- */

static size_t count_kept(const struct minimise *list)
{
	size_t kept = 0;
	for (size_t i = 0; i < list->count; i++)
		kept += list->keep[i];
	return kept;
}

/* Leaves out the kept items from the first-th on, as many as `some`. */
static void leave_out(const struct minimise *list, bool *trial, size_t first, size_t some)
{
	size_t at = 0;
	for (size_t i = 0; i < list->count; i++) {
		trial[i] = list->keep[i] && !(at >= first && at - first < some);
		at += list->keep[i];
	}
}

/* One pass over the list in pieces of this size. Returns true when some piece could go. */
static bool drop_pieces(struct minimise *list, bool *trial, size_t size)
{
	bool has_dropped = false;
	/* From the end: late items rarely decide, and remaining items keep their places. */
	for (size_t end = count_kept(list); end > 0 && now_ms() < list->deadline_ms;) {
		size_t first = end > size ? end - size : 0;
		leave_out(list, trial, first, end - first);
		if (list->still_fails(list->context, trial)) {
			memcpy(list->keep, trial, list->count * sizeof *trial);
			has_dropped = true;
		}
		end = first;
	}
	return has_dropped;
}

size_t minimise(struct minimise *list)
{
	bool *trial = calloc(list->count + 1, sizeof *trial);
	if (!trial)
		return count_kept(list);
	for (size_t size = (count_kept(list) + 1) / 2; size && now_ms() < list->deadline_ms;) {
		bool has_dropped = drop_pieces(list, trial, size);
		if (size == 1 && !has_dropped)
			break;
		size_t kept = count_kept(list);
		if (!has_dropped || size > kept)
			size = size > 1 ? (size + 1) / 2 : 1;
	}
	free(trial);
	return count_kept(list);
}

/* --- files --- */

void failure_keep(const char *folder, const char *name, const char *what, const char *text,
		  size_t length)
{
	static int files;
	char path[512];
	snprintf(path, sizeof path, "%s/failures", folder);
	mkdir(folder, 0777);
	mkdir(path, 0777);
	snprintf(path, sizeof path, "%s/failures/%s", folder, name);
	FILE *file = files < KEPT_FILES && length <= KEPT_BYTES ? fopen(path, "w") : NULL;
	bool is_kept = file && fwrite(text, 1, length, file) == length;
	if (file && fclose(file))
		is_kept = false;
	files += is_kept;
	printf("%s: %s%s\n", what, path, is_kept ? "" : " (not kept)");
	fflush(stdout);
}

char *failure_read(const char *path, size_t *length)
{
	FILE *file = fopen(path, "r");
	char *text = file ? malloc(READ_BYTES + 1) : NULL;
	if (text) {
		*length = fread(text, 1, READ_BYTES, file);
		text[*length] = 0;
	}
	if (file)
		fclose(file);
	return text;
}
