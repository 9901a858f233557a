/* SPDX-License-Identifier: MIT
 * linux_copy.c: memory that may be unreadable. Lies apart from what it takes as linux_composed.c
 * does, but is async-signal-safe. No lock. */
#include "arch/arch.h"
#include "os/linux.h"
#include "os/threads.h"
#include "os/valgrind.h"

size_t ch__os_copy(void *to, uintptr_t from, size_t bytes)
{
	int error = errno;
	long copied = ch__os_read_memory(to, from, bytes);
	bool is_refused = copied < 0 && errno != EFAULT;
	errno = error;
	if (!is_refused)
		return copied < 0 ? 0 : (size_t)copied;
	/* The system refuses the call or has none: reads words that were readable a moment ago. */
	size_t in_page = CH_ARCH_SMALLEST_PAGE - from % CH_ARCH_SMALLEST_PAGE;
	size_t words = (bytes < in_page ? bytes : in_page) / sizeof(uintptr_t);
	if (!ch__os_is_readable((const void *)from))
		return 0;
	ch__valgrind_copy(to, from, words);
	return words * sizeof(uintptr_t);
}
