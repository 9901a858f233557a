/* SPDX-License-Identifier: MIT
 * linux_errors.c: the last call that the system refused to the calling thread, names of errors and
 * signals, and lines on stderr. For texts only: nothing depends on them. No lock; signal-safe. */
#define _GNU_SOURCE
#include "os/os.h"
#include "os/text.h"
#include "os/threads.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __GLIBC__ /* musl has no such names */
#define strerrorname_np(error) ((const char *)NULL)
#define sigabbrev_np(signal) ((void)(signal), (const char *)NULL)
#endif

static _Thread_local struct {
	const char *call;
	int error;
} refused;

bool ch__os_note(bool is_done, const char *call)
{
	if (CH_UNLIKELY(!is_done)) {
		refused.call = call;
		refused.error = errno;
	}
	return is_done;
}

void ch__os_put_error(struct ch__text *text, int error)
{
	const char *name = strerrorname_np(error);
	if (refused.call && refused.error == error) {
		ch__text_put(text, refused.call);
		ch__text_put(text, " ");
	}
	refused.call = NULL;
	ch__text_put(text, name ? name : "errno ");
	if (!name)
		ch__text_put_number(text, (uint64_t)error, 10);
}

const char *ch__os_signal_name(int signal)
{
	return sigabbrev_np(signal);
}

void ch__os_write_last(const char *text, size_t n)
{
	int error = errno;
	syscall(SYS_write, STDERR_FILENO, text, n);
	errno = error;
}
