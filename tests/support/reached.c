/* SPDX-License-Identifier: MIT
 * reached.c: which code of the library a process ran, for the index of `make tests-of`. Linked in
 * the build of `make coverage`, whose compiler calls the function below at the start of each basic
 * block of the library.
 *
 * CODEHEAP_REACHED names a folder: the file there with the program's name has a byte for each byte
 * of the program's code. The byte behind each executed call is 1. The file is mapped and shared, so
 * the bytes of children of fork count, and the bytes of killed processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern const char __executable_start[], __etext[];
void __sanitizer_cov_trace_pc(void);

static unsigned char *reached; /* NULL: nobody asked */

/* Called anywhere, in signal handlers and children too. A byte that is 1 is not written again:
 * writes would move the cache line between threads. */
void __sanitizer_cov_trace_pc(void)
{
	unsigned char *bytes = reached;
	if (!bytes)
		return;
	unsigned char *byte =
		&bytes[(uintptr_t)__builtin_return_address(0) - (uintptr_t)__executable_start];
	if (!__atomic_load_n(byte, __ATOMIC_RELAXED))
		__atomic_store_n(byte, 1, __ATOMIC_RELAXED);
}

/* Runs before all constructors without a priority: before the library's and the cases'. */
__attribute__((constructor(101))) static void map_reached(void)
{
	const char *folder = getenv("CODEHEAP_REACHED");
	char path[PATH_MAX];
	if (!folder || !*folder)
		return;
	snprintf(path, sizeof path, "%s/%s", folder, program_invocation_short_name);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	size_t bytes = (uintptr_t)__etext - (uintptr_t)__executable_start + 1;
	if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
		return;
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map != MAP_FAILED)
		reached = map;
}
