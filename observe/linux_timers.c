/* SPDX-License-Identifier: MIT
 * linux_timers.c: timers that send SIGPROF to a thread, the handler's questions about a signal, and
 * the mapped files of the process. No lock of the library. A function is async-signal-safe only if
 * system.h says so. */
#define _GNU_SOURCE
#include "observe/system.h"
#include "os/linux.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

enum { NS_PER_S = 1000000000 };

_Static_assert(sizeof(timer_t) <= sizeof(void *), "struct ch__os_timer holds one");

/* --- timers --- */

/* The kernel's number for the CPU clock of a thread: bits 0 and 1 are the kind of time, 2 (the
 * scheduler's time); bit 2 marks the clock of a thread. */
static clockid_t cpu_clock_of(int thread_id)
{
	return (clockid_t)(~(unsigned)thread_id << 3 | 6u);
}

static struct timespec timespec_of(uint64_t ns)
{
	return (struct timespec){(time_t)(ns / NS_PER_S), (long)(ns % NS_PER_S)};
}

bool ch__os_timer_start(struct ch__os_timer *timer, int thread_id, bool by_wall_clock,
			uint64_t interval_ns, void *value)
{
	struct sigevent event;
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_THREAD_ID;
	event.sigev_signo = SIGPROF;
	event.sigev_value.sival_ptr = value;
	event.sigev_notify_thread_id = thread_id;
	timer_t made;
	clockid_t clock = by_wall_clock ? CLOCK_MONOTONIC : cpu_clock_of(thread_id);
	if (timer_create(clock, &event, &made) != 0)
		return false;
	/* The first signal comes at a random point of the first interval: else threads that live
	 * for less than an interval would have no sample, however many they are. */
	uint64_t first_ns;
	ch__os_random(&first_ns, sizeof first_ns);
	first_ns = 1 + first_ns % interval_ns;
	struct itimerspec times = {timespec_of(interval_ns), timespec_of(first_ns)};
	if (timer_settime(made, 0, &times, NULL) != 0) {
		int error = errno;
		timer_delete(made);
		errno = error;
		return false;
	}
	timer->system = (void *)made;
	return true;
}

void ch__os_timer_stop(struct ch__os_timer *timer)
{
	timer_delete((timer_t)timer->system);
}

bool ch__os_timer_expired(const void *siginfo, void **value, uint32_t *times)
{
	const siginfo_t *info = siginfo;
	if (info->si_code != SI_TIMER)
		return false;
	*value = info->si_value.sival_ptr;
	*times = 1 + (uint32_t)(info->si_overrun > 0 ? info->si_overrun : 0);
	return true;
}

/* --- the handler of SIGPROF --- */

bool ch__os_profile_is_handled(void)
{
	struct sigaction now;
	return sigaction(SIGPROF, NULL, &now) != 0 || ch__is_handler(&now);
}

void ch__os_profile_chain(void *info, void *ucontext, struct ch__os_action *old)
{
	sigset_t mask = ((const ucontext_t *)ucontext)->uc_sigmask;
	sigaddset(&mask, SIGPROF);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	ch__os_signal_chain(SIGPROF, info, ucontext, old, false);
}

/* --- mappings --- */

/* Reads a number and the character behind. Returns the text after both, or NULL. */
static char *parse_hex(char *from, char behind, uint64_t *value)
{
	char *end = from;
	*value = strtoull(from, &end, 16);
	return end != from && *end == behind ? end + 1 : NULL;
}

/* A line is "low-high rwxp offset major:minor inode   path". Returns false for other text. */
static bool parse(char *line, struct ch__os_mapping *mapping)
{
	uint64_t low, high, device_major, device_minor;
	char *access = parse_hex(line, '-', &low);
	if (!access || !(access = parse_hex(access, ' ', &high)))
		return false;
	char *at = strchr(access, ' ');
	if (!at || at - access < 4 || !(at = parse_hex(at + 1, ' ', &mapping->offset)) ||
	    !(at = parse_hex(at, ':', &device_major)) ||
	    !(at = parse_hex(at, ' ', &device_minor)))
		return false;
	char *path = at;
	mapping->inode = strtoull(at, &path, 10);
	if (path == at)
		return false;
	mapping->low = (uintptr_t)low;
	mapping->high = (uintptr_t)high;
	mapping->device = makedev((unsigned)device_major, (unsigned)device_minor);
	mapping->is_executable = access[2] == 'x';
	mapping->path = path + strspn(path, " ");
	return true;
}

/* Visits the lines in order. A line longer than the buffer is lost. ENODATA: there are no lines. */
static bool read_lines(int fd, bool (*visit)(void *, const struct ch__os_mapping *), void *arg)
{
	char text[8192];
	size_t have = 0;
	for (bool is_any = false;;) {
		ssize_t got = read(fd, text + have, sizeof text - 1 - have);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return false;
		have += (size_t)got;
		text[have] = 0;
		char *at = text;
		for (char *end; (end = strchr(at, '\n')); at = end + 1) {
			struct ch__os_mapping mapping;
			*end = 0;
			if (parse(at, &mapping) && !visit(arg, &mapping))
				return true;
		}
		if (got == 0) {
			if (!is_any)
				errno = ENODATA;
			return is_any;
		}
		is_any = true;
		have -= (size_t)(at - text);
		memmove(text, at, have);
		if (have == sizeof text - 1) {
			*text = '?'; /* no mapping begins so: what follows of the line is none */
			have = 1;
		}
	}
}

bool ch__os_each_mapping(bool (*visit)(void *arg, const struct ch__os_mapping *), void *arg)
{
	/* The first file has no lines after the end of the first thread. Emulators show the guest's
	 * mappings in the first file alone. */
	static const char *const paths[] = {"/proc/self/maps", "/proc/thread-self/maps"};
	int cancel = ch__cancel_hold(), error = 0;
	bool is_read = false;
	for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
		int fd = ch__os_fd_apart(open(paths[i], O_RDONLY | O_CLOEXEC));
		is_read = fd >= 0 && read_lines(fd, visit, arg);
		error = errno;
		if (fd >= 0)
			close(fd);
		if (is_read || (fd >= 0 && error != ENODATA))
			break; /* lines were visited */
	}
	ch__cancel_allow(cancel);
	errno = error;
	return is_read;
}
