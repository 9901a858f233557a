/* SPDX-License-Identifier: MIT
 * core.c: whether the process has a core of the observers' own release. */
#include "observe/core.h"

#include "codeheap/listener.h"
#include "os/threads.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { LINE_BYTES = 160 };

/* Weak: a preloaded library also comes into processes without a core. */
extern __typeof__(ch__listener_release) ch__listener_release __attribute__((weak));

static void tell(const char *release)
{
	static _Atomic(uint32_t) is_told;
	char line[LINE_BYTES];
	if (atomic_exchange(&is_told, 1))
		return;
	int n = snprintf(line, sizeof line,
			 "codeheap: libcodeheap-profile is of release %s, libcodeheap of %s\n",
			 CH_VERSION_TEXT, release);
	ch__os_write_last(line, n < LINE_BYTES ? (size_t)n : sizeof line - 1);
}

bool ch__core_is_ours(void)
{
	if (!ch__listener_release)
		return false;
	const char *release = ch__listener_release();
	if (strcmp(release, CH_VERSION_TEXT) == 0)
		return true;
	tell(release);
	return false;
}
