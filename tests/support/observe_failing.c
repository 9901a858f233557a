/* SPDX-License-Identifier: MIT
 * observe_failing.c: observe/'s calls to the OS as tests have them: a chosen call fails. */
#include "tests/support/os_failing.h"
#include "observe/system.h"

#include <time.h>

REFUSES(ch__os_timer_start, bool, false,
	(struct ch__os_timer *timer, int thread_id, bool by_wall_clock, uint64_t interval_ns,
	void *value), (timer, thread_id, by_wall_clock, interval_ns, value))
REFUSES(timer_settime, int, -1,
	(timer_t timer, int flags, const struct itimerspec *times, struct itimerspec *old),
	(timer, flags, times, old))
REFUSES(ch__os_thread_start, bool, false,
	(struct ch__os_thread *thread, void (*run)(void *arg), void *arg), (thread, run, arg))
/* The file is closed all the same. */
BETWEEN(ch__os_file_close, bool, (int fd))
{
	bool is_refused = ch__os_may_fail();
	int error = errno;
	bool is_closed = __real_ch__os_file_close(fd);
	if (is_refused)
		errno = error;
	return is_closed && !is_refused;
}
REFUSES(ch__os_file_open, int, -1, (const char *path), (path))
REFUSES(ch__os_file_straight, int, -1, (const char *path), (path))
REFUSES(ch__os_each_mapping, bool, false,
	(bool (*visit)(void *arg, const struct ch__os_mapping *), void *arg), (visit, arg))
REFUSES(ch__os_library_load, bool, false, (const char *library), (library))
